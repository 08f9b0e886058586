//! Long values as segments that the versions of a thread share, so that a growing list costs what is new.
//!
//! A backend that stores a value for every version stores a conversation of `n` messages about `n² / 2` times. With
//! this module it stores a list or a map of more than 8 KiB as *segments* of about 8 KiB, each once per thread, and for
//! every version a *manifest*, which names them. Values are split as MessagePack, without decoding them, so it does not
//! matter who encoded them.
//!
//! # For implementers
//!
//! * [`SegmentCodec::split`] turns a value into what its row holds (the value itself, or its manifest), the
//!   [`Addresses`] that are stored beside it in clear, and the [`Segment`]s.
//!   [`SplitCheckpoint`](super::SplitCheckpoint) does so for a backend that has
//!   [`SplitRules::segments`](super::SplitRules::segments).
//! * Segments are stored under thread and [`Address`], before or with the manifest, with "insert if absent".
//!   [`SegmentCodec::seal_segment`] makes the bytes to store. A backend may leave out those that it knows, for instance
//!   because the parent's `Addresses` have them, if it makes sure in the same transaction, or afterwards, that they are
//!   still there: the parent may be pruned at the same time.
//! * The addresses are in clear so that a script in the database, pruning and copies can follow them without a key.
//!   Garbage collection removes the segments that no row of the thread names.
//! * A codec can [remember](SegmentCodec::remembering) segments, so that they are hashed, sent and read once:
//!   [`Segment::is_known`] tells what need not be sent, and a reader misses only what is not remembered.
//! * [`SegmentReader`] assembles values. It says which segments are [missing](SegmentReader::missing), and checks the
//!   list, each segment, and the length. One reader serves all values that a call reads of one thread.
//! * Neither manifests nor segments contain the thread's id: a thread can be copied inside of the database. Only what
//!   is bound to its row by AES-256-GCM ([`BOUND_SUFFIX`](crate::cipher::BOUND_SUFFIX)) must be sealed again for the
//!   copy, by [`ValueCodec::reseal`] and [`SegmentCodec::reseal_segment`]. The addresses stay in both cases.
//!
//! ```
//! use checkpoint_core::TypedBytes;
//! use checkpoint_core::backend::segments::SegmentCodec;
//! use checkpoint_core::backend::{AssociatedData, ValueCodec};
//! use checkpoint_core::serde::to_msgpack;
//! use std::collections::HashMap;
//!
//! let codec = SegmentCodec::new(ValueCodec::default());
//! let row = |version| AssociatedData::Blob { thread_id: "t", checkpoint_ns: "", channel: "messages", version };
//! let mut messages: Vec<String> = (0..100).map(|i| format!("{i:0800}")).collect();
//!
//! let mut stored = HashMap::new();
//! let first = codec.split(TypedBytes::msgpack(to_msgpack(&messages)?), &row("1"))?;
//! for segment in &first.segments {
//!     stored.insert(segment.address(), codec.seal_segment(segment, "t")?);
//! }
//! messages.push("one more".into());
//! let second = codec.split(TypedBytes::msgpack(to_msgpack(&messages)?), &row("2"))?;
//! assert!(second.segments.iter().all(|segment| stored.contains_key(&segment.address())), "nothing to store");
//!
//! let mut reader = codec.reader("t");
//! for address in reader.missing(&second.addresses) {
//!     reader.add(address, stored[&address].clone());
//! }
//! let value = reader.open(second.value, &second.addresses, &row("2"))?;
//! assert_eq!(value.decode::<Vec<String>>()?, messages);
//! # Ok::<(), checkpoint_core::Error>(())
//! ```
//!
//! # Where a value is cut
//!
//! Readers accept any cuts. Writers must agree on them, or they would store the same bytes twice, so these rules are
//! part of the format. Whether a value is cut at a place depends on what is before it, so a list that grows keeps all
//! of its segments; and only on the element before it and the place of the cut before, so that after a change in the
//! middle the cuts are soon the same again.
//!
//! * A value of at most 8 KiB stays whole, and so does ciphertext of other ciphers, which never repeats.
//! * The elements of a list, and the entries of a map, follow each other in segments. A segment ends after an element
//!   if it has at least 4 KiB, and `h · 4096 < len · 2³²`, where `len` is the length of the element and `h` the upper
//!   32 bits of the XXH3 (64 bits, seed 0) of the element, with what is before it in its list or map where it has less
//!   than 64 bytes; at 16 KiB it ends in any case. On average segments have 7 KiB.
//! * An inner value of more than 8 KiB is cut in the same way, whether it is a list, a map, or the MessagePack in an
//!   extension (a message, a dataclass, the snapshot of a delta channel), down to the 16th level. From 32 KiB on it
//!   begins with a new segment.
//! * A text or bytes of more than 8 KiB are cut where a rolling hash says so (gear, 64 bytes, the table is the output
//!   of `SplitMix64` with the seed 0), and so is everything that is not MessagePack: what is deeper than 16 levels,
//!   malformed, or has another type tag. The segments have 4 to 16 KiB, with a hash whose upper 12 bits are zero; from
//!   128, 256 and 512 KiB after the beginning of the text on they are twice, four and eight times as long, and the hash
//!   has one, two or three zeros more.
//! * What is after the last cut is not a segment, but is part of the manifest. With it a manifest has about 4 KiB, plus
//!   24 bytes of addresses for 7 KiB of the value.
//! * The header of the value, whose length changes when it grows, is part of the manifest as well. So are the headers
//!   of inner values of 32 KiB or more, and what precedes them if it is at most 256 bytes since the last cut: in a
//!   state with a counter before a list, only the manifest changes with the counter.
//!
//! # Format, version 1
//!
//! `n` is a number in LEB128 (groups of seven bits, the lowest first, the highest bit of a byte says that another
//! follows). A manifest has the tag `segments`, or `segments+CIPHER`:
//!
//! | bytes | content |
//! |---|---|
//! | 1 | version of the format: 1 |
//! | 1 | 0, or 1 if the rest is one zstd frame with its length (at most 1 MiB before compression) |
//! | n, bytes | length of the value's type tag, the tag in UTF-8 |
//! | n | length of the value |
//! | n | number of addresses |
//! | | if there are addresses: |
//! | 1 | 0 for plain addresses, 1 for keyed ones |
//! | 4, 16 | only with keyed addresses: the id of the key, the salt of the thread |
//! | 24 | digest of the list of addresses |
//! | | in any case: |
//! | n | number of literals |
//! | n, n, bytes | of each: number of segments between it and the literal before it, length, bytes |
//! | the rest | the tail |
//!
//! The value is the segments in the order of their addresses, with each literal before the segment at its place, and
//! the tail at the end. A value whose own tag is `segments`, or begins with `segments+`, is always stored inside a
//! manifest. With compression, so are values without segments, if they get shorter.
//!
//! A segment has the tag `segment`, and its bytes are a part of the value; or `segment.zstd`, and its bytes are one
//! zstd frame with its length; `+CIPHER` is added to both. No segment is longer than [`MAX_SEGMENT`], before
//! compression.
//!
//! An address is the first 24 bytes of the SHA-256 of a zero byte and the segment; the digest, that of a one byte and
//! the addresses. Whoever can choose the contents of a thread must not be able to make two segments with the same
//! address. With 24 bytes that takes 2^96 hashes, with 16 it would take 2^64, which money can buy; so addresses are not
//! shorter.
//!
//! With a cipher both are HMAC-SHA-256 instead, because a plain hash would tell whoever reads the database whether a
//! guess at the contents is right. The keys, where `H(k, m)` is HMAC-SHA-256 and `cipher` is `aes` or `aes256gcm`:
//!
//! | | |
//! |---|---|
//! | `k` | `H(key of the cipher, "checkpoint-core segments 1 " ‖ cipher)` |
//! | id of the key | the first 4 bytes of `H(k, "id")` |
//! | salt | the first 16 bytes of `H(H(k, "salt"), id of the thread)` |
//! | key of the addresses | `H(H(k, "thread"), salt)` |
//!
//! Two threads have different addresses for the same segment, so the database does not show what they have in common.
//! The manifest of a copied thread has the salt of its origin, by which readers check it. The first version that is
//! written with another key, or in the copy of a thread with a cipher, shares no segment with the versions before it.
//!
//! # Hostile bytes
//!
//! Damaged manifests, lists and segments are [`Codec`](crate::ErrorKind::Codec) errors; of keyed addresses, segments
//! that were exchanged are [`Crypto`](crate::ErrorKind::Crypto) errors. Memory is allocated for what is there: a
//! manifest has as many addresses as lie beside it, the length of a value is the sum of its parts before they are
//! joined. What repeats can be long: 24 bytes of addresses stand for at most 256 KiB, and no value is longer than 1 GiB
//! (a longer one stays whole).

