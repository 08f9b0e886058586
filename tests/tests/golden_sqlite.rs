//! A thread that Python's LangGraph wrote into a SQLite file: read as Python reads it, and copied byte for byte.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod shared;

use std::path::Path;

use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, ChannelVersion, ChannelVersions, CheckpointConfig, CheckpointMetadata,
    CheckpointTuple, Cipher, ErrorKind, Filter, ListQuery, PendingWrite, SaverExt, Str, ThreadInfo,
    ThreadQuery, Value,
};
use checkpoint_sqlite::SqliteSaver;
use futures_util::TryStreamExt;
use rusqlite::types::Value as Cell;
use serde_json::{Value as Json, json};

use shared::{copy_by_hand, golden_file};

const THREAD: &str = "rich-1";
/// A thread in the same file that Python's `EncryptedSerializer` sealed.
const ENCRYPTED: &str = "enc-1";
/// Threads of the file whose rows are in the clear.
const CLEAR: [&str; 5] = ["delta-1", "delta-slow-1", "delta-slow-exit-1", "func-1", THREAD];

fn expected() -> Json {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors/python_thread.sqlite.expected.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap().block_on(future)
}

/// Runs a test on the file as it is, and once more after `setup()` has brought it up to date.
fn on_both_generations(test: &impl AsyncFn(&SqliteSaver)) {
    for set_up in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let saver = SqliteSaver::builder(golden_file(&directory)).build().unwrap();
        run(async {
            if set_up {
                saver.setup().await.unwrap();
            }
            test(&saver).await;
        });
    }
}

fn config_of(json: &Json) -> CheckpointConfig {
    let configurable = &json["configurable"];
    let text = |key: &str| configurable[key].as_str().unwrap().to_owned();
    CheckpointConfig::new(text("thread_id"))
        .with_checkpoint_ns(text("checkpoint_ns"))
        .with_checkpoint_id(text("checkpoint_id"))
}

/// A value as the expected file shows live Python objects.
fn project(value: &Value) -> Json {
    match value {
        Value::Nil => Json::Null,
        Value::Bool(flag) => (*flag).into(),
        Value::Int(number) => (*number).into(),
        Value::UInt(number) => (*number).into(),
        Value::Float(number) => json!(number),
        Value::Str(text) => text.as_str().into(),
        Value::Array(items) => items.iter().map(project).collect(),
        Value::Map(entries) => {
            entries.iter().map(|(key, value)| (key.as_str().unwrap().to_owned(), project(value))).collect()
        }
        Value::Ext(code, payload) => object(*code, &Value::from_msgpack(payload).unwrap()),
        Value::Bin(_) => panic!("the thread has no bytes"),
    }
}

fn object(code: i8, payload: &Value) -> Json {
    let [module, name, contents, ..] = payload.as_array().unwrap() else {
        panic!("an odd extension: {payload:?}")
    };
    let (module, name) = (module.as_str().unwrap(), name.as_str().unwrap());
    let class = format!("{module}.{name}");
    match (code, class.as_str()) {
        (0, "builtins.set") => json!({ "$type": "set", "$set": sorted(contents) }),
        (1, "langgraph.types.Send") => {
            let [node, arg, ..] = contents.as_array().unwrap() else { panic!("an odd Send: {contents:?}") };
            json!({ "$type": class, "node": project(node), "arg": project(arg) })
        }
        (2, _) => json!({ "$type": class, "fields": project(contents) }),
        (3, _) => json!({ "$type": class, "iso": project(contents) }),
        (5, _) => json!({ "$type": class, "data": project(contents) }),
        _ => panic!("a class that the thread does not have: {code} {class}"),
    }
}

fn sorted(items: &Value) -> Vec<Json> {
    let mut items: Vec<_> = items.as_array().unwrap().iter().map(project).collect();
    items.sort_by_key(Json::to_string);
    items
}

fn of_channel(value: &ChannelValue) -> Json {
    project(&value.to_value().unwrap())
}

