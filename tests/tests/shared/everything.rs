//! One call of every method, for servers and configurations on which the suite does not run.

#![allow(dead_code, reason = "each binary uses its part of this")]

use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, Checkpoint, CheckpointConfig, CheckpointMetadata, ListQuery,
    PruneStrategy, SaverExt, ThreadQuery, TypedBytes, id,
};
use futures_util::TryStreamExt;

use super::trials::unique_name;

pub(crate) fn value() -> ChannelValue {
    TypedBytes::new("bytes", (0..=u8::MAX).collect::<Vec<_>>()).into()
}

/// A checkpoint with a scalar, a number that is easily cut short, and bytes.
pub(crate) fn checkpoint() -> Checkpoint {
    let version = id::uuid6(0);
    Checkpoint::new(0)
        .with_channel("text", r"back\slash 'quote' é", &*version)
        .with_channel("number", 0.1 + 0.2, &*version)
        .with_channel("bytes", value(), &*version)
}

/// Calls every method and checks its effect.
pub(crate) async fn everything_works(saver: &impl BaseCheckpointSaver) {
    let (thread, copy) = (unique_name(), unique_name());
    let mut config = CheckpointConfig::new(thread.as_str());
    let mut made = Vec::new();
    for step in 0..3 {
        let checkpoint = checkpoint();
        let metadata = CheckpointMetadata::new("loop", step).with("run_id", format!("{thread}-{step}"));
        config = saver.put(&config, &checkpoint, &metadata, &checkpoint.channel_versions).await.unwrap();
        for (task, channel) in [("task", "bytes"), ("special", "__resume__")] {
            saver.put_writes(&config, &[(channel.into(), value())], task, "~path").await.unwrap();
        }
        made.push(checkpoint);
    }
    let newest = saver.get_tuple(&config).await.unwrap().unwrap();
    assert_eq!(newest.checkpoint, made[2]);
    assert_eq!(
        newest.pending_writes.iter().map(|write| &write.value).collect::<Vec<_>>(),
        [&value(), &value()]
    );
    let listed = saver.list_all(ListQuery::thread(thread.as_str())).await.unwrap();
    assert!(listed.iter().map(|tuple| &tuple.checkpoint).eq(made.iter().rev()));
    let threads: Vec<_> = saver.list_threads(ThreadQuery::all()).try_collect().await.unwrap();
    assert!(threads.iter().any(|found| *found.thread_id == *thread));
    let history = saver.get_delta_channel_history(&config, &["bytes"]).await.unwrap();
    assert_eq!(history["bytes"].seed, Some(value()));

    saver.copy_thread(&thread, &copy).await.unwrap();
    saver.delete_for_runs(&[&format!("{thread}-0")]).await.unwrap();
    // The copy has the same runs.
    assert_eq!(saver.list_all(ListQuery::thread(copy.as_str())).await.unwrap().len(), 2);
    saver.prune(&[&thread], PruneStrategy::KeepLatest).await.unwrap();
    assert_eq!(saver.list_all(ListQuery::thread(thread.as_str())).await.unwrap().len(), 1);
    assert_eq!(saver.get_tuple(&config).await.unwrap().unwrap().checkpoint, made[2]);
    saver.prune(&[&copy], PruneStrategy::Delete).await.unwrap();
    saver.delete_thread(&thread).await.unwrap();
    for thread in [thread, copy] {
        assert_eq!(saver.list_all(ListQuery::thread(thread.as_str())).await.unwrap(), []);
    }
}
