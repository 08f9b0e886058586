//! Assembles values.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;

use super::address::{Address, AddressHash, Addresses};
use super::cache::{Checked, SegmentCache};
use super::compress::Decompressor;
use super::manifest::{Manifest, damaged};
use super::{MANIFEST, MAX_SEGMENT, MAX_VALUE, SEGMENT, SEGMENT_ZSTD, SegmentCodec};
use crate::backend::{AssociatedData, ValueCodec};
use crate::cipher::{AddressKeyName, no_cipher};
use crate::{ChannelValue, Error, Result, Str, TypedBytes};

/// Assembles the values of one thread from their manifests and segments.
///
/// A backend makes one for a call, [adds](Self::add) the segments that it loaded, and [opens](Self::open) the values.
/// Each segment is decrypted, decompressed and checked once, however many values share it.
#[derive(Debug)]
pub struct SegmentReader<'a> {
    values: &'a ValueCodec,
    /// Segments cannot be returned sealed.
    segment_values: ValueCodec,
    thread_id: Str,
    stored: HashMap<Address, TypedBytes>,
    checked: HashMap<Address, (Option<AddressKeyName>, Bytes)>,
    decompressor: Decompressor,
    cache: Option<&'a SegmentCache>,
}

impl<'a> SegmentReader<'a> {
    pub(super) fn new(codec: &'a SegmentCodec, thread_id: &str) -> Self {
        Self {
            values: &codec.values,
            segment_values: codec.values.requiring_decryption(),
            thread_id: thread_id.into(),
            stored: HashMap::new(),
            checked: HashMap::new(),
            decompressor: Decompressor::default(),
            cache: codec.cache.as_deref(),
        }
    }

    /// Adds a stored segment.
    pub fn add(&mut self, address: Address, segment: TypedBytes) {
        if !self.checked.contains_key(&address) {
            self.stored.insert(address, segment);
        }
    }

    /// The segments that are still to be added before a value can be opened, each once. Those that the codec remembers need
    /// not be added.
    pub fn missing(&mut self, addresses: &Addresses) -> Vec<Address> {
        let mut seen = HashSet::new();
        let is_missing = |address: &Address| {
            !self.checked.contains_key(address) && !self.stored.contains_key(address) && seen.insert(*address)
        };
        let mut missing: Vec<_> = addresses.iter().filter(is_missing).collect();
        if let Some(cache) = self.cache.filter(|_| !missing.is_empty()) {
            for Checked { address, key, bytes, .. } in cache.find(&self.thread_id, &missing) {
                self.checked.insert(address, (key, bytes));
            }
            missing.retain(|address| !self.checked.contains_key(address));
        }
        missing
    }

    /// Opens the value of a row, and assembles it if it was split.
    ///
    /// # Errors
    /// As [`ValueCodec::open`]; [`Codec`](crate::ErrorKind::Codec) if a segment is missing, and for damaged bytes,
    /// another list of addresses than the value was stored with, and a newer format;
    /// [`Crypto`](crate::ErrorKind::Crypto) if a segment cannot be decrypted or was exchanged. With `return_sealed` a
    /// manifest that cannot be opened is returned sealed.
    pub fn open(
        &mut self,
        value: TypedBytes,
        addresses: &Addresses,
        row: &AssociatedData<'_>,
    ) -> Result<TypedBytes> {
        let value = self.values.open(value, row)?;
        if value.tag == MANIFEST {
            let manifest = Manifest::decode(&value.data, addresses, &mut self.decompressor)?;
            return self.assemble(&manifest, addresses);
        }
        if value.is_sealed() {
            // Opaque values may be ciphertext of others, but this is ours, and worth nothing without its segments.
            let is_manifest = value.tag.split_once('+').is_some_and(|(tag, _)| tag == MANIFEST);
            return if is_manifest && !self.values.return_sealed {
                Err(no_cipher(&value))
            } else {
                Ok(value)
            };
        }
        if !addresses.is_empty() {
            return Err(Error::codec("a value that was not split has a list of segments"));
        }
        Ok(value)
    }

    /// Opens the value of a row and converts it to the caller's.
    ///
    /// # Errors
    /// Those of [`open`](Self::open) and [`ChannelValue::from_typed`].
    pub fn open_value(
        &mut self,
        value: TypedBytes,
        addresses: &Addresses,
        row: &AssociatedData<'_>,
    ) -> Result<ChannelValue> {
        let opened = self.open(value, addresses, row)?;
        self.values.to_channel_value(opened)
    }

