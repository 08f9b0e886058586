//! `ckpt copy`: threads from one database to another.

mod compare;
mod thread;
mod writes;

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use checkpoint_core::{BaseCheckpointSaver, Error, ErrorKind, ListQuery, SaverExt, Str, ThreadQuery};
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use indicatif::{HumanBytes, HumanCount, ProgressBar};
use serde_json::json;

use self::thread::Stopped;
use crate::arguments::{Copy, Options};
use crate::failure::{Failure, Result};
use crate::open::{self, Keys, Saver, Sealed};
use crate::output::{self, DIM, json_line, progress, stdout, styled};

/// How many threads are copied at the same time: enough that one's waiting for the disk or the network is another's turn.
const AT_ONCE: usize = 8;

/// The two databases.
struct Sides {
    from: Saver,
    to: Saver,
    dry_run: bool,
}

/// A count that grows.
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

/// What was done, and who watches.
struct Counts {
    bar: ProgressBar,
    threads: Counter,
    /// Threads that were not copied whole.
    stopped: Counter,
    checkpoints: Counter,
    writes: Counter,
    bytes: Counter,
    /// Checkpoints that the target had.
    there: Counter,
    only_in_target: Counter,
}

impl Counts {
    fn new(bar: ProgressBar) -> Self {
        Self {
            bar,
            threads: Counter::default(),
            stopped: Counter::default(),
            checkpoints: Counter::default(),
            writes: Counter::default(),
            bytes: Counter::default(),
            there: Counter::default(),
            only_in_target: Counter::default(),
        }
    }

    fn show(&self) {
        if !self.bar.is_hidden() {
            let (copied, there) = (HumanCount(self.checkpoints.get()), HumanCount(self.there.get()));
            self.bar.set_message(format!("{copied} checkpoints copied, {there} there already, threads"));
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
    let (opens, seals) = (from_keys.is_some(), to_keys.is_some());
    let sides = Sides {
        from: open::open(&asked.from, from_keys, Sealed::Refuse)
            .map_err(|failure| failure.within("--from"))?,
        to: open::open(&asked.to, to_keys, Sealed::Refuse).map_err(|failure| failure.within("--to"))?,
        dry_run: asked.dry_run,
    };
    let total = check(&sides, &asked.threads, seals).await?;
    if opens && !seals && !asked.dry_run {
        anstream::eprintln!("ckpt: note: no key is given for --to, so values are stored there in the clear");
    }

    let counts = Counts::new(progress(Some(total), "threads"));
    let stopped = copy_all(&sides, &asked.threads, &counts, total).await;
    counts.bar.finish_and_clear();
    let (alone, ended) = match stopped {
        Ok(alone) => (alone, Ok(())),
        Err(failure) => (None, Err(failure)),
    };
    summary(&counts, asked.dry_run, options.json)?;
    ended?;
    match (alone, counts.stopped.get()) {
        (_, 0) => Ok(()),
        (Some(failure), _) => Err(failure),
        (None, stopped) => Err(Failure::failed(format!(
            "{stopped} of {} threads are not copied whole, see above",
            counts.threads.get()
        ))),
    }
}

/// The threads to copy: those that are named, else all of them as they come.
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

/// Finds out before anything is written whether the threads are there and the keys fit, by the newest checkpoint of each
/// thread on either side. Returns how many threads there are.
async fn check(sides: &Sides, named: &[String], seals: bool) -> Result<u64> {
    let total = Counter::default();
    let bar = progress(None, "threads looked at:");
    if !seals {
        // Clear text among sealed values is what nobody wants who forgot a key.
        let first = sides.to.list_threads(ThreadQuery::all().limit(1)).try_next().await;
        if let Some(first) = first.map_err(|error| reading("--to", "its threads", error))? {
            fits("--to", &sides.to, &first.thread_id).await?;
        }
    }
    let look = |thread: Str| {
        let (total, bar) = (&total, &bar);
        async move {
            if !fits("--from", &sides.from, &thread).await? {
                return Err(Failure::not_found(format!("--from has no thread {}", output::thread(&thread))));
            }
            fits("--to", &sides.to, &thread).await?;
            total.add(1);
            bar.inc(1);
            Ok(())
        }
    };
    threads(&sides.from, named)
        .map_err(|error| reading("--from", "its threads", error))
        .try_for_each_concurrent(AT_ONCE, look)
        .await?;
    bar.finish_and_clear();
    Ok(total.get())
}

/// Whether the thread has a checkpoint, of which the newest can be opened.
async fn fits(side: &str, saver: &Saver, thread: &Str) -> Result<bool> {
    match saver.list_first(ListQuery::thread(thread.clone())).await {
        Ok(found) => Ok(found.is_some()),
        // A damaged row is there too; it is reported with its thread, and so is an id that the target cannot hold.
        Err(error) if matches!(error.kind(), ErrorKind::Codec | ErrorKind::InvalidArgument) => Ok(true),
        Err(error) => Err(reading(side, &format!("thread {}", output::thread(thread)), error)),
    }
}

fn reading(side: &str, what: &str, error: Error) -> Failure {
    Failure::from(error).within(format!("reading {side}: {what}"))
}

/// Copies the threads. One that cannot be copied does not keep the others from it; if it is the only one, its failure is
/// returned, else it is reported at once.
async fn copy_all(sides: &Sides, named: &[String], counts: &Counts, total: u64) -> Result<Option<Failure>> {
    let threads = threads(&sides.from, named).map_err(|error| reading("--from", "its threads", error));
    let mut copies = threads
        .map_ok(|thread| async move {
            let outcome = thread::copy(sides, &thread, counts).await;
            Ok::<_, Failure>(outcome)
        })
        .try_buffer_unordered(AT_ONCE);
    let mut alone = None;
    while let Some(outcome) = copies.try_next().await? {
        counts.threads.add(1);
        counts.bar.inc(1);
        match outcome {
            Ok(()) => {}
            Err(Stopped { failure, only_this: false }) => return Err(failure),
            Err(Stopped { failure, .. }) => {
                counts.stopped.add(1);
                if total == 1 {
                    alone = Some(failure);
                } else {
                    counts.bar.suspend(|| failure.report());
                }
            }
        }
    }
    Ok(alone)
}

fn summary(counts: &Counts, dry_run: bool, json: bool) -> Result<()> {
    let mut out = stdout();
    if json {
        let line = json!({
            "dry_run": dry_run,
            "threads": counts.threads.get(),
            "threads_not_whole": counts.stopped.get(),
            "checkpoints": counts.checkpoints.get(),
            "writes": counts.writes.get(),
            "bytes": counts.bytes.get(),
            "checkpoints_there_already": counts.there.get(),
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
    for (counter, what) in
        [(&counts.there, "there already"), (&counts.only_in_target, "only in the target; left as they are")]
    {
        if counter.get() > 0 {
            writeln!(out, "{}", styled(DIM, format!("{} {what}", count(counter, "checkpoint"))))?;
        }
    }
    Ok(out.flush()?)
}
