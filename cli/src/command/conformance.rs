//! `ckpt conformance`: the suite on a user's own database.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use checkpoint_conformance::{
    Facility, OpenOptions, Outcome, Report, Saver, Savers, Stores, Suite, Target, run_cases, run_store_cases,
};
use checkpoint_core::{Error, ErrorKind, async_trait};
use indicatif::ProgressBar;
use serde_json::json;

use crate::arguments::Options;
use crate::failure::{Failure, Result};
use crate::open::{self, Scratch, Sealed};
use crate::output::{BAD, DIM, GOOD, json_line, progress, stdout, styled};

/// The database of a URL.
struct Url(String);

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The rest may contain a password.
        f.debug_tuple("Url").field(&self.name()).finish()
    }
}

#[async_trait]
impl Target for Url {
    fn name(&self) -> &'static str {
        open::backend(&self.0)
    }

    async fn open(&self, options: OpenOptions) -> checkpoint_core::Result<Saver> {
        open::open(&self.0, options.cipher, Sealed::Refuse)
            .map_err(|failure| Error::new(ErrorKind::InvalidConfig, failure.to_string()))
    }

    fn offers(&self, facility: Facility) -> bool {
        facility == Facility::Cipher
    }
}

pub(crate) async fn run(options: &Options, filter: Option<String>, store: bool) -> Result<()> {
    let url = open::url(options)?.to_owned();
    let chosen = |name: &str| filter.as_deref().is_none_or(|part| name.contains(part));
    if store {
        let scratch = Arc::new(Scratch::new(&url).await?);
        let run = Run::new::<Stores>(options.json, &chosen).await?;
        let ended = run_store_cases(
            scratch.clone(),
            |case| chosen(case.name()) && run.continues(),
            |case, outcome| run.report(case.name(), outcome),
        )
        .await;
        let dropped = scratch.drop_schemas().await;
        return run.finish(ended).and(dropped);
    }
    // Reports an invalid URL before any case runs.
    open::open(&url, None, Sealed::Refuse)?;
    let run = Run::new::<Savers>(options.json, &chosen).await?;
    let ended = run_cases(
        Arc::new(Url(url)),
        |case| chosen(case.name()) && run.continues(),
        |case, outcome| run.report(case.name(), outcome),
    )
    .await;
    run.finish(ended)
}

/// A run of either suite.
struct Run {
    json: bool,
    total: usize,
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
    printed: Mutex<Result<()>>,
}

impl Run {
    async fn new<S: Suite>(json: bool, chosen: &(impl Fn(&str) -> bool + Sync)) -> Result<Self> {
        let total = S::cases().iter().filter(|case| chosen(case.name())).count();
        if total == 0 {
            return Err(Failure::not_found("no case matches the filter"));
        }
        let stop = stop_when_interrupted().await;
        let bar = progress(Some(u64::try_from(total).unwrap_or(u64::MAX)), "cases run");
        Ok(Self { json, total, bar, stop, printed: Mutex::new(Ok(())) })
    }

    /// Whether to run further cases: not after Ctrl-C or a failure to print.
    fn continues(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Prints the outcome of a case.
    fn report(&self, name: &str, outcome: &Outcome) {
        self.bar.inc(1);
        let (style, word, why) = match outcome {
            Outcome::Passed => (GOOD, "passed", String::new()),
            Outcome::Failed(failure) => (BAD, "failed", failure.to_string()),
            Outcome::Ignored(reason) => (DIM, "ignored", reason.clone()),
            _ => (DIM, "unknown", String::new()),
        };
        // Flushed per case: a run takes a while, and closing the pipe ends it.
        let print = || -> Result<()> {
            let mut stdout = stdout();
            if self.json {
                let why = (!why.is_empty()).then_some(&why);
                json_line(&mut stdout, &json!({ "case": name, "outcome": word, "why": why }))?;
            } else {
                let word = styled(style, format!("{word:<7}"));
                let why = if why.is_empty() { String::new() } else { format!(" {}", styled(DIM, &why)) };
                writeln!(stdout, "{word} {name}{why}")?;
            }
            Ok(stdout.flush()?)
        };
        let mut printed = self.printed.lock().unwrap_or_else(PoisonError::into_inner);
        if printed.is_ok() {
            *printed = self.bar.suspend(print);
        }
        if printed.is_err() {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Prints the summary; fails if a case failed or the run was interrupted.
    fn finish(self, ended: Result<Report, checkpoint_conformance::Failure>) -> Result<()> {
        let report = ended.map_err(Failure::failed)?;
        self.bar.finish_and_clear();
        self.printed.into_inner().unwrap_or_else(PoisonError::into_inner)?;
        let mut stdout = stdout();
        let (passed, failed, ignored) = (report.passed.len(), report.failed.len(), report.ignored.len());
        if self.json {
            json_line(&mut stdout, &json!({ "passed": passed, "failed": failed, "ignored": ignored }))?;
        } else {
            writeln!(stdout, "{passed} passed, {failed} failed, {ignored} ignored")?;
        }
        stdout.flush()?;
        let (run, total) = (passed + failed + ignored, self.total);
        match failed {
            _ if run < total => {
                Err(Failure::interrupted(format!("interrupted after {run} of {total} cases")))
            }
            0 => Ok(()),
            1 => Err(Failure::failed("1 case failed")),
            several => Err(Failure::failed(format!("{several} cases failed"))),
        }
    }
}

/// A flag that becomes true at Ctrl-C; the current case still deletes its threads. A second Ctrl-C ends the process.
async fn stop_when_interrupted() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let mut first = Box::pin(tokio::signal::ctrl_c());
    // The first poll installs the signal handler, which must happen before a case runs.
    let installed = poll_fn(|context| Poll::Ready(first.as_mut().poll(context))).await.is_pending();
    if installed {
        tokio::spawn(async move {
            if first.await.is_ok() {
                flag.store(true, Ordering::Relaxed);
                if tokio::signal::ctrl_c().await.is_ok() {
                    std::process::exit(130);
                }
            }
        });
    }
    stop
}
