//! Addresses of segments: what they are made of, and the keys behind them.

use std::fmt;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::backend::ValueCodec;
use crate::cipher::{AddressKey, AddressKeyName};
use crate::{Error, Result};

/// The length of an address in bytes.
const LEN: usize = 24;

/// What is hashed, as the first byte of the input.
const SEGMENT: u8 = 0;
const LIST: u8 = 1;

/// The address of a segment: a hash of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address([u8; LEN]);

impl Address {
    /// The length of an address in bytes.
    pub const LEN: usize = LEN;

    /// Takes an address from its bytes.
    pub const fn new(bytes: [u8; LEN]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub const fn as_bytes(&self) -> &[u8; LEN] {
        &self.0
    }

    fn truncated(hash: [u8; 32]) -> Self {
        let mut address = [0; LEN];
        address.iter_mut().zip(hash).for_each(|(to, from)| *to = from);
        Self(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

/// The addresses of a value's segments in their order, stored in clear beside the value's manifest.
///
/// A value whose beginning repeats itself names an address several times.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses(Bytes);

impl Addresses {
    /// Takes the bytes of a row: the addresses, one after the other.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) if the length is not a multiple of [`Address::LEN`].
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self> {
        let bytes = bytes.into();
        if !bytes.len().is_multiple_of(LEN) {
            return Err(Error::codec("the list of a value's segments is damaged").with("bytes", bytes.len()));
        }
        Ok(Self(bytes))
    }

    /// The bytes to store.
    pub const fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// The number of addresses.
    pub fn len(&self) -> usize {
        self.0.len() / LEN
    }

    /// Whether there is none: the value is stored whole.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The addresses in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Address> {
        self.0.as_chunks::<LEN>().0.iter().copied().map(Address)
    }
}

impl FromIterator<Address> for Addresses {
    fn from_iter<I: IntoIterator<Item = Address>>(addresses: I) -> Self {
        Self(addresses.into_iter().flat_map(|address| address.0).collect())
    }
}

/// Computes addresses.
pub(super) enum AddressHash {
    /// SHA-256.
    Plain,
    /// HMAC-SHA-256.
    Keyed(AddressKey),
}

impl AddressHash {
    /// How addresses of new segments are computed.
    pub(super) fn for_thread(values: &ValueCodec, thread_id: &str) -> Self {
        let key = values.cipher.as_ref().and_then(|cipher| cipher.address_key(thread_id));
        key.map_or(Self::Plain, Self::Keyed)
    }

    /// How the addresses of a manifest were computed.
    pub(super) fn named(values: &ValueCodec, name: Option<AddressKeyName>) -> Result<Self> {
        let Some(name) = name else { return Ok(Self::Plain) };
        let Some(cipher) = &values.cipher else {
            return Err(Error::crypto(
                "the value was stored with a cipher; give the saver a cipher with its key",
            ));
        };
        let key = cipher.named_address_key(name).map(Self::Keyed);
        key.ok_or_else(|| Error::crypto("the key ring lacks the key of a value's segments; add it"))
    }

    pub(super) fn name(&self) -> Option<AddressKeyName> {
        match self {
            Self::Plain => None,
            Self::Keyed(key) => Some(key.name()),
        }
    }

    /// The address of a segment.
    pub(super) fn address(&self, segment: &[u8]) -> Address {
        self.hash(SEGMENT, segment)
    }

    /// What a manifest contains of its list of addresses, which is stored in clear.
    pub(super) fn digest(&self, addresses: &Addresses) -> Address {
        self.hash(LIST, &addresses.0)
    }

    fn hash(&self, what: u8, bytes: &[u8]) -> Address {
        Address::truncated(match self {
            Self::Plain => Sha256::new_with_prefix([what]).chain_update(bytes).finalize().into(),
            Self::Keyed(key) => key.mac(&[&[what], bytes]),
        })
    }
}
