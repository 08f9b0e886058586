//! The Postgres store while things break: the server stops, connections are cut, futures are dropped, batches meet.
//!
//! Afterwards every acknowledged batch is stored, none is stored in part, the vectors of an item match its value, no
//! session is left in a transaction, and the pool still works.

use std::sync::Arc;
use std::time::Duration;

use checkpoint_conformance::Missing;
use checkpoint_core::Result;
use checkpoint_core::store::{
    BaseStore, GetOp, IndexConfig, JsonObject, NgramEmbeddings, Op, OpResult, PutOp, SearchItem, SearchOp,
    StoreExt,
};
use serde_json::{Value as Json, json};
use store_postgres::{PostgresStore, PostgresStoreBuilder};
use tokio::task::JoinHandle;

use crate::shared::faults::{
    Load, Random, cut_again_and_again, cut_when_idle, drop_somewhere, join, may_fail, nobody_is_inside,
    restart_under, rounds,
};
use crate::shared::postgres::{Database, Kind, Server, Test, count, rows, tests};
use crate::shared::server;

const DIMS: usize = 16;

/// How many items of a group every batch puts; one more is put by some batches and deleted by others.
const SHARED: u64 = 5;

const GROUPS: u64 = 3;

fn builder(url: &str) -> PostgresStoreBuilder {
    let index = IndexConfig::new(DIMS, NgramEmbeddings::new(DIMS)).fields(["text", "tags[*]"]);
    patient(PostgresStore::builder(url)).index(index).max_connections(5)
}

/// Longer timeouts, for slow machines and busy servers.
fn patient(builder: PostgresStoreBuilder) -> PostgresStoreBuilder {
    builder.acquire_timeout(Duration::from_secs(600)).connect_timeout(Duration::from_secs(60))
}

async fn set_up(server: &str) -> (Database, PostgresStore) {
    let database = Database::create(server).await;
    let store = builder(database.url()).build().unwrap();
    store.setup().await.unwrap();
    (database, store)
}

/// Who wrote what: each batch has a number of its own.
#[derive(Debug, Clone)]
struct Writer {
    name: String,
    group: String,
}

impl Writer {
    fn new(at: u64) -> Self {
        Self { name: format!("w{at}"), group: format!("g{}", at % GROUPS) }
    }

    fn value(&self, number: u64) -> Json {
        let stamp = format!("{}-{number}", self.name);
        let tags: Vec<_> = (0..number % 3).map(|tag| format!("tag {tag} of {stamp}")).collect();
        json!({"stamp": stamp, "number": number, "text": format!("words of {stamp}"), "tags": tags})
    }

    fn put(&self, namespace: [&str; 2], key: &impl ToString, number: u64) -> Op {
        let value = JsonObject::new(&self.value(number)).unwrap();
        Op::Put(PutOp::new(namespace.map(str::to_owned), key.to_string(), value))
    }

    /// All items of the group, and a pair of the writer's own: whole or not at all.
    fn batch(&self, number: u64) -> Vec<Op> {
        let group = ["group", self.group.as_str()];
        let mut ops: Vec<_> = (0..SHARED).map(|key| self.put(group, &key, number)).collect();
        ops.push(if number.is_multiple_of(2) {
            self.put(group, &"extra", number)
        } else {
            Op::Put(PutOp::delete(group.map(str::to_owned), "extra"))
        });
        ops.push(self.put(["own", &self.name], &number, number));
        ops.push(self.put(["mate", &self.name], &number, number));
        // Overlapping batches have their items in opposite orders.
        if number % 4 < 2 {
            ops.reverse();
        }
        ops
    }

    /// A batch that reads before it writes: the last own item that is known to be stored, and the group by meaning.
    fn batch_that_reads(&self, last: Option<u64>, number: u64) -> Vec<Op> {
        let last = last.map_or_else(String::new, |last| last.to_string());
        let mut search = SearchOp::new(["group".to_owned(), self.group.clone()]);
        search.query = Some("words".into());
        search.limit = 100;
        let mut ops =
            vec![Op::Get(GetOp::new(["own".to_owned(), self.name.clone()], last)), Op::Search(search)];
        ops.extend(self.batch(number));
        ops
    }

