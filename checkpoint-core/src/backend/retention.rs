//! What a retention policy removes of one thread. Every backend decides with it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::delta::{CheckpointSummary, NeededAncestors};
use crate::retention::{RetainReport, Retention, Rule};
use crate::{Error, Result, Str, id};

/// A stored checkpoint, as far as a policy looks at it.
#[derive(Debug, Clone, Default)]
pub struct StoredCheckpoint {
    /// The namespace.
    pub checkpoint_ns: Str,
    /// The id.
    pub checkpoint_id: Str,
    /// The parent's id, if any.
    pub parent_checkpoint_id: Option<Str>,
    /// The checkpoint's `ts`. Used only if the id has no time.
    pub ts: Option<Str>,
    /// Whether the metadata matches [`Retention::pinned`].
    pub is_pinned: bool,
    /// Whether its sends are writes on its parent.
    pub needs_parent: bool,
    /// The bytes of its document and metadata.
    pub bytes: u64,
}

/// The writes on one checkpoint, which need not be stored.
#[derive(Debug, Clone, Default)]
pub struct StoredWrites {
    /// The namespace.
    pub checkpoint_ns: Str,
    /// The checkpoint's id.
    pub checkpoint_id: Str,
    /// How many there are.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A thread, as far as a policy looks at it, in one state of the database.
#[derive(Debug, Clone, Default)]
pub struct StoredThread {
    /// All of its checkpoints, in any order.
    pub checkpoints: Vec<StoredCheckpoint>,
    /// All of its writes, one for each checkpoint, in any order.
    pub writes: Vec<StoredWrites>,
    /// Whether it waits for a person.
    pub waits: bool,
}

impl StoredThread {
    /// Namespace and id of the checkpoint that tells whether the thread waits: the newest of the root namespace, or, without
    /// one, of the thread.
    pub fn newest(&self) -> Option<(&Str, &Str)> {
        let places = || self.checkpoints.iter().map(|row| (&row.checkpoint_ns, &row.checkpoint_id));
        let in_root = places().filter(|(checkpoint_ns, _)| checkpoint_ns.is_empty());
        let newest = in_root.max_by_key(|(_, id)| *id);
        newest.or_else(|| places().max_by_key(|(checkpoint_ns, id)| (*id, *checkpoint_ns)))
    }
}

/// What goes of a namespace.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct NamespaceVerdict {
    /// The checkpoints that stay.
    pub kept: BTreeSet<Str>,
    /// The checkpoints that go, with their writes.
    pub dropped: BTreeMap<Str, Rule>,
    /// The checkpoints that are not stored whose writes go.
    pub writes: BTreeMap<Str, Rule>,
}

/// What goes of a thread.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Verdict {
    /// Whether all of it goes; then `namespaces` says so, too.
    pub whole: bool,
    /// Whether it stays because it waits for a person.
    pub is_waiting: bool,
    /// Whether it stays because it is pinned.
    pub is_pinned: bool,
    /// By namespace.
    pub namespaces: BTreeMap<Str, NamespaceVerdict>,
}

/// The time of a checkpoint in microseconds since 1970, if it is known.
pub(crate) fn time_of(checkpoint_id: &str, ts: Option<&str>) -> Option<i64> {
    let of_ts = || chrono::DateTime::parse_from_rfc3339(ts?).ok().map(|time| time.timestamp_micros());
    id::unix_micros(checkpoint_id).or_else(of_ts)
}

/// Whether something is older than a duration. What has no time is not.
fn is_older(time: Option<i64>, age: std::time::Duration, now: i64) -> bool {
    let Ok(age) = i64::try_from(age.as_micros()) else { return false };
    time.is_some_and(|time| now.saturating_sub(time) > age)
}

impl Retention {
    /// Whether it matters how old checkpoints are. For implementers.
    pub fn needs_ages(&self) -> bool {
        let limits = || std::iter::once(&self.limits).chain(self.namespaces.values());
        self.idle_for.is_some() || limits().any(|limits| limits.max_age.is_some())
    }

