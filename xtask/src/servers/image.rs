//! Images: the official one if a registry is reachable, otherwise one that is built from Debian's packages.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use checkpoint_servers::{Program, Server};

use super::docker::{docker, output, tail};
use crate::apt;
use crate::run::{Result, run, succeeds};

/// The timeout for the first response of a registry. Without a registry, the pull usually fails immediately.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// The timeout between two layers of an image.
const LAYER_TIMEOUT: Duration = Duration::from_secs(900);

/// The source of images.
#[derive(Debug, Default)]
pub(super) struct Images {
    /// Set when no registry was reachable, so that pulling is not tried again.
    no_registry: Mutex<bool>,
}

impl Images {
    /// Ensures that each server has an image, and returns their names in the same order.
    pub(super) fn ensure(&self, servers: &[&'static Server], folder: &Path) -> Result<Vec<String>> {
        let mut found = Vec::new();
        let mut missing: Vec<&Server> = Vec::new();
        for server in servers {
            let image = match local(server) {
                Some(image) => image,
                None => match server.official {
                    Some(official) if self.pull(official) => official.to_owned(),
                    _ => {
                        let image = server.stand_in();
                        if !found.contains(&image) {
                            missing.push(server);
                        }
                        image
                    }
                },
            };
            found.push(image);
        }
        // Those of one release one after the other: they have the same base.
        missing.sort_by_key(|server| server.suite);
        std::thread::scope(|scope| {
            let builds: Vec<_> = missing
                .chunk_by(|server, next| server.suite == next.suite)
                .map(|servers| {
                    let mut servers = servers.iter();
                    scope.spawn(move || {
                        servers
                            .try_for_each(|server| self.build(server, folder))
                            .map_err(|error| error.to_string())
                    })
                })
                .collect();
            builds.into_iter().try_for_each(|build| {
                build.join().unwrap_or_else(|_| Err("the image could not be built".into()))
            })
        })?;
        Ok(found)
    }

    /// Pulls an image; returns false if no registry has it.
    fn pull(&self, image: &str) -> bool {
        let mut no_registry = self.no_registry.lock().unwrap_or_else(PoisonError::into_inner);
        if *no_registry {
            return false;
        }
        eprintln!("xtask: pulling {image}");
        match pull(image) {
            Ok(()) => true,
            Err(said) => {
                eprintln!(
                    "xtask: {image} cannot be pulled ({said}); building it from Debian's packages instead"
                );
                *no_registry = true;
                false
            }
        }
    }

    /// Builds the image of a server from Debian's packages.
    fn build(&self, server: &Server, folder: &Path) -> Result<()> {
        let (dockerfile, image) = (server.dockerfile(), server.stand_in());
        self.build_from(&dockerfile, server.suite, &image, server.program.as_ref(), folder)
    }

    /// Builds an image on top of a bare release. The Dockerfile's context is that of [`Server::dockerfile`].
    pub(super) fn build_from(
        &self,
        dockerfile: &str,
        suite: &str,
        image: &str,
        program: Option<&Program>,
        folder: &Path,
    ) -> Result<()> {
        let base = self.base(suite, folder)?;
        eprintln!("xtask: building {image}");
        let context = Folder::new(folder.join(format!("image-{suite}")))?;
        write(&context.0.join("Dockerfile"), dockerfile)?;
        write(&context.0.join("host-apt.conf"), &apt::acquire_options())?;
        if let Some(program) = program {
            compile(program, &context.0.join("program"), folder)?;
        }
        let mut build = docker(["build", "--quiet", "--force-rm", "--network", "host", "--tag", image]);
        build.args(["--build-arg", &format!("BASE={base}")]);
        for proxy in ["http_proxy", "https_proxy", "no_proxy"] {
            if std::env::var_os(proxy).is_some() {
                build.args(["--build-arg", proxy]);
            }
        }
        // BuildKit is a plug-in that not every client has.
        output(build.arg(&context.0).env("DOCKER_BUILDKIT", "0"))?;
        Ok(())
    }

    /// The image of a bare release.
    fn base(&self, suite: &str, folder: &Path) -> Result<String> {
        let official = format!("debian:{suite}-slim");
        let ours = format!("localhost/checkpoint-debian:{suite}");
        if let Some(there) = [&official, &ours].into_iter().find(|image| exists(image)) {
            return Ok(there.clone());
        }
        if self.pull(&official) {
            return Ok(official);
        }
        bootstrap(suite, &ours, folder)?;
        Ok(ours)
    }
}

/// Builds a program, into a folder.
fn compile(program: &Program, out: &Path, folder: &Path) -> Result<()> {
    let Program { compiler, needs, .. } = program;
    if !succeeds(Command::new("sh").args(["-c", &format!("command -v {compiler}")]).stdin(Stdio::null())) {
        return Err(format!(
            "no registry has the image, and {compiler} is missing, which builds a server in its place: install {needs}"
        )
        .into());
    }
    let source = Folder::new(folder.join(format!("source-{compiler}")))?;
    make(out)?;
    for (path, content) in program.source {
        let path = source.0.join(path);
        path.parent().map_or(Ok(()), make)?;
        write(&path, content)?;
    }
    // Standard output is reserved for the task's result.
    let build = format!("{{ {}; }} >&2", program.build);
    run(Command::new("sh").args(["-c", &build]).current_dir(&source.0).env("OUT", out))
        .map_err(|error| format!("building it takes {needs}: {error}").into())
}

/// The local image of a server, if there is one.
fn local(server: &Server) -> Option<String> {
    server.official.map(str::to_owned).into_iter().chain([server.stand_in()]).find(|image| exists(image))
}

pub(super) fn exists(image: &str) -> bool {
    succeeds(docker(["image", "inspect", image]).stdin(Stdio::null()))
}

/// Pulls an image. Its first output means that the registry has the image.
fn pull(image: &str) -> Result<(), String> {
    follow(&mut docker(["pull", image]), RESPONSE_TIMEOUT, LAYER_TIMEOUT)
}

/// Runs a program that must print something within `first`, and then at least every `next`.
fn follow(program: &mut Command, first: Duration, next: Duration) -> Result<(), String> {
    let mut client = program
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let (sender, lines) = channel();
    let (stdout, stderr) = (client.stdout.take(), client.stderr.take());
    let said = std::thread::scope(|scope| {
        if let Some(stdout) = stdout {
            scope.spawn(move || {
                BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
            });
        }
        let said =
            stderr.map(|stderr| scope.spawn(move || std::io::read_to_string(stderr).unwrap_or_default()));
        let mut limit = first;
        let late = loop {
            match lines.recv_timeout(limit) {
                Ok(_) => limit = next,
                Err(RecvTimeoutError::Disconnected) => break false,
                Err(RecvTimeoutError::Timeout) => break true,
            }
        };
        if late {
            // It may already have ended.
            let _ = client.kill();
            return "no response in time".into();
        }
        said.and_then(|said| said.join().ok()).unwrap_or_default()
    });
    let status = client.wait().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(tail(&said, 1)) }
}

