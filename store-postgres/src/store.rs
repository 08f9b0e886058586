//! The trait.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use checkpoint_core::store::{
    BaseStore, IndexConfig, Op, OpResult, Ops, SearchOp, StoreCapabilities, TtlConfig,
};
use checkpoint_core::{Error, ErrorKind, Result, ResultExt, async_trait};
use common_postgres::deadpool_postgres::Pool;
use common_postgres::tokio_postgres::types::Type;
use common_postgres::{BACKEND, Connection, Database, PostgresConfig, Source, column};
use futures_util::future::try_join;
use tracing::instrument;
use xxhash_rust::xxh3::xxh3_64;

use crate::builder::VectorIndex;
use crate::read::{self, Read};
use crate::schema::Tables;
use crate::sql::{Parameters, PutColumns, Statements};
use crate::sweep::TtlSweeper;
use crate::write::{PutRows, check_text};
use crate::{AnnIndex, PostgresStoreBuilder};

/// How many expired items one statement removes.
const SWEPT_AT_ONCE: i64 = 1000;

/// So many locks the items of a store share: a batch takes at most as many, and the server has room for thousands.
const LOCKS: u32 = 256;

/// The version of pgvector from which on an index goes on until enough vectors fit the other conditions.
const ITERATES_FROM: (u32, u32) = (0, 8);

/// The most candidates that pgvector looks at.
const MOST_CANDIDATES: usize = 1000;

/// Keeps items in PostgreSQL, in the tables of LangGraph's Python. Clones share their connections.
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
    pub(crate) database: Database,
    pub(crate) sql: Statements,
    tables: Tables,
    pub(crate) index: Option<Arc<VectorIndex>>,
    pub(crate) ttl: TtlConfig,
    /// Whether the server's pgvector goes on until enough vectors fit, once it was asked.
    iterates: OnceLock<bool>,
}

impl Shared {
    pub(crate) fn new(
        database: Database,
        tables: Tables,
        index: Option<Arc<VectorIndex>>,
        ttl: TtlConfig,
    ) -> Self {
        let sql = Statements::new(&tables.prefix);
        Self { database, sql, tables, index, ttl, iterates: OnceLock::new() }
    }

    /// The number of the lock that an item shares with some others of the same tables.
    pub(crate) fn lock_of(&self, prefix: &str, key: &str) -> i32 {
        let hash = |parts: [&str; 2]| xxh3_64(parts.join("\0").as_bytes());
        let (tables, item) = (hash([&self.tables.prefix, ""]), hash([prefix, key]));
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the lower bits are as good as any others of a hash"
        )]
        let number = (tables as u32).wrapping_mul(LOCKS) + (item % u64::from(LOCKS)) as u32;
        number.cast_signed()
    }

    fn config(&self) -> Option<&IndexConfig> {
        self.index.as_deref().map(|index| &index.config)
    }

    /// Asks once what the server's pgvector can do.
    pub(crate) async fn learn_pgvector(&self, index: &VectorIndex) -> Result<()> {
        if index.ann == AnnIndex::Flat || self.iterates.get().is_some() {
            return Ok(());
        }
        let run = |connection: Connection| async move {
            connection.query("SELECT extversion::text FROM pg_extension WHERE extname = 'vector'", &[]).await
        };
        let rows = self.database.run(run).await?;
        let Some(row) = rows.first() else {
            return Err(Error::new(ErrorKind::Schema, "the database has no extension `vector`; run setup()"));
        };
        let mut parts = column::<&str>(row, 0)?.split('.').map(|part| part.parse().unwrap_or(0));
        let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        // Whoever asked at the same time heard the same.
        let _ = self.iterates.set(version >= ITERATES_FROM);
        Ok(())
    }

    /// The settings under which an index is searched for so many vectors.
    pub(crate) fn settings(&self, nearest: Option<usize>) -> Option<String> {
        let index = self.index.as_deref()?;
        let iterates = self.iterates.get().copied().unwrap_or(false);
        let (setting, name) = match index.ann {
            AnnIndex::Hnsw { .. } => {
                let candidates = nearest.unwrap_or(0).clamp(usize::from(index.ef_search), MOST_CANDIDATES);
                (format!("SET LOCAL hnsw.ef_search = {candidates}"), "hnsw")
            }
            AnnIndex::Ivfflat { lists } => {
                let probes = index.probes.unwrap_or_else(|| lists.isqrt().max(1)).min(lists);
                (format!("SET LOCAL ivfflat.probes = {probes}"), "ivfflat")
            }
            AnnIndex::Flat => return None,
        };
        // Of the two ways to search, the one that is not taken would still start its parallel workers.
        let setting = format!("{setting}; SET LOCAL max_parallel_workers_per_gather = 0");
        Some(if iterates {
            format!("{setting}; SET LOCAL {name}.iterative_scan = relaxed_order")
        } else {
            setting
        })
    }

    /// Refuses what the server cannot hold.
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

    async fn batch(&self, ops: Vec<Op>) -> Result<Vec<OpResult>> {
        let mut results = vec![OpResult::Done; ops.len()];
        let ops = Ops::new(ops, BACKEND, self.config())?;
        Self::check(&ops)?;
        // What cannot be embedded fails before anything is read or stored.
        let embed_puts = async {
            match self.config() {
                Some(config) => config.embed_puts(&ops.puts).await,
                None => Ok(Vec::new()),
            }
        };
        let (queries, vectors) = try_join(self.embed_searches(&ops.searches), embed_puts).await?;
        let puts = PutRows::new(&ops.puts, vectors, &self.ttl)?;

        let mut set = |at: usize, result: OpResult| {
            if let Some(place) = results.get_mut(at) {
                *place = result;
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
            self.database.run(|connection| async move { puts.store(self, &connection).await }).await?;
        }
        Ok(results)
    }

    async fn sweep(&self) -> Result<u64> {
        let mut swept = 0;
        loop {
            let run = |connection: Connection| async move {
                let rows = connection.query(&self.sql.sweep, &[(&SWEPT_AT_ONCE, Type::INT8)]).await?;
                rows.first().map_or(Ok(0), |row| column::<i64>(row, 0))
            };
            let removed = self.database.run(run).await?;
            swept += u64::try_from(removed).unwrap_or_default();
            if removed < SWEPT_AT_ONCE {
                return Ok(swept);
            }
        }
    }
}

