//! `ckpt setup`, `check`, `copy-thread`, `delete-thread`, `prune`.

use std::io::Write;

use checkpoint_core::{ErrorKind, PruneStrategy, ThreadQuery};
use futures_util::TryStreamExt;
use serde_json::json;

use super::failures::Failures;
use super::{has_thread, require_thread};
use crate::arguments::Strategy;
use crate::failure::{Failure, Result};
use crate::open::Saver;
use crate::output::{self, confirm, json_line, progress, stdout};

/// Prints the result, as text or JSON.
pub(super) fn done(json: bool, result: &serde_json::Value, sentence: &str) -> Result<()> {
    let mut out = stdout();
    if json {
        json_line(&mut out, result)?;
    } else {
        writeln!(out, "{sentence}")?;
    }
    Ok(out.flush()?)
}

pub(super) fn require_consent(yes: bool, question: &str) -> Result<()> {
    if yes || confirm(question)? {
        Ok(())
    } else {
        Err(Failure::usage("nothing was changed; confirm with --yes"))
    }
}

pub(crate) async fn setup(saver: &Saver, json: bool) -> Result<()> {
    saver.setup().await?;
    ready(saver, json)
}

pub(crate) async fn check(saver: &Saver, json: bool) -> Result<()> {
    saver.check_schema().await?;
    ready(saver, json)
}

fn ready(saver: &Saver, json: bool) -> Result<()> {
    let backend = saver.backend();
    let what = match backend {
        "mongo" => "The collection is ready.",
        "redis" => "The key prefix is ready.",
        _ => "The tables are ready.",
    };
    done(json, &json!({ "backend": backend, "ready": true }), what)
}

pub(crate) async fn copy_thread(
    saver: &Saver,
    source: &str,
    target: &str,
    yes: bool,
    json: bool,
) -> Result<()> {
    if source == target {
        return Err(Failure::usage("the copy must have another id than the thread"));
    }
    require_thread(saver, source).await?;
    if has_thread(saver, target).await? {
        let target = output::thread(target);
        require_consent(yes, &format!("Thread {target} already exists. Merge the copy into its history?"))?;
    }
    saver.copy_thread(source, target).await?;
    let sentence = format!("Copied {} to {}.", output::thread(source), output::thread(target));
    done(json, &json!({ "copied": source, "to": target }), &sentence)
}

pub(crate) async fn delete_thread(saver: &Saver, thread: &str, yes: bool, json: bool) -> Result<()> {
    require_thread(saver, thread).await?;
    require_consent(yes, &format!("Delete everything of thread {}?", output::thread(thread)))?;
    saver.delete_thread(thread).await?;
    done(json, &json!({ "deleted": thread }), &format!("Deleted {}.", output::thread(thread)))
}

pub(crate) async fn prune(
    saver: &Saver,
    threads: Option<Vec<String>>,
    strategy: Strategy,
    yes: bool,
    json: bool,
) -> Result<()> {
    let threads = if let Some(threads) = threads {
        for thread in &threads {
            require_thread(saver, thread).await?;
        }
        threads
    } else {
        let infos: Vec<_> = saver.list_threads(ThreadQuery::all()).try_collect().await?;
        infos.into_iter().map(|info| info.thread_id.to_string()).collect()
    };
    let (what, strategy) = match strategy {
        Strategy::KeepLatest => ("all but the newest checkpoints", PruneStrategy::KeepLatest),
        Strategy::Delete => ("everything", PruneStrategy::Delete),
    };
    let count = threads.len();
    let plural = if count == 1 { "thread" } else { "threads" };
    require_consent(yes, &format!("Delete {what} of {count} {plural}?"))?;
    let bar = progress(Some(u64::try_from(count).unwrap_or(u64::MAX)), "threads pruned");
    let mut failures = Failures::default();
    for thread in &threads {
        match saver.prune(&[thread], strategy).await {
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Schema) => {
                return Err(error.into());
            }
            Err(error) => failures.add(&bar, thread, error),
            Ok(()) => {}
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let all = u64::try_from(count).unwrap_or(u64::MAX);
    let pruned = all - failures.count();
    let plural = if pruned == 1 { "thread" } else { "threads" };
    done(
        json,
        &json!({ "pruned": pruned, "failed": failures.count() }),
        &format!("Pruned {pruned} {plural}."),
    )?;
    failures.into_result(all)
}
