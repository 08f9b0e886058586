//! The tokio runtime of the process.
//!
//! One tokio runtime runs all I/O. It is started by the first call, and never needs the GIL. A child of `fork` has none of
//! its threads, so it starts its own.

use std::mem;
use std::pin::Pin;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time;

use crate::opened;

/// The default number of I/O threads. With one alone a call wakes fewer threads, but no benchmark was faster beyond its noise.
const WORKERS: usize = 2;

/// The environment variable with the number of I/O threads.
const WORKERS_VARIABLE: &str = "LANGGRAPH_CKPT_WORKERS";

/// How often a blocking call checks for signals, so that Ctrl-C ends it.
const SIGNALS: Duration = Duration::from_millis(100);

/// The timeout of running calls when the interpreter exits.
const LAST_CALLS: Duration = Duration::from_secs(2);

/// Locked only with the GIL, which a forking thread holds, so that no child inherits it locked.
static STATE: Mutex<State> = Mutex::new(State::Idle);

/// The process whose runtime has ended, if any.
static ENDED: AtomicU32 = AtomicU32::new(0);

enum State {
    Idle,
    Running { runtime: Runtime, process: u32 },
    Ended { process: u32 },
}

/// Takes a lock, even if it is poisoned: no holder leaves its content inconsistent.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The runtime of this process, started on demand.
fn handle(_py: Python<'_>) -> PyResult<Handle> {
    let mut state = lock(&STATE);
    match &*state {
        State::Running { runtime, process } if *process == process::id() => Ok(runtime.handle().clone()),
        State::Ended { process } if *process == process::id() => Err(exiting()),
        _ => {
            let runtime = Builder::new_multi_thread()
                .worker_threads(workers()?)
                .thread_name("langgraph-ckpt")
                .enable_all()
                .build()
                .map_err(|error| PyRuntimeError::new_err(format!("cannot start threads: {error}")))?;
            let handle = runtime.handle().clone();
            // The parent's runtime has no threads here; dropping it would wait for them forever.
            mem::forget(mem::replace(&mut *state, State::Running { runtime, process: process::id() }));
            Ok(handle)
        }
    }
}

fn exiting() -> PyErr {
    PyRuntimeError::new_err("the interpreter is exiting; no call can be made any more")
}

fn workers() -> PyResult<usize> {
    let Some(text) = std::env::var_os(WORKERS_VARIABLE) else { return Ok(WORKERS) };
    let number =
        text.to_str().and_then(|text| text.parse().ok()).filter(|number| (1..=1024).contains(number));
    number
        .ok_or_else(|| PyRuntimeError::new_err(format!("{WORKERS_VARIABLE} must be a number from 1 to 1024")))
}

/// Polls a future once on this thread, which completes it if it has nothing to wait for. The GIL is held, so that the
/// runtime does not end meanwhile: without one, timers and sockets panic.
pub(crate) fn poll_once<F: Future + Unpin>(py: Python<'_>, future: &mut F) -> PyResult<Poll<F::Output>> {
    let handle = handle(py)?;
    let _entered = handle.enter();
    Ok(Pin::new(future).poll(&mut Context::from_waker(Waker::noop())))
}

/// Spawns a future on the runtime.
pub(crate) fn spawn<T: Send + 'static>(
    py: Python<'_>,
    future: impl Future<Output = T> + Send + 'static,
) -> PyResult<JoinHandle<T>> {
    Ok(handle(py)?.spawn(future))
}

/// Spawns a future on the runtime, and waits for it without the GIL. A signal whose handler raises ends both. (The future
/// does not run on this thread, because each part of a large response would have to wake it.)
pub(crate) fn block_on<T: Send + 'static>(
    py: Python<'_>,
    future: impl Future<Output = T> + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let task = async move {
        // An interrupted caller has dropped the receiver.
        let _ = sender.send(future.await);
    };
    let _task = AbortOnDrop::new(spawn(py, task)?.abort_handle());
    let mut receiver = receiver;
    loop {
        let (outcome, back) = py.detach(move || {
            let outcome = receiver.recv_timeout(SIGNALS);
            if matches!(outcome, Err(RecvTimeoutError::Disconnected)) && has_ended() {
                // The interpreter is exiting and has joined its threads, so this is a daemon thread, which usually ends with
                // the process, but may still be joined.
                thread::sleep(LAST_CALLS);
            }
            (outcome, receiver)
        });
        match outcome {
            Ok(output) => return Ok(output),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) if has_ended() => return Err(exiting()),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the call was ended before it had a result"));
            }
        }
        receiver = back;
    }
}

/// Whether the interpreter exits.
pub(crate) fn has_ended() -> bool {
    ENDED.load(Ordering::Acquire) == process::id()
}

/// Aborts a task when its waiter is dropped.
pub(crate) struct AbortOnDrop {
    task: AbortHandle,
    process: u32,
}

impl AbortOnDrop {
    pub(crate) fn new(task: AbortHandle) -> Self {
        Self { task, process: process::id() }
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        // In a child of `fork` the parent's tasks never run, and a lock of its runtime may be held for ever.
        if self.process == process::id() {
            self.task.abort();
        }
    }
}

/// Closes open savers and stores and ends the runtime, at the exit of the interpreter.
#[pyfunction]
fn shut_down(py: Python<'_>) {
    let close_all = opened::close_all(py);
    let ended = State::Ended { process: process::id() };
    let state = mem::replace(&mut *lock(&STATE), ended);
    ENDED.store(process::id(), Ordering::Release);
    py.detach(|| match state {
        State::Running { runtime, process } if process == process::id() => {
            // Calls of daemon threads may last longer.
            let _ = runtime.block_on(async { time::timeout(LAST_CALLS, close_all).await });
            runtime.shutdown_timeout(LAST_CALLS);
        }
        state => mem::forget(state),
    });
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(shut_down, module)?)
}
