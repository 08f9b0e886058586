//! Storing the next state of a thread.

use std::collections::BTreeSet;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;

use super::channels::Channels;
use super::{StateSnapshot, Thread};
use crate::backend::STEP_KEY;
use crate::serde::Value;
use crate::{
    BaseCheckpointSaver, ChannelValue, ChannelVersion, ChannelVersions, Checkpoint, CheckpointMetadata,
    CheckpointTuple, Error, ErrorKind, Filter, Lease, ListQuery, PutCondition, PutOptions, Result, Str, id,
};

/// The metadata key with which LangGraph decides when a delta channel needs a snapshot.
pub(super) const COUNTERS: &str = "counters_since_delta_snapshot";

/// The prefix of the channels that name a task of the next step, as LangGraph's edges do.
const NEXT: &str = "branch:to:";

/// How often `begin` reads the newest state again after that was deleted.
const BEGIN_ATTEMPTS: usize = 3;

/// How a state is created, by LangGraph's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Input,
    Loop,
    Update,
    Fork,
}

impl Source {
    fn as_str(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Loop => "loop",
            Self::Update => "update",
            Self::Fork => "fork",
        }
    }
}

/// The next state of a thread, stored when it is awaited: by [`begin`](Thread::begin), [`commit`](Thread::commit),
/// [`commit_if_latest`](Thread::commit_if_latest), [`update`](Thread::update) or [`fork`](Thread::fork).
///
/// One round trip, and one more to read the newest state for `begin`, to search its step key, or to read what an earlier
/// call with the step key stored.
///
/// # Errors
/// * [`Conflict`](ErrorKind::Conflict) when the snapshot's checkpoint was deleted, when it is not the newest and that is
///   required, or when the lease was lost.
/// * [`InvalidArgument`](ErrorKind::InvalidArgument) for a snapshot of another thread, reserved metadata, a task that is
///   named twice, or a step key that was used for another input.
/// * [`Codec`](ErrorKind::Codec) for a value that cannot be encoded, naming its channel; nothing was sent.
/// * As [`BaseCheckpointSaver::put`].
///
/// # Cancellation
/// A dropped call has stored the whole state or nothing.
#[derive(Debug)]
#[must_use = "nothing is stored until it is awaited"]
pub struct Commit<'a, S> {
    thread: &'a Thread<S>,
    source: Source,
    on: Option<&'a StateSnapshot>,
    channels: Result<Channels>,
    metadata: Vec<(Str, Value)>,
    next: Vec<Str>,
    options: PutOptions,
}

impl<'a, S: BaseCheckpointSaver> Commit<'a, S> {
    pub(super) fn new(
        thread: &'a Thread<S>,
        source: Source,
        on: Option<&'a StateSnapshot>,
        channels: Result<Channels>,
    ) -> Self {
        let mut options = PutOptions::default().condition(PutCondition::ParentStored);
        options.lease.clone_from(&thread.lease);
        Self { thread, source, on, channels, metadata: Vec::new(), next: Vec::new(), options }
    }

    /// Adds an entry to the metadata of this checkpoint; see [`Thread::with_metadata`].
    pub fn metadata(mut self, key: impl Into<Str>, value: impl Into<Value>) -> Self {
        self.metadata.push((key.into(), value.into()));
        self
    }

    /// Requires that the snapshot is still the newest of the thread and namespace; for `begin`, that nobody else stores a
    /// state meanwhile.
    pub fn if_latest(mut self) -> Self {
        self.options.condition = PutCondition::ParentIsLatest;
        self
    }

    /// Makes the call idempotent: repeated with the same key, for example after a timeout, it returns the state that its
    /// first attempt stored. A key belongs to one step: for `begin` it must be unique in the thread and namespace (such as
    /// the id of a request), for all others among the steps after the same snapshot.
    pub fn step_key(mut self, key: impl Into<Str>) -> Self {
        self.options = self.options.step_key(key);
        self
    }

    /// Names the tasks of the next step, so that the thread counts as running until a state without next tasks is stored;
    /// see [`ThreadStatus`](crate::ThreadStatus).
    pub fn next(mut self, tasks: impl IntoIterator<Item = impl Into<Str>>) -> Self {
        self.next.extend(tasks.into_iter().map(Into::into));
        self
    }

