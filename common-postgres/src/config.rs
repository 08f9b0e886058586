//! The configuration of connections: servers, credentials, TLS, timeouts and the size of the pool.

mod key_values;
mod parameters;
#[cfg(test)]
mod tests;
mod url;

use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use checkpoint_core::{Error, Result};
use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime, Timeouts};
use secrecy::{ExposeSecret, SecretString};
use tokio_postgres::config::SslNegotiation;
use tokio_postgres::{Config, NoTls};

use crate::tls::{self, RootCert};

/// The timeout of opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of waiting for a free connection of the pool.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(30);
/// The name that `pg_stat_activity` shows.
const APPLICATION_NAME: &str = "checkpoint-postgres";
/// The host, if none is given.
const LOCALHOST: &str = "localhost";
/// The port, if none is given.
const DEFAULT_PORT: u16 = 5432;
/// The maximum size of a pool.
const MAX_CONNECTIONS: usize = 10;
/// The minimum size of a pool: setup holds an advisory lock on one connection and works on another.
const MIN_CONNECTIONS: usize = 2;
/// Firewalls and load balancers may drop idle connections after four minutes; the system's default of two hours is too
/// long.
const KEEPALIVES_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVES_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVES_COUNT: u32 = 3;
/// Without it, a statement on a silently dropped connection waits for about 15 minutes.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);
/// Every statement finds its rows by key, so the best plan does not depend on the values: one generic plan, without JIT,
/// which costs more than such a statement. Without statistics the planner may prefer another index and a sort, which reads
/// a whole thread, although the key gives the order.
const GENERIC_PLANS: &str = "-c plan_cache_mode=force_generic_plan -c enable_sort=off -c jit=off";
/// PostgreSQL stores timeouts as milliseconds in an `i32`.
const MAX_TIMEOUT_MS: u128 = i32::MAX as u128;

/// The TLS mode of connections, as libpq names them.
///
/// Connections over Unix sockets never use TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SslMode {
    /// No TLS.
    Disable,
    /// TLS if the server offers it. The server is not verified unless a root certificate is given. If the TLS handshake
    /// fails, the connection fails: there is no fallback to plain text.
    Prefer,
    /// TLS is required. The server is not verified unless a root certificate is given: then this is
    /// [`VerifyCa`](Self::VerifyCa).
    Require,
    /// TLS, and the server's certificate must be signed by the given root certificate.
    VerifyCa,
    /// TLS, and the server's certificate must be for the host's name and signed by the given root certificate, or
    /// by a root that the system trusts.
    VerifyFull,
}

impl SslMode {
    /// libpq's name, such as `verify-full`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disable => "disable",
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        }
    }
}

/// The configuration of connections to a PostgreSQL server.
///
/// It comes from a connection string and libpq's environment variables ([`from_conn_string`](Self::from_conn_string)) or
/// from [`new`](Self::new); the setters override both. Opens no connection and reads no file until
/// [`pool`](Self::pool). `Debug` does not show the password.
#[derive(Clone)]
pub struct PostgresConfig {
    hosts: Vec<String>,
    host_addrs: Vec<IpAddr>,
    ports: Vec<u16>,
    user: Option<String>,
    password: Option<SecretString>,
    database: Option<String>,
    ssl_mode: Option<SslMode>,
    root_cert: Option<RootCert>,
    client_cert: Option<PathBuf>,
    client_key: Option<PathBuf>,
    application_name: String,
    options: Option<String>,
    connect_timeout: Option<Duration>,
    acquire_timeout: Duration,
    statement_timeout: Option<Duration>,
    max_connections: usize,
    pgbouncer: bool,
    pub(crate) schema: Option<String>,
    /// Parameters that are passed to the driver: keepalives, session attributes, channel binding.
    driver: Config,
}

impl PostgresConfig {
    /// Makes a configuration with this host, user and database, and defaults for everything else.
    ///
    /// A host that begins with `/` is the directory of a Unix socket. Several hosts are separated by commas and tried
    /// in order.
    pub fn new(host: impl AsRef<str>, user: impl Into<String>, database: impl Into<String>) -> Self {
        let mut config = Self::empty();
        config.hosts = host.as_ref().split(',').map(str::to_owned).collect();
        config.user = Some(user.into());
        config.database = Some(database.into());
        config
    }

