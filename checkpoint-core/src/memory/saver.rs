//! The in-memory saver: the reference that the conformance suite compares every other backend with.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::ready;
use futures_util::stream::BoxStream;

use super::BACKEND;
use super::leases::Leases;
use crate::backend::{
    Calls, CheckpointKey, Decision, Found, FoundWrites, KeepLast, ListCursor, Operation, Page,
    PreparedWrites, STEP_KEY, ValueCodec, pages, thread_id_pages, thread_pages,
};
use crate::delta::{ChannelSummary, CheckpointSummary, DeltaChannelHistory, HistoryWalk};
use crate::filter::FilterSemantics;
use crate::retention::{Usage, UsageOptions};
use crate::{
    BaseCheckpointSaver, ChannelValue, ChannelVersions, Checkpoint, CheckpointConfig, CheckpointLayout,
    CheckpointMetadata, CheckpointTuple, InlineScalars, Lease, ListQuery, PendingWrite, PruneStrategy,
    PutOptions, PutWritesOptions, Result, RetainOptions, RetainReport, Retention, SaverCapabilities, Str,
    ThreadInfo, ThreadQuery, ThreadState, id,
};

/// The number of tuples per page of a listing.
const PAGE: usize = 128;

/// Keeps checkpoints in this process, for tests and for agents without durable state. Clones share their contents.
///
/// Every call holds one lock, so calls are atomic and linearizable. Values are stored as the bytes they were passed as.
/// Metadata is converted to JSON and back, as in a database, so that metadata that a database would reject is rejected
/// here, too.
///
/// ```
/// use checkpoint_core::{BaseCheckpointSaver, Checkpoint, CheckpointConfig, CheckpointMetadata, InMemorySaver};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> checkpoint_core::Result<()> {
/// let saver = InMemorySaver::new();
/// let checkpoint = Checkpoint::new(-1).with_channel("topic", "rust", saver.get_next_version(None));
/// let metadata = CheckpointMetadata::new("input", -1);
/// let versions = checkpoint.channel_versions.clone();
/// let stored = saver.put(&CheckpointConfig::new("thread-1"), &checkpoint, &metadata, &versions).await?;
/// assert_eq!(saver.get_tuple(&stored).await?.unwrap().checkpoint, checkpoint);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct InMemorySaver {
    calls: Arc<Calls>,
    state: Arc<RwLock<State>>,
    pub(super) semantics: FilterSemantics,
    opaque_values: bool,
    keep_last: Option<KeepLast>,
}

impl Default for InMemorySaver {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Threads by id, their namespaces by name.
    pub(super) threads: BTreeMap<Str, BTreeMap<Str, Namespace>>,
    pub(super) leases: Leases,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Namespace {
    pub(super) checkpoints: BTreeMap<Str, Row>,
    /// By checkpoint, which need not be stored, then by task and index.
    pub(super) writes: BTreeMap<Str, BTreeMap<(Str, i32), PendingWrite>>,
}

#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) checkpoint: Checkpoint,
    pub(super) metadata: CheckpointMetadata,
    pub(super) parent: Option<Str>,
    /// Channels that the caller named as snapshots of delta channels.
    delta_snapshots: BTreeSet<Str>,
}

impl InMemorySaver {
    /// Makes an empty saver that filters by [`FilterSemantics::Equality`], as Python's in-memory saver does.
    pub fn new() -> Self {
        Self {
            calls: Arc::new(Calls::saver(BACKEND, BACKEND)),
            state: Arc::default(),
            semantics: FilterSemantics::Equality,
            opaque_values: false,
            keep_last: None,
        }
    }

    /// Filters as another database does, to replace it in tests.
    #[must_use]
    pub fn with_filter_semantics(mut self, semantics: FilterSemantics) -> Self {
        self.semantics = semantics;
        self
    }

    /// Stores values of another serializer unchanged and never decodes them, regardless of their tags. Pending writes
    /// are returned as the bytes that were passed in, or that would be stored.
    #[must_use]
    pub fn with_opaque_values(mut self, opaque_values: bool) -> Self {
        self.opaque_values = opaque_values;
        self
    }

    /// Prunes behind each `put`: of its namespace, at least the newest `count` checkpoints stay, and at most twice as many,
    /// except for ancestors that their delta channels need. Branches that runs work on at the same time count together.
    #[must_use]
    pub fn with_keep_last(mut self, count: NonZeroUsize) -> Self {
        self.keep_last = KeepLast::new(count.get()).ok();
        self
    }

