//! What `rekey` takes and reports.

use std::collections::BTreeMap;
use std::fmt;

use crate::Str;
use crate::cipher::{AES, AES_GCM, gcm_key_id};

/// Options of [`BaseCheckpointSaver::rekey`](crate::BaseCheckpointSaver::rekey).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RekeyOptions {
    /// Changes nothing, only counts. A saver without a cipher can do this, too.
    pub dry_run: bool,
}

impl RekeyOptions {
    /// Sets [`dry_run`](Self::dry_run).
    #[must_use]
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }
}

/// How a stored value is sealed, as far as its bytes tell.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SealedBy {
    /// Not at all.
    Plain,
    /// By a key of [`Cipher::aes`](crate::Cipher::aes), or by Python: such values have no key id.
    Aes,
    /// By the key of [`Cipher::aes_gcm`](crate::Cipher::aes_gcm) with this key id.
    AesGcm(Str),
    /// By another cipher, which has this name.
    Other(Str),
}

impl SealedBy {
    /// How many bytes of a value [`of`](Self::of) looks at: the header with the longest key id.
    pub const HEAD: u16 = 2 + u8::MAX as u16;

    /// Tells how a value is sealed by its type tag and its first bytes.
    pub fn of(tag: &str, head: &[u8]) -> Self {
        let Some((_, cipher)) = tag.split_once('+') else { return Self::Plain };
        let key_id =
            || gcm_key_id(head).and_then(|id| std::str::from_utf8(id).ok()).filter(|id| !id.is_empty());
        match cipher {
            AES => Self::Aes,
            AES_GCM => key_id().map_or_else(|| Self::Other(cipher.into()), |id| Self::AesGcm(id.into())),
            _ => Self::Other(cipher.into()),
        }
    }

    /// The key id, which only values of AES-GCM have.
    pub fn key_id(&self) -> Option<&str> {
        match self {
            Self::AesGcm(id) => Some(id),
            _ => None,
        }
    }

    /// The name of the cipher as it is in type tags, or `None` for plain values.
    pub fn cipher(&self) -> Option<&str> {
        match self {
            Self::Plain => None,
            Self::Aes => Some(AES),
            Self::AesGcm(_) => Some(AES_GCM),
            Self::Other(name) => Some(name),
        }
    }
}

impl fmt::Display for SealedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("not encrypted"),
            Self::Aes => f.write_str("AES-EAX, no key id"),
            Self::AesGcm(id) => write!(f, "key id {id}"),
            Self::Other(name) => write!(f, "unknown cipher {name}"),
        }
    }
}

/// What a [`rekey`](crate::BaseCheckpointSaver::rekey) found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RekeyReport {
    /// How many stored values are sealed by which key, after the call.
    pub values: BTreeMap<SealedBy, u64>,
    /// How many values were sealed again.
    pub resealed: u64,
    /// How many values are not sealed by the cipher's sealing key after the call. Without a cipher: how many are sealed.
    pub remaining: u64,
}

impl RekeyReport {
    /// Adds the numbers of another report, for a sum over threads.
    pub fn add(&mut self, other: &Self) {
        for (sealed_by, count) in &other.values {
            *self.values.entry(sealed_by.clone()).or_default() += count;
        }
        self.resealed += other.resealed;
        self.remaining += other.remaining;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_tell_how_they_are_sealed() {
        for (tag, head, expected) in [
            ("msgpack", &b""[..], SealedBy::Plain),
            ("null", b"\x01\x01k", SealedBy::Plain),
            ("null+aes", b"anything", SealedBy::Aes),
            ("msgpack+aes256gcm", b"\x01\x032026", SealedBy::AesGcm("202".into())),
            ("msgpack+aes256gcm", b"\x01\x05202", SealedBy::Other("aes256gcm".into())),
            ("msgpack+aes256gcm", b"\x02\x01k", SealedBy::Other("aes256gcm".into())),
            ("msgpack+aes256gcm", b"\x01\x00", SealedBy::Other("aes256gcm".into())),
            ("msgpack+aes256gcm", b"", SealedBy::Other("aes256gcm".into())),
            ("x+rot13", b"", SealedBy::Other("rot13".into())),
        ] {
            assert_eq!(SealedBy::of(tag, head), expected, "{tag} {head:?}");
        }
    }

    #[test]
    fn reports_add_up() {
        let report = |id: &str, count| RekeyReport {
            values: [(SealedBy::AesGcm(id.into()), count)].into(),
            resealed: count,
            remaining: 1,
        };
        let mut sum = report("a", 1);
        sum.add(&report("b", 2));
        sum.add(&report("a", 3));
        assert_eq!(sum.values, [(SealedBy::AesGcm("a".into()), 4), (SealedBy::AesGcm("b".into()), 2)].into());
        assert_eq!((sum.resealed, sum.remaining), (6, 3));
    }
}
