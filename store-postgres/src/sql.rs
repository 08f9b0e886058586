//! The SQL. Statements depend on which conditions an operation has, never on its values, so that a connection caches few
//! of them.

use std::error::Error as StdError;
use std::fmt::{self, Write as _};

use bytes::BytesMut;
use checkpoint_core::Result;
use checkpoint_core::store::{Expected, ItemFilter, ListNamespacesOp, MatchCondition, Namespace, SearchOp};
use chrono::{DateTime, Utc};
use common_postgres::tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use common_postgres::{Json, Param};

use crate::AnnIndex;
use crate::builder::VectorIndex;
use crate::filter::Conditions;

/// The version byte of the binary format of `jsonpath`, which precedes the text.
const JSONPATH_VERSION: u8 = 1;

/// More items than a namespace can have: every search is exact.
const UNLIMITED: i64 = 1 << 62;

/// The item has not expired.
const ALIVE: &str = "(s.expires_at IS NULL OR s.expires_at > now())";

/// When an item is put that exists: later than before, even if its last put began in the same microsecond or after this
/// one, or the clock was set back.
const LATER: &str = "GREATEST(now(), s.updated_at + interval '1 microsecond')";

/// The columns of an item: from [`column::PREFIX`] to [`column::HAS_TTL`].
const COLUMNS: &str = "s.prefix, s.key, s.value, s.created_at, s.updated_at, s.ttl_minutes IS NOT NULL";

/// The character after the dot: child namespaces sort between the two.
const AFTER_DOT: char = '/';

/// The result columns of reads. A list of namespaces has the first two only.
pub(crate) mod column {
    /// The index of the operation that the row belongs to.
    pub(crate) const OPERATION: usize = 0;
    pub(crate) const PREFIX: usize = 1;
    pub(crate) const KEY: usize = 2;
    pub(crate) const VALUE: usize = 3;
    pub(crate) const CREATED_AT: usize = 4;
    pub(crate) const UPDATED_AT: usize = 5;
    pub(crate) const HAS_TTL: usize = 6;
    /// The distance from the query.
    pub(crate) const DISTANCE: usize = 7;
    /// Whether the search was exact: by a scan of all vectors.
    pub(crate) const EXACT: usize = 8;
    /// How many candidates the vector index returned.
    pub(crate) const CANDIDATES: usize = 9;
}

/// A path as a parameter of type `jsonpath`.
struct Path(String);

// The driver logs parameters, so `Debug` must not show user values.
impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Path({} bytes)", self.0.len())
    }
}

impl ToSql for Path {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        out.extend_from_slice(&[JSONPATH_VERSION]);
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(of_type: &Type) -> bool {
        *of_type == Type::JSONPATH
    }

    to_sql_checked!();
}

/// JSON text of a filter as a parameter of type `jsonb`.
struct Contained(String);

impl fmt::Debug for Contained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Json(&self.0).fmt(f)
    }
}

impl ToSql for Contained {
    fn to_sql(&self, of_type: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        Json(&self.0).to_sql(of_type, out)
    }

    fn accepts(of_type: &Type) -> bool {
        Json::accepts(of_type)
    }

    to_sql_checked!();
}

/// A statement's parameters, collected while it is written.
#[derive(Debug, Default)]
pub(crate) struct Parameters<'a>(Vec<(Box<dyn ToSql + Send + Sync + 'a>, Type)>);

impl<'a> Parameters<'a> {
    /// Adds a parameter and returns its placeholder, with a cast.
    fn bind(&mut self, value: impl ToSql + Send + Sync + 'a, of_type: Type) -> String {
        let name = of_type
            .name()
            .strip_prefix('_')
            .map_or_else(|| of_type.name().to_owned(), |item| format!("{item}[]"));
        self.0.push((Box::new(value), of_type));
        format!("${}::{name}", self.0.len())
    }

    fn bind_number(&mut self, number: usize) -> String {
        self.bind(i64::try_from(number).unwrap_or(i64::MAX), Type::INT8)
    }

    /// The parameters for the driver.
    pub(crate) fn list(&self) -> Vec<Param<'_>> {
        self.0.iter().map(|(value, of_type)| (&**value as _, of_type.clone())).collect()
    }
}

