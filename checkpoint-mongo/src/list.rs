//! `list`.

use std::collections::{HashMap, VecDeque};

use checkpoint_core::backend::{ListCursor, Page as Pages};
use checkpoint_core::{
    CheckpointConfig, CheckpointTuple, ErrorKind, FilterSemantics, ListQuery, Result, Str,
};
use mongodb::bson::Document;

use crate::client::{Find, within};
use crate::keys::{self, Range, ThreadKeys, escape, kind};
use crate::load::{self, Ahead, Assembler, Row, TUPLE, live_id, only_ids};
use crate::shared::Shared;
use crate::{read, row, tokens};

/// How many tuples a page has.
const PAGE: usize = 50;

/// How often a page is read again of which a part was just deleted.
const ATTEMPTS: usize = 4;

/// How many checkpoints are looked at if there is a filter.
const FILTERED_PAGE: usize = 256;

/// How many ids are read at a time.
const IDS: usize = 10_000;

/// A listing that is read page by page.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) cursor: ListCursor,
    /// The `_id`s of a listing of several namespaces in its order, once they were read.
    ids: Option<VecDeque<String>>,
}

impl Listing {
    pub(crate) fn begin(query: ListQuery) -> Option<Self> {
        ListCursor::begin(query).map(|cursor| Self { cursor, ids: None })
    }

    /// Reads the next page.
    pub(crate) async fn next_page(mut self, shared: &Shared) -> Result<Pages<CheckpointTuple, Self>> {
        shared.ready().await?;
        let count = PAGE.min(self.cursor.left);
        let before = self.cursor.last.clone();
        let mut attempts = 0;
        let (tuples, is_last) = loop {
            attempts += 1;
            let backup = self.ids.clone();
            let (rows, is_last) = self.rows(shared, count).await?;
            let again: Vec<_> = rows.iter().map(|row| row.key().to_config()).collect();
            let found = tuples(shared, rows).await?;
            if attempts == ATTEMPTS {
                // Those that were deleted meanwhile are left out.
                let mut left = Vec::with_capacity(found.len());
                for (tuple, config) in found.into_iter().zip(&again) {
                    left.extend(match tuple {
                        None => read::get_tuple(shared, config).await?,
                        tuple => tuple,
                    });
                }
                break (left, is_last);
            }
            if let Some(tuples) = found.into_iter().collect::<Option<Vec<_>>>() {
                break (tuples, is_last);
            }
            self.cursor.last.clone_from(&before);
            self.ids = backup;
            read::pause().await;
        };
        self.cursor.left = self.cursor.left.saturating_sub(tuples.len());
        let has_more = !is_last && self.cursor.left > 0;
        Ok((tuples, has_more.then_some(self)))
    }

    /// The rows of the next page, and whether it is the last one.
    pub(crate) async fn rows(&mut self, shared: &Shared, count: usize) -> Result<(Vec<Row>, bool)> {
        let query = &self.cursor.query;
        match (&query.thread_id, &query.checkpoint_ns) {
            (Some(thread_id), Some(ns)) => {
                let (thread_id, ns) = (thread_id.clone(), ns.clone());
                self.of_namespace(shared, &thread_id, &ns, count).await
            }
            _ => self.of_several(shared, count).await,
        }
    }

    async fn of_namespace(
        &mut self,
        shared: &Shared,
        thread_id: &Str,
        ns: &Str,
        count: usize,
    ) -> Result<(Vec<Row>, bool)> {
        let ListCursor { query, last, .. } = &self.cursor;
        let keys = ThreadKeys::new(thread_id);
        let mut range = keys.of_namespace(kind::CHECKPOINT, ns);
        if let Some(id) = &query.checkpoint_id {
            let id = keys.checkpoint(ns, id);
            range = Range { to: format!("{id}\u{1}"), from: id };
        }
        let last = last.as_ref().and_then(CheckpointConfig::checkpoint_id).map(Str::from);
        for before in query.before.iter().chain(&last) {
            range = range.before(&keys.checkpoint(ns, before));
        }
        if range.from >= range.to {
            return Ok((Vec::new(), true));
        }
        let mut filter = shared.mongo.in_range(thread_id, &range);
        tokens::condition(shared.values(), &query.filter, &mut filter);
        let most = if query.filter.is_empty() { count } else { FILTERED_PAGE.max(count) };
        let found =
            shared.mongo.find(Find { filter, descending: true, limit: most, ..Find::default() }).await?;
        let mut is_last = found.len() < most;
        let mut rows = Vec::new();
        for document in found {
            if rows.len() == count {
                is_last = false;
                break;
            }
            let Some(row) = Row::read(document)? else { continue };
            self.cursor.last = Some(row.key().to_config());
            rows.extend(matching(shared, &self.cursor.query, row).await?);
        }
        Ok((rows, is_last))
    }

