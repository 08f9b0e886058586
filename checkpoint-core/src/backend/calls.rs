//! The wrapper of every call: its span, its metrics, the context of its error, and `close()`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use async_lock::RwLock;
use tracing::field::Empty;
use tracing::{Instrument, Span, debug_span};

use super::telemetry;
use crate::store::Op;
use crate::{CheckpointConfig, Error, ErrorKind, Result};

/// A call's name and span.
#[derive(Debug)]
#[must_use = "give it to Calls::run"]
pub struct Operation {
    name: &'static str,
    span: Span,
}

/// One call site for each operation: the name of a span is static.
macro_rules! operation {
    ($name:literal $(, $field:ident = $value:expr)* $(,)?) => {
        Operation {
            name: $name,
            span: debug_span!(
                $name,
                otel.kind = "client",
                otel.status_code = Empty,
                db.system.name = Empty,
                db.operation.name = $name,
                error.type = Empty,
                $($field = $value,)*
            ),
        }
    };
}

macro_rules! on_config {
    ($name:literal, $config:expr $(, $field:ident = $value:expr)*) => {
        operation!(
            $name,
            thread_id = $config.thread_id(),
            checkpoint_ns = $config.checkpoint_ns(),
            checkpoint_id = $config.checkpoint_id(),
            $($field = $value),*
        )
    };
}

impl Operation {
    /// `setup` of a saver or a store.
    pub fn setup() -> Self {
        operation!("setup")
    }

    /// `get_tuple` with its config.
    pub fn get_tuple(config: &CheckpointConfig) -> Self {
        on_config!("get_tuple", config)
    }

    /// One page of `list`.
    pub fn list() -> Self {
        operation!("list")
    }

    /// One page of `list_threads`.
    pub fn list_threads() -> Self {
        operation!("list_threads")
    }

    /// `put` of the checkpoint with this id.
    pub fn put(config: &CheckpointConfig, checkpoint_id: &str) -> Self {
        operation!(
            "put",
            thread_id = config.thread_id(),
            checkpoint_ns = config.checkpoint_ns(),
            checkpoint_id = checkpoint_id,
            parent_checkpoint_id = config.checkpoint_id(),
        )
    }

    /// `put_writes` of a task.
    pub fn put_writes(config: &CheckpointConfig, task_id: &str) -> Self {
        on_config!("put_writes", config, task_id = task_id)
    }

    /// `delete_thread` of a thread.
    pub fn delete_thread(thread_id: &str) -> Self {
        operation!("delete_thread", thread_id = thread_id)
    }

    /// `get_delta_channel_history` with its config.
    pub fn get_delta_channel_history(config: &CheckpointConfig) -> Self {
        on_config!("get_delta_channel_history", config)
    }

    /// `delete_for_runs` with the number of runs.
    pub fn delete_for_runs(run_ids: &[&str]) -> Self {
        operation!("delete_for_runs", runs = run_ids.len())
    }

    /// `copy_thread` from one thread to another.
    pub fn copy_thread(source_thread_id: &str, target_thread_id: &str) -> Self {
        operation!("copy_thread", source_thread_id = source_thread_id, target_thread_id = target_thread_id)
    }

    /// `prune` with the number of threads.
    pub fn prune(thread_ids: &[&str]) -> Self {
        operation!("prune", threads = thread_ids.len())
    }

    /// `batch` of a store, under the name of its operation if it has only one.
    pub fn batch(ops: &[Op]) -> Self {
        match ops {
            [Op::Get(_)] => operation!("get"),
            [Op::Search(_)] => operation!("search"),
            [Op::Put(put)] if put.value.is_none() => operation!("delete"),
            [Op::Put(_)] => operation!("put"),
            [Op::ListNamespaces(_)] => operation!("list_namespaces"),
            ops => operation!("batch", operations = ops.len()),
        }
    }

    /// `sweep_ttl` of a store.
    pub fn sweep_ttl() -> Self {
        operation!("sweep_ttl")
    }

    /// `close` of a saver or a store.
    pub fn close() -> Self {
        operation!("close")
    }
}

