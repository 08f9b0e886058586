//! `copy_thread`: data first, the checkpoints at the end, so that none is visible that lacks a part.

use std::collections::HashSet;

use bytes::Bytes;
use checkpoint_core::backend::segments::Address;
use checkpoint_core::backend::{AssociatedData, CheckpointKey};
use checkpoint_core::cipher::BOUND_SUFFIX;
use checkpoint_core::{Error, ErrorKind, Result, TypedBytes};
use mongodb::bson::{Document, doc};

use crate::client::{Find, Inserted};
use crate::keys::{Range, ThreadKeys, kind};
use crate::list::all_rows;
use crate::load::{self, CHUNK, HALF_CHUNK, Loaded, Payload, Row, Wanted, WriteRow, binary};
use crate::row::{self, Document as Decoded, StoredWrite};
use crate::shared::Shared;

/// How many checkpoints are read and stored at a time.
const ROWS: usize = 64;

/// How many writes.
const WRITES: usize = 1000;

/// How many writes are replaced at a time: each may have 8 MiB, and a message at most 48 MB.
const REPLACED: usize = 4;

/// How often a copy begins again because the source was pruned meanwhile.
const ATTEMPTS: usize = 5;

pub(crate) async fn copy_thread(shared: &Shared, source: &str, target: &str) -> Result<()> {
    shared.ready().await?;
    if source == target {
        return Ok(());
    }
    for _ in 0..ATTEMPTS {
        let mut copy = Copy {
            shared,
            source,
            target,
            keys: ThreadKeys::new(source),
            target_keys: ThreadKeys::new(target),
            copied: HashSet::new(),
            segments: HashSet::new(),
            checkpoints: Vec::new(),
        };
        if copy.all().await? {
            shared.raise(target).await?;
            return Ok(());
        }
    }
    Err(Error::new(ErrorKind::Conflict, "the thread changed while it was copied; try again").retryable(true))
}

/// A copy that is under way.
struct Copy<'a> {
    shared: &'a Shared,
    source: &'a str,
    target: &'a str,
    keys: ThreadKeys,
    target_keys: ThreadKeys,
    /// The `_id`s of values, in the source.
    copied: HashSet<String>,
    segments: HashSet<Address>,
    checkpoints: Vec<Document>,
}

/// Whether a value is bound to its row.
pub(crate) fn is_bound(typed: &TypedBytes) -> bool {
    typed.tag.ends_with(BOUND_SUFFIX)
}

