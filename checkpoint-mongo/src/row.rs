//! Encodes and decodes what documents hold. Binary fields:
//!
//! | field | bytes |
//! |---|---|
//! | value | 1 ‖ length of the type tag (1 byte) ‖ type tag ‖ data |
//! | write | 1 ‖ length of the header (4 bytes) ‖ header ‖ value. The header is a value: length of the channel (4 bytes) ‖ channel ‖ path |
//! | checkpoint | a value: number of names (4 bytes), of each: 1 for the snapshot of a delta channel, otherwise 0 ‖ length (4 bytes) ‖ channel; then the checkpoint without large values, as MessagePack |
//! | metadata | a value: the metadata as JSON |
//!
//! The names in the checkpoint are the channels of the values that the document names, in the same order; those of
//! snapshots that have no value of their own follow.

use bytes::Bytes;
use checkpoint_core::backend::segments::{Addresses, MANIFEST, SegmentCodec, SegmentReader};
use checkpoint_core::backend::{
    AssociatedData, CheckpointKey, Inline, SplitCheckpoint, SplitRules, ValueCodec,
};
use checkpoint_core::delta::{ChannelSummary, CheckpointSummary};
use checkpoint_core::serde::document;
use checkpoint_core::{
    ChannelValue, ChannelVersion, Checkpoint, CheckpointMetadata, Error, InlineScalars, PendingWrite, Result,
    Str, TypedBytes,
};

use crate::keys;
use crate::load::{Row, WriteName};

/// The version of the format of every record.
const FORMAT: u8 = 1;

/// The type tags of records, which `+CIPHER` follows where they are sealed.
const CHECKPOINT: &str = "checkpoint";
const METADATA: &str = "json";
const HEADER: &str = "write";

fn damaged(what: &'static str) -> Error {
    Error::codec("a record of the thread is damaged, or of a newer format").with("record", what)
}

/// Takes bytes that their length precedes.
fn take<'a>(bytes: &mut &'a [u8], what: &'static str) -> Result<&'a [u8]> {
    let found = bytes.split_first_chunk().and_then(|(len, rest)| {
        let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
        rest.split_at_checked(len)
    });
    let (found, rest) = found.ok_or_else(|| damaged(what))?;
    *bytes = rest;
    Ok(found)
}

fn take_text<'a>(bytes: &mut &'a [u8], what: &'static str) -> Result<&'a str> {
    std::str::from_utf8(take(bytes, what)?).map_err(|_| damaged(what))
}

/// Appends bytes with their length.
fn put(out: &mut Vec<u8>, bytes: &[u8]) -> Result<()> {
    let len = u32::try_from(bytes.len())
        .map_err(|_| Error::invalid_argument("a name is too long").with("bytes", bytes.len()))?;
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(bytes);
    Ok(())
}

/// Encodes a value.
pub(crate) fn value(typed: &TypedBytes) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(2 + typed.tag.len() + typed.data.len());
    append_value(&mut out, typed)?;
    Ok(out)
}

fn append_value(out: &mut Vec<u8>, typed: &TypedBytes) -> Result<()> {
    let len = u8::try_from(typed.tag.len()).map_err(|_| {
        Error::invalid_argument("a type tag is too long; it has at most 255 bytes").with("tag", &typed.tag)
    })?;
    out.extend_from_slice(&[FORMAT, len]);
    out.extend_from_slice(typed.tag.as_bytes());
    out.extend_from_slice(&typed.data);
    Ok(())
}

/// Decodes a value; its data is a slice of the bytes.
pub(crate) fn read_value(bytes: &Bytes) -> Result<TypedBytes> {
    let [FORMAT, len, ..] = **bytes else { return Err(damaged("value")) };
    let end = 2 + usize::from(len);
    let tag = bytes.get(2..end).and_then(|tag| std::str::from_utf8(tag).ok());
    let tag = tag.ok_or_else(|| damaged("value"))?.to_owned();
    Ok(TypedBytes::new(tag, bytes.slice(end..)))
}

