//! The key ring behind [`Cipher`].

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::address::AddressKey;
use super::{AES_KEY_VARIABLE, AddressKeyName, eax, gcm, gcm_key_id};
use crate::backend::AssociatedData;
use crate::rekey::SealedBy;
use crate::{Error, Result, TypedBytes};

/// Seals and opens stored values. Pass it to a saver's builder; clones share the keys.
///
/// The keys are zeroized when the last clone is dropped, and never printed. Some temporary copies inside the algorithms
/// are not zeroized.
///
/// ```
/// use checkpoint_core::Cipher;
/// // Seals with the new key; also opens rows sealed with the old ones.
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

impl KeyRing {
    /// The key that seals, if it is one of AES-GCM; otherwise the first AES key does.
    fn sealing_gcm(&self) -> Option<&gcm::Key> {
        self.gcm.first().filter(|_| self.seals_with_gcm)
    }
}

impl Cipher {
    /// Seals as Python's `EncryptedSerializer` does: AES-EAX with the tag `aes` and a key of 16, 24 or 32 bytes.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a key of another size.
    pub fn aes(key: &[u8]) -> Result<Self> {
        Ok(Self(Arc::new(KeyRing { seals_with_gcm: false, eax: vec![eax::Key::new(key)?], gcm: Vec::new() })))
    }

    /// Seals as [`Cipher::aes`] does with the key in `LANGGRAPH_AES_KEY`; `None` if that is not set.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a key of another size than 16, 24 or 32 bytes.
    pub fn from_env() -> Result<Option<Self>> {
        let Some(key) = std::env::var_os(AES_KEY_VARIABLE) else { return Ok(None) };
        let key = zeroize::Zeroizing::new(key.into_encoded_bytes());
        Self::aes(&key).map(Some).map_err(|error| error.with("variable", AES_KEY_VARIABLE))
    }

    /// Seals with AES-256-GCM: a key of 32 bytes, and a key id of 1 to 255 bytes that is stored with each value.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a key or key id of another size.
    pub fn aes_gcm(key_id: &str, key: &[u8]) -> Result<Self> {
        Ok(Self(Arc::new(KeyRing {
            seals_with_gcm: true,
            eax: Vec::new(),
            gcm: vec![gcm::Key::new(key_id, key)?],
        })))
    }

    /// Adds a key that opens values sealed with [`Cipher::aes`] or by Python.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a key of another size than 16, 24 or 32 bytes.
    pub fn with_aes_decryption_key(self, key: &[u8]) -> Result<Self> {
        let mut ring = Arc::unwrap_or_clone(self.0);
        ring.eax.push(eax::Key::new(key)?);
        Ok(Self(Arc::new(ring)))
    }

    /// Adds a key that opens values sealed with [`Cipher::aes_gcm`] and this key id.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a key or key id of another size, and for a duplicate key
    /// id.
    pub fn with_aes_gcm_decryption_key(self, key_id: &str, key: &[u8]) -> Result<Self> {
        let mut ring = Arc::unwrap_or_clone(self.0);
        if ring.gcm.iter().any(|known| known.id() == key_id) {
            return Err(Error::invalid_config("two keys have the same key id").with("key_id", key_id));
        }
        ring.gcm.push(gcm::Key::new(key_id, key)?);
        Ok(Self(Arc::new(ring)))
    }

    /// Encrypts a value for its row.
    ///
    /// # Errors
    /// [`Crypto`](crate::ErrorKind::Crypto) for a value that is already sealed, and when the system provides no random
    /// bytes.
    pub fn seal(&self, typed: &TypedBytes, row: &AssociatedData<'_>) -> Result<TypedBytes> {
        if typed.is_sealed() {
            return Err(Error::crypto(
                "the value is already encrypted; decrypt it before it is stored again",
            )
            .with("tag", &typed.tag));
        }
        let ring = &*self.0;
        let (name, data) = match (ring.sealing_gcm(), ring.eax.first()) {
            (Some(key), _) => (gcm::NAME, key.seal(typed, row)?),
            (None, Some(key)) => (eax::NAME, key.seal(&typed.data)?),
            (None, None) => return Err(Error::crypto("the cipher has no key that seals")),
        };
        Ok(TypedBytes::new(format!("{}+{name}", typed.tag), data))
    }