impl Copy<'_> {
    /// Copies everything. `false` if a part was not there any more.
    async fn all(&mut self) -> Result<bool> {
        let mut rows = all_rows(self.shared, self.source, None).await?;
        // The oldest first: what a call that was cut off has stored is the beginning of the thread.
        rows.reverse();
        while !rows.is_empty() {
            let rest = rows.split_off(rows.len().min(ROWS));
            let page = std::mem::replace(&mut rows, rest);
            if !self.rows(page).await? {
                return Ok(false);
            }
        }
        self.writes().await?;
        let checkpoints = std::mem::take(&mut self.checkpoints);
        for checkpoints in checkpoints.chunks(ROWS) {
            self.shared.mongo.replace(self.target, checkpoints).await?;
        }
        Ok(true)
    }

    async fn rows(&mut self, mut rows: Vec<Row>) -> Result<bool> {
        let wanted = Wanted { writes: false, all_segments: true };
        let loaded = load::details(self.shared, self.source, &mut rows, wanted).await?;
        let mut data = Vec::new();
        for row in &rows {
            if !self.row(row, &loaded, &mut data).map_err(row.key().context())? {
                return Ok(false);
            }
        }
        self.shared.mongo.insert(&data, false).await?;
        Ok(true)
    }

    fn document(&self, id: String, record: &Bytes, longest: usize, data: &mut Vec<Document>) -> Document {
        let field = load::store(self.shared, &self.target_keys, self.target, record, longest, data);
        let mut document = doc! { "_id": id, "t": self.target, "d": field };
        self.shared.stamp(&mut document, true);
        document
    }

    fn row(&mut self, row: &Row, loaded: &Loaded<'_>, data: &mut Vec<Document>) -> Result<bool> {
        let codec = self.shared.values();
        let (from, to) = (row.key(), row.key().in_thread(self.target));
        let (Ok(document), Ok(metadata)) = (row.document.bytes(), row.metadata.bytes()) else {
            return Ok(false);
        };
        let strict = codec.requiring_decryption();
        let opened = Decoded::read(&strict, from, &row.names, document)?;
        let named = opened.as_ref().map(|opened| &*opened.named).unwrap_or_default();
        for (at, name) in row.names.iter().enumerate() {
            let id = self.keys.value(&row.checkpoint_ns, name);
            if self.copied.contains(&id) {
                continue;
            }
            let Some(stored) = loaded.values.get(&id) else { return Ok(false) };
            let Ok(record) = stored.record.bytes() else { return Ok(false) };
            for address in stored.addresses.iter() {
                if self.segments.contains(&address) {
                    continue;
                }
                let Some(segment) = loaded.segments.get(&address) else { return Ok(false) };
                let mut typed = row::read_value(segment)?;
                if is_bound(&typed) {
                    typed = self.shared.codec.reseal_segment(address, typed, self.source, self.target)?;
                }
                let record = row::value(&typed)?.into();
                let copy = self.document(self.target_keys.segment(address), &record, CHUNK, data);
                data.push(copy);
                self.segments.insert(address);
            }
            let mut typed = row::read_value(record)?;
            if is_bound(&typed) {
                let Some((channel, opened)) = named.get(at).map(|named| &*named.channel).zip(opened.as_ref())
                else {
                    return Ok(false);
                };
                let version = opened.version(channel)?;
                let data = |thread_id| AssociatedData::Blob {
                    thread_id,
                    checkpoint_ns: &row.checkpoint_ns,
                    channel,
                    version: &version,
                };
                typed = codec
                    .reseal(typed, &data(self.source), &data(self.target))
                    .map_err(|error| error.with("channel", channel))?;
            }
            let of_target = self.target_keys.value(&row.checkpoint_ns, name);
            let record = row::value(&typed)?.into();
            let mut copy = self.document(of_target, &record, CHUNK, data);
            if !stored.addresses.is_empty() {
                copy.insert("a", binary(stored.addresses.as_bytes()));
            }
            data.push(copy);
            self.copied.insert(id);
        }
        let typed = row::read_value(document)?;
        let (document, metadata) = if is_bound(&typed) {
            let document = codec.reseal(typed, &from.checkpoint_data(), &to.checkpoint_data())?;
            (row::value(&document)?.into(), row::reseal_metadata(codec, from, to, metadata)?)
        } else {
            (document.clone(), metadata.clone())
        };
        let checkpoint = self.checkpoint(row, &metadata, &document, data);
        self.checkpoints.push(checkpoint);
        Ok(true)
    }

    fn checkpoint(
        &self,
        row: &Row,
        metadata: &Bytes,
        document: &Bytes,
        data: &mut Vec<Document>,
    ) -> Document {
        let (ns, id) = (&*row.checkpoint_ns, &*row.checkpoint_id);
        let mut copy = row.head.clone();
        copy.insert("_id", self.target_keys.checkpoint(ns, id));
        copy.insert("t", self.target);
        copy.remove("x");
        if let Some(step) = &row.step {
            // The decision about its step key is copied, too: the key finds the copy.
            let rest = step.strip_prefix(&self.keys.decisions()).unwrap_or_default();
            let step = format!("{}{rest}", self.target_keys.decisions());
            let mut decision = doc! { "_id": &step, "t": self.target, "n": ns, "c": id };
            self.shared.stamp(&mut decision, true);
            data.push(decision);
            copy.insert("s", step);
        }
        let mut chunks = Vec::new();
        for (field, record) in [("md", metadata), ("ck", document)] {
            let stored =
                load::store(self.shared, &self.target_keys, self.target, record, HALF_CHUNK, &mut chunks);
            copy.insert(field, stored);
        }
        data.extend(chunks);
        self.shared.stamp(&mut copy, false);
        copy
    }

    /// Copies all writes, also those of checkpoints that are not stored.
    async fn writes(&self) -> Result<()> {
        let mut range = self.keys.all(kind::WRITE);
        loop {
            let page = page_of_writes(self.shared, self.source, &range).await?;
            let mut data = Vec::new();
            for write in &page {
                data.extend(self.write(write)?);
            }
            if let Inserted::Duplicates(found) = self.shared.mongo.insert(&data, false).await? {
                // The target has writes of the same tasks.
                let replaced: Vec<Document> = found.iter().filter_map(|at| data.get(*at)).cloned().collect();
                for replaced in replaced.chunks(REPLACED) {
                    self.shared.mongo.replace(self.target, replaced).await?;
                }
            }
            let Some(next) = next_page(&range, &page) else { return Ok(()) };
            range = next;
        }
    }

    fn write(&self, write: &WriteRow) -> Result<Vec<Document>> {
        let name = &write.name;
        let from = CheckpointKey::new(self.source, &name.checkpoint_ns, &name.checkpoint_id);
        let record = write.record.bytes().map_err(from.context())?;
        let stored = StoredWrite::read(record).map_err(from.context())?;
        let record = if is_bound(&stored.value) || is_bound(&stored.header) {
            let to = from.in_thread(self.target);
            stored.reseal(self.shared.values(), from, to, name).map_err(from.context())?.into()
        } else {
            record.clone()
        };
        let mut data = Vec::new();
        let field = load::store(self.shared, &self.target_keys, self.target, &record, CHUNK, &mut data);
        let mut copy = write.head.clone();
        let WriteRow { name, .. } = write;
        let id = self.target_keys.write(&name.checkpoint_ns, &name.checkpoint_id, &name.task_id, name.idx);
        copy.insert("_id", id);
        copy.insert("t", self.target);
        copy.insert("d", field);
        copy.remove("x");
        self.shared.stamp(&mut copy, true);
        data.push(copy);
        Ok(data)
    }
}

/// The range behind a page, unless that was the last one.
pub(crate) fn next_page(range: &Range, page: &[WriteRow]) -> Option<Range> {
    let last = page.last().filter(|_| page.len() == WRITES)?;
    Some(range.clone().after(&last.id))
}

/// A page of the writes in a range, with their chunks.
pub(crate) async fn page_of_writes(shared: &Shared, thread_id: &str, range: &Range) -> Result<Vec<WriteRow>> {
    let filter = shared.mongo.in_range(thread_id, range);
    let found = shared.mongo.find(Find { filter, limit: WRITES, ..Find::default() }).await?;
    let mut writes: Vec<WriteRow> = found.into_iter().map(WriteRow::read).collect::<Result<_>>()?;
    let payloads: Vec<&mut Payload> = writes.iter_mut().map(|write| &mut write.record).collect();
    load::chunks(shared, thread_id, payloads).await?;
    Ok(writes)
}
