//! `rekey`: seals values again with the sealing key.
//!
//! With the key also the pseudonyms change under which values are stored, and the addresses of segments. So a value is
//! stored again under its new name, then the checkpoints refer to it, and at the end the old one is garbage.

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use checkpoint_core::backend::segments::{Address, MANIFEST};
use checkpoint_core::backend::{AssociatedData, CheckpointKey, Rekeying, STEP_KEY, ValueCodec};
use checkpoint_core::{CheckpointConfig, Error, RekeyOptions, RekeyReport, Result, SealedBy, TypedBytes};
use redis::Pipeline;

use crate::keys::{self, ThreadKeys, kind};
use crate::load::{Assembler, Loaded, Row};
use crate::pages::{RowPages, WritePages};
use crate::prune;
use crate::row::{self, Document, Head, StoredWrite};
use crate::shared::Shared;

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
                shared.codec.forget(thread_id);
                let keys = shared.keys.thread(thread_id);
                let segments = old_segments.iter().map(|address| address.as_bytes().to_vec()).collect();
                prune::collect(shared, thread_id, &keys, old_values.into_iter().collect(), segments).await?;
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

/// How many values are sealed by which key: checkpoints with their metadata, values, segments and writes.
#[derive(Debug, Default)]
struct Counts {
    values: BTreeMap<SealedBy, u64>,
    seen: HashSet<Vec<u8>>,
}

