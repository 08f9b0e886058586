//! The project's chores. `cargo xtask test` runs every test and sets up what they need.

mod apt;
mod python;
mod run;
mod servers;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use checkpoint_servers::{PGBOUNCER, POSTGRES, POSTGRES_15};
use clap::{Parser, Subcommand};

use crate::run::{Result, cargo};

/// Development tasks of the project.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Sets up environments and servers, then runs all tests.
    Test {
        /// Passed to `cargo test`. With any argument, the tests of the Python wheel are skipped.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Builds the Python wheel and runs its tests, with each generation of LangGraph.
    TestPython {
        /// Passed to `pytest`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Creates the Python environments of the cross-language tests, and prints their variables.
    Venv,
    /// The servers of the tests, in containers.
    Servers {
        #[command(subcommand)]
        chore: servers::Chore,
    },
    /// Benchmarks the SQLite saver against Python's, in alternating runs.
    BenchSqlite {
        /// The number of rounds.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// The folder of the database files; the target folder by default.
        #[arg(long)]
        directory: Option<PathBuf>,
        /// The durability of commits: `on` is synchronous FULL, `off` NORMAL.
        #[arg(long, default_value = "on")]
        sync: String,
    },
    /// Benchmarks the PostgreSQL saver against Python's and against plain SQL, in alternating runs: on the server of the
    /// `BENCH_PG_*` variables, or else on that of the tests.
    BenchPostgres {
        /// Passed to `benches/python/compare_postgres.py`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Benchmarks the PostgreSQL store in the same way.
    BenchStore {
        /// Passed to `benches/python/compare_postgres.py`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Benchmarks the wheel's savers and stores on PostgreSQL against Python's, in alternating runs, on the same server.
    BenchWheel {
        /// Passed to `benches/python/compare_postgres.py`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Measures the recall of the PostgreSQL store's semantic searches, on the same server.
    BenchRecall {
        /// Passed to the Rust driver.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
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
        Chore::Test { arguments } => test(&arguments),
        Chore::TestPython { arguments } => test_python(&arguments),
        Chore::Venv => {
            for environment in python::set_up()? {
                println!("{}={}", environment.variable, environment.python.display());
            }
            Ok(())
        }
        Chore::Servers { chore } => servers::run(chore),
        Chore::BenchSqlite { rounds, directory, sync } => {
            let directory = directory.unwrap_or_else(target);
            run::run(compare("compare.py")?.arg("--directory").arg(directory).args([
                "--rounds",
                &rounds.to_string(),
                "--sync",
                &sync,
            ]))
        }
        Chore::BenchPostgres { arguments } => {
            run::run(compare("compare_postgres.py")?.envs(bench_server()?).args(arguments))
        }
        Chore::BenchStore { arguments } => {
            let mut compare = compare("compare_postgres.py")?;
            run::run(compare.args(["--groups", "store"]).envs(bench_server()?).args(arguments))
        }
        Chore::BenchWheel { arguments } => {
            let python = python::set_up()?.pop().ok_or("there is no Python environment")?;
            wheel::install(&python, &wheel::build("release")?)?;
            let mut compare = compare("compare_postgres.py")?;
            compare.args(["--wheel", "--groups", "chat", "conc", "store"]);
            run::run(compare.envs(bench_server()?).args(arguments))
        }
        Chore::BenchRecall { arguments } => {
            let mut workload = Command::new(workload()?);
            workload.args(["--impl", "postgres", "--group", "recall"]);
            run::run(workload.envs(bench_server()?).args(arguments))
        }
    }
}

/// A comparison with Python, to which the Rust driver is built.
fn compare(script: &str) -> Result<Command> {
    let python = python::set_up()?.pop().ok_or("there is no Python environment")?.python;
    let mut compare = Command::new(python);
    compare.arg(root().join("benches/python").join(script));
    compare.arg("--workload").arg(workload()?);
    Ok(compare)
}

/// Builds the Rust driver, and says where it is.
fn workload() -> Result<PathBuf> {
    let build = ["build", "--release", "--locked", "-p", "checkpoint-benches", "--bin", "workload"];
    run::run(cargo().args(build))?;
    Ok(target().join("release/workload"))
}

/// Says where PostgreSQL is, as the drivers want it: nothing where the environment says so already, else the tests' own,
/// which is started.
fn bench_server() -> Result<Vec<(&'static str, String)>> {
    if ["BENCH_PG_HOST", "BENCH_PG_PORT"].iter().any(|name| std::env::var_os(name).is_some()) {
        return Ok(Vec::new());
    }
    let variables = servers::up(&[&POSTGRES])?;
    let url = variables.iter().find(|(name, _)| *name == POSTGRES.variable).map(|(_, url)| url);
    let url = url.ok_or("the server has no URL")?;
    let port = url.rsplit(':').next().and_then(|end| end.split('/').next()).ok_or("its URL has no port")?;
    let mut variables = vec![("BENCH_PG_HOST", "127.0.0.1".to_owned()), ("BENCH_PG_PORT", port.to_owned())];
    if let Some(account) = POSTGRES.account {
        variables.push(("BENCH_PG_USER", account.user.to_owned()));
        variables.push(("BENCH_PG_PASSWORD", account.password.to_owned()));
    }
    Ok(variables)
}

/// With everything set up, a test that cannot run has failed.
const REQUIRE: (&str, &str) = ("CHECKPOINT_TEST_REQUIRE", "python,postgres");

/// Builds the tests while their environments and servers are set up, then runs them: cargo's, then the wheel's.
fn test(arguments: &[String]) -> Result<()> {
    let with_tests = || {
        let mut test = cargo();
        test.args(["test", "--workspace", "--locked"]);
        test
    };
    let ready = set_up(arguments.is_empty(), || match build_arguments(arguments) {
        Some(arguments) => run::run(with_tests().arg("--no-run").args(arguments)),
        None => Ok(()),
    })?;
    let mut test = with_tests();
    for environment in &ready.pythons {
        test.env(environment.variable, &environment.python);
    }
    run::run(test.envs(ready.variables.iter().map(|(name, value)| (name, value))).args(arguments))?;
    ready.wheel.map_or(Ok(()), |wheel| wheel::test(&ready.pythons, &wheel, &ready.variables, &[]))
}

/// The wheel's part of the tests.
fn test_python(arguments: &[String]) -> Result<()> {
    let ready = set_up(true, || Ok(()))?;
    let wheel = ready.wheel.ok_or("there is no wheel")?;
    wheel::test(&ready.pythons, &wheel, &ready.variables, arguments)
}

/// What the tests need.
struct Ready {
    pythons: Vec<python::Environment>,
    wheel: Option<PathBuf>,
    variables: Vec<(&'static str, String)>,
}

/// Sets up environments and servers while something is built, and then the wheel if it is wanted.
fn set_up(with_wheel: bool, build: impl FnOnce() -> Result<()>) -> Result<Ready> {
    std::thread::scope(|scope| {
        // An error has to cross from one thread to another.
        let pythons = scope.spawn(|| python::set_up().map_err(|error| error.to_string()));
        let wanted = [&POSTGRES, &POSTGRES_15, &PGBOUNCER];
        let servers = scope.spawn(move || servers::up(&wanted).map_err(|error| error.to_string()));
        build()?;
        let failed = "setting up the tests failed";
        let pythons = pythons.join().map_err(|_| failed)??;
        let wheel = if with_wheel { Some(wheel::build("dev")?) } else { None };
        let mut variables = servers.join().map_err(|_| failed)??;
        variables.push((REQUIRE.0, REQUIRE.1.to_owned()));
        Ok(Ready { pythons, wheel, variables })
    })
}

/// The arguments that decide what is built, if it can be built without running it.
fn build_arguments(arguments: &[String]) -> Option<&[String]> {
    let end = arguments.iter().position(|argument| argument == "--").unwrap_or(arguments.len());
    let arguments = &arguments[..end];
    let only_runs = |argument: &String| argument == "--doc" || argument == "--no-run";
    (!arguments.iter().any(only_runs)).then_some(arguments)
}

/// The workspace's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// The folder for everything that is built.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |target| root().join(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_before_it_is_run() {
        let arguments = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let built = |text| build_arguments(&arguments(text)).map(<[String]>::to_vec);
        assert_eq!(built("--test sqlite -- prune --doc"), Some(arguments("--test sqlite")));
        assert_eq!(built(""), Some(Vec::new()));
        assert_eq!(built("--doc"), None);
    }
}
