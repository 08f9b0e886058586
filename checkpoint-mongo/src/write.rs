//! `put`, `put_writes` and `delete_thread`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use checkpoint_core::backend::segments::{Address, Addresses, Segment};
use checkpoint_core::backend::{
    CheckpointKey, Decision, Found, FoundWrites, Inline, PreparedWrites, SplitCheckpoint,
};
use checkpoint_core::{
    ChannelValue, ChannelVersions, Checkpoint, CheckpointConfig, CheckpointMetadata, Error, ErrorKind,
    PutCondition, PutOptions, PutWritesOptions, Result, Str, id,
};
use futures_util::future::{join, try_join, try_join3, try_join5};
use mongodb::bson::{DateTime, Document, doc};

use crate::client::{Find, Inserted};
use crate::decisions::{self, Race};
use crate::error::BACKEND;
use crate::keys::{self, ThreadKeys, kind};
use crate::load::{self, CHUNK, HALF_CHUNK, binary};
use crate::prune::LINGER;
use crate::row::{self, Name, Named, Record, Rules};
use crate::shared::{Known, Shared, is_expired};
use crate::{leases, retention, tokens};

/// Some servers insert so many documents of a call at a time, and go on behind a duplicate with the next ones.
const BATCH: usize = 100;

/// How often a call is repeated whose decision another one has taken and not used.
const ATTEMPTS: usize = 8;

/// The arguments of a `put`.
pub(crate) struct PutCall {
    pub(crate) config: CheckpointConfig,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) metadata: CheckpointMetadata,
    pub(crate) new_versions: ChannelVersions,
    pub(crate) options: PutOptions,
}

/// Documents to store, and what the checkpoint refers to.
struct Prepared {
    /// Segments, chunks and values.
    data: Vec<Document>,
    /// The checkpoint, whose chunks are among the data.
    checkpoint: Document,
    segments: Vec<Segment>,
    /// The values that it stores.
    values: HashMap<Name, Addresses>,
    /// The values that it carries over, and those that the caller has left out.
    carried: Vec<(Name, bool)>,
    /// Whether it leaves out segments that the parent has.
    trusts_parent: bool,
    step: Option<String>,
}

impl Prepared {
    /// Whether the checkpoint needs what its parent has.
    fn relies_on_parent(&self) -> bool {
        !self.carried.is_empty() || self.trusts_parent
    }
}

/// Which values and segments need not be sent, because the parent has them.
#[derive(Clone, Copy)]
enum Parent<'a> {
    /// Nothing is known of it; carried values are expected there.
    Expected,
    /// It refers to these.
    Has(&'a Known),
    /// All values are sent.
    Nothing,
}

/// Stores a checkpoint, with the values that its thread does not have, and prunes behind it.
pub(crate) async fn put(shared: &Arc<Shared>, call: PutCall) -> Result<CheckpointConfig> {
    let Some(keep) = shared.keep_last.filter(|keep| keep.samples(&call.checkpoint.id)) else {
        return call.put(shared).await;
    };
    shared.ready().await?;
    let (stored, newest) = join(call.put(shared), retention::newest(shared, &call.config, keep)).await;
    let stored = stored?;
    retention::prune_behind(shared, &call.config, &call.checkpoint.id, keep, newest).await;
    Ok(stored)
}

/// Whether a checkpoint is stored and has not expired.
async fn is_stored(shared: &Shared, config: &CheckpointConfig, checkpoint_id: &str) -> Result<bool> {
    let id = ThreadKeys::new(config.thread_id()).checkpoint(config.checkpoint_ns(), checkpoint_id);
    let found = shared.mongo.get(config.thread_id(), &id, Some(doc! { "_id": 1, "x": 1 })).await?;
    Ok(found.is_some_and(|found| !is_expired(&found)))
}

