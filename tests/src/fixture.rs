//! Helpers to write checkpoints and to read them.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::case::Failure;
use crate::target::Saver;
use checkpoint_core::{
    BaseCheckpointSaver, Bytes, ChannelValue, Checkpoint, CheckpointConfig, CheckpointMetadata,
    CheckpointTuple, ErrorKind, ListQuery, PendingWrite, Result, SaverExt, Str, Value, id,
};

pub(crate) type Done = std::result::Result<(), Failure>;

/// A checkpoint with these values, each at version 1.
pub(crate) fn checkpoint(values: &[(&str, ChannelValue)]) -> Checkpoint {
    at_version(1, values)
}

/// A checkpoint with these values, each at the given version.
pub(crate) fn at_version(version: i64, values: &[(&str, ChannelValue)]) -> Checkpoint {
    values.iter().fold(Checkpoint::new(-1), |checkpoint, (channel, value)| {
        checkpoint.with_channel(*channel, value.clone(), version)
    })
}

pub(crate) fn metadata(step: i64) -> CheckpointMetadata {
    CheckpointMetadata::new("loop", step)
}

/// Encodes a value of the suite.
pub(crate) fn encode(value: &Value) -> Result<ChannelValue> {
    ChannelValue::from_msgpack(value.to_msgpack()?.into())
}

pub(crate) fn map(entries: &[(&str, Value)]) -> Value {
    Value::Map(entries.iter().map(|(key, value)| ((*key).into(), value.clone())).collect())
}

pub(crate) fn list(items: &[i64]) -> Value {
    Value::Array(items.iter().map(|item| (*item).into()).collect())
}

/// The snapshot of a delta channel.
pub(crate) fn snapshot(value: &Value) -> Result<ChannelValue> {
    encode(&Value::Ext(7, value.to_msgpack()?.into()))
}

pub(crate) fn bytes(data: impl Into<Bytes>) -> ChannelValue {
    checkpoint_core::TypedBytes::new("bytes", data).into()
}

/// Puts a checkpoint whose channels are all new.
pub(crate) async fn put(
    saver: &Saver,
    config: &CheckpointConfig,
    checkpoint: &Checkpoint,
) -> Result<CheckpointConfig> {
    put_with(saver, config, checkpoint, &metadata(0)).await
}

/// Puts a checkpoint whose channels are all new, with metadata.
pub(crate) async fn put_with(
    saver: &Saver,
    config: &CheckpointConfig,
    checkpoint: &Checkpoint,
    metadata: &CheckpointMetadata,
) -> Result<CheckpointConfig> {
    saver.put(config, checkpoint, metadata, &checkpoint.channel_versions).await
}

/// Puts a chain of `count` checkpoints: channel `step` counts them, as does the metadata; sources alternate between
/// `input` and `loop`.
pub(crate) async fn chain(
    saver: &Saver,
    thread_id: &Str,
    checkpoint_ns: &str,
    count: i64,
) -> Result<Vec<CheckpointConfig>> {
    let mut config = CheckpointConfig::new(thread_id.clone()).with_checkpoint_ns(checkpoint_ns);
    let mut stored = Vec::new();
    for step in 0..count {
        let source = if step % 2 == 0 { "input" } else { "loop" };
        let checkpoint = at_version(step + 1, &[("step", step.into())]);
        config = put_with(saver, &config, &checkpoint, &CheckpointMetadata::new(source, step)).await?;
        stored.push(config.clone());
    }
    Ok(stored)
}

/// Writes to channels for a task, without a path.
pub(crate) async fn write(
    saver: &Saver,
    config: &CheckpointConfig,
    task_id: &str,
    writes: &[(&str, ChannelValue)],
) -> Result<()> {
    write_at(saver, config, task_id, "", writes).await
}

/// Writes to channels for a task with a path.
pub(crate) async fn write_at(
    saver: &Saver,
    config: &CheckpointConfig,
    task_id: &str,
    task_path: &str,
    writes: &[(&str, ChannelValue)],
) -> Result<()> {
    let writes: Vec<_> = writes.iter().map(|(channel, value)| (Str::from(*channel), value.clone())).collect();
    saver.put_writes(config, &writes, task_id, task_path).await
}

/// Reads a checkpoint that must exist.
#[track_caller]
pub(crate) fn read(
    saver: &Saver,
    config: &CheckpointConfig,
) -> impl Future<Output = std::result::Result<CheckpointTuple, Failure>> + Send {
    let missing = Failure::new("the checkpoint is missing");
    async move { saver.get_tuple(config).await?.ok_or(missing) }
}

/// Reads a channel's value, which must exist.
#[track_caller]
pub(crate) fn value(tuple: &CheckpointTuple, channel: &str) -> std::result::Result<ChannelValue, Failure> {
    let value = tuple.checkpoint.channel_values.get(channel).cloned();
    value.ok_or_else(|| Failure::new(format!("channel {channel:?} has no value")))
}

/// The ids of a listing.
pub(crate) async fn ids(saver: &Saver, query: ListQuery) -> Result<Vec<Str>> {
    Ok(saver.list_all(query).await?.into_iter().map(|tuple| tuple.checkpoint.id).collect())
}

