//! Seals values again, in place: read and sealed on a reader thread, then stored together with other waiting writes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use checkpoint_core::backend::{CheckpointKey, Rekeying};
use checkpoint_core::cipher::BOUND_SUFFIX;
use checkpoint_core::{RekeyOptions, RekeyReport, Result, SealedBy, Str, TypedBytes};
use rusqlite::Row;

use crate::connection::Open;
use crate::error::OrConvert;
use crate::read::query_all;
use crate::worker::{Change, Workers};
use crate::{row, sql};

/// A batch ends with the value that brings it to this many bytes.
const BATCH_BYTES: usize = 4 << 20;

/// The most values of a batch.
const BATCH_ROWS: usize = 256;

#[derive(Debug, Clone, Copy)]
enum Table {
    Checkpoints,
    Writes,
}

/// The key of a write beyond that of its checkpoint.
#[derive(Debug, Clone)]
struct WriteKey {
    task_id: Str,
    idx: i32,
    channel: Str,
}

/// The key of a value in its thread.
#[derive(Debug, Clone)]
struct ValueKey {
    checkpoint_ns: Str,
    checkpoint_id: Str,
    write: Option<WriteKey>,
}

/// A value that was sealed again.
#[derive(Debug)]
struct Resealed {
    key: ValueKey,
    old_type: Option<Str>,
    old_data: Option<Bytes>,
    new: TypedBytes,
}

/// Values to store, and the key after which the next batch begins.
#[derive(Debug, Default)]
struct Batch {
    rows: Vec<Resealed>,
    next: Option<ValueKey>,
}

pub(crate) async fn rekey(workers: &Workers, thread_id: &str, options: RekeyOptions) -> Result<RekeyReport> {
    if !options.dry_run {
        workers.to_write()?;
    }
    let thread_id = Str::from(thread_id);
    let counted = thread_id.clone();
    let begin = workers.read(move |config, open| {
        let values = count(open, &counted)?;
        Ok((Rekeying::begin(&config.codec, options, &values)?, values))
    });
    let (mut rekeying, mut values) = begin.await?;
    if !rekeying.reads_values() {
        return rekeying.report(values);
    }
    let mut passes = 0;
    loop {
        rekeying.pass_again();
        let (back, missed) = pass(workers, &thread_id, rekeying).await?;
        rekeying = back;
        passes += 1;
        if missed == 0 {
            break;
        }
        if passes == Rekeying::PASSES {
            return Err(Rekeying::conflict());
        }
    }
    if rekeying.must_count_again() {
        values = workers.read(move |_, open| count(open, &thread_id)).await?;
    }
    rekeying.report(values)
}

/// How many values of a thread are sealed by which key.
fn count(open: &Open, thread_id: &str) -> Result<BTreeMap<SealedBy, u64>> {
    let mut values = BTreeMap::new();
    let add = |row: &Row<'_>| {
        let tag = row::optional_text(row, 0)?.unwrap_or_default();
        let head = row::optional_bytes(row, 1)?.unwrap_or_default();
        *values.entry(SealedBy::of(&tag, head)).or_default() += 1;
        Ok(None::<()>)
    };
    query_all(open, sql::SELECT_HEADS, (thread_id, SealedBy::HEAD), add)?;
    Ok(values)
}

/// Seals every value once, and returns how many were changed by others meanwhile.
async fn pass(workers: &Workers, thread_id: &Str, mut rekeying: Rekeying) -> Result<(Rekeying, u64)> {
    let mut missed = 0;
    for table in [Table::Checkpoints, Table::Writes] {
        let mut after = None;
        loop {
            let thread = thread_id.clone();
            let read = workers.read(move |_, open| {
                let batch = seal_batch(open, &thread, table, after.as_ref(), &mut rekeying)?;
                Ok((rekeying, batch))
            });
            let (back, Batch { rows, next }) = read.await?;
            rekeying = back;
            if !rows.is_empty() {
                let wanted = rows.len() as u64;
                let stored = store(workers, thread_id, rows).await?;
                rekeying.stored(stored);
                missed += wanted.saturating_sub(stored);
            }
            if next.is_none() {
                break;
            }
            after = next;
        }
    }
    Ok((rekeying, missed))
}

