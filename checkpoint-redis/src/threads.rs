//! `list_threads` and `list_thread_ids`: the directory of threads.

use std::collections::{HashMap, VecDeque};

use checkpoint_core::backend::Page;
use checkpoint_core::{ListQuery, Result, Str, ThreadInfo, ThreadQuery, ThreadState};

use crate::connection::Access;
use crate::keys::SHARDS;
use crate::list::{Range, matching, those_left};
use crate::load;
use crate::reply::{self, Items};
use crate::shared::Shared;
use crate::write::forget_thread;

/// How many entries of the directory are read at a time.
pub(crate) const PAGE: usize = 512;

/// The ids of threads in ascending order, merged from the shards of the directory.
#[derive(Debug)]
pub(crate) struct Directory {
    shards: Vec<Shard>,
}

#[derive(Debug)]
struct Shard {
    number: u64,
    ids: VecDeque<Str>,
    /// Behind which id the next ones are; `None` if there are no more.
    from: Option<Vec<u8>>,
    to: Vec<u8>,
}

impl Directory {
    pub(crate) fn new(after: Option<&str>, prefix: Option<&str>) -> Self {
        let prefix = prefix.unwrap_or_default();
        let to = if prefix.is_empty() { b"+".to_vec() } else { [b"(", prefix.as_bytes(), b"\xff"].concat() };
        let from = match after {
            Some(after) if after >= prefix => [b"(", after.as_bytes()].concat(),
            _ => [b"[", prefix.as_bytes()].concat(),
        };
        let shard = |number| Shard { number, ids: VecDeque::new(), from: Some(from.clone()), to: to.clone() };
        Self { shards: (0..SHARDS).map(shard).collect() }
    }

    /// The next ids, or `None` at the end: one trip.
    pub(crate) async fn next_page(&mut self, shared: &Shared, count: usize) -> Result<Option<Vec<Str>>> {
        let mut found = Vec::new();
        while found.len() < count {
            let empty: Vec<usize> = self
                .shards
                .iter()
                .enumerate()
                .filter(|(_, shard)| shard.ids.is_empty() && shard.from.is_some())
                .map(|(at, _)| at)
                .collect();
            if !empty.is_empty() {
                if !found.is_empty() {
                    break;
                }
                self.refill(shared, &empty, count).await?;
            }
            let next = self.shards.iter_mut().filter(|shard| !shard.ids.is_empty());
            let Some(next) = next.min_by(|a, b| a.ids.front().cmp(&b.ids.front())) else { break };
            found.extend(next.ids.pop_front());
        }
        Ok((!found.is_empty()).then_some(found))
    }

    async fn refill(&mut self, shared: &Shared, empty: &[usize], count: usize) -> Result<()> {
        let read = |at: &usize| {
            let one = self.shards.get(*at)?;
            let mut command = redis::cmd("ZRANGEBYLEX");
            command.arg(shared.keys.shard(one.number)).arg(one.from.as_ref()?).arg(&one.to);
            command.arg("LIMIT").arg(0).arg(count);
            Some(command)
        };
        let replies = shared.connections.each(Access::Read, empty.iter().filter_map(read).collect()).await?;
        for (at, reply) in empty.iter().zip(replies) {
            let Some(one) = self.shards.get_mut(*at) else { continue };
            let ids = reply::list(reply)?;
            one.from = ids.last().filter(|_| ids.len() == count).map(|last| [b"(", &**last].concat());
            one.ids.extend(ids.iter().map(|id| Str::from(String::from_utf8_lossy(id))));
        }
        Ok(())
    }
}

/// Reads one page of threads that have the prefix, with their state if the query needs it.
pub(crate) async fn list_threads(
    shared: &Shared,
    query: &ThreadQuery,
    after: Option<&str>,
    count: usize,
) -> Result<Page<ThreadInfo, Str>> {
    shared.ready().await?;
    let mut directory = Directory::new(after, query.prefix.as_deref());
    let mut threads = Vec::new();
    let mut last = None;
    while threads.len() < count {
        let Some(ids) = directory.next_page(shared, count - threads.len()).await? else {
            return Ok((threads, None));
        };
        last = ids.last().cloned();
        threads.extend(threads_of(shared, query, ids).await?);
    }
    Ok((threads, last))
}

