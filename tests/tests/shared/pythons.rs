//! The Pythons of the cross-language tests.
//!
//! They are named by environment variables, which `cargo xtask test` sets. Without them the cases are ignored; with
//! `CHECKPOINT_TEST_REQUIRE=python` they fail.

#![allow(dead_code, reason = "each binary uses its part of this")]

use std::path::{Path, PathBuf};
use std::process::Command;

use checkpoint_conformance::Missing;

/// The generations that share databases, with the variable that names the Python of each.
pub(crate) const GENERATIONS: [(&str, &str); 2] =
    [("4.2", "CHECKPOINT_TEST_PYTHON_4_2"), ("4.3", "CHECKPOINT_TEST_PYTHON_4_3")];

/// The Pythons of the environment, in the order of the generations.
fn given() -> [Option<PathBuf>; 2] {
    GENERATIONS.map(|(_, variable)| std::env::var_os(variable).map(PathBuf::from))
}

/// The Python of a generation.
pub(crate) fn find(at: usize) -> Result<PathBuf, Missing> {
    let (_, variable) = GENERATIONS[at];
    given()[at].clone().ok_or_else(|| {
        Missing::new("python", format!("{variable} is not set; cargo xtask test sets it"), &["python"])
    })
}

/// The Python of the other generation. Fails where both variables name the same one.
pub(crate) fn other(at: usize) -> Result<PathBuf, Missing> {
    let other = GENERATIONS.len() - 1 - at;
    for (at, (generation, variable)) in GENERATIONS.into_iter().enumerate() {
        let version = version(&find(at)?);
        assert!(version.starts_with(generation), "{variable} has langgraph-checkpoint {version}");
    }
    find(other)
}

/// The version of the package after which generations are named.
fn version(python: &Path) -> String {
    const PRINT: &str = "import importlib.metadata as m; print(m.version('langgraph-checkpoint'))";
    let output = Command::new(python).args(["-c", PRINT]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
