//! What breaks under a backend, and writers that go on meanwhile: a server that stops or crashes, connections that are cut,
//! futures that are dropped. The tests say what is written, and what has to be true afterwards.

#![allow(dead_code, reason = "each binary uses its part of this")]

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use checkpoint_core::{Error, ErrorKind};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::postgres::{Database, count, rows};
use super::server::Private;

/// How many rounds a long test runs: the usual number, or more for `cargo xtask soak`.
pub(crate) fn rounds(usual: u64) -> u64 {
    let times = std::env::var("CHECKPOINT_TEST_SOAK").ok().map_or(1, |times| times.parse().unwrap());
    usual * times
}

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

/// Stops a server in an orderly way, then by a crash, and starts it again, while writers go on.
pub(crate) async fn restart_under(load: &Load, server: &Private, database: &Database) {
    const STARTED: &str = "SELECT pg_postmaster_start_time(), 1";
    load.goes_on(30).await;
    let first = rows(&database.client().await, STARTED).await;
    for _ in 0..rounds(1) {
        for crash in [false, true] {
            server.restart(crash).await;
            load.goes_on(30).await;
        }
    }
    assert_ne!(rows(&database.client().await, STARTED).await, first, "the server was not started again");
}

/// Cuts so many connections, two at a time, while writers go on, which make new ones.
pub(crate) async fn cut_again_and_again(database: &Database, cuts: u64) {
    let client = database.client().await;
    let (mut cut, enough) = (0, i64::try_from(rounds(cuts)).unwrap());
    while cut < enough {
        cut += cut_connections(&client, 2).await;
        tokio::task::yield_now().await;
    }
}

/// Cuts all connections of a pool that is idle after so many calls, round after round. The next call gets none of them.
pub(crate) async fn cut_when_idle(database: &Database, calls: impl AsyncFn(u64), next: impl AsyncFn(u64)) {
    let client = database.client().await;
    for round in 0..rounds(5) {
        calls(round).await;
        assert!(cut_connections(&client, 100).await > 0, "round {round}");
        next(round + 1).await;
    }
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
