//! Loads checkpoints whose metadata is known: their documents, writes, values and segments.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use checkpoint_core::backend::CheckpointKey;
use checkpoint_core::backend::segments::{Address, Addresses, SegmentReader};
use checkpoint_core::{ChannelValue, CheckpointTuple, PendingWrite, Result, Str, opaque};
use redis::{Cmd, Value};

use crate::connection::Access;
use crate::keys::{self, kind};
use crate::reply;
use crate::row::{self, Document, Head};
use crate::shared::Shared;

/// The most fields that one command reads.
const FIELDS: usize = 1000;

/// A checkpoint that is being read.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) thread_id: Str,
    pub(crate) checkpoint_ns: Str,
    pub(crate) checkpoint_id: Str,
    pub(crate) head: Head,
    pub(crate) document: Bytes,
    /// The fields of its writes.
    pub(crate) writes: Vec<Bytes>,
    /// The addresses of the segments of each value.
    pub(crate) lists: Vec<Addresses>,
}

impl Row {
    pub(crate) fn new(thread_id: &str, checkpoint_ns: Str, checkpoint_id: Str, head: Head) -> Self {
        let thread_id = thread_id.into();
        let (document, writes, lists) = (Bytes::new(), Vec::new(), Vec::new());
        Self { thread_id, checkpoint_ns, checkpoint_id, head, document, writes, lists }
    }

    pub(crate) fn key(&self) -> CheckpointKey<'_> {
        CheckpointKey::new(&self.thread_id, &self.checkpoint_ns, &self.checkpoint_id)
    }

    /// Its part of names.
    pub(crate) fn suffix(&self) -> Vec<u8> {
        keys::checkpoint(&self.checkpoint_ns, &self.checkpoint_id)
    }

    /// The fields of its values, or of the lists of their addresses.
    pub(crate) fn fields(&self, of: u8) -> impl Iterator<Item = Vec<u8>> {
        let ns = keys::namespace(&self.checkpoint_ns);
        self.head.names.iter().map(move |name| keys::name(of, &[&ns, name]))
    }
}

/// What was read of a thread.
#[derive(Debug)]
pub(crate) struct Loaded<'a> {
    pub(crate) fields: HashMap<Bytes, Bytes>,
    /// Has the segments that were read, and those that the codec remembers.
    pub(crate) reader: SegmentReader<'a>,
    /// All segments as they are stored, if they were asked for.
    pub(crate) segments: HashMap<Address, Bytes>,
}

impl<'a> Loaded<'a> {
    pub(crate) fn new(shared: &'a Shared, thread_id: &str) -> Self {
        Self { fields: HashMap::new(), reader: shared.codec.reader(thread_id), segments: HashMap::new() }
    }
}

/// Which segments are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Segments {
    /// Those that the codec does not remember.
    Unknown,
    /// All, as they are stored.
    All,
}

/// Commands that read fields of one thread, and which fields they read.
struct Reads {
    commands: Vec<Cmd>,
    asked: Vec<(usize, Vec<Vec<u8>>)>,
}

impl Reads {
    const fn new() -> Self {
        Self { commands: Vec::new(), asked: Vec::new() }
    }

    /// Reads fields of a thread, which has this number.
    fn add(
        &mut self,
        shared: &Shared,
        number: usize,
        thread_id: &str,
        fields: impl IntoIterator<Item = Vec<u8>>,
    ) {
        let fields: Vec<_> = fields.into_iter().collect();
        let hash = shared.keys.thread(thread_id).hash;
        for fields in fields.chunks(FIELDS) {
            let mut command = redis::cmd("HMGET");
            command.arg(&hash).arg(fields);
            self.commands.push(command);
            self.asked.push((number, fields.to_vec()));
        }
    }

    /// Sends them, and calls back with each field that is there.
    async fn run(
        self,
        shared: &Shared,
        mut found: impl FnMut(usize, Vec<u8>, Bytes) -> Result<()>,
    ) -> Result<()> {
        if self.commands.is_empty() {
            return Ok(());
        }
        let replies = shared.connections.each(Access::Read, self.commands).await?;
        for ((number, fields), reply) in self.asked.into_iter().zip(replies) {
            for (field, value) in fields.into_iter().zip(reply::optionals(reply)?) {
                if let Some(value) = value {
                    found(number, field, value)?;
                }
            }
        }
        Ok(())
    }
}

/// The threads of rows, each once, with their numbers.
fn threads(rows: &[Row]) -> (Vec<Str>, Vec<usize>) {
    let mut ids: Vec<Str> = Vec::new();
    let mut by_id: HashMap<Str, usize> = HashMap::new();
    let numbers = rows
        .iter()
        .map(|row| {
            *by_id.entry(row.thread_id.clone()).or_insert_with(|| {
                ids.push(row.thread_id.clone());
                ids.len() - 1
            })
        })
        .collect();
    (ids, numbers)
}

