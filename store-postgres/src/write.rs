//! Writes: a statement of its own for a single item, otherwise one for the whole batch.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use checkpoint_core::store::{Expected, JsonObject, PutOp, TtlConfig};
use checkpoint_core::{Error, Result};
use common_postgres::tokio_postgres::types::Type;
use common_postgres::{Connection, Json, column};

use crate::sql::{PutColumns, PutIf};
use crate::store::Shared;

/// The class of the advisory locks of items.
const LOCK_CLASS: i32 = i32::from_be_bytes(*b"stor");

/// A checked put.
pub(crate) struct Row<'a> {
    prefix: String,
    op: &'a PutOp,
    ttl: Option<Duration>,
    /// The vectors by field name.
    vectors: Vec<(String, Arc<[f32]>)>,
}

impl<'a> Row<'a> {
    /// Rejects what the server cannot store. Takes the vectors by field name.
    pub(crate) fn new(op: &'a PutOp, vectors: Vec<(String, Arc<[f32]>)>, ttl: &TtlConfig) -> Result<Self> {
        if let Some(value) = &op.value {
            check_value(value)
                .map_err(|error| error.with("namespace", &op.namespace).with("key", &op.key))?;
        }
        for (field_name, _) in &vectors {
            check_text("field_name", field_name)?;
        }
        Ok(Self { prefix: op.namespace.to_text(), op, ttl: op.ttl.resolve(ttl)?, vectors })
    }

    /// How many bytes of keys, values and vectors it has.
    pub(crate) fn bytes(&self) -> usize {
        let value = self.op.value.as_ref().map_or(0, |value| value.as_str().len());
        let numbers: usize = self.vectors.iter().map(|(_, vector)| vector.len()).sum();
        self.prefix.len() + self.op.key.len() + value + numbers * size_of::<f32>()
    }

    /// Stores or deletes the item if it is as expected, and returns whether it was.
    pub(crate) async fn store_if(
        &self,
        expected: Expected,
        shared: &Shared,
        connection: &Connection,
    ) -> Result<bool> {
        let (seconds, minutes) = ttl_columns(self.ttl);
        let put = PutIf {
            expected,
            prefix: &self.prefix,
            key: &self.op.key,
            value: self.op.value.as_ref().map(|value| Json(value.as_str())),
            seconds,
            minutes,
            field_names: self.vectors.iter().map(|(name, _)| name.as_str()).collect(),
            numbers: self.vectors.iter().flat_map(|(_, vector)| vector.iter().copied()).collect(),
        };
        let (sql, params) = shared.sql.put_if(put, shared.index.as_deref());
        let rows = connection.query(&sql, &params.list()).await?;
        Ok(rows.first().map_or(Ok(0), |row| column::<i64>(row, 0))? > 0)
    }
}

/// Checked puts in lock order.
pub(crate) struct PutRows<'a>(Vec<Row<'a>>);

impl<'a> PutRows<'a> {
    /// Rejects what the server cannot store. `vectors` has those of each put, or is empty without an index.
    pub(crate) fn new(
        puts: &'a [PutOp],
        vectors: Vec<Vec<(String, Arc<[f32]>)>>,
        ttl: &TtlConfig,
    ) -> Result<Self> {
        let mut vectors = vectors.into_iter();
        let mut rows = Vec::with_capacity(puts.len());
        for op in puts {
            rows.push(Row::new(op, vectors.next().unwrap_or_default(), ttl)?);
        }
        // Batches that share items lock them in the same order, which prevents deadlocks.
        rows.sort_by(|a, b| (&a.prefix, &a.op.key).cmp(&(&b.prefix, &b.op.key)));
        Ok(Self(rows))
    }

