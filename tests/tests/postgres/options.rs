//! The Postgres saver as applications and administrators run it: schemas of any name, the application's own pool with
//! settings of its own, roles that may do little, a replica for listings, PgBouncer.

use std::time::Duration;

use checkpoint_conformance::Missing;
use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, Checkpoint, CheckpointConfig, CheckpointLayout, CheckpointMetadata,
    Cipher, ErrorKind, ListQuery, PruneStrategy, PutOptions, SaverExt, TypedBytes, id,
};
use checkpoint_postgres::{Compression, PostgresSaver, deadpool_postgres};
use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use tokio_postgres::NoTls;

use crate::shared::everything::{checkpoint, everything_works};
use crate::shared::postgres::{Database, Kind, Scratch, Server, Test, count, tests, unique_name};

async fn put(saver: &PostgresSaver, thread_id: &str) -> checkpoint_core::Result<CheckpointConfig> {
    let (made, metadata) = (checkpoint(), CheckpointMetadata::new("loop", 0));
    saver.put(&CheckpointConfig::new(thread_id), &made, &metadata, &made.channel_versions).await
}

async fn threads(saver: &PostgresSaver) -> Vec<String> {
    let all = saver.list_all(ListQuery::all()).await.unwrap();
    all.iter().map(|tuple| tuple.config.thread_id().to_string()).collect()
}

async fn schemas_of_any_name(server: &Server) {
    let database = Database::create(server.url()).await;
    let long = "x".repeat(63);
    let names = ["Odd \"name\"; -- 'quoted'", "世界", "a.b", "$1", "select", &long];
    let savers = names.map(|name| database.builder().schema(name).build().unwrap());
    for (saver, name) in savers.iter().zip(names) {
        saver.setup().await.unwrap();
        saver.setup().await.unwrap();
        everything_works(saver).await;
        put(saver, name).await.unwrap();
    }
    // Each has what is its own.
    for (saver, name) in savers.iter().zip(names) {
        assert_eq!(threads(saver).await, [name]);
    }
    savers[0].delete_thread(names[1]).await.unwrap();
    assert_eq!(threads(&savers[1]).await, [names[1]]);
    let client = database.client().await;
    let elsewhere = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
    assert_eq!(count(&client, elsewhere).await, 0);
}

async fn compression_is_kept(server: &Server) {
    const LZ4: &str = "SELECT count(*) FROM pg_attribute WHERE attname = 'blob' AND attcompression = 'l'";
    let database = Database::create(server.url()).await;
    let client = database.client().await;
    let saver = database.builder().compression(Compression::Server).build().unwrap();
    saver.setup().await.unwrap();
    assert_eq!(count(&client, LZ4).await, 0);
    let stored = put(&saver, "thread").await.unwrap();
    let before = saver.get_tuple(&stored).await.unwrap().unwrap();
    let with_lz4 = database.builder().compression(Compression::Lz4).build().unwrap();
    with_lz4.setup().await.unwrap();
    assert_eq!(count(&client, LZ4).await, 2);
    saver.setup().await.unwrap();
    assert_eq!(count(&client, LZ4).await, 2, "a saver without the option does not undo it");
    assert_eq!(with_lz4.get_tuple(&stored).await.unwrap().unwrap(), before);
}

/// Settings of an application that change how text, numbers and bytes are written, and how transactions run.
async fn the_pool_of_an_application(server: &Server) {
    let database = Database::create(server.url()).await;
    let client = database.client().await;
    client
        .batch_execute("CREATE SCHEMA app; CREATE TABLE public.checkpoints (of_somebody_else INTEGER)")
        .await
        .unwrap();
    let settings = [
        "search_path=app",
        "bytea_output=escape",
        "extra_float_digits=-10",
        "standard_conforming_strings=off",
        "DateStyle=German",
        "default_transaction_isolation=serializable",
        "client_min_messages=error",
        "enable_indexscan=off",
        "idle_in_transaction_session_timeout=1000",
    ];
    let options: Vec<_> = settings.iter().map(|setting| format!("-c {setting}")).collect();
    let mut config: tokio_postgres::Config = database.url().parse().unwrap();
    config.options(options.join(" "));
    let pool = Pool::builder(Manager::new(config, NoTls)).max_size(3).build().unwrap();
    let saver = PostgresSaver::from_pool(pool.clone()).build().unwrap();
    saver.setup().await.unwrap();
    everything_works(&saver).await;
    let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'app'";
    assert_eq!(count(&client, tables).await, 5);
    // The application's pool still works, with its own settings.
    let theirs = pool.get().await.unwrap();
    let shown: String = theirs.query_one("SHOW default_transaction_isolation", &[]).await.unwrap().get(0);
    assert_eq!(shown, "serializable");
}

