//! The writes. They run in a transaction on the writer thread.

use checkpoint_core::backend::{
    CheckpointKey, Decision, Found, FoundWrites, PreparedWrites, STEP_KEY, ValueCodec, WriteRow,
};
use checkpoint_core::serde::document;
use checkpoint_core::{
    Checkpoint, CheckpointConfig, CheckpointMetadata, Error, ErrorKind, Lease, PutCondition, PutOptions,
    PutWritesOptions, Result, Str, TypedBytes, id, opaque,
};
use rusqlite::Row;

use crate::connection::{Config, Open};
use crate::error::OrConvert;
use crate::leases;
use crate::read::{exists, find, query_all, query_one};
use crate::retention;
use crate::row::{self, key_columns};
use crate::sql;

/// SQLite's limit for one row.
const MOST_BYTES: usize = 1_000_000_000;

/// The size of a row's header, in which each value has at most 9 bytes.
const ROW_HEADER: usize = 128;

/// Rejects a row that SQLite cannot store.
pub(crate) fn check_size(parts: &[usize]) -> Result<usize> {
    let bytes = parts.iter().fold(ROW_HEADER, |sum, part| sum.saturating_add(*part));
    if bytes > MOST_BYTES {
        return Err(Error::invalid_argument(
            "SQLite holds at most 1,000,000,000 bytes in one row; store large values elsewhere",
        )
        .with("bytes", bytes));
    }
    Ok(bytes)
}

/// A row of `checkpoints`, checked and encrypted.
#[derive(Debug)]
pub(crate) struct CheckpointRow {
    thread_id: Str,
    checkpoint_ns: Str,
    checkpoint_id: Str,
    parent_checkpoint_id: Option<Str>,
    typed: TypedBytes,
    metadata: String,
}

impl CheckpointRow {
    pub(crate) fn new(
        codec: &ValueCodec,
        config: &CheckpointConfig,
        checkpoint: &Checkpoint,
        metadata: &CheckpointMetadata,
        options: &PutOptions,
    ) -> Result<Self> {
        id::validate(&checkpoint.id)?;
        if let Some(channel) = options.unchanged.first() {
            let message = "checkpoints are stored whole here; give the values of unchanged channels, too";
            return Err(Error::new(ErrorKind::Unsupported, message).with("channel", channel));
        }
        let typed = match opaque::value(checkpoint) {
            Some(value) if codec.opaque_values => {
                if !checkpoint.channel_values.is_empty() || !checkpoint.channel_versions.is_empty() {
                    return Err(Error::invalid_argument(
                        "the checkpoint is one value of another serializer, and has channels besides; put them into \
                         that value",
                    ));
                }
                value.clone()
            }
            _ => TypedBytes::msgpack(document::encode_checkpoint(checkpoint)?),
        };
        let key = CheckpointKey::new(config.thread_id(), config.checkpoint_ns(), &checkpoint.id);
        Ok(Self {
            thread_id: config.thread_id().into(),
            checkpoint_ns: config.checkpoint_ns().into(),
            checkpoint_id: checkpoint.id.clone(),
            parent_checkpoint_id: config.checkpoint_id().map(Str::from),
            typed: codec.seal(typed, &key.checkpoint_data())?,
            metadata: options.metadata(metadata, config)?.to_json()?,
        })
    }

    pub(crate) fn check_size(&self) -> Result<usize> {
        check_size(&[
            self.thread_id.len(),
            self.checkpoint_ns.len(),
            self.checkpoint_id.len(),
            self.parent_checkpoint_id.as_ref().map_or(0, |id| id.len()),
            self.typed.tag.len(),
            self.typed.data.len(),
            self.metadata.len(),
        ])
    }

    /// Stores the row, and prunes behind it.
    pub(crate) fn store(&self, config: &Config, open: &Open) -> Result<()> {
        self.insert(open)?;
        let key = CheckpointKey::new(&self.thread_id, &self.checkpoint_ns, &self.checkpoint_id);
        config.keep_last.map_or(Ok(()), |keep| retention::prune_behind(config, open, key, keep))
    }

    fn insert(&self, open: &Open) -> Result<()> {
        let values = (
            &*self.thread_id,
            &*self.checkpoint_ns,
            &*self.checkpoint_id,
            self.parent_checkpoint_id.as_deref(),
            &*self.typed.tag,
            &*self.typed.data,
            self.metadata.as_bytes(),
        );
        open.execute(sql::UPSERT_CHECKPOINT, values).map(|_| ())
    }

    /// Stores the row if its options allow it.
    pub(crate) fn store_if(
        &self,
        config: &Config,
        open: &Open,
        target: &CheckpointConfig,
        options: &PutOptions,
    ) -> Result<Decision> {
        let decision = options.decide(target, self.find(open, options)?)?;
        if decision == Decision::Store {
            self.store(config, open)?;
        }
        Ok(decision)
    }

