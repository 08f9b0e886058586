//! The Python wheel: builds it, installs it into the environment of each generation of LangGraph, and tests it there.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::python::{Environment, set_up_build};
use crate::run::{Result, forget_package, run};
use crate::{root, target};

/// Builds the wheel with this profile, in the shared target folder, and returns its path.
pub(crate) fn build(profile: &str) -> Result<PathBuf> {
    let python = set_up_build()?;
    let folder = target().join("python/wheels");
    // The wheel of an older build must not be mistaken for this one's.
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
    forget_package(&mut maturin);
    run(maturin.current_dir(root()))?;
    let wheel = std::fs::read_dir(&folder)
        .map_err(|error| format!("{} cannot be read: {error}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|end| end == "whl"));
    wheel.ok_or_else(|| format!("maturin left no wheel in {}", folder.display()).into())
}

/// Installs the wheel, replacing an installed one.
pub(crate) fn install(environment: &Environment, wheel: &Path) -> Result<()> {
    let pip = |command: &str| {
        let mut pip = Command::new(&environment.python);
        pip.args(["-m", "pip", command, "--quiet", "--disable-pip-version-check", "--no-input"]);
        pip
    };
    let install = ["--force-reinstall", "--no-deps", "--no-index"];
    run(pip("install").args(install).arg(wheel))?;
    // Its dependencies are already installed.
    run(&mut pip("check"))
}

/// The wheel with the tests' profile, built at the first use.
#[derive(Debug, Default)]
pub(crate) struct Built(Mutex<Option<Result<PathBuf, String>>>);

impl Built {
    /// The path of the wheel. Concurrent calls wait while it is built.
    pub(crate) fn get(&self) -> Result<PathBuf> {
        let mut built = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wheel = built.get_or_insert_with(|| build("dev").map_err(|error| error.to_string()));
        Ok(wheel.clone()?)
    }
}

/// Installs the wheel into an environment, and returns the command of its tests there.
pub(crate) fn pytest(environment: &Environment, wheel: &Path) -> Result<Command> {
    install(environment, wheel)?;
    let mut pytest = Command::new(&environment.python);
    // In this folder, the installed wheel is imported instead of its sources.
    pytest.args(["-m", "pytest"]).current_dir(root().join("python/tests"));
    Ok(pytest)
}
