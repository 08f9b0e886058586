//! The connection pool, statements on its connections, and retries.

use std::fmt;
use std::time::Instant;

use checkpoint_core::Result;
use checkpoint_core::backend::{Backoff, telemetry};
use deadpool_postgres::Pool;
use futures_util::future::join3;
use futures_util::stream::{FuturesOrdered, TryStreamExt};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{IsolationLevel, Row, SimpleQueryMessage, Statement};

use crate::SYSTEM;
use crate::error::{convert, convert_pool, is_stale_statement};

/// A parameter and the type that is declared for it.
pub type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// A pool of connections to one database. Clones share it.
#[derive(Clone)]
pub struct Database {
    pool: Pool,
    /// Whether the pool was made here; an application's own is not closed.
    owns_pool: bool,
    named_statements: bool,
    max_retries: u32,
}

impl Database {
    /// Uses a pool. Without named statements every call sends its SQL and leaves no state on the connection, as a
    /// pooler in transaction mode requires.
    pub fn new(pool: Pool, owns_pool: bool, named_statements: bool, max_retries: u32) -> Self {
        Self { pool, owns_pool, named_statements, max_retries }
    }

    /// How many connections the pool may open.
    pub(crate) fn max_connections(&self) -> usize {
        self.pool.status().max_size
    }

    /// Takes a connection from the pool; dropping it returns it.
    ///
    /// # Errors
    /// [`Timeout`](checkpoint_core::ErrorKind::Timeout) when none became free in time, and any error from connecting.
    ///
    /// # Cancellation
    /// May be dropped at any time.
    pub async fn connection(&self) -> Result<Connection> {
        let begun = Instant::now();
        let client = self.pool.get().await.map_err(convert_pool)?;
        telemetry::pool_wait(SYSTEM, begun.elapsed());
        Ok(Connection { client, named_statements: self.named_statements })
    }

    /// Runs a call on a connection, and retries it on another one while it fails with a transient error: the server
    /// restarts, the connection was lost, or another transaction conflicted. The call must be safe to run twice.
    ///
    /// # Errors
    /// The last attempt's error.
    ///
    /// # Cancellation
    /// That of the call itself.
    pub async fn run<T, F>(&self, attempt: impl Fn(Connection) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut backoff = Backoff::new(self.max_retries);
        loop {
            let result = match self.connection().await {
                Ok(connection) => attempt(connection).await,
                Err(error) => Err(error),
            };
            let Err(error) = result else { return result };
            let Some(pause) = backoff.after(&error) else { return Err(error) };
            tracing::warn!(%error, "retrying the call");
            telemetry::retry(SYSTEM, error.kind());
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
    }

    /// Runs a statement and returns its rows, with [`run`](Self::run)'s retries.
    ///
    /// # Errors
    /// As [`Connection::query`].
    ///
    /// # Cancellation
    /// The statement may run all the same.
    pub async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        self.run(|connection| async move { connection.query(sql, params).await }).await
    }

    /// Closes the pool, unless it is the application's own.
    pub fn close(&self) {
        if self.owns_pool {
            self.pool.close();
        }
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The pool's own Debug shows the driver's configuration.
        f.debug_struct("Database")
            .field("pool", &self.pool.status())
            .field("owns_pool", &self.owns_pool)
            .field("named_statements", &self.named_statements)
            .field("max_retries", &self.max_retries)
            .finish()
    }
}

/// A connection of the pool.
#[derive(Debug)]
pub struct Connection {
    client: deadpool_postgres::Client,
    named_statements: bool,
}

/// A transaction that is rolled back unless it is committed. Its statements are unnamed: a stale named statement would
/// abort it.
pub struct Transaction<'a> {
    transaction: deadpool_postgres::Transaction<'a>,
}

impl fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").finish_non_exhaustive()
    }
}

fn types(params: &[Param<'_>]) -> Vec<Type> {
    params.iter().map(|(_, of_type)| of_type.clone()).collect()
}

fn values<'a>(params: &[Param<'a>]) -> Vec<&'a (dyn ToSql + Sync)> {
    params.iter().map(|(value, _)| *value).collect()
}

