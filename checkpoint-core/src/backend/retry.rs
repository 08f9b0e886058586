//! Whether and when a failed call is retried.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::time::{Duration, Instant};

use crate::{Error, ErrorKind};

/// The first pause between two attempts; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// No retries after this time: each attempt on a server that accepts no connection costs a whole connect timeout.
const MAX_TIME: Duration = Duration::from_secs(5);

thread_local! {
    /// The name of the call that this thread polls.
    static OPERATION: Cell<&'static str> = const { Cell::new("") };
}

/// Polls a call under its name, which the events of its retries have.
pub(super) async fn named<T>(operation: &'static str, call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    poll_fn(|context| {
        let outer = OPERATION.replace(operation);
        let polled = call.as_mut().poll(context);
        OPERATION.set(outer);
        polled
    })
    .await
}

/// Exponential backoff with jitter. Sleeping is up to the caller, who has a runtime.
#[derive(Debug)]
pub struct Backoff {
    max_retries: u32,
    failed: u32,
    begun: Instant,
}

impl Backoff {
    /// Starts with the first attempt.
    pub fn new(max_retries: u32) -> Self {
        Self { max_retries, failed: 0, begun: Instant::now() }
    }

    /// The pause before the next attempt, or `None` to give up: the error is not transient, is a timeout (which has cost
    /// the caller enough time already), or there were too many attempts.
    ///
    /// The first retry has no pause: the usual cause is a connection that was cut while it was idle. Every retry leaves an
    /// event at level WARN; see [`telemetry`](super::telemetry).
    pub fn after(&mut self, error: &Error) -> Option<Duration> {
        let is_transient = error.is_retryable() && error.kind() != ErrorKind::Timeout;
        if !is_transient || self.failed >= self.max_retries || self.begun.elapsed() >= MAX_TIME {
            return None;
        }
        let pause = if self.failed == 0 { Duration::ZERO } else { pause(self.failed) };
        self.failed += 1;
        tracing::warn!(
            db.operation.name = OPERATION.get(),
            attempt = self.failed,
            pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
            error.type = error.kind().as_str(),
            // Without its context and source.
            error.message = error.message(),
            "the attempt failed; trying again"
        );
        Some(pause)
    }
}

/// A pause with jitter, so that callers do not retry in lockstep. `failed` counts the attempts so far.
fn pause(failed: u32) -> Duration {
    let longest = FIRST_PAUSE.saturating_mul(1 << failed.min(8)).min(MAX_PAUSE);
    longest.mul_f64(0.5 + jitter() / 2.0)
}

/// A random number in `[0, 1)`.
pub fn jitter() -> f64 {
    // Without random bytes all pauses are equal, which is harmless.
    f64::from(getrandom::u32().unwrap_or_default()) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_transient_errors_are_retried_a_limited_number_of_times() {
        let transient = Error::new(ErrorKind::Unavailable, "restarting").retryable(true);
        let mut backoff = Backoff::new(4);
        let pauses: Vec<_> = std::iter::from_fn(|| backoff.after(&transient)).collect();
        assert_eq!((pauses.len(), pauses[0]), (4, Duration::ZERO));
        for (pause, longest) in pauses[1..].iter().zip([100, 200, 400]) {
            assert!((longest / 2..=longest).contains(&pause.as_millis()), "{pause:?}");
        }
        assert_eq!(Backoff::new(0).after(&transient), None);
        for error in [Error::codec("bad"), Error::new(ErrorKind::Timeout, "slow").retryable(true)] {
            assert_eq!(Backoff::new(5).after(&error), None);
        }
        assert!(pause(31) <= MAX_PAUSE);
    }
}
