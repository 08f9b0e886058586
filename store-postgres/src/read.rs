//! Reads: one item, many items, searches, namespaces.

use std::sync::Arc;

use checkpoint_core::store::{
    GetOp, Item, JsonObject, ListNamespacesOp, Namespace, SearchItem, SearchOp, TtlConfig,
};
use checkpoint_core::{Result, Str};
use chrono::{DateTime, Utc};
use common_postgres::tokio_postgres::Row;
use common_postgres::{Connection, Json, column, params, text};

use crate::AnnIndex;
use crate::sql::{Parameters, Reach, column as col};
use crate::store::Shared;

/// Namespaces with at most this many items are searched exactly, by a scan of their vectors.
const MAX_EXACT_ITEMS: i64 = 1000;

/// The most candidates fetched from the vector index; beyond it the search is exact.
const MAX_CANDIDATES: usize = 10_000;

/// The assumed number of vectors per item for an index path that may match several texts.
const TEXTS_PER_WILDCARD: usize = 4;

/// The factor by which the number of candidates grows when they yielded too few items.
const GROWTH: usize = 4;

/// Candidates fetched per wanted item: an iterative scan returns them in relaxed order.
const OVERSAMPLING: usize = 4;

/// The most operations in one statement; the server accepts 65,535 parameters.
const MAX_OPERATIONS: usize = 4000;

/// The items that were read and whose TTL is to be refreshed.
#[derive(Debug, Default)]
pub(crate) struct Read {
    prefixes: Vec<Str>,
    keys: Vec<Str>,
}

impl Read {
    /// Refreshes their TTL.
    pub(crate) async fn refresh(&self, shared: &Shared) -> Result<()> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let prefixes: Vec<&str> = self.prefixes.iter().map(|prefix| &**prefix).collect();
        let keys: Vec<&str> = self.keys.iter().map(|key| &**key).collect();
        let params = params![TEXT_ARRAY: prefixes, keys];
        shared.database.query(&shared.sql.refresh, &params).await.map(|_| ())
    }

    /// Decodes an item, and records it if its TTL is to be refreshed.
    fn item(&mut self, row: &Row, refresh: Option<bool>, ttl: &TtlConfig) -> Result<Item> {
        let (prefix, key) = (text(row, col::PREFIX)?, text(row, col::KEY)?);
        let value = JsonObject::from_stored(column::<Json<'_>>(row, col::VALUE)?.0)
            .map_err(|error| error.with("namespace", &prefix).with("key", &key))?;
        // The columns are nullable, and other programs may have stored NULL.
        let time = |at| Ok(column::<Option<DateTime<Utc>>>(row, at)?.unwrap_or_default());
        let item = Item::new(
            Namespace::from_text(&prefix),
            key.clone(),
            value,
            time(col::CREATED_AT)?,
            time(col::UPDATED_AT)?,
        );
        if column(row, col::HAS_TTL)? && refresh.unwrap_or(ttl.refresh_on_read) {
            self.prefixes.push(prefix);
            self.keys.push(key);
        }
        Ok(item)
    }
}

/// The index of the operation that a row belongs to.
fn operation(row: &Row) -> Result<usize> {
    Ok(usize::try_from(column::<i32>(row, col::OPERATION)?).unwrap_or(usize::MAX))
}

/// Reads the item of each operation, if it exists.
pub(crate) async fn get(
    shared: &Shared,
    ops: &[(usize, GetOp)],
    read: &mut Read,
) -> Result<Vec<Option<Item>>> {
    let prefixes: Vec<String> = ops.iter().map(|(_, op)| op.namespace.to_text()).collect();
    let keys: Vec<&str> = ops.iter().map(|(_, op)| &*op.key).collect();
    let rows = if let ([prefix], [key]) = (prefixes.as_slice(), keys.as_slice()) {
        shared.database.query(&shared.sql.get, &params![TEXT: *prefix, *key]).await?
    } else {
        shared.database.query(&shared.sql.get_many, &params![TEXT_ARRAY: prefixes, keys]).await?
    };
    let mut items = vec![None; ops.len()];
    for row in &rows {
        let at = operation(row)?;
        if let (Some(slot), Some((_, op))) = (items.get_mut(at), ops.get(at)) {
            *slot = Some(read.item(row, op.refresh_ttl, &shared.ttl)?);
        }
    }
    Ok(items)
}

