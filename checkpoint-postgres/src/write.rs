//! The writes.

use checkpoint_core::backend::{
    AssociatedData, CheckpointKey, Decision, Found, FoundWrites, PreparedWrites, telemetry,
};
use checkpoint_core::cipher::BOUND_SUFFIX;
use checkpoint_core::{
    ChannelValue, ChannelVersions, Checkpoint, CheckpointConfig, CheckpointMetadata, Error, ErrorKind,
    PutCondition, PutOptions, PutWritesOptions, Result, Str, TypedBytes, id,
};
use common_postgres::tokio_postgres::Row;
use common_postgres::{BACKEND, Connection, Json, Param, SYSTEM, Transaction, column, params, text};

use futures_util::future::join;

use crate::document::{self, Document, check_key, check_name, check_text};
use crate::leases::LeaseParams;
use crate::lock::{self, Lock};
use crate::retention;
use crate::row::{self, Blob};
use crate::shared::Shared;
use crate::sql::found;

/// The server's messages are smaller than 2^30 bytes; the rest is for ids and headers.
const MAX_BYTES: usize = (1 << 30) - (1 << 20);

/// How many values that are bound to their row are read at a time for re-encryption.
const RESEALED_AT_A_TIME: i64 = 32;

/// The most threads that are locked one by one: the server's lock table has space for some thousand locks.
const MAX_LOCKED: usize = 256;

/// Rejects values that do not fit into one message.
fn check_size(parts: impl IntoIterator<Item = usize>) -> Result<()> {
    let bytes = parts.into_iter().fold(0_usize, usize::saturating_add);
    if bytes > MAX_BYTES {
        return Err(Error::invalid_argument(
            "PostgreSQL takes less than 1 GiB in one call; store large values elsewhere",
        )
        .with("bytes", bytes));
    }
    telemetry::bytes_written(SYSTEM, bytes);
    Ok(())
}

/// Names the channel of the largest value.
fn with_largest<'a>(error: Error, values: impl Iterator<Item = (&'a Str, &'a TypedBytes)>) -> Error {
    match values.max_by_key(|(_, value)| value.data.len()) {
        Some((channel, _)) => error.with("channel", channel),
        None => error,
    }
}

/// Stores a checkpoint, with the values that its parent does not have.
pub(crate) async fn put(
    shared: &Shared,
    config: &CheckpointConfig,
    checkpoint: &Checkpoint,
    metadata: &CheckpointMetadata,
    new_versions: &ChannelVersions,
    options: &PutOptions,
) -> Result<CheckpointConfig> {
    check_key(config)?;
    id::validate(&checkpoint.id)?;
    let metadata = &document::metadata(metadata, config, options)?;
    let requirement = Requirement::of(config, options)?;
    let stored = config.for_checkpoint(checkpoint.id.clone());
    let attempt = async |new_versions, mode| {
        let document = document::encode(&shared.codec, config, checkpoint, new_versions, options)?;
        let blobs = document.blobs.iter().map(|blob| blob.channel.len() + blob.value.data.len() + 64);
        let sizes = blobs.chain([config.thread_id().len(), document.json.len(), metadata.len()]);
        let values = document.blobs.iter().map(|blob| (&blob.channel, &blob.value));
        check_size(sizes).map_err(|error| with_largest(error, values))?;
        let checkpoint_id = &checkpoint.id;
        let row =
            CheckpointRow { config, checkpoint_id, document: &document, metadata, options, requirement };
        let run = |connection| async move { row.store(shared, &connection, mode).await };
        shared.database.run(run).await
    };
    let prune_behind = async |count| match shared.keep_last {
        Some(keep) if keep.samples(&checkpoint.id) => {
            retention::prune_behind(shared, config, &checkpoint.id, keep, count).await;
        }
        _ => {}
    };
    let all = &checkpoint.channel_versions;
    let is_plain = !requirement.parent_is_latest && options.step_key.is_none() && options.lease.is_none();
    if is_plain {
        let done = attempt(new_versions, Mode::AtOnce).await?;
        if done.is_stored {
            prune_behind(done.count).await;
            return Ok(stored);
        }
    }
    if !options.is_conditional() {
        // The parent was deleted meanwhile, perhaps with values that did not change, or is being deleted: all values are
        // stored, once no other call holds the thread's exclusive lock.
        attempt(all, Mode::Waiting).await?;
        prune_behind(None).await;
        return Ok(stored);
    }
    let first = if is_plain && options.unchanged.is_empty() { all } else { new_versions };
    for new_versions in [first, all] {
        let Outcome { is_stored, found, .. } = attempt(new_versions, Mode::Conditional).await?;
        match options.decide(config, found)? {
            Decision::Repeats(checkpoint_id) => return Ok(config.for_checkpoint(checkpoint_id)),
            Decision::Store if is_stored => {
                prune_behind(None).await;
                return Ok(stored);
            }
            // The parent does not name all of the values that were carried over.
            Decision::Store => {}
        }
    }
    Err(Error::new(ErrorKind::Conflict, "the thread changed while its checkpoint was stored").retryable(true))
}