mod address;
mod cache;
mod compress;
mod cut;
mod manifest;
mod reader;

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;

pub use address::{Address, Addresses};
pub use reader::SegmentReader;

use address::AddressHash;
use cache::{Checked, Place, RunsOf, SegmentCache};
use cut::{Piece, Pieces, Runs};
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
    cache: Option<Arc<SegmentCache>>,
}

/// A value as it is stored: whole, or a manifest and segments.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SplitValue {
    /// What is stored in the value's row, sealed where there is a cipher: the value itself, or its manifest under the
    /// tag [`MANIFEST`].
    pub value: TypedBytes,
    /// What is stored beside it, in clear: the addresses of the segments; none if the value is whole.
    pub addresses: Addresses,
    /// The segments, each once, in the order of their first use. All may be sent, if those that the thread has stay as
    /// they are; a backend that knows which ones it has leaves them out.
    pub segments: Vec<Segment>,
}

/// A segment that may have to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    address: Address,
    bytes: Bytes,
    is_known: bool,
    place: Option<Place>,
}

impl Segment {
    /// Its key in the thread.
    pub const fn address(&self) -> Address {
        self.address
    }

    /// Whether the codec remembers it: this process has stored or read it. Another one may have deleted it meanwhile.
    pub const fn is_known(&self) -> bool {
        self.is_known
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
        Self { values, compression: None, cache: None }
    }

