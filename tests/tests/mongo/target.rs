//! The suite's targets: the servers, each with several configurations of the saver.

use std::sync::Arc;
use std::time::Duration;

use checkpoint_conformance::wire::{Cost, Counted};
use checkpoint_conformance::{Call, CountedSaver, Facility, Missing, OpenOptions, Saver, Target};
use checkpoint_core::{BaseCheckpointSaver, Error, ErrorKind, Result, async_trait};
use checkpoint_mongo::{MongoSaver, MongoSaverBuilder};
use futures_util::TryStreamExt as _;
use mongodb::bson::{Bson, Document, doc};

use crate::shared::mongo::wire::proxy;
use crate::shared::mongo::{Database, Kind, Server, documents};

/// How the saver is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    Default,
    /// Threads expire, later with each read.
    Ttl,
    /// Every request names the shard key. Neither server has shards.
    Sharded,
}

/// What runs always: the default configuration on each server, and the others on the faster one.
const TARGETS: [(Kind, Variant, &str); 4] = [
    (Kind::Mongo, Variant::Default, "mongo"),
    (Kind::Java, Variant::Default, "mongo-java"),
    (Kind::Java, Variant::Ttl, TTL_ON_JAVA),
    (Kind::Java, Variant::Sharded, SHARDED_ON_JAVA),
];

const TTL_ON_JAVA: &str = "mongo-java with ttl";

const SHARDED_ON_JAVA: &str = "mongo-java with the shard key";

/// What runs if `CHECKPOINT_TEST_MONGO` is `all`, too.
const FURTHER: [(Kind, Variant, &str); 2] = [
    (Kind::Mongo, Variant::Ttl, "mongo with ttl"),
    (Kind::Mongo, Variant::Sharded, "mongo with the shard key"),
];

impl Variant {
    pub(crate) fn apply(self, builder: MongoSaverBuilder) -> MongoSaverBuilder {
        match self {
            Self::Default => builder,
            Self::Ttl => builder.ttl(Duration::from_secs(3600)).refresh_on_read(true),
            Self::Sharded => builder.sharded(true),
        }
    }
}

/// Whether everything runs, and not only what fits into the time of every change.
pub(crate) fn runs_all() -> bool {
    std::env::var("CHECKPOINT_TEST_MONGO").is_ok_and(|what| what == "all")
}

/// The groups of cases that run on FerretDB always: what is stored, found, ordered and deleted.
const ON_FERRETDB: [&str; 15] = [
    "conditions",
    "delete_thread",
    "delta_channel_history",
    "filters",
    "get_tuple",
    "ids",
    "keep_last",
    "list",
    "metadata",
    "prune",
    "put",
    "put_writes",
    "setup",
    "values",
    "writes",
];

/// The groups of cases that run always in the other configurations: what they change requests of.
const IN_VARIANTS: [&str; 14] = [
    "conditions",
    "copy_thread",
    "delete_for_runs",
    "delete_thread",
    "delta_channel_history",
    "filters",
    "get_tuple",
    "keep_last",
    "list",
    "prune",
    "put",
    "put_writes",
    "retention",
    "setup",
];

/// Whether a case of the suite takes too long for every change.
pub(crate) fn is_left_out(target: &str, case: &str) -> bool {
    let group = case.split("::").next().unwrap_or_default();
    let own = ["expiry", "input", "races", "runtimes"];
    let is_left_out = match target {
        "mongo" => case.contains("megabytes") || !(ON_FERRETDB.contains(&group) || own.contains(&group)),
        TTL_ON_JAVA | SHARDED_ON_JAVA => !IN_VARIANTS.contains(&group),
        _ => false,
    };
    is_left_out && !runs_all()
}

/// Every target.
pub(crate) fn targets() -> Vec<std::result::Result<Arc<dyn Target>, Missing>> {
    let target = |(kind, variant, name): (Kind, Variant, &'static str)| {
        let server = Server::find(kind).map_err(|mut missing| {
            name.clone_into(&mut missing.name);
            missing
        })?;
        Ok(Arc::new(Mongo::new(server, variant, name)) as Arc<dyn Target>)
    };
    let further = FURTHER.into_iter().filter(|_| runs_all());
    TARGETS.into_iter().chain(further).map(target).collect()
}

/// A database of its own.
#[derive(Debug)]
struct Mongo {
    name: &'static str,
    server: Server,
    variant: Variant,
    database: Database,
}

fn broken(source: mongodb::error::Error) -> Error {
    Error::new(ErrorKind::Backend, "the test cannot reach its server").with_source(source)
}

impl Mongo {
    fn new(server: Server, variant: Variant, name: &'static str) -> Self {
        Self { name, variant, database: Database::new(server.url()), server }
    }

    fn again(&self) -> Self {
        Self::new(self.server.clone(), self.variant, self.name)
    }

    fn builder(&self, url: String, options: OpenOptions) -> MongoSaverBuilder {
        let builder = MongoSaver::builder(url).opaque_values(options.opaque_values);
        let builder = match options.keep_last {
            Some(count) => builder.keep_last(count),
            None => builder,
        };
        let builder = match options.cipher {
            Some(cipher) => builder.cipher(cipher),
            None => builder,
        };
        self.variant.apply(builder)
    }

