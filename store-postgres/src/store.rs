//! The store and its trait implementation.

use std::fmt;
use std::slice;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use checkpoint_core::backend::{Calls, Operation, telemetry};
use checkpoint_core::store::{
    BaseStore, Expected, IndexConfig, Op, OpResult, Ops, PutOp, SearchOp, StoreCapabilities, TtlConfig,
};
use checkpoint_core::{Error, ErrorKind, Result, async_trait};
use chrono::DateTime;
use common_postgres::deadpool_postgres::Pool;
use common_postgres::{BACKEND, ConnectionSource, Database, Json, PostgresConfig, SYSTEM, column, params};
use futures_util::future::try_join;
use xxhash_rust::xxh3::xxh3_64;

use crate::builder::VectorIndex;
use crate::read::{self, Read};
use crate::schema::Tables;
use crate::sql::{Parameters, PutColumns, PutIf, Statements};
use crate::sweep::TtlSweeper;
use crate::write::{PutRows, Row, check_text};
use crate::{AnnIndex, PostgresStoreBuilder};

/// How many expired items one statement deletes.
const SWEEP_BATCH: i64 = 1000;

/// The number of advisory locks that the items of a store share. It bounds the locks of a batch; the server has room for
/// thousands.
const LOCK_STRIPES: u32 = 256;

/// The first version of pgvector with iterative index scans.
const ITERATIVE_SCAN_SINCE: (u32, u32) = (0, 8);

/// The maximum of `hnsw.ef_search`.
const MAX_EF_SEARCH: usize = 1000;

/// Keeps items in PostgreSQL, in the tables of Python LangGraph. Clones share their connections.
///
/// See the [crate's page](crate) for what is stored where and what each call costs.
#[derive(Clone)]
pub struct PostgresStore {
    shared: Arc<Shared>,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("database", &self.shared.database)
            .field("index", &self.shared.index)
            .field("ttl", &self.shared.ttl)
            .finish_non_exhaustive()
    }
}

/// What the clones of a store share.
#[derive(Debug)]
pub(crate) struct Shared {
    calls: Calls,
    pub(crate) database: Database,
    pub(crate) sql: Statements,
    tables: Tables,
    pub(crate) index: Option<Arc<VectorIndex>>,
    pub(crate) ttl: TtlConfig,
    /// Whether the server's pgvector has iterative index scans, once it is known.
    iterative_scan: OnceLock<bool>,
}

impl Shared {
    pub(crate) fn new(
        database: Database,
        tables: Tables,
        index: Option<Arc<VectorIndex>>,
        ttl: TtlConfig,
    ) -> Self {
        let sql = Statements::new(&tables.prefix);
        Self {
            calls: Calls::store(BACKEND, SYSTEM),
            database,
            sql,
            tables,
            index,
            ttl,
            iterative_scan: OnceLock::new(),
        }
    }

