//! Processes of this binary that are killed while they work.

#![allow(dead_code, reason = "each binary uses its part of this")]

use std::future::poll_fn;
use std::pin::pin;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::soak::Random;

/// When a process is killed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    /// After how often it has waited.
    waits: u64,
    /// How much later.
    micros: u64,
}

impl Moment {
    /// One after so many waits. Half of the processes die there, the others up to so many microseconds later, while the
    /// database works.
    pub(crate) fn after(waits: u64, longest: u64, random: &mut Random) -> Self {
        Self { waits, micros: random.below(2) * random.below(longest) }
    }

    /// Reads what [`write`](Self::write) has written.
    pub(crate) fn read(text: &str) -> Self {
        let (waits, micros) = text.split_once('+').unwrap();
        Self { waits: waits.parse().unwrap(), micros: micros.parse().unwrap() }
    }

    pub(crate) fn write(self) -> String {
        format!("{}+{}", self.waits, self.micros)
    }

    /// Runs a future until this process is killed.
    pub(crate) async fn end<T>(self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let mut waits = self.waits;
        poll_fn(|context| {
            let poll = future.as_mut().poll(context);
            if poll.is_pending() {
                if waits == 0 {
                    kill_after(Duration::from_micros(self.micros));
                }
                waits = waits.wrapping_sub(1);
            }
            poll
        })
        .await
    }
}

/// Kills this process a little later, while other threads and the server go on. Without a delay it is killed here.
fn kill_after(delay: Duration) {
    let kill = move || {
        std::thread::sleep(delay);
        // As with `kill -9`: nothing is flushed, closed or rolled back.
        let _ = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
        std::process::abort();
    };
    if delay.is_zero() {
        kill();
    }
    std::thread::spawn(kill);
}

/// Starts this binary again, with a task in a variable.
pub(crate) fn start(variable: &str, task: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(variable, task).stdin(Stdio::null()).spawn().unwrap()
}

/// Waits for processes to end.
pub(crate) async fn ended(processes: Vec<Child>) -> Vec<ExitStatus> {
    let mut ended = Vec::new();
    for mut process in processes {
        ended.push(tokio::task::spawn_blocking(move || process.wait().unwrap()).await.unwrap());
    }
    ended
}

/// Whether a process was killed, not through with its work.
pub(crate) fn was_killed(status: ExitStatus) -> bool {
    assert!(status.success() || status.code().is_none(), "a process failed: {status}");
    status.code().is_none()
}
