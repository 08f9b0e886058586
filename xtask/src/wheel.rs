//! The Python wheel: built, installed beside each generation of LangGraph, and tested there.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::python::{Environment, set_up_build};
use crate::run::{Result, forget_package, run};
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
    forget_package(&mut maturin);
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

/// The wheel with the tests' profile, which is built when somebody asks for it first.
#[derive(Debug, Default)]
pub(crate) struct Built(Mutex<Option<Result<PathBuf, String>>>);

impl Built {
    /// Where it is. Others wait while it is built.
    pub(crate) fn get(&self) -> Result<PathBuf> {
        let mut built = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wheel = built.get_or_insert_with(|| build("dev").map_err(|error| error.to_string()));
        Ok(wheel.clone()?)
    }
}

/// Installs the wheel into an environment, and gives the command of its tests there.
pub(crate) fn pytest(environment: &Environment, wheel: &Path) -> Result<Command> {
    install(environment, wheel)?;
    let mut pytest = Command::new(&environment.python);
    // From its own folder, so that the wheel is imported and not its sources.
    pytest.args(["-m", "pytest"]).current_dir(root().join("python/tests"));
    Ok(pytest)
}
