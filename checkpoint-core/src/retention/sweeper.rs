//! Runs that repeat themselves.

use std::pin::pin;
use std::time::Duration;

use futures_channel::oneshot;
use futures_timer::Delay;
use futures_util::TryStreamExt;
use futures_util::future::select;

use super::{RetainOptions, RetainSummary, Retention};
use crate::backend::jitter;
use crate::{BaseCheckpointSaver, Error, ErrorKind, Lease, Result, SaverExt, ThreadQuery};

/// The lease that a sweep holds. No thread of an application has this name.
const LEASE: &str = "\u{1}checkpoint-retention-sweep";

/// How long the lease of a sweep that was killed keeps others from sweeping.
const LEASE_TTL: Duration = Duration::from_secs(60);

/// The shortest interval between two sweeps.
const MIN_INTERVAL: Duration = Duration::from_millis(1);

/// When a [`Sweeper`] sweeps.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct SweepOptions {
    /// The time between two sweeps; one hour by default.
    pub interval: Duration,
    /// The part of the interval, from 0 to 1, by which each pause may be shorter or longer, so that many processes do not
    /// sweep at the same moment; 0.1 by default.
    pub jitter: f64,
}

impl Default for SweepOptions {
    fn default() -> Self {
        Self { interval: Duration::from_secs(60 * 60), jitter: 0.1 }
    }
}

impl SweepOptions {
    /// Sets the [`interval`](Self::interval).
    #[must_use]
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Sets the [`jitter`](Self::jitter).
    #[must_use]
    pub fn jitter(mut self, jitter: f64) -> Self {
        self.jitter = jitter;
        self
    }

    fn validate(&self) -> Result<()> {
        if self.interval < MIN_INTERVAL {
            return Err(Error::invalid_argument("the interval of sweeps must be at least a millisecond"));
        }
        if !(0.0..=1.0).contains(&self.jitter) {
            return Err(Error::invalid_argument("the jitter of sweeps must be from 0 to 1"));
        }
        Ok(())
    }

    /// The next pause.
    fn pause(&self) -> Duration {
        let factor = 1.0 + self.jitter * (2.0 * jitter() - 1.0);
        Duration::try_from_secs_f64(self.interval.as_secs_f64() * factor)
            .unwrap_or(self.interval)
            .max(MIN_INTERVAL)
    }
}

/// Applies a policy to a database again and again, until this handle is dropped, [stopped](Self::stop), or the saver is
/// closed. Where the saver has leases, only one of all the processes that use a database sweeps at a time.
///
/// ```
/// use std::time::Duration;
///
/// use checkpoint_core::retention::{Retention, SweepOptions, Sweeper};
/// use checkpoint_core::{BaseCheckpointSaver, InMemorySaver};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> checkpoint_core::Result<()> {
/// let saver = InMemorySaver::new();
/// let options = SweepOptions::default().interval(Duration::from_secs(600));
/// let (sweeper, sweeps) = Sweeper::new(saver.clone(), Retention::new().keep_last(20), options)?;
/// let task = tokio::spawn(sweeps);
/// // The application works.
/// saver.close().await?;
/// sweeper.stop();
/// # task.await.unwrap();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the sweeps end when this is dropped"]
pub struct Sweeper {
    /// Never sent to: the task ends when it is dropped.
    _running: oneshot::Sender<()>,
}

impl Sweeper {
    /// Returns the handle and the future that sweeps, for a task of the application's runtime. The first sweep begins after
    /// one interval.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a bad policy or interval,
    /// [`Unsupported`](ErrorKind::Unsupported) if the saver has no `retain`.
    pub fn new<S: BaseCheckpointSaver + Clone>(
        saver: S,
        policy: Retention,
        options: SweepOptions,
    ) -> Result<(Self, impl Future<Output = ()> + Send)> {
        policy.validate()?;
        options.validate()?;
        if !saver.capabilities().retain {
            return Err(Error::unsupported(saver.backend(), "retain"));
        }
        let (running, stopped) = oneshot::channel::<()>();
        let sweeps = async move {
            let sweeps = pin!(sweep_for_ever(saver, policy, options));
            select(sweeps, stopped).await;
        };
        Ok((Self { _running: running }, sweeps))
    }

    /// Ends the sweeps, as dropping the handle does: a batch that is under way is broken off, and the next run continues.
    pub fn stop(self) {}
}

async fn sweep_for_ever<S: BaseCheckpointSaver>(saver: S, policy: Retention, options: SweepOptions) {
    loop {
        Delay::new(options.pause()).await;
        match sweep(&saver, &policy).await {
            Ok(None) => tracing::debug!("another process applies the retention policy"),
            Ok(Some(summary)) => {
                let total = summary.report.total();
                if total.checkpoints > 0 || total.writes > 0 {
                    tracing::debug!(
                        threads = total.threads,
                        checkpoints = total.checkpoints,
                        bytes = total.bytes,
                        "applied the retention policy"
                    );
                }
                for (thread_id, error) in &summary.failed {
                    tracing::warn!(%error, %thread_id, "the retention policy could not be applied to a thread");
                }
            }
            // `close()`, or an outage: then it answers again.
            Err(error) if error.kind() == ErrorKind::Unavailable && !error.is_retryable() => {
                if saver.ping().await.is_err_and(|error| !error.is_retryable()) {
                    return;
                }
            }
            Err(error) => tracing::warn!(%error, "a retention sweep failed; the next one continues"),
        }
    }
}

/// Sweeps once; `None` if another process does.
async fn sweep<S: BaseCheckpointSaver>(saver: &S, policy: &Retention) -> Result<Option<RetainSummary>> {
    let mut lease = None;
    if saver.capabilities().leases {
        match saver.acquire_lease(LEASE, LEASE_TTL).await {
            Ok(acquired) => lease = Some(acquired),
            Err(error) if error.kind() == ErrorKind::Conflict => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    let result = sweep_leased(saver, policy, lease.as_ref()).await;
    if let Some(lease) = &lease {
        // It expires otherwise.
        let _ = saver.release_lease(lease).await;
    }
    result.map(Some)
}

async fn sweep_leased<S: BaseCheckpointSaver>(
    saver: &S,
    policy: &Retention,
    lease: Option<&Lease>,
) -> Result<RetainSummary> {
    let mut summary = RetainSummary::default();
    let batches = saver.retain_all(policy.clone(), RetainOptions::default(), ThreadQuery::all());
    let mut batches = pin!(batches);
    let mut renewed = std::time::Instant::now();
    while let Some(batch) = batches.try_next().await? {
        summary.add(batch);
        if let Some(lease) = lease.filter(|_| renewed.elapsed() > LEASE_TTL / 4) {
            saver.renew_lease(lease).await?;
            renewed = std::time::Instant::now();
        }
    }
    Ok(summary)
}
