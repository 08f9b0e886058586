//! `prune` and `retain`: one transaction for many threads.

use std::collections::{BTreeMap, HashMap, HashSet};

use checkpoint_core::backend::{
    CheckpointKey, KeepLast, StoredCheckpoint, StoredThread, StoredWrites, Verdict, distinct,
};
use checkpoint_core::delta::{ChannelSummary, CheckpointSummary};
use checkpoint_core::retention::{DayUsage, ThreadUsage, Usage, UsageOptions};
use checkpoint_core::{
    CheckpointConfig, Error, ErrorKind, Result, RetainOptions, RetainReport, Retention, Str, ThreadStatus,
};
use common_postgres::tokio_postgres::Row;
use common_postgres::{Connection, Json, Transaction, column, params, text};
use futures_util::future::try_join;
use indexmap::IndexMap;
use serde::de::IgnoredAny;

use crate::document::check_text;
use crate::lock::{self, Lock};
use crate::read;
use crate::row;
use crate::shared::Shared;
use crate::sql::retention::{stored as at_stored, written as at_written};
use crate::sql::summary as at;

/// The most threads of one transaction: the server's lock table has space for some thousand locks.
const MAX_THREADS: usize = 256;

/// Where the estimates are far off, as for keys in arrays, the server would sort texts.
const PLANS: &str =
    "SET LOCAL enable_seqscan = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_sort = off";

/// For the keys of many threads.
const MANY_KEYS: &str = "SET LOCAL work_mem = '16MB'";

/// After a crash of the server a later call removes the checkpoints again, so none waits for the disk.
const WITHOUT_DISK: &str = "SET LOCAL synchronous_commit = off";

/// Keeps of each namespace the newest checkpoint, the ancestors that its delta channels need, and the parent of an old
/// one that has the sends.
pub(crate) async fn keep_latest(shared: &Shared, thread_id: &str) -> Result<()> {
    check_text("thread_id", thread_id)?;
    let (policy, threads) = (&Retention::keep_latest(), &[thread_id][..]);
    let run = |mut connection: Connection| async move {
        let transaction = connection.begin().await?;
        transaction.batch(&lock::take(&[Lock::of(thread_id)], &[])).await?;
        let batch = Batch::read(shared, &transaction, Scope::Threads(threads), policy, 0).await?;
        try_join(batch.remove(shared, &transaction), batch.cut_parents(shared, &transaction)).await?;
        transaction.commit().await
    };
    shared.database.run(run).await
}

pub(crate) async fn retain(
    shared: &Shared,
    thread_ids: &[&str],
    policy: &Retention,
    options: &RetainOptions,
) -> Result<RetainReport> {
    policy.validate()?;
    thread_ids.iter().try_for_each(|thread_id| check_text("thread_id", thread_id))?;
    let now = options.now_micros();
    let mut report = RetainReport::default();
    for threads in distinct(thread_ids).chunks(MAX_THREADS) {
        let done = if options.dry_run {
            let plan = |mut connection: Connection| async move {
                let transaction = connection.begin().await?;
                let batch = Batch::read(shared, &transaction, Scope::Threads(threads), policy, now).await?;
                let values = batch.count_values(shared, &transaction).await?;
                transaction.commit().await?;
                Ok((batch, values, Vec::new()))
            };
            shared.replica.run(plan).await?
        } else {
            let run = |mut connection: Connection| async move {
                let transaction = connection.begin().await?;
                let (locked, busy) = lock_threads(shared, &transaction, threads, MANY_KEYS).await?;
                let batch = Batch::read(shared, &transaction, Scope::Threads(&locked), policy, now).await?;
                let values = batch.remove(shared, &transaction).await?;
                transaction.commit().await?;
                Ok((batch, values, busy))
            };
            shared.database.run(run).await?
        };
        let (batch, values, busy) = done;
        report.busy.extend(busy);
        batch.count(&values, &mut report);
        if !options.dry_run {
            delete_leases(shared, &batch.whole()).await?;
        }
    }
    Ok(report)
}

/// Counts the checkpoints of a namespace: one statement.
pub(crate) async fn count(
    shared: &Shared,
    connection: &Connection,
    thread_id: &str,
    checkpoint_ns: &str,
    keep: KeepLast,
) -> Result<usize> {
    let most = i64::try_from(keep.counted()).unwrap_or(i64::MAX);
    let params = params![TEXT: thread_id, checkpoint_ns; INT8: most];
    let rows = connection.query(&shared.sql.count_checkpoints, &params).await?;
    let count: i64 = rows.first().map_or(Ok(0), |row| column(row, 0))?;
    Ok(usize::try_from(count).unwrap_or_default())
}

