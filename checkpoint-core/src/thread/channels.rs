//! A state as channels: one for each field of a struct or entry of a map.

use serde::Serialize;
use serde::ser::{self, Impossible};

use crate::serde::PythonClass;
use crate::{ChannelValue, ChannelValues, Error, Result, Str};

/// The channels of a state.
#[derive(Debug, Default)]
pub(super) struct Channels {
    /// The encoded fields.
    pub(super) values: ChannelValues,
    /// The fields that `skip_serializing_if` skipped: their channels lose their values.
    pub(super) skipped: Vec<Str>,
}

impl Channels {
    /// Encodes a struct or map.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) for any other value, and for a field that cannot be encoded, naming the channel.
    pub(super) fn of<T: Serialize + ?Sized>(state: &T) -> Result<Self> {
        state.serialize(Root)
    }

    fn add<T: Serialize + ?Sized>(&mut self, channel: &str, value: &T) -> Result<()> {
        let value = ChannelValue::encode(value).map_err(|error| error.with("channel", channel))?;
        self.values.insert(channel.into(), value);
        Ok(())
    }
}

fn no_struct() -> Error {
    Error::codec("a thread's values must be a struct or a map with text keys: one channel per field")
}

/// Accepts structs and maps.
struct Root;

/// A map of which a key was read.
#[derive(Default)]
struct Map {
    channels: Channels,
    key: Str,
}

macro_rules! reject {
    ($($method:ident: $type:ty),* $(,)?) => {
        $(fn $method(self, _: $type) -> Result<Channels> {
            Err(no_struct())
        })*
    };
}

impl ser::Serializer for Root {
    type Ok = Channels;
    type Error = Error;
    type SerializeSeq = Impossible<Channels, Error>;
    type SerializeTuple = Impossible<Channels, Error>;
    type SerializeTupleStruct = Impossible<Channels, Error>;
    type SerializeTupleVariant = Impossible<Channels, Error>;
    type SerializeMap = Map;
    type SerializeStruct = Channels;
    type SerializeStructVariant = Impossible<Channels, Error>;

    reject! {
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_i128: i128, serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64,
        serialize_u128: u128, serialize_f32: f32, serialize_f64: f64, serialize_char: char, serialize_str: &str,
        serialize_bytes: &[u8], serialize_unit_struct: &'static str,
    }

    fn serialize_none(self) -> Result<Channels> {
        Err(no_struct())
    }

    fn serialize_unit(self) -> Result<Channels> {
        Err(no_struct())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Channels> {
        value.serialize(self)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Result<Channels> {
        Err(no_struct())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<Channels> {
        if PythonClass::parse(name).is_some() { Err(no_struct()) } else { value.serialize(self) }
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Channels> {
        let mut channels = Channels::default();
        channels.add(variant, value)?;
        Ok(channels)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self::SerializeSeq> {
        Err(no_struct())
    }

    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple> {
        Err(no_struct())
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeTupleStruct> {
        Err(no_struct())
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant> {
        Err(no_struct())
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Map> {
        Ok(Map::default())
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Channels> {
        if PythonClass::parse(name).is_some() { Err(no_struct()) } else { Ok(Channels::default()) }
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant> {
        Err(no_struct())
    }
}

impl ser::SerializeStruct for Channels {
    type Ok = Self;
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<()> {
        self.add(key, value)
    }

    fn skip_field(&mut self, key: &'static str) -> Result<()> {
        self.skipped.push(key.into());
        Ok(())
    }

    fn end(self) -> Result<Self> {
        Ok(self)
    }
}

impl ser::SerializeMap for Map {
    type Ok = Channels;
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<()> {
        match ChannelValue::encode(key)? {
            ChannelValue::Str(key) => {
                self.key = key;
                Ok(())
            }
            _ => Err(no_struct()),
        }
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        let key = std::mem::take(&mut self.key);
        self.channels.add(&key, value)
    }

    fn end(self) -> Result<Channels> {
        Ok(self.channels)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Serialize)]
    struct State {
        topic: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        answer: Option<String>,
        #[serde(flatten)]
        more: BTreeMap<String, i64>,
    }

    #[derive(Serialize)]
    struct Plain {
        topic: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        answer: Option<String>,
    }

    fn names(channels: &Channels) -> Vec<&str> {
        channels.values.keys().map(|channel| &**channel).collect()
    }

    #[test]
    fn skipped_fields_are_known() {
        let channels = Channels::of(&Plain { topic: "rust", answer: None }).unwrap();
        assert_eq!(names(&channels), ["topic"]);
        assert_eq!(channels.skipped, [Str::from("answer")]);
        let channels = Channels::of(&Some(Plain { topic: "rust", answer: Some("yes".into()) })).unwrap();
        assert_eq!((names(&channels), channels.skipped.len()), (vec!["topic", "answer"], 0));
    }

    #[test]
    fn a_flattened_struct_is_a_map() {
        let more = BTreeMap::from([("a".into(), 1)]);
        let channels = Channels::of(&State { topic: "rust", answer: None, more }).unwrap();
        assert_eq!((names(&channels), channels.skipped.len()), (vec!["topic", "a"], 0));
    }

    #[test]
    fn other_values_are_rejected() {
        for error in [
            Channels::of("text").unwrap_err(),
            Channels::of(&[1, 2]).unwrap_err(),
            Channels::of(&()).unwrap_err(),
            Channels::of(&BTreeMap::from([(1, 2)])).unwrap_err(),
        ] {
            assert_eq!(error.kind(), crate::ErrorKind::Codec);
            assert!(error.to_string().contains("struct"), "{error}");
        }
        let error = Channels::of(&BTreeMap::from([("big", i128::MAX)])).unwrap_err();
        assert!(error.to_string().contains("big"), "{error}");
    }
}
