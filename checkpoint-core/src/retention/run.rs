//! Runs over many threads.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use futures_util::future::ready;
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt, TryStreamExt};

use super::{RetainOptions, RetainReport, Retention};
use crate::{BaseCheckpointSaver, Error, ErrorKind, Result, Str, ThreadQuery};

/// How many threads the first batch has.
const FIRST: usize = 16;

/// How many threads a batch has at most.
const MOST: usize = 128;

/// Batches that take longer become smaller, and those that take less than half of it become larger: other calls on a
/// batch's threads wait for it.
const AIM: Duration = Duration::from_millis(200);

/// At most this many busy threads are looked at again at the end.
const BUSY: usize = 10_000;

/// How often busy threads are looked at again.
const ROUNDS: usize = 2;

/// What became of one batch of threads.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct RetainBatch {
    /// What went, or would go.
    pub report: RetainReport,
    /// Threads that failed. Nothing of them was removed.
    pub failed: Vec<(Str, Error)>,
}

/// The sum of a run's batches: `stream.try_collect::<RetainSummary>()`, or [`add`](Self::add) batch by batch, to show
/// progress.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct RetainSummary {
    /// What went, or would go. Its `busy` names the threads that were still busy at the end.
    pub report: RetainReport,
    /// Threads that failed, up to a thousand of them.
    pub failed: Vec<(Str, Error)>,
    /// How many threads failed.
    pub failures: u64,
}

impl RetainSummary {
    /// The most failures that are kept.
    const FAILED: usize = 1000;

    /// Adds a batch.
    pub fn add(&mut self, batch: RetainBatch) {
        self.report.add(&batch.report);
        self.failures += u64::try_from(batch.failed.len()).unwrap_or(u64::MAX);
        let left = Self::FAILED.saturating_sub(self.failed.len());
        self.failed.extend(batch.failed.into_iter().take(left));
    }
}

impl Extend<RetainBatch> for RetainSummary {
    fn extend<I: IntoIterator<Item = RetainBatch>>(&mut self, batches: I) {
        for batch in batches {
            self.add(batch);
        }
    }
}

/// Applies a policy to the threads of a query.
pub(crate) fn retain_all<S: BaseCheckpointSaver + ?Sized>(
    saver: &S,
    policy: Retention,
    options: RetainOptions,
    query: ThreadQuery,
) -> impl Stream<Item = Result<RetainBatch>> + Send {
    run(saver, policy, options, saver.list_thread_ids(query))
}

/// Applies a policy to these threads.
pub(crate) fn retain_threads<S: BaseCheckpointSaver + ?Sized>(
    saver: &S,
    mut thread_ids: Vec<Str>,
    policy: Retention,
    options: RetainOptions,
) -> impl Stream<Item = Result<RetainBatch>> + Send {
    let mut seen = HashSet::new();
    thread_ids.retain(|thread_id| seen.insert(thread_id.clone()));
    run(saver, policy, options, stream::iter(thread_ids).map(Ok).boxed())
}

fn run<S: BaseCheckpointSaver + ?Sized>(
    saver: &S,
    policy: Retention,
    options: RetainOptions,
    threads: BoxStream<'static, Result<Str>>,
) -> impl Stream<Item = Result<RetainBatch>> + Send {
    let threads = match policy.validate() {
        Ok(()) => threads,
        Err(error) => stream::once(ready(Err(error))).boxed(),
    };
    let run = Run {
        saver,
        policy,
        options,
        threads: Some(threads),
        waiting: VecDeque::new(),
        busy: Vec::new(),
        rounds: ROUNDS,
        count: FIRST,
    };
    stream::try_unfold(run, Run::next)
}

struct Run<'a, S: ?Sized> {
    saver: &'a S,
    policy: Retention,
    options: RetainOptions,
    /// Threads to look at; `None` at their end.
    threads: Option<BoxStream<'static, Result<Str>>>,
    /// Busy threads to look at again.
    waiting: VecDeque<Str>,
    /// Threads that were busy when they were looked at.
    busy: Vec<Str>,
    /// How many rounds over busy threads are left.
    rounds: usize,
    /// How many threads the next batch has.
    count: usize,
}

impl<S: BaseCheckpointSaver + ?Sized> Run<'_, S> {
    async fn next(mut self) -> Result<Option<(RetainBatch, Self)>> {
        let batch = self.gather().await?;
        if batch.is_empty() {
            return Ok(None);
        }
        let names: Vec<&str> = batch.iter().map(|thread_id| &**thread_id).collect();
        let begun = Instant::now();
        let mut done = self.retain(&names).await?;
        let took = begun.elapsed();
        if took > AIM {
            self.count = (self.count * 3 / 4).max(1);
        } else if took < AIM / 2 && names.len() == self.count {
            self.count = (self.count * 2).min(MOST);
        }
        if self.rounds > 0 {
            let left = BUSY.saturating_sub(self.busy.len()).min(done.report.busy.len());
            self.busy.extend(done.report.busy.drain(..left));
        }
        Ok(Some((done, self)))
    }

    /// The threads of the next batch. Empty at the end.
    async fn gather(&mut self) -> Result<Vec<Str>> {
        let mut batch = Vec::new();
        if let Some(threads) = &mut self.threads {
            while batch.len() < self.count {
                let Some(thread_id) = threads.try_next().await? else {
                    self.threads = None;
                    break;
                };
                batch.push(thread_id);
            }
        }
        if batch.is_empty() && self.waiting.is_empty() && !self.busy.is_empty() {
            self.rounds -= 1;
            self.waiting.extend(self.busy.drain(..));
        }
        while self.threads.is_none() && batch.len() < self.count {
            let Some(thread_id) = self.waiting.pop_front() else { break };
            batch.push(thread_id);
        }
        Ok(batch)
    }

    /// Handles a batch, or, if that fails, its threads one by one.
    async fn retain(&mut self, names: &[&str]) -> Result<RetainBatch> {
        let failed = match self.saver.retain(names, &self.policy, &self.options).await {
            Ok(report) => return Ok(RetainBatch { report, failed: Vec::new() }),
            Err(error) if is_of_all(&error) => return Err(error),
            Err(error) => error,
        };
        let mut batch = RetainBatch::default();
        if let [name] = names {
            batch.failed.push((Str::from(*name), failed));
            return Ok(batch);
        }
        for name in names {
            match self.saver.retain(&[name], &self.policy, &self.options).await {
                Ok(report) => batch.report.add(&report),
                Err(error) if is_of_all(&error) => return Err(error),
                Err(error) => batch.failed.push((Str::from(*name), error)),
            }
        }
        Ok(batch)
    }
}

/// Whether every thread would fail with an error.
fn is_of_all(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unsupported | ErrorKind::Schema | ErrorKind::InvalidConfig | ErrorKind::Unavailable
    )
}
