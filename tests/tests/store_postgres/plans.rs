//! The plans of the store's statements: they use the indexes, regardless of the tables' contents and statistics. These
//! tests detect plans that read a whole table for one item or for a small namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use checkpoint_conformance::{Store, StoreFacility, StoreOptions, StoreTarget, run_store_cases};
use checkpoint_core::store::{
    BaseStore, Expected, IndexConfig, ItemFilter, ListNamespacesOp, MatchCondition, Namespace,
    NgramEmbeddings, Op, OpResult, PutOp, SearchOp, StoreCapabilities,
};
use checkpoint_core::{Result, async_trait};
use store_postgres::{AnnIndex, PostgresStore};
use tokio_postgres::Client;

use crate::shared::plans::{Access, Plan, assert_all_planned, on_tables};
use crate::shared::postgres::wire::proxy;
use crate::shared::postgres::{Database, Server, Test, rows, tests};
use crate::suite::Postgres;

const DIMS: usize = 16;

fn store(database: &Database, ann: AnnIndex) -> PostgresStore {
    PostgresStore::builder(database.url())
        .index(IndexConfig::new(DIMS, NgramEmbeddings::new(DIMS)))
        .ann_index(ann)
        .filter_index(true)
        .build()
        .unwrap()
}

/// Tables without statistics until `ANALYZE`.
async fn set_up(server: &Server, ann: AnnIndex) -> (Database, Client) {
    let database = Database::create(server.url()).await;
    store(&database, ann).setup().await.unwrap();
    let client = database.client().await;
    for table in ["store", "store_vectors"] {
        client.batch_execute(&format!("ALTER TABLE {table} SET (autovacuum_enabled = off)")).await.unwrap();
    }
    (database, client)
}

/// So many items below `many`, in fifty namespaces, some of which expire some day, and so many in `small.one`.
async fn fill(client: &Client, many: u32, small: u32) {
    let item = "jsonb_build_object('kind', 'k' || n % 500, 'n', n), CASE WHEN n % 100 = 0 THEN now() + interval '1 day' END, \
         CASE WHEN n % 100 = 0 THEN 1440 END";
    let columns = "INSERT INTO store (prefix, key, value, expires_at, ttl_minutes)";
    let vector = format!(
        "(SELECT array_agg(random() - 0.5) FROM generate_series(1, {DIMS}) WHERE store.key IS NOT NULL)::vector"
    );
    for sql in [
        format!("{columns} SELECT 'many.ns' || n % 50, 'k' || n, {item} FROM generate_series(1, {many}) n"),
        format!("{columns} SELECT 'small.one', 'k' || n, {item} FROM generate_series(1, {small}) n"),
        format!(
            "INSERT INTO store_vectors (prefix, key, field_name, embedding) SELECT prefix, key, 'text', {vector} FROM store"
        ),
    ] {
        client.batch_execute(&sql).await.unwrap();
    }
}

/// A search, by what it has.
#[derive(Debug, Clone, Copy)]
struct Search {
    below: bool,
    filter: bool,
    query: bool,
}

impl Search {
    fn all() -> Vec<Self> {
        let either = [false, true];
        let filters = |below, filter| either.map(|query| Self { below, filter, query });
        let all = either.map(|below| either.map(|filter| filters(below, filter)));
        all.into_iter().flatten().flatten().collect()
    }

    fn op(self) -> Op {
        let mut op = SearchOp::new(if self.below { Namespace::from(["small"]) } else { Namespace::root() });
        if self.filter {
            op.filter = ItemFilter::new().eq("kind", "k1");
        }
        op.query = self.query.then(|| "words".into());
        Op::Search(op)
    }
}

fn listings() -> Vec<Op> {
    let all = ListNamespacesOp::new();
    let mut cut = all.clone();
    cut.max_depth = Some(1);
    let mut below = cut.clone();
    below.match_conditions.push(MatchCondition::Prefix(["many"].into()));
    [all, cut, below].map(Op::ListNamespaces).into()
}

