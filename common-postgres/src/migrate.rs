//! Brings tables up to date, one process at a time.

use std::time::{Duration, Instant};

use checkpoint_core::backend::jitter;
use checkpoint_core::{Error, ErrorKind, Result};
use tokio_postgres::types::Type;

use crate::database::{Connection, Database, Transaction};

/// How long a process waits for another one that migrates.
const LONGEST_WAIT: Duration = Duration::from_secs(120);

/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// One migration: its version is its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    sql: String,
    index: Option<Index>,
    left_out: bool,
}

/// The quoted names of an index and of its table, with the schema where there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Index {
    table: String,
    name: String,
}

impl Step {
    /// Runs SQL.
    pub fn new(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), index: None, left_out: false }
    }

    /// Builds an index of a table concurrently. Where an earlier attempt was cut off, the server keeps an index of this
    /// name that is not valid; it is dropped first. The names are quoted, with the schema where there is one.
    pub fn index(table: impl Into<String>, name: impl Into<String>, sql: impl Into<String>) -> Self {
        let index = Index { table: table.into(), name: name.into() };
        Self { sql: sql.into(), index: Some(index), left_out: false }
    }

    /// Neither runs nor records it here, if so: other configurations do.
    #[must_use]
    pub fn leave_out(mut self, left_out: bool) -> Self {
        self.left_out = left_out;
        self
    }

    async fn run(&self, connection: &Connection) -> Result<()> {
        if let Some(index) = &self.index {
            drop_invalid(connection, &index.name).await?;
        }
        connection.batch(&self.sql).await
    }
}

/// The migrations of some tables, in the manner of LangGraph's Python: a table of the versions that were applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrations {
    /// The schema to be made when it is missing, quoted.
    pub schema: Option<String>,
    /// The table of versions, quoted, with its schema where there is one.
    pub table: String,
    /// Which processes wait for each other: those that use the same number.
    pub lock: i64,
    /// The migrations in their order. The first makes the table of versions and may run any number of times.
    pub steps: Vec<Step>,
    /// Indexes beside the migrations, which no version stands for. They are built where they are missing.
    pub indexes: Vec<Step>,
}

impl Migrations {
    /// Runs what was not run yet. The steps run outside of transactions, since an index that is built concurrently has
    /// to; each must bear being run again after it was cut off.
    ///
    /// # Errors
    /// [`Schema`](ErrorKind::Schema) when the tables are newer than this program, [`Timeout`](ErrorKind::Timeout) when
    /// another process migrates for more than two minutes, and what the server says.
    ///
    /// # Cancellation
    /// The steps that were run stay, the rest is run by the next call.
    pub async fn run(&self, database: &Database) -> Result<()> {
        let connection = database.connection().await?;
        if self.is_up_to_date(&connection).await? {
            return Ok(());
        }
        drop(connection);
        if database.max_connections() < 2 {
            return Err(Error::invalid_config(
                "to set up tables takes two connections; let the pool open more than one",
            ));
        }
        let begun = Instant::now();
        loop {
            // Not kept while waiting: the one that holds the lock may need a connection of the same pool.
            let mut holder = database.connection().await?;
            // A lock of the session would get lost behind a pooler in transaction mode, and an open transaction that
            // waited for the lock could be waited for by the one that builds an index: so each look is a transaction of
            // its own. The one that got the lock stays open without a snapshot, and nobody waits for it.
            let transaction = holder.begin().await?;
            if self.is_granted(&transaction).await? {
                transaction.batch("SET LOCAL idle_in_transaction_session_timeout = 0").await?;
                let connection = database.connection().await?;
                if !self.is_at_work(&connection).await? {
                    self.apply(&connection).await?;
                    return transaction.commit().await;
                }
            }
            drop(transaction);
            drop(holder);
            if begun.elapsed() > LONGEST_WAIT {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    "another process has been setting up these tables for more than two minutes",
                )
                .retryable(true));
            }
            tokio::time::sleep(LOOK_EVERY.mul_f64(0.5 + jitter())).await;
        }
    }

    async fn is_up_to_date(&self, connection: &Connection) -> Result<bool> {
        Ok(self.version(connection).await? >= self.wanted()
            && self.missing_indexes(connection).await?.is_empty())
    }

    /// The newest version that is known.
    fn newest(&self) -> Option<i32> {
        i32::try_from(self.steps.len()).ok().and_then(|steps| steps.checked_sub(1))
    }

    /// The newest version that is not left out.
    fn wanted(&self) -> Option<i32> {
        let last = self.steps.iter().rposition(|step| !step.left_out)?;
        i32::try_from(last).ok()
    }

    async fn missing_indexes(&self, connection: &Connection) -> Result<Vec<&Step>> {
        const IS_THERE: &str = "SELECT 1 FROM pg_index WHERE indexrelid = to_regclass($1) AND indisvalid";
        let mut missing = Vec::new();
        for step in &self.indexes {
            let Some(index) = &step.index else { continue };
            if connection.query(IS_THERE, &[(&index.name, Type::TEXT)]).await?.is_empty() {
                missing.push(step);
            }
        }
        Ok(missing)
    }

    /// Whether somebody who takes no lock of ours, as Python's setup, is building an index. Whoever does so waits for
    /// all transactions that had a snapshot at a certain moment, even if they have none any more. The one with our lock
    /// had one when it took it, and would wait for the table: neither would ever go on, and the server could not see
    /// why. Who begins later does not wait for it.
    async fn is_at_work(&self, connection: &Connection) -> Result<bool> {
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
        let version: Option<i32> = rows.first().and_then(|row| row.try_get(0).ok()).flatten();
        if version > self.newest() {
            return Err(Error::new(
                ErrorKind::Schema,
                "the tables are newer than this program; run a newer version of it",
            )
            .with("version", version.unwrap_or_default())
            .with("known", self.newest().unwrap_or_default()));
        }
        Ok(version)
    }

    async fn apply(&self, connection: &Connection) -> Result<()> {
        const HAS_SCHEMA: &str = "SELECT 1 WHERE to_regnamespace($1) IS NOT NULL";
        // Another process may have been faster.
        let version = self.version(connection).await?;
        // To make a schema that is there takes a right that making its tables does not.
        if version.is_none()
            && let Some(schema) = &self.schema
            && connection.query(HAS_SCHEMA, &[(schema, Type::TEXT)]).await?.is_empty()
        {
            connection.batch(&format!("CREATE SCHEMA IF NOT EXISTS {schema}")).await?;
        }
        for (at, step) in (0_i32..).zip(&self.steps) {
            if step.left_out || (at > 0 && version.is_some_and(|version| at <= version)) {
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

    async fn is_granted(&self, transaction: &Transaction<'_>) -> Result<bool> {
        let rows =
            transaction.query("SELECT pg_try_advisory_xact_lock($1)", &[(&self.lock, Type::INT8)]).await?;
        Ok(rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false)))
    }
}

async fn drop_invalid(connection: &Connection, index: &str) -> Result<()> {
    const IS_INVALID: &str = "SELECT 1 FROM pg_index WHERE indexrelid = to_regclass($1) AND NOT indisvalid";
    if connection.query(IS_INVALID, &[(&index, Type::TEXT)]).await?.is_empty() {
        return Ok(());
    }
    connection.batch(&format!("DROP INDEX CONCURRENTLY IF EXISTS {index}")).await
}
