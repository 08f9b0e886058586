//! Items and their values.

use std::collections::HashSet;
use std::fmt;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde::ser::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::Namespace;
use crate::serde::{Value, json, to_msgpack};
use crate::{Error, Result, Str};

/// The value of an item: the text of a JSON object.
///
/// A store does not parse the text, so nothing in it is lost, and the caller decodes it directly into its own type. A
/// database may change the order of keys and the format of numbers.
///
/// If an object has a key twice, the last entry counts, on every backend. The text in memory keeps both, and a struct
/// with a field of that name does not decode from it; PostgreSQL keeps only the last one.
#[derive(Clone)]
pub struct JsonObject(Str);

impl JsonObject {
    /// Encodes a struct or a map.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a value that is no JSON object, or that has what JSON
    /// lacks (NaN, an infinity, a map with keys that are not text).
    pub fn new(value: &(impl Serialize + ?Sized)) -> Result<Self> {
        let text = serde_json::to_string(value).map_err(|error| {
            Error::invalid_argument("the item's value is not valid JSON").with_source(error)
        })?;
        // The encoder writes a NaN as null.
        if text.contains("null") && has_nan(&Value::from_msgpack(&to_msgpack(value)?)?) {
            return Err(Error::invalid_argument(
                "the item's value contains a NaN or an infinity, which JSON lacks",
            ));
        }
        Self::object(text.into())
    }

    /// Checks JSON text.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for text that is no JSON object.
    pub fn from_text(text: impl Into<Str>) -> Result<Self> {
        let text = text.into();
        serde_json::from_str::<serde_json::Value>(&text).map_err(|error| {
            Error::invalid_argument("the item's value is not valid JSON").with_source(error)
        })?;
        Self::object(text)
    }

    /// Wraps text that a database has already checked to be JSON.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) for text that is no object.
    pub fn from_stored(text: impl Into<Str>) -> Result<Self> {
        Self::object(text.into()).map_err(|_| Error::codec("the stored value is no JSON object"))
    }

    fn object(text: Str) -> Result<Self> {
        // Valid JSON that begins with a brace is an object.
        if text.trim_start().starts_with('{') {
            Ok(Self(text))
        } else {
            Err(Error::invalid_argument("an item's value must be a JSON object: a struct or a map"))
        }
    }

    /// Returns the JSON text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Decodes it into any type, such as `serde_json::Value`.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) when the type does not fit.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(&self.0)
            .map_err(|error| Error::codec("the item's value does not fit the type").with_source(error))
    }

    /// Decodes it into the dynamic value that filters and index fields use. Keys keep their order and are unique;
    /// integers beyond 64 bits become doubles.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) for invalid JSON.
    pub fn to_value(&self) -> Result<Value> {
        let mut value = json::parse(self.0.as_bytes())?;
        keep_last_entries(&mut value);
        Ok(value)
    }
}

/// Removes all but the last of the entries with the same key, as a database does.
fn keep_last_entries(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(keep_last_entries),
        Value::Map(entries) => {
            let mut seen = HashSet::with_capacity(entries.len());
            let mut is_last: Vec<bool> =
                entries.iter().rev().map(|(key, _)| seen.insert(key.as_str())).collect();
            if is_last.contains(&false) {
                entries.retain(|_| is_last.pop().unwrap_or(true));
            }
            for (_, value) in entries {
                keep_last_entries(value);
            }
        }
        _ => {}
    }
}

impl fmt::Debug for JsonObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Serializes the object, not its text.
impl Serialize for JsonObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

fn has_nan(value: &Value) -> bool {
    match value {
        Value::Float(number) => !number.is_finite(),
        Value::Array(items) => items.iter().any(has_nan),
        Value::Map(entries) => entries.iter().any(|(_, value)| has_nan(value)),
        _ => false,
    }
}

/// A value under a namespace and a key.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Item {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its key in the namespace.
    pub key: Str,
    /// Its value.
    pub value: JsonObject,
    /// When the key was first put; a later put does not change it.
    pub created_at: DateTime<Utc>,
    /// When the key was last put.
    pub updated_at: DateTime<Utc>,
}

impl Item {
    /// Creates an item, for stores.
    pub fn new(
        namespace: impl Into<Namespace>,
        key: impl Into<Str>,
        value: JsonObject,
        created_at: DateTime<Utc>,
        updated_at: DateTime<Utc>,
    ) -> Self {
        Self { namespace: namespace.into(), key: key.into(), value, created_at, updated_at }
    }
}

/// An item that a search found.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SearchItem {
    /// The item.
    pub item: Item,
    /// The score by the index's [`Distance`](super::Distance); a higher one is a better match. `None` without a query.
    pub score: Option<f64>,
}

impl SearchItem {
    /// Creates a search result, for stores.
    pub fn new(item: Item, score: Option<f64>) -> Self {
        Self { item, score }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_value_is_an_object_without_nan() {
        #[derive(serde::Serialize)]
        struct Reading {
            level: f64,
            note: Option<&'static str>,
        }
        assert_eq!(
            JsonObject::new(&Reading { level: 1.5, note: None }).unwrap().as_str(),
            r#"{"level":1.5,"note":null}"#
        );
        for rejected in [
            JsonObject::new(&Reading { level: f64::NAN, note: None }),
            JsonObject::new(&json!([1])),
            JsonObject::new(&json!("text")),
        ] {
            assert_eq!(rejected.unwrap_err().kind(), crate::ErrorKind::InvalidArgument);
        }
        assert!(JsonObject::from_text("{\"a\": 1").is_err());
        assert!(JsonObject::from_text("[]").is_err());
        let big = JsonObject::from_text("{\"n\": 123456789012345678901234567890}").unwrap();
        assert_eq!(big.as_str(), "{\"n\": 123456789012345678901234567890}");
        assert_eq!(JsonObject::new(&big).unwrap().as_str(), big.as_str(), "unchanged when put again");
    }

    #[test]
    fn the_last_of_duplicate_keys_counts() {
        let twice = r#"{"a": 1, "b": [{"c": 2, "d": 3, "c": 4, "c": 5}], "a": {"e": 6, "e": 7}}"#;
        let once = JsonObject::from_text(twice).unwrap().to_value().unwrap();
        assert_eq!(
            json::to_string(&once, json::Style::Plain).unwrap(),
            r#"{"b": [{"d": 3, "c": 5}], "a": {"e": 7}}"#
        );
    }
}
