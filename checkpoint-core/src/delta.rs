//! Delta channels: most checkpoints hold only what was written to the channel, and some hold a snapshot of the value.

use std::collections::{BTreeMap, HashMap, HashSet};

use std::fmt::Debug;

use crate::serde::document;
use crate::{
    BaseCheckpointSaver, ChannelValue, Checkpoint, CheckpointConfig, CheckpointMetadata, PendingWrite,
    Result, Str, TypedBytes,
};

/// The extension code of a delta snapshot.
const SNAPSHOT_CODE: i8 = 7;

/// What a delta channel's value at a checkpoint is rebuilt from.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct DeltaChannelHistory {
    /// The value at the nearest ancestor that has one (a delta snapshot, or a plain value from before the channel
    /// became a delta channel); `None` if no ancestor has one.
    pub seed: Option<ChannelValue>,
    /// The writes since, oldest first: by checkpoint, then task path, task and index. Writes on the seed's checkpoint
    /// are included, writes on the target are not.
    pub writes: Vec<PendingWrite>,
}

/// Collects delta histories while a backend walks from the parent of a target to the root.
///
/// A backend calls [`next`](Self::next), passes the ancestor to [`visit`](Self::visit), and ends with
/// [`finish`](Self::finish) if there is no next ancestor or it is not stored.
#[derive(Debug)]
pub struct HistoryWalk {
    unseeded: Vec<Str>,
    found: BTreeMap<Str, DeltaChannelHistory>,
    next: Option<Str>,
    seen: HashSet<Str>,
}

impl HistoryWalk {
    /// Begins a walk for these channels.
    pub fn new(channels: &[&str]) -> Self {
        let found: BTreeMap<Str, _> =
            channels.iter().map(|channel| (Str::from(*channel), DeltaChannelHistory::default())).collect();
        Self { unseeded: found.keys().cloned().collect(), found, next: None, seen: HashSet::new() }
    }

    /// The channels that still lack a seed, sorted. If there are none, no ancestor needs to be read.
    pub fn unseeded(&self) -> Vec<&str> {
        self.unseeded.iter().map(|channel| &**channel).collect()
    }

    /// Sets the next ancestor, at first the parent of the target. An empty id means that there is none.
    pub fn go_to(&mut self, parent_checkpoint_id: Option<Str>) {
        self.next = parent_checkpoint_id.filter(|id| !id.is_empty());
    }

    /// The ancestor to read next, if any.
    pub fn next(&self) -> Option<&Str> {
        self.next.as_ref().filter(|id| !self.unseeded.is_empty() && !self.seen.contains(*id))
    }

    /// Adds the ancestor at [`next`](Self::next): its parent, its writes in order, and its values of the channels that
    /// still lack a seed.
    pub fn visit(
        &mut self,
        parent_checkpoint_id: Option<Str>,
        writes: &[PendingWrite],
        mut value_of: impl FnMut(&str) -> Option<ChannelValue>,
    ) {
        self.seen.extend(self.next.take());
        let found = &mut self.found;
        self.unseeded.retain(|channel| {
            let Some(history) = found.get_mut(channel) else { return false };
            // Newest first; `finish` reverses them.
            history.writes.extend(writes.iter().rev().filter(|write| write.channel == *channel).cloned());
            history.seed = value_of(channel);
            history.seed.is_none()
        });
        self.go_to(parent_checkpoint_id);
    }

    /// Ends the walk.
    pub fn finish(mut self) -> BTreeMap<Str, DeltaChannelHistory> {
        self.found.values_mut().for_each(|history| history.writes.reverse());
        self.found
    }
}

/// Walks with one [`get_tuple`](BaseCheckpointSaver::get_tuple) per ancestor: for backends without a faster way.
///
/// # Errors
/// As [`BaseCheckpointSaver::get_tuple`].
///
/// # Cancellation
/// May be dropped at any time.
pub async fn walk(
    saver: &(impl BaseCheckpointSaver + ?Sized),
    config: &CheckpointConfig,
    channels: &[&str],
) -> Result<BTreeMap<Str, DeltaChannelHistory>> {
    let mut walk = HistoryWalk::new(channels);
    if walk.unseeded.is_empty() {
        return Ok(walk.finish());
    }
    let target = saver.get_tuple(config).await?;
    walk.go_to(target.and_then(|tuple| tuple.parent_checkpoint_id().map(Str::from)));
    while let Some(id) = walk.next() {
        let Some(tuple) = saver.get_tuple(&config.for_checkpoint(id.clone())).await? else { break };
        let values = &tuple.checkpoint.channel_values;
        let parent = tuple.parent_checkpoint_id().map(Str::from);
        walk.visit(parent, &tuple.pending_writes, |channel| values.get(channel).cloned());
    }
    Ok(walk.finish())
}

/// Which channels a checkpoint has, without their values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelSummary {
    /// The channels that have a version.
    pub versioned: Vec<Str>,
    /// The channels that have a value, and whether it is a delta snapshot.
    pub values: HashMap<Str, bool>,
}

