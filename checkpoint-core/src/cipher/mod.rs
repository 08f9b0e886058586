//! Encryption of stored values: one key seals, every key of the ring opens.
//!
//! | tag | algorithm | bytes |
//! |---|---|---|
//! | `…+aes` | AES-EAX with 128, 192 or 256 bits, no associated data: what Python's `EncryptedSerializer` writes and reads | nonce 16 ‖ tag 16 ‖ ciphertext |
//! | `…+aes256gcm` | AES-256-GCM; the header, the plain type tag and the [`AssociatedData`] of the row are associated data. Python cannot read it | 1 ‖ length of key id ‖ key id ‖ nonce 12 ‖ ciphertext ‖ tag 16 |
//!
//! A GCM row that is moved to another thread, channel or task does not open there. Nonces are random: one GCM key
//! should seal at most 2^32 values (NIST SP 800-38D), then another should take over.

mod eax;
mod gcm;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

pub use crate::backend::AssociatedData;
use crate::{Error, Result, TypedBytes};

/// The environment variable that holds the AES key, as in Python: its UTF-8 bytes are the key.
pub const AES_KEY_VARIABLE: &str = "LANGGRAPH_AES_KEY";

/// The end of the type tags of values that are bound to their place: these cannot be moved without being sealed anew.
pub const BOUND_SUFFIX: &str = "+aes256gcm";

/// Seals and opens stored values. Give it to a saver's builder; clones share the keys.
///
/// The keys it holds are wiped from memory when the last clone is dropped, and never printed. Short-lived copies that
/// the algorithms make while they work are not all wiped.
///
/// ```
/// use checkpoint_core::Cipher;
/// // Seals with the new key; rows under the old ones still open.
/// let cipher = Cipher::aes_gcm("2026-11", &[7; 32])?.with_aes_gcm_decryption_key("2025-11", &[3; 32])?.with_aes_decryption_key(&[1; 16])?;
/// # Ok::<(), checkpoint_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Cipher(Arc<KeyRing>);

#[derive(Clone)]
struct KeyRing {
    seals_with_gcm: bool,
    eax: Vec<eax::Key>,
    gcm: Vec<gcm::Key>,
}

impl Cipher {
    /// Seals as Python's `EncryptedSerializer` does: AES-EAX under the tag `aes`, with a key of 16, 24 or 32 bytes.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a key of another size.
    pub fn aes(key: &[u8]) -> Result<Self> {
        Ok(Self(Arc::new(KeyRing { seals_with_gcm: false, eax: vec![eax::Key::new(key)?], gcm: Vec::new() })))
    }

    /// Seals as [`Cipher::aes`] does, with the key in `LANGGRAPH_AES_KEY`, or `None` when that is not set.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a key of another size than 16, 24 or 32 bytes.
    pub fn from_env() -> Result<Option<Self>> {
        let Some(key) = std::env::var_os(AES_KEY_VARIABLE) else { return Ok(None) };
        let key = zeroize::Zeroizing::new(key.into_encoded_bytes());
        Self::aes(&key).map(Some).map_err(|error| error.with("variable", AES_KEY_VARIABLE))
    }

    /// Seals with AES-256-GCM: a key of 32 bytes, and a name for it of 1 to 255 bytes that is stored with each value.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a key or a name of another size.
    pub fn aes_gcm(key_id: &str, key: &[u8]) -> Result<Self> {
        Ok(Self(Arc::new(KeyRing {
            seals_with_gcm: true,
            eax: Vec::new(),
            gcm: vec![gcm::Key::new(key_id, key)?],
        })))
    }

    /// Adds a key that opens values sealed by [`Cipher::aes`] or by Python.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a key of another size than 16, 24 or 32 bytes.
    pub fn with_aes_decryption_key(self, key: &[u8]) -> Result<Self> {
        let mut ring = Arc::unwrap_or_clone(self.0);
        ring.eax.push(eax::Key::new(key)?);
        Ok(Self(Arc::new(ring)))
    }

    /// Adds a key that opens values sealed by [`Cipher::aes_gcm`] under this key id.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a key or a name of another size, and for a key id that
    /// is there already.
    pub fn with_aes_gcm_decryption_key(self, key_id: &str, key: &[u8]) -> Result<Self> {
        let mut ring = Arc::unwrap_or_clone(self.0);
        if ring.gcm.iter().any(|known| known.id() == key_id) {
            return Err(Error::invalid_config("two keys have the same key id").with("key_id", key_id));
        }
        ring.gcm.push(gcm::Key::new(key_id, key)?);
        Ok(Self(Arc::new(ring)))
    }

