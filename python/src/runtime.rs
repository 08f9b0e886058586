//! The runtime below every call, and what a saver or store is held in.
//!
//! One tokio runtime drives all I/O. It is started by the first call, never needs the GIL, and belongs to the process
//! that started it: a child of `fork` has none of its threads, so it starts one of its own.

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

/// How many threads do the I/O, unless the variable says otherwise.
const WORKERS: usize = 2;

/// The variable with another number of threads.
const WORKERS_VARIABLE: &str = "LANGGRAPH_CKPT_WORKERS";

/// How often a call that blocks looks for signals, so that Ctrl-C ends it.
const SIGNALS: Duration = Duration::from_millis(100);

/// How long calls that are under way may take when the interpreter exits.
const LAST_CALLS: Duration = Duration::from_secs(2);

/// Locked by whoever holds the GIL only, which a thread that forks does, so that no child inherits it locked.
static STATE: Mutex<State> = Mutex::new(State::Idle);

/// What the interpreter closes when it exits.
static OPENED: Mutex<Vec<Weak<dyn Close>>> = Mutex::new(Vec::new());

/// The process whose runtime has ended, if any.
static ENDED: AtomicU32 = AtomicU32::new(0);

enum State {
    Idle,
    Running { runtime: Runtime, process: u32 },
    Ended { process: u32 },
}

/// A lock whose holder cannot have left its content half changed.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The runtime of this process, which is started if need be.
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
                .map_err(|error| PyRuntimeError::new_err(format!("no threads can be started: {error}")))?;
            let handle = runtime.handle().clone();
            // The runtime of a parent has no threads here: to end it would wait for them.
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

/// Begins a future on this thread: all of it, where it has nothing to wait for. Whoever has the GIL here keeps it, so that the
/// runtime does not end meanwhile: without one, timers and sockets panic.
pub(crate) fn poll_once<F: Future + Unpin>(py: Python<'_>, future: &mut F) -> PyResult<Poll<F::Output>> {
    let handle = handle(py)?;
    let _entered = handle.enter();
    Ok(Pin::new(future).poll(&mut Context::from_waker(Waker::noop())))
}

/// Has the runtime run a future.
pub(crate) fn spawn(
    py: Python<'_>,
    future: impl Future<Output = ()> + Send + 'static,
) -> PyResult<AbortHandle> {
    Ok(handle(py)?.spawn(future).abort_handle())
}

/// Has the runtime run a future, and waits for it without the GIL. A signal whose handler raises ends both. (The future does
/// not run on this thread: each piece of a large answer would have to wake it.)
pub(crate) fn block_on<T: Send + 'static>(
    py: Python<'_>,
    future: impl Future<Output = T> + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let task = async move {
        // Whoever was interrupted does not listen any more.
        let _ = sender.send(future.await);
    };
    let _task = AbortOnDrop(spawn(py, task)?);
    let mut receiver = receiver;
    loop {
        let (outcome, back) = py.detach(move || {
            let outcome = receiver.recv_timeout(SIGNALS);
            if matches!(outcome, Err(RecvTimeoutError::Disconnected)) && has_ended() {
                // The interpreter is exiting and has joined its threads, so this is a daemon, which mostly ends with the
                // process. Somebody may yet join it.
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

/// Ends a task that nobody waits for any more.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What has threads or connections of its own. Its end may wait for them, and they may want the GIL, so it is dropped
/// without it; in a child of `fork` it is left alone, because they are the parent's.
pub(crate) struct Resource<T: Send> {
    content: Option<T>,
    process: u32,
    ended: Arc<Ended>,
}

impl<T: Send> Resource<T> {
    pub(crate) fn new(content: T) -> Self {
        Self { content: Some(content), process: process::id(), ended: Arc::default() }
    }

    /// What it is; an error only while it is dropped. `what` is how the message calls it, such as `saver`.
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

/// Drops what may wait for threads that want the GIL: whoever has it here lets go of it.
pub(crate) fn drop_detached<T: Send>(content: T) {
    let mut content = Some(content);
    // When the interpreter is at its end there is no GIL.
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

    /// Waits for it, as long as it takes or at most so long.
    fn wait(&self, most: Option<Duration>) {
        let flag = lock(&self.flag);
        match most {
            Some(most) => drop(self.said.wait_timeout_while(flag, most, |ended| !*ended)),
            None => drop(self.said.wait_while(flag, |ended| !*ended)),
        }
    }
}

/// A saver or a store, until it is closed, and in the process that made it. Clones share it.
pub(crate) struct Opened<T>(Arc<Holder<T>>);

struct Holder<T> {
    what: &'static str,
    process: u32,
    content: Mutex<Option<T>>,
    ended: Arc<Ended>,
    /// What holds parts of it between calls.
    parts: Mutex<Vec<Weak<dyn Part>>>,
}

/// What holds parts of what was opened between calls.
pub(crate) trait Part: Send + Sync {
    /// Lets go of them: it is being closed.
    fn let_go(&self);
}

trait Close: Send + Sync {
    fn close(&self, most: Option<Duration>);
}

impl<T: Clone + Send + 'static> Opened<T> {
    /// Holds what was opened, all whose clones end with the resource; `what` is how messages call it, such as `saver`.
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

    /// What was opened. As long as somebody has it, it does not end.
    pub(crate) fn get(&self) -> PyResult<T> {
        let Holder { what, process, content, .. } = &*self.0;
        if *process != process::id() {
            return Err(PyRuntimeError::new_err(format!(
                "this {what} was made before the process was forked, and its connections belong to the parent; make a \
                 new {what} in the child"
            )));
        }
        let open = lock(content).clone();
        open.ok_or_else(|| PyRuntimeError::new_err(format!("this {what} is closed; make a new one")))
    }

    /// Whether it was closed.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.0.content).is_none()
    }

    /// Has a part let go when this is closed.
    pub(crate) fn has_part(&self, part: &Arc<impl Part + 'static>) {
        let part: Arc<dyn Part> = Arc::clone(part) as _;
        let mut parts = lock(&self.0.parts);
        parts.retain(|known| known.strong_count() > 0);
        parts.push(Arc::downgrade(&part));
    }

    /// Closes it, and waits until the calls that are under way have ended. May be repeated.
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
        // Nothing is dropped under a lock.
        let Some(content) = lock(&self.content).take() else { return };
        let parts = mem::take(&mut *lock(&self.parts));
        parts.iter().filter_map(Weak::upgrade).for_each(|part| part.let_go());
        drop(content);
        // In a child of `fork`, the calls that were under way never end.
        if self.process == process::id() {
            self.ended.wait(most);
        }
    }
}

/// Closes what is still open and ends the runtime: for the exit of the interpreter.
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