    // A panic while the lock is held cannot leave a partial change behind (every change is built first and inserted at
    // the end, or is a plain removal), so a poisoned lock is safe to use.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next tuples of a listing.
    fn page(&self, cursor: &ListCursor, count: usize) -> Vec<CheckpointTuple> {
        let ListCursor { query, last, .. } = cursor;
        let after = last.as_ref().map(Key::of);
        let state = self.read();
        let mut keys = BTreeSet::new();
        for (thread_id, namespaces) in threads(&state, query.thread_id.as_ref()) {
            for (checkpoint_ns, namespace) in namespaces {
                if query.checkpoint_ns.as_ref().is_some_and(|wanted| wanted != checkpoint_ns) {
                    continue;
                }
                let upper = match (&after, &query.before) {
                    (Some(after), _) => Bound::Included(after.id.0),
                    (None, Some(before)) => Bound::Excluded(&**before),
                    (None, None) => Bound::Unbounded,
                };
                let rows = namespace.checkpoints.range::<str, _>((Bound::Unbounded, upper)).rev();
                let matching = rows.filter(|(id, row)| {
                    query.checkpoint_id.as_ref().is_none_or(|wanted| wanted == *id)
                        && query.filter.matches(&row.metadata, self.semantics)
                });
                let matching = matching.map(|(id, _)| Key { id: Newest(id), thread_id, checkpoint_ns });
                keys.extend(
                    matching.filter(|key| after.as_ref().is_none_or(|after| key > after)).take(count),
                );
                while keys.len() > count {
                    keys.pop_last();
                }
            }
        }
        let tuple = |key: Key<'_>| {
            let namespace = state.threads.get(key.thread_id)?.get(key.checkpoint_ns)?;
            namespace.tuple(CheckpointKey::new(key.thread_id, key.checkpoint_ns, key.id.0))
        };
        keys.into_iter().filter_map(tuple).collect()
    }
}

fn threads<'a>(
    state: &'a State,
    only: Option<&'a Str>,
) -> Box<dyn Iterator<Item = (&'a Str, &'a BTreeMap<Str, Namespace>)> + 'a> {
    match only {
        Some(thread_id) => Box::new(state.threads.get_key_value(thread_id).into_iter()),
        None => Box::new(state.threads.iter()),
    }
}

/// The position of a row in a listing: newest id first, then thread, then namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key<'a> {
    id: Newest<'a>,
    thread_id: &'a str,
    checkpoint_ns: &'a str,
}

impl<'a> Key<'a> {
    fn of(config: &'a CheckpointConfig) -> Self {
        let id = Newest(config.checkpoint_id().unwrap_or_default());
        Self { id, thread_id: config.thread_id(), checkpoint_ns: config.checkpoint_ns() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Newest<'a>(&'a str);

impl Ord for Newest<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.0.cmp(self.0)
    }
}

impl PartialOrd for Newest<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Namespace {
    /// The row of this id, or the newest.
    fn find(&self, checkpoint_id: Option<&str>) -> Option<(&Str, &Row)> {
        match checkpoint_id {
            Some(checkpoint_id) => self.checkpoints.get_key_value(checkpoint_id),
            None => self.checkpoints.last_key_value(),
        }
    }

    fn writes_on(&self, checkpoint_id: &str) -> Vec<PendingWrite> {
        let mut writes: Vec<_> =
            self.writes.get(checkpoint_id).into_iter().flat_map(BTreeMap::values).cloned().collect();
        writes.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
        writes
    }

    pub(super) fn tuple(&self, key: CheckpointKey<'_>) -> Option<CheckpointTuple> {
        let row = self.checkpoints.get(key.checkpoint_id)?;
        Some(CheckpointTuple::new(
            key.to_config(),
            row.checkpoint.clone(),
            row.metadata.clone(),
            row.parent.clone(),
            self.writes_on(key.checkpoint_id),
        ))
    }

    pub(super) fn summary(&self, checkpoint_id: &Str) -> Option<CheckpointSummary> {
        let row = self.checkpoints.get(checkpoint_id)?;
        let mut channels = ChannelSummary::of(&row.checkpoint);
        for (channel, is_snapshot) in &mut channels.values {
            *is_snapshot |= row.delta_snapshots.contains(channel);
        }
        Some(CheckpointSummary::new(channels, row.metadata.clone(), row.parent.clone()))
    }
}

