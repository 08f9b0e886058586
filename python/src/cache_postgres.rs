//! The Postgres cache: one table, which LangGraph does not have.

use checkpoint_core::{Error, Result, ResultExt, TypedBytes, async_trait};
use common_postgres::{
    BACKEND, ConnectionOptions, ConnectionSource, Database, Migrations, Step, column, connection_setters,
    params, quote,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::cache::{Cache, Entry, Key, NativeCache, SWEPT, typed};
use crate::connection::config;
use crate::error::OrRaise;

/// The advisory lock of setup: one process at a time per database.
const LOCK: i64 = i64::from_be_bytes(*b"cach-mig");

#[derive(Default)]
struct Options {
    connection: ConnectionOptions,
}

impl Options {
    connection_setters!();
}

/// Results in the table `result_cache`. A namespace is stored as a JSON array, which is unambiguous.
struct PostgresCache {
    database: Database,
    migrations: Migrations,
    get: String,
    set: String,
    sweep: String,
    clear: String,
    clear_all: String,
}

impl PostgresCache {
    fn new(database: Database, schema: Option<&str>) -> Self {
        let schema = schema.map(quote);
        let s = schema.as_ref().map_or_else(String::new, |schema| format!("{schema}."));
        Self {
            database,
            get: format!(
                "SELECT k.at, c.encoding, c.value
                FROM unnest($1, $2) WITH ORDINALITY k (ns, key, at) JOIN {s}result_cache c USING (ns, key)
                WHERE c.expires_at IS NULL OR c.expires_at > now()"
            ),
            // Sorted, so that concurrent calls lock their rows in one order.
            set: format!(
                "INSERT INTO {s}result_cache (ns, key, expires_at, encoding, value)
                SELECT ns, key, now() + make_interval(secs => ttl), encoding, value
                FROM unnest($1, $2, $3, $4, $5) e (ns, key, ttl, encoding, value) ORDER BY ns, key
                ON CONFLICT (ns, key) DO UPDATE
                SET expires_at = EXCLUDED.expires_at, encoding = EXCLUDED.encoding, value = EXCLUDED.value"
            ),
            sweep: format!(
                "DELETE FROM {s}result_cache c USING (
                    SELECT ns, key FROM {s}result_cache WHERE expires_at <= now()
                    ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
                ) gone WHERE (c.ns, c.key) = (gone.ns, gone.key)"
            ),
            clear: format!("DELETE FROM {s}result_cache WHERE ns = ANY($1)"),
            clear_all: format!("DELETE FROM {s}result_cache"),
            migrations: migrations(schema, &s),
        }
    }
}

fn migrations(schema: Option<String>, s: &str) -> Migrations {
    let steps = vec![
        Step::new(format!("CREATE TABLE IF NOT EXISTS {s}result_cache_migrations (v INTEGER PRIMARY KEY)")),
        Step::new(format!(
            "CREATE TABLE IF NOT EXISTS {s}result_cache (
                ns TEXT NOT NULL,
                key TEXT NOT NULL,
                expires_at TIMESTAMP WITH TIME ZONE,
                encoding TEXT NOT NULL,
                value BYTEA NOT NULL,
                PRIMARY KEY (ns, key)
            )"
        )),
        Step::new(format!(
            "CREATE INDEX IF NOT EXISTS result_cache_expires_at_idx ON {s}result_cache (expires_at)
            WHERE expires_at IS NOT NULL"
        )),
    ];
    let table = format!("{s}result_cache_migrations");
    let columns: &[&str] = &["ns", "key", "expires_at", "encoding", "value"];
    let tables = vec![(format!("{s}result_cache"), columns)];
    Migrations { schema, table, lock_key: LOCK, steps, indexes: Vec::new(), tables }
}

/// The text of a namespace. JSON escapes U+0000, which PostgreSQL cannot store.
fn to_text(namespace: &[String]) -> Result<String> {
    serde_json::to_string(namespace)
        .map_err(|error| Error::invalid_argument("a namespace cannot be written as JSON").with_source(error))
}