fn of_versions(versions: &ChannelVersions) -> Json {
    let version =
        |(channel, version): (&Str, &ChannelVersion)| (channel.to_string(), Json::from(version.to_string()));
    versions.iter().map(version).collect()
}

fn of_metadata(metadata: &CheckpointMetadata) -> Json {
    metadata.iter().map(|(key, value)| (key.to_string(), project(value))).collect()
}

fn of_config(config: &CheckpointConfig) -> Json {
    json!({ "configurable": {
        "thread_id": &**config.thread_id(),
        "checkpoint_ns": &**config.checkpoint_ns(),
        "checkpoint_id": config.checkpoint_id().map(|id| &**id),
    }})
}

fn of_write(write: &PendingWrite) -> Json {
    json!([&*write.task_id, &*write.channel, of_channel(&write.value)])
}

fn of_tuple(tuple: &CheckpointTuple) -> Json {
    let checkpoint = &tuple.checkpoint;
    let values = |values: &checkpoint_core::ChannelValues| -> serde_json::Map<String, Json> {
        values.iter().map(|(key, value)| (key.to_string(), of_channel(value))).collect()
    };
    let seen: serde_json::Map<_, _> =
        checkpoint.versions_seen.iter().map(|(node, seen)| (node.to_string(), of_versions(seen))).collect();
    let mut fields = json!({
        "v": checkpoint.v,
        "ts": &*checkpoint.ts,
        "id": &*checkpoint.id,
        "channel_values": values(&checkpoint.channel_values),
        "channel_versions": of_versions(&checkpoint.channel_versions),
        "versions_seen": seen,
    });
    let fields_map = fields.as_object_mut().unwrap();
    if let Some(channels) = &checkpoint.updated_channels {
        fields_map.insert("updated_channels".into(), channels.iter().map(|channel| &**channel).collect());
    }
    fields_map.extend(values(&checkpoint.extra));
    json!({
        "config": of_config(&tuple.config),
        "parent_config": tuple.parent_config.as_ref().map(of_config),
        "metadata": of_metadata(&tuple.metadata),
        "checkpoint": fields,
        "pending_writes": tuple.pending_writes.iter().map(of_write).collect::<Json>(),
    })
}

/// The expected tuple without what depends on the order of Python's dicts, sets sorted.
fn wanted(tuple: &Json) -> Json {
    fn sort_sets(json: &mut Json) {
        match json {
            Json::Array(items) => items.iter_mut().for_each(sort_sets),
            Json::Object(entries) => {
                entries.values_mut().for_each(sort_sets);
                if let Some(Json::Array(items)) = entries.get_mut("$set") {
                    items.sort_by_key(Json::to_string);
                }
            }
            _ => {}
        }
    }
    let mut tuple = tuple.clone();
    tuple.as_object_mut().unwrap().remove("repr");
    sort_sets(&mut tuple);
    tuple
}

#[test]
fn every_checkpoint_reads_as_in_python() {
    let expected = expected();
    let tuples = expected["get_tuple"].as_array().unwrap();
    assert_eq!(tuples.len(), 19);
    on_both_generations(&async |saver| {
        for tuple in tuples {
            let config = config_of(&tuple["config"]);
            let found = saver.get_tuple(&config).await.unwrap().unwrap();
            assert_eq!(of_tuple(&found), wanted(tuple), "{config:?}");
        }
    });
}

#[test]
fn the_listing_is_pythons() {
    let expected = expected();
    on_both_generations(&async |saver| {
        let found = saver.list_all(ListQuery::thread(THREAD)).await.unwrap();
        let wanted: Vec<_> = expected["list"].as_array().unwrap().iter().map(wanted).collect();
        assert_eq!(found.iter().map(of_tuple).collect::<Vec<_>>(), wanted);
    });
}

