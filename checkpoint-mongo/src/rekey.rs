//! `rekey`: seals values again with the sealing key.
//!
//! With the key also the names change under which values are stored, and the addresses of segments. So a value is stored
//! again under its new name, then the checkpoints refer to it, and at the end the old one is garbage.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use bytes::Bytes;
use checkpoint_core::backend::segments::{Address, Addresses, MANIFEST};
use checkpoint_core::backend::{AssociatedData, CheckpointKey, Rekeying, STEP_KEY, ValueCodec};
use checkpoint_core::{Error, RekeyOptions, RekeyReport, Result, SealedBy, Str, TypedBytes};
use mongodb::bson::{Bson, Document, doc};

use crate::client::Find;
use crate::copy::{next_page, page_of_writes};
use crate::keys::{self, ThreadKeys, kind};
use crate::list::all_rows;
use crate::load::{self, Assembler, CHUNK, HALF_CHUNK, Loaded, Row, Wanted, WriteRow, binary};
use crate::prune;
use crate::row::{self, Document as Decoded, Name, StoredWrite};
use crate::shared::Shared;
use crate::write::add_tokens;

/// How many checkpoints are read and stored at a time.
const ROWS: usize = 64;

/// Everything that a value may be sealed in.
const ALL: Wanted = Wanted { writes: false, all_segments: true };

/// Seals the values of a thread again.
pub(crate) async fn rekey(shared: &Shared, thread_id: &str, options: RekeyOptions) -> Result<RekeyReport> {
    shared.ready().await?;
    let counts = Counts::of(shared, thread_id).await?;
    let mut rekeying = Rekeying::begin(shared.values(), options, &counts)?;
    if rekeying.reads_values() {
        for pass in 1.. {
            let mut run = Run::new(shared, thread_id, &mut rekeying);
            let is_complete = run.rows().await? & run.writes().await?;
            let Run { old_values, old_segments, .. } = run;
            if !old_values.is_empty() || !old_segments.is_empty() {
                shared.forget(thread_id);
                prune::collect(shared, thread_id, &old_values).await?;
                collect_segments(shared, thread_id, &old_segments).await?;
            }
            if is_complete {
                break;
            }
            if pass == Rekeying::PASSES {
                return Err(Rekeying::conflict());
            }
            rekeying.pass_again();
        }
    }
    let counts = if rekeying.must_count_again() { Counts::of(shared, thread_id).await? } else { counts };
    rekeying.report(counts)
}

/// Deletes those of these segments that no value has any more.
async fn collect_segments(shared: &Shared, thread_id: &str, segments: &HashSet<Address>) -> Result<()> {
    let keys = ThreadKeys::new(thread_id);
    let filter = shared.mongo.in_range(thread_id, &keys.all(kind::VALUE));
    let find = Find { filter, projection: Some(doc! { "a": 1 }), ..Find::default() };
    let mut dead = segments.clone();
    for mut value in shared.mongo.find(find).await? {
        if let Some(Bson::Binary(binary)) = value.remove("a") {
            let addresses = Addresses::new(binary.bytes)?;
            for address in addresses.iter() {
                dead.remove(&address);
            }
        }
    }
    let ids: Vec<String> = dead.into_iter().map(|address| keys.segment(address)).collect();
    for ids in ids.chunks(1000) {
        shared.mongo.delete(vec![shared.mongo.by_ids(thread_id, ids.iter().cloned())]).await?;
    }
    Ok(())
}

/// How many values are sealed by which key: checkpoints with their metadata, values, segments and writes.
#[derive(Debug, Default)]
struct Counts {
    values: BTreeMap<SealedBy, u64>,
    seen: HashSet<String>,
}

