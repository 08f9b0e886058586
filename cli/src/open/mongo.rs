//! The URLs of MongoDB.

use percent_encoding::percent_decode_str;

/// Where checkpoints are unless the URL says otherwise.
const DEFAULT_DATABASE: &str = "langgraph";
const DEFAULT_COLLECTION: &str = "lg_checkpoints";

/// Whether a URL is one of MongoDB. The saver checks the rest.
pub(super) fn is_url(url: &str) -> bool {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    matches!(scheme.as_deref(), Some("mongodb" | "mongodb+srv"))
}

/// Whether two URLs name the same collection of the same server, judging by their texts.
pub(super) fn is_same_database(one: &str, other: &str) -> bool {
    let (one, other) = (Place::of(one), Place::of(other));
    (one.scheme, one.database, one.collection) == (other.scheme, other.database, other.collection)
        // Any of its members leads to the whole replica set.
        && one.servers.iter().any(|server| other.servers.contains(server))
}

/// Where a valid URL leads.
struct Place {
    scheme: String,
    servers: Vec<String>,
    database: String,
    collection: String,
}

impl Place {
    fn of(url: &str) -> Self {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
        let server = |host: &str| {
            let host = host.to_ascii_lowercase();
            let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
            let host = if has_port { host } else { format!("{host}:27017") };
            match host.strip_prefix("localhost:") {
                Some(port) => format!("127.0.0.1:{port}"),
                None => host,
            }
        };
        let database = if database.is_empty() { DEFAULT_DATABASE } else { database };
        let collection = query.split('&').rev().find_map(|pair| pair.strip_prefix("collection="));
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        Self {
            scheme: scheme.to_ascii_lowercase(),
            servers: hosts.split(',').map(server).collect(),
            database: decoded(database),
            collection: decoded(collection.unwrap_or(DEFAULT_COLLECTION)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_one_database_are_the_same() {
        let same = is_same_database;
        for (one, other) in [
            ("mongodb://h", "MONGODB://me:pw@H:27017/langgraph?collection=lg_checkpoints&ttl=5"),
            ("mongodb://localhost/a?replicaSet=r", "mongodb://127.0.0.1/a"),
            ("mongodb://[::1]", "mongodb://[::1]:27017/"),
            ("mongodb://a,b:1/x%20y", "mongodb://c,b:1/x y?collection=lg%5Fcheckpoints"),
            ("mongodb+srv://h/a", "mongodb+srv://u@h/a"),
        ] {
            assert!(same(one, other) && same(other, one), "{one} {other}");
        }
        for (one, other) in [
            ("mongodb://h", "mongodb://h?collection=x"),
            ("mongodb://h/a", "mongodb://h/b"),
            ("mongodb://h/a", "mongodb://h/A"),
            ("mongodb://h", "mongodb://h:1"),
            ("mongodb://h", "mongodb+srv://h"),
        ] {
            assert!(!same(one, other), "{one} {other}");
        }
    }
}
