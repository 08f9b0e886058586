//! The in-memory saver: the model that every other backend is compared with.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};

use super::BACKEND;
use crate::cipher::ValueCodec;
use crate::delta::{self, ChannelSummary, CheckpointSummary, DeltaChannelHistory, HistoryWalk};
use crate::filter::FilterSemantics;
use crate::{
    BaseCheckpointSaver, ChannelValue, ChannelVersions, Checkpoint, CheckpointConfig, CheckpointMetadata,
    CheckpointTuple, ListQuery, PendingWrite, PruneStrategy, Result, ResultExt, SaverCapabilities, Str,
    ThreadInfo, ThreadQuery, id, index_writes,
};

/// How many tuples one page of a listing holds.
const PAGE: usize = 128;

/// Keeps checkpoints in this process, for tests and for agents that need not outlive it. Clones share their contents.
///
/// Every call is one step under one lock, so each is atomic and sees all that came before. Values are kept as the
/// bytes they came as; metadata passes through JSON, as it does in a database, so that what a database would refuse
/// is refused here.
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
    state: Arc<RwLock<State>>,
    semantics: FilterSemantics,
    opaque_values: bool,
}

impl Default for InMemorySaver {
    fn default() -> Self {
        Self::new()
    }
}

/// Threads by id, their namespaces by name.
type State = BTreeMap<Str, BTreeMap<Str, Namespace>>;

#[derive(Debug, Clone, Default)]
struct Namespace {
    checkpoints: BTreeMap<Str, Row>,
    /// By checkpoint, which need not be there, then by task and index.
    writes: BTreeMap<Str, BTreeMap<(Str, i32), PendingWrite>>,
}

#[derive(Debug, Clone)]
struct Row {
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    parent: Option<Str>,
}

impl InMemorySaver {
    /// Makes an empty saver that filters by [`FilterSemantics::Equality`], as Python's in-memory saver does.
    pub fn new() -> Self {
        Self { state: Arc::default(), semantics: FilterSemantics::Equality, opaque_values: false }
    }

    /// Filters as another database does, to stand in for it in tests.
    #[must_use]
    pub fn with_filter_semantics(mut self, semantics: FilterSemantics) -> Self {
        self.semantics = semantics;
        self
    }

    /// Keeps values of another serializer as they come, and never looks into them, whatever their tags say. A pending
    /// write comes back as the bytes that it was given as, or would be stored as.
    #[must_use]
    pub fn with_opaque_values(mut self, opaque_values: bool) -> Self {
        self.opaque_values = opaque_values;
        self
    }

    // A panic while the lock is held cannot leave a half-made change behind (every change is built first and put in
    // at the end, or is a plain removal), so a poisoned lock is taken over.
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next tuples of a listing after a cursor.
    fn page(&self, query: &ListQuery, after: Option<&Key>, count: usize) -> Vec<(Key, CheckpointTuple)> {
        let state = self.read();
        let mut keys = BTreeSet::new();
        for (thread_id, namespaces) in threads(&state, query.thread_id.as_ref()) {
            for (checkpoint_ns, namespace) in namespaces {
                if query.checkpoint_ns.as_ref().is_some_and(|wanted| wanted != checkpoint_ns) {
                    continue;
                }
                let upper = match (after, &query.before) {
                    (Some(after), _) => Bound::Included(&*after.id.0),
                    (None, Some(before)) => Bound::Excluded(&**before),
                    (None, None) => Bound::Unbounded,
                };
                let rows = namespace.checkpoints.range::<str, _>((Bound::Unbounded, upper)).rev();
                let matching = rows.filter(|(id, row)| {
                    query.checkpoint_id.as_ref().is_none_or(|wanted| wanted.is_empty() || wanted == *id)
                        && query.filter.matches(&row.metadata, self.semantics)
                });
                let matching = matching.map(|(id, _)| Key {
                    id: Newest(id.clone()),
                    thread_id: thread_id.clone(),
                    checkpoint_ns: checkpoint_ns.clone(),
                });
                keys.extend(matching.filter(|key| after.is_none_or(|after| key > after)).take(count));
                while keys.len() > count {
                    keys.pop_last();
                }
            }
        }
        let tuple = |key: Key| {
            let namespace = state.get(&key.thread_id)?.get(&key.checkpoint_ns)?;
            let tuple = namespace.tuple(&key.thread_id, &key.checkpoint_ns, &key.id.0)?;
            Some((key, tuple))
        };
        keys.into_iter().filter_map(tuple).collect()
    }
}

