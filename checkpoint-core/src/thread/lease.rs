//! A thread with a lease.

use std::ops::Deref;
use std::pin::pin;

use futures_timer::Delay;
use futures_util::future::{Either, select};

use super::Thread;
use crate::{BaseCheckpointSaver, Lease, Result};

/// How many renewals are tried during a lease's time to live.
const RENEWALS: u32 = 3;

/// A thread whose writes require its lease: see [`Thread::lease`]. Every write renews it.
///
/// When another worker has taken the thread over, every write fails with [`Conflict`](crate::ErrorKind::Conflict) and
/// stores nothing. Dropping it does not give the lease back: it expires.
///
/// ```
/// use std::time::Duration;
///
/// use checkpoint_core::{ErrorKind, InMemorySaver, SaverExt};
/// # #[derive(serde::Serialize)]
/// # struct State { answer: u32 }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> checkpoint_core::Result<()> {
/// let thread = InMemorySaver::new().thread("thread-1");
/// let leased = thread.lease(Duration::from_secs(30)).await?;
/// let other = thread.lease(Duration::from_secs(30)).await.unwrap_err();
/// assert_eq!(other.kind(), ErrorKind::Conflict);
///
/// let start = leased.begin(&State { answer: 0 }).await?;
/// // Work that may take longer than the lease lives: it is renewed meanwhile.
/// let answer = leased.hold(async { 42 }).await?;
/// leased.commit(&start, &State { answer }).await?;
/// leased.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct LeasedThread<S> {
    thread: Thread<S>,
    lease: Lease,
}

impl<S: BaseCheckpointSaver> LeasedThread<S> {
    pub(super) fn new(thread: Thread<S>, lease: Lease) -> Self {
        Self { thread, lease }
    }

    /// The fencing token; see [`Lease::token`].
    pub fn token(&self) -> i64 {
        self.lease.token()
    }

    /// Renews the lease.
    ///
    /// # Errors
    /// As [`BaseCheckpointSaver::renew_lease`].
    ///
    /// # Cancellation
    /// A dropped call may have renewed the lease.
    pub async fn renew(&self) -> Result<()> {
        self.thread.saver.renew_lease(&self.lease).await
    }

    /// Gives the lease back.
    ///
    /// # Errors
    /// As [`BaseCheckpointSaver::release_lease`].
    ///
    /// # Cancellation
    /// A dropped call may have given the lease back.
    pub async fn release(self) -> Result<()> {
        self.thread.saver.release_lease(&self.lease).await
    }

    /// Runs work between two writes, such as a call of a model, and renews the lease meanwhile. If the lease is lost, the
    /// work is dropped. If the database cannot be reached, the work goes on: its result is refused if another worker takes
    /// the thread over in that time.
    ///
    /// # Errors
    /// [`Conflict`](crate::ErrorKind::Conflict) when the lease was lost.
    ///
    /// # Cancellation
    /// Drops the work.
    pub async fn hold<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let mut work = pin!(work);
        let pause = self.lease.ttl() / RENEWALS;
        loop {
            let renewed = pin!(async {
                Delay::new(pause).await;
                self.renew().await
            });
            match select(work.as_mut(), renewed).await {
                Either::Left((done, _)) => return Ok(done),
                Either::Right((Err(error), _)) if Lease::is_lost(&error) => return Err(error),
                Either::Right(_) => {}
            }
        }
    }
}

impl<S> Deref for LeasedThread<S> {
    type Target = Thread<S>;

    fn deref(&self) -> &Thread<S> {
        &self.thread
    }
}
