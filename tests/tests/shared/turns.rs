//! A database that Rust and Python open in turns.

use std::io::Read as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint_conformance::Saver;
use checkpoint_core::{BaseCheckpointSaver, Cipher};
use checkpoint_sqlite::SqliteSaver;
use serde_json::Value as Json;

use super::postgres::{Database, dump};
use super::pythons;

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
pub(crate) enum Location {
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
    pub(crate) place: Location,
    pub(crate) directory: tempfile::TempDir,
    pub(crate) key: Option<&'static str>,
}

impl Turns {
    /// Starts a Python that does one thing.
    pub(crate) fn start(&self, python: &Path, name: &str, arguments: &[&str]) -> Answer {
        let asynchronous = if self.backend == Backend::PostgresAsync { "1" } else { "0" };
        let environment = [("LANGGRAPH_AES_KEY", self.key), ("CHECKPOINT_TEST_ASYNC", Some(asynchronous))];
        let arguments = [&[name, self.location()], arguments].concat();
        Answer {
            name: name.to_owned(),
            connection: pythons::start(python, "agent", &arguments, &environment),
        }
    }

    pub(crate) fn location(&self) -> &str {
        match &self.place {
            Location::File(path) => path.to_str().unwrap(),
            Location::Database(database) => database.url(),
        }
    }

    /// Lets Python do one thing, and returns what it says about it.
    pub(crate) fn python(&self, name: &str, arguments: &[&str]) -> Json {
        self.start(&self.python, name, arguments).wait()
    }

    pub(crate) fn saver(&self) -> Saver {
        let cipher = self.key.map(|key| Cipher::aes(key.as_bytes()).unwrap());
        match &self.place {
            Location::File(path) => {
                let mut builder = SqliteSaver::builder(path);
                if let Some(cipher) = cipher {
                    builder = builder.cipher(cipher);
                }
                Arc::new(builder.build().unwrap())
            }
            Location::Database(database) => {
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
        if let Location::Database(_) = self.place {
            self.python("setup", &[]);
            self.saver().setup().await.unwrap();
        }
    }

    /// Rust makes the tables, then Python finds them made.
    pub(crate) async fn set_up_by_rust(&self) -> Saver {
        let saver = self.saver();
        saver.setup().await.unwrap();
        if let Location::Database(_) = self.place {
            self.python("setup", &[]);
        }
        saver
    }

    /// Every byte that is stored.
    pub(crate) async fn stored(&self) -> Vec<u8> {
        match &self.place {
            Location::File(path) => {
                let log = path.with_extension("sqlite-wal");
                [std::fs::read(path).unwrap(), std::fs::read(log).unwrap_or_default()].concat()
            }
            Location::Database(database) => dump(&database.client().await, "public").await.unwrap(),
        }
    }

    pub(crate) async fn holds(&self, text: &str) -> bool {
        self.stored().await.windows(text.len()).any(|window| window == text.as_bytes())
    }
}

/// What a Python is about to say.
pub(crate) struct Answer {
    name: String,
    connection: TcpStream,
}

impl Answer {
    /// Waits for the result, or for the traceback.
    pub(crate) fn result(mut self) -> Result<Json, String> {
        let mut said = String::new();
        self.connection.read_to_string(&mut said).unwrap();
        let mut answer: Json = serde_json::from_str(&said)
            .unwrap_or_else(|error| panic!("Python's {} said {said:?}: {error}", self.name));
        match answer.get("error") {
            None => Ok(answer["result"].take()),
            Some(error) => Err(error.as_str().unwrap().to_owned()),
        }
    }

    /// Waits for the result of what succeeds.
    pub(crate) fn wait(self) -> Json {
        let name = self.name.clone();
        self.result().unwrap_or_else(|error| panic!("Python's {name} failed: {error}"))
    }
}