    /// What a conditional `put` decides by, as far as its options ask for it.
    fn find(&self, open: &Open, options: &PutOptions) -> Result<Found> {
        let key = CheckpointKey::new(&self.thread_id, &self.checkpoint_ns, &self.checkpoint_id);
        let parent = self.parent_checkpoint_id.as_deref();
        let mut found = Found { holds_lease: holds(open, options.lease.as_ref())?, ..Found::default() };
        if let Some(step_key) = &options.step_key {
            let child = |row: &Row<'_>| {
                let id = row::text(row, 0)?;
                let child = CheckpointKey { checkpoint_id: &id, ..key };
                let metadata = row::metadata(row, 1).map_err(child.context())?;
                let stored = metadata.get(STEP_KEY).and_then(|stored| stored.as_str());
                let is_child = stored == Some(&**step_key);
                Ok(is_child.then_some(id))
            };
            let parent = (key.thread_id, key.checkpoint_ns, parent.unwrap_or_default());
            found.repeated = find(open, sql::SELECT_CHILDREN, parent, child)?;
        }
        if options.condition != PutCondition::None {
            let newest = |row: &Row<'_>| row::text(row, 0);
            found.is_stored = exists(open, sql::SELECT_IS_STORED, key_columns(key))?;
            found.newest = query_one(open, sql::LATEST_ID, (key.thread_id, key.checkpoint_ns), newest)?;
            if let Some(checkpoint_id) = parent {
                let parent = CheckpointKey { checkpoint_id, ..key };
                found.parent_is_stored = exists(open, sql::SELECT_IS_STORED, key_columns(parent))?;
            }
        }
        Ok(found)
    }
}

/// Renews the lease of a call, and returns whether it is held.
fn holds(open: &Open, lease: Option<&Lease>) -> Result<bool> {
    lease.map_or(Ok(false), |lease| leases::renew(open, lease))
}

/// Rejects writes if SQLite cannot store one of them, and returns how many bytes they have.
pub(crate) fn check_writes(writes: &PreparedWrites) -> Result<usize> {
    let PreparedWrites { thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, .. } = writes;
    let ids: usize =
        [thread_id, checkpoint_ns, checkpoint_id, task_id, task_path].map(|id| id.len()).iter().sum();
    let sizes = writes.rows.iter().map(|row| {
        check_size(&[ids, row.channel.len(), row.value.tag.len(), row.value.data.len()])
            .map_err(|error| error.with("channel", &row.channel))
    });
    sizes.sum()
}

/// Stores writes if their options allow it.
pub(crate) fn store_writes_if(
    open: &Open,
    config: &CheckpointConfig,
    writes: &PreparedWrites,
    options: &PutWritesOptions,
) -> Result<()> {
    let PreparedWrites { thread_id, checkpoint_ns, checkpoint_id, task_id, .. } = writes;
    let key = CheckpointKey::new(thread_id, checkpoint_ns, checkpoint_id);
    let of_task = (key.thread_id, key.checkpoint_ns, key.checkpoint_id, &**task_id);
    let found = FoundWrites {
        holds_lease: holds(open, options.lease.as_ref())?,
        checkpoint_is_stored: options.checkpoint_stored
            && exists(open, sql::SELECT_IS_STORED, key_columns(key))?,
        has_writes: options.once && exists(open, sql::SELECT_HAS_WRITES, of_task)?,
    };
    options.decide(config, task_id, found)?;
    store_writes(open, writes)
}

pub(crate) fn store_writes(open: &Open, writes: &PreparedWrites) -> Result<()> {
    let has_task_path = open.has_task_path()?;
    let sql = sql::insert_write(writes.replace, has_task_path);
    for row in &writes.rows {
        let values = rusqlite::params![
            &*writes.thread_id,
            &*writes.checkpoint_ns,
            &*writes.checkpoint_id,
            &*writes.task_id,
            row.idx,
            &*row.channel,
            &*row.value.tag,
            &*row.value.data,
            &*writes.task_path,
        ];
        open.execute(&sql, if has_task_path { values } else { &values[..8] })?;
    }
    Ok(())
}

pub(crate) fn delete_thread(open: &Open, thread_id: &str) -> Result<()> {
    delete_rows(open, thread_id)?;
    leases::delete(open, thread_id)
}

/// Deletes the checkpoints and writes of a thread.
pub(crate) fn delete_rows(open: &Open, thread_id: &str) -> Result<()> {
    open.execute(sql::DELETE_THREAD_CHECKPOINTS, [thread_id])?;
    open.execute(sql::DELETE_THREAD_WRITES, [thread_id]).map(|_| ())
}

pub(crate) fn delete_checkpoint(open: &Open, key: CheckpointKey<'_>) -> Result<()> {
    open.execute(sql::DELETE_CHECKPOINT, key_columns(key))?;
    open.execute(sql::DELETE_WRITES, key_columns(key)).map(|_| ())
}

