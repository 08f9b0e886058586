//! Connections of a pool, statements on them, and what is repeated when one fails.

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

/// A parameter and the type that the server is told it has.
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
    /// Uses a pool. Without named statements every call carries its SQL with it and leaves nothing on the connection,
    /// as a pooler in transaction mode needs it.
    pub fn new(pool: Pool, owns_pool: bool, named_statements: bool, max_retries: u32) -> Self {
        Self { pool, owns_pool, named_statements, max_retries }
    }

    /// How many connections the pool may open.
    pub fn max_connections(&self) -> usize {
        self.pool.status().max_size
    }

    /// Takes a connection out of the pool; it goes back when it is dropped.
    ///
    /// # Errors
    /// [`Timeout`](checkpoint_core::ErrorKind::Timeout) when none became free in time, and what connecting says.
    ///
    /// # Cancellation
    /// May be dropped at any time.
    pub async fn connection(&self) -> Result<Connection> {
        let begun = Instant::now();
        let client = self.pool.get().await.map_err(convert_pool)?;
        telemetry::pool_wait(SYSTEM, begun.elapsed());
        Ok(Connection { client, named_statements: self.named_statements })
    }

    /// Runs a call on a connection, and repeats it on another one while it fails with an error that may pass: the
    /// server restarts, the connection was cut, another transaction was in the way. Whatever is passed here must be
    /// safe to run twice.
    ///
    /// # Errors
    /// The last attempt's.
    ///
    /// # Cancellation
    /// As the call itself.
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

/// A transaction that is rolled back unless it is committed. Its statements have no names: one that the server has
/// forgotten would end it.
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