/// Connections that forget their statements whenever they go back to the pool, as some applications want it.
async fn a_pool_that_discards_everything(server: &Server) {
    let database = Database::create(server.url()).await;
    let config: tokio_postgres::Config = database.url().parse().unwrap();
    let discards = ManagerConfig { recycling_method: RecyclingMethod::Custom("DISCARD ALL".into()) };
    let pool = Pool::builder(Manager::from_config(config, NoTls, discards)).max_size(3).build().unwrap();
    let saver = PostgresSaver::from_pool(pool).max_retries(0).build().unwrap();
    saver.setup().await.unwrap();
    everything_works(&saver).await;
    everything_works(&saver).await;
}

/// A role that is dropped with this value; its grants in a database must be dropped before.
async fn role(server: &Server) -> (String, Scratch) {
    let name = unique_name();
    let client = crate::shared::postgres::connect(server.url()).await.unwrap();
    client.batch_execute(&format!("CREATE ROLE {name} LOGIN PASSWORD 'word'")).await.unwrap();
    let scratch = Scratch::new(server.url(), &format!("DROP ROLE {name}"));
    (name, scratch)
}

fn as_role(database: &Database, role: &str) -> String {
    let (_, place) = database.url().split_once('@').unwrap();
    format!("postgres://{role}:word@{place}")
}

