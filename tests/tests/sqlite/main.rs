//! The suite on the SQLite saver, on a file of its own.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use checkpoint_conformance::{Facility, OpenOptions, Saver, Target, TestBinary};
use checkpoint_core::{Error, ErrorKind, Result, async_trait};
use checkpoint_sqlite::SqliteSaver;

#[path = "../shared"]
mod shared {
    pub(crate) mod agents;
    pub(crate) mod kills;
    pub(crate) mod retaining;
    pub(crate) mod soak;
    pub(crate) mod writers;
}

mod agents;
mod faults;

#[derive(Debug)]
struct Sqlite {
    path: PathBuf,
    /// Deletes the file when the target is dropped.
    _directory: tempfile::TempDir,
}

impl Sqlite {
    fn new() -> Result<Self> {
        let directory = tempfile::tempdir().map_err(broken)?;
        Ok(Self { path: directory.path().join("checkpoints.sqlite"), _directory: directory })
    }

    /// Runs statements on the file, past the saver.
    fn execute(&self, statements: &[&str], parameters: &[&str]) -> Result<()> {
        let connection = rusqlite::Connection::open(&self.path).map_err(broken)?;
        connection.busy_timeout(std::time::Duration::from_secs(60)).map_err(broken)?;
        for statement in statements {
            connection.execute(statement, rusqlite::params_from_iter(parameters)).map_err(broken)?;
        }
        Ok(())
    }
}

fn broken(source: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Backend, "the test cannot reach its file").with_source(source)
}

/// The database and its write-ahead log.
fn files(path: &Path) -> [PathBuf; 2] {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    [path.to_owned(), log.into()]
}

#[async_trait]
impl Target for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    async fn open(&self, options: OpenOptions) -> Result<Saver> {
        let mut builder = SqliteSaver::builder(&self.path).opaque_values(options.opaque_values);
        if let Some(cipher) = options.cipher {
            builder = builder.cipher(cipher);
        }
        if let Some(count) = options.keep_last {
            builder = builder.keep_last(count);
        }
        if let Some(reader) = options.reader {
            builder = builder.checkpoint_reader(reader);
        }
        Ok(Arc::new(builder.build()?))
    }

    fn offers(&self, facility: Facility) -> bool {
        // A file has no server.
        !matches!(facility, Facility::SeparateValues | Facility::RoundTrips)
    }

    async fn fresh(&self) -> Result<Arc<dyn Target>> {
        Ok(Arc::new(Self::new()?))
    }

    async fn raw(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for file in files(&self.path) {
            if file.exists() {
                bytes.extend(std::fs::read(file).map_err(broken)?);
            }
        }
        Ok(bytes)
    }

    async fn move_rows(&self, from_thread_id: &str, to_thread_id: &str) -> Result<()> {
        let statements = [
            "UPDATE checkpoints SET thread_id = ?2 WHERE thread_id = ?1",
            "UPDATE writes SET thread_id = ?2 WHERE thread_id = ?1",
        ];
        self.execute(&statements, &[from_thread_id, to_thread_id])
    }

    async fn corrupt(&self, thread_id: &str) -> Result<()> {
        let statement = "UPDATE checkpoints SET checkpoint = substr(checkpoint, 1, length(checkpoint) / 2) WHERE thread_id = ?1";
        self.execute(&[statement], &[thread_id])
    }
}

fn main() -> ExitCode {
    if let Some(done) = agents::as_child().or_else(faults::as_child) {
        return ended(done);
    }
    match Sqlite::new() {
        Ok(target) => TestBinary::new()
            .savers(vec![Ok(Arc::new(target))])
            .tests(agents::tests())
            .tests(faults::tests())
            .run(),
        Err(error) => ended(Err(error)),
    }
}

fn ended(done: Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}
