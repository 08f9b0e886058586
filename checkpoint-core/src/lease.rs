//! Leases of threads.

use std::time::Duration;

use crate::{Error, ErrorKind, Result, Str, id};

/// The longest time to live of a lease.
const MAX_TTL: Duration = Duration::from_secs(366 * 24 * 60 * 60);

const LOST: &str =
    "the lease was lost: another worker took the thread over, or the thread was deleted; stop this run";

/// The right of one worker to write to a thread, until it expires and another worker takes it over.
///
/// [`BaseCheckpointSaver::acquire_lease`](crate::BaseCheckpointSaver::acquire_lease) makes it. A call with a lease
/// ([`PutOptions::lease`](crate::PutOptions::lease), [`PutWritesOptions::lease`](crate::PutWritesOptions::lease)) checks
/// its token in the same atomic step in which it writes. So after a takeover the former holder cannot write any more,
/// whatever its clock says. Calls without a lease are not checked: all workers of a thread must use leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    thread_id: Str,
    holder: Str,
    token: i64,
    ttl: Duration,
}

impl Lease {
    /// Prepares the acquisition of a lease by a new holder. For implementers.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) when the time to live is under a millisecond or over 366 days.
    pub fn request(thread_id: impl Into<Str>, ttl: Duration) -> Result<Self> {
        if !(Duration::from_millis(1)..=MAX_TTL).contains(&ttl) {
            return Err(Error::invalid_argument(
                "the time to live of a lease must be between 1 millisecond and 366 days",
            )
            .with("ttl_seconds", ttl.as_secs_f64()));
        }
        // Random, so that nobody else has it.
        Ok(Self { thread_id: thread_id.into(), holder: id::uuid6(0), token: 0, ttl })
    }

    /// The lease with the token that the database gave to its holder. For implementers.
    #[must_use]
    pub fn granted(self, token: i64) -> Self {
        Self { token, ..self }
    }

    /// The thread.
    pub fn thread_id(&self) -> &str {
        &self.thread_id
    }

    /// Who holds it: a random id for each acquisition.
    pub fn holder(&self) -> &str {
        &self.holder
    }

    /// The fencing token. It increases with each acquisition of the thread: an outside system that remembers the highest
    /// token it has seen can refuse a former holder.
    pub fn token(&self) -> i64 {
        self.token
    }

    /// How long it lives after its acquisition and after each renewal.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The time to live in microseconds. For implementers.
    pub fn ttl_micros(&self) -> i64 {
        i64::try_from(self.ttl.as_micros()).unwrap_or(i64::MAX)
    }

    pub(crate) fn check_thread(&self, thread_id: &str) -> Result<()> {
        if self.thread_id() == thread_id {
            return Ok(());
        }
        Err(Error::invalid_argument("the lease is of another thread")
            .with("thread_id", thread_id)
            .with("leased_thread_id", self.thread_id()))
    }

    /// The error of a call whose lease was lost. For implementers.
    #[must_use]
    pub fn lost(&self) -> Error {
        Error::new(ErrorKind::Conflict, LOST)
            .retryable(false)
            .with("thread_id", &self.thread_id)
            .with("token", self.token)
    }

    /// Whether an error says that a lease was lost. The worker must then stop its run.
    pub fn is_lost(error: &Error) -> bool {
        error.kind() == ErrorKind::Conflict && error.message() == LOST
    }

    /// The error of an acquisition while another worker holds the lease, with the microseconds until it expires. For
    /// implementers.
    #[must_use]
    pub fn held(&self, left_micros: i64) -> Error {
        let left = Duration::from_micros(u64::try_from(left_micros).unwrap_or_default());
        Error::new(ErrorKind::Conflict, "another worker holds the lease of the thread; try again later")
            .retryable(false)
            .with("thread_id", &self.thread_id)
            .with("expires_in_seconds", left.as_secs_f64())
    }

    /// The token of an acquisition: above the previous one, and, because that may have been deleted with its thread, not
    /// below the time in microseconds. For implementers.
    pub fn next_token(previous: Option<i64>, now_micros: i64) -> i64 {
        previous.map_or(now_micros, |previous| now_micros.max(previous.saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_increase_even_if_the_clock_jumps_back() {
        assert_eq!(Lease::next_token(None, 5), 5);
        assert_eq!(Lease::next_token(Some(7), 5), 8);
        assert_eq!(Lease::next_token(Some(7), 9), 9);
    }

    #[test]
    fn times_to_live_have_bounds() {
        for ttl in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            let error = Lease::request("t", ttl).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
        assert_ne!(
            Lease::request("t", Duration::from_secs(1)).unwrap().holder(),
            Lease::request("t", Duration::from_secs(1)).unwrap().holder()
        );
    }
}