/// How many vectors a search by distance considers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reach {
    /// Namespaces with at most this many items are searched exactly, by a scan of their vectors.
    pub(crate) max_exact_items: i64,
    /// Larger ones by this many candidates from the vector index.
    pub(crate) candidates: usize,
}

impl Reach {
    /// All vectors, whatever the number of items.
    pub(crate) const EXACT: Self = Self { max_exact_items: UNLIMITED, candidates: 0 };
}

/// The placeholders of a namespace and of the range of its descendants.
struct Bounds {
    /// The namespace itself.
    own: String,
    /// Where its descendants begin.
    first: String,
    /// Where they end, exclusive.
    end: String,
}

/// Restricts the column `prefix` to a namespace and its descendants. The root has no restriction.
struct Below(Option<Bounds>);

impl Below {
    fn new(params: &mut Parameters<'_>, namespace: &Namespace) -> Self {
        if namespace.is_root() {
            return Self(None);
        }
        let text = namespace.to_text();
        let first = params.bind(format!("{text}."), Type::TEXT);
        let end = params.bind(format!("{text}{AFTER_DOT}"), Type::TEXT);
        Self(Some(Bounds { own: params.bind(text, Type::TEXT), first, end }))
    }

    /// The condition on a table, with a leading `AND`. Its operators are those of the index on prefixes, which compares
    /// bytes whatever the database's collation.
    fn condition(&self, table: &str) -> String {
        self.0.as_ref().map_or_else(String::new, |Bounds { own, first, end }| {
            format!(
                " AND ({table}.prefix = {own} OR ({table}.prefix ~>=~ {first} AND {table}.prefix ~<~ {end}))"
            )
        })
    }

    /// The statement that counts items, up to about twice `limit`. It reads each range in the order of the index;
    /// otherwise the server could scan the whole table to count a small namespace.
    fn count(&self, schema: &str, limit: &str) -> String {
        let some = |rest: &str| format!("(SELECT 1 FROM {schema}store s{rest} LIMIT {limit})");
        let ranges = match &self.0 {
            None => some(""),
            Some(Bounds { own, first, end }) => [(own, "~<=~", own), (first, "~<~", end)]
                .map(|(first, until, end)| {
                    some(&format!(
                        " WHERE s.prefix ~>=~ {first} AND s.prefix {until} {end} ORDER BY s.prefix USING ~<~"
                    ))
                })
                .join(" UNION ALL "),
        };
        format!("SELECT count(*) FROM ({ranges}) counted")
    }
}

/// The conditions of a filter, each with a leading `AND`.
fn filter_conditions(params: &mut Parameters<'_>, filter: &ItemFilter) -> Result<String> {
    let mut sql = String::new();
    let Conditions { contained, path } = Conditions::new(filter)?;
    if let Some(contained) = contained {
        let _ = write!(sql, " AND s.value @> {}", params.bind(Contained(contained), Type::JSONB));
    }
    if let Some(path) = path {
        let _ = write!(sql, " AND s.value @? {}", params.bind(Path(path), Type::JSONPATH));
    }
    Ok(sql)
}

/// The items to store and to delete, as columns.
#[derive(Debug, Default)]
pub(crate) struct PutColumns<'a> {
    pub(crate) deleted_prefixes: Vec<&'a str>,
    pub(crate) deleted_keys: Vec<&'a str>,
    pub(crate) prefixes: Vec<&'a str>,
    pub(crate) keys: Vec<&'a str>,
    pub(crate) values: Vec<Json<'a>>,
    pub(crate) seconds: Vec<Option<f64>>,
    pub(crate) minutes: Vec<Option<i32>>,
    pub(crate) vector_prefixes: Vec<&'a str>,
    pub(crate) vector_keys: Vec<&'a str>,
    pub(crate) field_names: Vec<&'a str>,
    /// The elements of all vectors, concatenated.
    pub(crate) numbers: Vec<f32>,
}

/// An item to store or to delete if it is as expected.
#[derive(Debug)]
pub(crate) struct PutIf<'a> {
    pub(crate) expected: Expected,
    pub(crate) prefix: &'a str,
    pub(crate) key: &'a str,
    /// `None` deletes it.
    pub(crate) value: Option<Json<'a>>,
    pub(crate) seconds: Option<f64>,
    pub(crate) minutes: Option<i32>,
    pub(crate) field_names: Vec<&'a str>,
    /// The elements of all vectors, concatenated.
    pub(crate) numbers: Vec<f32>,
}

