//! Bytes under a type tag, the unit that savers move.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::decode::{Reader, Token};
use super::{Encoder, Value, json, to_msgpack_within};
use crate::{ChannelValue, Error, Result, Str};

/// A type tag: `msgpack`, `bytes`, `null` and so on, or one of them with `+` and a cipher's name.
pub type Tag = Cow<'static, str>;

/// A serialized value: a type tag and its bytes (Python's `dumps_typed`).
///
/// | tag | bytes |
/// |---|---|
/// | `msgpack` | MessagePack with LangGraph's extensions |
/// | `null` | none |
/// | `bytes`, `bytearray` | as they are |
/// | `json` | text of old writers; read, never written |
/// | `empty` | none; old Postgres rows for "no value" |
/// | `pickle` | refused |
/// | `TAG+CIPHER` | ciphertext of one of the above |
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TypedBytes {
    /// The type tag.
    pub tag: Tag,
    /// The bytes.
    pub data: Bytes,
}

impl TypedBytes {
    /// Bytes under a tag.
    pub fn new(tag: impl Into<Tag>, data: impl Into<Bytes>) -> Self {
        Self { tag: intern(tag.into()), data: data.into() }
    }

    /// MessagePack bytes.
    pub fn msgpack(data: impl Into<Bytes>) -> Self {
        Self { tag: Cow::Borrowed("msgpack"), data: data.into() }
    }

    /// Whether the bytes are ciphertext.
    pub fn is_sealed(&self) -> bool {
        self.tag.contains('+')
    }

    /// The value as MessagePack, whatever its tag; MessagePack itself is not copied, and cut behind its first value.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) for damaged bytes, `pickle` and unknown tags,
    /// [`Crypto`](crate::ErrorKind::Crypto) for ciphertext.
    pub fn to_msgpack(&self) -> Result<Bytes> {
        let mut encoder = Encoder::new();
        match &*self.tag {
            "msgpack" => {
                let len = Reader::new(&self.data).skip()?.len();
                return Ok(self.data.slice(..len));
            }
            "null" | "empty" => encoder.nil(),
            "bytes" | "bytearray" => encoder.bin(&self.data)?,
            "json" => encoder.value(&json::revive(json::parse(&self.data)?))?,
            "pickle" => {
                return Err(Error::codec(
                    "the value was written with pickle, which would run code when read; rewrite it from Python without pickle_fallback",
                ));
            }
            tag if self.is_sealed() => {
                return Err(Error::crypto("the value is encrypted; give the saver a cipher with its key")
                    .with("tag", tag));
            }
            tag => return Err(Error::codec("the value has an unknown type tag").with("tag", tag)),
        }
        Ok(encoder.into_bytes().into())
    }

    /// Decodes into a Rust type; see [`super::from_msgpack`].
    ///
    /// # Errors
    /// As [`to_msgpack`](Self::to_msgpack), and [`Codec`](crate::ErrorKind::Codec) for what does not fit the type.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        super::from_msgpack(&self.readable()?)
    }

    /// Decodes into a dynamic value.
    ///
    /// # Errors
    /// As [`to_msgpack`](Self::to_msgpack).
    pub fn to_value(&self) -> Result<Value> {
        Value::from_msgpack(&self.readable()?)
    }

    /// The value as MessagePack for a decoder, which finds its end: as [`to_msgpack`](Self::to_msgpack), without the
    /// walk over all that is in it to cut off what may follow.
    ///
    /// # Errors
    /// As [`to_msgpack`](Self::to_msgpack), but for damage in MessagePack, which is left to the decoder.
    pub fn readable(&self) -> Result<Bytes> {
        if self.tag == "msgpack" { Ok(self.data.clone()) } else { self.to_msgpack() }
    }
}

/// Tags that everybody uses need no allocation.
fn intern(tag: Tag) -> Tag {
    const KNOWN: [&str; 9] =
        ["msgpack", "null", "bytes", "bytearray", "json", "empty", "msgpack+aes", "null+aes", "bytes+aes"];
    KNOWN.iter().find(|known| **known == tag).map_or(tag, |known| Cow::Borrowed(known))
}

impl ChannelValue {
    /// Encodes any `Serialize` value, as Python would encode its counterpart.
    ///
    /// ```
    /// use checkpoint_core::ChannelValue;
    /// assert_eq!(ChannelValue::encode(&42)?, ChannelValue::Int(42));
    /// let list = ChannelValue::encode(&["a", "b"])?;
    /// assert_eq!(list.decode::<Vec<String>>()?, ["a", "b"]);
    /// # Ok::<(), checkpoint_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`to_msgpack`](super::to_msgpack), with two levels of nesting less: Python encodes a whole checkpoint at once.
    pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Self> {
        // A checkpoint holds it in a map of channels, in a map.
        Self::from_msgpack(to_msgpack_within(value, 2)?.into())
    }

