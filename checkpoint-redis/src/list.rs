//! `list`.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use bytes::Bytes;
use checkpoint_core::backend::{ListCursor, Page as Pages};
use checkpoint_core::{
    CheckpointConfig, CheckpointTuple, ErrorKind, FilterSemantics, ListQuery, Result, Str,
};
use redis::{Cmd, Pipeline};

use crate::connection::Access;
use crate::keys::{self, kind};
use crate::load::{self, Assembler, Row, Segments};
use crate::reply::{self, Items};
use crate::row::Head;
use crate::shared::{Shared, text};
use crate::threads::{Directory, PAGE as DIRECTORY_PAGE};
use crate::{read, repair, script};

/// How many tuples the first page of a listing has, and how many the later ones have at most.
const PAGE: (usize, usize) = (16, 64);

/// How often a page is read again of which a part was just deleted.
const ATTEMPTS: usize = 4;

/// How many checkpoints a page looks at if there is a filter.
const FILTERED_PAGE: usize = 256;

/// How many members of a thread are read at a time in a listing of all threads.
const MEMBERS: usize = 16;

/// The bounds of a range that is read backwards: all names with this beginning.
pub(crate) fn bounds(beginning: &[u8]) -> (Vec<u8>, Vec<u8>) {
    ([b"(", beginning, b"\xff"].concat(), [b"[", beginning].concat())
}

/// The names of a listing in the index of one thread.
#[derive(Debug, Clone)]
pub(crate) struct Range {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Range {
    /// The range of a query, below a member that was read last.
    pub(crate) fn new(query: &ListQuery, last: Option<&CheckpointConfig>) -> Self {
        let mut beginning = match &query.checkpoint_ns {
            Some(ns) => keys::name(kind::CHECKPOINT, &[&keys::namespace(ns)]),
            None => vec![kind::ALL],
        };
        let stem = beginning.clone();
        if let Some(id) = &query.checkpoint_id {
            beginning.extend_from_slice(id.as_bytes());
            beginning.push(0);
        }
        // A member continues with 00 behind its id: it is above the id itself.
        let before = query.before.as_ref().map(|id| [&stem, id.as_bytes()].concat());
        let last = last.map(|last| {
            let (ns, id) = (last.checkpoint_ns(), last.checkpoint_id().unwrap_or_default());
            match &query.checkpoint_ns {
                Some(_) => keys::name(kind::CHECKPOINT, &[&keys::checkpoint(ns, id)]),
                None => keys::all(ns, id),
            }
        });
        let (mut from, to) = bounds(&beginning);
        if query.checkpoint_id.is_some() && query.checkpoint_ns.is_none() {
            // The namespace may begin with FF.
            from = [b"(", &*beginning].concat();
            if let Some(end) = from.last_mut() {
                *end = 1;
            }
        }
        // Both bounds apply: the lower one.
        for before in [before, last].into_iter().flatten() {
            let bound = [b"(", &*before].concat();
            if bound < from {
                from = bound;
            }
        }
        Self { from, to }
    }

    /// The command for the next members.
    pub(crate) fn members(&self, index: &[u8], count: usize) -> Cmd {
        let mut command = redis::cmd("ZREVRANGEBYLEX");
        command.arg(index).arg(&self.from).arg(&self.to).arg("LIMIT").arg(0).arg(count);
        command
    }
}

/// A listing that is read page by page.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) cursor: ListCursor,
    /// How many tuples the next page has at most.
    page: usize,
    /// Of a listing of all threads.
    threads: Option<Threads>,
}

impl Listing {
    pub(crate) fn begin(query: ListQuery) -> Option<Self> {
        ListCursor::begin(query).map(|cursor| Self { cursor, page: PAGE.0, threads: None })
    }

    /// Reads the next page.
    pub(crate) async fn next_page(mut self, shared: &Shared) -> Result<Pages<CheckpointTuple, Self>> {
        shared.ready().await?;
        let count = self.page.min(self.cursor.left);
        let (tuples, is_last) = if let Some(thread_id) = self.cursor.query.thread_id.clone() {
            self.tuples_of(shared, &thread_id, count).await?
        } else {
            let (rows, is_last) = self.rows_of_all(shared, count).await?;
            (those_left(shared, rows).await?, is_last)
        };
        self.page = (self.page * 2).min(PAGE.1);
        self.cursor.left = self.cursor.left.saturating_sub(tuples.len());
        let has_more = !is_last && self.cursor.left > 0;
        Ok((tuples, has_more.then_some(self)))
    }

