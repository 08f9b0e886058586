//! Listings: one checkpoint after the other, read from the database page by page as they are asked for.

use std::mem;
use std::sync::{Arc, Mutex};

use checkpoint_core::{BoxStream, CheckpointTuple, ListQuery, Result};
use futures_util::StreamExt;
use pyo3::prelude::*;

use crate::call::Call;
use crate::runtime::lock;
use crate::saver::Backend;
use crate::tuple::{self, Serde};

/// A listing that is under way.
#[pyclass(frozen, module = "langgraph_ckpt._native")]
pub(crate) struct Listing {
    backend: Backend,
    serde: Arc<Serde>,
    state: Arc<Mutex<State>>,
}

enum State {
    New(ListQuery),
    Open(BoxStream<'static, Result<CheckpointTuple>>),
    /// At its end, or somebody is waiting for the next checkpoint.
    Over,
}

impl Listing {
    pub(crate) fn new(backend: Backend, query: ListQuery, serde: Serde) -> Self {
        Self { backend, serde: Arc::new(serde), state: Arc::new(Mutex::new(State::New(query))) }
    }
}

#[pymethods]
impl Listing {
    /// The next checkpoint, or `None` at the end. What the last page had more is returned at once.
    fn next(&self) -> Call {
        let (backend, state) = (self.backend.clone(), Arc::clone(&self.state));
        let (layout, serde) = (backend.layout.clone(), Arc::clone(&self.serde));
        Call::at_once(
            async move {
                // A call that is dropped while it waits leaves the listing at its end.
                let before = mem::replace(&mut *lock(&state), State::Over);
                let mut stream = match before {
                    State::New(query) => backend.ready().await?.list(query),
                    State::Open(stream) => stream,
                    State::Over => return Ok(None),
                };
                let found = stream.next().await.transpose()?;
                if found.is_some() {
                    *lock(&state) = State::Open(stream);
                }
                Ok(found)
            },
            move |py, found| match found {
                Some(found) => tuple::from_tuple(py, &layout, &serde, &found),
                None => Ok(py.None()),
            },
        )
    }
}
