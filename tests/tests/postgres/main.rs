//! The Postgres saver: the suite on PostgreSQL 17, on PostgreSQL 15, and behind PgBouncer in transaction mode, each in a
//! schema of its own, which is dropped at the end; and what is particular to it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::process::ExitCode;
use std::sync::Arc;

use checkpoint_conformance::{Missing, Target, TestBinary};
use checkpoint_core::Result;

use shared::postgres::{Kind, Postgres, Server, in_runtime, trials};
use shared::server;

#[path = "../shared"]
mod shared {
    pub(crate) mod agents;
    pub(crate) mod copy;
    pub(crate) mod everything;
    pub(crate) mod faults;
    pub(crate) mod faulty;
    pub(crate) mod golden;
    pub(crate) mod kills;
    pub(crate) mod plans;
    pub(crate) mod postgres;
    pub(crate) mod retaining;
    pub(crate) mod runtimes;
    pub(crate) mod saver_runtimes;
    pub(crate) mod server;
    pub(crate) mod soak;
    pub(crate) mod trials;
    pub(crate) mod writers;
}

mod agents;
mod conditional;
mod contention;
mod faults;
mod golden;
mod input;
mod lifecycle;
mod load;
mod options;
mod plans;
mod probes;
mod runtimes;

fn main() -> ExitCode {
    if let Some(done) = faults::as_child().or_else(input::as_child).or_else(agents::as_child) {
        return ended(done);
    }
    server::with_servers(|| match targets() {
        Ok(targets) => TestBinary::new()
            .savers(targets)
            .tests(trials("agents", agents::tests()))
            .tests(trials("conditional", conditional::tests()))
            .tests(trials("contention", contention::tests()))
            .tests(trials("faults", faults::tests()))
            .tests(trials("golden", golden::tests()))
            .tests(trials("input", input::tests()))
            .tests(trials("lifecycle", lifecycle::tests()))
            .tests(trials("options", options::tests()))
            .tests(trials("plans", plans::tests()))
            .tests(trials("probes", probes::tests()))
            .tests(trials("runtimes", runtimes::tests()))
            .run(),
        Err(error) => ended(Err(error)),
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

/// Every server of the suite.
fn targets() -> Result<Vec<Result<Arc<dyn Target>, Missing>>> {
    let mut targets = Vec::new();
    for kind in Kind::ALL {
        targets.push(match Server::find(kind) {
            Ok(server) => Ok(Arc::new(in_runtime(Postgres::new(server))?) as Arc<dyn Target>),
            Err(missing) => Err(missing),
        });
    }
    Ok(targets)
}
