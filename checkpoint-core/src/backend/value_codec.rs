//! What happens to a value between the caller of a saver and the row.

use std::borrow::Cow;

use super::AssociatedData;
use crate::cipher::{Cipher, is_own_gcm};
use crate::{ChannelValue, Error, ErrorKind, Result, TypedBytes};

/// How a backend stores values and gives them back: every value passes it on its way to a row and from one.
///
/// Builders of savers fill it in from their options.
#[derive(Debug, Clone, Default)]
pub struct ValueCodec {
    /// What seals and opens, if anything does.
    pub cipher: Option<Cipher>,
    /// What cannot be opened is given back as it is.
    pub keep_sealed: bool,
    /// Values are another serializer's: nothing is looked into, whatever its tag says, and every blob is given back as
    /// it came. Without a cipher, ciphertext of another one is such a value too.
    pub opaque_values: bool,
}

impl ValueCodec {
    /// The same for calls that need every value open.
    #[must_use]
    pub fn strict(&self) -> Self {
        Self { keep_sealed: false, ..self.clone() }
    }

    /// Gives a caller's value its one form, however it is wrapped: what a scalar can hold becomes a scalar.
    ///
    /// # Errors
    /// As [`ChannelValue::from_typed`].
    pub fn normalize<'a>(&self, value: &'a ChannelValue) -> Result<Cow<'a, ChannelValue>> {
        match value.as_blob() {
            Some(blob) if !self.opaque_values => match ChannelValue::from_typed(blob.clone())? {
                ChannelValue::Blob(_) => Ok(Cow::Borrowed(value)),
                scalar => Ok(Cow::Owned(scalar)),
            },
            _ => Ok(Cow::Borrowed(value)),
        }
    }

    /// Makes of a caller's value what is stored in this place.
    ///
    /// # Errors
    /// As [`normalize`](Self::normalize), [`ChannelValue::to_typed`] and [`seal`](Self::seal).
    pub fn seal_value(&self, value: &ChannelValue, place: &AssociatedData<'_>) -> Result<TypedBytes> {
        self.seal(self.normalize(value)?.to_typed()?, place)
    }

    /// Seals bytes for their place, if there is a cipher.
    ///
    /// # Errors
    /// [`Crypto`](ErrorKind::Crypto) as [`Cipher::seal`], and for a value that is sealed already, unless there is no
    /// cipher, values are opaque, and it was not sealed here.
    pub fn seal(&self, typed: TypedBytes, place: &AssociatedData<'_>) -> Result<TypedBytes> {
        match &self.cipher {
            Some(cipher) => cipher.seal(&typed, place),
            None if typed.is_sealed() && !self.is_foreign(&typed) => {
                Err(Error::crypto("the value is encrypted; open it before it is stored again")
                    .with("tag", &typed.tag))
            }
            None => Ok(typed),
        }
    }

    /// Opens what stands in a place.
    ///
    /// # Errors
    /// [`Crypto`](ErrorKind::Crypto) as [`Cipher::open`], and for a sealed value without a cipher, unless sealed values
    /// are kept, or values are opaque and it was not sealed here.
    pub fn open(&self, typed: TypedBytes, place: &AssociatedData<'_>) -> Result<TypedBytes> {
        if !typed.is_sealed() {
            return Ok(typed);
        }
        let Some(cipher) = &self.cipher else {
            if self.keep_sealed || self.is_foreign(&typed) {
                return Ok(typed);
            }
            return Err(Error::crypto("the value is encrypted; give the saver a cipher with its key")
                .with("tag", &typed.tag));
        };
        if !self.keep_sealed {
            return cipher.open(typed, place);
        }
        match cipher.open(typed.clone(), place) {
            Err(error) if error.kind() == ErrorKind::Crypto => Ok(typed),
            opened => opened,
        }
    }

    /// Decrypts what is stored under one identity and encrypts it for another: for copies of values that are bound to
    /// their row.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`seal`](Self::seal). Ciphertext is never kept, whatever `keep_sealed` says.
    pub fn reseal(
        &self,
        typed: TypedBytes,
        from: &AssociatedData<'_>,
        to: &AssociatedData<'_>,
    ) -> Result<TypedBytes> {
        let strict = self.strict();
        strict.seal(strict.open(typed, from)?, to)
    }

    /// Whether a sealed value is nothing to us. What our own cipher bound to its place is not: copied as it is, it could
    /// not be opened.
    fn is_foreign(&self, typed: &TypedBytes) -> bool {
        self.opaque_values && !is_own_gcm(typed)
    }

    /// Opens what stands in a place and makes of it what the caller gets.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`ChannelValue::from_typed`].
    pub fn open_value(&self, typed: TypedBytes, place: &AssociatedData<'_>) -> Result<ChannelValue> {
        self.value(self.open(typed, place)?)
    }

    /// Makes of opened bytes what the caller gets.
    ///
    /// # Errors
    /// As [`ChannelValue::from_typed`].
    pub fn value(&self, typed: TypedBytes) -> Result<ChannelValue> {
        if self.opaque_values { Ok(ChannelValue::Blob(typed)) } else { ChannelValue::from_typed(typed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: AssociatedData<'_> =
        AssociatedData::Blob { thread_id: "t", checkpoint_ns: "", channel: "c", version: "1" };

    fn sealed() -> TypedBytes {
        TypedBytes::new("msgpack+aes", &b"of somebody else"[..])
    }

    #[test]
    fn opaque_values_are_not_looked_into() {
        let opaque = ValueCodec { opaque_values: true, ..ValueCodec::default() };
        for typed in [
            TypedBytes::msgpack(&b"\x05"[..]),
            TypedBytes::msgpack(&b"\xc1 no MessagePack"[..]),
            TypedBytes::msgpack(&b""[..]),
            TypedBytes::new("null", &b""[..]),
            TypedBytes::new("my own", &b"\xff"[..]),
            sealed(),
            TypedBytes::new("own+aes256gcm", &b"of a cipher with the name of ours"[..]),
            TypedBytes::new("own+aes256gcm", &b"\x01\x02"[..]),
        ] {
            let value = ChannelValue::Blob(typed.clone());
            let stored = opaque.seal_value(&value, &HERE).unwrap();
            assert_eq!(stored, typed);
            assert_eq!(opaque.open_value(stored, &HERE).unwrap(), value);
        }
        let plain = ValueCodec::default();
        assert_eq!(plain.open_value(TypedBytes::msgpack(&b"\x05"[..]), &HERE).unwrap(), ChannelValue::Int(5));
        for bad in [TypedBytes::msgpack(&b""[..]), sealed()] {
            plain.seal_value(&bad.into(), &HERE).unwrap_err();
        }
    }

    #[test]
    fn with_a_cipher_opaque_values_are_sealed_and_have_to_open() {
        let cipher = Some(Cipher::aes_gcm("k", &[1; 32]).unwrap());
        let opaque = ValueCodec { cipher, opaque_values: true, ..ValueCodec::default() };
        let value = ChannelValue::Blob(TypedBytes::msgpack(&b"\xc1 no MessagePack"[..]));
        let stored = opaque.seal_value(&value, &HERE).unwrap();
        assert!(stored.is_sealed());
        let without = ValueCodec { cipher: None, ..opaque.clone() };
        assert_eq!(without.open(stored.clone(), &HERE).unwrap_err().kind(), ErrorKind::Crypto);
        assert_eq!(without.seal(stored.clone(), &HERE).unwrap_err().kind(), ErrorKind::Crypto);
        assert_eq!(opaque.open_value(stored, &HERE).unwrap(), value);
        assert_eq!(opaque.seal(sealed(), &HERE).unwrap_err().kind(), ErrorKind::Crypto);
        assert_eq!(opaque.open(sealed(), &HERE).unwrap_err().kind(), ErrorKind::Crypto);
        let keeping = ValueCodec { keep_sealed: true, ..opaque };
        assert_eq!(keeping.open(sealed(), &HERE).unwrap(), sealed());
        assert_eq!(keeping.strict().open(sealed(), &HERE).unwrap_err().kind(), ErrorKind::Crypto);
    }
}
