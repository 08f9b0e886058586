//! The changes, as they run inside of a transaction on the writer thread.

use std::collections::HashSet;

use checkpoint_core::cipher::AssociatedData;
use checkpoint_core::delta::{self, CheckpointReader, CheckpointSummary};
use checkpoint_core::{Error, Result, Str, TypedBytes};
use rusqlite::Row;

use crate::connection::{Config, Open};
use crate::error::at_row;
use crate::read::{namespaces, query_all, query_one};
use crate::{row, sql};

/// SQLite's limit for one row.
const MOST_BYTES: usize = 1_000_000_000;

/// What a row has besides its values: the header, in which each value has at most 9 bytes.
const ROW_HEADER: usize = 128;

/// Refuses a row that SQLite could not hold.
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

/// A row of `checkpoints`, sealed already.
#[derive(Debug)]
pub(crate) struct CheckpointRow {
    pub(crate) thread_id: Str,
    pub(crate) checkpoint_ns: Str,
    pub(crate) checkpoint_id: Str,
    pub(crate) parent_checkpoint_id: Option<Str>,
    pub(crate) typed: TypedBytes,
    pub(crate) metadata: String,
}

impl CheckpointRow {
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

    pub(crate) fn store(&self, open: &Open) -> Result<()> {
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
}

/// The rows of one `put_writes`, sealed already.
#[derive(Debug)]
pub(crate) struct WriteRows {
    pub(crate) thread_id: Str,
    pub(crate) checkpoint_ns: Str,
    pub(crate) checkpoint_id: Str,
    pub(crate) task_id: Str,
    pub(crate) task_path: Str,
    pub(crate) replace: bool,
    /// Index, channel, value.
    pub(crate) rows: Vec<(i32, Str, TypedBytes)>,
}

impl WriteRows {
    pub(crate) fn check_size(&self) -> Result<usize> {
        let ids = self.thread_id.len()
            + self.checkpoint_ns.len()
            + self.checkpoint_id.len()
            + self.task_id.len()
            + self.task_path.len();
        let sizes = self
            .rows
            .iter()
            .map(|(_, channel, typed)| check_size(&[ids, channel.len(), typed.tag.len(), typed.data.len()]));
        sizes.sum()
    }

    pub(crate) fn store(&self, open: &Open) -> Result<()> {
        let has_task_path = open.has_task_path()?;
        let sql = sql::insert_write(self.replace, has_task_path);
        for (idx, channel, typed) in &self.rows {
            let values = rusqlite::params![
                &*self.thread_id,
                &*self.checkpoint_ns,
                &*self.checkpoint_id,
                &*self.task_id,
                idx,
                &**channel,
                &*typed.tag,
                &*typed.data,
                &*self.task_path,
            ];
            open.execute(sql, if has_task_path { values } else { &values[..8] })?;
        }
        Ok(())
    }
}

pub(crate) fn delete_thread(open: &Open, thread_id: &str) -> Result<()> {
    open.execute(sql::DELETE_THREAD_CHECKPOINTS, [thread_id])?;
    open.execute(sql::DELETE_THREAD_WRITES, [thread_id]).map(|_| ())
}

fn delete_checkpoint(open: &Open, place: (&str, &str, &str)) -> Result<()> {
    open.execute(sql::DELETE_CHECKPOINT, place)?;
    open.execute(sql::DELETE_WRITES, place).map(|_| ())
}

pub(crate) fn delete_for_runs(open: &Open, run_ids: &[String]) -> Result<()> {
    let of_these_runs = |row: &Row<'_>| {
        let key = (row::text(row, 0)?, row::text(row, 1)?, row::text(row, 2)?);
        match row::metadata(row, 3) {
            Ok(metadata) => {
                let named =
                    metadata.run_id().is_some_and(|run_id| run_ids.iter().any(|wanted| wanted == run_id));
                Ok(named.then_some(key))
            }
            // A damaged row names no run, and must not keep every other thread's rows from being deleted.
            Err(error) => {
                let error = at_row(error, &key.0, &key.1, &key.2);
                tracing::warn!(%error, "a row is passed over whose metadata cannot be read");
                Ok(None)
            }
        }
    };
    for (thread_id, checkpoint_ns, checkpoint_id) in
        query_all(open, sql::SELECT_ALL_METADATA, (), of_these_runs)?
    {
        delete_checkpoint(open, (&thread_id, &checkpoint_ns, &checkpoint_id))?;
    }
    Ok(())
}

/// Copies what is not bound to its place as it is, and seals the rest anew for its new place.
pub(crate) fn copy_thread(config: &Config, open: &Open, source: &str, target: &str) -> Result<()> {
    let has_task_path = open.has_task_path()?;
    open.execute(sql::COPY_CHECKPOINTS, [source, target])?;
    open.execute(sql::copy_writes(has_task_path), [source, target])?;
    let rowid = |row: &Row<'_>| Ok(Some(row.get::<_, i64>(0).map_err(crate::error::convert)?));
    for rowid in query_all(open, sql::SELECT_BOUND_CHECKPOINTS, [source], rowid)? {
        let reseal = |row: &Row<'_>| reseal_checkpoint(config, row, source, target);
        if let Some(row) = query_one(open, sql::SELECT_CHECKPOINT_BY_ROWID, [rowid], reseal)? {
            row.store(open)?;
        }
    }
    for rowid in query_all(open, sql::SELECT_BOUND_WRITES, [source], rowid)? {
        let reseal = |row: &Row<'_>| reseal_write(config, row, source, target);
        if let Some(rows) = query_one(open, sql::select_write_by_rowid(has_task_path), [rowid], reseal)? {
            rows.store(open)?;
        }
    }
    Ok(())
}

