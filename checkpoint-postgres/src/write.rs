//! The changes.

use std::collections::HashSet;

use checkpoint_core::cipher::{AssociatedData, BOUND_SUFFIX};
use checkpoint_core::delta::{ChannelSummary, CheckpointSummary, NeededAncestors};
use checkpoint_core::{
    ChannelValue, ChannelVersions, Checkpoint, CheckpointConfig, CheckpointMetadata, Error, Result, Str,
    TypedBytes, id, index_writes,
};
use common_postgres::tokio_postgres::Row;
use common_postgres::tokio_postgres::types::Type;
use common_postgres::{Connection, Json, Param, Transaction, column, text};
use indexmap::IndexMap;
use serde::de::IgnoredAny;

use crate::document::{self, Split, check_key, check_name, check_text};
use crate::lock::Lock;
use crate::row::{self, Blob, at_row};
use crate::saver::Shared;
use crate::{lock, sql};

/// The server's messages hold one byte less than 2^30; the rest is for ids and headers.
const MOST_BYTES: usize = (1 << 30) - (1 << 20);

/// How many values that are bound to their place are sealed anew at a time.
const RESEALED: i64 = 32;

/// More threads than this are not locked one by one: all of the server's sessions share room for some thousand locks.
const LOCKED: usize = 256;

/// Refuses what the server could not take in one message.
fn check_size(parts: impl IntoIterator<Item = usize>) -> Result<()> {
    let bytes = parts.into_iter().fold(0_usize, usize::saturating_add);
    if bytes > MOST_BYTES {
        return Err(Error::invalid_argument(
            "PostgreSQL takes less than 1 GiB in one call; store large values elsewhere",
        )
        .with("bytes", bytes));
    }
    Ok(())
}

/// A checkpoint as it is stored, checked and sealed already.
#[derive(Debug)]
pub(crate) struct CheckpointRows {
    thread_id: Str,
    checkpoint_ns: Str,
    checkpoint_id: Str,
    parent_checkpoint_id: Option<Str>,
    split: Split,
    metadata: String,
}

impl CheckpointRows {
    pub(crate) fn new(
        shared: &Shared,
        config: &CheckpointConfig,
        checkpoint: &Checkpoint,
        metadata: &CheckpointMetadata,
        new_versions: &ChannelVersions,
    ) -> Result<Self> {
        check_key(config)?;
        id::validate(&checkpoint.id)?;
        let rows = Self {
            thread_id: config.thread_id().clone(),
            checkpoint_ns: config.checkpoint_ns().clone(),
            checkpoint_id: checkpoint.id.clone(),
            parent_checkpoint_id: config.checkpoint_id().cloned(),
            split: document::split(config, checkpoint, new_versions, &shared.codec)?,
            metadata: document::metadata(metadata, config)?,
        };
        let blobs = rows.split.blobs.iter().map(|blob| blob.channel.len() + blob.typed.data.len() + 64);
        check_size(blobs.chain([rows.thread_id.len(), rows.split.document.len(), rows.metadata.len()]))?;
        Ok(rows)
    }

