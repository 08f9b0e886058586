//! The builder.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use checkpoint_core::backend::{KeepLast, ValueCodec};
use checkpoint_core::delta::CheckpointReader;
use checkpoint_core::{Cipher, Error, Result, ResultExt};

use crate::SqliteSaver;
use crate::connection::Config;
use crate::error::BACKEND;
use crate::worker::Workers;

/// More threads than this only wait for each other.
const MOST_READERS: usize = 64;

/// When a commit is durable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Synchronous {
    /// Each commit waits for the disk: acknowledged writes survive a power failure. Python's choice.
    #[default]
    Full,
    /// Commits do not wait for the disk: acknowledged writes survive a crash of the process, but a power failure may lose
    /// the last commits (whole ones, never parts).
    Normal,
}

impl Synchronous {
    pub(crate) fn as_pragma(self) -> &'static str {
        match self {
            Self::Full => "FULL",
            Self::Normal => "NORMAL",
        }
    }
}

/// Builds a [`SqliteSaver`]. Setters cannot fail; [`build`](Self::build) checks everything.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until build() is called"]
pub struct SqliteSaverBuilder {
    path: PathBuf,
    codec: ValueCodec,
    reader: Option<Arc<dyn CheckpointReader>>,
    busy_timeout: Duration,
    synchronous: Synchronous,
    readers: usize,
    read_only: bool,
    keep_last: Option<usize>,
}

impl SqliteSaverBuilder {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            codec: ValueCodec::default(),
            reader: None,
            busy_timeout: Duration::from_secs(5),
            synchronous: Synchronous::default(),
            readers: 4,
            read_only: false,
            keep_last: None,
        }
    }

    /// Encrypts stored values, and decrypts them when they are read. See the [crate's page](crate) for what is not encrypted.
    pub fn cipher(mut self, cipher: Cipher) -> Self {
        self.codec.cipher = Some(cipher);
        self
    }

    /// Returns a checkpoint that cannot be decrypted as ciphertext (see [`checkpoint_core::opaque`]) instead of an error,
    /// for tools that show a file without its keys.
    ///
    /// This applies to `get_tuple` and `list`. A delta history, `copy_thread` and `prune` still need the keys.
    pub fn return_sealed(mut self, return_sealed: bool) -> Self {
        self.codec.return_sealed = return_sealed;
        self
    }

    /// Stores values of another serializer unchanged and never decodes them, whatever their tags say: pending writes are
    /// returned with their tag and bytes, and each checkpoint is one value (see [`checkpoint_core::opaque`]), in `put` and
    /// in reads. Without a [`cipher`](Self::cipher), values may be encrypted already.
    ///
    /// Calls that have to decode a checkpoint use the [`checkpoint_reader`](Self::checkpoint_reader).
    pub fn opaque_values(mut self, opaque_values: bool) -> Self {
        self.codec.opaque_values = opaque_values;
        self
    }

    /// Sets the reader that decodes checkpoints of another serializer, for `prune` and `get_delta_channel_history`. It is
    /// called on the saver's own threads. Without one, these calls decode LangGraph's MessagePack, and fail with
    /// [`Unsupported`](checkpoint_core::ErrorKind::Unsupported) for other formats.
    pub fn checkpoint_reader(mut self, reader: Arc<dyn CheckpointReader>) -> Self {
        self.reader = Some(reader);
        self
    }

    /// Sets how long a call waits for another connection's lock before it fails with
    /// [`Timeout`](checkpoint_core::ErrorKind::Timeout): 5 seconds unless set.
    pub fn busy_timeout(mut self, busy_timeout: Duration) -> Self {
        self.busy_timeout = busy_timeout;
        self
    }

    /// Chooses when a commit is durable: [`Synchronous::Full`] unless set.
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// Sets how many threads read at the same time: 4 unless set.
    pub fn readers(mut self, readers: usize) -> Self {
        self.readers = readers;
        self
    }

    /// Never writes: changes fail with [`Unsupported`](checkpoint_core::ErrorKind::Unsupported). SQLite may still create
    /// the index of a write-ahead log beside the file where it can.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Prunes behind each `put`, in its transaction: of its namespace, at least the newest `count` checkpoints stay, and
    /// normally at most twice as many, besides the ancestors that their delta channels need. Branches that runs work on at
    /// the same time count together, so `count` should be well above their number.
    pub fn keep_last(mut self, count: usize) -> Self {
        self.keep_last = Some(count);
        self
    }

    /// Checks the options and creates the saver. The file is opened and threads are started by the first call.
    ///
    /// A relative path is resolved against the current working directory.
    ///
    /// # Errors
    /// [`InvalidConfig`](checkpoint_core::ErrorKind::InvalidConfig) for an empty path, `:memory:` and URIs, for a path
    /// with U+0000, for no or more than 64 readers, for a timeout of more than 2^31 milliseconds, and for `keep_last(0)`.
    pub fn build(self) -> Result<SqliteSaver> {
        self.checked().map(|config| SqliteSaver::from_workers(Workers::new(config))).at(BACKEND, "build")
    }

    fn checked(self) -> Result<Config> {
        let text = self.path.as_os_str().as_encoded_bytes();
        if text.is_empty() || text == b":memory:" {
            return Err(Error::invalid_config(
                "a database in memory is private to each of the saver's connections; name a file, or use \
                 checkpoint_core::InMemorySaver",
            ));
        }
        if text.starts_with(b"file:") {
            return Err(Error::invalid_config("URIs are not taken; name a file by its path")
                .with("path", self.path.display()));
        }
        if text.contains(&0) {
            return Err(Error::invalid_config("the path contains U+0000").with("path", self.path.display()));
        }
        if !(1..=MOST_READERS).contains(&self.readers) {
            return Err(Error::invalid_config("there must be 1 to 64 readers").with("readers", self.readers));
        }
        if i32::try_from(self.busy_timeout.as_millis()).is_err() {
            return Err(Error::invalid_config("the busy timeout must be below 2^31 milliseconds")
                .with("seconds", self.busy_timeout.as_secs()));
        }
        Ok(Config {
            path: absolute(&self.path)?,
            codec: self.codec,
            reader: self.reader,
            busy_timeout: self.busy_timeout,
            synchronous: self.synchronous,
            readers: self.readers,
            read_only: self.read_only,
            keep_last: self.keep_last.map(KeepLast::new).transpose()?,
        })
    }
}

