//! Checkpoints, their channel values, pending writes, and what a read returns.

use indexmap::IndexMap;

use crate::serde::TypedBytes;
use crate::version::{ChannelVersion, ChannelVersions};
use crate::{CheckpointConfig, CheckpointMetadata, Str};

/// The value of a channel as savers move it: a scalar, or bytes that no saver looks into.
///
/// The scalars are what Python keeps inline on Postgres. Make one from any [`serde::Serialize`] value with
/// [`ChannelValue::encode`], read it with [`ChannelValue::decode`].
///
/// One value has one form: a blob never holds what a scalar variant could, so values compare equal whichever
/// backend they were read from.
#[derive(Debug, Clone, PartialEq)]
pub enum ChannelValue {
    /// Python's `None`.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer of up to 64 bits with sign. Larger ones are blobs.
    Int(i64),
    /// A double.
    Float(f64),
    /// Text.
    Str(Str),
    /// Anything else: bytes under a type tag.
    Blob(TypedBytes),
    /// A delta channel's snapshot in bytes that no saver can see it in: those of another serializer, or of an encrypting
    /// one. Savers with opaque values return it as such; for all others it is a blob.
    DeltaSnapshot(TypedBytes),
}

impl ChannelValue {
    /// The bytes under a type tag, or `None` for a scalar.
    pub fn as_blob(&self) -> Option<&TypedBytes> {
        match self {
            Self::Blob(blob) | Self::DeltaSnapshot(blob) => Some(blob),
            _ => None,
        }
    }
}

/// Channel values in the order in which they were written.
pub type ChannelValues = IndexMap<Str, ChannelValue>;

/// The state of a thread at one step.
///
/// The fields are LangGraph's. What this struct has no field for is kept in [`extra`](Self::extra) and written
/// back.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// The format's version: 4 in what LangGraph writes today.
    pub v: i64,
    /// The id, a UUID version 6; see [`crate::id::uuid6`].
    pub id: Str,
    /// When it was made: ISO 8601, UTC.
    pub ts: Str,
    /// The values of the channels that have one.
    pub channel_values: ChannelValues,
    /// The version of each channel that was ever written.
    pub channel_versions: ChannelVersions,
    /// For each node, the versions of the channels that it has seen.
    pub versions_seen: IndexMap<Str, ChannelVersions>,
    /// The channels that the last step changed, sorted; `None` where that is not recorded (forks, updates).
    pub updated_channels: Option<Vec<Str>>,
    /// Further fields, kept as they are.
    pub extra: ChannelValues,
    /// The whole checkpoint as one value that was not looked into; see [`Checkpoint::opaque`].
    pub opaque: Option<TypedBytes>,
    /// Channels whose values are not here, because the parent has them under the same version: for a caller to whom it
    /// costs something to make a value's bytes. Empty in what is read.
    ///
    /// Where the parent does not have them (any more), `put` stores nothing and fails with
    /// [`Conflict`](crate::ErrorKind::Conflict): then it is called again with all values. A saver that keeps whole
    /// checkpoints fails with [`Unsupported`](crate::ErrorKind::Unsupported).
    pub unchanged: Vec<Str>,
}

impl Checkpoint {
    /// The format's version that LangGraph writes today.
    pub const CURRENT_V: i64 = 4;

    /// Makes an empty checkpoint with an id for this step and the present time.
    pub fn new(step: i64) -> Self {
        Self::with_id(crate::id::uuid6(step))
    }

    /// Makes an empty checkpoint with a given id and the present time.
    pub fn with_id(id: impl Into<Str>) -> Self {
        Self {
            v: Self::CURRENT_V,
            id: id.into(),
            ts: crate::id::now(),
            channel_values: ChannelValues::new(),
            channel_versions: ChannelVersions::new(),
            versions_seen: IndexMap::new(),
            updated_channels: None,
            extra: ChannelValues::new(),
            opaque: None,
            unchanged: Vec::new(),
        }
    }

    /// Stands for a checkpoint that is one value nobody looked into, where a backend stores it so: the bytes of another
    /// serializer, or ciphertext that could not be opened, where a saver was told to show it. The id is known, the time
    /// is taken from it, and everything else is in [`opaque`](Self::opaque).
    ///
    /// Only a saver that keeps whole checkpoints, and was told to keep them as they are, stores it.
    pub fn opaque(id: impl Into<Str>, value: TypedBytes) -> Self {
        let id = id.into();
        let ts = crate::id::unix_micros(&id).map(crate::id::isoformat).unwrap_or_default();
        Self { ts: ts.into(), opaque: Some(value), ..Self::with_id(id) }
    }

    /// The value that this checkpoint is, if it was not looked into; see [`Checkpoint::opaque`].
    pub fn as_opaque(&self) -> Option<&TypedBytes> {
        self.opaque.as_ref()
    }

