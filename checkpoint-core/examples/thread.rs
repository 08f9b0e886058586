//! One thread in memory: commit steps, keep the result of a finished task, resume after a crash, fork from the past.
//!
//! ```sh
//! cargo run -p checkpoint-core --example thread
//! ```

use checkpoint_core::{InMemorySaver, Result, SaverExt};
use futures_util::TryStreamExt;
use serde::{Deserialize, Serialize};

/// The state of the agent. Each field is a channel.
#[derive(Debug, Serialize, Deserialize)]
struct Trip {
    question: String,
    notes: Vec<String>,
    answer: Option<String>,
}

/// What a task returns.
#[derive(Serialize, Deserialize)]
struct Note {
    note: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    // Any other saver works the same, for instance `SqliteSaver` or `PostgresSaver`.
    let saver = InMemorySaver::new();
    let thread = saver.thread("trip-1");

    // The first checkpoint is the input.
    let start =
        thread.begin(&Trip { question: "Where to in March?".into(), notes: vec![], answer: None }).await?;

    // Two tasks belong to this step. One finishes, and its result is stored at once; then the program crashes.
    thread.record(&start, "climate", &Note { note: "mild in Lisbon".into() }).await?;

    // Resume: the newest checkpoint says where the thread is, and which tasks need not run again.
    let Some(at) = thread.latest().await? else { return Ok(()) };
    println!("resumed at step {}, done: {:?}", at.step(), at.done_tasks());
    if !at.is_done("prices") {
        thread.record(&at, "prices", &Note { note: "flights from 80 EUR".into() }).await?;
    }

    // Commit: read the results of both tasks into the state, and store it as the next checkpoint.
    let Some(at) = thread.latest().await? else { return Ok(()) };
    let mut trip: Trip = at.values()?;
    for task in ["climate", "prices"] {
        trip.notes.extend(at.result::<Note>(task)?.map(|result| result.note));
    }
    let researched = thread.commit(&at, &trip).await?;
    trip.answer = Some("Lisbon".into());
    thread.commit(&researched, &trip).await?;

    // Fork: go on from the past. The newest checkpoint of the thread is now on the new branch; the old branch stays.
    let fork = thread.fork(&researched).await?;
    let mut other: Trip = fork.values()?;
    other.answer = Some("Seville".into());
    thread.commit(&fork, &other).await?;

    println!("\nhistory, newest first:");
    let mut history = thread.history();
    while let Some(step) = history.try_next().await? {
        let answer: Option<Option<String>> = step.channel("answer")?;
        println!(
            "  step {:>2}  {:8}  answer: {:?}",
            step.step(),
            step.source().unwrap_or("?"),
            answer.flatten()
        );
    }
    Ok(())
}