/// What a `put` requires of its parent.
#[derive(Debug, Clone, Copy)]
struct Requirement {
    parent_is_stored: bool,
    parent_is_latest: bool,
}

impl Requirement {
    fn of(config: &CheckpointConfig, options: &PutOptions) -> Result<Self> {
        let (parent_is_stored, parent_is_latest) = match options.condition {
            PutCondition::None => (false, false),
            PutCondition::ParentStored => (config.checkpoint_id().is_some(), false),
            PutCondition::ParentIsLatest => (config.checkpoint_id().is_some(), true),
            _ => return Err(Error::unsupported(BACKEND, "put")),
        };
        Ok(Self { parent_is_stored, parent_is_latest })
    }
}

/// How a checkpoint is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// By one statement, which does not wait for locks and requires the parent at most; see `sql::put`.
    AtOnce,
    /// The same in a transaction that waits for the thread's lock.
    Waiting,
    /// In a transaction that waits for the thread's locks and decides by what is stored; see `sql::conditional`.
    Conditional,
}

/// Whether a checkpoint was stored, and what a conditional `put` found.
#[derive(Debug, Default)]
struct Outcome {
    is_stored: bool,
    found: Found,
    /// How many checkpoints the namespace then has, if they were counted.
    count: Option<usize>,
}

/// A checkpoint as it is stored, checked and encrypted.
#[derive(Clone, Copy)]
struct CheckpointRow<'a> {
    config: &'a CheckpointConfig,
    checkpoint_id: &'a str,
    document: &'a Document,
    metadata: &'a str,
    options: &'a PutOptions,
    requirement: Requirement,
}

impl CheckpointRow<'_> {
    async fn store(self, shared: &Shared, connection: &Connection, mode: Mode) -> Result<Outcome> {
        let Document { json, blobs, carried_over } = self.document;
        let (thread_id, checkpoint_ns) = (self.config.thread_id(), self.config.checkpoint_ns());
        let (lock, parent) = (Lock::of(thread_id), self.config.checkpoint_id());
        let (document, metadata) = (Json(json), Json(self.metadata));
        let channels: Vec<&str> = blobs.iter().map(|blob| &*blob.channel).collect();
        let versions: Vec<&str> = blobs.iter().map(|blob| &*blob.version).collect();
        let types: Vec<&str> = blobs.iter().map(|blob| &*blob.value.tag).collect();
        let data: Vec<Blob<'_>> = blobs.iter().map(|blob| Blob(&blob.value.data)).collect();
        let carried_over = carried_over.as_deref().map(Json);
        if mode == Mode::Conditional {
            let Requirement { parent_is_stored, parent_is_latest } = self.requirement;
            let step_key = self.options.step_key.as_deref();
            let lease = self.options.lease.as_ref().map(LeaseParams::of);
            let mut params = params![
                TEXT: thread_id, checkpoint_ns, self.checkpoint_id, parent;
                JSONB: document, metadata, carried_over;
                TEXT: step_key;
                BOOL: parent_is_stored, parent_is_latest;
                TEXT_ARRAY: channels, versions, types;
                BYTEA_ARRAY: data
            ]
            .to_vec();
            params.extend(lease.iter().flat_map(LeaseParams::params));
            let sql = if lease.is_some() { &shared.sql.put_if_leased } else { &shared.sql.put_if };
            let rows = connection.query_in_transaction(&lock::conditional(lock), sql, &params).await?;
            return rows.first().map_or_else(|| Ok(Outcome::default()), |row| self.stored(row));
        }
        let mut params: Vec<Param<'_>> = params![
            INT4: lock::CLASS, *lock.key();
            TEXT: thread_id, checkpoint_ns, self.checkpoint_id, parent;
            JSONB: document, metadata
        ]
        .to_vec();
        // A parent that must be stored names at least nothing.
        let carried_over = carried_over.or_else(|| self.requirement.parent_is_stored.then_some(Json("{}")));
        params.extend(carried_over.iter().flat_map(|versions| params![JSONB: *versions]));
        let (sql, takes_arrays) = shared.sql.put(carried_over.is_some(), blobs.len());
        if takes_arrays {
            params.extend(params![TEXT_ARRAY: channels, versions, types; BYTEA_ARRAY: data]);
        } else {
            for (((channel, version), of_type), data) in channels.iter().zip(&versions).zip(&types).zip(&data)
            {
                params.extend(params![TEXT: *channel, *version, *of_type; BYTEA: *data]);
            }
        }
        if mode == Mode::Waiting {
            connection.execute_in_transaction(&lock::take(&[], &[lock]), sql, &params).await?;
            return Ok(Outcome { is_stored: true, ..Outcome::default() });
        }
        let put = connection.query(sql, &params);
        let keep_last = shared.keep_last.filter(|keep| keep.samples(self.checkpoint_id));
        let (rows, count) = match keep_last {
            None => (put.await?, None),
            // In one round trip; the server runs it after the first one.
            Some(keep) => {
                let count = retention::count(shared, connection, thread_id, checkpoint_ns, keep);
                let (rows, count) = join(put, count).await;
                (rows?, count.ok())
            }
        };
        let is_stored = rows.first().map_or(Ok(false), |row| column(row, 0))?;
        Ok(Outcome { is_stored, count, ..Outcome::default() })
    }

    /// Reads the row of a conditional put.
    fn stored(self, row: &Row) -> Result<Outcome> {
        let parent_is_stored = column(row, found::HAS_PARENT)?;
        let newest = row::optional_text(row, found::NEWEST)?;
        // The statement saw a newest checkpoint that was deleted before it locked it.
        let newest = newest.filter(|id| parent_is_stored || self.config.checkpoint_id() != Some(&**id));
        let found = Found {
            holds_lease: column(row, found::HOLDS_LEASE)?,
            repeated: row::optional_text(row, found::REPEATED)?,
            is_stored: column(row, found::IS_STORED)?,
            parent_is_stored,
            newest,
        };
        Ok(Outcome { is_stored: column(row, found::STORED)?, found, count: None })
    }
}

