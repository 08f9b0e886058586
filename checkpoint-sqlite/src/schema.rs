//! The tables: checks and `setup`.

use std::time::{Duration, Instant};

use checkpoint_core::{Error, ErrorKind, Result};
use rusqlite::Connection;

use crate::connection::{Config, FileId, no_tables, open_to_read, open_to_set_up, read_only};
use crate::error::{OrConvert, RUN_SETUP, is_busy};
use crate::sql;

/// A required column: its name, and its position in the primary key (0 if it is not part of it).
type Column = (&'static str, i64);

const CHECKPOINTS: [Column; 7] = [
    ("thread_id", 1),
    ("checkpoint_ns", 2),
    ("checkpoint_id", 3),
    ("parent_checkpoint_id", 0),
    ("type", 0),
    ("checkpoint", 0),
    ("metadata", 0),
];

const WRITES: [Column; 8] = [
    ("thread_id", 1),
    ("checkpoint_ns", 2),
    ("checkpoint_id", 3),
    ("task_id", 4),
    ("idx", 5),
    ("channel", 0),
    ("type", 0),
    ("value", 0),
];

const LEASES: [Column; 4] = [("thread_id", 1), ("holder", 0), ("token", 0), ("expires_at", 0)];

const LEASES_TABLE: &str = "checkpoint_leases";

const TASK_PATH: &str = "task_path";

/// How long `setup` sleeps between attempts to switch to a write-ahead log, which no busy handler covers.
const PAUSE: Duration = Duration::from_millis(5);

/// Which of our tables a file has. Their columns were checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    checkpoints: bool,
    /// Whether `writes` exists, and if so, whether it has `task_path`.
    writes: Option<bool>,
    leases: bool,
}

/// A file that can be read and written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ready {
    pub(crate) has_task_path: bool,
    /// Files that Python or an older version of this program set up have no leases.
    pub(crate) has_leases: bool,
}

impl Found {
    /// Both of Python's tables, or the error that says to run `setup()`.
    pub(crate) fn ready(self) -> Result<Ready> {
        match (self.checkpoints, self.writes) {
            (true, Some(has_task_path)) => Ok(Ready { has_task_path, has_leases: self.leases }),
            _ => Err(no_tables()),
        }
    }

    fn is_complete(self) -> bool {
        self.checkpoints && self.writes == Some(true) && self.leases
    }
}

/// Checks the tables without changing anything. Only the columns identify them: Python stores no version in the file, and
/// `user_version` belongs to the application that shares it.
///
/// # Errors
/// `Schema` for a table that this program cannot write to safely.
pub(crate) fn inspect(connection: &Connection) -> Result<Found> {
    let checkpoints = columns(connection, "checkpoints")?;
    let writes = columns(connection, "writes")?;
    if !checkpoints.is_empty() {
        verify("checkpoints", &checkpoints, &CHECKPOINTS)?;
    }
    if !writes.is_empty() {
        verify("writes", &writes, &WRITES)?;
    }
    Ok(Found {
        checkpoints: !checkpoints.is_empty(),
        writes: (!writes.is_empty()).then(|| writes.iter().any(|column| column.name == TASK_PATH)),
        leases: has_leases(connection)?,
    })
}

/// Whether the table of leases exists. Its columns are checked.
///
/// # Errors
/// `Schema` for another table of that name.
pub(crate) fn has_leases(connection: &Connection) -> Result<bool> {
    let leases = columns(connection, LEASES_TABLE)?;
    if leases.is_empty() {
        return Ok(false);
    }
    verify(LEASES_TABLE, &leases, &LEASES).map(|()| true)
}

struct StoredColumn {
    name: String,
    /// NOT NULL without a default: an insert that omits it fails.
    must_be_given: bool,
    key_position: i64,
}

fn columns(connection: &Connection, table: &str) -> Result<Vec<StoredColumn>> {
    let read = || {
        let mut statement = connection.prepare_cached(sql::TABLE_INFO)?;
        let rows = statement.query_map([table], |row| {
            Ok(StoredColumn {
                name: row.get(0)?,
                must_be_given: row.get::<_, bool>(1)? && !row.get::<_, bool>(2)?,
                key_position: row.get(3)?,
            })
        })?;
        rows.collect()
    };
    rusqlite::Result::<_>::or_convert(read())
}

