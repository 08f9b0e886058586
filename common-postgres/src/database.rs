//! The connection pool, statements on its connections, and retries.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use checkpoint_core::backend::{Backoff, telemetry};
use checkpoint_core::{Error, Result};
use deadpool_postgres::{Pool, PoolError, TimeoutType};
use futures_util::future::join3;
use futures_util::stream::{FuturesOrdered, TryStreamExt};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{IsolationLevel, Row, SimpleQueryMessage, Statement};

use crate::error::{convert, convert_pool, is_stale_statement};
use crate::{PostgresConfig, SYSTEM, runtime};

/// A parameter and the type that is declared for it.
pub type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// A pool of connections to one database. Clones share it.
#[derive(Clone)]
pub struct Database {
    pool: Pool,
    /// Host and port of each server, for errors; unknown for an application's own pool.
    servers: Arc<[String]>,
    /// Whether the pool was made here; an application's own is not closed.
    owns_pool: bool,
    named_statements: bool,
    max_retries: u32,
}

impl Database {
    /// Creates a pool with a configuration. Opens no connection.
    ///
    /// # Errors
    /// Those of [`PostgresConfig::pool`].
    pub fn from_config(config: &PostgresConfig, max_retries: u32) -> Result<Self> {
        let (servers, named_statements) = (config.shown_servers().into(), !config.uses_pgbouncer());
        Ok(Self { pool: config.pool()?, servers, owns_pool: true, named_statements, max_retries })
    }

    /// Uses an application's own pool. Without named statements every call sends its SQL and leaves no state on the
    /// connection, as a pooler in transaction mode requires.
    pub fn from_pool(pool: Pool, named_statements: bool, max_retries: u32) -> Self {
        Self { pool, servers: Arc::default(), owns_pool: false, named_statements, max_retries }
    }

    /// How many connections the pool may open.
    pub(crate) fn max_connections(&self) -> usize {
        self.pool.status().max_size
    }

    /// Takes a connection from the pool; dropping it returns it.
    ///
    /// # Errors
    /// [`Timeout`](checkpoint_core::ErrorKind::Timeout) when none became free in time,
    /// [`InvalidConfig`](checkpoint_core::ErrorKind::InvalidConfig) outside of a tokio runtime or in one without I/O and
    /// timers, and any error from connecting.
    ///
    /// # Cancellation
    /// May be dropped at any time.
    pub async fn connection(&self) -> Result<Connection> {
        let begun = Instant::now();
        let client = runtime::guarded(self.pool.get()).await?.map_err(|error| self.pool_error(error))?;
        telemetry::pool_wait(SYSTEM, begun.elapsed());
        Ok(Connection { client, named_statements: self.named_statements })
    }

    /// Converts an error of the pool, and adds the servers to one from connecting.
    fn pool_error(&self, error: PoolError) -> Error {
        use TimeoutType::{Recycle, Wait};
        let was_connecting = !matches!(
            error,
            PoolError::Timeout(Wait | Recycle) | PoolError::Closed | PoolError::NoRuntimeSpecified
        );
        let error = convert_pool(error);
        let servers = self.servers.iter().filter(|_| was_connecting);
        servers.fold(error, |error, server| error.with("server", server))
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
        self.run_with(self.max_retries, attempt).await
    }

    /// Makes one round trip to the server.
    ///
    /// # Errors
    /// Any error from connecting, and [`Unavailable`](checkpoint_core::ErrorKind::Unavailable) for connections that are
    /// lost. It retries once only, since the caller waits for the answer to decide what to do.
    ///
    /// # Cancellation
    /// May be dropped at any time.
    pub async fn ping(&self) -> Result<()> {
        let ping = |connection: Connection| async move { connection.batch("SELECT 1").await };
        self.run_with(self.max_retries.min(1), ping).await
    }

    async fn run_with<T, F>(&self, max_retries: u32, attempt: impl Fn(Connection) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut backoff = Backoff::new(max_retries);
        loop {
            let result = match self.connection().await {
                Ok(connection) => attempt(connection).await,
                Err(error) => Err(error),
            };
            let Err(error) = result else { return result };
            let Some(pause) = backoff.after(&error) else { return Err(error) };
            telemetry::retry(SYSTEM, error.kind());
            if !pause.is_zero() {
                runtime::sleep(pause).await?;
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
            .field("servers", &self.servers)
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

/// A transaction that is rolled back unless it is committed.
pub struct Transaction<'a> {
    transaction: deadpool_postgres::Transaction<'a>,
    named_statements: bool,
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
        let named_statements = self.named_statements;
        let transaction = self.client.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
        transaction
            .start()
            .await
            .map(|transaction| Transaction { transaction, named_statements })
            .map_err(convert)
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
    /// Runs a named statement and returns its rows: one round trip, and one more the first time a connection sees the
    /// statement.
    ///
    /// # Errors
    /// Any error from the server. A stale statement aborts the transaction with an error that can be retried.
    ///
    /// # Cancellation
    /// The transaction is rolled back when it is dropped.
    pub async fn query_named(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        if !self.named_statements {
            return self.query(sql, params).await;
        }
        let run = async {
            let statement = self.transaction.prepare_typed_cached(sql, &types(params)).await?;
            self.transaction.query(&statement, &values(params)).await
        };
        // A caller has many of these.
        match Box::pin(run).await {
            Err(error) if is_stale_statement(&error) => {
                self.transaction.statement_cache.clear();
                Err(convert(error).retryable(true))
            }
            rows => counted(rows),
        }
    }

    /// Runs an unnamed statement, which is never stale, and returns its rows: one round trip.
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

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use checkpoint_core::ErrorKind;

    use super::*;

    #[tokio::test]
    async fn servers_that_cannot_be_reached_are_named() {
        let url = "postgres://u:PASSWORD@127.0.0.1:1,localhost:2/d";
        let database = Database::from_config(&PostgresConfig::from_conn_string(url).unwrap(), 0).unwrap();
        let error = database.connection().await.unwrap_err();
        let shown = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{shown}");
        assert!(shown.ends_with(r#"(server="127.0.0.1:1", server="localhost:2")"#), "{shown}");
        let source = error.source().map(ToString::to_string).unwrap_or_default();
        assert!(!format!("{error:?} {source}").contains("PASSWORD"), "{error:?} {source}");
        database.close();
        let closed = database.connection().await.unwrap_err();
        assert!(!closed.to_string().contains("server="), "{closed}");
    }
}