    /// Reads the `_id`s of all namespaces or threads first: the server has no index in the listing's order.
    async fn of_several(&mut self, shared: &Shared, count: usize) -> Result<(Vec<Row>, bool)> {
        let query = &self.cursor.query;
        let mut ids = match self.ids.take() {
            Some(ids) => ids,
            None => ids_of(shared, query, self.cursor.left).await?,
        };
        let mut rows = Vec::new();
        while rows.len() < count && !ids.is_empty() {
            let wanted = if query.filter.is_empty() { count - rows.len() } else { FILTERED_PAGE };
            let page: Vec<String> = ids.drain(..wanted.min(ids.len())).collect();
            let mut filter = shared.mongo.by_ids(query.thread_id.as_deref(), page.iter().cloned());
            tokens::condition(shared.values(), &query.filter, &mut filter);
            let found = shared.mongo.find(Find { filter, ..Find::default() }).await?;
            let mut by_id: HashMap<String, Document> = found
                .into_iter()
                .filter_map(|found| Some((found.get_str("_id").ok()?.to_owned(), found)))
                .collect();
            let mut rest = page.into_iter();
            while rows.len() < count {
                let Some(id) = rest.next() else { break };
                let Some(document) = by_id.remove(&id) else { continue };
                if let Some(row) = Row::read(document)? {
                    rows.extend(matching(shared, query, row).await?);
                }
            }
            for id in rest.rev() {
                ids.push_front(id);
            }
        }
        let is_last = ids.is_empty();
        self.ids = Some(ids);
        Ok((rows, is_last))
    }
}

/// The `_id`s of a listing in its order: newest first, of several with one id by thread and namespace.
async fn ids_of(shared: &Shared, query: &ListQuery, left: usize) -> Result<VecDeque<String>> {
    let mut range = match &query.thread_id {
        Some(thread_id) => ThreadKeys::new(thread_id).all(kind::CHECKPOINT),
        None => Range::kind(kind::CHECKPOINT),
    };
    let wanted_id = query.checkpoint_id.as_deref().map(escape);
    let wanted_ns = query.checkpoint_ns.as_deref().map(escape);
    let before = query.before.as_deref().map(escape);
    let mut found: Vec<String> = Vec::new();
    let order = |a: &String, b: &String| {
        let ([a_thread, a_ns, a_id], [b_thread, b_ns, b_id]) =
            (keys::parts(a).unwrap_or_default(), keys::parts(b).unwrap_or_default());
        b_id.cmp(a_id).then_with(|| (a_thread, a_ns).cmp(&(b_thread, b_ns)))
    };
    loop {
        let mut filter = match &query.thread_id {
            Some(thread_id) => shared.mongo.in_range(thread_id, &range),
            None => within(&range),
        };
        tokens::condition(shared.values(), &query.filter, &mut filter);
        let find = Find { filter, projection: Some(only_ids(shared)), limit: IDS, ..Find::default() };
        let page = shared.mongo.find(find).await?;
        let last = page.last().filter(|_| page.len() == IDS).and_then(|last| last.get_str("_id").ok());
        let next = last.map(|last| range.clone().after(last));
        found.extend(page.iter().filter_map(live_id).filter(|id| {
            keys::parts(id).is_some_and(|[_, ns, checkpoint]| {
                wanted_ns.as_deref().is_none_or(|wanted| wanted == ns)
                    && wanted_id.as_deref().is_none_or(|wanted| wanted == checkpoint)
                    && before.as_deref().is_none_or(|before| checkpoint < before)
            })
        }));
        if query.filter.is_empty() && found.len() > left.saturating_mul(2).saturating_add(IDS) {
            // The others are not reached.
            found.sort_by(order);
            found.truncate(left);
        }
        match next {
            Some(next) => range = next,
            None => break,
        }
    }
    found.sort_by(order);
    Ok(found.into())
}

/// The row, if it matches the filter.
async fn matching(shared: &Shared, query: &ListQuery, mut row: Row) -> Result<Option<Row>> {
    if query.filter.is_empty() {
        return Ok(Some(row));
    }
    let thread_id = row.thread_id.clone();
    load::chunks(shared, &thread_id, vec![&mut row.metadata]).await?;
    let Ok(bytes) = row.metadata.bytes() else { return Ok(None) };
    let metadata = match row::open_metadata(shared.values(), row.key(), bytes) {
        // Threads of others, in a listing of all.
        Err(error) if error.kind() == ErrorKind::Crypto && query.thread_id.is_none() => return Ok(None),
        opened => opened.map_err(row.key().context())?,
    };
    Ok(query.filter.matches(&metadata, FilterSemantics::Equality).then_some(row))
}

/// Reads the tuples of rows, in their order: `None` for those of which something is not there any more.
pub(crate) async fn tuples(shared: &Shared, mut rows: Vec<Row>) -> Result<Vec<Option<CheckpointTuple>>> {
    let mut threads = load::of_threads(shared, &mut rows, TUPLE, Ahead::default()).await?;
    let mut assemblers: HashMap<Str, Assembler<'_, '_>> = threads
        .iter_mut()
        .map(|(thread_id, loaded)| (thread_id.clone(), Assembler::new(shared, thread_id, loaded)))
        .collect();
    let assemble =
        |row: &Row| assemblers.get_mut(&row.thread_id).map_or(Ok(None), |assembler| assembler.tuple(row));
    rows.iter().map(assemble).collect()
}

/// All checkpoints of a thread without their values, newest first.
pub(crate) async fn all_rows(
    shared: &Shared,
    thread_id: &str,
    projection: Option<Document>,
) -> Result<Vec<Row>> {
    let filter = shared.mongo.in_range(thread_id, &ThreadKeys::new(thread_id).all(kind::CHECKPOINT));
    let found = shared.mongo.find(Find { filter, projection, ..Find::default() }).await?;
    let mut rows = Vec::new();
    for document in found {
        rows.extend(Row::read(document)?);
    }
    rows.sort_by(|a, b| {
        b.checkpoint_id.cmp(&a.checkpoint_id).then_with(|| a.checkpoint_ns.cmp(&b.checkpoint_ns))
    });
    Ok(rows)
}
