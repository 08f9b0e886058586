//! `prune` and `retain`. They run in a transaction on the writer thread.

use checkpoint_core::backend::{
    CheckpointKey, KeepLast, StoredCheckpoint, StoredThread, StoredWrites, Verdict, distinct,
};
use checkpoint_core::delta::{CheckpointReader, CheckpointSummary};
use checkpoint_core::retention::{Rule, ThreadUsage, Usage, UsageOptions};
use checkpoint_core::serde::document;
use checkpoint_core::{
    FilterSemantics, Result, RetainOptions, RetainReport, Retention, Str, ThreadStatus, id,
};
use futures_util::future::try_join_all;
use rusqlite::Row;

use crate::connection::{Config, Open};
use crate::error::OrConvert;
use crate::read::{query_all, query_one};
use crate::row::{self, CheckpointColumns, key_columns};
use crate::worker::Workers;
use crate::{leases, sql, write};

/// How many bytes the removal of a thread counts for, so that few threads are committed together, with the writes of agents
/// in between.
const BYTES: usize = 2 << 20;

/// How many free pages are given back in one transaction, so that it takes some milliseconds.
const PAGES: u64 = 256;

/// So many checkpoints of a thread are removed in one transaction, so that it takes some dozens of milliseconds; more if more
/// are kept, which are looked at each time.
const PORTION: usize = 500;

/// Keeps of each namespace the newest checkpoint and the ancestors that its delta channels need.
pub(crate) fn keep_latest(config: &Config, open: &Open, thread_id: &str) -> Result<()> {
    let (_, verdict) = decide(config, open, thread_id, &Retention::keep_latest(), 0)?;
    remove(open, thread_id, &verdict)?;
    for (checkpoint_ns, found) in &verdict.namespaces {
        for id in &found.kept {
            let key = CheckpointKey::new(thread_id, checkpoint_ns, id);
            let parent = |row: &Row<'_>| row::optional_text(row, 0);
            let parent = query_one(open, sql::SELECT_PARENT, key_columns(key), parent)?.flatten();
            if parent.is_some_and(|parent| !found.kept.contains(&parent)) {
                open.execute(sql::CLEAR_PARENT, key_columns(key))?;
            }
        }
    }
    Ok(())
}

pub(crate) async fn retain(
    workers: &Workers,
    thread_ids: &[&str],
    policy: &Retention,
    options: &RetainOptions,
) -> Result<RetainReport> {
    policy.validate()?;
    let (thread_ids, now) = (distinct(thread_ids), options.now_micros());
    if options.dry_run {
        let (thread_ids, policy): (Vec<Str>, _) =
            (thread_ids.iter().map(|id| (*id).into()).collect(), policy.clone());
        let plan = move |config: &Config, open: &Open| {
            let mut report = RetainReport::default();
            for thread_id in &thread_ids {
                let (thread, verdict) = open.snapshot(|open| {
                    let (mut thread, verdict) = decide(config, open, thread_id, &policy, now)?;
                    measure(open, thread_id, &mut thread, &verdict)?;
                    Ok((thread, verdict))
                })?;
                verdict.count(&thread, 0, &mut report);
            }
            Ok(report)
        };
        return workers.read(plan).await;
    }
    workers.to_write()?;
    let each = thread_ids.iter().map(|thread_id| retain_thread(workers, thread_id, policy, now));
    let mut report = RetainReport::default();
    for one in try_join_all(each).await? {
        report.add(&one);
    }
    if let Err(error) = give_back(workers).await {
        tracing::warn!(%error, "free pages were not given back; the next call tries again");
    }
    Ok(report)
}

/// Removes what goes of a thread, in portions with the writes of agents in between.
async fn retain_thread(
    workers: &Workers,
    thread_id: &str,
    policy: &Retention,
    now: i64,
) -> Result<RetainReport> {
    let mut gone = RetainReport::default();
    loop {
        let (thread_id, policy) = (Str::from(thread_id), policy.clone());
        let portion = move |config: &Config, open: &Open| {
            let (mut thread, mut verdict) = decide(config, open, &thread_id, &policy, now)?;
            let is_all = take_portion(config, open, &thread_id, &thread, &mut verdict)?;
            measure(open, &thread_id, &mut thread, &verdict)?;
            remove(open, &thread_id, &verdict)?;
            let mut report = RetainReport::default();
            verdict.count(&thread, 0, &mut report);
            Ok((report, is_all))
        };
        let (mut report, is_all) = workers.change_returning(BYTES, portion).await?;
        if is_all {
            report.add_earlier(&gone);
            return Ok(report);
        }
        report.checkpoints = report.total().checkpoints;
        gone.add_earlier(&report);
    }
}

