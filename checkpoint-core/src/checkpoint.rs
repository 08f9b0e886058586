//! Checkpoints, their channel values, pending writes, and the tuple that a read returns.

use indexmap::IndexMap;

use crate::serde::TypedBytes;
use crate::version::{ChannelVersion, ChannelVersions};
use crate::{CheckpointConfig, CheckpointMetadata, Error, ErrorKind, Result, Str};

/// The value of a channel as savers handle it: a scalar, or bytes that no saver decodes.
///
/// The scalars are those that Python stores inline on Postgres. [`ChannelValue::encode`] makes one from any
/// [`serde::Serialize`] value, [`ChannelValue::decode`] reads it.
///
/// The form is canonical: a blob never holds a value that a scalar variant could, so values compare equal regardless
/// of the backend they were read from.
#[derive(Debug, Clone, PartialEq)]
pub enum ChannelValue {
    /// Python's `None`.
    Null,
    /// A boolean.
    Bool(bool),
    /// A signed integer of up to 64 bits. Larger ones are blobs.
    Int(i64),
    /// A double.
    Float(f64),
    /// Text.
    Str(Str),
    /// Anything else: bytes under a type tag.
    Blob(TypedBytes),
}

impl ChannelValue {
    /// The bytes under a type tag, or `None` for a scalar.
    pub fn as_blob(&self) -> Option<&TypedBytes> {
        match self {
            Self::Blob(blob) => Some(blob),
            _ => None,
        }
    }
}

/// Channel values in the order in which they were written.
pub type ChannelValues = IndexMap<Str, ChannelValue>;

/// The state of a thread at one step.
///
/// The fields are LangGraph's. Unknown fields are kept in [`extra`](Self::extra) and written back.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Checkpoint {
    /// The format's version; LangGraph writes 4 today.
    pub v: i64,
    /// The id, a UUID version 6; see [`crate::id::uuid6`].
    pub id: Str,
    /// When it was made: ISO 8601, UTC.
    pub ts: Str,
    /// The channel values. Channels without a value are absent.
    pub channel_values: ChannelValues,
    /// The version of each channel that was ever written.
    pub channel_versions: ChannelVersions,
    /// For each node, the versions of the channels that it has seen.
    pub versions_seen: IndexMap<Str, ChannelVersions>,
    /// The channels that the last step changed, sorted; `None` if not recorded (forks, updates).
    pub updated_channels: Option<Vec<Str>>,
    /// Unknown fields, kept unchanged.
    pub extra: ChannelValues,
    /// The whole checkpoint as one value; see [`crate::opaque`].
    pub(crate) opaque: Option<TypedBytes>,
}

impl Checkpoint {
    /// The format's version that LangGraph writes today.
    const CURRENT_V: i64 = 4;

    /// Makes an empty checkpoint with an id for this step and the current time.
    pub fn new(step: i64) -> Self {
        Self::with_id(crate::id::uuid6(step))
    }

    /// Makes an empty checkpoint with a given id and the current time.
    pub fn with_id(id: impl Into<Str>) -> Self {
        Self { v: Self::CURRENT_V, id: id.into(), ts: crate::id::now(), ..Self::undecoded() }
    }

    /// Makes an empty checkpoint for a decoder to fill in. The format's version is 1 unless the bytes name another.
    pub fn undecoded() -> Self {
        Self {
            v: 1,
            id: Str::default(),
            ts: Str::default(),
            channel_values: ChannelValues::new(),
            channel_versions: ChannelVersions::new(),
            versions_seen: IndexMap::new(),
            updated_channels: None,
            extra: ChannelValues::new(),
            opaque: None,
        }
    }

    /// Whether this represents an encrypted checkpoint that could not be decrypted.
    pub fn is_sealed(&self) -> bool {
        self.opaque.as_ref().is_some_and(TypedBytes::is_sealed)
    }

    /// The version of a channel whose value the parent has; see [`PutOptions::unchanged`](crate::PutOptions::unchanged).
    pub(crate) fn unchanged_version(&self, channel: &str) -> Result<&ChannelVersion> {
        self.channel_versions.get(channel).ok_or_else(|| {
            Error::invalid_argument("an unchanged channel has no version; add it to channel_versions")
                .with("channel", channel)
        })
    }

    /// The error of a `put` whose parent lacks the value of an unchanged channel.
    pub(crate) fn gone(channel: &str) -> Error {
        Error::new(
            ErrorKind::Conflict,
            "the parent does not have the value of an unchanged channel; retry with all values",
        )
        .with("channel", channel)
    }