#[test]
fn the_newest_of_each_namespace_is_pythons() {
    let expected = expected();
    let namespaces = expected["latest_by_ns"].as_object().unwrap();
    assert_eq!(namespaces.len(), 3);
    on_both_generations(&async |saver| {
        for (checkpoint_ns, id) in namespaces {
            let config = CheckpointConfig::new(THREAD).with_checkpoint_ns(checkpoint_ns.as_str());
            let found = saver.get_tuple(&config).await.unwrap().unwrap();
            assert_eq!(Some(&*found.checkpoint.id), id.as_str(), "{checkpoint_ns:?}");
        }
        let threads: Vec<_> = saver.list_threads(ThreadQuery::all()).try_collect().await.unwrap();
        let ids: Vec<_> = threads.iter().map(|thread| &*thread.thread_id).collect();
        assert_eq!(ids, ["delta-1", "delta-slow-1", "delta-slow-exit-1", ENCRYPTED, "func-1", THREAD]);
        let newest = expected["list"][0]["checkpoint"]["id"].as_str().unwrap();
        assert!(threads.contains(&ThreadInfo::new(THREAD, newest)));
    });
}

/// The recorded queries, as they are named in the file.
fn query(name: &str) -> ListQuery {
    let all = ListQuery::thread(THREAD);
    let root = all.clone().checkpoint_ns("");
    let before = "1f1e4fbf-beba-6f76-8004-ac8afe6e4176";
    let by = |filter: Filter| all.clone().filter(filter);
    match name {
        "list(root ns)" => root,
        "list(all ns)" => all,
        "list(root, limit=2)" => root.limit(2),
        "list(root, limit=0)" => root.limit(0),
        "list(root, before=1f1e4fbf-beba-6f76-8004-ac8afe6e4176)" => root.before(before),
        "list(root, before=1f1e4fbf-beba-6f76-8004-ac8afe6e4176, limit=1)" => root.before(before).limit(1),
        "list(root, filter={'source':'loop'})" => root.filter(Filter::new().eq("source", "loop")),
        "list(all, filter={'step':1})" => by(Filter::new().eq("step", 1)),
        "list(all, filter={'source':'input','step':-1})" => {
            by(Filter::new().eq("source", "input").eq("step", -1))
        }
        "list(all, filter={'tenant':'acme'})" => by(Filter::new().eq("tenant", "acme")),
        "list(all, filter={'tenant':'nope'})" => by(Filter::new().eq("tenant", "nope")),
        "list(all, filter={'run_id': first})" => {
            by(Filter::new().eq("run_id", "11111111-1111-4111-8111-111111111111"))
        }
        "list(all, filter={'parents': {}})" => by(Filter::new().eq("parents", Value::Map(vec![]))),
        "list(all, filter={'missing': None})" => by(Filter::new().eq("missing", Value::Nil)),
        "list(all, filter={})" => by(Filter::new()),
        other => panic!("an unknown query: {other}"),
    }
}

#[test]
fn every_recorded_query_gives_what_python_gave() {
    let expected = expected();
    let queries = expected["queries"].as_array().unwrap();
    assert_eq!(queries.len(), 15);
    on_both_generations(&async |saver| {
        for recorded in queries {
            let name = recorded["query"].as_str().unwrap();
            let found = saver.list_all(query(name)).await.unwrap();
            let found: Json = found
                .iter()
                .map(|tuple| json!([&**tuple.config.checkpoint_ns(), &*tuple.checkpoint.id]))
                .collect();
            assert_eq!(found, recorded["ids"], "{name}");
        }
    });
}

fn rows(path: &Path, query: &str) -> Vec<Vec<Cell>> {
    let connection = rusqlite::Connection::open(path).unwrap();
    let mut statement = connection.prepare(query).unwrap();
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| (0..columns).map(|at| row.get(at)).collect()).unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

const CHECKPOINTS: &str = "SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata, \
     typeof(checkpoint), typeof(metadata) FROM checkpoints WHERE thread_id <> 'enc-1' \
     ORDER BY thread_id, checkpoint_ns, checkpoint_id";
