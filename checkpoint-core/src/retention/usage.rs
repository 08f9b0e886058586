//! How much a database holds.

use std::collections::BTreeMap;

use crate::Str;

/// Options of [`BaseCheckpointSaver::usage`](crate::BaseCheckpointSaver::usage).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UsageOptions {
    /// How many of the largest threads are named; 10 by default.
    pub largest: usize,
}

impl Default for UsageOptions {
    fn default() -> Self {
        Self { largest: 10 }
    }
}

impl UsageOptions {
    /// Sets [`largest`](Self::largest).
    #[must_use]
    pub fn largest(mut self, count: usize) -> Self {
        self.largest = count;
        self
    }
}

/// How much a database holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Threads of which anything is stored.
    pub threads: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Pending writes.
    pub writes: u64,
    /// Bytes of values and metadata as they are stored, without keys and indexes.
    pub bytes: u64,
    /// Bytes of the tables with their indexes, or of the file, if the database tells.
    pub on_disk: Option<u64>,
    /// Of these, bytes that hold nothing any more and are used again before the database grows, if the database tells: on
    /// Postgres an estimate of the dead rows that autovacuum has still to free, on SQLite the free pages.
    pub dead: Option<u64>,
    /// The largest threads, the largest first.
    pub largest: Vec<ThreadUsage>,
    /// What was stored on each day of UTC, such as `2026-11-22`, by the times of the checkpoints (see
    /// [`retention`](crate::retention#ages)). Checkpoints without a time count nowhere.
    pub days: BTreeMap<Str, DayUsage>,
}

/// How much of a database one thread is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ThreadUsage {
    /// The thread.
    pub thread_id: Str,
    /// Its checkpoints.
    pub checkpoints: u64,
    /// Its pending writes.
    pub writes: u64,
    /// Its bytes, as in [`Usage::bytes`].
    pub bytes: u64,
}

/// The checkpoints of one day that are still stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DayUsage {
    /// How many there are.
    pub checkpoints: u64,
    /// The bytes of their documents and metadata, without values that are stored apart.
    pub bytes: u64,
}

impl Usage {
    /// Adds a thread. For implementers.
    pub fn add_thread(&mut self, thread: ThreadUsage, options: &UsageOptions) {
        self.threads += 1;
        self.checkpoints += thread.checkpoints;
        self.writes += thread.writes;
        self.bytes += thread.bytes;
        let at = self.largest.partition_point(|larger| larger.bytes >= thread.bytes);
        if at < options.largest {
            self.largest.insert(at, thread);
            self.largest.truncate(options.largest);
        }
    }

    /// Adds a checkpoint to its day. For implementers.
    pub fn add_to_day(&mut self, checkpoint_id: &str, ts: Option<&str>, bytes: u64) {
        let Some(time) = crate::backend::time_of(checkpoint_id, ts) else { return };
        let day: String = crate::id::isoformat(time).chars().take(10).collect();
        let day = self.days.entry(day.into()).or_default();
        day.checkpoints += 1;
        day.bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_threads_are_kept() {
        let mut usage = Usage::default();
        for bytes in [3, 9, 1, 7, 9] {
            let thread =
                ThreadUsage { thread_id: bytes.to_string().into(), checkpoints: 1, writes: 2, bytes };
            usage.add_thread(thread, &UsageOptions::default().largest(3));
        }
        assert_eq!(usage.largest.iter().map(|thread| thread.bytes).collect::<Vec<_>>(), [9, 9, 7]);
        assert_eq!((usage.threads, usage.checkpoints, usage.writes, usage.bytes), (5, 5, 10, 29));
    }
}