/// Prunes the namespace in which a checkpoint was stored, if it is time and no other call works on the thread. A failure is
/// only logged: the checkpoint is stored.
pub(crate) async fn prune_behind(
    shared: &Shared,
    config: &CheckpointConfig,
    checkpoint_id: &str,
    keep: KeepLast,
    counted: Option<usize>,
) {
    let (threads, checkpoint_ns) = (&[config.thread_id()], config.checkpoint_ns());
    let scope = Scope::Namespace(threads, checkpoint_ns);
    let prune = async {
        let counted = if let Some(counted) = counted {
            counted
        } else {
            let connection = shared.database.connection().await?;
            count(shared, &connection, config.thread_id(), checkpoint_ns, keep).await?
        };
        if !keep.is_due_at_sample(counted, checkpoint_id) {
            return Ok(());
        }
        let mut connection = shared.database.connection().await?;
        let transaction = connection.begin().await?;
        let (locked, _) = lock_threads(shared, &transaction, threads, WITHOUT_DISK).await?;
        if !locked.is_empty() {
            let batch = Batch::read(shared, &transaction, scope, &keep.policy(), 0).await?;
            batch.remove(shared, &transaction).await?;
        }
        transaction.commit().await
    };
    let pruned: Result<()> = prune.await;
    if let Err(error) = pruned {
        tracing::warn!(%error, "old checkpoints were not removed; a later call tries again");
    }
}

/// Measures the tables: three statements, which the server works on one after the other.
pub(crate) async fn usage(shared: &Shared, options: &UsageOptions) -> Result<Usage> {
    let mut usage = Usage::default();
    let largest = i64::try_from(options.largest).unwrap_or(i64::MAX);
    for row in &shared.replica.query(&shared.sql.thread_sizes, &params![INT8: largest]).await? {
        let (checkpoints, writes, bytes) = (unsigned(row, 1)?, unsigned(row, 2)?, unsigned(row, 3)?);
        if let Some(thread_id) = row::optional_text(row, 0)? {
            usage.largest.push(ThreadUsage { thread_id, checkpoints, writes, bytes });
        } else {
            (usage.checkpoints, usage.writes, usage.bytes) = (checkpoints, writes, bytes);
            usage.threads = unsigned(row, 4)?;
        }
    }
    for row in &shared.replica.query(&shared.sql.day_sizes, &[]).await? {
        let day = DayUsage { checkpoints: unsigned(row, 1)?, bytes: unsigned(row, 2)? };
        usage.days.insert(text(row, 0)?, day);
    }
    if let Some(row) = shared.replica.query(&shared.sql.table_sizes, &[]).await?.first() {
        (usage.on_disk, usage.dead) = (Some(unsigned(row, 0)?), Some(unsigned(row, 1)?));
    }
    usage.largest.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.thread_id.cmp(&b.thread_id)));
    Ok(usage)
}

/// Locks those threads that no other call is changing, and returns the others, too.
async fn lock_threads<'a>(
    shared: &Shared,
    transaction: &Transaction<'_>,
    threads: &[&'a str],
    setting: &str,
) -> Result<(Vec<&'a str>, Vec<Str>)> {
    let locks: Vec<Lock> = threads.iter().map(|thread_id| Lock::of(thread_id)).collect();
    let keys: Vec<i32> = locks.iter().map(|lock| *lock.key()).collect();
    let params = params![INT4: lock::CLASS; INT4_ARRAY: keys];
    // In one round trip.
    let settings = format!("{PLANS}; {setting}");
    let settings = transaction.batch(&settings);
    let ((), rows) = try_join(settings, transaction.query_named(&shared.sql.lock_threads, &params)).await?;
    let (mut locked, mut busy) = (Vec::new(), Vec::new());
    for (thread_id, row) in threads.iter().zip(&rows) {
        if column(row, 0)? {
            locked.push(*thread_id);
        } else {
            busy.push(Str::from(*thread_id));
        }
    }
    Ok((locked, busy))
}

/// Deletes the leases of threads that are gone, unless somebody holds them.
async fn delete_leases(shared: &Shared, threads: &[&str]) -> Result<()> {
    if threads.is_empty() {
        return Ok(());
    }
    let tables = &shared.tables;
    if !tables.has_leases() {
        let rows =
            shared.database.query(&shared.sql.may_delete_leases, &params![TEXT: tables.leases()]).await?;
        tables.set_has_leases(rows.first().map_or(Ok(false), |row| column(row, 0))?);
    }
    if tables.has_leases() {
        match shared.database.query(&shared.sql.delete_expired_leases, &params![TEXT_ARRAY: threads]).await {
            // The table was dropped, or belongs to another role now.
            Err(error) if matches!(error.kind(), ErrorKind::Schema | ErrorKind::InvalidConfig) => {
                tables.set_has_leases(false);
            }
            done => return done.map(|_| ()),
        }
    }
    Ok(())
}

