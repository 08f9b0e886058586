//! Loads checkpoints: their documents, writes, values and segments.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use checkpoint_core::backend::records::WriteName;
use checkpoint_core::backend::segments::{Address, Addresses, SegmentReader};
use checkpoint_core::backend::{CheckpointKey, StoredCheckpoint};
use checkpoint_core::{ChannelValue, CheckpointTuple, Error, PendingWrite, Result, Str, opaque};
use futures_util::future::try_join;
use mongodb::bson::{Binary, Bson, Document, doc, spec::BinarySubtype};

use crate::client::{Find, not_understood};
use crate::keys::{self, Range, ThreadKeys};
use crate::row::{self, Document as Decoded, Name};
use crate::shared::{Known, Shared, is_expired};

/// The most `_id`s that one request asks for.
const IDS: usize = 1000;

/// Longer records are stored in chunks of this length. A document has at most 16 MiB.
pub(crate) const CHUNK: usize = 8 << 20;

/// Two records of a checkpoint are in one document.
pub(crate) const HALF_CHUNK: usize = CHUNK / 2;

/// The record of a document: in it, or in chunks.
#[derive(Debug, Clone, Default)]
pub(crate) enum Payload {
    /// It was not read.
    #[default]
    Absent,
    Inline(Bytes),
    Chunked {
        owner: String,
        len: usize,
    },
}

impl Payload {
    pub(crate) fn take(document: &mut Document, field: &'static str) -> Result<Self> {
        match document.remove(field) {
            None => Ok(Self::Absent),
            Some(Bson::Binary(binary)) => Ok(Self::Inline(binary.bytes.into())),
            Some(Bson::Document(parts)) => {
                let len = parts.get_i64("l").ok().and_then(|len| usize::try_from(len).ok());
                let owner = parts.get_str("o").map_err(|_| not_understood(field))?.to_owned();
                Ok(Self::Chunked { owner, len: len.ok_or_else(|| not_understood(field))? })
            }
            Some(_) => Err(not_understood(field)),
        }
    }

    /// Its bytes, once the chunks were loaded.
    pub(crate) fn bytes(&self) -> Result<&Bytes> {
        match self {
            Self::Inline(bytes) => Ok(bytes),
            Self::Absent | Self::Chunked { .. } => {
                Err(Error::codec("a part of the checkpoint is missing; read it again"))
            }
        }
    }

    /// Whose chunks they are, if it is in chunks.
    pub(crate) fn owner(&self) -> Option<&str> {
        match self {
            Self::Chunked { owner, .. } => Some(owner),
            _ => None,
        }
    }
}

/// Binary data.
pub(crate) fn binary(bytes: &[u8]) -> Bson {
    Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes: bytes.to_vec() })
}

/// Stores a record in a field: itself, or in chunks, which go before the document.
pub(crate) fn store(
    shared: &Shared,
    keys: &ThreadKeys,
    thread_id: &str,
    record: &Bytes,
    longest: usize,
    chunks: &mut Vec<Document>,
) -> Bson {
    if record.len() <= longest {
        return binary(record);
    }
    let owner = checkpoint_core::id::uuid6(0).to_string();
    for (number, part) in record.chunks(CHUNK).enumerate() {
        let mut chunk = doc! { "_id": keys.chunk(&owner, number), "t": thread_id, "d": binary(part) };
        shared.stamp(&mut chunk, true);
        chunks.push(chunk);
    }
    Bson::Document(doc! { "o": owner, "l": i64::try_from(record.len()).unwrap_or(i64::MAX) })
}

/// Notes in a document how many bytes its records have, apart from their chunks: what measures it does not read them.
pub(crate) fn add_size(document: &mut Document) {
    let record = |field: &str| document.get_binary_generic(field).map_or(0, Vec::len);
    let bytes: usize = ["d", "md", "ck"].into_iter().map(record).sum();
    if bytes == 0 {
        document.remove("b");
    } else {
        document.insert("b", i32::try_from(bytes).unwrap_or(i32::MAX));
    }
}

/// The bytes of a document's records.
pub(crate) fn size(document: &Document) -> u64 {
    document.get_i32("b").ok().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or_default()
}

