//! The MessagePack decoder. It does not trust declared lengths for allocation, and limits nesting.

use std::borrow::Cow;

use bytes::Bytes;
use serde::de::{self, DeserializeOwned, DeserializeSeed, IntoDeserializer, Unexpected, Visitor};

pub(crate) use super::reader::{Reader, Token};
use super::{MAX_DEPTH, PythonClass, VALUE_NAME, Value};
use crate::{ChannelValue, ChannelValues, Error, Result, Str};

/// Decodes MessagePack into a Rust type.
///
/// Unless the type names a Python class itself, an extension decodes as its contents: a pydantic model or dataclass as a
/// map of its fields, a datetime as ISO text, a set as a sequence, an enum as its value, a delta snapshot as the value in
/// it. Bytes after the first value are ignored, as in Python.
///
/// # Errors
/// [`ErrorKind::Codec`](crate::ErrorKind::Codec) for truncated or malformed bytes, nesting beyond
/// [`MAX_DEPTH`](super::MAX_DEPTH), and values that do not fit the type.
pub fn from_msgpack<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    T::deserialize(&mut Decoder::new(bytes, 0))
}

/// The most items to preallocate for, whatever length is declared.
const MAX_PREALLOCATED: usize = 64;

fn check_depth(depth: usize) -> Result<usize> {
    if depth >= MAX_DEPTH {
        return Err(Error::codec("the value is nested too deeply to be decoded").with("limit", MAX_DEPTH));
    }
    Ok(depth + 1)
}

/// Reads one dynamic value.
pub(crate) fn value(reader: &mut Reader<'_>, depth: usize) -> Result<Value> {
    Ok(match reader.token()? {
        Token::Nil => Value::Nil,
        Token::Bool(flag) => Value::Bool(flag),
        Token::Int(number) => Value::Int(number),
        Token::UInt(number) => Value::UInt(number),
        Token::Float(number) => Value::Float(number),
        Token::Str(text) => Value::Str(text.into()),
        Token::Bin(data) => Value::Bin(Bytes::copy_from_slice(data)),
        Token::Ext(code, data) => Value::Ext(code, Bytes::copy_from_slice(data)),
        Token::Array(len) => {
            let depth = check_depth(depth)?;
            let mut items = Vec::with_capacity(len.min(MAX_PREALLOCATED));
            for _ in 0..len {
                items.push(value(reader, depth)?);
            }
            Value::Array(items)
        }
        Token::Map(len) => {
            let depth = check_depth(depth)?;
            let mut entries = Vec::with_capacity(len.min(MAX_PREALLOCATED));
            for _ in 0..len {
                entries.push((value(reader, depth)?, value(reader, depth)?));
            }
            Value::Map(entries)
        }
    })
}

impl de::Error for Error {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self::codec(format!("the value does not fit the type: {message}"))
    }

    // serde's own messages would quote the value.
    fn invalid_type(found: Unexpected<'_>, wanted: &dyn de::Expected) -> Self {
        Self::custom(format_args!("found {}, wanted {wanted}", kind(found)))
    }
    fn invalid_value(found: Unexpected<'_>, wanted: &dyn de::Expected) -> Self {
        Self::custom(format_args!("found {} that does not fit, wanted {wanted}", kind(found)))
    }
    fn unknown_variant(_found: &str, wanted: &'static [&'static str]) -> Self {
        Self::custom(format_args!("found an unknown variant, wanted one of {}", wanted.join(", ")))
    }
    fn unknown_field(_found: &str, wanted: &'static [&'static str]) -> Self {
        Self::custom(format_args!("found an unknown field, wanted only {}", wanted.join(", ")))
    }
}