/// Counts the bytes of the rows that the server sent.
fn counted(rows: Result<Vec<Row>, tokio_postgres::Error>) -> Result<Vec<Row>> {
    let rows = rows.map_err(convert)?;
    telemetry::bytes_read(SYSTEM, rows.iter().map(Row::raw_size_bytes).sum());
    Ok(rows)
}

impl Connection {
    /// Runs a statement and returns its rows: one round trip, and one more the first time a connection sees a named
    /// statement.
    ///
    /// # Errors
    /// Any error from the server.
    ///
    /// # Cancellation
    /// The statement may still run.
    pub async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let run = async || {
            if self.named_statements {
                let statement = self.client.prepare_typed_cached(sql, &types(params)).await?;
                self.client.query(&statement, &values(params)).await
            } else {
                self.client.query_typed(sql, params).await
            }
        };
        let rows = match run().await {
            Err(error) if self.clear_stale(&error) => run().await,
            rows => rows,
        };
        counted(rows)
    }

    /// Runs SQL text without parameters.
    ///
    /// # Errors
    /// Any error from the server.
    ///
    /// # Cancellation
    /// The text may still run.
    pub async fn batch(&self, sql: &str) -> Result<()> {
        self.client.batch_execute(sql).await.map_err(convert)
    }

    /// Clears the cache of named statements if the error says that one is stale, and tells so. Nothing ran then, so the
    /// statement can be retried immediately.
    fn clear_stale(&self, error: &tokio_postgres::Error) -> bool {
        let is_stale = is_stale_statement(error);
        if is_stale {
            self.client.statement_cache.clear();
        }
        is_stale
    }

    /// Runs SQL text without parameters and returns the first column of its rows, joined by newlines.
    ///
    /// # Errors
    /// Any error from the server.
    ///
    /// # Cancellation
    /// The text may still run.
    pub async fn simple_query(&self, sql: &str) -> Result<String> {
        let messages = self.client.simple_query(sql).await.map_err(convert)?;
        let lines = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }

    /// Begins a transaction at isolation level READ COMMITTED, whatever the server's default.
    ///
    /// # Errors
    /// Any error from the server.
    ///
    /// # Cancellation
    /// No transaction was begun, or it is rolled back.
    pub async fn begin(&mut self) -> Result<Transaction<'_>> {
        let transaction = self.client.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
        transaction.start().await.map(|transaction| Transaction { transaction }).map_err(convert)
    }

    /// Runs a statement without preparing it, for statements that are rarely repeated. One round trip.
    ///
    /// # Errors
    /// Any error from the server.
    ///
    /// # Cancellation
    /// The statement may still run.
    pub async fn query_unprepared(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        counted(self.client.query_typed(sql, params).await)
    }

    /// Runs SQL text without parameters and then a statement, in a transaction of their own and in one round trip:
    /// everything is pipelined. Returns how many rows the statement changed.
    ///
    /// # Errors
    /// Any error from the server; nothing was changed then.
    ///
    /// # Cancellation
    /// A dropped call took effect completely or not at all.
    pub async fn execute_in_transaction(&self, first: &str, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        let run = async || {
            if self.named_statements {
                let statement: Statement = self.client.prepare_typed_cached(sql, &types(params)).await?;
                self.in_transaction(first, self.client.execute(&statement, &values(params))).await
            } else {
                self.in_transaction(first, self.client.execute_typed(sql, params)).await
            }
        };
        match run().await {
            Err(error) if self.clear_stale(&error) => run().await.map_err(convert),
            changed => changed.map_err(convert),
        }
    }

    /// Runs SQL text without parameters and then statements, in a transaction of their own and in one round trip, as
    /// [`execute_in_transaction`](Self::execute_in_transaction) does with one. Returns how many rows each changed.
    ///
    /// # Errors
    /// The first error from the server; nothing was changed then.
    ///
    /// # Cancellation
    /// A dropped call took effect completely or not at all.
    pub async fn execute_all_in_transaction(
        &self,
        first: &str,
        statements: &[(&str, Vec<Param<'_>>)],
    ) -> Result<Vec<u64>> {
        let run = async || {
            let mut prepared = Vec::with_capacity(statements.len());
            if self.named_statements {
                for (sql, params) in statements {
                    prepared.push(self.client.prepare_typed_cached(sql, &types(params)).await?);
                }
            }
            let values: Vec<_> = statements.iter().map(|(_, params)| values(params)).collect();
            // Ordered, so that they are polled, and thereby sent, one after the other.
            let sent: FuturesOrdered<_> = statements
                .iter()
                .enumerate()
                .map(|(at, (sql, params))| {
                    let (statement, values) =
                        (prepared.get(at), values.get(at).map_or(&[][..], Vec::as_slice));
                    async move {
                        match statement {
                            Some(statement) => self.client.execute(statement, values).await,
                            None => self.client.execute_typed(sql, params).await,
                        }
                    }
                })
                .collect();
            self.in_transaction(first, sent.try_collect::<Vec<u64>>()).await
        };
        match run().await {
            Err(error) if self.clear_stale(&error) => run().await.map_err(convert),
            done => done.map_err(convert),
        }
    }

    /// Runs SQL text without parameters and then a statement, as
    /// [`execute_in_transaction`](Self::execute_in_transaction) does, and returns the statement's rows. The text takes
    /// locks, or has settings that apply to this statement only.
    ///
    /// # Errors
    /// Any error from the server.
    ///
    /// # Cancellation
    /// A dropped call took effect completely or not at all.
    pub async fn query_in_transaction(
        &self,
        first: &str,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>> {
        let run = async || {
            if self.named_statements {
                let statement: Statement = self.client.prepare_typed_cached(sql, &types(params)).await?;
                self.in_transaction(first, self.client.query(&statement, &values(params))).await
            } else {
                self.in_transaction(first, self.client.query_typed(sql, params)).await
            }
        };
        let rows = match run().await {
            Err(error) if self.clear_stale(&error) => run().await,
            rows => rows,
        };
        counted(rows)
    }

    /// Runs SQL text without parameters and then a statement, as [`query_in_transaction`](Self::query_in_transaction)
    /// does, without preparing the statement.
    ///
    /// # Errors
    /// Any error from the server.
    ///
    /// # Cancellation
    /// A dropped call took effect completely or not at all.
    pub async fn query_unprepared_in_transaction(
        &self,
        first: &str,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>> {
        counted(self.in_transaction(first, self.client.query_typed(sql, params)).await)
    }

    /// Pipelines BEGIN, a statement and COMMIT. The COMMIT of a failed transaction rolls it back.
    async fn in_transaction<T>(
        &self,
        first: &str,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, tokio_postgres::Error> {
        let opening = format!("BEGIN ISOLATION LEVEL READ COMMITTED; {first}");
        // The driver's futures send when they are first polled, and `join` polls them in order without yielding.
        let (begun, result, committed) =
            join3(self.client.batch_execute(&opening), statement, self.client.batch_execute("COMMIT")).await;
        begun?;
        let result = result?;
        committed.map(|()| result)
    }
}

impl Transaction<'_> {
    /// Runs a statement and returns its rows: one round trip.
    ///
    /// # Errors
    /// Any error from the server.
    ///
    /// # Cancellation
    /// The transaction is rolled back when it is dropped.
    pub async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        counted(self.transaction.query_typed(sql, params).await)
    }

    /// Runs SQL text without parameters: one round trip.
    ///
    /// # Errors
    /// Any error from the server.
    ///
    /// # Cancellation
    /// The transaction is rolled back when it is dropped.
    pub async fn batch(&self, sql: &str) -> Result<()> {
        self.transaction.batch_execute(sql).await.map_err(convert)
    }

    /// Commits.
    ///
    /// # Errors
    /// Any error from the server.
    ///
    /// # Cancellation
    /// The transaction is committed or rolled back.
    pub async fn commit(self) -> Result<()> {
        self.transaction.commit().await.map_err(convert)
    }
}