/// Stores the writes of a task: one statement.
pub(crate) async fn put_writes(
    shared: &Shared,
    config: &CheckpointConfig,
    writes: &[(Str, ChannelValue)],
    task_id: &str,
    task_path: &str,
    options: &PutWritesOptions,
) -> Result<()> {
    check_key(config)?;
    check_name("task_id", task_id)?;
    check_text("task_path", task_path)?;
    writes.iter().try_for_each(|(channel, _)| check_name("channel", channel))?;
    let writes = PreparedWrites::new(&shared.codec, config, writes, task_id, task_path)?.with(options)?;
    writes.rows.iter().try_for_each(|row| check_name("type", &row.value.tag))?;
    let sizes = writes.rows.iter().map(|row| row.channel.len() + row.value.data.len() + 64);
    let values = writes.rows.iter().map(|row| (&row.channel, &row.value));
    check_size(sizes.chain([writes.thread_id.len(), writes.task_path.len()]))
        .map_err(|error| with_largest(error, values))?;
    if writes.rows.is_empty() {
        return Ok(());
    }
    let lock = Lock::of(&writes.thread_id);
    let indexes: Vec<i32> = writes.rows.iter().map(|row| row.idx).collect();
    let channels: Vec<&str> = writes.rows.iter().map(|row| &*row.channel).collect();
    let types: Vec<&str> = writes.rows.iter().map(|row| &*row.value.tag).collect();
    let data: Vec<Blob<'_>> = writes.rows.iter().map(|row| Blob(&row.value.data)).collect();
    let PreparedWrites { thread_id, checkpoint_ns, checkpoint_id, .. } = &writes;
    let [thread_id, checkpoint_ns, checkpoint_id] = [thread_id, checkpoint_ns, checkpoint_id].map(|id| &**id);
    let mut params = params![
        INT4: lock::CLASS, *lock.key();
        TEXT: thread_id, checkpoint_ns, checkpoint_id, task_id, task_path;
        INT4_ARRAY: indexes;
        TEXT_ARRAY: channels, types;
        BYTEA_ARRAY: data
    ]
    .to_vec();
    if !options.is_conditional() {
        let sql = if writes.replace { &shared.sql.upsert_writes } else { &shared.sql.insert_writes };
        return shared.database.query(sql, &params).await.map(|_| ());
    }
    let lease = options.lease.as_ref().map(LeaseParams::of);
    params.extend(params![BOOL: options.checkpoint_stored]);
    params.extend(lease.iter().flat_map(LeaseParams::params));
    let sql = shared.sql.put_writes_if(options.once, writes.replace, lease.is_some());
    let rows = shared.database.query(sql, &params).await?;
    let Some(row) = rows.first() else { return Err(Error::codec("the server returned no row")) };
    let found = FoundWrites {
        holds_lease: column(row, found::HOLDS_LEASE)?,
        checkpoint_is_stored: column(row, found::HAS_CHECKPOINT)?,
        has_writes: column(row, found::HAS_WRITES)?,
    };
    options.decide(config, task_id, found)?;
    if column(row, found::STORED)? {
        return Ok(());
    }
    // Another result was stored at the same moment.
    options.decide(config, task_id, FoundWrites { has_writes: true, ..found })
}