impl Counts {
    async fn of(shared: &Shared, thread_id: &str) -> Result<BTreeMap<SealedBy, u64>> {
        let keys = ThreadKeys::new(thread_id);
        let mut counts = Self::default();
        let mut rows = all_rows(shared, thread_id, None).await?;
        while !rows.is_empty() {
            let rest = rows.split_off(rows.len().min(ROWS));
            let mut page = std::mem::replace(&mut rows, rest);
            let loaded = load::details(shared, thread_id, &mut page, ALL).await?;
            for row in &page {
                if let Ok(document) = row.document.bytes() {
                    counts.add(&row::read_value(document)?);
                }
            }
            let segments =
                loaded.segments.iter().map(|(address, bytes)| (keys.segment(*address), Some(bytes)));
            let values = loaded.values.iter().map(|(id, value)| (id.clone(), value.record.bytes().ok()));
            for (id, record) in values.chain(segments) {
                if let Some(record) = record
                    && counts.seen.insert(id)
                {
                    counts.add(&row::read_value(record)?);
                }
            }
        }
        let mut range = keys.all(kind::WRITE);
        loop {
            let writes = page_of_writes(shared, thread_id, &range).await?;
            let next = next_page(&range, &writes);
            for record in writes.iter().filter_map(|write| write.record.bytes().ok()) {
                counts.add(&StoredWrite::read(record)?.value);
            }
            let Some(next) = next else { break };
            range = next;
        }
        Ok(counts.values)
    }

    fn add(&mut self, typed: &TypedBytes) {
        *self.values.entry(SealedBy::of(&typed.tag, &typed.data)).or_default() += 1;
    }
}

/// One pass over a thread.
struct Run<'a> {
    shared: &'a Shared,
    thread_id: &'a str,
    keys: ThreadKeys,
    rekeying: &'a mut Rekeying,
    codec: ValueCodec,
    /// The names of values that were stored again, by namespace and old name.
    stored: HashMap<(Str, Name), Name>,
    new_segments: HashSet<Address>,
    old_values: BTreeSet<(Str, Name)>,
    old_segments: HashSet<Address>,
}

/// A document that takes another one's place.
struct Replacement {
    old: Document,
    new: Document,
    /// How many values it counts as.
    counted: u64,
}

/// What becomes of a value.
enum Change {
    Keep,
    Failed,
    /// It is stored under this name.
    Store(Name, Vec<Document>),
}

impl<'a> Run<'a> {
    fn new(shared: &'a Shared, thread_id: &'a str, rekeying: &'a mut Rekeying) -> Self {
        Self {
            shared,
            thread_id,
            keys: ThreadKeys::new(thread_id),
            rekeying,
            codec: shared.values().requiring_decryption(),
            stored: HashMap::new(),
            new_segments: HashSet::new(),
            old_values: BTreeSet::new(),
            old_segments: HashSet::new(),
        }
    }

    /// Seals checkpoints, values and segments again. `false` if some of them changed meanwhile.
    async fn rows(&mut self) -> Result<bool> {
        let mut is_complete = true;
        let mut rows = all_rows(self.shared, self.thread_id, None).await?;
        while !rows.is_empty() {
            let rest = rows.split_off(rows.len().min(ROWS));
            let mut page = std::mem::replace(&mut rows, rest);
            let mut loaded = load::details(self.shared, self.thread_id, &mut page, ALL).await?;
            let (mut data, mut changes) = (Vec::new(), Vec::new());
            for row in &page {
                is_complete &= self.row(row, &mut loaded, &mut data, &mut changes)?;
            }
            self.shared.mongo.replace(self.thread_id, &data).await?;
            is_complete &= self.replace(changes).await?;
        }
        Ok(is_complete)
    }

