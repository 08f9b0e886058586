//! A saver does not decode values: reads of a 10 MB checkpoint. A single value of bytes is the baseline: SQLite's read and
//! one copy. A list of 23,000 messages also needs the scan to its end, and decoding it into structs is the caller's cost.

#![expect(clippy::expect_used, reason = "a benchmark without its data cannot run")]

use checkpoint_benches::{Message, message};
use checkpoint_core::serde::to_msgpack;
use checkpoint_core::{
    BaseCheckpointSaver, Bytes, ChannelValue, Checkpoint, CheckpointConfig, CheckpointMetadata, TypedBytes,
    Value,
};
use checkpoint_sqlite::SqliteSaver;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

fn get_tuple(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let saver = SqliteSaver::builder(folder.path().join("bench.sqlite")).build().expect("a saver");
    let messages: Vec<Message> = (0..23_000).map(|k| message(0, k)).collect();
    let messages = to_msgpack(&messages).expect("messages encode");
    let length = messages.len();
    let one = to_msgpack(&Value::Bin(Bytes::from(vec![7; length - 5]))).expect("bytes encode");
    let mut group = criterion.benchmark_group("get_tuple, 10 MB in SQLite");
    group.throughput(Throughput::Bytes(length as u64)).sample_size(30);
    for (thread, data) in [("messages", messages), ("bytes", one)] {
        assert_eq!(data.len(), length, "both have the same size");
        let config = CheckpointConfig::new(thread);
        runtime.block_on(async {
            saver.setup().await.expect("the file is set up");
            let value = ChannelValue::Blob(TypedBytes::msgpack(data));
            let checkpoint = Checkpoint::new(0).with_channel("state", value, saver.get_next_version(None));
            let metadata = CheckpointMetadata::new("loop", 0);
            saver
                .put(&config, &checkpoint, &metadata, &checkpoint.channel_versions)
                .await
                .expect("it is stored");
        });
        group.bench_function(thread, |bencher| {
            bencher.iter(|| runtime.block_on(saver.get_tuple(&config)).expect("it is read"));
        });
        if thread == "messages" {
            group.bench_function("messages, decoded into structs", |bencher| {
                bencher.iter(|| {
                    let tuple = runtime.block_on(saver.get_tuple(&config)).expect("it is read");
                    let tuple = tuple.expect("it is there");
                    let state = tuple.checkpoint.channel_values.get("state").expect("the channel is there");
                    state.decode::<Vec<Message>>().expect("the messages decode")
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, get_tuple);
criterion_main!(benches);
