//! Creates and upgrades the tables with Python's migrations and version numbers.

use std::sync::Arc;

use checkpoint_core::{Error, ErrorKind, Result};
use common_postgres::tokio_postgres::types::Type;
use common_postgres::{Connection, Database, Migrations, Step, column, quote};

use crate::AnnIndex;
use crate::builder::VectorIndex;

/// The advisory lock of setup: one process at a time per database.
const LOCK: i64 = i64::from_be_bytes(*b"stor-mig");

/// The columns that statements use.
const ITEM_COLUMNS: &[&str] =
    &["prefix", "key", "value", "created_at", "updated_at", "expires_at", "ttl_minutes"];
const VECTOR_COLUMNS: &[&str] = &["prefix", "key", "field_name", "embedding"];

/// The tables of one schema.
#[derive(Debug)]
pub(crate) struct Tables {
    /// The schema, quoted and followed by a dot, or empty.
    pub(crate) prefix: String,
    items: Migrations,
    vectors: Option<Migrations>,
    index: Option<Arc<VectorIndex>>,
}

impl Tables {
    pub(crate) fn new(schema: Option<&str>, index: Option<Arc<VectorIndex>>, filter_index: bool) -> Self {
        let schema = schema.map(quote);
        let s = schema.as_ref().map_or_else(String::new, |schema| format!("{schema}."));
        let items = Migrations {
            schema: schema.clone(),
            table: format!("{s}store_migrations"),
            lock_key: LOCK,
            steps: item_steps(&s),
            indexes: if filter_index { vec![value_index(&s)] } else { Vec::new() },
            tables: vec![(format!("{s}store"), ITEM_COLUMNS)],
        };
        let vectors = index.as_ref().map(|index| Migrations {
            schema,
            table: format!("{s}vector_migrations"),
            lock_key: LOCK,
            steps: vector_steps(&s, index),
            indexes: Vec::new(),
            tables: vec![(format!("{s}store_vectors"), VECTOR_COLUMNS)],
        });
        Self { prefix: s, items, vectors, index }
    }

    pub(crate) async fn set_up(&self, database: &Database) -> Result<()> {
        // Python's setup takes no lock, so any step may conflict with it and is retried.
        database
            .run(|connection| async move {
                drop(connection);
                self.items.run(database).await
            })
            .await?;
        let (Some(vectors), Some(index)) = (&self.vectors, &self.index) else { return Ok(()) };
        database
            .run(|connection| async move {
                require_extension(&connection).await?;
                drop(connection);
                vectors.run(database).await?;
                let connection = database.connection().await?;
                self.check_vectors(&connection, index).await
            })
            .await
    }

    pub(crate) async fn check_schema(&self, database: &Database) -> Result<()> {
        self.items.check(database).await?;
        let (Some(vectors), Some(index)) = (&self.vectors, &self.index) else { return Ok(()) };
        vectors.check(database).await?;
        database.run(|connection| async move { self.check_vectors(&connection, index).await }).await
    }

    /// Fails if the existing vectors or their index were made for another configuration.
    async fn check_vectors(&self, connection: &Connection, index: &VectorIndex) -> Result<()> {
        const COLUMN: &str = "SELECT format_type(atttypid, atttypmod) FROM pg_attribute \
             WHERE attrelid = to_regclass($1) AND attname = 'embedding' AND NOT attisdropped";
        const CLASS: &str = "SELECT c.opcname::text FROM pg_index i JOIN pg_opclass c ON c.oid = i.indclass[0] \
             WHERE i.indexrelid = to_regclass($1)";
        let table = format!("{}store_vectors", self.prefix);
        let rows = connection.query(COLUMN, &[(&table, Type::TEXT)]).await?;
        let found: &str = rows.first().map_or(Ok("nothing"), |row| column(row, 0))?;
        // If the type's schema is not in the search path, the name is qualified.
        let wanted = format!("{}({})", index.vector_type.as_str(), index.config.dims);
        if found.rsplit('.').next() != Some(wanted.as_str()) {
            return Err(Error::new(
                ErrorKind::Schema,
                "the table of vectors was made for another index; configure that index, or use another schema",
            )
            .with("table", table)
            .with("found", found)
            .with("index", wanted));
        }
        let name = format!("{}store_vectors_embedding_idx", self.prefix);
        let rows = connection.query(CLASS, &[(&name, Type::TEXT)]).await?;
        let wanted = index.operator_class();
        match rows.first().map(|row| column::<&str>(row, 0)).transpose()? {
            Some(found) if index.ann != AnnIndex::Flat && found != wanted => Err(Error::new(
                ErrorKind::Schema,
                "the vector index was made for another distance, and searches could not use it; drop it, \
                 delete version 2 from vector_migrations, and run setup() again",
            )
            .with("index", name)
            .with("found", found)
            .with("wanted", wanted)),
            _ => Ok(()),
        }
    }
}