    /// Reads a connection string as libpq does: a URL, or `key=value` pairs as in `host=localhost dbname=agents`. Missing
    /// parameters come from libpq's environment variables; the string may be empty.
    ///
    /// # URLs
    /// `postgres://user:password@host:port/database?parameter=value`, where every part is optional. `postgresql://` is
    /// the same. The parts are percent-encoded: in a password, write
    /// `@ : / ? % [ ]` as `%40 %3A %2F %3F %25 %5B %5D`. Several hosts are separated by commas, each
    /// with its port; a Unix socket's directory is written `%2Fvar%2Frun%2Fpostgresql`, or as `?host=/var/run/postgresql`.
    ///
    /// # Pairs
    /// `key = value`, separated by spaces. A value with spaces is in single quotes; in it, and outside of quotes, a
    /// backslash escapes a quote or a backslash.
    ///
    /// # Parameters
    /// libpq's parameters, with libpq's meaning: `host`, `hostaddr`, `port`, `user`, `password`, `dbname`, `sslmode`
    /// (all but `allow`), `sslrootcert` (a path, or `system`), `sslcert`, `sslkey`, `sslnegotiation`,
    /// `channel_binding`, `application_name`, `options`, `connect_timeout` (0 is none), `keepalives`,
    /// `keepalives_idle`, `keepalives_interval`, `keepalives_count`, `tcp_user_timeout`, `load_balance_hosts` and
    /// `target_session_attrs` (`any`, `read-write`, `read-only`). The default host is `localhost`, the default user is
    /// the operating system's, and the default database has the user's name. Parameters that request the existing
    /// behavior are accepted: `gssencmode` (`disable`, `prefer`), `client_encoding` (UTF-8), `ssl_min_protocol_version`
    /// (up to `TLSv1.2`), `sslcompression`, and `fallback_application_name`.
    ///
    /// Our own parameters: `schema` ([`schema`](Self::schema)), `pool_size`
    /// ([`max_connections`](Self::max_connections)), `acquire_timeout` (seconds), `statement_timeout` (milliseconds) and
    /// `pgbouncer` (`true` or `false`). Durations may have one of PostgreSQL's units: `us`, `ms`, `s`, `min`, `h`, `d`.
    ///
    /// # Environment
    /// `PGHOST`, `PGHOSTADDR`, `PGPORT`, `PGUSER`, `PGPASSWORD`, `PGDATABASE`, `PGSSLMODE`, `PGSSLROOTCERT`,
    /// `PGSSLCERT`, `PGSSLKEY`, `PGSSLNEGOTIATION`, `PGCHANNELBINDING`, `PGAPPNAME`, `PGCONNECT_TIMEOUT`, `PGOPTIONS`,
    /// `PGTARGETSESSIONATTRS`, `PGLOADBALANCEHOSTS`, `PGGSSENCMODE`, `PGCLIENTENCODING` and `PGSSLMINPROTOCOLVERSION`.
    /// Empty ones are ignored. Password and service files are not read.
    ///
    /// # Errors
    /// [`InvalidConfig`](checkpoint_core::ErrorKind::InvalidConfig) for an invalid string, parameter or variable, and
    /// for an unsupported variable that would change where or how securely libpq connects. The error contains neither
    /// the password nor the string.
    pub fn from_conn_string(text: &str) -> Result<Self> {
        Self::from_conn_string_and(text, std::env::var_os)
    }

    /// Whether a text looks like a connection string: it begins with `postgres://`, `postgresql://`, or the name of a
    /// parameter and `=`.
    pub fn is_conn_string(text: &str) -> bool {
        let is_pairs =
            || text.split_once('=').is_some_and(|(key, _)| parameters::KNOWN.contains(&key.trim()));
        url::without_scheme(text).is_some() || is_pairs()
    }

    /// Whether two configurations name the same schema of the same database, judging by their texts: one server in
    /// common is enough, and all loopback addresses are one server. Names are not resolved.
    pub fn is_same_database(&self, other: &Self) -> bool {
        let database = |config: &Self| config.database.clone().or_else(|| config.user.clone());
        let servers = other.servers();
        self.schema == other.schema
            && database(self) == database(other)
            && self.servers().iter().any(|server| servers.contains(server))
    }

    /// Names and addresses of the servers, each with its port.
    fn servers(&self) -> Vec<(String, u16)> {
        let name = |host: &str| match host.parse::<IpAddr>() {
            Ok(address) if address.is_loopback() => LOCALHOST.to_owned(),
            _ if host.is_empty() => LOCALHOST.to_owned(),
            _ => host.to_ascii_lowercase(),
        };
        let addrs = self.host_addrs.iter().map(ToString::to_string);
        let no_host = (self.hosts.is_empty() && self.host_addrs.is_empty()).then(String::new);
        let hosts = self.hosts.iter().cloned().chain(no_host);
        addrs.enumerate().chain(hosts.enumerate()).map(|(at, host)| (name(&host), self.port_of(at))).collect()
    }