impl ChannelSummary {
    /// Takes the channels that have a version, and those that have a value, each with whether it is a delta snapshot.
    pub fn new(
        versioned: impl IntoIterator<Item = Str>,
        values: impl IntoIterator<Item = (Str, bool)>,
    ) -> Self {
        Self { versioned: versioned.into_iter().collect(), values: values.into_iter().collect() }
    }

    /// Summarizes a checkpoint without decoding its values.
    pub(crate) fn of(checkpoint: &Checkpoint) -> Self {
        let values = checkpoint.channel_values.iter();
        Self::new(
            checkpoint.channel_versions.keys().cloned(),
            values.map(|(channel, value)| (channel.clone(), is_snapshot(value))),
        )
    }
}

/// Decodes checkpoints that are stored as one value. A saver with `opaque_values` needs one for the calls that inspect
/// checkpoints: `prune` and `get_delta_channel_history`.
pub trait CheckpointReader: Debug + Send + Sync + 'static {
    /// Returns which channels a checkpoint has.
    ///
    /// # Errors
    /// When the checkpoint cannot be decoded; the saver's call fails with the same error.
    fn summarize(&self, checkpoint: &TypedBytes) -> Result<ChannelSummary>;

    /// Reads the values of these channels, in the same order: `None` for a channel without a value.
    ///
    /// # Errors
    /// As [`summarize`](Self::summarize).
    fn values(&self, checkpoint: &TypedBytes, channels: &[&str]) -> Result<Vec<Option<ChannelValue>>>;
}

/// Reads checkpoints as LangGraph's own serializer writes them: one MessagePack map.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MessagePackReader;

impl CheckpointReader for MessagePackReader {
    fn summarize(&self, checkpoint: &TypedBytes) -> Result<ChannelSummary> {
        document::decode_checkpoint(&checkpoint.to_unvalidated_msgpack()?)
            .map(|checkpoint| ChannelSummary::of(&checkpoint))
    }

    fn values(&self, checkpoint: &TypedBytes, channels: &[&str]) -> Result<Vec<Option<ChannelValue>>> {
        document::find_channels(&checkpoint.to_unvalidated_msgpack()?, channels)
    }
}

/// The part of a checkpoint that [`NeededAncestors`] uses: which channels have versions and values.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CheckpointSummary {
    /// The checkpoint's channels.
    pub channels: ChannelSummary,
    /// The checkpoint's metadata.
    pub metadata: CheckpointMetadata,
    /// The parent's id.
    pub parent_checkpoint_id: Option<Str>,
}

impl CheckpointSummary {
    /// Describes one stored checkpoint.
    pub fn new(
        channels: ChannelSummary,
        metadata: CheckpointMetadata,
        parent_checkpoint_id: Option<Str>,
    ) -> Self {
        Self { channels, metadata, parent_checkpoint_id: parent_checkpoint_id.filter(|id| !id.is_empty()) }
    }
}

/// Finds the ancestors that a checkpoint's delta channels need, starting at its parent, for `prune` to keep.
///
/// A delta channel that has a version but no value here needs its ancestors up to and including the nearest one with a
/// value. A channel is a delta channel if the metadata counts updates since its last snapshot, or if an ancestor holds
/// a snapshot of it. Other channels without a value, such as consumed triggers, need nothing.
///
/// A backend calls [`next`](Self::next), passes the ancestor to [`visit`](Self::visit), and ends with
/// [`finish`](Self::finish) if there is no next ancestor or it was not found.
#[derive(Debug)]
pub struct NeededAncestors {
    /// Channels that still lack a seed, and whether they are known to be delta channels.
    open: BTreeMap<Str, bool>,
    next: Option<Str>,
    seen: HashSet<Str>,
    chain: Vec<Str>,
    needed: usize,
}

impl NeededAncestors {
    /// Starts at the checkpoint that is kept.
    pub fn new(newest: &CheckpointSummary) -> Self {
        let all =
            newest.metadata.get("delta_writes_versioned").is_some_and(|flag| flag.as_bool() != Some(false));
        let counted: HashSet<Str> = newest.metadata.delta_channels().map(Str::from).collect();
        let open = newest
            .channels
            .versioned
            .iter()
            .chain(&counted)
            .filter(|channel| !newest.channels.values.contains_key(*channel))
            .map(|channel| (channel.clone(), all || counted.contains(channel)))
            .collect();
        let next = newest.parent_checkpoint_id.clone();
        Self { open, next, seen: HashSet::new(), chain: Vec::new(), needed: 0 }
    }

    /// The ancestor to visit next, if any.
    pub fn next(&self) -> Option<&Str> {
        self.next.as_ref().filter(|id| !self.open.is_empty() && !self.seen.contains(*id))
    }

