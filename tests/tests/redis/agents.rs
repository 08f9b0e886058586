//! Agents that are killed.

use checkpoint_core::Result;
use checkpoint_redis::RedisSaver;

use crate::shared::agents::{self, Kills};
use crate::shared::redis::{Prefix, Server, Test, tests};

/// The saver of a place: URL and key prefix.
pub(crate) fn open(place: &str) -> Result<RedisSaver> {
    let (url, prefix) = place.split_once(' ').unwrap();
    RedisSaver::builder(url).key_prefix(prefix).build()
}

pub(crate) fn place(prefix: &Prefix) -> String {
    format!("{} {}", prefix.url(), prefix.name())
}

async fn killed_agents_are_resumed_by_two_workers(server: &Server) {
    let prefix = Prefix::set_up(server.url()).await;
    Kills::new(&place(&prefix)).check(|| prefix.builder().build()).await;
}

/// Runs an agent instead of tests, if this process was started as a child.
pub(crate) fn as_child() -> Option<Result<()>> {
    agents::as_child(open)
}

pub(crate) fn tests() -> &'static [Test] {
    tests![killed_agents_are_resumed_by_two_workers]
}