    /// Decides what goes of a thread, except that ancestors which delta channels need are not kept yet: see
    /// [`Verdict::keep_ancestors`]. For implementers: what was read must not change until it is removed.
    pub fn decide(&self, thread: &StoredThread, now: i64) -> Verdict {
        let mut verdict = Verdict {
            is_waiting: thread.waits && !self.include_waiting,
            is_pinned: thread.checkpoints.iter().any(|row| row.is_pinned),
            ..Verdict::default()
        };
        if verdict.is_waiting || verdict.is_pinned {
            return verdict;
        }
        let times = thread.checkpoints.iter().map(|row| time_of(&row.checkpoint_id, row.ts.as_deref()));
        let times: Vec<Option<i64>> = times.collect();
        verdict.whole = self.idle_for.is_some_and(|idle_for| {
            let written = thread.writes.iter().map(|row| time_of(&row.checkpoint_id, None));
            let mut all = times.iter().copied().chain(written).peekable();
            all.peek().is_some() && all.all(|time| is_older(time, idle_for, now))
        });
        let mut namespaces: BTreeMap<&Str, Vec<(&StoredCheckpoint, Option<i64>)>> = BTreeMap::new();
        for (row, time) in thread.checkpoints.iter().zip(&times) {
            namespaces.entry(&row.checkpoint_ns).or_default().push((row, *time));
        }
        for (checkpoint_ns, rows) in namespaces {
            let found =
                if verdict.whole { all_of(&rows) } else { self.decide_namespace(checkpoint_ns, rows, now) };
            verdict.namespaces.insert(checkpoint_ns.clone(), found);
        }
        let mut stored: BTreeMap<&Str, Vec<&Str>> = BTreeMap::new();
        for row in &thread.checkpoints {
            stored.entry(&row.checkpoint_ns).or_default().push(&row.checkpoint_id);
        }
        for ids in stored.values_mut() {
            ids.sort_unstable();
        }
        for row in &thread.writes {
            let found = verdict.namespaces.entry(row.checkpoint_ns.clone()).or_default();
            let id = &row.checkpoint_id;
            if found.kept.contains(id) || found.dropped.contains_key(id) {
                continue;
            }
            let ids = stored.get(&row.checkpoint_ns).map_or(&[][..], Vec::as_slice);
            let newer = ids.len() - ids.partition_point(|stored| *stored < id);
            let rule = if verdict.whole {
                Some(Rule::IdleFor)
            } else {
                self.of_writes(&row.checkpoint_ns, id, newer, now)
            };
            if let Some(rule) = rule {
                found.writes.insert(id.clone(), rule);
            }
        }
        verdict
    }

    fn decide_namespace(
        &self,
        checkpoint_ns: &str,
        mut rows: Vec<(&StoredCheckpoint, Option<i64>)>,
        now: i64,
    ) -> NamespaceVerdict {
        let limits = self.limits_of(checkpoint_ns);
        rows.sort_unstable_by(|(a, _), (b, _)| b.checkpoint_id.cmp(&a.checkpoint_id));
        // Without the children, the point would be none for the next run.
        let mut on_forks: HashSet<&Str> = HashSet::new();
        if self.keep_branch_points {
            let mut children: HashMap<&Str, Vec<&Str>> = HashMap::new();
            for (row, _) in &rows {
                if let Some(parent) = &row.parent_checkpoint_id {
                    children.entry(parent).or_default().push(&row.checkpoint_id);
                }
            }
            for (row, _) in &rows {
                if let Some(children) = children.get(&row.checkpoint_id).filter(|children| children.len() > 1)
                {
                    on_forks.insert(&row.checkpoint_id);
                    on_forks.extend(children);
                }
            }
        }
        let mut found = NamespaceVerdict::default();
        let mut needed: BTreeSet<&Str> = BTreeSet::new();
        for (at, (row, time)) in rows.into_iter().enumerate() {
            let rule = if limits.keep_last.is_some_and(|count| at >= count) {
                Some(Rule::KeepLast)
            } else if limits.max_age.is_some_and(|age| is_older(time, age, now)) {
                Some(Rule::MaxAge)
            } else {
                None
            };
            let id = &row.checkpoint_id;
            let rule = rule.filter(|_| at > 0 && !on_forks.contains(id) && !needed.contains(id));
            if let Some(rule) = rule {
                found.dropped.insert(id.clone(), rule);
            } else {
                found.kept.insert(id.clone());
                needed.extend(row.parent_checkpoint_id.as_ref().filter(|_| row.needs_parent));
            }
        }
        // A parent is older than its child, unless a clock was wrong.
        for id in needed {
            found.keep(id);
        }
        found
    }

