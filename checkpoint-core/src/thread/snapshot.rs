//! The state of a thread at one checkpoint.

use serde::de::DeserializeOwned;

use super::{NO_WRITES, PATH_PREFIX, RETURN};
use crate::serde::decode;
use crate::{
    ChannelValue, CheckpointConfig, CheckpointMetadata, CheckpointTuple, PendingWrite, Result, ThreadStatus,
    special,
};

/// The state of a thread at one checkpoint.
///
/// It belongs to its thread and namespace: any other [`Thread`](crate::Thread) rejects it.
#[derive(Debug, Clone, PartialEq)]
pub struct StateSnapshot {
    pub(super) tuple: CheckpointTuple,
    /// The backend it was read from, if known.
    pub(super) backend: Option<&'static str>,
}

impl StateSnapshot {
    /// The checkpoint's id.
    pub fn id(&self) -> &str {
        &self.tuple.checkpoint.id
    }

    /// The step: -1 for the first input, 0 for the first state after it.
    pub fn step(&self) -> i64 {
        self.tuple.metadata.step().unwrap_or(-1)
    }

    /// How the state was created: `input`, `loop`, `update` or `fork`.
    pub fn source(&self) -> Option<&str> {
        self.tuple.metadata.source()
    }

    /// The metadata.
    pub fn metadata(&self) -> &CheckpointMetadata {
        &self.tuple.metadata
    }

    /// Thread, namespace and id.
    pub fn config(&self) -> &CheckpointConfig {
        &self.tuple.config
    }

    /// The id of the state before it, if any.
    pub fn parent_id(&self) -> Option<&str> {
        self.tuple.parent_checkpoint_id()
    }

    /// Whether a step is unfinished, a person has to answer, or nothing is left to do.
    pub fn status(&self) -> ThreadStatus {
        ThreadStatus::of(&self.tuple)
    }

    /// The whole tuple, as it was read.
    pub fn tuple(&self) -> &CheckpointTuple {
        &self.tuple
    }

    /// Decodes the channels that the type has fields for.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) for a value that does not match the type; the error names the channel.
    pub fn values<T: DeserializeOwned>(&self) -> Result<T> {
        decode::from_channels(&self.tuple.checkpoint.channel_values)
    }

    /// Decodes one channel, or `None` when it has no value.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) for a value that does not match the type.
    pub fn channel<T: DeserializeOwned>(&self, channel: &str) -> Result<Option<T>> {
        let value = self.tuple.checkpoint.channel_values.get(channel);
        value.map(|value| value.decode().map_err(|error| error.with("channel", channel))).transpose()
    }

    /// Whether a task of this step has finished and its result is recorded.
    pub fn is_done(&self, task: &str) -> bool {
        self.results_of(task).next().is_some()
    }

    /// The names of the tasks of this step that have finished, sorted.
    pub fn done_tasks(&self) -> Vec<&str> {
        let results = self.tuple.pending_writes.iter().filter(|write| is_result(write));
        let mut names: Vec<_> =
            results.filter_map(|write| write.task_path.strip_prefix(PATH_PREFIX)).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Decodes the recorded result of a task, or `None` when it has not finished.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) for a value that does not match the type; the error names the task, and for a
    /// struct the channel.
    pub fn result<T: DeserializeOwned>(&self, task: &str) -> Result<Option<T>> {
        let writes: Vec<_> = self.results_of(task).collect();
        let decoded = match writes.as_slice() {
            [] => return Ok(None),
            [write] if &*write.channel == RETURN => write.value.decode(),
            // A result without a value: `()` and `None`, or a struct without fields.
            [write] if &*write.channel == NO_WRITES => {
                ChannelValue::Null.decode().or_else(|_| decode::from_channels(&crate::ChannelValues::new()))
            }
            writes => {
                let written = writes.iter().filter(|write| &*write.channel != NO_WRITES);
                let values = written.map(|write| (write.channel.clone(), write.value.clone())).collect();
                decode::from_channels(&values)
            }
        };
        decoded.map(Some).map_err(|error| error.with("task", task))
    }

    fn results_of<'a>(&'a self, task: &'a str) -> impl Iterator<Item = &'a PendingWrite> + 'a {
        let of_task = move |write: &&PendingWrite| write.task_path.strip_prefix(PATH_PREFIX) == Some(task);
        self.tuple.pending_writes.iter().filter(of_task).filter(|write| is_result(write))
    }
}

impl From<CheckpointTuple> for StateSnapshot {
    fn from(tuple: CheckpointTuple) -> Self {
        Self { tuple, backend: None }
    }
}

/// Errors, interrupts and resume values do not finish a task.
fn is_result(write: &PendingWrite) -> bool {
    special::index(&write.channel).is_none()
}
