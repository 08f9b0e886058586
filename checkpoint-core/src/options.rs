//! Options of `put` and `put_writes`: conditions, step keys, leases.

use crate::{CheckpointConfig, CheckpointMetadata, Error, ErrorKind, Lease, Result, Str};

/// The metadata key of a step key; see [`PutOptions::step_key`].
pub const STEP_KEY: &str = "step_key";

/// What must hold for a `put` to store its checkpoint. It is decided in the same atomic step that stores it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PutCondition {
    /// Nothing: as in LangGraph, the parent need not be stored.
    #[default]
    None,
    /// The parent that the config names is stored. Without a parent, there is no condition.
    ParentStored,
    /// The parent that the config names is the newest checkpoint of its thread and namespace. Without a parent, the
    /// namespace has no checkpoint.
    ParentIsLatest,
}

/// Options of [`BaseCheckpointSaver::put_with`](crate::BaseCheckpointSaver::put_with).
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct PutOptions {
    /// Channels whose values are omitted because the parent has them under the same version: for callers for whom
    /// serializing is expensive.
    ///
    /// If the parent does not have them (or no longer has them), nothing is stored and the call fails with
    /// [`Conflict`](crate::ErrorKind::Conflict): retry with all values. A saver that stores whole checkpoints fails
    /// with [`Unsupported`](crate::ErrorKind::Unsupported).
    pub unchanged: Vec<Str>,
    /// Channels whose values are snapshots of delta channels in the bytes of another serializer. A saver with
    /// `opaque_values` cannot recognize these snapshots itself; every other saver ignores this option.
    pub delta_snapshots: Vec<Str>,
    /// What must hold. If it does not, nothing is stored and the call fails with
    /// [`Conflict`](crate::ErrorKind::Conflict), which is not retryable. A checkpoint whose id is already stored meets
    /// every condition: the call repeats one whose reply was lost.
    pub condition: PutCondition,
    /// A key that the caller chose for this step, stored in the metadata as `step_key`.
    ///
    /// If the parent already has a child with this key (of the same thread and namespace), nothing is stored and the call
    /// returns that child's config, regardless of [`condition`](Self::condition). So a call that is repeated after a
    /// timeout finds what its first attempt stored, even under another checkpoint id.
    pub step_key: Option<Str>,
    /// A lease of the thread. If it was lost, nothing is stored and the call fails with
    /// [`Conflict`](crate::ErrorKind::Conflict), which is not retryable; otherwise the call renews it.
    pub lease: Option<Lease>,
}

impl PutOptions {
    /// Names channels whose values are carried over from the parent; see [`unchanged`](Self::unchanged).
    #[must_use]
    pub fn unchanged(mut self, channels: impl IntoIterator<Item = impl Into<Str>>) -> Self {
        self.unchanged.extend(channels.into_iter().map(Into::into));
        self
    }

    /// Names channels whose values are delta snapshots; see [`delta_snapshots`](Self::delta_snapshots).
    #[must_use]
    pub fn delta_snapshots(mut self, channels: impl IntoIterator<Item = impl Into<Str>>) -> Self {
        self.delta_snapshots.extend(channels.into_iter().map(Into::into));
        self
    }

    /// Sets what must hold; see [`condition`](Self::condition).
    #[must_use]
    pub fn condition(mut self, condition: PutCondition) -> Self {
        self.condition = condition;
        self
    }

    /// Sets the key of the step; see [`step_key`](Self::step_key).
    #[must_use]
    pub fn step_key(mut self, key: impl Into<Str>) -> Self {
        self.step_key = Some(key.into());
        self
    }

    /// Requires a lease; see [`lease`](Self::lease).
    #[must_use]
    pub fn lease(mut self, lease: Lease) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Checks the options, and returns the metadata to store: [`CheckpointMetadata::merged`] with the step key. For
    /// implementers.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) when the step key is empty or has U+0000, or the lease is of
    /// another thread.
    pub fn metadata(
        &self,
        metadata: &CheckpointMetadata,
        config: &CheckpointConfig,
    ) -> Result<CheckpointMetadata> {
        if let Some(lease) = &self.lease {
            lease.check_thread(config.thread_id())?;
        }
        let mut merged = metadata.merged(config);
        if let Some(key) = &self.step_key {
            if key.is_empty() || key.contains('\0') {
                return Err(Error::invalid_argument("a step key must not be empty or contain U+0000"));
            }
            merged.insert(STEP_KEY, &**key);
        }
        Ok(merged)
    }

    /// Whether the call depends on what is stored, other than on values to carry over. For implementers.
    pub fn is_conditional(&self) -> bool {
        self.condition != PutCondition::None || self.step_key.is_some() || self.lease.is_some()
    }

    /// Decides a conditional `put`. For implementers: what was found must not change until the checkpoint is stored.
    ///
    /// # Errors
    /// [`Conflict`](crate::ErrorKind::Conflict), naming the newer checkpoint if that is the reason.
    pub fn decide(&self, config: &CheckpointConfig, found: Found) -> Result<Decision> {
        if let Some(lease) = self.lease.as_ref().filter(|_| !found.holds_lease) {
            return Err(lease.lost());
        }
        if let Some(checkpoint_id) = found.repeated {
            return Ok(Decision::Repeats(checkpoint_id));
        }
        if found.is_stored {
            return Ok(Decision::Store);
        }
        let parent = config.checkpoint_id();
        match self.condition {
            PutCondition::ParentIsLatest if found.newest.as_deref() != parent => {
                Err(superseded(config, found.newest.as_deref()))
            }
            PutCondition::ParentStored if parent.is_some() && !found.parent_is_stored => Err(deleted(config)),
            _ => Ok(Decision::Store),
        }
    }