    /// The tuples of the next page of one thread, and whether it is the last one. It is read again if checkpoints on it
    /// are deleted meanwhile.
    async fn tuples_of(
        &mut self,
        shared: &Shared,
        thread_id: &Str,
        count: usize,
    ) -> Result<(Vec<CheckpointTuple>, bool)> {
        let last = self.cursor.last.clone();
        for _ in 0..ATTEMPTS {
            let (mut rows, is_last) = self.rows_of(shared, thread_id, count).await?;
            if let Some(tuples) = tuples(shared, &mut rows).await?.into_iter().collect() {
                return Ok((tuples, is_last));
            }
            self.cursor.last.clone_from(&last);
        }
        let (rows, is_last) = self.rows_of(shared, thread_id, count).await?;
        Ok((those_left(shared, rows).await?, is_last))
    }

    /// The rows of the next page of one thread, and whether it is the last one.
    async fn rows_of(&mut self, shared: &Shared, thread_id: &Str, count: usize) -> Result<(Vec<Row>, bool)> {
        let ListCursor { query, last, .. } = &self.cursor;
        let range = Range::new(query, last.as_ref());
        let most = if query.filter.is_empty() { count } else { FILTERED_PAGE };
        let mut page = Page::read(shared, thread_id, &range, most).await?;
        if page.has_data && !page.has_index {
            repair::repair(shared, thread_id).await?;
            page = Page::read(shared, thread_id, &range, most).await?;
        }
        if page.has_index && !page.has_data {
            return Err(read::data_lost(thread_id));
        }
        let mut is_last = page.members.len() < most;
        let mut rows = Vec::new();
        for ((ns, id), head) in page.members.into_iter().zip(page.heads) {
            if rows.len() == count {
                is_last = false;
                break;
            }
            self.cursor.last = Some(
                CheckpointConfig::new(thread_id.clone())
                    .with_checkpoint_ns(ns.clone())
                    .with_checkpoint_id(id.clone()),
            );
            rows.extend(matching(shared, &self.cursor.query, thread_id, (ns, id), head)?);
        }
        Ok((rows, is_last))
    }

    /// The same of all threads.
    async fn rows_of_all(&mut self, shared: &Shared, count: usize) -> Result<(Vec<Row>, bool)> {
        let ListCursor { query, left, .. } = &self.cursor;
        let mut threads = match self.threads.take() {
            Some(threads) => threads,
            None => Threads::find(shared, query, *left).await?,
        };
        let most = if query.filter.is_empty() { count } else { FILTERED_PAGE };
        let found = threads.next_members(shared, query, most).await?;
        let heads = load::heads(shared, &found).await?;
        let mut rows = Vec::new();
        for (at, ((thread_id, member), head)) in found.iter().zip(heads).enumerate() {
            if rows.len() == count {
                threads.put_back(found.iter().skip(at).cloned());
                break;
            }
            if head.is_none() {
                // Just deleted, unless the thread has lost its data.
                let (ns, id) = member.clone();
                let config = CheckpointConfig::new(thread_id.clone()).with_checkpoint_ns(ns);
                read::get_tuple(shared, &config.with_checkpoint_id(id)).await?;
                continue;
            }
            rows.extend(matching(shared, query, thread_id, member.clone(), head)?);
        }
        let is_last = threads.is_empty();
        self.threads = Some(threads);
        Ok((rows, is_last))
    }
}

/// A page of the index of one thread.
struct Page {
    members: Vec<(Str, Str)>,
    /// Their metadata; nothing for those that were just deleted.
    heads: Vec<Option<Bytes>>,
    has_data: bool,
    has_index: bool,
}