fn reseal(
    config: &Config,
    typed: TypedBytes,
    from: &AssociatedData<'_>,
    to: &AssociatedData<'_>,
) -> Result<TypedBytes> {
    let codec = config.codec.strict();
    codec.seal(codec.open(typed, from)?, to)
}

fn reseal_checkpoint(config: &Config, row: &Row<'_>, source: &str, target: &str) -> Result<CheckpointRow> {
    let (checkpoint_ns, checkpoint_id) = (row::text(row, 0)?, row::text(row, 1)?);
    let place = |thread_id| AssociatedData::Checkpoint {
        thread_id,
        checkpoint_ns: &checkpoint_ns,
        checkpoint_id: &checkpoint_id,
    };
    let sealed = || {
        let metadata = row::optional_bytes(row, 5)?.unwrap_or_else(|| b"{}"[..].into());
        let metadata = String::from_utf8(metadata.into()).map_err(|source| {
            Error::codec("the stored metadata is not UTF-8").with_source(source.utf8_error())
        })?;
        let typed = reseal(config, row::typed(row, 3)?, &place(source), &place(target))?;
        Ok((typed, metadata, row::optional_text(row, 2)?))
    };
    let (typed, metadata, parent_checkpoint_id) =
        sealed().map_err(|error| at_row(error, source, &checkpoint_ns, &checkpoint_id))?;
    Ok(CheckpointRow {
        thread_id: target.into(),
        checkpoint_ns,
        checkpoint_id,
        parent_checkpoint_id,
        typed,
        metadata,
    })
}

fn reseal_write(config: &Config, row: &Row<'_>, source: &str, target: &str) -> Result<WriteRows> {
    let (checkpoint_ns, checkpoint_id) = (row::text(row, 0)?, row::text(row, 1)?);
    let (task_id, channel) = (row::text(row, 2)?, row::text(row, 4)?);
    let idx: i32 = row.get(3).map_err(crate::error::convert)?;
    let place = |thread_id| AssociatedData::Write {
        thread_id,
        checkpoint_ns: &checkpoint_ns,
        checkpoint_id: &checkpoint_id,
        task_id: &task_id,
        idx,
        channel: &channel,
    };
    let typed = row::typed(row, 5)
        .and_then(|typed| reseal(config, typed, &place(source), &place(target)))
        .map_err(|error| at_row(error, source, &checkpoint_ns, &checkpoint_id))?;
    let task_path = row::optional_text(row, 7)?.unwrap_or_default();
    let rows = vec![(idx, channel, typed)];
    Ok(WriteRows {
        thread_id: target.into(),
        checkpoint_ns,
        checkpoint_id,
        task_id,
        task_path,
        replace: true,
        rows,
    })
}

/// Keeps of each namespace the newest checkpoint and the ancestors that its delta channels need.
pub(crate) fn keep_latest(config: &Config, open: &Open, thread_id: &str) -> Result<()> {
    for checkpoint_ns in namespaces(open, thread_id)? {
        let first = |row: &Row<'_>| row::text(row, 0).map(Some);
        let ids = query_all(open, sql::SELECT_CHECKPOINT_IDS, (thread_id, &*checkpoint_ns), first)?;
        let Some(newest) = ids.first() else { continue };
        let load = |id: &Str| summary(config, open, (thread_id, &checkpoint_ns, id));
        let Some(newest_link) = load(newest)? else { continue };
        let mut keep: HashSet<Str> = delta::needed_ancestors(&newest_link, load)?.into_iter().collect();
        keep.insert(newest.clone());
        for id in &ids {
            let place = (thread_id, &*checkpoint_ns, &**id);
            if !keep.contains(id) {
                delete_checkpoint(open, place)?;
                continue;
            }
            let parent =
                query_one(open, sql::SELECT_PARENT, place, |row| row::optional_text(row, 0))?.flatten();
            if parent.is_some_and(|parent| !keep.contains(&parent)) {
                open.execute(sql::CLEAR_PARENT, place)?;
            }
        }
        // Writes may be ahead of their checkpoint: those beyond the newest stay.
        let written = query_all(open, sql::SELECT_WRITE_CHECKPOINT_IDS, (thread_id, &*checkpoint_ns), first)?;
        for id in written.iter().filter(|id| !keep.contains(*id) && *id < newest) {
            open.execute(sql::DELETE_WRITES, (thread_id, &*checkpoint_ns, &**id))?;
        }
    }
    Ok(())
}

fn summary(config: &Config, open: &Open, place: (&str, &str, &str)) -> Result<Option<CheckpointSummary>> {
    let read = |row: &Row<'_>| {
        let read = || {
            let typed = row::open_checkpoint(&config.codec.strict(), row::typed(row, 2)?, place)?;
            let channels = row::look(config, &typed, CheckpointReader::summarize)?;
            Ok(CheckpointSummary::new(channels, row::metadata(row, 4)?, row::optional_text(row, 1)?))
        };
        read().map_err(|error| at_row(error, place.0, place.1, place.2))
    };
    query_one(open, sql::SELECT_CHECKPOINT, place, read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_beyond_the_limit_is_refused() {
        assert!(check_size(&[999_999_000, 100]).is_ok());
        for parts in [&[1_000_000_000][..], &[500_000_000, 500_000_000], &[usize::MAX, usize::MAX]] {
            let error = check_size(parts).unwrap_err();
            assert_eq!(error.kind(), checkpoint_core::ErrorKind::InvalidArgument);
        }
    }
}