impl Counts {
    async fn of(shared: &Shared, thread_id: &str) -> Result<BTreeMap<SealedBy, u64>> {
        let mut counts = Self::default();
        let mut pages = RowPages::new(thread_id);
        while let Some((rows, loaded)) = pages.next(shared).await? {
            for row in rows.iter().filter(|row| !row.document.is_empty()) {
                counts.add(&row::read_value(&row.document)?);
            }
            let segments =
                loaded.segments.iter().map(|(address, segment)| (keys::segment(*address), segment));
            let values = loaded.fields.iter().map(|(field, value)| (field.to_vec(), value));
            for (field, stored) in values.chain(segments) {
                if counts.seen.insert(field) {
                    counts.add(&row::read_value(stored)?);
                }
            }
        }
        let mut pages = WritePages::new(shared.keys.thread(thread_id));
        while let Some(writes) = pages.next(shared).await? {
            for stored in writes.into_iter().filter_map(|(_, stored)| stored) {
                counts.add(&StoredWrite::read(&stored)?.value);
            }
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
    /// The names of values that were stored again, without their kind.
    stored: HashMap<Vec<u8>, Vec<u8>>,
    new_segments: HashSet<Address>,
    old_values: HashSet<Vec<u8>>,
    old_segments: HashSet<Address>,
}

/// Fields that are replaced together, with their old and new values.
struct Replacement {
    fields: Vec<(Vec<u8>, Bytes, Bytes)>,
    /// How many values they count as.
    counted: u64,
}

/// What becomes of a value.
enum Change {
    Keep,
    Failed,
    /// It is stored under this name.
    Store(Vec<u8>, Vec<(Vec<u8>, Bytes)>),
}

impl<'a> Run<'a> {
    fn new(shared: &'a Shared, thread_id: &'a str, rekeying: &'a mut Rekeying) -> Self {
        Self {
            shared,
            thread_id,
            keys: shared.keys.thread(thread_id),
            rekeying,
            codec: shared.values().requiring_decryption(),
            stored: HashMap::new(),
            new_segments: HashSet::new(),
            old_values: HashSet::new(),
            old_segments: HashSet::new(),
        }
    }

    /// Seals checkpoints, values and segments again. `false` if some of them changed meanwhile.
    async fn rows(&mut self) -> Result<bool> {
        let mut is_complete = true;
        let mut pages = RowPages::new(self.thread_id);
        while let Some((rows, mut loaded)) = pages.next(self.shared).await? {
            let (mut values, mut changes) = (Vec::new(), Vec::new());
            for row in &rows {
                is_complete &= self.row(row, &mut loaded, &mut values, &mut changes)?;
            }
            self.store(&values).await?;
            is_complete &= self.replace(changes).await?;
        }
        Ok(is_complete)
    }

    /// Decides what becomes of a checkpoint: which values are stored again, and then which fields are replaced.
    fn row(
        &mut self,
        row: &Row,
        loaded: &mut Loaded<'a>,
        values: &mut Vec<(Vec<u8>, Bytes)>,
        changes: &mut Vec<Replacement>,
    ) -> Result<bool> {
        let key = row.key();
        if row.document.is_empty() {
            return Ok(false);
        }
        let stored = row::read_value(&row.document)?;
        let resealed = self.rekeying.reseal(Ok(stored), &key.checkpoint_data(), key.context());
        let Ok(Some(opened)) = Document::read(&self.codec, key, &row.head.names, &row.document) else {
            // Noted, unless this is a dry run.
            return Ok(true);
        };
        let mut head = row.head.clone();
        let mut is_complete = true;
        for at in 0..row.head.names.len() {
            match self.value(row, &opened, at, loaded)? {
                Change::Keep => {}
                Change::Failed => is_complete = false,
                Change::Store(name, fields) => {
                    values.extend(fields);
                    if let Some(of_head) = head.names.get_mut(at) {
                        *of_head = name;
                    }
                }
            }
        }
        if resealed.is_none() && head == row.head {
            return Ok(is_complete);
        }
        let counted = u64::from(resealed.is_some());
        let document = match resealed {
            Some(resealed) => Bytes::from(row::value(&resealed)?),
            None => row.document.clone(),
        };
        let metadata = row.head.open_metadata(&self.codec, key).map_err(key.context())?;
        head = Head { metadata: head.reseal(&self.codec, key, key)?.metadata, ..head };
        let suffix = row.suffix();
        let mut fields = vec![(keys::name(kind::CHECKPOINT, &[&suffix]), row.document.clone(), document)];
        if let Some(step) =
            metadata.get(STEP_KEY).and_then(|step| step.as_str()).filter(|_| !head.step.is_empty())
        {
            let config = CheckpointConfig::new(self.thread_id).with_checkpoint_ns(row.checkpoint_ns.clone());
            let config = head.parent().map_or_else(|| config.clone(), |parent| config.for_checkpoint(parent));
            let step = keys::step(&self.codec, &config, step);
            if step != head.step {
                let id = Bytes::copy_from_slice(row.checkpoint_id.as_bytes());
                fields.push((head.step.clone(), id.clone(), Bytes::new()));
                fields.push((step.clone(), Bytes::new(), id));
                head.step = step;
            }
        }
        let old = row.head.to_bytes()?.into();
        fields.push((keys::name(kind::METADATA, &[&suffix]), old, head.to_bytes()?.into()));
        changes.push(Replacement { fields, counted });
        Ok(is_complete)
    }

    /// Replaces fields. Where one has changed meanwhile, those that belong together stay; `false` then.
    async fn replace(&mut self, changes: Vec<Replacement>) -> Result<bool> {
        let all: Vec<_> = changes.iter().flat_map(|change| change.fields.clone()).collect();
        if all.is_empty() {
            return Ok(true);
        }
        if prune::replace(self.shared, &self.keys, &all).await? {
            self.rekeying.stored(changes.iter().map(|change| change.counted).sum());
            return Ok(true);
        }
        let mut is_complete = true;
        for change in &changes {
            if prune::replace(self.shared, &self.keys, &change.fields).await? {
                self.rekeying.stored(change.counted);
            } else {
                is_complete = false;
            }
        }
        Ok(is_complete)
    }

    /// Decides what becomes of a value that a checkpoint names.
    fn value(
        &mut self,
        row: &Row,
        document: &Document,
        at: usize,
        loaded: &mut Loaded<'a>,
    ) -> Result<Change> {
        let (Some(named), Some(name)) = (document.named.get(at), row.head.names.get(at)) else {
            return Ok(Change::Keep);
        };
        let ns = keys::namespace(&row.checkpoint_ns);
        let field = keys::name(kind::BLOB, &[&ns, name]);
        let old_name = field.get(1..).unwrap_or_default().to_vec();
        if let Some(new) = self.stored.get(&old_name) {
            return Ok(if new == name { Change::Keep } else { Change::Store(new.clone(), Vec::new()) });
        }
        let Some(stored) = loaded.fields.get(&*field) else { return Ok(Change::Failed) };
        let (key, version) = (row.key(), document.version(&named.channel)?);
        let data = AssociatedData::Blob {
            thread_id: self.thread_id,
            checkpoint_ns: &row.checkpoint_ns,
            channel: &named.channel,
            version: &version,
        };
        let context = |error: Error| key.context()(error).with("channel", &named.channel);
        let Some(resealed) = self.rekeying.reseal(row::read_value(stored), &data, context) else {
            self.stored.insert(old_name, name.clone());
            return Ok(Change::Keep);
        };
        let new = keys::value(&self.codec, &named.channel, &version);
        let mut fields = Vec::new();
        let mut count = 1;
        let list = row.lists.get(at);
        if resealed.tag.split('+').next() == Some(MANIFEST) {
            // The addresses are keyed by the old key, too.
            let mut assembler = Assembler::new(self.shared, loaded);
            let Some(value) = assembler.value(row, document, at)? else { return Ok(Change::Failed) };
            let split = self.shared.codec.split(value.to_typed()?, &data)?;
            for segment in &split.segments {
                if self.new_segments.insert(segment.address()) {
                    let sealed = self.shared.codec.seal_segment(segment, self.thread_id)?;
                    fields.push((keys::segment(segment.address()), row::value(&sealed)?.into()));
                    count += 1;
                }
            }
            if !split.addresses.is_empty() {
                fields.push((keys::name(kind::ADDRESSES, &[&ns, &new]), split.addresses.as_bytes().clone()));
            }
            fields.push((keys::name(kind::BLOB, &[&ns, &new]), row::value(&split.value)?.into()));
        } else {
            fields.push((keys::name(kind::BLOB, &[&ns, &new]), row::value(&resealed)?.into()));
        }
        self.old_segments
            .extend(list.into_iter().flat_map(checkpoint_core::backend::segments::Addresses::iter));
        if new != *name {
            self.old_values.insert(old_name.clone());
        }
        self.stored.insert(old_name, new.clone());
        self.rekeying.stored(count);
        Ok(Change::Store(new, fields))
    }

    async fn store(&self, fields: &[(Vec<u8>, Bytes)]) -> Result<()> {
        if fields.is_empty() {
            return Ok(());
        }
        let mut commands = Pipeline::new();
        commands.atomic();
        let set = commands.cmd("HSET").arg(&self.keys.hash);
        for (field, value) in fields {
            set.arg(field).arg(&**value);
        }
        self.shared.connections.transaction(&self.keys.hash, &commands).await.map(|_| ())
    }

    /// Seals writes again. `false` if some of them changed meanwhile.
    async fn writes(&mut self) -> Result<bool> {
        let mut is_complete = true;
        let mut pages = WritePages::new(self.keys.clone());
        while let Some(writes) = pages.next(self.shared).await? {
            let mut changes = Vec::new();
            for (field, stored) in writes {
                let Some(stored) = stored else { continue };
                changes.extend(self.write(&field, stored)?);
            }
            is_complete &= self.replace(changes).await?;
        }
        Ok(is_complete)
    }

    fn write(&mut self, field: &[u8], bytes: Bytes) -> Result<Option<Replacement>> {
        let name = keys::read_write(field)?;
        let key = CheckpointKey::new(self.thread_id, &name.checkpoint_ns, &name.checkpoint_id);
        let stored = StoredWrite::read(&bytes)?;
        let (channel, _) = match stored.open_header(&self.codec, key, &name) {
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
        let resealed = stored.reseal(&self.codec, key, key, &name).map_err(key.context())?;
        Ok(Some(Replacement { fields: vec![(field.to_vec(), bytes, resealed.into())], counted: 1 }))
    }
}
