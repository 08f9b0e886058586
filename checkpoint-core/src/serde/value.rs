//! The dynamic value: MessagePack with LangGraph's extension types.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use indexmap::IndexMap;
use serde::de::{Deserialize, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::{EXT_NAME, decode, encode};
use crate::{Result, Str};

/// Any value of a channel, for callers without a Rust type for it.
///
/// Its data model is MessagePack's, not JSON's: 64-bit integers, bytes, keys of any type, and extensions whose payload is
/// preserved byte for byte. [`crate::python`] has typed views of the extensions.
///
/// An unsigned integer is [`Value::UInt`] only if it does not fit [`Value::Int`]; the `From` conversions ensure that.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Value {
    /// `None`.
    #[default]
    Nil,
    /// A boolean.
    Bool(bool),
    /// An integer that fits a signed 64-bit integer.
    Int(i64),
    /// An integer from 2^63 on.
    UInt(u64),
    /// A double.
    Float(f64),
    /// Text.
    Str(String),
    /// Bytes.
    Bin(Bytes),
    /// A list; Python's tuples become lists too.
    Array(Vec<Self>),
    /// A map in its order; of duplicate keys the last one counts.
    Map(Vec<(Self, Self)>),
    /// An extension: a Python object as `code` and payload.
    Ext(i8, Bytes),
}

impl Value {
    /// Decodes MessagePack. Bytes after the first value are ignored, as in Python.
    ///
    /// # Errors
    /// [`ErrorKind::Codec`](crate::ErrorKind::Codec) for truncated or malformed bytes, and for nesting beyond
    /// [`MAX_DEPTH`](super::MAX_DEPTH).
    pub fn from_msgpack(bytes: &[u8]) -> Result<Self> {
        decode::value(&mut decode::Reader::new(bytes), 0)
    }

    /// Encodes as Python does: minimal widths, doubles, order preserved.
    ///
    /// # Errors
    /// [`ErrorKind::Codec`](crate::ErrorKind::Codec) for nesting that Python could not encode, for a key that is a
    /// map or an extension, and for a length beyond 32 bits.
    pub fn to_msgpack(&self) -> Result<Vec<u8>> {
        let mut encoder = encode::Encoder::new();
        encoder.value(self)?;
        Ok(encoder.into_bytes())
    }

    /// Reads an entry of a map by a key that is text.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Map(entries) => entries
                .iter()
                .rev()
                .find(|(candidate, _)| candidate.as_str() == Some(key))
                .map(|(_, value)| value),
            _ => None,
        }
    }

    /// The text, if it is text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    /// The integer, if it is one that fits.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            _ => None,
        }
    }

    /// The boolean, if it is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(flag) => Some(*flag),
            _ => None,
        }
    }

    /// The items, if it is a list.
    pub fn as_array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    /// The entries, if it is a map.
    pub fn as_map(&self) -> Option<&[(Self, Self)]> {
        match self {
            Self::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// Whether it is `None`.
    pub fn is_nil(&self) -> bool {
        matches!(self, Self::Nil)
    }
}

from! {
    Value:
    () => |_nothing| Self::Nil,
    bool => |flag| Self::Bool(flag),
    i8 => |number| Self::Int(number.into()),
    i16 => |number| Self::Int(number.into()),
    i32 => |number| Self::Int(number.into()),
    i64 => |number| Self::Int(number),
    // No platform has more than 64 bits.
    isize => |number| Self::Int(i64::try_from(number).unwrap_or(i64::MAX)),
    u8 => |number| Self::Int(number.into()),
    u16 => |number| Self::Int(number.into()),
    u32 => |number| Self::Int(number.into()),
    u64 => |number| i64::try_from(number).map_or(Self::UInt(number), Self::Int),
    usize => |number| u64::try_from(number).unwrap_or(u64::MAX).into(),
    f32 => |number| Self::Float(number.into()),
    f64 => |number| Self::Float(number),
    &str => |text| Self::Str(text.into()),
    String => |text| Self::Str(text),
    &String => |text| Self::Str(text.clone()),
    Cow<'_, str> => |text| Self::Str(text.into_owned()),
    Str => |text| Self::Str((*text).into()),
    Bytes => |data| Self::Bin(data),
    serde_json::Map<String, serde_json::Value> => |entries| Self::Map(pairs(entries)),
}

/// A number beyond 64 bits becomes the nearest double.
impl From<serde_json::Value> for Value {
    fn from(json: serde_json::Value) -> Self {
        match json {
            serde_json::Value::Null => Self::Nil,
            serde_json::Value::Bool(flag) => flag.into(),
            serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => number.into(),
                (_, Some(number)) => number.into(),
                // `as_f64` fails for some of the numbers of `serde_json/arbitrary_precision`.
                _ => Self::Float(number.to_string().parse().unwrap_or(f64::NAN)),
            },
            serde_json::Value::String(text) => text.into(),
            serde_json::Value::Array(items) => items.into(),
            serde_json::Value::Object(entries) => entries.into(),
        }
    }
}