    /// The port of the host at this position.
    fn port_of(&self, at: usize) -> u16 {
        match self.ports.as_slice() {
            [] => DEFAULT_PORT,
            [port] => *port,
            ports => ports.get(at).copied().unwrap_or(DEFAULT_PORT),
        }
    }

    /// The servers as errors show them, in the order in which they are tried: `host:port`, `host:port at address`, or a
    /// socket's path.
    pub(crate) fn shown_servers(&self) -> Vec<String> {
        let shown = |at: usize| {
            let (host, addr, port) = (self.hosts.get(at), self.host_addrs.get(at), self.port_of(at));
            match (host.filter(|host| !host.is_empty()), addr) {
                (Some(host), None) if is_socket(host) => {
                    format!("{}/.s.PGSQL.{port}", host.trim_end_matches('/'))
                }
                (Some(host), None) => host_and_port(host, port),
                (Some(host), Some(addr)) => format!("{} at {addr}", host_and_port(host, port)),
                (None, Some(addr)) => SocketAddr::new(*addr, port).to_string(),
                (None, None) => host_and_port(LOCALHOST, port),
            }
        };
        (0..self.hosts.len().max(self.host_addrs.len()).max(1)).map(shown).collect()
    }

    fn from_conn_string_and(text: &str, lookup: impl Fn(&'static str) -> Option<OsString>) -> Result<Self> {
        let mut config = Self::from_variables(lookup)?;
        // In a URL, the scheme precedes any `=`.
        if text.split('=').next().is_some_and(|start| start.contains("://")) {
            url::parse(text, &mut config)?;
        } else {
            key_values::parse(text, &mut config)?;
        }
        Ok(config)
    }

    fn empty() -> Self {
        let mut driver = Config::new();
        driver
            .keepalives_idle(KEEPALIVES_IDLE)
            .keepalives_interval(KEEPALIVES_INTERVAL)
            .keepalives_retries(KEEPALIVES_COUNT)
            .tcp_user_timeout(TCP_USER_TIMEOUT);
        Self {
            hosts: Vec::new(),
            host_addrs: Vec::new(),
            ports: Vec::new(),
            user: None,
            password: None,
            database: None,
            ssl_mode: None,
            root_cert: None,
            client_cert: None,
            client_key: None,
            application_name: APPLICATION_NAME.to_owned(),
            options: None,
            connect_timeout: Some(CONNECT_TIMEOUT),
            acquire_timeout: ACQUIRE_TIMEOUT,
            statement_timeout: None,
            max_connections: MAX_CONNECTIONS,
            pgbouncer: false,
            schema: None,
            driver,
        }
    }

    /// Sets the port of every host; 5432 unless set.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.ports = vec![port];
        self
    }

    /// Sets the password.
    #[must_use]
    pub fn password(mut self, password: SecretString) -> Self {
        self.password = Some(password);
        self
    }

    /// Sets the TLS mode; [`SslMode::Prefer`] unless set.
    #[must_use]
    pub fn ssl_mode(mut self, mode: SslMode) -> Self {
        self.ssl_mode = Some(mode);
        self
    }

    /// Sets the PEM file with the trusted root certificates, or `system` for those of the operating system. A
    /// self-signed server certificate is a root, too.
    ///
    /// `system` requires [`SslMode::VerifyFull`], and makes it the default: anyone can get a certificate from a public
    /// authority, so only the host's name identifies the server.
    #[must_use]
    pub fn ssl_root_cert(mut self, path: impl Into<PathBuf>) -> Self {
        self.root_cert = Some(RootCert::named(path.into()));
        self
    }

    /// Sets the PEM files of this client's certificate and its unencrypted key (PKCS#8, PKCS#1 or SEC1).
    #[must_use]
    pub fn ssl_client_cert(mut self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.client_cert = Some(cert.into());
        self.client_key = Some(key.into());
        self
    }

    /// Sets the name that `pg_stat_activity` shows; `checkpoint-postgres` unless set.
    #[must_use]
    pub fn application_name(mut self, name: impl Into<String>) -> Self {
        self.application_name = name.into();
        self
    }