/// Loads the documents of rows, the names of their writes, and the addresses of their segments: one trip.
pub(crate) async fn details(shared: &Shared, rows: &mut [Row]) -> Result<()> {
    let (ids, numbers) = threads(rows);
    let mut reads = Reads::new();
    for (number, id) in ids.iter().enumerate() {
        let own = || rows.iter().zip(&numbers).filter(|(_, of)| **of == number).map(|(row, _)| row);
        let documents = own().map(|row| keys::name(kind::CHECKPOINT, &[&row.suffix()]));
        let lists: HashSet<_> = own().flat_map(|row| row.fields(kind::ADDRESSES)).collect();
        reads.add(shared, number, id, documents.chain(lists));
    }
    let count = reads.commands.len();
    let writes = rows.iter().map(|row| writes_of(&shared.keys.thread(&row.thread_id).index, &row.suffix()));
    let mut commands = std::mem::take(&mut reads.commands);
    commands.extend(writes);
    let mut replies = shared.connections.each(Access::Read, commands).await?;
    let writes = replies.split_off(count.min(replies.len()));
    let mut found: HashMap<(usize, Vec<u8>), Bytes> = HashMap::new();
    for ((number, fields), reply) in reads.asked.into_iter().zip(replies) {
        for (field, value) in fields.into_iter().zip(reply::optionals(reply)?) {
            found.extend(value.map(|value| ((number, field), value)));
        }
    }
    for ((row, number), writes) in rows.iter_mut().zip(numbers).zip(writes) {
        row.writes = reply::list(writes)?;
        let document = (number, keys::name(kind::CHECKPOINT, &[&row.suffix()]));
        row.document = found.get(&document).cloned().unwrap_or_default();
        let list = |field| {
            found.get(&(number, field)).cloned().map_or_else(|| Ok(Addresses::default()), Addresses::new)
        };
        row.lists = row.fields(kind::ADDRESSES).map(list).collect::<Result<_>>()?;
    }
    Ok(())
}

/// The command that lists the writes on a checkpoint.
pub(crate) fn writes_of(index: &[u8], suffix: &[u8]) -> Cmd {
    let mut command = redis::cmd("ZRANGEBYLEX");
    let from = [b"[", [kind::WRITE].as_slice(), suffix].concat();
    let to = [b"(", [kind::WRITE].as_slice(), suffix, b"\xff"].concat();
    command.arg(index).arg(from).arg(to);
    command
}

/// Loads the writes, values and segments of rows: one trip.
pub(crate) async fn values<'a>(
    shared: &'a Shared,
    rows: &[Row],
    which: Segments,
) -> Result<HashMap<Str, Loaded<'a>>> {
    let (ids, numbers) = threads(rows);
    let mut loaded: Vec<Loaded<'a>> = ids.iter().map(|id| Loaded::new(shared, id)).collect();
    let mut reads = Reads::new();
    for ((number, id), loaded) in ids.iter().enumerate().zip(&mut loaded) {
        let own = || rows.iter().zip(&numbers).filter(|(_, of)| **of == number).map(|(row, _)| row);
        let writes = own().flat_map(|row| row.writes.iter().map(|field| field.to_vec()));
        let values: HashSet<_> = own().flat_map(|row| row.fields(kind::BLOB)).collect();
        let lists = own().flat_map(|row| &row.lists);
        let segments: HashSet<_> = match which {
            Segments::All => lists.flat_map(Addresses::iter).collect(),
            Segments::Unknown => lists.flat_map(|list| loaded.reader.missing(list)).collect(),
        };
        reads.add(shared, number, id, writes.chain(values).chain(segments.into_iter().map(keys::segment)));
    }
    let add = |number: usize, field: Vec<u8>, value: Bytes| {
        let Some(loaded) = loaded.get_mut(number) else { return Ok(()) };
        if field.first() == Some(&kind::SEGMENT) {
            let address = keys::read_segment(&field)?;
            loaded.reader.add(address, row::read_value(&value)?);
            if which == Segments::All {
                loaded.segments.insert(address, value);
            }
        } else {
            loaded.fields.insert(field.into(), value);
        }
        Ok(())
    };
    reads.run(shared, add).await?;
    Ok(ids.into_iter().zip(loaded).collect())
}

/// Assembles the tuples of one thread.
#[derive(Debug)]
pub(crate) struct Assembler<'a, 'l> {
    shared: &'a Shared,
    loaded: &'l mut Loaded<'a>,
    /// Every checkpoint that names a value shares its bytes.
    opened: HashMap<Vec<u8>, ChannelValue>,
}

