//! Long values as segments that versions share.

mod address;
mod compress;
mod cut;
mod manifest;
mod reader;

use std::collections::HashSet;

use bytes::Bytes;

pub use address::{Address, Addresses};
pub use reader::SegmentReader;

use address::AddressHash;
use cut::Pieces;
use manifest::{Literals, Manifest};

use super::{AssociatedData, ValueCodec};
use crate::{Result, TypedBytes};

/// The type tag of manifests.
pub const MANIFEST: &str = "segments";

/// The type tag of segments.
const SEGMENT: &str = "segment";

/// The type tag of compressed segments.
const SEGMENT_ZSTD: &str = "segment.zstd";

/// The most bytes of a segment.
pub const MAX_SEGMENT: usize = 256 * 1024;

/// Longer values stay whole.
const MAX_VALUE: u64 = 1024 * 1024 * 1024;

/// Splits values into segments, and assembles them.
#[derive(Debug, Clone, Default)]
pub struct SegmentCodec {
    values: ValueCodec,
    compression: Option<i32>,
}

/// A value as it is stored: whole, or a manifest and segments.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SplitValue {
    /// What is stored in the value's row, sealed where there is a cipher: the value itself, or its manifest under the tag
    /// [`MANIFEST`].
    pub value: TypedBytes,
    /// What is stored beside it, in clear: the addresses of the segments; none if the value is whole.
    pub addresses: Addresses,
    /// The segments, each once, in the order of their first use. All may be sent, if those that the thread has are kept as they are; a backend
    /// that knows which ones it has leaves them out.
    pub segments: Vec<Segment>,
}

/// A segment that may have to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    address: Address,
    bytes: Bytes,
}

impl Segment {
    /// Its key in the thread.
    pub const fn address(&self) -> Address {
        self.address
    }

    /// Its length, before compression and encryption.
    #[expect(clippy::len_without_is_empty, reason = "a segment is never empty")]
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }
}

impl SegmentCodec {
    /// Uses this cipher, if there is one.
    pub const fn new(values: ValueCodec) -> Self {
        Self { values, compression: None }
    }

    /// Compresses what it stores with zstd, where that saves at least an eighth. Level 3 is zstd's default.
    #[cfg(feature = "zstd")]
    #[must_use]
    pub const fn with_zstd(mut self, level: i32) -> Self {
        self.compression = Some(level);
        self
    }

    /// How values are encrypted and decoded.
    pub const fn values(&self) -> &ValueCodec {
        &self.values
    }

    /// Splits a value for its row, if it is long enough.
    ///
    /// # Errors
    /// Those of [`ValueCodec::seal`].
    pub fn split(&self, typed: TypedBytes, row: &AssociatedData<'_>) -> Result<SplitValue> {
        // A value with our tag would be taken for a manifest: it is stored inside one.
        let is_reserved =
            typed.tag.strip_prefix(MANIFEST).is_some_and(|rest| rest.is_empty() || rest.starts_with('+'));
        let mut pieces = match &*typed.tag {
            _ if is_reserved => Pieces::default(),
            _ if typed.is_sealed() || typed.data.len() as u64 > MAX_VALUE => return self.keep(typed, row),
            _ if typed.data.len() <= cut::SPLIT => Pieces::default(),
            "msgpack" => cut::cut_msgpack(&typed.data),
            _ => cut::cut_bytes(&typed.data),
        };
        if pieces.segments.is_empty() {
            if !is_reserved && (self.compression.is_none() || typed.data.len() < compress::MIN_BYTES) {
                return self.keep(typed, row);
            }
            pieces = Pieces { tail: typed.data.clone(), ..Pieces::default() };
        }
        let hash = AddressHash::for_thread(&self.values, row.thread_id());
        let segment = |bytes: Bytes| Segment { address: hash.address(&bytes), bytes };
        let mut segments: Vec<_> = pieces.segments.into_iter().map(segment).collect();
        let addresses: Addresses = segments.iter().map(Segment::address).collect();
        let manifest = Manifest {
            tag: typed.tag.to_string(),
            len: typed.data.len() as u64,
            list: (!addresses.is_empty()).then(|| (hash.name(), hash.digest(&addresses))),
            literals: Literals::new(&pieces.literals),
            tail: pieces.tail,
        };
        let manifest = manifest.encode(addresses.len(), self.compression)?;
        if addresses.is_empty() && !is_reserved && manifest.len() >= typed.data.len() {
            return self.keep(typed, row);
        }
        let mut seen = HashSet::with_capacity(segments.len());
        segments.retain(|segment| seen.insert(segment.address));
        let value = self.values.seal(TypedBytes::new(MANIFEST, manifest), row)?;
        Ok(SplitValue { value, addresses, segments })
    }

    fn keep(&self, typed: TypedBytes, row: &AssociatedData<'_>) -> Result<SplitValue> {
        let value = self.values.seal(typed, row)?;
        Ok(SplitValue { value, addresses: Addresses::default(), segments: Vec::new() })
    }

    /// Compresses and encrypts a segment for a thread.
    ///
    /// # Errors
    /// Those of [`ValueCodec::seal`], and [`Codec`](crate::ErrorKind::Codec) if it cannot be compressed.
    pub fn seal_segment(&self, segment: &Segment, thread_id: &str) -> Result<TypedBytes> {
        let row = AssociatedData::Segment { thread_id, address: segment.address };
        if let Some(level) = self.compression
            && let Some(compressed) = compress::compress(&segment.bytes, level)?
        {
            return self.values.seal(TypedBytes::new(SEGMENT_ZSTD, compressed), &row);
        }
        self.values.seal(TypedBytes::new(SEGMENT, segment.bytes.clone()), &row)
    }

    /// Encrypts a stored segment for another thread. Its address stays.
    ///
    /// # Errors
    /// Those of [`ValueCodec::reseal`].
    pub fn reseal_segment(
        &self,
        address: Address,
        segment: TypedBytes,
        from_thread: &str,
        to_thread: &str,
    ) -> Result<TypedBytes> {
        let [from, to] =
            [from_thread, to_thread].map(|thread_id| AssociatedData::Segment { thread_id, address });
        self.values.reseal(segment, &from, &to)
    }

    /// Starts reading values of a thread.
    pub fn reader(&self, thread_id: &str) -> SegmentReader<'_> {
        SegmentReader::new(self, thread_id)
    }
}
