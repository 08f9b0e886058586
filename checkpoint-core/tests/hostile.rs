//! Damaged and hostile bytes: decoding returns an error or a value. It never panics, overflows the stack, or allocates
//! memory for declared lengths.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use checkpoint_core::python::{
    self, DateTime, DeltaSnapshot, Interrupt, Message, Path, Send, Set, Time, TimeDelta, Uuid,
};
use checkpoint_core::serde::{MAX_DEPTH, document, from_msgpack, json, to_msgpack};
use checkpoint_core::{ChannelValue, ErrorKind, TypedBytes, Value};
use indexmap::IndexMap;
use proptest::prelude::*;
use serde::Deserialize;
use serde::de::IgnoredAny;

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
#[expect(dead_code, reason = "only decoded")]
enum Tagged {
    Human { content: String },
    Ai(HashMap<String, i64>),
    Nothing,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
#[expect(dead_code, reason = "only decoded")]
enum Untagged {
    When(DateTime),
    Number(f64),
    Bytes(Vec<u8>),
    Map(BTreeMap<String, Value>),
    Any(serde_json::Value),
}

#[derive(Debug, Deserialize)]
#[serde(rename = "py:5:m:C")]
#[expect(dead_code, reason = "only decoded")]
struct Model {
    a: Option<i8>,
    b: (u8, String),
    #[serde(default)]
    c: char,
}

/// Decodes bytes in every supported way; every failure must be a codec error.
fn read_everywhere(bytes: &[u8]) {
    fn check<T>(result: checkpoint_core::Result<T>) -> Option<T> {
        result.inspect_err(|error| assert_eq!(error.kind(), ErrorKind::Codec, "{error}")).ok()
    }
    if let Some(value) = check(Value::from_msgpack(bytes)) {
        let _ = python::to_json(&value).to_string();
        if let Some(object) = python::Object::from_value(&value) {
            let _ = object.to_value();
        }
        let _ = json::revive(value);
    }
    macro_rules! decode {
        ($($type:ty),* $(,)?) => { $(check(from_msgpack::<$type>(bytes));)* };
    }
    decode!(
        Value,
        serde_json::Value,
        IgnoredAny,
        Tagged,
        Untagged,
        Model,
        Message,
        Vec<Message>,
        DateTime,
        Time,
        TimeDelta,
        Path,
        Uuid,
        Set<i64>,
        Send,
        Interrupt,
        DeltaSnapshot<Vec<Value>>,
        python::Date,
        python::Command,
        python::Fields,
        Vec<u8>,
        Vec<Vec<String>>,
        IndexMap<String, Value>,
        HashMap<i64, Box<[u8]>>,
        Option<bool>,
        (u8, f32, String),
        u128,
    );
    let owned = Bytes::copy_from_slice(bytes);
    if let Some(value) = check(ChannelValue::from_msgpack(owned.clone())) {
        check(value.to_value());
        check(value.decode::<Vec<Message>>());
    }
    check(document::decode_checkpoint(&owned));
    check(document::find_channels(&owned, &["messages"]));
    check(json::parse(bytes));
    for tag in ["msgpack", "json", "bytes", "null", "empty", "pickle", "no such tag"] {
        let typed = TypedBytes::new(tag, owned.clone());
        check(typed.to_msgpack());
        check(typed.decode::<Value>());
    }
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Nil),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-200_i64..70_000).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>()
            .prop_filter("NaN is not equal to itself", |number| !number.is_nan())
            .prop_map(Value::from),
        ".{0,40}".prop_map(Value::from),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(|data| Value::Bin(data.into())),
    ]
}

fn key() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(2, 6, 3, |inner| prop::collection::vec(inner, 0..3).prop_map(Value::Array))
}

const CLASSES: [(&str, &str); 6] = [
    ("uuid", "UUID"),
    ("datetime", "timedelta"),
    ("datetime", "time"),
    ("datetime", "datetime"),
    ("app", "Model"),
    ("langchain_core.messages.human", "HumanMessage"),
];

fn object((code, class, contents): (i8, prop::sample::Index, Value)) -> Value {
    let (module, name) = CLASSES[class.index(CLASSES.len())];
    let trailing = vec!["fromisoformat".into()];
    python::Object { code, module: module.into(), name: name.into(), contents, trailing }.to_value().unwrap()
}

