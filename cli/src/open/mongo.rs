//! The URLs of MongoDB. This program adds parameters of its own to those of the saver.

use std::time::Duration;

use checkpoint_mongo::{MongoSaver, MongoSaverBuilder};

use super::parameters;
use crate::failure::Result;

/// Where checkpoints are unless the URL says otherwise.
const DEFAULT_DATABASE: &str = "langgraph";
const DEFAULT_COLLECTION: &str = "lg_checkpoints";

/// A URL of MongoDB without this program's parameters, and what those say.
#[derive(Debug)]
pub(super) struct MongoUrl {
    url: String,
    collection: Option<String>,
    ttl: Option<Duration>,
    sharded: bool,
}

impl MongoUrl {
    /// Whether a URL is one of MongoDB. The saver checks the rest.
    pub(super) fn is_url(url: &str) -> bool {
        let scheme = url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        matches!(scheme.as_deref(), Some("mongodb" | "mongodb+srv"))
    }

    pub(super) fn parse(url: &str) -> Result<Self> {
        let (mut collection, mut ttl, mut sharded) = (None, None, false);
        let url = parameters::taken_out(url, |name, value| {
            match name {
                "collection" => collection = Some(parameters::text(name, value)?),
                "ttl" => ttl = Some(parameters::ttl(value)?),
                "sharded" => sharded = parameters::flag(name, value)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        // The driver wants the scheme in lower case.
        let url = match url.split_once("://") {
            Some((scheme, rest)) => format!("{}://{rest}", scheme.to_ascii_lowercase()),
            None => url,
        };
        Ok(Self { url, collection, ttl, sharded })
    }

    pub(super) fn builder(&self) -> MongoSaverBuilder {
        let mut builder = MongoSaver::builder(self.url.as_str()).sharded(self.sharded);
        if let Some(collection) = &self.collection {
            builder = builder.collection(collection);
        }
        if let Some(ttl) = self.ttl {
            builder = builder.ttl(ttl);
        }
        builder
    }

    /// Whether two URLs name the same collection of the same server, judging by their texts.
    pub(super) fn is_same_database(&self, other: &Self) -> bool {
        let collection = |url: &Self| url.collection.as_deref().unwrap_or(DEFAULT_COLLECTION).to_owned();
        let (one, another) = (Place::of(&self.url), Place::of(&other.url));
        collection(self) == collection(other)
            && (one.scheme, one.database) == (another.scheme, another.database)
            // Any of its members leads to the whole replica set.
            && one.servers.iter().any(|server| another.servers.contains(server))
    }
}

/// Where a valid URL leads.
struct Place<'a> {
    scheme: &'a str,
    servers: Vec<String>,
    database: &'a str,
}

impl<'a> Place<'a> {
    fn of(url: &'a str) -> Self {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let (rest, _) = rest.split_once('?').unwrap_or((rest, ""));
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
        Self { scheme, servers: hosts.split(',').map(server).collect(), database }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_told_apart_from_the_savers() {
        for (url, rest, collection, ttl, sharded) in [
            ("mongodb://h", "mongodb://h", None, None, false),
            ("MongoDB+srv://u:p@h/d?sharded=true", "mongodb+srv://u:p@h/d", None, None, true),
            (
                "mongodb://a,b:1/d?collection=a%20b&replicaSet=r&ttl=60&tls=true",
                "mongodb://a,b:1/d?replicaSet=r&tls=true",
                Some("a b"),
                Some(60),
                false,
            ),
        ] {
            let parsed = MongoUrl::parse(url).unwrap();
            assert_eq!(
                (&*parsed.url, parsed.collection.as_deref(), parsed.ttl, parsed.sharded),
                (rest, collection, ttl.map(Duration::from_secs), sharded),
                "{url}"
            );
            assert!(parsed.builder().build().is_ok() || collection.is_some(), "{url}");
        }
        for url in ["ttl=SECRET", "ttl=0", "sharded=SECRET", "collection=%FF"] {
            let line = MongoUrl::parse(&format!("mongodb://h/?{url}")).unwrap_err().to_string();
            assert!(line.contains("in the URL") && !line.contains("SECRET"), "{line}");
        }
    }

    #[test]
    fn names_of_one_database_are_the_same() {
        let same = |one: &str, other: &str| {
            MongoUrl::parse(one).unwrap().is_same_database(&MongoUrl::parse(other).unwrap())
        };
        for (one, other) in [
            ("mongodb://h", "MONGODB://me:pw@H:27017/langgraph?collection=lg_checkpoints&ttl=5"),
            ("mongodb://localhost/a?replicaSet=r", "mongodb://127.0.0.1/a"),
            ("mongodb://[::1]", "mongodb://[::1]:27017/"),
            ("mongodb://a,b:1", "mongodb://c,b:1"),
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
