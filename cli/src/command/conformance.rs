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
        // The URL may have a password.
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
            |case| chosen(case.name()) && run.goes_on(),
            |case, outcome| run.ended(case.name(), outcome),
        )
        .await;
        let dropped = scratch.drop_schemas().await;
        return run.end(ended).and(dropped);
    }
    // Says what is wrong with the URL before anything is tried.
    open::open(&url, None, Sealed::Refuse)?;
    let run = Run::new::<Savers>(options.json, &chosen).await?;
    let ended = run_cases(
        Arc::new(Url(url)),
        |case| chosen(case.name()) && run.goes_on(),
        |case, outcome| run.ended(case.name(), outcome),
    )
    .await;
    run.end(ended)
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
            return Err(Failure::not_found("no case has such a name"));
        }
        let stop = stop_when_interrupted().await;
        let bar = progress(Some(u64::try_from(total).unwrap_or(u64::MAX)), "cases run");
        Ok(Self { json, total, bar, stop, printed: Mutex::new(Ok(())) })
    }

    /// Whether nobody has had enough.
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn ended(&self, name: &str, outcome: &Outcome) {
        self.bar.inc(1);
        let (style, word, why) = match outcome {
            Outcome::Passed => (GOOD, "passed", String::new()),
            Outcome::Failed(failure) => (BAD, "failed", failure.to_string()),
            Outcome::Ignored(reason) => (DIM, "ignored", reason.clone()),
            _ => (DIM, "unknown", String::new()),
        };
        // Shown at once: a run takes a while, and a reader who has seen enough ends it.
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

    fn end(self, ended: Result<Report, checkpoint_conformance::Failure>) -> Result<()> {
        let report = ended.map_err(Failure::failed)?;
        self.bar.finish_and_clear();
        self.printed.into_inner().unwrap_or_else(PoisonError::into_inner)?;
        let mut stdout = stdout();
        let counts = (report.passed.len(), report.failed.len(), report.ignored.len());
        if self.json {
            json_line(&mut stdout, &json!({ "passed": counts.0, "failed": counts.1, "ignored": counts.2 }))?;
        } else {
            writeln!(stdout, "{} passed, {} failed, {} ignored", counts.0, counts.1, counts.2)?;
        }
        stdout.flush()?;
        let (run, total) = (counts.0 + counts.1 + counts.2, self.total);
        match counts.1 {
            _ if run < total => {
                Err(Failure::interrupted(format!("interrupted after {run} of {total} cases")))
            }
            0 => Ok(()),
            1 => Err(Failure::failed("1 case failed")),
            several => Err(Failure::failed(format!("{several} cases failed"))),
        }
    }
}

/// Becomes true at Ctrl-C: the case that runs then still deletes its threads. A second Ctrl-C ends the process.
async fn stop_when_interrupted() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    let mut first = Box::pin(tokio::signal::ctrl_c());
    // The first poll takes the signal over; that has to be before a case runs.
    let taken_over = poll_fn(|context| Poll::Ready(first.as_mut().poll(context))).await.is_pending();
    if taken_over {
        tokio::spawn(async move {
            if first.await.is_ok() {
                asked.store(true, Ordering::Relaxed);
                if tokio::signal::ctrl_c().await.is_ok() {
                    std::process::exit(130);
                }
            }
        });
    }
    stop
}