/// Builds the image of a bare release from its packages.
fn bootstrap(suite: &str, image: &str, folder: &Path) -> Result<()> {
    if !succeeds(Command::new("debootstrap").arg("--version")) {
        if !apt::is_usable() {
            return Err(
                "no registry has the images, and only root on Debian can build them (with debootstrap)"
                    .into(),
            );
        }
        // Includes the newest keys: an older system lacks those of a newer release.
        apt::install(&["debootstrap", "debian-archive-keyring"])?;
    }
    eprintln!("xtask: building {image}");
    let root = Folder::new(folder.join(format!("debian-{suite}")))?;
    let mut command = Command::new("debootstrap");
    let mirror = apt::mirror();
    if mirror.as_ref().is_some_and(|mirror| mirror.starts_with("https:")) {
        command.arg("--include=ca-certificates");
    }
    command.args(["--variant=minbase", suite]).arg(&root.0).args(mirror);
    // debootstrap prints errors to standard output.
    let made = command.stdin(Stdio::null()).output().map_err(|error| format!("debootstrap: {error}"))?;
    if !made.status.success() {
        let said = [made.stdout, made.stderr].concat();
        return Err(format!("debootstrap failed:\n{}", tail(&String::from_utf8_lossy(&said), 5)).into());
    }
    let mut tar = Command::new("tar")
        .arg("-C")
        .arg(&root.0)
        .args(["-c", "."])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("tar could not be started: {error}"))?;
    let archive = tar.stdout.take().ok_or("tar has no output")?;
    let imported = docker(["import", "-", image]).stdin(archive).output();
    let packed = tar.wait().map_err(|error| format!("tar: {error}"))?.success();
    let imported = imported.map_err(|error| format!("docker import: {error}"))?;
    if packed && imported.status.success() {
        return Ok(());
    }
    Err(format!("{image} could not be imported: {}", tail(&String::from_utf8_lossy(&imported.stderr), 3))
        .into())
}

/// A temporary folder: empty at first, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(path: PathBuf) -> Result<Self> {
        if path.exists() {
            std::fs::remove_dir_all(&path)
                .map_err(|error| format!("{} cannot be removed: {error}", path.display()))?;
        }
        make(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If this fails, the next run removes it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn make(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)
        .map_err(|error| format!("{} cannot be made: {error}", folder.display()).into())
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text)
        .map_err(|error| format!("{} cannot be written: {error}", path.display()).into())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn followed(script: &str, first: Duration) -> Result<(), String> {
        follow(Command::new("sh").args(["-c", script]), first, Duration::from_secs(600))
    }

    #[test]
    fn a_silent_registry_times_out() {
        let end = followed("exec sleep 600", Duration::from_millis(1)).unwrap_err();
        assert!(end.contains("no response"), "{end}");
    }

    #[test]
    fn the_programs_last_line_is_the_error() {
        let patient = Duration::from_secs(600);
        followed("echo Pulling", patient).unwrap();
        assert_eq!(
            followed("echo first >&2; echo no such host >&2; exit 1", patient).unwrap_err(),
            "no such host"
        );
    }

    #[test]
    fn a_folder_is_empty_at_first_and_removed_when_dropped() {
        let path = std::env::temp_dir().join(format!("checkpoint-xtask-{}", std::process::id()));
        let folder = Folder::new(path.clone()).unwrap();
        write(&path.join("left"), "over").unwrap();
        std::mem::forget(folder);
        let folder = Folder::new(path.clone()).unwrap();
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
        drop(folder);
        assert!(!path.exists());
    }
}
