//! `list_threads` and `list_thread_ids`: from the `_id`s of checkpoints and writes.

use std::collections::BTreeMap;

use checkpoint_core::backend::Page;
use checkpoint_core::{CheckpointConfig, Result, Str, ThreadInfo, ThreadQuery, ThreadState};
use futures_util::future::try_join;
use mongodb::bson::doc;

use crate::client::{Find, not_understood, within};
use crate::keys::{self, Range, ThreadKeys, escape, kind, unescape};
use crate::list::tuples;
use crate::load::{self, Row, live_id, only_ids, thread_of};
use crate::read;
use crate::shared::Shared;

/// How many `_id`s are read at a time.
const IDS: usize = 1000;

/// The newest checkpoints of a thread, by their `_id`s.
#[derive(Debug, Default)]
struct Newest {
    /// The id and the `_id`.
    of_all: Option<(String, String)>,
    of_root: Option<(String, String)>,
}

impl Newest {
    fn add(&mut self, id: &str) {
        let Some([_, ns, checkpoint]) = keys::parts(id) else { return };
        let found = (checkpoint.to_owned(), id.to_owned());
        if ns.is_empty() && self.of_root.as_ref().is_none_or(|known| *known < found) {
            self.of_root = Some(found.clone());
        }
        if self.of_all.as_ref().is_none_or(|known| *known < found) {
            self.of_all = Some(found);
        }
    }
}

/// The `_id`s of a kind behind a thread, as far as they can belong to threads with a prefix.
fn from(kind: char, after: Option<&str>, prefix: Option<&str>) -> Range {
    let mut range = Range::kind(kind);
    if let Some(after) = after {
        let of_thread = ThreadKeys::new(after).all(kind);
        range.from = range.from.max(of_thread.to);
    }
    let prefix = prefix.map(escape).unwrap_or_default();
    // An id that was cut does not begin as its prefix does.
    if !prefix.is_empty() && !prefix.contains("~~") {
        range.from = range.from.max(format!("{kind}!{prefix}"));
        range.to = range.to.min(format!("{kind}!{prefix}\u{7f}"));
    }
    range
}

/// Reads one page of threads that have the prefix, with their state if the query needs it.
pub(crate) async fn list_threads(
    shared: &Shared,
    query: &ThreadQuery,
    after: Option<&str>,
    count: usize,
) -> Result<Page<ThreadInfo, Str>> {
    shared.ready().await?;
    let mut range = from(kind::CHECKPOINT, after, query.prefix.as_deref());
    let mut found: BTreeMap<String, Newest> = BTreeMap::new();
    let mut is_last = range.from >= range.to;
    // One more, so that the last one is known to be complete.
    while found.len() <= count && !is_last {
        let find = Find {
            filter: within(&range),
            projection: Some(only_ids(shared)),
            limit: IDS,
            ..Find::default()
        };
        let page = shared.mongo.find(find).await?;
        if let Some(last) = page.last().and_then(|last| last.get_str("_id").ok()) {
            range = range.after(last);
        }
        is_last = page.len() < IDS || range.from >= range.to;
        for id in page.iter().filter_map(live_id) {
            found.entry(thread_of(&id).to_owned()).or_default().add(&id);
        }
    }
    let has_more = found.len() > count;
    let mut threads = Vec::new();
    let mut newest = Vec::new();
    for (escaped, of_thread) in found.into_iter().take(count) {
        let Newest { of_all: Some((latest, id)), of_root } = of_thread else { continue };
        let thread_id = match unescape(&escaped)? {
            Some(thread_id) => thread_id,
            None => match original(shared, &id).await? {
                Some(thread_id) => thread_id,
                None => continue,
            },
        };
        let Some(latest) = unescape(&latest)? else { continue };
        newest.push((thread_id.clone(), of_root.map_or(id, |(_, id)| id)));
        threads.push(ThreadInfo::new(thread_id, latest));
    }
    let last = threads.last().map(|last| last.thread_id.clone());
    if query.needs_state() {
        let states = states(shared, newest).await?;
        let with_state = |thread: ThreadInfo| {
            let state = states.get(&thread.thread_id)?.clone();
            Some(thread.with_state(Some(state)))
        };
        threads = threads.into_iter().filter_map(with_state).collect();
    }
    Ok((threads, last.filter(|_| has_more)))
}