    async fn collection(&self) -> Result<mongodb::Collection<Document>> {
        Ok(self.database.tried().await.map_err(broken)?.collection("lg_checkpoints"))
    }

    async fn all(&self) -> Result<Vec<Document>> {
        let found = self.collection().await?.find(doc! {}).await.map_err(broken)?;
        found.try_collect().await.map_err(broken)
    }
}

/// What the page of `checkpoint-mongo` says under "What a call costs". Requests of one round trip are on several connections.
fn cost(call: Call) -> Cost {
    let round_trips = match call {
        Call::Put | Call::PutWrites | Call::DeleteThread | Call::Ping | Call::CheckSchema => {
            return Cost::new(1, 1);
        }
        Call::PutUnchanged | Call::PutOrphaned => return Cost::new(2, 2),
        // What is collected later, in a task of its own, is not in it.
        Call::PutPruning => 4,
        // The checkpoint that the saver has just read.
        Call::GetTuple | Call::Lease | Call::GetNothing => 1,
        Call::PutWritesConditional => 2,
        Call::PutOntoParent
        | Call::PutConditional
        | Call::AcquireLease
        | Call::RekeyNothing { dry_run: true } => 3,
        Call::PruneDelete { threads } => threads,
        Call::Setup => return Cost::new(1, 2),
        // These checkpoints have no values that are not inline; the writes are read. A full page may not be the last one.
        Call::List { checkpoints } => 2 * checkpoints.div_ceil(50) + usize::from(checkpoints % 50 == 0),
        Call::ListThreads { threads, with_state } => threads.div_ceil(128) * if with_state { 3 } else { 1 },
        Call::ListThreadIds { threads } => threads.div_ceil(128),
        Call::DeltaChannelHistory { ancestors } => 1 + 2 * ancestors.div_ceil(64),
        Call::CopyThread { .. } | Call::RekeyNothing { dry_run: false } => 6,
        Call::PruneKeepLatest { threads, namespaces } => threads * (8 + namespaces),
        Call::DeleteForRuns { threads } => 1 + 5 * threads,
        Call::Rekey { values, writes } => 14 + values + writes,
    };
    Cost::new(round_trips, Cost::ANY)
}

#[async_trait]
impl Target for Mongo {
    fn name(&self) -> &str {
        self.name
    }

    async fn open(&self, options: OpenOptions) -> Result<Saver> {
        Ok(Arc::new(self.builder(self.database.url(), options).build()?))
    }

    fn offers(&self, facility: Facility) -> bool {
        match facility {
            Facility::WholeCheckpoints => false,
            // The counts do not depend on the server, and this one is the faster one.
            Facility::RoundTrips => self.server.kind() == Kind::Java && self.variant == Variant::Default,
            // Every case is repeated with each cipher.
            Facility::Cipher => {
                (self.server.kind() == Kind::Java && self.variant == Variant::Default) || runs_all()
            }
            _ => true,
        }
    }

    async fn fresh(&self) -> Result<Arc<dyn Target>> {
        Ok(Arc::new(self.again()))
    }

    async fn for_case(&self) -> Result<Option<Arc<dyn Target>>> {
        Ok(Some(Arc::new(self.again())))
    }

    async fn raw(&self) -> Result<Vec<u8>> {
        let found = documents(&self.database.tried().await.map_err(broken)?).await.map_err(broken)?;
        Ok(found.into_iter().flat_map(mongodb::bson::RawDocumentBuf::into_bytes).collect())
    }

    async fn move_rows(&self, from_thread_id: &str, to_thread_id: &str) -> Result<()> {
        let collection = self.collection().await?;
        for mut document in self.all().await? {
            if document.get_str("t").is_ok_and(|thread_id| thread_id == from_thread_id) {
                let id = document.get_str("_id").unwrap_or_default().to_owned();
                // The ids of threads in the cases have nothing to escape.
                let moved = id.replacen(from_thread_id, to_thread_id, 1);
                document.insert("_id", moved);
                document.insert("t", to_thread_id);
                collection.delete_one(doc! { "_id": id }).await.map_err(broken)?;
                collection.insert_one(document).await.map_err(broken)?;
            }
        }
        Ok(())
    }

    async fn corrupt(&self, thread_id: &str) -> Result<()> {
        let collection = self.collection().await?;
        for mut document in self.all().await? {
            let id = document.get_str("_id").unwrap_or_default().to_owned();
            if !id.starts_with('1') || !document.get_str("t").is_ok_and(|of| of == thread_id) {
                continue;
            }
            for field in ["md", "ck"] {
                if let Some(Bson::Binary(binary)) = document.get_mut(field) {
                    let half = binary.bytes.len() / 2;
                    binary.bytes.truncate(half);
                }
            }
            collection.replace_one(doc! { "_id": id }, document).await.map_err(broken)?;
        }
        Ok(())
    }

    async fn counted(&self, options: OpenOptions) -> Result<CountedSaver> {
        let (proxy, url) = proxy(&self.database.url()).await?;
        let saver = self.builder(url, options).build()?;
        saver.setup().await?;
        Ok(Counted { handle: Arc::new(saver), proxy, cost: Box::new(cost) })
    }
}