    /// Whether this stands for a checkpoint that is encrypted; see [`Checkpoint::opaque`].
    pub fn is_sealed(&self) -> bool {
        self.opaque.as_ref().is_some_and(TypedBytes::is_sealed)
    }

    /// The version of a channel whose value the parent has; see [`unchanged`](Self::unchanged).
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) when it has none.
    pub fn unchanged_version(&self, channel: &str) -> crate::Result<&ChannelVersion> {
        self.channel_versions.get(channel).ok_or_else(|| {
            crate::Error::invalid_argument("an unchanged channel has no version; add it to channel_versions")
                .with("channel", channel)
        })
    }

    /// The error of a `put` whose parent does not have the value of an [`unchanged`](Self::unchanged) channel.
    pub fn gone(channel: &str) -> crate::Error {
        crate::Error::new(
            crate::ErrorKind::Conflict,
            "the parent does not have the value of an unchanged channel (any more); give all values",
        )
        .with("channel", channel)
    }

    /// Refuses a checkpoint whose channels are not known, for savers that store or look at them.
    ///
    /// # Errors
    /// [`Crypto`](crate::ErrorKind::Crypto) for one that could not be opened,
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for one in the bytes of another serializer.
    pub fn require_channels(&self) -> crate::Result<()> {
        match self.as_opaque() {
            None => Ok(()),
            Some(value) if value.is_sealed() => Err(crate::Error::crypto(
                "the checkpoint could not be opened, so it cannot be stored and nothing can follow it; \
                 give the saver a cipher with its key",
            )),
            Some(_) => Err(crate::Error::invalid_argument(
                "the checkpoint is one value of another serializer; only a saver that keeps whole checkpoints, \
                 and has opaque_values, stores it",
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
    /// What it writes.
    pub value: ChannelValue,
    /// The task's place in the graph, by which writes are ordered; empty where it was not recorded.
    pub task_path: Str,
    /// The write's place in the task: its position in the call, or a fixed negative for special channels.
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

    /// Adds where the write stands: the task's path and its index in the task.
    #[must_use]
    pub fn stored_at(mut self, task_path: impl Into<Str>, idx: i32) -> Self {
        self.task_path = task_path.into();
        self.idx = idx;
        self
    }

    /// The order in which pending writes come back: task path, task, index.
    pub fn sort_key(&self) -> (&str, &str, i32) {
        (&self.task_path, &self.task_id, self.idx)
    }
}

/// Channels with a fixed index among a task's writes, which later calls replace.
pub mod special {
    /// The error that ended a task.
    pub const ERROR: &str = "__error__";
    /// Reserved by LangGraph.
    pub const SCHEDULED: &str = "__scheduled__";
    /// The interrupts that a task raised.
    pub const INTERRUPT: &str = "__interrupt__";
    /// The answers to interrupts.
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

/// Gives each write of one `put_writes` call its index, and tells whether the call replaces what stands there.
///
/// A special channel has its fixed index, any other its position in the call (special ones take a position too).
/// A call of nothing but special channels replaces; any other leaves what is there, for the whole call.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for more than 2^31 writes.
pub fn index_writes(writes: &[(Str, ChannelValue)]) -> crate::Result<(Vec<i32>, bool)> {
    let index = |(position, (channel, _)): (usize, &(Str, ChannelValue))| {
        special::index(channel).map_or_else(
            || {
                i32::try_from(position)
                    .map_err(|_| crate::Error::invalid_argument("too many writes in one call"))
            },
            Ok,
        )
    };
    let indexes = writes.iter().enumerate().map(index).collect::<crate::Result<_>>()?;
    Ok((indexes, writes.iter().all(|(channel, _)| special::index(channel).is_some())))
}

/// What a read returns: a checkpoint with where it stands, its metadata, and the writes that wait on it.
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
    /// The sends that checkpoints before version 4 of the format left on their parent, where the saver was told not to
    /// look into values; a list of them is the value of the channel `__pregel_tasks`. Other savers make that value.
    pub pending_sends: Vec<TypedBytes>,
}

impl CheckpointTuple {
    /// Puts together what was read for one row; an empty parent id means none.
    pub fn new(
        config: CheckpointConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        parent_checkpoint_id: Option<Str>,
        pending_writes: Vec<PendingWrite>,
    ) -> Self {
        let parent_config = parent_checkpoint_id.filter(|id| !id.is_empty()).map(|id| {
            CheckpointConfig::new(config.thread_id().clone())
                .with_checkpoint_ns(config.checkpoint_ns().clone())
                .with_checkpoint_id(id)
        });
        Self { config, checkpoint, metadata, parent_config, pending_writes, pending_sends: Vec::new() }
    }

    /// The id of the parent, if any.
    pub fn parent_checkpoint_id(&self) -> Option<&Str> {
        self.parent_config.as_ref().and_then(CheckpointConfig::checkpoint_id)
    }
}