impl<T> From<Option<T>> for Value
where
    Self: From<T>,
{
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Nil, Self::from)
    }
}

/// A list, also of numbers that are bytes: give bytes as [`Bytes`].
impl<T> From<Vec<T>> for Value
where
    Self: From<T>,
{
    fn from(items: Vec<T>) -> Self {
        Self::Array(items.into_iter().map(Self::from).collect())
    }
}

impl<T, const N: usize> From<[T; N]> for Value
where
    Self: From<T>,
{
    fn from(items: [T; N]) -> Self {
        Self::Array(items.into_iter().map(Self::from).collect())
    }
}

impl<T: Clone> From<&[T]> for Value
where
    Self: From<T>,
{
    fn from(items: &[T]) -> Self {
        Self::Array(items.iter().cloned().map(Self::from).collect())
    }
}

impl<K, V> From<BTreeMap<K, V>> for Value
where
    Self: From<K> + From<V>,
{
    fn from(entries: BTreeMap<K, V>) -> Self {
        Self::Map(pairs(entries))
    }
}

impl<K, V> From<IndexMap<K, V>> for Value
where
    Self: From<K> + From<V>,
{
    fn from(entries: IndexMap<K, V>) -> Self {
        Self::Map(pairs(entries))
    }
}

/// In the order in which [`to_msgpack`](super::to_msgpack) writes a hash map.
impl<K, V, S> From<HashMap<K, V, S>> for Value
where
    Self: From<K> + From<V>,
{
    fn from(entries: HashMap<K, V, S>) -> Self {
        let mut entries = pairs(entries);
        // Keys that cannot be encoded fail later, in any order.
        entries.sort_by_cached_key(|(key, _)| key.to_msgpack().unwrap_or_default());
        Self::Map(entries)
    }
}

fn pairs<K, V>(entries: impl IntoIterator<Item = (K, V)>) -> Vec<(Value, Value)>
where
    Value: From<K> + From<V>,
{
    entries.into_iter().map(|(key, value)| (key.into(), value.into())).collect()
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Nil => serializer.serialize_unit(),
            Self::Bool(flag) => serializer.serialize_bool(*flag),
            Self::Int(number) => serializer.serialize_i64(*number),
            Self::UInt(number) => serializer.serialize_u64(*number),
            Self::Float(number) => serializer.serialize_f64(*number),
            Self::Str(text) => serializer.serialize_str(text),
            Self::Bin(data) => serializer.serialize_bytes(data),
            Self::Array(items) => serializer.collect_seq(items),
            Self::Map(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
            Self::Ext(code, data) => serializer.serialize_newtype_struct(EXT_NAME, &(code, Raw(data))),
        }
    }
}

struct Raw<'a>(&'a [u8]);

impl Serialize for Raw<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// Lossless with this crate's decoder. If serde buffers the value (`flatten`, untagged and internally tagged enums), and
/// with other formats, extensions become their contents.
impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(super::VALUE_NAME, ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("any value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Nil)
    }
    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Nil)
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }
    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(Self)
    }
    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(flag.into())
    }
    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }
    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }
    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }
    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }
    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }
    fn visit_bytes<E>(self, data: &[u8]) -> Result<Value, E> {
        Ok(Value::Bin(Bytes::copy_from_slice(data)))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        while let Some(item) = items.next_element()? {
            out.push(item);
        }
        Ok(Value::Array(out))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            out.push(entry);
        }
        Ok(Value::Map(out))
    }
    /// This crate's decoder passes the value as an enum, which no other format does.
    fn visit_enum<A: EnumAccess<'de>>(self, exact: A) -> Result<Value, A::Error> {
        let ((), msgpack) = exact.variant()?;
        Ok(msgpack.newtype_variant::<Exact>()?.0)
    }
}

