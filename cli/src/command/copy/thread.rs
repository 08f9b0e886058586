//! Copies one thread: finds what the target lacks, and sends it.

use std::collections::{HashMap, HashSet};

use checkpoint_core::{
    BoxStream, ChannelValue, ChannelVersions, CheckpointConfig, CheckpointTuple, Error, ListQuery,
    PendingWrite, Result as CoreResult, Str,
};
use futures_util::TryStreamExt;

use super::compare::{same_checkpoint, same_write, size};
use super::writes::{Call, calls};
use super::{Counts, Sides};
use crate::failure::{Failure, Result};
use crate::output::{self, clean};

/// About how many bytes of a thread are kept in memory between comparison and copy; the rest is read twice.
const MAX_KEPT_BYTES: usize = 8 << 20;

/// For how many namespaces of a thread the last sent checkpoint is remembered.
const MAX_NAMESPACES: usize = 64;

/// Why a thread could not be copied.
pub(super) struct Stopped {
    pub(super) failure: Failure,
    /// Whether other threads may succeed.
    pub(super) only_this_thread: bool,
}

impl Stopped {
    fn only_this_thread(line: String) -> Self {
        Self { failure: Failure::failed(line), only_this_thread: true }
    }

    fn at(side: &str, what: &str, error: Error) -> Self {
        use checkpoint_core::ErrorKind::{Codec, InvalidArgument};
        let only_this_thread = matches!(error.kind(), Codec | InvalidArgument);
        Self { failure: Failure::from(error).within(format!("{side}: {what}")), only_this_thread }
    }
}

/// Task id and index of a write.
type WriteKey = (Str, i32);

/// A checkpoint that is missing in the target, or has missing writes.
struct Missing {
    config: CheckpointConfig,
    /// Whether the checkpoint itself is missing.
    checkpoint: bool,
    /// The missing writes; `None` for all of them.
    writes: Option<HashSet<WriteKey>>,
    /// The checkpoint, unless it exceeded the memory limit.
    tuple: Option<Box<CheckpointTuple>>,
}

/// The result of a comparison.
#[derive(Default)]
struct Comparison {
    /// Newest first.
    missing: Vec<Missing>,
    kept_bytes: usize,
    /// The id of the newest checkpoint that differs.
    newest_differing: Option<String>,
    /// The number of checkpoints that differ.
    differing: usize,
    /// The namespaces in which the target has checkpoints of its own.
    diverged: HashSet<Str>,
}

/// Copies the part of a thread that is missing in the target.
pub(super) async fn copy(sides: &Sides, thread: &Str, counts: &Counts) -> Result<(), Stopped> {
    let compared = compare(sides, thread, counts).await?;
    let mut sent = Sent::default();
    // The newest comes last, so that every visible checkpoint is complete.
    for missing in compared.missing.into_iter().rev() {
        send(sides, missing, &mut sent, counts).await?;
    }
    match compared.newest_differing {
        Some(newest) => Err(Stopped::only_this_thread(format!(
            "thread {}: checkpoints that differ in the target and were not changed there: {}; the newest is {newest}",
            output::thread(thread),
            compared.differing
        ))),
        None => Ok(()),
    }
}

/// Lists both sides, newest first, and compares them checkpoint by checkpoint.
async fn compare(sides: &Sides, thread: &Str, counts: &Counts) -> Result<Comparison, Stopped> {
    let mut source =
        Listing::new("reading --from", thread, sides.from.list(ListQuery::thread(thread.clone())));
    let mut target = Listing::new("reading --to", thread, sides.to.list(ListQuery::thread(thread.clone())));
    let mut out = Comparison::default();
    let mut theirs = target.next().await?;
    while let Some((id, tuples)) = source.next().await? {
        while let Some((_, group)) = theirs.take_if(|(theirs, _)| *theirs > id) {
            out.only_in_target(&group, counts);
            theirs = target.next().await?;
        }
        let mut group = Vec::new();
        if let Some((_, same)) = theirs.take_if(|(theirs, _)| *theirs == id) {
            group = same;
            theirs = target.next().await?;
        }
        for tuple in tuples {
            let at =
                group.iter().position(|theirs| theirs.config.checkpoint_ns() == tuple.config.checkpoint_ns());
            let theirs = at.map(|at| group.swap_remove(at));
            out.pair(tuple, theirs.as_ref(), counts)?;
        }
        out.only_in_target(&group, counts);
    }
    while let Some((_, group)) = theirs.take() {
        out.only_in_target(&group, counts);
        theirs = target.next().await?;
    }
    Ok(out)
}

impl Comparison {
    fn only_in_target(&mut self, tuples: &[CheckpointTuple], counts: &Counts) {
        for tuple in tuples {
            counts.only_in_target.add(1);
            self.diverged.insert(tuple.config.checkpoint_ns().into());
        }
    }

    fn differs(&mut self, tuple: &CheckpointTuple) {
        self.newest_differing.get_or_insert_with(|| clean(&tuple.checkpoint.id).into_owned());
        self.differing += 1;
    }

