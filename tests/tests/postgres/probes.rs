//! Repeats recorded edge-case calls of Python's PostgreSQL saver on ours: what is stored, merged, rejected and found.

use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, ChannelVersion, ChannelVersions, Checkpoint, CheckpointConfig,
    CheckpointMetadata, ErrorKind, Filter, ListQuery, PruneStrategy, SaverExt, TypedBytes, Value,
};
use checkpoint_postgres::PostgresSaver;
use serde_json::{Value as Json, json};
use tokio_postgres::Client;

use crate::shared::golden::json_vectors;
use crate::shared::postgres::{Database, Server, Test, rows, tests};

/// Recorded calls of Python's saver and their results. Each probe is checked, or has no counterpart in Rust.
struct Probes {
    recorded: Vec<Json>,
    checked: Vec<String>,
    saver: PostgresSaver,
    client: Client,
}

impl Probes {
    /// What Python returned.
    fn result(&mut self, name: &str) -> Json {
        let probe = self.find(name);
        probe.get("result").unwrap_or_else(|| panic!("{name} has no result: {probe}")).clone()
    }

    /// Notes that Python raised an error.
    fn raised(&mut self, name: &str) {
        let probe = self.find(name);
        assert!(probe["error"].is_string(), "{probe}");
    }

    fn find(&mut self, name: &str) -> Json {
        self.checked.push(name.to_owned());
        let mut found = self.recorded.iter().filter(|probe| probe["probe"] == name);
        found.next().unwrap_or_else(|| panic!("there is no probe {name}")).clone()
    }

    async fn put(
        &self,
        thread_id: &str,
        checkpoint: &Checkpoint,
        metadata: &CheckpointMetadata,
    ) -> CheckpointConfig {
        self.put_on(&CheckpointConfig::new(thread_id.to_owned()), checkpoint, metadata).await
    }

    async fn put_on(
        &self,
        config: &CheckpointConfig,
        checkpoint: &Checkpoint,
        metadata: &CheckpointMetadata,
    ) -> CheckpointConfig {
        self.saver.put(config, checkpoint, metadata, &checkpoint.channel_versions).await.unwrap()
    }

    /// Rows of a query whose `$1` is a thread.
    async fn rows(&self, query: &str, thread_id: &str) -> Vec<Vec<Option<String>>> {
        rows(&self.client, &query.replace("$1", &format!("'{thread_id}'"))).await
    }

    async fn count(&self, thread_id: &str) -> usize {
        let mut all = 0;
        for table in ["checkpoints", "checkpoint_blobs", "checkpoint_writes"] {
            all +=
                self.rows(&format!("SELECT 1, 2 FROM {table} WHERE thread_id = $1"), thread_id).await.len();
        }
        all
    }

    async fn metadata_of(&self, thread_id: &str) -> Json {
        let rows = self.rows("SELECT metadata, 1 FROM checkpoints WHERE thread_id = $1", thread_id).await;
        serde_json::from_str(rows[0][0].as_deref().unwrap()).unwrap()
    }
}

fn metadata() -> CheckpointMetadata {
    CheckpointMetadata::new("loop", 2)
}

fn of(source: &str) -> CheckpointMetadata {
    std::iter::once(("source".into(), source.into())).collect()
}

fn encoded(value: &Value) -> ChannelValue {
    ChannelValue::from_msgpack(value.to_msgpack().unwrap().into()).unwrap()
}

fn list(items: &[i64]) -> ChannelValue {
    encoded(&Value::Array(items.iter().map(|item| (*item).into()).collect()))
}

fn map(entries: &[(&str, Value)]) -> Value {
    Value::Map(entries.iter().map(|(key, value)| ((*key).into(), value.clone())).collect())
}

