//! Temporary database files of the tests.

#![allow(dead_code, reason = "each binary uses its part of this")]

use std::path::{Path, PathBuf};

use checkpoint_sqlite::SqliteSaver;
use tempfile::TempDir;

/// A path for a database, in a folder that is removed when the first value is dropped.
pub(crate) fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.db");
    (directory, path)
}

pub(crate) fn saver(path: &Path) -> SqliteSaver {
    SqliteSaver::builder(path).build().unwrap()
}