/// The calls of one saver or store and of its clones.
#[derive(Debug)]
pub struct Calls {
    backend: &'static str,
    system: &'static str,
    closed: AtomicBool,
    /// Running calls hold a shared lock, `close` waits for the exclusive lock.
    under_way: RwLock<()>,
}

impl Calls {
    /// Takes the backend's name for errors, and the database system for OpenTelemetry's `db.system.name`.
    pub const fn new(backend: &'static str, system: &'static str) -> Self {
        Self { backend, system, closed: AtomicBool::new(false), under_way: RwLock::new(()) }
    }

    /// Runs a call in its span, measures it, and adds backend and operation to its error.
    ///
    /// # Errors
    /// Any error from the call, and [`Unavailable`](ErrorKind::Unavailable) after [`close`](Self::close).
    ///
    /// # Cancellation
    /// Drops the call.
    pub async fn run<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let Operation { name, span } = operation;
        span.record("db.system.name", self.system);
        let begun = Instant::now();
        let result = match self.under_way.try_read() {
            Some(_guard) if !self.is_closed() => call.instrument(span.clone()).await,
            _ => Err(Error::new(ErrorKind::Unavailable, "it is closed; make a new one")),
        };
        let error = result.as_ref().err().map(Error::kind);
        telemetry::call(self.system, name, begun.elapsed(), error);
        if let Some(kind) = error {
            span.record("error.type", kind.as_str());
            span.record("otel.status_code", "ERROR");
        }
        result.map_err(|error| error.at(self.backend, name))
    }

    /// Whether [`close`](Self::close) was called.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Refuses calls from now on, waits for running ones, then releases their resources. Idempotent.
    ///
    /// # Errors
    /// Any error from `release`.
    ///
    /// # Cancellation
    /// Calls are still refused; the next `close` waits again, then releases.
    pub async fn close(&self, release: impl Future<Output = Result<()>> + Send) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        let Operation { name, span } = Operation::close();
        span.record("db.system.name", self.system);
        let close = async {
            let _guard = self.under_way.write().await;
            release.await
        };
        close.instrument(span).await.map_err(|error| error.at(self.backend, name))
    }

    /// The system's name in metrics; see [`telemetry`].
    pub fn system(&self) -> &'static str {
        self.system
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::{join, pending, poll_immediate, ready};

    use super::*;

    fn calls() -> Calls {
        Calls::new("test", "other_sql")
    }

    #[tokio::test]
    async fn errors_name_backend_and_operation() {
        let failed = calls().run(Operation::setup(), ready(Err::<(), _>(Error::codec("bad")))).await;
        assert_eq!(failed.unwrap_err().to_string(), "test: setup: bad");
    }

    #[tokio::test]
    async fn close_waits_for_calls_and_refuses_later_ones() {
        let calls = calls();
        let (send, receive) = futures_channel::oneshot::channel::<()>();
        let mut call = Box::pin(
            calls.run(Operation::list(), async { receive.await.map_err(|_| Error::codec("dropped")) }),
        );
        assert!(poll_immediate(&mut call).await.is_none());
        let mut close = Box::pin(calls.close(ready(Ok(()))));
        assert!(poll_immediate(&mut close).await.is_none(), "a call is still running");
        let late = calls.run(Operation::list(), pending::<Result<()>>()).await.unwrap_err();
        assert_eq!((late.kind(), late.is_retryable()), (ErrorKind::Unavailable, false));
        send.send(()).unwrap();
        let (called, closed) = join(call, close).await;
        called.unwrap();
        closed.unwrap();
        calls.close(ready(Ok(()))).await.unwrap();
        calls.run(Operation::list(), pending::<Result<()>>()).await.unwrap_err();
    }

    #[tokio::test]
    async fn dropped_calls_do_not_block_close() {
        let calls = calls();
        let mut call = Box::pin(calls.run(Operation::list(), pending::<Result<()>>()));
        assert!(poll_immediate(&mut call).await.is_none());
        drop(call);
        let mut close = Box::pin(calls.close(pending()));
        assert!(poll_immediate(&mut close).await.is_none());
        drop(close);
        calls.run(Operation::list(), ready(Ok(()))).await.unwrap_err();
        calls.close(ready(Ok(()))).await.unwrap();
    }
}