/// Creates pgvector's extension, or fails with the remedy.
async fn require_extension(connection: &Connection) -> Result<()> {
    const IS_INSTALLED: &str = "SELECT 1 FROM pg_extension WHERE extname = 'vector'";
    const IS_AVAILABLE: &str = "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'";
    if !connection.query(IS_INSTALLED, &[]).await?.is_empty() {
        return Ok(());
    }
    if connection.query(IS_AVAILABLE, &[]).await?.is_empty() {
        return Err(Error::new(
            ErrorKind::Schema,
            "the server has no extension `vector`: install pgvector where the server runs (the package \
             postgresql-VERSION-pgvector, or the image pgvector/pgvector), then run setup() again",
        ));
    }
    match connection.batch("CREATE EXTENSION IF NOT EXISTS vector").await {
        Err(error) if error.kind() == ErrorKind::InvalidConfig => Err(Error::new(
            ErrorKind::InvalidConfig,
            "this role may not create the extension `vector`; have a superuser run CREATE EXTENSION vector in this database",
        )
        .with_source(error)),
        created => created,
    }
}

/// Python's migrations of items; a version is an index into the list.
fn item_steps(s: &str) -> Vec<Step> {
    vec![
        Step::new(format!(
            "CREATE TABLE IF NOT EXISTS {s}store_migrations (v INTEGER PRIMARY KEY);
            CREATE TABLE IF NOT EXISTS {s}store (
                prefix TEXT NOT NULL,
                key TEXT NOT NULL,
                value JSONB NOT NULL,
                created_at TIMESTAMP WITH TIME ZONE DEFAULT CURRENT_TIMESTAMP,
                updated_at TIMESTAMP WITH TIME ZONE DEFAULT CURRENT_TIMESTAMP,
                PRIMARY KEY (prefix, key)
            )"
        )),
        Step::index(
            format!("{s}store"),
            format!("{s}store_prefix_idx"),
            format!(
                "CREATE INDEX CONCURRENTLY IF NOT EXISTS store_prefix_idx ON {s}store USING btree (prefix text_pattern_ops)"
            ),
        ),
        Step::new(format!(
            "ALTER TABLE {s}store ADD COLUMN IF NOT EXISTS expires_at TIMESTAMP WITH TIME ZONE, \
             ADD COLUMN IF NOT EXISTS ttl_minutes INT"
        )),
        Step::new(format!(
            "CREATE INDEX IF NOT EXISTS idx_store_expires_at ON {s}store (expires_at) WHERE expires_at IS NOT NULL"
        )),
    ]
}

/// The index for filters, which Python does not have.
fn value_index(s: &str) -> Step {
    Step::index(
        format!("{s}store"),
        format!("{s}store_value_idx"),
        format!(
            "CREATE INDEX CONCURRENTLY IF NOT EXISTS store_value_idx ON {s}store USING gin (value jsonb_path_ops)"
        ),
    )
}

/// Python's migrations of vectors.
fn vector_steps(s: &str, index: &VectorIndex) -> Vec<Step> {
    let (vector_type, dims) = (index.vector_type.as_str(), index.config.dims);
    let (method, with) = match index.ann {
        AnnIndex::Hnsw { m, ef_construction } => {
            let m = m.map(|m| format!("m = {m}"));
            let candidates = ef_construction.map(|candidates| format!("ef_construction = {candidates}"));
            ("hnsw", m.into_iter().chain(candidates).collect())
        }
        AnnIndex::Ivfflat { lists } => ("ivfflat", vec![format!("lists = {lists}")]),
        AnnIndex::Flat => ("", Vec::new()),
    };
    let with = if with.is_empty() { String::new() } else { format!(" WITH ({})", with.join(", ")) };
    vec![
        Step::new(format!(
            "CREATE TABLE IF NOT EXISTS {s}vector_migrations (v INTEGER PRIMARY KEY); \
             CREATE EXTENSION IF NOT EXISTS vector"
        )),
        Step::new(format!(
            "CREATE TABLE IF NOT EXISTS {s}store_vectors (
                prefix TEXT NOT NULL,
                key TEXT NOT NULL,
                field_name TEXT NOT NULL,
                embedding {vector_type}({dims}),
                created_at TIMESTAMP WITH TIME ZONE DEFAULT CURRENT_TIMESTAMP,
                updated_at TIMESTAMP WITH TIME ZONE DEFAULT CURRENT_TIMESTAMP,
                PRIMARY KEY (prefix, key, field_name),
                FOREIGN KEY (prefix, key) REFERENCES {s}store(prefix, key) ON DELETE CASCADE
            )"
        )),
        Step::index(
            format!("{s}store_vectors"),
            format!("{s}store_vectors_embedding_idx"),
            format!(
                "CREATE INDEX CONCURRENTLY IF NOT EXISTS store_vectors_embedding_idx ON {s}store_vectors \
                 USING {method} (embedding {}){with}",
                index.operator_class()
            ),
        )
        // Python then neither creates nor records it.
        .skip_if(index.ann == AnnIndex::Flat),
    ]
}