    /// Decides what becomes of a checkpoint: which values are stored again, and then which document is replaced.
    fn row(
        &mut self,
        row: &Row,
        loaded: &mut Loaded<'a>,
        data: &mut Vec<Document>,
        changes: &mut Vec<Replacement>,
    ) -> Result<bool> {
        let key = row.key();
        let (Ok(document), Ok(metadata)) = (row.document.bytes(), row.metadata.bytes()) else {
            return Ok(false);
        };
        let stored = row::read_value(document)?;
        let resealed = self.rekeying.reseal(Ok(stored), &key.checkpoint_data(), key.context());
        let Ok(Some(opened)) = Decoded::read(&self.codec, key, &row.names, document) else {
            // Noted, unless this is a dry run.
            return Ok(true);
        };
        let mut names = row.names.clone();
        let mut is_complete = true;
        for (at, name) in names.iter_mut().enumerate() {
            match self.value(row, &opened, at, loaded)? {
                Change::Keep => {}
                Change::Failed => is_complete = false,
                Change::Store(new, documents) => {
                    data.extend(documents);
                    *name = new;
                }
            }
        }
        if resealed.is_none() && names == row.names {
            return Ok(is_complete);
        }
        let counted = u64::from(resealed.is_some());
        let document = match resealed {
            Some(resealed) => Bytes::from(row::value(&resealed)?),
            None => document.clone(),
        };
        let opened = row::open_metadata(&self.codec, key, metadata).map_err(key.context())?;
        let metadata = row::reseal_metadata(&self.codec, key, key, metadata).map_err(key.context())?;
        let mut new = row.head.clone();
        let old = new.clone();
        new.insert("nm", binary(&names.concat()));
        add_tokens(self.shared, &mut new, &opened)?;
        if let Some(step) = opened.get(STEP_KEY).and_then(|step| step.as_str()).filter(|_| row.step.is_some())
        {
            let parent = row.parent.as_deref().unwrap_or_default();
            let step = self.keys.step(&self.codec, &row.checkpoint_ns, parent, step);
            let mut decision = doc! {
                "_id": &step, "t": self.thread_id, "n": &*row.checkpoint_ns, "c": &*row.checkpoint_id,
            };
            self.shared.stamp(&mut decision, true);
            data.push(decision);
            new.insert("s", step);
        }
        let mut chunks = Vec::new();
        for (field, record) in [("md", &metadata), ("ck", &document)] {
            let stored =
                load::store(self.shared, &self.keys, self.thread_id, record, HALF_CHUNK, &mut chunks);
            new.insert(field, stored);
        }
        load::add_size(&mut new);
        data.extend(chunks);
        changes.push(Replacement { old, new, counted });
        Ok(is_complete)
    }

    /// Replaces documents that have not changed meanwhile. `false` if one has.
    async fn replace(&mut self, changes: Vec<Replacement>) -> Result<bool> {
        let mut is_complete = true;
        for Replacement { old, new, counted } in changes {
            // The time of a `put` tells two states of a document apart.
            let mut same = self.shared.mongo.by_id(self.thread_id, new.get_str("_id").unwrap_or_default());
            if let Some(created) = old.get("ct") {
                same.insert("ct", created.clone());
            }
            let mut set = new;
            set.remove("_id");
            if self.shared.mongo.update(same, doc! { "$set": set }).await? == 1 {
                self.rekeying.stored(counted);
            } else {
                is_complete = false;
            }
        }
        Ok(is_complete)
    }

