//! Opens connections, and detects when one must no longer be used.

use std::cell::Cell;
use std::io::{ErrorKind as IoKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use checkpoint_core::backend::{KeepLast, ValueCodec};
use checkpoint_core::delta::CheckpointReader;
use checkpoint_core::{Error, ErrorKind, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use rusqlite::{Connection, OpenFlags, ffi};

use crate::Synchronous;
use crate::error::{OrConvert, READ_ONLY, RUN_SETUP, convert, is_busy, is_passing, spoils_connection};
use crate::{schema, sql};

/// More than the number of different statements, so that none is prepared twice.
const STATEMENT_CACHE: usize = 64;

/// How often a lost race is retried immediately.
const RACES: usize = 8;

/// The options of the builder.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) path: PathBuf,
    pub(crate) codec: ValueCodec,
    /// Looks into checkpoints that are not LangGraph's MessagePack.
    pub(crate) reader: Option<Arc<dyn CheckpointReader>>,
    pub(crate) busy_timeout: Duration,
    pub(crate) synchronous: Synchronous,
    pub(crate) readers: usize,
    pub(crate) read_only: bool,
    pub(crate) keep_last: Option<KeepLast>,
}

impl Config {
    /// Refuses to change a file that is read-only.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.read_only { Err(read_only().with("path", self.path.display())) } else { Ok(()) }
    }
}

/// A connection and what is known about its file.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) connection: Connection,
    file: FileId,
    has_task_path: Cell<bool>,
    has_leases: Cell<bool>,
    /// Opened without locks, ignoring the write-ahead log: valid for one call.
    immutable: bool,
}

impl Open {
    fn new(connection: Connection, file: FileId, tables: schema::Ready, immutable: bool) -> Self {
        let schema::Ready { has_task_path, has_leases } = tables;
        Self {
            connection,
            file,
            has_task_path: Cell::new(has_task_path),
            has_leases: Cell::new(has_leases),
            immutable,
        }
    }

    /// Whether the column `writes.task_path` exists. It is never dropped, but another process may add it.
    pub(crate) fn has_task_path(&self) -> Result<bool> {
        if !self.has_task_path.get() {
            self.has_task_path.set(schema::has_task_path(&self.connection)?);
        }
        Ok(self.has_task_path.get())
    }

    /// Whether the table of leases exists. Another process may create it.
    pub(crate) fn has_leases(&self) -> Result<bool> {
        if !self.has_leases.get() {
            self.has_leases.set(schema::has_leases(&self.connection)?);
        }
        Ok(self.has_leases.get())
    }

    pub(crate) fn execute(&self, sql: &str, parameters: impl rusqlite::Params) -> Result<usize> {
        self.connection
            .prepare_cached(sql)
            .and_then(|mut statement| statement.execute(parameters))
            .or_convert()
    }

    /// Begins a transaction that may write, waiting for the lock as long as the busy timeout says.
    pub(crate) fn begin_immediate(&self) -> Result<()> {
        let mut races = 0;
        loop {
            let begun = self
                .connection
                .prepare_cached(sql::BEGIN_IMMEDIATE)
                .and_then(|mut statement| statement.execute([]));
            match begun {
                Ok(_) => return Ok(()),
                Err(error) if is_passing(&error) && races < RACES => races += 1,
                Err(error) => return Err(convert(error)),
            }
        }
    }

    pub(crate) fn commit(&self) -> Result<()> {
        self.execute(sql::COMMIT, []).map(|_| ())
    }

    /// Rolls back the transaction, unless SQLite has done so already. If it fails, so does the next use.
    pub(crate) fn rollback(&self) {
        if !self.connection.is_autocommit()
            && let Err(error) = self.execute(sql::ROLLBACK, [])
        {
            tracing::debug!(%error, "the rollback failed");
        }
    }

    /// Runs several reads in one transaction: they all see the same state of the file.
    pub(crate) fn snapshot<T>(&self, read: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        self.execute(sql::BEGIN, [])?;
        let result = read(self);
        self.rollback();
        result
    }
}

/// The connection of a worker thread.
#[derive(Debug)]
pub(crate) struct Slot {
    config: Arc<Config>,
    writes: bool,
    open: Option<Open>,
}