impl Page {
    async fn read(shared: &Shared, thread_id: &str, range: &Range, count: usize) -> Result<Self> {
        let keys = shared.keys.thread(thread_id);
        if shared.scripts {
            let count = text(count);
            let args: [&[u8]; 3] = [&range.from, &range.to, &count];
            let reply = shared.connections.script(Access::Read, &script::PAGE, &keys.both(), &args).await?;
            let mut reply = Items::new(reply)?;
            let members = load::members(reply.next())?;
            let heads = reply::list(reply.next())?.into_iter();
            let heads = heads.map(|head| Some(head).filter(|head| !head.is_empty())).collect();
            let has_data = reply::integer(&reply.next())? == 1;
            return Ok(Self { members, heads, has_data, has_index: reply::integer(&reply.next())? == 1 });
        }
        let mut commands = Pipeline::new();
        commands.add_command(range.members(&keys.index, count));
        commands.cmd("HEXISTS").arg(&keys.hash).arg(kind::GENERATION);
        commands.cmd("EXISTS").arg(&keys.index);
        let replies = shared.connections.pipeline(Access::Read, &keys.hash, &commands).await?;
        let mut replies = Items::of(replies);
        let members = load::members(replies.next())?;
        let has_data = reply::integer(&replies.next())? == 1;
        let has_index = reply::integer(&replies.next())? == 1;
        let mut heads = Vec::new();
        if !members.is_empty() {
            let mut read = redis::cmd("HMGET");
            read.arg(&keys.hash).arg(load::metadata_fields(&members));
            heads = reply::optionals(shared.read(&read).await?)?;
        }
        Ok(Self { members, heads, has_data, has_index })
    }
}

/// The row of a member, if it matches the filter and was not deleted at this moment.
pub(crate) fn matching(
    shared: &Shared,
    query: &ListQuery,
    thread_id: &Str,
    (ns, id): (Str, Str),
    head: Option<Bytes>,
) -> Result<Option<Row>> {
    let Some(head) = head else { return Ok(None) };
    let row = Row::new(thread_id, ns, id, Head::read(&head)?);
    if !query.filter.is_empty() {
        let metadata = match row.head.open_metadata(shared.values(), row.key()) {
            // Threads of others, in a listing of all.
            Err(error) if error.kind() == ErrorKind::Crypto && query.thread_id.is_none() => return Ok(None),
            opened => opened.map_err(row.key().context())?,
        };
        if !query.filter.matches(&metadata, FilterSemantics::Equality) {
            return Ok(None);
        }
    }
    Ok(Some(row))
}

/// Reads the tuples of rows: `None` for those of which something is not there any more.
async fn tuples(shared: &Shared, rows: &mut [Row]) -> Result<Vec<Option<CheckpointTuple>>> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    load::details(shared, rows).await?;
    let mut loaded = load::values(shared, rows, Segments::Unknown).await?;
    let assemblers = loaded.iter_mut().map(|(id, loaded)| (id.clone(), Assembler::new(shared, loaded)));
    let mut assemblers: HashMap<Str, Assembler<'_, '_>> = assemblers.collect();
    let assemble =
        |row: &Row| assemblers.get_mut(&row.thread_id).map_or(Ok(None), |assembler| assembler.tuple(row));
    rows.iter().map(assemble).collect()
}

/// Reads the tuples of rows. Those that were deleted meanwhile are left out.
pub(crate) async fn those_left(shared: &Shared, mut rows: Vec<Row>) -> Result<Vec<CheckpointTuple>> {
    let mut left = Vec::with_capacity(rows.len());
    for (at, tuple) in tuples(shared, &mut rows).await?.into_iter().enumerate() {
        left.extend(match (tuple, rows.get(at)) {
            (None, Some(row)) => read::get_tuple(shared, &row.key().to_config()).await?,
            (tuple, _) => tuple,
        });
    }
    Ok(left)
}

/// The checkpoints of all threads, newest first, of which only the next ones of each thread are known.
#[derive(Debug)]
struct Threads {
    heap: BinaryHeap<Thread>,
}

#[derive(Debug, PartialEq, Eq)]
struct Thread {
    id: Str,
    /// Namespaces and ids; never empty.
    next: VecDeque<(Str, Str)>,
    /// Whether there may be more behind them.
    has_more: bool,
}

impl Ord for Thread {
    /// The greatest one is listed first: newest id, then thread, then namespace.
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |thread: &Self| thread.next.front().cloned().unwrap_or_default();
        let ((ns, id), (other_ns, other_id)) = (key(self), key(other));
        id.cmp(&other_id).then_with(|| (&other.id, &other_ns).cmp(&(&self.id, &ns)))
    }
}

