//! Values, codecs and a database of segments for the tests.

use std::collections::HashMap;

use bytes::Bytes;
use checkpoint_core::backend::segments::{Address, Addresses, SegmentCodec, SplitValue};
use checkpoint_core::backend::{AssociatedData, ValueCodec};
use checkpoint_core::python::{HumanMessage, Message};
use checkpoint_core::serde::to_msgpack;
use checkpoint_core::{Cipher, Result, TypedBytes};

pub(crate) const THREAD: &str = "thread-1";

pub(crate) fn row(thread_id: &str) -> AssociatedData<'_> {
    AssociatedData::Blob { thread_id, checkpoint_ns: "", channel: "messages", version: "1" }
}

/// Random numbers that are the same in every process: `SplitMix64`.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// A text of this many bytes, from 2,000 words.
pub(crate) fn text(seed: u64, len: usize) -> String {
    let mut random = Random::new(seed);
    let mut text = String::new();
    while text.len() < len {
        let mut word = Random::new(random.next() % 2_000);
        for _ in 0..2 + word.next() % 8 {
            text.push(char::from(b'a' + u8::try_from(word.next() % 26).unwrap()));
        }
        text.push(' ');
    }
    text.truncate(len);
    text
}

/// A message of `LangChain` of about this many bytes.
pub(crate) fn message(seed: u64, len: usize) -> Message {
    let id = Random::new(seed).next();
    HumanMessage::new(text(seed, len.saturating_sub(176)))
        .with_id(format!("{:08x}-5b1c-4d0e-9f33-0a1b2c3d4e5f", id >> 32))
        .into()
}

/// Messages of 1 KiB.
pub(crate) fn messages(seeds: std::ops::Range<u64>) -> Vec<Message> {
    seeds.map(|seed| message(seed, 1_024)).collect()
}

pub(crate) fn typed<T: serde::Serialize + ?Sized>(value: &T) -> TypedBytes {
    TypedBytes::msgpack(to_msgpack(value).unwrap())
}

pub(crate) fn codec(cipher: Option<Cipher>) -> SegmentCodec {
    SegmentCodec::new(ValueCodec { cipher, ..ValueCodec::default() })
}

pub(crate) fn gcm() -> Cipher {
    Cipher::aes_gcm("k1", &[7; 32]).unwrap()
}

pub(crate) fn eax() -> Cipher {
    Cipher::aes(&[9; 16]).unwrap()
}

/// Every kind of codec: with each cipher and without, with compression and without.
pub(crate) fn codecs() -> Vec<SegmentCodec> {
    let plain = [codec(None), codec(Some(gcm())), codec(Some(eax()))];
    #[cfg(feature = "zstd")]
    let plain = plain.into_iter().flat_map(|codec| [codec.clone(), codec.with_zstd(3)]);
    plain.into_iter().collect()
}

/// The segments of a thread, as a backend keeps them.
#[derive(Debug, Default, Clone)]
pub(crate) struct Database {
    pub(crate) segments: HashMap<Address, TypedBytes>,
    /// The bytes of all segments that were stored.
    pub(crate) bytes: usize,
}

impl Database {
    /// Stores the segments of a value that are not there.
    pub(crate) fn put(&mut self, codec: &SegmentCodec, split: &SplitValue) {
        for segment in &split.segments {
            if !self.segments.contains_key(&segment.address()) {
                let sealed = codec.seal_segment(segment, THREAD).unwrap();
                self.bytes += sealed.data.len();
                self.segments.insert(segment.address(), sealed);
            }
        }
    }

    pub(crate) fn get(
        &self,
        codec: &SegmentCodec,
        value: &TypedBytes,
        addresses: &Addresses,
    ) -> Result<TypedBytes> {
        let mut reader = codec.reader(THREAD);
        for address in reader.missing(addresses) {
            if let Some(segment) = self.segments.get(&address) {
                reader.add(address, segment.clone());
            }
        }
        reader.open(value.clone(), addresses, &row(THREAD))
    }

    /// Splits and stores a value, reads it, and returns it as it is stored.
    pub(crate) fn round_trip(&mut self, codec: &SegmentCodec, typed: &TypedBytes) -> SplitValue {
        let split = codec.split(typed.clone(), &row(THREAD)).unwrap();
        self.put(codec, &split);
        assert_eq!(&self.get(codec, &split.value, &split.addresses).unwrap(), typed);
        split
    }
}

/// The bytes that are stored for a version, without its segments.
pub(crate) fn manifest_bytes(split: &SplitValue) -> usize {
    split.value.data.len() + split.addresses.as_bytes().len()
}

pub(crate) fn split(value: &TypedBytes) -> SplitValue {
    codec(None).split(value.clone(), &row(THREAD)).unwrap()
}

/// A list whose MessagePack declares more elements than it has.
pub(crate) fn truncated_list() -> Bytes {
    let mut bytes = to_msgpack(&messages(0..40)).unwrap();
    bytes.truncate(30_000);
    bytes.into()
}