impl Slot {
    pub(crate) fn new(config: Arc<Config>, writes: bool) -> Self {
        Self { config, writes, open: None }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the connection, and opens it if necessary: also if the file at the path was replaced, so that nothing is
    /// written to a deleted file.
    pub(crate) fn open(&mut self) -> Result<&Open> {
        let file = FileId::of(&self.config.path)?;
        let usable = self.open.take().filter(|open| open.file == file && !open.immutable);
        let open = match usable {
            Some(open) => open,
            None if self.writes => open_to_write(&self.config, file)?,
            None => open_to_read(&self.config, file)?,
        };
        Ok(self.open.insert(open))
    }

    /// Runs one call on the connection, and closes the connection after an error that makes it unusable.
    pub(crate) fn run<T>(&mut self, call: impl FnOnce(&Open) -> Result<T>) -> Result<T> {
        let result = self.open().and_then(call);
        if let Err(error) = &result
            && spoils_connection(error)
        {
            self.close();
        }
        result.map_err(|error| match error.kind() {
            // The error is about a row, which it names, or about the call itself.
            ErrorKind::Codec | ErrorKind::Crypto | ErrorKind::InvalidArgument => error,
            _ => error.with("path", self.config.path.display()),
        })
    }

    /// Takes the connection out. It is closed unless it is put back.
    pub(crate) fn take(&mut self) -> Option<Open> {
        self.open.take()
    }

    pub(crate) fn put_back(&mut self, open: Open) {
        self.open = Some(open);
    }

    pub(crate) fn close(&mut self) {
        self.open = None;
    }
}

/// The identity of the file at a path, on systems that have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId(#[cfg(unix)] (u64, u64));

impl FileId {
    /// Reads the identity without opening the file.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let metadata = std::fs::metadata(path).map_err(|source| {
            let error = match source.kind() {
                IoKind::NotFound if directory_exists(path) => Error::new(
                    ErrorKind::Schema,
                    "there is no such file; check the path, or run setup() to create it",
                ),
                IoKind::NotFound | IoKind::NotADirectory => {
                    Error::new(ErrorKind::Unavailable, "the file's directory does not exist; create it")
                }
                _ => {
                    Error::new(ErrorKind::Unavailable, "the system does not let this process reach the file")
                }
            };
            error.with_source(source)
        })?;
        if metadata.is_dir() {
            return Err(Error::invalid_config("the path is a directory; name a file"));
        }
        Ok(Self::new(&metadata))
    }

    #[cfg(unix)]
    fn new(metadata: &std::fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        Self((metadata.dev(), metadata.ino()))
    }

    #[cfg(not(unix))]
    fn new(_: &std::fs::Metadata) -> Self {
        Self()
    }
}

fn directory_exists(path: &Path) -> bool {
    path.parent().is_some_and(Path::is_dir)
}

fn open_to_write(config: &Config, file: FileId) -> Result<Open> {
    if config.read_only {
        return Err(read_only());
    }
    let connection = connect(&config.path, OpenFlags::SQLITE_OPEN_READ_WRITE, config)?;
    if connection.is_readonly("main").or_convert()? {
        return Err(read_only());
    }
    let tables = match schema::inspect(&connection) {
        // The log cannot be created in the directory.
        Err(error) if cannot_share(&error) => return Err(read_only().with_source(error)),
        found => found?.ready()?,
    };
    connection.pragma_update(None, "synchronous", config.synchronous.as_pragma()).or_convert()?;
    Ok(Open::new(connection, file, tables, false))
}

/// Opens to create or upgrade the tables.
pub(crate) fn open_to_set_up(config: &Config) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let connection = connect(&config.path, flags, config)?;
    connection.pragma_update(None, "synchronous", config.synchronous.as_pragma()).or_convert()?;
    Ok(connection)
}