/// Whose chunks a value or write has, if it has some.
pub(crate) fn owner(document: &Document) -> Option<String> {
    document.get_document("d").ok()?.get_str("o").ok().map(str::to_owned)
}

/// What is read of a checkpoint without its records.
pub(crate) fn heads() -> Document {
    doc! {
        "t": 1, "n": 1, "c": 1, "p": 1, "nm": 1, "s": 1, "b": 1, "ct": 1, "x": 1,
        "md.o": 1, "md.l": 1, "ck.o": 1, "ck.l": 1,
    }
}

pub(crate) fn text(document: &Document, field: &'static str) -> Result<Str> {
    document.get_str(field).map(Str::from).map_err(|_| not_understood(field))
}

/// A write as it was read.
#[derive(Debug, Clone)]
pub(crate) struct WriteRow {
    pub(crate) id: String,
    /// The document without its record.
    pub(crate) head: Document,
    pub(crate) name: WriteName,
    /// The indexes of the call that stored it: pairs of the first and the last one.
    pub(crate) siblings: Vec<(i32, i32)>,
    pub(crate) record: Payload,
}

impl WriteRow {
    pub(crate) fn read(mut document: Document) -> Result<Self> {
        let name = WriteName {
            checkpoint_ns: text(&document, "n")?,
            checkpoint_id: text(&document, "c")?,
            task_id: text(&document, "tk")?,
            idx: document.get_i32("i").map_err(|_| not_understood("i"))?,
        };
        let siblings = match document.get_binary_generic("g") {
            Ok(bytes) => read_indexes(bytes)?,
            Err(_) => Vec::new(),
        };
        let id = document.get_str("_id").map_err(|_| not_understood("_id"))?.to_owned();
        let record = Payload::take(&mut document, "d")?;
        Ok(Self { id, head: document, name, siblings, record })
    }
}

/// Encodes the indexes of one call as pairs of the first and the last of those that follow each other.
pub(crate) fn indexes(sorted: impl Iterator<Item = i32>) -> Vec<u8> {
    let mut pairs: Vec<(i32, i32)> = Vec::new();
    for idx in sorted {
        match pairs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(idx) => *last = idx,
            _ => pairs.push((idx, idx)),
        }
    }
    pairs.into_iter().flat_map(|(first, last)| [first.to_be_bytes(), last.to_be_bytes()].concat()).collect()
}

fn read_indexes(bytes: &[u8]) -> Result<Vec<(i32, i32)>> {
    let (pairs, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(not_understood("g"));
    }
    let pair = |&[a, b, c, d, e, f, g, h]: &[u8; 8]| {
        (i32::from_be_bytes([a, b, c, d]), i32::from_be_bytes([e, f, g, h]))
    };
    Ok(pairs.iter().map(pair).collect())
}

/// Leaves out the writes of calls of which not all writes are there: they are being stored, or the call was cut off.
pub(crate) fn visible(writes: Vec<WriteRow>) -> Vec<WriteRow> {
    let there: BTreeSet<(Str, i32)> =
        writes.iter().map(|write| (write.name.task_id.clone(), write.name.idx)).collect();
    let is_whole = |write: &WriteRow| {
        write.siblings.iter().all(|(first, last)| {
            let of_task = |idx: i32| (write.name.task_id.clone(), idx);
            let wanted = i64::from(*last) - i64::from(*first) + 1;
            let found = there.range(of_task(*first)..=of_task(*last)).count();
            i64::try_from(found).is_ok_and(|found| found >= wanted)
        })
    };
    let whole: Vec<bool> = writes.iter().map(is_whole).collect();
    writes.into_iter().zip(whole).filter_map(|(write, whole)| whole.then_some(write)).collect()
}

/// A checkpoint that is being read.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) id: String,
    /// The document without its records.
    pub(crate) head: Document,
    pub(crate) thread_id: Str,
    pub(crate) checkpoint_ns: Str,
    pub(crate) checkpoint_id: Str,
    pub(crate) parent: Option<Str>,
    /// The values that it refers to.
    pub(crate) names: Vec<Name>,
    /// The `_id` of the decision about its step key.
    pub(crate) step: Option<String>,
    pub(crate) metadata: Payload,
    pub(crate) document: Payload,
    pub(crate) writes: Vec<WriteRow>,
}