    /// The key of an item's advisory lock, which items of the same tables with the same hash share.
    pub(crate) fn lock_key(&self, prefix: &str, key: &str) -> i32 {
        let hash = |parts: [&str; 2]| xxh3_64(parts.join("\0").as_bytes());
        let (tables, item) = (hash([&self.tables.prefix, ""]), hash([prefix, key]));
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the lower bits of a hash are as good as any others"
        )]
        let number = (tables as u32).wrapping_mul(LOCK_STRIPES) + (item % u64::from(LOCK_STRIPES)) as u32;
        number.cast_signed()
    }

    fn config(&self) -> Option<&IndexConfig> {
        self.index.as_deref().map(|index| &index.config)
    }

    /// Queries once whether the server's pgvector has iterative index scans.
    pub(crate) async fn detect_iterative_scan(&self, index: &VectorIndex) -> Result<()> {
        if index.ann == AnnIndex::Flat || self.iterative_scan.get().is_some() {
            return Ok(());
        }
        let version = "SELECT extversion::text FROM pg_extension WHERE extname = 'vector'";
        let rows = self.database.query(version, &[]).await?;
        let Some(row) = rows.first() else {
            return Err(Error::new(ErrorKind::Schema, "the database has no extension `vector`; run setup()"));
        };
        let mut parts = column::<&str>(row, 0)?.split('.').map(|part| part.parse().unwrap_or(0));
        let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        // A concurrent call sets the same value.
        let _ = self.iterative_scan.set(version >= ITERATIVE_SCAN_SINCE);
        Ok(())
    }

    /// The settings for a search of the vector index for this many candidates.
    pub(crate) fn settings(&self, candidates: Option<usize>) -> Option<String> {
        let index = self.index.as_deref()?;
        let iterative_scan = self.iterative_scan.get().copied().unwrap_or(false);
        let (setting, name) = match index.ann {
            AnnIndex::Hnsw { .. } => {
                let ef_search = candidates.unwrap_or(0).clamp(usize::from(index.ef_search), MAX_EF_SEARCH);
                (format!("SET LOCAL hnsw.ef_search = {ef_search}"), "hnsw")
            }
            AnnIndex::Ivfflat { lists } => {
                let probes = index.probes.unwrap_or_else(|| lists.isqrt().max(1)).min(lists);
                (format!("SET LOCAL ivfflat.probes = {probes}"), "ivfflat")
            }
            AnnIndex::Flat => return None,
        };
        // The statement has an exact and an indexed branch; the unused one would still start parallel workers.
        let setting = format!("{setting}; SET LOCAL max_parallel_workers_per_gather = 0");
        Some(if iterative_scan {
            format!("{setting}; SET LOCAL {name}.iterative_scan = relaxed_order")
        } else {
            setting
        })
    }

    /// Rejects keys that the server cannot store.
    fn check(ops: &Ops) -> Result<()> {
        let keys = ops.gets.iter().map(|(_, get)| &get.key).chain(ops.puts.iter().map(|put| &put.key));
        keys.into_iter().try_for_each(|key| check_text("key", key))
    }

    /// The vectors of the searches' queries.
    async fn embed_searches(&self, searches: &[(usize, SearchOp)]) -> Result<Vec<Option<Arc<[f32]>>>> {
        match self.config() {
            Some(config) => config.embed_searches(searches).await,
            None => Ok(vec![None; searches.len()]),
        }
    }

    /// The vectors of each put by field name; empty without an index.
    async fn embed_puts(&self, puts: &[PutOp]) -> Result<Vec<Vec<(String, Arc<[f32]>)>>> {
        match self.config() {
            Some(config) => config.embed_puts(puts).await,
            None => Ok(Vec::new()),
        }
    }

    async fn put_if(&self, put: PutOp, expected: Expected) -> Result<()> {
        put.check()?;
        check_text("key", &put.key)?;
        let vectors = self.embed_puts(slice::from_ref(&put)).await?.pop().unwrap_or_default();
        let row = &Row::new(&put, vectors, &self.ttl)?;
        telemetry::bytes_written(SYSTEM, row.bytes());
        let store = |connection| async move { row.store_if(expected, self, &connection).await };
        if self.database.run(store).await? { Ok(()) } else { Err(expected.conflict(&put)) }
    }

    async fn batch(&self, ops: Vec<Op>) -> Result<Vec<OpResult>> {
        let mut results = vec![OpResult::Done; ops.len()];
        let ops = Ops::new(ops, BACKEND, self.config())?;
        Self::check(&ops)?;
        // Before anything is read or stored, since embedding may fail.
        let embedded = try_join(self.embed_searches(&ops.searches), self.embed_puts(&ops.puts));
        let (queries, vectors) = embedded.await?;
        let puts = PutRows::new(&ops.puts, vectors, &self.ttl)?;

        let mut set = |at: usize, result: OpResult| {
            if let Some(slot) = results.get_mut(at) {
                *slot = result;
            }
        };
        let mut read = Read::default();
        if !ops.gets.is_empty() {
            let items = read::get(self, &ops.gets, &mut read).await?;
            ops.gets.iter().zip(items).for_each(|((at, _), item)| set(*at, OpResult::Item(item)));
        }
        if !ops.searches.is_empty() {
            let found = read::search(self, &ops.searches, queries, &mut read).await?;
            ops.searches.iter().zip(found).for_each(|((at, _), items)| set(*at, OpResult::Items(items)));
        }
        if !ops.lists.is_empty() {
            let listed = read::list_namespaces(self, &ops.lists).await?;
            ops.lists.iter().zip(listed).for_each(|((at, _), listed)| set(*at, OpResult::Namespaces(listed)));
        }
        read.refresh(self).await?;
        if !ops.puts.is_empty() {
            let puts = &puts;
            telemetry::bytes_written(SYSTEM, puts.bytes());
            self.database.run(|connection| async move { puts.store(self, &connection).await }).await?;
        }
        Ok(results)
    }

    async fn sweep(&self) -> Result<u64> {
        let mut swept = 0;
        loop {
            let rows = self.database.query(&self.sql.sweep, &params![INT8: SWEEP_BATCH]).await?;
            let removed = rows.first().map_or(Ok(0), |row| column::<i64>(row, 0))?;
            swept += u64::try_from(removed).unwrap_or_default();
            if removed < SWEEP_BATCH {
                return Ok(swept);
            }
        }
    }
}

