//! An agent that survives a kill: it runs in a process of its own, dies in the middle of a step, and goes on.
//!
//! ```sh
//! cargo run -p checkpoint-sqlite --example survive_a_kill
//! ```

use std::path::Path;
use std::process::Command;

use checkpoint_core::{BaseCheckpointSaver, Error, ErrorKind, Result, SaverExt};
use checkpoint_sqlite::SqliteSaver;
use serde::{Deserialize, Serialize};

/// The tasks of the only step.
const TASKS: [&str; 3] = ["climate", "prices", "flights"];

/// The state of the agent. Each field is a channel.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Trip {
    notes: Vec<String>,
    done: bool,
}

/// What a task returns.
#[derive(Serialize, Deserialize)]
struct Note {
    note: String,
}

/// Runs the agent from the newest checkpoint to the end. The process aborts before `deadly`, if that task has to run.
async fn agent(database: &Path, deadly: &str) -> Result<()> {
    let saver = SqliteSaver::builder(database).build()?;
    saver.setup().await?; // Creates the tables; a no-op afterwards.
    let thread = saver.thread("trip-1");
    let at = match thread.latest().await? {
        Some(at) => at,
        None => thread.begin(&Trip::default()).await?,
    };
    for task in TASKS {
        if at.is_done(task) {
            println!("  {task}: finished before, not run again");
            continue;
        }
        if task == deadly {
            println!("  {task}: killed");
            std::process::abort(); // As by `kill -9`: nothing is cleaned up.
        }
        println!("  {task}: runs");
        // Durable when this returns, though the step is not complete.
        thread.record(&at, task, &Note { note: format!("about {task}") }).await?;
    }
    // Read once more, with the results of all tasks, and commit the step.
    let Some(at) = thread.latest().await? else { return Ok(()) };
    let mut trip: Trip = at.values()?;
    for task in TASKS {
        trip.notes.extend(at.result::<Note>(task)?.map(|result| result.note));
    }
    trip.done = true;
    let end = thread.commit(&at, &trip).await?;
    println!("  committed step {}: {:?}", end.step(), trip.notes);
    // Waits for calls under way and closes the file.
    saver.close().await
}

#[tokio::main]
async fn main() -> Result<()> {
    // The agent's process is this program with two arguments.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [database, deadly] = arguments.as_slice() {
        return agent(Path::new(database), deadly).await;
    }
    let failed =
        |error: std::io::Error| Error::new(ErrorKind::Backend, "the agent cannot be run").with_source(error);
    let directory = tempfile::tempdir().map_err(failed)?;
    for deadly in ["flights", ""] {
        println!("the agent starts");
        let agent = std::env::current_exe().map_err(failed)?;
        let status = Command::new(agent)
            .arg(directory.path().join("agents.sqlite"))
            .arg(deadly)
            .status()
            .map_err(failed)?;
        println!("the agent ended: {status}\n");
    }
    Ok(())
}