/// Leaves in a verdict what goes at once, and returns whether that is all. The thread that it makes is valid: what stays for now
/// has the ancestors that it needs, and a thread that goes as a whole keeps its newest checkpoints to the end.
fn take_portion(
    config: &Config,
    open: &Open,
    thread_id: &str,
    thread: &StoredThread,
    verdict: &mut Verdict,
) -> Result<bool> {
    let dropped: usize = verdict.namespaces.values().map(|found| found.dropped.len()).sum();
    let most = PORTION.max(thread.checkpoints.len().saturating_sub(dropped));
    if dropped <= most {
        return Ok(true);
    }
    if verdict.whole {
        let mut first = Retention::keep_latest().decide(thread, 0);
        keep_ancestors(config, open, thread_id, &mut first)?;
        if !first.is_change() {
            return Ok(true);
        }
        for rule in first.namespaces.values_mut().flat_map(|found| found.dropped.values_mut()) {
            *rule = Rule::IdleFor;
        }
        for found in first.namespaces.values_mut() {
            found.writes.clear();
        }
        *verdict = first;
    }
    let of_namespaces = verdict.namespaces.iter();
    let mut ids: Vec<(Str, Str)> = of_namespaces
        .flat_map(|(checkpoint_ns, found)| found.dropped.keys().map(|id| (id.clone(), checkpoint_ns.clone())))
        .collect();
    // The newest first: older ones need no younger ones.
    ids.sort_unstable();
    ids.truncate(ids.len().saturating_sub(most));
    for (id, checkpoint_ns) in ids {
        if let Some(found) = verdict.namespaces.get_mut(&checkpoint_ns) {
            found.dropped.remove(&id);
            found.kept.insert(id);
        }
    }
    Ok(false)
}

/// Sets the bytes of what goes.
fn measure(open: &Open, thread_id: &str, thread: &mut StoredThread, verdict: &Verdict) -> Result<()> {
    let size = |row: &Row<'_>| count(row, 0);
    for row in &mut thread.checkpoints {
        let found = verdict.namespaces.get(&row.checkpoint_ns);
        if found.is_some_and(|found| found.dropped.contains_key(&row.checkpoint_id)) {
            let key = CheckpointKey::new(thread_id, &row.checkpoint_ns, &row.checkpoint_id);
            row.bytes = query_one(open, sql::SELECT_SIZE, key_columns(key), size)?.unwrap_or_default();
        }
    }
    for row in &mut thread.writes {
        let (found, id) = (verdict.namespaces.get(&row.checkpoint_ns), &row.checkpoint_id);
        if found.is_some_and(|found| found.dropped.contains_key(id) || found.writes.contains_key(id)) {
            let key = CheckpointKey::new(thread_id, &row.checkpoint_ns, id);
            row.bytes =
                query_one(open, sql::SELECT_SIZE_OF_WRITES, key_columns(key), size)?.unwrap_or_default();
        }
    }
    Ok(())
}

/// Gives the free pages of the file back to the file system, if it was made for that: some at a time, with the writes of
/// agents in between.
async fn give_back(workers: &Workers) -> Result<()> {
    let free = |_: &Config, open: &Open| query_one(open, sql::SELECT_FREE_PAGES, (), |row| count(row, 0));
    let free = workers.read(free).await?.unwrap_or_default();
    // What others free meanwhile is left to the next call.
    for _ in 0..free.div_ceil(PAGES) {
        let some = |_: &Config, open: &Open| query_all(open, &sql::give_back(PAGES), (), |_| Ok(None::<()>));
        workers.change_returning(BYTES, some).await?;
    }
    Ok(())
}