    fn pair(
        &mut self,
        source: CheckpointTuple,
        target: Option<&CheckpointTuple>,
        counts: &Counts,
    ) -> Result<(), Stopped> {
        // Checked before anything of the thread is written.
        calls(&source.pending_writes, |_| true).map_err(|misplaced| {
            Stopped::only_this_thread(format!(
                "{}: {}",
                describe(&source.config),
                clean(&misplaced.to_string())
            ))
        })?;
        let writes = match target {
            None => None,
            Some(target) => {
                counts.existing.add(1);
                counts.show();
                let same = same_checkpoint(&source, target);
                let (missing, all_same) = self.missing_writes(&source, target);
                if !(same && all_same) {
                    self.differs(&source);
                }
                if missing.is_empty() {
                    return Ok(());
                }
                Some(missing)
            }
        };
        let config = source.config.clone();
        let bytes: usize = source.checkpoint.channel_values.values().map(size).sum::<usize>()
            + source.pending_writes.iter().map(|write| size(&write.value)).sum::<usize>();
        self.kept_bytes = self.kept_bytes.saturating_add(bytes);
        let tuple = (self.kept_bytes <= MAX_KEPT_BYTES).then(|| Box::new(source));
        self.missing.push(Missing { config, checkpoint: target.is_none(), writes, tuple });
        Ok(())
    }

    /// The writes to send to the target, and whether those that it has equal the source's.
    ///
    /// Writes to special channels are replaced over time (such as the answer to an interrupt), so the source's is newer,
    /// unless the target diverged.
    fn missing_writes(
        &self,
        source: &CheckpointTuple,
        target: &CheckpointTuple,
    ) -> (HashSet<WriteKey>, bool) {
        let existing: HashMap<(&str, i32), &PendingWrite> =
            target.pending_writes.iter().map(|write| ((&*write.task_id, write.idx), write)).collect();
        let mut all_same = true;
        let diverged = self.diverged.contains(source.config.checkpoint_ns());
        let missing =
            source.pending_writes.iter().filter(|write| match existing.get(&(&*write.task_id, write.idx)) {
                None => true,
                Some(theirs) if same_write(write, theirs) => false,
                Some(_) if write.idx < 0 => !diverged,
                Some(_) => {
                    all_same = false;
                    false
                }
            });
        let missing = missing.map(|write| (write.task_id.clone(), write.idx)).collect();
        (missing, all_same)
    }
}

/// A list of checkpoints, grouped by id: namespaces may share one.
struct Listing<'a> {
    side: &'static str,
    thread: &'a Str,
    tuples: BoxStream<'static, CoreResult<CheckpointTuple>>,
    next: Option<CheckpointTuple>,
    begun: bool,
}

impl<'a> Listing<'a> {
    fn new(
        side: &'static str,
        thread: &'a Str,
        tuples: BoxStream<'static, CoreResult<CheckpointTuple>>,
    ) -> Self {
        Self { side, thread, tuples, next: None, begun: false }
    }

    async fn tuple(&mut self) -> Result<Option<CheckpointTuple>, Stopped> {
        let what = || format!("thread {}", output::thread(self.thread));
        self.tuples.try_next().await.map_err(|error| Stopped::at(self.side, &what(), error))
    }

    /// The checkpoints of the next id.
    async fn next(&mut self) -> Result<Option<(Str, Vec<CheckpointTuple>)>, Stopped> {
        if !std::mem::replace(&mut self.begun, true) {
            self.next = self.tuple().await?;
        }
        let Some(first) = self.next.take() else { return Ok(None) };
        let id = first.checkpoint.id.clone();
        let mut group = vec![first];
        self.next = self.tuple().await?;
        while let Some(tuple) = self.next.take_if(|tuple| tuple.checkpoint.id == id) {
            group.push(tuple);
            self.next = self.tuple().await?;
        }
        Ok(Some((id, group)))
    }
}

/// The last checkpoint sent to the target, by namespace.
#[derive(Default)]
struct Sent(HashMap<Str, LastSent>);

struct LastSent {
    checkpoint_id: Str,
    versions: ChannelVersions,
    /// The channels that had a value.
    valued: HashSet<Str>,
}

impl Sent {
    /// The channels that changed since the parent: a backend that stores values by version already has the others. If
    /// the parent was not the last one sent, all channels.
    fn new_versions(&mut self, tuple: &CheckpointTuple) -> ChannelVersions {
        let checkpoint = &tuple.checkpoint;
        let ns = tuple.config.checkpoint_ns();
        let last = self.0.get(ns).filter(|last| tuple.parent_checkpoint_id() == Some(&*last.checkpoint_id));
        let is_new = |channel: &Str| {
            last.is_none_or(|last| {
                last.versions.get(channel) != checkpoint.channel_versions.get(channel)
                    || last.valued.contains(channel) != checkpoint.channel_values.contains_key(channel)
            })
        };
        let versions = &checkpoint.channel_versions;
        let new = versions
            .iter()
            .filter(|(channel, _)| is_new(channel))
            .map(|(channel, version)| (channel.clone(), version.clone()))
            .collect();
        let now = LastSent {
            checkpoint_id: checkpoint.id.clone(),
            versions: versions.clone(),
            valued: checkpoint.channel_values.keys().cloned().collect(),
        };
        if self.0.len() >= MAX_NAMESPACES && !self.0.contains_key(ns) {
            self.0.clear();
        }
        self.0.insert(ns.into(), now);
        new
    }
}

