//! `ckpt rekey`.

use std::io::Write;

use checkpoint_core::{
    BaseCheckpointSaver, RekeyOptions, RekeyReport, Result as SaverResult, SaverExt, SealedBy, Str,
};
use comfy_table::{Table, presets};
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use serde_json::json;

use super::failures::Failures;
use super::{has_thread, nothing_in};
use crate::failure::{Failure, Result};
use crate::open::Saver;
use crate::output::{DIM, clean, json_line, progress, stdout, styled};

/// A thread and what became of it.
type Rekeyed = SaverResult<(Str, SaverResult<RekeyReport>)>;

/// What all threads come to.
#[derive(Default)]
struct Totals {
    sum: RekeyReport,
    threads: u64,
    failures: Failures,
}

pub(crate) async fn run(
    saver: &Saver,
    threads: &[String],
    dry_run: bool,
    sealed_by: Option<SealedBy>,
    json: bool,
) -> Result<()> {
    if sealed_by.is_none() && !dry_run {
        return Err(Failure::usage(format!(
            "there is no key to encrypt with; {}, or use --dry-run to see which keys are in use",
            crate::failure::GIVE_KEY
        )));
    }
    let mut totals = Totals::default();
    let bar = progress(None, if dry_run { "threads read" } else { "threads rekeyed" });
    let mut rekeyed = rekey(saver, threads, RekeyOptions::default().dry_run(dry_run));
    let ended = loop {
        match rekeyed.try_next().await {
            Ok(Some((thread, Ok(report)))) => {
                if report.values.is_empty() && !threads.is_empty() && !has_thread(saver, &thread).await? {
                    let failure = nothing_in(saver, &thread, None).await;
                    totals.failures.add(&bar, &thread, failure);
                }
                totals.sum.add(&report);
            }
            Ok(Some((thread, Err(error)))) => totals.failures.add(&bar, &thread, error),
            Ok(None) => break Ok(()),
            Err(error) => break Err(Failure::from(error)),
        }
        totals.threads += 1;
        bar.inc(1);
    };
    bar.finish_and_clear();
    totals.print(dry_run, sealed_by.as_ref(), json)?;
    ended?;
    totals.failures.into_result(totals.threads)
}

/// The named threads, or all, one after the other.
fn rekey<'a>(saver: &'a Saver, threads: &'a [String], options: RekeyOptions) -> BoxStream<'a, Rekeyed> {
    if threads.is_empty() {
        return saver.rekey_all(options).boxed();
    }
    let rekeyed = stream::iter(threads).then(move |thread| async move {
        let report = saver.rekey(thread, options).await;
        Ok((Str::from(thread.as_str()), report))
    });
    rekeyed.boxed()
}

impl Totals {
    fn print(&self, dry_run: bool, sealed_by: Option<&SealedBy>, json: bool) -> Result<()> {
        let RekeyReport { values, resealed, remaining, .. } = &self.sum;
        let mut out = stdout();
        if json {
            let values = values.iter().map(|(key, count)| {
                let encrypts = sealed_by == Some(key);
                json!({ "cipher": key.cipher(), "key_id": key.key_id(), "encrypts": encrypts, "values": count })
            });
            let line = json!({
                "keys": values.collect::<Vec<_>>(),
                "resealed": resealed,
                "remaining": remaining,
                "threads": self.threads,
                "failed": self.failures.count(),
                "dry_run": dry_run,
            });
            json_line(&mut out, &line)?;
            return Ok(out.flush()?);
        }
        if !values.is_empty() {
            let mut table = Table::new();
            table.load_style(presets::NOTHING).set_header(["ENCRYPTED WITH", "VALUES", ""]);
            for (key, count) in values {
                let note = if sealed_by == Some(key) { "encrypts new values" } else { "" };
                table.add_row([clean(&key.to_string()).into_owned(), count.to_string(), note.to_owned()]);
            }
            writeln!(out, "{table}")?;
        }
        let threads = if self.threads == 1 { "thread" } else { "threads" };
        let done = if dry_run { "would be encrypted again" } else { "encrypted again" };
        let count = if dry_run { remaining } else { resealed };
        let mut line = vec![format!("{} {threads}", self.threads)];
        if !dry_run || sealed_by.is_some() {
            line.push(format!("{count} values {done}"));
        }
        if !dry_run && *remaining > 0 {
            line.push(format!("{remaining} left as they are"));
        }
        if self.failures.count() > 0 {
            line.push(format!("{} failed and not counted", self.failures.count()));
        }
        writeln!(out, "{}", styled(DIM, line.join(", ")))?;
        Ok(out.flush()?)
    }
}