const WRITES: &str = "SELECT thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value, typeof(value) \
     FROM writes WHERE thread_id <> 'enc-1' ORDER BY thread_id, checkpoint_ns, checkpoint_id, task_id, idx";

/// Where the checkpoint stands among these columns.
const CHECKPOINT: usize = 5;
/// The metadata of an exit-mode stub.
const STUB: &[u8] = br#"{"step": -2}"#;

#[test]
fn a_program_that_copies_the_threads_leaves_the_same_rows() {
    let directory = tempfile::tempdir().unwrap();
    let (original, target) = (golden_file(&directory), directory.path().join("copy.sqlite"));
    run(async {
        let from = SqliteSaver::builder(&original).build().unwrap();
        let into = SqliteSaver::builder(&target).build().unwrap();
        into.setup().await.unwrap();
        for thread_id in CLEAR {
            copy_by_hand(&from, &into, thread_id).await;
        }
    });
    for query in [CHECKPOINTS, WRITES] {
        let (original, copied) = (rows(&original, query), rows(&target, query));
        assert_eq!(copied.len(), original.len());
        assert!(original.len() >= 50, "{} rows", original.len());
        let mut in_another_order = 0;
        for (original, mut copied) in original.into_iter().zip(copied) {
            // LangGraph writes the fields of its exit-mode stub in an order of its own; we always in the usual one.
            if original.contains(&Cell::Blob(STUB.into())) {
                assert_eq!(fields(&copied[CHECKPOINT]), fields(&original[CHECKPOINT]));
                copied[CHECKPOINT] = original[CHECKPOINT].clone();
                in_another_order += 1;
            }
            assert_eq!(copied, original);
        }
        assert_eq!(in_another_order, usize::from(query == CHECKPOINTS));
    }
}

/// The fields of a stored checkpoint without their order.
fn fields(cell: &Cell) -> Vec<(String, Value)> {
    let Cell::Blob(bytes) = cell else { panic!("a checkpoint must be a blob") };
    let document = Value::from_msgpack(bytes).unwrap();
    let entry = |(key, value): &(Value, Value)| (key.as_str().unwrap().to_owned(), value.clone());
    let mut fields: Vec<_> = document.as_map().unwrap().iter().map(entry).collect();
    fields.sort_by(|(a, _), (b, _)| a.cmp(b));
    fields
}

#[test]
fn pythons_encrypted_thread_opens_with_its_key_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = golden_file(&directory);
    let key: Vec<u8> = (0..32).collect();
    run(async {
        let query = ListQuery::thread(ENCRYPTED);
        let clear = SqliteSaver::builder(&path).build().unwrap();
        assert_eq!(clear.list_all(query.clone()).await.unwrap_err().kind(), ErrorKind::Crypto);
        let wrong = SqliteSaver::builder(&path).cipher(Cipher::aes(&[9; 32]).unwrap()).build().unwrap();
        assert_eq!(wrong.list_all(query.clone()).await.unwrap_err().kind(), ErrorKind::Crypto);
        let saver = SqliteSaver::builder(&path).cipher(Cipher::aes(&key).unwrap()).build().unwrap();
        let tuples = saver.list_all(query).await.unwrap();
        assert!(tuples.iter().any(|tuple| !tuple.pending_writes.is_empty()));
        for tuple in &tuples {
            // Everything inside decodes.
            assert_eq!(of_tuple(tuple)["checkpoint"]["id"], &*tuple.checkpoint.id);
        }
        // A mixed file: the clear thread reads with the same key, and both are copied under it.
        let target = directory.path().join("copy.sqlite");
        let into = SqliteSaver::builder(&target).cipher(Cipher::aes(&key).unwrap()).build().unwrap();
        into.setup().await.unwrap();
        for thread_id in [ENCRYPTED, THREAD] {
            copy_by_hand(&saver, &into, thread_id).await;
        }
    });
}