    /// Encrypts a value for its place. What is sealed already is refused.
    ///
    /// # Errors
    /// [`Crypto`](crate::ErrorKind::Crypto) when the system gives no random bytes, or for sealed bytes.
    pub fn seal(&self, typed: &TypedBytes, place: &AssociatedData<'_>) -> Result<TypedBytes> {
        if typed.is_sealed() {
            return Err(Error::crypto("the value is encrypted already; open it before it is stored again")
                .with("tag", &typed.tag));
        }
        let ring = &*self.0;
        let (name, data) = match (ring.seals_with_gcm, ring.gcm.first(), ring.eax.first()) {
            (true, Some(key), _) => (gcm::NAME, key.seal(typed, place)?),
            (_, _, Some(key)) => (eax::NAME, key.seal(&typed.data)?),
            _ => return Err(Error::crypto("the cipher has no key that seals")),
        };
        Ok(TypedBytes::new(format!("{}+{name}", typed.tag), data))
    }

    /// Decrypts a value that stands in this place; what is not sealed is returned as it is.
    ///
    /// # Errors
    /// [`Crypto`](crate::ErrorKind::Crypto) when no key of the ring opens it: another key, another place, altered or
    /// truncated bytes, or an unknown cipher.
    pub fn open(&self, typed: TypedBytes, place: &AssociatedData<'_>) -> Result<TypedBytes> {
        let Some((tag, name)) = typed.tag.split_once('+') else { return Ok(typed) };
        let ring = &*self.0;
        let data: Option<Bytes> = match name {
            eax::NAME => ring.eax.iter().find_map(|key| key.open(&typed.data)),
            gcm::NAME => {
                let key_id = gcm::key_id(&typed.data)
                    .ok_or_else(|| Error::crypto("the ciphertext is truncated").with("tag", &typed.tag))?;
                let key = ring.gcm.iter().find(|key| key.id().as_bytes() == key_id).ok_or_else(|| {
                    Error::crypto(
                        "the key ring lacks the key that sealed this value; add it with with_aes_gcm_decryption_key",
                    )
                    .with("key_id", String::from_utf8_lossy(key_id))
                })?;
                key.open(tag, &typed.data, place)
            }
            _ => {
                return Err(
                    Error::crypto("the value was sealed by an unknown cipher").with("tag", &typed.tag)
                );
            }
        };
        let data = data.ok_or_else(|| {
            Error::crypto("the value does not open: wrong key, altered bytes, or a row moved from elsewhere")
                .with("tag", &typed.tag)
        })?;
        Ok(TypedBytes::new(Cow::<'static, str>::Owned(tag.to_owned()), data))
    }
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key_ids: Vec<_> = self.0.gcm.iter().map(gcm::Key::id).collect();
        f.debug_struct("Cipher")
            .field("seals_with", &if self.0.seals_with_gcm { gcm::NAME } else { eax::NAME })
            .field("aes_keys", &self.0.eax.len())
            .field("gcm_key_ids", &key_ids)
            .finish()
    }
}

/// Whether a value was encrypted by [`Cipher::aes_gcm`], and not by another cipher of the same name.
pub(crate) fn is_own_gcm(typed: &TypedBytes) -> bool {
    gcm::is_own(typed)
}

/// Random bytes for a nonce, or an error: a nonce that repeats would betray values.
fn nonce<const N: usize>() -> Result<[u8; N]> {
    let mut nonce = [0; N];
    getrandom::fill(&mut nonce).map_err(|source| {
        Error::crypto("the system gave no random bytes for a nonce").with_source(source.to_string())
    })?;
    Ok(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    const HERE: AssociatedData<'_> = AssociatedData::Write {
        thread_id: "t",
        checkpoint_ns: "",
        checkpoint_id: "c",
        task_id: "k",
        idx: -1,
        channel: "x",
    };

    fn secret() -> TypedBytes {
        TypedBytes::new("msgpack", Bytes::from_static(b"\xa6canary"))
    }

    #[test]
    fn seals_and_opens_in_place() {
        for cipher in [Cipher::aes(&[1; 24]).unwrap(), Cipher::aes_gcm("k1", &[2; 32]).unwrap()] {
            let sealed = cipher.seal(&secret(), &HERE).unwrap();
            assert!(!sealed.data.windows(6).any(|window| window == b"canary"));
            assert_eq!(cipher.open(sealed.clone(), &HERE).unwrap(), secret());
            assert_eq!(cipher.seal(&sealed, &HERE).unwrap_err().kind(), ErrorKind::Crypto);
            for at in 0..sealed.data.len() {
                let mut altered = sealed.data.to_vec();
                altered[at] ^= 1;
                let altered = TypedBytes::new(sealed.tag.clone(), altered);
                assert_eq!(cipher.open(altered, &HERE).unwrap_err().kind(), ErrorKind::Crypto, "byte {at}");
                let cut = TypedBytes::new(sealed.tag.clone(), sealed.data.slice(..at));
                assert_eq!(cipher.open(cut, &HERE).unwrap_err().kind(), ErrorKind::Crypto, "cut at {at}");
            }
            assert_eq!(cipher.open(secret(), &HERE).unwrap(), secret(), "clear values pass");
        }
    }

    #[test]
    fn gcm_binds_to_the_place_and_the_tag() {
        let cipher = Cipher::aes_gcm("k1", &[2; 32]).unwrap();
        let sealed = cipher.seal(&secret(), &HERE).unwrap();
        let elsewhere = [
            AssociatedData::Write {
                thread_id: "tk",
                checkpoint_ns: "",
                checkpoint_id: "c",
                task_id: "",
                idx: -1,
                channel: "x",
            },
            AssociatedData::Write {
                thread_id: "t",
                checkpoint_ns: "",
                checkpoint_id: "c",
                task_id: "k",
                idx: 0,
                channel: "x",
            },
            AssociatedData::Checkpoint { thread_id: "t", checkpoint_ns: "", checkpoint_id: "c" },
            AssociatedData::Blob { thread_id: "t", checkpoint_ns: "", channel: "c", version: "k" },
        ];
        for place in elsewhere {
            assert_eq!(cipher.open(sealed.clone(), &place).unwrap_err().kind(), ErrorKind::Crypto);
        }
        let retagged = TypedBytes::new("bytes+aes256gcm", sealed.data);
        assert_eq!(cipher.open(retagged, &HERE).unwrap_err().kind(), ErrorKind::Crypto);
    }

    #[test]
    fn keys_rotate_and_are_not_shown() {
        let old = Cipher::aes_gcm("old", b"OLDOLDOLDOLDOLDOLDOLDOLDOLDOLDOL")
            .unwrap()
            .seal(&secret(), &HERE)
            .unwrap();
        let python = Cipher::aes(b"PYTHONPYTHONPYTH").unwrap().seal(&secret(), &HERE).unwrap();
        let python_tag = python.tag.clone();
        let new = Cipher::aes_gcm("new", &[b'N'; 32]).unwrap();
        assert_eq!(new.open(old.clone(), &HERE).unwrap_err().kind(), ErrorKind::Crypto);
        let ring = new
            .with_aes_gcm_decryption_key("old", b"OLDOLDOLDOLDOLDOLDOLDOLDOLDOLDOL")
            .and_then(|ring| ring.with_aes_decryption_key(&[9; 32]))
            .and_then(|ring| ring.with_aes_decryption_key(b"PYTHONPYTHONPYTH"))
            .unwrap();
        assert_eq!(ring.open(old, &HERE).unwrap(), secret());
        assert_eq!(ring.open(python, &HERE).unwrap(), secret());
        let sealed = ring.seal(&secret(), &HERE).unwrap();
        assert_eq!(sealed.tag, "msgpack+aes256gcm");
        assert!(sealed.tag.ends_with(BOUND_SUFFIX) && !python_tag.ends_with(BOUND_SUFFIX));
        let shown = format!("{ring:?}");
        assert!(
            shown.contains("new")
                && !shown.contains("PYTHON")
                && !shown.contains("OLDOLD")
                && !shown.contains("78")
        );
    }

    #[test]
    fn odd_keys_and_ciphers_are_refused() {
        for size in [0, 15, 17, 31, 33] {
            assert_eq!(Cipher::aes(&vec![0; size]).unwrap_err().kind(), ErrorKind::InvalidConfig);
            assert_eq!(Cipher::aes_gcm("k", &vec![0; size]).unwrap_err().kind(), ErrorKind::InvalidConfig);
        }
        for id in [String::new(), "x".repeat(256)] {
            assert_eq!(Cipher::aes_gcm(&id, &[0; 32]).unwrap_err().kind(), ErrorKind::InvalidConfig);
        }
        let foreign = TypedBytes::new("msgpack+rot13", Bytes::new());
        let cipher = Cipher::aes(&[0; 16]).unwrap();
        assert_eq!(cipher.open(foreign.clone(), &HERE).unwrap_err().kind(), ErrorKind::Crypto);
        assert_eq!(
            crate::backend::ValueCodec::default().open(foreign, &HERE).unwrap_err().kind(),
            ErrorKind::Crypto
        );
        assert_eq!(crate::backend::ValueCodec::default().open(secret(), &HERE).unwrap(), secret());
    }
}