/// Encodes a write, whose value is sealed where there is a cipher.
pub(crate) fn write(
    codec: &ValueCodec,
    key: CheckpointKey<'_>,
    task_id: &str,
    task_path: &str,
    row: &checkpoint_core::backend::WriteRow,
) -> Result<Vec<u8>> {
    let header = seal_header(codec, key, (task_id, row.idx), &row.channel, task_path)?;
    let mut out = Vec::with_capacity(64 + header.len() + row.value.data.len());
    out.push(FORMAT);
    put(&mut out, &header)?;
    append_value(&mut out, &row.value)?;
    Ok(out)
}

fn seal_header(
    codec: &ValueCodec,
    key: CheckpointKey<'_>,
    (task_id, idx): (&str, i32),
    channel: &str,
    task_path: &str,
) -> Result<Vec<u8>> {
    let mut header = Vec::with_capacity(4 + channel.len() + task_path.len());
    put(&mut header, channel.as_bytes())?;
    header.extend_from_slice(task_path.as_bytes());
    value(&codec.seal(TypedBytes::new(HEADER, header), &key.write_header_data(task_id, idx))?)
}

/// The parts of a write: its header and its value, as they are stored.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StoredWrite {
    pub(crate) header: TypedBytes,
    pub(crate) value: TypedBytes,
}

impl StoredWrite {
    pub(crate) fn read(bytes: &Bytes) -> Result<Self> {
        let Some((&FORMAT, mut rest)) = bytes.split_first() else { return Err(damaged("write")) };
        let header = take(&mut rest, "write")?;
        let header = read_value(&bytes.slice_ref(header))?;
        Ok(Self { header, value: read_value(&bytes.slice_ref(rest))? })
    }

    /// Channel and path.
    pub(crate) fn open_header(
        &self,
        codec: &ValueCodec,
        key: CheckpointKey<'_>,
        name: &WriteName,
    ) -> Result<(Str, Str)> {
        let data = key.write_header_data(&name.task_id, name.idx);
        let header = codec.open(self.header.clone(), &data)?;
        if header.tag != HEADER {
            // It could not be opened, and the saver returns such values sealed.
            return Ok((Str::default(), Str::default()));
        }
        let mut rest = &*header.data;
        let channel = take_text(&mut rest, "write")?.into();
        Ok((channel, std::str::from_utf8(rest).map_err(|_| damaged("write"))?.into()))
    }

    /// Decrypts for one row and encrypts for another.
    pub(crate) fn reseal(
        &self,
        codec: &ValueCodec,
        from: CheckpointKey<'_>,
        to: CheckpointKey<'_>,
        name: &WriteName,
    ) -> Result<Vec<u8>> {
        let codec = codec.requiring_decryption();
        let (channel, path) = self.open_header(&codec, from, name)?;
        let (task_id, idx) = (&*name.task_id, name.idx);
        let header = seal_header(&codec, to, (task_id, idx), &channel, &path)?;
        let [from, to] = [from, to].map(|key| key.write_data(task_id, idx, &channel));
        let resealed = codec.reseal(self.value.clone(), &from, &to)?;
        let mut out = vec![FORMAT];
        put(&mut out, &header)?;
        append_value(&mut out, &resealed)?;
        Ok(out)
    }
}

/// Decodes a write.
pub(crate) fn read_write(
    codec: &ValueCodec,
    thread_id: &str,
    name: &WriteName,
    bytes: &Bytes,
) -> Result<PendingWrite> {
    let key = CheckpointKey::new(thread_id, &name.checkpoint_ns, &name.checkpoint_id);
    let read = || {
        let stored = StoredWrite::read(bytes)?;
        let (channel, path) = stored.open_header(codec, key, name)?;
        let value = codec.open_value(stored.value, &key.write_data(&name.task_id, name.idx, &channel))?;
        Ok(PendingWrite::new(name.task_id.clone(), channel, value).with_position(path, name.idx))
    };
    read().map_err(key.context())
}