/// Whether a search reads what it may.
fn check_search(search: Search, ann: AnnIndex, analyzed: bool, plan: &Plan) -> Result<(), &'static str> {
    let uses = |index: &str| plan.accesses.iter().any(|access| access.index == index);
    let reads_all = |table: &str| {
        plan.accesses.iter().any(|access| access.table == table && access.how.contains("Seq Scan"))
    };
    if search.below && (reads_all("store") || reads_all("store_vectors")) {
        return Err("it reads all of a table for a namespace");
    }
    if search.below && !uses("store_prefix_idx") {
        return Err("it does not use the index on prefixes");
    }
    // What is new waits in a list of the index, which a server that never looked does not know to be short.
    if search.filter && !search.below && analyzed && !uses("store_value_idx") {
        return Err("it does not use the index for filters");
    }
    if !search.query {
        return Ok(());
    }
    if ann != AnnIndex::Flat && !uses("store_vectors_embedding_idx") {
        return Err("it does not use the index of vectors");
    }
    if search.filter && reads_all("store_vectors") {
        return Err("it reads all vectors for a filter");
    }
    if !uses("store_pkey") {
        return Err("it does not read what it found by its keys");
    }
    // Without a namespace or a filter an exact search is one over everything.
    if (search.below || search.filter) && plan.count(&["Hash Join", "Merge Join"]) > 0 {
        return Err("it joins whole tables");
    }
    Ok(())
}

/// Whether any other call does.
fn check_call(call: &str, analyzed: bool, plan: &Plan) -> Result<(), &'static str> {
    let indexes: Vec<_> = plan.accesses.iter().map(|access| access.index.as_str()).collect();
    let reads_all = plan.accesses.iter().any(|access| access.how.contains("Seq Scan"));
    let fits = match call {
        "get" | "get of many" | "deletions" | "puts and deletions" | "delete if absent" => {
            indexes == ["store_pkey"]
        }
        "put" | "puts" => indexes.is_empty(),
        // It finds the item, then changes it.
        "put if unchanged" => indexes == ["store_pkey", "store_pkey", "store_vectors_pkey"],
        "delete if unchanged" => indexes == ["store_pkey", "store_pkey"],
        "vectors of puts" | "put if absent" => indexes == ["store_vectors_pkey"],
        "refresh" => !reads_all && indexes.contains(&"store_pkey"),
        // A server that never looked takes a third of the items to have expired.
        "sweep" => {
            indexes.first() == Some(&"idx_store_expires_at")
                && if analyzed { indexes.get(1) == Some(&"store_pkey") } else { indexes.len() == 2 }
        }
        "list_namespaces" => {
            // Only items that have expired are read in vain.
            let jumps = |access: &Access| {
                ["Index Only Scan", "Index Scan"].contains(&access.how.as_str())
                    && (access.filter.is_empty() || access.filter.contains("expires_at"))
            };
            plan.count(&["Recursive Union"]) == 1 && plan.accesses.iter().all(jumps)
        }
        _ => return Err("this call is unknown"),
    };
    if fits { Ok(()) } else { Err("it reads what it should not") }
}

async fn check(database: &Database, ann: AnnIndex, analyzed: bool, state: &str) {
    let searches = Search::all();
    let ops = searches.iter().map(|search| search.op()).chain(listings()).collect();
    let mut unseen = searches.iter();
    let mut checked = 0;
    for (call, sql, plan) in store(database, ann).plans(ops).await.unwrap() {
        let plan = Plan::parse(&plan);
        let (what, fits) = if call.starts_with("search") {
            let search = *unseen.next().unwrap();
            (format!("{call} {search:?}"), check_search(search, ann, analyzed, &plan))
        } else {
            (call.to_owned(), check_call(call, analyzed, &plan))
        };
        assert_eq!(fits, Ok(()), "{ann:?}, {state}: {what}: {:#?}\n{sql}", plan.accesses);
        checked += 1;
    }
    assert_eq!(checked, searches.len() + listings().len() + 14, "{state}: statements");
}

