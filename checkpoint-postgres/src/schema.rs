//! Creates and upgrades the tables, with the numbers of Python's migrations.

use checkpoint_core::{Error, ErrorKind, Result};
use common_postgres::tokio_postgres::types::Type;
use common_postgres::{Connection, Database, Migrations, Step, quote};

/// The advisory lock that serializes `setup()` of checkpoint tables in one database.
const LOCK: i64 = i64::from_be_bytes(*b"ckpt-mig");

/// How often setting the compression is attempted while others use the table.
const COMPRESSION_ATTEMPTS: usize = 5;

/// The columns that hold large values, of which Python's tables keep the server's default compression (pglz).
const COMPRESSED: [&str; 2] = ["checkpoint_blobs", "checkpoint_writes"];

/// The columns that statements use.
const COLUMNS: [(&str, &[&str]); 3] = [
    (
        "checkpoints",
        &["thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "checkpoint", "metadata"],
    ),
    ("checkpoint_blobs", &["thread_id", "checkpoint_ns", "channel", "version", "type", "blob"]),
    (
        "checkpoint_writes",
        &[
            "thread_id",
            "checkpoint_ns",
            "checkpoint_id",
            "task_id",
            "idx",
            "channel",
            "type",
            "blob",
            "task_path",
        ],
    ),
];

/// The tables of one schema.
#[derive(Debug)]
pub(crate) struct Tables {
    /// The schema, quoted and with its dot, or nothing.
    prefix: String,
    migrations: Migrations,
    lz4: bool,
}

impl Tables {
    pub(crate) fn new(schema: Option<&str>, lz4: bool) -> Self {
        let quoted = schema.map(quote);
        let s = quoted.as_ref().map_or_else(String::new, |schema| format!("{schema}."));
        let migrations = Migrations {
            schema: quoted,
            table: format!("{s}checkpoint_migrations"),
            lock_key: LOCK,
            steps: steps(&s),
            indexes: Vec::new(),
            tables: COLUMNS.iter().map(|(table, columns)| (format!("{s}{table}"), *columns)).collect(),
        };
        Self { prefix: s, migrations, lz4 }
    }

    pub(crate) async fn set_up(&self, database: &Database) -> Result<()> {
        let run = |connection| async move {
            self.check(&connection).await?;
            drop(connection);
            self.migrations.run(database).await
        };
        // Python's setup takes no lock, and may run concurrently.
        database.run(run).await?;
        if self.lz4 { self.compress(&database.connection().await?).await } else { Ok(()) }
    }

    pub(crate) async fn check_schema(&self, database: &Database) -> Result<()> {
        self.migrations.check(database).await
    }

    /// Rejects tables of Python's `ShallowPostgresSaver`, which have the same names and migrations but other columns.
    async fn check(&self, connection: &Connection) -> Result<()> {
        // Names are resolved by the latest catalog, rows by the statement's snapshot: a table that another process is just
        // creating may have a name and no columns yet.
        const LACKS_COLUMN: &str = "SELECT count(*) > 0 AND NOT coalesce(bool_or(attname = $2), false) FROM pg_attribute \
             WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped";
        for (table, column) in [("checkpoints", "checkpoint_id"), ("checkpoint_blobs", "version")] {
            let table = format!("{}{table}", self.prefix);
            let rows = connection.query(LACKS_COLUMN, &[(&table, Type::TEXT), (&column, Type::TEXT)]).await?;
            if rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false)) {
                return Err(Error::new(
                    ErrorKind::Schema,
                    "the tables have another shape than LangGraph's PostgresSaver gives them, as those of its \
                     ShallowPostgresSaver; use another schema",
                )
                .with("table", table)
                .with("lacks", column));
            }
        }
        Ok(())
    }

    /// Sets LZ4 for future values. It is optional: if it fails now, the next setup tries again.
    async fn compress(&self, connection: &Connection) -> Result<()> {
        const IS_SET: &str = "SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = 'blob' \
             AND attcompression = 'l'";
        for table in COMPRESSED {
            let table = format!("{}{table}", self.prefix);
            let set = format!("ALTER TABLE {table} ALTER COLUMN blob SET COMPRESSION lz4");
            for attempt in 1..=COMPRESSION_ATTEMPTS {
                // A server that is too old for this column does not support LZ4 either.
                match connection.query(IS_SET, &[(&table, Type::TEXT)]).await {
                    Ok(rows) if rows.is_empty() => {}
                    Ok(_) => break,
                    Err(error) => {
                        tracing::debug!(%error, "the server offers no choice of compression");
                        return Ok(());
                    }
                }
                // All later statements queue behind one that waits for this lock.
                match connection.execute_in_transaction("SET LOCAL lock_timeout = '500ms'", &set, &[]).await {
                    Ok(_) => break,
                    Err(error) if error.kind() == ErrorKind::Timeout && attempt < COMPRESSION_ATTEMPTS => {}
                    Err(error) => {
                        tracing::warn!(%error, table, "LZ4 is not set; large values are compressed by the server's default");
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}

/// Python's migrations; a version is a position.
fn steps(s: &str) -> Vec<Step> {
    let index = |table: &str| {
        Step::index(
            format!("{s}{table}"),
            format!("{s}{table}_thread_id_idx"),
            format!("CREATE INDEX CONCURRENTLY IF NOT EXISTS {table}_thread_id_idx ON {s}{table}(thread_id)"),
        )
    };
    vec![
        Step::new(format!("CREATE TABLE IF NOT EXISTS {s}checkpoint_migrations (v INTEGER PRIMARY KEY)")),
        Step::new(format!(
            "CREATE TABLE IF NOT EXISTS {s}checkpoints (
                thread_id TEXT NOT NULL,
                checkpoint_ns TEXT NOT NULL DEFAULT '',
                checkpoint_id TEXT NOT NULL,
                parent_checkpoint_id TEXT,
                type TEXT,
                checkpoint JSONB NOT NULL,
                metadata JSONB NOT NULL DEFAULT '{{}}',
                PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id)
            )"
        )),
        Step::new(format!(
            "CREATE TABLE IF NOT EXISTS {s}checkpoint_blobs (
                thread_id TEXT NOT NULL,
                checkpoint_ns TEXT NOT NULL DEFAULT '',
                channel TEXT NOT NULL,
                version TEXT NOT NULL,
                type TEXT NOT NULL,
                blob BYTEA,
                PRIMARY KEY (thread_id, checkpoint_ns, channel, version)
            )"
        )),
        Step::new(format!(
            "CREATE TABLE IF NOT EXISTS {s}checkpoint_writes (
                thread_id TEXT NOT NULL,
                checkpoint_ns TEXT NOT NULL DEFAULT '',
                checkpoint_id TEXT NOT NULL,
                task_id TEXT NOT NULL,
                idx INTEGER NOT NULL,
                channel TEXT NOT NULL,
                type TEXT,
                blob BYTEA NOT NULL,
                PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
            )"
        )),
        Step::new(format!("ALTER TABLE {s}checkpoint_blobs ALTER COLUMN blob DROP NOT NULL")),
        // A no-op in Python's list.
        Step::new("SELECT 1"),
        index("checkpoints"),
        index("checkpoint_blobs"),
        index("checkpoint_writes"),
        Step::new(format!(
            "ALTER TABLE {s}checkpoint_writes ADD COLUMN IF NOT EXISTS task_path TEXT NOT NULL DEFAULT ''"
        )),
    ]
}