impl PartialOrd for Thread {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Threads {
    /// Finds the first checkpoint of each thread.
    async fn find(shared: &Shared, query: &ListQuery, left: usize) -> Result<Self> {
        let mut threads = Self { heap: BinaryHeap::new() };
        let range = Range::new(query, None);
        let mut directory = Directory::new(None, None);
        while let Some(ids) = directory.next_page(shared, DIRECTORY_PAGE).await? {
            let read = |id: &Str| range.members(&shared.keys.thread(id).index, 1);
            let replies = shared.connections.each(Access::Read, ids.iter().map(read).collect()).await?;
            for (thread_id, reply) in ids.into_iter().zip(replies) {
                let next: VecDeque<_> = load::members(reply)?.into();
                if !next.is_empty() {
                    threads.heap.push(Thread { id: thread_id, next, has_more: true });
                }
            }
            if query.filter.is_empty() && threads.heap.len() > left.saturating_mul(2) {
                // Each thread has at least one checkpoint: the later ones are not reached.
                let mut all = std::mem::take(&mut threads.heap).into_sorted_vec();
                threads.heap = all.split_off(all.len().saturating_sub(left)).into();
            }
        }
        Ok(threads)
    }

    fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Takes the next members, at most so many; fewer if more must be read first.
    async fn next_members(
        &mut self,
        shared: &Shared,
        query: &ListQuery,
        count: usize,
    ) -> Result<Vec<(Str, (Str, Str))>> {
        // Those that come next get more members, in one trip.
        let mut first: Vec<Thread> = std::iter::from_fn(|| self.heap.pop()).take(count).collect();
        let short: Vec<usize> = first
            .iter()
            .enumerate()
            .filter(|(_, thread)| thread.has_more && thread.next.len() == 1)
            .map(|(at, _)| at)
            .collect();
        let read = |at: &usize| {
            let thread = first.get(*at)?;
            let (ns, id) = thread.next.back()?;
            let last = CheckpointConfig::new(thread.id.clone())
                .with_checkpoint_ns(ns.clone())
                .with_checkpoint_id(id.clone());
            let index = shared.keys.thread(&thread.id).index;
            Some(Range::new(query, Some(&last)).members(&index, MEMBERS))
        };
        let commands: Vec<_> = short.iter().filter_map(read).collect();
        if !commands.is_empty() {
            let replies = shared.connections.each(Access::Read, commands).await?;
            for (at, reply) in short.into_iter().zip(replies) {
                let members = load::members(reply)?;
                if let Some(thread) = first.get_mut(at) {
                    thread.has_more = members.len() == MEMBERS;
                    thread.next.extend(members);
                }
            }
        }
        self.heap.extend(first);
        let mut found = Vec::new();
        while found.len() < count {
            let Some(mut thread) = self.heap.pop() else { break };
            if thread.has_more && thread.next.len() == 1 {
                // Whether its next one comes before those of other threads must be read first.
                self.heap.push(thread);
                break;
            }
            let Some(member) = thread.next.pop_front() else { continue };
            found.push((thread.id.clone(), member));
            if !thread.next.is_empty() {
                self.heap.push(thread);
            }
        }
        Ok(found)
    }

    /// Puts members back that were taken last.
    fn put_back(&mut self, members: impl DoubleEndedIterator<Item = (Str, (Str, Str))>) {
        let mut all: HashMap<Str, Thread> =
            std::mem::take(&mut self.heap).into_iter().map(|thread| (thread.id.clone(), thread)).collect();
        for (thread_id, member) in members.rev() {
            let thread = all.entry(thread_id.clone()).or_insert_with(|| Thread {
                id: thread_id,
                next: VecDeque::new(),
                has_more: false,
            });
            thread.next.push_front(member);
        }
        self.heap = all.into_values().collect();
    }
}

/// All checkpoints of a thread, or of one of its namespaces, with their metadata, a page at a time, newest first.
#[derive(Debug)]
pub(crate) struct AllCheckpoints {
    thread_id: Str,
    listing: Option<Listing>,
}

impl AllCheckpoints {
    pub(crate) fn new(thread_id: &str, checkpoint_ns: Option<&str>) -> Self {
        let mut query = ListQuery::thread(thread_id);
        query.checkpoint_ns = checkpoint_ns.map(Str::from);
        let mut listing = Listing::begin(query);
        if let Some(listing) = &mut listing {
            listing.page = FILTERED_PAGE;
        }
        Self { thread_id: thread_id.into(), listing }
    }

    pub(crate) async fn next_page(&mut self, shared: &Shared) -> Result<Option<Vec<Row>>> {
        let Some(mut listing) = self.listing.take() else { return Ok(None) };
        let (rows, is_last) = listing.rows_of(shared, &self.thread_id, FILTERED_PAGE).await?;
        self.listing = Some(listing).filter(|_| !is_last);
        Ok(Some(rows))
    }
}
