//! Agents that are killed.

use checkpoint_core::Result;
use checkpoint_sqlite::SqliteSaver;
use libtest_mimic::Trial;

use crate::shared::agents::{self, Kills};

fn killed_agents_are_resumed_by_two_workers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agents.sqlite");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let open = || SqliteSaver::builder(&path).build();
    runtime.block_on(Kills::new(path.to_str().unwrap()).check(open));
}

/// Runs an agent instead of tests, if this process was started as a child.
pub(crate) fn as_child() -> Option<Result<()>> {
    agents::as_child(|path| SqliteSaver::builder(path).build())
}

pub(crate) fn tests() -> Vec<Trial> {
    vec![Trial::test("agents::killed_agents_are_resumed_by_two_workers", || {
        killed_agents_are_resumed_by_two_workers();
        Ok(())
    })]
}
