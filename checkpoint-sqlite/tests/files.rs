//! Invalid, damaged, locked and replaced files, and the errors they cause.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod shared;

use std::time::Duration;

use checkpoint_core::{
    BaseCheckpointSaver, Checkpoint, CheckpointConfig, CheckpointMetadata, Cipher, ErrorKind, ListQuery,
    PruneStrategy, Result, SaverExt, ThreadQuery,
};
use checkpoint_sqlite::SqliteSaver;
use checkpoint_sqlite::rusqlite::Connection;
use futures_util::TryStreamExt;

use shared::{place, saver};

const OLD_TABLES: &str = "
    CREATE TABLE checkpoints (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '',
        checkpoint_id TEXT NOT NULL, parent_checkpoint_id TEXT, type TEXT, checkpoint BLOB, metadata BLOB,
        PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id));
    CREATE TABLE writes (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '',
        checkpoint_id TEXT NOT NULL, task_id TEXT NOT NULL, idx INTEGER NOT NULL, channel TEXT NOT NULL,
        type TEXT, value BLOB, PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx));";

async fn put(saver: &SqliteSaver, thread_id: &str) -> Result<CheckpointConfig> {
    let checkpoint = Checkpoint::new(0).with_channel("topic", "rust", "1");
    let metadata = CheckpointMetadata::new("loop", 0);
    saver.put(&CheckpointConfig::new(thread_id), &checkpoint, &metadata, &checkpoint.channel_versions).await
}

async fn count(saver: &SqliteSaver) -> usize {
    saver.list_all(ListQuery::all()).await.unwrap().len()
}

#[tokio::test]
async fn calls_before_setup_fail_with_schema_and_create_nothing() {
    let (_directory, path) = place();
    let saver = saver(&path);
    let config = CheckpointConfig::new("t");
    let errors = [
        saver.get_tuple(&config).await.unwrap_err(),
        saver.list_all(ListQuery::all()).await.unwrap_err(),
        saver.list_threads(ThreadQuery::all()).try_collect::<Vec<_>>().await.unwrap_err(),
        saver.get_delta_channel_history(&config, &["x"]).await.unwrap_err(),
        put(&saver, "t").await.unwrap_err(),
        saver.delete_thread("t").await.unwrap_err(),
        saver.delete_for_runs(&["r"]).await.unwrap_err(),
        saver.copy_thread("t", "u").await.unwrap_err(),
        saver.prune(&["t"], PruneStrategy::KeepLatest).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
        assert!(error.to_string().contains("setup()") && error.operation().is_some(), "{error}");
    }
    assert!(!path.exists());
    // A listing with limit 0 does not read the file.
    assert!(saver.list_all(ListQuery::all().limit(0)).await.unwrap().is_empty());
    // An empty file has no tables either.
    std::fs::write(&path, b"").unwrap();
    assert_eq!(saver.get_tuple(&config).await.unwrap_err().kind(), ErrorKind::Schema);
    assert_eq!(put(&saver, "t").await.unwrap_err().kind(), ErrorKind::Schema);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);

    saver.setup().await.unwrap();
    put(&saver, "t").await.unwrap();
    assert_eq!(count(&saver).await, 1);
}

