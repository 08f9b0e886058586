//! The serializer and the ciphers against values that Python wrote; see `vectors/README.md`.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::path::PathBuf;

use bytes::Bytes;
use checkpoint_core::cipher::{self, Cipher, Place};
use checkpoint_core::python::{self, Object};
use checkpoint_core::serde::{from_msgpack, to_msgpack};
use checkpoint_core::{ChannelValue, ErrorKind, TypedBytes, Value};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value as Json, json};

#[derive(Deserialize)]
struct File<T> {
    vectors: Vec<T>,
}

#[derive(Deserialize)]
struct Vector {
    name: String,
    type_tag: Option<String>,
    hex: Option<String>,
    /// Raw, because some are nested deeper than the parser goes.
    structure: Option<Box<RawValue>>,
    encode_error: Option<String>,
}

impl Vector {
    fn typed(&self) -> TypedBytes {
        TypedBytes::new(self.type_tag.clone().unwrap(), unhex(self.hex.as_ref().unwrap()))
    }
}

fn load<T: DeserializeOwned>(file: &str) -> Vec<T> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("vectors").join(file);
    serde_json::from_str::<File<T>>(&std::fs::read_to_string(path).unwrap()).unwrap().vectors
}

fn vectors() -> Vec<Vector> {
    load("serde_vectors.json")
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// The value that Python's projection of MessagePack describes.
fn from_structure(json: &Json) -> Value {
    let only = |key: &str| match json {
        Json::Object(map) => map.get(key),
        _ => None,
    };
    if let Some(code) = only("$ext") {
        let payload = from_structure(&json["data"]).to_msgpack().unwrap();
        return Value::Ext(code.as_i64().unwrap().try_into().unwrap(), payload.into());
    }
    if let Some(entries) = only("$map") {
        let entry = |entry: &Json| (from_structure(&entry[0]), from_structure(&entry[1]));
        return Value::Map(entries.as_array().unwrap().iter().map(entry).collect());
    }
    if let Some(hex) = only("$bin") {
        return Value::Bin(unhex(hex.as_str().unwrap()).into());
    }
    if let Some(number) = only("$float") {
        return Value::Float(number.as_str().unwrap().parse().unwrap());
    }
    match json {
        Json::Null => Value::Nil,
        Json::Bool(flag) => (*flag).into(),
        Json::Number(number) => number.as_i64().map_or_else(|| number.as_u64().unwrap().into(), Value::from),
        Json::String(text) => text.as_str().into(),
        Json::Array(items) => items.iter().map(from_structure).collect::<Vec<_>>().into(),
        Json::Object(_) => panic!("a map without a mark in a projection"),
    }
}

fn from_rmpv(value: rmpv::Value) -> Value {
    match value {
        rmpv::Value::Nil => Value::Nil,
        rmpv::Value::Boolean(flag) => flag.into(),
        rmpv::Value::Integer(number) => {
            number.as_i64().map_or_else(|| number.as_u64().unwrap().into(), Value::from)
        }
        rmpv::Value::F32(number) => f64::from(number).into(),
        rmpv::Value::F64(number) => number.into(),
        rmpv::Value::String(text) => text.into_str().unwrap().into(),
        rmpv::Value::Binary(data) => Value::Bin(data.into()),
        rmpv::Value::Array(items) => items.into_iter().map(from_rmpv).collect::<Vec<_>>().into(),
        rmpv::Value::Map(entries) => {
            Value::Map(entries.into_iter().map(|(key, value)| (from_rmpv(key), from_rmpv(value))).collect())
        }
        rmpv::Value::Ext(code, data) => Value::Ext(code, data.into()),
    }
}

/// Takes every object apart and puts it together again; returns how many there were.
fn objects_survive(value: &Value, name: &str) -> usize {
    match value {
        Value::Array(items) => items.iter().map(|item| objects_survive(item, name)).sum(),
        Value::Map(entries) => entries.iter().map(|(_, value)| objects_survive(value, name)).sum(),
        Value::Ext(0..=5, _) => {
            let object = Object::from_value(value).unwrap_or_else(|| panic!("{name}: no object"));
            assert_eq!(&object.to_value().unwrap(), value, "{name}");
            1 + objects_survive(&object.contents, name)
        }
        Value::Ext(7, payload) => objects_survive(&Value::from_msgpack(payload).unwrap(), name),
        _ => 0,
    }
}

#[test]
fn every_value_decodes_and_is_written_back_byte_for_byte() {
    let (mut decoded, mut refused, mut pointers, mut objects) = (0, 0, 0, 0);
    for vector in vectors() {
        let name = &vector.name;
        if vector.encode_error.is_some() {
            assert!(vector.hex.is_none(), "{name}");
            refused += 1;
            continue;
        }
        if name == "np_object_array" {
            assert!(matches!(vector.typed().to_value().unwrap(), Value::Ext(6, _)));
            pointers += 1;
            continue;
        }
        decoded += 1;
        let typed = vector.typed();
        let value = typed.to_value().unwrap();
        let channel = ChannelValue::from_typed(typed.clone()).unwrap();
        assert_eq!(channel.to_typed().unwrap(), typed, "{name}");
        match &*typed.tag {
            "null" => assert_eq!(value, Value::Nil),
            "bytes" | "bytearray" => assert_eq!(value, Value::Bin(typed.data.clone()), "{name}"),
            "msgpack" => {
                let structure = vector.structure.as_ref().unwrap().get();
                let written = match serde_json::from_str(structure) {
                    Ok(structure) => from_structure(&structure).to_msgpack().unwrap(),
                    Err(_) => {
                        // Lists in lists, deeper than the parser goes.
                        let structure: String = structure.split_whitespace().collect();
                        let depth = structure.len() / 2;
                        assert_eq!(structure, "[".repeat(depth) + &"]".repeat(depth), "{name}");
                        let nested = (1..depth).fold(Value::Array(vec![]), |inner, _| vec![inner].into());
                        nested.to_msgpack().unwrap()
                    }
                };
                // Bytes are compared, because NaN is not equal to itself.
                assert_eq!(written, *typed.data, "{name}: the structure");
                assert_eq!(value.to_msgpack().unwrap(), *typed.data, "{name}: Value");
                assert_eq!(to_msgpack(&value).unwrap(), *typed.data, "{name}: Value through serde");
                let exact: Value = from_msgpack(&typed.data).unwrap();
                assert_eq!(exact.to_msgpack().unwrap(), *typed.data, "{name}: Value from serde");
                let oracle = rmpv::decode::read_value(&mut &*typed.data).unwrap();
                assert_eq!(from_rmpv(oracle).to_msgpack().unwrap(), *typed.data, "{name}: rmpv");
                objects += objects_survive(&value, name);
            }
            tag => panic!("{name}: tag {tag}"),
        }
    }
    assert_eq!((decoded, refused, pointers), (199, 23, 1), "223 vectors in all");
    assert!(objects > 90, "{objects} objects were taken apart");
}

#[test]
fn what_python_cannot_encode_is_refused() {
    let nested = |depth| (1..depth).fold(Value::Array(vec![]), |inner, _| vec![inner].into());
    let keyed_by = |key: &dyn Fn() -> Value| Value::Map(vec![(key(), Value::Nil)]);
    let mut without_counterpart = Vec::new();
    for vector in vectors().into_iter().filter(|vector| vector.encode_error.is_some()) {
        let error = match vector.name.as_str() {
            "int_2**64" => to_msgpack(&(1_u128 << 64)),
            "int_-2**63-1" => to_msgpack(&(i128::from(i64::MIN) - 1)),
            "nesting_depth_255" => nested(256).to_msgpack(),
            "nesting_depth_256" => to_msgpack(&nested(257)),
            "dict_frozenset_keys" => {
                let key = || encoded(&python::FrozenSet(vec![1]));
                keyed_by(&key).to_msgpack()
            }
            "dict_decimal_keys" => to_msgpack(&BTreeMap::from([("k", 1)]))
                .and_then(|_| keyed_by(&|| encoded(&python::Decimal::new("1.5"))).to_msgpack()),
            _ => {
                without_counterpart.push(vector.name);
                continue;
            }
        };
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Codec, "{}", vector.name);
    }
    assert_eq!(
        without_counterpart,
        [
            "float_subclass_nested",
            "bytes_subclass_nested",
            "range",
            "generator",
            "dict_keys",
            "pureposixpath",
            "complex",
            "type_object",
            "function",
            "opaque_object",
            "np_datetime64",
            "np_scalar_float64",
            "np_scalar_float32",
            "np_scalar_int64",
            "np_scalar_bool",
            "np_scalar_float64_nested",
            "retry_policy",
        ],
        "Rust has no such values"
    );
    assert!(nested(255).to_msgpack().is_ok(), "Python writes as much");
}

