//! The reads: tuples, listings, histories, threads.

use std::collections::{BTreeMap, HashMap};

use checkpoint_core::backend::{
    AssociatedData, CheckpointKey, ListConditions, ListCursor, Page, ValueCodec, is_trigger,
};
use checkpoint_core::delta::{DeltaChannelHistory, HistoryWalk};
use checkpoint_core::{
    ChannelValue, Checkpoint, CheckpointConfig, CheckpointMetadata, CheckpointTuple, Error, Filter,
    ListQuery, PendingWrite, Result, Str, ThreadInfo, ThreadQuery, ThreadState, ThreadStatus, TypedBytes,
    version,
};
use common_postgres::tokio_postgres::Row;
use common_postgres::{Json, Param, column, params, text};

use crate::document::{self, check_key, check_text};
use crate::row;
use crate::shared::Shared;
use crate::sql::{self, column as at, kind, state as of};

/// How many tuples the first page of a listing has, and how many the later ones have at most.
const PAGE: (usize, usize) = (16, 128);

/// The target size of later pages.
const PAGE_BYTES: usize = 4 << 20;

/// A row of `checkpoints`, with its writes and sends as they are read.
struct Found {
    thread_id: Str,
    checkpoint_ns: Str,
    checkpoint_id: Str,
    parent_checkpoint_id: Option<Str>,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    writes: Vec<PendingWrite>,
    sends: Vec<Send>,
}

/// A send of an old checkpoint.
struct Send {
    task_path: Str,
    task_id: Str,
    idx: i32,
    value: TypedBytes,
}

impl Found {
    fn read(row: &Row, codec: &ValueCodec) -> Result<Self> {
        let thread_id = text(row, at::THREAD_ID)?;
        let checkpoint_ns = text(row, at::CHECKPOINT_NS)?;
        let checkpoint_id = text(row, at::CHECKPOINT_ID)?;
        let key = CheckpointKey::new(&thread_id, &checkpoint_ns, &checkpoint_id);
        let read = || {
            let parent_checkpoint_id = row::optional_text(row, at::PARENT_CHECKPOINT_ID)?;
            let document: Json<'_> = column(row, at::CHECKPOINT)?;
            let mut checkpoint = document::decode(document.0.as_bytes(), codec)?;
            document::open_fields(&mut checkpoint, key, codec)?;
            Ok((parent_checkpoint_id, checkpoint, row::metadata(row, at::METADATA)?))
        };
        let (parent_checkpoint_id, checkpoint, metadata) = read().map_err(key.context())?;
        let (writes, sends) = (Vec::new(), Vec::new());
        Ok(Self {
            thread_id,
            checkpoint_ns,
            checkpoint_id,
            parent_checkpoint_id,
            checkpoint,
            metadata,
            writes,
            sends,
        })
    }

    fn key(&self) -> CheckpointKey<'_> {
        CheckpointKey::new(&self.thread_id, &self.checkpoint_ns, &self.checkpoint_id)
    }

    fn add_write(&mut self, row: &Row, codec: &ValueCodec) -> Result<()> {
        let write = row::write(row, self.key(), codec).map_err(self.key().context())?;
        self.writes.push(write);
        Ok(())
    }

    fn add_send(&mut self, row: &Row, codec: &ValueCodec) -> Result<()> {
        let parent = self.parent_checkpoint_id.as_deref().unwrap_or_default();
        let key = CheckpointKey { checkpoint_id: parent, ..self.key() };
        let read = || {
            let (task_id, task_path) = (text(row, at::TASK_ID)?, text(row, at::TASK_PATH)?);
            let idx = column(row, at::IDX)?;
            let typed = row::typed(row, at::TYPE, at::DATA)?;
            let value = codec.open(typed, &key.write_data(&task_id, idx, sql::TASKS))?;
            Ok(Send { task_path, task_id, idx, value })
        };
        let send = read().map_err(self.key().context())?;
        self.sends.push(send);
        Ok(())
    }

    /// Converts the sends that old checkpoints have on their parent to a channel, as Python's saver does. Only the caller
    /// can make a list of opaque values.
    fn put_sends(&mut self, codec: &ValueCodec) -> Result<()> {
        if self.sends.is_empty() {
            return Ok(());
        }
        self.sends.sort_by(|a, b| (&a.task_path, &a.task_id, a.idx).cmp(&(&b.task_path, &b.task_id, b.idx)));
        let list = if codec.opaque_values {
            None
        } else {
            let mut list = array_header(self.sends.len());
            for send in &self.sends {
                list.extend_from_slice(&send.value.to_msgpack().map_err(self.key().context())?);
            }
            Some(list)
        };
        let versions = &mut self.checkpoint.channel_versions;
        let newest = version::ChannelVersion::newest(versions.values()).cloned();
        versions.insert(sql::TASKS.into(), newest.unwrap_or_else(|| version::next(None)));
        if let Some(list) = list {
            self.checkpoint.channel_values.insert(sql::TASKS.into(), TypedBytes::msgpack(list).into());
            self.sends.clear();
        }
        Ok(())
    }

    fn into_tuple(mut self) -> CheckpointTuple {
        self.writes.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
        let config = CheckpointConfig::new(self.thread_id)
            .with_checkpoint_ns(self.checkpoint_ns)
            .with_checkpoint_id(self.checkpoint_id);
        let parent = self.parent_checkpoint_id;
        let mut tuple = CheckpointTuple::new(config, self.checkpoint, self.metadata, parent, self.writes);
        tuple.pending_sends = self.sends.into_iter().map(|send| send.value).collect();
        tuple
    }
}