/// The statements for the tables of one schema.
#[derive(Debug)]
pub(crate) struct Statements {
    /// The schema, quoted and followed by a dot, or empty.
    schema: String,
    pub(crate) get: String,
    pub(crate) get_many: String,
    pub(crate) refresh: String,
    pub(crate) sweep: String,
    pub(crate) put_one: String,
}

impl Statements {
    pub(crate) fn new(schema: &str) -> Self {
        let s = schema;
        Self {
            schema: s.to_owned(),
            get: by_key(s, "0, ", "$1", "$2", ""),
            get_many: format!(
                "SELECT (wanted.at - 1)::int4, item.* FROM unnest($1::text[], $2::text[]) WITH ORDINALITY wanted(prefix, key, at) \
                 CROSS JOIN LATERAL ({}) item",
                by_key(s, "", "wanted.prefix", "wanted.key", "")
            ),
            // A locked row is being written or refreshed by another transaction, so it is skipped. GREATEST: Python
            // rounds short TTLs to 0 minutes, and a refresh must not shorten them.
            refresh: format!(
                "WITH due AS (SELECT s.prefix, s.key FROM unnest($1::text[], $2::text[]) found(prefix, key) \
                 JOIN {s}store s ON s.prefix = found.prefix AND s.key = found.key \
                 WHERE s.ttl_minutes IS NOT NULL AND s.expires_at > now() FOR NO KEY UPDATE OF s SKIP LOCKED) \
                 UPDATE {s}store s SET expires_at = GREATEST(s.expires_at, now() + make_interval(mins => s.ttl_minutes)) \
                 FROM due WHERE s.prefix = due.prefix AND s.key = due.key"
            ),
            sweep: format!(
                "WITH due AS (SELECT s.prefix, s.key FROM {s}store s WHERE s.expires_at <= now() \
                 ORDER BY s.expires_at LIMIT $1 FOR UPDATE SKIP LOCKED), \
                 swept AS (DELETE FROM {s}store s USING due WHERE s.prefix = due.prefix AND s.key = due.key RETURNING 1) \
                 SELECT count(*) FROM swept"
            ),
            put_one: upsert(s, "VALUES ($1::text, $2::text, $3::jsonb, $4::float8, $5::int4)"),
        }
    }

    /// Finds items by namespace and filter, most recently put first.
    pub(crate) fn search(&self, params: &mut Parameters<'_>, at: usize, op: &SearchOp) -> Result<String> {
        let below = Below::new(params, &op.namespace_prefix).condition("s");
        let filter = filter_conditions(params, &op.filter)?;
        let (limit, offset) = (params.bind_number(op.limit), params.bind_number(op.offset));
        Ok(format!(
            "SELECT {at}, {COLUMNS}, NULL::float8, NULL::bool, NULL::int8 FROM {}store s WHERE {ALIVE}{below}{filter} \
             ORDER BY s.updated_at DESC, s.prefix COLLATE \"C\", s.key COLLATE \"C\" LIMIT {limit} OFFSET {offset}",
            self.schema
        ))
    }