/// Opens for reading. On a read-only medium without a write-ahead log, the file is opened as immutable.
pub(crate) fn open_to_read(config: &Config, file: FileId) -> Result<Open> {
    let flags = if config.read_only {
        OpenFlags::SQLITE_OPEN_READ_ONLY
    } else {
        // Readers need it, too: the first reader of a log creates its index, and recovers after a crashed writer.
        OpenFlags::SQLITE_OPEN_READ_WRITE
    };
    let plain = connect(&config.path, flags, config).and_then(|connection| {
        let tables = schema::inspect(&connection)?.ready()?;
        Ok((connection, tables))
    });
    let (connection, tables, immutable) = match plain {
        Ok((connection, tables)) => (connection, tables, false),
        Err(error) if !cannot_share(&error) => return Err(error),
        Err(error) if has_log(&config.path) => {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "the newest changes are in the -wal file, which cannot be read on a read-only medium; \
                 open the file once where it can be written to",
            )
            .with_source(error));
        }
        Err(error) if has_hot_journal(&config.path) => {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "a writer was broken off, and its half of a change cannot be undone on a read-only medium; \
                 open the file once where it can be written to",
            )
            .with_source(error));
        }
        Err(error) if takes_files(&config.path) => return Err(error),
        Err(_) => {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
            let connection = connect(Path::new(&immutable_uri(&config.path)), flags, config)?;
            let tables = schema::inspect(&connection)?.ready()?;
            (connection, tables, true)
        }
    };
    connection.pragma_update(None, "query_only", true).or_convert()?;
    Ok(Open::new(connection, file, tables, immutable))
}

fn connect(path: &Path, flags: OpenFlags, config: &Config) -> Result<Connection> {
    let connection =
        Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX).or_convert()?;
    connection.busy_timeout(config.busy_timeout).or_convert()?;
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE);
    Ok(connection)
}

pub(crate) fn read_only() -> Error {
    Error::new(ErrorKind::Unsupported, READ_ONLY)
}

/// The error for a file without tables.
pub(crate) fn no_tables() -> Error {
    Error::new(ErrorKind::Schema, RUN_SETUP)
}

/// Whether the write-ahead log's files could not be opened or created.
fn cannot_share(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<rusqlite::Error>());
    let Some(rusqlite::Error::SqliteFailure(code, _)) = source else { return false };
    !is_busy(error) && matches!(code.extended_code & 0xff, ffi::SQLITE_CANTOPEN | ffi::SQLITE_READONLY)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Whether a file can be created next to the database, or fails for another reason than permissions: then the medium is
/// not read-only, and the file may change.
fn takes_files(path: &Path) -> bool {
    let probe = beside(path, "-probe");
    match std::fs::OpenOptions::new().write(true).create_new(true).open(&probe) {
        // If it cannot be removed, it is empty.
        Ok(_) => std::fs::remove_file(&probe).is_ok(),
        Err(error) => !matches!(error.kind(), IoKind::PermissionDenied | IoKind::ReadOnlyFilesystem),
    }
}

fn has_log(path: &Path) -> bool {
    std::fs::metadata(beside(path, "-wal")).is_ok_and(|metadata| metadata.len() > 0)
}

/// Whether there is a hot rollback journal; one that was played back is empty or begins with zeros.
fn has_hot_journal(path: &Path) -> bool {
    const MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
    let mut head = [0; MAGIC.len()];
    std::fs::File::open(beside(path, "-journal"))
        .and_then(|mut journal| journal.read_exact(&mut head))
        .is_ok()
        && head == MAGIC
}

/// A URI for any path.
fn immutable_uri(path: &Path) -> String {
    const UNCOMMON: AsciiSet =
        NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_').remove(b'~');
    const ESCAPED: &AsciiSet = &if cfg!(windows) { UNCOMMON.remove(b':') } else { UNCOMMON };
    let path = path.as_os_str().as_encoded_bytes();
    let root = if path.starts_with(b"/") { "" } else { "///" };
    let path = percent_encode(path, ESCAPED).to_string();
    let path = if cfg!(windows) { path.replace("%5C", "/") } else { path };
    format!("file:{root}{path}?immutable=1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn odd_paths_are_escaped() {
        assert_eq!(
            immutable_uri(Path::new("/a b/c?d#e%f/ü:&=.db")),
            "file:/a%20b/c%3Fd%23e%25f/%C3%BC%3A%26%3D.db?immutable=1"
        );
    }

    #[test]
    #[cfg(unix)]
    fn an_immutable_file_with_an_odd_name_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a b?c#d%41.db");
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE here (x)").unwrap();
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
        let connection = Connection::open_with_flags(immutable_uri(&path), flags).unwrap();
        let name: String =
            connection.query_row("SELECT name FROM sqlite_master", [], |row| row.get(0)).unwrap();
        assert_eq!(name, "here");
    }
}