/// What is inline, how long values are split, and how versions are named.
#[derive(Debug, Clone)]
pub(crate) struct Rules<'a>(pub(crate) &'a SegmentCodec);

impl SplitRules for Rules<'_> {
    fn is_inline(&self, value: &ChannelValue) -> bool {
        InlineScalars::Short.contains(value)
    }

    fn version_key(&self, version: &ChannelVersion) -> Result<String> {
        Ok(keys::version(version))
    }

    fn check_name(&self, _: &'static str, _: &str) -> Result<()> {
        Ok(())
    }

    fn carries_scalars(&self) -> bool {
        true
    }

    fn segments(&self) -> Option<&SegmentCodec> {
        Some(self.0)
    }
}

/// The name of a value.
pub(crate) type Name = [u8; 24];

/// A value that a checkpoint refers to: its channel, and its part of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) channel: Str,
    pub(crate) is_snapshot: bool,
    /// `None` for a snapshot's mark without a value.
    pub(crate) name: Option<Name>,
}

/// A checkpoint as it is stored.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) metadata: Bytes,
    pub(crate) checkpoint: Bytes,
}

impl Record {
    /// Encodes a checkpoint with its metadata, sealed where there is a cipher.
    pub(crate) fn new(
        codec: &ValueCodec,
        key: CheckpointKey<'_>,
        checkpoint: &Checkpoint,
        split: &SplitCheckpoint<'_>,
        named: &[Named],
        metadata: &CheckpointMetadata,
    ) -> Result<Self> {
        let mut slim = Checkpoint::undecoded();
        for (channel, inline) in &split.inline {
            if let Inline::Value(value) = inline {
                slim.channel_values.insert((*channel).into(), value.clone().into_owned());
            }
        }
        (slim.v, slim.id, slim.ts) = (checkpoint.v, checkpoint.id.clone(), checkpoint.ts.clone());
        slim.channel_versions.clone_from(&checkpoint.channel_versions);
        slim.versions_seen.clone_from(&checkpoint.versions_seen);
        slim.updated_channels.clone_from(&checkpoint.updated_channels);
        slim.extra.clone_from(&checkpoint.extra);
        let mut document = u32::try_from(named.len()).unwrap_or(u32::MAX).to_be_bytes().to_vec();
        for Named { channel, is_snapshot, .. } in named {
            document.push(u8::from(*is_snapshot));
            put(&mut document, channel.as_bytes())?;
        }
        document.extend_from_slice(&document::encode_checkpoint(&slim)?);
        let sealed = codec.seal(TypedBytes::new(CHECKPOINT, document), &key.checkpoint_data())?;
        let metadata = TypedBytes::new(METADATA, metadata.to_json()?.into_bytes());
        let metadata = value(&codec.seal(metadata, &key.metadata_data())?)?;
        Ok(Self { metadata: metadata.into(), checkpoint: value(&sealed)?.into() })
    }
}

/// Decrypts metadata.
pub(crate) fn open_metadata(
    codec: &ValueCodec,
    key: CheckpointKey<'_>,
    metadata: &Bytes,
) -> Result<CheckpointMetadata> {
    let opened = codec.open(read_value(metadata)?, &key.metadata_data())?;
    match &*opened.tag {
        METADATA => CheckpointMetadata::from_json(&opened.data),
        // It could not be opened, and the saver returns such values sealed.
        _ => Ok(CheckpointMetadata::default()),
    }
}

/// Decrypts metadata for one row and encrypts it for another.
pub(crate) fn reseal_metadata(
    codec: &ValueCodec,
    from: CheckpointKey<'_>,
    to: CheckpointKey<'_>,
    metadata: &Bytes,
) -> Result<Bytes> {
    let typed = read_value(metadata)?;
    Ok(value(&codec.reseal(typed, &from.metadata_data(), &to.metadata_data())?)?.into())
}

