//! Records: how a backend that stores bytes under keys encodes checkpoints, their metadata, values and pending writes.
//!
//! | record | bytes |
//! |---|---|
//! | value | 1 ‖ length of the type tag (1 byte) ‖ type tag ‖ data |
//! | write | 1 ‖ length of the header (4 bytes) ‖ header ‖ value. The header is a value: length of the channel (4 bytes) ‖ channel ‖ path |
//! | checkpoint | a value: number of names (4 bytes), of each: 1 for the snapshot of a delta channel, otherwise 0 ‖ length (4 bytes) ‖ channel; then the checkpoint without large values, as MessagePack |
//! | metadata | a value: the metadata as JSON |
//!
//! Lengths are big-endian. The first byte is the version of the format. Each record is bound to its row by the cipher, if
//! there is one.
//!
//! # For implementers
//!
//! * [`SplitCheckpoint`] with [`Rules`] says what is inline and what is stored under channel and version, long values in
//!   [segments](super::segments). [`value`] encodes what is stored.
//! * [`Record::new`] encodes the rest of a `put`. The backend stores beside it, in clear, the *names* under which it has stored
//!   the values, in the order of the channels that it gives as [`Named`]: so that values can be read, copied and collected
//!   without a key. `N` is the type of such a name. Snapshots of delta channels that have no value of their own come last.
//! * [`Document::read`] decodes a checkpoint, [`Document::open_value`] a value that it names, [`open_metadata`] the metadata.
//! * [`write`](self::write()) and [`read_write`] are for pending writes, [`StoredWrite`] for calls that look at a write without
//!   its value, or move it.

use bytes::Bytes;

use super::segments::{Addresses, MANIFEST, SegmentCodec, SegmentReader};
use super::{AssociatedData, CheckpointKey, Inline, SplitCheckpoint, SplitRules, ValueCodec, WriteRow};
use crate::delta::{ChannelSummary, CheckpointSummary};
use crate::serde::document;
use crate::{
    ChannelValue, ChannelVersion, Checkpoint, CheckpointMetadata, Error, InlineScalars, PendingWrite, Result,
    Str, TypedBytes,
};

/// The version of the format of every record.
pub const FORMAT: u8 = 1;

/// The type tags of records, which `+CIPHER` follows where they are sealed.
const CHECKPOINT: &str = "checkpoint";
const METADATA: &str = "json";
const HEADER: &str = "write";

/// The error of a record that cannot be read. `what` names its kind.
pub fn damaged(what: &'static str) -> Error {
    Error::codec("a record of the thread is damaged, or of a newer format").with("record", what)
}

/// Takes bytes that their length (4 bytes) precedes from the beginning of a record of this kind.
///
/// # Errors
/// [`Codec`](crate::ErrorKind::Codec) if there are not as many bytes.
pub fn take<'a>(bytes: &mut &'a [u8], what: &'static str) -> Result<&'a [u8]> {
    let found = bytes.split_first_chunk().and_then(|(len, rest)| {
        let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
        rest.split_at_checked(len)
    });
    let (found, rest) = found.ok_or_else(|| damaged(what))?;
    *bytes = rest;
    Ok(found)
}

/// The same of a text.
///
/// # Errors
/// [`Codec`](crate::ErrorKind::Codec) if there are not as many bytes, or if they are not UTF-8.
pub fn take_text<'a>(bytes: &mut &'a [u8], what: &'static str) -> Result<&'a str> {
    std::str::from_utf8(take(bytes, what)?).map_err(|_| damaged(what))
}

/// Appends the length of bytes (4 bytes), and the bytes.
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for 4 GiB or more.
pub fn put(out: &mut Vec<u8>, bytes: &[u8]) -> Result<()> {
    let len = u32::try_from(bytes.len())
        .map_err(|_| Error::invalid_argument("a name is too long").with("bytes", bytes.len()))?;
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(bytes);
    Ok(())
}

