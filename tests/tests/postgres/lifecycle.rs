//! Retries and the pool in metrics, and what `close` leaves of connections.

use std::time::Duration;

use checkpoint_conformance::telemetry::Recording;
use checkpoint_core::backend::telemetry::{CALLS, ERRORS, POOL_WAIT, RETRIES};
use checkpoint_core::{BaseCheckpointSaver, CheckpointConfig, ErrorKind};
use checkpoint_postgres::PostgresSaver;
use checkpoint_postgres::deadpool_postgres::{Manager, Pool};
use tokio_postgres::{Client, NoTls};

use crate::shared::faults::join;
use crate::shared::postgres::{Database, Server, Test, count, tests};
use crate::shared::writers::{metadata, step};

async fn put(saver: &PostgresSaver, number: u64) -> CheckpointConfig {
    let made = step(number);
    saver.put(&CheckpointConfig::new("thread"), &made, &metadata(), &made.channel_versions).await.unwrap()
}

/// Waits until a query counts this many.
async fn wait_for(client: &Client, query: &str, expected: i64) {
    let mut found = count(client, query).await;
    for _ in 0..1000 {
        if found == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        found = count(client, query).await;
    }
    assert_eq!(found, expected, "{query}");
}

/// The connection of a call is cut while the server runs it.
async fn retries_and_waits_for_a_connection_are_counted(server: &Server) {
    const WAITING: &str = "
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND wait_event_type = 'Lock'";
    const CUT: &str = "
        SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND wait_event_type = 'Lock'";
    let database = Database::set_up(server.url()).await;
    let saver = database.builder().build().unwrap();
    let stored = put(&saver, 1).await;
    let (locker, client) = (database.client().await, database.client().await);
    locker.batch_execute("BEGIN; LOCK TABLE checkpoints IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let recording = Recording::new();
    let cut = async {
        wait_for(&client, WAITING, 1).await;
        assert_eq!(count(&client, CUT).await, 1);
        locker.batch_execute("COMMIT").await.unwrap();
    };
    let (found, ()) = tokio::join!(recording.of(saver.get_tuple(&stored)), cut);
    assert!(found.unwrap().is_some());

    let system = ("db.system.name", "postgresql");
    let retries = recording.counter(RETRIES, &[system, ("error.type", "unavailable")]);
    assert!(retries > 0, "no retry was counted");
    assert_eq!(recording.total(RETRIES), retries);
    // The pool warns, too.
    let mut warnings = recording.warnings();
    warnings.retain(|warning| warning.contains_key("attempt"));
    assert_eq!(warnings.len() as u64, retries);
    for (warning, attempt) in warnings.iter().zip(1..) {
        let field = |name| warning.get(name).map(String::as_str);
        assert_eq!(field("db.operation.name"), Some("get_tuple"));
        assert_eq!(field("attempt"), Some(&*format!("{attempt}")));
        assert_eq!(field("error.type"), Some("unavailable"));
        assert!(field("pause_ms").is_some_and(|pause| pause.parse::<u64>().is_ok()), "{warning:?}");
        assert!(!format!("{warning:?}").contains("thread"), "{warning:?}");
    }
    // Each attempt takes a connection.
    let waits = recording.histogram(POOL_WAIT, &[system]);
    assert_eq!(waits.len() as u64, retries + 1);
    assert!(waits.iter().all(|seconds| *seconds >= 0.0), "{waits:?}");
    // Retries are part of one call, which succeeded.
    assert_eq!((recording.spans().len(), recording.total(CALLS), recording.total(ERRORS)), (1, 1, 0));
}

async fn close_leaves_no_connection(server: &Server) {
    let name = "closing-application";
    let database = Database::set_up(server.url()).await;
    let sessions = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'
                            AND datname = current_database()"
    );
    let separator = if database.url().contains('?') { '&' } else { '?' };
    let url = format!("{}{separator}application_name={name}", database.url());
    let saver = PostgresSaver::builder(&url).read_replica(&url).max_connections(4).build().unwrap();
    let client = database.client().await;
    let puts = (0..8).map(|number| {
        let saver = saver.clone();
        tokio::spawn(async move { put(&saver, number).await })
    });
    let stored = join(puts.collect()).await;
    assert!(count(&client, &sessions).await > 0, "no session has the application's name");
    let clone = saver.clone();
    saver.close().await.unwrap();
    // The driver has sent its farewell; the server may take a moment to end the sessions.
    wait_for(&client, &sessions, 0).await;
    for saver in [&saver, &clone] {
        assert_eq!(saver.get_tuple(&stored[0]).await.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    assert_eq!(count(&client, &sessions).await, 0);
    assert_eq!(count(&client, "SELECT count(*) FROM checkpoints").await, 8);
}

async fn dropping_the_last_clone_leaves_no_connection(server: &Server) {
    const SESSIONS: &str = "
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
    let database = Database::set_up(server.url()).await;
    let saver = database.builder().build().unwrap();
    let client = database.client().await;
    put(&saver, 1).await;
    let clone = saver.clone();
    drop(saver);
    put(&clone, 2).await;
    drop(clone);
    wait_for(&client, SESSIONS, 0).await;
    assert_eq!(count(&client, "SELECT count(*) FROM checkpoints").await, 2);
}

async fn an_applications_pool_stays_open(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let pool =
        Pool::builder(Manager::new(database.url().parse().unwrap(), NoTls)).max_size(2).build().unwrap();
    let saver = PostgresSaver::from_pool(pool.clone()).build().unwrap();
    let stored = put(&saver, 1).await;
    saver.close().await.unwrap();
    assert_eq!(saver.get_tuple(&stored).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(!pool.is_closed());
    let theirs = pool.get().await.unwrap();
    assert_eq!(count(&theirs, "SELECT count(*) FROM checkpoints").await, 1);
    drop(theirs);
    let another = PostgresSaver::from_pool(pool).build().unwrap();
    assert!(another.get_tuple(&stored).await.unwrap().is_some());
}

async fn check_schema_finds_tables_that_do_not_fit(server: &Server) {
    for damage in [
        "DROP TABLE checkpoint_blobs",
        "ALTER TABLE checkpoint_writes DROP COLUMN task_path",
        "DELETE FROM checkpoint_migrations WHERE v = 9",
        "DELETE FROM checkpoint_migrations",
        "INSERT INTO checkpoint_migrations (v) VALUES (99)",
    ] {
        let database = Database::set_up(server.url()).await;
        let saver = database.builder().build().unwrap();
        saver.check_schema().await.unwrap();
        database.client().await.batch_execute(damage).await.unwrap();
        let error = saver.check_schema().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema, "{damage}: {error}");
        saver.ping().await.unwrap();
    }
}

async fn ping_of_a_server_that_is_down(_: &Server) {
    let saver = PostgresSaver::builder("postgres://u:PASSWORD@127.0.0.1:1/d").build().unwrap();
    let error = saver.ping().await.unwrap_err();
    let shown = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{shown}");
    assert!(shown.contains("127.0.0.1:1") && !shown.contains("PASSWORD"), "{shown}");
}

pub(crate) fn tests() -> &'static [Test] {
    tests![
        retries_and_waits_for_a_connection_are_counted,
        close_leaves_no_connection,
        dropping_the_last_clone_leaves_no_connection,
        an_applications_pool_stays_open,
        check_schema_finds_tables_that_do_not_fit,
        ping_of_a_server_that_is_down,
    ]
}
