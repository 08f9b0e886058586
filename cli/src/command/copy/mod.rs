//! `ckpt copy`: copies threads from one database to another.

mod compare;
mod thread;
mod writes;

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use checkpoint_core::{BaseCheckpointSaver, Error, ErrorKind, ListQuery, SaverExt, Str, ThreadQuery};
use futures_util::future::try_join;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use indicatif::{HumanBytes, HumanCount, ProgressBar};
use serde_json::json;

use self::thread::Stopped;
use crate::arguments::{Copy, Options};
use crate::failure::{Failure, Result};
use crate::open::{self, Keys, Saver, Sealed};
use crate::output::{self, DIM, json_line, progress, stdout, styled};

/// How many threads are copied concurrently, to overlap waiting for disk and network.
const CONCURRENT_THREADS: usize = 8;

/// The two databases.
struct Sides {
    from: Saver,
    to: Saver,
    dry_run: bool,
}

/// A counter that concurrent copies share.
#[derive(Default)]
struct Counter(AtomicU64);

impl Counter {
    fn add(&self, more: usize) {
        self.0.fetch_add(u64::try_from(more).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The totals of the copy, and its progress bar.
struct Counts {
    bar: ProgressBar,
    threads: Counter,
    /// Threads that were not copied completely.
    incomplete: Counter,
    checkpoints: Counter,
    writes: Counter,
    bytes: Counter,
    /// Checkpoints that the target had already.
    existing: Counter,
    only_in_target: Counter,
}

impl Counts {
    fn new(bar: ProgressBar) -> Self {
        Self {
            bar,
            threads: Counter::default(),
            incomplete: Counter::default(),
            checkpoints: Counter::default(),
            writes: Counter::default(),
            bytes: Counter::default(),
            existing: Counter::default(),
            only_in_target: Counter::default(),
        }
    }

    fn show(&self) {
        if !self.bar.is_hidden() {
            let (copied, existing) = (HumanCount(self.checkpoints.get()), HumanCount(self.existing.get()));
            self.bar.set_message(format!(
                "{copied} checkpoints copied, {existing} already in the target, threads"
            ));
        }
    }
}

pub(crate) async fn run(options: &Options, asked: &Copy) -> Result<()> {
    if open::same_database(&asked.from, &asked.to) {
        return Err(Failure::usage(
            "--from and --to are the same database; `ckpt copy-thread` copies a thread within one",
        ));
    }
    let keys =
        |side: Keys<'_>| open::cipher(&if side.is_empty() { Keys::of_every_command(options) } else { side });
    let from_keys =
        keys(Keys { flags: "--from-", file: asked.from_key_file.as_deref(), gcm: &asked.from_gcm_key })?;
    let to_keys = keys(Keys { flags: "--to-", file: asked.to_key_file.as_deref(), gcm: &asked.to_gcm_key })?;
    let (decrypts, encrypts) = (from_keys.is_some(), to_keys.is_some());
    let sides = Sides {
        from: open::open(&asked.from, from_keys, Sealed::Refuse)
            .map_err(|failure| failure.within("--from"))?,
        to: open::open(&asked.to, to_keys, Sealed::Refuse).map_err(|failure| failure.within("--to"))?,
        dry_run: asked.dry_run,
    };
    let result = copy(&sides, options, asked, decrypts, encrypts).await;
    let closed = try_join(sides.from.close(), sides.to.close()).await;
    let closed = closed.map(|_| ()).map_err(Failure::from);
    result.and(closed)
}

async fn copy(sides: &Sides, options: &Options, asked: &Copy, decrypts: bool, encrypts: bool) -> Result<()> {
    let total = check(sides, &asked.threads, encrypts).await?;
    if decrypts && !encrypts && !asked.dry_run {
        anstream::eprintln!("ckpt: note: --to has no key, so values are stored there unencrypted");
    }

    let counts = Counts::new(progress(Some(total), "threads"));
    let outcome = copy_all(sides, &asked.threads, &counts, total).await;
    counts.bar.finish_and_clear();
    let (only_failure, ended) = match outcome {
        Ok(only_failure) => (only_failure, Ok(())),
        Err(failure) => (None, Err(failure)),
    };
    summary(&counts, asked.dry_run, options.json)?;
    ended?;
    match (only_failure, counts.incomplete.get()) {
        (_, 0) => Ok(()),
        (Some(failure), _) => Err(failure),
        (None, incomplete) => Err(Failure::failed(format!(
            "{incomplete} of {} threads were not copied completely, see above",
            counts.threads.get()
        ))),
    }
}

/// The threads to copy: the named ones, or all.
fn threads(from: &Saver, named: &[String]) -> BoxStream<'static, checkpoint_core::Result<Str>> {
    if named.is_empty() {
        from.list_threads(ThreadQuery::all()).map_ok(|info| info.thread_id).boxed()
    } else {
        let mut named: Vec<Str> = named.iter().map(|thread| Str::from(thread.as_str())).collect();
        named.sort_unstable();
        named.dedup();
        stream::iter(named).map(Ok).boxed()
    }
}

/// Checks before anything is written that the threads exist and the keys are right, by reading the newest checkpoint of
/// each thread on both sides. Returns the number of threads.
async fn check(sides: &Sides, named: &[String], encrypts: bool) -> Result<u64> {
    let total = Counter::default();
    let bar = progress(None, "threads checked:");
    if !encrypts {
        // Without a key, unencrypted values would be added to an encrypted database.
        let first = sides.to.list_threads(ThreadQuery::all().limit(1)).try_next().await;
        if let Some(first) = first.map_err(|error| reading("--to", "its threads", error))? {
            is_readable("--to", &sides.to, &first.thread_id).await?;
        }
    }
    let check_thread = |thread: Str| {
        let (total, bar) = (&total, &bar);
        async move {
            if !is_readable("--from", &sides.from, &thread).await? {
                return Err(Failure::not_found(format!("--from has no thread {}", output::thread(&thread))));
            }
            is_readable("--to", &sides.to, &thread).await?;
            total.add(1);
            bar.inc(1);
            Ok(())
        }
    };
    threads(&sides.from, named)
        .map_err(|error| reading("--from", "its threads", error))
        .try_for_each_concurrent(CONCURRENT_THREADS, check_thread)
        .await?;
    bar.finish_and_clear();
    Ok(total.get())
}

/// Whether the thread has a checkpoint; fails if the newest cannot be decrypted.
async fn is_readable(side: &str, saver: &Saver, thread: &Str) -> Result<bool> {
    match saver.list_first(ListQuery::thread(thread.clone())).await {
        Ok(found) => Ok(found.is_some()),
        // Malformed rows, and ids that the target cannot store, are reported later with their thread.
        Err(error) if matches!(error.kind(), ErrorKind::Codec | ErrorKind::InvalidArgument) => Ok(true),
        Err(error) => Err(reading(side, &format!("thread {}", output::thread(thread)), error)),
    }
}

fn reading(side: &str, what: &str, error: Error) -> Failure {
    Failure::from(error).within(format!("reading {side}: {what}"))
}

/// Copies the threads. If one cannot be copied, the others are copied nevertheless. The failure of a single thread is
/// returned; failures among several threads are printed immediately.
async fn copy_all(sides: &Sides, named: &[String], counts: &Counts, total: u64) -> Result<Option<Failure>> {
    let threads = threads(&sides.from, named).map_err(|error| reading("--from", "its threads", error));
    let mut copies = threads
        .map_ok(|thread| async move {
            let outcome = thread::copy(sides, &thread, counts).await;
            Ok::<_, Failure>(outcome)
        })
        .try_buffer_unordered(CONCURRENT_THREADS);
    let mut only_failure = None;
    while let Some(outcome) = copies.try_next().await? {
        counts.threads.add(1);
        counts.bar.inc(1);
        match outcome {
            Ok(()) => {}
            Err(Stopped { failure, only_this_thread: false }) => return Err(failure),
            Err(Stopped { failure, .. }) => {
                counts.incomplete.add(1);
                if total == 1 {
                    only_failure = Some(failure);
                } else {
                    counts.bar.suspend(|| failure.report());
                }
            }
        }
    }
    Ok(only_failure)
}

fn summary(counts: &Counts, dry_run: bool, json: bool) -> Result<()> {
    let mut out = stdout();
    if json {
        let line = json!({
            "dry_run": dry_run,
            "threads": counts.threads.get(),
            "threads_not_whole": counts.incomplete.get(),
            "checkpoints": counts.checkpoints.get(),
            "writes": counts.writes.get(),
            "bytes": counts.bytes.get(),
            "checkpoints_there_already": counts.existing.get(),
            "checkpoints_only_in_target": counts.only_in_target.get(),
        });
        json_line(&mut out, &line)?;
        return Ok(out.flush()?);
    }
    let count = |counter: &Counter, what: &str| {
        let number = counter.get();
        format!("{} {what}{}", HumanCount(number), if number == 1 { "" } else { "s" })
    };
    writeln!(
        out,
        "{} {} and {} of {} ({})",
        if dry_run { "Would copy" } else { "Copied" },
        count(&counts.checkpoints, "checkpoint"),
        count(&counts.writes, "pending write"),
        count(&counts.threads, "thread"),
        HumanBytes(counts.bytes.get())
    )?;
    for (counter, what) in [
        (&counts.existing, "already in the target"),
        (&counts.only_in_target, "only in the target; not changed"),
    ] {
        if counter.get() > 0 {
            writeln!(out, "{}", styled(DIM, format!("{} {what}", count(counter, "checkpoint"))))?;
        }
    }
    Ok(out.flush()?)
}
