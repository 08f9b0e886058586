//! How a policy is applied.

use std::time::{SystemTime, UNIX_EPOCH};

/// Options of [`BaseCheckpointSaver::retain`](crate::BaseCheckpointSaver::retain).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetainOptions {
    /// Removes nothing, only counts.
    pub dry_run: bool,
    /// The present, for ages; without it, this machine's clock at the beginning of each call.
    pub now: Option<SystemTime>,
}

impl RetainOptions {
    /// Sets [`dry_run`](Self::dry_run).
    #[must_use]
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// Sets [`now`](Self::now).
    #[must_use]
    pub fn now(mut self, now: SystemTime) -> Self {
        self.now = Some(now);
        self
    }

    /// The present in microseconds since 1970. For implementers.
    pub fn now_micros(&self) -> i64 {
        let now = self.now.unwrap_or_else(SystemTime::now);
        let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX)
    }
}
