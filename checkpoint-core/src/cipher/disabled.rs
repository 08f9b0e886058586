//! The cipher of a build without the feature `encryption`.

use bytes::Bytes;

use super::AddressKeyName;
use crate::backend::AssociatedData;
use crate::rekey::SealedBy;
use crate::{Result, TypedBytes};

/// Seals and opens stored values, in builds with the cargo feature `encryption`. This build has none: there is no
/// constructor.
#[derive(Debug, Clone)]
pub enum Cipher {}

impl Cipher {
    /// Never called: there is no cipher.
    ///
    /// # Errors
    /// None.
    pub fn seal(&self, _: &TypedBytes, _: &AssociatedData<'_>) -> Result<TypedBytes> {
        match *self {}
    }

    /// Never called: there is no cipher.
    ///
    /// # Errors
    /// None.
    pub fn open(&self, _: TypedBytes, _: &AssociatedData<'_>) -> Result<TypedBytes> {
        match *self {}
    }

    /// Never called: there is no cipher.
    pub fn sealed_by(&self) -> SealedBy {
        match *self {}
    }

    pub(crate) fn sealing_head(&self) -> Option<Bytes> {
        match *self {}
    }

    pub(crate) fn is_current(&self, _: &TypedBytes) -> bool {
        match *self {}
    }

    pub(crate) fn may_open(&self, _: &SealedBy) -> bool {
        match *self {}
    }

    pub(crate) fn address_key(&self, _: &str) -> Option<AddressKey> {
        match *self {}
    }

    pub(crate) fn named_address_key(&self, _: AddressKeyName) -> Option<AddressKey> {
        match *self {}
    }
}

/// There is none without a cipher.
pub(crate) enum AddressKey {}

impl AddressKey {
    pub(crate) fn name(&self) -> AddressKeyName {
        match *self {}
    }

    pub(crate) fn mac(&self, _: &[&[u8]]) -> [u8; 32] {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::backend::ValueCodec;

    #[test]
    fn encrypted_rows_are_refused_with_the_name_of_the_feature() {
        let row = AssociatedData::Checkpoint { thread_id: "t", checkpoint_ns: "", checkpoint_id: "c" };
        for tag in ["msgpack+aes", "msgpack+aes256gcm"] {
            let sealed = TypedBytes::new(tag, &b"ciphertext"[..]);
            for error in [
                ValueCodec::default().open(sealed.clone(), &row).unwrap_err(),
                sealed.decode::<String>().unwrap_err(),
            ] {
                assert_eq!(error.kind(), ErrorKind::Crypto);
                assert!(error.to_string().contains("feature `encryption`"), "{error}");
            }
        }
    }
}