fn encoded<T: Serialize>(value: &T) -> Value {
    Value::from_msgpack(&to_msgpack(value).unwrap()).unwrap()
}

fn bytes_of(name: &str) -> Vec<u8> {
    unhex(vectors().iter().find(|vector| vector.name == name).unwrap().hex.as_ref().unwrap())
}

fn read<T: DeserializeOwned>(name: &str) -> T {
    from_msgpack(&bytes_of(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Reads a value through a typed view, which must write the same bytes.
fn view<T: Serialize + DeserializeOwned + PartialEq + Debug>(name: &str) -> T {
    let value: T = read(name);
    let written = to_msgpack(&value).unwrap();
    assert_eq!(
        Value::from_msgpack(&written).unwrap(),
        Value::from_msgpack(&bytes_of(name)).unwrap(),
        "{name}"
    );
    assert_eq!(written, bytes_of(name), "{name}");
    value
}

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
    assert!(error.to_string().contains("found builtins.frozenset, wanted builtins.set"), "{error}");
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

/// Asks for bytes as the crate `serde_bytes` does.
struct Raw(Vec<u8>);

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RawVisitor;
        impl serde::de::Visitor<'_> for RawVisitor {
            type Value = Raw;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E>(self, data: &[u8]) -> Result<Raw, E> {
                Ok(Raw(data.into()))
            }
        }
        deserializer.deserialize_byte_buf(RawVisitor)
    }
}

