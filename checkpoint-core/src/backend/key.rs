//! The key of a stored checkpoint.

use super::AssociatedData;
use crate::{CheckpointConfig, Error};

/// Thread, namespace and id of one stored checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CheckpointKey<'a> {
    /// The thread.
    pub thread_id: &'a str,
    /// The namespace, `""` for the root.
    pub checkpoint_ns: &'a str,
    /// The checkpoint.
    pub checkpoint_id: &'a str,
}

impl<'a> CheckpointKey<'a> {
    /// Makes a key from its parts.
    pub const fn new(thread_id: &'a str, checkpoint_ns: &'a str, checkpoint_id: &'a str) -> Self {
        Self { thread_id, checkpoint_ns, checkpoint_id }
    }

    /// The same key in another thread.
    #[must_use]
    pub const fn in_thread(self, thread_id: &'a str) -> Self {
        Self { thread_id, ..self }
    }

    /// The associated data of the checkpoint itself.
    pub const fn checkpoint_data(self) -> AssociatedData<'a> {
        let Self { thread_id, checkpoint_ns, checkpoint_id } = self;
        AssociatedData::Checkpoint { thread_id, checkpoint_ns, checkpoint_id }
    }

    /// The associated data of a pending write on the checkpoint.
    pub const fn write_data(self, task_id: &'a str, idx: i32, channel: &'a str) -> AssociatedData<'a> {
        let Self { thread_id, checkpoint_ns, checkpoint_id } = self;
        AssociatedData::Write { thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel }
    }

    /// The associated data of the checkpoint's metadata.
    pub const fn metadata_data(self) -> AssociatedData<'a> {
        let Self { thread_id, checkpoint_ns, checkpoint_id } = self;
        AssociatedData::Metadata { thread_id, checkpoint_ns, checkpoint_id }
    }

    /// The associated data of the channel and the path of a pending write on the checkpoint.
    pub const fn write_header_data(self, task_id: &'a str, idx: i32) -> AssociatedData<'a> {
        let Self { thread_id, checkpoint_ns, checkpoint_id } = self;
        AssociatedData::WriteHeader { thread_id, checkpoint_ns, checkpoint_id, task_id, idx }
    }

    /// The config that names the checkpoint.
    pub fn to_config(self) -> CheckpointConfig {
        CheckpointConfig::new(self.thread_id)
            .with_checkpoint_ns(self.checkpoint_ns)
            .with_checkpoint_id(self.checkpoint_id)
    }

    /// Adds the key to an error, for [`Result::map_err`]: `.map_err(key.context())`.
    pub fn context(self) -> impl Fn(Error) -> Error + use<'a> {
        move |error| {
            error
                .with("thread_id", self.thread_id)
                .with("checkpoint_ns", self.checkpoint_ns)
                .with("checkpoint_id", self.checkpoint_id)
        }
    }
}
