//! Notifies event loops of finished calls.

use std::cell::RefCell;
use std::collections::HashMap;
#[cfg(unix)]
use std::io::{Read, Write};
use std::mem;
#[cfg(unix)]
use std::os::{fd::AsRawFd, unix::net::UnixStream};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyWeakrefMethods, PyWeakrefReference};

use crate::runtime::lock;

static RUNNING_LOOP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
#[cfg(unix)]
static CONTEXT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The bridge of each loop, whichever thread runs it: a `WeakKeyDictionary` of weak references. Calls that wait at a
/// bridge hold the loop, so a strong reference here would leak the loop.
static BRIDGES: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

thread_local! {
    /// A cache of the loop that this thread ran last.
    static KNOWN: RefCell<Option<Known>> = const { RefCell::new(None) };
}

/// Weak references to a loop and its bridge.
struct Known {
    event_loop: Py<PyWeakrefReference>,
    bridge: Py<PyWeakrefReference>,
}

/// Connects the runtime with one event loop, which calls it when its socket is readable. A loop that watches the socket
/// holds it; otherwise the running calls hold both.
#[pyclass(frozen, weakref, module = "langgraph_ckpt._native")]
pub(crate) struct Bridge {
    ended: Arc<Ended>,
    waiting: Mutex<HashMap<u64, Py<PyAny>>>,
    next: AtomicU64,
    process: u32,
}

/// The calls that finished since the last notification. It holds no Python objects, so that running calls do not keep a
/// dead loop alive.
#[derive(Default)]
struct Ended {
    numbers: Mutex<Vec<u64>>,
    /// The loop's end and the runtime's end, if the loop watches sockets. They are closed together: writing to a socket
    /// whose other end is closed would raise SIGPIPE.
    #[cfg(unix)]
    sockets: Option<(UnixStream, UnixStream)>,
}

/// Notifies the loop of a finished call when it is dropped.
pub(crate) struct Finished {
    number: u64,
    ended: Arc<Ended>,
    /// For loops that watch no sockets (on Windows): the loop, and the callback. Both live until the call ends.
    threadsafe: Option<(Py<PyAny>, Py<Bridge>)>,
}

impl Drop for Finished {
    fn drop(&mut self) {
        let first = {
            let mut numbers = lock(&self.ended.numbers);
            numbers.push(self.number);
            numbers.len() == 1
        };
        // The first one has already woken the loop.
        if !first {
            return;
        }
        #[cfg(unix)]
        if let Some((_, writer)) = &self.ended.sockets {
            let mut writer = writer;
            // If the buffer is full, the loop will wake anyway. This does not need the GIL.
            let _ = writer.write(&[0]);
        }
        if let Some((event_loop, bridge)) = self.threadsafe.take() {
            // A closed loop has no waiting tasks.
            let _ = Python::try_attach(move |py| {
                event_loop.call_method1(py, intern!(py, "call_soon_threadsafe"), (bridge,))
            });
        }
    }
}

/// A call that a loop waits for: its number, the loop's future, and the notifier that the runtime drops at its end.
pub(crate) struct Expected {
    pub(crate) number: u64,
    pub(crate) future: Py<PyAny>,
    pub(crate) finished: Finished,
}

impl Known {
    fn new(event_loop: &Bound<'_, PyAny>, bridge: &Bound<'_, Bridge>) -> PyResult<Self> {
        Ok(Self {
            event_loop: PyWeakrefReference::new(event_loop)?.unbind(),
            bridge: PyWeakrefReference::new(bridge)?.unbind(),
        })
    }

    fn find<'py>(&self, event_loop: &Bound<'py, PyAny>) -> Option<Bound<'py, Bridge>> {
        let py = event_loop.py();
        let same = self.event_loop.bind(py).upgrade().is_some_and(|known| known.is(event_loop));
        if same { Bridge::living(self.bridge.bind(py)) } else { None }
    }
}

impl Bridge {
    /// Creates a future of the loop that runs on this thread, with the bridge that completes it.
    pub(crate) fn expect(py: Python<'_>) -> PyResult<(Py<Self>, Expected)> {
        let running = RUNNING_LOOP.import(py, "asyncio", "get_running_loop")?.call0()?;
        let bridge = Self::of(&running)?.unbind();
        let future = running.call_method0(intern!(py, "create_future"))?.unbind();
        let this = bridge.get();
        let number = this.next.fetch_add(1, Ordering::Relaxed);
        lock(&this.waiting).insert(number, future.clone_ref(py));
        #[cfg(unix)]
        let watched = this.ended.sockets.is_some();
        #[cfg(not(unix))]
        let watched = false;
        let threadsafe = (!watched).then(|| (running.unbind(), bridge.clone_ref(py)));
        let finished = Finished { number, ended: Arc::clone(&this.ended), threadsafe };
        Ok((bridge, Expected { number, future, finished }))
    }

