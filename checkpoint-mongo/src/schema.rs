//! The collection and the version of its format.

use std::time::Duration;

use checkpoint_core::backend::jitter;
use checkpoint_core::{Error, ErrorKind, Result, id};
use futures_util::future::try_join;
use mongodb::bson::{Bson, DateTime, Document, doc};

use crate::client::Inserted;
use crate::keys::{LOCK, SCHEMA};
use crate::shared::Shared;

/// The version of the format that this program writes.
const FORMAT: i32 = 1;

/// How long a lock holds that its owner does not give back.
const LOCKED: Duration = Duration::from_secs(20);

/// How often the lock is tried.
const ATTEMPTS: usize = 600;

/// Prepares the collection, and stores the version of the format, if there is none.
pub(crate) async fn set_up(shared: &Shared) -> Result<()> {
    let (collated, stored) = try_join(collation(shared), stored(shared)).await?;
    refuse(collated)?;
    if let Some(stored) = stored {
        compare(&stored)?;
    } else {
        let lock = Lock::take(shared).await?;
        let prepared = prepare(shared).await;
        lock.give_back(shared).await?;
        prepared?;
        check(shared).await?;
    }
    shared.set_checked();
    Ok(())
}

async fn prepare(shared: &Shared) -> Result<()> {
    if shared.mongo.is_sharded() {
        shard(shared).await?;
    }
    // The first document makes the collection.
    shared.mongo.insert(&[doc! { "_id": SCHEMA, "t": "", "v": FORMAT, "ct": DateTime::now() }], true).await?;
    // Somebody may have made it at this moment.
    refuse(collation(shared).await?)
}

/// Shards the collection by a hash of the thread, unless it is sharded.
async fn shard(shared: &Shared) -> Result<()> {
    let hello = match shared.mongo.admin(doc! { "hello": 1 }).await {
        // As older servers call it.
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            shared.mongo.admin(doc! { "isMaster": 1 }).await?
        }
        answered => answered?,
    };
    if !hello.get_str("msg").is_ok_and(|message| message == "isdbgrid") {
        tracing::warn!(
            "the server is not a mongos, so the collection is not sharded; calls name the shard key all the same"
        );
        return Ok(());
    }
    let index = doc! {
        "createIndexes": shared.mongo.collection_name(),
        "indexes": [{ "key": { "t": "hashed" }, "name": "t_hashed" }],
    };
    shared.mongo.command(index).await?;
    let command = doc! { "shardCollection": shared.mongo.namespace(), "key": { "t": "hashed" } };
    let refused = |error: Error| {
        let message = "the server does not shard the collection; grant the user the role clusterManager, or shard it by \
                       {t: \"hashed\"} and run setup() with sharded left out";
        Error::invalid_config(message).with_source(error)
    };
    shared.mongo.admin(command).await.map(|_| ()).map_err(refused)
}

/// The collation of the collection, if it has one.
async fn collation(shared: &Shared) -> Result<Option<String>> {
    let options = shared.mongo.collection_options().await?.unwrap_or_default();
    let collation =
        options.get_document("collation").ok().and_then(|collation| collation.get_str("locale").ok());
    Ok(collation.filter(|locale| *locale != "simple").map(str::to_owned))
}

/// The collection compares texts byte by byte: another collation could take two ids for one.
fn refuse(collation: Option<String>) -> Result<()> {
    match collation {
        None => Ok(()),
        Some(locale) => Err(Error::new(
            ErrorKind::Schema,
            "the collection has a collation, by which different ids can be equal; use another collection",
        )
        .with("collation", locale)),
    }
}

async fn stored(shared: &Shared) -> Result<Option<Document>> {
    shared.mongo.get("", SCHEMA, None).await
}

/// Checks the version of the format.
pub(crate) async fn check(shared: &Shared) -> Result<()> {
    let Some(found) = stored(shared).await? else {
        return Err(Error::new(
            ErrorKind::Schema,
            "the database has no such collection of checkpoints; run setup()",
        ));
    };
    compare(&found)
}

fn compare(found: &Document) -> Result<()> {
    match found.get("v") {
        Some(Bson::Int32(FORMAT)) => Ok(()),
        Some(Bson::Int64(version)) if *version == i64::from(FORMAT) => Ok(()),
        newer => Err(Error::new(
            ErrorKind::Schema,
            "the checkpoints of this collection have another format; use a program of its version",
        )
        .with("format", newer.map(ToString::to_string).unwrap_or_default())
        .with("known_format", FORMAT)),
    }
}

/// The lock of `setup()`: a document that one process inserts.
struct Lock {
    owner: String,
}

impl Lock {
    async fn take(shared: &Shared) -> Result<Self> {
        let owner = id::uuid6(0).to_string();
        for _ in 0..ATTEMPTS {
            let until = DateTime::from_millis(
                DateTime::now().timestamp_millis() + i64::try_from(LOCKED.as_millis()).unwrap_or(0),
            );
            let lock = doc! { "_id": LOCK, "t": "", "owner": &owner, "until": until };
            if shared.mongo.insert(&[lock], true).await? == Inserted::All {
                return Ok(Self { owner });
            }
            let held = shared.mongo.get("", LOCK, None).await?;
            if let Some(held) = held {
                let by = held.get_str("owner").unwrap_or_default();
                if by == owner {
                    // The reply to the insert was lost.
                    return Ok(Self { owner });
                }
                if held.get_datetime("until").is_ok_and(|until| *until < DateTime::now()) {
                    // Its owner died: whoever deletes exactly this lock tries again like all others.
                    shared.mongo.delete(vec![doc! { "_id": LOCK, "owner": by }]).await?;
                    continue;
                }
            }
            tokio::time::sleep(Duration::from_millis(50).mul_f64(0.5 + jitter())).await;
            if stored(shared).await?.is_some() {
                // Another process has done it.
                return Ok(Self { owner });
            }
        }
        Err(Error::new(ErrorKind::Timeout, "another process holds the lock of setup(); try again")
            .retryable(true))
    }

    async fn give_back(self, shared: &Shared) -> Result<()> {
        shared.mongo.delete(vec![doc! { "_id": LOCK, "owner": self.owner }]).await.map(|_| ())
    }
}