/// The header of a MessagePack array.
fn array_header(count: usize) -> Vec<u8> {
    let [a, b, c, d] = u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes();
    match count {
        0..=15 => vec![0x90 | d],
        16..=0xffff => vec![0xdc, c, d],
        _ => vec![0xdd, a, b, c, d],
    }
}

/// Thread, namespace, channel and version of a blob.
type BlobKey = (Str, Str, Str, String);

/// Assembles tuples from the rows of `sql::tuples`.
fn tuples(rows: &[Row], codec: &ValueCodec) -> Result<Vec<CheckpointTuple>> {
    let mut found: Vec<Found> = Vec::new();
    // Every checkpoint that names a blob shares its bytes.
    let mut blobs: HashMap<BlobKey, ChannelValue> = HashMap::new();
    for row in rows {
        match column::<i16>(row, at::KIND)? {
            kind::CHECKPOINT => found.push(Found::read(row, codec)?),
            kind::BLOB => {
                let typed = row::typed(row, at::TYPE, at::DATA)?;
                if typed.tag == "empty" {
                    continue;
                }
                let key: BlobKey = (
                    text(row, at::THREAD_ID)?,
                    text(row, at::CHECKPOINT_NS)?,
                    text(row, at::CHANNEL)?,
                    column(row, at::VERSION)?,
                );
                let (thread_id, checkpoint_ns, channel, version) = (&*key.0, &*key.1, &*key.2, &*key.3);
                let data = AssociatedData::Blob { thread_id, checkpoint_ns, channel, version };
                let value = codec.open_value(typed, &data).map_err(|error| {
                    error
                        .with("thread_id", thread_id)
                        .with("checkpoint_ns", checkpoint_ns)
                        .with("channel", channel)
                        .with("version", version)
                })?;
                blobs.insert(key, value);
            }
            kind => {
                let number = usize::try_from(column::<i32>(row, at::ROW)?).unwrap_or_default();
                let Some(found) = number.checked_sub(1).and_then(|at| found.get_mut(at)) else { continue };
                if kind == kind::WRITE {
                    found.add_write(row, codec)?;
                } else {
                    found.add_send(row, codec)?;
                }
            }
        }
    }
    for found in &mut found {
        let Checkpoint { channel_values, channel_versions, .. } = &mut found.checkpoint;
        if !blobs.is_empty() {
            for (channel, version) in channel_versions.iter() {
                let key = (
                    found.thread_id.clone(),
                    found.checkpoint_ns.clone(),
                    channel.clone(),
                    document::version_text(version)?,
                );
                if let Some(value) = blobs.get(&key) {
                    channel_values.insert(channel.clone(), value.clone());
                }
            }
        }
        found.put_sends(codec)?;
    }
    Ok(found.into_iter().map(Found::into_tuple).collect())
}

/// Reads one tuple: one statement.
pub(crate) async fn get_tuple(shared: &Shared, config: &CheckpointConfig) -> Result<Option<CheckpointTuple>> {
    check_key(config)?;
    let (thread_id, checkpoint_ns) = (config.thread_id(), config.checkpoint_ns());
    let checkpoint_id = config.checkpoint_id();
    let mut params: Vec<Param<'_>> = params![TEXT: thread_id, checkpoint_ns].to_vec();
    let sql = if checkpoint_id.is_some() { &shared.sql.get } else { &shared.sql.get_latest };
    params.extend(checkpoint_id.iter().flat_map(|id| params![TEXT: *id]));
    let rows = shared.database.query(sql, &params).await?;
    Ok(tuples(&rows, &shared.codec)?.pop())
}

