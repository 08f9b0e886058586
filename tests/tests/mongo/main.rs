//! The MongoDB saver: the suite on MongoDB (or FerretDB in its place) and on mongo-java-server, each case in a database of
//! its own, which is dropped at the end; and what is particular to it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::process::ExitCode;

use checkpoint_conformance::TestBinary;

use shared::server;

#[path = "../shared"]
mod shared {
    pub(crate) mod mongo;
    pub(crate) mod server;
    pub(crate) mod trials;
}

mod target;

fn main() -> ExitCode {
    server::with_servers(|| TestBinary::new().savers(target::targets()).run())
}
