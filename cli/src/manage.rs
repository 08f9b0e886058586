//! Commands that take care of threads.

use std::io::{IsTerminal as _, Write as _};

use checkpoint_core::{ListQuery, PruneStrategy, SaverExt as _, ThreadQuery, id};
use comfy_table::{Table, presets};
use futures_util::TryStreamExt as _;
use indicatif::ProgressBar;
use serde_json::{Value as Json, json};

use crate::Strategy;
use crate::failure::{Exit, Failure};
use crate::open::Saver;
use crate::text;

fn say(as_json: bool, result: &Json, words: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout();
    if as_json {
        writeln!(out, "{result}")?;
    } else {
        writeln!(out, "{}", text::line(words))?;
    }
    Ok(())
}

pub(crate) async fn setup(saver: &Saver, as_json: bool) -> Result<(), Failure> {
    saver.setup().await?;
    say(as_json, &json!({"setup": true, "backend": saver.backend()}), "the tables are ready")
}

pub(crate) async fn threads(saver: &Saver, as_json: bool) -> Result<(), Failure> {
    let mut out = anstream::stdout();
    let mut threads = saver.list_threads(ThreadQuery::all());
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["THREAD", "NEWEST CHECKPOINT", "TIME"]);
    let mut count = 0_u64;
    while let Some(thread) = threads.try_next().await? {
        count += 1;
        let latest = &thread.latest_checkpoint_id;
        let ts = id::unix_micros(latest).map(id::isoformat);
        if as_json {
            let row = json!({"thread_id": &*thread.thread_id, "latest_checkpoint_id": &**latest, "ts": ts});
            writeln!(out, "{row}")?;
        } else {
            table.add_row([text::line(&thread.thread_id), text::line(latest), ts.unwrap_or_default()]);
        }
    }
    if !as_json {
        if count == 0 { writeln!(out, "no threads")? } else { writeln!(out, "{}", table.trim_fmt())? }
    }
    Ok(())
}

/// Fails with the threads that are there when a thread is not.
pub(crate) async fn require(saver: &Saver, thread: &str) -> Result<(), Failure> {
    if saver.list_first(ListQuery::thread(thread)).await?.is_some() {
        return Ok(());
    }
    let known: Vec<_> = saver.list_threads(ThreadQuery::all().limit(8)).try_collect().await?;
    let known: Vec<_> = known.iter().map(|thread| text::short(&thread.thread_id, 60)).collect();
    let there =
        if known.is_empty() { "there are none".into() } else { format!("there are: {}", known.join(", ")) };
    let thread = text::short(thread, 100);
    Err(Failure::new(Exit::NotFound, format!("no thread {thread:?}; {there}")))
}

pub(crate) async fn copy(saver: &Saver, source: &str, target: &str, as_json: bool) -> Result<(), Failure> {
    require(saver, source).await?;
    saver.copy_thread(source, target).await?;
    say(as_json, &json!({"copied": source, "to": target}), &format!("copied {source} to {target}"))
}

pub(crate) async fn delete(saver: &Saver, thread: &str, yes: bool, as_json: bool) -> Result<(), Failure> {
    require(saver, thread).await?;
    if !yes {
        if !std::io::stdin().is_terminal() {
            return Err(Failure::new(Exit::Usage, "delete-thread cannot be undone; confirm with --yes"));
        }
        write!(anstream::stderr(), "Delete everything of thread {}? [y/N] ", text::line(thread))?;
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            return Err(Failure::new(Exit::Failed, "nothing was deleted"));
        }
    }
    saver.delete_thread(thread).await?;
    say(as_json, &json!({"deleted": thread}), &format!("deleted {thread}"))
}

pub(crate) async fn prune(
    saver: &Saver,
    mut threads: Vec<String>,
    all: bool,
    strategy: Strategy,
    as_json: bool,
) -> Result<(), Failure> {
    if all {
        let every: Vec<_> = saver.list_threads(ThreadQuery::all()).try_collect().await?;
        threads = every.into_iter().map(|thread| thread.thread_id.to_string()).collect();
    } else {
        for thread in &threads {
            require(saver, thread).await?;
        }
    }
    let strategy = match strategy {
        Strategy::KeepLatest => PruneStrategy::KeepLatest,
        Strategy::Delete => PruneStrategy::Delete,
    };
    // indicatif draws on stderr, and only on a terminal.
    let progress = ProgressBar::new(threads.len() as u64);
    for thread in &threads {
        saver.prune(&[thread], strategy).await?;
        progress.inc(1);
    }
    progress.finish_and_clear();
    let count = threads.len();
    say(as_json, &json!({"pruned_threads": count}), &format!("pruned {count} thread(s)"))
}
