//! The Postgres store: the suite, and what is particular to it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::process::ExitCode;

use checkpoint_conformance::TestBinary;

#[path = "../shared"]
mod shared {
    pub(crate) mod faults;
    pub(crate) mod fresh_store;
    pub(crate) mod golden;
    pub(crate) mod plans;
    pub(crate) mod postgres;
    pub(crate) mod runtimes;
    pub(crate) mod server;
    pub(crate) mod soak;
    pub(crate) mod store_differences;
    pub(crate) mod trials;
    pub(crate) mod writers;
}

mod faults;
mod golden;
mod input;
mod plans;
mod runtimes;
mod suite;

use shared::{postgres::trials, server};

fn main() -> ExitCode {
    server::with_servers(|| {
        TestBinary::new()
            .stores(suite::targets())
            .tests(trials("faults", faults::tests()))
            .tests(golden::trials("golden"))
            .tests(trials("input", input::tests()))
            .tests(trials("plans", plans::tests()))
            .tests(trials("runtimes", runtimes::tests()))
            .run()
    })
}