    /// Remembers up to so many bytes of segments, by thread. Clones remember together.
    #[must_use]
    pub fn remembering(mut self, max_bytes: usize) -> Self {
        self.cache = Some(Arc::new(SegmentCache::new(max_bytes)));
        self
    }

    /// Remembers segments that were stored.
    pub fn remember<'a>(&self, thread_id: &str, segments: impl IntoIterator<Item = &'a Segment>) {
        if let Some(cache) = &self.cache {
            let key = AddressHash::for_thread(&self.values, thread_id).name();
            let new = segments.into_iter().filter(|segment| !segment.is_known);
            let checked = |segment: &Segment| {
                let Segment { address, bytes, place, .. } = segment.clone();
                Checked { address, key, bytes, place }
            };
            cache.add(thread_id, new.map(checked));
        }
    }

    /// Forgets the segments of a thread: some of them may be stored no more.
    pub fn forget(&self, thread_id: &str) {
        if let Some(cache) = &self.cache {
            cache.forget(thread_id);
        }
    }

    /// Forgets all segments.
    pub fn forget_all(&self) {
        if let Some(cache) = &self.cache {
            cache.forget_all();
        }
    }

    /// Compresses what it stores with zstd, where that saves at least an eighth. Level 3 is zstd's default.
    ///
    /// With a cipher, the length of what is stored then shows how well it can be compressed.
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
        if typed.is_sealed() && !is_reserved || typed.data.len() as u64 > MAX_VALUE {
            return self.keep(typed, row);
        }
        let is_short = typed.data.len() <= cut::SPLIT;
        let is_compressed = self.compression.is_some() && typed.data.len() >= compress::MIN_BYTES;
        if is_short && !is_reserved && !is_compressed {
            return self.keep(typed, row);
        }
        let hash = AddressHash::for_thread(&self.values, row.thread_id());
        let cache = self.cache.as_deref();
        let runs = cache.map(|cache| RunsOf { cache, thread_id: row.thread_id(), key: hash.name() });
        let runs: &dyn Runs = runs.as_ref().map_or(&(), |runs| runs);
        let mut pieces = match &*typed.tag {
            _ if is_reserved || is_short => Pieces::default(),
            "msgpack" => cut::cut_msgpack(&typed.data, runs),
            _ => cut::cut_bytes(&typed.data),
        };
        if pieces.segments.is_empty() {
            if !is_reserved && !is_compressed {
                return self.keep(typed, row);
            }
            pieces = Pieces { tail: typed.data.clone(), ..Pieces::default() };
        }
        let mut segments = self.segments(pieces.segments, &hash, row.thread_id());
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

    /// The pieces with their addresses.
    fn segments(&self, mut pieces: Vec<Piece>, hash: &AddressHash, thread_id: &str) -> Vec<Segment> {
        let was_cut: Vec<_> = pieces.iter().map(|piece| piece.address.is_none()).collect();
        if let Some(cache) = &self.cache {
            cache.find_bytes(thread_id, hash.name(), &mut pieces);
        }
        let mut previous = None;
        let mut places = Vec::new();
        let mut segments = Vec::with_capacity(pieces.len());
        for (Piece { bytes, run, address: known }, was_cut) in pieces.into_iter().zip(was_cut) {
            let address = known.unwrap_or_else(|| hash.address(&bytes));
            let place = run.map(|run| Place { run, previous });
            // It was read from the database, so it is not known yet where it is in a value.
            places.extend(place.filter(|_| was_cut && known.is_some()).map(|place| (address, place)));
            segments.push(Segment { address, bytes, is_known: known.is_some(), place });
            previous = Some(address);
        }
        if let Some(cache) = self.cache.as_ref().filter(|_| !places.is_empty()) {
            cache.place(thread_id, places);
        }
        segments
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
