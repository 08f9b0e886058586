//! AES-256-GCM bound to the row: 1 ‖ length of key id ‖ key id ‖ nonce 12 ‖ ciphertext ‖ tag 16.

use aes_gcm::Aes256Gcm;
use aes_gcm::aead::{AeadInOut, KeyInit};
use bytes::Bytes;
use zeroize::Zeroizing;

use super::AddressKeyName;
use super::address::AddressKey;
use super::ring::nonce;
use super::{GCM_FORMAT as FORMAT, GCM_NONCE as NONCE, GCM_TAG as TAG};
use crate::backend::AssociatedData;
use crate::{Error, Result, TypedBytes};

pub(super) use super::AES_GCM as NAME;

#[derive(Clone)]
pub(super) struct Key {
    id: String,
    key: Zeroizing<[u8; 32]>,
}

impl Key {
    pub(super) fn new(id: &str, key: &[u8]) -> Result<Self> {
        if id.is_empty() || u8::try_from(id.len()).is_err() {
            return Err(Error::invalid_config("a key id must have 1 to 255 bytes").with("bytes", id.len()));
        }
        let key = <[u8; 32]>::try_from(key).map_err(|_| {
            Error::invalid_config("an AES-256-GCM key must have 32 bytes").with("bytes", key.len())
        })?;
        Ok(Self { id: id.to_owned(), key: Zeroizing::new(key) })
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn address_key(&self, thread_id: &str) -> AddressKey {
        AddressKey::of_thread(NAME, &*self.key, thread_id)
    }

    pub(super) fn named_address_key(&self, name: AddressKeyName) -> Option<AddressKey> {
        AddressKey::named(NAME, &*self.key, name)
    }

    /// Appends the header, with which the values of this key begin, and no others.
    pub(super) fn append_head(&self, out: &mut Vec<u8>) {
        out.push(FORMAT);
        out.push(u8::try_from(self.id.len()).unwrap_or_default());
        out.extend_from_slice(self.id.as_bytes());
    }

    pub(super) fn seal(&self, typed: &TypedBytes, row: &AssociatedData<'_>) -> Result<Bytes> {
        let nonce: [u8; NONCE] = nonce()?;
        let mut out = Vec::with_capacity(2 + self.id.len() + NONCE + typed.data.len() + TAG);
        self.append_head(&mut out);
        let associated = associated(&out, &typed.tag, row);
        out.extend_from_slice(&nonce);
        let text_start = out.len();
        out.extend_from_slice(&typed.data);
        let (_, text) = out.split_at_mut(text_start);
        let tag =
            self.cipher().encrypt_inout_detached(&nonce.into(), &associated, text.into()).map_err(|_| {
                Error::crypto("the value is too large to be encrypted").with("bytes", typed.data.len())
            })?;
        out.extend_from_slice(&tag);
        Ok(out.into())
    }

    /// The plaintext, or `None` if authentication fails.
    pub(super) fn open(&self, tag_name: &str, sealed: &[u8], row: &AssociatedData<'_>) -> Option<Bytes> {
        let (header, rest) = sealed.split_at_checked(2 + self.id.len())?;
        let (nonce, rest) = rest.split_first_chunk::<NONCE>()?;
        let (text, tag) = rest.split_last_chunk::<TAG>()?;
        let mut text = text.to_vec();
        self.cipher()
            .decrypt_inout_detached(
                &(*nonce).into(),
                &associated(header, tag_name, row),
                text.as_mut_slice().into(),
                &(*tag).into(),
            )
            .ok()?;
        Some(text.into())
    }

    fn cipher(&self) -> Aes256Gcm {
        Aes256Gcm::new(&(*self.key).into())
    }
}

fn associated(header: &[u8], tag_name: &str, row: &AssociatedData<'_>) -> Vec<u8> {
    let mut out = header.to_vec();
    out.extend_from_slice(&(tag_name.len() as u64).to_be_bytes());
    out.extend_from_slice(tag_name.as_bytes());
    row.append_to(&mut out);
    out
}
