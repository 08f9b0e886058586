//! Calls that Python waits for, by blocking or by `await`.
//!
//! Results are converted to Python objects on the calling thread, not on the runtime's threads, so that I/O threads never
//! wait for the GIL. The runtime notifies an event loop through a socket of all calls that finished since the last
//! notification. (pyo3-async-runtimes finishes each call on a runtime thread, which then waits for the GIL, and keeps a
//! runtime that does not survive `fork`.)

use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use checkpoint_core::Result;
use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBool;
use tokio::task::AbortHandle;

use crate::error::OrRaise;
use crate::event_loop::{Bridge, Expected, try_lock};
use crate::runtime::{self, lock};

type Future<T> = Pin<Box<dyn std::future::Future<Output = Result<T>> + Send>>;
type Begin<T> = Box<dyn FnOnce(Python<'_>) -> PyResult<Future<T>> + Send>;
type Finish<T> = Box<dyn FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send>;
type Outcome = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// A call that has not started. `wait()` runs it and blocks; `await` runs it without blocking, and cancels it with the
/// task.
#[pyclass(frozen, module = "langgraph_ckpt._native")]
pub(crate) struct Call {
    state: Mutex<State>,
}

enum State {
    New(Box<dyn Job>),
    Waiting(Waiting),
    Over,
}

/// A call that a task on an event loop awaits.
struct Waiting {
    future: Py<PyAny>,
    outcome: Arc<Mutex<Option<Outcome>>>,
    task: AbortHandle,
    bridge: Py<Bridge>,
    number: u64,
}

impl Call {
    /// A call: what begins it, and the conversion of its result to a Python object.
    ///
    /// One that is `immediate` rarely waits, so its future is first polled on the caller's thread.
    pub(crate) fn new<T, F>(
        immediate: bool,
        begin: impl FnOnce(Python<'_>) -> PyResult<F> + Send + 'static,
        finish: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Self
    where
        T: Send + 'static,
        F: std::future::Future<Output = Result<T>> + Send + 'static,
    {
        let begin = Box::new(|py: Python<'_>| begin(py).map(|future| Box::pin(future) as Future<T>));
        let work = Work { immediate, begin, finish: Box::new(finish) };
        Self { state: Mutex::new(State::New(Box::new(work))) }
    }

    fn take(&self) -> State {
        mem::replace(&mut *lock(&self.state), State::Over)
    }
}

#[pymethods]
impl Call {
    /// Runs the call and blocks until it finishes. The GIL is released meanwhile, and Ctrl-C cancels it.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.take() {
            State::New(job) => job.wait(py),
            _ => Err(PyRuntimeError::new_err("this call was already run")),
        }
    }

    fn __await__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let waiting = match self.take() {
            State::New(job) => match job.start(py)? {
                Started::Waiting(waiting) => waiting,
                Started::Ended(outcome) => return Err(PyStopIteration::new_err((outcome?,))),
            },
            State::Waiting(waiting) => {
                let outcome = lock(&waiting.outcome).take();
                if let Some(outcome) = outcome {
                    return Err(PyStopIteration::new_err((outcome(py)?,)));
                }
                if waiting.future.bind(py).call_method0(intern!(py, "done"))?.is_truthy()? {
                    return Err(PyRuntimeError::new_err("the call was ended before it had a result"));
                }
                waiting
            }
            State::Over => return Err(PyRuntimeError::new_err("this call was awaited already")),
        };
        // The flag that asyncio tasks expect on the future that a coroutine yields.
        let future = waiting.future.clone_ref(py);
        future.bind(py).setattr(intern!(py, "_asyncio_future_blocking"), PyBool::new(py, true))?;
        *lock(&self.state) = State::Waiting(waiting);
        Ok(future)
    }

    /// Continues; sent values are ignored.
    fn send(&self, py: Python<'_>, _value: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.__next__(py)
    }

    /// Ends the call with an exception, by which a task is cancelled.
    #[pyo3(signature = (kind, value = None, _traceback = None))]
    fn throw(
        &self,
        kind: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        _traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.close();
        Err(PyErr::from_value(value.unwrap_or(kind)))
    }

    /// Ends the call without a result.
    fn close(&self) {
        if let State::Waiting(waiting) = self.take() {
            waiting.task.abort();
            waiting.bridge.get().forget(waiting.number);
        }
    }

    /// Reference cycle: the awaiting task holds this, and the future that this waits for holds the task.
    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        if let Some(State::Waiting(waiting)) = try_lock(&self.state).as_deref() {
            visit.call(&waiting.future)?;
            visit.call(&waiting.bridge)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        self.close();
    }
}

/// A future with the conversion of its result.
trait Job: Send {
    fn wait(self: Box<Self>, py: Python<'_>) -> PyResult<Py<PyAny>>;
    fn start(self: Box<Self>, py: Python<'_>) -> PyResult<Started>;
}

enum Started {
    Waiting(Waiting),
    Ended(PyResult<Py<PyAny>>),
}

struct Work<T> {
    immediate: bool,
    begin: Begin<T>,
    finish: Finish<T>,
}

impl<T: Send + 'static> Job for Work<T> {
    fn wait(self: Box<Self>, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let Self { immediate, begin, finish } = *self;
        let mut future = begin(py)?;
        let begun = if immediate { runtime::poll_once(py, &mut future)? } else { Poll::Pending };
        let result = match begun {
            Poll::Ready(result) => result,
            Poll::Pending => runtime::block_on(py, future)?,
        };
        finish(py, result.or_raise(py)?)
    }

    fn start(self: Box<Self>, py: Python<'_>) -> PyResult<Started> {
        let Self { immediate, begin, finish } = *self;
        let mut future = begin(py)?;
        if immediate {
            // Polled again by the runtime if it is not ready.
            if let Poll::Ready(result) = runtime::poll_once(py, &mut future)? {
                return Ok(Started::Ended(result.or_raise(py).and_then(|value| finish(py, value))));
            }
        }
        let outcome = Arc::new(Mutex::new(None));
        let (bridge, Expected { number, future: awaited, finished }) = Bridge::expect(py)?;
        let slot = Arc::clone(&outcome);
        let task = runtime::spawn(py, async move {
            // Notifies the loop however this ends.
            let _finished = finished;
            let result = future.await;
            let outcome: Outcome = Box::new(move |py| finish(py, result.or_raise(py)?));
            *lock(&slot) = Some(outcome);
        })?
        .abort_handle();
        Ok(Started::Waiting(Waiting { future: awaited, outcome, task, bridge, number }))
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Call>()
}