    /// Sets the timeout of opening a connection, for each host; 10 seconds unless set.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
        self
    }

    /// Sets the timeout of waiting for a free connection of the pool; 30 seconds unless set.
    #[must_use]
    pub fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.acquire_timeout = timeout;
        self
    }

    /// Sets the timeout of a statement; zero, the default, leaves it to the server.
    ///
    /// It cannot be combined with [`pgbouncer`](Self::pgbouncer), which does not forward it: set it on the role or the
    /// database.
    #[must_use]
    pub fn statement_timeout(mut self, timeout: Duration) -> Self {
        self.statement_timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
        self
    }

    /// Sets the maximum size of the connection pool; 10 unless set, at least 2.
    #[must_use]
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.max_connections = connections;
        self
    }

    /// Sets the schema of the tables; the first of the role's `search_path` unless set here or in a builder.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// Declares that the server is a PgBouncer in transaction mode.
    ///
    /// Then no named statements are used, and the startup packet contains no parameter that PgBouncer rejects.
    #[must_use]
    pub fn pgbouncer(mut self, pgbouncer: bool) -> Self {
        self.pgbouncer = pgbouncer;
        self
    }

    /// Whether the server is a PgBouncer in transaction mode.
    pub(crate) fn uses_pgbouncer(&self) -> bool {
        self.pgbouncer
    }

    /// Creates a connection pool. It reads the certificates and opens no connection.
    ///
    /// # Errors
    /// [`InvalidConfig`](checkpoint_core::ErrorKind::InvalidConfig) for contradictory parameters and for an unusable
    /// certificate.
    pub fn pool(&self) -> Result<Pool> {
        let config = self.driver_config()?;
        // Costs no round trip. It only detects connections that the driver knows to be closed; on others, the next statement
        // fails.
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = match self.connector()? {
            Some(tls) => Manager::from_config(config, tls, recycling),
            None => Manager::from_config(config, NoTls, recycling),
        };
        let hosts = u32::try_from(self.hosts.len().max(self.host_addrs.len()).max(1)).unwrap_or(u32::MAX);
        let timeouts = Timeouts {
            wait: Some(self.acquire_timeout),
            // The driver's own timeout is for the socket alone; this one includes TLS and authentication.
            create: self.connect_timeout.map(|timeout| timeout.saturating_mul(hosts)),
            // Recycling does no I/O.
            recycle: None,
        };
        Pool::builder(manager)
            .max_size(self.max_connections)
            .timeouts(timeouts)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| invalid("the pool cannot be created").with_source(error))
    }

    /// The mode that was set, or the default that follows from the other parameters.
    fn effective_ssl_mode(&self) -> SslMode {
        if !self.hosts.is_empty() && self.host_addrs.is_empty() && self.hosts.iter().all(is_socket) {
            return SslMode::Disable;
        }
        let default = match self.root_cert {
            Some(RootCert::System) => SslMode::VerifyFull,
            _ => SslMode::Prefer,
        };
        self.ssl_mode.unwrap_or(default)
    }

    fn connector(&self) -> Result<Option<tokio_postgres_rustls::MakeRustlsConnect>> {
        let client = match (&self.client_cert, &self.client_key) {
            (Some(cert), Some(key)) => Some((cert.as_path(), key.as_path())),
            (None, None) => None,
            (Some(_), None) => {
                return Err(invalid("sslcert needs sslkey, the file with the certificate's key"));
            }
            (None, Some(_)) => {
                return Err(invalid("sslkey needs sslcert, the file with the key's certificate"));
            }
        };
        let direct = self.driver.get_ssl_negotiation() == SslNegotiation::Direct;
        tls::connector(self.effective_ssl_mode(), self.root_cert.as_ref(), client, direct)
    }

    /// Validates the parameters and converts them to the driver's configuration.
    fn driver_config(&self) -> Result<Config> {
        self.validate()?;
        let mode = self.effective_ssl_mode();
        let mut config = self.driver.clone();
        // The driver takes the TLS server name from the host only.
        let addr_names = self.host_addrs.iter().map(ToString::to_string);
        let hosts: Vec<String> = match (self.hosts.is_empty(), self.host_addrs.is_empty()) {
            (false, _) => self.hosts.clone(),
            (true, false) => addr_names.collect(),
            (true, true) => vec![String::new()],
        };
        for host in hosts {
            config.host(if host.is_empty() { LOCALHOST.to_owned() } else { host });
        }
        for addr in &self.host_addrs {
            config.hostaddr(*addr);
        }
        for port in &self.ports {
            config.port(*port);
        }
        if let Some(user) = &self.user {
            config.user(user);
        }
        if let Some(password) = &self.password {
            config.password(password.expose_secret());
        }
        if let Some(database) = &self.database {
            config.dbname(database);
        }
        if let Some(options) = self.startup_options() {
            config.options(options);
        }
        if let Some(timeout) = self.connect_timeout {
            config.connect_timeout(timeout);
        }
        config.application_name(&self.application_name).ssl_mode(match mode {
            SslMode::Disable => tokio_postgres::config::SslMode::Disable,
            SslMode::Prefer => tokio_postgres::config::SslMode::Prefer,
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => {
                tokio_postgres::config::SslMode::Require
            }
        });
        Ok(config)
    }

    fn validate(&self) -> Result<()> {
        if self.max_connections < MIN_CONNECTIONS {
            return Err(invalid("the pool needs at least 2 connections: setup holds a lock on one of them")
                .with("max_connections", self.max_connections));
        }
        let (hosts, addrs, ports) = (self.hosts.len().max(1), self.host_addrs.len(), self.ports.len());
        if addrs > 0 && !self.hosts.is_empty() && hosts != addrs {
            return Err(invalid("hostaddr and host must have the same number of values"));
        }
        if ports > 1 && ports != hosts.max(addrs) {
            return Err(invalid("give one port, or one for each host"));
        }
        if self.ports.contains(&0) {
            return Err(must_be("port", "a number from 1 to 65535"));
        }
        let sockets = self.hosts.iter().filter(|host| is_socket(host)).count();
        if sockets > 0
            && self.effective_ssl_mode() != SslMode::Disable
            && self.effective_ssl_mode() != SslMode::Prefer
        {
            return Err(invalid("sslmode must be disable or prefer when one of the hosts is a Unix socket"));
        }
        let texts = [
            ("user", self.user.as_deref()),
            ("password", self.password.as_ref().map(ExposeSecret::expose_secret)),
            ("dbname", self.database.as_deref()),
            ("application_name", Some(self.application_name.as_str())),
            ("options", self.options.as_deref()),
        ];
        for (key, text) in texts {
            if text.is_some_and(|text| text.contains('\0')) {
                return Err(must_be(key, "without a NUL byte"));
            }
        }
        if let Some(host) = self.hosts.iter().find(|host| host.contains('\0')) {
            return Err(must_be("host", "without a NUL byte").with("host", host));
        }
        if let Some(timeout) = self.statement_timeout {
            if self.pgbouncer {
                return Err(invalid(
                    "PgBouncer does not forward statement_timeout; set it in the database instead: \
                     ALTER ROLE name SET statement_timeout = …",
                ));
            }
            if timeout.as_millis() > MAX_TIMEOUT_MS {
                return Err(must_be("statement_timeout", "at most 2147483647 ms, which is 24 days"));
            }
        }
        Ok(())
    }

    /// The `options` of the startup packet. PgBouncer rejects them, so behind it only the user's own are sent.
    fn startup_options(&self) -> Option<String> {
        if self.pgbouncer {
            return self.options.clone();
        }
        // The last option wins: the user's options override our plan settings, and the setter overrides both.
        let mut options = GENERIC_PLANS.to_owned();
        if let Some(more) = &self.options {
            options.push(' ');
            options.push_str(more);
        }
        if let Some(timeout) = self.statement_timeout {
            // Zero would disable the timeout.
            // Writing into a String cannot fail.
            let _ = write!(options, " -c statement_timeout={}", timeout.as_millis().max(1));
        }
        Some(options)
    }
}

impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("hosts", &self.hosts)
            .field("host_addrs", &self.host_addrs)
            .field("ports", &self.ports)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "[redacted]"))
            .field("database", &self.database)
            .field("ssl_mode", &self.effective_ssl_mode())
            .field("root_cert", &self.root_cert)
            .field("client_cert", &self.client_cert)
            .field("client_key", &self.client_key)
            .field("application_name", &self.application_name)
            .field("options", &self.options)
            .field("connect_timeout", &self.connect_timeout)
            .field("acquire_timeout", &self.acquire_timeout)
            .field("statement_timeout", &self.statement_timeout)
            .field("max_connections", &self.max_connections)
            .field("pgbouncer", &self.pgbouncer)
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

pub(crate) fn invalid(message: &'static str) -> Error {
    Error::invalid_config(message)
}

fn must_be(key: &str, what: &str) -> Error {
    Error::invalid_config(format!("`{key}` must be {what}"))
}

fn host_and_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn is_socket(host: impl AsRef<str>) -> bool {
    host.as_ref().starts_with('/')
}
