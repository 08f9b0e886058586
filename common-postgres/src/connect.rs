//! The connection options that every backend's builder offers.

use std::fmt;
use std::time::Duration;

use checkpoint_core::{Error, Result};
use deadpool_postgres::Pool;

use crate::{Database, PostgresConfig};

/// PostgreSQL truncates longer names.
const MAX_NAME_BYTES: usize = 63;

/// Where the connections come from.
#[derive(Clone)]
pub enum ConnectionSource {
    /// A connection string, as [`PostgresConfig::from_conn_string`] reads it.
    ConnString(String),
    /// A configuration.
    Config(Box<PostgresConfig>),
    /// An application's own pool.
    Pool(Pool),
}

impl fmt::Debug for ConnectionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A connection string may contain a password.
        f.write_str(match self {
            Self::ConnString(_) => "ConnString",
            Self::Config(_) => "Config",
            Self::Pool(_) => "Pool",
        })
    }
}

/// The connection options of a builder; [`connection_setters`](crate::connection_setters) are the methods that set them.
#[derive(Debug, Clone)]
pub struct ConnectionOptions {
    /// The schema of the tables.
    pub schema: Option<String>,
    /// The maximum size of the connection pool.
    pub max_connections: Option<usize>,
    /// The timeout of opening a connection.
    pub connect_timeout: Option<Duration>,
    /// The timeout of waiting for a free connection.
    pub acquire_timeout: Option<Duration>,
    /// The timeout of a statement.
    pub statement_timeout: Option<Duration>,
    /// Whether the server is a pooler in transaction mode.
    pub pgbouncer: Option<bool>,
    /// The maximum number of retries of a call.
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
    /// Creates a pool with these options, or uses the application's own, and returns it with the schema of the tables, if
    /// one is set here or in the connection string. Opens no connection.
    ///
    /// # Errors
    /// [`InvalidConfig`](checkpoint_core::ErrorKind::InvalidConfig) for an invalid connection string or option, for a
    /// certificate that cannot be read, for a schema whose name is not 1 to 63 bytes long or contains U+0000, and for
    /// limits and timeouts on a pool that belongs to the application.
    pub fn database(&self, source: &ConnectionSource) -> Result<(Database, Option<String>)> {
        let mut config = match source {
            ConnectionSource::ConnString(text) => PostgresConfig::from_conn_string(text)?,
            ConnectionSource::Config(config) => (**config).clone(),
            ConnectionSource::Pool(pool) => {
                let set = [
                    self.max_connections.is_some(),
                    self.connect_timeout.is_some(),
                    self.acquire_timeout.is_some(),
                    self.statement_timeout.is_some(),
                ];
                if set.contains(&true) {
                    return Err(Error::invalid_config(
                        "the pool has its own limits and timeouts; set them where the pool is created",
                    ));
                }
                let named_statements = !self.pgbouncer.unwrap_or(false);
                let database = Database::from_pool(pool.clone(), named_statements, self.max_retries);
                return Ok((database, check_schema(self.schema.clone())?));
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
        let schema = check_schema(self.schema.clone().or_else(|| config.schema.clone()))?;
        Ok((Database::from_config(&config, self.max_retries)?, schema))
    }
}

/// Rejects a name that the server would truncate or cannot store.
fn check_schema(schema: Option<String>) -> Result<Option<String>> {
    match schema {
        Some(schema) if schema.is_empty() || schema.len() > MAX_NAME_BYTES || schema.contains('\0') => {
            Err(Error::invalid_config("a schema's name has 1 to 63 bytes").with("schema", schema))
        }
        schema => Ok(schema),
    }
}

/// The setters of connection options, for the `impl` block of a builder that keeps [`ConnectionOptions`] in its field
/// `connection`.
#[macro_export]
macro_rules! connection_setters {
    () => {
        /// Sets the schema of the tables, which `setup()` creates when it is missing. Unless set here or in the
        /// connection string (`schema=…`), it is the first of the role's `search_path`, as for Python.
        pub fn schema(mut self, schema: impl Into<String>) -> Self {
            self.connection.schema = Some(schema.into());
            self
        }

        /// Sets the maximum size of the connection pool: 10 unless set here or in the connection string.
        pub fn max_connections(mut self, max_connections: usize) -> Self {
            self.connection.max_connections = Some(max_connections);
            self
        }

        /// Sets the timeout of opening a connection: 10 seconds unless set here or in the connection string.
        pub fn connect_timeout(mut self, timeout: ::std::time::Duration) -> Self {
            self.connection.connect_timeout = Some(timeout);
            self
        }

        /// Sets how long a call waits for a free connection of the pool before it fails with
        /// [`Timeout`](checkpoint_core::ErrorKind::Timeout): 30 seconds unless set here or in the connection string.
        pub fn acquire_timeout(mut self, timeout: ::std::time::Duration) -> Self {
            self.connection.acquire_timeout = Some(timeout);
            self
        }

        /// Sets how long one statement may run before the server cancels it and the call fails with
        /// [`Timeout`](checkpoint_core::ErrorKind::Timeout): the server's setting unless set here or in the connection
        /// string. It also applies to `setup()`, which builds indexes.
        pub fn statement_timeout(mut self, timeout: ::std::time::Duration) -> Self {
            self.connection.statement_timeout = Some(timeout);
            self
        }

        /// Works behind a pooler in transaction mode (PgBouncer, and the pooled connections of managed services): no named
        /// statements, no session settings. The server then plans each call again; a call is still one round trip.
        pub fn pgbouncer(mut self, pgbouncer: bool) -> Self {
            self.connection.pgbouncer = Some(pgbouncer);
            self
        }

        /// Sets the maximum number of retries of a call that failed because the server restarts, a connection was cut, or
        /// transactions conflicted: 5 unless set. The first retry is immediate, the others have an exponential backoff of up
        /// to 0.1, 0.2, 0.4 and 0.8 seconds. A call that has taken 5 seconds is not retried. Every call is idempotent.
        pub fn max_retries(mut self, max_retries: u32) -> Self {
            self.connection.max_retries = max_retries;
            self
        }
    };
}

#[cfg(test)]
mod tests {
    use checkpoint_core::ErrorKind;

    use super::*;

    fn schema(text: &str, set: Option<&str>) -> Result<Option<String>> {
        let options = ConnectionOptions { schema: set.map(str::to_owned), ..ConnectionOptions::default() };
        options.database(&ConnectionSource::ConnString(text.to_owned())).map(|(_, schema)| schema)
    }

    #[test]
    fn a_setter_overrides_the_schema_of_the_connection_string() {
        for (text, set, expected) in [
            ("postgres://h/d", None, None),
            ("postgres://h/d?schema=a", None, Some("a")),
            ("host=h schema=a", None, Some("a")),
            ("host=h schema=a", Some("b"), Some("b")),
            ("host=h", Some("b"), Some("b")),
        ] {
            assert_eq!(schema(text, set).unwrap().as_deref(), expected, "{text} {set:?}");
        }
        let long = "x".repeat(MAX_NAME_BYTES + 1);
        for set in ["", "a\0b", &long] {
            assert_eq!(schema("host=h", Some(set)).unwrap_err().kind(), ErrorKind::InvalidConfig, "{set}");
        }
        assert_eq!(
            schema(&format!("host=h schema={long}"), None).unwrap_err().kind(),
            ErrorKind::InvalidConfig
        );
        assert!(schema(&format!("host=h schema={}", &long[1..]), None).is_ok());
    }

    #[tokio::test]
    async fn pgbouncer_in_the_connection_string_is_used() {
        let options = ConnectionOptions::default();
        let (database, _) =
            options.database(&ConnectionSource::ConnString("host=h pgbouncer=true".into())).unwrap();
        assert!(format!("{database:?}").contains("named_statements: false"));
        let options = ConnectionOptions { pgbouncer: Some(false), ..options };
        let (database, _) =
            options.database(&ConnectionSource::ConnString("host=h pgbouncer=true".into())).unwrap();
        assert!(format!("{database:?}").contains("named_statements: true"));
    }

    /// The environment belongs to the whole process, so this uses a child process.
    fn in_child(variables: &[(&str, &str)]) {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "connect::tests::child", "--ignored"]).env_clear();
        let output = child.envs(variables.iter().copied()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    /// Builds from the connection string `CONN` and the environment, and expects the hosts or the error in `EXPECT`.
    #[test]
    #[ignore = "the child of another test"]
    fn child() {
        let text = std::env::var("CONN").unwrap();
        let found = match ConnectionOptions::default().database(&ConnectionSource::ConnString(text.clone())) {
            Ok(_) => format!("{:?}", PostgresConfig::from_conn_string(&text).unwrap()),
            Err(error) => error.to_string(),
        };
        assert!(found.contains(&std::env::var("EXPECT").unwrap()), "{found}");
    }

    #[test]
    fn builders_use_the_environment() {
        for text in ["", "postgres://", "dbname=d", "postgres:///d"] {
            let conn = ("CONN", text);
            in_child(&[conn, ("EXPECT", "hosts: []")]);
            in_child(&[conn, ("PGHOST", "db.example"), ("EXPECT", "db.example")]);
            in_child(&[conn, ("PGSSLMODE", "verify-ca"), ("EXPECT", "verify-ca needs sslrootcert")]);
            in_child(&[conn, ("PGSERVICE", "s"), ("EXPECT", "PGSERVICE")]);
        }
        let conn = ("CONN", "host=h sslmode=disable");
        in_child(&[
            conn,
            ("PGHOST", "db.example"),
            ("PGSSLMODE", "verify-ca"),
            ("EXPECT", r#"hosts: ["h"]"#),
        ]);
    }
}
