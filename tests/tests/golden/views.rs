//! Typed views, the projection for display, and objects of the old `json` tag.

use std::collections::BTreeMap;

use bytes::Bytes;
use checkpoint_core::python::{self, Object};
use checkpoint_core::serde::from_msgpack;
use checkpoint_core::{ErrorKind, TypedBytes, Value};
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::codec::{bytes_of, encoded, load, read, unhex, view};

#[test]
fn times_have_views() {
    use python::{Date, DateTime, Time, TimeDelta};
    for name in [
        "datetime_naive",
        "datetime_naive_no_us",
        "datetime_utc",
        "datetime_offset",
        "datetime_zoneinfo",
        "datetime_fold",
    ] {
        let time: DateTime = view(name);
        let naive = time.to_naive().unwrap();
        match time.to_chrono() {
            Some(zoned) => assert_eq!(DateTime::from(zoned), time, "{name}"),
            None => assert_eq!(DateTime::from(naive), time, "{name}"),
        }
        assert_eq!(read::<String>(name), time.as_str());
    }
    let offset = view::<DateTime>("datetime_offset").to_chrono().unwrap();
    assert_eq!(offset.to_utc().to_string(), "2024-04-20 02:34:57 UTC");
    assert_eq!(view::<Date>("date").to_string(), "2024-04-19");
    assert_eq!(view::<Time>("time").to_string(), "23:04:57.051022");
    let zoned: Time = view("time_tz");
    assert_eq!(zoned.to_string(), "23:04:57.051022+00:00");
    assert_eq!(
        Time { tzinfo: Value::Nil, fold: 0, ..zoned },
        Time::from(view::<Time>("time").to_naive().unwrap())
    );
    for (name, text) in [("timedelta", "1 day, 0:00:02.000003"), ("timedelta_negative", "-1 day, 23:59:59")] {
        let span: TimeDelta = view(name);
        assert_eq!((span.to_string().as_str(), TimeDelta::from(span.to_chrono().unwrap())), (text, span));
    }
}

