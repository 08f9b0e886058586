//! Reads and continues a file that Python LangGraph wrote.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::path::PathBuf;

use checkpoint_core::{
    BaseCheckpointSaver, Checkpoint, CheckpointConfig, CheckpointMetadata, CheckpointTuple, Cipher,
    ErrorKind, Filter, ListQuery, SaverExt, Value, python,
};
use checkpoint_sqlite::SqliteSaver;
use checkpoint_sqlite::rusqlite::Connection;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

/// The key with which Python encrypted thread `enc-1`.
fn key() -> Vec<u8> {
    (0..32).collect()
}

fn vectors() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors")
}

/// A copy of Python's file, for the test to change.
fn copy() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("python.sqlite");
    std::fs::copy(vectors().join("python_thread.sqlite"), &path).unwrap();
    (directory, path)
}

fn expected() -> Json {
    serde_json::from_slice(&std::fs::read(vectors().join("python_thread.sqlite.expected.json")).unwrap())
        .unwrap()
}

fn config_json(config: &CheckpointConfig) -> Json {
    json!({ "configurable": {
        "thread_id": config.thread_id(),
        "checkpoint_ns": config.checkpoint_ns(),
        "checkpoint_id": config.checkpoint_id(),
    }})
}

/// A tuple in the form of Python's description.
fn describe(tuple: &CheckpointTuple) -> Json {
    let checkpoint = &tuple.checkpoint;
    let values: serde_json::Map<String, Json> = checkpoint
        .channel_values
        .iter()
        .map(|(channel, value)| {
            let json = python::to_json(&value.to_value().unwrap());
            (channel.to_string(), if channel.starts_with("join:") { sorted(json) } else { json })
        })
        .collect();
    let metadata = tuple.metadata.iter().map(|(key, value)| (Value::from(&**key), value.clone())).collect();
    json!({
        "config": config_json(&tuple.config),
        "parent_config": tuple.parent_config.as_ref().map(config_json),
        "metadata": python::to_json(&Value::Map(metadata)),
        "checkpoint": {
            "v": checkpoint.v,
            "ts": checkpoint.ts,
            "id": checkpoint.id,
            "channel_values": values,
            "channel_versions": checkpoint.channel_versions,
            "versions_seen": checkpoint.versions_seen,
            "updated_channels": checkpoint.updated_channels,
        },
        "pending_writes": tuple
            .pending_writes
            .iter()
            .map(|write| json!([write.task_id, write.channel, python::to_json(&write.value.to_value().unwrap())]))
            .collect::<Vec<_>>(),
    })
}

/// Sets have no order.
fn sorted(set: Json) -> Json {
    let Json::Array(mut items) = set else { return set };
    items.sort_by_key(Json::to_string);
    items.into()
}

/// Python's description without the parts that ours lacks: `repr` texts and class names.
fn plain(json: Json) -> Json {
    match json {
        Json::Array(items) => items.into_iter().map(plain).collect(),
        Json::Object(mut object) => {
            object.remove("repr");
            if object.remove("$type").is_some() {
                for key in ["data", "fields", "iso", "$set"] {
                    if let Some(inner) = object.remove(key) {
                        return if key == "$set" { sorted(inner) } else { plain(inner) };
                    }
                }
            }
            Json::Object(object.into_iter().map(|(key, value)| (key, plain(value))).collect())
        }
        scalar => scalar,
    }
}

#[tokio::test]
async fn every_tuple_matches_pythons() {
    let (_directory, path) = copy();
    let saver = SqliteSaver::builder(path).build().unwrap();
    let expected = expected();
    let listed = saver.list_all(ListQuery::thread("rich-1")).await.unwrap();
    let wanted = expected["list"].as_array().unwrap();
    assert_eq!(listed.len(), wanted.len());
    for (tuple, wanted) in listed.iter().zip(wanted) {
        assert_eq!(plain(describe(tuple)), plain(wanted.clone()));
        let alone = saver.get_tuple(&tuple.config).await.unwrap().unwrap();
        assert_eq!(&alone, tuple);
    }
    for (checkpoint_ns, latest) in expected["latest_by_ns"].as_object().unwrap() {
        let config = CheckpointConfig::new("rich-1").with_checkpoint_ns(checkpoint_ns.as_str());
        let tuple = saver.get_tuple(&config).await.unwrap().unwrap();
        assert_eq!(&*tuple.checkpoint.id, latest.as_str().unwrap());
    }
}

