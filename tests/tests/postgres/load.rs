//! The data of a saver's writers, and the invariants to check afterwards.

use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, Checkpoint, CheckpointConfig, CheckpointMetadata, Str, Value, id,
};
use checkpoint_postgres::PostgresSaver;

use crate::shared::faults::nobody_is_inside;
use crate::shared::postgres::{Database, rows};

pub(crate) fn list(number: u64) -> ChannelValue {
    let items = (0..40).map(|at| Value::from(i64::try_from(number).unwrap() + at)).collect();
    ChannelValue::from_msgpack(Value::Array(items).to_msgpack().unwrap().into()).unwrap()
}

/// A checkpoint whose values are all new.
pub(crate) fn step(number: u64) -> Checkpoint {
    let version = format!("{:032}.{}", number + 1, id::uuid6(0));
    ["items", "more"]
        .into_iter()
        .fold(Checkpoint::new(0), |made, channel| made.with_channel(channel, list(number), version.as_str()))
        .with_channel("number", i64::try_from(number).unwrap(), version.as_str())
}

pub(crate) fn metadata() -> CheckpointMetadata {
    CheckpointMetadata::new("loop", 1)
}

pub(crate) fn writes(number: u64) -> [(Str, ChannelValue); 2] {
    [("items".into(), list(number)), ("number".into(), i64::try_from(number).unwrap().into())]
}

/// No checkpoint lacks a value that it names, writes are complete, no session is in a transaction, the pool works.
pub(crate) async fn is_sound(database: &Database, saver: &PostgresSaver) {
    const MISSING: &str = "
        SELECT c.thread_id, c.checkpoint_id, named.channel
        FROM checkpoints AS c, jsonb_each_text(c.checkpoint->'channel_versions') AS named(channel, version)
        WHERE NOT c.checkpoint->'channel_values' ? named.channel AND NOT EXISTS (
            SELECT FROM checkpoint_blobs AS b
            WHERE (b.thread_id, b.checkpoint_ns, b.channel, b.version)
                = (c.thread_id, c.checkpoint_ns, named.channel, named.version))";
    const HALF: &str = "
        SELECT thread_id, checkpoint_id, task_id FROM checkpoint_writes
        GROUP BY thread_id, checkpoint_ns, checkpoint_id, task_id HAVING count(*) <> 2";
    let client = database.client().await;
    nobody_is_inside(&client).await;
    assert_eq!(rows(&client, MISSING).await, Vec::<Vec<_>>::new(), "values that are named and missing");
    assert_eq!(rows(&client, HALF).await, Vec::<Vec<_>>::new(), "writes that are there in part");
    // More concurrent calls than the pool has connections.
    let calls: Vec<_> = (0..40)
        .map(|at| {
            let saver = saver.clone();
            tokio::spawn(async move {
                let made = step(at);
                let config = CheckpointConfig::new(format!("afterwards-{at}"));
                let stored = saver.put(&config, &made, &metadata(), &made.channel_versions).await?;
                saver.get_tuple(&stored).await.map(|found| found.unwrap().checkpoint == made)
            })
        })
        .collect();
    for call in calls {
        assert!(call.await.unwrap().unwrap(), "the pool does not work any more");
    }
}