/// Sends one checkpoint, after its writes, so that it is never visible without them.
async fn send(sides: &Sides, missing: Missing, sent: &mut Sent, counts: &Counts) -> Result<(), Stopped> {
    let Missing { config, checkpoint, writes, tuple } = missing;
    let at = describe(&config);
    let tuple = match tuple {
        Some(tuple) => *tuple,
        None => match sides.from.get_tuple(&config).await {
            Ok(Some(tuple)) => tuple,
            // Deleted since the comparison.
            Ok(None) => return Ok(()),
            Err(error) => return Err(Stopped::at("reading --from", &at, error)),
        },
    };
    let failed = |error| Stopped::at("writing --to", &at, error);
    let wanted = |write: &PendingWrite| {
        writes.as_ref().is_none_or(|missing| missing.contains(&(write.task_id.clone(), write.idx)))
    };
    let calls = calls(&tuple.pending_writes, wanted)
        .map_err(|misplaced| Stopped::only_this_thread(format!("{at}: {}", clean(&misplaced.to_string()))))?;
    for Call { task_id, task_path, writes: pairs } in &calls {
        if !sides.dry_run {
            sides.to.put_writes(&config, pairs, task_id, task_path).await.map_err(failed)?;
        }
    }
    for write in tuple.pending_writes.iter().filter(|write| wanted(write)) {
        counts.writes.add(1);
        counts.bytes.add(size(&write.value));
    }
    if !checkpoint {
        return Ok(());
    }
    let new_versions = sent.new_versions(&tuple);
    // Only thread and namespace: other entries of a config would be merged into the metadata.
    let mut parent = CheckpointConfig::new(config.thread_id()).with_checkpoint_ns(config.checkpoint_ns());
    if let Some(id) = tuple.parent_checkpoint_id() {
        parent = parent.with_checkpoint_id(id);
    }
    if !sides.dry_run {
        sides.to.put(&parent, &tuple.checkpoint, &tuple.metadata, &new_versions).await.map_err(failed)?;
    }
    counts.checkpoints.add(1);
    counts.show();
    let changed = |(channel, _): &(&Str, &ChannelValue)| new_versions.contains_key(*channel);
    let values = tuple.checkpoint.channel_values.iter().filter(changed);
    counts.bytes.add(values.map(|(_, value)| size(value)).sum());
    Ok(())
}

fn describe(config: &CheckpointConfig) -> String {
    let id = config.checkpoint_id().map_or("", |id| id);
    let ns = config.checkpoint_ns();
    let within =
        if ns.is_empty() { String::new() } else { format!(" in namespace {}", output::namespace(ns)) };
    format!("thread {}, checkpoint {}{within}", output::thread(config.thread_id()), clean(id))
}

#[cfg(test)]
mod tests {
    use checkpoint_core::{Checkpoint, CheckpointMetadata};

    use super::*;

    /// A checkpoint on a parent, and its channels with their versions; a negative one has no value.
    fn tuple(ns: &str, id: &str, parent: Option<&str>, channels: &[(&str, i64)]) -> CheckpointTuple {
        let mut checkpoint = Checkpoint::with_id(id);
        for (channel, version) in channels {
            checkpoint = checkpoint.with_channel(*channel, *version, version.abs());
            if *version < 0 {
                checkpoint.channel_values.shift_remove(*channel);
            }
        }
        let config = CheckpointConfig::new("t").with_checkpoint_ns(ns).with_checkpoint_id(id);
        CheckpointTuple::new(config, checkpoint, CheckpointMetadata::default(), parent.map(Str::from), vec![])
    }

    #[test]
    fn new_versions_are_those_that_changed_since_the_parent() {
        let mut sent = Sent::default();
        let mut new = |tuple: CheckpointTuple| {
            sent.new_versions(&tuple).keys().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(new(tuple("", "1", None, &[("a", 1), ("b", 1), ("c", -1)])), ["a", "b", "c"]);
        assert_eq!(new(tuple("", "2", Some("1"), &[("a", 1), ("b", 2), ("c", -1)])), ["b"]);
        // A snapshot of the same version, and a removed value.
        assert_eq!(new(tuple("", "3", Some("2"), &[("a", -1), ("b", 2), ("c", 1)])), ["a", "c"]);
        // For a fork and for another namespace, all channels are new.
        assert_eq!(new(tuple("", "4", Some("1"), &[("a", 1), ("b", 1)])), ["a", "b"]);
        assert_eq!(new(tuple("sub", "5", Some("4"), &[("a", 1)])), ["a"]);
        assert!(new(tuple("", "6", Some("4"), &[("a", 1), ("b", 1)])).is_empty());
        for number in 0..2 * MAX_NAMESPACES {
            assert_eq!(new(tuple(&number.to_string(), "1", None, &[("a", 1)])), ["a"]);
        }
        assert!(sent.0.len() <= MAX_NAMESPACES);
    }
}
