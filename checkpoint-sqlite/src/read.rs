//! The reads, as they run on a reader thread.

use std::collections::{BTreeMap, HashSet, VecDeque};

use checkpoint_core::cipher::ValueCodec;
use checkpoint_core::delta::{DeltaChannelHistory, HistoryWalk};
use checkpoint_core::{
    CheckpointConfig, CheckpointTuple, FilterSemantics, ListQuery, PendingWrite, Result, Str, ThreadInfo,
};
use rusqlite::Row;
use rusqlite::types::ToSql;

use crate::connection::{Config, Open};
use crate::error::{OrConvert, at_row};
use crate::row;
use crate::sql::{self, KeyPage};

/// How many keys the first page of a listing has, and how many the last ones have at most.
const KEYS: (usize, usize) = (64, 8192);

/// How many tuples the first chunk of a listing has, and how many the later ones have at most.
const CHUNK: (usize, usize) = (8, 128);

/// A chunk ends with the tuple that brings it to so many bytes.
const CHUNK_BYTES: usize = 4 << 20;

/// At most so many keys are looked at in one go where a filter lets few through.
const SCANNED: usize = 4096;

/// How many threads one page of `list_threads` has.
const THREADS: usize = 128;

/// Thread, namespace and id.
pub(crate) type Key = (Str, Str, Str);

fn parts((thread_id, checkpoint_ns, checkpoint_id): &Key) -> (&str, &str, &str) {
    (thread_id, checkpoint_ns, checkpoint_id)
}

