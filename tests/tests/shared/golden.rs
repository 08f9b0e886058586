//! What the expected files of Python's golden threads say, next to what a saver reads.

#![allow(dead_code, reason = "each binary uses its part of this")]

use std::path::Path;

use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, ChannelVersion, ChannelVersions, CheckpointConfig, CheckpointMetadata,
    CheckpointTuple, Filter, ListQuery, PendingWrite, SaverExt, Str, Value,
};
use serde_json::{Value as Json, json};

/// The golden thread.
pub(crate) const THREAD: &str = "rich-1";

/// One of the files of golden data.
pub(crate) fn vectors(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors").join(name)).unwrap()
}

/// A file of golden data as JSON.
pub(crate) fn json_vectors(name: &str) -> Json {
    serde_json::from_slice(&vectors(name)).unwrap()
}

/// Every recorded `get_tuple`.
pub(crate) async fn check_tuples(saver: &impl BaseCheckpointSaver, expected: &Json) {
    let tuples = expected["get_tuple"].as_array().unwrap();
    assert_eq!(tuples.len(), 19);
    for tuple in tuples {
        let config = config_of(&tuple["config"]);
        let found = saver.get_tuple(&config).await.unwrap().unwrap();
        assert_eq!(of_tuple(&found), wanted(tuple), "{config:?}");
    }
}

/// The recorded listing, whole and in its order.
pub(crate) async fn check_list(saver: &impl BaseCheckpointSaver, expected: &Json) {
    let found = saver.list_all(ListQuery::thread(THREAD)).await.unwrap();
    let wanted: Vec<_> = expected["list"].as_array().unwrap().iter().map(wanted).collect();
    assert_eq!(wanted.len(), 19);
    assert_eq!(found.iter().map(of_tuple).collect::<Vec<_>>(), wanted);
}

/// The newest checkpoint of each namespace.
pub(crate) async fn check_latest(saver: &impl BaseCheckpointSaver, expected: &Json) {
    let namespaces = expected["latest_by_ns"].as_object().unwrap();
    assert_eq!(namespaces.len(), 3);
    for (checkpoint_ns, id) in namespaces {
        let config = CheckpointConfig::new(THREAD).with_checkpoint_ns(checkpoint_ns.as_str());
        let found = saver.get_tuple(&config).await.unwrap().unwrap();
        assert_eq!(Some(&*found.checkpoint.id), id.as_str(), "{checkpoint_ns:?}");
    }
}

/// Every recorded query.
pub(crate) async fn check_queries(saver: &impl BaseCheckpointSaver, expected: &Json) {
    let queries = expected["queries"].as_array().unwrap();
    assert_eq!(queries.len(), 15);
    for recorded in queries {
        let name = recorded["query"].as_str().unwrap();
        let found = saver.list_all(query(name)).await.unwrap();
        let found: Json =
            found.iter().map(|tuple| json!([tuple.config.checkpoint_ns(), &*tuple.checkpoint.id])).collect();
        assert_eq!(found, recorded["ids"], "{name}");
    }
}

/// The recorded queries, as they are named in the file.
fn query(name: &str) -> ListQuery {
    let all = ListQuery::thread(THREAD);
    let root = all.clone().checkpoint_ns("");
    let before = |id: &str| root.clone().before(id);
    let by = |filter: Filter| all.clone().filter(filter);
    // The id differs from file to file.
    if let Some(rest) = name.strip_prefix("list(root, before=") {
        let rest = rest.strip_suffix(')').unwrap();
        return match rest.split_once(", limit=") {
            Some((id, limit)) => before(id).limit(limit.parse().unwrap()),
            None => before(rest),
        };
    }
    match name {
        "list(root ns)" => root,
        "list(all ns)" => all,
        "list(root, limit=2)" => root.limit(2),
        "list(root, limit=0)" => root.limit(0),
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
        "thread_id": config.thread_id(),
        "checkpoint_ns": config.checkpoint_ns(),
        "checkpoint_id": config.checkpoint_id(),
    }})
}

fn of_write(write: &PendingWrite) -> Json {
    json!([&*write.task_id, &*write.channel, of_channel(&write.value)])
}

pub(crate) fn of_tuple(tuple: &CheckpointTuple) -> Json {
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