    async fn store(mut self) -> Result<StateSnapshot> {
        let channels = std::mem::replace(&mut self.channels, Ok(Channels::default()))
            .map_err(|error| error.with("thread_id", self.thread.thread_id()))?;
        self.check_metadata()?;
        let next = self.triggers()?;
        if let Some(on) = self.on {
            self.thread.check(on)?;
            return self.store_on(Some(on), &channels, &next).await;
        }
        let mut attempts = BEGIN_ATTEMPTS;
        loop {
            let latest = self.thread.latest().await?;
            if let Some(found) = self.find_repeated(latest.as_ref()).await? {
                return self.repeated(found, &channels);
            }
            attempts -= 1;
            match self.store_on(latest.as_ref(), &channels, &next).await {
                // The newest state was deleted meanwhile.
                Err(error)
                    if error.kind() == ErrorKind::Conflict
                        && !Lease::is_lost(&error)
                        && self.options.condition == PutCondition::ParentStored
                        && attempts > 0 => {}
                result => return result,
            }
        }
    }

    fn check_metadata(&self) -> Result<()> {
        let mut keys = self.thread.metadata.iter().chain(&self.metadata).map(|(key, _)| key);
        match keys.find(|key| CheckpointMetadata::is_reserved(key)) {
            Some(key) => {
                let message = "this metadata is set by the saver; choose another key";
                Err(Error::invalid_argument(message).with("key", key))
            }
            None => Ok(()),
        }
    }

    /// The channels that name the tasks of the next step.
    fn triggers(&self) -> Result<Vec<Str>> {
        let mut triggers = Vec::with_capacity(self.next.len());
        for task in &self.next {
            let channel: Str = format!("{NEXT}{task}").into();
            if task.is_empty() || triggers.contains(&channel) {
                let message = "the tasks of a step must have different names, and none may be empty";
                return Err(Error::invalid_argument(message).with("task", task));
            }
            triggers.push(channel);
        }
        Ok(triggers)
    }

    /// Finds what an earlier `begin` with the step key stored.
    async fn find_repeated(&self, latest: Option<&StateSnapshot>) -> Result<Option<StateSnapshot>> {
        let (Some(key), Some(latest)) = (&self.options.step_key, latest) else { return Ok(None) };
        let has_key = |metadata: &CheckpointMetadata| {
            metadata.get(STEP_KEY).and_then(|stored| stored.as_str()) == Some(&**key)
        };
        if has_key(latest.metadata()) {
            return Ok(Some(latest.clone()));
        }
        let filter = Filter::new().eq(STEP_KEY, &**key).eq("source", self.source.as_str());
        let query = ListQuery::from_config(&self.thread.config).filter(filter).limit(1);
        let found = self.thread.saver.list(query).next().await.transpose()?;
        Ok(found.map(|tuple| StateSnapshot { tuple, backend: latest.backend }))
    }

    /// The state that an earlier call with the step key stored, if it had the same input.
    fn repeated(&self, found: StateSnapshot, channels: &Channels) -> Result<StateSnapshot> {
        let stored = &found.tuple.checkpoint.channel_values;
        let is_same = found.source() == Some(self.source.as_str())
            && channels.skipped.iter().all(|channel| !stored.contains_key(channel))
            && channels
                .values
                .iter()
                .all(|(channel, value)| stored.get(channel).is_some_and(|stored| same_bytes(stored, value)));
        if is_same {
            return Ok(found);
        }
        Err(Error::invalid_argument("the step key was used for another input; choose another key")
            .with("thread_id", self.thread.thread_id())
            .with("stored_checkpoint_id", found.id()))
    }

