//! Tests that work with a server, as trials of a test binary.

#![allow(dead_code, unused_macros, unused_imports, reason = "each binary uses its part of this")]

use checkpoint_conformance::Missing;
use libtest_mimic::{Completion, Trial};

/// How a test ends that may find out only then that something is missing.
pub(crate) trait Ended {
    fn ended(self) -> Result<(), Missing>;
}

impl Ended for () {
    fn ended(self) -> Result<(), Missing> {
        Ok(())
    }
}

impl Ended for Result<(), Missing> {
    fn ended(self) -> Self {
        self
    }
}

/// One test that works with a server.
pub(crate) type Test<S> = (&'static str, fn(&S) -> Result<(), Missing>);

/// Lists asynchronous functions as tests, by their names.
macro_rules! tests {
    ($($test:ident),* $(,)?) => {{
        use $crate::shared::trials::{Ended, in_runtime};
        let tests: &[Test] = &[$((stringify!($test), |server| in_runtime($test(server)).ended())),*];
        tests
    }};
}
pub(crate) use tests;

/// Tests on a server that `find` finds; where it is missing they are shown as ignored, or fail where it is required.
pub(crate) fn trials<S: 'static>(
    tests: &[Test<S>],
    name: impl Fn(&str) -> String,
    kind: &str,
    find: fn() -> Result<S, Missing>,
) -> Vec<Trial> {
    let trial = |(test_name, test): &Test<S>| {
        let test = *test;
        let run = move || match find().and_then(|server| test(&server)) {
            Ok(()) => Ok(Completion::Completed),
            Err(missing) => missing.end(),
        };
        Trial::ignorable_test(name(test_name), run).with_kind(kind)
    };
    tests.iter().map(trial).collect()
}

/// A name that nobody else has.
pub(crate) fn unique_name() -> String {
    format!("checkpoint_test_{}", checkpoint_core::id::uuid6(0).replace('-', ""))
}

pub(crate) fn in_runtime<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(future)
}
