//! `cargo xtask wheel`: the distributions of the Python package as users get them, built and checked.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::python::set_up_package;
use crate::run::{Result, forget_package, run};
use crate::{root, servers, target};

/// The C library that the wheels need: glibc 2.17 of 2012.
const COMPATIBILITY: &str = "manylinux_2_17";

/// The Rust targets of Linux for which wheels are built, and the processors they are for.
pub(crate) const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// Builds the source distribution, and from it the wheels of these targets, in `target/wheels`. Checks their metadata, and
/// installs the wheel for this machine's processor into a bare container.
pub(crate) fn package(targets: &[String]) -> Result<()> {
    let python = set_up_package()?;
    let folder = target().join("wheels");
    empty(&folder)?;
    let maturin = || {
        let mut maturin = Command::new(&python);
        // zig, which links against an old C library and for other processors, is a package of the same environment.
        maturin.args(["-m", "maturin"]).env("CARGO_ZIGBUILD_PYTHON_PATH", &python);
        forget_package(&mut maturin);
        maturin
    };
    run(maturin()
        .args(["sdist", "--manifest-path", "python/Cargo.toml", "--out"])
        .arg(&folder)
        .current_dir(root()))?;
    let source = unpack(&only(&folder, "gz")?)?;
    for name in targets {
        eprintln!("xtask: building the wheel for {name}");
        let mut build = maturin();
        build.args(["build", "--quiet", "--release", "--zig", "--compatibility", COMPATIBILITY]);
        build.args(["--target", name, "--manifest-path", "python/Cargo.toml", "--out"]).arg(&folder);
        build.arg("--target-dir").arg(target()).arg("--interpreter").arg(&python);
        run(build.current_dir(&source))?;
    }
    let files = files(&folder)?;
    run(Command::new(&python).args(["-m", "twine", "check", "--strict"]).args(&files))?;
    let here = files.iter().find(|file| {
        let name = file.to_string_lossy();
        name.ends_with(".whl") && name.contains(std::env::consts::ARCH)
    });
    match here {
        Some(wheel) => try_out(&python, wheel)?,
        None => eprintln!("xtask: no wheel is for this machine, so none was installed"),
    }
    for file in &files {
        println!("{}", file.display());
    }
    Ok(())
}

/// Installs the wheel into a container that has Python but neither a compiler, nor Rust, nor a network, and uses it there.
fn try_out(python: &Path, wheel: &Path) -> Result<()> {
    let dependencies = target().join("python/dependencies");
    empty(&dependencies)?;
    let mut download = Command::new(python);
    download.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]);
    download.args(["--implementation", "cp", "--python-version", servers::BARE_PYTHON]);
    for tag in ["manylinux_2_28", "manylinux_2_17", "manylinux2014"] {
        download.args(["--platform", &format!("{tag}_{}", std::env::consts::ARCH)]);
    }
    run(download.arg("--dest").arg(&dependencies).arg(wheel))?;
    let script = root().join("python/tests/installed.py");
    let script = std::fs::read_to_string(&script)
        .map_err(|error| format!("{} cannot be read: {error}", script.display()))?;
    servers::in_bare_python(&dependencies, "langgraph-ckpt", &script)
}

/// Unpacks the source distribution and returns its folder.
fn unpack(archive: &Path) -> Result<PathBuf> {
    let folder = target().join("python/sdist");
    empty(&folder)?;
    run(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(&folder))?;
    match files(&folder)?.as_slice() {
        [source] => Ok(source.clone()),
        _ => Err(format!("{} must contain one folder", archive.display()).into()),
    }
}

fn only(folder: &Path, extension: &str) -> Result<PathBuf> {
    let found = files(folder)?.into_iter().find(|path| path.extension().is_some_and(|end| end == extension));
    found.ok_or_else(|| format!("maturin left nothing in {}", folder.display()).into())
}

/// The entries of a folder, sorted.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(folder).map_err(|error| format!("{} cannot be read: {error}", folder.display()))?;
    let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    Ok(files)
}

/// Makes a folder, or empties it.
fn empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)
            .map_err(|error| format!("{} cannot be removed: {error}", folder.display()))?;
    }
    std::fs::create_dir_all(folder)
        .map_err(|error| format!("{} cannot be made: {error}", folder.display()).into())
}