/// The state of threads by their newest checkpoints. Those that were deleted meanwhile are left out.
async fn states(shared: &Shared, newest: Vec<(Str, String)>) -> Result<BTreeMap<Str, ThreadState>> {
    let ids: Vec<_> = newest.iter().map(|(_, id)| id.clone()).collect();
    let mut rows = Vec::new();
    for ids in ids.chunks(IDS) {
        let filter = doc! { "_id": { "$in": ids } };
        for document in shared.mongo.find(Find { filter, ..Find::default() }).await? {
            rows.extend(Row::read(document)?);
        }
    }
    let configs: Vec<CheckpointConfig> = rows.iter().map(|row| row.key().to_config()).collect();
    let mut states = BTreeMap::new();
    for (tuple, config) in tuples(shared, rows).await?.into_iter().zip(configs) {
        let tuple = match tuple {
            None => read::get_tuple(shared, &config).await?,
            tuple => tuple,
        };
        states.extend(tuple.map(|tuple| (Str::from(tuple.config.thread_id()), ThreadState::of(&tuple))));
    }
    Ok(states)
}

/// The thread of a document, whose `_id` has a part of it only.
async fn original(shared: &Shared, id: &str) -> Result<Option<Str>> {
    let projection = Some(doc! { "t": 1 });
    let find = Find { filter: doc! { "_id": id }, projection, limit: 1, ..Find::default() };
    match shared.mongo.find(find).await?.pop() {
        Some(document) => load::text(&document, "t").map(Some).map_err(|_| not_understood("t")),
        None => Ok(None),
    }
}

/// Reads one page of thread ids, also of threads without checkpoints.
pub(crate) async fn list_thread_ids(shared: &Shared, after: Option<&str>, count: usize) -> Result<Vec<Str>> {
    shared.ready().await?;
    let of = |kind| threads_of(shared, kind, after, count);
    let ((mut found, first), (others, second)) = try_join(of(kind::CHECKPOINT), of(kind::WRITE)).await?;
    // Up to where both kinds were read.
    let read_to = first.into_iter().chain(second).min();
    for (thread, id) in others {
        found.entry(thread).or_insert(id);
    }
    let mut ids = Vec::new();
    let is_read = |thread: &String| read_to.as_ref().is_none_or(|to| thread <= to);
    for (escaped, id) in found.into_iter().filter(|(thread, _)| is_read(thread)).take(count) {
        match unescape(&escaped)? {
            Some(thread_id) => ids.push(thread_id),
            None => ids.extend(original(shared, &id).await?),
        }
    }
    Ok(ids)
}

/// The next threads that have a kind of document, escaped, each with one `_id`; and the last one of them, if there may be
/// more.
async fn threads_of(
    shared: &Shared,
    kind: char,
    after: Option<&str>,
    count: usize,
) -> Result<(BTreeMap<String, String>, Option<String>)> {
    let mut range = from(kind, after, None);
    let mut found = BTreeMap::new();
    while range.from < range.to {
        let find = Find {
            filter: within(&range),
            projection: Some(only_ids(shared)),
            limit: IDS,
            ..Find::default()
        };
        let page = shared.mongo.find(find).await?;
        for id in page.iter().filter_map(live_id) {
            found.entry(thread_of(&id).to_owned()).or_insert(id);
        }
        let end = page.last().and_then(|last| last.get_str("_id").ok()).filter(|_| page.len() == IDS);
        let Some(end) = end else { return Ok((found, None)) };
        // The other documents of the last thread are not needed.
        let last = thread_of(end).to_owned();
        range.from = Range::below(&format!("{kind}!{last}")).to;
        if found.len() >= count {
            return Ok((found, Some(last)));
        }
    }
    Ok((found, None))
}
