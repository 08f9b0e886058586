//! Bytes with a type tag, the unit that savers store.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::decode::{Reader, Token};
use super::{Encoder, Value, json, to_msgpack_within};
use crate::cipher::no_cipher;
use crate::{ChannelValue, Error, Result, Str};

/// A type tag: `msgpack`, `bytes`, `null` and so on, or one of them with `+` and a cipher's name.
pub type Tag = Cow<'static, str>;

/// A serialized value: a type tag and its bytes (Python's `dumps_typed`).
///
/// | tag | bytes |
/// |---|---|
/// | `msgpack` | MessagePack with LangGraph's extensions |
/// | `null` | none |
/// | `bytes`, `bytearray` | raw |
/// | `json` | text of old writers; decoded, never encoded |
/// | `empty` | none; old Postgres rows for "no value" |
/// | `pickle` | rejected |
/// | `TAG+CIPHER` | ciphertext of one of the above |
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TypedBytes {
    /// The type tag.
    pub tag: Tag,
    /// The bytes.
    pub data: Bytes,
}

impl TypedBytes {
    /// Creates bytes with a tag.
    pub fn new(tag: impl Into<Tag>, data: impl Into<Bytes>) -> Self {
        Self { tag: intern(tag.into()), data: data.into() }
    }

    /// Creates bytes with the tag `msgpack`.
    pub fn msgpack(data: impl Into<Bytes>) -> Self {
        Self { tag: Cow::Borrowed("msgpack"), data: data.into() }
    }

    /// Whether the bytes are ciphertext.
    pub fn is_sealed(&self) -> bool {
        self.tag.contains('+')
    }

    /// The value as MessagePack, whatever its tag. MessagePack is not copied, but truncated after its first value.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) for malformed bytes, `pickle` and unknown tags,
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
            _ if self.is_sealed() => return Err(no_cipher(self)),
            tag => return Err(Error::codec("the value has an unknown type tag").with("tag", tag)),
        }
        Ok(encoder.into_bytes().into())
    }

    /// Decodes into a Rust type; see [`super::from_msgpack`].
    ///
    /// # Errors
    /// Those of [`to_msgpack`](Self::to_msgpack), and [`Codec`](crate::ErrorKind::Codec) for a value that does not fit
    /// the type.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        super::from_msgpack(&self.to_unvalidated_msgpack()?)
    }

    /// Decodes into a dynamic value.
    ///
    /// # Errors
    /// Those of [`to_msgpack`](Self::to_msgpack).
    pub fn to_value(&self) -> Result<Value> {
        Value::from_msgpack(&self.to_unvalidated_msgpack()?)
    }

    /// The value as MessagePack for a decoder: like [`to_msgpack`](Self::to_msgpack), but without the scan for the end
    /// of the first value, so further bytes may follow it.
    ///
    /// # Errors
    /// Those of [`to_msgpack`](Self::to_msgpack), except for malformed MessagePack, which the decoder detects.
    pub fn to_unvalidated_msgpack(&self) -> Result<Bytes> {
        if self.tag == "msgpack" { Ok(self.data.clone()) } else { self.to_msgpack() }
    }
}

/// Avoids an allocation for common tags.
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
    /// Those of [`to_msgpack`](super::to_msgpack), with a nesting limit two levels lower: Python encodes the value as part
    /// of a checkpoint.
    pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Self> {
        // In a checkpoint the value is nested in two maps.
        Self::from_msgpack(to_msgpack_within(value, 2)?.into())
    }

    /// Decodes into a Rust type; see [`super::from_msgpack`].
    ///
    /// # Errors
    /// Those of [`TypedBytes::decode`].
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        match self {
            Self::Blob(blob) => blob.decode(),
            scalar => super::from_msgpack(&scalar.to_msgpack()?),
        }
    }

    /// Decodes into a dynamic value.
    ///
    /// # Errors
    /// Those of [`TypedBytes::to_value`].
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

    /// Converts exactly one MessagePack value. Scalars are decoded, other values are not; bytes get the tag that Python
    /// gives them at the top level.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) for bytes that do not begin with a complete value.
    pub fn from_msgpack(msgpack: Bytes) -> Result<Self> {
        // Containers and extensions are not decoded.
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

    /// Converts a stored value to its canonical form: scalars are decoded.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) for MessagePack that does not begin with a complete value.
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

    /// The value as exactly one MessagePack value, which can be embedded in a larger one.
    ///
    /// # Errors
    /// Those of [`TypedBytes::to_msgpack`].
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
    fn the_deepest_channel_value_fits_pythons_limit_in_a_checkpoint() {
        assert!(to_msgpack(&nested(254)).is_ok() && to_msgpack(&nested(255)).is_err());
        assert_eq!(ChannelValue::encode(&nested(253)).unwrap_err().kind(), ErrorKind::Codec);
        let deepest = ChannelValue::encode(&nested(252)).unwrap();
        let document = Checkpoint::new(0).with_channel("deep", deepest, 1);
        let document = crate::serde::document::encode_checkpoint(&document).unwrap();
        assert!(Value::from_msgpack(&document).unwrap().to_msgpack().is_ok());
    }
}