    async fn store_on(
        &self,
        on: Option<&StateSnapshot>,
        channels: &Channels,
        next: &[Str],
    ) -> Result<StateSnapshot> {
        let thread = self.thread;
        let step = on.map_or(-1, |on| on.step().saturating_add(1));
        let mut checkpoint = Checkpoint::new(step);
        let mut metadata = CheckpointMetadata::new(self.source.as_str(), step);
        for (key, value) in thread.metadata.iter().chain(&self.metadata) {
            metadata.insert(key.clone(), value.clone());
        }
        let mut config = thread.config.clone();
        if let Some(on) = on {
            let old = &on.tuple.checkpoint;
            old.require_channels().map_err(|error| error.with("checkpoint_id", on.id()))?;
            // Includes unknown fields, and the version from which LangGraph migrates old formats.
            // The clock of the machine that made the old one may be ahead.
            checkpoint = Checkpoint { id: id::uuid6_after(&old.id, step), ts: checkpoint.ts, ..old.clone() };
            checkpoint.updated_channels = None;
            checkpoint.extra.shift_remove("updated_channels");
            if self.source == Source::Loop {
                // Old versions kept the step's tasks here; the step is over.
                checkpoint.extra.shift_remove("pending_sends");
            }
            for key in ["parents", COUNTERS] {
                if let Some(value) = on.tuple.metadata.get(key) {
                    metadata.insert(key, value.clone());
                }
            }
            config = config.with_checkpoint_id(old.id.clone());
        }
        if self.source == Source::Input {
            checkpoint.versions_seen.entry("__input__".into()).or_default();
        }
        let new_versions = self.change(&mut checkpoint, channels, next);
        let put =
            thread.saver.put_with(&config, &checkpoint, &metadata, &new_versions, &self.options).await?;
        if put.checkpoint_id() != Some(&*checkpoint.id) {
            return match thread.at(put.checkpoint_id().unwrap_or_default()).await? {
                Some(found) => self.repeated(found, channels),
                None => Err(Error::new(ErrorKind::Conflict, "the step was stored before, and deleted since")
                    .with("thread_id", thread.thread_id())),
            };
        }
        let parent = on.map(|on| on.tuple.checkpoint.id.clone());
        let metadata = self.options.metadata(&metadata, &config)?;
        let tuple = CheckpointTuple::new(put, checkpoint, metadata, parent, Vec::new());
        Ok(StateSnapshot { tuple, backend: Some(thread.saver.backend()) })
    }

    /// Changes the channels, and returns the new versions.
    fn change(&self, checkpoint: &mut Checkpoint, channels: &Channels, next: &[Str]) -> ChannelVersions {
        let Channels { values, skipped } = channels;
        // As in LangGraph, all channels that one step changed get the same version.
        let newest = ChannelVersion::newest(checkpoint.channel_versions.values());
        let version = self.thread.saver.get_next_version(newest);
        let is_over = |channel: &Str| {
            matches!(self.source, Source::Input | Source::Loop)
                && channel.starts_with(NEXT)
                && !next.contains(channel)
                && !values.contains_key(channel)
        };
        let removed: BTreeSet<Str> = checkpoint
            .channel_values
            .keys()
            .filter(|channel| is_over(channel) || skipped.contains(channel))
            .cloned()
            .collect();
        let mut new_versions = ChannelVersions::new();
        let mut updated = Vec::new();
        let named = next.iter().map(|channel| (channel, &ChannelValue::Null));
        for (channel, value) in values.iter().chain(named) {
            let old = checkpoint.channel_values.get(channel);
            if old.is_some_and(|old| same_bytes(old, value)) && !next.contains(channel) {
                continue;
            }
            checkpoint.channel_values.insert(channel.clone(), value.clone());
            new_versions.insert(channel.clone(), version.clone());
            updated.push(channel.clone());
        }
        for channel in removed {
            checkpoint.channel_values.shift_remove(&channel);
            new_versions.insert(channel, version.clone());
        }
        for channel in new_versions.keys() {
            checkpoint.channel_versions.insert(channel.clone(), version.clone());
        }
        if matches!(self.source, Source::Input | Source::Loop) {
            updated.sort_unstable();
            checkpoint.updated_channels = Some(updated);
        }
        new_versions
    }
}

impl<'a, S: BaseCheckpointSaver> IntoFuture for Commit<'a, S> {
    type Output = Result<StateSnapshot>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.store())
    }
}

pub(super) fn same_bytes(a: &ChannelValue, b: &ChannelValue) -> bool {
    match (a, b) {
        // Not `==`: NaN equals itself here, and -0.0 differs from 0.0.
        (ChannelValue::Float(a), ChannelValue::Float(b)) => a.to_bits() == b.to_bits(),
        _ => a == b,
    }
}
