//! Running programs.
//!
//! Each runs in a process group of its own, which is ended when this process is told to end: nothing that a chore started
//! goes on without it.

use std::io::Read as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A chore's error is a sentence for the terminal.
pub(crate) type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// The process groups of the programs that run.
static RUNNING: Mutex<Groups> = Mutex::new(Groups { ids: Vec::new(), interrupted: false });

struct Groups {
    ids: Vec<u32>,
    /// Whether nothing is started any more.
    interrupted: bool,
}

fn running() -> MutexGuard<'static, Groups> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cargo that runs us, in the workspace's folder.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(crate::root());
    forget_package(&mut cargo);
    cargo
}

/// Removes the variables in which cargo describes to us our own package. A cargo that inherits them takes them for a change
/// in the environment of build scripts that read them (ring's does), and builds again what depends on them.
pub(crate) fn forget_package(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            command.env_remove(name);
        }
    }
}

/// A program that runs.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    name: String,
}

impl Running {
    /// Starts a program, without standard input.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        let name = command.get_program().to_string_lossy().into_owned();
        // Locked while it starts, so that an interruption does not miss it.
        let mut running = running();
        if running.interrupted {
            return Err(format!("{name} was not started: interrupted").into());
        }
        let child = command
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| format!("{name} could not be started: {error}"))?;
        running.ids.push(child.id());
        Ok(Self { child, name })
    }

    /// The id of its process, and of its process group.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        let status = self.child.wait();
        let id = self.child.id();
        running().ids.retain(|other| *other != id);
        Ok(status.map_err(|error| format!("{} is lost: {error}", self.name))?)
    }
}

/// Runs a program to its end, and fails if it does.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let mut running = Running::start(command)?;
    let status = running.wait()?;
    if status.success() { Ok(()) } else { Err(format!("{} failed ({status})", running.name).into()) }
}

/// Runs a program to its end, gives what it wrote to standard output, and fails if it does.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let mut running = Running::start(command.stdout(Stdio::piped()))?;
    let mut said = Vec::new();
    let read = running.child.stdout.take().map_or(Ok(0), |mut stdout| stdout.read_to_end(&mut said));
    let status = running.wait()?;
    read.map_err(|error| format!("what {} says cannot be read: {error}", running.name))?;
    if !status.success() {
        return Err(format!("{} failed ({status})", running.name).into());
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// Whether a program runs and succeeds; what it prints is thrown away.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// Leaves the end of this process to whoever handles an interrupt, where there was one: there may be something to remove.
pub(crate) fn wait_if_interrupted() {
    while running().interrupted {
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
}

/// When this process is told to end, ends what it started, and then itself.
#[cfg(unix)]
pub(crate) fn end_all_when_interrupted() -> Result<()> {
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, kill_process_group};
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;

    /// How long programs may take to clean up.
    const PATIENCE: Duration = Duration::from_secs(10);

    let signal_all = |signal| {
        for id in &running().ids {
            if let Some(group) = i32::try_from(*id).ok().and_then(Pid::from_raw) {
                // It may have ended in this moment.
                let _ = kill_process_group(group, signal);
            }
        }
    };
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])
        .map_err(|error| format!("signals cannot be handled: {error}"))?;
    std::thread::spawn(move || {
        let Some(signal) = signals.forever().next() else { return };
        eprintln!("xtask: interrupted");
        let begun = Instant::now();
        let interrupted = {
            let mut running = running();
            running.interrupted = true;
            running.ids.clone()
        };
        // Python drops its databases after an interrupt, but not when it is terminated.
        signal_all(Signal::INT);
        while !running().ids.is_empty() && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(100));
        }
        signal_all(Signal::KILL);
        // A test binary that was interrupted did not remove its own.
        for id in interrupted {
            crate::servers::remove_private_of(id);
        }
        std::process::exit(128 + signal);
    });
    Ok(())
}

#[cfg(not(unix))]
pub(crate) fn end_all_when_interrupted() -> Result<()> {
    Ok(())
}
