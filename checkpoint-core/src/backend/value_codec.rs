//! Converts values between a saver's caller and the stored row.

use std::borrow::Cow;

use super::AssociatedData;
use crate::cipher::{Cipher, is_own_gcm, no_cipher};
use crate::{ChannelValue, Error, ErrorKind, Result, TypedBytes};

/// Converts every value that a backend stores or loads.
///
/// A saver's builder creates it from its options.
#[derive(Debug, Clone, Default)]
pub struct ValueCodec {
    /// Encrypts and decrypts, if set.
    pub cipher: Option<Cipher>,
    /// Returns values that cannot be opened as ciphertext, instead of an error.
    pub return_sealed: bool,
    /// Values belong to another serializer: none is decoded, whatever its tag, and every blob is returned unchanged.
    /// Without a cipher, this includes ciphertext of another one.
    pub opaque_values: bool,
}

impl ValueCodec {
    /// A copy for calls that need every value decrypted.
    #[must_use]
    pub fn requiring_decryption(&self) -> Self {
        Self { return_sealed: false, ..self.clone() }
    }

    /// A pseudonym for names that would be in clear in the database's keys, or `None` without a cipher. It is keyed by the
    /// sealing key, so it changes with the key, and is the same in every thread.
    pub fn pseudonym(&self, parts: &[&[u8]]) -> Option<[u8; 24]> {
        let key = self.cipher.as_ref()?.address_key("")?;
        let mut bytes = b"name".to_vec();
        for part in parts {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part);
        }
        let mut name = [0; 24];
        name.iter_mut().zip(key.mac(&[&bytes])).for_each(|(to, from)| *to = from);
        Some(name)
    }

    /// Converts a caller's value to its canonical form: scalars in blobs are decoded.
    ///
    /// # Errors
    /// Those of [`ChannelValue::from_typed`].
    pub(crate) fn normalize<'a>(&self, value: &'a ChannelValue) -> Result<Cow<'a, ChannelValue>> {
        match value.as_blob() {
            Some(blob) if !self.opaque_values => match ChannelValue::from_typed(blob.clone())? {
                ChannelValue::Blob(_) => Ok(Cow::Borrowed(value)),
                scalar => Ok(Cow::Owned(scalar)),
            },
            _ => Ok(Cow::Borrowed(value)),
        }
    }

    /// Converts a caller's value to the bytes to store in this row.
    ///
    /// # Errors
    /// Those of [`normalize`](Self::normalize), [`ChannelValue::to_typed`] and [`seal`](Self::seal).
    pub(crate) fn seal_value(&self, value: &ChannelValue, row: &AssociatedData<'_>) -> Result<TypedBytes> {
        self.seal(self.normalize(value)?.to_typed()?, row)
    }

    /// Seals bytes for their row, if there is a cipher.
    ///
    /// # Errors
    /// [`Crypto`](ErrorKind::Crypto) as from [`Cipher::seal`], and for a value that is already sealed. Without a cipher,
    /// opaque values may be ciphertext of another cipher.
    pub fn seal(&self, typed: TypedBytes, row: &AssociatedData<'_>) -> Result<TypedBytes> {
        match &self.cipher {
            Some(cipher) => cipher.seal(&typed, row),
            None if typed.is_sealed() && !self.is_foreign(&typed) => {
                Err(Error::crypto("the value is encrypted; decrypt it before it is stored again")
                    .with("tag", &typed.tag))
            }
            None => Ok(typed),
        }
    }

    /// Opens the bytes of a row.
    ///
    /// # Errors
    /// [`Crypto`](ErrorKind::Crypto) as from [`Cipher::open`], and for a sealed value without a cipher. With
    /// `return_sealed` such values are returned sealed; without a cipher, opaque values may be ciphertext of another
    /// one.
    pub fn open(&self, typed: TypedBytes, row: &AssociatedData<'_>) -> Result<TypedBytes> {
        if !typed.is_sealed() {
            return Ok(typed);
        }
        let Some(cipher) = &self.cipher else {
            if self.return_sealed || self.is_foreign(&typed) {
                return Ok(typed);
            }
            return Err(no_cipher(&typed));
        };
        if !self.return_sealed {
            return cipher.open(typed, row);
        }
        match cipher.open(typed.clone(), row) {
            Err(error) if error.kind() == ErrorKind::Crypto => Ok(typed),
            opened => opened,
        }
    }

    /// Decrypts what is stored under one identity and encrypts it for another: for copies of values that are bound to
    /// their row.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`seal`](Self::seal). Ciphertext is never kept, whatever `return_sealed` says.
    pub fn reseal(
        &self,
        typed: TypedBytes,
        from: &AssociatedData<'_>,
        to: &AssociatedData<'_>,
    ) -> Result<TypedBytes> {
        let codec = self.requiring_decryption();
        codec.seal(codec.open(typed, from)?, to)
    }

    /// Whether a sealed value is opaque ciphertext of another cipher. Values that our GCM bound to their row are not:
    /// copied unchanged to another row, they could not be opened.
    fn is_foreign(&self, typed: &TypedBytes) -> bool {
        self.opaque_values && !is_own_gcm(typed)
    }

    /// Opens the bytes of a row and converts them to the caller's value.
    ///
    /// # Errors
    /// Those of [`open`](Self::open) and [`ChannelValue::from_typed`].
    pub fn open_value(&self, typed: TypedBytes, row: &AssociatedData<'_>) -> Result<ChannelValue> {
        self.to_channel_value(self.open(typed, row)?)
    }

    /// Converts opened bytes to the caller's value.
    ///
    /// # Errors
    /// Those of [`ChannelValue::from_typed`].
    pub(crate) fn to_channel_value(&self, typed: TypedBytes) -> Result<ChannelValue> {
        if self.opaque_values { Ok(ChannelValue::Blob(typed)) } else { ChannelValue::from_typed(typed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: AssociatedData<'_> =
        AssociatedData::Blob { thread_id: "t", checkpoint_ns: "", channel: "c", version: "1" };

    fn sealed() -> TypedBytes {
        TypedBytes::new("msgpack+aes", &b"of another cipher"[..])
    }

    #[test]
    fn opaque_values_are_not_decoded() {
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
            let stored = opaque.seal_value(&value, &ROW).unwrap();
            assert_eq!(stored, typed);
            assert_eq!(opaque.open_value(stored, &ROW).unwrap(), value);
        }
        let plain = ValueCodec::default();
        assert_eq!(plain.open_value(TypedBytes::msgpack(&b"\x05"[..]), &ROW).unwrap(), ChannelValue::Int(5));
        for bad in [TypedBytes::msgpack(&b""[..]), sealed()] {
            plain.seal_value(&bad.into(), &ROW).unwrap_err();
        }
    }

    #[cfg(feature = "encryption")]
    #[test]
    fn with_a_cipher_opaque_values_are_sealed_and_opened() {
        let cipher = Some(Cipher::aes_gcm("k", &[1; 32]).unwrap());
        let opaque = ValueCodec { cipher, opaque_values: true, ..ValueCodec::default() };
        let value = ChannelValue::Blob(TypedBytes::msgpack(&b"\xc1 no MessagePack"[..]));
        let stored = opaque.seal_value(&value, &ROW).unwrap();
        assert!(stored.is_sealed());
        let without = ValueCodec { cipher: None, ..opaque.clone() };
        assert_eq!(without.open(stored.clone(), &ROW).unwrap_err().kind(), ErrorKind::Crypto);
        assert_eq!(without.seal(stored.clone(), &ROW).unwrap_err().kind(), ErrorKind::Crypto);
        assert_eq!(opaque.open_value(stored, &ROW).unwrap(), value);
        assert_eq!(opaque.seal(sealed(), &ROW).unwrap_err().kind(), ErrorKind::Crypto);
        assert_eq!(opaque.open(sealed(), &ROW).unwrap_err().kind(), ErrorKind::Crypto);
        let keeping = ValueCodec { return_sealed: true, ..opaque };
        assert_eq!(keeping.open(sealed(), &ROW).unwrap(), sealed());
        assert_eq!(
            keeping.requiring_decryption().open(sealed(), &ROW).unwrap_err().kind(),
            ErrorKind::Crypto
        );
    }
}
