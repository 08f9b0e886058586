//! The history of a thread.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::stream::{BoxStream, Stream, StreamExt};

use super::StateSnapshot;
use crate::{BaseCheckpointSaver, Filter, ListQuery, Result, Str};

/// A stream of the states of a thread's namespace, newest first. The setters count until it is first polled.
///
/// ```
/// use checkpoint_core::{InMemorySaver, SaverExt};
/// use futures_util::TryStreamExt;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> checkpoint_core::Result<()> {
/// let thread = InMemorySaver::new().thread("thread-1");
/// let newest: Vec<_> = thread.history().limit(10).try_collect().await?;
/// # assert!(newest.is_empty());
/// # Ok(())
/// # }
/// ```
#[must_use = "a stream does nothing until it is polled"]
pub struct History<S> {
    saver: S,
    query: ListQuery,
    states: Option<BoxStream<'static, Result<StateSnapshot>>>,
}

impl<S> History<S> {
    pub(super) fn new(saver: S, query: ListQuery) -> Self {
        Self { saver, query, states: None }
    }

    /// Limits the number of states.
    pub fn limit(mut self, limit: usize) -> Self {
        self.query = self.query.limit(limit);
        self
    }

    /// Narrows to checkpoints older than this id.
    pub fn before(mut self, checkpoint_id: impl Into<Str>) -> Self {
        self.query = self.query.before(checkpoint_id);
        self
    }

    /// Narrows by metadata.
    pub fn filter(mut self, filter: Filter) -> Self {
        self.query = self.query.filter(filter);
        self
    }
}

impl<S: fmt::Debug> fmt::Debug for History<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History")
            .field("saver", &self.saver)
            .field("query", &self.query)
            .finish_non_exhaustive()
    }
}

impl<S: BaseCheckpointSaver + Unpin> Stream for History<S> {
    type Item = Result<StateSnapshot>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { saver, query, states } = self.get_mut();
        let states = states.get_or_insert_with(|| {
            let backend = saver.backend();
            let snapshot = move |tuple| StateSnapshot { tuple, backend: Some(backend) };
            saver.list(query.clone()).map(move |tuple| tuple.map(snapshot)).boxed()
        });
        states.poll_next_unpin(context)
    }
}