    /// Decides what becomes of a value that a checkpoint names.
    fn value(&mut self, row: &Row, document: &Decoded, at: usize, loaded: &mut Loaded<'a>) -> Result<Change> {
        let (Some(named), Some(name)) = (document.named.get(at), row.names.get(at)) else {
            return Ok(Change::Keep);
        };
        let ns = row.checkpoint_ns.clone();
        let old_name = (ns.clone(), *name);
        if let Some(new) = self.stored.get(&old_name) {
            return Ok(if new == name { Change::Keep } else { Change::Store(*new, Vec::new()) });
        }
        let Some(stored) = loaded.values.get(&self.keys.value(&ns, name)).cloned() else {
            return Ok(Change::Failed);
        };
        let Ok(record) = stored.record.bytes() else { return Ok(Change::Failed) };
        let (key, version) = (row.key(), document.version(&named.channel)?);
        let data = AssociatedData::Blob {
            thread_id: self.thread_id,
            checkpoint_ns: &ns,
            channel: &named.channel,
            version: &version,
        };
        let context = |error: Error| key.context()(error).with("channel", &named.channel);
        let Some(resealed) = self.rekeying.reseal(row::read_value(record), &data, context) else {
            self.stored.insert(old_name, *name);
            return Ok(Change::Keep);
        };
        let new = keys::value(&self.codec, &named.channel, &version);
        let mut documents = Vec::new();
        let mut count = 1;
        let (record, addresses) = if resealed.tag.split('+').next() == Some(MANIFEST) {
            // The addresses are keyed by the old key, too.
            let mut assembler = Assembler::new(self.shared, self.thread_id, loaded);
            let Some(value) = assembler.value(row, document, at)? else { return Ok(Change::Failed) };
            let split = self.shared.codec.split(value.to_typed()?, &data)?;
            for segment in &split.segments {
                if self.new_segments.insert(segment.address()) {
                    let sealed = row::value(&self.shared.codec.seal_segment(segment, self.thread_id)?)?;
                    let id = self.keys.segment(segment.address());
                    let mut document = doc! { "_id": id, "t": self.thread_id, "d": binary(&sealed) };
                    self.shared.stamp(&mut document, true);
                    documents.push(document);
                    count += 1;
                }
            }
            (row::value(&split.value)?, split.addresses)
        } else {
            (row::value(&resealed)?, Addresses::default())
        };
        let field =
            load::store(self.shared, &self.keys, self.thread_id, &record.into(), CHUNK, &mut documents);
        let mut document = doc! { "_id": self.keys.value(&ns, &new), "t": self.thread_id, "d": field };
        if !addresses.is_empty() {
            document.insert("a", binary(addresses.as_bytes()));
        }
        self.shared.stamp(&mut document, true);
        documents.push(document);
        self.old_segments.extend(stored.addresses.iter());
        if new != *name {
            self.old_values.insert(old_name.clone());
        }
        self.stored.insert(old_name, new);
        self.rekeying.stored(count);
        Ok(Change::Store(new, documents))
    }

    /// Seals writes again. `false` if some of them changed meanwhile.
    async fn writes(&mut self) -> Result<bool> {
        let mut is_complete = true;
        let mut range = self.keys.all(kind::WRITE);
        loop {
            let writes = page_of_writes(self.shared, self.thread_id, &range).await?;
            let next = next_page(&range, &writes);
            for write in &writes {
                let Some(record) = self.write(write)? else { continue };
                let mut chunks = Vec::new();
                let field = load::store(self.shared, &self.keys, self.thread_id, &record, CHUNK, &mut chunks);
                self.shared.mongo.insert(&chunks, false).await?;
                let mut same = self.shared.mongo.by_id(self.thread_id, &write.id);
                if let Some(created) = write.head.get("ct") {
                    same.insert("ct", created.clone());
                }
                let mut set = doc! { "d": field };
                load::add_size(&mut set);
                if self.shared.mongo.update(same, doc! { "$set": set }).await? == 1 {
                    self.rekeying.stored(1);
                } else {
                    is_complete = false;
                }
            }
            let Some(next) = next else { return Ok(is_complete) };
            range = next;
        }
    }

    fn write(&mut self, write: &WriteRow) -> Result<Option<Bytes>> {
        let name = &write.name;
        let key = CheckpointKey::new(self.thread_id, &name.checkpoint_ns, &name.checkpoint_id);
        let Ok(record) = write.record.bytes() else { return Ok(None) };
        let stored = StoredWrite::read(record)?;
        let (channel, _) = match stored.open_header(&self.codec, key, name) {
            Ok(header) => header,
            Err(error) => {
                if !self.rekeying.is_dry_run() {
                    self.rekeying.fail(key.context()(error));
                    return Ok(None);
                }
                Default::default()
            }
        };
        let data = key.write_data(&name.task_id, name.idx, &channel);
        if self.rekeying.reseal(Ok(stored.value.clone()), &data, key.context()).is_none() {
            return Ok(None);
        }
        let resealed = stored.reseal(&self.codec, key, key, name).map_err(key.context())?;
        Ok(Some(resealed.into()))
    }
}