    fn assemble(&mut self, manifest: &Manifest, addresses: &Addresses) -> Result<TypedBytes> {
        let mut segments = Vec::with_capacity(addresses.len());
        if let Some((key, digest)) = manifest.list {
            let hash = AddressHash::named(&self.segment_values, key)?;
            if hash.digest(addresses) != digest {
                return Err(exchanged(
                    key,
                    "the list of a value's segments is not the one it was stored with",
                ));
            }
            let mut new = Vec::new();
            for address in addresses.iter() {
                let is_new = self.stored.contains_key(&address);
                let bytes = self.segment(address, &hash)?;
                if is_new {
                    new.push(Checked { address, key, bytes: bytes.clone(), place: None });
                }
                segments.push(bytes);
            }
            if let Some(cache) = self.cache {
                cache.add(&self.thread_id, new);
            }
        }
        Ok(TypedBytes::new(manifest.tag.clone(), join(manifest, &segments)?))
    }

    /// The bytes of a segment, checked against its address.
    fn segment(&mut self, address: Address, hash: &AddressHash) -> Result<Bytes> {
        if let Some((key, bytes)) = self.checked.get(&address)
            && *key == hash.name()
        {
            return Ok(bytes.clone());
        }
        let bytes = match self.checked.get(&address) {
            Some((_, bytes)) => bytes.clone(),
            None => self.open_segment(address)?,
        };
        if hash.address(&bytes) != address {
            let error = exchanged(hash.name(), "a segment has other bytes than it was stored with");
            return Err(error.with("segment", address));
        }
        self.stored.remove(&address);
        self.checked.insert(address, (hash.name(), bytes.clone()));
        Ok(bytes)
    }

    fn open_segment(&mut self, address: Address) -> Result<Bytes> {
        let stored = self.stored.get(&address).ok_or_else(|| {
            Error::codec("a segment of the value is missing; read it again").with("segment", address)
        })?;
        let row = AssociatedData::Segment { thread_id: &self.thread_id, address };
        let opened = self.segment_values.open(stored.clone(), &row)?;
        let bytes = match &*opened.tag {
            SEGMENT => opened.data,
            SEGMENT_ZSTD => self.decompressor.decompress(&opened.data, MAX_SEGMENT)?.into(),
            tag => return Err(Error::codec("a segment has an unknown type tag").with("tag", tag)),
        };
        if bytes.len() > MAX_SEGMENT {
            return Err(Error::codec("a segment is too long").with("bytes", bytes.len()));
        }
        Ok(bytes)
    }
}

/// The error for bytes that are not those of the manifest: nobody makes bytes for a keyed address without its key.
fn exchanged(key: Option<AddressKeyName>, message: &'static str) -> Error {
    if key.is_some() { Error::crypto(message) } else { Error::codec(message) }
}

/// Concatenates segments, literals and tail. Memory is allocated after the length is checked.
fn join(manifest: &Manifest, segments: &[Bytes]) -> Result<Bytes> {
    let mut len = manifest.tail.len() as u64;
    len += segments.iter().map(|segment| segment.len() as u64).sum::<u64>();
    for literal in manifest.literals.iter() {
        len += literal?.1.len() as u64;
    }
    if len != manifest.len || len > MAX_VALUE {
        return Err(Error::codec("a value has another length than its manifest says").with("bytes", len));
    }
    if segments.is_empty() && manifest.literals.is_empty() {
        return Ok(manifest.tail.clone());
    }
    let mut out = Vec::new();
    out.try_reserve_exact(usize::try_from(len).map_err(|_| damaged())?).map_err(|source| {
        Error::codec("a value is too long for this machine's memory").with_source(source)
    })?;
    let mut segments = segments.iter();
    for literal in manifest.literals.iter() {
        let (before, bytes) = literal?;
        for _ in 0..before {
            out.extend_from_slice(segments.next().ok_or_else(damaged)?);
        }
        out.extend_from_slice(&bytes);
    }
    segments.for_each(|segment| out.extend_from_slice(segment));
    out.extend_from_slice(&manifest.tail);
    Ok(out.into())
}
