//! The manifest: what a value is assembled from.

use bytes::Bytes;

use super::address::{Address, Addresses};
use super::compress::{Decompressor, compress};
use super::cut::Literal;
use crate::cipher::AddressKeyName;
use crate::{Error, Result};

/// The version of the format.
const VERSION: u8 = 1;

/// The flag of compressed contents.
const ZSTD: u8 = 1;

/// The most bytes of contents that are compressed.
const MAX_COMPRESSED: usize = 1024 * 1024;

/// The key of the addresses, as one byte.
const PLAIN: u8 = 0;
const KEYED: u8 = 1;

/// The contents of a manifest.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    /// The value's type tag.
    pub(super) tag: String,
    /// The value's length in bytes.
    pub(super) len: u64,
    /// The key of the addresses, and their digest, if there are any.
    pub(super) list: Option<(Option<AddressKeyName>, Address)>,
    pub(super) literals: Literals,
    pub(super) tail: Bytes,
}

/// Literals as they are stored: each is the number of segments between it and the one before it, its length and its
/// bytes.
///
/// They stay encoded, because a few compressed bytes can stand for many of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Literals {
    count: u64,
    encoded: Bytes,
}

impl Literals {
    pub(super) fn new(literals: &[Literal]) -> Self {
        let mut encoded = Vec::new();
        let mut before = 0;
        for literal in literals {
            put(&mut encoded, (literal.segments - before) as u64);
            put_bytes(&mut encoded, &literal.bytes);
            before = literal.segments;
        }
        Self { count: literals.len() as u64, encoded: encoded.into() }
    }

    /// Takes the literals that a manifest begins with, and the number of their bytes.
    fn take(fields: &mut Fields) -> Result<(Self, u64)> {
        let count = fields.number()?;
        let mut rest = Fields(fields.0.clone());
        let mut len = 0_u64;
        for _ in 0..count {
            rest.number()?;
            len += rest.bytes()?.len() as u64;
        }
        let encoded = fields.0.split_to(fields.0.len() - rest.0.len());
        Ok((Self { count, encoded }, len))
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many segments come between each and the one before it, and its bytes.
    pub(super) fn iter(&self) -> impl Iterator<Item = Result<(u64, Bytes)>> {
        let mut fields = Fields(self.encoded.clone());
        (0..self.count).map(move |_| Ok((fields.number()?, fields.bytes()?)))
    }
}

impl Manifest {
    /// Encodes the manifest; `level` is that of the compression.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) if it cannot be compressed.
    pub(super) fn encode(&self, segments: usize, level: Option<i32>) -> Result<Bytes> {
        let mut out = vec![VERSION, 0];
        put_bytes(&mut out, self.tag.as_bytes());
        put(&mut out, self.len);
        put(&mut out, segments as u64);
        if let Some((key, digest)) = &self.list {
            match key {
                None => out.push(PLAIN),
                Some(AddressKeyName { id, salt }) => {
                    out.push(KEYED);
                    out.extend_from_slice(id);
                    out.extend_from_slice(salt);
                }
            }
            out.extend_from_slice(digest.as_bytes());
        }
        put(&mut out, self.literals.count);
        out.extend_from_slice(&self.literals.encoded);
        out.extend_from_slice(&self.tail);
        if let (Some(level), Some((_, contents))) = (level, out.split_at_checked(2))
            && contents.len() <= MAX_COMPRESSED
            && let Some(compressed) = compress(contents, level)?
        {
            return Ok([&[VERSION, ZSTD], &*compressed].concat().into());
        }
        Ok(out.into())
    }

    /// Decodes a manifest that lies beside this list of addresses. Only their digest is not checked.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) for an unknown version and for damaged bytes.
    pub(super) fn decode(
        data: &Bytes,
        addresses: &Addresses,
        decompressor: &mut Decompressor,
    ) -> Result<Self> {
        let contents = match **data {
            [VERSION, 0, ..] => data.slice(2..),
            [VERSION, ZSTD, ref compressed @ ..] => {
                decompressor.decompress(compressed, MAX_COMPRESSED)?.into()
            }
            [VERSION, ..] | [] => return Err(damaged()),
            [version, ..] => {
                return Err(Error::codec(
                    "the value was stored in a newer format; update this program to read it",
                )
                .with("format", version));
            }
        };
        let mut fields = Fields(contents);
        let tag = fields.bytes()?;
        let tag = str::from_utf8(&tag).map_err(|_| damaged())?.to_owned();
        let len = fields.number()?;
        if fields.number()? != addresses.len() as u64 {
            return Err(Error::codec(
                "the list of a value's segments has another length than its manifest says",
            )
            .with("segments", addresses.len()));
        }
        let list = if addresses.is_empty() {
            None
        } else {
            let key = match fields.array()? {
                [PLAIN] => None,
                [KEYED] => Some(AddressKeyName { id: fields.array()?, salt: fields.array()? }),
                _ => return Err(damaged()),
            };
            Some((key, Address::new(fields.array()?)))
        };
        let (literals, inline) = Literals::take(&mut fields)?;
        if inline.checked_add(fields.0.len() as u64).is_none_or(|inline| inline > len) {
            return Err(damaged());
        }
        Ok(Self { tag, len, list, literals, tail: fields.0 })
    }
}

pub(super) fn damaged() -> Error {
    Error::codec("the manifest of a value is damaged")
}

/// Appends a number in groups of seven bits, the lowest first; the highest bit says that another follows (LEB128).
fn put(out: &mut Vec<u8>, mut number: u64) {
    loop {
        let [low, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            return out.push(low & 0x7f);
        }
        out.push(low | 0x80);
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// What is still to be read.
struct Fields(Bytes);

impl Fields {
    fn number(&mut self) -> Result<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            let group = u64::from(byte & 0x7f);
            // The tenth byte has one bit left.
            if group << shift >> shift != group {
                return Err(damaged());
            }
            number |= group << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(damaged())
    }

    fn bytes(&mut self) -> Result<Bytes> {
        let len =
            usize::try_from(self.number()?).ok().filter(|len| *len <= self.0.len()).ok_or_else(damaged)?;
        Ok(self.0.split_to(len))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let array = *self.0.first_chunk::<N>().ok_or_else(damaged)?;
        self.0 = self.0.slice(N..);
        Ok(array)
    }
}