/// Keys of checkpoints: threads, namespaces, ids.
type Keys<'a> = (Vec<&'a str>, Vec<&'a str>, Vec<&'a str>);

/// What is looked at.
#[derive(Clone, Copy)]
enum Scope<'a> {
    Threads(&'a [&'a str]),
    /// One namespace of a thread.
    Namespace(&'a [&'a str; 1], &'a str),
}

/// Threads, and what goes of them.
struct Batch {
    /// The only namespace, if not all of them were looked at.
    namespace: Option<Str>,
    threads: BTreeMap<Str, (StoredThread, Verdict)>,
}

impl Batch {
    /// Reads threads and decides: two statements, one more if a thread was interrupted, and one for each namespace with
    /// delta channels of which anything goes.
    async fn read(
        shared: &Shared,
        transaction: &Transaction<'_>,
        scope: Scope<'_>,
        policy: &Retention,
        now: i64,
    ) -> Result<Self> {
        let (threads, namespace) = match scope {
            Scope::Threads([]) => return Ok(Self { namespace: None, threads: BTreeMap::new() }),
            Scope::Threads(threads) => (threads, None),
            Scope::Namespace(threads, checkpoint_ns) => (&threads[..], Some(Str::from(checkpoint_ns))),
        };
        let conditions = policy.pinned.as_ref().map_or_else(|| Ok(Vec::new()), read::conditions)?;
        let conditions: Vec<Json<'_>> = conditions.iter().map(|json| Json(json)).collect();
        let mut params = params![TEXT_ARRAY: threads; JSONB_ARRAY: conditions].to_vec();
        let mut of_threads = params![TEXT_ARRAY: threads].to_vec();
        let (stored, writes_of) = match &scope {
            Scope::Threads(_) => (&shared.sql.stored, &shared.sql.stored_writes),
            Scope::Namespace(_, checkpoint_ns) => {
                params.extend(params![TEXT: *checkpoint_ns]);
                of_threads.extend(params![TEXT: *checkpoint_ns]);
                (&shared.sql.stored_in_namespace, &shared.sql.stored_writes_in_namespace)
            }
        };
        // In one round trip.
        let written = transaction.query_named(writes_of, &of_threads);
        let (rows, written) = try_join(transaction.query_named(stored, &params), written).await?;
        let mut found: BTreeMap<Str, StoredThread> = BTreeMap::new();
        let mut with_deltas: HashSet<(Str, Str)> = HashSet::new();
        for row in &rows {
            let (thread_id, checkpoint) = checkpoint(row, policy.pinned.is_some())?;
            if column(row, at_stored::MAY_HAVE_DELTAS)? {
                with_deltas.insert((thread_id.clone(), checkpoint.checkpoint_ns.clone()));
            }
            found.entry(thread_id).or_default().checkpoints.push(checkpoint);
        }
        let mut interrupted: HashSet<(Str, Str, Str)> = HashSet::new();
        for row in &written {
            let thread_id = text(row, at_written::THREAD_ID)?;
            let writes = writes(row)?;
            if column(row, at_written::IS_INTERRUPTED)? {
                let (ns, id) = (writes.checkpoint_ns.clone(), writes.checkpoint_id.clone());
                interrupted.insert((thread_id.clone(), ns, id));
            }
            found.entry(thread_id).or_default().writes.push(writes);
        }
        mark_waiting(shared, transaction, &interrupted, &mut found).await?;
        let mut batch = BTreeMap::new();
        for (thread_id, thread) in found {
            let mut verdict = policy.decide(&thread, now);
            let partial: Vec<Str> = verdict.partial().cloned().collect();
            for checkpoint_ns in partial {
                if !with_deltas.contains(&(thread_id.clone(), checkpoint_ns.clone())) {
                    continue;
                }
                let context = CheckpointKey::new(&thread_id, &checkpoint_ns, "").context();
                let params = params![TEXT: &*thread_id, &*checkpoint_ns];
                let rows = transaction.query_named(&shared.sql.summaries, &params).await?;
                let summaries = rows.iter().map(summary).collect::<Result<HashMap<_, _>>>();
                let summaries = summaries.map_err(context)?;
                verdict.keep_ancestors(&checkpoint_ns, |id| Ok(summaries.get(id).cloned()))?;
            }
            batch.insert(thread_id, (thread, verdict));
        }
        Ok(Self { namespace, threads: batch })
    }

