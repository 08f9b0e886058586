//! The options of connections, which every backend's builder offers.

use std::fmt;
use std::time::Duration;

use checkpoint_core::{Error, Result};
use deadpool_postgres::Pool;

use crate::{Database, PostgresConfig};

/// The longest name that PostgreSQL does not cut.
const LONGEST_NAME: usize = 63;

/// Where the connections come from.
#[derive(Clone)]
pub enum Source {
    /// A URL.
    Url(String),
    /// A configuration.
    Config(Box<PostgresConfig>),
    /// An application's own pool.
    Pool(Pool),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A URL may hold a password.
        f.write_str(match self {
            Self::Url(_) => "Url",
            Self::Config(_) => "Config",
            Self::Pool(_) => "Pool",
        })
    }
}

/// What a builder was told about its connections; [`connection_setters`](crate::connection_setters) are the methods that
/// tell it.
#[derive(Debug, Clone)]
pub struct ConnectionOptions {
    /// The schema of the tables.
    pub schema: Option<String>,
    /// How many connections are opened at most.
    pub max_connections: Option<usize>,
    /// How long it may take to open one.
    pub connect_timeout: Option<Duration>,
    /// How long a call waits for one.
    pub acquire_timeout: Option<Duration>,
    /// How long one statement may run.
    pub statement_timeout: Option<Duration>,
    /// Whether a pooler in transaction mode is between.
    pub pgbouncer: Option<bool>,
    /// How often a call is repeated.
    pub max_retries: u32,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self {
            schema: None,
            max_connections: None,
            connect_timeout: None,
            acquire_timeout: None,
            statement_timeout: None,
            pgbouncer: None,
            max_retries: 5,
        }
    }
}

impl ConnectionOptions {
    /// Refuses a schema that the server would not keep as it is.
    ///
    /// # Errors
    /// [`InvalidConfig`](checkpoint_core::ErrorKind::InvalidConfig) for a name of no bytes, of more than 63, or with
    /// U+0000 in it.
    pub fn check_schema(&self) -> Result<()> {
        match &self.schema {
            Some(schema) if schema.is_empty() || schema.len() > LONGEST_NAME || schema.contains('\0') => {
                Err(Error::invalid_config("a schema's name has 1 to 63 bytes").with("schema", schema))
            }
            _ => Ok(()),
        }
    }

    /// Makes a pool with these options, or takes the application's own. Opens no connection.
    ///
    /// # Errors
    /// [`InvalidConfig`](checkpoint_core::ErrorKind::InvalidConfig) for a URL or an option that is wrong, for a
    /// certificate that cannot be read, and for limits and timeouts on a pool that is the application's own.
    pub fn database(&self, source: &Source) -> Result<Database> {
        let mut config = match source {
            Source::Url(url) => PostgresConfig::from_url(url)?,
            Source::Config(config) => (**config).clone(),
            Source::Pool(pool) => {
                let set = [
                    self.max_connections.is_some(),
                    self.connect_timeout.is_some(),
                    self.acquire_timeout.is_some(),
                    self.statement_timeout.is_some(),
                ];
                if set.contains(&true) {
                    return Err(Error::invalid_config(
                        "the pool has its own limits and timeouts; set them where it is made",
                    ));
                }
                return Ok(Database::new(
                    pool.clone(),
                    false,
                    !self.pgbouncer.unwrap_or(false),
                    self.max_retries,
                ));
            }
        };
        if let Some(most) = self.max_connections {
            config = config.max_connections(most);
        }
        if let Some(timeout) = self.connect_timeout {
            config = config.connect_timeout(timeout);
        }
        if let Some(timeout) = self.acquire_timeout {
            config = config.acquire_timeout(timeout);
        }
        if let Some(timeout) = self.statement_timeout {
            config = config.statement_timeout(timeout);
        }
        if let Some(pgbouncer) = self.pgbouncer {
            config = config.pgbouncer(pgbouncer);
        }
        Ok(Database::new(config.pool()?, true, !config.uses_pgbouncer(), self.max_retries))
    }
}

/// The methods by which a builder is told about its connections, for the `impl` block of one that keeps
/// [`ConnectionOptions`] in its field `connection`.
#[macro_export]
macro_rules! connection_setters {
    () => {
        /// Chooses the schema of the tables, which `setup()` makes when it is missing. Unless set, it is the first of
        /// the role's `search_path`, as for Python.
        pub fn schema(mut self, schema: impl Into<String>) -> Self {
            self.connection.schema = Some(schema.into());
            self
        }

        /// Sets how many connections are opened at most: 10 unless set here or in the URL.
        pub fn max_connections(mut self, max_connections: usize) -> Self {
            self.connection.max_connections = Some(max_connections);
            self
        }

        /// Sets how long it may take to open a connection: 10 seconds unless set here or in the URL.
        pub fn connect_timeout(mut self, timeout: ::std::time::Duration) -> Self {
            self.connection.connect_timeout = Some(timeout);
            self
        }

        /// Sets how long a call waits until a connection is free, before it fails with
        /// [`Timeout`](checkpoint_core::ErrorKind::Timeout): 30 seconds unless set here or in the URL.
        pub fn acquire_timeout(mut self, timeout: ::std::time::Duration) -> Self {
            self.connection.acquire_timeout = Some(timeout);
            self
        }

        /// Sets how long one statement may run, before the server ends it and the call fails with
        /// [`Timeout`](checkpoint_core::ErrorKind::Timeout): what the server says unless set here or in the URL. It
        /// holds for `setup()` too, which builds indexes.
        pub fn statement_timeout(mut self, timeout: ::std::time::Duration) -> Self {
            self.connection.statement_timeout = Some(timeout);
            self
        }

        /// Works behind a pooler in transaction mode (PgBouncer, and what managed services call pooled connections): no
        /// named statements, no settings of the session. Each call then has to be planned, but is one round trip all
        /// the same.
        pub fn pgbouncer(mut self, pgbouncer: bool) -> Self {
            self.connection.pgbouncer = Some(pgbouncer);
            self
        }

        /// Sets how often a call is repeated that failed because the server restarts, a connection was cut, or another
        /// transaction was in the way: 5 times unless set, the first at once and the others after up to 0.1, 0.2, 0.4
        /// and 0.8 seconds, but not once the call has taken 5 seconds. Every call is safe to repeat.
        pub fn max_retries(mut self, max_retries: u32) -> Self {
            self.connection.max_retries = max_retries;
            self
        }
    };
}