/// What the parent refers to, if it is stored.
async fn of_parent(shared: &Shared, config: &CheckpointConfig, parent: &str) -> Result<Option<Known>> {
    let (thread_id, ns) = (config.thread_id(), config.checkpoint_ns());
    if parent.is_empty() {
        return Ok(None);
    }
    let id = ThreadKeys::new(thread_id).checkpoint(ns, parent);
    let found = shared.mongo.get(thread_id, &id, Some(doc! { "nm": 1, "x": 1 })).await?;
    let Some(found) = found.filter(|found| !is_expired(found)) else { return Ok(None) };
    let names = found.get_binary_generic("nm").map_or(Ok(Vec::new()), |bytes| load::names_of(bytes))?;
    // The segments of its values are remembered if this process has stored or read it.
    let remembered = shared.known(thread_id, ns, parent);
    let of = |name: &Name| {
        remembered.as_ref().and_then(|known| known.values.get(name)).cloned().unwrap_or_default()
    };
    let values = names.iter().map(|name| (*name, of(name))).collect();
    Ok(Some(Known { checkpoint_id: parent.into(), values }))
}

impl PutCall {
    async fn put(&self, shared: &Shared) -> Result<CheckpointConfig> {
        let Self { config, checkpoint, options, .. } = self;
        id::validate(&checkpoint.id)?;
        match options.condition {
            PutCondition::None | PutCondition::ParentStored | PutCondition::ParentIsLatest => {}
            _ => return Err(Error::unsupported(BACKEND, "put")),
        }
        let metadata = options.metadata(&self.metadata, config)?;
        let (thread_id, ns) = (config.thread_id(), config.checkpoint_ns());
        let parent = config.checkpoint_id().unwrap_or_default();
        let known = shared.known(thread_id, ns, parent);
        // Everything is checked before anything is sent.
        let expected =
            self.prepare(shared, &metadata, known.as_deref().map_or(Parent::Expected, Parent::Has))?;
        shared.ready().await?;
        let begun = Instant::now();
        if !expected.relies_on_parent() && !options.is_conditional() {
            self.store(shared, &expected, &[]).await?;
            return self.stored(shared, &expected, known.as_deref()).await;
        }
        // What the parent is known to have is not sent, while it is looked at whether the parent is still there.
        if known.is_some() && options.unchanged.is_empty() && !options.is_conditional() {
            let (_, is_there) =
                try_join(self.store(shared, &expected, &[]), is_stored(shared, config, parent)).await?;
            if !is_there || self.has_lost_parent(shared, &expected, begun).await? {
                return self.stored_without_parent(shared, &metadata).await;
            }
            return self.stored(shared, &expected, known.as_deref()).await;
        }
        let read = if expected.relies_on_parent() { of_parent(shared, config, parent).await? } else { None };
        let has = |name: &Name| read.as_ref().is_some_and(|read| read.values.contains_key(name));
        if expected.carried.iter().any(|(name, left_out)| *left_out && !has(name)) {
            shared.forget(thread_id);
            return Err(self.lacks_values());
        }
        let has_all = read.is_some() && expected.carried.iter().all(|(name, _)| has(name));
        let prepared = if has_all || !expected.relies_on_parent() {
            expected
        } else {
            shared.forget(thread_id);
            self.prepare(shared, &metadata, read.as_ref().map_or(Parent::Nothing, Parent::Has))?
        };
        if !options.is_conditional() {
            self.store(shared, &prepared, &[]).await?;
        } else if let Some(repeated) = self.store_if(shared, &prepared).await? {
            return Ok(config.for_checkpoint(repeated));
        }
        if self.has_lost_parent(shared, &prepared, begun).await? {
            return self.stored_without_parent(shared, &metadata).await;
        }
        self.stored(shared, &prepared, read.as_ref()).await
    }

    fn lacks_values(&self) -> Error {
        let message = "the thread does not have the value of an unchanged channel; retry with all values";
        let error = Error::new(ErrorKind::Conflict, message);
        match self.options.unchanged.first() {
            Some(channel) => error.with("channel", channel),
            None => error,
        }
    }

    /// Whether the parent may have been removed after it was looked at, and before the checkpoint was stored, with values that
    /// the checkpoint needs: see [`LINGER`].
    async fn has_lost_parent(&self, shared: &Shared, prepared: &Prepared, begun: Instant) -> Result<bool> {
        if !prepared.relies_on_parent() || begun.elapsed() < LINGER {
            return Ok(false);
        }
        let parent = self.config.checkpoint_id().unwrap_or_default();
        Ok(!is_stored(shared, &self.config, parent).await?)
    }