impl Row {
    /// Reads a document, unless it has expired.
    pub(crate) fn read(mut document: Document) -> Result<Option<Self>> {
        if is_expired(&document) {
            return Ok(None);
        }
        let names = match document.get_binary_generic("nm") {
            Ok(bytes) => names_of(bytes)?,
            Err(_) => Vec::new(),
        };
        let (metadata, record) = (Payload::take(&mut document, "md")?, Payload::take(&mut document, "ck")?);
        Ok(Some(Self {
            id: document.get_str("_id").map_err(|_| not_understood("_id"))?.to_owned(),
            thread_id: text(&document, "t")?,
            checkpoint_ns: text(&document, "n")?,
            checkpoint_id: text(&document, "c")?,
            parent: document.get_str("p").ok().map(Str::from),
            names,
            step: document.get_str("s").ok().map(str::to_owned),
            metadata,
            document: record,
            writes: Vec::new(),
            head: document,
        }))
    }

    pub(crate) fn key(&self) -> CheckpointKey<'_> {
        CheckpointKey::new(&self.thread_id, &self.checkpoint_ns, &self.checkpoint_id)
    }

    /// What a retention policy looks at.
    pub(crate) fn stored(&self, ts: Option<Str>, is_pinned: bool) -> StoredCheckpoint {
        StoredCheckpoint {
            checkpoint_ns: self.checkpoint_ns.clone(),
            checkpoint_id: self.checkpoint_id.clone(),
            parent_checkpoint_id: self.parent.clone(),
            ts,
            is_pinned,
            needs_parent: false,
            bytes: size(&self.head),
        }
    }
}

pub(crate) fn names_of(bytes: &[u8]) -> Result<Vec<Name>> {
    let (names, rest) = bytes.as_chunks::<24>();
    if rest.is_empty() { Ok(names.to_vec()) } else { Err(not_understood("nm")) }
}

/// A value as it is stored.
#[derive(Debug, Clone)]
pub(crate) struct StoredValue {
    pub(crate) record: Payload,
    pub(crate) addresses: Addresses,
}

/// What was read of a thread.
#[derive(Debug)]
pub(crate) struct Loaded<'a> {
    /// By `_id`.
    pub(crate) values: HashMap<String, StoredValue>,
    /// Has the segments that were read, and those that the codec remembers.
    pub(crate) reader: SegmentReader<'a>,
    /// All segments as they are stored, if they were asked for.
    pub(crate) segments: HashMap<Address, Bytes>,
}

impl<'a> Loaded<'a> {
    fn new(shared: &'a Shared, thread_id: &str) -> Self {
        Self { values: HashMap::new(), reader: shared.codec.reader(thread_id), segments: HashMap::new() }
    }
}

/// What is read of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) writes: bool,
    /// All segments as they are stored, instead of those that the codec does not remember.
    pub(crate) all_segments: bool,
}

/// What a tuple needs.
pub(crate) const TUPLE: Wanted = Wanted { writes: true, all_segments: false };

/// Reads documents by their `_id`s: of one thread, or of several.
pub(crate) async fn by_ids(
    shared: &Shared,
    thread_id: Option<&str>,
    ids: Vec<String>,
    projection: Option<Document>,
) -> Result<Vec<Document>> {
    let mut found = Vec::new();
    for ids in ids.chunks(IDS) {
        let filter = shared.mongo.by_ids(thread_id, ids.iter().cloned());
        let find = Find { filter, projection: projection.clone(), ..Find::default() };
        found.extend(shared.mongo.find(find).await?);
    }
    Ok(found)
}

/// Reads all writes in ranges: of one thread, or of several.
pub(crate) async fn writes_in(
    shared: &Shared,
    thread_id: Option<&str>,
    ranges: &[Range],
) -> Result<Vec<WriteRow>> {
    let mut found = Vec::new();
    for ranges in ranges.chunks(IDS) {
        let filter = shared.mongo.in_ranges(thread_id, ranges);
        found.extend(shared.mongo.find(Find { filter, ..Find::default() }).await?);
    }
    found.into_iter().map(WriteRow::read).collect()
}

