//! The servers that a URL names.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use checkpoint_core::{Error, Result};
use percent_encoding::percent_decode_str;
use secrecy::SecretString;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Which servers there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Servers {
    One(Address),
    /// Some nodes of a cluster.
    Cluster(Vec<Address>),
    /// Sentinels, and the name of the service whose primary they know.
    Sentinel(Vec<Address>, String),
}

/// A user and a password.
#[derive(Debug, Clone, Default)]
pub(crate) struct Credentials {
    pub(crate) username: Option<String>,
    pub(crate) password: Option<SecretString>,
}

/// What a URL says. Its `Debug` has no secret.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) servers: Servers,
    pub(crate) credentials: Credentials,
    pub(crate) sentinel_credentials: Credentials,
    pub(crate) database: u32,
    pub(crate) tls: bool,
    pub(crate) resp3: Option<bool>,
    pub(crate) root_certificates: Option<PathBuf>,
    pub(crate) client_certificate: Option<PathBuf>,
    pub(crate) client_key: Option<PathBuf>,
    pub(crate) key_prefix: Option<String>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) scripts: Option<bool>,
}

const DEFAULT_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

const SCHEMES: &str = "the URL must begin with redis://, rediss:// (TLS), redis+cluster://, redis+sentinel:// or \
                       redis+unix://; valkey:// is the same as redis://";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    One,
    Cluster,
    Sentinel,
    Unix,
}

impl Target {
    /// Reads a URL. The crate's page has the grammar.
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid(SCHEMES))?;
        let (kind, tls) = match scheme.to_ascii_lowercase().as_str() {
            "redis" | "valkey" => (Kind::One, false),
            "rediss" | "valkeys" => (Kind::One, true),
            "redis+cluster" | "valkey+cluster" => (Kind::Cluster, false),
            "rediss+cluster" | "valkeys+cluster" => (Kind::Cluster, true),
            "redis+sentinel" | "valkey+sentinel" => (Kind::Sentinel, false),
            "rediss+sentinel" | "valkeys+sentinel" => (Kind::Sentinel, true),
            "unix" | "redis+unix" | "valkey+unix" => (Kind::Unix, false),
            _ => return Err(invalid(SCHEMES)),
        };
        if rest.contains('#') {
            return Err(invalid(
                "the URL has a # part, which is not supported; encode # as %23 in a password",
            ));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (credentials(user)?, hosts),
            None => (Credentials::default(), authority),
        };
        let mut database = None;
        let servers = match kind {
            Kind::Unix => {
                if !hosts.is_empty() || path.len() < 2 {
                    return Err(invalid("the URL of a Unix socket is redis+unix:///path/of/the/socket"));
                }
                Servers::One(Address::Unix(decoded(path)?.into()))
            }
            Kind::Sentinel => {
                let mut parts = path.trim_start_matches('/').splitn(2, '/');
                let service = decoded(parts.next().unwrap_or_default())?;
                if service.is_empty() {
                    return Err(invalid(
                        "the URL of a sentinel names a service: redis+sentinel://host:26379/service/0",
                    ));
                }
                database = parts.next();
                Servers::Sentinel(addresses(hosts, SENTINEL_PORT)?, service)
            }
            Kind::One | Kind::Cluster => {
                database = Some(path.trim_start_matches('/'));
                let mut hosts = addresses(hosts, DEFAULT_PORT)?;
                if kind == Kind::Cluster {
                    Servers::Cluster(hosts)
                } else if hosts.len() > 1 {
                    return Err(invalid(
                        "the URL has several servers; use redis+cluster:// or redis+sentinel:// as its scheme",
                    ));
                } else {
                    Servers::One(hosts.swap_remove(0))
                }
            }
        };
        let database = database_number(database.unwrap_or_default())?;
        let mut target = Self {
            servers,
            credentials,
            sentinel_credentials: Credentials::default(),
            database,
            tls,
            resp3: None,
            root_certificates: None,
            client_certificate: None,
            client_key: None,
            key_prefix: None,
            ttl: None,
            scripts: None,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            target.set(name, decoded(value)?)?;
        }
        if kind == Kind::Cluster && target.database != 0 {
            return Err(invalid("a cluster has database 0 only; leave the number out of the URL"));
        }
        Ok(target)
    }

    fn set(&mut self, name: &str, value: String) -> Result<()> {
        match name {
            "protocol" => {
                self.resp3 = Some(match value.as_str() {
                    "2" | "resp2" => false,
                    "3" | "resp3" => true,
                    _ => return Err(invalid("protocol in the URL is 2 or 3")),
                });
            }
            "db" => self.database = database_number(&value)?,
            "sentinel_username" => self.sentinel_credentials.username = Some(value),
            "sentinel_password" => self.sentinel_credentials.password = Some(value.into()),
            "ssl_ca_certs" => self.root_certificates = Some(value.into()),
            "ssl_certfile" => self.client_certificate = Some(value.into()),
            "ssl_keyfile" => self.client_key = Some(value.into()),
            "prefix" => self.key_prefix = Some(value),
            "ttl" => {
                let seconds = value.parse().ok().filter(|seconds| *seconds > 0);
                let wrong = || invalid("ttl in the URL is a whole number of seconds, at least 1");
                self.ttl = Some(Duration::from_secs(seconds.ok_or_else(wrong)?));
            }
            "scripts" => {
                self.scripts = Some(match value.as_str() {
                    "true" => true,
                    "false" => false,
                    _ => return Err(invalid("scripts in the URL is true or false")),
                });
            }
            _ => {
                return Err(invalid(
                    "the URL has an unknown parameter; there are protocol, db, prefix, ttl, scripts, \
                     sentinel_username, sentinel_password, ssl_ca_certs, ssl_certfile and ssl_keyfile",
                )
                .with("parameter", name));
            }
        }
        Ok(())
    }
}

