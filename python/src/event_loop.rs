//! How the runtime tells an event loop that calls have ended.

use std::cell::RefCell;
use std::collections::HashMap;
#[cfg(unix)]
use std::io::{Read, Write};
use std::mem;
#[cfg(unix)]
use std::os::{fd::AsRawFd, unix::net::UnixStream};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::runtime::lock;

static RUNNING_LOOP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

thread_local! {
    /// The loop that this thread ran last.
    static KNOWN: RefCell<Option<Known>> = const { RefCell::new(None) };
}

struct Known {
    event_loop: Py<PyAny>,
    bridge: Py<Bridge>,
    process: u32,
}

/// Stands between the runtime and one event loop, which calls it when there is something to read from its socket.
#[pyclass(frozen, module = "langgraph_ckpt._native")]
pub(crate) struct Bridge {
    ended: Arc<Ended>,
    waiting: Mutex<HashMap<u64, Py<PyAny>>>,
    next: AtomicU64,
    #[cfg(unix)]
    reader: Option<UnixStream>,
}

/// The calls that have ended since the loop last looked.
struct Ended {
    numbers: Mutex<Vec<u64>>,
    alarm: Mutex<Alarm>,
}

/// What wakes a loop.
enum Alarm {
    /// Its end of a pair of sockets: nobody waits for the GIL.
    #[cfg(unix)]
    Socket(UnixStream),
    /// For loops that watch no sockets (on Windows): the loop, and what it shall call.
    Threadsafe(Py<PyAny>, Py<Bridge>),
    /// Before it is known.
    Unset,
}

/// Tells the loop that a call has ended, when it is dropped.
pub(crate) struct Finished {
    number: u64,
    ended: Arc<Ended>,
}

impl Drop for Finished {
    fn drop(&mut self) {
        let first = {
            let mut numbers = lock(&self.ended.numbers);
            numbers.push(self.number);
            numbers.len() == 1
        };
        // Whoever was first has woken the loop already.
        if first {
            lock(&self.ended.alarm).ring();
        }
    }
}

impl Alarm {
    fn ring(&mut self) {
        match self {
            #[cfg(unix)]
            Self::Socket(socket) => {
                // Where there is no room, the loop has enough to wake for.
                let _ = socket.write(&[0]);
            }
            Self::Threadsafe(event_loop, bridge) => {
                // A loop that is closed has nobody who waits.
                let _ = Python::try_attach(|py| {
                    event_loop.call_method1(py, intern!(py, "call_soon_threadsafe"), (&*bridge,))
                });
            }
            Self::Unset => {}
        }
    }
}

/// A call that a loop waits for: its number, the loop's future, and what the runtime drops at its end.
pub(crate) struct Expected {
    pub(crate) number: u64,
    pub(crate) future: Py<PyAny>,
    pub(crate) finished: Finished,
}

impl Bridge {
    /// Makes a future of the loop that runs on this thread, and the bridge that it is told through.
    pub(crate) fn expect(py: Python<'_>) -> PyResult<(Py<Self>, Expected)> {
        let running = RUNNING_LOOP.import(py, "asyncio", "get_running_loop")?.call0()?;
        let bridge = Self::of(py, &running)?;
        let future = running.call_method0(intern!(py, "create_future"))?.unbind();
        let this = bridge.get();
        let number = this.next.fetch_add(1, Ordering::Relaxed);
        lock(&this.waiting).insert(number, future.clone_ref(py));
        let finished = Finished { number, ended: Arc::clone(&this.ended) };
        Ok((bridge, Expected { number, future, finished }))
    }

    /// Nobody waits for this call any more.
    pub(crate) fn forget(&self, number: u64) {
        let future = lock(&self.waiting).remove(&number);
        drop(future);
    }

    fn of(py: Python<'_>, event_loop: &Bound<'_, PyAny>) -> PyResult<Py<Self>> {
        let known = KNOWN.with_borrow(|known| {
            let known = known.as_ref()?;
            let same = known.event_loop.is(event_loop) && known.process == process::id();
            same.then(|| known.bridge.clone_ref(py))
        });
        if let Some(bridge) = known {
            return Ok(bridge);
        }
        let bridge = Self::make(py, event_loop)?;
        let known = Known {
            event_loop: event_loop.clone().unbind(),
            bridge: bridge.clone_ref(py),
            process: process::id(),
        };
        let before = KNOWN.replace(Some(known));
        if before.as_ref().is_some_and(|before| before.process != process::id()) {
            // To end a loop of the parent would end its sockets' registrations there.
            mem::forget(before);
        }
        Ok(bridge)
    }

    #[cfg(unix)]
    fn make(py: Python<'_>, event_loop: &Bound<'_, PyAny>) -> PyResult<Py<Self>> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        let file = reader.as_raw_fd();
        let bridge = Py::new(py, Self::new(Some(reader)))?;
        let alarm = match event_loop.call_method1(intern!(py, "add_reader"), (file, &bridge)) {
            Ok(_) => Alarm::Socket(writer),
            Err(_) => Alarm::Threadsafe(event_loop.clone().unbind(), bridge.clone_ref(py)),
        };
        *lock(&bridge.get().ended.alarm) = alarm;
        Ok(bridge)
    }

    #[cfg(not(unix))]
    fn make(py: Python<'_>, event_loop: &Bound<'_, PyAny>) -> PyResult<Py<Self>> {
        let bridge = Py::new(py, Self::new())?;
        let alarm = Alarm::Threadsafe(event_loop.clone().unbind(), bridge.clone_ref(py));
        *lock(&bridge.get().ended.alarm) = alarm;
        Ok(bridge)
    }

    fn new(#[cfg(unix)] reader: Option<UnixStream>) -> Self {
        Self {
            ended: Arc::new(Ended { numbers: Mutex::default(), alarm: Mutex::new(Alarm::Unset) }),
            waiting: Mutex::default(),
            next: AtomicU64::new(0),
            #[cfg(unix)]
            reader,
        }
    }
}

#[pymethods]
impl Bridge {
    /// Wakes the tasks whose calls have ended.
    fn __call__(&self, py: Python<'_>) {
        #[cfg(unix)]
        if let Some(mut reader) = self.reader.as_ref() {
            // One byte for each time that the list below was empty.
            let _ = reader.read(&mut [0; 64]);
        }
        let numbers = mem::take(&mut *lock(&self.ended.numbers));
        for number in numbers {
            let future = lock(&self.waiting).remove(&number);
            if let Some(future) = future {
                // One that was cancelled takes no result.
                let _ = future.call_method1(py, intern!(py, "set_result"), (py.None(),));
            }
        }
    }
}