    /// Reads see acknowledged batches, and no batch in part.
    fn check(&self, last: Option<u64>, results: &[OpResult]) {
        let [OpResult::Item(own), OpResult::Items(group), ..] = results else { panic!("{results:?}") };
        let own = own.as_ref().map(|item| item.value.decode::<Json>().unwrap());
        assert_eq!(own, last.map(|last| self.value(last)));
        is_whole(group);
    }
}

/// The items of a group are all of the same batch.
fn is_whole(group: &[SearchItem]) {
    let values: Vec<Json> = group.iter().map(|found| found.item.value.decode().unwrap()).collect();
    let Some(first) = values.first() else { return };
    assert!(values.iter().all(|value| value == first), "a batch is there in part: {values:?}");
    let extra = u64::from(first["number"].as_u64().unwrap().is_multiple_of(2));
    assert_eq!(values.len() as u64, SHARED + extra, "{values:?}");
}

/// The acknowledged batches of a writer.
#[derive(Debug)]
struct Known {
    writer: Writer,
    stored: Vec<u64>,
}

/// Starts writers that continue until the load ends, despite failures.
fn start(store: &PostgresStore, writers: u64) -> (Arc<Load>, Vec<JoinHandle<Known>>) {
    let load = Arc::<Load>::default();
    let running = (0..writers).map(|at| {
        let (store, load, writer) = (store.clone(), load.clone(), Writer::new(at));
        tokio::spawn(async move {
            let mut stored = Vec::new();
            for number in 0.. {
                if !load.lasts() {
                    break;
                }
                let last = stored.last().copied();
                match store.batch(writer.batch_that_reads(last, number)).await {
                    Ok(results) => {
                        writer.check(last, &results);
                        stored.push(number);
                        load.count();
                    }
                    Err(error) => {
                        may_fail(&error);
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
            }
            Known { writer, stored }
        })
    });
    let running = running.collect();
    (load, running)
}

/// Puts all items again elsewhere, so that there are vectors to compare theirs with.
async fn put_again(database: &Database, store: &PostgresStore) {
    let client = database.client().await;
    let all = rows(&client, "SELECT prefix || '/' || key, value FROM store WHERE prefix <> 'again'").await;
    for some in all.chunks(500) {
        let puts = some.iter().map(|row| {
            let [Some(key), Some(value)] = &row[..] else { panic!("{row:?}") };
            Op::Put(PutOp::new(["again"], key.clone(), JsonObject::from_text(value.clone()).unwrap()))
        });
        store.batch(puts.collect()).await.unwrap();
    }
}

/// Checks that acknowledged batches are stored, and none in part.
async fn verify(database: &Database, store: &PostgresStore, known: &[Known]) {
    const HALF_PAIRS: &str = "
        SELECT own.prefix, own.key FROM store own WHERE own.prefix ~ '^(own|mate)[.]' AND NOT EXISTS (
            SELECT FROM store mate WHERE mate.key = own.key AND mate.value = own.value AND mate.prefix =
                CASE WHEN own.prefix ~ '^own' THEN 'mate' ELSE 'own' END || substr(own.prefix, strpos(own.prefix, '.')))";
    const OTHER_VECTORS: &str = "
        SELECT coalesce(v.prefix || '/' || v.key, w.key), coalesce(v.field_name, w.field_name)
        FROM (SELECT * FROM store_vectors WHERE prefix <> 'again') v
        FULL JOIN (SELECT * FROM store_vectors WHERE prefix = 'again') w
            ON w.key = v.prefix || '/' || v.key AND w.field_name = v.field_name
        WHERE v.embedding IS DISTINCT FROM w.embedding";
    const NO_VECTORS: &str = "
        SELECT s.prefix, s.key FROM store s LEFT JOIN store_vectors v ON v.prefix = s.prefix AND v.key = s.key
        GROUP BY s.prefix, s.key HAVING count(v.key) <> 1 + jsonb_array_length(s.value->'tags')";
    let client = database.client().await;
    nobody_is_inside(&client).await;
    let none = Vec::<Vec<Option<String>>>::new();
    assert_eq!(rows(&client, HALF_PAIRS).await, none, "pairs that are there in part");
    assert_eq!(rows(&client, NO_VECTORS).await, none, "items without their vectors");
    put_again(database, store).await;
    assert_eq!(rows(&client, OTHER_VECTORS).await, none, "vectors of other values");
    for group in 0..GROUPS {
        let group = format!("g{group}");
        let found = store.search(["group".to_owned(), group.clone()]).limit(100).await.unwrap();
        let stored = known.iter().any(|known| known.writer.group == group && !known.stored.is_empty());
        assert!(!stored || !found.is_empty(), "the items of {group} were acknowledged and are gone");
        is_whole(&found);
    }
    assert!(known.iter().any(|known| !known.stored.is_empty()), "nothing was stored");
    for Known { writer, stored } in known {
        let get =
            |number: &u64| Op::Get(GetOp::new(["own".to_owned(), writer.name.clone()], number.to_string()));
        let found = store.batch(stored.iter().map(get).collect()).await.unwrap();
        for (number, found) in stored.iter().zip(found) {
            let OpResult::Item(Some(item)) = found else {
                panic!("batch {number} of {writer:?} was acknowledged and is gone")
            };
            assert_eq!(item.value.decode::<Json>().unwrap(), writer.value(*number));
        }
    }
    // More concurrent calls than the pool has connections.
    let calls = (0..40).map(|at| {
        let store = store.clone();
        tokio::spawn(async move {
            let key = at.to_string();
            store.put(["afterwards"], key.clone(), json!({"text": key})).await.unwrap();
            let found = store.search(["afterwards"]).query(key.clone()).limit(1).await.unwrap();
            assert_eq!(found.len(), 1);
            assert!(store.get(["afterwards"], key).await.unwrap().is_some());
        })
    });
    join(calls.collect()).await;
}

/// Stops the server cleanly, then by a crash, and restarts it while writers continue.
async fn the_server_is_stopped_and_started(_server: &Server) -> Result<(), Missing> {
    let server = server::Private::new(&checkpoint_servers::POSTGRES).await?;
    let (database, store) = set_up(&server.url()).await;
    let (load, writers) = start(&store, 6);
    restart_under(&load, &server, &database).await;
    let known = load.end(writers).await;
    verify(&database, &store, &known).await;
    Ok(())
}

/// A sweeper continues after an outage of its server, and deletes only expired items.
async fn the_sweeper_outlives_a_restart(_server: &Server) -> Result<(), Missing> {
    const EXPIRE: &str = "SELECT count(*) FROM store WHERE prefix = 'short'";
    let server = server::Private::new(&checkpoint_servers::POSTGRES).await?;
    let (database, store) = set_up(&server.url()).await;
    let sweeper = store.start_ttl_sweeper(Duration::from_millis(10)).unwrap();
    for crash in [false, true] {
        let client = database.client().await;
        for number in 0..20 {
            let value = json!({"text": format!("words {number}")});
            let put = store.put(["short"], number.to_string(), &value);
            put.ttl(Duration::from_millis(1)).await.unwrap();
            let put = store.put(["long"], format!("{crash} {number}"), &value);
            put.ttl(Duration::from_secs(3600)).await.unwrap();
            store.put(["ever"], format!("{crash} {number}"), &value).await.unwrap();
        }
        while count(&client, EXPIRE).await > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // The sweeper cannot reach the server for a while.
        server.restart(crash).await;
        let value = json!({"text": "words of the restarted"});
        let put = store.put(["short"], "after", &value).ttl(Duration::from_millis(1));
        put.await.unwrap();
        let client = database.client().await;
        while count(&client, EXPIRE).await > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    drop(sweeper);
    let client = database.client().await;
    let left = rows(&client, "SELECT prefix, count(*) FROM store GROUP BY 1 ORDER BY 1").await;
    let wanted = [["ever", "40"], ["long", "40"]].map(|row| row.map(|text| Some(text.to_owned())).to_vec());
    assert_eq!(left, wanted);
    assert_eq!(count(&client, "SELECT count(*) FROM store_vectors").await, 80, "vectors");
    nobody_is_inside(&client).await;
    Ok(())
}

async fn connections_are_cut(server: &Server) {
    let (database, _) = set_up(server.url()).await;
    let store = builder(database.url()).max_connections(8).max_retries(2).build().unwrap();
    let (load, writers) = start(&store, 8);
    cut_again_and_again(&database, 300).await;
    let known = load.end(writers).await;
    assert!(known.iter().any(|known| !known.stored.is_empty()), "nothing was written between the cuts");
    verify(&database, &store, &known).await;
}

/// A pool does not return connections that were cut while it was idle.
async fn idle_connections_are_cut(server: &Server) {
    let (database, store) = set_up(server.url()).await;
    let writer = Writer::new(0);
    let put_at_once = async |round| {
        let calls = (0..12).map(|at| {
            let (store, ops) = (store.clone(), writer.batch(round * 12 + at));
            tokio::spawn(async move { store.batch(ops).await.map(drop) })
        });
        join(calls.collect()).await.into_iter().for_each(Result::unwrap);
    };
    let search = async |rounds| {
        let found = store.search(["own"]).query("words").limit(100_000).await.unwrap();
        assert_eq!(found.len() as u64, 12 * rounds);
    };
    cut_when_idle(&database, put_at_once, search).await;
    verify(&database, &store, &[Known { writer: writer.clone(), stored: (0..rounds(5) * 12).collect() }])
        .await;
}

async fn futures_are_dropped(server: &Server) {
    let (database, _) = set_up(server.url()).await;
    let build = |builder: PostgresStoreBuilder| builder.max_connections(3).build().unwrap();
    let without_vectors = build(patient(PostgresStore::builder(database.url())));
    drop_futures(&database, build(builder(database.url())), without_vectors).await;
}

async fn futures_are_dropped_behind_pgbouncer(server: &Server) -> Result<(), Missing> {
    let bouncer = Server::find(Kind::PgBouncer)?;
    let (database, _) = set_up(server.url()).await;
    let url = database.through(bouncer.url());
    let build = |builder: PostgresStoreBuilder| builder.pgbouncer(true).max_connections(3).build().unwrap();
    drop_futures(&database, build(builder(&url)), build(patient(PostgresStore::builder(&url)))).await;
    Ok(())
}

async fn drop_futures(database: &Database, store: PostgresStore, without_vectors: PostgresStore) {
    const CALLS: u64 = 100;
    let tasks = (0..6).map(|seed| {
        let (store, without_vectors, writer) = (store.clone(), without_vectors.clone(), Writer::new(seed));
        tokio::spawn(async move {
            let mut random = Random(seed);
            let mut stored = Vec::new();
            for number in 0..CALLS {
                let last = stored.last().copied();
                let batch = store.batch(writer.batch_that_reads(last, number));
                // Some calls are not dropped, so that there are items to find.
                let stays = number.is_multiple_of(10);
                let done = if stays { Some(batch.await) } else { drop_somewhere(batch, &mut random).await };
                if let Some(done) = done {
                    writer.check(last, &done.unwrap());
                    stored.push(number);
                }
                let group = ["group".to_owned(), writer.group.clone()];
                match random.below(6) {
                    0 => {
                        let call = store.search(group).query("words").limit(100).into_future();
                        drop_somewhere(call, &mut random).await.map(Result::unwrap);
                    }
                    1 => {
                        let call = store.get(group, "0").into_future();
                        drop_somewhere(call, &mut random).await.map(Result::unwrap);
                    }
                    2 => {
                        let call = store.list_namespaces().into_future();
                        drop_somewhere(call, &mut random).await.map(Result::unwrap);
                    }
                    3 => {
                        drop_somewhere(store.sweep_ttl(), &mut random).await.map(Result::unwrap);
                    }
                    // One item alone is sent in another way.
                    4 => {
                        let value = json!({"number": number});
                        let call = without_vectors.put(["alone"], writer.name.clone(), value).into_future();
                        drop_somewhere(call, &mut random).await.map(Result::unwrap);
                    }
                    _ => {
                        let call = without_vectors.delete(["alone"], writer.name.clone()).into_future();
                        drop_somewhere(call, &mut random).await.map(Result::unwrap);
                    }
                }
            }
            Known { writer, stored }
        })
    });
    let known = join(tasks.collect()).await;
    for Known { writer, stored } in &known {
        let finished = stored.len() as u64;
        assert!((CALLS / 10..CALLS).contains(&finished), "{finished} batches of {writer:?} were finished");
    }
    let client = database.client().await;
    nobody_is_inside(&client).await;
    client.execute("DELETE FROM store WHERE prefix = 'alone'", &[]).await.unwrap();
    verify(database, &store, &known).await;
}

/// Two processes put and delete the same items, in opposite orders and with others in between. No batch has to be
/// repeated for it.
async fn batches_meet_in_opposite_orders(server: &Server) {
    const ROUNDS: u64 = 40;
    let (database, _) = set_up(server.url()).await;
    let [store, other] = [(); 2].map(|()| builder(database.url()).max_retries(0).build().unwrap());
    let tasks = (0..8).map(|at| {
        let store = if at % 2 == 0 { store.clone() } else { other.clone() };
        let writer = Writer { group: "g0".to_owned(), ..Writer::new(at) };
        tokio::spawn(async move {
            for number in 0..ROUNDS {
                let mut ops = writer.batch(number);
                // These are nobody's alone either.
                let key = (number + at) % 7;
                ops.insert(usize::try_from(key).unwrap(), writer.put(["loose", "items"], &key, number));
                ops.push(writer.put(["loose", "items"], &(6 - key), number));
                if at % 2 == 0 {
                    ops.reverse();
                }
                store.batch(ops).await.unwrap();
            }
            Known { writer, stored: (0..ROUNDS).collect() }
        })
    });
    let known = join(tasks.collect()).await;
    verify(&database, &store, &known).await;
}

/// Python's setup takes no lock, and while it builds an index it waits for every transaction that had a snapshot at a
/// certain moment: for ours, too. So ours does not wait for it with the lock in its hands.
async fn setup_meets_somebody_who_builds_an_index(server: &Server) {
    const LOCK: i64 = i64::from_be_bytes(*b"stor-mig");
    let (database, store) = set_up(server.url()).await;
    let (client, watcher) = (database.client().await, database.client().await);
    for (index, table) in [("store_prefix_idx", "store"), ("store_vectors_embedding_idx", "store_vectors")] {
        let migrations = if table == "store" { "store_migrations" } else { "vector_migrations" };
        let miss = format!("DROP INDEX {index}; DELETE FROM {migrations} WHERE v > 0");
        client.batch_execute(&miss).await.unwrap();
        let begin = format!(
            "BEGIN; LOCK TABLE {table} IN SHARE UPDATE EXCLUSIVE MODE; SET LOCAL lock_timeout = '60s'"
        );
        client.batch_execute(&begin).await.unwrap();
        let setup = tokio::spawn({
            let store = store.clone();
            async move { store.setup().await }
        });
        // It has looked once it has asked the server anything about locks.
        let looks = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                     AND query LIKE '%ShareUpdateExclusiveLock%' AND pid <> pg_backend_pid()";
        while count(&watcher, looks).await == 0 {
            assert!(!setup.is_finished(), "it did not look");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        client.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await.unwrap();
        client.batch_execute("COMMIT").await.unwrap();
        setup.await.unwrap().unwrap();
        let valid =
            format!("SELECT count(*) FROM pg_index WHERE indexrelid = '{index}'::regclass AND indisvalid");
        assert_eq!(count(&watcher, &valid).await, 1, "{index}");
    }
}

pub(crate) fn tests() -> &'static [Test] {
    tests![
        the_server_is_stopped_and_started,
        the_sweeper_outlives_a_restart,
        connections_are_cut,
        idle_connections_are_cut,
        futures_are_dropped,
        futures_are_dropped_behind_pgbouncer,
        batches_meet_in_opposite_orders,
        setup_meets_somebody_who_builds_an_index,
    ]
}