/// What was read of several threads.
pub(crate) type Threads<'a> = HashMap<Str, Loaded<'a>>;

/// What was read of a checkpoint while its document was read: what it probably refers to.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// By `_id`.
    values: HashMap<String, Document>,
    /// The writes on the checkpoint with this id.
    writes: Option<(Str, Vec<WriteRow>)>,
}

impl Ahead {
    /// Reads the writes on a checkpoint, and values of its namespace.
    pub(crate) async fn read(
        shared: &Shared,
        key: CheckpointKey<'_>,
        names: impl Iterator<Item = &Name>,
    ) -> Result<Self> {
        let (thread_id, ns) = (key.thread_id, key.checkpoint_ns);
        let keys = ThreadKeys::new(thread_id);
        let ids = names.map(|name| keys.value(ns, name)).collect();
        let ranges = [keys.writes(ns, key.checkpoint_id)];
        let values = by_ids(shared, Some(thread_id), ids, None);
        let (values, writes) = try_join(values, writes_in(shared, Some(thread_id), &ranges)).await?;
        let by_id = |value: Document| Some((value.get_str("_id").ok()?.to_owned(), value));
        Ok(Self {
            values: values.into_iter().filter_map(by_id).collect(),
            writes: Some((key.checkpoint_id.into(), writes)),
        })
    }

    /// The writes on a checkpoint, if they were read.
    fn take_writes(&mut self, checkpoint_id: &str) -> Option<Vec<WriteRow>> {
        self.writes.take_if(|(id, _)| **id == *checkpoint_id).map(|(_, writes)| writes)
    }
}

/// Loads the writes, values and segments of rows of one thread.
pub(crate) async fn details<'a>(
    shared: &'a Shared,
    thread_id: &str,
    rows: &mut [Row],
    wanted: Wanted,
) -> Result<Loaded<'a>> {
    details_after(shared, thread_id, rows, wanted, Ahead::default()).await
}

/// Loads the writes, values and segments of rows of one namespace, apart from what was read before.
pub(crate) async fn details_after<'a>(
    shared: &'a Shared,
    thread_id: &str,
    rows: &mut [Row],
    wanted: Wanted,
    ahead: Ahead,
) -> Result<Loaded<'a>> {
    let mut loaded = of_threads(shared, rows, wanted, ahead).await?;
    Ok(loaded.remove(thread_id).unwrap_or_else(|| Loaded::new(shared, thread_id)))
}

/// Loads the writes, values and segments of rows: two trips, one more if there are chunks.
pub(crate) async fn of_threads<'a>(
    shared: &'a Shared,
    rows: &mut [Row],
    wanted: Wanted,
    mut ahead: Ahead,
) -> Result<Threads<'a>> {
    let mut threads: Threads<'a> = HashMap::new();
    for row in rows.iter() {
        let thread_id = row.thread_id.clone();
        threads.entry(thread_id.clone()).or_insert_with(|| Loaded::new(shared, &thread_id));
    }
    let only: Option<Str> = rows.first().map(|row| row.thread_id.clone()).filter(|_| threads.len() == 1);
    let only = only.as_deref();
    let mut ids: BTreeSet<String> = rows
        .iter()
        .flat_map(|row| {
            let keys = ThreadKeys::new(&row.thread_id);
            row.names.iter().map(move |name| keys.value(&row.checkpoint_ns, name))
        })
        .collect();
    ahead.values.retain(|id, _| ids.remove(id));
    let (mut ranges, mut known): (Vec<Range>, Vec<WriteRow>) = (Vec::new(), Vec::new());
    for row in rows.iter().filter(|_| wanted.writes) {
        if let Some(writes) = ahead.take_writes(&row.checkpoint_id) {
            known.extend(writes);
        } else {
            ranges.push(ThreadKeys::new(&row.thread_id).writes(&row.checkpoint_ns, &row.checkpoint_id));
        }
    }
    let values = by_ids(shared, only, ids.into_iter().collect(), None);
    let (mut values, mut writes) = try_join(values, writes_in(shared, only, &ranges)).await?;
    values.extend(ahead.values.into_values());
    writes.extend(known);
    for mut value in values {
        let addresses = match value.remove("a") {
            Some(Bson::Binary(binary)) => Addresses::new(binary.bytes)?,
            _ => Addresses::default(),
        };
        let id = value.get_str("_id").map_err(|_| not_understood("_id"))?.to_owned();
        if let Some(loaded) = threads.get_mut(&*text(&value, "t")?) {
            loaded.values.insert(id, StoredValue { record: Payload::take(&mut value, "d")?, addresses });
        }
    }
    let mut by_checkpoint: HashMap<(Str, Str, Str), Vec<WriteRow>> = HashMap::new();
    for write in writes {
        let of =
            (text(&write.head, "t")?, write.name.checkpoint_ns.clone(), write.name.checkpoint_id.clone());
        by_checkpoint.entry(of).or_default().push(write);
    }
    for row in rows.iter_mut() {
        let of = (row.thread_id.clone(), row.checkpoint_ns.clone(), row.checkpoint_id.clone());
        row.writes = visible(by_checkpoint.remove(&of).unwrap_or_default());
    }
    segments(shared, only, &mut threads, wanted.all_segments).await?;
    for (thread_id, loaded) in &mut threads {
        let mut payloads: Vec<&mut Payload> =
            loaded.values.values_mut().map(|value| &mut value.record).collect();
        for row in rows.iter_mut().filter(|row| row.thread_id == *thread_id) {
            payloads.extend([&mut row.metadata, &mut row.document]);
            payloads.extend(row.writes.iter_mut().map(|write| &mut write.record));
        }
        chunks(shared, thread_id, payloads).await?;
    }
    Ok(threads)
}