/// A value decoded from MessagePack that is passed as bytes.
struct Exact(Value);

impl<'de> Deserialize<'de> for Exact {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BytesVisitor;
        impl Visitor<'_> for BytesVisitor {
            type Value = Exact;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("MessagePack")
            }
            fn visit_bytes<E: Error>(self, msgpack: &[u8]) -> Result<Exact, E> {
                Value::from_msgpack(msgpack).map(Exact).map_err(E::custom)
            }
        }
        deserializer.deserialize_bytes(BytesVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serde::{from_msgpack, to_msgpack};

    #[test]
    fn is_lossless_as_a_field_and_cannot_be_spoofed() {
        let ext = Value::Ext(42, Bytes::from_static(b"\xc1 no MessagePack"));
        let fake =
            Value::Map(vec![(EXT_NAME.into(), Value::Array(vec![7_i64.into(), Value::Bin(Bytes::new())]))]);
        let value = Value::Map(vec![
            ("a".into(), Value::Array(vec![ext.clone(), fake])),
            (list_key(), Value::UInt(u64::MAX)),
        ]);
        let bytes = value.to_msgpack().unwrap();
        assert_eq!(to_msgpack(&value).unwrap(), bytes, "both encoders agree");
        assert_eq!(from_msgpack::<Value>(&bytes).unwrap(), value);
        let field: BTreeMap<String, Value> =
            from_msgpack(&to_msgpack(&[("x", ext.clone())].into_iter().collect::<BTreeMap<_, _>>()).unwrap())
                .unwrap();
        assert_eq!(field.get("x"), Some(&ext));
    }

    #[test]
    fn values_are_made_from_what_programs_have() {
        use serde_json::json;

        let map = |entries: &[(&str, Value)]| {
            Value::Map(entries.iter().map(|(key, value)| ((*key).into(), value.clone())).collect())
        };
        for (value, expected) in [
            (Value::from(usize::MAX), Value::UInt(u64::MAX)),
            (Value::from(7_usize), Value::Int(7)),
            (Value::from(isize::MIN), Value::Int(i64::MIN)),
            (Value::from(i64::MAX as u64 + 1), Value::UInt(1 << 63)),
            (Value::from(-1_i8), Value::Int(-1)),
            (Value::from(0.5_f32), Value::Float(0.5)),
            (Value::from(None::<u8>), Value::Nil),
            (Value::from(Some(vec![Some("a"), None])), Value::Array(vec!["a".into(), Value::Nil])),
            (Value::from(vec![1_u8, 2]), Value::Array(vec![Value::Int(1), Value::Int(2)])),
            (Value::from(&[1_u64, 2][..]), Value::from([1, 2])),
            (Value::from(BTreeMap::from([("k", vec![1])])), map(&[("k", Value::from([1]))])),
            (Value::from(IndexMap::from([("b", 1), ("a", 2)])), map(&[("b", 1.into()), ("a", 2.into())])),
            (Value::from(json!(null)), Value::Nil),
            (Value::from(json!(u64::MAX)), Value::UInt(u64::MAX)),
            (Value::from(json!(-1.5)), Value::Float(-1.5)),
            (
                Value::from(json!({"a": [1, "x", true]})),
                map(&[("a", Value::Array(vec![1.into(), "x".into(), true.into()]))]),
            ),
        ] {
            assert_eq!(value, expected);
        }
        let hashed: HashMap<_, _> = (0..50).map(|number| (number.to_string(), number)).collect();
        assert_eq!(Value::from(hashed.clone()).to_msgpack().unwrap(), to_msgpack(&hashed).unwrap());
    }

    fn list_key() -> Value {
        Value::Array(vec![Value::Nil, 1.5.into()])
    }
}
