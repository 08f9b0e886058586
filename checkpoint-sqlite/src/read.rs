//! The reads. They run on reader threads.

use std::collections::{BTreeMap, VecDeque};

use checkpoint_core::backend::{CheckpointKey, ListConditions, Page, ValueCodec};
use checkpoint_core::delta::{DeltaChannelHistory, HistoryWalk};
use checkpoint_core::{
    ChannelValue, CheckpointConfig, CheckpointTuple, FilterSemantics, ListQuery, PendingWrite, Result, Str,
    ThreadInfo, ThreadQuery, ThreadState,
};
use rusqlite::Row;
use rusqlite::types::ToSql;

use crate::connection::{Config, Open};
use crate::error::OrConvert;
use crate::row::{self, CheckpointColumns, key_columns};
use crate::sql;

/// How many keys the first fetch of a listing has, and how many the later ones have at most.
const KEYS: (usize, usize) = (64, 8192);

/// How many tuples the first page of a listing has, and how many the later ones have at most.
const PAGE: (usize, usize) = (8, 128);

/// A page ends with the tuple that brings it to this many bytes.
const PAGE_BYTES: usize = 4 << 20;

/// At most this many keys are examined for one page, where a filter matches few.
const SCANNED: usize = 4096;

/// Thread, namespace and id.
type OwnedKey = (Str, Str, Str);

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

