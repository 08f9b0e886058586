//! A saver does not decode values: a read allocates the bytes of a value once.

use checkpoint_benches::messages;
use checkpoint_core::serde::to_msgpack;
use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, Checkpoint, CheckpointConfig, CheckpointMetadata, TypedBytes,
};
use checkpoint_sqlite::SqliteSaver;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// The only test of this binary, because the counts are those of the whole process. They exclude SQLite's memory.
#[tokio::test]
async fn a_read_of_10_mb_allocates_them_once() {
    let folder = tempfile::tempdir().unwrap();
    let saver = SqliteSaver::builder(folder.path().join("bench.sqlite")).readers(1).build().unwrap();
    saver.setup().await.unwrap();
    let list = to_msgpack(&messages(0, 24_000)).unwrap();
    let size = list.len();
    assert!(size > 10_000_000, "{size}");
    let put = async |thread: &str, value: ChannelValue| {
        let checkpoint = Checkpoint::new(0).with_channel("state", value, saver.get_next_version(None));
        let config = CheckpointConfig::new(thread);
        let metadata = CheckpointMetadata::new("loop", 0);
        saver.put(&config, &checkpoint, &metadata, &checkpoint.channel_versions).await.unwrap();
    };
    put("list", TypedBytes::msgpack(list).into()).await;
    put("bytes", TypedBytes::new("bytes", vec![7; size]).into()).await;
    put("small", 1_i64.into()).await;
    // Starts the reader thread and prepares its statements.
    saver.get_tuple(&CheckpointConfig::new("small")).await.unwrap().unwrap();

    let profiler = dhat::Profiler::builder().testing().build();
    for thread in ["list", "bytes"] {
        let before = dhat::HeapStats::get();
        let tuple = saver.get_tuple(&CheckpointConfig::new(thread)).await.unwrap().unwrap();
        let after = dhat::HeapStats::get();
        let Some(ChannelValue::Blob(blob)) = tuple.checkpoint.channel_values.get("state") else {
            panic!("the state came back as something else");
        };
        assert_eq!(blob.data.len(), size);
        let bytes = usize::try_from(after.total_bytes - before.total_bytes).unwrap();
        let blocks = after.total_blocks - before.total_blocks;
        assert!((size..size + size / 50).contains(&bytes), "{thread}: {bytes} bytes for {size}");
        assert!(blocks < 200, "{thread}: {blocks} allocations");
    }
    drop(profiler);
}
