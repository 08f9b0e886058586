//! From rows to tuples, histories and threads.

use std::collections::{BTreeMap, HashMap, HashSet};

use checkpoint_core::cipher::{AssociatedData, ValueCodec};
use checkpoint_core::delta::{DeltaChannelHistory, HistoryWalk};
use checkpoint_core::{
    ChannelValue, Checkpoint, CheckpointConfig, CheckpointMetadata, CheckpointTuple, ListQuery, PendingWrite,
    Result, Str, TypedBytes, version,
};
use common_postgres::tokio_postgres::Row;
use common_postgres::tokio_postgres::types::{ToSql, Type};
use common_postgres::{Connection, Json, Param, column, text};

use crate::document;
use crate::row::{self, WriteColumns, at_row};
use crate::saver::Shared;
use crate::sql::{self, Page, column, kind};

/// How many tuples the first page of a listing has, and how many the later ones have at most.
const PAGE: (usize, usize) = (16, 128);

/// A later page shall have about so many bytes.
const PAGE_BYTES: usize = 4 << 20;

/// Where a write stands in rows of `Statements::tuples`.
const WRITE: WriteColumns = WriteColumns {
    task_id: column::A,
    task_path: column::B,
    channel: column::C,
    idx: column::IDX,
    tag: column::TYPE,
    data: column::BLOB,
};

/// A row of `checkpoints`, and what belongs to it as it comes in.
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

/// A send of an old checkpoint: path, task, index, value.
type Send = (Str, Str, i32, TypedBytes);

