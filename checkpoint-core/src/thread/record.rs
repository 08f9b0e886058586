//! Results of tasks.

use serde::Serialize;

use super::{NO_WRITES, PATH_PREFIX, RETURN, StateSnapshot, Thread};
use crate::serde::document;
use crate::{
    BaseCheckpointSaver, ChannelValue, ErrorKind, Lease, PendingWrite, PutWritesOptions, Result, Str, id,
};

/// Records a result; see [`Thread::record`].
pub(super) async fn record<S: BaseCheckpointSaver, T: Serialize + ?Sized>(
    thread: &Thread<S>,
    on: &StateSnapshot,
    task: &str,
    result: &T,
) -> Result<StateSnapshot> {
    thread.check(on)?;
    let context = |error: crate::Error| {
        error.with("task", task).with("thread_id", thread.thread_id()).with("checkpoint_id", on.id())
    };
    let writes = writes_of(result).map_err(context)?;
    let (task_id, task_path) = (task_id(on, task)?, format!("{PATH_PREFIX}{task}"));
    let mut options = PutWritesOptions::default().once().checkpoint_stored();
    options.lease.clone_from(&thread.lease);
    let put = thread.saver.put_writes_with(on.config(), &writes, &task_id, &task_path, &options);
    let mut stored = match put.await {
        Ok(()) => on.clone(),
        // Perhaps this very result is recorded: by a call whose reply was lost, or by a repeated run of the task.
        Err(error) if error.kind() == ErrorKind::Conflict && !Lease::is_lost(&error) => {
            match thread.at(on.id()).await? {
                Some(stored) if has(&stored, &task_id, &writes) => stored,
                _ => return Err(error.with("task", task)),
            }
        }
        Err(error) => return Err(error.with("task", task)),
    };
    let pending = &mut stored.tuple.pending_writes;
    if !pending.iter().any(|write| *write.task_id == *task_id && write.idx >= 0) {
        pending.extend((0..).zip(writes).map(|(idx, (channel, value))| {
            PendingWrite::new(&*task_id, channel, value).with_position(&*task_path, idx)
        }));
        pending.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
    }
    Ok(stored)
}

/// One write per field of a struct or map, or one write of any other value.
fn writes_of<T: Serialize + ?Sized>(result: &T) -> Result<Vec<(Str, ChannelValue)>> {
    let whole = ChannelValue::encode(result)?;
    if whole == ChannelValue::Null {
        return Ok(vec![(NO_WRITES.into(), ChannelValue::Null)]);
    }
    let fields = match &whole {
        ChannelValue::Blob(blob) => document::split_map(&blob.to_unvalidated_msgpack()?).ok(),
        _ => None,
    };
    // LangGraph's own channels have other rules: a field with such a name stays inside its struct.
    let fields = fields.filter(|fields| !fields.keys().any(|channel| channel.starts_with("__")));
    Ok(match fields {
        Some(fields) if fields.is_empty() => vec![(NO_WRITES.into(), ChannelValue::Null)],
        Some(fields) => fields.into_iter().collect(),
        None => vec![(RETURN.into(), whole)],
    })
}

/// Whether these writes are the stored result of the task.
fn has(snapshot: &StateSnapshot, task_id: &str, writes: &[(Str, ChannelValue)]) -> bool {
    let stored = snapshot.tuple.pending_writes.iter();
    let stored = stored.filter(|write| *write.task_id == *task_id && write.idx >= 0);
    let stored: Vec<_> = stored.map(|write| (&write.channel, &write.value)).collect();
    stored.len() == writes.len()
        && stored.iter().zip(writes).all(|((channel, value), (ours, our_value))| {
            *channel == ours && super::commit::same_bytes(value, our_value)
        })
}

/// The id of a task as LangGraph makes it: the hash of checkpoint, namespace, step and name.
fn task_id(on: &StateSnapshot, task: &str) -> Result<String> {
    let checkpoint_id = id::validate(on.id())?;
    let checkpoint_ns = on.config().checkpoint_ns();
    let separator = if checkpoint_ns.is_empty() { "" } else { "|" };
    let mut bytes = checkpoint_id.as_bytes().to_vec();
    let step = on.step().saturating_add(1);
    bytes.extend_from_slice(format!("{checkpoint_ns}{separator}{task}{step}{task}__pregel_pull").as_bytes());
    let hash = xxhash_rust::xxh3::xxh3_128(&bytes);
    Ok(uuid::Uuid::from_u128(hash).hyphenated().to_string())
}
