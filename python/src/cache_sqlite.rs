//! The SQLite cache, in the table of LangGraph's own.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use checkpoint_core::{Error, ErrorKind, Result, ResultExt, TypedBytes, async_trait};
use checkpoint_sqlite::convert;
use checkpoint_sqlite::rusqlite::{
    self, Connection, OpenFlags, OptionalExtension, TransactionBehavior, params,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::cache::{Cache, Entry, Key, NativeCache, SWEPT, typed};
use crate::connection::Options;
use crate::error::OrRaise;
use crate::runtime::lock;

const BACKEND: &str = "sqlite";

/// The path of a private database in memory.
const MEMORY: &str = ":memory:";

const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause between attempts to switch to a write-ahead log, which no busy handler covers.
const PAUSE: Duration = Duration::from_millis(5);

const CREATE: &str = "CREATE TABLE IF NOT EXISTS cache (
    ns TEXT,
    key TEXT,
    expiry REAL,
    encoding TEXT NOT NULL,
    val BLOB NOT NULL,
    PRIMARY KEY (ns, key)
)";
/// LangGraph does not have it.
const CREATE_INDEX: &str =
    "CREATE INDEX IF NOT EXISTS cache_expiry_idx ON cache (expiry) WHERE expiry IS NOT NULL";
const COLUMNS: &str =
    "SELECT group_concat(name) FROM (SELECT name FROM pragma_table_info('cache') ORDER BY name)";
const SORTED_COLUMNS: &str = "encoding,expiry,key,ns,val";
const GET: &str =
    "SELECT encoding, val FROM cache WHERE ns = ?1 AND key = ?2 AND (expiry IS NULL OR expiry > ?3)";
const SET: &str = "INSERT OR REPLACE INTO cache (ns, key, expiry, encoding, val) VALUES (?1, ?2, ?3, ?4, ?5)";
const SWEEP: &str =
    "DELETE FROM cache WHERE rowid IN (SELECT rowid FROM cache WHERE expiry <= ?1 ORDER BY expiry LIMIT ?2)";

/// Results in the table `cache`, on one connection, which the first call opens.
struct SqliteCache(Arc<Shared>);

struct Shared {
    path: PathBuf,
    busy_timeout: Duration,
    connection: Mutex<Option<Connection>>,
}

impl Shared {
    fn is_in_memory(&self) -> bool {
        self.path.as_os_str() == MEMORY
    }

    fn open(&self) -> Result<Connection> {
        // Without URIs, as in Python.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags);
        let connection = connection.map_err(convert)?;
        connection.busy_timeout(self.busy_timeout).map_err(convert)?;
        self.write_ahead(&connection)?;
        connection.pragma_update(None, "synchronous", "NORMAL").map_err(convert)?;
        connection.execute_batch(CREATE).map_err(convert)?;
        let columns: String = connection.query_row(COLUMNS, [], |row| row.get(0)).map_err(convert)?;
        if columns != SORTED_COLUMNS {
            return Err(Error::new(
                ErrorKind::Schema,
                "the file has a table `cache` of another program; choose another file",
            ));
        }
        connection.execute_batch(CREATE_INDEX).map_err(convert)?;
        Ok(connection)
    }

    fn write_ahead(&self, connection: &Connection) -> Result<()> {
        let until = Instant::now() + self.busy_timeout;
        loop {
            let mode = connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).map_err(convert);
            match mode {
                Err(error) if error.kind() == ErrorKind::Timeout && Instant::now() < until => {
                    thread::sleep(PAUSE);
                }
                done => return done,
            }
        }
    }

    fn run<T>(&self, call: impl FnOnce(&mut Connection) -> rusqlite::Result<T>) -> Result<T> {
        let mut slot = lock(&self.connection);
        let connection = match &mut *slot {
            Some(connection) => connection,
            empty => empty.insert(self.open()?),
        };
        let result = call(connection).map_err(convert);
        let is_spoilt = matches!(
            result.as_ref().map_err(Error::kind),
            Err(ErrorKind::Backend | ErrorKind::Unavailable | ErrorKind::Schema)
        );
        if is_spoilt && !self.is_in_memory() {
            *slot = None;
        }
        result
    }
}