    /// After it was stored: adds what the parent had.
    async fn stored_without_parent(
        &self,
        shared: &Shared,
        metadata: &CheckpointMetadata,
    ) -> Result<CheckpointConfig> {
        let thread_id = self.config.thread_id();
        shared.forget(thread_id);
        if !self.options.unchanged.is_empty() {
            // Nobody has them.
            let id = ThreadKeys::new(thread_id).checkpoint(self.config.checkpoint_ns(), &self.checkpoint.id);
            shared.mongo.delete(vec![shared.mongo.by_id(thread_id, &id)]).await?;
            return Err(self.lacks_values());
        }
        let all = self.prepare(shared, metadata, Parent::Nothing)?;
        self.add(shared, &all).await?;
        shared.mongo.replace(thread_id, std::slice::from_ref(&all.checkpoint)).await?;
        self.stored(shared, &all, None).await
    }

    fn prepare(
        &self,
        shared: &Shared,
        metadata: &CheckpointMetadata,
        parent: Parent<'_>,
    ) -> Result<Prepared> {
        let Self { config, checkpoint, options, .. } = self;
        let (codec, thread_id, ns) = (shared.values(), config.thread_id(), config.checkpoint_ns());
        let keys = ThreadKeys::new(thread_id);
        let rules = Rules(&shared.codec);
        let split = SplitCheckpoint::new(
            codec,
            &rules,
            config,
            checkpoint,
            &self.sent_versions(shared, parent),
            options,
        )?;
        let is_snapshot = |channel: &str| {
            split.inline.iter().any(|(found, inline)| *found == channel && *inline == Inline::DeltaSnapshot)
        };
        let trusted: HashSet<Address> = match parent {
            Parent::Has(known) => known.values.values().flat_map(Addresses::iter).collect(),
            Parent::Expected | Parent::Nothing => HashSet::new(),
        };
        let (mut data, mut segments, mut named) = (Vec::new(), Vec::new(), Vec::new());
        let (mut values, mut carried) = (HashMap::new(), Vec::new());
        let mut sent: HashSet<Address> = HashSet::new();
        let mut trusts_parent = false;
        for blob in &split.blobs {
            let name = keys::value(codec, &blob.channel, &blob.version);
            for segment in &blob.segments {
                let address = segment.address();
                trusts_parent |= trusted.contains(&address);
                if trusted.contains(&address) || !sent.insert(address) {
                    continue;
                }
                let sealed = row::value(&shared.codec.seal_segment(segment, thread_id)?)?;
                let mut document =
                    doc! { "_id": keys.segment(address), "t": thread_id, "d": binary(&sealed) };
                shared.stamp(&mut document, true);
                data.push(document);
            }
            let record = Bytes::from(row::value(&blob.value)?);
            let field = load::store(shared, &keys, thread_id, &record, CHUNK, &mut data);
            let mut document = doc! { "_id": keys.value(ns, &name), "t": thread_id, "d": field };
            if !blob.addresses.is_empty() {
                document.insert("a", binary(blob.addresses.as_bytes()));
            }
            shared.stamp(&mut document, true);
            data.push(document);
            values.insert(name, blob.addresses.clone());
            let channel = blob.channel.clone();
            named.push(Named { is_snapshot: is_snapshot(&channel), channel, name: Some(name) });
        }
        for (channel, version) in &split.carried_over {
            let name = keys::value(codec, channel, &keys::version(version));
            carried.push((name, options.unchanged.iter().any(|left_out| **left_out == **channel)));
            let channel: Str = (*channel).into();
            named.push(Named { is_snapshot: is_snapshot(&channel), channel, name: Some(name) });
        }
        let key = CheckpointKey::new(thread_id, ns, &checkpoint.id);
        let record = Record::new(codec, key, checkpoint, &split, &named, metadata)?;
        let step = options
            .step_key
            .as_ref()
            .map(|step| keys.step(codec, ns, config.checkpoint_id().unwrap_or_default(), step));
        let checkpoint = document(
            shared,
            &keys,
            key,
            config.checkpoint_id(),
            &named,
            &record,
            metadata,
            step.as_deref(),
            &mut data,
        )?;
        let segments_of = split.blobs.into_iter().flat_map(|blob| blob.segments);
        segments.extend(segments_of);
        Ok(Prepared { data, checkpoint, segments, values, carried, trusts_parent, step })
    }

