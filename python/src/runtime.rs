//! The runtime below every call, and what a saver or store is held in.
//!
//! One tokio runtime drives all I/O. It is started by the first call, never needs the GIL, and belongs to the process
//! that started it: a child of `fork` has none of its threads, so it starts one of its own.

use std::mem;
use std::pin::{Pin, pin};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

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

enum State {
    Idle,
    Running { runtime: Runtime, gate: Gate, process: u32 },
    Ended { process: u32 },
}

/// Whether the runtime has ended. It does not end while a caller's thread polls, which has it locked for reading: without
/// a runtime, timers and sockets panic.
type Gate = Arc<RwLock<bool>>;

/// A lock whose holder cannot have left its content half changed.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The runtime of this process, as those see it who use it.
pub(crate) struct Driver {
    handle: Handle,
    gate: Gate,
}

impl Driver {
    /// The runtime of this process, which is started if need be.
    pub(crate) fn get(_py: Python<'_>) -> PyResult<Self> {
        let mut state = lock(&STATE);
        match &*state {
            State::Running { runtime, gate, process } if *process == process::id() => {
                Ok(Self { handle: runtime.handle().clone(), gate: Arc::clone(gate) })
            }
            State::Ended { process } if *process == process::id() => Err(exiting()),
            _ => {
                let runtime = Builder::new_multi_thread()
                    .worker_threads(workers()?)
                    .thread_name("langgraph-ckpt")
                    .enable_all()
                    .build()
                    .map_err(|error| {
                        PyRuntimeError::new_err(format!("no threads can be started: {error}"))
                    })?;
                let driver = Self { handle: runtime.handle().clone(), gate: Gate::default() };
                let gate = Arc::clone(&driver.gate);
                // The runtime of a parent has no threads here: to end it would wait for them.
                mem::forget(mem::replace(
                    &mut *state,
                    State::Running { runtime, gate, process: process::id() },
                ));
                Ok(driver)
            }
        }
    }

    /// Goes on with a future on this thread; nothing where the runtime has ended.
    pub(crate) fn poll<F: Future + ?Sized>(
        &self,
        future: Pin<&mut F>,
        waker: &Waker,
    ) -> Option<Poll<F::Output>> {
        // Not waited for: who has it otherwise is ending the runtime.
        let ended = self.gate.try_read().ok()?;
        if *ended {
            return None;
        }
        let _entered = self.handle.enter();
        Some(future.poll(&mut Context::from_waker(waker)))
    }

