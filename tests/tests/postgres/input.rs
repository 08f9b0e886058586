//! Errors of the Postgres saver for invalid URLs, foreign tables, exhausted pools and values beyond the server's limits;
//! and `setup()`, concurrent or interrupted.

use std::process::{Command, Stdio};
use std::time::Duration;

use checkpoint_core::{
    BaseCheckpointSaver, Bytes, ChannelValue, Checkpoint, CheckpointConfig, CheckpointMetadata, Error,
    ErrorKind, ListQuery, Result, SaverExt, TypedBytes, id,
};
use checkpoint_postgres::{PostgresSaver, deadpool_postgres};
use deadpool_postgres::{Manager, Pool};
use tokio_postgres::NoTls;

use crate::shared::postgres::{Database, Server, Test, count, in_runtime, rows, tests};

/// If set to a database URL, this binary sets up that database and exits.
const CHILD: &str = "CHECKPOINT_TEST_SETUP";

/// The metadata of an arbitrary checkpoint.
fn metadata() -> CheckpointMetadata {
    CheckpointMetadata::new("loop", 1)
}

async fn put(saver: &PostgresSaver, value: impl Into<ChannelValue>) -> Result<CheckpointConfig> {
    // Of two values with the same version the first is kept.
    let made = Checkpoint::new(0).with_channel("x", value.into(), &*id::uuid6(0));
    saver.put(&CheckpointConfig::new("thread"), &made, &metadata(), &made.channel_versions).await
}

async fn get(saver: &PostgresSaver) -> Result<()> {
    saver.get_tuple(&CheckpointConfig::new("thread")).await.map(drop)
}

/// Every kind of call fails in the same way.
async fn every_call_fails(saver: &PostgresSaver, kind: ErrorKind) {
    let config = CheckpointConfig::new("thread").with_checkpoint_id(Checkpoint::new(0).id);
    let errors: [Error; 4] = [
        put(saver, 1).await.unwrap_err(),
        get(saver).await.unwrap_err(),
        saver.put_writes(&config, &[("x".into(), 1.into())], "task", "").await.unwrap_err(),
        saver.list_all(ListQuery::all()).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), kind, "{error:?}");
        assert_eq!(error.backend(), Some("postgres"));
        assert!(!error.to_string().contains('\n'), "{error}");
    }
}

async fn a_wrong_password(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let (before, after) = database.url().split_once('@').unwrap();
    let (before, _) = before.rsplit_once(':').unwrap();
    let saver = PostgresSaver::builder(format!("{before}:not-the-password@{after}")).build().unwrap();
    every_call_fails(&saver, ErrorKind::InvalidConfig).await;
    let error = format!("{:?} {saver:?}", saver.setup().await.unwrap_err());
    assert!(!error.contains("not-the-password"), "{error}");
}

async fn an_unknown_database(server: &Server) {
    let database = Database::create(server.url()).await;
    let address = database.url().replace("checkpoint_test_", "not_there_");
    every_call_fails(&PostgresSaver::builder(address).build().unwrap(), ErrorKind::InvalidConfig).await;
}

async fn a_host_that_does_not_answer(_server: &Server) {
    // No process listens on a port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("postgres://user:secret-word@127.0.0.1:{port}/database");
    let saver = PostgresSaver::builder(address).max_retries(1).build().unwrap();
    every_call_fails(&saver, ErrorKind::Unavailable).await;
    let error = get(&saver).await.unwrap_err();
    assert!(error.is_retryable() && !format!("{error:?}").contains("secret-word"), "{error:?}");
}

async fn invalid_urls(_server: &Server) {
    // An empty string is valid: libpq's environment says the rest.
    for address in [
        "postgres",
        "mysql://localhost/x",
        "postgres://localhost:no-port/x",
        "postgres://u:pass-word@h/x?sslmode=odd",
    ] {
        let error = PostgresSaver::builder(address).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{address:?}: {error}");
        assert!(!format!("{error:?}").contains("pass-word"), "{error:?}");
    }
}