#[test]
fn types_of_users_decode_from_python_objects() {
    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(tag = "type", rename_all = "lowercase")]
    enum Msg {
        Human { content: String, id: Option<String> },
        Ai { content: String, tool_calls: Vec<Json> },
        Tool { content: String, tool_call_id: String },
    }
    assert_eq!(
        read::<Vec<Msg>>("message_list"),
        [
            Msg::Human { content: "hi".into(), id: Some("h1".into()) },
            Msg::Ai { content: "yo".into(), tool_calls: vec![] }
        ]
    );
    assert_eq!(
        read::<Msg>("tool_message"),
        Msg::Tool { content: "42".into(), tool_call_id: "call_1".into() }
    );

    #[derive(Debug, PartialEq, Deserialize)]
    struct Inner {
        n: i64,
        when: Option<String>,
    }
    assert_eq!(read::<Inner>("pydantic_v2").when.as_deref(), Some("2024-01-01T00:00:00+00:00"));
    #[derive(Debug, PartialEq, Deserialize)]
    struct Outer {
        inner: Inner,
        tags: HashSet<String>,
        amount: python::Decimal,
    }
    let outer: Outer = read("pydantic_v2_nested");
    assert_eq!((outer.inner, outer.tags), (Inner { n: 2, when: None }, HashSet::from(["t".to_owned()])));
    assert!(outer.amount.0.parse::<f64>().is_ok());

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename = "py:2:golden_types:Point")]
    struct Point {
        x: i64,
        y: f64,
        label: Option<String>,
    }
    assert_eq!(view::<Point>("dataclass"), Point { x: 1, y: 0.5, label: None });
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename = "py:2:golden_types:FrozenPoint")]
    struct FrozenPoint {
        x: i64,
        inner: Point,
    }
    assert_eq!(view::<FrozenPoint>("dataclass_nested_frozen_slots").inner.label.as_deref(), Some("p"));
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename = "py:0:golden_types:Color")]
    struct Color(String);
    assert_eq!(view::<Color>("enum").0, "red");
    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Shade {
        Red,
    }
    assert_eq!(read::<Shade>("enum"), Shade::Red);
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename = "py:1:ipaddress:Pair")]
    struct Pair(i64, String);
    assert_eq!(
        to_msgpack(&Pair(1, "z".into())).unwrap(),
        Object::from_value(&encoded(&Pair(1, "z".into())))
            .map(|pair| to_msgpack(&pair.to_value().unwrap()).unwrap())
            .unwrap()
    );
    assert_eq!(
        from_msgpack::<Pair>(&to_msgpack(&Pair(1, "z".into())).unwrap()).unwrap(),
        Pair(1, "z".into())
    );

    let blob = |name: &str| vectors().into_iter().find(|vector| vector.name == name).unwrap().typed();
    assert_eq!(blob("bytes_top").decode::<Vec<u8>>().unwrap(), b"\x00\xff\x10abc");
    assert_eq!(blob("bytes_top").decode::<Raw>().unwrap().0, b"\x00\xff\x10abc");
    assert_eq!(read::<BTreeMap<String, Vec<u8>>>("bytes_nested")["b"], [1, 2]);
    assert_eq!(read::<HashSet<i64>>("set_ints"), HashSet::from([1]));
    assert_eq!(read::<String>("datetime_naive"), "2024-04-19T23:04:57.051022");
    assert_eq!(read::<(i32, u32, u32)>("date"), (2024, 4, 19));
    assert_eq!(read::<BTreeMap<i64, String>>("dict_int_keys").get(&300).map(String::as_str), Some("c"));
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
            "deque" => today("collections", "deque", 0, vec![1_i64.into()].into(), vec![]),
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
            "regex" => today("re", "compile", 1, vec!["ab".into(), 32_i64.into()].into(), vec![]),
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