pub(crate) async fn delete_thread(shared: &Shared, thread_id: &str) -> Result<()> {
    check_text("thread_id", thread_id)?;
    let lock = &lock::take(&[Lock::of(thread_id)], &[]);
    let run = |connection: Connection| async move {
        let tables = &shared.tables;
        let delete_all = async || {
            let sql = &shared.sql.delete_thread_and_lease;
            connection.execute_in_transaction(lock, sql, &params![TEXT: thread_id]).await.map(|_| ())
        };
        if tables.has_leases() {
            match delete_all().await {
                // The table of leases was dropped, or belongs to another role now.
                Err(error) if matches!(error.kind(), ErrorKind::Schema | ErrorKind::InvalidConfig) => {
                    tables.set_has_leases(false);
                }
                done => return done,
            }
        }
        let params = params![TEXT: thread_id, tables.leases()];
        let rows = connection.query_in_transaction(lock, &shared.sql.delete_thread, &params).await?;
        if rows.first().map_or(Ok(false), |row| column(row, 0))? {
            tables.set_has_leases(true);
            // All of it, because somebody may have written meanwhile.
            return delete_all().await;
        }
        Ok(())
    };
    shared.database.run(run).await
}

/// Deletes in one transaction: finds the threads, locks them, and deletes.
pub(crate) async fn delete_for_runs(shared: &Shared, run_ids: &[&str]) -> Result<()> {
    // No stored metadata contains U+0000.
    let run_ids = run_ids.iter().filter(|run_id| !run_id.contains('\0'));
    let run_ids: Vec<String> =
        run_ids.map(|run_id| document::to_json(&(*run_id).into())).collect::<Result<_>>()?;
    if run_ids.is_empty() {
        return Ok(());
    }
    let run_ids: Vec<Json<'_>> = run_ids.iter().map(|json| Json(json)).collect();
    let run_ids = &run_ids;
    let run = |mut connection: Connection| async move {
        let transaction = connection.begin().await?;
        let rows = transaction.query(&shared.sql.select_runs, &params![JSONB_ARRAY: *run_ids]).await?;
        let threads = rows.iter().map(|row| column::<&str>(row, 0)).collect::<Result<Vec<_>>>()?;
        if !threads.is_empty() {
            if threads.len() > MAX_LOCKED {
                transaction.batch(&shared.sql.lock_tables()).await?;
            } else {
                let locks: Vec<Lock> = threads.iter().map(|thread_id| Lock::of(thread_id)).collect();
                transaction.batch(&lock::take(&locks, &[])).await?;
            }
            let params = params![JSONB_ARRAY: *run_ids; TEXT_ARRAY: threads];
            transaction.query(&shared.sql.delete_runs, &params).await?;
            transaction.query(&shared.sql.delete_unnamed_blobs, &params![TEXT_ARRAY: threads]).await?;
        }
        transaction.commit().await
    };
    shared.database.run(run).await
}

/// Copies values in the server, and re-encrypts those that are bound to their row.
pub(crate) async fn copy_thread(shared: &Shared, source: &str, target: &str) -> Result<()> {
    [source, target].iter().try_for_each(|thread_id| check_text("thread_id", thread_id))?;
    if source == target {
        return Ok(());
    }
    let run = |mut connection: Connection| async move {
        let params = params![TEXT: source, target, BOUND_SUFFIX];
        let transaction = connection.begin().await?;
        transaction.batch(&lock::take(&[Lock::of(target)], &[Lock::of(source)])).await?;
        transaction.query(&shared.sql.copy, &params).await?;
        let copy = Copy { shared, transaction: &transaction, source, target };
        copy.reseal_blobs().await?;
        copy.reseal_writes().await?;
        copy.reseal_fields().await?;
        transaction.commit().await
    };
    shared.database.run(run).await
}