    /// Stores all of it and tells whether it did; see `sql::put`. It may wait until nobody else has the thread to itself.
    pub(crate) async fn store(&self, shared: &Shared, connection: &Connection, wait: bool) -> Result<bool> {
        let Split { document, blobs, carried } = &self.split;
        let key = Lock::of(&self.thread_id).key();
        let (thread_id, checkpoint_ns, checkpoint_id) =
            (&*self.thread_id, &*self.checkpoint_ns, &*self.checkpoint_id);
        let parent = self.parent_checkpoint_id.as_deref();
        let (document, metadata) = (Json(document), Json(&self.metadata));
        let mut params: Vec<Param<'_>> = vec![
            (&lock::CLASS, Type::INT4),
            (&key, Type::INT4),
            (&thread_id, Type::TEXT),
            (&checkpoint_ns, Type::TEXT),
            (&checkpoint_id, Type::TEXT),
            (&parent, Type::TEXT),
            (&document, Type::JSONB),
            (&metadata, Type::JSONB),
        ];
        let carried = carried.as_deref().map(Json);
        if let Some(carried) = &carried {
            params.push((carried, Type::JSONB));
        }
        let channels: Vec<&str> = blobs.iter().map(|blob| &*blob.channel).collect();
        let versions: Vec<&str> = blobs.iter().map(|blob| &*blob.version).collect();
        let types: Vec<&str> = blobs.iter().map(|blob| &*blob.typed.tag).collect();
        let data: Vec<Blob<'_>> = blobs.iter().map(|blob| Blob(&blob.typed.data)).collect();
        let (sql, arrays) = shared.sql.put(carried.is_some(), blobs.len());
        if arrays {
            params.push((&channels, Type::TEXT_ARRAY));
            params.push((&versions, Type::TEXT_ARRAY));
            params.push((&types, Type::TEXT_ARRAY));
            params.push((&data, Type::BYTEA_ARRAY));
        } else {
            for (((channel, version), of_type), data) in channels.iter().zip(&versions).zip(&types).zip(&data)
            {
                params.push((channel, Type::TEXT));
                params.push((version, Type::TEXT));
                params.push((of_type, Type::TEXT));
                params.push((data, Type::BYTEA));
            }
        }
        if wait {
            let lock = lock::take(&[], &[Lock::of(&self.thread_id)]);
            return connection.transact(&lock, sql, &params).await.map(|_| true);
        }
        let rows = connection.query(sql, &params).await?;
        rows.first().map_or(Ok(false), |row| column(row, 0))
    }
}

/// The rows of one `put_writes`, checked and sealed already.
#[derive(Debug)]
pub(crate) struct WriteRows {
    thread_id: Str,
    checkpoint_ns: Str,
    checkpoint_id: Str,
    task_id: Str,
    task_path: Str,
    replace: bool,
    /// Index, channel, value, in the order of the table's key.
    rows: Vec<(i32, Str, TypedBytes)>,
}

impl WriteRows {
    pub(crate) fn new(
        shared: &Shared,
        config: &CheckpointConfig,
        writes: &[(Str, ChannelValue)],
        task_id: &str,
        task_path: &str,
    ) -> Result<Self> {
        check_key(config)?;
        let checkpoint_id = config.require_checkpoint_id()?;
        id::validate(checkpoint_id)?;
        check_name("task_id", task_id)?;
        check_text("task_path", task_path)?;
        let (indexes, replace) = index_writes(writes)?;
        let row = |(idx, (channel, value)): (i32, &(Str, ChannelValue))| {
            check_name("channel", channel)?;
            let place = AssociatedData::Write {
                thread_id: config.thread_id(),
                checkpoint_ns: config.checkpoint_ns(),
                checkpoint_id,
                task_id,
                idx,
                channel,
            };
            let typed = shared.codec.seal_value(value, &place)?;
            check_name("type", &typed.tag)?;
            Ok((idx, channel.clone(), typed))
        };
        let mut rows = indexes.into_iter().zip(writes).map(row).collect::<Result<Vec<_>>>()?;
        if replace {
            // The last one of a channel replaces the others: one statement cannot change a row twice.
            rows.reverse();
        }
        rows.sort_by_key(|(idx, ..)| *idx);
        rows.dedup_by_key(|(idx, ..)| *idx);
        let ids = [config.thread_id().len(), task_path.len()];
        check_size(rows.iter().map(|(_, channel, typed)| channel.len() + typed.data.len() + 64).chain(ids))?;
        Ok(Self {
            thread_id: config.thread_id().clone(),
            checkpoint_ns: config.checkpoint_ns().clone(),
            checkpoint_id: checkpoint_id.clone(),
            task_id: task_id.into(),
            task_path: task_path.into(),
            replace,
            rows,
        })
    }

    pub(crate) async fn store(&self, shared: &Shared, connection: &Connection) -> Result<()> {
        let lock = Lock::of(&self.thread_id);
        let indexes: Vec<i32> = self.rows.iter().map(|(idx, ..)| *idx).collect();
        let channels: Vec<&str> = self.rows.iter().map(|(_, channel, _)| &**channel).collect();
        let types: Vec<&str> = self.rows.iter().map(|(.., typed)| &*typed.tag).collect();
        let data: Vec<Blob<'_>> = self.rows.iter().map(|(.., typed)| Blob(&typed.data)).collect();
        let params: [Param<'_>; 11] = [
            (&lock::CLASS, Type::INT4),
            (&lock.key(), Type::INT4),
            (&&*self.thread_id, Type::TEXT),
            (&&*self.checkpoint_ns, Type::TEXT),
            (&&*self.checkpoint_id, Type::TEXT),
            (&&*self.task_id, Type::TEXT),
            (&&*self.task_path, Type::TEXT),
            (&indexes, Type::INT4_ARRAY),
            (&channels, Type::TEXT_ARRAY),
            (&types, Type::TEXT_ARRAY),
            (&data, Type::BYTEA_ARRAY),
        ];
        let sql = if self.replace { &shared.sql.upsert_writes } else { &shared.sql.insert_writes };
        connection.query(sql, &params).await.map(|_| ())
    }
}