fn invalid(message: &'static str) -> Error {
    Error::invalid_config(message)
}

fn decoded(text: &str) -> Result<String> {
    percent_decode_str(text)
        .decode_utf8()
        .map(Into::into)
        .map_err(|_| invalid("a percent-encoded part of the URL is not UTF-8"))
}

fn credentials(text: &str) -> Result<Credentials> {
    let (username, password) = match text.split_once(':') {
        Some((username, password)) => (username, Some(decoded(password)?.into())),
        None => (text, None),
    };
    let username = decoded(username)?;
    if password.is_none() && !username.is_empty() {
        return Err(invalid("the URL has a user without a password; write user:password@, or :password@"));
    }
    Ok(Credentials { username: Some(username).filter(|name| !name.is_empty()), password })
}

fn addresses(hosts: &str, default_port: u16) -> Result<Vec<Address>> {
    hosts.split(',').map(|host| address(host, default_port)).collect()
}

fn address(text: &str, default_port: u16) -> Result<Address> {
    let wrong = || invalid("a server in the URL is not host, host:port or [IPv6]:port");
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
            (host, if port.is_empty() { None } else { Some(port.strip_prefix(':').ok_or_else(wrong)?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?,
        None => default_port,
    };
    let host = if host.is_empty() { "127.0.0.1".to_owned() } else { decoded(host)? };
    if host.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(wrong());
    }
    Ok(Address::Tcp(host, port))
}

fn database_number(text: &str) -> Result<u32> {
    let text = text.trim_end_matches('/');
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| invalid("the database in the URL is not a number"))
}

#[cfg(test)]
mod tests {
    use checkpoint_core::ErrorKind;
    use secrecy::ExposeSecret;

    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.to_owned(), port)
    }

    #[test]
    fn urls_name_servers() {
        for (url, servers, tls, database) in [
            ("redis://", Servers::One(tcp("127.0.0.1", 6379)), false, 0),
            ("redis://h", Servers::One(tcp("h", 6379)), false, 0),
            ("valkey://h:1/2", Servers::One(tcp("h", 1)), false, 2),
            ("rediss://h/?db=3", Servers::One(tcp("h", 6379)), true, 3),
            ("VALKEYS://[::1]:7", Servers::One(tcp("::1", 7)), true, 0),
            ("redis://[::1]/1/", Servers::One(tcp("::1", 6379)), false, 1),
            ("redis+unix:///a%20b?db=4", Servers::One(Address::Unix("/a b".into())), false, 4),
            ("redis+cluster://a:1,b", Servers::Cluster(vec![tcp("a", 1), tcp("b", 6379)]), false, 0),
            ("rediss+cluster://a/", Servers::Cluster(vec![tcp("a", 6379)]), true, 0),
            (
                "redis+sentinel://a,b:2/my%2Fservice/5",
                Servers::Sentinel(vec![tcp("a", 26379), tcp("b", 2)], "my/service".into()),
                false,
                5,
            ),
            ("rediss+sentinel://a/s", Servers::Sentinel(vec![tcp("a", 26379)], "s".into()), true, 0),
        ] {
            let target = Target::parse(url).unwrap();
            assert_eq!((target.servers, target.tls, target.database), (servers, tls, database), "{url}");
        }
    }

    #[test]
    fn urls_have_credentials_and_parameters() {
        let url =
            "redis+sentinel://u%40:p%3A%2F@a/s?protocol=3&sentinel_username=x&sentinel_password=SE%26CRET";
        let target = Target::parse(url).unwrap();
        let password = |credentials: &Credentials| {
            credentials.password.as_ref().map(|password| password.expose_secret().to_owned())
        };
        assert_eq!(target.credentials.username.as_deref(), Some("u@"));
        assert_eq!(password(&target.credentials).as_deref(), Some("p:/"));
        assert_eq!(target.sentinel_credentials.username.as_deref(), Some("x"));
        assert_eq!(password(&target.sentinel_credentials).as_deref(), Some("SE&CRET"));
        assert_eq!(target.resp3, Some(true));
        let shown = format!("{target:?}");
        assert!(!shown.contains("p:/") && !shown.contains("CRET"), "{shown}");
        let only_password = Target::parse("redis://:p@h").unwrap().credentials;
        assert_eq!((only_password.username.clone(), password(&only_password)), (None, Some("p".into())));
        // An @ that was not encoded.
        let at = Target::parse("redis://u:p@ss@h").unwrap();
        assert_eq!(password(&at.credentials).as_deref(), Some("p@ss"));
    }

    #[test]
    fn wrong_urls_are_refused_without_showing_them() {
        for url in [
            "",
            "SECRET",
            "http://u:SECRET@h",
            "redis://u:SECRET@h:port",
            "redis://u:SECRET@h:0",
            "redis://u:SECRET@h:70000",
            "redis://u:SECRET@h/name",
            "redis://u:SECRET@h/-1",
            "redis://u:SECRET@a,b",
            "redis://u:SECRET@[::1",
            "redis://u:SECRET@a b",
            "redis://SECRET@h",
            "redis://u:%FF@h",
            "redis://u:SECRET@h?protocol=4",
            "redis://u:SECRET@h?unknown=SECRET",
            "redis://u:SECRET@h#insecure",
            "redis+cluster://u:SECRET@h/1",
            "redis+sentinel://u:SECRET@h",
            "redis+sentinel://u:SECRET@h/",
            "redis+unix://host/SECRET",
            "redis+unix://",
        ] {
            let error = Target::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            assert!(!format!("{error:?}").contains("SECRET"), "{error:?}");
        }
    }
}
