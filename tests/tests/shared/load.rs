//! What writers write, and what has to be true once they are done.

#![allow(dead_code, reason = "each binary uses its part of this")]

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, Checkpoint, CheckpointConfig, CheckpointMetadata, Error, ErrorKind,
    Str, Value, id,
};
use checkpoint_postgres::PostgresSaver;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::postgres::{Database, count, rows};

/// Numbers that look random, the same in each run.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }
}

/// Writers that work at the same time.
#[derive(Debug, Default)]
pub(crate) struct Load {
    stop: AtomicBool,
    /// How much they know to be stored.
    stored: AtomicU64,
}

impl Load {
    /// Whether writers are to go on.
    pub(crate) fn lasts(&self) -> bool {
        !self.stop.load(Ordering::Acquire)
    }

    /// Counts what is known to be stored.
    pub(crate) fn count(&self) {
        self.stored.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits until so much more is stored.
    pub(crate) async fn goes_on(&self, more: u64) {
        let enough = self.stored.load(Ordering::Acquire) + more;
        while self.stored.load(Ordering::Acquire) < enough {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn end<T>(&self, writers: Vec<JoinHandle<T>>) -> Vec<T> {
        self.stop.store(true, Ordering::Release);
        join(writers).await
    }
}

pub(crate) async fn join<T>(tasks: Vec<JoinHandle<T>>) -> Vec<T> {
    let mut done = Vec::new();
    for task in tasks {
        done.push(task.await.unwrap());
    }
    done
}

/// A call may fail while the server is away, but it says so, and that it may be repeated.
#[track_caller]
pub(crate) fn may_fail(error: &Error) {
    let expected = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Conflict);
    assert!(expected && error.is_retryable(), "{error:?}");
}

/// Cuts so many of the connections to the database at most, but the client's own. Returns how many there were.
pub(crate) async fn cut_connections(client: &Client, most: u32) -> i64 {
    let cut = format!(
        "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM ( \
         SELECT pid FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' \
         ORDER BY random() LIMIT {most}) AS victims"
    );
    count(client, &cut).await
}

/// Drops a future after a few polls or a few milliseconds, at a random point of what it does.
pub(crate) async fn drop_somewhere<F: Future>(future: F, random: &mut Random) -> Option<F::Output> {
    let mut future = pin!(future);
    if random.below(2) == 0 {
        let longest = *random.pick(&[500, 2_000, 10_000, 50_000]);
        return tokio::time::timeout(Duration::from_micros(random.below(longest)), future).await.ok();
    }
    for _ in 0..random.below(30) {
        if let Poll::Ready(output) =
            std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
        {
            return Some(output);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// Waits until no session is inside of a transaction: what was dropped or cut may still be under way for a moment.
pub(crate) async fn nobody_is_inside(client: &Client) {
    const INSIDE: &str = "
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'";
    let mut inside = count(client, INSIDE).await;
    for _ in 0..100 {
        if inside == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        inside = count(client, INSIDE).await;
    }
    assert_eq!(inside, 0, "sessions inside of a transaction");
}

pub(crate) fn list(number: u64) -> ChannelValue {
    let items = (0..40).map(|at| Value::from(i64::try_from(number).unwrap() + at)).collect();
    ChannelValue::from_msgpack(Value::Array(items).to_msgpack().unwrap().into()).unwrap()
}

/// A checkpoint whose values are all new.
pub(crate) fn step(number: u64) -> Checkpoint {
    let version = format!("{:032}.{}", number + 1, id::uuid6(0));
    ["items", "more"]
        .into_iter()
        .fold(Checkpoint::new(0), |made, channel| made.with_channel(channel, list(number), version.as_str()))
        .with_channel("number", i64::try_from(number).unwrap(), version.as_str())
}

pub(crate) fn metadata() -> CheckpointMetadata {
    CheckpointMetadata::new("loop", 1)
}

pub(crate) fn writes(number: u64) -> [(Str, ChannelValue); 2] {
    [("items".into(), list(number)), ("number".into(), i64::try_from(number).unwrap().into())]
}

/// No checkpoint lacks a value that it names, writes are whole, no session is inside of a transaction, the pool works.
pub(crate) async fn is_sound(database: &Database, saver: &PostgresSaver) {
    const MISSING: &str = "
        SELECT c.thread_id, c.checkpoint_id, named.channel
        FROM checkpoints AS c, jsonb_each_text(c.checkpoint->'channel_versions') AS named(channel, version)
        WHERE NOT c.checkpoint->'channel_values' ? named.channel AND NOT EXISTS (
            SELECT FROM checkpoint_blobs AS b
            WHERE (b.thread_id, b.checkpoint_ns, b.channel, b.version)
                = (c.thread_id, c.checkpoint_ns, named.channel, named.version))";
    const HALF: &str = "
        SELECT thread_id, checkpoint_id, task_id FROM checkpoint_writes
        GROUP BY thread_id, checkpoint_ns, checkpoint_id, task_id HAVING count(*) <> 2";
    let client = database.client().await;
    nobody_is_inside(&client).await;
    assert_eq!(rows(&client, MISSING).await, Vec::<Vec<_>>::new(), "values that are named and missing");
    assert_eq!(rows(&client, HALF).await, Vec::<Vec<_>>::new(), "writes that are there in part");
    // More calls at once than the pool has connections.
    let calls: Vec<_> = (0..40)
        .map(|at| {
            let saver = saver.clone();
            tokio::spawn(async move {
                let made = step(at);
                let config = CheckpointConfig::new(format!("afterwards-{at}"));
                let stored = saver.put(&config, &made, &metadata(), &made.channel_versions).await?;
                saver.get_tuple(&stored).await.map(|found| found.unwrap().checkpoint == made)
            })
        })
        .collect();
    for call in calls {
        assert!(call.await.unwrap().unwrap(), "the pool does not work any more");
    }
}
