//! The URLs of Redis. This program adds parameters of its own to those of the saver.

use std::time::Duration;

use checkpoint_redis::{RedisSaver, RedisSaverBuilder};

use super::parameters;
use crate::failure::Result;

/// What keys begin with unless the URL says otherwise.
const DEFAULT_PREFIX: &str = "ckpt";

/// A URL of Redis without this program's parameters, and what those say.
#[derive(Debug)]
pub(super) struct RedisUrl {
    url: String,
    prefix: Option<String>,
    ttl: Option<Duration>,
    scripts: bool,
}

impl RedisUrl {
    /// Whether a URL is one of Redis. The saver checks the rest.
    pub(super) fn is_url(url: &str) -> bool {
        let scheme = url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        let server = scheme.as_deref().map(|scheme| scheme.split('+').next().unwrap_or_default());
        matches!(server, Some("redis" | "rediss" | "valkey" | "valkeys"))
    }

    pub(super) fn parse(url: &str) -> Result<Self> {
        let (mut prefix, mut ttl, mut scripts) = (None, None, true);
        let url = parameters::taken_out(url, |name, value| {
            match name {
                "prefix" => prefix = Some(parameters::text(name, value)?),
                "ttl" => ttl = Some(parameters::ttl(value)?),
                "scripts" => scripts = parameters::flag(name, value)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(Self { url, prefix, ttl, scripts })
    }

    pub(super) fn builder(&self) -> RedisSaverBuilder {
        let mut builder = RedisSaver::builder(self.url.as_str()).scripts(self.scripts);
        if let Some(prefix) = &self.prefix {
            builder = builder.key_prefix(prefix);
        }
        if let Some(ttl) = self.ttl {
            builder = builder.ttl(ttl);
        }
        builder
    }

    /// Whether two URLs name the same keys of the same server, judging by their texts.
    pub(super) fn is_same_database(&self, other: &Self) -> bool {
        let prefix = |url: &Self| url.prefix.as_deref().unwrap_or(DEFAULT_PREFIX).to_owned();
        let (one, another) = (Place::of(&self.url), Place::of(&other.url));
        prefix(self) == prefix(other)
            && (one.kind, one.path, one.database) == (another.kind, another.path, another.database)
            // Any of its nodes leads to the whole cluster.
            && one.servers.iter().any(|server| another.servers.contains(server))
    }
}

/// Where a valid URL leads.
struct Place<'a> {
    /// What follows `+` in the scheme.
    kind: String,
    servers: Vec<String>,
    /// The service of a sentinel, or the path of a socket.
    path: &'a str,
    database: &'a str,
}

impl<'a> Place<'a> {
    fn of(url: &'a str) -> Self {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let kind = scheme.split_once('+').map_or_else(String::new, |(_, kind)| kind.to_ascii_lowercase());
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
        let port = if kind == "sentinel" { "26379" } else { "6379" };
        let server = |host: &str| {
            let host = host.to_ascii_lowercase();
            let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
            let host = if has_port { host } else { format!("{host}:{port}") };
            match host.split_once(':') {
                Some(("" | "localhost", port)) => format!("127.0.0.1:{port}"),
                _ => host,
            }
        };
        let (path, database) = match kind.as_str() {
            "unix" => (path, ""),
            "sentinel" => path.split_once('/').unwrap_or((path, "")),
            _ => ("", path),
        };
        let given = query.split('&').rev().find_map(|pair| pair.strip_prefix("db="));
        let database = given.unwrap_or(database).trim_matches('/');
        let database = if database.is_empty() { "0" } else { database };
        Self { kind, servers: hosts.split(',').map(server).collect(), path, database }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_told_apart_from_the_savers() {
        for (url, rest, prefix, ttl, scripts) in [
            ("redis://h/1", "redis://h/1", None, None, true),
            ("redis://u:p@h?prefix=a%20b&db=3", "redis://u:p@h?db=3", Some("a b"), None, true),
            (
                "redis://h?db=3&ttl=60&scripts=false&protocol=3",
                "redis://h?db=3&protocol=3",
                None,
                Some(60),
                false,
            ),
            ("redis+cluster://a,b?prefix=", "redis+cluster://a,b", Some(""), None, true),
        ] {
            let parsed = RedisUrl::parse(url).unwrap();
            assert_eq!(
                (&*parsed.url, parsed.prefix.as_deref(), parsed.ttl, parsed.scripts),
                (rest, prefix, ttl.map(Duration::from_secs), scripts),
                "{url}"
            );
        }
        for url in
            ["redis://h?ttl=SECRET", "redis://h?ttl=0", "redis://h?scripts=SECRET", "redis://h?prefix=%FF"]
        {
            let line = RedisUrl::parse(url).unwrap_err().to_string();
            assert!(line.contains("in the URL") && !line.contains("SECRET"), "{line}");
        }
    }

    #[test]
    fn names_of_one_database_are_the_same() {
        let same = |one: &str, other: &str| {
            RedisUrl::parse(one).unwrap().is_same_database(&RedisUrl::parse(other).unwrap())
        };
        for (one, other) in [
            ("redis://h", "valkey://me:pw@H:6379/0?prefix=ckpt&ttl=5"),
            ("redis://localhost/2", "rediss://127.0.0.1:6379?db=2&protocol=3"),
            ("redis://", "redis://127.0.0.1"),
            ("redis://[::1]", "redis://[::1]:6379/"),
            ("redis+cluster://a,b:1", "valkeys+cluster://c,b:1"),
            ("redis+sentinel://a/s", "redis+sentinel://x,a:26379/s/0"),
            ("redis+unix:///a", "valkey+unix:///a?db=0"),
        ] {
            assert!(same(one, other) && same(other, one), "{one} {other}");
        }
        for (one, other) in [
            ("redis://h", "redis://h?prefix=x"),
            ("redis://h", "redis://h/1"),
            ("redis://h", "redis://h:1"),
            ("redis://h", "redis+cluster://h"),
            ("redis+cluster://a", "redis+cluster://b"),
            ("redis+sentinel://a/s", "redis+sentinel://a/t"),
            ("redis+sentinel://a/s/1", "redis+sentinel://a/s/2"),
            ("redis+unix:///a", "redis+unix:///b"),
        ] {
            assert!(!same(one, other), "{one} {other}");
        }
    }
}