    /// Finds items by distance from a vector. There is always at least one row, with the columns [`column::EXACT`] and
    /// [`column::CANDIDATES`].
    pub(crate) fn search_vectors<'a>(
        &self,
        params: &mut Parameters<'a>,
        at: usize,
        op: &SearchOp,
        vector: &'a [f32],
        index: &VectorIndex,
        reach: Reach,
    ) -> Result<String> {
        let s = &self.schema;
        let vector = params.bind(vector, Type::FLOAT4_ARRAY);
        let distance = format!("v.embedding {} (SELECT query.v FROM query)", index.operator());
        let below = Below::new(params, &op.namespace_prefix);
        let filter = filter_conditions(params, &op.filter)?;
        let (limit, offset) = (params.bind_number(op.limit), params.bind_number(op.offset));
        let (below_items, below_vectors) = (below.condition("s"), below.condition("v"));
        let (few, near, either) = if index.ann == AnnIndex::Flat {
            ("SELECT true AS items".to_owned(), "SELECT WHERE false".to_owned(), "exact")
        } else {
            let max_exact_items = params.bind(reach.max_exact_items, Type::INT8);
            let candidates = params.bind_number(reach.candidates);
            let count = below.count(s, &format!("{max_exact_items} + 1"));
            let item = by_key(s, "", "v.prefix", "v.key", &filter);
            (
                format!(
                    "SELECT CASE WHEN {max_exact_items} = {UNLIMITED} THEN true ELSE ({count}) <= {max_exact_items} END AS items"
                ),
                format!(
                    "SELECT s.prefix, s.key, s.updated_at, {distance} AS distance FROM {s}store_vectors v \
                     CROSS JOIN LATERAL ({item}) s WHERE NOT (SELECT items FROM few){below_vectors} \
                     ORDER BY {distance} LIMIT {candidates}"
                ),
                "(SELECT * FROM exact UNION ALL SELECT * FROM near)",
            )
        };
        let exact = if below_items.is_empty() && filter.is_empty() {
            format!(
                "SELECT s.prefix, s.key, s.updated_at, min({distance}) AS distance FROM {s}store s \
                 JOIN {s}store_vectors v ON v.prefix = s.prefix AND v.key = s.key \
                 WHERE (SELECT items FROM few) AND {ALIVE}{filter} GROUP BY s.prefix, s.key, s.updated_at"
            )
        } else {
            // Per item, so that only matching items' vectors are read, whatever the planner's estimates.
            format!(
                "SELECT s.prefix, s.key, s.updated_at, own.distance FROM {s}store s CROSS JOIN LATERAL \
                 (SELECT min({distance}) AS distance FROM {s}store_vectors v \
                 WHERE v.prefix = s.prefix AND v.key = s.key) own \
                 WHERE (SELECT items FROM few) AND {ALIVE}{below_items}{filter} AND own.distance IS NOT NULL"
            )
        };
        let item = by_key(s, "", "best.prefix", "best.key", "");
        Ok(format!(
            "WITH query AS MATERIALIZED (SELECT ({vector})::{vector_type} AS v), few AS MATERIALIZED ({few}), \
             exact AS MATERIALIZED ({exact}), \
             near AS MATERIALIZED ({near}), \
             best AS (SELECT either.prefix, either.key, either.updated_at, min(either.distance) AS distance FROM {either} either \
             GROUP BY either.prefix, either.key, either.updated_at HAVING min(either.distance) <> 'NaN' \
             ORDER BY distance, either.updated_at DESC, either.prefix COLLATE \"C\", either.key COLLATE \"C\" LIMIT {limit} OFFSET {offset}) \
             SELECT {at}, found.*, (SELECT items FROM few), (SELECT count(*) FROM near) FROM (SELECT) one LEFT JOIN \
             (SELECT item.*, best.distance FROM best CROSS JOIN LATERAL ({item}) item) \
             found ON true ORDER BY found.distance, found.updated_at DESC, found.prefix COLLATE \"C\", found.key COLLATE \"C\"",
            vector_type = index.vector_type.as_str(),
        ))
    }

    /// Lists namespaces by a skip scan of the index on prefixes.
    pub(crate) fn list_namespaces(
        &self,
        params: &mut Parameters<'_>,
        at: usize,
        op: &ListNamespacesOp,
    ) -> String {
        let s = &self.schema;
        let patterns: Vec<String> = op.match_conditions.iter().filter_map(pattern).collect();
        let patterns = params.bind(patterns, Type::TEXT_ARRAY);
        let cut = op.max_depth.map(|depth| {
            let depth = params.bind(i32::try_from(depth).unwrap_or(i32::MAX), Type::INT4);
            format!("array_to_string((string_to_array(walk.prefix, '.'))[1:{depth}], '.')")
        });
        // The scan continues after a namespace at the namespace plus the least character, or, if its descendants are
        // skipped, at the character after the dot.
        let following = "walk.prefix || chr(1)";
        let (next, living) = match &cut {
            Some(cut) if skips(op) => {
                let next =
                    format!("CASE WHEN {cut} = walk.prefix THEN {following} ELSE {cut} || '{AFTER_DOT}' END");
                // One living item in the skipped range suffices.
                let range = format!("s.prefix ~>=~ walk.prefix AND s.prefix ~<~ {next}");
                (next, range)
            }
            _ => (following.to_owned(), "s.prefix ~>=~ walk.prefix AND s.prefix ~<=~ walk.prefix".to_owned()),
        };
        let within = op.match_conditions.iter().map(MatchCondition::literal_prefix);
        let within = within.max_by_key(|prefix| prefix.labels().len()).filter(|prefix| !prefix.is_root());
        let (itself, first, end) = match within {
            None => (String::new(), "''".to_owned(), String::new()),
            Some(within) => {
                let text = within.to_text();
                let (first, end) = (format!("{text}."), format!("{text}{AFTER_DOT}"));
                let [text, first, end] = [text, first, end].map(|bound| params.bind(bound, Type::TEXT));
                (
                    format!(
                        "SELECT {text} AS prefix WHERE (SELECT true FROM {s}store s WHERE s.prefix ~>=~ {text} \
                         AND s.prefix ~<=~ {text} ORDER BY s.prefix USING ~<~ LIMIT 1) UNION ALL "
                    ),
                    first,
                    format!(" AND s.prefix ~<~ {end}"),
                )
            }
        };
        let step = |from: &str| {
            format!(
                "SELECT s.prefix FROM {s}store s WHERE s.prefix ~>=~ ({from}){end} ORDER BY s.prefix USING ~<~ LIMIT 1"
            )
        };
        let walk = format!(
            "WITH RECURSIVE steps(prefix) AS (({}) UNION ALL SELECT ({}) FROM steps walk WHERE walk.prefix IS NOT NULL)",
            step(&first),
            step(&next),
        );
        let (limit, offset) = (params.bind_number(op.limit), params.bind_number(op.offset));
        // Ordered like an index, otherwise the server could scan the whole table for the first row.
        let chosen = format!(
            "({itself}SELECT prefix FROM steps) walk WHERE walk.prefix IS NOT NULL AND walk.prefix ~ ALL ({patterns}) \
             AND (COALESCE((SELECT s.expires_at FROM {s}store s WHERE s.expires_at IS NOT NULL \
             ORDER BY s.expires_at LIMIT 1) > now(), true) \
             OR (SELECT true FROM {s}store s WHERE {ALIVE} AND {living} ORDER BY s.prefix USING ~<~ LIMIT 1))"
        );
        let listed = match cut {
            // The scan is ordered, and ends at the limit.
            None => format!("{walk} SELECT walk.prefix FROM {chosen}"),
            // A namespace and its descendants are not always adjacent: `a`, `a-b`, `a.b`.
            Some(cut) => {
                format!("{walk} SELECT DISTINCT {cut} COLLATE \"C\" AS prefix FROM {chosen} ORDER BY prefix")
            }
        };
        format!("SELECT {at}, listed.* FROM ({listed} LIMIT {limit} OFFSET {offset}) listed")
    }

    /// Stores or deletes an item and its vectors if the item is as expected, and returns whether it was: 1 or 0. A
    /// statement alone is atomic, and takes the lock of one item only. It needs no later snapshot for the vectors:
    /// nobody has changed an item that is as expected, nor its vectors, since the snapshot. (Only an item that had expired
    /// before its own put was committed, during this call, may leave vectors of fields that the new one lacks.)
    pub(crate) fn put_if<'a>(&self, put: PutIf<'a>, index: Option<&VectorIndex>) -> (String, Parameters<'a>) {
        let s = &self.schema;
        let mut params = Parameters::default();
        let item = [put.prefix, put.key].map(|text| params.bind(text, Type::TEXT));
        let [prefix, key] = &item;
        let Some(value) = put.value else {
            let sql = match put.expected {
                Expected::UpdatedAt(updated_at) => {
                    let due = unchanged(s, &mut params, (prefix, key), updated_at);
                    format!(
                        "WITH due AS ({due}), gone AS (DELETE FROM {s}store s USING due \
                         WHERE s.prefix = due.prefix AND s.key = due.key RETURNING 1) SELECT count(*) FROM gone"
                    )
                }
                // There is nothing to delete.
                _ => format!(
                    "SELECT count(*) FROM (SELECT) one WHERE NOT EXISTS ({})",
                    by_key(s, "", prefix, key, "")
                ),
            };
            return (sql, params);
        };
        let value = params.bind(value, Type::JSONB);
        let seconds = params.bind(put.seconds, Type::FLOAT8);
        let minutes = params.bind(put.minutes, Type::INT4);
        let stored = match put.expected {
            Expected::UpdatedAt(updated_at) => {
                let due = unchanged(s, &mut params, (prefix, key), updated_at);
                format!(
                    "due AS ({due}), stored AS (UPDATE {s}store s SET value = {value}, updated_at = {LATER}, \
                     expires_at = now() + make_interval(secs => {seconds}), ttl_minutes = {minutes} FROM due \
                     WHERE s.prefix = due.prefix AND s.key = due.key RETURNING s.prefix, s.key)"
                )
            }
            // Only an expired item is replaced.
            _ => format!(
                "stored AS ({} WHERE s.expires_at <= now() RETURNING s.prefix, s.key)",
                upsert(s, &format!("VALUES ({prefix}, {key}, {value}, {seconds}, {minutes})"))
            ),
        };
        let vectors = index.map_or_else(String::new, |index| {
            let (dims, vector_type) = (index.config.dims, index.vector_type.as_str());
            let names = params.bind(put.field_names, Type::TEXT_ARRAY);
            let numbers = params.bind(put.numbers, Type::FLOAT4_ARRAY);
            format!(
                ", stale AS (DELETE FROM {s}store_vectors v USING stored WHERE v.prefix = stored.prefix \
                 AND v.key = stored.key AND v.field_name <> ALL ({names})), \
                 vectors AS (INSERT INTO {s}store_vectors AS v (prefix, key, field_name, embedding, created_at, updated_at) \
                 SELECT stored.prefix, stored.key, n.field_name, \
                 (({numbers})[(n.at - 1) * {dims} + 1 : n.at * {dims}])::{vector_type}, now(), now() \
                 FROM stored, unnest({names}) WITH ORDINALITY n(field_name, at) \
                 ON CONFLICT (prefix, key, field_name) DO UPDATE SET embedding = EXCLUDED.embedding, updated_at = now())"
            )
        });
        (format!("WITH {stored}{vectors} SELECT count(*) FROM stored"), params)
    }

    /// Stores, replaces and deletes items, then their vectors: two statements of one transaction. The second takes its
    /// snapshot after the first has locked the items' rows, so that it sees the vectors of earlier writers.
    pub(crate) fn put<'a>(
        &self,
        columns: PutColumns<'a>,
        index: Option<&VectorIndex>,
    ) -> Vec<(String, Parameters<'a>)> {
        let s = &self.schema;
        let mut params = Parameters::default();
        let mut parts = Vec::new();
        if !columns.deleted_keys.is_empty() {
            let prefixes = params.bind(columns.deleted_prefixes, Type::TEXT_ARRAY);
            let keys = params.bind(columns.deleted_keys, Type::TEXT_ARRAY);
            parts.push(format!(
                "gone AS (DELETE FROM {s}store s USING unnest({prefixes}, {keys}) d(prefix, key) \
                 WHERE s.prefix = d.prefix AND s.key = d.key)"
            ));
        }
        let stores = !columns.keys.is_empty();
        if stores {
            let prefixes = params.bind(columns.prefixes.clone(), Type::TEXT_ARRAY);
            let keys = params.bind(columns.keys.clone(), Type::TEXT_ARRAY);
            let values = params.bind(columns.values, Type::JSONB_ARRAY);
            let seconds = params.bind(columns.seconds, Type::FLOAT8_ARRAY);
            let minutes = params.bind(columns.minutes, Type::INT4_ARRAY);
            let items = format!("SELECT * FROM unnest({prefixes}, {keys}, {values}, {seconds}, {minutes})");
            parts.push(format!("stored AS ({})", upsert(s, &items)));
        }
        let mut statements = vec![(format!("WITH {} SELECT", parts.join(", ")), params)];
        if let Some(index) = index.filter(|_| stores) {
            let mut params = Parameters::default();
            let (dims, vector_type) = (index.config.dims, index.vector_type.as_str());
            let prefixes = params.bind(columns.prefixes, Type::TEXT_ARRAY);
            let keys = params.bind(columns.keys, Type::TEXT_ARRAY);
            let vector_prefixes = params.bind(columns.vector_prefixes, Type::TEXT_ARRAY);
            let vector_keys = params.bind(columns.vector_keys, Type::TEXT_ARRAY);
            let names = params.bind(columns.field_names, Type::TEXT_ARRAY);
            let numbers = params.bind(columns.numbers, Type::FLOAT4_ARRAY);
            let vectors = format!("unnest({vector_prefixes}, {vector_keys}, {names})");
            let sql = format!(
                "WITH stale AS (DELETE FROM {s}store_vectors v USING unnest({prefixes}, {keys}) i(prefix, key) \
                 WHERE v.prefix = i.prefix AND v.key = i.key AND NOT EXISTS (SELECT FROM {vectors} \
                 n(prefix, key, field_name) WHERE n.prefix = v.prefix AND n.key = v.key AND n.field_name = v.field_name)) \
                 INSERT INTO {s}store_vectors AS v (prefix, key, field_name, embedding, created_at, updated_at) \
                 SELECT n.prefix, n.key, n.field_name, \
                 (({numbers})[(n.at - 1) * {dims} + 1 : n.at * {dims}])::{vector_type}, now(), now() \
                 FROM {vectors} WITH ORDINALITY n(prefix, key, field_name, at) \
                 ON CONFLICT (prefix, key, field_name) DO UPDATE SET embedding = EXCLUDED.embedding, updated_at = now()"
            );
            statements.push((sql, params));
        }
        statements
    }
}

