//! `cargo xtask test`, `test-python` and `soak`: sets up the environment of the tests, then runs them concurrently.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use checkpoint_servers::{MONGO, MONGO_JAVA, PGBOUNCER, POSTGRES, POSTGRES_15, REDIS, REDIS_CLUSTER, VALKEY};
use serde_json::Value as Json;

use crate::run::{Result, cargo, output, run};
use crate::stages::{self, Stage};
use crate::{python, servers, wheel};

/// The variable with the requirements of tests: since everything is set up, a test that cannot run fails.
const REQUIRE: &str = "CHECKPOINT_TEST_REQUIRE";

/// The variable with the factor by which long tests are prolonged.
const SOAK: &str = "CHECKPOINT_TEST_SOAK";

/// The slowest test binaries, which start first.
const SLOWEST: [&str; 6] = ["mongo", "redis", "store_postgres", "postgres", "python", "store"];

/// The tests that `--quick` skips and `soak` prolongs: by binary and module.
const LONG: [(&str, &str); 13] = [
    ("sqlite", "agents::"),
    ("sqlite", "faults::"),
    ("postgres", "agents::"),
    ("postgres", "faults::"),
    ("postgres", "contention::"),
    ("store_postgres", "faults::"),
    ("redis", "agents::"),
    ("redis", "cluster::"),
    ("redis", "faults::"),
    ("redis", "races::"),
    ("redis", "sentinel::"),
    ("mongo", "faults::"),
    ("mongo", "races::"),
];

/// The package of the test binaries with the suite.
const CONFORMANCE: &str = "checkpoint-conformance";

/// The number of concurrent stages. Tests spend more time waiting for servers and disks than computing.
fn lanes() -> usize {
    std::thread::available_parallelism().map_or(2, std::num::NonZero::get) + 1
}

/// The environment of the tests.
struct Environments {
    pythons: Vec<python::Environment>,
    variables: Vec<(&'static str, String)>,
}

impl Environments {
    /// Sets up Python environments and servers while `build` runs.
    fn set_up<T>(quick: bool, build: impl FnOnce() -> Result<T>) -> Result<(Self, T)> {
        std::thread::scope(|scope| {
            // Errors are sent from one thread to another.
            let pythons = move || if quick { python::set_up_newest() } else { python::set_up() };
            let pythons = scope.spawn(move || pythons().map_err(|error| error.to_string()));
            let wanted =
                [&POSTGRES, &POSTGRES_15, &PGBOUNCER, &REDIS, &VALKEY, &REDIS_CLUSTER, &MONGO, &MONGO_JAVA];
            let servers = scope.spawn(move || servers::up(&wanted).map_err(|error| error.to_string()));
            let made = build()?;
            let failed = "setting up the tests failed";
            let pythons = pythons.join().map_err(|_| failed)??;
            let mut variables = servers.join().map_err(|_| failed)??;
            // With only the newest generation, the tests of the others are ignored.
            let required = match pythons.as_slice() {
                [newest] => format!("python-{},postgres,redis,mongo", newest.generation),
                _ => "python,postgres,redis,mongo".to_owned(),
            };
            variables.push((REQUIRE, required));
            Ok((Self { pythons, variables }, made))
        })
    }