async fn a_role_that_owns_nothing(server: &Server) {
    let (role, _role) = role(server).await;
    let database = Database::create(server.url()).await;
    let owner = database.builder().compression(Compression::Server).build().unwrap();
    owner.setup().await.unwrap();
    let client = database.client().await;
    let saver = PostgresSaver::builder(as_role(&database, &role)).build().unwrap();
    // Nothing is granted yet.
    assert_eq!(put(&saver, "thread").await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    client.batch_execute(&format!("GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")).await.unwrap();
    assert_eq!(threads(&saver).await, Vec::<String>::new());
    assert_eq!(put(&saver, "thread").await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    let rights = format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}");
    client.batch_execute(&rights).await.unwrap();
    // The tables are up to date, and only their owner may change them.
    saver.setup().await.unwrap();
    everything_works(&saver).await;
}

/// Its tables are those of an earlier version, without leases.
async fn a_role_that_may_not_create_the_table_of_leases(server: &Server) {
    let (role, _role) = role(server).await;
    let database = Database::set_up(server.url()).await;
    let client = database.client().await;
    let rights = format!(
        "DROP TABLE checkpoint_leases; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}"
    );
    client.batch_execute(&rights).await.unwrap();
    let saver = PostgresSaver::builder(as_role(&database, &role)).build().unwrap();
    saver.setup().await.unwrap();
    everything_works(&saver).await;
    let lease = |saver: PostgresSaver| async move {
        saver.acquire_lease("thread", Duration::from_secs(3600)).await.unwrap_err().kind()
    };
    assert_eq!(lease(saver.clone()).await, ErrorKind::Schema);
    // The owner creates it, and grants nothing.
    database.builder().build().unwrap().setup().await.unwrap();
    saver.setup().await.unwrap();
    everything_works(&saver).await;
    assert_eq!(lease(saver).await, ErrorKind::InvalidConfig);
}

async fn a_role_that_may_not_create(server: &Server) {
    let (role, _role) = role(server).await;
    let database = Database::create(server.url()).await;
    let saver = PostgresSaver::builder(as_role(&database, &role)).build().unwrap();
    assert_eq!(saver.setup().await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    let elsewhere = PostgresSaver::builder(as_role(&database, &role)).schema("other").build().unwrap();
    assert_eq!(elsewhere.setup().await.unwrap_err().kind(), ErrorKind::InvalidConfig);
}

/// Another role created the schema for it.
async fn a_role_that_has_a_schema(server: &Server) {
    let (role, _role) = role(server).await;
    let database = Database::create(server.url()).await;
    let client = database.client().await;
    client.batch_execute(&format!("CREATE SCHEMA agents AUTHORIZATION {role}")).await.unwrap();
    let saver = PostgresSaver::builder(as_role(&database, &role)).schema("agents").build().unwrap();
    saver.setup().await.unwrap();
    everything_works(&saver).await;
}

async fn a_server_that_only_reads(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let saver = database.builder().build().unwrap();
    let stored = put(&saver, "thread").await.unwrap();
    let mut config: tokio_postgres::Config = database.url().parse().unwrap();
    config.options("-c default_transaction_read_only=on");
    let pool = Pool::builder(Manager::new(config, NoTls)).max_size(2).build().unwrap();
    let reader = PostgresSaver::from_pool(pool).build().unwrap();
    reader.setup().await.unwrap();
    assert_eq!(reader.get_tuple(&stored).await.unwrap(), saver.get_tuple(&stored).await.unwrap());
    assert_eq!(threads(&reader).await, ["thread"]);
    let refused = [
        put(&reader, "thread").await.unwrap_err(),
        reader.put_writes(&stored, &[("x".into(), 1.into())], "task", "").await.unwrap_err(),
        reader.delete_thread("thread").await.unwrap_err(),
        reader.prune(&["thread"], PruneStrategy::Delete).await.unwrap_err(),
        reader.copy_thread("thread", "copy").await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    }
    assert_eq!(threads(&saver).await, ["thread"]);
}

/// The replica has different data here, which shows which server was queried.
async fn listings_go_to_the_replica(server: &Server) {
    let (primary, replica) = (Database::set_up(server.url()).await, Database::set_up(server.url()).await);
    put(&replica.builder().build().unwrap(), "on the replica").await.unwrap();
    let saver = primary.builder().read_replica(replica.url()).build().unwrap();
    let stored = put(&saver, "on the primary").await.unwrap();
    assert!(saver.get_tuple(&stored).await.unwrap().is_some());
    assert_eq!(threads(&saver).await, ["on the replica"]);
    let error = primary.builder().read_replica("mysql://nowhere").build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
}

/// A tool without the key shows that a checkpoint exists.
async fn sealed_rows_are_kept(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let saver = database.builder().cipher(Cipher::aes_gcm("key", &[7; 32]).unwrap()).build().unwrap();
    let stored = put(&saver, "thread").await.unwrap();
    saver
        .put_writes(&stored, &[("text", "secret")].map(|(c, v)| (c.into(), v.into())), "task", "")
        .await
        .unwrap();
    let without = database.builder().build().unwrap();
    assert_eq!(without.get_tuple(&stored).await.unwrap_err().kind(), ErrorKind::Crypto);
    let keeping = database.builder().return_sealed(true).build().unwrap();
    let tuple = keeping.get_tuple(&stored).await.unwrap().unwrap();
    assert_eq!((&tuple.config, tuple.metadata.step()), (&stored, Some(0)));
    assert!(!format!("{tuple:?}").contains("quote"), "the text was opened without its key");
    assert_eq!(keeping.list_all(ListQuery::thread("thread")).await.unwrap(), [tuple]);
}

/// Whether a saver stores a value in the checkpoint's document.
fn is_inline(saver: &PostgresSaver, value: &ChannelValue) -> bool {
    match saver.capabilities().layout {
        CheckpointLayout::Channels { inline } => inline.contains(value),
        layout => panic!("{layout:?}"),
    }
}

/// The contents of the document, and of the rows of opaque values as Python sees them.
async fn opaque_values_are_split_as_in_python(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let saver = database.builder().opaque_values(true).build().unwrap();
    let digits = |digits: &'static [u8]| ChannelValue::from(TypedBytes::new("json", digits));
    let sealed = || TypedBytes::new("msgpack+aes", &b"of Python"[..]);
    let inline = [
        ("null", ChannelValue::Null, "null"),
        ("int", 5.into(), "5"),
        ("float", 0.5.into(), "0.5"),
        ("text", "text".into(), "\"text\""),
        ("u64", digits(b"18446744073709551615"), "18446744073709551615"),
        ("integer", digits(b"-1180591620717411303424"), "-1180591620717411303424"),
        ("log", sealed().into(), "true"),
    ];
    let rows = [
        ("nan", ChannelValue::Float(f64::NAN)),
        ("nul", "a\0b".into()),
        ("json", digits(b"5")),
        ("msgpack", TypedBytes::msgpack(&b"\x05"[..]).into()),
        ("python", sealed().into()),
    ];
    let mut made = Checkpoint::new(0);
    for (channel, value, _) in &inline {
        assert_eq!(is_inline(&saver, value), *channel != "log", "{channel}");
        made = made.with_channel(*channel, value.clone(), 1);
    }
    for (channel, value) in &rows {
        assert!(!is_inline(&saver, value), "{channel}");
        made = made.with_channel(*channel, value.clone(), 1);
    }
    let metadata = CheckpointMetadata::new("loop", 0);
    let config = CheckpointConfig::new("thread");
    let options = PutOptions::default().delta_snapshots(["log"]);
    let stored = saver.put_with(&config, &made, &metadata, &made.channel_versions, &options).await.unwrap();
    let client = database.client().await;
    let values: String = client
        .query_one("SELECT (checkpoint->'channel_values')::text FROM checkpoints", &[])
        .await
        .unwrap()
        .get(0);
    let values: std::collections::BTreeMap<&str, &serde_json::value::RawValue> =
        serde_json::from_str(&values).unwrap();
    let found: Vec<_> = values.iter().map(|(channel, value)| (*channel, value.get())).collect();
    let mut expected: Vec<_> = inline.iter().map(|(channel, _, json)| (*channel, *json)).collect();
    expected.sort_unstable();
    assert_eq!(found, expected);
    let channels: Vec<(String, String)> = client
        .query("SELECT channel, type FROM checkpoint_blobs ORDER BY channel", &[])
        .await
        .unwrap()
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    let channels: Vec<_> = channels.iter().map(|(channel, tag)| (&**channel, &**tag)).collect();
    let expected = [
        ("json", "json"),
        ("log", "msgpack+aes"),
        ("msgpack", "msgpack"),
        ("nan", "msgpack"),
        ("nul", "msgpack"),
        ("python", "msgpack+aes"),
    ];
    assert_eq!(channels, expected);
    let tuple = saver.get_tuple(&stored).await.unwrap().unwrap();
    for (channel, value) in &made.channel_values {
        // A scalar that is not inline is MessagePack.
        let value = match value {
            ChannelValue::Float(number) if number.is_nan() => value.to_typed().unwrap().into(),
            ChannelValue::Str(text) if text.contains('\0') => value.to_typed().unwrap().into(),
            value => value.clone(),
        };
        assert_eq!(tuple.checkpoint.channel_values[channel], value, "{channel}");
    }

    // Unchanged values may be omitted, as in Python; the marker of a snapshot must be kept.
    let mut next = made.clone();
    next.id = id::uuid6(1);
    next.channel_values.retain(|channel, value| &**channel == "log" || is_inline(&saver, value));
    let new_versions = [("int".into(), 1.into())].into_iter().collect();
    let stored = saver.put_with(&stored, &next, &metadata, &new_versions, &options).await;
    let found = saver.get_tuple(&stored.unwrap()).await.unwrap().unwrap().checkpoint;
    assert_eq!(found.channel_values, tuple.checkpoint.channel_values);

    let sealing =
        database.builder().opaque_values(true).cipher(Cipher::aes(&[7; 16]).unwrap()).build().unwrap();
    assert!(inline.iter().all(|(_, value, _)| !is_inline(&sealing, value)));
}

/// Unnamed statements work without a pooler, too, and a pooler shares connections between savers.
async fn behind_pgbouncer(server: &Server) -> Result<(), Missing> {
    let bouncer = Server::find(Kind::PgBouncer)?;
    let database = Database::create(server.url()).await;
    let direct = database.builder().pgbouncer(true).build().unwrap();
    let through = |connections| {
        let builder = PostgresSaver::builder(database.through(bouncer.url()));
        builder.pgbouncer(true).max_connections(connections).build().unwrap()
    };
    through(2).setup().await.unwrap();
    everything_works(&direct).await;
    let calls: Vec<_> = (0..30)
        .map(|_| {
            let saver = through(2);
            tokio::spawn(async move { everything_works(&saver).await })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    Ok(())
}

pub(crate) fn tests() -> &'static [Test] {
    tests![
        schemas_of_any_name,
        compression_is_kept,
        the_pool_of_an_application,
        a_pool_that_discards_everything,
        a_role_that_owns_nothing,
        a_role_that_may_not_create,
        a_role_that_may_not_create_the_table_of_leases,
        a_role_that_has_a_schema,
        a_server_that_only_reads,
        listings_go_to_the_replica,
        sealed_rows_are_kept,
        opaque_values_are_split_as_in_python,
        behind_pgbouncer,
    ]
}