pub(crate) fn delete_for_runs(open: &Open, run_ids: &[String]) -> Result<()> {
    let of_these_runs = |row: &Row<'_>| {
        let key = (row::text(row, 0)?, row::text(row, 1)?, row::text(row, 2)?);
        match row::metadata(row, 3) {
            Ok(metadata) => {
                let is_named =
                    metadata.run_id().is_some_and(|run_id| run_ids.iter().any(|wanted| wanted == run_id));
                Ok(is_named.then_some(key))
            }
            // A damaged row names no run, and must not prevent the deletion of other rows.
            Err(error) => {
                let error = CheckpointKey::new(&key.0, &key.1, &key.2).context()(error);
                tracing::warn!(%error, "a row is ignored because its metadata cannot be read");
                Ok(None)
            }
        }
    };
    for (thread_id, checkpoint_ns, checkpoint_id) in
        query_all(open, sql::SELECT_ALL_METADATA, (), of_these_runs)?
    {
        delete_checkpoint(open, CheckpointKey::new(&thread_id, &checkpoint_ns, &checkpoint_id))?;
    }
    Ok(())
}

/// Copies values unchanged, and re-encrypts those that are bound to their row.
pub(crate) fn copy_thread(config: &Config, open: &Open, source: &str, target: &str) -> Result<()> {
    let has_task_path = open.has_task_path()?;
    open.execute(sql::COPY_CHECKPOINTS, [source, target])?;
    open.execute(&sql::copy_writes(has_task_path), [source, target])?;
    let rowid = |row: &Row<'_>| row.get::<_, i64>(0).or_convert().map(Some);
    for rowid in query_all(open, sql::SELECT_BOUND_CHECKPOINTS, [source], rowid)? {
        let reseal = |row: &Row<'_>| reseal_checkpoint(&config.codec, row, source, target);
        if let Some(row) = query_one(open, sql::SELECT_CHECKPOINT_BY_ROWID, [rowid], reseal)? {
            row.insert(open)?;
        }
    }
    for rowid in query_all(open, sql::SELECT_BOUND_WRITES, [source], rowid)? {
        let reseal = |row: &Row<'_>| reseal_write(&config.codec, row, source, target);
        if let Some(writes) = query_one(open, &sql::select_write_by_rowid(has_task_path), [rowid], reseal)? {
            store_writes(open, &writes)?;
        }
    }
    Ok(())
}

/// Creates the target's row from the columns of `sql::SELECT_CHECKPOINT_BY_ROWID`.
fn reseal_checkpoint(codec: &ValueCodec, row: &Row<'_>, source: &str, target: &str) -> Result<CheckpointRow> {
    let (checkpoint_ns, checkpoint_id) = (row::text(row, 0)?, row::text(row, 1)?);
    let key = CheckpointKey::new(source, &checkpoint_ns, &checkpoint_id);
    let resealed = || {
        let metadata = std::str::from_utf8(row::optional_bytes(row, 5)?.unwrap_or(b"{}"))
            .map_err(|source| Error::codec("the stored metadata is not UTF-8").with_source(source))?
            .to_owned();
        let to = key.in_thread(target).checkpoint_data();
        let typed = codec.reseal(row::typed(row, 3)?, &key.checkpoint_data(), &to)?;
        Ok((typed, metadata, row::optional_text(row, 2)?))
    };
    let (typed, metadata, parent_checkpoint_id) = resealed().map_err(key.context())?;
    let thread_id = target.into();
    Ok(CheckpointRow { thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, typed, metadata })
}

/// Creates the target's row from the columns of `sql::select_write_by_rowid`.
fn reseal_write(codec: &ValueCodec, row: &Row<'_>, source: &str, target: &str) -> Result<PreparedWrites> {
    let (checkpoint_ns, checkpoint_id) = (row::text(row, 0)?, row::text(row, 1)?);
    let (task_id, channel) = (row::text(row, 2)?, row::text(row, 4)?);
    let idx: i32 = row.get(3).or_convert()?;
    let key = CheckpointKey::new(source, &checkpoint_ns, &checkpoint_id);
    let from = key.write_data(&task_id, idx, &channel);
    let to = key.in_thread(target).write_data(&task_id, idx, &channel);
    let value =
        row::typed(row, 5).and_then(|typed| codec.reseal(typed, &from, &to)).map_err(key.context())?;
    let task_path = row::optional_text(row, 7)?.unwrap_or_default();
    Ok(PreparedWrites {
        thread_id: target.into(),
        rows: vec![WriteRow { idx, channel, value }],
        checkpoint_ns,
        checkpoint_id,
        task_id,
        task_path,
        replace: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_beyond_the_limit_is_refused() {
        assert!(check_size(&[999_999_000, 100]).is_ok());
        for parts in [&[1_000_000_000][..], &[500_000_000, 500_000_000], &[usize::MAX, usize::MAX]] {
            let error = check_size(parts).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
    }
}
