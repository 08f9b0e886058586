//! `ckpt demo`: kills a small agent in the middle of a step, and resumes it.
//!
//! The agent runs in separate processes. Every start of a task is logged to a file next to the database, by which the
//! demo knows what ran twice.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use checkpoint_core::{BaseCheckpointSaver, SaverExt, StateSnapshot, Thread};
use checkpoint_sqlite::SqliteSaver;
use futures_util::TryStreamExt;
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::history;
use crate::arguments::DemoAgent;
use crate::failure::{Failure, Result};
use crate::open::Saver;
use crate::output::{BOLD, DIM, GOOD, json_line, stdout, styled};

const DATABASE: &str = "demo.sqlite";
const STARTS: &str = "started-tasks.txt";
const THREAD: &str = "demo";

/// The tasks of the research step. The first is quick, so that it has finished when the process is killed.
const RESEARCH: [&str; 3] = ["climate", "prices", "flights"];

/// The state of the agent: each field is a channel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Trip {
    question: String,
    plan: Vec<String>,
    notes: Vec<String>,
    review: Option<String>,
    answer: Option<String>,
}

/// The result of a research task.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    note: String,
}

fn saver(dir: &Path) -> Result<SqliteSaver> {
    Ok(SqliteSaver::builder(dir.join(DATABASE)).build()?)
}

/// Runs the agent from the newest checkpoint until there is an answer.
pub(crate) async fn agent(arguments: &DemoAgent) -> Result<()> {
    let saver = saver(&arguments.dir)?;
    saver.setup().await?;
    let answered = answer(&saver.thread(THREAD), arguments).await;
    let closed = saver.close().await.map_err(Failure::from);
    answered.and(closed)
}

async fn answer(thread: &Thread<SqliteSaver>, arguments: &DemoAgent) -> Result<()> {
    let mut at = match thread.latest().await? {
        Some(at) => at,
        None => thread.begin(&Trip { question: "Where to in March?".into(), ..Trip::default() }).await?,
    };
    loop {
        let mut trip: Trip = at.values()?;
        if trip.answer.is_some() {
            return Ok(());
        }
        if trip.plan.is_empty() {
            trip.plan = RESEARCH.map(String::from).to_vec();
        } else if trip.notes.is_empty() {
            trip.notes = research(thread, &at, &trip.plan, arguments).await?;
        } else if trip.review.is_none() {
            trip.review = Some(format!("{} notes, no contradictions", trip.notes.len()));
        } else {
            trip.answer = Some(format!("To Lisbon, because of: {}.", trip.notes.join("; ")));
        }
        at = thread.commit(&at, &trip).await?;
    }
}

/// One step of parallel tasks. Each records its result when it finishes, and is not run again after that.
async fn research(
    thread: &Thread<SqliteSaver>,
    at: &StateSnapshot,
    plan: &[String],
    arguments: &DemoAgent,
) -> Result<Vec<String>> {
    let tasks = plan.iter().enumerate().map(|(position, topic)| async move {
        if let Some(found) = at.result::<Note>(topic)? {
            return Ok::<_, Failure>(found.note);
        }
        log_start(&arguments.dir, topic)?;
        // If the process is to be killed, only the first task finishes before.
        let quick = position == 0 || !arguments.die;
        tokio::time::sleep(Duration::from_millis(if quick { 20 } else { 60_000 })).await;
        let note = Note { note: format!("{topic} looks good") };
        thread.record(at, topic, &note).await?;
        if arguments.die {
            kill_this_process()?;
        }
        Ok(note.note)
    });
    try_join_all(tasks).await
}

fn log_start(dir: &Path, topic: &str) -> Result<()> {
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(dir.join(STARTS))?;
    Ok(writeln!(file, "{topic}")?)
}

/// Ends this process like a crash: nothing is flushed, closed or rolled back.
fn kill_this_process() -> Result<()> {
    if cfg!(unix) {
        Command::new("kill").args(["-9", &std::process::id().to_string()]).status()?;
        // Waits for the signal.
        std::thread::sleep(Duration::from_secs(10));
    }
    std::process::abort()
}

/// Whether a process was killed with SIGKILL, or on other systems failed.
fn was_killed(status: ExitStatus) -> bool {
    #[cfg(unix)]
    {
        std::os::unix::process::ExitStatusExt::signal(&status) == Some(9)
    }
    #[cfg(not(unix))]
    {
        !status.success()
    }
}

fn run_agent(dir: &Path, die: bool) -> Result<ExitStatus> {
    let mut agent = Command::new(std::env::current_exe()?);
    agent.arg("demo-agent").arg(dir);
    if die {
        agent.arg("--die");
    }
    Ok(agent.status()?)
}

/// The number of starts of each task.
fn starts(dir: &Path) -> Result<Vec<usize>> {
    let text = std::fs::read_to_string(dir.join(STARTS))?;
    Ok(RESEARCH.iter().map(|topic| text.lines().filter(|line| line == topic).count()).collect())
}

/// Fails the demo if a claim does not hold.
fn check(holds: bool, claim: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(Failure::failed(format!("the demo failed: expected that {claim}"))) }
}

