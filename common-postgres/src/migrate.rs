//! Runs migrations, in one process at a time.

use std::time::{Duration, Instant};

use checkpoint_core::backend::jitter;
use checkpoint_core::{Error, ErrorKind, Result};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::database::{Connection, Database, Transaction};
use crate::runtime;

/// How long a process waits while another one migrates.
const LOCK_TIMEOUT: Duration = Duration::from_secs(120);

/// How often it tries to take the lock.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// One migration; its version is its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    sql: String,
    index: Option<Index>,
    skipped: bool,
}

/// The quoted names of an index and of its table, qualified by the schema if one is set.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Index {
    table: String,
    name: String,
}

impl Step {
    /// Runs SQL.
    pub fn new(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), index: None, skipped: false }
    }

    /// Builds an index of a table concurrently. An interrupted attempt leaves an invalid index of this name, which is
    /// dropped first. Both names are quoted, and qualified by the schema if one is set.
    pub fn index(table: impl Into<String>, name: impl Into<String>, sql: impl Into<String>) -> Self {
        let index = Index { table: table.into(), name: name.into() };
        Self { sql: sql.into(), index: Some(index), skipped: false }
    }

    /// Skips this step if `true`: it is neither run nor recorded. Other configurations run it.
    #[must_use]
    pub fn skip_if(mut self, skipped: bool) -> Self {
        self.skipped = skipped;
        self
    }

    async fn run(&self, connection: &Connection) -> Result<()> {
        if let Some(index) = &self.index {
            drop_invalid(connection, &index.name).await?;
        }
        connection.batch(&self.sql).await
    }
}

/// The migrations of a set of tables. As in Python LangGraph, a table records the versions that were applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrations {
    /// The quoted name of the schema to create if it is missing.
    pub schema: Option<String>,
    /// The quoted name of the table of versions, qualified by its schema if one is set.
    pub table: String,
    /// The key of the advisory lock; processes with the same key wait for each other.
    pub lock_key: i64,
    /// The migrations in their order. The first creates the table of versions and is idempotent.
    pub steps: Vec<Step>,
    /// Indexes without a migration version. They are built if they are missing.
    pub indexes: Vec<Step>,
    /// The tables that the migrations create: quoted names, qualified by the schema if one is set, each with the columns
    /// that statements use.
    pub tables: Vec<(String, &'static [&'static str])>,
}

