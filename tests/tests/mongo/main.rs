//! The MongoDB saver: the suite on MongoDB (or FerretDB in its place) and on mongo-java-server, each case in a database of
//! its own, which is dropped at the end; and what is particular to it.
//!
//! FerretDB reads a whole collection for almost every request, and is slow: by default it runs the groups of
//! `target::ON_FERRETDB`. With `CHECKPOINT_TEST_MONGO=all` everything runs on it, too: the other groups, values of many
//! megabytes, faults, the cases with ciphers, and the configuration in which threads expire.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::process::ExitCode;

use checkpoint_conformance::TestBinary;

use shared::mongo::{Kind, trials};
use shared::server;

#[path = "../shared"]
mod shared {
    pub(crate) mod mongo;
    pub(crate) mod runtimes;
    pub(crate) mod saver_runtimes;
    pub(crate) mod server;
    pub(crate) mod soak;
    pub(crate) mod trials;
    pub(crate) mod writers;
}

mod expiry;
mod faults;
mod growth;
mod input;
mod load;
mod races;
mod runtimes;
mod sizes;
mod target;

fn main() -> ExitCode {
    if let Some(done) = faults::as_child() {
        return match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:?}");
                ExitCode::FAILURE
            }
        };
    }
    server::with_servers(|| {
        let mut binary = TestBinary::new().savers(target::targets()).ignoring(target::is_left_out);
        for kind in Kind::ALL {
            binary = binary
                .tests(trials(kind, "expiry", expiry::tests()))
                .tests(trials(kind, "input", input::tests()))
                .tests(trials(kind, "races", races::tests()))
                .tests(trials(kind, "runtimes", runtimes::tests()));
            // FerretDB takes minutes for them, and they find the same on both.
            if kind == Kind::Java || target::runs_all() {
                binary = binary
                    .tests(trials(kind, "faults", faults::tests()))
                    .tests(trials(kind, "growth", growth::tests()))
                    .tests(trials(kind, "sizes", sizes::tests()));
            }
        }
        binary.run()
    })
}
