//! The table of leases: files that have none, files that another program set up, several savers on one file.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod shared;

use std::path::Path;
use std::time::Duration;

use checkpoint_core::{
    BaseCheckpointSaver, Checkpoint, CheckpointConfig, CheckpointMetadata, Error, ErrorKind, PruneStrategy,
    PutOptions, PutWritesOptions, Result, SaverExt, ThreadQuery,
};
use checkpoint_sqlite::SqliteSaver;
use checkpoint_sqlite::rusqlite::Connection;
use futures_util::TryStreamExt;
use futures_util::future::join_all;

use shared::{place, saver};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);

async fn put(saver: &SqliteSaver, thread_id: &str, options: &PutOptions) -> Result<CheckpointConfig> {
    let checkpoint = Checkpoint::new(0).with_channel("topic", "rust", "1");
    let metadata = CheckpointMetadata::new("loop", 0);
    let config = CheckpointConfig::new(thread_id);
    saver.put_with(&config, &checkpoint, &metadata, &checkpoint.channel_versions, options).await
}

/// Changes the file as a program would that has no leases.
fn execute(path: &Path, sql: &str) {
    Connection::open(path).unwrap().execute_batch(sql).unwrap();
}

/// A file that Python or an older version of this program set up.
async fn set_up_without_leases(path: &Path) {
    saver(path).setup().await.unwrap();
    execute(path, "DROP TABLE checkpoint_leases");
}

#[tokio::test]
async fn a_file_without_leases_works_and_setup_adds_them() {
    let (_directory, path) = place();
    set_up_without_leases(&path).await;
    let saver = saver(&path);
    let config = put(&saver, "t", &PutOptions::default()).await.unwrap();
    saver.put_writes(&config, &[("x".into(), 1_i64.into())], "task", "").await.unwrap();
    put(&saver, "u", &PutOptions::default()).await.unwrap();
    saver.delete_thread("t").await.unwrap();
    saver.prune(&["u"], PruneStrategy::Delete).await.unwrap();
    assert_eq!(saver.list_threads(ThreadQuery::all()).try_collect::<Vec<_>>().await.unwrap(), []);

    let (_other_directory, other) = place();
    let elsewhere = self::saver(&other);
    elsewhere.setup().await.unwrap();
    let lease = elsewhere.acquire_lease("t", LONG).await.unwrap();
    let writes = [("x".into(), 1_i64.into())];
    let options = PutWritesOptions::default().lease(lease.clone());
    let errors = [
        saver.acquire_lease("t", LONG).await.unwrap_err(),
        saver.renew_lease(&lease).await.unwrap_err(),
        saver.release_lease(&lease).await.unwrap_err(),
        put(&saver, "t", &PutOptions::default().lease(lease.clone())).await.unwrap_err(),
        saver.put_writes_with(&config, &writes, "task", "", &options).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
        assert!(error.to_string().contains("setup()"), "{error}");
    }
    // A connection that was opened before another program created the table uses it.
    self::saver(&path).setup().await.unwrap();
    let lease = saver.acquire_lease("t", LONG).await.unwrap();
    put(&saver, "t", &PutOptions::default().lease(lease)).await.unwrap();
}

#[tokio::test]
async fn another_table_of_that_name_is_rejected_and_not_changed() {
    let (_directory, path) = place();
    set_up_without_leases(&path).await;
    execute(&path, "CREATE TABLE checkpoint_leases (thread_id TEXT PRIMARY KEY, flat TEXT)");
    execute(&path, "INSERT INTO checkpoint_leases VALUES ('t', 'third floor')");
    let saver = saver(&path);
    for error in [
        saver.setup().await.unwrap_err(),
        saver.acquire_lease("t", LONG).await.unwrap_err(),
        saver.delete_thread("t").await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
        assert!(error.to_string().contains("checkpoint_leases"), "{error}");
        assert!(!error.to_string().contains("run setup()"), "setup would not help: {error}");
    }
    let file = Connection::open(&path).unwrap();
    let rows: i64 = file.query_row("SELECT count(*) FROM checkpoint_leases", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 1);
}