fn threads<'a>(
    state: &'a State,
    only: Option<&'a Str>,
) -> Box<dyn Iterator<Item = (&'a Str, &'a BTreeMap<Str, Namespace>)> + 'a> {
    match only {
        Some(thread_id) => Box::new(state.get_key_value(thread_id).into_iter()),
        None => Box::new(state.iter()),
    }
}

/// A row's place in a listing: newest id first, then thread, then namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    id: Newest,
    thread_id: Str,
    checkpoint_ns: Str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Newest(Str);

impl Ord for Newest {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.0.cmp(&self.0)
    }
}

impl PartialOrd for Newest {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Namespace {
    /// The row of this id, or the newest.
    fn find(&self, checkpoint_id: Option<&Str>) -> Option<(&Str, &Row)> {
        match checkpoint_id {
            Some(checkpoint_id) => self.checkpoints.get_key_value(checkpoint_id),
            None => self.checkpoints.last_key_value(),
        }
    }

    fn writes_on(&self, checkpoint_id: &Str) -> Vec<PendingWrite> {
        let mut writes: Vec<_> =
            self.writes.get(checkpoint_id).into_iter().flat_map(BTreeMap::values).cloned().collect();
        writes.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
        writes
    }

    fn tuple(&self, thread_id: &Str, checkpoint_ns: &Str, checkpoint_id: &Str) -> Option<CheckpointTuple> {
        let row = self.checkpoints.get(checkpoint_id)?;
        Some(CheckpointTuple::new(
            config(thread_id, checkpoint_ns, checkpoint_id),
            row.checkpoint.clone(),
            row.metadata.clone(),
            row.parent.clone(),
            self.writes_on(checkpoint_id),
        ))
    }

    fn summary(&self, checkpoint_id: &Str) -> Option<CheckpointSummary> {
        let row = self.checkpoints.get(checkpoint_id)?;
        Some(CheckpointSummary::new(
            ChannelSummary::of(&row.checkpoint),
            row.metadata.clone(),
            row.parent.clone(),
        ))
    }

    fn prune(&mut self) -> Result<()> {
        let Some(newest) = self.checkpoints.last_key_value().map(|(id, _)| id.clone()) else { return Ok(()) };
        let Some(link) = self.summary(&newest) else { return Ok(()) };
        let mut keep: BTreeSet<Str> =
            delta::needed_ancestors(&link, |id| Ok(self.summary(id)))?.into_iter().collect();
        keep.insert(newest.clone());
        self.checkpoints.retain(|id, _| keep.contains(id));
        // Writes may be ahead of their checkpoint: those beyond the newest stay.
        self.writes.retain(|id, _| keep.contains(id) || *id > newest);
        for row in self.checkpoints.values_mut() {
            row.parent = row.parent.take().filter(|parent| keep.contains(parent));
        }
        Ok(())
    }
}

fn config(thread_id: &Str, checkpoint_ns: &Str, checkpoint_id: &Str) -> CheckpointConfig {
    CheckpointConfig::new(thread_id.clone())
        .with_checkpoint_ns(checkpoint_ns.clone())
        .with_checkpoint_id(checkpoint_id.clone())
}

/// A checkpoint as a database gives it back: every value in its one form.
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

/// Takes from the parent what did not change.
fn carry_over(state: &State, config: &CheckpointConfig, checkpoint: &mut Checkpoint) -> Result<()> {
    let namespace =
        state.get(config.thread_id()).and_then(|namespaces| namespaces.get(config.checkpoint_ns()));
    let parent = namespace
        .zip(config.checkpoint_id())
        .and_then(|(namespace, id)| namespace.checkpoints.get(id))
        .map(|row| &row.checkpoint);
    for channel in std::mem::take(&mut checkpoint.unchanged) {
        let version = checkpoint.unchanged_version(&channel)?;
        let value = parent
            .filter(|parent| parent.channel_versions.get(&channel) == Some(version))
            .and_then(|parent| parent.channel_values.get(&channel));
        let value = value.cloned().ok_or_else(|| Checkpoint::gone(&channel))?;
        checkpoint.channel_values.insert(channel, value);
    }
    Ok(())
}

#[async_trait]
impl BaseCheckpointSaver for InMemorySaver {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn capabilities(&self) -> SaverCapabilities {
        SaverCapabilities::all(self.semantics).volatile()
    }