    /// Decodes into a Rust type; see [`super::from_msgpack`].
    ///
    /// # Errors
    /// As [`TypedBytes::decode`].
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        match self {
            Self::Blob(blob) => blob.decode(),
            scalar => super::from_msgpack(&scalar.to_msgpack()?),
        }
    }

    /// Decodes into a dynamic value.
    ///
    /// # Errors
    /// As [`TypedBytes::to_value`].
    pub fn to_value(&self) -> Result<Value> {
        Ok(match self {
            Self::Null => Value::Nil,
            Self::Bool(flag) => Value::Bool(*flag),
            Self::Int(number) => Value::Int(*number),
            Self::Float(number) => Value::Float(*number),
            Self::Str(text) => Value::Str(text.to_string()),
            Self::Blob(blob) => blob.to_value()?,
        })
    }

    /// Takes one MessagePack value, exactly. Scalars are decoded, anything else is kept as it is; bytes get the tag
    /// that Python gives them at the top.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) for bytes that do not begin with a whole value.
    pub fn from_msgpack(msgpack: Bytes) -> Result<Self> {
        // Containers and extensions are not looked into.
        if let Some(0x80..=0x9f | 0xc7..=0xc9 | 0xd4..=0xd8 | 0xdc..=0xdf) = msgpack.first() {
            return Ok(Self::Blob(TypedBytes::msgpack(msgpack)));
        }
        let mut reader = Reader::new(&msgpack);
        Ok(match reader.token()? {
            Token::Nil => Self::Null,
            Token::Bool(flag) => Self::Bool(flag),
            Token::Int(number) => Self::Int(number),
            Token::Float(number) => Self::Float(number),
            Token::Str(text) => Self::Str(Str::from(text)),
            Token::Bin(data) => Self::Blob(TypedBytes::new("bytes", msgpack.slice_ref(data))),
            _ => Self::Blob(TypedBytes::msgpack(msgpack)),
        })
    }

    /// Gives a stored value its one form: what a scalar can hold becomes a scalar.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) for MessagePack that does not begin with a whole value.
    pub fn from_typed(typed: TypedBytes) -> Result<Self> {
        match &*typed.tag {
            "null" | "empty" => Ok(Self::Null),
            "msgpack" => Self::from_msgpack(typed.data),
            _ => Ok(Self::Blob(typed)),
        }
    }

    /// The value as tag and bytes, as Python's serializer returns it.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) for a text of 4 GiB or more.
    pub fn to_typed(&self) -> Result<TypedBytes> {
        match self {
            Self::Null => Ok(TypedBytes { tag: Cow::Borrowed("null"), data: Bytes::new() }),
            Self::Blob(blob) => Ok(blob.clone()),
            scalar => Ok(TypedBytes::msgpack(scalar.to_msgpack()?)),
        }
    }

    /// The value as one whole MessagePack value, to be put into a larger one.
    ///
    /// # Errors
    /// As [`TypedBytes::to_msgpack`].
    pub fn to_msgpack(&self) -> Result<Bytes> {
        if let Some(blob) = self.as_blob() {
            return blob.to_msgpack();
        }
        let mut encoder = Encoder::new();
        encoder.channel_value(self)?;
        Ok(encoder.into_bytes().into())
    }
}

from! {
    ChannelValue:
    bool => |flag| Self::Bool(flag),
    i32 => |number| Self::Int(number.into()),
    i64 => |number| Self::Int(number),
    f64 => |number| Self::Float(number),
    &str => |text| Self::Str(text.into()),
    String => |text| Self::Str(text.into()),
    Str => |text| Self::Str(text),
    TypedBytes => |blob| Self::Blob(blob),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serde::to_msgpack;
    use crate::{Checkpoint, ErrorKind};

    /// Lists in lists around a number.
    fn nested(levels: usize) -> Value {
        (0..levels).fold(Value::Int(1), |inner, _| Value::Array(vec![inner]))
    }

    #[test]
    fn what_fits_a_channel_leaves_a_checkpoint_that_python_can_encode_again() {
        assert!(to_msgpack(&nested(254)).is_ok() && to_msgpack(&nested(255)).is_err());
        assert_eq!(ChannelValue::encode(&nested(253)).unwrap_err().kind(), ErrorKind::Codec);
        let deepest = ChannelValue::encode(&nested(252)).unwrap();
        let document = Checkpoint::new(0).with_channel("deep", deepest, 1);
        let document = crate::serde::document::encode_checkpoint(&document).unwrap();
        assert!(Value::from_msgpack(&document).unwrap().to_msgpack().is_ok());
    }
}
