//! Types of users that decode from what Python wrote.

use std::collections::{BTreeMap, HashSet};

use checkpoint_core::python::{self, Object};
use checkpoint_core::serde::from_msgpack;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::codec::{encoded, read, vectors, view};

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

#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Msg {
    Human { content: String, id: Option<String> },
    Ai { content: String, tool_calls: Vec<Json> },
    Tool { content: String, tool_call_id: String },
}

#[derive(Debug, PartialEq, Deserialize)]
struct Inner {
    n: i64,
    when: Option<String>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Outer {
    inner: Inner,
    tags: HashSet<String>,
    amount: python::Decimal,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename = "py:2:golden_types:Point")]
struct Point {
    x: i64,
    y: f64,
    label: Option<String>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename = "py:2:golden_types:FrozenPoint")]
struct FrozenPoint {
    x: i64,
    inner: Point,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename = "py:0:golden_types:Color")]
struct Color(String);

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Shade {
    Red,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename = "py:1:app:Pair")]
struct Pair(i64, String);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename = "py:5:app.models:Profile")]
struct Profile {
    name: String,
    born: Option<python::Date>,
}

#[test]
fn types_of_users_decode_from_python_objects() {
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

    assert_eq!(read::<Inner>("pydantic_v2").when.as_deref(), Some("2024-01-01T00:00:00+00:00"));
    let outer: Outer = read("pydantic_v2_nested");
    assert_eq!((outer.inner, outer.tags), (Inner { n: 2, when: None }, HashSet::from(["t".to_owned()])));
    assert!(outer.amount.0.parse::<f64>().is_ok());

    assert_eq!(view::<Point>("dataclass"), Point { x: 1, y: 0.5, label: None });
    assert_eq!(view::<FrozenPoint>("dataclass_nested_frozen_slots").inner.label.as_deref(), Some("p"));
    assert_eq!(view::<Color>("enum").0, "red");
    assert_eq!(read::<Shade>("enum"), Shade::Red);
    let pair = encoded(&Pair(1, "z".into()));
    let object = Object::from_value(&pair).unwrap();
    assert_eq!((object.code, object.is("app", "Pair")), (1, true));
    assert_eq!(object.contents, checkpoint_core::Value::Array(vec![1_i64.into(), "z".into()]));
    assert_eq!(from_msgpack::<Pair>(&pair.to_msgpack().unwrap()).unwrap(), Pair(1, "z".into()));
    let profile = Profile { name: "Ada".into(), born: Some(python::Date(read::<python::Date>("date").0)) };
    let model = encoded(&profile);
    let object = Object::from_value(&model).unwrap();
    assert_eq!((object.code, object.is("app.models", "Profile")), (5, true));
    assert_eq!(object.trailing, ["model_validate_json".into()]);
    assert_eq!(from_msgpack::<Profile>(&model.to_msgpack().unwrap()).unwrap(), profile);
    let error = from_msgpack::<Profile>(&pair.to_msgpack().unwrap()).unwrap_err();
    assert!(error.to_string().contains(r#"found="app.Pair", wanted="app.models.Profile""#), "{error}");

    let blob = |name: &str| vectors().into_iter().find(|vector| vector.name == name).unwrap().typed();
    assert_eq!(blob("bytes_top").decode::<Vec<u8>>().unwrap(), b"\x00\xff\x10abc");
    assert_eq!(blob("bytes_top").decode::<Raw>().unwrap().0, b"\x00\xff\x10abc");
    assert_eq!(read::<BTreeMap<String, Vec<u8>>>("bytes_nested")["b"], [1, 2]);
    assert_eq!(read::<HashSet<i64>>("set_ints"), HashSet::from([1]));
    assert_eq!(read::<String>("datetime_naive"), "2024-04-19T23:04:57.051022");
    assert_eq!(read::<(i32, u32, u32)>("date"), (2024, 4, 19));
    assert_eq!(read::<BTreeMap<i64, String>>("dict_int_keys").get(&300).map(String::as_str), Some("c"));
}