    /// Decrypts a value of this row; unencrypted values are returned unchanged.
    ///
    /// # Errors
    /// [`Crypto`](crate::ErrorKind::Crypto) when no key of the ring opens it: another key, another row, altered or
    /// truncated bytes, or an unknown cipher.
    pub fn open(&self, typed: TypedBytes, row: &AssociatedData<'_>) -> Result<TypedBytes> {
        let Some((tag, name)) = typed.tag.split_once('+') else { return Ok(typed) };
        let ring = &*self.0;
        let data: Option<Bytes> = match name {
            eax::NAME => ring.eax.iter().find_map(|key| key.open(&typed.data)),
            gcm::NAME => {
                let key_id = gcm_key_id(&typed.data)
                    .ok_or_else(|| Error::crypto("the ciphertext is truncated").with("tag", &typed.tag))?;
                let key = ring.gcm.iter().find(|key| key.id().as_bytes() == key_id).ok_or_else(|| {
                    Error::crypto(
                        "the key ring lacks the key of this value; add it with with_aes_gcm_decryption_key",
                    )
                    .with("key_id", String::from_utf8_lossy(key_id))
                })?;
                key.open(tag, &typed.data, row)
            }
            _ => {
                return Err(
                    Error::crypto("the value was encrypted by an unknown cipher").with("tag", &typed.tag)
                );
            }
        };
        let data = data.ok_or_else(|| {
            Error::crypto(
                "the value cannot be decrypted: wrong key, altered bytes, or moved from another row",
            )
            .with("tag", &typed.tag)
        })?;
        Ok(TypedBytes::new(Cow::<'static, str>::Owned(tag.to_owned()), data))
    }

    /// The key for the addresses of new segments of a thread.
    pub(crate) fn address_key(&self, thread_id: &str) -> Option<AddressKey> {
        let ring = &*self.0;
        match (ring.seals_with_gcm, ring.gcm.first(), ring.eax.first()) {
            (true, Some(key), _) => Some(key.address_key(thread_id)),
            (_, _, key) => key.map(|key| key.address_key(thread_id)),
        }
    }

    /// The key for the addresses of stored segments, if the ring has it.
    pub(crate) fn named_address_key(&self, name: AddressKeyName) -> Option<AddressKey> {
        let ring = &*self.0;
        let of_gcm = ring.gcm.iter().find_map(|key| key.named_address_key(name));
        of_gcm.or_else(|| ring.eax.iter().find_map(|key| key.named_address_key(name)))
    }

    /// How the values that this cipher seals tell that it did.
    pub fn sealed_by(&self) -> SealedBy {
        self.0.sealing_gcm().map_or(SealedBy::Aes, |key| SealedBy::AesGcm(key.id().into()))
    }

    /// The bytes with which the values of the sealing key begin, and no others; `None` for an AES key.
    pub(crate) fn sealing_head(&self) -> Option<Bytes> {
        let mut head = Vec::new();
        self.0.sealing_gcm()?.append_head(&mut head);
        Some(head.into())
    }

    /// Whether the sealing key has sealed a value. Values of AES keys are opened to tell.
    pub(crate) fn is_current(&self, typed: &TypedBytes) -> bool {
        let sealed_by = SealedBy::of(&typed.tag, &typed.data);
        sealed_by == self.sealed_by()
            && (sealed_by != SealedBy::Aes
                || self.0.eax.first().is_some_and(|key| key.open(&typed.data).is_some()))
    }

    /// Whether the ring has the key that sealed a value, as far as that can be told.
    pub(crate) fn may_open(&self, sealed_by: &SealedBy) -> bool {
        match sealed_by {
            SealedBy::Plain => true,
            SealedBy::Aes => !self.0.eax.is_empty(),
            SealedBy::AesGcm(id) => self.0.gcm.iter().any(|key| key.id() == &**id),
            SealedBy::Other(_) => false,
        }
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

/// Random bytes for a nonce. There is no fallback: a repeated nonce would reveal values.
pub(super) fn nonce<const N: usize>() -> Result<[u8; N]> {
    let mut nonce = [0; N];
    getrandom::fill(&mut nonce).map_err(|source| {
        Error::crypto("the system provided no random bytes for a nonce").with_source(source.to_string())
    })?;
    Ok(nonce)
}

#[cfg(test)]
mod tests {
    use super::super::BOUND_SUFFIX;
    use super::*;
    use crate::ErrorKind;

    const ROW: AssociatedData<'_> = AssociatedData::Write {
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
    fn opens_what_it_sealed_for_the_same_row() {
        for cipher in [Cipher::aes(&[1; 24]).unwrap(), Cipher::aes_gcm("k1", &[2; 32]).unwrap()] {
            let sealed = cipher.seal(&secret(), &ROW).unwrap();
            assert!(!sealed.data.windows(6).any(|window| window == b"canary"));
            assert_eq!(cipher.open(sealed.clone(), &ROW).unwrap(), secret());
            assert_eq!(cipher.seal(&sealed, &ROW).unwrap_err().kind(), ErrorKind::Crypto);
            for at in 0..sealed.data.len() {
                let mut altered = sealed.data.to_vec();
                altered[at] ^= 1;
                let altered = TypedBytes::new(sealed.tag.clone(), altered);
                assert_eq!(cipher.open(altered, &ROW).unwrap_err().kind(), ErrorKind::Crypto, "byte {at}");
                let cut = TypedBytes::new(sealed.tag.clone(), sealed.data.slice(..at));
                assert_eq!(cipher.open(cut, &ROW).unwrap_err().kind(), ErrorKind::Crypto, "cut at {at}");
            }
            assert_eq!(cipher.open(secret(), &ROW).unwrap(), secret(), "unencrypted values pass");
        }
    }

    #[test]
    fn gcm_binds_to_the_row_and_the_tag() {
        let cipher = Cipher::aes_gcm("k1", &[2; 32]).unwrap();
        let sealed = cipher.seal(&secret(), &ROW).unwrap();
        let other_rows = [
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
        for row in other_rows {
            assert_eq!(cipher.open(sealed.clone(), &row).unwrap_err().kind(), ErrorKind::Crypto);
        }
        let retagged = TypedBytes::new("bytes+aes256gcm", sealed.data);
        assert_eq!(cipher.open(retagged, &ROW).unwrap_err().kind(), ErrorKind::Crypto);
    }

    #[test]
    fn keys_rotate_and_debug_does_not_contain_them() {
        let old = Cipher::aes_gcm("old", b"OLDOLDOLDOLDOLDOLDOLDOLDOLDOLDOL")
            .unwrap()
            .seal(&secret(), &ROW)
            .unwrap();
        let python = Cipher::aes(b"PYTHONPYTHONPYTH").unwrap().seal(&secret(), &ROW).unwrap();
        let python_tag = python.tag.clone();
        let new = Cipher::aes_gcm("new", &[b'N'; 32]).unwrap();
        assert_eq!(new.open(old.clone(), &ROW).unwrap_err().kind(), ErrorKind::Crypto);
        let ring = new
            .with_aes_gcm_decryption_key("old", b"OLDOLDOLDOLDOLDOLDOLDOLDOLDOLDOL")
            .and_then(|ring| ring.with_aes_decryption_key(&[9; 32]))
            .and_then(|ring| ring.with_aes_decryption_key(b"PYTHONPYTHONPYTH"))
            .unwrap();
        assert_eq!(ring.open(old, &ROW).unwrap(), secret());
        assert_eq!(ring.open(python, &ROW).unwrap(), secret());
        let sealed = ring.seal(&secret(), &ROW).unwrap();
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
    fn invalid_keys_and_unknown_ciphers_are_rejected() {
        for size in [0, 15, 17, 31, 33] {
            assert_eq!(Cipher::aes(&vec![0; size]).unwrap_err().kind(), ErrorKind::InvalidConfig);
            assert_eq!(Cipher::aes_gcm("k", &vec![0; size]).unwrap_err().kind(), ErrorKind::InvalidConfig);
        }
        for id in [String::new(), "x".repeat(256)] {
            assert_eq!(Cipher::aes_gcm(&id, &[0; 32]).unwrap_err().kind(), ErrorKind::InvalidConfig);
        }
        let foreign = TypedBytes::new("msgpack+rot13", Bytes::new());
        let cipher = Cipher::aes(&[0; 16]).unwrap();
        assert_eq!(cipher.open(foreign.clone(), &ROW).unwrap_err().kind(), ErrorKind::Crypto);
        assert_eq!(
            crate::backend::ValueCodec::default().open(foreign, &ROW).unwrap_err().kind(),
            ErrorKind::Crypto
        );
        assert_eq!(crate::backend::ValueCodec::default().open(secret(), &ROW).unwrap(), secret());
    }
}