impl PostgresStore {
    /// Configures a store in the database that a connection string names, as
    /// [`PostgresConfig::from_conn_string`] reads it: `postgres://user:password@host:port/database`, or
    /// `host=… dbname=…`. What it leaves out comes from libpq's environment variables (`PGHOST`, `PGSSLMODE`, …).
    pub fn builder(conn_string: impl Into<String>) -> PostgresStoreBuilder {
        PostgresStoreBuilder::new(ConnectionSource::ConnString(conn_string.into()))
    }

    /// Configures a store in the database of a configuration.
    pub fn from_config(config: PostgresConfig) -> PostgresStoreBuilder {
        PostgresStoreBuilder::new(ConnectionSource::Config(Box::new(config)))
    }

    /// Configures a store on an application's own pool.
    pub fn from_pool(pool: Pool) -> PostgresStoreBuilder {
        PostgresStoreBuilder::new(ConnectionSource::Pool(pool))
    }

    /// Starts a background task that removes expired items at this interval until the returned handle is dropped. A
    /// failed sweep is logged, and the next one tries again.
    ///
    /// # Errors
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) outside of a tokio runtime, and in one without a time driver.
    pub fn start_ttl_sweeper(&self, every: Duration) -> Result<TtlSweeper> {
        TtlSweeper::start(self.clone(), every)
    }

    /// Returns the generic plans of the store's statements: for each its purpose, the SQL, and the plan as JSON. `ops`
    /// determine the statements of searches and listings. For tests.
    #[doc(hidden)]
    pub async fn plans(&self, ops: Vec<Op>) -> Result<Vec<(&'static str, String, String)>> {
        let shared = &*self.shared;
        let ops = Ops::new(ops, BACKEND, shared.config())?;
        let queries = shared.embed_searches(&ops.searches).await?;
        if let Some(index) = shared.index.as_deref() {
            shared.detect_iterative_scan(index).await?;
        }
        let mut statements: Vec<(_, String, Option<String>)> = [
            ("get", &shared.sql.get),
            ("get of many", &shared.sql.get_many),
            ("refresh", &shared.sql.refresh),
            ("sweep", &shared.sql.sweep),
            ("put", &shared.sql.put_one),
        ]
        .map(|(call, sql)| (call, sql.clone(), None))
        .into();
        for ((_, op), vector) in ops.searches.iter().zip(&queries) {
            let mut params = Parameters::default();
            statements.push(match (vector, shared.index.as_deref()) {
                (Some(vector), Some(index)) => {
                    // The statement has both branches, and the reach is a parameter.
                    let reach = read::first_reach(shared, op);
                    let sql = shared.sql.search_vectors(&mut params, 0, op, vector, index, reach)?;
                    ("search by a query", sql, shared.settings(Some(reach.candidates)))
                }
                _ => ("search", shared.sql.search(&mut params, 0, op)?, None),
            });
        }
        for (_, op) in &ops.lists {
            let sql = shared.sql.list_namespaces(&mut Parameters::default(), 0, op);
            statements.push(("list_namespaces", sql, None));
        }
        let one = || vec![""];
        let none = PutColumns::default;
        let batches = [
            ("puts", PutColumns { keys: one(), ..none() }),
            ("deletions", PutColumns { deleted_keys: one(), ..none() }),
            ("puts and deletions", PutColumns { keys: one(), deleted_keys: one(), ..none() }),
        ];
        for (call, columns) in batches {
            let put = shared.sql.put(columns, shared.index.as_deref());
            let calls = [call, "vectors of puts"].into_iter();
            statements.extend(calls.zip(put).map(|(call, (sql, _))| (call, sql, None)));
        }
        let unchanged = Expected::UpdatedAt(DateTime::UNIX_EPOCH);
        let conditional = [
            ("put if absent", Expected::Absent, Some(Json("{}"))),
            ("put if unchanged", unchanged, Some(Json("{}"))),
            ("delete if unchanged", unchanged, None),
            ("delete if absent", Expected::Absent, None),
        ];
        for (call, expected, value) in conditional {
            let put = PutIf {
                expected,
                prefix: "",
                key: "",
                value,
                seconds: None,
                minutes: None,
                field_names: Vec::new(),
                numbers: Vec::new(),
            };
            statements.push((call, shared.sql.put_if(put, shared.index.as_deref()).0, None));
        }
        let connection = shared.database.connection().await?;
        let mut plans = Vec::new();
        for (call, sql, settings) in statements {
            let settings = settings.unwrap_or_default();
            let explain = format!("BEGIN; {settings}; EXPLAIN (GENERIC_PLAN, FORMAT JSON) {sql}; COMMIT");
            plans.push((call, sql, connection.simple_query(&explain).await?));
        }
        Ok(plans)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.shared.calls.is_closed()
    }

    pub(crate) fn from_shared(shared: Shared) -> Self {
        Self { shared: Arc::new(shared) }
    }
}

