//! Reading: one item, many, searches, namespaces.

use std::sync::Arc;

use checkpoint_core::store::{
    GetOp, Item, JsonObject, ListNamespacesOp, Namespace, SearchItem, SearchOp, TtlConfig,
};
use checkpoint_core::{Result, Str};
use chrono::{DateTime, Utc};
use common_postgres::tokio_postgres::Row;
use common_postgres::tokio_postgres::types::Type;
use common_postgres::{Connection, Json, column, text};

use crate::AnnIndex;
use crate::sql::{Parameters, Reach, column as place};
use crate::store::Shared;

/// Under a namespace with at most so many items the nearest are found by looking at all vectors.
const EXACT_UP_TO: i64 = 1000;

/// An index is asked for so many vectors at most; then all are looked at.
const MOST_NEAREST: usize = 10_000;

/// So many vectors an item is thought to have for a path that may have several.
const TEXTS_OF_A_LIST: usize = 4;

/// How many times as many vectors are asked for when there were too few items among them.
const MORE: usize = 4;

/// How many times as many vectors as items are asked for: an index that goes on does not find them in their order.
const SPARE: usize = 4;

/// How many operations one statement has; the server takes 65,535 parameters.
const OPERATIONS: usize = 4000;

/// The items that were read and have a time to live that begins anew.
#[derive(Debug, Default)]
pub(crate) struct Read {
    prefixes: Vec<Str>,
    keys: Vec<Str>,
}

impl Read {
    /// Prolongs their lives.
    pub(crate) async fn refresh(&self, shared: &Shared) -> Result<()> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let prefixes: Vec<&str> = self.prefixes.iter().map(|prefix| &**prefix).collect();
        let keys: Vec<&str> = self.keys.iter().map(|key| &**key).collect();
        let (prefixes, keys) = (&prefixes, &keys);
        let run = |connection: Connection| async move {
            let params = [(prefixes as _, Type::TEXT_ARRAY), (keys as _, Type::TEXT_ARRAY)];
            connection.query(&shared.sql.refresh, &params).await
        };
        shared.database.run(run).await.map(|_| ())
    }

    /// Decodes an item, and remembers it if its time is to begin anew.
    fn item(&mut self, row: &Row, refresh: Option<bool>, ttl: &TtlConfig) -> Result<Item> {
        let (prefix, key) = (text(row, place::PREFIX)?, text(row, place::KEY)?);
        let value = JsonObject::from_stored(column::<Json<'_>>(row, place::VALUE)?.0)
            .map_err(|error| error.with("namespace", &prefix).with("key", &key))?;
        // Others may have left the times out.
        let time = |at| Ok(column::<Option<DateTime<Utc>>>(row, at)?.unwrap_or_default());
        let item = Item::new(
            Namespace::from_text(&prefix),
            key.clone(),
            value,
            time(place::CREATED_AT)?,
            time(place::UPDATED_AT)?,
        );
        if column(row, place::HAS_TTL)? && refresh.unwrap_or(ttl.refresh_on_read) {
            self.prefixes.push(prefix);
            self.keys.push(key);
        }
        Ok(item)
    }
}

fn at(row: &Row) -> Result<usize> {
    Ok(usize::try_from(column::<i32>(row, place::AT)?).unwrap_or(usize::MAX))
}

/// Reads items: for each operation the item, if it is there.
pub(crate) async fn get(
    shared: &Shared,
    ops: &[(usize, GetOp)],
    read: &mut Read,
) -> Result<Vec<Option<Item>>> {
    let prefixes: Vec<String> = ops.iter().map(|(_, op)| op.namespace.to_text()).collect();
    let keys: Vec<&str> = ops.iter().map(|(_, op)| &*op.key).collect();
    let (prefixes, keys) = (&prefixes, &keys);
    let run = |connection: Connection| async move {
        if let ([prefix], [key]) = (prefixes.as_slice(), keys.as_slice()) {
            connection.query(&shared.sql.get, &[(prefix, Type::TEXT), (key, Type::TEXT)]).await
        } else {
            let params = [(prefixes as _, Type::TEXT_ARRAY), (keys as _, Type::TEXT_ARRAY)];
            connection.query(&shared.sql.get_many, &params).await
        }
    };
    let rows = shared.database.run(run).await?;
    let mut items = vec![None; ops.len()];
    for row in &rows {
        let at = at(row)?;
        if let (Some(place), Some((_, op))) = (items.get_mut(at), ops.get(at)) {
            *place = Some(read.item(row, op.refresh_ttl, &shared.ttl)?);
        }
    }
    Ok(items)
}