async fn before_setup(server: &Server) {
    let database = Database::create(server.url()).await;
    for saver in
        [database.builder().build().unwrap(), database.builder().schema("not_there").build().unwrap()]
    {
        every_call_fails(&saver, ErrorKind::Schema).await;
        let error = get(&saver).await.unwrap_err();
        assert!(error.to_string().contains("setup()"), "{error}");
    }
}

async fn a_newer_schema_is_rejected(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let client = database.client().await;
    client.batch_execute("INSERT INTO checkpoint_migrations (v) VALUES (99)").await.unwrap();
    let saver = database.builder().build().unwrap();
    let error = saver.setup().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    assert!(error.to_string().contains("99"), "{error}");
}

async fn the_tables_of_the_shallow_saver(server: &Server) {
    const SHALLOW: &str = "
        CREATE TABLE checkpoint_migrations (v INTEGER PRIMARY KEY);
        CREATE TABLE checkpoints (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '', type TEXT,
            checkpoint JSONB NOT NULL, metadata JSONB NOT NULL DEFAULT '{}', PRIMARY KEY (thread_id, checkpoint_ns));
        CREATE TABLE checkpoint_blobs (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '',
            channel TEXT NOT NULL, type TEXT NOT NULL, blob BYTEA, PRIMARY KEY (thread_id, checkpoint_ns, channel));
        CREATE TABLE checkpoint_writes (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '',
            checkpoint_id TEXT NOT NULL, task_id TEXT NOT NULL, idx INTEGER NOT NULL, channel TEXT NOT NULL, type TEXT,
            blob BYTEA NOT NULL, task_path TEXT NOT NULL DEFAULT '',
            PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx));
        INSERT INTO checkpoint_migrations SELECT generate_series(0, 7);";
    let database = Database::create(server.url()).await;
    let client = database.client().await;
    client.batch_execute(SHALLOW).await.unwrap();
    let saver = database.builder().build().unwrap();
    assert_eq!(saver.setup().await.unwrap_err().kind(), ErrorKind::Schema);
    let columns =
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'";
    assert_eq!(rows(&client, columns).await.len(), 1 + 5 + 5 + 9, "the tables are unchanged");
    assert_eq!(count(&client, "SELECT max(v)::int8 FROM checkpoint_migrations").await, 7);
    // Its table of writes is like ours.
    for error in [
        put(&saver, 1).await.unwrap_err(),
        get(&saver).await.unwrap_err(),
        saver.list_all(ListQuery::all()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Schema, "{error:?}");
    }
}

async fn an_exhausted_pool_times_out(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let manager = Manager::new(database.url().parse().unwrap(), NoTls);
    let pool = Pool::builder(manager)
        .max_size(2)
        .runtime(deadpool_postgres::Runtime::Tokio1)
        .wait_timeout(Some(Duration::from_millis(200)))
        .build()
        .unwrap();
    let saver = PostgresSaver::from_pool(pool.clone()).build().unwrap();
    let held = [pool.get().await.unwrap(), pool.get().await.unwrap()];
    every_call_fails(&saver, ErrorKind::Timeout).await;
    drop(held);
    put(&saver, 1).await.unwrap();
    assert_eq!(
        saver.list_all(ListQuery::all()).await.unwrap().len(),
        1,
        "the calls that failed left nothing"
    );
}