    /// Whether a channel is among [`delta_snapshots`](Self::delta_snapshots).
    pub(crate) fn is_delta_snapshot(&self, channel: &str) -> bool {
        self.delta_snapshots.iter().any(|named| &**named == channel)
    }
}

/// What a conditional `put` found in its thread and namespace. For implementers; what the options do not ask for may be
/// left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Whether the lease of the options is still held.
    pub holds_lease: bool,
    /// The child of the parent that has the step key, if any.
    pub repeated: Option<Str>,
    /// Whether a checkpoint with this id is already stored.
    pub is_stored: bool,
    /// Whether the parent is stored.
    pub parent_is_stored: bool,
    /// The newest checkpoint.
    pub newest: Option<Str>,
}

/// What a conditional `put` does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It stores its checkpoint.
    Store,
    /// It stores nothing, and returns this checkpoint, which was stored under the same step key.
    Repeats(Str),
}

/// The checkpoint that a call builds on is not the newest.
fn superseded(config: &CheckpointConfig, newest: Option<&str>) -> Error {
    let error = match newest {
        Some(newest) => conflict("the thread has a newer checkpoint; read it and decide again")
            .with("newest_checkpoint_id", newest),
        None => conflict("the checkpoint was deleted; begin the thread again if that is intended"),
    };
    in_thread(error, config)
}

/// The checkpoint that a call builds on is not stored.
fn deleted(config: &CheckpointConfig) -> Error {
    in_thread(conflict("the checkpoint was deleted; begin the thread again if that is intended"), config)
}

fn in_thread(error: Error, config: &CheckpointConfig) -> Error {
    let error = error.with("thread_id", config.thread_id());
    match config.checkpoint_id() {
        Some(checkpoint_id) => error.with("checkpoint_id", checkpoint_id),
        None => error,
    }
}

/// A repetition of the same call cannot succeed.
fn conflict(message: &'static str) -> Error {
    Error::new(ErrorKind::Conflict, message).retryable(false)
}

/// Options of [`BaseCheckpointSaver::put_writes_with`](crate::BaseCheckpointSaver::put_writes_with).
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct PutWritesOptions {
    /// Stores the writes only if the task has no writes on this checkpoint yet, other than to special channels. If it
    /// has, nothing is stored and the call fails with [`Conflict`](crate::ErrorKind::Conflict), which is not retryable. So
    /// of several results of one task the first is kept as a whole.
    ///
    /// Special channels are invalid in such a call. A call that is repeated because its reply was lost fails, too: compare
    /// what is stored.
    pub once: bool,
    /// Stores the writes only if the checkpoint is stored; otherwise the call fails with
    /// [`Conflict`](crate::ErrorKind::Conflict), which is not retryable.
    pub checkpoint_stored: bool,
    /// A lease of the thread. If it was lost, nothing is stored and the call fails with
    /// [`Conflict`](crate::ErrorKind::Conflict), which is not retryable; otherwise the call renews it.
    pub lease: Option<Lease>,
}

impl PutWritesOptions {
    /// Keeps the first result of a task; see [`once`](Self::once).
    #[must_use]
    pub fn once(mut self) -> Self {
        self.once = true;
        self
    }

    /// Requires the checkpoint; see [`checkpoint_stored`](Self::checkpoint_stored).
    #[must_use]
    pub fn checkpoint_stored(mut self) -> Self {
        self.checkpoint_stored = true;
        self
    }

    /// Requires a lease; see [`lease`](Self::lease).
    #[must_use]
    pub fn lease(mut self, lease: Lease) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Whether the call depends on what is stored. For implementers.
    pub fn is_conditional(&self) -> bool {
        self.once || self.checkpoint_stored || self.lease.is_some()
    }

    /// Decides a conditional `put_writes`. For implementers: what was found must not change until the writes are stored.
    ///
    /// # Errors
    /// [`Conflict`](crate::ErrorKind::Conflict).
    pub fn decide(&self, config: &CheckpointConfig, task_id: &str, found: FoundWrites) -> Result<()> {
        if let Some(lease) = self.lease.as_ref().filter(|_| !found.holds_lease) {
            return Err(lease.lost());
        }
        if self.checkpoint_stored && !found.checkpoint_is_stored {
            return Err(deleted(config));
        }
        if self.once && found.has_writes {
            let error =
                conflict("the task has a result on this checkpoint already; the first result is kept");
            return Err(in_thread(error, config).with("task_id", task_id));
        }
        Ok(())
    }
}

/// What a conditional `put_writes` found. For implementers; what the options do not ask for may be left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FoundWrites {
    /// Whether the lease of the options is still held.
    pub holds_lease: bool,
    /// Whether the checkpoint is stored.
    pub checkpoint_is_stored: bool,
    /// Whether the task has writes with an index from 0 on.
    pub has_writes: bool,
}