#[async_trait]
impl BaseStore for PostgresStore {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities::durable(self.shared.index.is_some())
    }

    async fn setup(&self) -> Result<()> {
        let setup = self.shared.tables.set_up(&self.shared.database);
        self.shared.calls.run(Operation::setup(), setup).await
    }

    async fn ping(&self) -> Result<()> {
        self.shared.calls.run(Operation::ping(), self.shared.database.ping()).await
    }

    async fn check_schema(&self) -> Result<()> {
        let check = self.shared.tables.check_schema(&self.shared.database);
        self.shared.calls.run(Operation::check_schema(), check).await
    }

    async fn batch(&self, ops: Vec<Op>) -> Result<Vec<OpResult>> {
        self.shared.calls.run(Operation::batch(&ops), self.shared.batch(ops)).await
    }

    async fn put_if(&self, put: PutOp, expected: Expected) -> Result<()> {
        self.shared.calls.run(Operation::put_if(&put), self.shared.put_if(put, expected)).await
    }

    async fn sweep_ttl(&self) -> Result<u64> {
        self.shared.calls.run(Operation::sweep_ttl(), self.shared.sweep()).await
    }

    async fn close(&self) -> Result<()> {
        let release = async {
            self.shared.database.close();
            Ok(())
        };
        self.shared.calls.close(release).await
    }
}
