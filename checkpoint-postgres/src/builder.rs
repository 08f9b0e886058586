//! The builder.

use std::fmt;
use std::time::Duration;

use checkpoint_core::{Cipher, Error, Result, ResultExt};
use common_postgres::deadpool_postgres::Pool;
use common_postgres::{BACKEND, Database, PostgresConfig};

use crate::PostgresSaver;
use crate::saver::Shared;
use crate::schema::Tables;
use crate::sql::Statements;

/// The longest name that PostgreSQL does not cut.
const LONGEST_NAME: usize = 63;

/// How the server compresses large values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Compression {
    /// `setup()` chooses LZ4 for the columns of large values where the server has it: storing a checkpoint of 25 KB
    /// takes about half the time that it takes with the server's default, and Python reads and writes such columns
    /// unchanged. What is stored already stays as it is.
    #[default]
    Lz4,
    /// The columns are left as they are: in new tables the server's default, mostly pglz.
    Server,
}

/// Where the connections come from.
#[derive(Clone)]
pub(crate) enum Source {
    Url(String),
    Config(Box<PostgresConfig>),
    Pool(Pool),
}

/// Gathers the options of a [`PostgresSaver`]. Setters cannot fail; [`build`](Self::build) checks everything.
#[derive(Clone)]
#[must_use = "a builder does nothing until build() is called"]
pub struct PostgresSaverBuilder {
    source: Source,
    replica: Option<Source>,
    schema: Option<String>,
    cipher: Option<Cipher>,
    keep_sealed: bool,
    max_connections: Option<usize>,
    connect_timeout: Option<Duration>,
    acquire_timeout: Option<Duration>,
    statement_timeout: Option<Duration>,
    pgbouncer: Option<bool>,
    max_retries: u32,
    compression: Compression,
}

impl fmt::Debug for PostgresSaverBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A URL may hold a password.
        f.debug_struct("PostgresSaverBuilder")
            .field("schema", &self.schema)
            .field("cipher", &self.cipher)
            .field("max_connections", &self.max_connections)
            .field("pgbouncer", &self.pgbouncer)
            .field("max_retries", &self.max_retries)
            .field("compression", &self.compression)
            .finish_non_exhaustive()
    }
}

impl PostgresSaverBuilder {
    pub(crate) fn new(source: Source) -> Self {
        Self {
            source,
            replica: None,
            schema: None,
            cipher: None,
            keep_sealed: false,
            max_connections: None,
            connect_timeout: None,
            acquire_timeout: None,
            statement_timeout: None,
            pgbouncer: None,
            max_retries: 5,
            compression: Compression::default(),
        }
    }

    /// Seals what is stored, and opens it when it is read. See the [crate's page](crate) for what stays in the clear.
    pub fn cipher(mut self, cipher: Cipher) -> Self {
        self.cipher = Some(cipher);
        self
    }

    /// Returns what cannot be opened as ciphertext instead of an error, for tools that show a database without its
    /// keys. This holds for `get_tuple` and `list`.
    pub fn keep_sealed(mut self, keep_sealed: bool) -> Self {
        self.keep_sealed = keep_sealed;
        self
    }

    /// Chooses the schema of the tables, which `setup()` makes when it is missing. Unless set, it is the first of the
    /// role's `search_path`, as for Python.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// Sets how many connections are opened at most: 10 unless set here or in the URL.
    pub fn max_connections(mut self, max_connections: usize) -> Self {
        self.max_connections = Some(max_connections);
        self
    }

    /// Sets how long it may take to open a connection: 10 seconds unless set here or in the URL.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Sets how long a call waits until a connection is free, before it fails with
    /// [`Timeout`](checkpoint_core::ErrorKind::Timeout): 30 seconds unless set here or in the URL.
    pub fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.acquire_timeout = Some(timeout);
        self
    }

    /// Sets how long one statement may run, before the server ends it and the call fails with
    /// [`Timeout`](checkpoint_core::ErrorKind::Timeout): what the server says unless set here or in the URL. It holds
    /// for `setup()` too, which builds indexes.
    pub fn statement_timeout(mut self, timeout: Duration) -> Self {
        self.statement_timeout = Some(timeout);
        self
    }

    /// Works behind a pooler in transaction mode (PgBouncer, and what managed services call pooled connections): no
    /// named statements, no settings of the session. Each call then has to be planned, but is one round trip all the
    /// same.
    pub fn pgbouncer(mut self, pgbouncer: bool) -> Self {
        self.pgbouncer = Some(pgbouncer);
        self
    }

    /// Sets how often a call is repeated that failed because the server restarts, a connection was cut, or another
    /// transaction was in the way: 5 times unless set, the first at once and the others after up to 0.1, 0.2, 0.4 and
    /// 0.8 seconds, but not once the call has taken 5 seconds. Every call is safe to repeat.
    pub fn max_retries(mut self, max_retries: u32) -> Self {
        self.max_retries = max_retries;
        self
    }

    /// Reads listings (`list` and `list_threads`) from a replica, which may be behind. All else goes to the primary.
    pub fn read_replica(mut self, url: impl Into<String>) -> Self {
        self.replica = Some(Source::Url(url.into()));
        self
    }

    /// Chooses what `setup()` does about the compression of large values: [`Compression::Lz4`] unless set.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Checks the options, reads certificates, and makes the saver. Opens no connection; the first call does.
    ///
    /// # Errors
    /// [`InvalidConfig`](checkpoint_core::ErrorKind::InvalidConfig) for a URL or an option that is wrong, for a
    /// certificate that cannot be read, and for connection options on a pool that is the application's own.
    pub fn build(self) -> Result<PostgresSaver> {
        self.checked().map(PostgresSaver::from_shared).at(BACKEND, "build")
    }

    fn checked(self) -> Result<Shared> {
        if let Some(schema) = &self.schema
            && (schema.is_empty() || schema.len() > LONGEST_NAME || schema.contains('\0'))
        {
            return Err(Error::invalid_config("a schema's name has 1 to 63 bytes").with("schema", schema));
        }
        let database = self.database(&self.source)?;
        let replica = match &self.replica {
            Some(source) => self.database(source)?,
            None => database.clone(),
        };
        Ok(Shared {
            database,
            replica,
            sql: Statements::new(self.schema.as_deref()),
            tables: Tables::new(self.schema.as_deref(), self.compression == Compression::Lz4),
            cipher: self.cipher,
            keep_sealed: self.keep_sealed,
        })
    }

    fn database(&self, source: &Source) -> Result<Database> {
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
                return Ok(Database::new(pool.clone(), !self.pgbouncer.unwrap_or(false), self.max_retries));
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
        Ok(Database::new(config.pool()?, !config.uses_pgbouncer(), self.max_retries))
    }
}
