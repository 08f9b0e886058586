//! How much memory threads take.

use checkpoint_core::{BaseCheckpointSaver, ChannelValue, Checkpoint, CheckpointConfig, Value};
use checkpoint_redis::RedisSaver;

use super::load::encode;
use crate::shared::redis::{HASH, INDEX, Prefix, Server, Test, tests};
use crate::shared::soak::Random;
use crate::shared::writers::metadata;

async fn memory(prefix: &Prefix, thread_id: &str) -> u64 {
    let raw = prefix.raw().await;
    raw.memory(&prefix.key(thread_id, HASH)).await + raw.memory(&prefix.key(thread_id, INDEX)).await
}

/// A text that does not compress.
fn text(random: &mut Random, length: usize) -> String {
    (0..length).map(|_| char::from(b' ' + u8::try_from(random.below(90)).unwrap())).collect()
}

/// Versions as LangGraph makes them.
fn version(saver: &RedisSaver, step: u64) -> checkpoint_core::ChannelVersion {
    let earlier = format!("{step:032}.0.5");
    saver.get_next_version(Some(&earlier.as_str().into()))
}

async fn a_long_conversation(server: &Server) {
    let prefix = Prefix::set_up(server.url()).await;
    let saver = prefix.builder().build().unwrap();
    let mut random = Random(3);
    let mut config = CheckpointConfig::new("thread");
    let mut messages = Vec::new();
    for step in 0..1000 {
        messages.push(Value::from(text(&mut random, 1024)));
        let value = encode(&Value::Array(messages.clone()));
        let made = Checkpoint::new(0).with_channel("messages", value, version(&saver, step));
        config = saver.put(&config, &made, &metadata(), &made.channel_versions).await.unwrap();
    }
    let latest = saver.get_tuple(&config).await.unwrap().unwrap();
    assert_eq!(latest.checkpoint.channel_values["messages"], encode(&Value::Array(messages)));
    let taken = memory(&prefix, "thread").await;
    println!("1,000 steps with one message of 1 KB each: {taken} bytes");
    assert!(taken < 12_000_000, "{taken} bytes");
}

async fn tiny_checkpoints_with_writes(server: &Server) {
    const STEPS: u64 = 200;
    let prefix = Prefix::set_up(server.url()).await;
    let saver = prefix.builder().build().unwrap();
    let mut config = CheckpointConfig::new("thread");
    for step in 0..STEPS {
        let number = i64::try_from(step).unwrap();
        let made = Checkpoint::new(0).with_channel("count", number, version(&saver, step)).with_channel(
            "branch:to:node",
            ChannelValue::Null,
            version(&saver, step),
        );
        config = saver.put(&config, &made, &metadata(), &made.channel_versions).await.unwrap();
        let task = checkpoint_core::id::uuid6(0);
        let writes = [("count".into(), number.into()), ("branch:to:node".into(), ChannelValue::Null)];
        saver.put_writes(&config, &writes, &task, "~__pregel_pull, node").await.unwrap();
    }
    let each = memory(&prefix, "thread").await / STEPS;
    println!("a tiny checkpoint with two writes: {each} bytes");
    assert!(each <= 2500, "{each} bytes for each checkpoint");
}

/// Values that do not change are stored once.
async fn an_unchanged_value(server: &Server) {
    const STEPS: u64 = 50;
    let prefix = Prefix::set_up(server.url()).await;
    let saver = prefix.builder().build().unwrap();
    let large = encode(&Value::Array((0..5000).map(|at| f64::from(at).into()).collect()));
    let mut config = CheckpointConfig::new("thread");
    for step in 0..STEPS {
        let number = i64::try_from(step).unwrap();
        let made = Checkpoint::new(0).with_channel("large", large.clone(), 1).with_channel(
            "count",
            number,
            number + 1,
        );
        let mut new_versions = made.channel_versions.clone();
        if step > 0 {
            new_versions.retain(|channel, _| &**channel != "large");
        }
        config = saver.put(&config, &made, &metadata(), &new_versions).await.unwrap();
        assert_eq!(saver.get_tuple(&config).await.unwrap().unwrap().checkpoint, made);
    }
    let taken = memory(&prefix, "thread").await;
    assert!(taken < 200_000, "{taken} bytes");
}

pub(crate) fn tests() -> &'static [Test] {
    tests![a_long_conversation, tiny_checkpoints_with_writes, an_unchanged_value]
}