/// Reads one page of threads that have the prefix, with their state if the query needs it: one statement.
pub(crate) async fn list_threads(
    shared: &Shared,
    query: &ThreadQuery,
    after: Option<&str>,
    count: usize,
) -> Result<Page<ThreadInfo, Str>> {
    let prefix = query.prefix.as_deref().unwrap_or_default();
    after.map_or(Ok(()), |after| check_text("after", after))?;
    check_text("prefix", prefix)?;
    let limit = i64::try_from(count).unwrap_or(i64::MAX);
    let needs_state = query.needs_state();
    let sql = if needs_state { &shared.sql.list_threads_with_state } else { &shared.sql.list_threads };
    let rows = shared.replica.query(sql, &params![TEXT: after; INT8: limit; TEXT: prefix]).await?;
    let thread = |row: &Row| {
        let thread = ThreadInfo::new(text(row, of::THREAD_ID)?, text(row, of::LATEST_ID)?);
        let state = if needs_state { Some(state(row)?) } else { None };
        Ok(thread.with_state(state))
    };
    let threads = rows.iter().map(thread).collect::<Result<Vec<_>>>()?;
    let last = threads.last().filter(|_| threads.len() == count).map(|last| last.thread_id.clone());
    Ok((threads, last))
}

/// Reads the state of a thread.
fn state(row: &Row) -> Result<ThreadState> {
    let checkpoint_id = text(row, of::CHECKPOINT_ID)?;
    let key =
        CheckpointKey::new(column(row, of::THREAD_ID)?, column(row, of::CHECKPOINT_NS)?, &checkpoint_id);
    let metadata = row::metadata(row, of::METADATA).map_err(key.context())?;
    let channels: Vec<&str> = column(row, of::CHANNELS)?;
    let tasks: Option<Vec<&str>> = column(row, of::TASKS)?;
    let written: Option<Vec<&str>> = column(row, of::WRITE_CHANNELS)?;
    let writes = tasks.unwrap_or_default().into_iter().zip(written.unwrap_or_default());
    let has_triggers = channels.iter().any(|channel| is_trigger(channel));
    let status = ThreadStatus::from_parts(metadata.source(), has_triggers, writes);
    Ok(ThreadState::new(checkpoint_id, metadata, status))
}

/// Reads one page of thread ids, also those of threads without checkpoints. Not on the replica, which may lack some.
pub(crate) async fn list_thread_ids(shared: &Shared, after: Option<&str>, count: usize) -> Result<Vec<Str>> {
    after.map_or(Ok(()), |after| check_text("after", after))?;
    let limit = i64::try_from(count).unwrap_or(i64::MAX);
    let rows = shared.database.query(&shared.sql.list_thread_ids, &params![TEXT: after; INT8: limit]).await?;
    rows.iter().map(|row| text(row, 0)).collect()
}

/// A listing that is read page by page.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) cursor: ListCursor,
    /// How many tuples the next page has at most.
    page: usize,
}

impl Listing {
    pub(crate) fn begin(query: ListQuery) -> Option<Self> {
        ListCursor::begin(query).map(|cursor| Self { cursor, page: PAGE.0 })
    }

    /// Reads the next page: one statement, so one state of the database.
    pub(crate) async fn next_page(self, shared: &Shared) -> Result<Page<CheckpointTuple, Self>> {
        let Self { cursor, page } = self;
        let count = page.min(cursor.left);
        let rows = read_page(shared, &cursor, count).await?;
        let bytes = rows.iter().map(Row::raw_size_bytes).sum::<usize>();
        let tuples = tuples(&rows, &shared.codec)?;
        let next = cursor.after(&tuples, count).map(|cursor| {
            let size = (bytes / tuples.len()).max(1);
            Self { cursor, page: (PAGE_BYTES / size).clamp(1, PAGE.1) }
        });
        Ok((tuples, next))
    }
}

async fn read_page(shared: &Shared, cursor: &ListCursor, count: usize) -> Result<Vec<Row>> {
    let ListCursor { query, last, .. } = cursor;
    let conditions = ListConditions::new(query, last.is_some());
    let mut texts: Vec<&str> = Vec::new();
    for (what, text) in [
        ("thread_id", &query.thread_id),
        ("checkpoint_ns", &query.checkpoint_ns),
        ("checkpoint_id", &query.checkpoint_id),
        ("before", &query.before),
    ] {
        text.as_ref().map_or(Ok(()), |text| check_text(what, text))?;
        texts.extend(text.as_deref());
    }
    let filter = self::conditions(&query.filter)?;
    let filter: Vec<Json<'_>> = filter.iter().map(|json| Json(json)).collect();
    let mut after: Vec<&str> = last.iter().filter_map(CheckpointConfig::checkpoint_id).collect();
    if let Some(last) = last.as_ref().filter(|_| !conditions.is_one_namespace()) {
        after.extend([last.thread_id(), last.checkpoint_ns()]);
    }
    let limit = i64::try_from(count).unwrap_or(i64::MAX);
    let mut params: Vec<Param<'_>> = texts.iter().flat_map(|text| params![TEXT: *text]).collect();
    if conditions.filter {
        params.extend(params![JSONB_ARRAY: filter]);
    }
    params.extend(after.iter().flat_map(|text| params![TEXT: *text]));
    params.extend(params![INT8: limit]);
    shared.replica.query(&shared.sql.list(conditions), &params).await
}