    /// The versions of the values that are sent: the new ones, and those that the parent does not have.
    fn sent_versions(&self, shared: &Shared, parent: Parent<'_>) -> ChannelVersions {
        let known = match parent {
            Parent::Expected => return self.new_versions.clone(),
            Parent::Nothing => None,
            Parent::Has(known) => Some(known),
        };
        let mut sent = self.new_versions.clone();
        for (channel, version) in &self.checkpoint.channel_versions {
            if self.options.unchanged.iter().any(|left_out| left_out == channel) {
                continue;
            }
            let name = keys::value(shared.values(), channel, &keys::version(version));
            if known.is_none_or(|known| !known.values.contains_key(&name)) {
                sent.insert(channel.clone(), version.clone());
            }
        }
        sent
    }

    /// Inserts the data, then decisions and the checkpoint. If something of it is stored already: what is missing, then the
    /// checkpoint over the one that is there. `false` if a decision was taken before.
    async fn store(&self, shared: &Shared, prepared: &Prepared, decisions: &[Document]) -> Result<bool> {
        let thread_id = self.config.thread_id();
        let mut last: Vec<Document> = decisions.to_vec();
        last.push(prepared.checkpoint.clone());
        let all: Vec<Document> = prepared.data.iter().cloned().chain(last.iter().cloned()).collect();
        let is_one_batch = decisions.is_empty() || all.len() <= BATCH;
        if is_one_batch && shared.mongo.insert(&all, true).await? == Inserted::All {
            return Ok(true);
        }
        self.add(shared, prepared).await?;
        if decisions.is_empty() {
            shared.mongo.replace(thread_id, &last).await?;
            return Ok(true);
        }
        match shared.mongo.insert(&last, true).await? {
            Inserted::All => Ok(true),
            Inserted::Duplicates(at) => {
                // The checkpoint itself is stored already, and the decision about it was not.
                let is_own = at.iter().all(|at| *at >= decisions.len());
                if is_own {
                    shared.mongo.replace(thread_id, std::slice::from_ref(&prepared.checkpoint)).await?;
                }
                Ok(is_own)
            }
        }
    }

    /// Inserts the data that is not there. What is there is held, so that nobody removes it, and gets the time to live of the
    /// new checkpoint.
    async fn add(&self, shared: &Shared, prepared: &Prepared) -> Result<()> {
        let mut missing = prepared.data.clone();
        for _ in 0..ATTEMPTS {
            let Inserted::Duplicates(at) = shared.mongo.insert(&missing, false).await? else { return Ok(()) };
            let there: Vec<Document> = at.into_iter().filter_map(|at| missing.get(at).cloned()).collect();
            let ids = there.iter().filter_map(|found| found.get_str("_id").ok().map(str::to_owned));
            let filter = shared.mongo.by_ids(self.config.thread_id(), ids);
            let mut held = doc! { "h": DateTime::now() };
            if let Some(expiry) = shared.expiry(true) {
                held.insert("x", expiry);
            }
            let count = shared.mongo.update(filter, doc! { "$set": held }).await?;
            if usize::try_from(count).is_ok_and(|count| count >= there.len()) {
                return Ok(());
            }
            // One of them was just removed.
            missing = there;
        }
        Err(Error::new(ErrorKind::Conflict, "the thread changed all the time; try again").retryable(true))
    }

