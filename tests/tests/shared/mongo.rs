//! MongoDB for tests: databases of their own, and what their collections hold.

#![allow(dead_code, unused_imports, reason = "each binary uses its part of this")]

use checkpoint_conformance::Missing;
use futures_util::TryStreamExt as _;
use libtest_mimic::Trial;
use mongodb::bson::{RawDocumentBuf, doc};
use mongodb::error::Result as MongoResult;

use super::server;
pub(crate) use super::trials::{Ended, in_runtime, tests, unique_name};

#[path = "mongo_wire.rs"]
pub(crate) mod wire;

/// The servers that the tests want.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// MongoDB, or FerretDB in its place.
    Mongo,
    /// mongo-java-server. It reads whole collections for almost every command, too, but much faster than FerretDB.
    Java,
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Mongo, Self::Java];

    pub(crate) fn name(self) -> &'static str {
        self.entry().name
    }

    pub(crate) fn entry(self) -> &'static checkpoint_servers::Server {
        match self {
            Self::Mongo => &checkpoint_servers::MONGO,
            Self::Java => &checkpoint_servers::MONGO_JAVA,
        }
    }
}

/// A server that is there.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    kind: Kind,
    url: String,
}

impl Server {
    /// Finds a server, or says why there is none.
    pub(crate) fn find(kind: Kind) -> Result<Self, Missing> {
        Ok(Self { kind, url: server::url(kind.entry())? })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }
}

/// One test that works with a server.
pub(crate) type Test = super::trials::Test<Server>;

/// The tests of a module on a server, named after both. Where the server is missing they are shown as ignored, or fail where
/// it is required.
pub(crate) fn trials(kind: Kind, module: &str, tests: &[Test]) -> Vec<Trial> {
    let name = |name: &str| format!("{module}::{name}");
    let find = match kind {
        Kind::Mongo => || Server::find(Kind::Mongo),
        Kind::Java => || Server::find(Kind::Java),
    };
    super::trials::trials(tests, name, kind.name(), find)
}

/// A database of a test's own. It is dropped at the end.
///
/// FerretDB reads a whole collection for almost every command, so a test does not share its collections.
#[derive(Debug)]
pub(crate) struct Database {
    server: String,
    name: String,
}

impl Database {
    /// A new name on the server of a URL. The database exists once something is written to it.
    pub(crate) fn new(server: &str) -> Self {
        Self { server: server.to_owned(), name: unique_name() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The URL of the server, with the database as its path.
    pub(crate) fn url(&self) -> String {
        self.at(&self.server)
    }

    /// The same by way of another address.
    pub(crate) fn at(&self, server: &str) -> String {
        let (address, options) = server.split_once('?').unwrap_or((server, ""));
        let separator = if options.is_empty() { "" } else { "?" };
        format!("{}/{}{separator}{options}", address.trim_end_matches('/'), self.name)
    }

    /// A connection past the saver.
    pub(crate) async fn raw(&self) -> mongodb::Database {
        self.tried().await.unwrap()
    }

    pub(crate) async fn tried(&self) -> MongoResult<mongodb::Database> {
        Ok(mongodb::Client::with_uri_str(&self.server).await?.database(&self.name))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), self.name.clone());
        // Tests drop inside of a runtime, where another one cannot be started.
        let drop = async move {
            let client = mongodb::Client::with_uri_str(server).await?;
            client.database(&name).drop().await?;
            // Its tasks would panic when the runtime ends before them.
            client.shutdown().await;
            MongoResult::Ok(())
        };
        if !matches!(std::thread::spawn(move || in_runtime(drop)).join(), Ok(Ok(()))) {
            eprintln!("not cleaned up: {}", self.name);
        }
    }
}

/// Every document of every collection, ordered by collection and `_id`.
pub(crate) async fn documents(database: &mongodb::Database) -> MongoResult<Vec<RawDocumentBuf>> {
    let mut all = Vec::new();
    let mut names = database.list_collection_names().await?;
    names.sort();
    for name in names {
        let collection = database.collection::<RawDocumentBuf>(&name);
        let found = collection.find(doc! {}).sort(doc! { "_id": 1 }).await?;
        all.extend(found.try_collect::<Vec<_>>().await?);
    }
    Ok(all)
}