/// Encodes a value.
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a type tag of more than 255 bytes.
pub fn value(typed: &TypedBytes) -> Result<Vec<u8>> {
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
///
/// # Errors
/// [`Codec`](crate::ErrorKind::Codec) if the record is damaged.
pub fn read_value(bytes: &Bytes) -> Result<TypedBytes> {
    let [FORMAT, len, ..] = **bytes else { return Err(damaged("value")) };
    let end = 2 + usize::from(len);
    let tag = bytes.get(2..end).and_then(|tag| std::str::from_utf8(tag).ok());
    let tag = tag.ok_or_else(|| damaged("value"))?.to_owned();
    Ok(TypedBytes::new(tag, bytes.slice(end..)))
}

/// Encodes a pending write on a checkpoint. Its value is sealed already where there is a cipher, see
/// [`PreparedWrites`](super::PreparedWrites).
///
/// # Errors
/// As [`value`] and [`ValueCodec::seal`].
pub fn write(
    codec: &ValueCodec,
    key: CheckpointKey<'_>,
    task_id: &str,
    task_path: &str,
    row: &WriteRow,
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

/// Which pending write of a thread it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteName {
    /// The namespace.
    pub checkpoint_ns: Str,
    /// The checkpoint's id.
    pub checkpoint_id: Str,
    /// The task.
    pub task_id: Str,
    /// The index among the task's writes.
    pub idx: i32,
}

/// The parts of a pending write, as they are stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredWrite {
    /// Channel and path.
    pub header: TypedBytes,
    /// The value.
    pub value: TypedBytes,
}

impl StoredWrite {
    /// Reads a record, and opens nothing.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) if it is damaged.
    pub fn read(bytes: &Bytes) -> Result<Self> {
        let Some((&FORMAT, mut rest)) = bytes.split_first() else { return Err(damaged("write")) };
        let header = take(&mut rest, "write")?;
        let header = read_value(&bytes.slice_ref(header))?;
        Ok(Self { header, value: read_value(&bytes.slice_ref(rest))? })
    }

    /// Opens channel and path. Both are empty if the header cannot be opened and the codec returns such values sealed.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) if it is damaged; else as [`ValueCodec::open`].
    pub fn open_header(
        &self,
        codec: &ValueCodec,
        key: CheckpointKey<'_>,
        name: &WriteName,
    ) -> Result<(Str, Str)> {
        let data = key.write_header_data(&name.task_id, name.idx);
        let header = codec.open(self.header.clone(), &data)?;
        if header.tag != HEADER {
            return Ok((Str::default(), Str::default()));
        }
        let mut rest = &*header.data;
        let channel = take_text(&mut rest, "write")?.into();
        Ok((channel, std::str::from_utf8(rest).map_err(|_| damaged("write"))?.into()))
    }