pub(crate) async fn delete_thread(shared: &Shared, connection: &Connection, thread_id: &str) -> Result<()> {
    let lock = lock::take(&[Lock::of(thread_id)], &[]);
    connection.transact(&lock, &shared.sql.delete_thread, &[(&thread_id, Type::TEXT)]).await.map(|_| ())
}

/// Deletes in one transaction: finds the threads, locks them, and looks again.
pub(crate) async fn delete_for_runs(
    shared: &Shared,
    connection: &mut Connection,
    run_ids: &[String],
) -> Result<()> {
    let run_ids: Vec<String> =
        run_ids.iter().map(|run_id| document::to_json(&run_id.as_str().into())).collect::<Result<_>>()?;
    let run_ids: Vec<Json<'_>> = run_ids.iter().map(|json| Json(json)).collect();
    let transaction = connection.begin().await?;
    let rows = transaction.query(&shared.sql.select_runs, &[(&run_ids, Type::JSONB_ARRAY)]).await?;
    let threads = rows.iter().map(|row| column::<&str>(row, 0)).collect::<Result<Vec<_>>>()?;
    if !threads.is_empty() {
        if threads.len() > LOCKED {
            transaction.batch(&shared.sql.lock_table).await?;
        } else {
            let locks: Vec<Lock> = threads.iter().map(|thread_id| Lock::of(thread_id)).collect();
            transaction.batch(&lock::take(&locks, &[])).await?;
        }
        let params: [Param<'_>; 2] = [(&run_ids, Type::JSONB_ARRAY), (&threads, Type::TEXT_ARRAY)];
        transaction.query(&shared.sql.delete_runs, &params).await?;
        transaction.query(&shared.sql.delete_unnamed_blobs, &[(&threads, Type::TEXT_ARRAY)]).await?;
    }
    transaction.commit().await
}

/// Keeps of each namespace the newest checkpoint, the ancestors that its delta channels need, and the parent of an old
/// one that has the sends.
pub(crate) async fn keep_latest(shared: &Shared, connection: &mut Connection, thread_id: &str) -> Result<()> {
    let transaction = connection.begin().await?;
    transaction.batch(&lock::take(&[Lock::of(thread_id)], &[])).await?;
    let thread: Param<'_> = (&thread_id, Type::TEXT);
    let namespaces = transaction.query(&shared.sql.namespaces, std::slice::from_ref(&thread)).await?;
    for row in &namespaces {
        let checkpoint_ns: &str = column(row, 0)?;
        let key: [Param<'_>; 2] = [thread.clone(), (&checkpoint_ns, Type::TEXT)];
        let newest = transaction.query(&shared.sql.newest, &key).await?;
        let Some(newest) = newest.first() else { continue };
        let read = |row: &Row| summary(row).map_err(|error| at_row(error, thread_id, checkpoint_ns, ""));
        let with_sends: Option<bool> = column(newest, 6)?;
        let (newest_id, newest) = read(newest)?;
        let parent = newest.parent_checkpoint_id.clone().filter(|_| with_sends == Some(true));
        let mut needed = NeededAncestors::new(&newest);
        while let Some(next) = needed.next().cloned() {
            let [thread, namespace] = key.clone();
            let params: [Param<'_>; 4] =
                [thread, namespace, (&&*next, Type::TEXT), (&sql::ANCESTORS, Type::INT8)];
            let rows = transaction.query(&shared.sql.ancestors, &params).await?;
            for row in &rows {
                let (id, ancestor) = read(row)?;
                if needed.next() != Some(&id) {
                    break;
                }
                needed.visit(ancestor);
            }
            // It is not there.
            if needed.next() == Some(&next) {
                break;
            }
        }
        let needed = needed.finish();
        let keep: Vec<&str> =
            std::iter::once(&newest_id).chain(&parent).chain(&needed).map(|id| &**id).collect();
        let [thread, namespace] = key;
        transaction.query(&shared.sql.prune, &[thread, namespace, (&keep, Type::TEXT_ARRAY)]).await?;
    }
    if !namespaces.is_empty() {
        transaction.query(&shared.sql.delete_unnamed_blobs, &[(&vec![thread_id], Type::TEXT_ARRAY)]).await?;
    }
    transaction.commit().await
}

/// Reads what pruning has to know, and the checkpoint's id.
fn summary(row: &Row) -> Result<(Str, CheckpointSummary)> {
    fn object<'a, T: serde::Deserialize<'a>>(row: &'a Row, at: usize) -> Result<IndexMap<Str, T>> {
        let Some(Json(json)) = column(row, at)? else { return Ok(IndexMap::new()) };
        serde_json::from_str(json)
            .map_err(|_| Error::codec("the stored checkpoint does not have LangGraph's shape"))
    }
    let versions: IndexMap<Str, IgnoredAny> = object(row, 3)?;
    let inline: IndexMap<Str, bool> = object(row, 4)?;
    let blobs: Vec<&str> = column(row, 5)?;
    let blobs: HashSet<&str> = blobs.into_iter().collect();
    // A snapshot is a blob whose channel is marked in the document.
    let is_marked = |channel: &str| inline.get(channel) == Some(&true);
    let in_rows = blobs.iter().map(|channel| (Str::from(*channel), is_marked(channel)));
    let scalars =
        inline.keys().filter(|channel| !blobs.contains(&***channel)).map(|channel| (channel.clone(), false));
    let channels = ChannelSummary::new(versions.keys().cloned(), in_rows.chain(scalars));
    let link = CheckpointSummary::new(channels, row::metadata(row, 2)?, row::optional_text(row, 1)?);
    Ok((text(row, 0)?, link))
}

/// Copies inside of the server what is not bound to its place, and seals the rest anew for its new place.
pub(crate) async fn copy_thread(
    shared: &Shared,
    connection: &mut Connection,
    source: &str,
    target: &str,
) -> Result<()> {
    let locks = lock::take(&[Lock::of(target)], &[Lock::of(source)]);
    let params: [Param<'_>; 3] = [(&source, Type::TEXT), (&target, Type::TEXT), (&BOUND_SUFFIX, Type::TEXT)];
    let transaction = connection.begin().await?;
    transaction.batch(&locks).await?;
    transaction.query(&shared.sql.copy, &params).await?;
    reseal_blobs(shared, &transaction, source, target).await?;
    reseal_writes(shared, &transaction, source, target).await?;
    reseal_fields(shared, &transaction, source, target).await?;
    transaction.commit().await
}

async fn reseal_blobs(
    shared: &Shared,
    transaction: &Transaction<'_>,
    source: &str,
    target: &str,
) -> Result<()> {
    let mut after: Option<(Str, Str, Str)> = None;
    loop {
        let (ns, channel, version) = match &after {
            Some((ns, channel, version)) => (Some(&**ns), &**channel, &**version),
            None => (None, "", ""),
        };
        let params: [Param<'_>; 6] = [
            (&source, Type::TEXT),
            (&BOUND_SUFFIX, Type::TEXT),
            (&ns, Type::TEXT),
            (&channel, Type::TEXT),
            (&version, Type::TEXT),
            (&RESEALED, Type::INT8),
        ];
        let rows = transaction.query(&shared.sql.select_bound_blobs, &params).await?;
        if rows.is_empty() {
            return Ok(());
        }
        for row in &rows {
            let (ns, channel, version): (&str, &str, &str) =
                (column(row, 0)?, column(row, 1)?, column(row, 2)?);
            let place = |thread_id| AssociatedData::Blob { thread_id, checkpoint_ns: ns, channel, version };
            let typed = reseal(shared, row::typed(row, 3, 4)?, &place(source), &place(target))
                .map_err(|error| error.with("thread_id", source).with("channel", channel))?;
            let params: [Param<'_>; 6] = [
                (&target, Type::TEXT),
                (&ns, Type::TEXT),
                (&channel, Type::TEXT),
                (&version, Type::TEXT),
                (&&*typed.tag, Type::TEXT),
                (&Blob(&typed.data), Type::BYTEA),
            ];
            transaction.query(&shared.sql.upsert_blobs, &params).await?;
            after = Some((ns.into(), channel.into(), version.into()));
        }
    }
}

async fn reseal_writes(
    shared: &Shared,
    transaction: &Transaction<'_>,
    source: &str,
    target: &str,
) -> Result<()> {
    let mut after: Option<(Str, Str, Str, i32)> = None;
    loop {
        let (ns, id, task, idx) = match &after {
            Some((ns, id, task, idx)) => (Some(&**ns), &**id, &**task, *idx),
            None => (None, "", "", 0),
        };
        let params: [Param<'_>; 7] = [
            (&source, Type::TEXT),
            (&BOUND_SUFFIX, Type::TEXT),
            (&ns, Type::TEXT),
            (&id, Type::TEXT),
            (&task, Type::TEXT),
            (&idx, Type::INT4),
            (&RESEALED, Type::INT8),
        ];
        let rows = transaction.query(&shared.sql.select_bound_writes, &params).await?;
        if rows.is_empty() {
            return Ok(());
        }
        for row in &rows {
            let (ns, id, task): (&str, &str, &str) = (column(row, 0)?, column(row, 1)?, column(row, 2)?);
            let (path, channel): (&str, &str) = (column(row, 3)?, column(row, 4)?);
            let idx: i32 = column(row, 5)?;
            let place = |thread_id| AssociatedData::Write {
                thread_id,
                checkpoint_ns: ns,
                checkpoint_id: id,
                task_id: task,
                idx,
                channel,
            };
            let typed = reseal(shared, row::typed(row, 6, 7)?, &place(source), &place(target))
                .map_err(|error| at_row(error, source, ns, id))?;
            let params: [Param<'_>; 9] = [
                (&target, Type::TEXT),
                (&ns, Type::TEXT),
                (&id, Type::TEXT),
                (&task, Type::TEXT),
                (&path, Type::TEXT),
                (&idx, Type::INT4),
                (&channel, Type::TEXT),
                (&&*typed.tag, Type::TEXT),
                (&Blob(&typed.data), Type::BYTEA),
            ];
            transaction.query(&shared.sql.replace_write, &params).await?;
            after = Some((ns.into(), id.into(), task.into(), idx));
        }
    }
}

async fn reseal_fields(
    shared: &Shared,
    transaction: &Transaction<'_>,
    source: &str,
    target: &str,
) -> Result<()> {
    let params: [Param<'_>; 2] = [(&source, Type::TEXT), (&BOUND_SUFFIX, Type::TEXT)];
    for row in &transaction.query(&shared.sql.select_bound_fields, &params).await? {
        let (ns, id): (&str, &str) = (column(row, 0)?, column(row, 1)?);
        let place =
            |thread_id| AssociatedData::Checkpoint { thread_id, checkpoint_ns: ns, checkpoint_id: id };
        let moved = document::sealed_fields(column::<Json<'_>>(row, 2)?.0)
            .and_then(|typed| reseal(shared, typed, &place(source), &place(target)))
            .map_err(|error| at_row(error, source, ns, id))?;
        let moved = document::sealed_fields_json(&moved);
        let params: [Param<'_>; 4] =
            [(&target, Type::TEXT), (&ns, Type::TEXT), (&id, Type::TEXT), (&Json(&moved), Type::JSONB)];
        transaction.query(&shared.sql.set_fields, &params).await?;
    }
    Ok(())
}

fn reseal(
    shared: &Shared,
    typed: TypedBytes,
    from: &AssociatedData<'_>,
    to: &AssociatedData<'_>,
) -> Result<TypedBytes> {
    let codec = shared.codec.strict();
    codec.seal(codec.open(typed, from)?, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_beyond_the_limit_is_refused() {
        assert!(check_size([1 << 29, (1 << 29) - (2 << 20)]).is_ok());
        for parts in [vec![1 << 30], vec![1 << 29, 1 << 29], vec![usize::MAX, usize::MAX]] {
            assert_eq!(check_size(parts).unwrap_err().kind(), checkpoint_core::ErrorKind::InvalidArgument);
        }
    }
}
