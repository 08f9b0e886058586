//! Hostile names and values, and databases that cannot be used.

use std::collections::BTreeSet;
use std::time::Duration;

use checkpoint_core::{
    BaseCheckpointSaver, Checkpoint, CheckpointConfig, CheckpointMetadata, ErrorKind, Filter, ListQuery,
    SaverExt, ThreadQuery, TypedBytes, Value,
};
use futures_util::TryStreamExt as _;
use mongodb::bson::{Document, doc};

use super::load::{Own, builder, conversation, put};
use crate::shared::mongo::wire::Relay;
use crate::shared::mongo::{Database, Server, Test, tests};

/// The operators that the crate's page names, and the protocol's name of the database.
const OPERATORS: [&str; 13] =
    ["$db", "$all", "$and", "$eq", "$exists", "$gte", "$in", "$lt", "$ne", "$not", "$or", "$set", "$unset"];

/// Names of threads, namespaces, tasks and channels.
fn names() -> Vec<String> {
    let long = "l".repeat(10_000);
    let names = [
        "",
        " ",
        "!",
        "\"",
        "#",
        "%",
        "~",
        "|",
        ":",
        ".",
        "$",
        "/",
        "\0",
        "\u{1f600}\u{e9}",
        "a",
        "A",
        "a.b",
        "$x",
        "ab",
        "a!b",
        "!schema",
        "!lock",
        "__start__",
        "$where",
        "{$gt: 1}",
        &long,
        &format!("{long}x"),
    ];
    names.iter().map(ToString::to_string).collect()
}

async fn hostile_names(server: &Server) {
    let own = Own::set_up(server).await;
    let relay = Relay::start(server.url()).await.unwrap();
    let saver = own.at(relay.url()).build().unwrap();
    let mut stored = Vec::new();
    for (at, name) in names().into_iter().enumerate() {
        let config = CheckpointConfig::new(name.as_str()).with_checkpoint_ns(name.as_str());
        let value = TypedBytes::new("bytes", format!("value {at}").into_bytes());
        let made = Checkpoint::new(0).with_channel(name.as_str(), value, 1);
        let metadata =
            CheckpointMetadata::new("loop", 0).with(name.replace('\0', "0"), name.replace('\0', "0"));
        let config = saver.put(&config, &made, &metadata, &made.channel_versions).await.unwrap();
        saver.put_writes(&config, &[(name.as_str().into(), "w".into())], &name, &name).await.unwrap();
        stored.push((name, config, made));
    }
    for (name, config, made) in &stored {
        let tuple = saver.get_tuple(config).await.unwrap().unwrap();
        assert_eq!(&tuple.checkpoint, made);
        let write = &tuple.pending_writes[0];
        assert_eq!((&*write.task_id, &*write.channel), (name.as_str(), name.as_str()));
        let only = saver.list_all(ListQuery::thread(name.as_str())).await.unwrap();
        assert_eq!(only.len(), 1, "{name:?}");
        let key = name.replace('\0', "0");
        let filter = Filter::new().eq(key.as_str(), key.as_str());
        let found = saver.list_all(ListQuery::all().filter(filter)).await.unwrap();
        assert!(found.iter().any(|tuple| tuple.config == *config), "{name:?}");
    }
    // Injected operators are nothing but values.
    for wanted in ["$gt", "$ne", "$where"] {
        let value = Value::Map(vec![(wanted.into(), "".into())]);
        let found = saver.list_all(ListQuery::all().filter(Filter::new().eq("source", value))).await.unwrap();
        assert!(found.is_empty());
    }
    let ids: BTreeSet<String> =
        saver.list_thread_ids(ThreadQuery::all()).map_ok(|id| id.to_string()).try_collect().await.unwrap();
    assert_eq!(ids, names().into_iter().collect());
    let threads: Vec<_> = saver.list_threads(ThreadQuery::all()).try_collect().await.unwrap();
    assert_eq!(threads.len(), stored.len());
    for (at, (name, ..)) in stored.iter().enumerate() {
        saver.delete_thread(name).await.unwrap();
        assert_eq!(saver.list_all(ListQuery::all()).await.unwrap().len(), stored.len() - at - 1, "{name:?}");
    }
    let seen = relay.take();
    let known: BTreeSet<String> = OPERATORS.iter().map(ToString::to_string).collect();
    assert!(seen.operators.is_subset(&known), "{:?}", seen.operators);
    assert!(seen.fields.iter().all(|field| field.len() <= 6), "{:?}", seen.fields);
    assert!(!seen.commands.contains_key("aggregate") && !seen.commands.contains_key("findAndModify"));
}

async fn a_newer_schema(server: &Server) {
    let own = Own::set_up(server).await;
    own.collection().await.update_one(doc! { "_id": "!schema" }, doc! { "$set": { "v": 2 } }).await.unwrap();
    let saver = builder(&own.database.url()).build().unwrap();
    for error in [
        saver.setup().await.unwrap_err(),
        saver.check_schema().await.unwrap_err(),
        put(&saver, &CheckpointConfig::new("thread"), &conversation(0)).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
        assert!(error.message().contains("another format"), "{error}");
    }
}

/// Servers that cannot have a collation show none.
async fn a_collation(server: &Server) {
    let database = Database::new(server.url());
    let made = database.raw().await;
    let command = doc! { "create": "lg_checkpoints", "collation": { "locale": "en", "strength": 2 } };
    if made.run_command(command).await.is_err() {
        return;
    }
    let shown = made.run_command(doc! { "listCollections": 1 }).await.unwrap();
    let has_one = format!("{shown}").contains("collation");
    let setup = builder(&database.url()).build().unwrap().setup().await;
    if has_one {
        let error = setup.unwrap_err();
        assert!(error.kind() == ErrorKind::Schema && error.message().contains("collation"), "{error}");
    }
}

async fn an_unreachable_server(_server: &Server) {
    let saver = builder("mongodb://127.0.0.1:1").connect_timeout(Duration::from_millis(300)).build().unwrap();
    let error = saver.setup().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.message().contains("cannot be reached"), "{error}");
}

/// A server that has no users refuses a login, too.
async fn a_login_that_is_refused(server: &Server) {
    let url = server.url().replace("mongodb://", "mongodb://nobody:SECRET@");
    let saver = builder(&url).connect_timeout(Duration::from_secs(2)).build().unwrap();
    let error = saver.setup().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error:?}");
    assert!(!format!("{error:?}").contains("SECRET"), "{error:?}");
}

/// A document that somebody else has damaged is an error, and a value that is gone, too.
async fn damaged_documents(server: &Server) {
    let own = Own::set_up(server).await;
    let stored = put(&own.saver, &CheckpointConfig::new("thread"), &conversation(3)).await.unwrap();
    let collection = own.collection().await;
    let value: Document =
        collection.find_one(doc! { "_id": { "$gte": "3!", "$lt": "4" } }).await.unwrap().unwrap();
    collection.delete_one(doc! { "_id": value.get_str("_id").unwrap() }).await.unwrap();
    let saver = builder(&own.database.url()).build().unwrap();
    let error = saver.get_tuple(&stored).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Codec && error.message().contains("missing"), "{error}");
}

pub(crate) fn tests() -> &'static [Test] {
    tests![
        hostile_names,
        a_newer_schema,
        a_collation,
        an_unreachable_server,
        a_login_that_is_refused,
        damaged_documents,
    ]
}
