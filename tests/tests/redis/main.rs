//! The Redis saver: the suite on Redis 8, Valkey 8 and a Redis cluster, each with several configurations, under a key prefix
//! of its own, which is deleted at the end; and what is particular to it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::process::ExitCode;

use checkpoint_conformance::TestBinary;
use checkpoint_core::Result;

use shared::redis::trials;
use shared::server;

#[path = "../shared"]
mod shared {
    pub(crate) mod agents;
    pub(crate) mod everything;
    pub(crate) mod faulty;
    pub(crate) mod kills;
    pub(crate) mod redis;
    pub(crate) mod retaining;
    pub(crate) mod runtimes;
    pub(crate) mod saver_runtimes;
    pub(crate) mod server;
    pub(crate) mod soak;
    pub(crate) mod trials;
    pub(crate) mod writers;
}

mod agents;
mod cluster;
mod eviction;
mod faults;
mod growth;
mod input;
mod leftovers;
mod load;
mod options;
mod races;
mod runtimes;
mod sealed;
mod sentinel;
mod target;

fn main() -> ExitCode {
    if let Some(done) = faults::as_child().or_else(agents::as_child) {
        return ended(done);
    }
    server::with_servers(|| {
        TestBinary::new()
            .savers(target::targets())
            .tests(trials("agents", agents::tests()))
            .tests(trials("cluster", cluster::tests()))
            .tests(trials("eviction", eviction::tests()))
            .tests(trials("faults", faults::tests()))
            .tests(trials("growth", growth::tests()))
            .tests(trials("input", input::tests()))
            .tests(trials("leftovers", leftovers::tests()))
            .tests(trials("options", options::tests()))
            .tests(trials("races", races::tests()))
            .tests(trials("runtimes", runtimes::tests()))
            .tests(trials("sealed", sealed::tests()))
            .tests(trials("sentinel", sentinel::tests()))
            .tests(shared::redis::wire::tests())
            .run()
    })
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