#[tokio::test]
async fn errors_name_invalid_paths() {
    let (directory, path) = place();
    for call in ["setup", "put", "get_tuple"] {
        let outcome = |saver: SqliteSaver| async move {
            match call {
                "setup" => saver.setup().await,
                "put" => put(&saver, "t").await.map(|_| ()),
                _ => saver.get_tuple(&CheckpointConfig::new("t")).await.map(|_| ()),
            }
        };
        let error = outcome(saver(&path.join("missing/agent.db"))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("directory"), "{error}");
        let error = outcome(saver(directory.path())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn files_that_are_not_databases_are_not_changed() {
    let (_directory, path) = place();
    let text = b"These are notes, not a database. ".repeat(200);
    std::fs::write(&path, &text).unwrap();
    let saver = saver(&path);
    for error in [
        saver.setup().await.unwrap_err(),
        put(&saver, "t").await.unwrap_err(),
        saver.get_tuple(&CheckpointConfig::new("t")).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
        assert!(error.to_string().contains("agent.db"), "{error}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), text);
}

#[tokio::test]
async fn a_damaged_page_is_an_error_and_the_saver_recovers() {
    let (_directory, path) = place();
    saver(&path).setup().await.unwrap();
    put(&saver(&path), "t").await.unwrap();
    Connection::open(&path).unwrap().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    damaged[4096..].fill(0xff);
    std::fs::write(&path, &damaged).unwrap();
    let saver = saver(&path);
    let error = saver.get_tuple(&CheckpointConfig::new("t")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    std::fs::write(&path, &whole).unwrap();
    assert!(saver.get_tuple(&CheckpointConfig::new("t")).await.unwrap().is_some());
}

#[tokio::test]
async fn an_unknown_schema_is_rejected_and_not_changed() {
    let tables = [
        OLD_TABLES.replace("parent_checkpoint_id TEXT,", ""),
        OLD_TABLES.replace("metadata BLOB,", "metadata BLOB, tenant TEXT NOT NULL,"),
        OLD_TABLES.replace("task_id, idx)", "task_id, idx, channel)"),
        "CREATE TABLE writes (poem TEXT)".to_owned(),
    ];
    for tables in tables {
        let (_directory, path) = place();
        Connection::open(&path).unwrap().execute_batch(&tables).unwrap();
        let before = std::fs::read(&path).unwrap();
        let saver = saver(&path);
        for error in [
            saver.setup().await.unwrap_err(),
            put(&saver, "t").await.unwrap_err(),
            saver.get_tuple(&CheckpointConfig::new("t")).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
            assert!(!error.to_string().contains("run setup()"), "setup would not help: {error}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), before, "{tables}");
    }
}

#[tokio::test]
async fn an_applications_own_tables_and_columns_are_accepted() {
    let (_directory, path) = place();
    let tables =
        OLD_TABLES.replace("metadata BLOB,", "metadata BLOB, tenant TEXT NOT NULL DEFAULT 'x', note TEXT,");
    let own = "PRAGMA user_version = 7; CREATE TABLE orders (id INTEGER PRIMARY KEY);";
    Connection::open(&path).unwrap().execute_batch(&format!("{tables} {own}")).unwrap();
    let saver = saver(&path);
    saver.setup().await.unwrap();
    let version: i64 =
        Connection::open(&path).unwrap().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(version, 7);
    let config = put(&saver, "t").await.unwrap();
    saver.put_writes(&config, &[("x".into(), 1_i64.into())], "task", "~p").await.unwrap();
    let tuple = saver.get_tuple(&config).await.unwrap().unwrap();
    assert_eq!(&*tuple.pending_writes[0].task_path, "~p", "setup added the column");
}

#[tokio::test]
async fn delete_for_runs_works_with_damaged_metadata_of_other_runs() {
    let (_directory, path) = place();
    let saver = saver(&path);
    saver.setup().await.unwrap();
    let damaged = put(&saver, "damaged").await.unwrap();
    let change = "UPDATE checkpoints SET metadata = x'7b22'";
    Connection::open(&path).unwrap().execute(change, []).unwrap();
    let of_run = put(&saver, "t").await.unwrap();
    let change =
        "UPDATE checkpoints SET metadata = CAST('{\"run_id\": \"r\"}' AS BLOB) WHERE thread_id = 't'";
    Connection::open(&path).unwrap().execute(change, []).unwrap();
    saver.delete_for_runs(&["r"]).await.unwrap();
    assert!(saver.get_tuple(&of_run).await.unwrap().is_none());
    assert_eq!(saver.get_tuple(&damaged).await.unwrap_err().kind(), ErrorKind::Codec);
}

#[tokio::test]
async fn close_leaves_one_file() {
    let (directory, path) = place();
    let first = saver(&path);
    first.setup().await.unwrap();
    let second = first.clone();
    let config = put(&first, "t").await.unwrap();
    assert!(second.get_tuple(&config).await.unwrap().is_some());
    drop(first);
    put(&second, "u").await.unwrap();
    second.close().await.unwrap();
    let files: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(files, ["agent.db"]);
    let copy = directory.path().join("copy.db");
    std::fs::copy(&path, &copy).unwrap();
    assert!(saver(&copy).get_tuple(&config).await.unwrap().is_some());
}

#[tokio::test]
async fn an_uncommitted_change_that_cannot_be_rolled_back_is_not_read() {
    let (directory, path) = place();
    // Without a write-ahead log: changes are written to the file, and the original pages to a rollback journal.
    let writer = Connection::open(&path).unwrap();
    writer.execute_batch(OLD_TABLES).unwrap();
    let config = put(&saver(&path), "t").await.unwrap();
    writer
        .execute_batch(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)
             INSERT INTO checkpoints (thread_id, checkpoint_id, metadata) SELECT 't', i, zeroblob(3000) FROM n;
             PRAGMA cache_size = 1; PRAGMA cache_spill = 1;
             BEGIN IMMEDIATE;
             UPDATE checkpoints SET parent_checkpoint_id = 'half'",
        )
        .unwrap();
    // The files as a process leaves them that is killed at this moment.
    let killed = directory.path().join("killed.db");
    std::fs::copy(&path, &killed).unwrap();
    std::fs::copy(directory.path().join("agent.db-journal"), directory.path().join("killed.db-journal"))
        .unwrap();
    let reading = SqliteSaver::builder(&killed).read_only(true).build().unwrap();
    let error = reading.get_tuple(&config).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // It is rolled back where that is possible.
    let tuple = saver(&killed).get_tuple(&config).await.unwrap().unwrap();
    assert_eq!(tuple.parent_config, None);
    assert!(reading.get_tuple(&config).await.unwrap().is_some());
}

#[tokio::test]
async fn a_read_only_saver_reads_and_rejects_changes() {
    let (_directory, path) = place();
    Connection::open(&path).unwrap().execute_batch(OLD_TABLES).unwrap();
    let config = put(&saver(&path), "t").await.unwrap();
    let before = std::fs::read(&path).unwrap();
    let reader = SqliteSaver::builder(&path).read_only(true).build().unwrap();
    reader.setup().await.unwrap();
    assert_eq!(&reader.get_tuple(&config).await.unwrap().unwrap().config, &config);
    assert_eq!(count(&reader).await, 1);
    for error in [
        put(&reader, "u").await.unwrap_err(),
        reader.put_writes(&config, &[("x".into(), 1_i64.into())], "task", "").await.unwrap_err(),
        reader.delete_thread("t").await.unwrap_err(),
        reader.delete_for_runs(&["r"]).await.unwrap_err(),
        reader.copy_thread("t", "u").await.unwrap_err(),
        reader.prune(&["t"], PruneStrategy::Delete).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("read-only") && error.to_string().contains("agent.db"), "{error}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
    let (_other, missing) = place();
    let reader = SqliteSaver::builder(&missing).read_only(true).build().unwrap();
    assert_eq!(reader.setup().await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(reader.get_tuple(&config).await.unwrap_err().kind(), ErrorKind::Schema);
    assert!(!missing.exists());
}

#[tokio::test]
#[cfg(unix)]
async fn a_replaced_file_is_reopened() {
    let (_directory, path) = place();
    let saver = saver(&path);
    saver.setup().await.unwrap();
    put(&saver, "old").await.unwrap();
    assert_eq!(count(&saver).await, 1);
    for end in ["", "-wal", "-shm"] {
        let mut file = path.as_os_str().to_owned();
        file.push(end);
        std::fs::remove_file(file).unwrap();
    }
    // No write is lost in the deleted file.
    assert_eq!(put(&saver, "lost").await.unwrap_err().kind(), ErrorKind::Schema);
    assert_eq!(saver.get_tuple(&CheckpointConfig::new("old")).await.unwrap_err().kind(), ErrorKind::Schema);
    saver.setup().await.unwrap();
    put(&saver, "new").await.unwrap();
    let found = saver.list_all(ListQuery::all()).await.unwrap();
    assert_eq!(found.iter().map(|tuple| tuple.config.thread_id()).collect::<Vec<_>>(), ["new"]);
}

#[tokio::test]
async fn a_lock_that_is_not_released_is_a_retryable_timeout() {
    let (_directory, path) = place();
    let saver = SqliteSaver::builder(&path).busy_timeout(Duration::from_millis(20)).build().unwrap();
    saver.setup().await.unwrap();
    put(&saver, "first").await.unwrap();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = put(&saver, "second").await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Timeout, true), "{error}");
    assert!(error.to_string().contains("agent.db"), "{error}");
    assert_eq!(count(&saver).await, 1, "readers are not blocked");
    other.execute_batch("COMMIT").unwrap();
    put(&saver, "second").await.unwrap();
    assert_eq!(count(&saver).await, 2);
}

#[tokio::test]
async fn errors_name_damaged_rows() {
    let (_directory, path) = place();
    let saver = saver(&path);
    saver.setup().await.unwrap();
    put(&saver, "whole").await.unwrap();
    let id = checkpoint_core::id::uuid6(1);
    let file = Connection::open(&path).unwrap();
    for (tag, checkpoint, metadata) in [
        ("'msgpack'", "x'81'", "x'7b7d'"),
        ("'msgpack'", "NULL", "x'7b7d'"),
        ("NULL", "x'80'", "x'7b7d'"),
        ("'msgpack'", "7", "x'7b7d'"),
        ("'msgpack'", "x'80'", "x'5b5d'"),
        ("'msgpack'", "x'80'", "7"),
        ("'pickle'", "x'80'", "x'7b7d'"),
        ("x'ff'", "x'80'", "x'7b7d'"),
    ] {
        let sql = format!(
            "INSERT OR REPLACE INTO checkpoints VALUES ('broken', 'ns', '{id}', NULL, {tag}, {checkpoint}, {metadata})"
        );
        file.execute_batch(&sql).unwrap();
        let config = CheckpointConfig::new("broken").with_checkpoint_ns("ns");
        let error = saver.get_tuple(&config).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Codec, "{sql}: {error}");
        assert!(error.to_string().contains("broken") && error.to_string().contains(&*id), "{error}");
        let error = saver.list_all(ListQuery::all()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Codec, "{sql}: {error}");
    }
    // Values that older releases of Python's saver may have stored are valid.
    for (tag, checkpoint, metadata) in
        [("'msgpack'", "x'80'", "NULL"), ("'msgpack'", "x'80'", "'{}'"), ("'json'", "'{}'", "x'7b7d'")]
    {
        let sql = format!(
            "INSERT OR REPLACE INTO checkpoints VALUES ('broken', 'ns', '{id}', '', {tag}, {checkpoint}, {metadata})"
        );
        file.execute_batch(&sql).unwrap();
        let config = CheckpointConfig::new("broken").with_checkpoint_ns("ns");
        let tuple = saver.get_tuple(&config).await.unwrap().unwrap();
        assert!(tuple.metadata.is_empty() && tuple.parent_config.is_none());
    }
    let sql = format!(
        "INSERT INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value) \
         VALUES ('broken', 'ns', '{id}', 'task', 0, 'x', 'null', NULL)"
    );
    file.execute_batch(&sql).unwrap();
    let tuple = saver.get_tuple(&CheckpointConfig::new("broken").with_checkpoint_ns("ns")).await.unwrap();
    assert_eq!(tuple.unwrap().pending_writes[0].value, checkpoint_core::ChannelValue::Null);
}

#[tokio::test]
async fn values_bound_to_their_row_are_reencrypted_when_copied() {
    let (_directory, path) = place();
    let cipher = Cipher::aes_gcm("k", &[1; 32]).unwrap();
    let saver = SqliteSaver::builder(&path).cipher(cipher).build().unwrap();
    saver.setup().await.unwrap();
    let config = put(&saver, "source").await.unwrap();
    saver.put_writes(&config, &[("x".into(), "secret".into())], "task", "~p").await.unwrap();

    let blind = SqliteSaver::builder(&path).build().unwrap();
    assert_eq!(blind.copy_thread("source", "target").await.unwrap_err().kind(), ErrorKind::Crypto);
    assert!(blind.list_all(ListQuery::thread("target")).await.unwrap().is_empty(), "nothing was copied");

    saver.copy_thread("source", "target").await.unwrap();
    let source = saver.list_all(ListQuery::thread("source")).await.unwrap();
    let target = saver.list_all(ListQuery::thread("target")).await.unwrap();
    assert_eq!(target.len(), 1);
    assert_eq!(source[0].checkpoint, target[0].checkpoint);
    assert_eq!(source[0].metadata, target[0].metadata);
    assert_eq!(source[0].pending_writes, target[0].pending_writes);
    assert_eq!(target[0].pending_writes[0].value, "secret".into());
    let raw: i64 = Connection::open(&path)
        .unwrap()
        .query_row("SELECT count(*) FROM writes WHERE type = 'msgpack+aes256gcm'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(raw, 2);
}
