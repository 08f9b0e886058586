//! AES-EAX in pycryptodome's format: nonce 16 ‖ tag 16 ‖ ciphertext.

use aes::{Aes128, Aes192, Aes256};
use bytes::Bytes;
use eax::Eax;
use eax::aead::{AeadInOut, KeyInit};
use zeroize::Zeroizing;

use super::AddressKeyName;
use super::address::AddressKey;
use crate::{Error, Result};

pub(super) use super::AES as NAME;

const NONCE: usize = 16;
const TAG: usize = 16;

#[derive(Clone)]
pub(super) struct Key(Zeroizing<Vec<u8>>);

impl Key {
    pub(super) fn new(key: &[u8]) -> Result<Self> {
        match key.len() {
            16 | 24 | 32 => Ok(Self(Zeroizing::new(key.to_vec()))),
            len => Err(Error::invalid_config("an AES key must have 16, 24 or 32 bytes").with("bytes", len)),
        }
    }

    pub(super) fn address_key(&self, thread_id: &str) -> AddressKey {
        AddressKey::of_thread(NAME, &self.0, thread_id)
    }

    pub(super) fn named_address_key(&self, name: AddressKeyName) -> Option<AddressKey> {
        AddressKey::named(NAME, &self.0, name)
    }

    pub(super) fn seal(&self, plaintext: &[u8]) -> Result<Bytes> {
        self.seal_with(super::ring::nonce()?, plaintext)
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

    /// The plaintext, or `None` if authentication fails.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn unhex(text: &str) -> Vec<u8> {
        let digit = |byte: &u8| char::from(*byte).to_digit(16).unwrap();
        text.as_bytes()
            .chunks(2)
            .map(|pair| u8::try_from(digit(&pair[0]) << 4 | digit(&pair[1])).unwrap())
            .collect()
    }

    /// Key, plaintext, and the output of Python's `EncryptedSerializer` (nonce, tag, ciphertext).
    const WRITTEN_BY_PYTHON: [(&str, &str, &str); 6] = [
        (
            "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
            "",
            "6465666768696a6b6c6d6e6f707172738a2faf58fb902743fa1de0182d66a261",
        ),
        (
            "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
            "0001",
            "6465666768696a6b6c6d6e6f70717273a348702e7796f80969b347acb435158da973",
        ),
        (
            "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
            "a568656c6c6f",
            "6465666768696a6b6c6d6e6f70717273e55c76c7f73214c14829e6e277b3c26e0c1a0d78ed63",
        ),
        (
            "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
            "c7350394a86461746574696d65a86461746574696d65b3323032342d30312d30315430303a30303a\
            3030ad66726f6d69736f666f726d6174",
            "6465666768696a6b6c6d6e6f7071727338f1a92677ffc824f008749a0f53b6cd6e476b802968ca7f\
            384465c89394790ef99b822b7bea23681b7eda8310cd27a13a9e0bda5503a7e956f642f2ab9394c2\
            4603fefe97417e79",
        ),
        (
            "000102030405060708090a0b0c0d0e0f",
            "81a16b10",
            "bb2abd90aea5ef5d35901f1ae5e3333b22b4b811f2375e67d028c54c3186001e0d614181",
        ),
        (
            "000102030405060708090a0b0c0d0e0f1011121314151617",
            "81a16b18",
            "6d0676189976b7590dbe179c2178fcee1f9e0d48df4be2b9b8da16fdf9e51bd714d82c0a",
        ),
    ];

    #[test]
    fn output_equals_pythons_for_the_same_nonce() {
        for (key, plain, sealed) in WRITTEN_BY_PYTHON {
            let (plain, sealed) = (unhex(plain), unhex(sealed));
            let key = Key::new(&unhex(key)).unwrap();
            let nonce = *sealed.first_chunk().unwrap();
            assert_eq!(key.seal_with(nonce, &plain).unwrap(), sealed);
            assert_eq!(key.open(&sealed).unwrap(), plain);
            let mut altered = sealed;
            altered[20] ^= 1;
            assert_eq!(key.open(&altered), None);
        }
        let sizes = WRITTEN_BY_PYTHON.map(|(key, ..)| key.len() / 2);
        assert!([16, 24, 32].iter().all(|size| sizes.contains(size)));
    }
}