/// The ids of configs in reverse order: newest first.
pub(crate) fn newest_first(configs: &[CheckpointConfig]) -> Vec<Str> {
    configs.iter().rev().map(id_of).collect()
}

pub(crate) fn id_of(config: &CheckpointConfig) -> Str {
    config.checkpoint_id().map(Str::from).unwrap_or_default()
}

pub(crate) fn random() -> Str {
    id::uuid6(0)
}

/// Task, channel and value of each pending write.
pub(crate) fn triples(writes: &[PendingWrite]) -> Vec<(&str, &str, &ChannelValue)> {
    writes.iter().map(|write| (&*write.task_id, &*write.channel, &write.value)).collect()
}

/// An item that a case has prepared. Without it the case would check nothing, so it fails.
#[track_caller]
pub(crate) fn prepared<T>(item: Option<T>) -> std::result::Result<T, Failure> {
    let missing = Failure::new("the case's own fixture is missing");
    item.ok_or(missing)
}

/// Fails unless a call failed with an error of this kind.
#[track_caller]
pub(crate) fn expect_kind<T>(result: Result<T>, kind: ErrorKind, what: &str) -> Done {
    match result {
        Ok(_) => Err(Failure::new(format!("{what}: succeeded, expected an error of kind {kind:?}"))),
        Err(error) if error.kind() == kind => Ok(()),
        Err(error) => Err(Failure::new(format!("{what}: {:?} ({error}), expected {kind:?}", error.kind()))),
    }
}

/// Fails unless a call failed with a conflict that the same call would meet again, and returns its text.
#[track_caller]
pub(crate) fn expect_conflict<T>(result: Result<T>, what: &str) -> std::result::Result<String, Failure> {
    match result {
        Ok(_) => Err(Failure::new(format!("{what}: succeeded, expected a conflict"))),
        Err(error) if error.kind() == ErrorKind::Conflict && !error.is_retryable() => Ok(error.to_string()),
        Err(error) => {
            Err(Failure::new(format!("{what}: {error:?}, expected a conflict that is not retryable")))
        }
    }
}

/// A tuple with sorted keys, because databases may change their order.
#[cfg(feature = "model")]
pub(crate) fn canonical(mut tuple: CheckpointTuple) -> CheckpointTuple {
    tuple.metadata = canonical_metadata(&tuple.metadata);
    tuple
}

pub(crate) fn canonical_metadata(metadata: &CheckpointMetadata) -> CheckpointMetadata {
    metadata.iter().map(|(key, value)| (key.clone(), canonical_value(value))).collect()
}

fn canonical_value(value: &Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.iter().map(canonical_value).collect()),
        Value::Map(entries) => {
            let mut entries: Vec<_> =
                entries.iter().map(|(key, value)| (key.clone(), canonical_value(value))).collect();
            entries.sort_by_key(|(key, _)| format!("{key:?}"));
            Value::Map(entries)
        }
        other => other.clone(),
    }
}

/// Counts the calls that were dropped midway and those that finished.
#[derive(Debug, Default)]
pub(crate) struct Cuts {
    cut: usize,
    finished: usize,
}

impl Cuts {
    /// Runs a call as [`poll_then_drop`] does.
    pub(crate) async fn run<F: Future>(&mut self, call: F, polls: usize) -> Option<F::Output> {
        let done = poll_then_drop(call, polls).await;
        match &done {
            Some(_) => self.finished += 1,
            // A future that was never polled has not started.
            None if polls == 0 => {}
            None => self.cut += 1,
        }
        done
    }

    /// Fails unless several calls were dropped after they had started, and some finished. Calls of a backend that never
    /// `waits` finish with their first poll.
    #[track_caller]
    pub(crate) fn check(&self, waits: bool) -> Done {
        const MIN_CALLS: usize = 3;
        let Self { cut, finished } = self;
        let enough = *finished > 0 && (*cut >= MIN_CALLS || !waits);
        let failure = Failure::new(format!("{cut} calls were cut and {finished} finished"));
        if enough { Ok(()) } else { Err(failure) }
    }
}

/// Polls a future this many times, yielding to other tasks and now and then sleeping a millisecond for the server in
/// between, then drops it. Returns its output if it finished.
pub(crate) async fn poll_then_drop<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    for poll in 1..=polls {
        if let Poll::Ready(output) = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await {
            return Some(output);
        }
        if poll % 4 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn calls_that_were_not_dropped_midway_are_detected() {
        let mut cuts = Cuts::default();
        assert!(cuts.check(false).is_err(), "nothing was called");
        assert_eq!(cuts.run(async { 1 }, 3).await, Some(1));
        assert!(cuts.check(false).is_ok());
        assert!(cuts.check(true).is_err(), "nothing was cut");
        for _ in 0..9 {
            // Never polled, so it has not started.
            assert_eq!(cuts.run(std::future::pending::<()>(), 0).await, None);
        }
        assert!(cuts.check(true).is_err(), "nothing was cut");
        for _ in 0..3 {
            assert_eq!(cuts.run(std::future::pending::<()>(), 2).await, None);
        }
        assert!(cuts.check(true).is_ok());
    }
}