    /// Has the runtime go on with a future.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.handle.spawn(future).abort_handle()
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

/// Waits for a future on this thread, without the GIL. A signal whose handler raises ends the wait and drops the future.
pub(crate) fn block_on<F>(py: Python<'_>, future: F) -> PyResult<F::Output>
where
    F: Future + Send,
    F::Output: Send,
{
    let driver = Driver::get(py)?;
    let mut future = pin!(future);
    let woken = Arc::new(Woken { thread: thread::current(), flag: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&woken));
    loop {
        let ready = py.detach(|| {
            let until = Instant::now() + SIGNALS;
            loop {
                match driver.poll(future.as_mut(), &waker) {
                    Some(Poll::Ready(output)) => return Some(output),
                    Some(Poll::Pending) if woken.wait(until) => {}
                    Some(Poll::Pending) => return None,
                    // The interpreter is exiting and has joined its threads, so this is a daemon, which never gets the
                    // GIL again.
                    None => stay(),
                }
            }
        });
        match ready {
            Some(output) => return Ok(output),
            None => py.check_signals()?,
        }
    }
}

/// Waits for the process to end.
fn stay() -> ! {
    loop {
        thread::park();
    }
}

/// Wakes a thread that waits for its future.
struct Woken {
    thread: Thread,
    flag: AtomicBool,
}

impl Woken {
    /// Whether the thread was woken before that time.
    fn wait(&self, until: Instant) -> bool {
        while !self.flag.swap(false, Ordering::Acquire) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            thread::park_timeout(left);
        }
        true
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.flag.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// What has threads or connections of its own. Its end may wait for them, and they may want the GIL, so it is dropped
/// without it; in a child of `fork` it is left alone, because they are the parent's.
pub(crate) struct Resource<T: Send> {
    content: Option<T>,
    process: u32,
}

impl<T: Send> Resource<T> {
    pub(crate) fn new(content: T) -> Self {
        Self { content: Some(content), process: process::id() }
    }

    /// What it is; nothing only while it is dropped.
    pub(crate) fn get(&self) -> Option<&T> {
        self.content.as_ref()
    }
}

impl<T: Send> Drop for Resource<T> {
    fn drop(&mut self) {
        let mut content = self.content.take();
        if self.process != process::id() {
            mem::forget(content);
            return;
        }
        // Whoever has the GIL here lets go of it. When the interpreter is at its end there is none.
        let _ = Python::try_attach(|py| py.detach(|| drop(content.take())));
        drop(content);
    }
}

/// A saver or a store, until it is closed, and in the process that made it. Clones share it.
pub(crate) struct Opened<T: Send + 'static>(Arc<Holder<T>>);

struct Holder<T: Send + 'static> {
    what: &'static str,
    process: u32,
    content: Mutex<Option<Resource<T>>>,
}

trait Close: Send + Sync {
    fn close(&self);
}

impl<T: Clone + Send + 'static> Opened<T> {
    /// Holds what was opened; `what` is how messages call it, such as `saver`.
    pub(crate) fn new(_py: Python<'_>, what: &'static str, content: T) -> Self {
        let holder = Arc::new(Holder {
            what,
            process: process::id(),
            content: Mutex::new(Some(Resource::new(content))),
        });
        let closable: Arc<dyn Close> = Arc::clone(&holder) as _;
        let mut opened = lock(&OPENED);
        opened.retain(|known| known.strong_count() > 0);
        opened.push(Arc::downgrade(&closable));
        Self(holder)
    }

    /// What was opened.
    pub(crate) fn get(&self) -> PyResult<T> {
        let Holder { what, process, content } = &*self.0;
        if *process != process::id() {
            return Err(PyRuntimeError::new_err(format!(
                "this {what} was made before the process was forked, and its connections belong to the parent; make a \
                 new {what} in the child"
            )));
        }
        let open = lock(content).as_ref().and_then(Resource::get).cloned();
        open.ok_or_else(|| PyRuntimeError::new_err(format!("this {what} is closed; make a new one")))
    }

    /// Closes it, once calls that are under way have ended. May be repeated.
    pub(crate) fn close(&self) {
        self.0.close();
    }
}

impl<T: Send + 'static> Clone for Opened<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Send + 'static> Close for Holder<T> {
    fn close(&self) {
        // Not dropped under the lock.
        let content = lock(&self.content).take();
        drop(content);
    }
}

/// Closes what is still open and ends the runtime: for the exit of the interpreter.
#[pyfunction]
fn shut_down(py: Python<'_>) {
    let opened = mem::take(&mut *lock(&OPENED));
    let ended = State::Ended { process: process::id() };
    let state = mem::replace(&mut *lock(&STATE), ended);
    py.detach(|| {
        for closable in opened {
            if let Some(closable) = closable.upgrade() {
                closable.close();
            }
        }
        match state {
            State::Running { runtime, gate, process } if process == process::id() => {
                if shut(&gate) {
                    runtime.shutdown_timeout(LAST_CALLS);
                } else {
                    mem::forget(runtime);
                }
            }
            state => mem::forget(state),
        }
    });
}

/// Keeps callers' threads from polling any more; false where one is still at it after the time for last calls.
fn shut(gate: &Gate) -> bool {
    let until = Instant::now() + LAST_CALLS;
    loop {
        if let Ok(mut ended) = gate.try_write() {
            *ended = true;
            return true;
        }
        if Instant::now() > until {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(shut_down, module)?)
}