    /// Stores the checkpoint if what the options ask for holds. Returns the checkpoint that it repeats, if it does.
    async fn store_if(&self, shared: &Shared, prepared: &Prepared) -> Result<Option<Str>> {
        let Self { config, checkpoint, options, .. } = self;
        let (thread_id, ns) = (config.thread_id(), config.checkpoint_ns());
        let keys = ThreadKeys::new(thread_id);
        let parent = config.checkpoint_id().unwrap_or_default();
        for _ in 0..ATTEMPTS {
            let found = self.found(shared, &keys, prepared).await?;
            let is_stored = found.is_stored;
            if let Decision::Repeats(checkpoint_id) = options.decide(config, found)? {
                return Ok(Some(checkpoint_id));
            }
            let decision = |id: String| {
                let mut decision = doc! {
                    "_id": id, "t": thread_id, "n": ns, "c": &*checkpoint.id
                };
                shared.stamp(&mut decision, true);
                decision
            };
            let mut decisions = Vec::new();
            if !is_stored {
                decisions.extend(prepared.step.clone().map(decision));
                if options.condition == PutCondition::ParentIsLatest {
                    decisions.push(decision(keys.child(ns, parent)));
                }
            }
            if self.store(shared, prepared, &decisions).await? {
                return Ok(None);
            }
            // Another call was first, or died between its decision and its checkpoint.
            let ids: Vec<_> = decisions.iter().filter_map(|decision| decision.get_str("_id").ok()).collect();
            decisions::settle(shared, thread_id, &ids, &checkpoint.id, Race::Checkpoint).await?;
        }
        Err(Error::new(ErrorKind::Conflict, "the thread changed all the time; try again").retryable(true))
    }

    /// What the options ask for, in one trip.
    async fn found(&self, shared: &Shared, keys: &ThreadKeys, prepared: &Prepared) -> Result<Found> {
        let Self { config, checkpoint, options, .. } = self;
        let (thread_id, ns) = (config.thread_id(), config.checkpoint_ns());
        let lease = async {
            match &options.lease {
                Some(lease) => leases::is_held(shared, lease).await,
                None => Ok(false),
            }
        };
        let step = async {
            match &prepared.step {
                Some(step) => shared.mongo.get(thread_id, step, None).await,
                None => Ok(None),
            }
        };
        let newest = async {
            if options.condition != PutCondition::ParentIsLatest {
                return Ok(None);
            }
            let filter = shared.mongo.in_range(thread_id, &keys.of_namespace(kind::CHECKPOINT, ns));
            let projection = Some(doc! { "c": 1, "x": 1 });
            let find = Find { filter, projection, descending: true, limit: 1 };
            let newest = shared.mongo.find(find).await?.pop().filter(|newest| !is_expired(newest));
            newest.map(|newest| load::text(&newest, "c")).transpose()
        };
        let parent = async {
            match config.checkpoint_id() {
                Some(parent) if options.condition == PutCondition::ParentStored => {
                    is_stored(shared, config, parent).await
                }
                _ => Ok(false),
            }
        };
        let own = is_stored(shared, config, &checkpoint.id);
        let (holds_lease, step, newest, parent_is_stored, is_stored) =
            try_join5(lease, step, newest, parent, own).await?;
        let mut found = Found { holds_lease, repeated: None, is_stored, parent_is_stored, newest };
        if let Some(decision) = step {
            let repeated = load::text(&decision, "c")?;
            if *repeated != *checkpoint.id && self::is_stored(shared, config, &repeated).await? {
                found.repeated = Some(repeated);
            }
        }
        Ok(found)
    }

    /// After it was stored.
    async fn stored(
        &self,
        shared: &Shared,
        prepared: &Prepared,
        parent: Option<&Known>,
    ) -> Result<CheckpointConfig> {
        let Self { config, checkpoint, .. } = self;
        let thread_id = config.thread_id();
        shared.codec.remember(thread_id, &prepared.segments);
        let mut values = prepared.values.clone();
        for (name, _) in &prepared.carried {
            let of_parent = parent.and_then(|parent| parent.values.get(name)).cloned();
            values.insert(*name, of_parent.unwrap_or_default());
        }
        shared.remember(
            thread_id,
            config.checkpoint_ns(),
            Known { checkpoint_id: checkpoint.id.clone(), values },
        );
        shared.raise(thread_id).await?;
        Ok(config.for_checkpoint(checkpoint.id.clone()))
    }
}