    /// The rule by which writes go whose checkpoint is not stored: those ahead of the newest checkpoint stay.
    fn of_writes(&self, checkpoint_ns: &str, id: &Str, newer: usize, now: i64) -> Option<Rule> {
        let limits = self.limits_of(checkpoint_ns);
        if newer == 0 {
            None
        } else if limits.keep_last.is_some_and(|count| newer >= count) {
            Some(Rule::KeepLast)
        } else {
            limits.max_age.filter(|age| is_older(time_of(id, None), *age, now)).map(|_| Rule::MaxAge)
        }
    }
}

fn all_of(rows: &[(&StoredCheckpoint, Option<i64>)]) -> NamespaceVerdict {
    let dropped = rows.iter().map(|(row, _)| (row.checkpoint_id.clone(), Rule::IdleFor)).collect();
    NamespaceVerdict { dropped, ..NamespaceVerdict::default() }
}

impl NamespaceVerdict {
    /// Keeps a checkpoint, if it is stored.
    fn keep(&mut self, id: &Str) {
        if self.dropped.remove(id).is_some() {
            self.kept.insert(id.clone());
        }
    }
}

impl Verdict {
    /// Whether anything goes.
    pub fn is_change(&self) -> bool {
        self.namespaces.values().any(|found| !found.dropped.is_empty() || !found.writes.is_empty())
    }

    /// The namespaces of which a checkpoint goes and others stay: their [ancestors](Self::keep_ancestors) matter.
    pub fn partial(&self) -> impl Iterator<Item = &Str> {
        let partial = |found: &&NamespaceVerdict| !found.dropped.is_empty() && !found.kept.is_empty();
        self.namespaces
            .iter()
            .filter(move |(_, found)| partial(found))
            .map(|(checkpoint_ns, _)| checkpoint_ns)
    }

    /// Keeps the ancestors that the delta channels of a namespace's kept checkpoints need. Each checkpoint is loaded once at
    /// most; one that is not stored is `None`.
    ///
    /// # Errors
    /// Any error from `load`.
    pub fn keep_ancestors(
        &mut self,
        checkpoint_ns: &str,
        mut load: impl FnMut(&Str) -> Result<Option<CheckpointSummary>>,
    ) -> Result<()> {
        let Some(found) = self.namespaces.get_mut(checkpoint_ns) else { return Ok(()) };
        if found.dropped.is_empty() || found.kept.is_empty() {
            return Ok(());
        }
        let mut loaded: HashMap<Str, Option<CheckpointSummary>> = HashMap::new();
        let mut summary = |id: &Str| -> Result<Option<CheckpointSummary>> {
            if let Some(known) = loaded.get(id) {
                return Ok(known.clone());
            }
            let found = load(id)?;
            loaded.insert(id.clone(), found.clone());
            Ok(found)
        };
        let kept: Vec<Str> = found.kept.iter().cloned().collect();
        for id in kept {
            let Some(start) = summary(&id)? else { continue };
            let mut ancestors = NeededAncestors::new(&start);
            while let Some(next) = ancestors.next().cloned() {
                let Some(ancestor) = summary(&next)? else { break };
                ancestors.visit(ancestor);
            }
            for id in ancestors.finish() {
                found.keep(&id);
            }
        }
        Ok(())
    }

    /// Counts the thread, and what goes of it. `values` are the bytes of values that only removed checkpoints refer to.
    pub fn count(&self, thread: &StoredThread, values: u64, report: &mut RetainReport) {
        if thread.checkpoints.is_empty() && thread.writes.is_empty() {
            return;
        }
        report.threads += 1;
        report.checkpoints += u64::try_from(thread.checkpoints.len()).unwrap_or(u64::MAX);
        report.waiting += u64::from(self.is_waiting);
        report.pinned += u64::from(self.is_pinned && !self.is_waiting);
        let mut rules: BTreeSet<Rule> = BTreeSet::new();
        for row in &thread.checkpoints {
            let found = self.namespaces.get(&row.checkpoint_ns);
            let Some(rule) = found.and_then(|found| found.dropped.get(&row.checkpoint_id)) else { continue };
            let freed = report.by_mut(*rule);
            freed.checkpoints += 1;
            freed.bytes += row.bytes;
            rules.insert(*rule);
        }
        for row in &thread.writes {
            let Some(found) = self.namespaces.get(&row.checkpoint_ns) else { continue };
            let id = &row.checkpoint_id;
            let Some(rule) = found.dropped.get(id).or_else(|| found.writes.get(id)) else { continue };
            let freed = report.by_mut(*rule);
            freed.writes += row.count;
            freed.bytes += row.bytes;
            rules.insert(*rule);
        }
        if let Some(first) = rules.first() {
            report.by_mut(*first).bytes += values;
            report.changed += 1;
        }
        for rule in rules {
            report.by_mut(rule).threads += 1;
        }
    }
}