/// A search that is not over: what it wants, its query's vector, and how far it looks.
struct Pending<'a> {
    at: usize,
    op: &'a SearchOp,
    vector: Option<Arc<[f32]>>,
    reach: Reach,
}

/// Finds items for each operation. The vectors are those of its query.
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
        shared.learn_pgvector(index).await?;
    }
    while !pending.is_empty() {
        let rows = run_searches(shared, &pending).await?;
        let mut by_search: Vec<Vec<&Row>> = vec![Vec::new(); ops.len()];
        for row in &rows {
            if let Some(rows) = by_search.get_mut(at(row)?) {
                rows.push(row);
            }
        }
        let mut unfinished = Vec::new();
        for mut search in pending {
            let rows = by_search.get_mut(search.at).map(std::mem::take).unwrap_or_default();
            if let Some(reach) = search.further(&rows)? {
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

/// How far a search looks at first: an item may have several of the vectors.
pub(crate) fn first_reach(shared: &Shared, op: &SearchOp) -> Reach {
    let Some(index) = shared.index.as_deref() else { return Reach::EXACT };
    let has_several = |path: &Str| path.contains(['*', '{']);
    let texts: usize =
        index.config.fields.iter().map(|path| if has_several(path) { TEXTS_OF_A_LIST } else { 1 }).sum();
    let nearest = op.limit.saturating_add(op.offset).saturating_mul(texts.max(1) * SPARE);
    if nearest > MOST_NEAREST { Reach::EXACT } else { Reach { exact_up_to: EXACT_UP_TO, nearest } }
}

impl Pending<'_> {
    /// How far to look next, if there may be more than was found.
    fn further(&self, rows: &[&Row]) -> Result<Option<Reach>> {
        let (Some(_), Some(first)) = (&self.vector, rows.first()) else { return Ok(None) };
        if column(first, place::EXACT)? {
            return Ok(None);
        }
        let seen = usize::try_from(column::<i64>(first, place::SEEN)?).unwrap_or_default();
        if seen < self.reach.nearest {
            // The index has no more that fit, or gave up, perhaps before it came to the nearest of them.
            return Ok(Some(Reach::EXACT));
        }
        let items =
            rows.iter().filter(|row| matches!(column::<Option<&str>>(row, place::KEY), Ok(Some(_)))).count();
        if items >= self.op.limit {
            return Ok(None);
        }
        let nearest = self.reach.nearest.saturating_mul(MORE);
        Ok(Some(if nearest > MOST_NEAREST { Reach::EXACT } else { Reach { nearest, ..self.reach } }))
    }

    fn items(&self, shared: &Shared, rows: &[&Row], read: &mut Read) -> Result<Vec<SearchItem>> {
        let mut items = Vec::with_capacity(rows.len());
        for row in rows {
            let score = match (&self.vector, &shared.index) {
                (Some(_), Some(index)) => match column::<Option<f64>>(row, place::DISTANCE)? {
                    Some(distance) => Some(index.score(distance)),
                    // The row tells how it was searched, and that there is nothing.
                    None => continue,
                },
                _ => None,
            };
            items.push(SearchItem::new(read.item(row, self.op.refresh_ttl, &shared.ttl)?, score));
        }
        Ok(items)
    }
}

/// Runs searches by one statement.
async fn run_searches(shared: &Shared, pending: &[Pending<'_>]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for pending in pending.chunks(OPERATIONS) {
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
            shared.settings(pending.iter().map(|search| search.reach.nearest).max())
        } else {
            None
        };
        rows.extend(run_together(shared, &statements, &params, settings.as_deref()).await?);
    }
    Ok(rows)
}

/// Runs statements that only read as one. A single one is worth keeping: many calls will have it.
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
            Some(settings) if single => connection.query_within(settings, sql, params).await,
            Some(settings) => connection.query_once_within(settings, sql, params).await,
            None if single => connection.query(sql, params).await,
            None => connection.query_once(sql, params).await,
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
    for ops in numbered.chunks(OPERATIONS) {
        let mut params = Parameters::default();
        let statements: Vec<String> =
            ops.iter().map(|(at, op)| shared.sql.list_namespaces(&mut params, *at, op)).collect();
        for row in run_together(shared, &statements, &params, None).await? {
            if let Some(namespaces) = listed.get_mut(at(&row)?) {
                namespaces.push(Namespace::from_text(&text(&row, 1)?));
            }
        }
    }
    Ok(listed)
}
