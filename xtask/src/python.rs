//! Python environments with LangGraph, one for each supported generation.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{Result, run, succeeds};
use crate::{apt, root, target};

/// The generations, oldest first, each with the environment variable of its Python interpreter.
const GENERATIONS: [(&str, &str); 2] =
    [("4.2", "CHECKPOINT_TEST_PYTHON_4_2"), ("4.3", "CHECKPOINT_TEST_PYTHON_4_3")];

/// The requirements of the wheel's tests, of building the wheel, and of building what is published.
const WHEEL: &str = "python/tests/requirements.txt";
const BUILD: &str = "python/tests/requirements-build.txt";
const PACKAGE: &str = "python/tests/requirements-package.txt";

/// The file in an environment with the requirements that it was created from.
const STAMP: &str = "requirements.stamp";

/// pip's network timeout in seconds, and its number of retries.
const PIP: [&str; 4] = ["--timeout", "30", "--retries", "4"];

/// An environment that is set up.
#[derive(Debug)]
pub(crate) struct Environment {
    pub(crate) generation: &'static str,
    pub(crate) variable: &'static str,
    pub(crate) python: PathBuf,
}

/// Creates missing environments, and recreates those whose requirements have changed.
pub(crate) fn set_up() -> Result<Vec<Environment>> {
    GENERATIONS.iter().map(|(generation, variable)| Environment::set_up(generation, variable)).collect()
}

/// The same for the newest generation only.
pub(crate) fn set_up_newest() -> Result<Vec<Environment>> {
    let newest = GENERATIONS.last().into_iter();
    newest.map(|(generation, variable)| Environment::set_up(generation, variable)).collect()
}

impl Environment {
    fn set_up(generation: &'static str, variable: &'static str) -> Result<Self> {
        let requirements = format!("tests/python/requirements-{generation}.txt");
        Ok(Self { generation, variable, python: make(generation, &[&requirements, WHEEL])? })
    }
}

/// The Python that builds the wheel; creates its environment if it is missing.
pub(crate) fn set_up_build() -> Result<PathBuf> {
    make("build", &[BUILD])
}

/// The Python that builds and checks what is published.
pub(crate) fn set_up_package() -> Result<PathBuf> {
    make("package", &[BUILD, PACKAGE])
}

fn python_in(folder: &Path) -> PathBuf {
    folder.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" })
}

/// Creates an environment if it is missing or has other requirements, and returns its Python.
fn make(name: &str, requirements: &[&str]) -> Result<PathBuf> {
    let folder = target().join("python").join(name);
    let requirements: Vec<_> = requirements.iter().map(|file| root().join(file)).collect();
    let mut wanted = String::new();
    for file in &requirements {
        wanted += &std::fs::read_to_string(file)
            .map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
    }
    let stamp = folder.join(STAMP);
    let python = python_in(&folder);
    if std::fs::read_to_string(&stamp).is_ok_and(|made| made == wanted)
        && succeeds(Command::new(&python).arg("-V"))
    {
        return Ok(python);
    }
    eprintln!("xtask: creating {}", folder.display());
    let system = ["python3", "python"]
        .into_iter()
        .find(|name| {
            succeeds(Command::new(name).args(["-c", "import sys; assert sys.version_info >= (3, 10)"]))
        })
        .ok_or("the cross-language tests need Python 3.10 or newer on the PATH")?;
    let venv = || succeeds(Command::new(system).args(["-m", "venv", "--clear"]).arg(&folder));
    if !venv() {
        // Debian has venv in a separate package.
        let installed = apt::is_usable() && apt::install(&["python3-venv"]).is_ok();
        if !installed || !venv() {
            return Err(format!("{system} -m venv failed; install the venv module of Python").into());
        }
    }
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"];
    let files = requirements.iter().flat_map(|file| [Path::new("-r"), file]);
    run(Command::new(&python).args(pip).args(PIP).args(files))?;
    std::fs::write(&stamp, wanted)
        .map_err(|error| format!("{} cannot be written: {error}", stamp.display()))?;
    Ok(python)
}