fn value() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(5, 60, 20, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..20).prop_map(Value::Array),
            prop::collection::vec((key(), inner.clone()), 0..20).prop_map(Value::Map),
            (0_i8..6, any::<prop::sample::Index>(), inner.clone()).prop_map(object),
            inner.prop_map(|inner| Value::Ext(7, inner.to_msgpack().unwrap().into())),
            (any::<i8>(), prop::collection::vec(any::<u8>(), 0..20))
                .prop_map(|(code, payload)| Value::Ext(code, payload.into())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        read_everywhere(&bytes);
    }

    #[test]
    fn mutated_and_truncated_values_never_panic(
        value in value(),
        end in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut bytes = value.to_msgpack().unwrap();
        for (at, byte) in &changes {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        read_everywhere(&bytes);
        read_everywhere(&bytes[..end.index(bytes.len())]);
    }

    #[test]
    fn encoded_values_round_trip(value in value()) {
        let bytes = value.to_msgpack().unwrap();
        prop_assert_eq!(&Value::from_msgpack(&bytes).unwrap(), &value);
        prop_assert_eq!(&from_msgpack::<Value>(&bytes).unwrap(), &value);
        prop_assert_eq!(to_msgpack(&value).unwrap(), bytes.clone());
        let mut left = &*bytes;
        prop_assert!(rmpv::decode::read_value(&mut left).is_ok() && left.is_empty(), "another decoder reads it");
        for end in 0..bytes.len() {
            prop_assert!(Value::from_msgpack(&bytes[..end]).is_err(), "cut at {}", end);
        }
    }

    #[test]
    fn canonical_bytes_are_written_back(value in value()) {
        let canonical = value.to_msgpack().unwrap();
        let again = Value::from_msgpack(&canonical).unwrap().to_msgpack().unwrap();
        prop_assert_eq!(&again, &canonical);
        let channel = ChannelValue::from_msgpack(canonical.clone().into()).unwrap();
        prop_assert_eq!(&channel.to_msgpack().unwrap()[..], &canonical[..]);
    }

    #[test]
    fn json_round_trips(value in value(), ascii in any::<bool>()) {
        let style = if ascii { json::Style::Ascii } else { json::Style::Plain };
        match json::to_string(&value, style) {
            Ok(text) => {
                prop_assert!(!ascii || text.is_ascii());
                let read = json::parse(text.as_bytes()).unwrap();
                prop_assert_eq!(json::to_string(&read, style).unwrap(), text);
            }
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::InvalidArgument),
        }
    }

    #[test]
    fn arbitrary_text_never_panics_as_json(text in r#"[\[\]{}",:0-9eE.+\-NaInfity\\u\tdD8cC]{0,60}"#) {
        let ours = json::parse(text.as_bytes());
        if serde_json::from_str::<serde_json::Value>(&text).is_ok() {
            prop_assert!(ours.is_ok(), "valid JSON is read");
        }
    }
}

#[test]
fn declared_lengths_are_not_allocated() {
    // Each declares about 4 billion bytes or items.
    for head in [0xdd, 0xdf, 0xdb, 0xc6, 0xc9] {
        for tail in [&b""[..], b"\x05", b"\x05\xc0\xc0\xc0"] {
            let mut bytes = vec![head];
            bytes.extend([0xff; 4]);
            bytes.extend(tail);
            assert_eq!(Value::from_msgpack(&bytes).unwrap_err().kind(), ErrorKind::Codec, "{head:x}");
            read_everywhere(&bytes);
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(transparent)]
#[expect(dead_code, reason = "only decoded")]
struct Nested(IndexMap<String, Self>);

#[test]
fn nested_maps_with_false_lengths_allocate_little() {
    // Each of 500 maps declares as many entries as bytes follow: allocating for all of them would take gigabytes.
    let mut bytes = b"\xdf\x00\x07\x80\x00\xa1k".repeat(500);
    bytes.resize(bytes.len() + 1_000_000, 0xc0);
    assert_eq!(from_msgpack::<Nested>(&bytes).unwrap_err().kind(), ErrorKind::Codec);
    assert_eq!(Value::from_msgpack(&bytes).unwrap_err().kind(), ErrorKind::Codec);
    read_everywhere(&bytes);
}

#[test]
fn deep_nesting_is_an_error_on_a_small_stack() {
    let run = || {
        for depth in [10_000, 1_000_000] {
            for open in [&b"\x91"[..], b"\x81\xa0", b"\x81\xc0"] {
                let mut bytes = open.repeat(depth);
                bytes.push(0xc0);
                assert_eq!(Value::from_msgpack(&bytes).unwrap_err().kind(), ErrorKind::Codec);
                read_everywhere(&bytes);
            }
            assert_eq!(json::parse("[".repeat(depth).as_bytes()).unwrap_err().kind(), ErrorKind::Codec);
        }
        // The maximum depth, and one level more.
        for (depth, fits) in [(MAX_DEPTH, true), (MAX_DEPTH + 1, false)] {
            let mut bytes = b"\x91".repeat(depth);
            bytes.push(0xc0);
            assert_eq!(Value::from_msgpack(&bytes).is_ok(), fits, "{depth}");
            assert_eq!(from_msgpack::<serde_json::Value>(&bytes).is_ok(), fits, "{depth}");
            read_everywhere(&bytes);
        }
        // Nested extensions, with codes whose contents are decoded.
        let (mut snapshots, mut objects) = (Value::Nil, Value::Nil);
        for _ in 0..2_000 {
            snapshots = Value::Ext(7, snapshots.to_msgpack().unwrap().into());
            let contents = Value::Map(vec![("a".into(), objects)]);
            let (module, name) = ("m".into(), "C".into());
            objects =
                python::Object { code: 2, module, name, contents, trailing: vec![] }.to_value().unwrap();
        }
        for value in [snapshots, objects] {
            let bytes = value.to_msgpack().unwrap();
            assert_eq!(from_msgpack::<serde_json::Value>(&bytes).unwrap_err().kind(), ErrorKind::Codec);
            let shown = python::to_json(&value).to_string();
            assert!(shown.contains("$hex") || shown.contains("$omitted"), "the rest is not decoded");
            read_everywhere(&bytes);
        }
    };
    std::thread::Builder::new().stack_size(2 * 1024 * 1024).spawn(run).unwrap().join().unwrap();
}
