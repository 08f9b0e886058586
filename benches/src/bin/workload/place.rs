//! Where a saver stores its data, new for every run.

use std::path::{Path, PathBuf};

use checkpoint_postgres::tokio_postgres::{Client, Config, NoTls, types::ToSql};
use clap::Args;
use indexmap::IndexMap;

use crate::{Result, Synchrony};

/// The sizes of tables or files, in bytes.
pub(crate) type Disk = IndexMap<String, IndexMap<&'static str, i64>>;

/// Where a saver stores its data.
#[derive(Debug)]
pub(crate) enum Place {
    /// In memory.
    Memory,
    /// In a file.
    File(PathBuf),
    /// In a new database.
    Database(Database),
}

impl Place {
    /// Returns the size of the data.
    pub(crate) async fn disk(&self) -> Result<Option<Disk>> {
        match self {
            Self::Memory => Ok(None),
            Self::File(path) => {
                let mut log = path.as_os_str().to_owned();
                log.push("-wal");
                let size = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
                let files = IndexMap::from([
                    ("file", i64::try_from(size(path))?),
                    ("wal", i64::try_from(size(Path::new(&log)))?),
                ]);
                Ok(Some(Disk::from([("sqlite".to_owned(), files)])))
            }
            Self::Database(database) => database.disk().await.map(Some),
        }
    }

    /// Updates the planner's statistics, so that reads do not depend on the timing of autovacuum.
    pub(crate) async fn analyze(&self) -> Result<()> {
        if let Self::Database(database) = self {
            database.run("VACUUM (ANALYZE)").await?;
        }
        Ok(())
    }
}

/// The server for the databases, with a role that may create them.
#[derive(Debug, Clone, Args)]
pub(crate) struct Server {
    /// The host of PostgreSQL.
    #[arg(long, env = "BENCH_PG_HOST", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Its port.
    #[arg(long, env = "BENCH_PG_PORT", default_value_t = 5432)]
    pub(crate) port: u16,
    /// The role that creates the databases.
    #[arg(long, env = "BENCH_PG_USER", default_value = "postgres")]
    pub(crate) user: String,
    /// The password.
    #[arg(long, env = "BENCH_PG_PASSWORD", default_value = "postgres", hide_env_values = true)]
    pub(crate) password: String,
}

impl Server {
    /// Connects to a database. The connection ends when the client is dropped.
    pub(crate) async fn connect(&self, database: &str, options: &str) -> Result<Client> {
        let mut config = Config::new();
        config.host(&self.host).port(self.port).user(&self.user).password(&self.password);
        config.dbname(database).options(options);
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// Creates a database, and brings the server to the same state before every run.
    pub(crate) async fn database(&self, sync: Synchrony) -> Result<Database> {
        let name = format!("bench_{:08x}_{}", crate::groups::run_id(), std::process::id());
        let admin = self.connect("postgres", "").await?;
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await?;
        Ok(Database { server: self.clone(), name, sync })
    }
}

/// A new database.
#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) server: Server,
    pub(crate) name: String,
    sync: Synchrony,
}

impl Database {
    /// The options of every connection: the durability of commits.
    pub(crate) fn options(&self) -> &'static str {
        match self.sync {
            Synchrony::On => "-c synchronous_commit=on",
            Synchrony::Off => "-c synchronous_commit=off",
        }
    }

    /// The URL for a saver.
    pub(crate) fn url(&self) -> String {
        let Server { host, port, user, password } = &self.server;
        let (user, password, options) = (encoded(user), encoded(password), encoded(self.options()));
        let name = &self.name;
        format!("postgres://{user}:{password}@{host}:{port}/{name}?sslmode=disable&options={options}")
    }

    /// Runs a statement on a new connection.
    pub(crate) async fn run(&self, sql: &str) -> Result<()> {
        Ok(self.server.connect(&self.name, "").await?.batch_execute(sql).await?)
    }

    async fn disk(&self) -> Result<Disk> {
        const SIZES: &str = "SELECT relname::text, pg_relation_size(oid), \
            pg_table_size(oid) - pg_relation_size(oid), pg_indexes_size(oid) FROM pg_class \
            WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND pg_relation_size(oid) > 0 \
            AND relname !~ 'migrations' ORDER BY relname";
        let none: [&(dyn ToSql + Sync); 0] = [];
        let rows = self.server.connect(&self.name, "").await?.query(SIZES, &none).await?;
        let sizes = |row: &checkpoint_postgres::tokio_postgres::Row| {
            let table = IndexMap::from([
                ("heap", row.try_get(1)?),
                ("toast_etc", row.try_get(2)?),
                ("indexes", row.try_get(3)?),
            ]);
            Ok((row.try_get(0)?, table))
        };
        rows.iter().map(sizes).collect()
    }

    /// Drops the database, even if there are connections to it.
    pub(crate) async fn remove(self) -> Result<()> {
        let admin = self.server.connect("postgres", "").await?;
        Ok(admin.batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", self.name)).await?)
    }
}

/// Percent-encodes text for a URL.
fn encoded(text: &str) -> String {
    let byte = |byte: u8| {
        if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    text.bytes().map(byte).collect()
}