impl Found {
    fn read(row: &Row, codec: &ValueCodec) -> Result<Self> {
        let thread_id = text(row, column::THREAD_ID)?;
        let checkpoint_ns = text(row, column::CHECKPOINT_NS)?;
        let checkpoint_id = text(row, column::A)?;
        let read = || {
            let parent_checkpoint_id = row::optional_text(row, column::B)?;
            let document: Json<'_> = column(row, column::CHECKPOINT)?;
            let mut checkpoint = document::decode(document.0.as_bytes(), codec)?;
            document::open_fields(&mut checkpoint, (&thread_id, &checkpoint_ns, &checkpoint_id), codec)?;
            Ok((parent_checkpoint_id, checkpoint, row::metadata(row, column::METADATA)?))
        };
        let (parent_checkpoint_id, checkpoint, metadata) =
            read().map_err(|error| at_row(error, &thread_id, &checkpoint_ns, &checkpoint_id))?;
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

    fn key(&self) -> (&str, &str, &str) {
        (&self.thread_id, &self.checkpoint_ns, &self.checkpoint_id)
    }

    fn add_write(&mut self, row: &Row, codec: &ValueCodec) -> Result<()> {
        let write = row::write(row, WRITE, self.key(), codec).map_err(|error| self.at(error))?;
        self.writes.push(write);
        Ok(())
    }

    fn add_send(&mut self, row: &Row, codec: &ValueCodec) -> Result<()> {
        let read = || {
            let (task_id, task_path) = (text(row, column::A)?, text(row, column::B)?);
            let idx = column(row, column::IDX)?;
            let typed = row::typed(row, column::TYPE, column::BLOB)?;
            let place = AssociatedData::Write {
                thread_id: &self.thread_id,
                checkpoint_ns: &self.checkpoint_ns,
                checkpoint_id: self.parent_checkpoint_id.as_deref().unwrap_or_default(),
                task_id: &task_id,
                idx,
                channel: sql::TASKS,
            };
            let typed = codec.open(typed, &place)?;
            Ok((task_path, task_id, idx, typed))
        };
        let send = read().map_err(|error| self.at(error))?;
        self.sends.push(send);
        Ok(())
    }

    fn at(&self, error: checkpoint_core::Error) -> checkpoint_core::Error {
        at_row(error, &self.thread_id, &self.checkpoint_ns, &self.checkpoint_id)
    }

    /// Makes a channel of the sends that old checkpoints have on their parent, as Python's saver does. A list of opaque
    /// values only the caller can make.
    fn put_sends(&mut self, codec: &ValueCodec) -> Result<()> {
        if self.sends.is_empty() {
            return Ok(());
        }
        self.sends.sort_by(|a, b| (&a.0, &a.1, a.2).cmp(&(&b.0, &b.1, b.2)));
        let list = if codec.opaque_values {
            None
        } else {
            let mut list = array_header(self.sends.len());
            for (.., typed) in &self.sends {
                list.extend_from_slice(&typed.to_msgpack().map_err(|error| self.at(error))?);
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
        let mut tuple = CheckpointTuple::new(
            config,
            self.checkpoint,
            self.metadata,
            self.parent_checkpoint_id,
            self.writes,
        );
        tuple.pending_sends = self.sends.into_iter().map(|(.., typed)| typed).collect();
        tuple
    }
}

/// What stands before the items of a MessagePack array.
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

/// Tuples, and how many bytes their rows had.
pub(crate) type ReadPage = (Vec<CheckpointTuple>, usize);

/// Puts tuples together from the rows of `Statements::tuples`.
fn tuples(rows: &[Row], codec: &ValueCodec) -> Result<ReadPage> {
    let mut found: Vec<Found> = Vec::new();
    // Every checkpoint that names a blob shares its bytes.
    let mut blobs: HashMap<BlobKey, ChannelValue> = HashMap::new();
    let mut bytes = 0;
    for row in rows {
        bytes += row.raw_size_bytes();
        match column::<i16>(row, column::KIND)? {
            kind::CHECKPOINT => found.push(Found::read(row, codec)?),
            kind::BLOB => {
                let typed = row::typed(row, column::TYPE, column::BLOB)?;
                if typed.tag == "empty" {
                    continue;
                }
                let key: BlobKey = (
                    text(row, column::THREAD_ID)?,
                    text(row, column::CHECKPOINT_NS)?,
                    text(row, column::A)?,
                    column(row, column::B)?,
                );
                let (thread_id, checkpoint_ns, channel, version) = (&*key.0, &*key.1, &*key.2, &*key.3);
                let place = AssociatedData::Blob { thread_id, checkpoint_ns, channel, version };
                let value = codec.open_value(typed, &place).map_err(|error| {
                    error
                        .with("thread_id", thread_id)
                        .with("checkpoint_ns", checkpoint_ns)
                        .with("channel", channel)
                        .with("version", version)
                })?;
                blobs.insert(key, value);
            }
            what => {
                let at = usize::try_from(column::<i32>(row, column::ROW)?).unwrap_or_default();
                let Some(found) = at.checked_sub(1).and_then(|at| found.get_mut(at)) else { continue };
                if what == kind::WRITE {
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
                    let value = document::marked(codec, value.clone(), || {
                        channel_values.get(channel) == Some(&ChannelValue::Bool(true))
                    });
                    channel_values.insert(channel.clone(), value);
                }
            }
        }
        found.put_sends(codec)?;
    }
    Ok((found.into_iter().map(Found::into_tuple).collect(), bytes))
}

/// Reads one tuple: one statement.
pub(crate) async fn get_tuple(
    shared: &Shared,
    connection: &Connection,
    config: &CheckpointConfig,
) -> Result<Option<CheckpointTuple>> {
    let (thread_id, checkpoint_ns) = (&**config.thread_id(), &**config.checkpoint_ns());
    let key: [Param<'_>; 2] = [(&thread_id, Type::TEXT), (&checkpoint_ns, Type::TEXT)];
    let rows = match config.checkpoint_id() {
        Some(id) => {
            let [thread_id, checkpoint_ns] = key;
            connection.query(&shared.sql.get, &[thread_id, checkpoint_ns, (&&**id, Type::TEXT)]).await?
        }
        None => connection.query(&shared.sql.get_latest, &key).await?,
    };
    let (mut tuples, _) = tuples(&rows, &shared.codec)?;
    Ok(tuples.pop())
}

/// Thread, namespace and id.
type Key = (Str, Str, Str);

/// How far a listing has come.
#[derive(Debug)]
pub(crate) struct Listing {
    query: ListQuery,
    /// The filter's conditions as JSON.
    filter: Vec<String>,
    /// How many tuples are still wanted.
    left: usize,
    /// The last tuple that was read.
    cursor: Option<Key>,
    exhausted: bool,
    page: usize,
}

impl Listing {
    pub(crate) fn new(query: ListQuery) -> Result<Self> {
        for (what, text) in [
            ("thread_id", &query.thread_id),
            ("checkpoint_ns", &query.checkpoint_ns),
            ("checkpoint_id", &query.checkpoint_id),
            ("before", &query.before),
        ] {
            text.as_ref().map_or(Ok(()), |text| document::check_text(what, text))?;
        }
        let condition = |(key, value): (&Str, &checkpoint_core::Value)| {
            let object = checkpoint_core::Value::Map(vec![((**key).into(), value.clone())]);
            document::to_json(&object).map_err(|error| error.with("filter", key))
        };
        let filter = query.filter.iter().map(condition).collect::<Result<_>>()?;
        let left = query.limit.unwrap_or(usize::MAX);
        Ok(Self { query, filter, left, cursor: None, exhausted: false, page: PAGE.0 })
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left == 0 || self.exhausted
    }

    /// How many tuples the next page has at most.
    fn count(&self) -> usize {
        self.page.min(self.left)
    }

    /// Reads the next page: one statement, so one state of the database.
    pub(crate) async fn read_page(&self, shared: &Shared, connection: &Connection) -> Result<ReadPage> {
        let count = self.count();
        let limit = i64::try_from(count).unwrap_or(i64::MAX);
        let query = &self.query;
        let checkpoint_id = query.checkpoint_id.as_deref().filter(|id| !id.is_empty());
        let page = Page {
            thread_id: query.thread_id.is_some(),
            checkpoint_ns: query.checkpoint_ns.is_some(),
            checkpoint_id: checkpoint_id.is_some(),
            before: query.before.is_some(),
            filter: !self.filter.is_empty(),
            after: self.cursor.is_some(),
        };
        let filter: Vec<Json<'_>> = self.filter.iter().map(|json| Json(json)).collect();
        let texts = [
            query.thread_id.as_deref(),
            query.checkpoint_ns.as_deref(),
            checkpoint_id,
            query.before.as_deref(),
        ];
        let texts: Vec<&str> = texts.into_iter().flatten().collect();
        let cursor: Vec<&str> = match &self.cursor {
            Some((_, _, id)) if page.thread_id && page.checkpoint_ns => vec![id],
            Some((thread_id, checkpoint_ns, id)) => vec![id, thread_id, checkpoint_ns],
            None => Vec::new(),
        };
        let text = |text| (text as &(dyn ToSql + Sync), Type::TEXT);
        let mut params: Vec<Param<'_>> = texts.iter().map(&text).collect();
        if page.filter {
            params.push((&filter, Type::JSONB_ARRAY));
        }
        params.extend(cursor.iter().map(text));
        params.push((&limit, Type::INT8));
        let rows = connection.query(&shared.sql.list(page), &params).await?;
        tuples(&rows, &shared.codec)
    }

    /// Moves behind a page and returns its tuples.
    pub(crate) fn turn(&mut self, (tuples, bytes): ReadPage) -> Vec<CheckpointTuple> {
        self.exhausted = tuples.len() < self.count();
        self.left = self.left.saturating_sub(tuples.len());
        if let Some(last) = tuples.last() {
            let config = &last.config;
            let id = config.checkpoint_id().cloned().unwrap_or_default();
            self.cursor = Some((config.thread_id().clone(), config.checkpoint_ns().clone(), id));
            let size = (bytes / tuples.len()).max(1);
            self.page = (PAGE_BYTES / size).clamp(1, PAGE.1);
        }
        tuples
    }
}

/// What `Statements::history` returns for one ancestor.
#[derive(Default)]
struct Ancestor {
    checkpoint_id: Str,
    parent_checkpoint_id: Option<Str>,
    values: HashMap<Str, ChannelValue>,
    writes: Vec<PendingWrite>,
}

/// Where a write stands in rows of `Statements::history`.
const HISTORY_WRITE: WriteColumns =
    WriteColumns { task_id: 2, task_path: 3, channel: 4, idx: 5, tag: 6, data: 7 };

/// Walks from the target's parent to the root: one statement per thousand ancestors.
pub(crate) async fn delta_history(
    shared: &Shared,
    connection: &Connection,
    config: &CheckpointConfig,
    channels: &[Str],
) -> Result<BTreeMap<Str, DeltaChannelHistory>> {
    let channels: Vec<&str> = channels.iter().map(|channel| &**channel).collect();
    let mut walk = HistoryWalk::new(&channels);
    if walk.open().is_empty() {
        return Ok(walk.finish());
    }
    let (thread_id, checkpoint_ns) = (&**config.thread_id(), &**config.checkpoint_ns());
    let mut sql = &shared.sql.history;
    let mut next = Some(config.checkpoint_id().cloned());
    let mut seen = HashSet::new();
    'pages: while let Some(from) = next.take().filter(|_| !walk.open().is_empty()) {
        let open: Vec<&str> = walk.open().to_vec();
        let params: [Param<'_>; 5] = [
            (&thread_id, Type::TEXT),
            (&checkpoint_ns, Type::TEXT),
            (&from.as_deref(), Type::TEXT),
            (&open, Type::TEXT_ARRAY),
            (&sql::ANCESTORS, Type::INT8),
        ];
        let rows = connection.query(sql, &params).await?;
        sql = &shared.sql.history_from;
        for ancestor in ancestors(&rows, (thread_id, checkpoint_ns), &shared.codec)? {
            if !seen.insert(ancestor.checkpoint_id.clone()) {
                break 'pages;
            }
            let mut values = ancestor.values;
            walk.visit(&ancestor.writes, |channel| values.remove(channel));
            next = ancestor.parent_checkpoint_id.filter(|id| !id.is_empty()).map(Some);
        }
    }
    Ok(walk.finish())
}

fn ancestors(
    rows: &[Row],
    (thread_id, checkpoint_ns): (&str, &str),
    codec: &ValueCodec,
) -> Result<Vec<Ancestor>> {
    let mut found: BTreeMap<i32, Ancestor> = BTreeMap::new();
    for row in rows {
        let ancestor = found.entry(column(row, 1)?).or_default();
        match column::<i16>(row, 0)? {
            0 => {
                ancestor.checkpoint_id = text(row, 2)?;
                ancestor.parent_checkpoint_id = row::optional_text(row, 3)?;
            }
            1 => {
                let channel = text(row, 2)?;
                let value = match column::<Option<&str>>(row, 6)? {
                    Some(_) => {
                        let version: &str = column(row, 3)?;
                        let place =
                            AssociatedData::Blob { thread_id, checkpoint_ns, channel: &channel, version };
                        let value = codec.open_value(row::typed(row, 6, 7)?, &place);
                        let inline = column::<Option<Json<'_>>>(row, 8)?;
                        value.map(|value| {
                            document::marked(codec, value, || inline.is_some_and(|json| json.0 == "true"))
                        })
                    }
                    None => document::scalar(column::<Json<'_>>(row, 8)?.0, codec),
                };
                let value = value
                    .map_err(|error| at_row(error, thread_id, checkpoint_ns, &ancestor.checkpoint_id))?;
                ancestor.values.insert(channel, value);
            }
            _ => {
                let key = (thread_id, checkpoint_ns, &*ancestor.checkpoint_id);
                let write = row::write(row, HISTORY_WRITE, key, codec)
                    .map_err(|error| at_row(error, thread_id, checkpoint_ns, &ancestor.checkpoint_id))?;
                ancestor.writes.push(write);
            }
        }
    }
    let mut found: Vec<_> = found.into_values().collect();
    for ancestor in &mut found {
        ancestor.writes.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
    }
    Ok(found)
}
