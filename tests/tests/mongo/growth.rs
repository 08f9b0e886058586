//! How many bytes and requests calls cost, seen between driver and server.

use checkpoint_core::{BaseCheckpointSaver, CheckpointConfig, ListQuery, SaverExt, Value};
use checkpoint_mongo::MongoSaver;

use super::load::{Own, conversation, encode, put};
use crate::shared::mongo::wire::Relay;
use crate::shared::mongo::{Server, Test, tests};
use crate::shared::soak::Random;

/// A text that does not compress.
fn text(random: &mut Random, length: usize) -> String {
    (0..length).map(|_| char::from(b' ' + u8::try_from(random.below(90)).unwrap())).collect()
}

/// Versions as LangGraph makes them.
fn version(saver: &MongoSaver, step: u64) -> checkpoint_core::ChannelVersion {
    let earlier = format!("{step:032}.0.5");
    saver.get_next_version(Some(&earlier.as_str().into()))
}

/// The bytes of a conversation with one message of 1 KB in each step.
async fn converse(server: &Server, steps: u64, most: usize) {
    let own = Own::set_up(server).await;
    let relay = Relay::start(server.url()).await.unwrap();
    let saver = own.at(relay.url()).build().unwrap();
    let mut random = Random(3);
    let mut config = CheckpointConfig::new("thread");
    let mut messages = Vec::new();
    for step in 0..steps {
        messages.push(Value::from(text(&mut random, 1024)));
        let value = encode(&Value::Array(messages.clone()));
        let made = checkpoint_core::Checkpoint::new(0).with_channel("messages", value, version(&saver, step));
        config = put(&saver, &config, &made).await.unwrap();
    }
    let seen = relay.take();
    println!("{steps} steps with one message of 1 KB each: {seen:?}");
    assert!(seen.sent < most, "{} bytes", seen.sent);
    let latest = own.saver.get_tuple(&config).await.unwrap().unwrap();
    assert_eq!(latest.checkpoint.channel_values["messages"], encode(&Value::Array(messages)));
}

async fn a_conversation_of_300_steps(server: &Server) {
    converse(server, 300, 2_500_000).await;
}

async fn a_conversation_of_1000_steps(server: &Server) {
    converse(server, 1000, 12_000_000).await;
}

/// The requests of calls as an agent makes them.
async fn requests(server: &Server) {
    let own = Own::set_up(server).await;
    let relay = Relay::start(server.url()).await.unwrap();
    let saver = own.at(relay.url()).build().unwrap();
    saver.ping().await.unwrap();
    let mut config = CheckpointConfig::new("thread");
    for step in 0..102 {
        config = put(&saver, &config, &conversation(step)).await.unwrap();
        let writes = [("a".into(), 1.into()), ("b".into(), 2.into())];
        saver.put_writes(&config, &writes, "task", "").await.unwrap();
    }
    let count = |what: &str, expected: &[(&str, usize)]| {
        let seen = relay.take();
        let found: Vec<(&str, usize)> = seen.commands.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        println!("{what}: {found:?}, {} bytes sent, {} received", seen.sent, seen.received);
        assert_eq!(found, expected, "{what}");
    };
    relay.take();
    let made = conversation(102);
    // An unchanged value is carried over: the parent is looked for at the same time.
    let new =
        made.channel_versions.clone().into_iter().filter(|(channel, _)| &**channel != "constant").collect();
    config = saver.put(&config, &made, &crate::shared::writers::metadata(), &new).await.unwrap();
    count("put", &[("find", 1), ("insert", 1)]);
    saver.put_writes(&config, &[("a".into(), 1.into())], "task", "").await.unwrap();
    count("put_writes", &[("insert", 1)]);
    saver.put_writes(&config, &[("__error__".into(), "x".into())], "task", "").await.unwrap();
    count("put_writes of special channels", &[("update", 1)]);
    saver.get_tuple(&config).await.unwrap().unwrap();
    count("get_tuple", &[("find", 3)]);
    let listed = saver.list_all(ListQuery::thread("thread").checkpoint_ns("").limit(102)).await.unwrap();
    assert_eq!(listed.len(), 102);
    let seen = relay.take();
    println!("list of 102: {:?}, {} bytes received", seen.commands, seen.received);
    let finds = seen.commands["find"];
    // Of each page values and writes are read at the same time.
    assert!(finds <= 12, "{:?}", seen.commands);
    saver.delete_thread("thread").await.unwrap();
    count("delete_thread", &[("delete", 1)]);
}

pub(crate) fn tests() -> &'static [Test] {
    tests![a_conversation_of_300_steps, a_conversation_of_1000_steps, requests]
}