/// Reads and seals the values after a key, until the batch is full.
fn seal_batch(
    open: &Open,
    thread_id: &str,
    table: Table,
    after: Option<&ValueKey>,
    rekeying: &mut Rekeying,
) -> Result<Batch> {
    let sql = match table {
        Table::Checkpoints => sql::select_checkpoints_to_rekey(after.is_none()),
        Table::Writes => sql::select_writes_to_rekey(after.is_none()),
    };
    let (ns, id) = after.map_or(("", ""), |key| (&key.checkpoint_ns, &key.checkpoint_id));
    let mut statement = open.connection.prepare_cached(&sql).or_convert()?;
    let rows = match table {
        Table::Checkpoints => statement.query((thread_id, ns, id)),
        Table::Writes => {
            let write = after.and_then(|key| key.write.as_ref());
            let (task_id, idx) = write.map_or(("", i32::MIN), |write| (&write.task_id, write.idx));
            statement.query((thread_id, ns, id, task_id, idx))
        }
    };
    let mut rows = rows.or_convert()?;
    let current_head = rekeying.current_head();
    let mut batch = Batch::default();
    let mut bytes = 0;
    while let Some(row) = rows.next().or_convert()? {
        let old_type = row::optional_text(row, 2)?;
        let is_bound = old_type.as_ref().is_some_and(|tag| tag.ends_with(BOUND_SUFFIX));
        if let Some(head) = current_head.as_ref().filter(|_| is_bound)
            && row::optional_bytes(row, 3)?.is_some_and(|data| data.starts_with(head))
        {
            continue;
        }
        let key = key(row, table)?;
        let of_checkpoint = CheckpointKey::new(thread_id, &key.checkpoint_ns, &key.checkpoint_id);
        let typed = row::typed(row, 2);
        let old_data = row::optional_bytes(row, 3)?.map(Bytes::copy_from_slice);
        bytes += old_data.as_ref().map_or(0, Bytes::len);
        let new = match &key.write {
            None => rekeying.reseal(typed, &of_checkpoint.checkpoint_data(), of_checkpoint.context()),
            Some(WriteKey { task_id, idx, channel }) => {
                let data = of_checkpoint.write_data(task_id, *idx, channel);
                rekeying.reseal(typed, &data, of_checkpoint.context())
            }
        };
        let is_full = bytes >= BATCH_BYTES || batch.rows.len() + 1 >= BATCH_ROWS;
        batch.next = is_full.then(|| key.clone());
        batch.rows.extend(new.map(|new| Resealed { key, old_type, old_data, new }));
        if is_full {
            break;
        }
    }
    Ok(batch)
}

/// Reads the key of a row of `sql::select_checkpoints_to_rekey` or `sql::select_writes_to_rekey`.
fn key(row: &Row<'_>, table: Table) -> Result<ValueKey> {
    let write = match table {
        Table::Checkpoints => None,
        Table::Writes => Some(WriteKey {
            task_id: row::text(row, 4)?,
            idx: row.get(5).or_convert()?,
            channel: row::text(row, 6)?,
        }),
    };
    Ok(ValueKey { checkpoint_ns: row::text(row, 0)?, checkpoint_id: row::text(row, 1)?, write })
}

/// Stores values, except where the row has changed, and returns how many.
async fn store(workers: &Workers, thread_id: &Str, rows: Vec<Resealed>) -> Result<u64> {
    let stored = Arc::new(AtomicU64::new(0));
    let (thread_id, count) = (thread_id.clone(), Arc::clone(&stored));
    let bytes = rows.iter().map(|row| row.new.data.len()).sum();
    let change: Change = Box::new(move |_, open| {
        let mut changed = 0;
        for row in &rows {
            changed += store_one(open, &thread_id, row)?;
        }
        // It may run again, so that nothing is added here.
        count.store(changed as u64, Ordering::Release);
        Ok(())
    });
    workers.write(bytes, change).await?;
    Ok(stored.load(Ordering::Acquire))
}

fn store_one(open: &Open, thread_id: &str, row: &Resealed) -> Result<usize> {
    let Resealed { key, old_type, old_data, new } = row;
    let (old_type, old_data) = (old_type.as_deref(), old_data.as_deref());
    let (ns, id, tag, data) = (&*key.checkpoint_ns, &*key.checkpoint_id, &*new.tag, &*new.data);
    match &key.write {
        None => open.execute(sql::REKEY_CHECKPOINT, (thread_id, ns, id, tag, data, old_type, old_data)),
        Some(WriteKey { task_id, idx, channel }) => open.execute(
            sql::REKEY_WRITE,
            (thread_id, ns, id, tag, data, old_type, old_data, &**task_id, *idx, &**channel),
        ),
    }
}