#[tokio::test]
async fn queries_return_the_same_as_in_python() {
    let (_directory, path) = copy();
    let saver = SqliteSaver::builder(path).build().unwrap();
    let root = || ListQuery::thread("rich-1").checkpoint_ns("");
    let all = || ListQuery::thread("rich-1");
    let before = "1f1e4fbf-beba-6f76-8004-ac8afe6e4176";
    let filter = |key: &str, value: Value| Filter::new().eq(key, value);
    let first_run =
        saver.list_all(root()).await.unwrap().last().unwrap().metadata.run_id().unwrap().to_owned();
    let queries = [
        root(),
        all(),
        root().limit(2),
        root().limit(0),
        root().before(before),
        root().before(before).limit(1),
        root().filter(filter("source", "loop".into())),
        all().filter(filter("step", 1_i64.into())),
        all().filter(filter("source", "input".into()).eq("step", -1_i64)),
        all().filter(filter("tenant", "acme".into())),
        all().filter(filter("tenant", "nope".into())),
        all().filter(filter("run_id", first_run.as_str().into())),
        all().filter(filter("parents", Value::Map(vec![]))),
        all().filter(filter("missing", Value::Nil)),
        all().filter(Filter::new()),
    ];
    let expected = expected();
    let wanted = expected["queries"].as_array().unwrap();
    assert_eq!(queries.len(), wanted.len());
    for (query, wanted) in queries.into_iter().zip(wanted) {
        let tuples = saver.list_all(query).await.unwrap();
        let ids: Vec<_> =
            tuples.iter().map(|tuple| json!([tuple.config.checkpoint_ns(), tuple.checkpoint.id])).collect();
        assert_eq!(Json::from(ids), wanted["ids"], "{}", wanted["query"]);
    }
}

#[tokio::test]
async fn values_encrypted_by_python_decrypt_only_with_its_key() {
    let (_directory, path) = copy();
    let query = || ListQuery::thread("enc-1");
    let with_key = SqliteSaver::builder(&path).cipher(Cipher::aes(&key()).unwrap()).build().unwrap();
    let opened = with_key.list_all(query()).await.unwrap();
    assert_eq!(opened.len(), 9);
    assert!(opened.iter().any(|tuple| !tuple.checkpoint.channel_values.is_empty()));
    assert!(opened.iter().all(|tuple| !tuple.checkpoint.is_sealed()));

    let without = SqliteSaver::builder(&path).build().unwrap();
    let error = without.list_all(query()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Crypto);
    assert!(error.to_string().contains("enc-1"), "{error}");

    let keeping = SqliteSaver::builder(&path).return_sealed(true).build().unwrap();
    let sealed = keeping.list_all(query()).await.unwrap();
    assert_eq!(sealed.len(), 9);
    for (sealed, opened) in sealed.iter().zip(&opened) {
        assert!(sealed.checkpoint.is_sealed());
        assert_eq!((&sealed.config, &sealed.metadata), (&opened.config, &opened.metadata));
        assert_eq!(sealed.pending_writes.len(), opened.pending_writes.len());
    }
}

