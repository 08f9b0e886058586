//! A bare container with Python, in which wheels are tried out.

use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use super::docker::{self, docker};
use super::image::{Images, exists};
use crate::run::Result;

/// The Debian release of the container, and its Python.
const SUITE: &str = "bookworm";
pub(crate) const BARE_PYTHON: &str = "3.11";

const IMAGE: &str = "localhost/checkpoint-python:bookworm-3.11";

const DOCKERFILE: &str = "\
ARG BASE
FROM $BASE
COPY host-apt.conf /etc/apt/apt.conf.d/90host
RUN echo force-unsafe-io > /etc/dpkg/dpkg.cfg.d/unsafe-io \\
 && apt-get update \\
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 python3-venv \\
 && rm -rf /var/lib/apt/lists/* /etc/apt/apt.conf.d/90host
";

/// Installs a package from the wheels of a folder into a container without a network, and runs a script there.
pub(crate) fn in_bare_python(wheels: &Path, package: &str, script: &str) -> Result<()> {
    let folder = super::folder()?;
    docker::ensure(&folder)?;
    if !exists(IMAGE) {
        Images::default().build_from(DOCKERFILE, SUITE, IMAGE, None, &folder)?;
    }
    let shell = format!(
        "python3 -m venv /venv && /venv/bin/pip install --quiet --no-index --find-links /wheels {package} \
         && exec /venv/bin/python -"
    );
    let mut container = docker(["run", "--rm", "--interactive", "--network", "none", "--volume"]);
    container.arg(format!("{}:/wheels:ro", wheels.display())).args([IMAGE, "sh", "-c", &shell]);
    let mut running = container
        .stdin(Stdio::piped())
        .spawn()
        .map_err(|error| format!("docker could not be started: {error}"))?;
    if let Some(mut stdin) = running.stdin.take() {
        stdin.write_all(script.as_bytes()).map_err(|error| format!("docker run: {error}"))?;
    }
    let status = running.wait().map_err(|error| format!("docker run: {error}"))?;
    if status.success() { Ok(()) } else { Err("the installed wheel does not work".into()) }
}
