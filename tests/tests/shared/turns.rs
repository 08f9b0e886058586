//! A database that Rust and Python open in turns.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use checkpoint_conformance::Saver;
use checkpoint_core::{BaseCheckpointSaver, Cipher};
use checkpoint_sqlite::SqliteSaver;
use serde_json::Value as Json;

use super::postgres::{Database, dump};

/// Where the two languages meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    Sqlite,
    Postgres,
    /// Python uses its asynchronous saver.
    PostgresAsync,
}

impl Backend {
    pub(crate) const ALL: [Self; 3] = [Self::Sqlite, Self::Postgres, Self::PostgresAsync];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::PostgresAsync => "postgres_async",
        }
    }
}

#[derive(Debug)]
pub(crate) enum AssociatedData {
    File(PathBuf),
    Database(Database),
}

/// One database that both languages open.
pub(crate) struct Turns {
    pub(crate) generation: &'static str,
    pub(crate) python: PathBuf,
    /// Where the generation stands in the list of them.
    pub(crate) at: usize,
    pub(crate) backend: Backend,
    pub(crate) place: AssociatedData,
    pub(crate) directory: tempfile::TempDir,
    pub(crate) key: Option<&'static str>,
}

impl Turns {
    pub(crate) fn command(&self, python: &Path, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(python);
        command
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("python/agent.py"))
            .arg(name)
            .arg(self.location())
            .args(arguments)
            .env_remove("LANGGRAPH_AES_KEY")
            .env("CHECKPOINT_TEST_ASYNC", if self.backend == Backend::PostgresAsync { "1" } else { "0" })
            // Unlisted classes stay data, and nothing is sent anywhere.
            .env("LANGSMITH_TRACING", "false")
            .stdin(Stdio::null());
        if let Some(key) = self.key {
            command.env("LANGGRAPH_AES_KEY", key);
        }
        command
    }

    pub(crate) fn location(&self) -> &OsStr {
        match &self.place {
            AssociatedData::File(path) => path.as_os_str(),
            AssociatedData::Database(database) => database.url().as_ref(),
        }
    }

    /// Lets Python do one thing, and returns what it says about it.
    pub(crate) fn python(&self, name: &str, arguments: &[&str]) -> Json {
        answer(name, &self.command(&self.python, name, arguments).output().unwrap())
    }

    pub(crate) fn saver(&self) -> Saver {
        let cipher = self.key.map(|key| Cipher::aes(key.as_bytes()).unwrap());
        match &self.place {
            AssociatedData::File(path) => {
                let mut builder = SqliteSaver::builder(path);
                if let Some(cipher) = cipher {
                    builder = builder.cipher(cipher);
                }
                Arc::new(builder.build().unwrap())
            }
            AssociatedData::Database(database) => {
                let mut builder = database.builder();
                if let Some(cipher) = cipher {
                    builder = builder.cipher(cipher);
                }
                Arc::new(builder.build().unwrap())
            }
        }
    }

    /// Python makes the tables, then Rust finds them made. On SQLite both do so with their first call.
    pub(crate) async fn set_up_by_python(&self) {
        if let AssociatedData::Database(_) = self.place {
            self.python("setup", &[]);
            self.saver().setup().await.unwrap();
        }
    }

    /// Rust makes the tables, then Python finds them made.
    pub(crate) async fn set_up_by_rust(&self) -> Saver {
        let saver = self.saver();
        saver.setup().await.unwrap();
        if let AssociatedData::Database(_) = self.place {
            self.python("setup", &[]);
        }
        saver
    }

    /// Every byte that is stored.
    pub(crate) async fn stored(&self) -> Vec<u8> {
        match &self.place {
            AssociatedData::File(path) => {
                let log = path.with_extension("sqlite-wal");
                [std::fs::read(path).unwrap(), std::fs::read(log).unwrap_or_default()].concat()
            }
            AssociatedData::Database(database) => dump(&database.client().await, "public").await.unwrap(),
        }
    }

    pub(crate) async fn holds(&self, text: &str) -> bool {
        self.stored().await.windows(text.len()).any(|window| window == text.as_bytes())
    }
}

pub(crate) fn answer(name: &str, output: &std::process::Output) -> Json {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "Python's {name} failed: {errors}");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("Python's {name}: {error}: {errors}"))
}