/// Walks from the parent of the target to the root: one statement per thousand ancestors.
pub(crate) async fn delta_history(
    shared: &Shared,
    config: &CheckpointConfig,
    channels: &[&str],
) -> Result<BTreeMap<Str, DeltaChannelHistory>> {
    check_key(config)?;
    channels.iter().try_for_each(|channel| check_text("channel", channel))?;
    let mut walk = HistoryWalk::new(channels);
    if walk.unseeded().is_empty() {
        return Ok(walk.finish());
    }
    let (thread_id, checkpoint_ns) = (config.thread_id(), config.checkpoint_ns());
    let mut sql = &shared.sql.history;
    let mut start = config.checkpoint_id().map(Str::from);
    loop {
        let (unseeded, from) = (walk.unseeded(), start.as_deref());
        let params =
            params![TEXT: thread_id, checkpoint_ns, from; TEXT_ARRAY: unseeded; INT8: sql::ANCESTORS];
        let rows = shared.database.query(sql, &params).await?;
        let page = ancestors(&rows, CheckpointKey::new(thread_id, checkpoint_ns, ""), &shared.codec)?;
        let Some(first) = page.first() else { break };
        if walk.next().is_none() {
            // The parent of the target, which only the server knew.
            walk.go_to(Some(first.checkpoint_id.clone()));
        }
        for mut ancestor in page {
            if walk.next() != Some(&ancestor.checkpoint_id) {
                break;
            }
            let values = &mut ancestor.values;
            walk.visit(ancestor.parent_checkpoint_id, &ancestor.writes, |channel| values.remove(channel));
        }
        let Some(next) = walk.next() else { break };
        (start, sql) = (Some(next.clone()), &shared.sql.history_from);
    }
    Ok(walk.finish())
}

/// One ancestor of `sql::history`.
#[derive(Default)]
struct Ancestor {
    checkpoint_id: Str,
    parent_checkpoint_id: Option<Str>,
    values: HashMap<Str, ChannelValue>,
    writes: Vec<PendingWrite>,
}

/// Reads the rows of ancestors in the namespace of a key, nearest first.
fn ancestors(rows: &[Row], namespace: CheckpointKey<'_>, codec: &ValueCodec) -> Result<Vec<Ancestor>> {
    let mut found: BTreeMap<i32, Ancestor> = BTreeMap::new();
    for row in rows {
        let ancestor = found.entry(column(row, at::ROW)?).or_default();
        if column::<i16>(row, at::KIND)? == kind::CHECKPOINT {
            ancestor.checkpoint_id = text(row, at::CHECKPOINT_ID)?;
            ancestor.parent_checkpoint_id = row::optional_text(row, at::PARENT_CHECKPOINT_ID)?;
            continue;
        }
        let checkpoint_id = ancestor.checkpoint_id.clone();
        let key = CheckpointKey { checkpoint_id: &checkpoint_id, ..namespace };
        let mut read = || {
            if column::<i16>(row, at::KIND)? == kind::WRITE {
                ancestor.writes.push(row::write(row, key, codec)?);
                return Ok(());
            }
            let channel = text(row, at::CHANNEL)?;
            let value = if column::<Option<&str>>(row, at::TYPE)?.is_some() {
                let CheckpointKey { thread_id, checkpoint_ns, .. } = key;
                let version = column(row, at::VERSION)?;
                let data = AssociatedData::Blob { thread_id, checkpoint_ns, channel: &channel, version };
                codec.open_value(row::typed(row, at::TYPE, at::DATA)?, &data)?
            } else {
                document::scalar(column::<Json<'_>>(row, at::INLINE)?.0, codec)?
            };
            ancestor.values.insert(channel, value);
            Ok::<(), Error>(())
        };
        read().map_err(key.context())?;
    }
    let mut found: Vec<_> = found.into_values().collect();
    for ancestor in &mut found {
        ancestor.writes.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
    }
    Ok(found)
}

/// The JSON of each condition of a filter, an object of one entry.
pub(crate) fn conditions(filter: &Filter) -> Result<Vec<String>> {
    let condition = |(key, value): (&Str, &checkpoint_core::Value)| {
        let object = checkpoint_core::Value::Map(vec![((**key).into(), value.clone())]);
        document::to_json(&object).map_err(|error| error.with("filter", key))
    };
    filter.iter().map(condition).collect()
}