    /// Sets the variables of a program.
    fn apply_to(&self, command: &mut Command) {
        for environment in &self.pythons {
            command.env(environment.variable, &environment.python);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
    }
}

/// Runs all tests, or, with arguments, `cargo test` with these.
pub(crate) fn test(quick: bool, arguments: &[String]) -> Result<()> {
    if !arguments.is_empty() {
        return test_some(quick, arguments);
    }
    let (environments, binaries) = Environments::set_up(quick, build)?;
    let environments = Arc::new(environments);
    let mut stages = wheel_stages(&environments, &[]);
    stages.extend(binary_stages(&environments, binaries, quick));
    let mut doc = cargo();
    doc.args(["test", "--workspace", "--doc", "--locked"]);
    environments.apply_to(&mut doc);
    stages.push(Stage::of("documentation", vec![doc]));
    stages::run(stages, lanes())
}

/// Runs `cargo test` with these arguments, with everything set up, and shows its output.
fn test_some(quick: bool, arguments: &[String]) -> Result<()> {
    let with_tests = || {
        let mut test = cargo();
        test.args(["test", "--workspace", "--locked"]);
        test
    };
    let (environments, ()) = Environments::set_up(quick, || match build_arguments(arguments) {
        Some(arguments) => run(with_tests().arg("--no-run").args(arguments)),
        None => Ok(()),
    })?;
    let mut test = with_tests();
    environments.apply_to(&mut test);
    run(test.args(arguments))
}

/// The arguments that select the build targets, if they can be built without running tests.
fn build_arguments(arguments: &[String]) -> Option<&[String]> {
    let end = arguments.iter().position(|argument| argument == "--").unwrap_or(arguments.len());
    let arguments = &arguments[..end];
    let only_runs = |argument: &String| argument == "--doc" || argument == "--no-run";
    (!arguments.iter().any(only_runs)).then_some(arguments)
}

/// Runs the wheel's tests.
pub(crate) fn test_python(arguments: &[String]) -> Result<()> {
    let (environments, ()) = Environments::set_up(false, || Ok(()))?;
    stages::run(wheel_stages(&Arc::new(environments), arguments), lanes())
}

/// Runs the fault tests for this many times the usual duration.
pub(crate) fn soak(times: u32) -> Result<()> {
    let (environments, binaries) = Environments::set_up(true, build)?;
    let mut stages = Vec::new();
    for (name, module) in LONG {
        let binary = binaries.iter().find(|binary| binary.package == CONFORMANCE && binary.name == name);
        let mut command = binary.ok_or_else(|| format!("there is no test binary {name}"))?.command();
        environments.apply_to(command.arg(module).env(SOAK, times.to_string()));
        stages.push(Stage::of(format!("{name} {module}"), vec![command]));
    }
    // One at a time: each saturates a server.
    stages::run(stages, 1)
}

/// The stages of the wheel: it is built once, by the first stage, and tested with each generation of LangGraph.
fn wheel_stages(environments: &Arc<Environments>, arguments: &[String]) -> Vec<Stage> {
    let wheel = Arc::new(wheel::Built::default());
    let newest_first = (0..environments.pythons.len()).rev();
    newest_first
        .map(|at| {
            let (environments, wheel, arguments) = (environments.clone(), wheel.clone(), arguments.to_vec());
            Stage::new(format!("wheel {}", environments.pythons[at].generation), move || {
                let mut pytest = wheel::pytest(&environments.pythons[at], &wheel.get()?)?;
                environments.apply_to(pytest.args(arguments));
                Ok(vec![pytest])
            })
        })
        .collect()
}

/// A test binary that cargo built.
#[derive(Debug, PartialEq, Eq)]
struct Binary {
    package: String,
    name: String,
    /// Whether it contains the unit tests of a crate.
    is_unit: bool,
    folder: PathBuf,
    program: PathBuf,
}

impl Binary {
    /// Parses one of cargo's messages.
    fn parse(message: &str) -> Option<Self> {
        let message: Json = serde_json::from_str(message).ok()?;
        let is_test = message["profile"]["test"].as_bool()?;
        let program = message["executable"].as_str().filter(|_| is_test)?;
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
        // `path+file:///folder#name@version`; the name is omitted if it is the folder's.
        let (path, id) = message["package_id"].as_str()?.rsplit_once('#')?;
        let package = match id.split_once('@') {
            Some((name, _)) => name,
            None => path.rsplit('/').next()?,
        };
        let kinds = message["target"]["kind"].as_array()?;
        Some(Self {
            package: package.to_owned(),
            name: message["target"]["name"].as_str()?.to_owned(),
            is_unit: !kinds.iter().any(|kind| kind == "test"),
            folder: folder.to_owned(),
            program: program.into(),
        })
    }

    /// The command that runs it as cargo does.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

/// Builds all test binaries.
fn build() -> Result<Vec<Binary>> {
    let mut build = cargo();
    build.args(["test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics"]);
    let messages = output(&mut build)?;
    let binaries: Vec<_> = messages.lines().filter_map(Binary::parse).collect();
    if binaries.is_empty() { Err("cargo named no test binaries".into()) } else { Ok(binaries) }
}

fn binary_stages(environments: &Environments, mut binaries: Vec<Binary>, quick: bool) -> Vec<Stage> {
    let order =
        |binary: &Binary| SLOWEST.iter().position(|name| *name == binary.name).unwrap_or(SLOWEST.len());
    binaries.sort_by_key(order);
    let mut stages = Vec::new();
    let mut units = Vec::new();
    for binary in binaries {
        let mut command = binary.command();
        environments.apply_to(&mut command);
        if binary.is_unit {
            units.push(command);
            continue;
        }
        let name = format!("{} {}", binary.package, binary.name);
        if quick && binary.package == CONFORMANCE {
            let long = LONG.iter().filter(|(name, _)| *name == binary.name);
            command.args(long.flat_map(|(_, module)| ["--skip", module]));
        }
        stages.push(Stage::of(name, vec![command]));
    }
    stages.push(Stage::of("unit tests", units));
    stages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_arguments_of_cargo_test() {
        let arguments = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let built = |text| build_arguments(&arguments(text)).map(<[String]>::to_vec);
        assert_eq!(built("--test sqlite -- prune --doc"), Some(arguments("--test sqlite")));
        assert_eq!(built(""), Some(Vec::new()));
        assert_eq!(built("--doc"), None);
    }

    #[test]
    fn test_binaries_are_parsed_from_cargos_messages() {
        let message = |id: &str, kind: &str, test: bool| {
            serde_json::json!({
                "reason": "compiler-artifact",
                "package_id": id,
                "manifest_path": "/w/tests/Cargo.toml",
                "target": {"kind": [kind], "name": "sqlite"},
                "profile": {"test": test},
                "executable": "/w/target/debug/deps/sqlite-1",
            })
            .to_string()
        };
        let binary = |package: &str, is_unit| Binary {
            package: package.to_owned(),
            name: "sqlite".to_owned(),
            is_unit,
            folder: "/w/tests".into(),
            program: "/w/target/debug/deps/sqlite-1".into(),
        };
        let named = "path+file:///w/tests#checkpoint-conformance@0.1.0";
        assert_eq!(
            Binary::parse(&message(named, "test", true)),
            Some(binary("checkpoint-conformance", false))
        );
        assert_eq!(
            Binary::parse(&message("path+file:///w/cli#0.1.0", "bin", true)),
            Some(binary("cli", true))
        );
        assert_eq!(Binary::parse(&message(named, "bin", false)), None);
        assert_eq!(Binary::parse(r#"{"reason": "build-finished", "success": true}"#), None);
    }
}
