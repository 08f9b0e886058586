//! The project's development tasks. `cargo xtask test` sets up the environment and runs every test.

mod apt;
mod package;
mod python;
mod run;
mod servers;
mod stages;
mod test;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use checkpoint_servers::{BENCH_POSTGRES, BENCH_REDIS};
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
        /// Skips the older generations of LangGraph and the tests that `soak` repeats.
        #[arg(long)]
        quick: bool,
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
    /// Builds the Python package's source distribution and manylinux wheels in `target/wheels`, checks them, and installs the
    /// wheel for this machine into a bare container.
    Wheel {
        /// The Rust targets. `rustup target add` installs what a target needs.
        #[arg(long, value_name = "TARGET", value_parser = package::TARGETS, default_values = package::TARGETS)]
        target: Vec<String>,
    },
    /// Runs the fault and concurrency tests for longer than `test` does.
    Soak {
        /// The factor of the duration.
        #[arg(long, default_value_t = 20)]
        times: u32,
    },
    /// Creates the Python environments of the cross-language tests, and prints their environment variables.
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
    /// `BENCH_PG_*` variables, otherwise on a benchmark server, which it starts.
    BenchPostgres {
        /// Passed to `benches/python/compare_postgres.py`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Benchmarks the Redis saver against the round trip of a PING: on the server of `BENCH_REDIS_URL`, otherwise on a
    /// benchmark server, which it starts.
    BenchRedis {
        /// Measures the wheel's saver instead.
        #[arg(long)]
        wheel: bool,
        /// Passed to the driver: `--rounds`, and without `--wheel` `--seconds` and `--tasks`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Benchmarks the MongoDB saver against the round trip of a ping, on the server of a URL. It makes a collection of its own
    /// and drops it. There is no server to start: on the tests' stand-ins, speed says nothing.
    BenchMongo {
        /// `mongodb://HOST/DATABASE`.
        url: String,
        /// Passed to the driver: `--rounds`, `--seconds`, `--tasks`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Benchmarks the PostgreSQL store as the PostgreSQL saver.
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
    /// Benchmarks whole graphs on the wheel's savers against LangGraph's own, in alternating runs, on the same server.
    BenchGraphs {
        /// Passed to `benches/python/graphs.py`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Benchmarks retention on PostgreSQL: what a run removes per second, beside the naive script, what an agent's `put` takes
    /// meanwhile, and what `keep_last` costs a `put`. On the same server.
    BenchRetention {
        /// Passed to the driver: `--threads`, `--steps`, `--keep`, `--without-naive`.
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
    let arguments = Arguments::parse();
    let done = run::end_all_when_interrupted().and_then(|()| chore(arguments.chore));
    run::wait_if_interrupted();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn chore(chore: Chore) -> Result<()> {
    match chore {
        Chore::Test { quick, arguments } => test::test(quick, &arguments),
        Chore::TestPython { arguments } => test::test_python(&arguments),
        Chore::Wheel { target } => package::package(&target),
        Chore::Soak { times } => test::soak(times),
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
        Chore::BenchRedis { wheel, arguments } => {
            let url = if let Ok(url) = std::env::var(BENCH_REDIS.variable) {
                url
            } else {
                servers::up(&[&BENCH_REDIS])?;
                BENCH_REDIS.url(BENCH_REDIS.port)
            };
            let mut driver = if wheel {
                let mut python = Command::new(install_release()?);
                python.arg(root().join("benches/python/redis_wheel.py")).arg(url);
                python
            } else {
                let build = ["build", "--release", "--locked", "-p", "checkpoint-benches", "--bin", "redis"];
                run::run(cargo().args(build))?;
                let mut driver = Command::new(target().join("release/redis"));
                driver.env(BENCH_REDIS.variable, url);
                driver
            };
            run::run(driver.args(arguments))
        }
        Chore::BenchMongo { url, arguments } => {
            let build = ["build", "--release", "--locked", "-p", "checkpoint-benches", "--bin", "mongo"];
            run::run(cargo().args(build))?;
            run::run(Command::new(target().join("release/mongo")).arg(url).args(arguments))
        }
        Chore::BenchStore { arguments } => {
            let mut compare = compare("compare_postgres.py")?;
            run::run(compare.args(["--groups", "store"]).envs(bench_server()?).args(arguments))
        }
        Chore::BenchWheel { arguments } => {
            install_release()?;
            let mut compare = compare("compare_postgres.py")?;
            compare.args(["--wheel", "--groups", "chat", "conc", "store"]);
            run::run(compare.envs(bench_server()?).args(arguments))
        }
        Chore::BenchGraphs { arguments } => {
            let mut graphs = Command::new(install_release()?);
            graphs.arg(root().join("benches/python/graphs.py")).arg("--directory").arg(target());
            run::run(graphs.envs(bench_server()?).args(arguments))
        }
        Chore::BenchRetention { arguments } => {
            let build = ["build", "--release", "--locked", "-p", "checkpoint-benches", "--bin", "retention"];
            run::run(cargo().args(build))?;
            let mut driver = Command::new(target().join("release/retention"));
            run::run(driver.envs(bench_server()?).args(arguments))
        }
        Chore::BenchRecall { arguments } => {
            let mut workload = Command::new(workload()?);
            workload.args(["--impl", "postgres", "--group", "recall"]);
            run::run(workload.envs(bench_server()?).args(arguments))
        }
    }
}

/// Installs the wheel with the release profile next to the newest LangGraph, and returns the Python there.
fn install_release() -> Result<PathBuf> {
    let environment = python::set_up()?.pop().ok_or("there is no Python environment")?;
    wheel::install(&environment, &wheel::build("release")?)?;
    Ok(environment.python)
}

/// The command of a comparison with Python. Builds the Rust driver for it.
fn compare(script: &str) -> Result<Command> {
    let python = python::set_up()?.pop().ok_or("there is no Python environment")?.python;
    let mut compare = Command::new(python);
    compare.arg(root().join("benches/python").join(script));
    compare.arg("--workload").arg(workload()?);
    Ok(compare)
}

/// Builds the Rust driver and returns its path.
fn workload() -> Result<PathBuf> {
    let build = ["build", "--release", "--locked", "-p", "checkpoint-benches", "--bin", "workload"];
    run::run(cargo().args(build))?;
    Ok(target().join("release/workload"))
}

/// The `BENCH_PG_*` variables for the drivers: empty if the environment already has them, otherwise those of the
/// benchmark server on the host's network, which is started.
fn bench_server() -> Result<Vec<(&'static str, String)>> {
    if ["BENCH_PG_HOST", "BENCH_PG_PORT"].iter().any(|name| std::env::var_os(name).is_some()) {
        return Ok(Vec::new());
    }
    servers::up(&[&BENCH_POSTGRES])?;
    let mut variables =
        vec![("BENCH_PG_HOST", "127.0.0.1".to_owned()), ("BENCH_PG_PORT", BENCH_POSTGRES.port.to_string())];
    if let Some(account) = BENCH_POSTGRES.account {
        variables.push(("BENCH_PG_USER", account.user.to_owned()));
        variables.push(("BENCH_PG_PASSWORD", account.password.to_owned()));
    }
    Ok(variables)
}

/// The workspace's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// The folder for build output.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |target| root().join(target))
}
