//! Creates and upgrades the tables, with the numbers of Python's migrations.

use std::sync::atomic::{AtomicBool, Ordering};

use checkpoint_core::{Error, ErrorKind, Result};
use common_postgres::tokio_postgres::types::Type;
use common_postgres::{Connection, Database, Migrations, Step, column, params, quote, text};

/// The advisory lock that serializes `setup()` of checkpoint tables in one database.
const LOCK: i64 = i64::from_be_bytes(*b"ckpt-mig");

/// The advisory lock of the transaction that creates the table of leases.
const LEASES_LOCK: i64 = i64::from_be_bytes(*b"ckptleas");

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
    /// The quoted name of the table of leases. Python does not know it, so no migration creates it.
    leases: String,
    /// Whether that table is known to be there, for this role to delete from.
    has_leases: AtomicBool,
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
        let leases = format!("{s}checkpoint_leases");
        Self { prefix: s, migrations, lz4, leases, has_leases: AtomicBool::new(false) }
    }

    /// The quoted name of the table of leases.
    pub(crate) fn leases(&self) -> &str {
        &self.leases
    }

    /// Whether deleting a thread deletes its lease.
    pub(crate) fn has_leases(&self) -> bool {
        self.has_leases.load(Ordering::Relaxed)
    }

    pub(crate) fn set_has_leases(&self, has_leases: bool) {
        self.has_leases.store(has_leases, Ordering::Relaxed);
    }

    pub(crate) async fn set_up(&self, database: &Database) -> Result<()> {
        let run = |connection| async move {
            self.check(&connection).await?;
            drop(connection);
            self.migrations.run(database).await
        };
        // Python's setup takes no lock, and may run concurrently.
        database.run(run).await?;
        database.run(|connection| async move { self.create_leases(&connection).await }).await?;
        if self.lz4 { self.compress(&database.connection().await?).await } else { Ok(()) }
    }

    pub(crate) async fn check_schema(&self, database: &Database) -> Result<()> {
        self.migrations.check(database).await
    }

    /// Rejects tables of Python's `ShallowPostgresSaver`, which have the same names and migrations but other columns.
    async fn check(&self, connection: &Connection) -> Result<()> {
        // Names are resolved by the latest catalog, rows by the statement's snapshot: a table that another process is just
        // creating may have a name and no columns yet.
        const LACKS_COLUMN: &str = "SELECT t.name, t.needed FROM unnest($1::text[], $2::text[]) t (name, needed) \
             WHERE (SELECT count(*) > 0 AND NOT coalesce(bool_or(attname = t.needed), false) FROM pg_attribute \
             WHERE attrelid = to_regclass(t.name) AND attnum > 0 AND NOT attisdropped)";
        let tables =
            ["checkpoints", "checkpoint_blobs"].map(|table| format!("{}{table}", self.prefix)).to_vec();
        let columns = vec!["checkpoint_id", "version"];
        let rows = connection.query(LACKS_COLUMN, &params![TEXT_ARRAY: tables, columns]).await?;
        let Some(row) = rows.first() else { return Ok(()) };
        Err(Error::new(
            ErrorKind::Schema,
            "the tables have another shape than LangGraph's PostgresSaver gives them, as those of its \
             ShallowPostgresSaver; use another schema",
        )
        .with("table", text(row, 0)?)
        .with("lacks", text(row, 1)?))
    }

    /// Creates the table of leases. A role that may not create tables works without leases.
    async fn create_leases(&self, connection: &Connection) -> Result<()> {
        const STATE: &str = "SELECT to_regclass($1) IS NOT NULL, \
             coalesce(has_table_privilege(to_regclass($1), 'DELETE'), false), \
             NOT current_setting('transaction_read_only')::bool AND CASE WHEN $2::text IS NULL \
             THEN has_schema_privilege(current_schema()::text, 'CREATE') \
             ELSE has_schema_privilege(to_regnamespace($2)::oid, 'CREATE') END";
        let params = params![TEXT: self.leases, self.migrations.schema];
        let rows = connection.query(STATE, &params).await?;
        let Some(row) = rows.first() else { return Ok(()) };
        if column(row, 0)? {
            self.set_has_leases(column(row, 1)?);
            return Ok(());
        }
        if column::<Option<bool>>(row, 2)? != Some(true) {
            tracing::warn!(
                "there is no table of leases, and this role may not create it; threads cannot be leased"
            );
            return Ok(());
        }
        // Two processes that create a table at the same moment would fail with a duplicate. Nobody builds an index in such
        // a transaction, so it may wait for the lock.
        let lock = format!("SELECT pg_advisory_xact_lock({LEASES_LOCK})");
        let create = format!(
            "CREATE TABLE IF NOT EXISTS {} (
                thread_id TEXT PRIMARY KEY,
                holder TEXT NOT NULL,
                token BIGINT NOT NULL,
                expires_at TIMESTAMPTZ NOT NULL
            )",
            self.leases
        );
        connection.execute_in_transaction(&lock, &create, &[]).await?;
        self.set_has_leases(true);
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