/// The document of a checkpoint; its chunks are added to the data.
#[expect(clippy::too_many_arguments, reason = "they are the parts of the document")]
pub(crate) fn document(
    shared: &Shared,
    keys: &ThreadKeys,
    key: CheckpointKey<'_>,
    parent: Option<&str>,
    named: &[Named],
    record: &Record,
    metadata: &CheckpointMetadata,
    step: Option<&str>,
    data: &mut Vec<Document>,
) -> Result<Document> {
    let CheckpointKey { thread_id, checkpoint_ns, checkpoint_id } = key;
    let all_names: Vec<u8> = named.iter().filter_map(|named| named.name).flatten().collect();
    let mut document = doc! {
        "_id": keys.checkpoint(checkpoint_ns, checkpoint_id),
        "t": thread_id,
        "n": checkpoint_ns,
        "c": checkpoint_id,
        "nm": binary(&all_names),
    };
    if let Some(parent) = parent {
        document.insert("p", parent);
    }
    if let Some(step) = step {
        document.insert("s", step);
    }
    add_tokens(shared, &mut document, metadata)?;
    document.insert("md", load::store(shared, keys, thread_id, &record.metadata, HALF_CHUNK, data));
    document.insert("ck", load::store(shared, keys, thread_id, &record.checkpoint, HALF_CHUNK, data));
    shared.stamp(&mut document, false);
    Ok(document)
}

/// Adds the tokens by which filters and `delete_for_runs` find the checkpoint.
pub(crate) fn add_tokens(
    shared: &Shared,
    document: &mut Document,
    metadata: &CheckpointMetadata,
) -> Result<()> {
    let codec = shared.values();
    let metadata = tokens::as_stored(metadata)?;
    document.insert("mt", tokens::tokens(codec, &metadata));
    match tokens::key(codec) {
        Some(key) => _ = document.insert("mk", key),
        None => _ = document.remove("mk"),
    }
    match metadata.run_id() {
        Some(run_id) => _ = document.insert("r", tokens::run(codec, run_id)),
        None => _ = document.remove("r"),
    }
    Ok(())
}

/// The arguments of a `put_writes`.
pub(crate) struct WritesCall {
    pub(crate) config: CheckpointConfig,
    pub(crate) writes: Vec<(Str, ChannelValue)>,
    pub(crate) task_id: Str,
    pub(crate) task_path: Str,
    pub(crate) options: PutWritesOptions,
}

/// Stores the writes of a task.
pub(crate) async fn put_writes(shared: &Shared, call: WritesCall) -> Result<()> {
    let WritesCall { config, writes, task_id, task_path, options } = &call;
    let prepared = PreparedWrites::new(shared.values(), config, writes, task_id, task_path)?.with(options)?;
    if prepared.rows.is_empty() {
        return Ok(());
    }
    shared.ready().await?;
    let thread_id = config.thread_id();
    let (chunks, documents) = documents(shared, &prepared)?;
    if options.is_conditional() {
        store_if(shared, config, &prepared, options, chunks, documents).await?;
    } else {
        if !chunks.is_empty() {
            shared.mongo.insert(&chunks, false).await?;
        }
        if prepared.replace {
            shared.mongo.replace(thread_id, &documents).await?;
        } else {
            // Of two writes in one place the first stays.
            shared.mongo.insert(&documents, false).await?;
        }
    }
    shared.raise(thread_id).await
}

/// The documents of writes, and the chunks of long ones.
fn documents(shared: &Shared, prepared: &PreparedWrites) -> Result<(Vec<Document>, Vec<Document>)> {
    let PreparedWrites { thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, rows, .. } = prepared;
    let keys = ThreadKeys::new(thread_id);
    let key = CheckpointKey::new(thread_id, checkpoint_ns, checkpoint_id);
    let siblings = load::indexes(rows.iter().map(|row| row.idx));
    let (mut chunks, mut documents) = (Vec::new(), Vec::new());
    for write in rows {
        let record = Bytes::from(row::write(shared.values(), key, task_id, task_path, write)?);
        let field = load::store(shared, &keys, thread_id, &record, CHUNK, &mut chunks);
        let mut document = doc! {
            "_id": keys.write(checkpoint_ns, checkpoint_id, task_id, write.idx),
            "t": &**thread_id,
            "n": &**checkpoint_ns,
            "c": &**checkpoint_id,
            "tk": &**task_id,
            "i": write.idx,
            "d": field,
        };
        // A call of several writes shows when all of them are there.
        if rows.len() > 1 && !prepared.replace {
            document.insert("g", binary(&siblings));
        }
        shared.stamp(&mut document, true);
        documents.push(document);
    }
    Ok((chunks, documents))
}

