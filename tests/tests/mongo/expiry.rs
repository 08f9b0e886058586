//! Threads that expire.

use std::time::Duration;

use checkpoint_core::{BaseCheckpointSaver, CheckpointConfig, ListQuery, SaverExt, ThreadQuery};
use futures_util::TryStreamExt as _;
use mongodb::bson::{DateTime, doc};

use super::load::{Own, builder, conversation, put};
use crate::shared::mongo::{Server, Test, tests};

const HOUR: Duration = Duration::from_secs(3600);

/// Lets so much time pass for a thread.
async fn pass(own: &Own, thread_id: &str, time: Duration) {
    let collection = own.collection().await;
    let all: Vec<_> = collection.find(doc! { "t": thread_id }).await.unwrap().try_collect().await.unwrap();
    for document in all {
        let expiry = document.get_datetime("x").unwrap().timestamp_millis();
        let expiry = DateTime::from_millis(expiry - i64::try_from(time.as_millis()).unwrap());
        let id = document.get_str("_id").unwrap();
        collection.update_one(doc! { "_id": id }, doc! { "$set": { "x": expiry } }).await.unwrap();
    }
}

async fn is_gone(own: &Own, thread_id: &str) -> bool {
    // Without a time to live as well: the documents say when they expire.
    for saver in [
        builder(&own.database.url()).build().unwrap(),
        builder(&own.database.url()).ttl(HOUR).build().unwrap(),
    ] {
        let latest = saver.get_tuple(&CheckpointConfig::new(thread_id)).await.unwrap();
        let listed = saver.list_all(ListQuery::thread(thread_id)).await.unwrap();
        if latest.is_some() || !listed.is_empty() {
            return false;
        }
    }
    let saver = builder(&own.database.url()).ttl(HOUR).build().unwrap();
    let threads: Vec<_> = saver.list_threads(ThreadQuery::all()).try_collect().await.unwrap();
    assert!(threads.iter().all(|thread| *thread.thread_id != *thread_id));
    true
}

async fn a_thread_expires_as_a_whole(server: &Server) {
    let own = Own::set_up(server).await;
    let saver = builder(&own.database.url()).ttl(HOUR).build().unwrap();
    let first = put(&saver, &CheckpointConfig::new("thread"), &conversation(0)).await.unwrap();
    put(&saver, &CheckpointConfig::new("other"), &conversation(0)).await.unwrap();
    pass(&own, "thread", HOUR / 2).await;
    // Another write raises all of it, the unchanged value among it.
    let saver = builder(&own.database.url()).ttl(HOUR).build().unwrap();
    let made = conversation(1);
    let second = put(&saver, &first, &made).await.unwrap();
    pass(&own, "thread", HOUR / 4 * 3).await;
    assert_eq!(saver.purge_expired().await.unwrap(), 0);
    let fresh = builder(&own.database.url()).build().unwrap();
    assert_eq!(fresh.get_tuple(&second).await.unwrap().unwrap().checkpoint, made);
    assert!(fresh.get_tuple(&first).await.unwrap().is_some());
    // Checkpoints first, what they need later.
    pass(&own, "thread", HOUR / 4).await;
    assert!(is_gone(&own, "thread").await);
    assert_eq!(saver.purge_expired().await.unwrap(), 2);
    pass(&own, "thread", HOUR).await;
    assert!(saver.purge_expired().await.unwrap() > 0);
    assert_eq!(own.documents("thread").await, 0);
    assert!(fresh.get_tuple(&CheckpointConfig::new("other")).await.unwrap().is_some());
}

/// A step onto a checkpoint that has expired stores all of its values.
async fn a_step_after_the_end(server: &Server) {
    let own = Own::set_up(server).await;
    let saver = builder(&own.database.url()).ttl(HOUR).build().unwrap();
    let first = put(&saver, &CheckpointConfig::new("thread"), &conversation(0)).await.unwrap();
    pass(&own, "thread", HOUR * 2).await;
    let made = conversation(1);
    let new =
        made.channel_versions.clone().into_iter().filter(|(channel, _)| &**channel != "constant").collect();
    let second = saver.put(&first, &made, &crate::shared::writers::metadata(), &new).await.unwrap();
    saver.purge_expired().await.unwrap();
    let fresh = builder(&own.database.url()).build().unwrap();
    assert_eq!(fresh.get_tuple(&second).await.unwrap().unwrap().checkpoint, made);
    assert_eq!(fresh.list_all(ListQuery::thread("thread")).await.unwrap().len(), 1);
}

async fn reads_count_if_they_are_to(server: &Server) {
    let own = Own::set_up(server).await;
    let saver = builder(&own.database.url()).ttl(HOUR).build().unwrap();
    for thread_id in ["read", "refreshed"] {
        put(&saver, &CheckpointConfig::new(thread_id), &conversation(0)).await.unwrap();
        pass(&own, thread_id, HOUR / 2).await;
    }
    let refreshing = builder(&own.database.url()).ttl(HOUR).refresh_on_read(true).build().unwrap();
    refreshing.get_tuple(&CheckpointConfig::new("refreshed")).await.unwrap().unwrap();
    let other = builder(&own.database.url()).ttl(HOUR).build().unwrap();
    other.get_tuple(&CheckpointConfig::new("read")).await.unwrap().unwrap();
    for thread_id in ["read", "refreshed"] {
        pass(&own, thread_id, HOUR / 4 * 3).await;
    }
    assert!(is_gone(&own, "read").await && !is_gone(&own, "refreshed").await);
}

pub(crate) fn tests() -> &'static [Test] {
    tests![a_thread_expires_as_a_whole, a_step_after_the_end, reads_count_if_they_are_to]
}
