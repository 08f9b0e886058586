//! Values as JSON for display.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Number, Value as Json, json};

use super::{Date, Object, Path, Time, TimeDelta, Uuid};
use crate::Value;
use crate::serde::{MAX_DEPTH, decode, float, from_msgpack, json::scalar_text};

/// Converts any value to JSON for display. The conversion is lossy.
///
/// | value | JSON |
/// |---|---|
/// | a LangChain message | its fields |
/// | another model, dataclass or named tuple | its fields and `"$type": "module.Name"` |
/// | datetime, date, time, timedelta, UUID, Decimal, path, address | text |
/// | enum | its value |
/// | set, frozenset, deque | a list |
/// | an object constructed from several arguments | `{"$type": …, "args": […]}` |
/// | `SecretStr` | asterisks |
/// | delta snapshot | its contents |
/// | bytes | `{"$bytes": base64}` |
/// | numpy array | `{"$ndarray": {"dtype": …, "shape": […]}}` |
/// | NaN, infinities | `{"$float": "nan"}` |
/// | another extension | `{"$ext": code, "$hex": payload}` |
/// | a key that is not text | its JSON text |
/// | a container that is nested too deeply | `{"$omitted": "nested too deeply"}` |
///
/// ```
/// use checkpoint_core::{ChannelValue, python};
/// let when = ChannelValue::encode(&python::DateTime::parse("2026-01-02T03:04:05")?)?;
/// assert_eq!(python::to_json(&when.to_value()?), "2026-01-02T03:04:05");
/// # Ok::<(), checkpoint_core::Error>(())
/// ```
pub fn to_json(value: &Value) -> Json {
    project(value, 0)
}

fn project(value: &Value, depth: usize) -> Json {
    match value {
        Value::Nil => Json::Null,
        Value::Bool(flag) => Json::Bool(*flag),
        Value::Int(number) => (*number).into(),
        Value::UInt(number) => (*number).into(),
        Value::Float(number) => {
            Number::from_f64(*number).map_or_else(|| json!({ "$float": float::repr(*number) }), Json::Number)
        }
        Value::Str(text) => Json::String(text.clone()),
        Value::Bin(data) => json!({ "$bytes": STANDARD.encode(data) }),
        Value::Array(_) | Value::Map(_) | Value::Ext(..) if depth >= MAX_DEPTH => {
            json!({ "$omitted": "nested too deeply" })
        }
        Value::Array(items) => items.iter().map(|item| project(item, depth + 1)).collect(),
        Value::Map(entries) => Json::Object(fields(entries, depth + 1).collect()),
        Value::Ext(code, payload) => extension(*code, payload, depth + 1)
            .unwrap_or_else(|| json!({ "$ext": code, "$hex": hex(payload) })),
    }
}

fn fields(entries: &[(Value, Value)], depth: usize) -> impl Iterator<Item = (String, Json)> {
    let key = move |key: &Value| match key {
        Value::Str(text) => text.clone(),
        Value::Nil | Value::Bool(_) | Value::Int(_) | Value::UInt(_) | Value::Float(_) => {
            scalar_text(key).into_owned()
        }
        _ => project(key, depth).to_string(),
    };
    entries.iter().map(move |(name, value)| (key(name), project(value, depth)))
}

fn extension(code: i8, payload: &[u8], depth: usize) -> Option<Json> {
    let decoded = || decode::value(&mut decode::Reader::new(payload), depth).ok();
    match code {
        6 => match decoded()?.as_array()? {
            [dtype, shape, ..] => Some(json!({
                "$ndarray": { "dtype": project(dtype, depth), "shape": project(shape, depth) }
            })),
            _ => None,
        },
        7 => Some(project(&decoded()?, depth)),
        0..=5 => Some(object(&Object::from_payload(code, payload, depth)?, depth)),
        _ => None,
    }
}

fn object(object: &Object, depth: usize) -> Json {
    if let Some(text) = text(object) {
        return Json::String(text);
    }
    let class = || Json::String(format!("{}.{}", object.module, object.name));
    let with_class = |key: &str, contents: &Value| {
        let class = ("$type".to_owned(), class());
        Json::Object(Map::from_iter([class, (key.to_owned(), project(contents, depth))]))
    };
    match (object.code, &object.contents) {
        (2 | 4 | 5, Value::Map(entries)) => {
            let mut out = Map::new();
            if !object.module.starts_with("langchain_core.messages.") {
                out.insert("$type".into(), class());
            }
            out.extend(fields(entries, depth));
            Json::Object(out)
        }
        (2 | 4 | 5, other) => with_class("value", other),
        (1, Value::Array(args)) if object.is("langgraph.types", "Send") => {
            let mut out = Map::from_iter([("$type".to_owned(), class())]);
            let names = ["node", "arg", "timeout"].map(str::to_owned);
            out.extend(names.into_iter().zip(args.iter().map(|arg| project(arg, depth))));
            Json::Object(out)
        }
        (1, other) => with_class("args", other),
        (_, single) => project(single, depth),
    }
}

/// The conventional text of an object, if its class has one.
fn text(object: &Object) -> Option<String> {
    let contents = || object.contents.to_msgpack().ok();
    match (object.code, object.module.as_str(), object.name.as_str()) {
        (0, "pydantic.types", "SecretStr" | "SecretBytes") => Some("**********".into()),
        (0, _, "UUID") => Some(from_msgpack::<Uuid>(&contents()?).ok()?.to_string()),
        (1, "datetime", "date") => Some(from_msgpack::<Date>(&contents()?).ok()?.to_string()),
        (1, "datetime", "timedelta") => Some(from_msgpack::<TimeDelta>(&contents()?).ok()?.to_string()),
        (2, "datetime", "time") => Some(from_msgpack::<Time>(&contents()?).ok()?.to_string()),
        (1, "pathlib" | "pathlib._local", _) => Some(from_msgpack::<Path>(&contents()?).ok()?.to_string()),
        _ => None,
    }
}

fn hex(data: &[u8]) -> String {
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    data.iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|nibble| DIGITS.get(usize::from(nibble)))
        .collect()
}
