//! Fault injection for backends under load: servers stop or crash, connections are cut, futures are dropped. The tests
//! define the writes and the invariants afterwards.

#![allow(dead_code, unused_imports, reason = "each binary uses its part of this")]

use std::time::Duration;

use tokio_postgres::Client;

use super::postgres::{Database, count, rows};
use super::server::Private;

pub(crate) use super::soak::{Random, rounds};
pub(crate) use super::writers::{Load, drop_somewhere, join, may_fail};

/// Cuts up to `most` connections to the database, except the client's own. Returns the number of cut connections.
pub(crate) async fn cut_connections(client: &Client, most: u32) -> i64 {
    let cut = format!(
        "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM ( \
         SELECT pid FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' \
         ORDER BY random() LIMIT {most}) AS victims"
    );
    count(client, &cut).await
}

/// Stops a server cleanly, then by a crash, and restarts it, while writers continue.
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

/// Cuts connections, two at a time, while writers continue and open new ones.
pub(crate) async fn cut_again_and_again(database: &Database, cuts: u64) {
    let client = database.client().await;
    let (mut cut, enough) = (0, i64::try_from(rounds(cuts)).unwrap());
    while cut < enough {
        cut += cut_connections(&client, 2).await;
        tokio::task::yield_now().await;
    }
}

/// Cuts all connections of an idle pool, round after round. The next call must not get one of them.
pub(crate) async fn cut_when_idle(database: &Database, calls: impl AsyncFn(u64), next: impl AsyncFn(u64)) {
    let client = database.client().await;
    for round in 0..rounds(5) {
        calls(round).await;
        assert!(cut_connections(&client, 100).await > 0, "round {round}");
        next(round + 1).await;
    }
}

/// Waits until no session is in a transaction: dropped or cut calls may still run for a moment.
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