fn kind(found: Unexpected<'_>) -> &'static str {
    match found {
        Unexpected::Bool(_) => "a boolean",
        Unexpected::Unsigned(_) | Unexpected::Signed(_) => "an integer",
        Unexpected::Float(_) => "a float",
        Unexpected::Char(_) | Unexpected::Str(_) => "text",
        Unexpected::Bytes(_) => "bytes",
        Unexpected::Unit | Unexpected::Option => "null",
        Unexpected::Seq => "a list",
        Unexpected::Map => "a map",
        _ => "another kind of value",
    }
}

/// The part of an extension's payload that a type without a Python class decodes.
pub(crate) fn contents(code: i8, payload: &[u8]) -> Result<&[u8]> {
    match code {
        0..=5 => {
            let mut reader = Reader::new(payload);
            match reader.token()? {
                Token::Array(3..) => {
                    reader.skip()?;
                    reader.skip()?;
                    reader.skip()
                }
                _ => Err(Error::codec("an extension's payload is not [module, name, …]").with("code", code)),
            }
        }
        6 | 7 => Ok(payload),
        _ => Err(Error::codec("an extension has a code that LangGraph does not use").with("code", code)),
    }
}

/// Deserializes from MessagePack.
#[derive(Debug)]
pub(crate) struct Decoder<'de> {
    reader: Reader<'de>,
    depth: usize,
}

impl<'de> Decoder<'de> {
    fn new(bytes: &'de [u8], depth: usize) -> Self {
        Self { reader: Reader::new(bytes), depth }
    }

    /// Enters the contents of the next value if it is an extension; otherwise consumes nothing.
    fn enter_ext(&mut self) -> Result<Option<Self>> {
        match self.reader.peek() {
            Some(0xc7..=0xc9 | 0xd4..=0xd8) => {}
            _ => return Ok(None),
        }
        let Token::Ext(code, payload) = self.reader.token()? else { return Ok(None) };
        Ok(Some(Self::new(contents(code, payload)?, check_depth(self.depth)?)))
    }

    /// Enters the contents of an object of the Python class in a type's serde name, if there is one.
    fn enter_named(&mut self, name: &str) -> Result<Option<Self>> {
        match PythonClass::parse(name) {
            Some(class) => self.enter_class(class),
            None => Ok(None),
        }
    }

    /// Checks that the next value is an object of this class, and enters its contents. Returns `None` for a value that
    /// is no extension.
    fn enter_class(&mut self, class: PythonClass<'_>) -> Result<Option<Self>> {
        let mut ahead = self.reader.clone();
        let Token::Ext(code, payload) = ahead.token()? else { return Ok(None) };
        let mut head = Reader::new(payload);
        let path = match code {
            0..=5 => match (head.token()?, head.token()?, head.token()?) {
                (Token::Array(3..), Token::Str(module), Token::Str(name)) => Some((module, name)),
                _ => None,
            },
            _ => None,
        };
        if code != class.code || !class.accepts(path) {
            let found = path.map_or(Cow::Borrowed("another extension"), |(module, name)| {
                format!("{module}.{name}").into()
            });
            let wanted = class.path.map_or(Cow::Borrowed("a delta snapshot"), |(module, name)| {
                format!("{module}.{name}").into()
            });
            // Class names from the data may be long or contain line breaks; `with` truncates and escapes them.
            return Err(Error::codec("the value does not fit the type: an object of another class")
                .with("found", found)
                .with("wanted", wanted)
                .with("code", code));
        }
        self.enter_ext()
    }

    fn any<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value> {
        match self.reader.token()? {
            Token::Nil => visitor.visit_unit(),
            Token::Bool(flag) => visitor.visit_bool(flag),
            Token::Int(number) => match u64::try_from(number) {
                Ok(number) => visitor.visit_u64(number),
                Err(_) => visitor.visit_i64(number),
            },
            Token::UInt(number) => visitor.visit_u64(number),
            Token::Float(number) => visitor.visit_f64(number),
            Token::Str(text) => visitor.visit_borrowed_str(text),
            Token::Array(remaining) => self.nested(|decoder| visitor.visit_seq(Items { decoder, remaining })),
            Token::Map(remaining) => self.nested(|decoder| visitor.visit_map(Items { decoder, remaining })),
            Token::Bin(data) | Token::Ext(_, data) => visitor.visit_borrowed_bytes(data),
        }
    }

    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.depth = check_depth(self.depth)?;
        let value = read(self);
        self.depth -= 1;
        value
    }
}