fn folder(dir: Option<PathBuf>) -> Result<PathBuf> {
    let Some(dir) = dir else {
        return Ok(tempfile::Builder::new().prefix("ckpt-demo-").tempdir()?.keep());
    };
    std::fs::create_dir_all(&dir)
        .map_err(|error| Failure::usage(format!("cannot create the folder {}: {error}", dir.display())))?;
    if dir.join(DATABASE).exists() {
        return Err(Failure::usage(format!(
            "{} already contains a demo; choose another --dir",
            dir.display()
        )));
    }
    Ok(dir)
}

/// Prints the events of the demo, as text or JSON.
struct Story {
    json: bool,
}

impl Story {
    fn print(&self, event: &str, facts: &serde_json::Value, lines: &[String]) -> Result<()> {
        let mut out = stdout();
        if self.json {
            json_line(&mut out, &json!({ "event": event, "facts": facts }))?;
        } else {
            for line in lines {
                writeln!(out, "{line}")?;
            }
        }
        Ok(out.flush()?)
    }
}

pub(crate) async fn run(dir: Option<PathBuf>, json: bool) -> Result<()> {
    let dir = folder(dir)?;
    let story = Story { json };
    let head = |text: &str| styled(BOLD, text);
    let good = |text: String| format!("   {} {text}", styled(GOOD, "✓"));
    let [quick, others @ ..] = RESEARCH;

    let begin = [
        head("An agent plans a trip: plan, research (three tasks at once), review, answer."),
        format!("   Every step is a checkpoint in {}", styled(DIM, dir.join(DATABASE).display())),
        String::new(),
        head("1. It runs, and is killed with SIGKILL in the middle of the research."),
    ];
    story.print("begin", &json!({ "database": dir.join(DATABASE) }), &begin)?;
    let status = run_agent(&dir, true)?;
    check(was_killed(status), "the first process was killed")?;
    let saver = saver(&dir)?;
    let thread = saver.thread(THREAD);
    let latest =
        || async { thread.latest().await?.ok_or_else(|| Failure::failed("the demo left no checkpoint")) };
    let at_crash = latest().await?;
    check(at_crash.done_tasks() == [quick], "the quick task's result was kept")?;
    check(starts(&dir)? == [1, 1, 1], "each task was started once")?;
    let lines = [
        good(format!("the process is gone ({status})")),
        good(format!("`{quick}` had finished: its result is in the database")),
        good(format!("`{}` and `{}` had only begun", others[0], others[1])),
        String::new(),
        head("2. A new process resumes from the newest checkpoint."),
    ];
    story.print(
        "killed",
        &json!({ "done": at_crash.done_tasks(), "checkpoint_id": at_crash.id() }),
        &lines,
    )?;

    let status = run_agent(&dir, false)?;
    check(status.success(), "the second process finished")?;
    let counts = starts(&dir)?;
    check(counts == [1, 2, 2], "only the unfinished tasks were run again")?;
    let end = latest().await?;
    let trip: Trip = end.values()?;
    check(trip.notes.len() == RESEARCH.len(), "no note was lost")?;
    check(trip.answer.is_some(), "there is an answer")?;
    let ids: Vec<String> = thread.history().map_ok(|at| at.id().to_owned()).try_collect().await?;
    check(ids.iter().any(|id| id == at_crash.id()) && ids.len() == 5, "every step is in the history")?;
    let lines = [
        good(format!("`{quick}` was not run again (started {} time)", counts[0])),
        good(format!("`{}` and `{}` were (started {} times each)", others[0], others[1], counts[1])),
        good(format!("the answer: {}", trip.answer.as_deref().unwrap_or_default())),
        String::new(),
        head("3. Back to the plan, and another way from there."),
    ];
    story.print(
        "resumed",
        &json!({ "starts": counts, "answer": trip.answer, "steps": ids.len() }),
        &lines,
    )?;

    let planned = thread.at(at_crash.id()).await?;
    let planned = planned.ok_or_else(|| Failure::failed("the demo failed: the planned step is gone"))?;
    let fork = thread.fork(&planned).await?;
    let edited = Trip { plan: vec!["trains".into()], ..fork.values()? };
    thread.update(&fork, &edited).await?;
    let status = run_agent(&dir, false)?;
    check(status.success(), "the third process finished")?;
    let other: Trip = latest().await?.values()?;
    check(other.notes == ["trains looks good"], "the fork took its own way")?;
    let kept = thread.at(end.id()).await?.map(|at| at.values::<Trip>()).transpose()?;
    check(kept.as_ref() == Some(&trip), "the first answer is still there")?;
    let lines = [
        good(format!("the fork's answer: {}", other.answer.as_deref().unwrap_or_default())),
        good("the first answer is still in the history".into()),
        String::new(),
    ];
    story.print("forked", &json!({ "answer": other.answer, "fork": fork.id() }), &lines)?;

    let saver: Saver = std::sync::Arc::new(saver);
    history::run(&saver, history::Asked { thread: THREAD.into(), ns: None, limit: None }, json).await?;
    saver.close().await?;
    let url = format!("sqlite:{}", dir.join(DATABASE).display());
    let lines = [
        String::new(),
        format!("   Look closer: {}", styled(BOLD, format!("ckpt --url {url} show {THREAD}"))),
    ];
    story.print("end", &json!({ "url": url }), &lines)
}
