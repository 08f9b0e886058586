//! `prune` and `retain`, and what `keep_last` does behind a `put`.

use std::collections::BTreeMap;

use super::saver::{InMemorySaver, Row, State};
use crate::backend::{
    CheckpointKey, KeepLast, StoredCheckpoint, StoredThread, StoredWrites, Verdict, distinct,
};
use crate::filter::FilterSemantics;
use crate::retention::{RetainOptions, RetainReport, Retention, ThreadUsage, Usage, UsageOptions};
use crate::{ChannelValue, CheckpointConfig, PruneStrategy, Result, Str, ThreadStatus};

impl InMemorySaver {
    pub(super) fn prune_threads(&self, thread_ids: &[&str], strategy: PruneStrategy) -> Result<()> {
        let mut state = self.write();
        for thread_id in thread_ids {
            match strategy {
                PruneStrategy::Delete => state.delete(thread_id),
                PruneStrategy::KeepLatest => {
                    let policy = Retention::keep_latest();
                    let Some((_, verdict)) = state.decide(thread_id, &policy, 0, self.semantics)? else {
                        continue;
                    };
                    state.remove(thread_id, &verdict);
                    state.cut_parents(thread_id, &verdict);
                }
            }
        }
        Ok(())
    }

    pub(super) fn retain_threads(
        &self,
        thread_ids: &[&str],
        policy: &Retention,
        options: &RetainOptions,
    ) -> Result<RetainReport> {
        policy.validate()?;
        let now = options.now_micros();
        let mut report = RetainReport::default();
        for thread_id in distinct(thread_ids) {
            if options.dry_run {
                if let Some((thread, verdict)) = self.read().decide(thread_id, policy, now, self.semantics)? {
                    verdict.count(&thread, 0, &mut report);
                }
                continue;
            }
            let mut state = self.write();
            if let Some((thread, verdict)) = state.decide(thread_id, policy, now, self.semantics)? {
                state.remove(thread_id, &verdict);
                verdict.count(&thread, 0, &mut report);
            }
        }
        Ok(report)
    }
}

impl InMemorySaver {
    pub(super) fn measure(&self, options: UsageOptions) -> Usage {
        let mut usage = Usage::default();
        for (thread_id, namespaces) in &self.read().threads {
            let mut thread = ThreadUsage { thread_id: thread_id.clone(), ..ThreadUsage::default() };
            for namespace in namespaces.values() {
                for (id, row) in &namespace.checkpoints {
                    let bytes = row_size(row);
                    usage.add_to_day(id, Some(&row.checkpoint.ts), bytes);
                    thread.checkpoints += 1;
                    thread.bytes += bytes;
                }
                for write in namespace.writes.values().flat_map(BTreeMap::values) {
                    thread.writes += 1;
                    thread.bytes += size(&write.value);
                }
            }
            if thread.checkpoints + thread.writes > 0 {
                usage.add_thread(thread, &options);
            }
        }
        usage
    }
}

impl State {
    /// What a policy removes of a thread, or `None` if nothing of it is stored.
    fn decide(
        &self,
        thread_id: &str,
        policy: &Retention,
        now: i64,
        semantics: FilterSemantics,
    ) -> Result<Option<(StoredThread, Verdict)>> {
        self.decide_in(thread_id, None, policy, now, semantics)
    }