impl<'a, 'l> Assembler<'a, 'l> {
    pub(crate) fn new(shared: &'a Shared, loaded: &'l mut Loaded<'a>) -> Self {
        Self { shared, loaded, opened: HashMap::new() }
    }

    /// The tuple of a row, or `None` if a part of it is not there (any more).
    pub(crate) fn tuple(&mut self, row: &Row) -> Result<Option<CheckpointTuple>> {
        let (codec, key) = (self.shared.values(), row.key());
        if row.document.is_empty() {
            return Ok(None);
        }
        let Some(writes) = self.writes(row)? else { return Ok(None) };
        let document = Document::read(codec, key, &row.head.names, &row.document).map_err(key.context())?;
        let metadata = row.head.open_metadata(codec, key).map_err(key.context())?;
        let mut checkpoint = match document {
            None => opaque::checkpoint(row.checkpoint_id.clone(), row::read_value(&row.document)?),
            Some(document) => {
                let mut values = Vec::new();
                for (at, named) in document.named.iter().enumerate() {
                    if named.name.is_none() {
                        continue;
                    }
                    let Some(value) = self.value(row, &document, at)? else { return Ok(None) };
                    values.push((named.channel.clone(), value));
                }
                let mut checkpoint = document.checkpoint;
                checkpoint.channel_values.extend(values);
                checkpoint
            }
        };
        checkpoint.id = row.checkpoint_id.clone();
        Ok(Some(CheckpointTuple::new(key.to_config(), checkpoint, metadata, row.head.parent(), writes)))
    }

    /// The writes on a row in order, or `None` if one is not there.
    pub(crate) fn writes(&self, row: &Row) -> Result<Option<Vec<PendingWrite>>> {
        let mut writes = Vec::with_capacity(row.writes.len());
        for field in &row.writes {
            let Some(stored) = self.loaded.fields.get(field) else { return Ok(None) };
            writes.push(row::read_write(self.shared.values(), &row.thread_id, field, stored)?);
        }
        writes.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
        Ok(Some(writes))
    }

    /// The value at this place among those that a row names, or `None` if it is not there.
    pub(crate) fn value(
        &mut self,
        row: &Row,
        document: &Document,
        at: usize,
    ) -> Result<Option<ChannelValue>> {
        let (Some(named), Some(name)) = (document.named.get(at), row.head.names.get(at)) else {
            return Ok(None);
        };
        let field = keys::name(kind::BLOB, &[&keys::namespace(&row.checkpoint_ns), name]);
        if let Some(value) = self.opened.get(&field) {
            return Ok(Some(value.clone()));
        }
        let Some(stored) = self.loaded.fields.get(&*field) else { return Ok(None) };
        let none = Addresses::default();
        let addresses = row.lists.get(at).unwrap_or(&none);
        let reader = &mut self.loaded.reader;
        if !reader.missing(addresses).is_empty() {
            return Ok(None);
        }
        let value = document.open_value(reader, row.key(), &named.channel, stored, addresses)?;
        self.opened.insert(field, value.clone());
        Ok(Some(value))
    }
}

/// The parts of a name that a member of the index has.
pub(crate) fn of_member(member: &[u8]) -> Result<(Str, Str)> {
    match member.split_first() {
        Some((kind, rest)) if *kind != kind::ALL => keys::read_checkpoint(rest),
        _ => keys::read_all(member),
    }
}

/// Reads the metadata of one checkpoint of each of these threads: nothing for those that were just deleted.
pub(crate) async fn heads(shared: &Shared, found: &[(Str, (Str, Str))]) -> Result<Vec<Option<Bytes>>> {
    let commands = found.iter().map(|(thread_id, (ns, id))| {
        let mut read = redis::cmd("HGET");
        let field = keys::name(kind::METADATA, &[&keys::checkpoint(ns, id)]);
        read.arg(shared.keys.thread(thread_id).hash).arg(field);
        read
    });
    let replies = shared.connections.each(Access::Read, commands.collect()).await?;
    replies.into_iter().map(reply::optional).collect()
}

/// The fields of metadata for members of the index.
pub(crate) fn metadata_fields(members: &[(Str, Str)]) -> Vec<Vec<u8>> {
    let field = |(ns, id): &(Str, Str)| keys::name(kind::METADATA, &[&keys::checkpoint(ns, id)]);
    members.iter().map(field).collect()
}

/// Reads a reply that is an array of texts, one of which names a checkpoint.
pub(crate) fn members(reply: Value) -> Result<Vec<(Str, Str)>> {
    reply::list(reply)?.iter().map(|member| of_member(member)).collect()
}