    async fn setup(&self) -> Result<()> {
        Ok(())
    }

    async fn get_tuple(&self, config: &CheckpointConfig) -> Result<Option<CheckpointTuple>> {
        let state = self.read();
        let namespace =
            state.get(config.thread_id()).and_then(|namespaces| namespaces.get(config.checkpoint_ns()));
        Ok(namespace.and_then(|namespace| {
            let (checkpoint_id, _) = namespace.find(config.checkpoint_id())?;
            namespace.tuple(config.thread_id(), config.checkpoint_ns(), checkpoint_id)
        }))
    }

    fn list(&self, query: ListQuery) -> BoxStream<'static, Result<CheckpointTuple>> {
        let left = query.limit.unwrap_or(usize::MAX);
        let start = (self.clone(), query, None::<Key>, left);
        let pages = stream::unfold(start, |(saver, query, after, left)| async move {
            let page = saver.page(&query, after.as_ref(), left.min(PAGE));
            let last = page.last().map(|(key, _)| key.clone())?;
            let left = left - page.len();
            let tuples = page.into_iter().map(|(_, tuple)| Ok(tuple));
            Some((stream::iter(tuples), (saver, query, Some(last), left)))
        });
        pages.flatten().boxed()
    }

    fn list_threads(&self, query: ThreadQuery) -> BoxStream<'static, Result<ThreadInfo>> {
        let left = query.limit.unwrap_or(usize::MAX);
        let pages = stream::unfold((self.clone(), query.after, left), |(saver, after, left)| async move {
            let page: Vec<_> = {
                let state = saver.read();
                let after = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                let threads =
                    state.range::<Str, _>((after, Bound::Unbounded)).filter_map(|(thread_id, namespaces)| {
                        let newest = namespaces
                            .values()
                            .filter_map(|namespace| namespace.checkpoints.last_key_value());
                        let newest = newest.map(|(id, _)| id).max()?;
                        Some(ThreadInfo::new(thread_id.clone(), newest.clone()))
                    });
                threads.take(left.min(PAGE)).collect()
            };
            let last = page.last().map(|info| info.thread_id.clone())?;
            let left = left - page.len();
            Some((stream::iter(page.into_iter().map(Ok)), (saver, Some(last), left)))
        });
        pages.flatten().boxed()
    }

    async fn put(
        &self,
        config: &CheckpointConfig,
        checkpoint: &Checkpoint,
        metadata: &CheckpointMetadata,
        _new_versions: &ChannelVersions,
    ) -> Result<CheckpointConfig> {
        id::validate(&checkpoint.id).at(BACKEND, "put")?;
        checkpoint.require_channels().at(BACKEND, "put")?;
        let mut checkpoint = if self.opaque_values {
            checkpoint.clone()
        } else {
            normalized(checkpoint).at(BACKEND, "put")?
        };
        let metadata = metadata.merged(config).to_json().at(BACKEND, "put")?;
        let metadata = CheckpointMetadata::from_json(metadata.as_bytes()).at(BACKEND, "put")?;
        let stored = self::config(config.thread_id(), config.checkpoint_ns(), &checkpoint.id);
        let mut state = self.write();
        carry_over(&state, config, &mut checkpoint).at(BACKEND, "put")?;
        let row = Row { checkpoint, metadata, parent: config.checkpoint_id().cloned() };
        let namespaces = state.entry(config.thread_id().clone()).or_default();
        let namespace = namespaces.entry(config.checkpoint_ns().clone()).or_default();
        namespace.checkpoints.insert(row.checkpoint.id.clone(), row);
        Ok(stored)
    }

    async fn put_writes(
        &self,
        config: &CheckpointConfig,
        writes: &[(Str, ChannelValue)],
        task_id: &str,
        task_path: &str,
    ) -> Result<()> {
        let checkpoint_id = config.require_checkpoint_id().at(BACKEND, "put_writes")?;
        id::validate(checkpoint_id).at(BACKEND, "put_writes")?;
        let (indexes, replace) = index_writes(writes).at(BACKEND, "put_writes")?;
        let task_id = Str::from(task_id);
        let codec = ValueCodec { opaque_values: self.opaque_values, ..ValueCodec::default() };
        let row = |(idx, (channel, value)): (i32, &(Str, ChannelValue))| {
            let value = codec.value(value.to_typed()?)?;
            Ok(PendingWrite::new(task_id.clone(), channel.clone(), value).stored_at(task_path, idx))
        };
        let rows =
            indexes.into_iter().zip(writes).map(row).collect::<Result<Vec<_>>>().at(BACKEND, "put_writes")?;
        if rows.is_empty() {
            return Ok(());
        }
        let mut state = self.write();
        let namespaces = state.entry(config.thread_id().clone()).or_default();
        let namespace = namespaces.entry(config.checkpoint_ns().clone()).or_default();
        let stored = namespace.writes.entry(checkpoint_id.clone()).or_default();
        for row in rows {
            let key = (row.task_id.clone(), row.idx);
            if replace {
                stored.insert(key, row);
            } else {
                stored.entry(key).or_insert(row);
            }
        }
        Ok(())
    }

    async fn delete_thread(&self, thread_id: &str) -> Result<()> {
        self.write().remove(thread_id);
        Ok(())
    }

    async fn get_delta_channel_history(
        &self,
        config: &CheckpointConfig,
        channels: &[&str],
    ) -> Result<BTreeMap<Str, DeltaChannelHistory>> {
        let mut walk = HistoryWalk::new(channels);
        let state = self.read();
        let namespace =
            state.get(config.thread_id()).and_then(|namespaces| namespaces.get(config.checkpoint_ns()));
        let Some(namespace) = namespace else { return Ok(walk.finish()) };
        let mut next = namespace.find(config.checkpoint_id()).and_then(|(_, row)| row.parent.as_ref());
        let mut seen = BTreeSet::new();
        while let Some(id) = next.take() {
            let Some(row) = namespace.checkpoints.get(id) else { break };
            if walk.open().is_empty() || !seen.insert(id) {
                break;
            }
            walk.visit(&namespace.writes_on(id), |channel| {
                row.checkpoint.channel_values.get(channel).cloned()
            });
            next = row.parent.as_ref();
        }
        Ok(walk.finish())
    }

    async fn delete_for_runs(&self, run_ids: &[&str]) -> Result<()> {
        for namespace in self.write().values_mut().flat_map(BTreeMap::values_mut) {
            let writes = &mut namespace.writes;
            namespace.checkpoints.retain(|id, row| {
                let keep = row.metadata.run_id().is_none_or(|run_id| !run_ids.contains(&run_id));
                if !keep {
                    writes.remove(id);
                }
                keep
            });
        }
        Ok(())
    }

    async fn copy_thread(&self, source_thread_id: &str, target_thread_id: &str) -> Result<()> {
        let mut state = self.write();
        let Some(source) =
            state.get(source_thread_id).filter(|_| source_thread_id != target_thread_id).cloned()
        else {
            return Ok(());
        };
        let target = state.entry(Str::from(target_thread_id)).or_default();
        for (checkpoint_ns, namespace) in source {
            let into = target.entry(checkpoint_ns).or_default();
            into.checkpoints.extend(namespace.checkpoints);
            for (checkpoint_id, writes) in namespace.writes {
                into.writes.entry(checkpoint_id).or_default().extend(writes);
            }
        }
        Ok(())
    }

    async fn prune(&self, thread_ids: &[&str], strategy: PruneStrategy) -> Result<()> {
        let mut state = self.write();
        for thread_id in thread_ids {
            match strategy {
                PruneStrategy::Delete => {
                    state.remove(*thread_id);
                }
                PruneStrategy::KeepLatest => {
                    let mut namespaces = state.get_mut(*thread_id).into_iter().flat_map(BTreeMap::values_mut);
                    namespaces.try_for_each(Namespace::prune).at(BACKEND, "prune")?;
                }
            }
        }
        Ok(())
    }
}
