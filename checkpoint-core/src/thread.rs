//! A thin typed layer over any saver.

use crate::{BaseCheckpointSaver, Str};

/// One thread of a saver, read into and committed from Rust structs.
#[derive(Debug, Clone)]
pub struct Thread<S> {
    saver: S,
    thread_id: Str,
}

impl<S: BaseCheckpointSaver> Thread<S> {
    /// Opens a thread.
    pub fn new(saver: S, thread_id: impl Into<Str>) -> Self {
        Self { saver, thread_id: thread_id.into() }
    }

    /// The saver.
    pub fn saver(&self) -> &S {
        &self.saver
    }

    /// The thread.
    pub fn thread_id(&self) -> &Str {
        &self.thread_id
    }
}