#[tokio::test]
async fn delta_histories_have_their_writes() {
    let (_directory, path) = copy();
    let saver = SqliteSaver::builder(path).build().unwrap();
    for thread_id in ["delta-1", "delta-slow-1", "delta-slow-exit-1"] {
        let newest = saver.get_tuple(&CheckpointConfig::new(thread_id)).await.unwrap().unwrap();
        let channels: Vec<_> = newest.checkpoint.channel_versions.keys().map(|channel| &**channel).collect();
        let native = saver.get_delta_channel_history(&newest.config, &channels).await.unwrap();
        let walked = checkpoint_core::delta::walk(&saver, &newest.config, &channels).await.unwrap();
        assert_eq!(native, walked, "{thread_id}");
        assert!(native.values().any(|history| !history.writes.is_empty()), "{thread_id}");
    }
}

#[tokio::test]
async fn an_older_file_works_unchanged_until_setup() {
    let (_directory, path) = copy();
    let saver = SqliteSaver::builder(&path).build().unwrap();
    let newest = saver.get_tuple(&CheckpointConfig::new("rich-1")).await.unwrap().unwrap();
    let write = [("x".into(), 1_i64.into())];
    saver.put_writes(&newest.config, &write, "task-a", "~a").await.unwrap();
    let task_path_of = |tuple: &CheckpointTuple, task: &str| {
        let write = tuple.pending_writes.iter().find(|write| &*write.task_id == task);
        write.map(|write| write.task_path.to_string())
    };
    let read = saver.get_tuple(&newest.config).await.unwrap().unwrap();
    assert_eq!(task_path_of(&read, "task-a").as_deref(), Some(""), "the column does not exist");

    // Another process upgrades the file; open connections notice.
    SqliteSaver::builder(&path).build().unwrap().setup().await.unwrap();
    saver.put_writes(&newest.config, &write, "task-b", "~b").await.unwrap();
    let read = saver.get_tuple(&newest.config).await.unwrap().unwrap();
    assert_eq!(task_path_of(&read, "task-a").as_deref(), Some(""));
    assert_eq!(task_path_of(&read, "task-b").as_deref(), Some("~b"));

    // And the thread continues.
    let next = Checkpoint::new(5);
    saver
        .put(&newest.config, &next, &CheckpointMetadata::new("loop", 5), &next.channel_versions)
        .await
        .unwrap();
    let latest = saver.get_tuple(&CheckpointConfig::new("rich-1")).await.unwrap().unwrap();
    assert_eq!(latest.checkpoint, next);
    assert_eq!(latest.parent_checkpoint_id(), newest.config.checkpoint_id());
}

#[tokio::test]
async fn rows_are_stored_in_pythons_types() {
    let (_directory, path) = copy();
    let saver = SqliteSaver::builder(&path).build().unwrap();
    saver.setup().await.unwrap();
    let checkpoint = Checkpoint::new(1).with_channel("topic", "世界", "1");
    let metadata = CheckpointMetadata::new("loop", 1).with("u", "世");
    let config = saver
        .put(&CheckpointConfig::new("rust"), &checkpoint, &metadata, &checkpoint.channel_versions)
        .await
        .unwrap();
    let writes = [("a".into(), checkpoint_core::ChannelValue::Null), ("b".into(), 7_i64.into())];
    saver.put_writes(&config, &writes, "task", "~path").await.unwrap();
    let file = Connection::open(&path).unwrap();
    let row: (String, String, String) = file
        .query_row(
            "SELECT type, typeof(checkpoint), typeof(metadata) || ' ' || CAST(metadata AS TEXT) \
             FROM checkpoints WHERE thread_id = 'rust'",
            [],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .unwrap();
    let text = r#"blob {"source": "loop", "step": 1, "parents": {}, "u": "世"}"#;
    assert_eq!(row, ("msgpack".into(), "blob".into(), text.into()));
    let mut statement = file
        .prepare("SELECT idx, type, typeof(value), hex(value), task_path FROM writes WHERE thread_id = 'rust' ORDER BY idx")
        .unwrap();
    let rows: Vec<(i64, String, String, String, String)> = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let blob = || "blob".to_owned();
    assert_eq!(
        rows,
        [
            (0, "null".into(), blob(), String::new(), "~path".into()),
            (1, "msgpack".into(), blob(), "07".into(), "~path".into()),
        ]
    );
}