#[tokio::test]
async fn a_read_only_saver_rejects_leases() {
    let (_directory, path) = place();
    let writer = saver(&path);
    writer.setup().await.unwrap();
    let lease = writer.acquire_lease("t", LONG).await.unwrap();
    let reader = SqliteSaver::builder(&path).read_only(true).build().unwrap();
    reader.setup().await.unwrap();
    for error in [
        reader.acquire_lease("u", LONG).await.unwrap_err(),
        reader.renew_lease(&lease).await.unwrap_err(),
        reader.release_lease(&lease).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("read-only"), "{error}");
    }
    // A read-only file without the table is readable, as before.
    execute(&path, "DROP TABLE checkpoint_leases");
    reader.setup().await.unwrap();
    assert!(reader.get_tuple(&CheckpointConfig::new("t")).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_savers_gets_the_lease() {
    let (_directory, path) = place();
    let first = saver(&path);
    first.setup().await.unwrap();
    let second = saver(&path);
    for round in 0..20 {
        let thread_id = format!("t{round}");
        let attempts = (0..8).map(|at| {
            let saver = if at % 2 == 0 { first.clone() } else { second.clone() };
            let thread_id = thread_id.clone();
            tokio::spawn(async move { saver.acquire_lease(&thread_id, LONG).await })
        });
        let (mut granted, mut refused) = (Vec::new(), Vec::new());
        for attempt in join_all(attempts).await {
            match attempt.unwrap() {
                Ok(lease) => granted.push(lease),
                Err(error) => refused.push(error),
            }
        }
        assert_eq!((granted.len(), refused.len()), (1, 7));
        let is_final = |error: &Error| error.kind() == ErrorKind::Conflict && !error.is_retryable();
        assert!(refused.iter().all(is_final), "{refused:?}");
        // Both savers know the holder.
        first.renew_lease(&granted[0]).await.unwrap();
        second.renew_lease(&granted[0]).await.unwrap();
    }
}

#[tokio::test]
async fn a_lease_is_taken_over_when_it_expired_or_was_given_back() {
    let (_directory, path) = place();
    let saver = saver(&path);
    saver.setup().await.unwrap();
    let first = saver.acquire_lease("t", LONG).await.unwrap();
    // Its holder may go on after the time, as long as nobody took over.
    execute(&path, "UPDATE checkpoint_leases SET expires_at = 1");
    put(&saver, "t", &PutOptions::default().lease(first.clone())).await.unwrap();
    assert_eq!(
        saver.acquire_lease("t", LONG).await.unwrap_err().kind(),
        ErrorKind::Conflict,
        "it was renewed"
    );

    execute(&path, "UPDATE checkpoint_leases SET expires_at = 1");
    let second = saver.acquire_lease("t", LONG).await.unwrap();
    assert!(second.token() > first.token());
    for error in [
        saver.renew_lease(&first).await.unwrap_err(),
        put(&saver, "t", &PutOptions::default().lease(first.clone())).await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Conflict, false), "{error}");
    }
    saver.release_lease(&first).await.unwrap();
    saver.renew_lease(&second).await.unwrap();

    saver.release_lease(&second).await.unwrap();
    assert_eq!(
        saver.renew_lease(&second).await.unwrap_err().kind(),
        ErrorKind::Conflict,
        "it was given back"
    );
    // The token increases even if the clock was set back.
    execute(&path, "UPDATE checkpoint_leases SET token = 9000000000000000000");
    let third = saver.acquire_lease("t", LONG).await.unwrap();
    assert_eq!(third.token(), 9_000_000_000_000_000_001);
}

#[tokio::test]
async fn deleting_a_thread_deletes_its_lease() {
    let (_directory, path) = place();
    let saver = saver(&path);
    saver.setup().await.unwrap();
    for by_pruning in [false, true] {
        let lease = saver.acquire_lease("t", LONG).await.unwrap();
        let other = saver.acquire_lease("other", LONG).await.unwrap();
        if by_pruning {
            saver.prune(&["t"], PruneStrategy::Delete).await.unwrap();
        } else {
            saver.delete_thread("t").await.unwrap();
        }
        let options = PutOptions::default().lease(lease.clone());
        assert_eq!(put(&saver, "t", &options).await.unwrap_err().kind(), ErrorKind::Conflict);
        assert!(saver.get(&CheckpointConfig::new("t")).await.unwrap().is_none());
        let next = saver.acquire_lease("t", LONG).await.unwrap();
        assert!(next.token() > lease.token());
        saver.renew_lease(&other).await.unwrap();
        saver.release_lease(&other).await.unwrap();
        saver.release_lease(&next).await.unwrap();
    }
}