/// The threads of a call, each once.
pub fn distinct<'a>(thread_ids: &[&'a str]) -> Vec<&'a str> {
    let mut seen = HashSet::new();
    thread_ids.iter().copied().filter(|thread_id| seen.insert(*thread_id)).collect()
}

/// The option `keep_last` of a saver's builder: what `put` removes behind itself.
///
/// A namespace is pruned only when it has as many checkpoints too many as it is to keep, so that most calls remove
/// nothing: it has at least `count` and normally at most twice as many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepLast(usize);

impl KeepLast {
    /// The most checkpoints of a namespace that are counted after each `put`, as a multiple of those that are to be kept.
    const COUNTED: usize = 8;

    /// Checks the option.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for 0.
    pub fn new(count: usize) -> Result<Self> {
        if count == 0 {
            return Err(Error::invalid_config("keep_last must be at least 1"));
        }
        Ok(Self(count))
    }

    /// At most so many checkpoints of the namespace need to be counted.
    pub fn counted(self) -> usize {
        self.0.saturating_mul(Self::COUNTED)
    }

    /// Whether to prune a namespace with this many checkpoints after a `put` of this one.
    ///
    /// Delta channels may need more checkpoints than are to be kept. Then it is not tried at each `put`.
    pub fn is_due(self, count: usize, checkpoint_id: &str) -> bool {
        if count < self.counted() {
            return count >= self.0.saturating_mul(2) && count.is_multiple_of(self.0);
        }
        let hash = xxhash_rust::xxh3::xxh3_64(checkpoint_id.as_bytes());
        hash.is_multiple_of(u64::try_from(self.0).unwrap_or(u64::MAX))
    }

    /// Whether to count the checkpoints after a `put` of this one, where counting takes time: after some calls, of which there
    /// are several for each time that it is due.
    pub fn samples(self, checkpoint_id: &str) -> bool {
        let hash = xxhash_rust::xxh3::xxh3_64(checkpoint_id.as_bytes());
        hash.is_multiple_of(u64::try_from(self.0 / 4).unwrap_or(1).max(1))
    }

    /// Like [`is_due`](Self::is_due), where only [samples](Self::samples) are counted.
    pub fn is_due_at_sample(self, count: usize, checkpoint_id: &str) -> bool {
        let hash = xxhash_rust::xxh3::xxh3_64(checkpoint_id.as_bytes()) >> 32;
        count >= self.0.saturating_mul(2) && (count < self.0.saturating_mul(4) || hash.is_multiple_of(4))
    }

    /// What then stays. The thread that was put to does not wait for a person.
    pub fn policy(self) -> Retention {
        Retention::new().keep_last(self.0).include_waiting(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_puts_count() {
        let counting = |keep| (0..1000).filter(|at| KeepLast(keep).samples(&format!("id-{at}"))).count();
        assert_eq!((counting(1), counting(7)), (1000, 1000));
        assert!((100..300).contains(&counting(20)), "{}", counting(20));
        let due = |count: usize| {
            (0..1000).filter(|at| KeepLast(20).is_due_at_sample(count, &format!("id-{at}"))).count()
        };
        assert_eq!((due(39), due(40), due(79)), (0, 1000, 1000));
        assert!((150..350).contains(&due(80)), "{}", due(80));
    }

    #[test]
    fn most_puts_prune_nothing() {
        let due = |keep: usize, count: usize| KeepLast::new(keep).unwrap().is_due(count, "id");
        let twenty: Vec<usize> = (0..100).filter(|count| due(20, *count)).collect();
        assert_eq!(twenty, [40, 60, 80]);
        assert_eq!((due(1, 1), due(1, 2), due(1, 3)), (false, true, true));
        let far_too_many = (0..1000).filter(|at| KeepLast(20).is_due(160, &format!("id-{at}"))).count();
        assert!((20..100).contains(&far_too_many), "{far_too_many}");
        assert_eq!(KeepLast::new(0).unwrap_err().kind(), crate::ErrorKind::InvalidConfig);
    }
}