/// Runs a query for at most one row and reads it.
pub(crate) fn query_one<T>(
    open: &Open,
    sql: &str,
    parameters: impl rusqlite::Params,
    read: impl FnOnce(&Row<'_>) -> Result<T>,
) -> Result<Option<T>> {
    let mut statement = open.connection.prepare_cached(sql).or_convert()?;
    let mut rows = statement.query(parameters).or_convert()?;
    rows.next().or_convert()?.map(read).transpose()
}

/// Runs a query and reads all of its rows.
pub(crate) fn query_all<T>(
    open: &Open,
    sql: &str,
    parameters: impl rusqlite::Params,
    mut read: impl FnMut(&Row<'_>) -> Result<Option<T>>,
) -> Result<Vec<T>> {
    let mut statement = open.connection.prepare_cached(sql).or_convert()?;
    let mut rows = statement.query(parameters).or_convert()?;
    let mut out = Vec::new();
    while let Some(row) = rows.next().or_convert()? {
        out.extend(read(row)?);
    }
    Ok(out)
}

pub(crate) fn get_tuple(
    config: &Config,
    open: &Open,
    thread_id: &Str,
    checkpoint_ns: &Str,
    checkpoint_id: Option<&Str>,
) -> Result<Option<CheckpointTuple>> {
    open.snapshot(|open| {
        tuple(config, open, thread_id, checkpoint_ns, checkpoint_id)
            .map(|tuple| tuple.map(|(tuple, _)| tuple))
    })
}

/// Reads a checkpoint with its writes, and about how many bytes they have. Call it inside of a snapshot.
fn tuple(
    config: &Config,
    open: &Open,
    thread_id: &Str,
    checkpoint_ns: &Str,
    checkpoint_id: Option<&Str>,
) -> Result<Option<(CheckpointTuple, usize)>> {
    let read = |row: &Row<'_>| {
        let id = row::text(row, 0)?;
        let decoded = || {
            let parent = row::optional_text(row, 1)?;
            let typed = row::typed(row, 2)?;
            let size = typed.data.len();
            let checkpoint = row::checkpoint(&config.codec, typed, (thread_id, checkpoint_ns, &id))?;
            Ok((parent, checkpoint, row::metadata(row, 4)?, size))
        };
        let (parent, checkpoint, metadata, size) =
            decoded().map_err(|error| at_row(error, thread_id, checkpoint_ns, &id))?;
        Ok((id, parent, checkpoint, metadata, size))
    };
    let found = match checkpoint_id {
        Some(id) => query_one(open, sql::SELECT_CHECKPOINT, (&**thread_id, &**checkpoint_ns, &**id), read),
        None => query_one(open, sql::SELECT_LATEST_CHECKPOINT, (&**thread_id, &**checkpoint_ns), read),
    };
    let Some((id, parent, checkpoint, metadata, size)) = found? else { return Ok(None) };
    let place = (&**thread_id, &**checkpoint_ns, &*id);
    let writes = pending_writes(&config.codec, open, place, |_| true)?;
    let stored = CheckpointConfig::new(thread_id.clone())
        .with_checkpoint_ns(checkpoint_ns.clone())
        .with_checkpoint_id(id.clone());
    let size = writes.iter().fold(size, |size, write| {
        size + match &write.value {
            checkpoint_core::ChannelValue::Str(text) => text.len(),
            value => value.as_blob().map_or(8, |blob| blob.data.len()),
        }
    });
    Ok(Some((CheckpointTuple::new(stored, checkpoint, metadata, parent, writes), size)))
}

/// Reads the writes on one checkpoint to the channels that are wanted, in their order.
fn pending_writes(
    codec: &ValueCodec,
    open: &Open,
    place: (&str, &str, &str),
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<PendingWrite>> {
    let read = |row: &Row<'_>| {
        if !wanted(&row::text(row, 3)?) {
            return Ok(None);
        }
        row::write(codec, row, place).map(Some)
    };
    let mut writes = query_all(open, sql::select_writes(open.has_task_path()?), place, read)
        .map_err(|error| at_row(error, place.0, place.1, place.2))?;
    writes.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
    Ok(writes)
}

/// How far a listing has come.
#[derive(Debug)]
pub(crate) struct Listing {
    query: ListQuery,
    /// How many tuples are still wanted.
    left: usize,
    keys: VecDeque<Key>,
    /// The last key that was fetched.
    cursor: Option<Key>,
    /// Whether all keys were fetched.
    exhausted: bool,
    page: usize,
    chunk: usize,
}

impl Listing {
    pub(crate) fn new(mut query: ListQuery) -> Self {
        query.checkpoint_id = query.checkpoint_id.filter(|id| !id.is_empty());
        let left = query.limit.unwrap_or(usize::MAX);
        Self {
            query,
            left,
            keys: VecDeque::new(),
            cursor: None,
            exhausted: false,
            page: KEYS.0,
            chunk: CHUNK.0,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left == 0 || (self.exhausted && self.keys.is_empty())
    }

    /// Reads the next chunk, all of it from one state of the file. It may be empty without the listing being over.
    pub(crate) fn next_chunk(&mut self, config: &Config, open: &Open) -> (Vec<CheckpointTuple>, Result<()>) {
        let mut tuples = Vec::new();
        let outcome = open.snapshot(|open| self.fill(config, open, &mut tuples));
        self.chunk = (self.chunk * 4).min(CHUNK.1);
        (tuples, outcome)
    }

    fn fill(&mut self, config: &Config, open: &Open, tuples: &mut Vec<CheckpointTuple>) -> Result<()> {
        let (mut bytes, mut scanned) = (0, 0);
        while tuples.len() < self.chunk && bytes < CHUNK_BYTES && scanned < SCANNED && !self.is_over() {
            let Some(key) = self.keys.pop_front() else {
                self.fetch_keys(open)?;
                continue;
            };
            scanned += 1;
            let (thread_id, checkpoint_ns, checkpoint_id) = &key;
            if !self.passes(open, &key)? {
                continue;
            }
            // What was deleted since its key was fetched is no longer part of the listing.
            if let Some((tuple, size)) = tuple(config, open, thread_id, checkpoint_ns, Some(checkpoint_id))? {
                tuples.push(tuple);
                bytes += size;
                self.left -= 1;
            }
        }
        Ok(())
    }

    fn passes(&self, open: &Open, key: &Key) -> Result<bool> {
        if self.query.filter.is_empty() {
            return Ok(true);
        }
        let matches =
            |row: &Row<'_>| Ok(self.query.filter.matches(&row::metadata(row, 0)?, FilterSemantics::Equality));
        let place = parts(key);
        let passes = query_one(open, sql::SELECT_METADATA, place, matches)
            .map_err(|error| at_row(error, place.0, place.1, place.2))?;
        Ok(passes.unwrap_or(false))
    }

    fn fetch_keys(&mut self, open: &Open) -> Result<()> {
        let query = &self.query;
        let text = sql::select_keys(KeyPage {
            thread_id: query.thread_id.is_some(),
            checkpoint_ns: query.checkpoint_ns.is_some(),
            checkpoint_id: query.checkpoint_id.is_some(),
            before: query.before.is_some(),
            after: self.cursor.is_some(),
        });
        // Without a filter no more keys are needed than tuples are wanted.
        let count = if query.filter.is_empty() { self.page.min(self.left) } else { self.page };
        let limit = i64::try_from(count).unwrap_or(i64::MAX);
        let one_namespace = query.thread_id.is_some() && query.checkpoint_ns.is_some();
        let mut parameters: Vec<(&str, &dyn ToSql)> = vec![(":count", &limit)];
        for (name, value) in [
            (":thread_id", &query.thread_id),
            (":checkpoint_ns", &query.checkpoint_ns),
            (":checkpoint_id", &query.checkpoint_id),
            (":before", &query.before),
        ] {
            if let Some(value) = value {
                parameters.push((name, value));
            }
        }
        if let Some((thread_id, checkpoint_ns, checkpoint_id)) = &self.cursor {
            parameters.push((":after_id", checkpoint_id));
            if !one_namespace {
                parameters.push((":after_thread", thread_id));
                parameters.push((":after_ns", checkpoint_ns));
            }
        }
        let keys = query_all(open, &text, &*parameters, |row| {
            Ok(Some((row::text(row, 0)?, row::text(row, 1)?, row::text(row, 2)?)))
        })?;
        self.exhausted = keys.len() < count;
        self.cursor = keys.last().cloned().or_else(|| self.cursor.take());
        self.keys.extend(keys);
        // Where the index does not give the order, each page costs a scan of it: few pages are better.
        self.page = (self.page * 8).min(KEYS.1);
        Ok(())
    }
}

/// Reads one page of threads.
pub(crate) fn list_threads(open: &Open, after: Option<&Str>, most: usize) -> Result<Vec<ThreadInfo>> {
    open.snapshot(|open| {
        let mut page = Vec::new();
        let mut after = after.cloned();
        while page.len() < most.min(THREADS) {
            let first = |row: &Row<'_>| row::text(row, 0);
            let found = match &after {
                None => query_one(open, sql::FIRST_THREAD, (), first),
                Some(after) => query_one(open, sql::NEXT_THREAD, [&**after], first),
            };
            let Some(thread_id) = found? else { break };
            let mut newest = Str::default();
            for checkpoint_ns in namespaces(open, &thread_id)? {
                let latest =
                    query_one(open, sql::LATEST_ID, (&*thread_id, &*checkpoint_ns), |row| row::text(row, 0))?;
                newest = newest.max(latest.unwrap_or_default());
            }
            page.push(ThreadInfo::new(thread_id.clone(), newest));
            after = Some(thread_id);
        }
        Ok(page)
    })
}

/// The namespaces of a thread in which there is a checkpoint.
pub(crate) fn namespaces(open: &Open, thread_id: &str) -> Result<Vec<Str>> {
    let first = |row: &Row<'_>| row::text(row, 0);
    let mut out = Vec::new();
    let mut found = query_one(open, sql::FIRST_NAMESPACE, [thread_id], first)?;
    while let Some(checkpoint_ns) = found {
        found = query_one(open, sql::NEXT_NAMESPACE, (thread_id, &*checkpoint_ns), first)?;
        out.push(checkpoint_ns);
    }
    Ok(out)
}

/// Walks from the target's parent to the root, by primary key, within one state of the file.
pub(crate) fn delta_history(
    config: &Config,
    open: &Open,
    target: &CheckpointConfig,
    channels: &[Str],
) -> Result<BTreeMap<Str, DeltaChannelHistory>> {
    let channels: Vec<&str> = channels.iter().map(|channel| &**channel).collect();
    let mut walk = HistoryWalk::new(&channels);
    if walk.open().is_empty() {
        return Ok(walk.finish());
    }
    let (thread_id, checkpoint_ns) = (&**target.thread_id(), &**target.checkpoint_ns());
    let codec = config.codec.strict();
    open.snapshot(|open| {
        let first = |row: &Row<'_>| row::optional_text(row, 0);
        let parent = match target.checkpoint_id() {
            Some(id) => query_one(open, sql::SELECT_PARENT, (thread_id, checkpoint_ns, &**id), first),
            None => query_one(open, sql::SELECT_LATEST_PARENT, (thread_id, checkpoint_ns), first),
        };
        let mut next = parent?.flatten().filter(|id| !id.is_empty());
        let mut seen = HashSet::new();
        while let Some(id) = next.take() {
            if walk.open().is_empty() || !seen.insert(id.clone()) {
                break;
            }
            let place = (thread_id, checkpoint_ns, &*id);
            let read = |row: &Row<'_>| {
                let read = || {
                    let parent = row::optional_text(row, 1)?;
                    let typed = row::open_checkpoint(&codec, row::typed(row, 2)?, place)?;
                    let values =
                        row::look(config, &typed, |reader, typed| reader.values(typed, walk.open()))?;
                    Ok((parent, values))
                };
                read().map_err(|error| at_row(error, thread_id, checkpoint_ns, &id))
            };
            let Some((parent, values)) = query_one(open, sql::SELECT_CHECKPOINT, place, read)? else { break };
            let wanted = walk.open().to_vec();
            let writes = pending_writes(&codec, open, place, |channel| wanted.contains(&channel))?;
            let mut values: BTreeMap<&str, _> = wanted.iter().copied().zip(values).collect();
            walk.visit(&writes, |channel| values.remove(channel).flatten());
            next = parent.filter(|id| !id.is_empty());
        }
        Ok(())
    })?;
    Ok(walk.finish())
}