    /// Deletes what goes, and returns the bytes of the values by thread: one round trip.
    async fn remove(&self, shared: &Shared, transaction: &Transaction<'_>) -> Result<HashMap<Str, u64>> {
        let (keys, threads) = (self.keys(), self.changed());
        if threads.is_empty() {
            return Ok(HashMap::new());
        }
        let (of_threads, namespaces, ids) = &keys;
        let params = params![TEXT_ARRAY: of_threads, namespaces, ids, threads];
        let mut of_threads = params![TEXT_ARRAY: threads].to_vec();
        let namespace = self.namespace.as_deref();
        let sql = match &namespace {
            None => &shared.sql.delete_unnamed_blobs,
            Some(checkpoint_ns) => {
                of_threads.extend(params![TEXT: *checkpoint_ns]);
                &shared.sql.delete_unnamed_blobs_in_namespace
            }
        };
        let delete = transaction.query_named(&shared.sql.delete_checkpoints, &params);
        // The server runs it after the first one.
        let (_, blobs) = try_join(delete, transaction.query_named(sql, &of_threads)).await?;
        bytes(&blobs)
    }

    /// Counts the bytes of values that would go, by thread.
    async fn count_values(
        &self,
        shared: &Shared,
        transaction: &Transaction<'_>,
    ) -> Result<HashMap<Str, u64>> {
        let ((of_threads, namespaces, ids), threads) = (self.keys(), self.changed());
        if threads.is_empty() {
            return Ok(HashMap::new());
        }
        let params = params![TEXT_ARRAY: of_threads, namespaces, ids, threads];
        bytes(&transaction.query_named(&shared.sql.count_unnamed_blobs, &params).await?)
    }

    /// Takes their parents from the checkpoints whose parents are not kept.
    async fn cut_parents(&self, shared: &Shared, transaction: &Transaction<'_>) -> Result<()> {
        let (mut threads, mut namespaces, mut ids): Keys<'_> = Keys::default();
        for (thread_id, (thread, verdict)) in &self.threads {
            for row in &thread.checkpoints {
                let Some(found) = verdict.namespaces.get(&row.checkpoint_ns) else { continue };
                let Some(parent) = &row.parent_checkpoint_id else { continue };
                if found.kept.contains(&row.checkpoint_id) && !found.kept.contains(parent) {
                    threads.push(&**thread_id);
                    namespaces.push(&*row.checkpoint_ns);
                    ids.push(&*row.checkpoint_id);
                }
            }
        }
        if !ids.is_empty() {
            let mut once = threads.clone();
            once.dedup();
            let params = params![TEXT_ARRAY: threads, namespaces, ids, once];
            transaction.query_named(&shared.sql.cut_parents, &params).await?;
        }
        Ok(())
    }

    /// The checkpoints to delete, and those that are not stored whose writes are to be deleted.
    fn keys(&self) -> Keys<'_> {
        let (mut threads, mut namespaces, mut ids) = Keys::default();
        for (thread_id, (_, verdict)) in &self.threads {
            for (checkpoint_ns, found) in &verdict.namespaces {
                for id in found.dropped.keys().chain(found.writes.keys()) {
                    threads.push(&**thread_id);
                    namespaces.push(&**checkpoint_ns);
                    ids.push(&**id);
                }
            }
        }
        (threads, namespaces, ids)
    }

    /// The threads of which anything goes.
    fn changed(&self) -> Vec<&str> {
        let changed = self.threads.iter().filter(|(_, (_, verdict))| verdict.is_change());
        changed.map(|(thread_id, _)| &**thread_id).collect()
    }

    /// The threads of which everything goes.
    fn whole(&self) -> Vec<&str> {
        let whole = self.threads.iter().filter(|(_, (_, verdict))| verdict.whole);
        whole.map(|(thread_id, _)| &**thread_id).collect()
    }

    fn count(&self, values: &HashMap<Str, u64>, report: &mut RetainReport) {
        for (thread_id, (thread, verdict)) in &self.threads {
            verdict.count(thread, values.get(thread_id).copied().unwrap_or_default(), report);
        }
    }
}