#[derive(Deserialize)]
struct Sealed {
    name: String,
    key_hex: String,
    type_tag: String,
    hex: String,
    plain_type_tag: String,
    plain_hex: String,
    fixed_nonce: Option<FixedNonce>,
}

#[derive(Deserialize)]
struct FixedNonce {
    type_tag: String,
    hex: String,
}

#[test]
fn what_python_sealed_opens_with_its_key_only() {
    let place = Place::Checkpoint { thread_id: "t", checkpoint_ns: "", checkpoint_id: "c" };
    let vectors = load::<Sealed>("encrypted_vectors.json");
    let mut opened = 0;
    for vector in &vectors {
        let cipher = Cipher::aes(&unhex(&vector.key_hex)).unwrap();
        let plain = TypedBytes::new(vector.plain_type_tag.clone(), unhex(&vector.plain_hex));
        let fixed = vector.fixed_nonce.iter().map(|fixed| (&fixed.type_tag, &fixed.hex));
        for (tag, hex) in fixed.chain([(&vector.type_tag, &vector.hex)]) {
            let sealed = TypedBytes::new(tag.clone(), unhex(hex));
            assert_eq!(cipher.open(sealed.clone(), &place).unwrap(), plain, "{}", vector.name);
            let other = Cipher::aes(&[0xaa; 32]).unwrap();
            let error = other.open(sealed.clone(), &place).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Crypto, "{}", vector.name);
            let error = cipher::open(None, sealed, &place).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Crypto, "{}", vector.name);
            opened += 1;
        }
        let again = cipher.seal(&plain, &place).unwrap();
        assert_eq!(again.tag, vector.type_tag, "{}", vector.name);
        assert_eq!(cipher.open(again, &place).unwrap(), plain, "{}", vector.name);
    }
    assert_eq!((vectors.len(), opened), (11, 20));
}
