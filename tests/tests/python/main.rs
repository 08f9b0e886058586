//! Rust and Python take turns on the same data, with each generation of LangGraph.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::process::ExitCode;

use checkpoint_conformance::TestBinary;

#[path = "../shared"]
mod shared {
    pub(crate) mod agents;
    pub(crate) mod copy;
    pub(crate) mod kills;
    pub(crate) mod meeting;
    pub(crate) mod postgres;
    pub(crate) mod pythons;
    pub(crate) mod server;
    pub(crate) mod soak;
    pub(crate) mod trials;
    pub(crate) mod turns;
}

mod saver;
mod store;
mod store_tables;
mod store_vectors;

use shared::{meeting, server};

fn main() -> ExitCode {
    let tests = TestBinary::new()
        .tests(saver::trials("saver"))
        .tests(meeting::trials("store", store::cases()))
        .tests(meeting::trials("store_tables", store_tables::cases()))
        .tests(meeting::trials("store_vectors", store_vectors::cases()));
    server::with_servers(|| tests.run())
}