impl Migrations {
    /// Runs the migrations that were not applied yet. They run outside of transactions, as `CREATE INDEX CONCURRENTLY`
    /// requires, so each must be safe to run again after an interruption.
    ///
    /// # Errors
    /// [`Schema`](ErrorKind::Schema) when the tables are newer than this program, [`Timeout`](ErrorKind::Timeout) when
    /// another process migrates for more than two minutes, and any error from the server.
    ///
    /// # Cancellation
    /// Finished migrations stay applied; the next call runs the rest.
    pub async fn run(&self, database: &Database) -> Result<()> {
        let connection = database.connection().await?;
        if self.is_up_to_date(&connection).await? {
            return Ok(());
        }
        drop(connection);
        if database.max_connections() < 2 {
            return Err(Error::invalid_config(
                "setup needs two connections; let the pool open more than one",
            ));
        }
        let started = Instant::now();
        loop {
            // Returned to the pool while waiting: the lock's holder may need a connection of the same pool.
            let mut holder = database.connection().await?;
            // A session-level lock would get lost behind a pooler in transaction mode. A transaction that blocks on the
            // lock could deadlock with CREATE INDEX CONCURRENTLY. So each attempt is a transaction of its own that does
            // not wait. The one that got the lock stays open without a snapshot, so no index build waits for it.
            let transaction = holder.begin().await?;
            if self.try_lock(&transaction).await? {
                transaction.batch("SET LOCAL idle_in_transaction_session_timeout = 0").await?;
                let connection = database.connection().await?;
                if !self.is_index_being_built(&connection).await? {
                    self.apply(&connection).await?;
                    return transaction.commit().await;
                }
            }
            drop(transaction);
            drop(holder);
            if started.elapsed() > LOCK_TIMEOUT {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    "another process has been setting up these tables for more than two minutes",
                )
                .retryable(true));
            }
            runtime::sleep(POLL_INTERVAL.mul_f64(0.5 + jitter())).await?;
        }
    }

    /// Checks that all migrations were applied and that the tables have their columns. One round trip, and one for each of
    /// the [`indexes`](Self::indexes).
    ///
    /// # Errors
    /// [`Schema`](ErrorKind::Schema) if not, and any error from the server.
    ///
    /// # Cancellation
    /// Changes nothing.
    pub async fn check(&self, database: &Database) -> Result<()> {
        let sql = self.check_sql();
        let run = |connection: Connection| {
            let sql = &sql;
            async move {
                let version = self.known_version(&connection.query(sql, &[]).await?)?;
                if version < self.required_version() {
                    return Err(incomplete().with("version", version.unwrap_or(-1)));
                }
                match self.missing_indexes(&connection).await?.first().and_then(|step| step.index.as_ref()) {
                    Some(index) => Err(incomplete().with("index", &index.name)),
                    None => Ok(()),
                }
            }
        };
        database.run(run).await
    }

    /// Reads the version. The server resolves the names of all tables and columns, and reads no row of them.
    fn check_sql(&self) -> String {
        let exist = self.tables.iter().map(|(table, columns)| {
            format!("NOT EXISTS (SELECT {} FROM {table} WHERE false)", columns.join(", "))
        });
        let exist: Vec<_> = exist.collect();
        format!("SELECT max(v) FROM {} WHERE {}", self.table, exist.join(" AND "))
    }

    async fn is_up_to_date(&self, connection: &Connection) -> Result<bool> {
        Ok(self.version(connection).await? >= self.required_version()
            && self.missing_indexes(connection).await?.is_empty())
    }

    /// The newest version that this program knows.
    fn newest_version(&self) -> Option<i32> {
        i32::try_from(self.steps.len()).ok().and_then(|steps| steps.checked_sub(1))
    }

    /// The newest version that is not skipped.
    fn required_version(&self) -> Option<i32> {
        let last = self.steps.iter().rposition(|step| !step.skipped)?;
        i32::try_from(last).ok()
    }

    async fn missing_indexes(&self, connection: &Connection) -> Result<Vec<&Step>> {
        const IS_VALID: &str = "SELECT 1 FROM pg_index WHERE indexrelid = to_regclass($1) AND indisvalid";
        let mut missing = Vec::new();
        for step in &self.indexes {
            let Some(index) = &step.index else { continue };
            if connection.query(IS_VALID, &[(&index.name, Type::TEXT)]).await?.is_empty() {
                missing.push(step);
            }
        }
        Ok(missing)
    }

    /// Whether a process without our lock, such as Python's setup, is building one of the indexes. A concurrent build
    /// waits for every transaction that had a snapshot when it began, even one that has released it. The transaction
    /// with our lock had a snapshot when it took the lock, and we would wait for the build's table: a deadlock that the
    /// server cannot detect. Builds that begin later do not wait for our transaction.
    async fn is_index_being_built(&self, connection: &Connection) -> Result<bool> {
        const IS_LOCKED: &str = "SELECT 1 FROM pg_locks \
             WHERE locktype = 'relation' AND mode = 'ShareUpdateExclusiveLock' AND granted AND pid <> pg_backend_pid() \
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
             AND relation IN (SELECT to_regclass(name) FROM unnest($1::text[]) name)";
        let indexes = self.steps.iter().chain(&self.indexes).filter_map(|step| step.index.as_ref());
        let tables: Vec<&str> = indexes.map(|index| index.table.as_str()).collect();
        Ok(!connection.query(IS_LOCKED, &[(&tables, Type::TEXT_ARRAY)]).await?.is_empty())
    }

    /// The newest version that was applied, or `None` before the first.
    async fn version(&self, connection: &Connection) -> Result<Option<i32>> {
        let rows = match connection.query(&format!("SELECT max(v) FROM {}", self.table), &[]).await {
            Err(error) if error.kind() == ErrorKind::Schema => return Ok(None),
            rows => rows?,
        };
        self.known_version(&rows)
    }

    /// The version in a result; fails if it is newer than this program.
    fn known_version(&self, rows: &[Row]) -> Result<Option<i32>> {
        let version: Option<i32> = rows.first().and_then(|row| row.try_get(0).ok()).flatten();
        if version > self.newest_version() {
            return Err(Error::new(
                ErrorKind::Schema,
                "the tables are newer than this program; run a newer version of it",
            )
            .with("version", version.unwrap_or_default())
            .with("known", self.newest_version().unwrap_or_default()));
        }
        Ok(version)
    }

    async fn apply(&self, connection: &Connection) -> Result<()> {
        const HAS_SCHEMA: &str = "SELECT 1 WHERE to_regnamespace($1) IS NOT NULL";
        // Read again under the lock: another process may have migrated meanwhile.
        let version = self.version(connection).await?;
        // CREATE SCHEMA needs a privilege even if the schema exists; creating tables in it does not.
        if version.is_none()
            && let Some(schema) = &self.schema
            && connection.query(HAS_SCHEMA, &[(schema, Type::TEXT)]).await?.is_empty()
        {
            connection.batch(&format!("CREATE SCHEMA IF NOT EXISTS {schema}")).await?;
        }
        for (at, step) in (0_i32..).zip(&self.steps) {
            if step.skipped || (at > 0 && version.is_some_and(|version| at <= version)) {
                continue;
            }
            step.run(connection).await?;
            let record = format!("INSERT INTO {} (v) VALUES ($1) ON CONFLICT DO NOTHING", self.table);
            connection.query(&record, &[(&at, Type::INT4)]).await?;
        }
        for step in self.missing_indexes(connection).await? {
            step.run(connection).await?;
        }
        Ok(())
    }

    async fn try_lock(&self, transaction: &Transaction<'_>) -> Result<bool> {
        let rows = transaction
            .query("SELECT pg_try_advisory_xact_lock($1)", &[(&self.lock_key, Type::INT8)])
            .await?;
        Ok(rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false)))
    }
}

fn incomplete() -> Error {
    Error::new(ErrorKind::Schema, "the tables are older than this program needs them; run setup()")
}

async fn drop_invalid(connection: &Connection, index: &str) -> Result<()> {
    const IS_INVALID: &str = "SELECT 1 FROM pg_index WHERE indexrelid = to_regclass($1) AND NOT indisvalid";
    if connection.query(IS_INVALID, &[(&index, Type::TEXT)]).await?.is_empty() {
        return Ok(());
    }
    connection.batch(&format!("DROP INDEX CONCURRENTLY IF EXISTS {index}")).await
}
