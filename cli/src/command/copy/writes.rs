//! Converts pending writes to calls of `put_writes` that store them at the same index.
//!
//! `put_writes` assigns the index by position, except for special channels, which have fixed indexes but still take a
//! position. So a missing index was the position of a special channel's write, and is filled with one. That does not
//! change the stored write: a call that also has regular writes does not replace existing ones.

use std::collections::BTreeMap;
use std::fmt;

use checkpoint_core::{ChannelValue, PendingWrite, Str, special};

use super::compare::size;

/// The most missing indexes of a task; no real agent leaves more.
const MAX_GAPS: usize = 4096;

/// One call of `put_writes`.
#[derive(Debug, PartialEq)]
pub(super) struct Call {
    pub(super) task_id: Str,
    pub(super) task_path: Str,
    pub(super) writes: Vec<(Str, ChannelValue)>,
}

/// A write whose index no call of `put_writes` assigns.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Misplaced {
    task_id: Str,
    channel: Str,
    idx: i32,
}

impl Misplaced {
    fn new(write: &PendingWrite) -> Self {
        Self { task_id: write.task_id.clone(), channel: write.channel.clone(), idx: write.idx }
    }
}

impl fmt::Display for Misplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the write of task {} to channel {} has index {}, which LangGraph does not assign to such a write",
            self.task_id, self.channel, self.idx
        )
    }
}

/// The calls that store the writes of one checkpoint at their indexes, in the order in which they must run. Writes to
/// special channels get separate calls, and only the `wanted` ones, because they replace existing writes.
pub(super) fn calls(
    writes: &[PendingWrite],
    wanted: impl Fn(&PendingWrite) -> bool,
) -> Result<Vec<Call>, Misplaced> {
    let mut tasks: BTreeMap<&str, Vec<&PendingWrite>> = BTreeMap::new();
    for write in writes {
        tasks.entry(&write.task_id).or_default().push(write);
    }
    let mut out = Vec::new();
    for (_, mut task) in tasks {
        task.sort_by_key(|write| write.idx);
        let (special, regular): (Vec<_>, Vec<_>) =
            task.into_iter().partition(|write| special::index(&write.channel).is_some());
        if let Some(misplaced) =
            special.iter().find(|write| special::index(&write.channel) != Some(write.idx))
        {
            return Err(Misplaced::new(misplaced));
        }
        let wanted_special: Vec<_> = special.iter().copied().filter(|write| wanted(write)).collect();
        for run in runs(&wanted_special) {
            out.extend(call(run, run.iter().map(|write| pair(write)).collect()));
        }
        let filler = special.iter().min_by_key(|write| size(&write.value));
        let mut positions: Vec<(Str, ChannelValue)> = Vec::new();
        let mut gaps = 0;
        for run in runs(&regular) {
            for write in run {
                let position = usize::try_from(write.idx).map_err(|_| Misplaced::new(write))?;
                gaps += position.saturating_sub(positions.len());
                match filler {
                    Some(filler) if gaps <= MAX_GAPS => positions.resize_with(position, || pair(filler)),
                    _ if position == positions.len() => {}
                    _ => return Err(Misplaced::new(write)),
                }
                positions.push(pair(write));
            }
            if run.iter().any(|write| wanted(write)) {
                out.extend(call(run, positions.clone()));
            }
        }
    }
    Ok(out)
}

/// Groups adjacent writes with the same task path, which is an argument of the call.
fn runs<'a, 'w>(writes: &'a [&'w PendingWrite]) -> impl Iterator<Item = &'a [&'w PendingWrite]> {
    writes.chunk_by(|a, b| a.task_path == b.task_path)
}

fn call(run: &[&PendingWrite], writes: Vec<(Str, ChannelValue)>) -> Option<Call> {
    let first = run.first()?;
    Some(Call { task_id: first.task_id.clone(), task_path: first.task_path.clone(), writes })
}

fn pair(write: &PendingWrite) -> (Str, ChannelValue) {
    (write.channel.clone(), write.value.clone())
}

#[cfg(test)]
mod tests {
    use checkpoint_core::{
        BaseCheckpointSaver, ChannelVersions, CheckpointConfig, CheckpointMetadata, InMemorySaver, SaverExt,
    };

    use super::*;

    const ID: &str = "1f1e4fbf-bea1-6f34-bfff-a8ab9f516d8b";

    fn write(task: &str, path: &str, idx: i32, channel: &str) -> PendingWrite {
        PendingWrite::new(task, channel, format!("{task}{idx}").as_str()).with_position(path, idx)
    }

    async fn stored(writes: &[PendingWrite], times: usize) -> Vec<PendingWrite> {
        let saver = InMemorySaver::new();
        let at = CheckpointConfig::new("t").with_checkpoint_id(ID);
        for _ in 0..times {
            for call in calls(writes, |_| true).unwrap() {
                saver.put_writes(&at, &call.writes, &call.task_id, &call.task_path).await.unwrap();
            }
        }
        let checkpoint = checkpoint_core::Checkpoint::with_id(ID);
        saver
            .put(
                &CheckpointConfig::new("t"),
                &checkpoint,
                &CheckpointMetadata::default(),
                &ChannelVersions::default(),
            )
            .await
            .unwrap();
        saver.list_first(checkpoint_core::ListQuery::thread("t")).await.unwrap().unwrap().pending_writes
    }

    #[test]
    fn every_write_keeps_its_index() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let tables = [
            vec![],
            vec![write("a", "p", 0, "x"), write("a", "p", 1, "x"), write("a", "p", 2, "y")],
            // Positions of special channels.
            vec![write("a", "p", -4, "__resume__"), write("a", "p", 1, "x"), write("a", "p", 4, "y")],
            vec![write("a", "", -1, "__error__"), write("a", "", -3, "__interrupt__")],
            // Tasks with the same index, and one with two paths.
            vec![
                write("a", "p", 0, "x"),
                write("b", "q", 0, "x"),
                write("b", "r", 1, "y"),
                write("b", "q", 2, "z"),
            ],
            vec![
                write("a", "p", -1, "__error__"),
                write("a", "q", -4, "__resume__"),
                write("a", "q", 2, "x"),
            ],
        ];
        for mut table in tables {
            table.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
            assert_eq!(runtime.block_on(stored(&table, 1)), table);
            assert_eq!(runtime.block_on(stored(&table, 2)), table, "a second run changes nothing");
        }
    }

    #[test]
    fn misplaced_writes_are_errors() {
        for misplaced in [
            vec![write("a", "p", 0, "x"), write("a", "p", 2, "y")],
            vec![write("a", "p", 1, "__interrupt__")],
            vec![write("a", "p", -1, "x")],
            vec![write("a", "p", -1, "__error__"), write("a", "p", i32::MAX, "x")],
        ] {
            let last = misplaced.last().unwrap();
            assert_eq!(calls(&misplaced, |_| true), Err(Misplaced::new(last)));
        }
    }

    #[test]
    fn only_wanted_writes_are_called_for() {
        let table = [write("a", "p", -4, "__resume__"), write("a", "p", 0, "x"), write("b", "p", 0, "x")];
        let calls = calls(&table, |write| &*write.task_id == "b").unwrap();
        assert_eq!(calls.len(), 1);
        assert_eq!((&*calls[0].task_id, calls[0].writes.len()), ("b", 1));
    }
}