/// Prunes the namespace in which a checkpoint was stored, if it is time. An older checkpoint that cannot be opened does not
/// keep new ones from being stored.
pub(crate) fn prune_behind(
    config: &Config,
    open: &Open,
    put: CheckpointKey<'_>,
    keep: KeepLast,
) -> Result<()> {
    let (thread_id, checkpoint_ns) = (put.thread_id, put.checkpoint_ns);
    let most = i64::try_from(keep.counted()).unwrap_or(i64::MAX);
    let counted =
        query_one(open, sql::COUNT_CHECKPOINTS, (thread_id, checkpoint_ns, most), |row| count(row, 0))?;
    let counted = usize::try_from(counted.unwrap_or_default()).unwrap_or(usize::MAX);
    if !keep.is_due(counted, put.checkpoint_id) {
        return Ok(());
    }
    let place = (thread_id, checkpoint_ns);
    let thread = StoredThread {
        checkpoints: query_all(open, sql::SELECT_STORED_IN_NAMESPACE, place, checkpoint)?,
        writes: query_all(open, sql::SELECT_STORED_WRITES_IN_NAMESPACE, place, writes)?,
        waits: false,
    };
    let mut verdict = keep.policy().decide(&thread, 0);
    let load = |id: &Str| summary(config, open, CheckpointKey::new(thread_id, checkpoint_ns, id));
    match verdict.keep_ancestors(checkpoint_ns, load) {
        Ok(()) => remove(open, thread_id, &verdict),
        Err(error) => {
            tracing::warn!(%error, "old checkpoints are kept because one of them cannot be read");
            Ok(())
        }
    }
}

/// Measures the file, all of it in one state.
pub(crate) fn usage(config: &Config, open: &Open, options: UsageOptions) -> Result<Usage> {
    open.snapshot(|open| {
        let mut usage = Usage::default();
        let thread = |row: &Row<'_>| {
            let (thread_id, checkpoints) = (row::text(row, 0)?, count(row, 1)?);
            let (writes, bytes) = (count(row, 2)?, count(row, 3)?);
            usage.add_thread(ThreadUsage { thread_id, checkpoints, writes, bytes }, &options);
            Ok(None::<()>)
        };
        query_all(open, sql::SELECT_THREAD_SIZES, (), thread)?;
        let day = |row: &Row<'_>| {
            let (thread_id, checkpoint_ns, id) = (row::text(row, 0)?, row::text(row, 1)?, row::text(row, 2)?);
            let ts = match id::unix_micros(&id) {
                Some(_) => None,
                // A checkpoint that cannot be opened has no time.
                None => timestamp(config, open, CheckpointKey::new(&thread_id, &checkpoint_ns, &id))
                    .unwrap_or(None),
            };
            usage.add_to_day(&id, ts.as_deref(), count(row, 3)?);
            Ok(None::<()>)
        };
        query_all(open, sql::SELECT_CHECKPOINT_SIZES, (), day)?;
        let sizes = |row: &Row<'_>| Ok((count(row, 0)?, count(row, 1)?));
        if let Some((on_disk, dead)) = query_one(open, sql::SELECT_FILE_SIZE, (), sizes)? {
            (usage.on_disk, usage.dead) = (Some(on_disk), Some(dead));
        }
        Ok(usage)
    })
}

/// Decides what goes of a thread.
fn decide(
    config: &Config,
    open: &Open,
    thread_id: &str,
    policy: &Retention,
    now: i64,
) -> Result<(StoredThread, Verdict)> {
    let mut thread = stored(config, open, thread_id, policy)?;
    if let Some((checkpoint_ns, checkpoint_id)) = thread.newest() {
        let tasks = |row: &Row<'_>| Ok(Some((row::text(row, 0)?, row::text(row, 1)?)));
        let key = CheckpointKey::new(thread_id, checkpoint_ns, checkpoint_id);
        let tasks = query_all(open, sql::SELECT_TASKS, key_columns(key), tasks)?;
        let tasks = tasks.iter().map(|(task_id, channel)| (&**task_id, &**channel));
        thread.waits = ThreadStatus::from_parts(None, false, tasks) == ThreadStatus::Waiting;
    }
    let mut verdict = policy.decide(&thread, now);
    keep_ancestors(config, open, thread_id, &mut verdict)?;
    Ok((thread, verdict))
}

/// Keeps the ancestors that delta channels need.
fn keep_ancestors(config: &Config, open: &Open, thread_id: &str, verdict: &mut Verdict) -> Result<()> {
    let partial: Vec<Str> = verdict.partial().cloned().collect();
    for checkpoint_ns in partial {
        let load = |id: &Str| summary(config, open, CheckpointKey::new(thread_id, &checkpoint_ns, id));
        verdict.keep_ancestors(&checkpoint_ns, load)?;
    }
    Ok(())
}