impl State {
    pub(super) fn delete(&mut self, thread_id: &str) {
        self.threads.remove(thread_id);
        self.leases.delete(thread_id);
    }

    /// What a conditional `put` decides by.
    fn find(&mut self, config: &CheckpointConfig, checkpoint_id: &str, options: &PutOptions) -> Found {
        let holds_lease = options.lease.as_ref().is_some_and(|lease| self.leases.renew(lease));
        let Some(namespace) = namespace(self, config) else {
            return Found { holds_lease, ..Found::default() };
        };
        let (parent, checkpoints) = (config.checkpoint_id(), &namespace.checkpoints);
        let has_key = |row: &Row| {
            let key = row.metadata.get(STEP_KEY).and_then(|key| key.as_str());
            key == options.step_key.as_deref() && row.parent.as_deref() == parent
        };
        let repeated =
            options.step_key.as_ref().and_then(|_| checkpoints.iter().find(|(_, row)| has_key(row)));
        Found {
            holds_lease,
            repeated: repeated.map(|(id, _)| id.clone()),
            is_stored: checkpoints.contains_key(checkpoint_id),
            parent_is_stored: parent.is_some_and(|parent| checkpoints.contains_key(parent)),
            newest: checkpoints.last_key_value().map(|(id, _)| id.clone()),
        }
    }

    /// What a conditional `put_writes` decides by.
    fn find_writes(
        &mut self,
        config: &CheckpointConfig,
        checkpoint_id: &str,
        task_id: &str,
        options: &PutWritesOptions,
    ) -> FoundWrites {
        let holds_lease = options.lease.as_ref().is_some_and(|lease| self.leases.renew(lease));
        let namespace = namespace(self, config);
        let writes = namespace.and_then(|namespace| namespace.writes.get(checkpoint_id));
        FoundWrites {
            holds_lease,
            checkpoint_is_stored: namespace
                .is_some_and(|found| found.checkpoints.contains_key(checkpoint_id)),
            has_writes: writes
                .is_some_and(|writes| writes.keys().any(|(task, idx)| &**task == task_id && *idx >= 0)),
        }
    }
}

/// A checkpoint as a database returns it: every value in its canonical form.
fn normalized(checkpoint: &Checkpoint) -> Result<Checkpoint> {
    let mut checkpoint = checkpoint.clone();
    for (channel, value) in checkpoint.channel_values.iter_mut().chain(checkpoint.extra.iter_mut()) {
        let Some(blob) = value.as_blob() else { continue };
        *value = if blob.tag == "bytes" {
            ChannelValue::Blob(blob.clone())
        } else {
            blob.to_msgpack()
                .and_then(ChannelValue::from_msgpack)
                .map_err(|error| error.with("channel", channel))?
        };
    }
    Ok(checkpoint)
}

/// The namespace that a config names.
fn namespace<'a>(state: &'a State, config: &CheckpointConfig) -> Option<&'a Namespace> {
    state.threads.get(config.thread_id())?.get(config.checkpoint_ns())
}

/// Describes a thread, or `None` if it has no checkpoint.
fn thread_info(
    query: &ThreadQuery,
    thread_id: &Str,
    namespaces: &BTreeMap<Str, Namespace>,
) -> Option<ThreadInfo> {
    let newest = |(ns, namespace): (&'_ Str, &'_ Namespace)| {
        namespace.checkpoints.last_key_value().map(|(id, _)| (id.clone(), ns.clone()))
    };
    let (latest, latest_ns) = namespaces.iter().filter_map(newest).max()?;
    let state = || {
        let root = namespaces.get_key_value("").and_then(newest);
        let (id, ns) = root.unwrap_or_else(|| (latest.clone(), latest_ns));
        let tuple = namespaces.get(&ns)?.tuple(CheckpointKey::new(thread_id, &ns, &id))?;
        Some(ThreadState::of(&tuple))
    };
    let state = if query.needs_state() { state() } else { None };
    Some(ThreadInfo::new(thread_id.clone(), latest.clone()).with_state(state))
}