/// Loads the segments of values: those that the codec does not remember, or all.
async fn segments(shared: &Shared, only: Option<&str>, threads: &mut Threads<'_>, all: bool) -> Result<()> {
    let mut by_id: HashMap<String, (Str, Address)> = HashMap::new();
    for (thread_id, loaded) in &mut *threads {
        let keys = ThreadKeys::new(thread_id);
        let Loaded { values, reader, .. } = loaded;
        for value in values.values() {
            let addresses =
                if all { value.addresses.iter().collect() } else { reader.missing(&value.addresses) };
            let found = addresses.into_iter();
            by_id.extend(found.map(|address| (keys.segment(address), (thread_id.clone(), address))));
        }
    }
    for mut segment in by_ids(shared, only, by_id.keys().cloned().collect(), None).await? {
        let found = segment.get_str("_id").ok().and_then(|id| by_id.get(id));
        let Some((thread_id, address)) = found else { continue };
        let Payload::Inline(bytes) = Payload::take(&mut segment, "d")? else {
            return Err(not_understood("d"));
        };
        let Some(loaded) = threads.get_mut(thread_id) else { continue };
        loaded.reader.add(*address, row::read_value(&bytes)?);
        if all {
            loaded.segments.insert(*address, bytes);
        }
    }
    Ok(())
}

/// Loads the chunks of records.
pub(crate) async fn chunks(shared: &Shared, thread_id: &str, payloads: Vec<&mut Payload>) -> Result<()> {
    let keys = ThreadKeys::new(thread_id);
    for payload in payloads {
        let Payload::Chunked { owner, len } = &*payload else { continue };
        let filter = shared.mongo.in_range(thread_id, &keys.chunks(owner));
        let mut bytes = Vec::new();
        for mut chunk in shared.mongo.find(Find { filter, ..Find::default() }).await? {
            if let Payload::Inline(part) = Payload::take(&mut chunk, "d")? {
                bytes.extend_from_slice(&part);
            }
        }
        if bytes.len() == *len {
            *payload = Payload::Inline(bytes.into());
        }
        // Otherwise a part is not there any more: it stays in chunks, which is found out by who needs the bytes.
    }
    Ok(())
}

/// Assembles the tuples of one thread.
#[derive(Debug)]
pub(crate) struct Assembler<'a, 'l> {
    shared: &'a Shared,
    keys: ThreadKeys,
    loaded: &'l mut Loaded<'a>,
    /// Every checkpoint that names a value shares its bytes.
    opened: HashMap<String, ChannelValue>,
}

