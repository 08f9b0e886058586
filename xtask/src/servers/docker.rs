//! Docker: its client, and its engine, which is installed and started if possible.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::apt;
use crate::run::{Result, succeeds};

/// A command of Docker's client.
pub(super) fn docker<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new("docker");
    command.args(arguments);
    command
}

/// Runs a program and returns its output. The error contains the last lines of its standard error.
pub(super) fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let action =
        command.get_args().next().map(|first| first.to_string_lossy().into_owned()).unwrap_or_default();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{name} could not be started: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(format!("{name} {action} failed: {}", tail(&String::from_utf8_lossy(&output.stderr), 5)).into())
}

/// The last lines of a text.
pub(super) fn tail(text: &str, count: usize) -> String {
    let lines: Vec<_> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// The reason why containers cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Obstacle {
    /// The client is not installed.
    Client,
    /// The client cannot reach an engine; its message.
    Engine(String),
}

/// The remedy for an obstacle.
#[derive(Debug, PartialEq, Eq)]
enum Remedy {
    Install,
    Start,
    Tell(String),
}

fn remedy(obstacle: &Obstacle, can_install: bool, has_engine: bool, is_remote: bool) -> Remedy {
    match obstacle {
        Obstacle::Engine(said) if is_remote => Remedy::Tell(format!("DOCKER_HOST does not respond: {said}")),
        Obstacle::Engine(_) if can_install && has_engine => Remedy::Start,
        _ if can_install => Remedy::Install,
        Obstacle::Client => Remedy::Tell(
            "Docker is not installed. Install it (on Debian: apt-get install docker.io) and start it, or run this as \
            root on Debian, which does both. Or set the variables in CONTRIBUTING.md to your own servers"
                .into(),
        ),
        Obstacle::Engine(said) => Remedy::Tell(format!(
            "Docker's engine does not respond: {said}\nStart it, and check that you may use it (on Debian: join \
            the group docker), or run this as root on Debian"
        )),
    }
}

fn obstacle() -> Option<Obstacle> {
    match docker(["version", "--format", "{{.Server.Version}}"]).stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(Obstacle::Engine(tail(&String::from_utf8_lossy(&output.stderr), 1))),
        Err(_) => Some(Obstacle::Client),
    }
}

/// Whether an engine is running and reachable.
pub(super) fn answers() -> bool {
    obstacle().is_none()
}

/// Ensures that an engine is running.
pub(super) fn ensure(folder: &Path) -> Result<()> {
    // Install, then start: there are no further remedies.
    for _ in 0..3 {
        let Some(obstacle) = obstacle() else { return Ok(()) };
        let has_engine = succeeds(Command::new("dockerd").arg("--version"));
        let is_remote = std::env::var_os("DOCKER_HOST").is_some();
        match remedy(&obstacle, apt::is_usable(), has_engine, is_remote) {
            Remedy::Tell(text) => return Err(text.into()),
            Remedy::Start => start(folder)?,
            Remedy::Install => {
                apt::install(&["docker.io"])?;
                if !succeeds(docker(["--version"]).stdin(Stdio::null())) {
                    // Newer releases have the client in a separate package.
                    apt::install(&["docker-cli"])?;
                }
                // With an init system, the package has already started it.
                wait(Duration::from_secs(3), answers, None)?;
            }
        }
    }
    Err("Docker was installed and started, but does not respond".into())
}

/// Starts the engine in its own session, so that it outlives this process.
fn start(folder: &Path) -> Result<()> {
    let log = folder.join("dockerd.log");
    eprintln!("xtask: starting Docker's engine; its log is {}", log.display());
    let file = File::create(&log).map_err(|error| format!("{} cannot be written: {error}", log.display()))?;
    let copy = file.try_clone().map_err(|error| format!("{} cannot be written: {error}", log.display()))?;
    let mut engine = Command::new("setsid")
        .arg("dockerd")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(copy)
        .spawn()
        .map_err(|error| format!("dockerd could not be started: {error}"))?;
    if wait(Duration::from_secs(60), answers, Some(&mut engine))? {
        return Ok(());
    }
    let said = std::fs::read_to_string(&log).unwrap_or_default();
    Err(format!("Docker's engine does not start; its log {} ends:\n{}", log.display(), tail(&said, 10))
        .into())
}

/// Waits until a condition holds or the program has ended.
fn wait(limit: Duration, holds: impl Fn() -> bool, mut program: Option<&mut Child>) -> Result<bool> {
    let begun = Instant::now();
    loop {
        if holds() {
            return Ok(true);
        }
        let ended = match &mut program {
            Some(program) => {
                program.try_wait().map_err(|error| format!("cannot wait for dockerd: {error}"))?.is_some()
            }
            None => false,
        };
        if ended || begun.elapsed() > limit {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine() -> Obstacle {
        Obstacle::Engine("permission denied".into())
    }

    #[test]
    fn root_on_debian_installs_and_starts() {
        assert_eq!(remedy(&Obstacle::Client, true, false, false), Remedy::Install);
        assert_eq!(remedy(&engine(), true, false, false), Remedy::Install);
        assert_eq!(remedy(&engine(), true, true, false), Remedy::Start);
    }

    #[test]
    fn other_users_get_instructions() {
        let told = |obstacle: Obstacle, can_install, is_remote| match remedy(
            &obstacle,
            can_install,
            true,
            is_remote,
        ) {
            Remedy::Tell(text) => text,
            other => panic!("{other:?}"),
        };
        assert!(told(Obstacle::Client, false, false).contains("apt-get install docker.io"));
        assert!(told(engine(), false, false).contains("permission denied"));
        // A remote engine is never started.
        assert!(told(engine(), true, true).contains("DOCKER_HOST"));
    }

    #[test]
    fn tail_returns_the_last_lines() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a", 2), "a");
        assert_eq!(tail("", 2), "");
    }
}