/// An unfinished search.
struct Pending<'a> {
    /// The index of the operation.
    at: usize,
    op: &'a SearchOp,
    /// The query's vector.
    vector: Option<Arc<[f32]>>,
    reach: Reach,
}

/// Runs searches. `vectors` has the vector of each one's query.
pub(crate) async fn search(
    shared: &Shared,
    ops: &[(usize, SearchOp)],
    vectors: Vec<Option<Arc<[f32]>>>,
    read: &mut Read,
) -> Result<Vec<Vec<SearchItem>>> {
    let mut found: Vec<Vec<SearchItem>> = vec![Vec::new(); ops.len()];
    let mut pending: Vec<Pending<'_>> = ops
        .iter()
        .zip(vectors)
        .enumerate()
        .filter(|(_, ((_, op), _))| op.limit > 0)
        .map(|(at, ((_, op), vector))| Pending { at, op, vector, reach: first_reach(shared, op) })
        .collect();
    if let Some(index) =
        shared.index.as_deref().filter(|_| pending.iter().any(|search| search.vector.is_some()))
    {
        shared.detect_iterative_scan(index).await?;
    }
    while !pending.is_empty() {
        let rows = run_searches(shared, &pending).await?;
        let mut by_search: Vec<Vec<&Row>> = vec![Vec::new(); ops.len()];
        for row in &rows {
            if let Some(rows) = by_search.get_mut(operation(row)?) {
                rows.push(row);
            }
        }
        let mut unfinished = Vec::new();
        for mut search in pending {
            let rows = by_search.get_mut(search.at).map(std::mem::take).unwrap_or_default();
            if let Some(reach) = search.next_reach(&rows)? {
                search.reach = reach;
                unfinished.push(search);
            } else if let Some(items) = found.get_mut(search.at) {
                *items = search.items(shared, &rows, read)?;
            }
        }
        pending = unfinished;
    }
    Ok(found)
}

/// The reach of the first attempt. An item may have several vectors.
pub(crate) fn first_reach(shared: &Shared, op: &SearchOp) -> Reach {
    let Some(index) = shared.index.as_deref() else { return Reach::EXACT };
    let has_wildcard = |path: &Str| path.contains(['*', '{']);
    let texts: usize =
        index.config.fields.iter().map(|path| if has_wildcard(path) { TEXTS_PER_WILDCARD } else { 1 }).sum();
    let candidates = op.limit.saturating_add(op.offset).saturating_mul(texts.max(1) * OVERSAMPLING);
    if candidates > MAX_CANDIDATES {
        Reach::EXACT
    } else {
        Reach { max_exact_items: MAX_EXACT_ITEMS, candidates }
    }
}

