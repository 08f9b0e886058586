//! The checkpoints of writers, and what must hold of the collection afterwards.

use std::time::Duration;

use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, Checkpoint, CheckpointConfig, ListQuery, SaverExt, Value, id,
};
use checkpoint_mongo::{MongoSaver, MongoSaverBuilder};
use mongodb::bson::{Document, doc};

use crate::shared::mongo::{Database, Server};
use crate::shared::writers::{metadata, step};

/// A saver on a database of its own.
pub(crate) struct Own {
    pub(crate) database: Database,
    pub(crate) saver: MongoSaver,
}

impl Own {
    pub(crate) async fn set_up(server: &Server) -> Self {
        let database = Database::new(server.url());
        let saver = builder(&database.url()).build().unwrap();
        saver.setup().await.unwrap();
        Self { database, saver }
    }

    pub(crate) async fn collection(&self) -> mongodb::Collection<Document> {
        self.database.raw().await.collection("lg_checkpoints")
    }

    /// How many documents of a thread are stored.
    pub(crate) async fn documents(&self, thread_id: &str) -> u64 {
        self.collection().await.count_documents(doc! { "t": thread_id }).await.unwrap()
    }

    /// Another saver on the same database, by way of another address.
    pub(crate) fn at(&self, url: &str) -> MongoSaverBuilder {
        builder(&self.database.at(url))
    }
}

pub(crate) fn builder(url: &str) -> MongoSaverBuilder {
    MongoSaver::builder(url)
}

/// A list of messages, long enough to be stored in parts that versions share.
pub(crate) fn messages(count: u64) -> ChannelValue {
    let message = |at: u64| Value::from(format!("message {at} {}", "of some length ".repeat(30)));
    encode(&Value::Array((0..count).map(message).collect()))
}

pub(crate) fn encode(value: &Value) -> ChannelValue {
    ChannelValue::from_msgpack(value.to_msgpack().unwrap().into()).unwrap()
}

/// What `step` makes, and a conversation that grows, and a value that never changes.
pub(crate) fn conversation(number: u64) -> Checkpoint {
    let version = format!("{:032}.{}", number + 1, id::uuid6(0));
    step(number).with_channel("messages", messages(20 + number % 40), version.as_str()).with_channel(
        "constant",
        encode(&Value::Array(vec![1.into(); 500])),
        "1",
    )
}

pub(crate) async fn put(
    saver: &MongoSaver,
    parent: &CheckpointConfig,
    made: &Checkpoint,
) -> checkpoint_core::Result<CheckpointConfig> {
    saver.put(parent, made, &metadata(), &made.channel_versions).await
}

/// Every checkpoint of every thread can be read and is listed, writes are complete, the garbage of calls that were cut off
/// can be collected, and takes nothing else with it.
pub(crate) async fn is_sound(own: &Own) {
    let saver = &own.saver;
    let before = saver.list_all(ListQuery::all()).await.unwrap();
    for tuple in &before {
        let writes = tuple.pending_writes.len();
        assert!(writes % 2 == 0, "{:?} has {writes} writes", tuple.config);
    }
    let mut threads: Vec<&str> = before.iter().map(|tuple| tuple.config.thread_id()).collect();
    threads.sort_unstable();
    threads.dedup();
    for thread_id in threads {
        saver.collect_garbage(thread_id, Duration::ZERO).await.unwrap();
        has_no_garbage(own, thread_id).await;
    }
    // Nothing that is remembered helps this one.
    let fresh = builder(&own.database.url()).build().unwrap();
    assert_eq!(fresh.list_all(ListQuery::all()).await.unwrap(), before);
}

/// Every value and segment of a thread is referred to.
pub(crate) async fn has_no_garbage(own: &Own, thread_id: &str) {
    let again = own.saver.collect_garbage(thread_id, Duration::ZERO).await.unwrap();
    assert_eq!(again, 0, "garbage was left in {thread_id}");
}
