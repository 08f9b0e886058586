//! Encryption of stored values. One key seals (encrypts and authenticates); every key of the ring opens.
//!
//! | tag | algorithm | bytes |
//! |---|---|---|
//! | `…+aes` | AES-EAX with 128, 192 or 256 bits, no associated data: what Python's `EncryptedSerializer` writes and reads | nonce 16 ‖ tag 16 ‖ ciphertext |
//! | `…+aes256gcm` | AES-256-GCM; the header, the plain type tag and the [`AssociatedData`](crate::backend::AssociatedData) of the row are associated data. Python cannot read it | 1 ‖ length of key id ‖ key id ‖ nonce 12 ‖ ciphertext ‖ tag 16 |
//!
//! A GCM row that is moved to another thread, channel or task cannot be opened there. Nonces are random: one GCM key
//! should seal at most 2^32 values (NIST SP 800-38D), then it should be rotated.
//!
//! # Key rotation
//!
//! A key is in use as long as one stored value needs it, also values of channels that did not change for a long time. To
//! replace a key:
//!
//! 1. Deploy every program with both keys, the old one still sealing: `old.with_aes_gcm_decryption_key("new", …)`. From
//!    now on all of them can open what the new key will seal.
//! 2. Deploy every program with both keys, the new one sealing: `new.with_aes_gcm_decryption_key("old", …)`. From now on no
//!    value is sealed with the old key.
//! 3. Seal the stored values again: [`rekey_all`](crate::SaverExt::rekey_all), or `ckpt rekey`. Agents may go on; an
//!    interrupted run is repeated.
//! 4. Check the report: no value is [`remaining`](crate::RekeyReport::remaining), and no thread failed. A dry run
//!    (`ckpt rekey --dry-run`) tells at any time which key ids are in use.
//! 5. Deploy every program with only the new key. Keep the old key for backups and other copies of the database that were
//!    made before: they are still sealed with it, and so are replaced rows until the database has removed them.
//!
//! The same steps replace AES-EAX by AES-GCM, and one AES key by another, with
//! [`with_aes_decryption_key`](Cipher::with_aes_decryption_key) for the old key. To encrypt values that are stored in
//! plain, begin with step 2: a saver with a cipher opens plain values, too. But programs without the key, and Python if the
//! new key is one of AES-GCM, cannot read a value any more that the new key has sealed.
//!
//! ```
//! # #[cfg(feature = "encryption")] {
//! use checkpoint_core::Cipher;
//! let (old_key, new_key) = ([1; 32], [2; 32]);
//! let step_1 = Cipher::aes_gcm("2025-11", &old_key)?.with_aes_gcm_decryption_key("2026-11", &new_key)?;
//! let step_2 = Cipher::aes_gcm("2026-11", &new_key)?.with_aes_gcm_decryption_key("2025-11", &old_key)?;
//! let step_5 = Cipher::aes_gcm("2026-11", &new_key)?;
//! # }
//! # Ok::<(), checkpoint_core::Error>(())
//! ```
//!
//! The cargo feature `encryption`, on by default, builds the algorithms. Without it [`Cipher`] has no constructor, and
//! reading an encrypted row fails with [`Crypto`](crate::ErrorKind::Crypto).

#[cfg(feature = "encryption")]
mod address;
#[cfg(not(feature = "encryption"))]
mod disabled;
#[cfg(feature = "encryption")]
mod eax;
#[cfg(feature = "encryption")]
mod gcm;
#[cfg(feature = "encryption")]
mod ring;

use crate::{Error, TypedBytes};

#[cfg(feature = "encryption")]
pub(crate) use address::AddressKey;
#[cfg(not(feature = "encryption"))]
pub(crate) use disabled::AddressKey;
#[cfg(not(feature = "encryption"))]
pub use disabled::Cipher;
#[cfg(feature = "encryption")]
pub use ring::Cipher;

/// The environment variable that holds the AES key, as in Python: its UTF-8 bytes are the key.
pub const AES_KEY_VARIABLE: &str = "LANGGRAPH_AES_KEY";

/// The names of the ciphers in type tags.
pub(crate) const AES: &str = "aes";
pub(crate) const AES_GCM: &str = "aes256gcm";

/// The suffix of the type tags of values that are bound to their row: moving them requires sealing them again.
pub const BOUND_SUFFIX: &str = "+aes256gcm";

// What every build knows of the format, to recognize such values.
const GCM_FORMAT: u8 = 1;
const GCM_NONCE: usize = 12;
const GCM_TAG: usize = 16;

/// Names the key behind keyed addresses of segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AddressKeyName {
    /// Which key of the ring.
    pub(crate) id: [u8; 4],
    /// Stands for the thread in which the segments were made: two threads have different addresses for the same bytes.
    pub(crate) salt: [u8; 16],
}

/// The key id in a ciphertext, or `None` if it is truncated or has another format.
pub(crate) fn gcm_key_id(sealed: &[u8]) -> Option<&[u8]> {
    match sealed {
        [GCM_FORMAT, len, rest @ ..] => rest.get(..usize::from(*len)),
        _ => None,
    }
}

/// Whether a value was encrypted by this crate's AES-256-GCM, and not by another cipher of the same name.
pub(crate) fn is_own_gcm(typed: &TypedBytes) -> bool {
    let has_id = |id: &[u8]| {
        !id.is_empty() && str::from_utf8(id).is_ok() && typed.data.len() >= 2 + id.len() + GCM_NONCE + GCM_TAG
    };
    typed.tag.ends_with(BOUND_SUFFIX) && gcm_key_id(&typed.data).is_some_and(has_id)
}

/// The error for an encrypted value where no cipher is set. It says how to get one.
pub(crate) fn no_cipher(typed: &TypedBytes) -> Error {
    let message = if cfg!(feature = "encryption") {
        "the value is encrypted; give the saver a cipher with its key"
    } else {
        "the value is encrypted, and this program was built without the cargo feature `encryption`; enable it in \
         checkpoint-core and give the saver a cipher with its key"
    };
    Error::crypto(message).with("tag", &typed.tag)
}
