//! The suites on the in-memory saver and the in-memory store.

use std::process::ExitCode;

use checkpoint_conformance::TestBinary;

mod saver;
mod store;

fn main() -> ExitCode {
    TestBinary::new().savers(vec![Ok(saver::target())]).stores(vec![Ok(store::target())]).run()
}