/// Many calls share few connections.
async fn more_calls_than_connections(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let saver = database.builder().max_connections(2).build().unwrap();
    let calls: Vec<_> = (0..64)
        .map(|_| {
            let saver = saver.clone();
            tokio::spawn(async move { put(&saver, 1).await })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(saver.list_all(ListQuery::all()).await.unwrap().len(), 64);
    let client = database.client().await;
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    assert!(count(&client, sessions).await <= 2);
}

async fn a_statement_that_takes_too_long(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let saver = database.builder().statement_timeout(Duration::from_millis(300)).build().unwrap();
    put(&saver, 1).await.unwrap();
    let mut client = database.client().await;
    let lock = client.transaction().await.unwrap();
    lock.batch_execute(
        "LOCK TABLE checkpoints, checkpoint_blobs, checkpoint_writes IN ACCESS EXCLUSIVE MODE",
    )
    .await
    .unwrap();
    every_call_fails(&saver, ErrorKind::Timeout).await;
    lock.rollback().await.unwrap();
    put(&saver, 1).await.unwrap();
    assert_eq!(
        saver.list_all(ListQuery::all()).await.unwrap().len(),
        2,
        "the calls that failed left nothing"
    );
}

fn big(bytes: usize) -> ChannelValue {
    // The system allocates such pages on the first write, which never happens.
    TypedBytes::new("bytes", Bytes::from(vec![0; bytes])).into()
}

async fn values_beyond_the_servers_limits(server: &Server) {
    const GIB: usize = 1 << 30;
    let database = Database::set_up(server.url()).await;
    let saver = database.builder().build().unwrap();
    let error = put(&saver, big(GIB)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
    let config = CheckpointConfig::new("thread").with_checkpoint_id(Checkpoint::new(0).id);
    let error = saver.put_writes(&config, &[("x".into(), big(GIB))], "task", "").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
    // Each value could be stored, but the whole message is too large.
    let half = big(GIB / 2);
    let made = ["a", "b", "c"]
        .into_iter()
        .fold(Checkpoint::new(0), |made, channel| made.with_channel(channel, half.clone(), "1.5"));
    let call = saver.put(&CheckpointConfig::new("thread"), &made, &metadata(), &made.channel_versions).await;
    let error = call.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
    let writes = ["a", "b", "c"].map(|channel| (channel.into(), half.clone()));
    let error = saver.put_writes(&config, &writes, "task", "").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
    assert_eq!(saver.list_all(ListQuery::all()).await.unwrap(), [], "nothing is half-written");
    put(&saver, 1).await.unwrap();
}

async fn ids_beyond_the_index_limit(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let saver = database.builder().build().unwrap();
    // Incompressible text.
    let long: String = (0..4000_u32).filter_map(|at| char::from_u32(0x4e00 + at * 7919 % 20_011)).collect();
    let made = Checkpoint::new(0).with_channel("x", 1, "1.5");
    for config in [
        CheckpointConfig::new(long.as_str()),
        CheckpointConfig::new("thread").with_checkpoint_ns(long.as_str()),
    ] {
        let error = saver.put(&config, &made, &metadata(), &made.channel_versions).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
        assert_eq!(saver.get_tuple(&config).await.unwrap(), None);
    }
    assert_eq!(saver.list_all(ListQuery::all()).await.unwrap(), []);
}

/// More threads than a statement has columns, and than a transaction can lock.
async fn runs_on_many_threads(server: &Server) {
    const STEPS: &str = r#"INSERT INTO checkpoints (thread_id, checkpoint_id, checkpoint, metadata)
        SELECT 'thread-' || at, '1ef4f797-8335-6428-8001-8a1503f9b875', '{"v": 4}', '{"run_id": "run"}'
        FROM generate_series(1, 9000) at"#;
    let database = Database::set_up(server.url()).await;
    let client = database.client().await;
    client.batch_execute(STEPS).await.unwrap();
    database.builder().build().unwrap().delete_for_runs(&["run"]).await.unwrap();
    assert_eq!(count(&client, "SELECT count(*) FROM checkpoints").await, 0);
}

async fn scalars_that_json_cannot_represent(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let saver = database.builder().build().unwrap();
    let values: [ChannelValue; 6] = [
        f64::NAN.into(),
        f64::INFINITY.into(),
        f64::NEG_INFINITY.into(),
        "with \0 inside".into(),
        "\0".into(),
        "\\u0000 is no NUL".into(),
    ];
    for value in values {
        let stored = put(&saver, value.clone()).await.unwrap();
        let found = saver.get_tuple(&stored).await.unwrap().unwrap().checkpoint.channel_values["x"].clone();
        // NaN is not equal to itself, its bytes are.
        assert_eq!(found.to_msgpack().unwrap(), value.to_msgpack().unwrap());
        saver.put_writes(&stored, &[("x".into(), value.clone())], "task", "").await.unwrap();
        let writes = saver.get_tuple(&stored).await.unwrap().unwrap().pending_writes;
        assert_eq!(writes[0].value.to_msgpack().unwrap(), value.to_msgpack().unwrap());
    }
}

/// The schema after `setup()`: columns, valid indexes, and recorded versions.
async fn schema_of(database: &Database) -> Vec<Vec<Option<String>>> {
    const QUERY: &str = "
        SELECT table_name || '.' || column_name,
               concat_ws(' ', data_type, is_nullable, column_default,
                         row_number() OVER (PARTITION BY table_name ORDER BY ordinal_position))
        FROM information_schema.columns WHERE table_schema = 'public'
        UNION ALL
        SELECT indexdef, concat_ws(' ', indisvalid, indisready) FROM pg_indexes
        JOIN pg_index ON indexrelid = (quote_ident(schemaname) || '.' || quote_ident(indexname))::regclass
        WHERE schemaname = 'public'
        UNION ALL
        SELECT 'version', v::text FROM checkpoint_migrations
        ORDER BY 1, 2";
    rows(&database.client().await, QUERY).await
}

async fn is_complete(database: &Database, wanted: &[Vec<Option<String>>]) {
    assert_eq!(schema_of(database).await, wanted);
    let saver = database.builder().build().unwrap();
    let stored = put(&saver, 1).await.unwrap();
    assert!(saver.get_tuple(&stored).await.unwrap().is_some());
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' \
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    assert_eq!(count(&database.client().await, locks).await, 0);
}

async fn the_schema_after_setup(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let schema = schema_of(&database).await;
    let versions: Vec<_> = schema
        .iter()
        .filter(|row| row[0].as_deref() == Some("version"))
        .map(|row| row[1].clone().unwrap())
        .collect();
    assert_eq!(versions, ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"], "those of Python");
    let valid = schema.iter().filter(|row| row[1].as_deref() == Some("t t")).count();
    assert_eq!(valid, 5 + 3, "indexes");
    let client = database.client().await;
    let compressed = "SELECT count(*) FROM pg_attribute WHERE attname = 'blob' AND attcompression = 'l'";
    let has_lz4 = client.batch_execute("CREATE TEMP TABLE t (c BYTEA COMPRESSION lz4)").await.is_ok();
    assert_eq!(count(&client, compressed).await, if has_lz4 { 2 } else { 0 });
}

fn child(url: &str) -> std::process::Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(CHILD, url).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

async fn concurrent_setup_by_eight_processes(server: &Server) {
    let wanted = schema_of(&Database::set_up(server.url()).await).await;
    for _ in 0..3 {
        let database = Database::create(server.url()).await;
        let children: Vec<_> = (0..8).map(|_| child(database.url())).collect();
        for child in children {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success());
        }
        is_complete(&database, &wanted).await;
    }
}

async fn concurrent_setup_by_many_handles(server: &Server) {
    let wanted = schema_of(&Database::set_up(server.url()).await).await;
    let database = Database::create(server.url()).await;
    let calls: Vec<_> = (0..16)
        .map(|_| {
            let saver = database.builder().build().unwrap();
            tokio::spawn(async move { saver.setup().await })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    is_complete(&database, &wanted).await;
}

/// The call with the lock and those that wait for it share two connections.
async fn setup_by_calls_that_share_a_pool(server: &Server) {
    let wanted = schema_of(&Database::set_up(server.url()).await).await;
    let database = Database::create(server.url()).await;
    let saver =
        database.builder().max_connections(2).acquire_timeout(Duration::from_secs(10)).build().unwrap();
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let saver = saver.clone();
            tokio::spawn(async move { saver.setup().await })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    is_complete(&database, &wanted).await;
}

async fn setup_after_an_interrupted_one(server: &Server) {
    const INVALID: &str = "
        UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'checkpoint_blobs_thread_id_idx'::regclass;
        DELETE FROM checkpoint_migrations WHERE v >= 7;";
    let wanted = schema_of(&Database::set_up(server.url()).await).await;
    let database = Database::set_up(server.url()).await;
    database.client().await.batch_execute(INVALID).await.unwrap();
    assert_ne!(schema_of(&database).await, wanted);
    database.builder().build().unwrap().setup().await.unwrap();
    is_complete(&database, &wanted).await;
}

/// Killed at random points, and repeated.
async fn setup_that_is_killed(server: &Server) {
    let wanted = schema_of(&Database::set_up(server.url()).await).await;
    for round in 0..10 {
        let database = Database::create(server.url()).await;
        let mut child = child(database.url());
        tokio::time::sleep(Duration::from_millis(20 + round * 15)).await;
        child.kill().unwrap();
        child.wait().unwrap();
        database.builder().build().unwrap().setup().await.unwrap();
        is_complete(&database, &wanted).await;
    }
}

/// The next call repairs the state that a dropped future left, and no call waits for its locks.
async fn setup_that_is_dropped(server: &Server) {
    let wanted = schema_of(&Database::set_up(server.url()).await).await;
    for round in 0..10 {
        let database = Database::create(server.url()).await;
        let saver = database.builder().build().unwrap();
        let _ = tokio::time::timeout(Duration::from_millis(5 + round * 10), saver.setup()).await;
        saver.setup().await.unwrap();
        is_complete(&database, &wanted).await;
    }
}

/// Databases that Python's releases left at an earlier version.
async fn tables_of_earlier_versions(server: &Server) {
    let wanted = schema_of(&Database::set_up(server.url()).await).await;
    let steps = [
        "ALTER TABLE checkpoint_writes DROP COLUMN task_path",
        "DROP INDEX checkpoint_writes_thread_id_idx",
        "DROP INDEX checkpoint_blobs_thread_id_idx",
        "DROP INDEX checkpoints_thread_id_idx",
        "",
        "ALTER TABLE checkpoint_blobs ALTER COLUMN blob SET NOT NULL",
        "DROP TABLE checkpoint_writes",
        "DROP TABLE checkpoint_blobs",
        "DROP TABLE checkpoints",
    ];
    for back_to in 0..=8 {
        let database = Database::set_up(server.url()).await;
        let client = database.client().await;
        for undo in ["DROP TABLE checkpoint_leases"].iter().chain(steps.iter().take(9 - back_to)) {
            client.batch_execute(undo).await.unwrap();
        }
        client
            .batch_execute(&format!("DELETE FROM checkpoint_migrations WHERE v > {back_to}"))
            .await
            .unwrap();
        assert_ne!(schema_of(&database).await, wanted);
        let saver = database.builder().build().unwrap();
        saver.setup().await.unwrap();
        is_complete(&database, &wanted).await;
    }
}

/// Runs the child's part instead of tests, if this process was started as a child.
pub(crate) fn as_child() -> Option<Result<()>> {
    let url = std::env::var(CHILD).ok()?;
    Some(in_runtime(async { PostgresSaver::builder(url).build()?.setup().await }))
}

pub(crate) fn tests() -> &'static [Test] {
    tests![
        a_wrong_password,
        an_unknown_database,
        a_host_that_does_not_answer,
        invalid_urls,
        before_setup,
        a_newer_schema_is_rejected,
        the_tables_of_the_shallow_saver,
        an_exhausted_pool_times_out,
        more_calls_than_connections,
        a_statement_that_takes_too_long,
        values_beyond_the_servers_limits,
        ids_beyond_the_index_limit,
        runs_on_many_threads,
        scalars_that_json_cannot_represent,
        the_schema_after_setup,
        concurrent_setup_by_eight_processes,
        concurrent_setup_by_many_handles,
        setup_by_calls_that_share_a_pool,
        setup_after_an_interrupted_one,
        setup_that_is_killed,
        setup_that_is_dropped,
        tables_of_earlier_versions,
    ]
}
