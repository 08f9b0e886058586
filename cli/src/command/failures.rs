//! Threads that fail while the others go on.

use checkpoint_core::Str;
use indicatif::ProgressBar;

use crate::failure::{Failure, Result};
use crate::output::{self, clean};

/// The threads that failed. A single failure decides about the exit code; several are printed as they come.
#[derive(Debug, Default)]
pub(super) struct Failures {
    count: u64,
    only: Option<Failure>,
}

impl Failures {
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Notes a failure, and prints it unless it is the only one so far.
    pub(super) fn add(&mut self, bar: &ProgressBar, thread: &str, failure: impl Into<Failure>) {
        let failure = failure.into().within(format!("thread {}", output::thread(thread)));
        self.count += 1;
        let show = |failure: &Failure| {
            bar.suspend(|| {
                anstream::eprintln!("ckpt: {}", clean(&failure.to_string().replace(['\n', '\r'], " ")));
            });
        };
        if self.count == 1 {
            self.only = Some(failure);
            return;
        }
        if let Some(first) = self.only.take() {
            show(&first);
        }
        show(&failure);
    }

    /// Notes the failures of a run that kept only some of them.
    pub(super) fn add_all(
        &mut self,
        bar: &ProgressBar,
        failed: Vec<(Str, checkpoint_core::Error)>,
        count: u64,
    ) {
        let kept = u64::try_from(failed.len()).unwrap_or(u64::MAX);
        for (thread, error) in failed {
            self.add(bar, &thread, error);
        }
        self.count += count.saturating_sub(kept);
    }

    /// Fails if a thread failed, of so many.
    pub(super) fn into_result(self, threads: u64) -> Result<()> {
        match (self.only, self.count) {
            (_, 0) => Ok(()),
            (Some(failure), _) => Err(failure),
            (None, failed) => {
                Err(Failure::failed(format!("{failed} of {threads} threads failed, see above")))
            }
        }
    }
}
