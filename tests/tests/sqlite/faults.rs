//! The SQLite saver while processes are killed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use checkpoint_core::{BaseCheckpointSaver as _, Result};
use checkpoint_sqlite::SqliteSaver;
use libtest_mimic::Trial;
use tempfile::TempDir;

use crate::shared::retaining::{self, Place, runs_are_killed};

/// A file with our tables.
struct File {
    path: PathBuf,
    _directory: TempDir,
}

impl File {
    async fn set_up() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = Self { path: directory.path().join("checkpoints.sqlite"), _directory: directory };
        file.open().setup().await.unwrap();
        file
    }
}

impl Place for File {
    type Saver = SqliteSaver;

    fn place(&self) -> String {
        self.path.to_str().unwrap().to_owned()
    }

    fn open(&self) -> SqliteSaver {
        SqliteSaver::builder(&self.path).build().unwrap()
    }

    async fn rows(&self) -> BTreeMap<String, u64> {
        let connection = rusqlite::Connection::open(&self.path).unwrap();
        let mut tables = connection.prepare("SELECT name FROM sqlite_master WHERE type = 'table'").unwrap();
        let tables = tables.query_map([], |row| row.get(0)).unwrap();
        let count = |table: rusqlite::Result<String>| {
            let table = table.unwrap();
            let count = format!("SELECT count(*) FROM {table}");
            let count: i64 = connection.query_row(&count, [], |row| row.get(0)).unwrap();
            (table, count.unsigned_abs())
        };
        tables.map(count).collect()
    }
}

fn killed(runs: usize) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (file, fresh) = (File::set_up().await, File::set_up().await);
        runs_are_killed(&file, &fresh, runs).await;
    });
}

/// Applies a policy instead of running tests, if this process was started as a child.
pub(crate) fn as_child() -> Option<Result<()>> {
    retaining::as_child(|path| SqliteSaver::builder(path).build())
}

pub(crate) fn tests() -> Vec<Trial> {
    let test = |name: &str, runs| {
        Trial::test(format!("faults::{name}"), move || {
            killed(runs);
            Ok(())
        })
    };
    vec![test("a_retention_run_is_killed", 1), test("two_retention_runs_are_killed", 2)]
}