/// Copies the values of unchanged channels from the parent.
fn carry_over(state: &State, config: &CheckpointConfig, row: &mut Row, unchanged: &[Str]) -> Result<()> {
    let parent = namespace(state, config)
        .zip(config.checkpoint_id())
        .and_then(|(namespace, id)| namespace.checkpoints.get(id));
    let checkpoint = &mut row.checkpoint;
    for channel in unchanged {
        let version = checkpoint.unchanged_version(channel)?;
        let parent = parent.filter(|row| row.checkpoint.channel_versions.get(channel) == Some(version));
        let value = parent.and_then(|row| row.checkpoint.channel_values.get(channel));
        let value = value.cloned().ok_or_else(|| Checkpoint::gone(channel))?;
        checkpoint.channel_values.insert(channel.clone(), value);
        if parent.is_some_and(|row| row.delta_snapshots.contains(channel)) {
            row.delta_snapshots.insert(channel.clone());
        }
    }
    Ok(())
}

impl InMemorySaver {
    /// A page of threads, for `thread_pages`.
    fn next_threads(&self, query: &ThreadQuery, after: Option<&Str>, count: usize) -> Page<ThreadInfo, Str> {
        let state = self.read();
        let first = query.prefix.as_ref().filter(|prefix| after.is_none_or(|after| after < *prefix));
        let after = match (first, after) {
            (Some(prefix), _) => Bound::Included(prefix),
            (None, Some(after)) => Bound::Excluded(after),
            (None, None) => Bound::Unbounded,
        };
        let threads = state.threads.range::<Str, _>((after, Bound::Unbounded));
        let threads = threads
            .take_while(|(id, _)| query.prefix.as_ref().is_none_or(|prefix| id.starts_with(&**prefix)))
            .filter_map(|(thread_id, namespaces)| thread_info(query, thread_id, namespaces));
        let page: Vec<_> = threads.take(count).collect();
        let last = page.last().filter(|_| page.len() == count).map(|last| last.thread_id.clone());
        (page, last)
    }

    /// Up to `count` threads of which anything is stored.
    fn next_thread_ids(&self, after: Option<&Str>, count: usize) -> Vec<Str> {
        let state = self.read();
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let has_rows =
            |namespace: &Namespace| !namespace.checkpoints.is_empty() || !namespace.writes.is_empty();
        let threads = state.threads.range::<Str, _>((after, Bound::Unbounded));
        let threads = threads.filter(|(_, namespaces)| namespaces.values().any(has_rows));
        threads.map(|(thread_id, _)| thread_id.clone()).take(count).collect()
    }

    fn store(
        &self,
        config: &CheckpointConfig,
        checkpoint: &Checkpoint,
        metadata: &CheckpointMetadata,
        options: &PutOptions,
    ) -> Result<CheckpointConfig> {
        id::validate(&checkpoint.id)?;
        checkpoint.require_channels()?;
        let metadata = options.metadata(metadata, config)?.to_json()?;
        let mut row = Row {
            checkpoint: if self.opaque_values { checkpoint.clone() } else { normalized(checkpoint)? },
            metadata: CheckpointMetadata::from_json(metadata.as_bytes())?,
            parent: config.checkpoint_id().map(Str::from),
            delta_snapshots: BTreeSet::new(),
        };
        if self.opaque_values {
            row.delta_snapshots.extend(options.delta_snapshots.iter().cloned());
        }
        let mut state = self.write();
        if options.is_conditional() {
            let found = state.find(config, &checkpoint.id, options);
            if let Decision::Repeats(checkpoint_id) = options.decide(config, found)? {
                return Ok(config.for_checkpoint(checkpoint_id));
            }
        }
        carry_over(&state, config, &mut row, &options.unchanged)?;
        let (thread_id, checkpoint_ns) = config.shared_key();
        let namespaces = state.threads.entry(thread_id).or_default();
        let namespace = namespaces.entry(checkpoint_ns).or_default();
        namespace.checkpoints.insert(checkpoint.id.clone(), row);
        let count = namespace.checkpoints.len();
        if let Some(keep) = self.keep_last.filter(|keep| keep.is_due(count, &checkpoint.id)) {
            state.prune_behind(config, keep, self.semantics)?;
        }
        Ok(config.for_checkpoint(checkpoint.id.clone()))
    }