/// Runs a query and reads its rows until one is what is searched for.
pub(crate) fn find<T>(
    open: &Open,
    sql: &str,
    parameters: impl rusqlite::Params,
    mut read: impl FnMut(&Row<'_>) -> Result<Option<T>>,
) -> Result<Option<T>> {
    let mut statement = open.connection.prepare_cached(sql).or_convert()?;
    let mut rows = statement.query(parameters).or_convert()?;
    while let Some(row) = rows.next().or_convert()? {
        if let Some(found) = read(row)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Whether a query has a row.
pub(crate) fn exists(open: &Open, sql: &str, parameters: impl rusqlite::Params) -> Result<bool> {
    query_one(open, sql, parameters, |_| Ok(())).map(|row| row.is_some())
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
    target: &CheckpointConfig,
) -> Result<Option<CheckpointTuple>> {
    let (thread_id, checkpoint_ns) = (target.thread_id(), target.checkpoint_ns());
    let found =
        open.snapshot(|open| tuple(config, open, thread_id, checkpoint_ns, target.checkpoint_id()))?;
    Ok(found.map(|(tuple, _)| tuple))
}

/// Reads a checkpoint with its writes, and returns about how many bytes they have. Call it in a read transaction.
fn tuple(
    config: &Config,
    open: &Open,
    thread_id: &str,
    checkpoint_ns: &str,
    checkpoint_id: Option<&str>,
) -> Result<Option<(CheckpointTuple, usize)>> {
    let read = |row: &Row<'_>| {
        let id = row::text(row, CheckpointColumns::CHECKPOINT_ID)?;
        let key = CheckpointKey::new(thread_id, checkpoint_ns, &id);
        let decoded = || {
            let parent = row::optional_text(row, CheckpointColumns::PARENT_CHECKPOINT_ID)?;
            let typed = row::typed(row, CheckpointColumns::TYPE)?;
            let bytes = typed.data.len();
            let checkpoint = row::checkpoint(&config.codec, typed, key)?;
            Ok((parent, checkpoint, row::metadata(row, CheckpointColumns::METADATA)?, bytes))
        };
        let (parent, checkpoint, metadata, bytes) = decoded().map_err(key.context())?;
        Ok((id, parent, checkpoint, metadata, bytes))
    };
    let found = match checkpoint_id {
        Some(id) => query_one(open, sql::SELECT_CHECKPOINT, (thread_id, checkpoint_ns, id), read),
        None => query_one(open, sql::SELECT_LATEST_CHECKPOINT, (thread_id, checkpoint_ns), read),
    };
    let Some((id, parent, checkpoint, metadata, bytes)) = found? else { return Ok(None) };
    let key = CheckpointKey::new(thread_id, checkpoint_ns, &id);
    let writes = pending_writes(&config.codec, open, key, |_| true)?;
    let bytes = writes.iter().fold(bytes, |bytes, write| {
        bytes
            + match &write.value {
                ChannelValue::Str(text) => text.len(),
                value => value.as_blob().map_or(8, |blob| blob.data.len()),
            }
    });
    let stored = key.to_config();
    Ok(Some((CheckpointTuple::new(stored, checkpoint, metadata, parent, writes), bytes)))
}

/// Reads the writes on one checkpoint to the wanted channels, in their order.
fn pending_writes(
    codec: &ValueCodec,
    open: &Open,
    key: CheckpointKey<'_>,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Vec<PendingWrite>> {
    let read = |row: &Row<'_>| row::write(codec, row, key, &is_wanted);
    let mut writes = query_all(open, &sql::select_writes(open.has_task_path()?), key_columns(key), read)
        .map_err(key.context())?;
    writes.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
    Ok(writes)
}

/// The cursor of a listing.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) query: ListQuery,
    /// How many tuples are still wanted.
    left: usize,
    keys: VecDeque<OwnedKey>,
    /// The last key that was fetched.
    cursor: Option<OwnedKey>,
    /// Whether all keys were fetched.
    exhausted: bool,
    next_keys: usize,
    next_tuples: usize,
}

impl Listing {
    pub(crate) fn begin(mut query: ListQuery) -> Option<Self> {
        query.checkpoint_id = query.checkpoint_id.filter(|id| !id.is_empty());
        let left = query.limit.unwrap_or(usize::MAX);
        let listing = Self {
            query,
            left,
            keys: VecDeque::new(),
            cursor: None,
            exhausted: false,
            next_keys: KEYS.0,
            next_tuples: PAGE.0,
        };
        (left > 0).then_some(listing)
    }

    fn is_over(&self) -> bool {
        self.left == 0 || (self.exhausted && self.keys.is_empty())
    }

    /// Reads the next page, all of it from one state of the file. It may be empty without being the last.
    pub(crate) fn next_page(mut self, config: &Config, open: &Open) -> Result<Page<CheckpointTuple, Self>> {
        let mut tuples = Vec::new();
        match open.snapshot(|open| self.fill(config, open, &mut tuples)) {
            // The tuples before a damaged row come first; the next page begins with it and fails.
            Err(error) if tuples.is_empty() => return Err(error),
            _ => {}
        }
        self.next_tuples = (self.next_tuples * 4).min(PAGE.1);
        let next = if self.is_over() { None } else { Some(self) };
        Ok((tuples, next))
    }

    fn fill(&mut self, config: &Config, open: &Open, tuples: &mut Vec<CheckpointTuple>) -> Result<()> {
        let (mut bytes, mut scanned) = (0, 0);
        while tuples.len() < self.next_tuples && bytes < PAGE_BYTES && scanned < SCANNED && !self.is_over() {
            let Some((thread_id, checkpoint_ns, checkpoint_id)) = self.keys.front() else {
                self.fetch_keys(open)?;
                continue;
            };
            scanned += 1;
            let key = CheckpointKey::new(thread_id, checkpoint_ns, checkpoint_id);
            // A checkpoint that was deleted since its key was fetched is no longer part of the listing.
            let found = if self.passes(open, key)? {
                tuple(config, open, thread_id, checkpoint_ns, Some(checkpoint_id))?
            } else {
                None
            };
            if let Some((tuple, size)) = found {
                tuples.push(tuple);
                bytes += size;
                self.left -= 1;
            }
            self.keys.pop_front();
        }
        Ok(())
    }

    fn passes(&self, open: &Open, key: CheckpointKey<'_>) -> Result<bool> {
        if self.query.filter.is_empty() {
            return Ok(true);
        }
        let matches =
            |row: &Row<'_>| Ok(self.query.filter.matches(&row::metadata(row, 0)?, FilterSemantics::Equality));
        let passes =
            query_one(open, sql::SELECT_METADATA, key_columns(key), matches).map_err(key.context())?;
        Ok(passes.unwrap_or(false))
    }

    fn fetch_keys(&mut self, open: &Open) -> Result<()> {
        let query = &self.query;
        let conditions = ListConditions::new(query, self.cursor.is_some());
        // Without a filter no more keys are needed than tuples are wanted.
        let count = if query.filter.is_empty() { self.next_keys.min(self.left) } else { self.next_keys };
        let limit = i64::try_from(count).unwrap_or(i64::MAX);
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
            if !conditions.is_one_namespace() {
                parameters.push((":after_thread", thread_id));
                parameters.push((":after_ns", checkpoint_ns));
            }
        }
        let keys = query_all(open, &sql::select_keys(conditions), &*parameters, |row| {
            Ok(Some((row::text(row, 0)?, row::text(row, 1)?, row::text(row, 2)?)))
        })?;
        self.exhausted = keys.len() < count;
        self.cursor = keys.last().cloned().or_else(|| self.cursor.take());
        self.keys.extend(keys);
        // Where the index does not give the order, each fetch scans it: fewer fetches are better.
        self.next_keys = (self.next_keys * 8).min(KEYS.1);
        Ok(())
    }
}

/// Reads one page of threads, all of it from one state of the file.
pub(crate) fn list_threads(
    config: &Config,
    open: &Open,
    query: &ThreadQuery,
    after: Option<&Str>,
    count: usize,
) -> Result<Page<ThreadInfo, Str>> {
    let mut threads = Vec::new();
    let next = match open.snapshot(|open| next_threads(config, open, query, after, count, &mut threads)) {
        Ok(is_over) => threads.last().filter(|_| !is_over),
        // The threads before a damaged row come first; the next page begins with it and fails.
        Err(error) if threads.is_empty() => return Err(error),
        Err(_) => threads.last(),
    };
    let next = next.map(|last: &ThreadInfo| last.thread_id.clone());
    Ok((threads, next))
}