#[test]
fn scalars_and_sets_have_views() {
    use python::{Decimal, FrozenSet, Path, Set, Uuid};
    let uuid: Uuid = view("uuid");
    assert_eq!(uuid.to_string(), "12345678-1234-5678-1234-567812345678");
    let six: Uuid = read("uuid6_langgraph_class");
    assert_eq!(six.0.get_version_num(), 6);
    assert_eq!(view::<Decimal>("decimal"), Decimal::new("3.1400"));
    assert_eq!(view::<Decimal>("decimal_nan").0, "NaN");
    assert_eq!(view::<Set<i64>>("set_ints"), Set(vec![1]));
    assert_eq!(view::<Set<Value>>("set_empty"), Set(vec![]));
    assert_eq!(view::<FrozenSet<String>>("frozenset"), ["a".to_owned()].into_iter().collect());
    for (name, text) in [("posixpath", "/foo/bar.txt"), ("path_relative", "a/b"), ("path_dot", ".")] {
        let path: Path = view(name);
        assert_eq!((path.to_string().as_str(), Path::new(text)), (text, path));
    }
    let error = from_msgpack::<Set<i64>>(&bytes_of("frozenset")).unwrap_err();
    assert!(error.to_string().contains(r#"found="builtins.frozenset", wanted="builtins.set""#), "{error}");
}

#[test]
fn control_objects_have_views() {
    use python::{Command, DeltaSnapshot, Interrupt, Message, Send};
    assert_eq!(view::<Send<BTreeMap<String, i64>>>("send").arg, BTreeMap::from([("x".into(), 1)]));
    assert!(view::<Send>("send_timeout").timeout.is_some());
    assert_eq!(view::<Vec<Send>>("send_list")[0], Send::new("a", Value::from(1_i64)));
    let interrupt: Interrupt<String> = view("interrupt");
    assert_eq!((interrupt.value.as_str(), interrupt.id.unwrap().len()), ("what?", 32));
    assert_eq!(view::<Vec<Interrupt>>("interrupt_tuple").len(), 1);
    let resume = Command { resume: "yes".into(), ..Command::default() };
    assert_eq!(view::<Command>("command_resume"), resume);
    assert_eq!(view::<Command>("command_full").graph.as_deref(), Some("__parent__"));
    assert_eq!(view::<DeltaSnapshot<Vec<i64>>>("delta_snapshot_list").0, [1, 2]);
    assert_eq!(view::<DeltaSnapshot<Vec<Message>>>("delta_snapshot_messages").0[0].text(), "hi");
    assert_eq!(view::<DeltaSnapshot<Option<i64>>>("delta_snapshot_none").0, None);
    assert_eq!(read::<Vec<i64>>("delta_snapshot_list"), [1, 2], "a snapshot shows what it holds");
}

#[test]
fn messages_have_views() {
    use python::Message;
    let mut classes = BTreeMap::new();
    for name in [
        "human_message",
        "human_message_no_id",
        "human_message_blocks",
        "ai_message",
        "ai_message_tool_calls",
        "ai_message_invalid_tool_calls",
        "tool_message",
        "tool_message_error_artifact",
        "system_message",
        "remove_message",
        "ai_message_chunk",
        "chat_message",
        "function_message",
    ] {
        let class = match view::<Message>(name) {
            Message::Human(_) => "human",
            Message::Ai(_) => "ai",
            Message::Tool(_) => "tool",
            Message::System(_) => "system",
            Message::Remove(_) => "remove",
            Message::Other(value) => {
                assert!(Object::from_value(&value).is_some(), "{name}");
                "other"
            }
            other => panic!("{name}: {other:?}"),
        };
        *classes.entry(class).or_insert(0) += 1;
    }
    assert_eq!(
        classes,
        BTreeMap::from([("human", 3), ("ai", 3), ("tool", 2), ("system", 1), ("remove", 1), ("other", 3)])
    );
    let messages: Vec<Message> = view("message_list");
    let texts: Vec<_> = messages.iter().map(|message| (message.id(), message.text())).collect();
    assert_eq!(texts, [(Some("h1"), "hi".into()), (Some("a1"), "yo".into())]);
    let Message::Ai(ai) = view("ai_message_tool_calls") else { panic!("no AIMessage") };
    assert_eq!(
        (ai.tool_calls[0].name.as_str(), &ai.tool_calls[0].args["n"]),
        ("search", &Value::from(3_i64))
    );
    assert_eq!(ai.usage_metadata.unwrap().total_tokens, 3);
    let blocks: python::HumanMessage = view("human_message_blocks");
    assert_eq!((&*blocks.text(), blocks.name.as_deref()), ("hi", Some("bob")));
    let error = from_msgpack::<python::HumanMessage>(&bytes_of("ai_message")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Codec);
}

#[test]
fn values_are_shown_as_json() {
    let show = |name: &str| python::to_json(&Value::from_msgpack(&bytes_of(name)).unwrap());
    let class = |name: &str| json!({ "$type": format!("golden_types.{name}") });
    let with = |mut base: Json, fields: Json| {
        base.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        base
    };
    for (name, shown) in [
        ("datetime_utc", json!("2024-04-19T23:04:57.051022+00:00")),
        ("date", json!("2024-04-19")),
        ("time_tz", json!("23:04:57.051022+00:00")),
        ("timedelta_negative", json!("-1 day, 23:59:59")),
        ("uuid", json!("12345678-1234-5678-1234-567812345678")),
        ("uuid6_langgraph_class", json!("1ef4f797-8335-6428-8001-8a1503f9b875")),
        ("decimal", json!("3.1400")),
        ("posixpath", json!("/foo/bar.txt")),
        ("ipv4address", json!("192.168.0.1")),
        ("zoneinfo", json!("Europe/Paris")),
        ("enum_intvalue", json!(2)),
        ("set_ints", json!([1])),
        ("deque", json!([1, 2])),
        ("bytes_nested", json!({ "b": { "$bytes": "AQI=" }, "ba": { "$bytes": "Aw==" } })),
        ("np_float32_2d", json!({ "$ndarray": { "dtype": "<f4", "shape": [2, 2] } })),
        ("delta_snapshot_list", json!([1, 2])),
        ("float_nan", json!({ "$float": "nan" })),
        ("float_-inf", json!({ "$float": "-inf" })),
        ("int_18446744073709551615", json!(u64::MAX)),
        ("dict_int_keys", json!({ "1": "a", "-5": "b", "300": "c" })),
        ("dict_bool_none_keys", json!({ "true": 1, "null": 2 })),
        ("dict_tuple_keys", json!({ "[1,2]": "t" })),
        ("pydantic_secretstr", json!("**********")),
        ("pydantic_v2_secret_field", with(class("WithSecret"), json!({ "token": "**********" }))),
        ("dataclass", with(class("Point"), json!({ "x": 1, "y": 0.5, "label": null }))),
        ("pydantic_v1", with(class("V1Model"), json!({ "name": "a", "inner": { "n": 1 } }))),
        ("regex", json!({ "$type": "re.compile", "args": ["ab+c", 42] })),
        ("send", json!({ "$type": "langgraph.types.Send", "node": "node_b", "arg": { "x": 1 } })),
        (
            "human_message",
            json!({
                "content": "hi", "additional_kwargs": {}, "response_metadata": {}, "type": "human", "name": null,
                "id": "h1",
            }),
        ),
    ] {
        assert_eq!(show(name), shown, "{name}");
    }
    let unknown = Value::Ext(42, Bytes::from_static(b"\xc1\x0f"));
    assert_eq!(python::to_json(&unknown), json!({ "$ext": 42, "$hex": "c10f" }));
}

#[derive(Deserialize)]
struct Legacy {
    name: String,
    hex: String,
    text: String,
}

#[test]
fn the_old_json_tag_is_read() {
    use python::{
        AiMessage, Date, DateTime, Decimal, FrozenSet, HumanMessage, Path, Send, Set, SystemMessage,
    };
    use python::{Time, TimeDelta, ToolMessage, Uuid};

    let vectors = load::<Legacy>("serde_json_legacy.json");
    assert_eq!(vectors.len(), 29);
    let today = |module: &str, name: &str, code, contents: Value, trailing: Vec<Value>| {
        Object { code, module: module.into(), name: name.into(), contents, trailing }.to_value().unwrap()
    };
    let map = |entries: &[(&str, Value)]| {
        Value::Map(entries.iter().map(|(key, value)| ((*key).into(), value.clone())).collect())
    };
    let mut seen = 0;
    for vector in &vectors {
        seen += 1;
        let typed = TypedBytes::new("json", unhex(&vector.hex));
        let plain = checkpoint_core::serde::json::parse(vector.text.as_bytes()).unwrap();
        let expected = match vector.name.as_str() {
            "plain" | "lc1_not_implemented" => plain,
            "uuid" => encoded(&Uuid("12345678123456781234567812345678".parse().unwrap())),
            "decimal" => encoded(&Decimal::new("1.5")),
            "set" => encoded(&Set(vec![1, 2])),
            "frozenset" => encoded(&FrozenSet(vec![1])),
            "deque" => today("collections", "deque", 0, vec![1_i64].into(), vec![]),
            "datetime_fromisoformat" => {
                encoded(&DateTime::parse("2024-04-19T23:04:57.051022+00:00").unwrap())
            }
            "date" => encoded(&Date(read::<Date>("date").0)),
            "timedelta" => encoded(&TimeDelta { days: 1, seconds: 2, microseconds: 3 }),
            "time" => encoded(&Time { hour: 1, minute: 2, second: 3, microsecond: 4, ..Time::default() }),
            "timezone" => {
                let span = encoded(&TimeDelta { days: 0, seconds: 3600, microseconds: 0 });
                today("datetime", "timezone", 1, vec![span].into(), vec![])
            }
            "zoneinfo" => today("zoneinfo", "ZoneInfo", 0, "Europe/Paris".into(), vec![]),
            "path" => encoded(&Path::new("/foo")),
            "regex" => today("re", "compile", 1, Value::Array(vec!["ab".into(), 32_i64.into()]), vec![]),
            "ipv4" => today("ipaddress", "IPv4Address", 0, "10.0.0.1".into(), vec![]),
            "bytes_fromhex" => Value::Bin(Bytes::from_static(b"\x00\xff")),
            "send" => encoded(&Send::new("n", map(&[("x", 1_i64.into())]))),
            "send_old_module" => encoded(&Send::new("n", 1)),
            "dataclass" => {
                let fields = map(&[("x", 1_i64.into()), ("y", 0.5.into()), ("label", Value::Nil)]);
                today("golden_types", "Point", 2, fields, vec![])
            }
            "enum" => today("golden_types", "Color", 0, "red".into(), vec![]),
            "pydantic_v2" => {
                let fields = map(&[("n", 1_i64.into()), ("when", Value::Nil)]);
                today("golden_types", "Inner", 5, fields, vec!["model_validate_json".into()])
            }
            "exception" => today("builtins", "ValueError", 0, "x".into(), vec![]),
            "lc1_human" | "lc2_message_new_path" => encoded(&HumanMessage::new("hi").with_id("h1")),
            "lc1_ai" => encoded(&AiMessage::new("yo").with_id("a1")),
            "lc1_tool" => encoded(&ToolMessage::new("42", "c1").with_id("t1")),
            "lc1_system" => encoded(&SystemMessage::new("s")),
            "lc1_document" => {
                let fields = map(&[
                    ("id", Value::Nil),
                    ("metadata", map(&[])),
                    ("page_content", "p".into()),
                    ("type", "Document".into()),
                ]);
                let class = "langchain_core.documents.base";
                today(class, "Document", 5, fields, vec!["model_validate_json".into()])
            }
            name => panic!("{name} is new"),
        };
        assert_eq!(typed.to_value().unwrap(), expected, "{}", vector.name);
    }
    assert_eq!(seen, 29);
}