    fn store_writes(
        &self,
        config: &CheckpointConfig,
        prepared: PreparedWrites,
        codec: &ValueCodec,
        options: &PutWritesOptions,
    ) -> Result<()> {
        let write = |row: crate::backend::WriteRow| {
            let value = codec.to_channel_value(row.value)?;
            let write = PendingWrite::new(prepared.task_id.clone(), row.channel, value);
            Ok(write.with_position(prepared.task_path.clone(), row.idx))
        };
        let writes = prepared.rows.into_iter().map(write).collect::<Result<Vec<_>>>()?;
        if writes.is_empty() {
            return Ok(());
        }
        let mut state = self.write();
        if options.is_conditional() {
            let found = state.find_writes(config, &prepared.checkpoint_id, &prepared.task_id, options);
            options.decide(config, &prepared.task_id, found)?;
        }
        let namespaces = state.threads.entry(prepared.thread_id).or_default();
        let namespace = namespaces.entry(prepared.checkpoint_ns).or_default();
        let stored = namespace.writes.entry(prepared.checkpoint_id).or_default();
        for write in writes {
            let key = (write.task_id.clone(), write.idx);
            if prepared.replace {
                stored.insert(key, write);
            } else {
                stored.entry(key).or_insert(write);
            }
        }
        Ok(())
    }

    fn history(&self, config: &CheckpointConfig, channels: &[&str]) -> BTreeMap<Str, DeltaChannelHistory> {
        let mut walk = HistoryWalk::new(channels);
        let state = self.read();
        let Some(namespace) = namespace(&state, config) else { return walk.finish() };
        walk.go_to(namespace.find(config.checkpoint_id()).and_then(|(_, row)| row.parent.clone()));
        while let Some((id, row)) = walk.next().and_then(|id| namespace.checkpoints.get_key_value(id)) {
            walk.visit(row.parent.clone(), &namespace.writes_on(id), |channel| {
                row.checkpoint.channel_values.get(channel).cloned()
            });
        }
        walk.finish()
    }

    fn remove_runs(&self, run_ids: &[&str]) {
        for namespace in self.write().threads.values_mut().flat_map(BTreeMap::values_mut) {
            let writes = &mut namespace.writes;
            namespace.checkpoints.retain(|id, row| {
                let keep = row.metadata.run_id().is_none_or(|run_id| !run_ids.contains(&run_id));
                if !keep {
                    writes.remove(id);
                }
                keep
            });
        }
    }

    fn copy(&self, source_thread_id: &str, target_thread_id: &str) {
        let mut state = self.write();
        let source =
            state.threads.get(source_thread_id).filter(|_| source_thread_id != target_thread_id).cloned();
        let Some(source) = source else { return };
        let target = state.threads.entry(Str::from(target_thread_id)).or_default();
        for (checkpoint_ns, namespace) in source {
            let into = target.entry(checkpoint_ns).or_default();
            into.checkpoints.extend(namespace.checkpoints);
            for (checkpoint_id, writes) in namespace.writes {
                into.writes.entry(checkpoint_id).or_default().extend(writes);
            }
        }
    }
}

#[async_trait]
impl BaseCheckpointSaver for InMemorySaver {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn capabilities(&self) -> SaverCapabilities {
        let layout = CheckpointLayout::Channels { inline: InlineScalars::All };
        SaverCapabilities::all(self.semantics).in_memory().with_usage().with_layout(layout)
    }

    async fn setup(&self) -> Result<()> {
        self.calls.run(Operation::setup(), ready(Ok(()))).await
    }

    async fn ping(&self) -> Result<()> {
        self.calls.run(Operation::ping(), ready(Ok(()))).await
    }

    async fn check_schema(&self) -> Result<()> {
        self.calls.run(Operation::check_schema(), ready(Ok(()))).await
    }

    async fn get_tuple(&self, config: &CheckpointConfig) -> Result<Option<CheckpointTuple>> {
        let read = async {
            let state = self.read();
            Ok(namespace(&state, config).and_then(|namespace| {
                let (id, _) = namespace.find(config.checkpoint_id())?;
                namespace.tuple(CheckpointKey::new(config.thread_id(), config.checkpoint_ns(), id))
            }))
        };
        self.calls.run(Operation::get_tuple(config), read).await
    }