/// A copy of a thread that is under way.
struct Copy<'a> {
    shared: &'a Shared,
    transaction: &'a Transaction<'a>,
    source: &'a str,
    target: &'a str,
}

impl Copy<'_> {
    async fn reseal_blobs(&self) -> Result<()> {
        let mut after: Option<(Str, Str, Str)> = None;
        loop {
            let sql = &self.shared.sql;
            let (sql, ns, channel, version) = match &after {
                Some((ns, channel, version)) => (&sql.next_bound_blobs, &**ns, &**channel, &**version),
                None => (&sql.first_bound_blobs, "", "", ""),
            };
            let params =
                params![TEXT: self.source, BOUND_SUFFIX, ns, channel, version; INT8: RESEALED_AT_A_TIME];
            let rows = self.transaction.query_named(sql, &params).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            after = Some((text(last, 0)?, text(last, 1)?, text(last, 2)?));
            for row in &rows {
                let (ns, channel, version): (&str, &str, &str) =
                    (column(row, 0)?, column(row, 1)?, column(row, 2)?);
                let data =
                    |thread_id| AssociatedData::Blob { thread_id, checkpoint_ns: ns, channel, version };
                let typed = row::typed(row, 3, 4)
                    .and_then(|typed| self.shared.codec.reseal(typed, &data(self.source), &data(self.target)))
                    .map_err(|error| error.with("thread_id", self.source).with("channel", channel))?;
                let params =
                    params![TEXT: self.target, ns, channel, version, &*typed.tag; BYTEA: Blob(&typed.data)];
                self.transaction.query_named(&self.shared.sql.upsert_blobs, &params).await?;
            }
        }
    }

    async fn reseal_writes(&self) -> Result<()> {
        let mut after: Option<(Str, Str, Str, i32)> = None;
        loop {
            let sql = &self.shared.sql;
            let (sql, ns, id, task, idx) = match &after {
                Some((ns, id, task, idx)) => (&sql.next_bound_writes, &**ns, &**id, &**task, *idx),
                None => (&sql.first_bound_writes, "", "", "", 0),
            };
            let params =
                params![TEXT: self.source, BOUND_SUFFIX, ns, id, task; INT4: idx; INT8: RESEALED_AT_A_TIME];
            let rows = self.transaction.query_named(sql, &params).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            after = Some((text(last, 0)?, text(last, 1)?, text(last, 2)?, column(last, 5)?));
            for row in &rows {
                let (ns, id, task): (&str, &str, &str) = (column(row, 0)?, column(row, 1)?, column(row, 2)?);
                let (path, channel): (&str, &str) = (column(row, 3)?, column(row, 4)?);
                let idx: i32 = column(row, 5)?;
                let key = CheckpointKey::new(self.source, ns, id);
                let from = key.write_data(task, idx, channel);
                let to = key.in_thread(self.target).write_data(task, idx, channel);
                let typed = row::typed(row, 6, 7)
                    .and_then(|typed| self.shared.codec.reseal(typed, &from, &to))
                    .map_err(key.context())?;
                let params = params![TEXT: self.target, ns, id, task, path; INT4: idx; TEXT: channel, &*typed.tag; BYTEA: Blob(&typed.data)];
                self.transaction.query_named(&self.shared.sql.replace_write, &params).await?;
            }
        }
    }

    async fn reseal_fields(&self) -> Result<()> {
        let params = params![TEXT: self.source, BOUND_SUFFIX];
        for row in &self.transaction.query(&self.shared.sql.select_bound_fields, &params).await? {
            let (ns, id): (&str, &str) = (column(row, 0)?, column(row, 1)?);
            let key = CheckpointKey::new(self.source, ns, id);
            let to = key.in_thread(self.target).checkpoint_data();
            let moved = document::sealed_fields(column::<Json<'_>>(row, 2)?.0)
                .and_then(|typed| self.shared.codec.reseal(typed, &key.checkpoint_data(), &to))
                .map_err(key.context())?;
            let moved = document::sealed_fields_json(&moved);
            let params = params![TEXT: self.target, ns, id; JSONB: Json(&moved)];
            self.transaction.query_named(&self.shared.sql.set_fields, &params).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_beyond_the_limit_is_refused() {
        assert!(check_size([1 << 29, (1 << 29) - (2 << 20)]).is_ok());
        for parts in [vec![1 << 30], vec![1 << 29, 1 << 29], vec![usize::MAX, usize::MAX]] {
            assert_eq!(check_size(parts).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    }
}