impl PostgresStore {
    /// Starts to configure a store in the database that a connection string names, as
    /// [`PostgresConfig::from_conn_string`] reads it: `postgres://user:password@host:port/database`, or
    /// `host=… dbname=…`. What it leaves out comes from libpq's environment variables (`PGHOST`, `PGSSLMODE`, …).
    pub fn builder(conn_string: impl Into<String>) -> PostgresStoreBuilder {
        PostgresStoreBuilder::new(Source::ConnString(conn_string.into()))
    }

    /// Starts to configure a store in the database of a configuration.
    pub fn from_config(config: PostgresConfig) -> PostgresStoreBuilder {
        PostgresStoreBuilder::new(Source::Config(Box::new(config)))
    }

    /// Starts to configure a store on an application's own pool.
    pub fn from_pool(pool: Pool) -> PostgresStoreBuilder {
        PostgresStoreBuilder::new(Source::Pool(pool))
    }

    /// Removes expired items again and again, each time after this pause, until what it returns is dropped. A sweep that
    /// fails is logged, and the next one tries again.
    ///
    /// # Errors
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) outside of a tokio runtime.
    pub fn start_ttl_sweeper(&self, every: Duration) -> Result<TtlSweeper> {
        TtlSweeper::start(self.clone(), every)
    }

    /// How the server would run the store's statements, whatever their parameters are, on a connection of the pool: what
    /// each is for, the SQL and the plan as JSON. Those of searches and listings are the statements of these operations.
    /// For tests.
    #[doc(hidden)]
    pub async fn plans(&self, ops: Vec<Op>) -> Result<Vec<(&'static str, String, String)>> {
        let shared = &*self.shared;
        let ops = Ops::new(ops, BACKEND, shared.config())?;
        let queries = shared.embed_searches(&ops.searches).await?;
        if let Some(index) = shared.index.as_deref() {
            shared.learn_pgvector(index).await?;
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
                    // Both ways to search are in the statement, and how far it reaches is a parameter.
                    let reach = read::first_reach(shared, op);
                    let sql = shared.sql.search_vectors(&mut params, 0, op, vector, index, reach)?;
                    ("search by a query", sql, shared.settings(Some(reach.nearest)))
                }
                _ => ("search", shared.sql.search(&mut params, 0, op)?, None),
            });
        }
        for (_, op) in &ops.lists {
            let sql = shared.sql.list_namespaces(&mut Parameters::default(), 0, op);
            statements.push(("list_namespaces", sql, None));
        }
        let columns = PutColumns { keys: vec![""], deleted_keys: vec![""], ..PutColumns::default() };
        let puts = shared.sql.put(columns, shared.index.as_deref());
        let calls = ["puts and deletions", "vectors of puts"].into_iter();
        statements.extend(calls.zip(puts).map(|(call, (sql, _))| (call, sql, None)));
        let connection = shared.database.connection().await?;
        let mut plans = Vec::new();
        for (call, sql, settings) in statements {
            let settings = settings.unwrap_or_default();
            let explain = format!("BEGIN; {settings}; EXPLAIN (GENERIC_PLAN, FORMAT JSON) {sql}; COMMIT");
            plans.push((call, sql, connection.simple(&explain).await?));
        }
        Ok(plans)
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

    #[instrument(level = "debug", skip_all, fields(db.system = BACKEND))]
    async fn setup(&self) -> Result<()> {
        self.shared.tables.set_up(&self.shared.database).await.at(BACKEND, "setup")
    }

    #[instrument(level = "debug", skip_all, fields(db.system = BACKEND, operations = ops.len()))]
    async fn batch(&self, ops: Vec<Op>) -> Result<Vec<OpResult>> {
        let operation = name(&ops);
        self.shared.batch(ops).await.at(BACKEND, operation)
    }

    #[instrument(level = "debug", skip_all, fields(db.system = BACKEND))]
    async fn sweep_ttl(&self) -> Result<u64> {
        self.shared.sweep().await.at(BACKEND, "sweep_ttl")
    }
}

/// What an error calls the batch: by its operation, if it has one.
fn name(ops: &[Op]) -> &'static str {
    match ops {
        [Op::Get(_)] => "get",
        [Op::Search(_)] => "search",
        [Op::Put(put)] if put.value.is_none() => "delete",
        [Op::Put(_)] => "put",
        [Op::ListNamespaces(_)] => "list_namespaces",
        _ => "batch",
    }
}
