//! Savers and stores from their creation to their end.

use std::mem;
use std::process;
use std::sync::{Arc, Mutex, Weak};

use checkpoint_core::{Error, ErrorKind, Result, async_trait};
use futures_util::future::{BoxFuture, join_all};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

use crate::call::Call;
use crate::runtime::{self, lock};

/// What to close when the interpreter exits. Locked only with the GIL, which a forking thread holds, so that no child
/// inherits it locked.
static OPENED: Mutex<Vec<Weak<dyn Close>>> = Mutex::new(Vec::new());

/// A saver or a store, usable until it is closed and only in the process that created it. Clones share it.
pub(crate) struct Opened<T: Sync + 'static>(Arc<Holder<T>>);

/// A saver or a store in use by a call: closing it waits until this is dropped.
pub(crate) type InUse<T> = OwnedRwLockReadGuard<Option<T>, T>;

struct Holder<T: 'static> {
    /// Its name in messages, such as `saver`.
    what: &'static str,
    /// Whether its calls do no I/O.
    immediate: bool,
    process: u32,
    /// Shared by running calls, exclusive while it is being closed, and then empty.
    content: Arc<RwLock<Option<T>>>,
    release: fn(&T) -> BoxFuture<'_, Result<()>>,
}

/// Any holder.
#[async_trait]
trait Close: Send + Sync {
    async fn close(&self) -> Result<()>;
}

#[async_trait]
impl<T: Send + Sync> Close for Holder<T> {
    async fn close(&self) -> Result<()> {
        // In a child of `fork`, the parent's calls never end.
        if self.process != process::id() {
            return Ok(());
        }
        // Locked until it is closed, so that whoever closes it too waits for that.
        let mut content = self.content.write().await;
        match content.take() {
            Some(content) => (self.release)(&content).await,
            None => Ok(()),
        }
    }
}

impl<T> Drop for Holder<T> {
    fn drop(&mut self) {
        // The connections and threads are the parent's, so the child leaks them.
        if self.process != process::id() {
            mem::forget(Arc::clone(&self.content));
        }
    }
}

impl<T: Send + Sync> Opened<T> {
    /// Holds a saver or a store, which `release` closes; `what` is its name in messages, such as `saver`.
    pub(crate) fn new(
        _py: Python<'_>,
        what: &'static str,
        immediate: bool,
        content: T,
        release: fn(&T) -> BoxFuture<'_, Result<()>>,
    ) -> Self {
        let content = Arc::new(RwLock::new(Some(content)));
        let holder = Arc::new(Holder { what, immediate, process: process::id(), content, release });
        let closable: Arc<dyn Close> = Arc::clone(&holder) as _;
        let mut opened = lock(&OPENED);
        opened.retain(|known| known.strong_count() > 0);
        opened.push(Arc::downgrade(&closable));
        Self(holder)
    }

    /// The saver or store, unless it is closed.
    pub(crate) fn get(&self) -> PyResult<InUse<T>> {
        let Holder { what, process, content, .. } = &*self.0;
        if *process != process::id() {
            return Err(PyRuntimeError::new_err(format!(
                "this {what} was made before the process was forked, and its connections belong to the parent; make a \
                 new {what} in the child"
            )));
        }
        // It fails while somebody closes it.
        let open = Arc::clone(content).try_read_owned().ok();
        let open = open.and_then(|content| OwnedRwLockReadGuard::try_map(content, Option::as_ref).ok());
        open.ok_or_else(|| PyRuntimeError::new_err(format!("this {what} is closed; create a new one")))
    }

    /// A call that uses it from its start to its end.
    pub(crate) fn call<R, F>(
        &self,
        call: impl FnOnce(InUse<T>) -> F + Send + 'static,
        finish: impl FnOnce(Python<'_>, R) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Call
    where
        R: Send + 'static,
        F: Future<Output = Result<R>> + Send + 'static,
    {
        let opened = self.clone();
        Call::new(self.0.immediate, move |_| opened.get().map(call), finish)
    }

    /// Whether its calls do no I/O.
    pub(crate) fn is_immediate(&self) -> bool {
        self.0.immediate
    }

    /// Whether there is nothing to close: its user or the end of the interpreter has closed it, or it is the parent's.
    pub(crate) fn is_closed(&self) -> bool {
        let Holder { process, content, .. } = &*self.0;
        runtime::has_ended()
            || *process != process::id()
            || content.try_read().is_ok_and(|content| content.is_none())
    }

    /// The call that closes it: new calls are refused, running ones are waited for, what they use is released. Idempotent.
    pub(crate) fn close(&self) -> Call {
        let holder = Arc::clone(&self.0);
        let begin = move |py: Python<'_>| {
            // A task of its own, which goes on if the caller is cancelled.
            let closing = runtime::spawn(py, async move { holder.close().await })?;
            Ok(async move {
                closing.await.unwrap_or_else(|error| {
                    Err(Error::new(ErrorKind::Backend, "closing failed").with_source(error))
                })
            })
        };
        Call::new(false, begin, |py, ()| Ok(py.None()))
    }
}

impl<T: Sync> Clone for Opened<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Closes everything that is open, when it is polled. The GIL is needed only before.
pub(crate) fn close_all(_py: Python<'_>) -> impl Future<Output = ()> + Send + use<> {
    let opened: Vec<_> = mem::take(&mut *lock(&OPENED)).iter().filter_map(Weak::upgrade).collect();
    async move {
        // There is nobody to report an error to.
        join_all(opened.iter().map(|opened| opened.close())).await;
    }
}
