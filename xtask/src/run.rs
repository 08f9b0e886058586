//! Running programs.
//!
//! Each runs in its own process group, which is terminated when this process is interrupted: no program outlives the
//! task that started it.

use std::io::Read as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A task's error is a message for the terminal.
pub(crate) type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// The process groups of the running programs.
static RUNNING: Mutex<Groups> = Mutex::new(Groups { ids: Vec::new(), interrupted: false });

struct Groups {
    ids: Vec<u32>,
    /// Whether no more programs may be started.
    interrupted: bool,
}

fn running() -> MutexGuard<'static, Groups> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cargo that runs this program, in the workspace's folder.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(crate::root());
    forget_package(&mut cargo);
    cargo
}

/// Removes the variables in which cargo describes our own package. A cargo that inherits them sees a changed environment
/// of the build scripts that read them (such as ring's), and rebuilds everything that depends on these.
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

/// A running program.
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
        // Locked during the start, so that an interrupt does not miss the program.
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

    /// The id of the process and of its process group.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the program has ended.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        let status = self.child.wait();
        let id = self.child.id();
        running().ids.retain(|other| *other != id);
        Ok(status.map_err(|error| format!("cannot wait for {}: {error}", self.name))?)
    }
}

/// Runs a program and waits for it. Fails if the program fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let mut running = Running::start(command)?;
    let status = running.wait()?;
    if status.success() { Ok(()) } else { Err(format!("{} failed ({status})", running.name).into()) }
}

/// Runs a program and returns its standard output. Fails if the program fails.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let mut running = Running::start(command.stdout(Stdio::piped()))?;
    let mut said = Vec::new();
    let read = running.child.stdout.take().map_or(Ok(0), |mut stdout| stdout.read_to_end(&mut said));
    let status = running.wait()?;
    read.map_err(|error| format!("the output of {} cannot be read: {error}", running.name))?;
    if !status.success() {
        return Err(format!("{} failed ({status})", running.name).into());
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// Whether a program runs and succeeds; its output is discarded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// After an interrupt, lets the handler end this process: it may have containers to remove.
pub(crate) fn wait_if_interrupted() {
    while running().interrupted {
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
}

/// On an interrupt, terminates the started programs, then this process.
#[cfg(unix)]
pub(crate) fn end_all_when_interrupted() -> Result<()> {
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, kill_process_group};
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;

    /// The time that programs get to clean up.
    const GRACE_PERIOD: Duration = Duration::from_secs(10);

    let signal_all = |signal| {
        for id in &running().ids {
            if let Some(group) = i32::try_from(*id).ok().and_then(Pid::from_raw) {
                // It may have ended at this moment.
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
        // Python drops its databases on SIGINT, but not on SIGTERM.
        signal_all(Signal::INT);
        while !running().ids.is_empty() && begun.elapsed() < GRACE_PERIOD {
            std::thread::sleep(Duration::from_millis(100));
        }
        signal_all(Signal::KILL);
        // An interrupted test binary did not remove its own containers.
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
