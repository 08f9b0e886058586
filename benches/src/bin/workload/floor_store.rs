//! The baseline of group store: each call as one prepared statement on the store's table, sent directly by this driver.
//! Values are JSON text, neither encoded nor decoded.

use std::error::Error;

use bytes::BytesMut;
use checkpoint_benches::{Items, Recorder, StoreItem, StoreSearch};
use common_postgres::Json;
use common_postgres::tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use crate::floor::{Timed, connect};
use crate::place::{Database, Place};
use crate::stores::LISTS;
use crate::{Result, Run};

const PUT: &str = "
    INSERT INTO store (prefix, key, value) VALUES ($1, $2, $3)
    ON CONFLICT (prefix, key) DO UPDATE SET value = EXCLUDED.value, updated_at = CURRENT_TIMESTAMP";

const PUT_MANY: &str = "
    INSERT INTO store (prefix, key, value) SELECT * FROM unnest($1::text[], $2::text[], $3::jsonb[])
    ON CONFLICT (prefix, key) DO UPDATE SET value = EXCLUDED.value, updated_at = CURRENT_TIMESTAMP";

const GET: &str =
    "SELECT prefix, key, value, created_at, updated_at FROM store WHERE prefix = $1 AND key = $2";

/// A range of the index of prefixes.
const SEARCH: &str = "
    SELECT prefix, key, value, created_at, updated_at FROM store
    WHERE prefix ~>=~ $1 AND prefix ~<~ $2 AND value->'kind' = $3::jsonb ORDER BY updated_at DESC LIMIT 10";

const NAMESPACES: &str =
    "SELECT DISTINCT prefix FROM store WHERE prefix LIKE 'bench.%' ORDER BY prefix LIMIT 100";

/// Text, or the text of JSON.
#[derive(Debug)]
struct Plain(String);

impl ToSql for Plain {
    fn to_sql(&self, of_type: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        if Json::accepts(of_type) { Json(&self.0).to_sql(of_type, out) } else { self.0.to_sql(of_type, out) }
    }

    fn accepts(of_type: &Type) -> bool {
        Json::accepts(of_type) || String::accepts(of_type)
    }

    to_sql_checked!();
}

fn json(value: &impl serde::Serialize) -> Result<Plain> {
    Ok(Plain(serde_json::to_string(value)?))
}

/// The columns of a row.
fn row(item: &StoreItem) -> Result<[Plain; 3]> {
    Ok([Plain(item.namespace.to_text()), Plain(item.key.to_string()), json(&item.value)?])
}

/// The columns of many rows.
fn rows(batch: &[StoreItem]) -> Result<[Vec<Plain>; 3]> {
    let mut columns = [const { Vec::new() }; 3];
    for item in batch {
        for (column, cell) in columns.iter_mut().zip(row(item)?) {
            column.push(cell);
        }
    }
    Ok(columns)
}

/// The bounds of a search's namespace, and the kind. A user's namespace has no descendants.
fn bounds(search: &StoreSearch, of_user: bool) -> Result<[Plain; 3]> {
    let prefix = search.prefix.to_text();
    let from = if of_user { prefix.clone() } else { format!("{prefix}.") };
    Ok([Plain(from), Plain(format!("{prefix}/")), json(&search.kind)?])
}

/// Group store, on tables that the store has set up.
pub(crate) async fn store(items: &Items, place: &Place, database: &Database) -> Result<Run> {
    let mut timed = Timed { client: connect(database).await?, recorder: Recorder::default() };
    let puts = items.puts.iter().map(row).collect::<Result<Vec<_>>>()?;
    run(&mut timed, "put", PUT, &puts, |_| 0).await?;
    let disk = place.disk().await?;
    place.analyze().await?;
    let name = |item: &StoreItem| [Plain(item.namespace.to_text()), Plain(item.key.to_string())];
    let gets: Vec<_> = items.read().map(name).collect();
    run(&mut timed, "get", GET, &gets, |_| 1).await?;
    for (operation, of_user) in [("search_all", false), ("search_user", true)] {
        let searches = items.searches(of_user);
        let calls = searches.iter().map(|search| bounds(search, of_user)).collect::<Result<Vec<_>>>()?;
        let found = |turn: usize| searches.get(turn).map_or(0, |search| search.keys.len());
        run(&mut timed, operation, SEARCH, &calls, found).await?;
    }
    let batches = items.batches.iter().map(|batch| rows(batch)).collect::<Result<Vec<_>>>()?;
    run(&mut timed, "batch_100", PUT_MANY, &batches, |_| 0).await?;
    let none: [[Plain; 0]; LISTS] = [const { [] }; LISTS];
    let namespaces = items.namespaces().len();
    run(&mut timed, "list_namespaces", NAMESPACES, &none, |_| namespaces).await?;
    Ok(Run { ops: timed.recorder.finish(), level: None, disk })
}

/// Runs a statement with each of the parameters, after one run to warm up.
async fn run<P: ToSql + Sync, const N: usize>(
    timed: &mut Timed,
    operation: &'static str,
    sql: &str,
    calls: &[[P; N]],
    rows: impl Fn(usize) -> usize,
) -> Result<()> {
    let statement = timed.client.prepare(sql).await?;
    timed.warm_up(&statement, calls.first().map_or(&[], <[P; N]>::as_slice)).await?;
    let calls = calls.iter().enumerate().map(|(turn, call)| (call.as_slice(), rows(turn)));
    timed.query(operation, &statement, calls).await
}