    /// How many bytes of keys, values and vectors they have.
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(Row::bytes).sum()
    }

    /// Stores them atomically.
    pub(crate) async fn store(&self, shared: &Shared, connection: &Connection) -> Result<()> {
        if let (None, [Row { prefix, op: PutOp { key, value: Some(value), .. }, ttl, .. }]) =
            (&shared.index, self.0.as_slice())
        {
            let (key, value, (seconds, minutes)) = (&**key, Json(value.as_str()), ttl_columns(*ttl));
            let params = [
                (prefix as _, Type::TEXT),
                (&key as _, Type::TEXT),
                (&value as _, Type::JSONB),
                (&seconds as _, Type::FLOAT8),
                (&minutes as _, Type::INT4),
            ];
            return connection.query(&shared.sql.put_one, &params).await.map(|_| ());
        }
        let mut columns = PutColumns::default();
        for Row { prefix, op, ttl, vectors } in &self.0 {
            let Some(value) = &op.value else {
                columns.deleted_prefixes.push(prefix);
                columns.deleted_keys.push(&op.key);
                continue;
            };
            columns.prefixes.push(prefix);
            columns.keys.push(&op.key);
            columns.values.push(Json(value.as_str()));
            let (seconds, minutes) = ttl_columns(*ttl);
            columns.seconds.push(seconds);
            columns.minutes.push(minutes);
            for (field_name, vector) in vectors {
                columns.vector_prefixes.push(prefix);
                columns.vector_keys.push(&op.key);
                columns.field_names.push(field_name);
                columns.numbers.extend_from_slice(vector);
            }
        }
        let statements = shared.sql.put(columns, shared.index.as_deref());
        let statements: Vec<_> =
            statements.iter().map(|(sql, params)| (sql.as_str(), params.list())).collect();
        connection.execute_all_in_transaction(&self.locks(shared), &statements).await.map(|_| ())
    }

    /// The statement that takes an exclusive advisory lock for each stripe of items, before any item is read. Sorted
    /// order prevents deadlocks.
    fn locks(&self, shared: &Shared) -> String {
        let stripes: BTreeSet<i32> =
            self.0.iter().map(|row| shared.lock_key(&row.prefix, &row.op.key)).collect();
        let locks: Vec<String> =
            stripes.iter().map(|stripe| format!("pg_advisory_xact_lock({LOCK_CLASS}, {stripe})")).collect();
        format!("SELECT {}", locks.join(", "))
    }
}

/// The TTL in seconds, for `expires_at`, and in whole minutes, for `ttl_minutes`. Minutes are rounded up, so that a
/// refresh never shortens the life of an item.
fn ttl_columns(ttl: Option<Duration>) -> (Option<f64>, Option<i32>) {
    let minutes = ttl.map(|ttl| {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        i32::try_from(seconds.div_ceil(60)).unwrap_or(i32::MAX)
    });
    (ttl.map(|ttl| ttl.as_secs_f64()), minutes)
}

/// Rejects text that the server cannot store.
pub(crate) fn check_text(what: &'static str, text: &str) -> Result<()> {
    if text.contains('\0') {
        return Err(Error::invalid_argument("PostgreSQL cannot store text with U+0000").with(what, text));
    }
    Ok(())
}

/// Rejects a value that the server cannot store: one with an escaped U+0000.
fn check_value(value: &JsonObject) -> Result<()> {
    const ESCAPED: &str = "\\u0000";
    let text = value.as_str();
    let is_escape = |at: usize| {
        let before = text.as_bytes().get(..at).unwrap_or_default();
        before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 0
    };
    if text.match_indices(ESCAPED).any(|(at, _)| is_escape(at)) {
        return Err(Error::invalid_argument("PostgreSQL cannot store an item's value with U+0000"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nul_is_rejected() {
        for (text, is_valid) in [
            (r#"{"a": "x\u0000"}"#, false),
            (r#"{"a": "\\u0000"}"#, true),
            (r#"{"a": "\\\u0000"}"#, false),
            (r#"{"a\u0000": 1}"#, false),
            (r#"{"a": "\u0001"}"#, true),
        ] {
            assert_eq!(check_value(&JsonObject::from_text(text).unwrap()).is_ok(), is_valid, "{text}");
        }
    }

    #[test]
    fn minutes_are_rounded_up() {
        let minutes = |seconds| ttl_columns(Some(Duration::from_secs_f64(seconds))).1;
        assert_eq!([0.01, 30.0, 60.0, 60.01, 90.0, 120.0].map(minutes), [1, 1, 1, 2, 2, 2].map(Some));
        assert_eq!(ttl_columns(None), (None, None));
    }
}