async fn check_all(server: &Server, ann: AnnIndex) {
    let (database, client) = set_up(server, ann).await;
    fill(&client, 5000, 20).await;
    check(&database, ann, false, "5,020 items without statistics").await;
    client.batch_execute("ANALYZE").await.unwrap();
    client.execute("SELECT gin_clean_pending_list('store_value_idx')", &[]).await.unwrap();
    check(&database, ann, true, "5,020 items").await;
    client.batch_execute("VACUUM ANALYZE").await.unwrap();
    check(&database, ann, true, "5,020 items, tidied up").await;
}

async fn with_hnsw(server: &Server) {
    check_all(server, AnnIndex::hnsw()).await;
}

async fn with_ivfflat(server: &Server) {
    check_all(server, AnnIndex::ivfflat(16)).await;
}

async fn with_flat(server: &Server) {
    check_all(server, AnnIndex::Flat).await;
}

/// What searches in a small namespace really read beside many other items, planned for their parameters and, after some,
/// for any.
async fn a_small_namespace_is_read_alone(server: &Server) {
    const SMALL: u32 = 200;
    const SEARCHES: u32 = 12;
    const READ: &str = "SELECT s.seq_tup_read, s.idx_tup_fetch, v.seq_tup_read, v.idx_tup_fetch \
         FROM pg_stat_user_tables s, pg_stat_user_tables v WHERE s.relname = 'store' AND v.relname = 'store_vectors'";
    for ann in [AnnIndex::Flat, AnnIndex::hnsw()] {
        for analyzed in [false, true] {
            let (database, client) = set_up(server, ann).await;
            fill(&client, 10_000, SMALL).await;
            if analyzed {
                client.batch_execute("VACUUM ANALYZE").await.unwrap();
            }
            // What this session and the setup did is told before it is forgotten.
            client.execute("SELECT pg_stat_force_next_flush()", &[]).await.unwrap();
            client.execute("SELECT pg_stat_reset()", &[]).await.unwrap();
            let search = Search { below: true, filter: false, query: true };
            let store = store(&database, ann);
            for _ in 0..SEARCHES {
                let found = store.batch(vec![search.op()]).await.unwrap();
                assert!(
                    matches!(found.as_slice(), [OpResult::Items(items)] if items.len() == SearchOp::DEFAULT_LIMIT)
                );
            }
            // A session tells what it did when it ends.
            drop(store);
            let mut read = Vec::new();
            for _ in 0..500 {
                read = rows(&client, READ).await.remove(0).into_iter().map(|text| text.unwrap()).collect();
                if read[3] != "0" {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let read: Vec<u32> = read.iter().map(|number| number.parse().unwrap()).collect();
            let [all_items, items, all_vectors, vectors] = read[..] else { panic!("{read:?}") };
            let state = format!("{ann:?}, analyzed: {analyzed}");
            assert_eq!((all_items, all_vectors), (0, 0), "{state}: read without an index");
            assert_eq!(vectors, SEARCHES * SMALL, "{state}: vectors read");
            // To count them and to find their vectors, and then the nearest once more.
            assert!(items <= SEARCHES * (2 * SMALL + 20), "{state}: {items} items read");
        }
    }
}

/// A store of the suite, and what it was asked.
#[derive(Debug)]
struct Watched {
    store: PostgresStore,
    /// Each operation once, by its description.
    ops: Mutex<BTreeMap<String, Op>>,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl BaseStore for Watched {
    fn backend(&self) -> &'static str {
        self.store.backend()
    }

    fn capabilities(&self) -> StoreCapabilities {
        self.store.capabilities()
    }

    async fn setup(&self) -> Result<()> {
        self.store.setup().await
    }

    async fn ping(&self) -> Result<()> {
        self.store.ping().await
    }

    async fn check_schema(&self) -> Result<()> {
        self.store.check_schema().await
    }

    async fn batch(&self, ops: Vec<Op>) -> Result<Vec<OpResult>> {
        let results = self.store.batch(ops.clone()).await?;
        // Nothing was sent for those that were refused.
        self.ops.lock().unwrap().extend(ops.into_iter().map(|op| (format!("{op:?}"), op)));
        Ok(results)
    }

    async fn put_if(&self, put: PutOp, expected: Expected) -> Result<()> {
        self.store.put_if(put, expected).await
    }

    async fn close(&self) -> Result<()> {
        self.store.close().await
    }

    async fn sweep_ttl(&self) -> Result<u64> {
        self.store.sweep_ttl().await
    }
}

/// The suite's target with such stores.
#[derive(Debug)]
struct WatchedTarget {
    target: Postgres,
    stores: Mutex<Vec<Arc<Watched>>>,
}

#[async_trait]
impl StoreTarget for WatchedTarget {
    fn name(&self) -> &str {
        self.target.name()
    }

    async fn open(&self, options: StoreOptions) -> Result<Store> {
        let store = self.target.builder(self.target.url(), options).build()?;
        let watched = Arc::new(Watched { store, ops: Mutex::default() });
        self.stores.lock().unwrap().push(watched.clone());
        Ok(watched)
    }

    fn offers(&self, facility: StoreFacility) -> bool {
        facility == StoreFacility::Index && self.target.offers(facility)
    }
}

/// The statements that were joined to one, without the numbers of parameters and operations.
fn parts(sql: &str) -> Vec<String> {
    const JOINED: &str = " UNION ALL ";
    let (mut depth, mut quoted, mut begin) = (0, false, 0);
    let mut parts = Vec::new();
    for (at, c) in sql.char_indices() {
        match c {
            '\'' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            ' ' if !quoted && depth == 0 && sql[at..].starts_with(JOINED) => {
                parts.push(&sql[begin..at]);
                begin = at + JOINED.len();
            }
            _ => {}
        }
    }
    parts.push(&sql[begin..]);
    let several = parts.len() > 1;
    let unnumbered = |part: &str| {
        let part = if several {
            part.strip_prefix('(').and_then(|part| part.strip_suffix(')')).unwrap()
        } else {
            part
        };
        let mut shape = String::new();
        for c in part.chars() {
            let follows = shape.ends_with('$') || shape.ends_with("SELECT ");
            if !(c.is_ascii_digit() && follows) {
                shape.push(c);
            }
        }
        shape
    };
    parts.into_iter().map(unnumbered).collect()
}

async fn parts_of_a_statement(_server: &Server) {
    let [first, second] =
        &parts("(SELECT 0, $1::text FROM (a UNION ALL b)) UNION ALL (SELECT 1, $12 || ')')")[..]
    else {
        panic!("two parts")
    };
    assert_eq!(first, "SELECT , $::text FROM (a UNION ALL b)");
    assert_eq!(second, "SELECT , $ || ')'");
}

/// Groups of cases that send no statements beyond those of other groups.
const REPETITIVE: [&str; 4] = ["store_cancellation", "store_concurrency", "store_model", "store_round_trips"];

/// No call sends a statement that `plans` does not know: all that the suite makes the store send is seen.
async fn every_statement_is_planned(server: &Server) {
    let (proxy, url) = proxy(server.url()).await.unwrap();
    let target =
        Arc::new(WatchedTarget { target: Postgres::through(server.clone(), url), stores: Mutex::default() });
    let report =
        run_store_cases(target.clone(), |case| !REPETITIVE.contains(&case.group()), |_, _| {}).await.unwrap();
    assert_eq!(report.failed, []);
    let stores = std::mem::take(&mut *target.stores.lock().unwrap());
    // The cases sweep databases of their own alone.
    stores[0].sweep_ttl().await.unwrap();
    // Every schema of the suite has a name that begins so.
    let seen = on_tables(proxy.take().statements, "checkpoint_test_");

    let mut planned = BTreeMap::new();
    for watched in stores {
        let ops = std::mem::take(&mut *watched.ops.lock().unwrap());
        for (call, sql, _) in watched.store.plans(ops.into_values().collect()).await.unwrap() {
            planned.insert(parts(&sql).remove(0), call);
        }
    }
    let seen: BTreeSet<_> = seen.iter().flat_map(|sql| parts(sql)).collect();
    assert_all_planned(&seen, &planned);
}

pub(crate) fn tests() -> &'static [Test] {
    tests![
        parts_of_a_statement,
        every_statement_is_planned,
        with_hnsw,
        with_ivfflat,
        with_flat,
        a_small_namespace_is_read_alone
    ]
}