impl Connection {
    /// Runs a statement and returns its rows: one round trip, and one more the first time a connection sees a named
    /// statement.
    ///
    /// # Errors
    /// What the server says.
    ///
    /// # Cancellation
    /// The statement may run all the same.
    pub async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let run = async || {
            if self.named_statements {
                let statement = self.client.prepare_typed_cached(sql, &types(params)).await?;
                self.client.query(&statement, &values(params)).await
            } else {
                self.client.query_typed(sql, params).await
            }
        };
        match run().await {
            Err(error) if self.forgets(&error) => run().await.map_err(convert),
            rows => rows.map_err(convert),
        }
    }

    /// Runs SQL text without parameters.
    ///
    /// # Errors
    /// What the server says.
    ///
    /// # Cancellation
    /// The text may run all the same.
    pub async fn batch(&self, sql: &str) -> Result<()> {
        self.client.batch_execute(sql).await.map_err(convert)
    }

    /// Forgets the named statements, where the server has forgotten one or its tables have changed under it: they are
    /// prepared anew. Nothing ran then, so that the statement is repeated at once.
    fn forgets(&self, error: &tokio_postgres::Error) -> bool {
        let forgets = is_stale_statement(error);
        if forgets {
            self.client.statement_cache.clear();
        }
        forgets
    }

    /// Runs SQL text without parameters and returns the first column of its rows, line by line.
    ///
    /// # Errors
    /// What the server says.
    ///
    /// # Cancellation
    /// The text may run all the same.
    pub async fn simple(&self, sql: &str) -> Result<String> {
        let messages = self.client.simple_query(sql).await.map_err(convert)?;
        let lines = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }

    /// Begins a transaction in which every statement sees what was committed before it, whatever the server's default.
    ///
    /// # Errors
    /// What the server says.
    ///
    /// # Cancellation
    /// Nothing was begun, or it is rolled back.
    pub async fn begin(&mut self) -> Result<Transaction<'_>> {
        let transaction = self.client.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
        transaction.start().await.map(|transaction| Transaction { transaction }).map_err(convert)
    }

    /// Runs a statement that is not to be kept: one that hardly anybody asks for again. One round trip.
    ///
    /// # Errors
    /// What the server says.
    ///
    /// # Cancellation
    /// The statement may run all the same.
    pub async fn query_once(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        self.client.query_typed(sql, params).await.map_err(convert)
    }

    /// Runs SQL text without parameters and then a statement, in a transaction of their own and in one round trip:
    /// all of it is sent before anything comes back. Returns how many rows the statement changed.
    ///
    /// # Errors
    /// What the server says; nothing was changed then.
    ///
    /// # Cancellation
    /// A dropped call ran wholly or not at all.
    pub async fn transact(&self, first: &str, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        let run = async || {
            if self.named_statements {
                let statement: Statement = self.client.prepare_typed_cached(sql, &types(params)).await?;
                self.enclosed(first, self.client.execute(&statement, &values(params))).await
            } else {
                self.enclosed(first, self.client.execute_typed(sql, params)).await
            }
        };
        match run().await {
            Err(error) if self.forgets(&error) => run().await.map_err(convert),
            changed => changed.map_err(convert),
        }
    }

    /// Runs SQL text without parameters and then statements, in a transaction of their own and in one round trip, as
    /// [`transact`](Self::transact) does with one.
    ///
    /// # Errors
    /// What the server says first; nothing was changed then.
    ///
    /// # Cancellation
    /// A dropped call ran wholly or not at all.
    pub async fn transact_all(&self, first: &str, statements: &[(&str, Vec<Param<'_>>)]) -> Result<()> {
        let run = async || {
            let mut prepared = Vec::with_capacity(statements.len());
            if self.named_statements {
                for (sql, params) in statements {
                    prepared.push(self.client.prepare_typed_cached(sql, &types(params)).await?);
                }
            }
            let values: Vec<_> = statements.iter().map(|(_, params)| values(params)).collect();
            // Ordered, so that they are polled, and with that sent, one after the other.
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
            self.enclosed(first, sent.try_collect::<Vec<u64>>()).await.map(|_| ())
        };
        match run().await {
            Err(error) if self.forgets(&error) => run().await.map_err(convert),
            done => done.map_err(convert),
        }
    }

    /// Runs SQL text without parameters and then a statement, as [`transact`](Self::transact) does, and returns the
    /// statement's rows. The text is for settings that hold for the statement alone.
    ///
    /// # Errors
    /// What the server says.
    ///
    /// # Cancellation
    /// A dropped call ran wholly or not at all.
    pub async fn query_within(&self, first: &str, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let run = async || {
            if self.named_statements {
                let statement: Statement = self.client.prepare_typed_cached(sql, &types(params)).await?;
                self.enclosed(first, self.client.query(&statement, &values(params))).await
            } else {
                self.enclosed(first, self.client.query_typed(sql, params)).await
            }
        };
        match run().await {
            Err(error) if self.forgets(&error) => run().await.map_err(convert),
            rows => rows.map_err(convert),
        }
    }

    /// Runs SQL text without parameters and then a statement that is not to be kept, as
    /// [`query_within`](Self::query_within) does.
    ///
    /// # Errors
    /// What the server says.
    ///
    /// # Cancellation
    /// A dropped call ran wholly or not at all.
    pub async fn query_once_within(&self, first: &str, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        self.enclosed(first, self.client.query_typed(sql, params)).await.map_err(convert)
    }

    /// Sends a transaction's begin, a statement and the end at once. One that failed is rolled back by its COMMIT.
    async fn enclosed<T>(
        &self,
        first: &str,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, tokio_postgres::Error> {
        let opening = format!("BEGIN ISOLATION LEVEL READ COMMITTED; {first}");
        // Futures of the driver send when they are polled first, and `join` polls them in order without a pause.
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
    /// What the server says.
    ///
    /// # Cancellation
    /// The transaction is rolled back when it is dropped.
    pub async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        self.transaction.query_typed(sql, params).await.map_err(convert)
    }

    /// Runs SQL text without parameters: one round trip.
    ///
    /// # Errors
    /// What the server says.
    ///
    /// # Cancellation
    /// The transaction is rolled back when it is dropped.
    pub async fn batch(&self, sql: &str) -> Result<()> {
        self.transaction.batch_execute(sql).await.map_err(convert)
    }

    /// Commits.
    ///
    /// # Errors
    /// What the server says.
    ///
    /// # Cancellation
    /// The transaction is committed or rolled back.
    pub async fn commit(self) -> Result<()> {
        self.transaction.commit().await.map_err(convert)
    }
}