    /// Adds the ancestor at [`next`](Self::next).
    pub fn visit(&mut self, link: CheckpointSummary) {
        let Some(id) = self.next.take() else { return };
        self.seen.insert(id.clone());
        self.chain.push(id);
        let (needed, length) = (&mut self.needed, self.chain.len());
        self.open.retain(|channel, is_delta| match link.channels.values.get(channel) {
            None => {
                *is_delta |= link.metadata.delta_channels().any(|counted| *counted == **channel);
                true
            }
            Some(is_snapshot) => {
                if *is_delta || *is_snapshot {
                    *needed = length;
                }
                false
            }
        });
        self.next = link.parent_checkpoint_id;
    }

    /// The ids of the ancestors that are needed, nearest first.
    pub fn finish(mut self) -> Vec<Str> {
        if self.open.values().any(|is_delta| *is_delta) {
            self.needed = self.chain.len();
        }
        self.chain.truncate(self.needed);
        self.chain
    }
}

/// Runs [`NeededAncestors`] with one lookup per ancestor.
///
/// # Errors
/// Any error from `load`.
pub fn needed_ancestors(
    newest: &CheckpointSummary,
    mut load: impl FnMut(&Str) -> Result<Option<CheckpointSummary>>,
) -> Result<Vec<Str>> {
    let mut ancestors = NeededAncestors::new(newest);
    while let Some(id) = ancestors.next() {
        let Some(link) = load(id)? else { break };
        ancestors.visit(link);
    }
    Ok(ancestors.finish())
}

/// Whether a value is the snapshot of a delta channel, judging by its first bytes. Ciphertext never is.
pub fn is_snapshot(value: &ChannelValue) -> bool {
    match value {
        ChannelValue::Blob(blob) if blob.tag == "msgpack" => matches!(
            crate::serde::decode::Reader::new(&blob.data).token(),
            Ok(crate::serde::decode::Token::Ext(SNAPSHOT_CODE, _))
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TypedBytes;

    /// Values, and the channels with a counter.
    type Facts<'a> = (&'a [(&'a str, ChannelValue)], &'a [&'a str]);

    /// A chain `c0 <- c1 <- …` of checkpoints with these facts.
    fn chain(links: &[Facts<'_>]) -> Vec<CheckpointSummary> {
        let link = |(at, (values, counted)): (usize, &Facts<'_>)| {
            let mut checkpoint = Checkpoint::with_id(format!("c{at}"));
            for channel in ["log", "trigger"] {
                checkpoint.channel_versions.insert(channel.into(), 1.into());
            }
            for (channel, value) in *values {
                checkpoint.channel_values.insert((*channel).into(), value.clone());
            }
            let counters =
                counted.iter().map(|channel| ((*channel).into(), crate::Value::Array(vec![]))).collect();
            let metadata = CheckpointMetadata::default()
                .with("counters_since_delta_snapshot", crate::Value::Map(counters));
            CheckpointSummary::new(
                ChannelSummary::of(&checkpoint),
                metadata,
                at.checked_sub(1).map(|parent| format!("c{parent}").into()),
            )
        };
        links.iter().enumerate().map(link).collect()
    }

    fn needed(links: &[CheckpointSummary]) -> Vec<String> {
        let load = |id: &Str| {
            let at: usize = id.trim_start_matches('c').parse().unwrap();
            Ok(links.get(at).cloned())
        };
        needed_ancestors(links.last().unwrap(), load).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ancestors_are_kept_up_to_the_seed_of_a_delta_channel_only() {
        let snapshot = || ChannelValue::Blob(TypedBytes::msgpack(&b"\xd4\x07\xc0"[..]));
        let trigger = || ("trigger", ChannelValue::Null);
        // A consumed trigger alone needs nothing.
        assert_eq!(needed(&chain(&[(&[trigger()], &[]), (&[], &[])])), Vec::<String>::new());
        // Counted updates need the ancestors back to the value, plain or snapshot.
        let links =
            chain(&[(&[], &[]), (&[("log", 1.into())], &[]), (&[trigger()], &["log"]), (&[], &["log"])]);
        assert_eq!(needed(&links), ["c2", "c1"]);
        // Without counters, a snapshot in an ancestor marks a delta channel.
        assert_eq!(needed(&chain(&[(&[("log", snapshot())], &[]), (&[], &[]), (&[], &[])])), ["c1", "c0"]);
        // Counted, but never a value: everything to the root.
        assert_eq!(needed(&chain(&[(&[], &[]), (&[], &["log"]), (&[], &["log"])])), ["c1", "c0"]);
        // A checkpoint with its own snapshot needs nothing.
        assert_eq!(needed(&chain(&[(&[], &["log"]), (&[("log", snapshot())], &[])])), Vec::<String>::new());
    }

    #[test]
    fn a_cycle_of_parents_terminates() {
        let mut links = chain(&[(&[], &["log"]), (&[], &["log"])]);
        links[0].parent_checkpoint_id = Some("c1".into());
        assert_eq!(needed(&links), ["c0", "c1"]);
    }
}