async fn edge_cases_match_python(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let Json::Array(recorded) = json_vectors("pg_probes.json") else { panic!("no list") };
    let mut probes = Probes {
        recorded,
        checked: Vec::new(),
        saver: database.builder().build().unwrap(),
        client: database.client().await,
    };
    values_are_inline_or_blobs(&mut probes).await;
    values_that_json_cannot_hold(&mut probes).await;
    metadata_is_merged_and_cleaned(&mut probes).await;
    second_puts_and_writes(&mut probes).await;
    names_and_versions(&mut probes).await;
    selections(&mut probes).await;
    histories(&mut probes).await;
    // Values and arguments of types that Rust does not have, and methods that Python lacks and we have.
    for name in [
        "roundtrip channel value bigint_2**70",
        "roundtrip channel value str_surrogate",
        "roundtrip channel value str_enum",
        "roundtrip channel value int_enum",
        "roundtrip channel value np_float64",
        "roundtrip channel value np_float32",
        "roundtrip channel value float_subclass",
        "thread_id int on put",
        "thread_id int on get",
        "put without checkpoint_ns",
        "list before={} no id -> KeyError?",
        "version float formatting",
    ] {
        probes.find(name);
    }
    let names: Vec<_> = probes.recorded.iter().map(|probe| probe["probe"].as_str().unwrap()).collect();
    let missed: Vec<_> = names.iter().filter(|name| !probes.checked.iter().any(|one| one == *name)).collect();
    assert!(missed.is_empty(), "{missed:?}");
}

async fn values_are_inline_or_blobs(probes: &mut Probes) {
    let color = [0xc7, 0x18, 0x00].iter().copied().chain(*b"\x93\xacgolden_types\xa5Color\xa3red");
    let values: [(&str, ChannelValue); 12] = [
        ("str", "s".into()),
        ("none", ChannelValue::Null),
        ("true", true.into()),
        ("int", 5.into()),
        ("float_1.0", 1.0.into()),
        ("float_5e-324", 5e-324.into()),
        ("float_0.1", 0.1.into()),
        ("bytes", TypedBytes::new("bytes", &b"ab"[..]).into()),
        ("empty_list", list(&[])),
        ("dict", encoded(&map(&[("a", 1.into())]))),
        ("str_unicode", "世😀".into()),
        ("enum_plain", TypedBytes::msgpack(color.collect::<Vec<_>>()).into()),
    ];
    for (at, (name, value)) in values.into_iter().enumerate() {
        let expected = probes.result(&format!("roundtrip channel value {name}"));
        let thread_id = format!("value-{at}");
        let made = Checkpoint::new(0).with_channel("x", value.clone(), "1.5");
        let stored = probes.put(&thread_id, &made, &metadata()).await;
        let inline = "SELECT checkpoint->'channel_values', 1 FROM checkpoints WHERE thread_id = $1";
        let inline = probes.rows(inline, &thread_id).await;
        let inline: Json = serde_json::from_str(inline[0][0].as_deref().unwrap()).unwrap();
        let blobs = "SELECT type, encode(blob, 'hex') FROM checkpoint_blobs WHERE thread_id = $1";
        let blobs = probes.rows(blobs, &thread_id).await;
        assert_eq!(
            json!({"inline": inline, "blobs": blobs}),
            json!({"inline": expected["inline"], "blobs": expected["blobs"]}),
            "{name}"
        );
        let found =
            probes.saver.get_tuple(&stored).await.unwrap().unwrap().checkpoint.channel_values["x"].clone();
        assert_eq!(found, value, "{name}");
    }
}

/// What JSON cannot hold goes into a blob, which Python reads. Python's own insert fails on some of it, and some comes
/// back as another number.
async fn values_that_json_cannot_hold(probes: &mut Probes) {
    let values: [(&str, ChannelValue, Option<&str>); 6] = [
        ("nan", f64::NAN.into(), None),
        ("inf", f64::INFINITY.into(), None),
        ("str_nul", "a\0b".into(), None),
        ("float_1e16", 1e16.into(), Some("10000000000000000")),
        ("float_1e22", 1e22.into(), Some("10000000000000000000000")),
        ("float_-0.0", (-0.0).into(), Some("0.0")),
    ];
    for (name, value, changed) in values {
        let probe = format!("roundtrip channel value {name}");
        match changed {
            Some(repr) => assert_eq!(probes.result(&probe)["repr_back"], repr),
            None => probes.raised(&probe),
        }
        let made = Checkpoint::new(0).with_channel("x", value.clone(), "1.5");
        let stored = probes.put(name, &made, &metadata()).await;
        let tuple = probes.saver.get_tuple(&stored).await.unwrap().unwrap();
        let found = tuple.checkpoint.channel_values["x"].clone();
        assert_eq!(found.to_msgpack().unwrap(), value.to_msgpack().unwrap(), "{name}");
        let blobs = "SELECT channel, type, encode(blob, 'hex') FROM checkpoint_blobs WHERE thread_id = $1";
        let hex: Vec<_> = value.to_msgpack().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        let hex = hex.concat();
        assert_eq!(json!(probes.rows(blobs, name).await), json!([["x", "msgpack", hex]]), "{name}");
    }
}