/// Selects an item and locks it, if it was last put at this time.
fn unchanged(
    schema: &str,
    params: &mut Parameters<'_>,
    (prefix, key): (&str, &str),
    updated_at: DateTime<Utc>,
) -> String {
    let updated_at = params.bind(updated_at, Type::TIMESTAMPTZ);
    // The column is nullable; reads return a missing time as this one.
    let condition = format!(" AND COALESCE(s.updated_at, to_timestamp(0)) = {updated_at}");
    format!("{} FOR UPDATE", by_key(schema, "", prefix, key, &condition))
}

/// Finds one item that meets further conditions. `columns` precede those of the item. It compares by range and order
/// instead of equality: with poor statistics the planner could otherwise choose the index on prefixes and read a whole
/// namespace for one item. Because of its limit, a lateral join runs it per row and never becomes a join with the whole
/// table.
fn by_key(schema: &str, columns: &str, prefix: &str, key: &str, conditions: &str) -> String {
    format!(
        "SELECT {columns}{COLUMNS} FROM {schema}store s WHERE s.prefix = {prefix} AND s.key >= {key} AND s.key <= {key} \
         AND {ALIVE}{conditions} ORDER BY s.prefix, s.key LIMIT 1"
    )
}

/// Inserts or replaces items. An item put over an expired one is new, with its own `created_at`.
fn upsert(schema: &str, items: &str) -> String {
    format!(
        "INSERT INTO {schema}store AS s (prefix, key, value, created_at, updated_at, expires_at, ttl_minutes) \
         SELECT i.prefix, i.key, i.value, now(), now(), now() + make_interval(secs => i.seconds), i.minutes \
         FROM ({items}) i(prefix, key, value, seconds, minutes) \
         ON CONFLICT (prefix, key) DO UPDATE SET value = EXCLUDED.value, \
         created_at = CASE WHEN s.expires_at <= now() THEN now() ELSE s.created_at END, updated_at = {LATER}, \
         expires_at = EXCLUDED.expires_at, ttl_minutes = EXCLUDED.ttl_minutes"
    )
}

