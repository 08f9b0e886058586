//! The checkpoints of writers, and what must hold of the keys afterwards.

use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, Checkpoint, CheckpointConfig, ListQuery, SaverExt, Value, id,
};
use checkpoint_redis::RedisSaver;

use crate::shared::redis::{INDEX, Prefix, Raw};
use crate::shared::writers::{metadata, step};

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

/// Every checkpoint of every thread can be read and is listed, writes are complete, the hash has all that the thread's order
/// names, and the saver still works.
pub(crate) async fn is_sound(prefix: &Prefix, saver: &RedisSaver) {
    let raw = prefix.raw().await;
    for key in raw.keys(prefix.name()).await.unwrap() {
        let text = String::from_utf8_lossy(&key);
        if let Some(stem) = text.strip_suffix(INDEX) {
            thread_is_sound(&raw, stem).await;
        }
    }
    for tuple in saver.list_all(ListQuery::all()).await.unwrap() {
        let writes = tuple.pending_writes.len();
        assert!(writes % 2 == 0, "{:?} has {writes} writes", tuple.config);
        assert_eq!(saver.get_tuple(&tuple.config).await.unwrap().as_ref(), Some(&tuple));
    }
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
        assert!(call.await.unwrap().unwrap(), "the saver does not work any more");
    }
}

/// The hash has what the order names. It may have more: of a copy that was dropped midway.
async fn thread_is_sound(raw: &Raw, stem: &str) {
    let fields = raw.fields(format!("{stem}:h").as_bytes()).await;
    let (_, members) = raw.contents(format!("{stem}:i").as_bytes()).await.unwrap();
    let members: Vec<_> = members.chunks(2).map(|pair| pair[0].clone()).collect();
    for member in members {
        let fields_of = match member[0] {
            b'c' => &b"cm"[..],
            b'w' => b"w",
            _ => b"",
        };
        for kind in fields_of {
            let field = [&[*kind], &member[1..]].concat();
            assert!(fields.contains_key(&field), "{stem}: {}", String::from_utf8_lossy(&field));
        }
    }
}
