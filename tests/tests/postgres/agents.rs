//! Agents that are killed.

use checkpoint_core::Result;
use checkpoint_postgres::PostgresSaver;

use crate::shared::agents::{self, Kills};
use crate::shared::postgres::{Database, Server, Test, tests};

async fn killed_agents_are_resumed_by_two_workers(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let url = database.url().to_owned();
    let open = || PostgresSaver::builder(url.as_str()).max_connections(4).build();
    Kills::new(&url).check(open).await;
}

/// Runs an agent instead of tests, if this process was started as a child.
pub(crate) fn as_child() -> Option<Result<()>> {
    agents::as_child(|url| PostgresSaver::builder(url).max_connections(4).build())
}

pub(crate) fn tests() -> &'static [Test] {
    tests![killed_agents_are_resumed_by_two_workers]
}