/// Whether descendants of a namespace at the maximum depth can be skipped: no condition depends on them.
fn skips(op: &ListNamespacesOp) -> bool {
    op.match_conditions.iter().all(|condition| match condition {
        MatchCondition::Prefix(pattern) => op.max_depth.is_some_and(|depth| pattern.labels().len() <= depth),
        other => other.pattern().is_root(),
    })
}

/// A condition as a regular expression on the dotted text, or `None` if it matches everything.
fn pattern(condition: &MatchCondition) -> Option<String> {
    let labels = condition.pattern().labels();
    if labels.is_empty() {
        return None;
    }
    let labels: Vec<String> =
        labels.iter().map(|label| if &**label == "*" { "[^.]+".to_owned() } else { escape(label) }).collect();
    let body = labels.join(r"\.");
    Some(match condition {
        MatchCondition::Suffix(_) => format!(r"(^|\.){body}\Z"),
        _ => format!(r"^{body}(\.|\Z)"),
    })
}

/// Escapes a label for a regular expression.
fn escape(label: &str) -> String {
    label.chars().fold(String::with_capacity(label.len()), |mut escaped, c| {
        if c.is_ascii() && !c.is_ascii_alphanumeric() && c != '_' {
            escaped.push('\\');
        }
        escaped.push(c);
        escaped
    })
}