    fn list(&self, query: ListQuery) -> BoxStream<'static, Result<CheckpointTuple>> {
        let saver = self.clone();
        pages(ListCursor::begin(query), move |cursor| {
            let saver = saver.clone();
            async move {
                let count = cursor.left.min(PAGE);
                let read = async { Ok(saver.page(&cursor, count)) };
                let page = saver.calls.run(Operation::list(&cursor.query), read).await?;
                let next = cursor.after(&page, count);
                Ok((page, next))
            }
        })
    }

    fn list_threads(&self, query: ThreadQuery) -> BoxStream<'static, Result<ThreadInfo>> {
        let saver = self.clone();
        thread_pages(query, self.semantics, PAGE, move |query, after, count| {
            let saver = saver.clone();
            async move {
                let operation = Operation::list_threads(after.as_deref(), count);
                let read = async { Ok(saver.next_threads(&query, after.as_ref(), count)) };
                saver.calls.run(operation, read).await
            }
        })
    }

    fn list_thread_ids(&self, query: ThreadQuery) -> BoxStream<'static, Result<Str>> {
        let saver = self.clone();
        thread_id_pages(query, PAGE, move |after, count| {
            let saver = saver.clone();
            async move {
                let operation = Operation::list_thread_ids(after.as_deref(), count);
                let read = async { Ok(saver.next_thread_ids(after.as_ref(), count)) };
                saver.calls.run(operation, read).await
            }
        })
    }

    async fn put_with(
        &self,
        config: &CheckpointConfig,
        checkpoint: &Checkpoint,
        metadata: &CheckpointMetadata,
        _new_versions: &ChannelVersions,
        options: &PutOptions,
    ) -> Result<CheckpointConfig> {
        let store = async { self.store(config, checkpoint, metadata, options) };
        self.calls.run(Operation::put(config, &checkpoint.id), store).await
    }

    async fn put_writes_with(
        &self,
        config: &CheckpointConfig,
        writes: &[(Str, ChannelValue)],
        task_id: &str,
        task_path: &str,
        options: &PutWritesOptions,
    ) -> Result<()> {
        let store = async {
            let codec = ValueCodec { opaque_values: self.opaque_values, ..ValueCodec::default() };
            let prepared = PreparedWrites::new(&codec, config, writes, task_id, task_path)?.with(options)?;
            self.store_writes(config, prepared, &codec, options)
        };
        self.calls.run(Operation::put_writes(config, task_id), store).await
    }

    async fn delete_thread(&self, thread_id: &str) -> Result<()> {
        let delete = async {
            self.write().delete(thread_id);
            Ok(())
        };
        self.calls.run(Operation::delete_thread(thread_id), delete).await
    }

    async fn get_delta_channel_history(
        &self,
        config: &CheckpointConfig,
        channels: &[&str],
    ) -> Result<BTreeMap<Str, DeltaChannelHistory>> {
        let read = async { Ok(self.history(config, channels)) };
        self.calls.run(Operation::get_delta_channel_history(config), read).await
    }

    async fn delete_for_runs(&self, run_ids: &[&str]) -> Result<()> {
        let delete = async {
            self.remove_runs(run_ids);
            Ok(())
        };
        self.calls.run(Operation::delete_for_runs(run_ids), delete).await
    }

    async fn copy_thread(&self, source_thread_id: &str, target_thread_id: &str) -> Result<()> {
        let copy = async {
            self.copy(source_thread_id, target_thread_id);
            Ok(())
        };
        self.calls.run(Operation::copy_thread(source_thread_id, target_thread_id), copy).await
    }

    async fn prune(&self, thread_ids: &[&str], strategy: PruneStrategy) -> Result<()> {
        let prune = async { self.prune_threads(thread_ids, strategy) };
        self.calls.run(Operation::prune(thread_ids), prune).await
    }

    async fn retain(
        &self,
        thread_ids: &[&str],
        policy: &Retention,
        options: &RetainOptions,
    ) -> Result<RetainReport> {
        let retain = async { self.retain_threads(thread_ids, policy, options) };
        self.calls.run(Operation::retain(thread_ids, options), retain).await
    }

    async fn usage(&self, options: &UsageOptions) -> Result<Usage> {
        let usage = async { Ok(self.measure(*options)) };
        self.calls.run(Operation::usage(), usage).await
    }

    async fn acquire_lease(&self, thread_id: &str, ttl: Duration) -> Result<Lease> {
        let acquire = async { self.write().leases.acquire(Lease::request(thread_id, ttl)?) };
        self.calls.run(Operation::acquire_lease(thread_id), acquire).await
    }

    async fn renew_lease(&self, lease: &Lease) -> Result<()> {
        let renew = async { if self.write().leases.renew(lease) { Ok(()) } else { Err(lease.lost()) } };
        self.calls.run(Operation::renew_lease(lease), renew).await
    }

    async fn release_lease(&self, lease: &Lease) -> Result<()> {
        let release = async {
            self.write().leases.release(lease);
            Ok(())
        };
        self.calls.run(Operation::release_lease(lease), release).await
    }

    async fn close(&self) -> Result<()> {
        self.calls.close(ready(Ok(()))).await
    }
}