/// Threads open the file later; the process may have changed its directory by then.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|source| {
        Error::invalid_config("the path cannot be resolved; name it from the root")
            .with("path", path.display())
            .with_source(source)
    })
}

#[cfg(test)]
mod tests {
    use checkpoint_core::ErrorKind;

    use super::*;

    #[test]
    fn wrong_options_are_refused_before_anything_is_opened() {
        let file = || SqliteSaver::builder("somewhere.db");
        let table = [
            SqliteSaver::builder(""),
            SqliteSaver::builder(":memory:"),
            SqliteSaver::builder("file:x.db?mode=memory"),
            SqliteSaver::builder("a\0b"),
            file().readers(0),
            file().keep_last(0),
            file().readers(65),
            file().busy_timeout(Duration::from_millis(1 << 31)),
            file().busy_timeout(Duration::MAX),
        ];
        for builder in table {
            let shown = format!("{builder:?}");
            assert_eq!(builder.build().unwrap_err().kind(), ErrorKind::InvalidConfig, "{shown}");
        }
        let error = SqliteSaver::builder(":memory:").build().unwrap_err();
        assert!(error.to_string().contains("InMemorySaver"), "{error}");
        file().busy_timeout(Duration::ZERO).build().unwrap();
        assert!(!Path::new("somewhere.db").exists());
    }

    #[test]
    fn keys_are_not_shown() {
        let cipher = Cipher::aes(b"SECRETSECRETSECR").unwrap();
        let builder = SqliteSaver::builder("x.db").cipher(cipher);
        let shown = format!("{builder:?} {:?}", builder.clone().build().unwrap());
        assert!(shown.contains("x.db") && !shown.contains("SECRET") && !shown.contains("83"), "{shown}");
    }
}