impl<'a, 'l> Assembler<'a, 'l> {
    pub(crate) fn new(shared: &'a Shared, thread_id: &str, loaded: &'l mut Loaded<'a>) -> Self {
        Self { shared, keys: ThreadKeys::new(thread_id), loaded, opened: HashMap::new() }
    }

    /// The tuple of a row, or `None` if a part of it is not there (any more).
    pub(crate) fn tuple(&mut self, row: &Row) -> Result<Option<CheckpointTuple>> {
        let (codec, key) = (self.shared.values(), row.key());
        let (Ok(document), Ok(metadata)) = (row.document.bytes(), row.metadata.bytes()) else {
            return Ok(None);
        };
        let Some(writes) = self.writes(row)? else { return Ok(None) };
        let decoded = Decoded::read(codec, key, &row.names, document).map_err(key.context())?;
        let metadata = row::open_metadata(codec, key, metadata).map_err(key.context())?;
        let mut checkpoint = match decoded {
            None => opaque::checkpoint(row.checkpoint_id.clone(), row::read_value(document)?),
            Some(decoded) => {
                let mut values = Vec::new();
                for (at, named) in decoded.named.iter().enumerate() {
                    if named.name.is_none() {
                        continue;
                    }
                    let Some(value) = self.value(row, &decoded, at)? else { return Ok(None) };
                    values.push((named.channel.clone(), value));
                }
                let mut checkpoint = decoded.checkpoint;
                checkpoint.channel_values.extend(values);
                checkpoint
            }
        };
        checkpoint.id = row.checkpoint_id.clone();
        Ok(Some(CheckpointTuple::new(key.to_config(), checkpoint, metadata, row.parent.clone(), writes)))
    }

    /// The writes on a row in order, or `None` if a part of one is not there.
    pub(crate) fn writes(&self, row: &Row) -> Result<Option<Vec<PendingWrite>>> {
        let mut writes = Vec::with_capacity(row.writes.len());
        for write in &row.writes {
            let Ok(record) = write.record.bytes() else { return Ok(None) };
            writes.push(row::read_write(self.shared.values(), &row.thread_id, &write.name, record)?);
        }
        writes.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
        Ok(Some(writes))
    }

    /// The value at this place among those that a row names, or `None` if it is not there.
    pub(crate) fn value(&mut self, row: &Row, decoded: &Decoded, at: usize) -> Result<Option<ChannelValue>> {
        let (Some(named), Some(name)) = (decoded.named.get(at), row.names.get(at)) else { return Ok(None) };
        let id = self.keys.value(&row.checkpoint_ns, name);
        if let Some(value) = self.opened.get(&id) {
            return Ok(Some(value.clone()));
        }
        let Some(stored) = self.loaded.values.get(&id) else { return Ok(None) };
        let Ok(record) = stored.record.bytes() else { return Ok(None) };
        let reader = &mut self.loaded.reader;
        if !reader.missing(&stored.addresses).is_empty() {
            return Ok(None);
        }
        let value = decoded.open_value(reader, row.key(), &named.channel, record, &stored.addresses)?;
        self.opened.insert(id, value.clone());
        Ok(Some(value))
    }

    /// What is now known of a row.
    pub(crate) fn known(&self, row: &Row) -> Known {
        let value = |name: &Name| {
            let stored = self.loaded.values.get(&self.keys.value(&row.checkpoint_ns, name))?;
            Some((*name, stored.addresses.clone()))
        };
        let values = row.names.iter().filter_map(value).collect();
        Known { checkpoint_id: row.checkpoint_id.clone(), values }
    }
}

/// What is read of the id alone: covered by the index of `_id`s, unless threads expire.
pub(crate) fn only_ids(shared: &Shared) -> Document {
    if shared.ttl.is_some() {
        doc! { "_id": 1, "x": 1 }
    } else {
        doc! { "_id": 1 }
    }
}

/// The `_id` of a document, unless it has expired.
pub(crate) fn live_id(document: &Document) -> Option<String> {
    document.get_str("_id").ok().filter(|_| !is_expired(document)).map(str::to_owned)
}

/// The escaped thread in an `_id`.
pub(crate) fn thread_of(id: &str) -> &str {
    keys::parts(id).map_or("", |[thread, ..]| thread)
}