    /// Stops waiting for this call.
    pub(crate) fn forget(&self, number: u64) {
        let future = lock(&self.waiting).remove(&number);
        drop(future);
    }

    /// The bridge of a loop: a single one, since each has sockets that the loop watches until it ends.
    fn of<'py>(event_loop: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        let py = event_loop.py();
        let known = KNOWN.with_borrow(|known| known.as_ref()?.find(event_loop));
        if let Some(bridge) = known {
            return Ok(bridge);
        }
        let bridges = BRIDGES.get_or_try_init(py, || {
            py.import("weakref")?.call_method0("WeakKeyDictionary").map(Bound::unbind)
        })?;
        let bridges = bridges.bind(py);
        let found = match bridges.call_method1(intern!(py, "get"), (event_loop,)) {
            Ok(found) => found,
            // A loop that cannot be weakly referenced would get new sockets with each call, so it gets none.
            Err(error) if error.is_instance_of::<PyTypeError>(py) => {
                return Bound::new(py, Self::new(Ended::default()));
            }
            Err(error) => return Err(error),
        };
        let found = found.cast::<PyWeakrefReference>().ok().and_then(Self::living);
        let made = found.is_none();
        let bridge = found.map_or_else(|| Self::make(event_loop), Ok)?;
        let known = Known::new(event_loop, &bridge)?;
        if made {
            bridges.set_item(event_loop, &known.bridge)?;
        }
        KNOWN.set(Some(known));
        Ok(bridge)
    }

    /// The bridge, if it is alive and not the parent's: a child of `fork` must not use the parent's sockets.
    fn living<'py>(bridge: &Bound<'py, PyWeakrefReference>) -> Option<Bound<'py, Self>> {
        let bridge = bridge.upgrade()?.cast_into::<Self>().ok()?;
        (bridge.get().process == process::id()).then_some(bridge)
    }

    #[cfg(unix)]
    fn make<'py>(event_loop: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        let py = event_loop.py();
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        let file = reader.as_raw_fd();
        let bridge =
            Bound::new(py, Self::new(Ended { sockets: Some((reader, writer)), ..Ended::default() }))?;
        // In an empty context: the loop keeps the context until it ends, and would leak the values of the caller's.
        let context = CONTEXT.import(py, "contextvars", "Context")?.call0()?;
        let add_reader = event_loop.getattr(intern!(py, "add_reader"))?;
        match context.call_method1(intern!(py, "run"), (add_reader, file, &bridge)) {
            Ok(_) => Ok(bridge),
            Err(_) => Bound::new(py, Self::new(Ended::default())),
        }
    }

    #[cfg(not(unix))]
    fn make<'py>(event_loop: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        Bound::new(event_loop.py(), Self::new(Ended::default()))
    }

    fn new(ended: Ended) -> Self {
        Self {
            ended: Arc::new(ended),
            waiting: Mutex::default(),
            next: AtomicU64::new(0),
            process: process::id(),
        }
    }
}

#[pymethods]
impl Bridge {
    /// Wakes the tasks whose calls finished.
    fn __call__(&self, py: Python<'_>) {
        #[cfg(unix)]
        if let Some((reader, _)) = &self.ended.sockets {
            let mut reader = reader;
            // One byte was sent for each time that the list below was empty.
            let _ = reader.read(&mut [0; 64]);
        }
        let numbers = mem::take(&mut *lock(&self.ended.numbers));
        for number in numbers {
            let future = lock(&self.waiting).remove(&number);
            if let Some(future) = future {
                // A cancelled future rejects a result.
                let _ = future.call_method1(py, intern!(py, "set_result"), (py.None(),));
            }
        }
    }

    /// Reference cycle: the futures hold the waiting tasks, and those hold this.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        try_lock(&self.waiting).map_or(Ok(()), |waiting| waiting.values().try_for_each(|one| visit.call(one)))
    }

    fn __clear__(&self) {
        let waiting = mem::take(&mut *lock(&self.waiting));
        drop(waiting);
    }
}

/// Takes a lock in the garbage collector, which must not wait. These locks are only held with the GIL, which the
/// collector has, so they are free then.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
