//! The tokio runtime of the process, and the container of savers and stores.
//!
//! One tokio runtime runs all I/O. It is started by the first call, and never needs the GIL. A child of `fork` has none of
//! its threads, so it starts its own.

use std::mem;
use std::pin::Pin;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use checkpoint_core::{Error, ErrorKind, Result};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::AbortHandle;

/// The default number of I/O threads.
const WORKERS: usize = 2;

/// The environment variable with the number of I/O threads.
const WORKERS_VARIABLE: &str = "LANGGRAPH_CKPT_WORKERS";

/// How often a blocking call checks for signals, so that Ctrl-C ends it.
const SIGNALS: Duration = Duration::from_millis(100);

/// The timeout of running calls when the interpreter exits.
const LAST_CALLS: Duration = Duration::from_secs(2);

/// Locked only with the GIL, which a forking thread holds, so that no child inherits it locked.
static STATE: Mutex<State> = Mutex::new(State::Idle);

/// The resources to close when the interpreter exits.
static OPENED: Mutex<Vec<Weak<dyn Close>>> = Mutex::new(Vec::new());

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
pub(crate) fn spawn(
    py: Python<'_>,
    future: impl Future<Output = ()> + Send + 'static,
) -> PyResult<AbortHandle> {
    Ok(handle(py)?.spawn(future).abort_handle())
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
    let _task = AbortOnDrop(spawn(py, task)?);
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

fn has_ended() -> bool {
    ENDED.load(Ordering::Acquire) == process::id()
}

/// Aborts a task when its waiter is dropped.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A resource with threads or connections. Dropping it may wait for threads that need the GIL, so it is dropped without
/// the GIL. In a child of `fork` it is leaked, because the threads are the parent's.
pub(crate) struct Resource<T: Send> {
    content: Option<T>,
    process: u32,
    ended: Arc<Ended>,
}

impl<T: Send> Resource<T> {
    pub(crate) fn new(content: T) -> Self {
        Self { content: Some(content), process: process::id(), ended: Arc::default() }
    }

    /// The resource; an error only while it is dropped. `what` is its name in messages, such as `saver`.
    pub(crate) fn get(&self, what: &str) -> Result<&T> {
        let closed = || Error::new(ErrorKind::Unavailable, format!("the {what} is closed"));
        self.content.as_ref().ok_or_else(closed)
    }
}

impl<T: Send> Drop for Resource<T> {
    fn drop(&mut self) {
        let content = self.content.take();
        if self.process == process::id() {
            drop_detached(content);
        } else {
            mem::forget(content);
        }
        self.ended.say();
    }
}

/// Drops a value whose destructor may wait for threads that need the GIL, which is released meanwhile.
pub(crate) fn drop_detached<T: Send>(content: T) {
    let mut content = Some(content);
    // After the interpreter is finalized there is no GIL.
    let _ = Python::try_attach(|py| py.detach(|| drop(content.take())));
    drop(content);
}

/// Whether a resource has been dropped.
#[derive(Default)]
struct Ended {
    flag: Mutex<bool>,
    said: Condvar,
}

impl Ended {
    fn say(&self) {
        *lock(&self.flag) = true;
        self.said.notify_all();
    }

    /// Waits for it, optionally with a timeout.
    fn wait(&self, most: Option<Duration>) {
        let flag = lock(&self.flag);
        match most {
            Some(most) => drop(self.said.wait_timeout_while(flag, most, |ended| !*ended)),
            None => drop(self.said.wait_while(flag, |ended| !*ended)),
        }
    }
}

/// A saver or a store, usable until it is closed and only in the process that created it. Clones share it.
pub(crate) struct Opened<T>(Arc<Holder<T>>);

struct Holder<T> {
    what: &'static str,
    process: u32,
    content: Mutex<Option<T>>,
    ended: Arc<Ended>,
    /// Objects that hold parts of it between calls.
    parts: Mutex<Vec<Weak<dyn Part>>>,
}

/// An object that holds part of a resource between calls.
pub(crate) trait Part: Send + Sync {
    /// Releases the part, because the resource is being closed.
    fn let_go(&self);
}

trait Close: Send + Sync {
    fn close(&self, most: Option<Duration>);
}

impl<T: Clone + Send + 'static> Opened<T> {
    /// Wraps an opened saver or store; `what` is its name in messages, such as `saver`.
    pub(crate) fn new<R: Send>(
        _py: Python<'_>,
        what: &'static str,
        content: T,
        resource: &Resource<R>,
    ) -> Self {
        let holder = Arc::new(Holder {
            what,
            process: process::id(),
            content: Mutex::new(Some(content)),
            ended: Arc::clone(&resource.ended),
            parts: Mutex::default(),
        });
        let closable: Arc<dyn Close> = Arc::clone(&holder) as _;
        let mut opened = lock(&OPENED);
        opened.retain(|known| known.strong_count() > 0);
        opened.push(Arc::downgrade(&closable));
        Self(holder)
    }

    /// The opened resource. It stays open while the returned value is held.
    pub(crate) fn get(&self) -> PyResult<T> {
        let Holder { what, process, content, .. } = &*self.0;
        if *process != process::id() {
            return Err(PyRuntimeError::new_err(format!(
                "this {what} was made before the process was forked, and its connections belong to the parent; make a \
                 new {what} in the child"
            )));
        }
        let open = lock(content).clone();
        open.ok_or_else(|| PyRuntimeError::new_err(format!("this {what} is closed; create a new one")))
    }

    /// Whether it was closed.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.0.content).is_none()
    }

    /// Registers a part to be released when this is closed.
    pub(crate) fn has_part(&self, part: &Arc<impl Part + 'static>) {
        let part: Arc<dyn Part> = Arc::clone(part) as _;
        let mut parts = lock(&self.0.parts);
        parts.retain(|known| known.strong_count() > 0);
        parts.push(Arc::downgrade(&part));
    }

    /// Closes it, and waits for running calls. Idempotent.
    pub(crate) fn close(&self) {
        self.0.close(None);
    }
}

impl<T> Clone for Opened<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Send> Close for Holder<T> {
    fn close(&self, most: Option<Duration>) {
        // Dropped after the lock is released.
        let Some(content) = lock(&self.content).take() else { return };
        let parts = mem::take(&mut *lock(&self.parts));
        parts.iter().filter_map(Weak::upgrade).for_each(|part| part.let_go());
        drop(content);
        // In a child of `fork`, calls that were running never end.
        if self.process == process::id() {
            self.ended.wait(most);
        }
    }
}

/// Closes open savers and stores and ends the runtime, at the exit of the interpreter.
#[pyfunction]
fn shut_down(py: Python<'_>) {
    let opened = mem::take(&mut *lock(&OPENED));
    let ended = State::Ended { process: process::id() };
    let state = mem::replace(&mut *lock(&STATE), ended);
    ENDED.store(process::id(), Ordering::Release);
    py.detach(|| {
        for closable in opened {
            if let Some(closable) = closable.upgrade() {
                closable.close(Some(LAST_CALLS));
            }
        }
        match state {
            State::Running { runtime, process } if process == process::id() => {
                runtime.shutdown_timeout(LAST_CALLS);
            }
            state => mem::forget(state),
        }
    });
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(shut_down, module)?)
}