/// Whether the writes have task paths, for a file that had none when it was opened.
pub(crate) fn has_task_path(connection: &Connection) -> Result<bool> {
    Ok(columns(connection, "writes")?.iter().any(|column| column.name == TASK_PATH))
}

fn verify(table: &'static str, found: &[StoredColumn], wanted: &[Column]) -> Result<()> {
    let refuse = |message, column: &str| {
        Err(Error::new(ErrorKind::Schema, message).with("table", table).with("column", column))
    };
    let key_position =
        |name: &str| found.iter().find(|column| column.name == name).map(|column| column.key_position);
    if let Some((name, _)) = wanted.iter().find(|(name, position)| key_position(name) != Some(*position)) {
        return refuse(
            "a table of this name exists, but lacks a column that is needed or has another primary key; choose another file",
            name,
        );
    }
    let known = |column: &&StoredColumn| {
        column.name == TASK_PATH || wanted.iter().any(|(name, _)| column.name == *name)
    };
    let unknown = found.iter().filter(|column| !known(column));
    match unknown.into_iter().find(|column| column.must_be_given || column.key_position != 0) {
        Some(column) => refuse(
            "a table has a column that this program does not know and cannot leave out; update the program",
            &column.name,
        ),
        None => Ok(()),
    }
}

/// Creates or upgrades the tables, and waits for the locks of other connections.
pub(crate) fn set_up(config: &Config) -> Result<()> {
    let begun = Instant::now();
    loop {
        match attempt(config) {
            Err(error) if is_busy(&error) && begun.elapsed() < config.busy_timeout => {
                std::thread::sleep(PAUSE);
            }
            other => return other.map_err(|error| error.with("path", config.path.display())),
        }
    }
}

/// A read-only file is accepted if it has the tables.
fn content_with_tables(config: &Config, existing: Option<FileId>, otherwise: Error) -> Result<()> {
    match existing.map(|file| open_to_read(config, file)) {
        Some(Ok(_)) => Ok(()),
        Some(Err(error)) if error.message() != RUN_SETUP => Err(error),
        _ => Err(otherwise),
    }
}

fn attempt(config: &Config) -> Result<()> {
    let existing = match FileId::of(&config.path) {
        Ok(file) => Some(file),
        // The directory exists, the file does not: `setup` creates it.
        Err(error) if error.kind() == ErrorKind::Schema => None,
        Err(error) => return Err(error),
    };
    if config.read_only {
        return content_with_tables(config, existing, read_only());
    }
    let connection = match open_to_set_up(config) {
        Ok(connection) if !connection.is_readonly("main").or_convert()? => connection,
        Ok(_) => return content_with_tables(config, existing, read_only()),
        Err(error) => return content_with_tables(config, existing, error),
    };
    let found = match inspect(&connection) {
        // The directory may be read-only where the file is not.
        Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unsupported) => {
            return content_with_tables(config, existing, error);
        }
        found => found?,
    };
    let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0)).or_convert()?;
    if pages == 0 {
        // Later it would take a `VACUUM`. It does nothing by itself: `retain` gives free pages back.
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL").or_convert()?;
    }
    let mode: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0)).or_convert()?;
    if mode != "wal" {
        // Some file systems do not support WAL; SQLite then keeps its rollback journal, as it does for Python.
        let _: String =
            connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0)).or_convert()?;
    }
    if found.is_complete() {
        return Ok(());
    }
    let transaction =
        rusqlite::Transaction::new_unchecked(&connection, rusqlite::TransactionBehavior::Immediate)
            .or_convert()?;
    // Another process may have created the tables since the first check.
    let found = inspect(&transaction)?;
    if !found.checkpoints {
        transaction.execute_batch(sql::CREATE_CHECKPOINTS).or_convert()?;
    }
    match found.writes {
        None => transaction.execute_batch(sql::CREATE_WRITES).or_convert()?,
        Some(false) => transaction.execute_batch(sql::ADD_TASK_PATH).or_convert()?,
        Some(true) => {}
    }
    if !found.leases {
        transaction.execute_batch(sql::CREATE_LEASES).or_convert()?;
    }
    inspect(&transaction)?.ready()?;
    transaction.commit().or_convert()
}
