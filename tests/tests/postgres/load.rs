//! What must hold of a database after writers and faults.

use checkpoint_core::{BaseCheckpointSaver, CheckpointConfig};
use checkpoint_postgres::PostgresSaver;

use crate::shared::faults::nobody_is_inside;
use crate::shared::postgres::{Database, rows};
use crate::shared::writers::{metadata, step};

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