async fn metadata_is_merged_and_cleaned(probes: &mut Probes) {
    let made = Checkpoint::new(0).with_channel("x", list(&[1]), "1.5");
    let config = CheckpointConfig::new("merged").with_configurable("user", "u").with_configurable("n", 3);
    let scalars = of("loop")
        .with("step", 2)
        .with("m_int", 1)
        .with("m_str", "a")
        .with("m_bool", true)
        .with("m_float", 1.5);
    for (name, config, metadata) in [
        ("metadata NUL top-level str stripped", CheckpointConfig::new("nul"), of("loop").with("a", "x\0y")),
        (
            "metadata 'writes' key dropped",
            CheckpointConfig::new("writes"),
            of("loop").with("step", 2).with("writes", map(&[("node", 1.into())])),
        ),
        ("metadata merged from config", config, scalars),
    ] {
        let expected = probes.result(name);
        probes.put_on(&config, &made, &metadata).await;
        assert_eq!(probes.metadata_of(config.thread_id()).await, expected, "{name}");
    }
    // A rejected call stores nothing, not even its blobs.
    let refused = [
        ("metadata NUL nested", of("loop").with("a", map(&[("b", "x\0".into())]))),
        ("metadata NUL in key", of("loop").with("a\0", 1)),
    ];
    assert_eq!(
        probes.result("put atomicity: checkpoint row fails -> blob rows?")["rows_left"]["checkpoint_blobs"],
        0
    );
    for (name, metadata) in refused {
        probes.raised(name);
        let config = CheckpointConfig::new("refused");
        let call = probes.saver.put(&config, &made, &metadata, &made.channel_versions).await;
        assert_eq!(call.unwrap_err().kind(), ErrorKind::InvalidArgument, "{name}");
        assert_eq!(probes.count("refused").await, 0, "{name}");
    }
}

