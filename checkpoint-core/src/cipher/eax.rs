//! AES-EAX as pycryptodome lays it out: nonce 16 ‖ tag 16 ‖ ciphertext.

use aes::{Aes128, Aes192, Aes256};
use bytes::Bytes;
use eax::Eax;
use eax::aead::{AeadInOut, KeyInit};
use zeroize::Zeroizing;

use crate::{Error, Result};

pub(super) const NAME: &str = "aes";

const NONCE: usize = 16;
const TAG: usize = 16;

#[derive(Clone)]
pub(super) struct Key(Zeroizing<Vec<u8>>);

impl Key {
    pub(super) fn new(key: &[u8]) -> Result<Self> {
        match key.len() {
            16 | 24 | 32 => Ok(Self(Zeroizing::new(key.to_vec()))),
            len => Err(Error::invalid_config("an AES key has 16, 24 or 32 bytes").with("bytes", len)),
        }
    }

    pub(super) fn seal(&self, plaintext: &[u8]) -> Result<Bytes> {
        self.seal_with(super::nonce()?, plaintext)
    }

    fn seal_with(&self, nonce: [u8; NONCE], plaintext: &[u8]) -> Result<Bytes> {
        let mut out = Vec::with_capacity(NONCE + TAG + plaintext.len());
        out.extend_from_slice(&nonce);
        out.extend_from_slice(&[0; TAG]);
        out.extend_from_slice(plaintext);
        let (head, text) = out.split_at_mut(NONCE + TAG);
        let sealed = match self.0.len() {
            16 => encrypt::<Eax<Aes128>>(&self.0, nonce, text),
            24 => encrypt::<Eax<Aes192>>(&self.0, nonce, text),
            _ => encrypt::<Eax<Aes256>>(&self.0, nonce, text),
        };
        let tag = sealed.ok_or_else(|| Error::crypto("the value could not be encrypted"))?;
        head.iter_mut().skip(NONCE).zip(tag).for_each(|(out, byte)| *out = byte);
        Ok(out.into())
    }

    /// The plaintext, or `None` when key and ciphertext do not fit.
    pub(super) fn open(&self, sealed: &[u8]) -> Option<Bytes> {
        let (nonce, rest) = sealed.split_first_chunk::<NONCE>()?;
        let (tag, text) = rest.split_first_chunk::<TAG>()?;
        let mut text = text.to_vec();
        match self.0.len() {
            16 => decrypt::<Eax<Aes128>>(&self.0, *nonce, *tag, &mut text),
            24 => decrypt::<Eax<Aes192>>(&self.0, *nonce, *tag, &mut text),
            _ => decrypt::<Eax<Aes256>>(&self.0, *nonce, *tag, &mut text),
        }?;
        Some(text.into())
    }
}

fn encrypt<C: AeadInOut + KeyInit>(key: &[u8], nonce: [u8; NONCE], text: &mut [u8]) -> Option<[u8; TAG]> {
    let nonce = nonce.as_slice().try_into().ok()?;
    let tag = C::new_from_slice(key).ok()?.encrypt_inout_detached(nonce, &[], text.into()).ok()?;
    tag.as_slice().try_into().ok()
}

fn decrypt<C: AeadInOut + KeyInit>(
    key: &[u8],
    nonce: [u8; NONCE],
    tag: [u8; TAG],
    text: &mut [u8],
) -> Option<()> {
    let (nonce, tag) = (nonce.as_slice().try_into().ok()?, tag.as_slice().try_into().ok()?);
    C::new_from_slice(key).ok()?.decrypt_inout_detached(nonce, &[], text.into(), tag).ok()
}
