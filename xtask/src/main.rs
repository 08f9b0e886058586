//! The project's chores. `cargo xtask test` runs every test and sets up what they need.

mod apt;
mod python;
mod run;
mod servers;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::run::{Result, cargo};

/// The project's chores.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Sets up what the tests need, then runs them all.
    Test {
        /// Passed on to `cargo test`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Makes the Python environments of the cross-language tests, and prints their variables.
    Venv,
    /// The servers of the tests, in containers.
    Servers {
        #[command(subcommand)]
        chore: servers::Chore,
    },
    /// Measures the SQLite saver next to Python's, in turns.
    BenchSqlite {
        /// How many rounds.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Where the database files are made; the default is the target folder.
        #[arg(long)]
        directory: Option<PathBuf>,
        /// The durability of commits: `on` is synchronous FULL, `off` NORMAL.
        #[arg(long, default_value = "on")]
        sync: String,
    },
}

fn main() -> ExitCode {
    match chore(Arguments::parse().chore) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn chore(chore: Chore) -> Result<()> {
    match chore {
        Chore::Test { arguments } => {
            let mut test = cargo();
            test.args(["test", "--workspace", "--locked"]);
            for environment in python::set_up()? {
                test.env(environment.variable, environment.python);
            }
            // With everything set up, a case that cannot run has failed.
            test.env("CHECKPOINT_TEST_REQUIRE", "python");
            run::run(test.args(arguments))
        }
        Chore::Venv => {
            for environment in python::set_up()? {
                println!("{}={}", environment.variable, environment.python.display());
            }
            Ok(())
        }
        Chore::Servers { chore } => servers::run(chore),
        Chore::BenchSqlite { rounds, directory, sync } => {
            let python = python::set_up()?.pop().ok_or("there is no Python environment")?.python;
            let directory = directory.unwrap_or_else(target);
            run::run(cargo().args([
                "build",
                "--release",
                "--locked",
                "-p",
                "checkpoint-benches",
                "--bin",
                "workload",
            ]))?;
            let workload = target().join("release/workload");
            run::run(
                std::process::Command::new(python)
                    .arg(root().join("benches/python/compare.py"))
                    .arg("--workload")
                    .arg(workload)
                    .arg("--directory")
                    .arg(directory)
                    .args(["--rounds", &rounds.to_string(), "--sync", &sync]),
            )
        }
    }
}

/// The workspace's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// The folder for everything that is built.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |target| root().join(target))
}
