//! `ckpt demo`: an agent-like workflow that is killed in the middle of a step, resumed and forked.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;

use checkpoint_core::{BaseCheckpointSaver, SaverExt as _, Snapshot, Thread};
use checkpoint_sqlite::SqliteSaver;
use futures_util::TryStreamExt as _;
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::failure::{Exit, Failure};
use crate::history;
use crate::open::Saver;

const THREAD: &str = "demo";
const TASKS: [&str; 3] = ["search", "read", "ask"];

#[derive(Debug, Serialize, Deserialize)]
struct State {
    question: String,
    plan: Vec<String>,
    notes: Vec<String>,
    reviewed: bool,
    answer: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Note {
    note: String,
}

#[derive(Debug, Serialize)]
struct Question {
    question: String,
}

async fn open(dir: &Path) -> Result<Saver, Failure> {
    let saver: Saver = Arc::new(SqliteSaver::builder(dir.join("demo.sqlite")).build()?);
    saver.setup().await?;
    Ok(saver)
}

fn log(dir: &Path, words: &str) -> Result<(), Failure> {
    let mut file = OpenOptions::new().create(true).append(true).open(dir.join("tasks.log"))?;
    Ok(writeln!(file, "{words} (process {})", std::process::id())?)
}

fn count(dir: &Path, words: &str) -> Result<usize, Failure> {
    let text = std::fs::read_to_string(dir.join("tasks.log"))?;
    Ok(text.lines().filter(|line| line.starts_with(&format!("{words} "))).count())
}

/// Runs the workflow in this process from wherever the thread stands to its end, or to its violent end.
pub(crate) async fn work(dir: &Path, crash: bool) -> Result<(), Failure> {
    let thread = open(dir).await?.thread(THREAD);
    let mut at = if let Some(at) = thread.latest().await? {
        at
    } else {
        let question = "How do agents survive a crash?".into();
        thread.begin(&State { question, plan: vec![], notes: vec![], reviewed: false, answer: None }).await?
    };
    loop {
        let mut state: State = at.values()?;
        if state.answer.is_some() {
            return Ok(());
        }
        if state.plan.is_empty() {
            log(dir, "ran plan")?;
            state.plan = TASKS.map(String::from).to_vec();
        } else if state.notes.is_empty() {
            let notes = TASKS.map(|task| research(dir, &thread, &at, &state.question, task, crash));
            state.notes = try_join_all(notes).await?;
        } else if state.reviewed {
            log(dir, "ran answer")?;
            state.answer = Some(format!("{} From {} notes.", state.question, state.notes.len()));
        } else {
            log(dir, "ran review")?;
            state.reviewed = true;
        }
        at = thread.commit(&at, &state).await?;
    }
}

async fn research(
    dir: &Path,
    thread: &Thread<Arc<dyn BaseCheckpointSaver>>,
    at: &Snapshot,
    question: &str,
    task: &str,
    crash: bool,
) -> Result<String, Failure> {
    if let Some(result) = at.result::<Note>(task)? {
        return Ok(result.note);
    }
    log(dir, &format!("started {task}"))?;
    if crash && task != "search" {
        // Still running when the process dies.
        return std::future::pending().await;
    }
    let note = format!("{task}: {question}");
    thread.record(at, task, &Note { note: note.clone() }).await?;
    log(dir, &format!("finished {task}"))?;
    if crash {
        Command::new("kill").args(["-9", &std::process::id().to_string()]).status()?;
        return std::future::pending().await;
    }
    Ok(note)
}

fn child(dir: &Path, crash: bool) -> Result<ExitStatus, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("demo-work").arg(dir);
    if crash {
        command.arg("--crash");
    }
    Ok(command.status()?)
}

#[cfg(unix)]
fn killed(status: ExitStatus) -> bool {
    std::os::unix::process::ExitStatusExt::signal(&status) == Some(9)
}

#[cfg(not(unix))]
fn killed(status: ExitStatus) -> bool {
    !status.success()
}

fn claim(holds: bool, words: &str) -> Result<(), Failure> {
    if holds {
        Ok(())
    } else {
        Err(Failure::new(Exit::Failed, format!("the demo's claim does not hold: {words}")))
    }
}

pub(crate) async fn run(dir: Option<PathBuf>, as_json: bool) -> Result<(), Failure> {
    let dir = match dir {
        Some(dir) => {
            std::fs::create_dir_all(&dir)?;
            dir
        }
        None => tempfile::Builder::new().prefix("ckpt-demo-").tempdir()?.keep(),
    };
    let file = dir.join("demo.sqlite");
    if file.exists() {
        return Err(Failure::new(
            Exit::Usage,
            format!("{} is there already; give --dir another place", file.display()),
        ));
    }
    let mut out = anstream::stdout();
    let mut say = |event: &str, words: String| -> Result<(), Failure> {
        if as_json {
            writeln!(out, "{}", json!({"event": event, "text": words}))?;
        } else {
            writeln!(out, "{words}")?;
        }
        Ok(())
    };

    claim(killed(child(&dir, true)?), "the first process was killed")?;
    let thread = open(&dir).await?.thread(THREAD);
    let missing = || Failure::new(Exit::Failed, "the demo's claim does not hold: the thread is there");
    let at = thread.latest().await?.ok_or_else(missing)?;
    claim(at.done_tasks() == ["search"], "one of three tasks is recorded")?;
    say(
        "killed",
        "1. A process ran plan, then three tasks in parallel. kill -9 hit it after `search` had finished."
            .into(),
    )?;

    claim(child(&dir, false)?.success(), "a second process resumed")?;
    let end = thread.latest().await?.ok_or_else(missing)?;
    let state: State = end.values()?;
    claim(state.notes.len() == TASKS.len() && state.answer.is_some(), "nothing was lost")?;
    for (words, times) in [
        ("ran plan", 1),
        ("started search", 1),
        ("finished search", 1),
        ("started read", 2),
        ("finished read", 1),
        ("started ask", 2),
        ("finished ask", 1),
    ] {
        claim(count(&dir, words)? == times, words)?;
    }
    say("resumed", "2. A second process resumed: `search` was not run again (started once), `read` and `ask` were (started twice).".into())?;
    say(
        "answer",
        format!("   All {} notes are there. Answer: {}", state.notes.len(), state.answer.unwrap_or_default()),
    )?;

    let snapshots: Vec<Snapshot> = thread.history().try_collect().await?;
    let planned = snapshots.iter().find(|snapshot| snapshot.step() == 0).ok_or_else(missing)?;
    let fork = thread.fork(planned).await?;
    thread.update(&fork, &Question { question: "And after a fork?".into() }).await?;
    claim(child(&dir, false)?.success(), "the fork ran to its end")?;
    let other: State = thread.latest().await?.ok_or_else(missing)?.values()?;
    let kept = thread.at(end.id().clone()).await?.ok_or_else(missing)?;
    let first: State = kept.values()?;
    claim(other.answer.is_some() && other.answer != first.answer, "the fork has an end of its own")?;
    say("forked", format!("3. A fork from step 0 ran to another end: {}", other.answer.unwrap_or_default()))?;
    if !as_json {
        say("history", "\nThe history:".into())?;
    }
    let saver = thread.saver().clone();
    history::run(&saver, THREAD, None, as_json).await?;
    let url = format!("sqlite:{}", file.display());
    say(
        "kept",
        format!(
            "The file is kept. Try:\n  ckpt --url {url} history {THREAD}\n  ckpt --url {url} show {THREAD}"
        ),
    )
}