/// Namespaces and keys in columns.
fn to_columns<'a>(keys: impl Iterator<Item = &'a Key>) -> Result<(Vec<String>, Vec<&'a str>)> {
    let columns = keys.map(|key| {
        if key.key.contains('\0') {
            return Err(Error::invalid_argument("PostgreSQL cannot store a key with U+0000"));
        }
        Ok((to_text(&key.namespace)?, key.key.as_str()))
    });
    columns.collect()
}

#[async_trait]
impl Cache for PostgresCache {
    async fn setup(&self) -> Result<()> {
        let Self { database, migrations, .. } = self;
        let set_up = |connection| async move {
            drop(connection);
            migrations.run(database).await
        };
        database.run(set_up).await.at(BACKEND, "setup")
    }

    async fn get(&self, keys: Vec<Key>) -> Result<Vec<Option<TypedBytes>>> {
        let read = async {
            let (namespaces, names) = to_columns(keys.iter())?;
            let rows = self.database.query(&self.get, &params![TEXT_ARRAY: namespaces, names]).await?;
            let mut values = vec![None; keys.len()];
            for row in &rows {
                let at: i64 = column(row, 0)?;
                let value = typed(column(row, 1)?, column(row, 2)?);
                // Ordinals begin with 1.
                if let Some(slot) = usize::try_from(at - 1).ok().and_then(|at| values.get_mut(at)) {
                    *slot = Some(value);
                }
            }
            Ok(values)
        };
        read.await.at(BACKEND, "get")
    }

    async fn set(&self, entries: Vec<Entry>) -> Result<()> {
        let write = async {
            let (namespaces, names) = to_columns(entries.iter().map(|entry| &entry.key))?;
            let ttls: Vec<Option<f64>> = entries.iter().map(|entry| entry.ttl).collect();
            let tags: Vec<&str> = entries.iter().map(|entry| &*entry.value.tag).collect();
            let values: Vec<&[u8]> = entries.iter().map(|entry| &*entry.value.data).collect();
            let set = params![TEXT_ARRAY: namespaces, names; FLOAT8_ARRAY: ttls; TEXT_ARRAY: tags; BYTEA_ARRAY: values];
            let sweep = params![INT8: SWEPT];
            let statements = [(self.set.as_str(), set.to_vec()), (self.sweep.as_str(), sweep.to_vec())];
            let statements = &statements;
            self.database
                .run(|connection| async move { connection.execute_all_in_transaction("", statements).await })
                .await
        };
        write.await.map(|_| ()).at(BACKEND, "set")
    }

    async fn clear(&self, namespaces: Option<Vec<Vec<String>>>) -> Result<()> {
        let delete = async {
            match namespaces {
                None => self.database.query(&self.clear_all, &[]).await,
                Some(namespaces) => {
                    let texts: Vec<_> = namespaces.iter().map(|one| to_text(one)).collect::<Result<_>>()?;
                    self.database.query(&self.clear, &params![TEXT_ARRAY: texts]).await
                }
            }
        };
        delete.await.map(|_| ()).at(BACKEND, "clear")
    }

    async fn close(&self) -> Result<()> {
        self.database.close();
        Ok(())
    }
}

/// Creates a cache in the database of a connection string.
#[pyfunction]
#[pyo3(signature = (conn_string, options))]
fn postgres_cache(py: Python<'_>, conn_string: &str, options: &Bound<'_, PyDict>) -> PyResult<NativeCache> {
    let source = ConnectionSource::Config(Box::new(config(py, conn_string)?));
    let Options { connection } = connect!(Options::default(), options);
    let (database, schema) = connection.database(&source).at(BACKEND, "build").or_raise(py)?;
    Ok(NativeCache::new(py, PostgresCache::new(database, schema.as_deref())))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(postgres_cache, module)?)
}
