//! Values from some bytes to many megabytes.

use std::time::Duration;

use checkpoint_core::{
    BaseCheckpointSaver, Checkpoint, CheckpointConfig, CheckpointMetadata, Filter, ListQuery, SaverExt,
    TypedBytes,
};

use super::load::{Own, builder, has_no_garbage, put};
use crate::shared::mongo::{Server, Test, tests};

/// Bytes that do not repeat.
fn noise(length: usize) -> Vec<u8> {
    let number = |at: usize| u32::try_from(at).unwrap().wrapping_mul(2_654_435_761).to_be_bytes();
    (0..=length / 4).flat_map(number).take(length).collect()
}

async fn values_of_every_size(server: &Server) {
    const MIB: usize = 1 << 20;
    let own = Own::set_up(server).await;
    for length in [255, 256, 257, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 16 * MIB - 1, 16 * MIB, 16 * MIB + 1] {
        let config = CheckpointConfig::new("thread");
        let value = TypedBytes::new("bytes", noise(length));
        let made = Checkpoint::new(0).with_channel("value", value.clone(), i64::try_from(length).unwrap());
        let stored = put(&own.saver, &config, &made).await.unwrap();
        own.saver.put_writes(&stored, &[("value".into(), value.clone().into())], "task", "").await.unwrap();
        let fresh = builder(&own.database.url()).build().unwrap();
        let tuple = fresh.get_tuple(&stored).await.unwrap().unwrap();
        assert!(tuple.checkpoint == made, "{length} bytes: the checkpoint");
        assert!(tuple.pending_writes[0].value == value.into(), "{length} bytes: the write");
        own.saver.delete_thread("thread").await.unwrap();
        assert_eq!(own.documents("thread").await, 0);
    }
}

async fn sixty_megabytes(server: &Server) {
    let own = Own::set_up(server).await;
    let config = CheckpointConfig::new("thread");
    let value = TypedBytes::new("bytes", noise(60_000_000));
    let made = Checkpoint::new(0).with_channel("value", value.clone(), 1);
    let stored = put(&own.saver, &config, &made).await.unwrap();
    // A large special write, which a small one replaces.
    own.saver.put_writes(&stored, &[("__error__".into(), value.clone().into())], "task", "").await.unwrap();
    let tuple = builder(&own.database.url()).build().unwrap().get_tuple(&stored).await.unwrap().unwrap();
    assert!(tuple.checkpoint == made && tuple.pending_writes[0].value == value.into());
    own.saver.put_writes(&stored, &[("__error__".into(), "small".into())], "task", "").await.unwrap();
    let tuple = own.saver.get_tuple(&stored).await.unwrap().unwrap();
    assert_eq!(tuple.pending_writes[0].value, "small".into());
    // The chunks of the large one.
    assert_eq!(own.saver.collect_garbage("thread", Duration::ZERO).await.unwrap(), 8);
    has_no_garbage(&own, "thread").await;
}

async fn large_metadata(server: &Server) {
    let own = Own::set_up(server).await;
    let metadata = CheckpointMetadata::new("loop", 0).with("large", "x".repeat(20_000_000)).with("small", 1);
    let made = Checkpoint::new(0);
    let stored = own
        .saver
        .put(&CheckpointConfig::new("thread"), &made, &metadata, &made.channel_versions)
        .await
        .unwrap();
    let query = ListQuery::thread("thread").filter(Filter::new().eq("small", 1));
    let found = own.saver.list_all(query).await.unwrap();
    assert!(found.len() == 1 && found[0].metadata == metadata && found[0].config == stored);
}

pub(crate) fn tests() -> &'static [Test] {
    tests![values_of_every_size, sixty_megabytes, large_metadata]
}