    /// Encodes it for the same task on another checkpoint: decrypts, and encrypts again.
    ///
    /// # Errors
    /// As [`open_header`](Self::open_header) and [`ValueCodec::reseal`]; what cannot be opened is an error.
    pub fn reseal(
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

/// Decodes a pending write.
///
/// # Errors
/// [`Codec`](crate::ErrorKind::Codec) if the record is damaged; else as [`ValueCodec::open_value`]. The error names the
/// checkpoint.
pub fn read_write(
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

/// A version as it is part of a value's key: numbers and texts differ.
pub fn version_key(version: &ChannelVersion) -> String {
    match version {
        ChannelVersion::Int(number) => format!("i{number}"),
        ChannelVersion::Float(number) => format!("f{number:?}"),
        ChannelVersion::Str(text) => format!("s{text}"),
    }
}

/// How values are split: short scalars are inline, long values become segments, and all values that do not change are
/// carried over.
#[derive(Debug, Clone)]
pub struct Rules<'a>(pub &'a SegmentCodec);

impl SplitRules for Rules<'_> {
    fn is_inline(&self, value: &ChannelValue) -> bool {
        InlineScalars::Short.contains(value)
    }

    fn version_key(&self, version: &ChannelVersion) -> Result<String> {
        Ok(version_key(version))
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

/// A channel whose value is not inline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named<N> {
    /// The channel.
    pub channel: Str,
    /// Whether the value is the snapshot of a delta channel.
    pub is_snapshot: bool,
    /// The name under which the value is stored; `None` for the mark of a snapshot without a value of its own.
    pub name: Option<N>,
}

/// What a `put` stores beside the values.
#[derive(Debug, Clone)]
pub struct Record {
    /// The metadata.
    pub metadata: Bytes,
    /// The checkpoint.
    pub checkpoint: Bytes,
}

impl Record {
    /// Encodes a checkpoint and its metadata, sealed where there is a cipher. `named` are the channels whose values are not
    /// inline, those without a name last.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a channel or a part of the checkpoint that cannot be
    /// encoded; else as [`ValueCodec::seal`].
    pub fn new<N>(
        codec: &ValueCodec,
        key: CheckpointKey<'_>,
        checkpoint: &Checkpoint,
        split: &SplitCheckpoint<'_>,
        named: &[Named<N>],
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

/// Opens metadata. It is empty if it cannot be opened and the codec returns such values sealed.
///
/// # Errors
/// [`Codec`](crate::ErrorKind::Codec) if the record is damaged; else as [`ValueCodec::open`].
pub fn open_metadata(
    codec: &ValueCodec,
    key: CheckpointKey<'_>,
    metadata: &Bytes,
) -> Result<CheckpointMetadata> {
    let opened = codec.open(read_value(metadata)?, &key.metadata_data())?;
    match &*opened.tag {
        METADATA => CheckpointMetadata::from_json(&opened.data),
        _ => Ok(CheckpointMetadata::default()),
    }
}

/// Encodes metadata for another checkpoint: decrypts, and encrypts again.
///
/// # Errors
/// As [`ValueCodec::reseal`].
pub fn reseal_metadata(
    codec: &ValueCodec,
    from: CheckpointKey<'_>,
    to: CheckpointKey<'_>,
    metadata: &Bytes,
) -> Result<Bytes> {
    let typed = read_value(metadata)?;
    Ok(value(&codec.reseal(typed, &from.metadata_data(), &to.metadata_data())?)?.into())
}

/// A decoded checkpoint.
#[derive(Debug, Clone)]
pub struct Document<N> {
    /// The checkpoint with its inline values.
    pub checkpoint: Checkpoint,
    /// The channels whose values are not inline.
    pub named: Vec<Named<N>>,
}

impl<N: Clone> Document<N> {
    /// Decodes a checkpoint. `names` are the names of its values, in the order in which they were given to [`Record::new`].
    /// `None` if it cannot be opened and the codec returns such values sealed.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) if the record is damaged; else as [`ValueCodec::open`].
    pub fn read(
        codec: &ValueCodec,
        key: CheckpointKey<'_>,
        names: &[N],
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
            let name = usize::try_from(at).ok().and_then(|at| names.get(at)).cloned();
            all.push(Named { channel, is_snapshot: *flag == 1, name });
        }
        let checkpoint = document::decode_checkpoint(&opened.data.slice_ref(rest))?;
        Ok(Some(Self { checkpoint, named: all }))
    }

    /// Which channels the checkpoint has.
    pub fn summary(&self) -> ChannelSummary {
        let inline = self.checkpoint.channel_values.keys().map(|channel| (channel.clone(), false));
        let named = self.named.iter().map(|named| (named.channel.clone(), named.is_snapshot));
        ChannelSummary::new(self.checkpoint.channel_versions.keys().cloned(), inline.chain(named))
    }

    /// The version of a channel as it is part of the value's key, see [`version_key`].
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) if the channel has none.
    pub fn version(&self, channel: &str) -> Result<String> {
        let version = self.checkpoint.channel_versions.get(channel);
        version.map(version_key).ok_or_else(|| damaged("checkpoint").with("channel", channel))
    }

    /// Opens a value that the checkpoint names. The reader has its segments, whose `addresses` were stored beside it.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) if the record is damaged or a segment is missing; else as
    /// [`ValueCodec::open_value`]. The error names the checkpoint, the channel and the version.
    pub fn open_value(
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
            // Where two calls store the same value at once, the addresses of one may lie beside the value of the other.
            let is_split = stored.tag.split('+').next() == Some(MANIFEST);
            let none = Addresses::default();
            reader.open_value(stored, if is_split { addresses } else { &none }, &data)
        };
        open().map_err(|error: Error| key.context()(error).with("channel", channel).with("version", &version))
    }
}

/// What decides which ancestors of a checkpoint are needed, see [`NeededAncestors`](crate::delta::NeededAncestors).
///
/// # Errors
/// As [`Document::read`] and [`open_metadata`]; what cannot be opened is an error.
pub fn summary(
    codec: &ValueCodec,
    key: CheckpointKey<'_>,
    checkpoint: &Bytes,
    metadata: &Bytes,
    parent: Option<Str>,
) -> Result<CheckpointSummary> {
    let codec = codec.requiring_decryption();
    let document =
        Document::<()>::read(&codec, key, &[], checkpoint)?.ok_or_else(|| damaged("checkpoint"))?;
    Ok(CheckpointSummary::new(document.summary(), open_metadata(&codec, key, metadata)?, parent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::PreparedWrites;
    use crate::{CheckpointConfig, PutOptions};

    const KEY: CheckpointKey<'_> = CheckpointKey::new("t", "ns", "1ef0a1b2-0000-6000-8000-000000000000");

    fn codecs() -> Vec<ValueCodec> {
        #[cfg(feature = "encryption")]
        let sealing = [crate::Cipher::aes_gcm("k", &[1; 32]).unwrap()]
            .map(|cipher| ValueCodec { cipher: Some(cipher), ..ValueCodec::default() });
        #[cfg(not(feature = "encryption"))]
        let sealing = [];
        [ValueCodec::default()].into_iter().chain(sealing).collect()
    }

    /// Reads every beginning of a record, none of which may be taken for a whole one.
    fn no_part_is_read<T>(record: &Bytes, read: impl Fn(&Bytes) -> Result<T>) {
        read(record).unwrap();
        for len in 0..record.len() {
            assert!(read(&record.slice(..len)).is_err(), "{len} of {} bytes", record.len());
        }
        let newer = [&[FORMAT + 1], record.get(1..).unwrap()].concat().into();
        assert!(read(&newer).is_err());
    }

    #[test]
    fn the_format_does_not_change() {
        let stored = value(&TypedBytes::new("bytes", &b"\x01\x02"[..])).unwrap();
        assert_eq!(stored, b"\x01\x05bytes\x01\x02");
        let row = WriteRow { idx: -1, channel: "ch".into(), value: TypedBytes::new("null", &b""[..]) };
        let stored = write(&ValueCodec::default(), KEY, "task", "~path", &row).unwrap();
        assert_eq!(stored, b"\x01\0\0\0\x12\x01\x05write\0\0\0\x02ch~path\x01\x04null");
        let names = [1.into(), 1.0.into(), ChannelVersion::from("1"), (-0.0).into(), 0.0.into()];
        assert_eq!(names.each_ref().map(version_key), ["i1", "f1.0", "s1", "f-0.0", "f0.0"]);
    }

    #[test]
    fn values_are_read_as_they_were_written() {
        for typed in [TypedBytes::new("", &b""[..]), TypedBytes::new("é", vec![0; 300])] {
            assert_eq!(read_value(&value(&typed).unwrap().into()).unwrap(), typed);
        }
        let error = value(&TypedBytes::new("x".repeat(256), &b""[..])).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::InvalidArgument);
        for damaged in [&b""[..], b"\x01", b"\x01\x05byte", b"\x01\x01\xff", b"\x02\0"] {
            let error = read_value(&Bytes::from_static(damaged)).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Codec);
        }
    }

    #[test]
    fn writes_are_read_as_they_were_written() {
        for codec in codecs() {
            let config = KEY.to_config();
            let given = [("ch".into(), ChannelValue::from("value")), ("__error__".into(), 1.into())];
            let prepared = PreparedWrites::new(&codec, &config, &given, "task", "~path").unwrap();
            for row in &prepared.rows {
                let (channel, expected) = given.iter().find(|(channel, _)| *channel == row.channel).unwrap();
                let record: Bytes = write(&codec, KEY, "task", "~path", row).unwrap().into();
                let name = WriteName {
                    checkpoint_ns: "ns".into(),
                    checkpoint_id: KEY.checkpoint_id.into(),
                    task_id: "task".into(),
                    idx: row.idx,
                };
                let read = |record: &Bytes| read_write(&codec, "t", &name, record);
                let found = read(&record).unwrap();
                assert_eq!((&found.channel, &found.value, &*found.task_path), (channel, expected, "~path"));
                let other = KEY.in_thread("other");
                let stored = StoredWrite::read(&record).unwrap();
                let moved: Bytes = stored.reseal(&codec, KEY, other, &name).unwrap().into();
                assert_eq!(read_write(&codec, "other", &name, &moved).unwrap().value, *expected);
                if codec.cipher.is_some() {
                    assert_eq!(read(&moved).unwrap_err().kind(), crate::ErrorKind::Crypto);
                    no_part_is_read(&record, read);
                }
            }
        }
    }

    #[test]
    fn checkpoints_are_read_as_they_were_written() {
        let list = ChannelValue::encode(&[1, 2, 3]).unwrap();
        let made = Checkpoint::new(0)
            .with_channel("short", "text", 1)
            .with_channel("list", list.clone(), 2)
            .with_channel("kept", list.clone(), 3);
        let metadata = CheckpointMetadata::new("loop", 3);
        for codec in codecs() {
            let segments = SegmentCodec::new(codec.clone());
            let new_versions = [("short".into(), 1.into()), ("list".into(), 2.into())].into_iter().collect();
            let (config, options) = (CheckpointConfig::new("t"), PutOptions::default());
            let rules = Rules(&segments);
            let split =
                SplitCheckpoint::new(&codec, &rules, &config, &made, &new_versions, &options).unwrap();
            assert_eq!(split.carried_over.keys().copied().collect::<Vec<_>>(), ["kept"]);
            let key = CheckpointKey::new("t", "", &made.id);
            let mut named: Vec<Named<u8>> = Vec::new();
            for (number, blob) in (0..).zip(&split.blobs) {
                named.push(Named { channel: blob.channel.clone(), is_snapshot: false, name: Some(number) });
            }
            named.push(Named { channel: "mark".into(), is_snapshot: true, name: None });
            let record = Record::new(&codec, key, &made, &split, &named, &metadata).unwrap();
            let numbers: Vec<u8> = named.iter().filter_map(|named| named.name).collect();
            let read = |record: &Bytes| Document::read(&codec, key, &numbers, record);
            let document = read(&record.checkpoint).unwrap().unwrap();
            assert_eq!(document.named, named);
            assert_eq!(document.checkpoint.channel_versions, made.channel_versions);
            assert_eq!(document.checkpoint.channel_values.len(), made.channel_values.len() - named.len());
            let mut reader = segments.reader("t");
            for blob in &split.blobs {
                let stored = value(&blob.value).unwrap().into();
                let found =
                    document.open_value(&mut reader, key, &blob.channel, &stored, &blob.addresses).unwrap();
                assert_eq!(Some(&found), made.channel_values.get(&blob.channel));
            }
            assert_eq!(open_metadata(&codec, key, &record.metadata).unwrap(), metadata);
            let found =
                summary(&codec, key, &record.checkpoint, &record.metadata, Some("parent".into())).unwrap();
            assert_eq!(found.parent_checkpoint_id.as_deref(), Some("parent"));
            no_part_is_read(&record.checkpoint, read);
            no_part_is_read(&record.metadata, |metadata| open_metadata(&codec, key, metadata));
        }
    }

    #[cfg(feature = "encryption")]
    #[test]
    fn what_cannot_be_opened_is_an_error_or_stays_sealed() {
        let [_, sealing] = &*codecs() else { panic!() };
        let (made, config) = (Checkpoint::new(0), KEY.to_config());
        let (segments, options) = (SegmentCodec::new(sealing.clone()), PutOptions::default());
        let versions = crate::ChannelVersions::default();
        let split =
            SplitCheckpoint::new(sealing, &Rules(&segments), &config, &made, &versions, &options).unwrap();
        let metadata = CheckpointMetadata::new("loop", 3);
        let record = Record::new::<u8>(sealing, KEY, &made, &split, &[], &metadata).unwrap();
        let keyless = ValueCodec::default();
        let error = Document::<u8>::read(&keyless, KEY, &[], &record.checkpoint).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Crypto);
        let showing = ValueCodec { return_sealed: true, ..keyless };
        assert!(Document::<u8>::read(&showing, KEY, &[], &record.checkpoint).unwrap().is_none());
        assert_eq!(open_metadata(&showing, KEY, &record.metadata).unwrap(), CheckpointMetadata::default());
        let error = summary(&showing, KEY, &record.checkpoint, &record.metadata, None).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Crypto);
    }
}