/// Reads threads until there are enough, and returns whether they were the last ones.
fn next_threads(
    config: &Config,
    open: &Open,
    query: &ThreadQuery,
    after: Option<&Str>,
    count: usize,
    threads: &mut Vec<ThreadInfo>,
) -> Result<bool> {
    let first = |row: &Row<'_>| row::text(row, 0);
    let prefix = query.prefix.as_deref().unwrap_or_default();
    let mut after = after.filter(|after| &***after >= prefix).cloned();
    let mut bytes = 0;
    while threads.len() < count && bytes < PAGE_BYTES {
        let found = match &after {
            None => query_one(open, sql::FIRST_THREAD, [prefix], first),
            Some(after) => query_one(open, sql::NEXT_THREAD, [&**after], first),
        };
        // Threads with the prefix are next to each other.
        let Some(thread_id) = found?.filter(|id| id.starts_with(prefix)) else { return Ok(true) };
        let (mut newest, mut newest_ns, mut has_root) = (Str::default(), Str::default(), false);
        for checkpoint_ns in namespaces(open, &thread_id)? {
            has_root |= checkpoint_ns.is_empty();
            let latest = query_one(open, sql::LATEST_ID, (&*thread_id, &*checkpoint_ns), first)?;
            if let Some(latest) = latest.filter(|latest| *latest >= newest) {
                (newest, newest_ns) = (latest, checkpoint_ns);
            }
        }
        let state = if query.needs_state() {
            let state_ns = if has_root { "" } else { &*newest_ns };
            tuple(config, open, &thread_id, state_ns, None)?
        } else {
            None
        };
        let state = state.map(|(tuple, size)| {
            bytes += size;
            ThreadState::of(&tuple)
        });
        threads.push(ThreadInfo::new(thread_id.clone(), newest).with_state(state));
        after = Some(thread_id);
    }
    Ok(false)
}

/// Reads one page of thread ids, also those of threads that have only writes.
pub(crate) fn list_thread_ids(open: &Open, after: Option<&Str>, count: usize) -> Result<Vec<Str>> {
    open.snapshot(|open| {
        let mut page: Vec<Str> = Vec::new();
        while page.len() < count {
            let first = |row: &Row<'_>| row::optional_text(row, 0);
            let found = match page.last().or(after) {
                None => query_one(open, sql::FIRST_THREAD_ID, (), first),
                Some(after) => query_one(open, sql::NEXT_THREAD_ID, [&**after], first),
            };
            let Some(thread_id) = found?.flatten() else { break };
            page.push(thread_id);
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

/// Walks from the parent of the target to the root, by primary key, within one state of the file.
pub(crate) fn delta_history(
    config: &Config,
    open: &Open,
    target: &CheckpointConfig,
    channels: &[Str],
) -> Result<BTreeMap<Str, DeltaChannelHistory>> {
    let channels: Vec<&str> = channels.iter().map(|channel| &**channel).collect();
    let mut walk = HistoryWalk::new(&channels);
    if walk.unseeded().is_empty() {
        return Ok(walk.finish());
    }
    let (thread_id, checkpoint_ns) = (target.thread_id(), target.checkpoint_ns());
    let codec = config.codec.requiring_decryption();
    open.snapshot(|open| {
        let first = |row: &Row<'_>| row::optional_text(row, 0);
        let parent = match target.checkpoint_id() {
            Some(id) => query_one(open, sql::SELECT_PARENT, (thread_id, checkpoint_ns, id), first),
            None => query_one(open, sql::SELECT_LATEST_PARENT, (thread_id, checkpoint_ns), first),
        };
        walk.go_to(parent?.flatten());
        while let Some(id) = walk.next().cloned() {
            let key = CheckpointKey::new(thread_id, checkpoint_ns, &id);
            let wanted = walk.unseeded();
            let read = |row: &Row<'_>| {
                let parent = row::optional_text(row, CheckpointColumns::PARENT_CHECKPOINT_ID)?;
                let typed = row::open_checkpoint(&codec, row, key)?;
                Ok((parent, row::look(config, &typed, |reader, typed| reader.values(typed, &wanted))?))
            };
            let found = query_one(open, sql::SELECT_CHECKPOINT, key_columns(key), read);
            let Some((parent, values)) = found.map_err(key.context())? else { break };
            let writes = pending_writes(&codec, open, key, |channel| wanted.contains(&channel))?;
            let mut values: BTreeMap<Str, _> = wanted.into_iter().map(Str::from).zip(values).collect();
            walk.visit(parent, &writes, |channel| values.remove(channel).flatten());
        }
        Ok(())
    })?;
    Ok(walk.finish())
}