fn checkpoint(row: &Row<'_>) -> Result<Option<StoredCheckpoint>> {
    Ok(Some(StoredCheckpoint {
        checkpoint_ns: row::text(row, 0)?,
        checkpoint_id: row::text(row, 1)?,
        parent_checkpoint_id: row::optional_text(row, 2)?,
        ..StoredCheckpoint::default()
    }))
}

fn writes(row: &Row<'_>) -> Result<Option<StoredWrites>> {
    Ok(Some(StoredWrites {
        checkpoint_ns: row::text(row, 0)?,
        checkpoint_id: row::text(row, 1)?,
        count: count(row, 2)?,
        bytes: 0,
    }))
}

/// Reads what a policy looks at, without sizes.
fn stored(config: &Config, open: &Open, thread_id: &str, policy: &Retention) -> Result<StoredThread> {
    // Keys alone come from the index, without the rows.
    let select = if policy.keep_branch_points { sql::SELECT_STORED_WITH_PARENTS } else { sql::SELECT_STORED };
    let mut checkpoints = query_all(open, select, [thread_id], checkpoint)?;
    for found in &mut checkpoints {
        let key = CheckpointKey::new(thread_id, &found.checkpoint_ns, &found.checkpoint_id);
        if let Some(filter) = &policy.pinned {
            let matches =
                |row: &Row<'_>| Ok(filter.matches(&row::metadata(row, 0)?, FilterSemantics::Equality));
            let matches = query_one(open, sql::SELECT_METADATA, key_columns(key), matches);
            found.is_pinned = matches.map_err(key.context())?.unwrap_or(false);
        }
        if policy.needs_ages() && id::unix_micros(&found.checkpoint_id).is_none() {
            found.ts = timestamp(config, open, key)?;
        }
    }
    let writes = query_all(open, sql::SELECT_STORED_WRITES, [thread_id], writes)?;
    Ok(StoredThread { checkpoints, writes, waits: false })
}

fn count(row: &Row<'_>, column: usize) -> Result<u64> {
    let number: i64 = row.get(column).or_convert()?;
    Ok(u64::try_from(number).unwrap_or_default())
}

/// The `ts` of a checkpoint, unless it is of another serializer.
fn timestamp(config: &Config, open: &Open, key: CheckpointKey<'_>) -> Result<Option<Str>> {
    let read = |row: &Row<'_>| {
        let typed = row::open_checkpoint(&config.codec.requiring_decryption(), row, key)?;
        if config.codec.opaque_values {
            return Ok(None);
        }
        document::decode_checkpoint(&typed.to_msgpack()?).map(|checkpoint| Some(checkpoint.ts))
    };
    Ok(query_one(open, sql::SELECT_CHECKPOINT, key_columns(key), read).map_err(key.context())?.flatten())
}

fn remove(open: &Open, thread_id: &str, verdict: &Verdict) -> Result<()> {
    if verdict.whole {
        write::delete_rows(open, thread_id)?;
        return leases::delete_expired(open, thread_id);
    }
    for (checkpoint_ns, found) in &verdict.namespaces {
        for id in found.dropped.keys() {
            write::delete_checkpoint(open, CheckpointKey::new(thread_id, checkpoint_ns, id))?;
        }
        for id in found.writes.keys() {
            open.execute(sql::DELETE_WRITES, key_columns(CheckpointKey::new(thread_id, checkpoint_ns, id)))?;
        }
    }
    Ok(())
}

fn summary(config: &Config, open: &Open, key: CheckpointKey<'_>) -> Result<Option<CheckpointSummary>> {
    let read = |row: &Row<'_>| {
        let typed = row::open_checkpoint(&config.codec.requiring_decryption(), row, key)?;
        let channels = row::look(config, &typed, CheckpointReader::summarize)?;
        let parent = row::optional_text(row, CheckpointColumns::PARENT_CHECKPOINT_ID)?;
        Ok(CheckpointSummary::new(channels, row::metadata(row, CheckpointColumns::METADATA)?, parent))
    };
    query_one(open, sql::SELECT_CHECKPOINT, key_columns(key), read).map_err(key.context())
}