    /// Rejects a checkpoint whose channels are unknown.
    ///
    /// # Errors
    /// [`Crypto`](ErrorKind::Crypto) for one that could not be decrypted,
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for one that is a single value of another serializer.
    pub(crate) fn require_channels(&self) -> Result<()> {
        match &self.opaque {
            None => Ok(()),
            Some(value) if value.is_sealed() => Err(Error::crypto(
                "the checkpoint could not be decrypted, so it can neither be stored nor be a parent; \
                 give the saver a cipher with its key",
            )),
            Some(_) => Err(Error::invalid_argument(
                "the checkpoint is a single value of another serializer; only a saver that stores whole checkpoints, \
                with opaque_values, accepts it",
            )),
        }
    }

    /// Sets a channel's value and version.
    #[must_use]
    pub fn with_channel(
        mut self,
        channel: impl Into<Str>,
        value: impl Into<ChannelValue>,
        version: impl Into<ChannelVersion>,
    ) -> Self {
        let channel = channel.into();
        self.channel_values.insert(channel.clone(), value.into());
        self.channel_versions.insert(channel, version.into());
        self
    }
}

/// A write of a task that is not yet part of a checkpoint.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PendingWrite {
    /// The task.
    pub task_id: Str,
    /// The channel it writes to.
    pub channel: Str,
    /// The value.
    pub value: ChannelValue,
    /// The task's path in the graph, by which writes are ordered; empty if not recorded.
    pub task_path: Str,
    /// The write's index in the task: its position in the call, or a fixed negative number for special channels.
    pub idx: i32,
}

impl PendingWrite {
    /// Describes one stored write.
    pub fn new(task_id: impl Into<Str>, channel: impl Into<Str>, value: impl Into<ChannelValue>) -> Self {
        Self {
            task_id: task_id.into(),
            channel: channel.into(),
            value: value.into(),
            task_path: Str::default(),
            idx: 0,
        }
    }

    /// Sets the task's path and the write's index in the task.
    #[must_use]
    pub fn with_position(mut self, task_path: impl Into<Str>, idx: i32) -> Self {
        self.task_path = task_path.into();
        self.idx = idx;
        self
    }

    /// The sort key of pending writes: task path, task, index.
    pub fn sort_key(&self) -> (&str, &str, i32) {
        (&self.task_path, &self.task_id, self.idx)
    }
}

/// Channels with a fixed index among a task's writes, so that later calls replace earlier ones.
pub mod special {
    /// The error that ended a task.
    pub const ERROR: &str = "__error__";
    /// Reserved by LangGraph.
    pub const SCHEDULED: &str = "__scheduled__";
    /// The interrupts that a task raised.
    pub const INTERRUPT: &str = "__interrupt__";
    /// The values that resume interrupts.
    pub const RESUME: &str = "__resume__";

    /// The fixed index of a special channel (`WRITES_IDX_MAP`), or `None` for any other.
    pub fn index(channel: &str) -> Option<i32> {
        match channel {
            ERROR => Some(-1),
            SCHEDULED => Some(-2),
            INTERRUPT => Some(-3),
            RESUME => Some(-4),
            _ => None,
        }
    }
}

/// A checkpoint as it is read: with its config, metadata, parent and pending writes.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct CheckpointTuple {
    /// Thread, namespace and id of this checkpoint.
    pub config: CheckpointConfig,
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// Its metadata.
    pub metadata: CheckpointMetadata,
    /// The checkpoint it followed, if any.
    pub parent_config: Option<CheckpointConfig>,
    /// Writes of tasks that ran on this checkpoint, ordered by task path, task and index.
    pub pending_writes: Vec<PendingWrite>,
    /// The sends that checkpoints before version 4 of the format left on their parent. Only set by savers with
    /// `opaque_values`; the list is the value of the channel `__pregel_tasks`. Other savers set that channel themselves.
    pub pending_sends: Vec<TypedBytes>,
}

impl CheckpointTuple {
    /// Assembles one row as it was read; an empty parent id means no parent.
    pub fn new(
        config: CheckpointConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        parent_checkpoint_id: Option<Str>,
        pending_writes: Vec<PendingWrite>,
    ) -> Self {
        let parent_config =
            parent_checkpoint_id.filter(|id| !id.is_empty()).map(|id| config.for_checkpoint(id));
        Self { config, checkpoint, metadata, parent_config, pending_writes, pending_sends: Vec::new() }
    }

    /// The id of the parent, if any.
    pub fn parent_checkpoint_id(&self) -> Option<&str> {
        self.parent_config.as_ref().and_then(CheckpointConfig::checkpoint_id)
    }
}