/// Those of these threads that have checkpoints.
async fn threads_of(shared: &Shared, query: &ThreadQuery, ids: Vec<Str>) -> Result<Vec<ThreadInfo>> {
    let everything = Range::new(&ListQuery::all(), None);
    let root = Range::new(&ListQuery::all().checkpoint_ns(""), None);
    let needs_state = query.needs_state();
    let commands = ids.iter().flat_map(|id| {
        let index = shared.keys.thread(id).index;
        let mut exists = redis::cmd("EXISTS");
        exists.arg(&index);
        let root = needs_state.then(|| root.members(&index, 1));
        [Some(everything.members(&index, 1)), root, Some(exists)].into_iter().flatten()
    });
    let mut replies = Items::of(shared.connections.each(Access::Read, commands.collect()).await?);
    let (mut threads, mut newest, mut gone) = (Vec::new(), Vec::new(), Vec::new());
    for id in &ids {
        let latest = load::members(replies.next())?.pop();
        let of_root = if needs_state { load::members(replies.next())?.pop() } else { None };
        if reply::integer(&replies.next())? == 0 {
            gone.push(id.clone());
        }
        if let Some((ns, latest)) = latest {
            threads.push(ThreadInfo::new(id.clone(), latest.clone()));
            newest.push((id.clone(), of_root.unwrap_or((ns, latest))));
        }
    }
    if needs_state {
        let states = states(shared, newest).await?;
        let with_state = |thread: ThreadInfo| {
            let state = states.get(&thread.thread_id)?.clone();
            Some(thread.with_state(Some(state)))
        };
        threads = threads.into_iter().filter_map(with_state).collect();
    }
    forget(shared, gone).await?;
    Ok(threads)
}

/// The state of threads by their newest checkpoints. Those that were deleted meanwhile are left out.
async fn states(shared: &Shared, newest: Vec<(Str, (Str, Str))>) -> Result<HashMap<Str, ThreadState>> {
    let heads = load::heads(shared, &newest).await?;
    let query = ListQuery::all();
    let mut rows = Vec::new();
    for ((thread_id, member), head) in newest.into_iter().zip(heads) {
        rows.extend(matching(shared, &query, &thread_id, member, head)?);
    }
    let tuples = those_left(shared, rows).await?;
    Ok(tuples.iter().map(|tuple| (Str::from(tuple.config.thread_id()), ThreadState::of(tuple))).collect())
}

/// Reads one page of thread ids, also of threads without checkpoints.
pub(crate) async fn list_thread_ids(shared: &Shared, after: Option<&str>, count: usize) -> Result<Vec<Str>> {
    shared.ready().await?;
    let (mut found, mut gone) = (Vec::new(), Vec::new());
    let mut directory = Directory::new(after, None);
    // A page with fewer ids than it has room for would be the last one.
    while found.len() < count {
        let Some(ids) = directory.next_page(shared, count - found.len()).await? else { break };
        let exists = |id: &Str| {
            let mut exists = redis::cmd("EXISTS");
            exists.arg(shared.keys.thread(id).index);
            exists
        };
        let replies = shared.connections.each(Access::Read, ids.iter().map(exists).collect()).await?;
        for (id, reply) in ids.into_iter().zip(replies) {
            if reply::integer(&reply)? == 1 { found.push(id) } else { gone.push(id) }
        }
    }
    forget(shared, gone).await?;
    Ok(found)
}

/// Removes threads from the directory that expired, or were deleted by a call that was cut off.
async fn forget(shared: &Shared, gone: Vec<Str>) -> Result<()> {
    for thread_id in gone {
        let mut command = redis::cmd("ZREM");
        command.arg(shared.keys.directory(&thread_id)).arg(&*thread_id);
        forget_thread(shared, &thread_id, &command).await?;
    }
    Ok(())
}