/// A decoded checkpoint record.
#[derive(Debug)]
pub(crate) struct Document {
    /// The checkpoint with its inline values.
    pub(crate) checkpoint: Checkpoint,
    /// The channels whose values are stored separately, and the marks of snapshots.
    pub(crate) named: Vec<Named>,
}

impl Document {
    /// Decodes a checkpoint. `None` if it could not be opened, and the saver returns such checkpoints sealed.
    pub(crate) fn read(
        codec: &ValueCodec,
        key: CheckpointKey<'_>,
        names: &[Name],
        bytes: &Bytes,
    ) -> Result<Option<Self>> {
        let opened = codec.open(read_value(bytes)?, &key.checkpoint_data())?;
        if opened.tag != CHECKPOINT {
            return if opened.is_sealed() { Ok(None) } else { Err(damaged("checkpoint")) };
        }
        let Some((count, mut rest)) = opened.data.split_first_chunk() else {
            return Err(damaged("checkpoint"));
        };
        let mut all = Vec::new();
        for at in 0..u32::from_be_bytes(*count) {
            let Some((flag, after)) = rest.split_first() else { return Err(damaged("checkpoint")) };
            rest = after;
            let channel = take_text(&mut rest, "checkpoint")?.into();
            let name = usize::try_from(at).ok().and_then(|at| names.get(at)).copied();
            all.push(Named { channel, is_snapshot: *flag == 1, name });
        }
        let checkpoint = document::decode_checkpoint(&opened.data.slice_ref(rest))?;
        Ok(Some(Self { checkpoint, named: all }))
    }

    /// Which channels the checkpoint has.
    pub(crate) fn summary(&self) -> ChannelSummary {
        let inline = self.checkpoint.channel_values.keys().map(|channel| (channel.clone(), false));
        let named = self.named.iter().map(|named| (named.channel.clone(), named.is_snapshot));
        ChannelSummary::new(self.checkpoint.channel_versions.keys().cloned(), inline.chain(named))
    }

    /// The identity of a value that the checkpoint refers to: its version as it is part of its name.
    pub(crate) fn version(&self, channel: &str) -> Result<String> {
        let version = self.checkpoint.channel_versions.get(channel);
        version.map(keys::version).ok_or_else(|| damaged("checkpoint").with("channel", channel))
    }

    /// Opens a value that the checkpoint refers to.
    pub(crate) fn open_value(
        &self,
        reader: &mut SegmentReader<'_>,
        key: CheckpointKey<'_>,
        channel: &str,
        stored: &Bytes,
        addresses: &Addresses,
    ) -> Result<ChannelValue> {
        let version = self.version(channel)?;
        let CheckpointKey { thread_id, checkpoint_ns, .. } = key;
        let data = AssociatedData::Blob { thread_id, checkpoint_ns, channel, version: &version };
        let mut open = || {
            let stored = read_value(stored)?;
            let is_split = stored.tag.split('+').next() == Some(MANIFEST);
            let none = Addresses::default();
            reader.open_value(stored, if is_split { addresses } else { &none }, &data)
        };
        open().map_err(|error: Error| key.context()(error).with("channel", channel).with("version", &version))
    }
}

/// What `prune` reads of a checkpoint.
pub(crate) fn summary(codec: &ValueCodec, key: CheckpointKey<'_>, row: &Row) -> Result<CheckpointSummary> {
    let read = || {
        let codec = codec.requiring_decryption();
        let Some(document) = Document::read(&codec, key, &row.names, row.document.bytes()?)? else {
            return Err(damaged("checkpoint"));
        };
        let metadata = open_metadata(&codec, key, row.metadata.bytes()?)?;
        Ok(CheckpointSummary::new(document.summary(), metadata, row.parent.clone()))
    };
    read().map_err(key.context())
}
