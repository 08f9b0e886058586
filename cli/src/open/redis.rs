//! The URLs of Redis.

use percent_encoding::percent_decode_str;

/// What keys begin with unless the URL says otherwise.
const DEFAULT_PREFIX: &str = "ckpt";

/// Whether a URL is one of Redis. The saver checks the rest.
pub(super) fn is_url(url: &str) -> bool {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    let server = scheme.as_deref().map(|scheme| scheme.split('+').next().unwrap_or_default());
    matches!(server, Some("redis" | "rediss" | "valkey" | "valkeys"))
}

/// Whether two URLs name the same keys of the same server, judging by their texts.
pub(super) fn is_same_database(one: &str, other: &str) -> bool {
    let (one, other) = (Place::of(one), Place::of(other));
    one.prefix == other.prefix
        && (one.kind, one.path, one.database) == (other.kind, other.path, other.database)
        // Any of its nodes leads to the whole cluster.
        && one.servers.iter().any(|server| other.servers.contains(server))
}

/// Where a valid URL leads.
struct Place<'a> {
    /// What follows `+` in the scheme.
    kind: String,
    servers: Vec<String>,
    /// The service of a sentinel, or the path of a socket.
    path: &'a str,
    database: &'a str,
    prefix: String,
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
        let given = |name| query.split('&').rev().find_map(|pair| pair.strip_prefix(name));
        let prefix =
            percent_decode_str(given("prefix=").unwrap_or(DEFAULT_PREFIX)).decode_utf8_lossy().into();
        let database = given("db=").unwrap_or(database).trim_matches('/');
        let database = if database.is_empty() { "0" } else { database };
        Self { kind, servers: hosts.split(',').map(server).collect(), path, database, prefix }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_one_database_are_the_same() {
        let same = is_same_database;
        for (one, other) in [
            ("redis://h", "valkey://me:pw@H:6379/0?prefix=ckpt&ttl=5"),
            ("redis://h?prefix=a%62", "redis://h?prefix=ab"),
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
