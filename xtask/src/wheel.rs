//! The Python wheel: built, installed beside each generation of LangGraph, and tested there.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::python::{Environment, set_up_build};
use crate::run::{Result, run};
use crate::{root, target};

/// Builds the wheel with this profile, in the same target folder as everything else, and says where it is.
pub(crate) fn build(profile: &str) -> Result<PathBuf> {
    let python = set_up_build()?;
    let folder = target().join("python/wheels");
    // What an older build left is not to be taken for this one's.
    if folder.exists() {
        std::fs::remove_dir_all(&folder)
            .map_err(|error| format!("{} cannot be removed: {error}", folder.display()))?;
    }
    let mut maturin = Command::new(&python);
    maturin.args([
        "-m",
        "maturin",
        "build",
        "--quiet",
        "--locked",
        "--profile",
        profile,
        "--auditwheel",
        "skip",
    ]);
    maturin.args(["--manifest-path", "python/Cargo.toml", "--compatibility", "linux", "--out"]).arg(&folder);
    maturin.arg("--target-dir").arg(target()).arg("--interpreter").arg(python);
    run(maturin.current_dir(root()))?;
    let wheel = std::fs::read_dir(&folder)
        .map_err(|error| format!("{} cannot be read: {error}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|end| end == "whl"));
    wheel.ok_or_else(|| format!("maturin left no wheel in {}", folder.display()).into())
}

/// Installs the wheel in place of the one that is there.
pub(crate) fn install(environment: &Environment, wheel: &Path) -> Result<()> {
    let pip = |command: &str| {
        let mut pip = Command::new(&environment.python);
        pip.args(["-m", "pip", command, "--quiet", "--disable-pip-version-check", "--no-input"]);
        pip
    };
    let install = ["--force-reinstall", "--no-deps", "--no-index"];
    run(pip("install").args(install).arg(wheel))?;
    // What the wheel says that it needs is there.
    run(&mut pip("check"))
}

/// Installs the wheel into each environment, and runs its tests there, in all of them at the same time. What each has to
/// say comes when it has ended.
pub(crate) fn test(
    environments: &[Environment],
    wheel: &Path,
    variables: &[(&'static str, String)],
    arguments: &[String],
) -> Result<()> {
    for environment in environments {
        install(environment, wheel)?;
    }
    let pytest = |environment: &Environment| {
        let mut pytest = Command::new(&environment.python);
        // From its own folder, so that the wheel is imported and not its sources.
        pytest.args(["-m", "pytest"]).args(arguments).current_dir(root().join("python/tests"));
        pytest.envs(variables.iter().map(|(name, value)| (name, value)));
        let output = pytest.output();
        let name = environment.python.display();
        eprintln!("xtask: the wheel's tests with {name}");
        match output {
            Ok(output) => {
                eprint!(
                    "{}{}",
                    String::from_utf8_lossy(&output.stdout),
                    String::from_utf8_lossy(&output.stderr)
                );
                output.status.success()
            }
            Err(error) => {
                eprintln!("xtask: {name} could not be started: {error}");
                false
            }
        }
    };
    let passed: Vec<bool> = std::thread::scope(|scope| {
        let runs: Vec<_> = environments.iter().map(|one| scope.spawn(|| pytest(one))).collect();
        runs.into_iter().map(|run| run.join().unwrap_or(false)).collect()
    });
    let failed = environments.iter().zip(passed).filter(|(_, passed)| !passed);
    let failed: Vec<_> = failed.map(|(environment, _)| environment.python.display().to_string()).collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(format!("the wheel's tests failed with {}", failed.join(" and with ")).into())
}