impl Pending<'_> {
    /// The reach of the next attempt, if this one may have missed items.
    fn next_reach(&self, rows: &[&Row]) -> Result<Option<Reach>> {
        let (Some(_), Some(first)) = (&self.vector, rows.first()) else { return Ok(None) };
        if column(first, col::EXACT)? {
            return Ok(None);
        }
        let candidates = usize::try_from(column::<i64>(first, col::CANDIDATES)?).unwrap_or_default();
        if candidates < self.reach.candidates {
            // The index has no further match, or its scan ended early and may have missed nearer ones.
            return Ok(Some(Reach::EXACT));
        }
        let items =
            rows.iter().filter(|row| matches!(column::<Option<&str>>(row, col::KEY), Ok(Some(_)))).count();
        if items >= self.op.limit {
            return Ok(None);
        }
        let candidates = self.reach.candidates.saturating_mul(GROWTH);
        Ok(Some(if candidates > MAX_CANDIDATES { Reach::EXACT } else { Reach { candidates, ..self.reach } }))
    }

    fn items(&self, shared: &Shared, rows: &[&Row], read: &mut Read) -> Result<Vec<SearchItem>> {
        let mut items = Vec::with_capacity(rows.len());
        for row in rows {
            let score = match (&self.vector, &shared.index) {
                (Some(_), Some(index)) => match column::<Option<f64>>(row, col::DISTANCE)? {
                    Some(distance) => Some(index.score(distance)),
                    // A search without results still returns one row, with the columns on how it was run.
                    None => continue,
                },
                _ => None,
            };
            items.push(SearchItem::new(read.item(row, self.op.refresh_ttl, &shared.ttl)?, score));
        }
        Ok(items)
    }
}

/// Runs searches in as few statements as possible.
async fn run_searches(shared: &Shared, pending: &[Pending<'_>]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for pending in pending.chunks(MAX_OPERATIONS) {
        let mut params = Parameters::default();
        let mut statements = Vec::with_capacity(pending.len());
        let mut by_index = false;
        for search in pending {
            let Pending { at, op, vector, reach } = search;
            statements.push(match (vector, shared.index.as_deref()) {
                (Some(vector), Some(index)) => {
                    by_index |= index.ann != AnnIndex::Flat;
                    shared.sql.search_vectors(&mut params, *at, op, vector, index, *reach)?
                }
                _ => shared.sql.search(&mut params, *at, op)?,
            });
        }
        let settings = if by_index {
            shared.settings(pending.iter().map(|search| search.reach.candidates).max())
        } else {
            None
        };
        rows.extend(run_together(shared, &statements, &params, settings.as_deref()).await?);
    }
    Ok(rows)
}

/// Runs read-only statements as one. Only a single one is prepared: combinations are rarely repeated.
async fn run_together(
    shared: &Shared,
    statements: &[String],
    params: &Parameters<'_>,
    settings: Option<&str>,
) -> Result<Vec<Row>> {
    let single = statements.len() == 1;
    let sql = match statements {
        [single] => single.clone(),
        several => several.iter().map(|sql| format!("({sql})")).collect::<Vec<_>>().join(" UNION ALL "),
    };
    let (sql, params) = (&sql, &params.list());
    let run = |connection: Connection| async move {
        match settings {
            Some(settings) if single => connection.query_in_transaction(settings, sql, params).await,
            Some(settings) => connection.query_unprepared_in_transaction(settings, sql, params).await,
            None if single => connection.query(sql, params).await,
            None => connection.query_unprepared(sql, params).await,
        }
    };
    shared.database.run(run).await
}

/// Lists namespaces for each operation.
pub(crate) async fn list_namespaces(
    shared: &Shared,
    ops: &[(usize, ListNamespacesOp)],
) -> Result<Vec<Vec<Namespace>>> {
    let mut listed: Vec<Vec<Namespace>> = vec![Vec::new(); ops.len()];
    let numbered: Vec<(usize, &ListNamespacesOp)> =
        ops.iter().enumerate().map(|(at, (_, op))| (at, op)).filter(|(_, op)| op.limit > 0).collect();
    for ops in numbered.chunks(MAX_OPERATIONS) {
        let mut params = Parameters::default();
        let statements: Vec<String> =
            ops.iter().map(|(at, op)| shared.sql.list_namespaces(&mut params, *at, op)).collect();
        for row in run_together(shared, &statements, &params, None).await? {
            if let Some(namespaces) = listed.get_mut(operation(&row)?) {
                namespaces.push(Namespace::from_text(&text(&row, col::PREFIX)?));
            }
        }
    }
    Ok(listed)
}