/// Task, path and writes of a call.
type Call<'a> = (&'a str, &'a str, &'a [(&'a str, ChannelValue)]);

async fn second_puts_and_writes(probes: &mut Probes) {
    let expected = probes.result("put same checkpoint id twice");
    let mut first = Checkpoint::new(0).with_channel("x", list(&[1]), "1.5");
    first.ts = "first".into();
    let stored = probes.put("twice", &first, &metadata()).await;
    let mut again = first.clone().with_channel("x", list(&[2]), "1.5");
    again.ts = "changed".into();
    let other = CheckpointConfig::new("twice").with_checkpoint_id(Checkpoint::new(0).id);
    probes.put_on(&other, &again, &of("fork").with("step", 9)).await;
    let rows = "SELECT parent_checkpoint_id, checkpoint->>'ts' FROM checkpoints WHERE thread_id = $1";
    let rows = probes.rows(rows, "twice").await;
    let blobs = "SELECT channel, encode(blob, 'hex') FROM checkpoint_blobs WHERE thread_id = $1";
    let found = json!({
        "n": rows.len(),
        "parent": rows[0][0],
        "ts": rows[0][1],
        "metadata": probes.metadata_of("twice").await,
        "blob": probes.rows(blobs, "twice").await[0][1],
    });
    assert_eq!(found, expected);

    let expected = probes.result("put_writes idx / upsert / do-nothing");
    let calls: [Call<'_>; 9] = [
        ("t1", "path1", &[("a", 1.into()), ("b", 2.into())]),
        ("t1", "path2", &[("a", 10.into()), ("b", 20.into()), ("c", 30.into())]),
        ("t1", "path1", &[("__error__", "e1".into())]),
        ("t1", "path2", &[("__error__", "e2".into())]),
        ("t2", "p", &[("__interrupt__", "i1".into()), ("z", 1.into())]),
        ("t2", "p", &[("__interrupt__", "i2".into()), ("z", 2.into())]),
        ("t2", "p", &[("__interrupt__", "i3".into())]),
        ("t3", "", &[("__resume__", 2.into()), ("__scheduled__", 1.into())]),
        ("t4", "", &[("__error_source_node__", "n".into())]),
    ];
    for (task_id, task_path, writes) in calls {
        let writes: Vec<_> =
            writes.iter().map(|(channel, value)| ((*channel).into(), value.clone())).collect();
        probes.saver.put_writes(&stored, &writes, task_id, task_path).await.unwrap();
    }
    let found = "SELECT json_build_array(task_id, idx, channel, type, encode(blob, 'hex'), task_path), 1 \
         FROM checkpoint_writes WHERE thread_id = $1 ORDER BY task_id, idx";
    let found = probes.rows(found, "twice").await;
    let found: Vec<Json> =
        found.iter().map(|row| serde_json::from_str(row[0].as_deref().unwrap()).unwrap()).collect();
    assert_eq!(json!(found), expected);

    let expected = probes.result("put_writes for nonexistent checkpoint (no FK)");
    let ahead = CheckpointConfig::new("ahead").with_checkpoint_id(Checkpoint::new(0).id);
    probes.saver.put_writes(&ahead, &[("a".into(), 1.into())], "t", "").await.unwrap();
    assert_eq!(json!(probes.count("ahead").await), expected);
}

async fn names_and_versions(probes: &mut Probes) {
    // Python stores such a name, but cannot read the row afterwards.
    probes.raised("channel name with backslash (blob)");
    for (channel, task_id) in [("a\\b", "task"), ("a", "ta\\sk")] {
        let made = Checkpoint::new(0).with_channel(channel, list(&[1]), "1.5");
        let config = CheckpointConfig::new("backslash").with_checkpoint_id(made.id.clone());
        if channel != "a" {
            let call = probes.saver.put(&config, &made, &metadata(), &made.channel_versions).await;
            assert_eq!(call.unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
        let call = probes.saver.put_writes(&config, &[(channel.into(), 1.into())], task_id, "").await;
        assert_eq!(call.unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(probes.count("backslash").await, 0);
    }
    let cases: [(&str, &str, ChannelVersion, &str); 3] = [
        ("channel name non-ascii (blob)", "café", "1.5".into(), "{'café': [1]}"),
        ("int version (blob version column is text)", "a", 3.into(), "{'a': [1]}"),
        ("float version", "a", 1.5.into(), "{'a': [1]}"),
    ];
    for (at, (name, channel, version, repr)) in cases.into_iter().enumerate() {
        assert_eq!(probes.result(name), repr);
        let thread_id = format!("name-{at}");
        let made = Checkpoint::new(0).with_channel(channel, list(&[1]), version.clone());
        let stored = probes.put(&thread_id, &made, &metadata()).await;
        assert_eq!(probes.saver.get_tuple(&stored).await.unwrap().unwrap().checkpoint, made, "{name}");
        let found =
            probes.rows("SELECT channel, version FROM checkpoint_blobs WHERE thread_id = $1", &thread_id);
        assert_eq!(json!(found.await), json!([[channel, version.to_string()]]), "{name}");
    }
    for (name, current, next) in [
        ("get_next_version(None)", None, 1),
        ("get_next_version(7)", Some(7.into()), 8),
        ("get_next_version('...41.0.3')", Some(ChannelVersion::from(format!("{:032}.0.3", 41))), 42),
        ("get_next_version('2.') legacy", Some(ChannelVersion::from(format!("{:032}.", 2))), 3),
    ] {
        let recorded = probes.result(name);
        let recorded = recorded.as_str().unwrap();
        let found = probes.saver.get_next_version(current.as_ref()).to_string();
        assert_eq!((found.len() >= 49, &found[..33]), (recorded.len() >= 49, &recorded[..33]), "{name}");
        assert_eq!(found[..33], format!("{next:032}."), "{name}");
    }
}

async fn selections(probes: &mut Probes) {
    probes.result("get_tuple checkpoint_id '' -> latest");
    let config = CheckpointConfig::new("twice");
    let newest = probes.saver.get_tuple(&config).await.unwrap().unwrap();
    assert_eq!(
        probes.saver.get_tuple(&config.clone().with_checkpoint_id("")).await.unwrap().unwrap(),
        newest
    );
    assert_eq!(probes.result("get_tuple missing -> None"), Json::Null);
    assert_eq!(probes.saver.get_tuple(&CheckpointConfig::new("missing")).await.unwrap(), None);

    // Python fails on the name with a backslash that it has stored before.
    probes.raised("list(None) spans threads");
    let all = probes.saver.list_all(ListQuery::all()).await.unwrap();
    assert_eq!(all.len(), probes.rows("SELECT 1, $1 FROM checkpoints", "").await.len());

    let b = map(&[("b", 1.into()), ("c", 2.into())]);
    let one_two = Value::Array(vec![1.into(), 2.into()]);
    for stored in [
        of("loop").with("a", b).with("k", Value::Nil).with("s", 1),
        of("loop").with("a", map(&[("b", one_two)])),
        of("loop").with("a", Value::Array(vec![1.into()])),
    ] {
        probes.put("filters", &Checkpoint::new(0), &stored).await;
    }
    for (name, key, wanted) in [
        ("{'a': {'b': 1}}", "a", map(&[("b", 1.into())])),
        ("{'a': {'b': [2]}}", "a", map(&[("b", Value::Array(vec![2.into()]))])),
        ("{'a': []}", "a", Value::Array(vec![])),
        ("{'k': None}", "k", Value::Nil),
        ("{'s': 1.0}", "s", 1.0.into()),
        ("{'missing': None}", "missing", Value::Nil),
    ] {
        let expected = probes.result(&format!("filter containment {name}"));
        let query = ListQuery::thread("filters").filter(Filter::new().eq(key, wanted));
        let found = probes.saver.list_all(query).await.unwrap();
        let mut found: Vec<Json> = found
            .iter()
            .map(|tuple| tuple.metadata.iter().map(|(key, value)| (key.to_string(), plain(value))).collect())
            .collect();
        let mut expected = expected.as_array().unwrap().clone();
        found.sort_by_key(Json::to_string);
        expected.sort_by_key(Json::to_string);
        assert_eq!(found, expected, "{name}");
    }

    for name in ["delete_for_runs implemented?", "copy_thread implemented?", "prune implemented?"] {
        probes.raised(name);
    }
    probes.saver.copy_thread("filters", "copy").await.unwrap();
    assert_eq!(probes.count("copy").await, 3);
    probes.saver.prune(&["copy"], PruneStrategy::KeepLatest).await.unwrap();
    assert_eq!(probes.count("copy").await, 1);
}

fn plain(value: &Value) -> Json {
    match value {
        Value::Nil => Json::Null,
        Value::Int(number) => (*number).into(),
        Value::Str(text) => text.as_str().into(),
        Value::Array(items) => items.iter().map(plain).collect(),
        Value::Map(entries) => {
            entries.iter().map(|(key, value)| (key.as_str().unwrap().to_owned(), plain(value))).collect()
        }
        other => panic!("metadata of the probes has no {other:?}"),
    }
}

async fn histories(probes: &mut Probes) {
    assert_eq!(probes.result("history: no such thread"), "{'a': {'writes': []}}");
    let nowhere = CheckpointConfig::new("nowhere");
    let found = probes.saver.get_delta_channel_history(&nowhere, &["a"]).await.unwrap();
    assert!(found["a"].writes.is_empty() && found["a"].seed.is_none());
    assert_eq!(probes.result("history: empty channels"), "{}");
    assert!(probes.saver.get_delta_channel_history(&nowhere, &[]).await.unwrap().is_empty());
    let seeds: [(&str, ChannelValue); 6] = [
        ("'s'", "s".into()),
        ("None", ChannelValue::Null),
        ("0", 0.into()),
        ("False", false.into()),
        ("True", true.into()),
        ("[1]", list(&[1])),
    ];
    for (name, seed) in seeds {
        let recorded = probes.result(&format!("history seed plain {name}"));
        let has_seed = recorded.as_str().unwrap().contains("'seed'");
        assert_eq!(has_seed, seed != ChannelValue::Null, "{name}");
        let thread_id = format!("history {}", name.replace('\'', ""));
        let first = Checkpoint::new(0).with_channel("ch", seed.clone(), "1.5");
        let stored = probes.put(&thread_id, &first, &metadata()).await;
        probes.saver.put_writes(&stored, &[("ch".into(), "w1".into())], "t1", "").await.unwrap();
        let mut target = Checkpoint::new(1);
        target.channel_versions = ChannelVersions::from_iter([("ch".into(), "2.5".into())]);
        let target = probes.put_on(&stored, &target, &metadata()).await;
        let found = probes.saver.get_delta_channel_history(&target, &["ch"]).await.unwrap();
        let writes: Vec<_> =
            found["ch"].writes.iter().map(|write| (&*write.task_id, &*write.channel, &write.value)).collect();
        assert_eq!(writes, [("t1", "ch", &"w1".into())], "{name}");
        // Python continues past a null on PostgreSQL, and stops at it elsewhere; here it is a value like any other.
        assert_eq!(found["ch"].seed, Some(seed), "{name}");
    }
}

pub(crate) fn tests() -> &'static [Test] {
    tests![edge_cases_match_python]
}