async fn store_if(
    shared: &Shared,
    config: &CheckpointConfig,
    prepared: &PreparedWrites,
    options: &PutWritesOptions,
    chunks: Vec<Document>,
    documents: Vec<Document>,
) -> Result<()> {
    let PreparedWrites { thread_id, checkpoint_ns, checkpoint_id, task_id, .. } = prepared;
    let keys = ThreadKeys::new(thread_id);
    // Tells this call from others of the task.
    let own = id::uuid6(0);
    for _ in 0..ATTEMPTS {
        let lease = async {
            match &options.lease {
                Some(lease) => leases::is_held(shared, lease).await,
                None => Ok(false),
            }
        };
        let checkpoint =
            async { Ok(options.checkpoint_stored && is_stored(shared, config, checkpoint_id).await?) };
        let results = async {
            if !options.once {
                return Ok(false);
            }
            let range = keys.results(checkpoint_ns, checkpoint_id, task_id);
            let filter = shared.mongo.in_range(thread_id, &range);
            let find = Find { filter, projection: Some(doc! { "_id": 1 }), limit: 1, ..Find::default() };
            Ok(!shared.mongo.find(find).await?.is_empty())
        };
        let (holds_lease, checkpoint_is_stored, has_writes) = try_join3(lease, checkpoint, results).await?;
        let found = FoundWrites { holds_lease, checkpoint_is_stored, has_writes };
        options.decide(config, task_id, found)?;
        shared.mongo.insert(&chunks, false).await?;
        if prepared.replace {
            return shared.mongo.replace(thread_id, &documents).await;
        }
        if !options.once {
            return shared.mongo.insert(&documents, false).await.map(|_| ());
        }
        let once = keys.once(checkpoint_ns, checkpoint_id, task_id);
        let mut decision = doc! { "_id": &once, "t": &**thread_id, "c": &*own };
        shared.stamp(&mut decision, true);
        // In one request, if every server stops behind a duplicate in it.
        let first: Vec<Document> = std::iter::once(decision).chain(documents.iter().cloned()).collect();
        let first = first.get(..BATCH.min(first.len())).unwrap_or_default();
        match shared.mongo.insert(first, true).await? {
            Inserted::All if documents.len() < BATCH => return Ok(()),
            Inserted::Duplicates(at) if at.first() == Some(&0) => {}
            _ => return shared.mongo.insert(&documents, false).await.map(|_| ()),
        }
        let taken = shared.mongo.get(thread_id, &once, None).await?;
        if taken.is_some_and(|taken| taken.get_str("c").is_ok_and(|by| *by == *own)) {
            return shared.mongo.insert(&documents, false).await.map(|_| ());
        }
        let range = keys.results(checkpoint_ns, checkpoint_id, task_id);
        decisions::settle(shared, thread_id, &[&once], &own, Race::Results(range)).await?;
    }
    Err(Error::new(ErrorKind::Conflict, "the task's results changed all the time; try again").retryable(true))
}

/// Deletes a thread with its lease.
pub(crate) async fn delete_thread(shared: &Shared, thread_id: &str) -> Result<()> {
    shared.ready().await?;
    shared.forget(thread_id);
    let keys = ThreadKeys::new(thread_id);
    // Checkpoints first, so that none lacks its values; and again at the end, because one that was stored meanwhile does.
    let kinds = kind::ALL.into_iter().chain([kind::CHECKPOINT]);
    let filters = kinds.map(|kind| shared.mongo.in_range(thread_id, &keys.all(kind))).collect();
    shared.mongo.delete(filters).await?;
    shared.forget(thread_id);
    Ok(())
}
