//! Lists of checkpoints, read from the database page by page, on demand.

use std::mem;
use std::sync::{Arc, Mutex};

use checkpoint_core::{BoxStream, CheckpointTuple, ListQuery, Result};
use futures_util::StreamExt;
use pyo3::prelude::*;

use crate::call::Call;
use crate::opened::Opened;
use crate::runtime::lock;
use crate::saver::Backend;
use crate::tuple::{self, Serde};

/// A running list.
#[pyclass(frozen, module = "langgraph_ckpt._native")]
pub(crate) struct Listing {
    opened: Opened<Backend>,
    serde: Arc<Serde>,
    place: Arc<Place>,
}

/// The state of a list between calls.
struct Place(Mutex<State>);

enum State {
    New(ListQuery),
    Open(BoxStream<'static, Result<CheckpointTuple>>),
    /// At its end, or a call is waiting for the next checkpoint.
    Over,
}

impl Place {
    fn replace(&self, state: State) -> State {
        mem::replace(&mut *lock(&self.0), state)
    }
}

impl Listing {
    pub(crate) fn new(opened: &Opened<Backend>, query: ListQuery, serde: Serde) -> Self {
        let place = Arc::new(Place(Mutex::new(State::New(query))));
        Self { opened: opened.clone(), serde: Arc::new(serde), place }
    }
}

#[pymethods]
impl Listing {
    /// The next checkpoint, or `None` at the end.
    fn next(&self) -> Call {
        let (opened, place) = (self.opened.clone(), Arc::clone(&self.place));
        let serde = Arc::clone(&self.serde);
        let next = move |_: Python<'_>| {
            let backend = opened.get()?;
            Ok(async move {
                // A call that is dropped while it waits ends the list.
                let mut stream = match place.replace(State::Over) {
                    State::New(query) => backend.ready().await?.list(query),
                    State::Open(stream) => stream,
                    State::Over => return Ok(None),
                };
                let found = stream.next().await.transpose()?;
                if found.is_some() {
                    place.replace(State::Open(stream));
                }
                Ok(found)
            })
        };
        // Immediate on any backend: the rest of a page is returned without waiting.
        Call::new(true, next, move |py, found| match found {
            Some(found) => tuple::from_tuple(py, &serde, &found),
            None => Ok(py.None()),
        })
    }
}