/// Finds out which threads wait for a person, among those with an interrupt.
async fn mark_waiting(
    shared: &Shared,
    transaction: &Transaction<'_>,
    interrupted: &HashSet<(Str, Str, Str)>,
    found: &mut BTreeMap<Str, StoredThread>,
) -> Result<()> {
    let newest = found.iter().filter_map(|(thread_id, thread)| {
        let (checkpoint_ns, id) = thread.newest()?;
        Some((thread_id.clone(), checkpoint_ns.clone(), id.clone()))
    });
    let newest: Vec<(Str, Str, Str)> = newest.filter(|key| interrupted.contains(key)).collect();
    if newest.is_empty() {
        return Ok(());
    }
    let threads: Vec<&str> = newest.iter().map(|(thread_id, _, _)| &**thread_id).collect();
    let namespaces: Vec<&str> = newest.iter().map(|(_, checkpoint_ns, _)| &**checkpoint_ns).collect();
    let ids: Vec<&str> = newest.iter().map(|(_, _, id)| &**id).collect();
    let rows =
        transaction.query_named(&shared.sql.tasks, &params![TEXT_ARRAY: threads, namespaces, ids]).await?;
    let mut tasks: HashMap<&str, Vec<(&str, &str)>> = HashMap::new();
    for row in &rows {
        tasks.entry(column(row, 0)?).or_default().push((column(row, 1)?, column(row, 2)?));
    }
    for (thread_id, _, _) in &newest {
        let tasks = tasks.get(&**thread_id).into_iter().flatten().copied();
        if let Some(thread) = found.get_mut(thread_id) {
            thread.waits = ThreadStatus::from_parts(None, false, tasks) == ThreadStatus::Waiting;
        }
    }
    Ok(())
}

fn checkpoint(row: &Row, is_pinning: bool) -> Result<(Str, StoredCheckpoint)> {
    let stored = StoredCheckpoint {
        checkpoint_ns: text(row, at_stored::CHECKPOINT_NS)?,
        checkpoint_id: text(row, at_stored::CHECKPOINT_ID)?,
        parent_checkpoint_id: row::optional_text(row, at_stored::PARENT_CHECKPOINT_ID)?
            .filter(|id| !id.is_empty()),
        ts: row::optional_text(row, at_stored::TS)?,
        is_pinned: is_pinning && column::<Option<bool>>(row, at_stored::IS_PINNED)?.unwrap_or(false),
        needs_parent: column::<Option<bool>>(row, at_stored::HAS_SENDS)?.unwrap_or(false),
        bytes: unsigned(row, at_stored::BYTES)?,
    };
    Ok((text(row, at_stored::THREAD_ID)?, stored))
}

fn writes(row: &Row) -> Result<StoredWrites> {
    Ok(StoredWrites {
        checkpoint_ns: text(row, at_written::CHECKPOINT_NS)?,
        checkpoint_id: text(row, at_written::CHECKPOINT_ID)?,
        count: unsigned(row, at_written::COUNT)?,
        bytes: unsigned(row, at_written::BYTES)?,
    })
}

/// Reads bytes by thread.
fn bytes(rows: &[Row]) -> Result<HashMap<Str, u64>> {
    rows.iter().map(|row| Ok((text(row, 0)?, unsigned(row, 1)?))).collect()
}

fn unsigned(row: &Row, at: usize) -> Result<u64> {
    Ok(u64::try_from(column::<Option<i64>>(row, at)?.unwrap_or_default()).unwrap_or_default())
}

/// Decodes the data for pruning of a checkpoint, and its id.
fn summary(row: &Row) -> Result<(Str, CheckpointSummary)> {
    fn object<'a, T: serde::Deserialize<'a>>(row: &'a Row, at: usize) -> Result<IndexMap<Str, T>> {
        let Some(Json(json)) = column(row, at)? else { return Ok(IndexMap::new()) };
        serde_json::from_str(json)
            .map_err(|_| Error::codec("the stored checkpoint does not have LangGraph's shape"))
    }
    let versions: IndexMap<Str, IgnoredAny> = object(row, at::VERSIONS)?;
    let inline: IndexMap<Str, bool> = object(row, at::INLINE)?;
    let blobs: Vec<&str> = column(row, at::BLOBS)?;
    let blobs: HashSet<&str> = blobs.into_iter().collect();
    // A snapshot is a blob whose channel is marked in the document.
    let is_marked = |channel: &str| inline.get(channel) == Some(&true);
    let in_rows = blobs.iter().map(|channel| (Str::from(*channel), is_marked(channel)));
    let scalars =
        inline.keys().filter(|channel| !blobs.contains(&***channel)).map(|channel| (channel.clone(), false));
    let channels = ChannelSummary::new(versions.keys().cloned(), in_rows.chain(scalars));
    let parent = row::optional_text(row, at::PARENT_CHECKPOINT_ID)?;
    let summary = CheckpointSummary::new(channels, row::metadata(row, at::METADATA)?, parent);
    Ok((text(row, at::CHECKPOINT_ID)?, summary))
}
