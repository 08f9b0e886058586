//! Lists of checkpoints, read from the database page by page, on demand. Once a caller has shown that it reads on, the next
//! page is read while the caller decodes this one.

use std::sync::{Arc, Mutex};
use std::{mem, vec};

use checkpoint_core::{BoxStream, CheckpointTuple, ListQuery, Result};
use futures_util::StreamExt;
use pyo3::prelude::*;
use tokio::sync::mpsc;

use crate::call::Call;
use crate::opened::Opened;
use crate::runtime::{AbortOnDrop, lock};
use crate::saver::Backend;
use crate::tuple::{self, Serde};

/// After so many checkpoints the rest is read ahead. Whoever looks for the newest ones has stopped before.
const ON_DEMAND: usize = 4;

/// How many checkpoints are handed over at a time.
const CHUNK: usize = 128;

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
    /// How many more are read on demand; `None` for a backend that never waits.
    OnDemand(BoxStream<'static, Result<CheckpointTuple>>, Option<usize>),
    Ahead(Ahead),
    /// At its end, or a call is waiting for the next checkpoint.
    Over,
}

/// A list that is read ahead by a task on the runtime: at most one page more than the one in use.
struct Ahead {
    chunk: vec::IntoIter<Result<CheckpointTuple>>,
    chunks: mpsc::Receiver<Vec<Result<CheckpointTuple>>>,
    _task: AbortOnDrop,
}

impl Ahead {
    /// Called within the runtime.
    fn read(stream: BoxStream<'static, Result<CheckpointTuple>>) -> Self {
        let (sender, chunks) = mpsc::channel(1);
        let mut stream = stream.ready_chunks(CHUNK);
        let task = tokio::spawn(async move {
            while let Some(chunk) = stream.next().await {
                if sender.send(chunk).await.is_err() {
                    break;
                }
            }
        });
        Self { chunk: Vec::new().into_iter(), chunks, _task: AbortOnDrop::new(task.abort_handle()) }
    }

    async fn next(&mut self) -> Option<Result<CheckpointTuple>> {
        loop {
            if let Some(found) = self.chunk.next() {
                return Some(found);
            }
            self.chunk = self.chunks.recv().await?.into_iter();
        }
    }
}

impl State {
    /// The next checkpoint, and the state after it. An error ends the list.
    async fn next(self, backend: &Backend, waits: bool) -> Result<(Option<CheckpointTuple>, Self)> {
        let (mut stream, left) = match self {
            Self::New(query) => (backend.ready().await?.list(query), waits.then_some(ON_DEMAND)),
            Self::OnDemand(stream, Some(0)) => {
                let mut ahead = Ahead::read(stream);
                let found = ahead.next().await.transpose()?;
                return Ok((found, Self::Ahead(ahead)));
            }
            Self::OnDemand(stream, left) => (stream, left),
            Self::Ahead(mut ahead) => {
                let found = ahead.next().await.transpose()?;
                return Ok((found, Self::Ahead(ahead)));
            }
            Self::Over => return Ok((None, Self::Over)),
        };
        let found = stream.next().await.transpose()?;
        Ok((found, Self::OnDemand(stream, left.map(|left| left.saturating_sub(1)))))
    }
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
            let waits = !opened.is_immediate();
            Ok(async move {
                // A call that is dropped while it waits ends the list.
                let (found, state) = place.replace(State::Over).next(&backend, waits).await?;
                if found.is_some() {
                    place.replace(state);
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