macro_rules! through_extensions {
    ($($method:ident($($arg:ident: $type:ty),*)),* $(,)?) => {$(
        fn $method<V: Visitor<'de>>(self, $($arg: $type,)* visitor: V) -> Result<V::Value> {
            $(let _ = $arg;)*
            match self.enter_ext()? {
                Some(mut inner) => de::Deserializer::$method(&mut inner, $($arg,)* visitor),
                None => self.any(visitor),
            }
        }
    )*};
}

impl<'de> de::Deserializer<'de> for &mut Decoder<'de> {
    type Error = Error;

    through_extensions!(
        deserialize_any(),
        deserialize_bool(),
        deserialize_i8(),
        deserialize_i16(),
        deserialize_i32(),
        deserialize_i64(),
        deserialize_i128(),
        deserialize_u8(),
        deserialize_u16(),
        deserialize_u32(),
        deserialize_u64(),
        deserialize_u128(),
        deserialize_f32(),
        deserialize_f64(),
        deserialize_char(),
        deserialize_str(),
        deserialize_string(),
        deserialize_bytes(),
        deserialize_byte_buf(),
        deserialize_unit(),
        deserialize_unit_struct(name: &'static str),
        deserialize_map(),
        deserialize_identifier(),
    );

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if self.reader.peek() == Some(0xc0) {
            self.reader.token()?;
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    /// A list, or bytes as a list of their values (Python's `bytes` into `Vec<u8>`).
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if let Some(mut inner) = self.enter_ext()? {
            return de::Deserializer::deserialize_seq(&mut inner, visitor);
        }
        match self.reader.peek() {
            Some(0xc4..=0xc6) => match self.reader.token()? {
                Token::Bin(data) => visitor.visit_seq(de::value::SeqDeserializer::new(data.iter().copied())),
                _ => Err(Error::codec("expected bytes")),
            },
            _ => self.any(visitor),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value> {
        match self.enter_named(name)? {
            Some(mut inner) => de::Deserializer::deserialize_tuple(&mut inner, len, visitor),
            None => self.deserialize_tuple(len, visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value> {
        if name == VALUE_NAME {
            return visitor.visit_enum(Exact(self.reader.skip()?));
        }
        match self.enter_named(name)? {
            Some(mut inner) => visitor.visit_newtype_struct(&mut inner),
            None => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        match self.enter_named(name)? {
            Some(mut inner) => de::Deserializer::deserialize_map(&mut inner, visitor),
            None => self.deserialize_map(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        if let Some(mut inner) = self.enter_ext()? {
            return de::Deserializer::deserialize_enum(&mut inner, name, variants, visitor);
        }
        match self.reader.token()? {
            Token::Str(variant) => visitor.visit_enum(variant.into_deserializer()),
            Token::Map(1) => self.nested(|decoder| visitor.visit_enum(Variant(decoder))),
            _ => Err(Error::codec(
                "the value does not fit the type: an enum must be text or a map of one entry",
            )),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.reader.skip()?;
        visitor.visit_unit()
    }
}

/// Passes a value's MessagePack to [`Value`]'s visitor, which decodes it without loss. It is passed as an enum, which
/// cannot be confused with data.
struct Exact<'de>(&'de [u8]);

impl<'de> de::EnumAccess<'de> for Exact<'de> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self)> {
        Ok((seed.deserialize(().into_deserializer())?, self))
    }
}

impl<'de> de::VariantAccess<'de> for Exact<'de> {
    type Error = Error;

    fn unit_variant(self) -> Result<()> {
        Ok(())
    }
    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value> {
        seed.deserialize(de::value::BorrowedBytesDeserializer::new(self.0))
    }
    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value> {
        visitor.visit_borrowed_bytes(self.0)
    }
    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_borrowed_bytes(self.0)
    }
}

/// The items of a list, or the entries of a map.
struct Items<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
    remaining: usize,
}

impl Items<'_, '_> {
    /// The number of remaining items, bounded, because some collections allocate whatever the hint says.
    fn hint(&self) -> usize {
        self.remaining.min(MAX_PREALLOCATED)
    }
}

impl<'de> de::SeqAccess<'de> for Items<'_, 'de> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        let Some(remaining) = self.remaining.checked_sub(1) else { return Ok(None) };
        self.remaining = remaining;
        seed.deserialize(&mut *self.decoder).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.hint())
    }
}

