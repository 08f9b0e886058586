//! Parameters by name, from connection strings and the environment.

use std::ffi::OsString;
use std::time::Duration;

use checkpoint_core::Result;
use tokio_postgres::config::{ChannelBinding, LoadBalanceHosts, SslNegotiation, TargetSessionAttrs};

use super::{APPLICATION_NAME, DEFAULT_PORT, PostgresConfig, SslMode, invalid, must_be};
use crate::tls::RootCert;

/// The known parameters. An empty value means that the parameter is not set.
pub(super) const KNOWN: [&str; 33] = [
    "host",
    "hostaddr",
    "port",
    "user",
    "password",
    "dbname",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "sslnegotiation",
    "channel_binding",
    "application_name",
    "options",
    "connect_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
    "target_session_attrs",
    "load_balance_hosts",
    "pool_size",
    "acquire_timeout",
    "statement_timeout",
    "pgbouncer",
    "schema",
    "ssl",
    "gssencmode",
    "client_encoding",
    "ssl_min_protocol_version",
    "sslcompression",
    "fallback_application_name",
];

const VARIABLES: [(&str, &str); 20] = [
    ("PGHOST", "host"),
    ("PGHOSTADDR", "hostaddr"),
    ("PGPORT", "port"),
    ("PGUSER", "user"),
    ("PGPASSWORD", "password"),
    ("PGDATABASE", "dbname"),
    ("PGSSLMODE", "sslmode"),
    ("PGSSLROOTCERT", "sslrootcert"),
    ("PGSSLCERT", "sslcert"),
    ("PGSSLKEY", "sslkey"),
    ("PGSSLNEGOTIATION", "sslnegotiation"),
    ("PGCHANNELBINDING", "channel_binding"),
    ("PGAPPNAME", "application_name"),
    ("PGCONNECT_TIMEOUT", "connect_timeout"),
    ("PGOPTIONS", "options"),
    ("PGTARGETSESSIONATTRS", "target_session_attrs"),
    ("PGLOADBALANCEHOSTS", "load_balance_hosts"),
    ("PGGSSENCMODE", "gssencmode"),
    ("PGCLIENTENCODING", "client_encoding"),
    ("PGSSLMINPROTOCOLVERSION", "ssl_min_protocol_version"),
];

/// Variables that cannot be ignored: the connection would go elsewhere, or be less secure, than they demand.
const UNKNOWN_VARIABLES: [&str; 5] =
    ["PGSERVICE", "PGREQUIREAUTH", "PGREQUIREPEER", "PGSSLCRL", "PGSSLCRLDIR"];

impl PostgresConfig {
    /// Reads libpq's environment variables.
    pub(super) fn from_variables(lookup: impl Fn(&'static str) -> Option<OsString>) -> Result<Self> {
        let set = |name: &'static str| lookup(name).filter(|value| !value.is_empty());
        if let Some(name) = UNKNOWN_VARIABLES.into_iter().find(|name| set(name).is_some()) {
            return Err(
                invalid("this environment variable is not supported; unset it").with("variable", name)
            );
        }
        let mut config = Self::empty();
        for (name, parameter) in VARIABLES {
            let Some(value) = set(name) else { continue };
            let Ok(value) = value.into_string() else {
                return Err(invalid("the environment variable is not UTF-8").with("variable", name));
            };
            config.set(parameter, &value).map_err(|error| error.with("variable", name))?;
        }
        Ok(config)
    }

    /// Sets one of libpq's or our own parameters.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<()> {
        // As in libpq, an empty value means that the parameter is not set.
        if value.is_empty() && KNOWN.contains(&key) {
            return Ok(());
        }
        match key {
            "host" => self.hosts = value.split(',').map(str::to_owned).collect(),
            "hostaddr" => {
                let addrs: Result<_, _> = value.split(',').map(str::parse).collect();
                self.host_addrs = addrs.map_err(|_| must_be(key, "an IP address, or several with commas"))?;
            }
            "port" => self.ports = value.split(',').map(parse_port).collect::<Result<_>>()?,
            "user" => self.user = Some(value.to_owned()),
            "password" => self.password = Some(value.to_owned().into()),
            "dbname" => self.database = Some(value.to_owned()),
            "sslmode" => self.ssl_mode = Some(parse_ssl_mode(value)?),
            "sslrootcert" => self.root_cert = Some(RootCert::named(value.into())),
            "sslcert" => self.client_cert = Some(value.into()),
            "sslkey" => self.client_key = Some(value.into()),
            "application_name" => value.clone_into(&mut self.application_name),
            "options" => self.options = Some(value.to_owned()),
            "connect_timeout" => {
                let timeout = parse_duration(key, value, 1_000_000)?;
                self.connect_timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
            }
            "acquire_timeout" => self.acquire_timeout = parse_duration(key, value, 1_000_000)?,
            "statement_timeout" => {
                let timeout = parse_duration(key, value, 1_000)?;
                self.statement_timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
            }
            "pool_size" => {
                self.max_connections = value.parse().map_err(|_| must_be(key, "a number of connections"))?;
            }
            "pgbouncer" => self.pgbouncer = parse_bool(key, value)?,
            "schema" => self.schema = Some(value.to_owned()),
            // Accepted if every connection satisfies them anyway.
            "gssencmode" if !["disable", "prefer"].contains(&value) => {
                return Err(must_be(key, "disable or prefer: Kerberos encryption is not supported"));
            }
            "client_encoding" if !["utf8", "utf-8", "unicode", "auto"].contains(&&*value.to_lowercase()) => {
                return Err(must_be(key, "UTF8"));
            }
            "ssl_min_protocol_version" if !["TLSv1", "TLSv1.1", "TLSv1.2"].contains(&value) => {
                return Err(must_be(key, "at most TLSv1.2"));
            }
            "gssencmode" | "client_encoding" | "ssl_min_protocol_version" | "sslcompression" => {}
            "fallback_application_name" => {
                if self.application_name == APPLICATION_NAME {
                    value.clone_into(&mut self.application_name);
                }
            }
            _ => return self.set_driver(key, value),
        }
        Ok(())
    }

