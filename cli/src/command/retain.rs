//! `ckpt retain`.

use std::io::Write;

use checkpoint_core::retention::{Freed, RetainBatch, RetainOptions, RetainReport, RetainSummary, Rule};
use checkpoint_core::{SaverExt, Str, ThreadQuery};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use indicatif::{HumanBytes, HumanCount};
use serde_json::{Value as Json, json};

use super::failures::Failures;
use super::manage::require_consent;
use super::require_thread;
use crate::arguments::Retain;
use crate::failure::{Failure, Result};
use crate::open::Saver;
use crate::output::{self, DIM, json_line, progress, stdout, styled};

pub(crate) async fn run(saver: &Saver, asked: &Retain, json: bool) -> Result<()> {
    let policy = asked.policy.retention()?;
    for thread in &asked.thread {
        require_thread(saver, thread).await?;
    }
    if !asked.dry_run {
        let threads = match (asked.thread.as_slice(), &asked.prefix) {
            ([], None) => "all threads".to_owned(),
            ([], Some(prefix)) => format!("the threads that begin with {}", output::thread(prefix)),
            ([thread], _) => format!("thread {}", output::thread(thread)),
            (threads, _) => format!("{} threads", threads.len()),
        };
        let question =
            format!("Remove what this policy does not keep, from {threads}? (--dry-run shows what goes)");
        require_consent(asked.consent.yes, &question)?;
    }
    let options = RetainOptions::default().dry_run(asked.dry_run);
    let mut batches: BoxStream<'_, checkpoint_core::Result<RetainBatch>> = if asked.thread.is_empty() {
        let mut query = ThreadQuery::all();
        query.prefix = asked.prefix.as_deref().map(Str::from);
        saver.retain_all(policy, options, query).boxed()
    } else {
        let threads = asked.thread.iter().map(|thread| Str::from(thread.as_str())).collect();
        saver.retain_threads(threads, policy, options).boxed()
    };
    let bar = progress(None, if asked.dry_run { "threads read" } else { "threads done" });
    let mut summary = RetainSummary::default();
    let ended = loop {
        match batches.try_next().await {
            Ok(Some(batch)) => summary.add(batch),
            Ok(None) => break Ok(()),
            Err(error) => break Err(Failure::from(error)),
        }
        bar.set_position(summary.report.threads + summary.failures);
    };
    let RetainSummary { report, failed, failures: count, .. } = summary;
    let mut failures = Failures::default();
    failures.add_all(&bar, failed, count);
    bar.finish_and_clear();
    print(&report, count, asked.dry_run, json)?;
    ended?;
    failures.into_result(report.threads + count)
}

pub(super) fn freed(freed: &Freed) -> Json {
    let Freed { threads, checkpoints, writes, bytes, .. } = freed;
    json!({ "threads": threads, "checkpoints": checkpoints, "writes": writes, "bytes": bytes })
}

fn print(report: &RetainReport, failed: u64, dry_run: bool, json: bool) -> Result<()> {
    let rules = [Rule::IdleFor, Rule::KeepLast, Rule::MaxAge];
    let total = report.total();
    let mut out = stdout();
    if json {
        let line = json!({
            "threads": report.threads,
            "checkpoints": report.checkpoints,
            "removed": freed(&total),
            "by_rule": rules.iter().map(|rule| (rule.as_str(), freed(report.by(*rule)))).collect::<std::collections::BTreeMap<_, _>>(),
            "waiting": report.waiting,
            "pinned": report.pinned,
            "busy": report.busy,
            "failed": failed,
            "dry_run": dry_run,
        });
        json_line(&mut out, &line)?;
        return Ok(out.flush()?);
    }
    if total != Freed::default() {
        let row = |name: &str, freed: &Freed| {
            let Freed { threads, checkpoints, writes, bytes, .. } = freed;
            let [threads, checkpoints, writes] =
                [threads, checkpoints, writes].map(|count| HumanCount(*count).to_string());
            [name.replace('_', "-"), threads, checkpoints, writes, HumanBytes(*bytes).to_string()]
        };
        let applied = rules.iter().filter(|rule| *report.by(**rule) != Freed::default());
        let rows = applied.map(|rule| row(rule.as_str(), report.by(*rule))).chain([row("total", &total)]);
        let table = output::numbers(["RULE", "THREADS", "CHECKPOINTS", "WRITES", "BYTES"], rows);
        writeln!(out, "{table}")?;
    }
    let (would, threads) = (if dry_run { "would go" } else { "removed" }, report.threads);
    let plural = if threads == 1 { "thread" } else { "threads" };
    let mut line = vec![
        format!(
            "{} of {} checkpoints {would}",
            HumanCount(total.checkpoints),
            HumanCount(report.checkpoints)
        ),
        format!("{} {plural}", HumanCount(threads)),
    ];
    let busy = u64::try_from(report.busy.len()).unwrap_or(u64::MAX);
    for (count, what) in [
        (report.waiting, "kept because they wait for a person"),
        (report.pinned, "kept because they are pinned"),
        (busy, "busy and left for the next run"),
        (failed, "failed and not counted"),
    ] {
        if count > 0 {
            line.push(format!("{} {what}", HumanCount(count)));
        }
    }
    writeln!(out, "{}", styled(DIM, line.join(", ")))?;
    Ok(out.flush()?)
}