impl<'de> de::MapAccess<'de> for Items<'_, 'de> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        de::SeqAccess::next_element_seed(self, seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value> {
        seed.deserialize(&mut *self.decoder)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.hint())
    }
}

/// An enum encoded as `{variant: contents}`.
struct Variant<'a, 'de>(&'a mut Decoder<'de>);

impl<'de> de::EnumAccess<'de> for Variant<'_, 'de> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self)> {
        Ok((seed.deserialize(&mut *self.0)?, self))
    }
}

impl<'de> de::VariantAccess<'de> for Variant<'_, 'de> {
    type Error = Error;

    fn unit_variant(self) -> Result<()> {
        self.0.reader.skip().map(|_| ())
    }
    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value> {
        seed.deserialize(self.0)
    }
    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value> {
        de::Deserializer::deserialize_tuple(self.0, len, visitor)
    }
    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        de::Deserializer::deserialize_map(self.0, visitor)
    }
}

/// Decodes a type whose fields are channels. Channels without a field may be undecodable.
pub(crate) fn from_channels<T: DeserializeOwned>(values: &ChannelValues) -> Result<T> {
    let entry = |(name, value)| Channel { name, value, msgpack: readable(value) };
    let entries: Vec<_> = values.iter().map(entry).collect();
    T::deserialize(Channels { entries: entries.iter(), value: None })
}

struct Channel<'a> {
    name: &'a Str,
    value: &'a ChannelValue,
    /// `None` if the value is not readable as MessagePack.
    msgpack: Option<Bytes>,
}

fn readable(value: &ChannelValue) -> Option<Bytes> {
    match value.as_blob() {
        Some(blob) => blob.to_unvalidated_msgpack().ok(),
        None => value.to_msgpack().ok(),
    }
}

/// Channels as the fields of one struct.
struct Channels<'de> {
    entries: std::slice::Iter<'de, Channel<'de>>,
    value: Option<&'de Channel<'de>>,
}

impl<'de> de::Deserializer<'de> for Channels<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_map(self)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit_struct
        seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de> de::MapAccess<'de> for Channels<'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>> {
        self.value = self.entries.next();
        let Some(entry) = self.value else { return Ok(None) };
        seed.deserialize((&**entry.name).into_deserializer()).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value> {
        let Some(entry) = self.value.take() else {
            return Err(Error::codec("a value without a key"));
        };
        let value = match &entry.msgpack {
            Some(msgpack) => seed.deserialize(&mut Decoder::new(msgpack, 1)),
            None => seed.deserialize(Unreadable(entry.value)),
        };
        value.map_err(|error| error.with("channel", entry.name))
    }
}

/// A channel whose bytes cannot be converted to MessagePack: an error unless the type ignores it.
struct Unreadable<'a>(&'a ChannelValue);

impl<'de> de::Deserializer<'de> for Unreadable<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value> {
        self.0.to_msgpack().and_then(|_| Err(Error::codec("the channel cannot be read")))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier
    }
}