    /// Sets a parameter that is passed to the driver.
    fn set_driver(&mut self, key: &str, value: &str) -> Result<()> {
        let driver = &mut self.driver;
        match key {
            "keepalives" => driver.keepalives(parse_bool(key, value)?),
            "keepalives_idle" => driver.keepalives_idle(parse_duration(key, value, 1_000_000)?),
            "keepalives_interval" => driver.keepalives_interval(parse_duration(key, value, 1_000_000)?),
            "keepalives_count" => {
                driver.keepalives_retries(value.parse().map_err(|_| must_be(key, "a number of probes"))?)
            }
            "tcp_user_timeout" => driver.tcp_user_timeout(parse_duration(key, value, 1_000)?),
            "target_session_attrs" => driver.target_session_attrs(match value {
                "any" => TargetSessionAttrs::Any,
                "read-write" => TargetSessionAttrs::ReadWrite,
                "read-only" => TargetSessionAttrs::ReadOnly,
                _ => return Err(must_be(key, "any, read-write or read-only")),
            }),
            "channel_binding" => driver.channel_binding(match value {
                "disable" => ChannelBinding::Disable,
                "prefer" => ChannelBinding::Prefer,
                "require" => ChannelBinding::Require,
                _ => return Err(must_be(key, "disable, prefer or require")),
            }),
            "load_balance_hosts" => driver.load_balance_hosts(match value {
                "disable" => LoadBalanceHosts::Disable,
                "random" => LoadBalanceHosts::Random,
                _ => return Err(must_be(key, "disable or random")),
            }),
            "sslnegotiation" => driver.ssl_negotiation(match value {
                "postgres" => SslNegotiation::Postgres,
                "direct" => SslNegotiation::Direct,
                _ => return Err(must_be(key, "postgres or direct")),
            }),
            _ => return Err(invalid("this parameter is unknown; remove it").with("parameter", key)),
        };
        Ok(())
    }
}

fn parse_port(text: &str) -> Result<u16> {
    match text {
        "" => Ok(DEFAULT_PORT),
        _ => text
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| must_be("port", "a number from 1 to 65535")),
    }
}

fn parse_ssl_mode(text: &str) -> Result<SslMode> {
    Ok(match text {
        "disable" => SslMode::Disable,
        "prefer" => SslMode::Prefer,
        "require" => SslMode::Require,
        "verify-ca" => SslMode::VerifyCa,
        "verify-full" => SslMode::VerifyFull,
        "allow" => {
            return Err(invalid(
                "sslmode=allow is not supported: it would use TLS only if the server requires it; use prefer",
            ));
        }
        _ => return Err(must_be("sslmode", "disable, prefer, require, verify-ca or verify-full")),
    })
}

fn parse_bool(key: &str, text: &str) -> Result<bool> {
    match text {
        "true" | "on" | "yes" | "1" => Ok(true),
        "false" | "off" | "no" | "0" => Ok(false),
        _ => Err(must_be(key, "true or false")),
    }
}

/// Reads `30`, `30s` or `500 ms`; `unit` is the microseconds of a number without a unit.
fn parse_duration(key: &str, text: &str, unit: u64) -> Result<Duration> {
    let wrong = || must_be(key, "a whole number, alone or with one of the units us, ms, s, min, h, d");
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let unit = match suffix.trim_start() {
        "" => unit,
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "min" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(unit).map(Duration::from_micros).ok_or_else(wrong)
}
