//! `ckpt usage`.

use std::io::Write;

use checkpoint_core::retention::{Freed, RetainOptions, RetainSummary, Usage, UsageOptions};
use checkpoint_core::{BaseCheckpointSaver, SaverExt, ThreadQuery};
use futures_util::TryStreamExt;
use indicatif::{HumanBytes, HumanCount};
use serde_json::{Value as Json, json};

use super::failures::Failures;
use super::retain::freed;
use crate::arguments::AskedUsage;
use crate::failure::Result;
use crate::open::Saver;
use crate::output::{self, DIM, json_line, progress, stdout, styled};

pub(crate) async fn run(saver: &Saver, asked: &AskedUsage, json: bool) -> Result<()> {
    let policy = if asked.policy.is_given() { Some(asked.policy.retention()?) } else { None };
    let bar = progress(None, "reading the database");
    let usage = saver.usage(&UsageOptions::default().largest(asked.largest)).await?;
    let mut failures = Failures::default();
    let mut would_go = None;
    if let Some(policy) = policy {
        bar.set_message("threads read");
        let options = RetainOptions::default().dry_run(true);
        let mut batches = std::pin::pin!(saver.retain_all(policy, options, ThreadQuery::all()));
        let mut summary = RetainSummary::default();
        while let Some(batch) = batches.try_next().await? {
            summary.add(batch);
            bar.set_position(summary.report.threads + summary.failures);
        }
        would_go = Some(summary.report.total());
        failures.add_all(&bar, summary.failed, summary.failures);
    }
    bar.finish_and_clear();
    print(&usage, would_go.as_ref(), asked.days, json)?;
    failures.into_result(usage.threads)
}

fn print(usage: &Usage, would_go: Option<&Freed>, days: usize, json: bool) -> Result<()> {
    let mut out = stdout();
    let skipped = usage.days.len().saturating_sub(days);
    let newest = || usage.days.iter().skip(skipped);
    if json {
        let largest = usage.largest.iter().map(|thread| {
            json!({
                "thread_id": &*thread.thread_id,
                "checkpoints": thread.checkpoints,
                "writes": thread.writes,
                "bytes": thread.bytes,
            })
        });
        let days = newest().map(
            |(day, held)| json!({ "day": &**day, "checkpoints": held.checkpoints, "bytes": held.bytes }),
        );
        let line = json!({
            "threads": usage.threads,
            "checkpoints": usage.checkpoints,
            "writes": usage.writes,
            "bytes": usage.bytes,
            "on_disk": usage.on_disk,
            "dead": usage.dead,
            "largest": largest.collect::<Vec<Json>>(),
            "days": days.collect::<Vec<Json>>(),
            "would_go": would_go.map(freed),
        });
        json_line(&mut out, &line)?;
        return Ok(out.flush()?);
    }
    if !usage.largest.is_empty() {
        let rows = usage.largest.iter().map(|thread| {
            let [checkpoints, writes] =
                [thread.checkpoints, thread.writes].map(|count| HumanCount(count).to_string());
            [
                output::thread(&thread.thread_id).into_owned(),
                checkpoints,
                writes,
                HumanBytes(thread.bytes).to_string(),
            ]
        });
        writeln!(out, "{}\n", output::numbers(["LARGEST THREADS", "CHECKPOINTS", "WRITES", "BYTES"], rows))?;
    }
    if newest().next().is_some() {
        let rows = newest().map(|(day, held)| {
            [
                output::clean(day).into_owned(),
                HumanCount(held.checkpoints).to_string(),
                HumanBytes(held.bytes).to_string(),
            ]
        });
        writeln!(
            out,
            "{}\n",
            output::numbers(["DAY (UTC)", "CHECKPOINTS", "BYTES WITHOUT SHARED VALUES"], rows)
        )?;
    }
    let plural = if usage.threads == 1 { "thread" } else { "threads" };
    let mut line = vec![
        format!("{} {plural}", HumanCount(usage.threads)),
        format!("{} checkpoints", HumanCount(usage.checkpoints)),
        format!("{} pending writes", HumanCount(usage.writes)),
        HumanBytes(usage.bytes).to_string(),
    ];
    if let Some(on_disk) = usage.on_disk {
        line.push(format!("{} on disk", HumanBytes(on_disk)));
    }
    if let Some(dead) = usage.dead {
        line.push(format!("{} of it free for new data", HumanBytes(dead)));
    }
    writeln!(out, "{}", styled(DIM, line.join(", ")))?;
    if let Some(Freed { threads, checkpoints, bytes, .. }) = would_go {
        let checkpoints = HumanCount(*checkpoints);
        let (threads, bytes) = (HumanCount(*threads), HumanBytes(*bytes));
        writeln!(
            out,
            "The policy would remove {checkpoints} checkpoints with {bytes}, from {threads} threads."
        )?;
    }
    Ok(out.flush()?)
}