    /// The same for one namespace, as if there were no other.
    fn decide_in(
        &self,
        thread_id: &str,
        only: Option<&str>,
        policy: &Retention,
        now: i64,
        semantics: FilterSemantics,
    ) -> Result<Option<(StoredThread, Verdict)>> {
        let Some(namespaces) = self.threads.get(thread_id) else { return Ok(None) };
        let mut thread = StoredThread::default();
        for (checkpoint_ns, namespace) in namespaces {
            if only.is_some_and(|only| only != &**checkpoint_ns) {
                continue;
            }
            let rows = namespace.checkpoints.iter();
            thread
                .checkpoints
                .extend(rows.map(|(id, row)| stored(checkpoint_ns, id, row, policy, semantics)));
            let writes = namespace.writes.iter().filter(|(_, writes)| !writes.is_empty());
            thread.writes.extend(writes.map(|(id, writes)| StoredWrites {
                checkpoint_ns: checkpoint_ns.clone(),
                checkpoint_id: id.clone(),
                count: u64::try_from(writes.len()).unwrap_or(u64::MAX),
                bytes: writes.values().map(|write| size(&write.value)).sum(),
            }));
        }
        let newest = thread
            .newest()
            .and_then(|(ns, id)| namespaces.get(ns)?.tuple(CheckpointKey::new(thread_id, ns, id)));
        thread.waits = newest.is_some_and(|tuple| ThreadStatus::of(&tuple) == ThreadStatus::Waiting);
        let mut verdict = policy.decide(&thread, now);
        let partial: Vec<Str> = verdict.partial().cloned().collect();
        for checkpoint_ns in partial {
            let Some(namespace) = namespaces.get(&checkpoint_ns) else { continue };
            verdict.keep_ancestors(&checkpoint_ns, |id| Ok(namespace.summary(id)))?;
        }
        Ok(Some((thread, verdict)))
    }

    /// Prunes the namespace that was put to.
    pub(super) fn prune_behind(
        &mut self,
        config: &CheckpointConfig,
        keep: KeepLast,
        semantics: FilterSemantics,
    ) -> Result<()> {
        let (thread_id, checkpoint_ns) = (config.thread_id(), config.checkpoint_ns());
        let found = self.decide_in(thread_id, Some(checkpoint_ns), &keep.policy(), 0, semantics)?;
        if let Some((_, verdict)) = found {
            self.remove(thread_id, &verdict);
        }
        Ok(())
    }

    fn remove(&mut self, thread_id: &str, verdict: &Verdict) {
        if verdict.whole {
            self.threads.remove(thread_id);
            self.leases.delete_expired(thread_id);
            return;
        }
        let Some(namespaces) = self.threads.get_mut(thread_id) else { return };
        for (checkpoint_ns, found) in &verdict.namespaces {
            let Some(namespace) = namespaces.get_mut(checkpoint_ns) else { continue };
            namespace.checkpoints.retain(|id, _| !found.dropped.contains_key(id));
            namespace
                .writes
                .retain(|id, _| !found.dropped.contains_key(id) && !found.writes.contains_key(id));
        }
    }

    /// Takes their parents from the checkpoints whose parents are not kept.
    fn cut_parents(&mut self, thread_id: &str, verdict: &Verdict) {
        let Some(namespaces) = self.threads.get_mut(thread_id) else { return };
        for (checkpoint_ns, namespace) in namespaces {
            let Some(found) = verdict.namespaces.get(checkpoint_ns) else { continue };
            for row in namespace.checkpoints.values_mut() {
                row.parent = row.parent.take().filter(|parent| found.kept.contains(parent));
            }
        }
    }
}

fn stored(
    checkpoint_ns: &Str,
    id: &Str,
    row: &Row,
    policy: &Retention,
    semantics: FilterSemantics,
) -> StoredCheckpoint {
    StoredCheckpoint {
        checkpoint_ns: checkpoint_ns.clone(),
        checkpoint_id: id.clone(),
        parent_checkpoint_id: row.parent.clone(),
        ts: Some(row.checkpoint.ts.clone()),
        is_pinned: policy.pinned.as_ref().is_some_and(|filter| filter.matches(&row.metadata, semantics)),
        needs_parent: false,
        bytes: row_size(row),
    }
}

/// The bytes of a checkpoint's values, about.
fn row_size(row: &Row) -> u64 {
    row.checkpoint.channel_values.values().map(size).sum()
}

/// The bytes of a value, about.
fn size(value: &ChannelValue) -> u64 {
    let bytes = match value {
        ChannelValue::Str(text) => text.len(),
        value => value.as_blob().map_or(8, |blob| blob.data.len()),
    };
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