impl SqliteCache {
    /// Runs a call on a thread that may block.
    async fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        call: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || {
            shared.run(call).map_err(|error| error.with("path", shared.path.display()))
        });
        let done = done.await.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Unavailable, "the call was ended").with_source(error))
        });
        done.at(BACKEND, operation)
    }
}

/// LangGraph's text of a namespace.
fn to_text(namespace: &[String]) -> String {
    namespace.join(",")
}

/// The time in seconds, as Python's `timestamp()`.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[async_trait]
impl Cache for SqliteCache {
    async fn setup(&self) -> Result<()> {
        self.run("setup", |_| Ok(())).await
    }

    async fn get(&self, keys: Vec<Key>) -> Result<Vec<Option<TypedBytes>>> {
        let read = move |connection: &mut Connection| {
            // One state of the file for all keys.
            let transaction = connection.transaction()?;
            let mut get = transaction.prepare_cached(GET)?;
            let now = now();
            let mut one = |key: &Key| {
                get.query_row(params![to_text(&key.namespace), key.key, now], |row| {
                    Ok(typed(row.get_ref(0)?.as_str()?, row.get_ref(1)?.as_bytes()?))
                })
                .optional()
            };
            keys.iter().map(&mut one).collect()
        };
        self.run("get", read).await
    }

    async fn set(&self, entries: Vec<Entry>) -> Result<()> {
        let write = move |connection: &mut Connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let now = now();
            {
                let mut set = transaction.prepare_cached(SET)?;
                for Entry { key, ttl, value } in &entries {
                    let expiry = ttl.map(|ttl| now + ttl);
                    set.execute(params![
                        to_text(&key.namespace),
                        key.key,
                        expiry,
                        &*value.tag,
                        &*value.data
                    ])?;
                }
                transaction.prepare_cached(SWEEP)?.execute(params![now, SWEPT])?;
            }
            transaction.commit()
        };
        self.run("set", write).await
    }

    async fn clear(&self, namespaces: Option<Vec<Vec<String>>>) -> Result<()> {
        let delete = move |connection: &mut Connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            match namespaces {
                None => {
                    transaction.execute("DELETE FROM cache", [])?;
                }
                Some(namespaces) => {
                    for namespace in namespaces {
                        transaction.execute("DELETE FROM cache WHERE ns = ?1", [to_text(&namespace)])?;
                    }
                }
            }
            transaction.commit()
        };
        self.run("clear", delete).await
    }

    async fn close(&self) -> Result<()> {
        let shared = Arc::clone(&self.0);
        let closed = tokio::task::spawn_blocking(move || {
            let connection = lock(&shared.connection).take();
            connection.map_or(Ok(()), |connection| connection.close().map_err(|(_, error)| convert(error)))
        });
        closed.await.unwrap_or(Ok(())).at(BACKEND, "close")
    }
}

/// Creates a cache in the file at a path, or in memory.
#[pyfunction]
#[pyo3(signature = (path, options))]
fn sqlite_cache(py: Python<'_>, path: PathBuf, options: &Bound<'_, PyDict>) -> PyResult<NativeCache> {
    if path.as_os_str().is_empty() {
        let error = Error::invalid_config("the path is empty; name a file, or `:memory:`");
        return Err(error).at(BACKEND, "build").or_raise(py);
    }
    let busy_timeout = Options(options).seconds("busy_timeout")?.unwrap_or(BUSY_TIMEOUT);
    if i32::try_from(busy_timeout.as_millis()).is_err() {
        let error = Error::invalid_config("the busy timeout must be below 2^31 milliseconds");
        return Err(error).at(BACKEND, "build").or_raise(py);
    }
    // The first call opens it; the process may have changed its directory by then.
    let path = if path.as_os_str() == MEMORY { path } else { std::path::absolute(path)? };
    let shared = Shared { path, busy_timeout, connection: Mutex::new(None) };
    Ok(NativeCache::new(py, SqliteCache(Arc::new(shared))))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(sqlite_cache, module)?)
}
