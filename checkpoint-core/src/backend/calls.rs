//! The wrapper of every call: its span, its metrics, the context of its error, and `close()`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use async_lock::RwLock;
use tracing::field::Empty;
use tracing::{Instrument, Span, debug_span};

use super::retry::named;
use super::telemetry::{CallMetrics, Component, Name};
use crate::store::{Op, PutOp};
use crate::{CheckpointConfig, Error, ErrorKind, Lease, ListQuery, RekeyOptions, Result, RetainOptions};

/// A call's name and span, and what it stores.
#[derive(Debug)]
#[must_use = "give it to Calls::run"]
pub struct Operation<'a> {
    name: Name,
    span: Span,
    /// Added to the call's error, unless the error has it or it is empty.
    context: [(&'static str, &'a str); 4],
}

/// The context of calls that store nothing: their errors name what they read.
const NO_CONTEXT: [(&str, &str); 4] = [("", ""); 4];

/// One call site for each operation: the name of a span is static.
macro_rules! operation {
    ($name:expr $(, $($field:ident).+ = $value:expr)* $(,)?) => {
        Operation {
            name: $name,
            context: NO_CONTEXT,
            span: debug_span!(
                $name.as_str(),
                otel.kind = "client",
                otel.status_code = Empty,
                db.system.name = Empty,
                db.operation.name = $name.as_str(),
                error.type = Empty,
                checkpoint.component = Empty,
                $($($field).+ = $value,)*
            ),
        }
    };
}

macro_rules! on_config {
    ($name:expr, $config:expr $(, $field:ident = $value:expr)*) => {
        operation!(
            $name,
            thread_id = $config.thread_id(),
            checkpoint_ns = $config.checkpoint_ns(),
            checkpoint_id = $config.checkpoint_id(),
            $($field = $value),*
        )
    };
}

impl<'a> Operation<'a> {
    /// `setup` of a saver or a store.
    pub fn setup() -> Self {
        operation!(Name::Setup)
    }

    /// `ping` of a saver or a store.
    pub fn ping() -> Self {
        operation!(Name::Ping)
    }

    /// `check_schema` of a saver or a store.
    pub fn check_schema() -> Self {
        operation!(Name::CheckSchema)
    }

    /// `get_tuple` with its config.
    pub fn get_tuple(config: &CheckpointConfig) -> Self {
        on_config!(Name::GetTuple, config)
    }

    /// One page of `list` with its query.
    pub fn list(query: &ListQuery) -> Self {
        operation!(
            Name::List,
            thread_id = query.thread_id.as_deref(),
            checkpoint_ns = query.checkpoint_ns.as_deref(),
            checkpoint_id = query.checkpoint_id.as_deref(),
            before = query.before.as_deref(),
            limit = query.limit,
        )
    }

    /// One page of `list_thread_ids`: up to this many threads after the given one.
    pub fn list_thread_ids(after: Option<&str>, limit: usize) -> Self {
        operation!(Name::ListThreadIds, after = after, limit = limit)
    }

    /// One page of `list_threads`: up to this many threads after the given one.
    pub fn list_threads(after: Option<&str>, limit: usize) -> Self {
        operation!(Name::ListThreads, after = after, limit = limit)
    }

    /// `put` of the checkpoint with this id.
    pub fn put(config: &'a CheckpointConfig, checkpoint_id: &'a str) -> Self {
        let operation = operation!(
            Name::Put,
            thread_id = config.thread_id(),
            checkpoint_ns = config.checkpoint_ns(),
            checkpoint_id = checkpoint_id,
            parent_checkpoint_id = config.checkpoint_id(),
        );
        operation.on(config, checkpoint_id, "")
    }

    /// `put_writes` of a task.
    pub fn put_writes(config: &'a CheckpointConfig, task_id: &'a str) -> Self {
        let operation = on_config!(Name::PutWrites, config, task_id = task_id);
        operation.on(config, config.checkpoint_id().unwrap_or_default(), task_id)
    }

    /// Names what the call stores in its error.
    fn on(mut self, config: &'a CheckpointConfig, checkpoint_id: &'a str, task_id: &'a str) -> Self {
        self.context = [
            ("thread_id", config.thread_id()),
            ("checkpoint_ns", config.checkpoint_ns()),
            ("checkpoint_id", checkpoint_id),
            ("task_id", task_id),
        ];
        self
    }

    /// `acquire_lease` of a thread.
    pub fn acquire_lease(thread_id: &str) -> Self {
        operation!(Name::AcquireLease, thread_id = thread_id)
    }

    /// `renew_lease` of a lease.
    pub fn renew_lease(lease: &Lease) -> Self {
        operation!(Name::RenewLease, thread_id = lease.thread_id())
    }

    /// `release_lease` of a lease.
    pub fn release_lease(lease: &Lease) -> Self {
        operation!(Name::ReleaseLease, thread_id = lease.thread_id())
    }

    /// `delete_thread` of a thread.
    pub fn delete_thread(thread_id: &str) -> Self {
        operation!(Name::DeleteThread, thread_id = thread_id)
    }

    /// `get_delta_channel_history` with its config.
    pub fn get_delta_channel_history(config: &CheckpointConfig) -> Self {
        on_config!(Name::GetDeltaChannelHistory, config)
    }

    /// `delete_for_runs` with the number of runs.
    pub fn delete_for_runs(run_ids: &[&str]) -> Self {
        operation!(Name::DeleteForRuns, runs = run_ids.len())
    }

    /// `copy_thread` from one thread to another.
    pub fn copy_thread(source_thread_id: &str, target_thread_id: &str) -> Self {
        operation!(Name::CopyThread, source_thread_id = source_thread_id, target_thread_id = target_thread_id)
    }

    /// `prune` with the number of threads.
    pub fn prune(thread_ids: &[&str]) -> Self {
        operation!(Name::Prune, threads = thread_ids.len())
    }

    /// `retain` with the number of threads.
    pub fn retain(thread_ids: &[&str], options: &RetainOptions) -> Self {
        operation!(Name::Retain, threads = thread_ids.len(), dry_run = options.dry_run)
    }

    /// `usage` of the database.
    pub fn usage() -> Self {
        operation!(Name::Usage)
    }

    /// `rekey` of a thread.
    pub fn rekey(thread_id: &str, options: RekeyOptions) -> Self {
        operation!(Name::Rekey, thread_id = thread_id, dry_run = options.dry_run)
    }

    /// `batch` of a store, under the name of its operation if it has only one.
    pub fn batch(ops: &[Op]) -> Self {
        match ops {
            [Op::Get(get)] => {
                operation!(Name::Get, namespace = tracing::field::display(&get.namespace), key = &*get.key)
            }
            [Op::Search(search)] => {
                operation!(
                    Name::Search,
                    namespace = tracing::field::display(&search.namespace_prefix),
                    limit = search.limit
                )
            }
            [Op::Put(put)] if put.value.is_none() => {
                operation!(Name::Delete, namespace = tracing::field::display(&put.namespace), key = &*put.key)
            }
            [Op::Put(put)] => {
                operation!(Name::Put, namespace = tracing::field::display(&put.namespace), key = &*put.key)
            }
            [Op::ListNamespaces(list)] => operation!(Name::ListNamespaces, limit = list.limit),
            ops => operation!(Name::Batch, db.operation.batch.size = ops.len()),
        }
    }

    /// `put_if` of a store.
    pub fn put_if(put: &PutOp) -> Self {
        operation!(Name::PutIf, namespace = tracing::field::display(&put.namespace), key = &*put.key)
    }

    /// `sweep_ttl` of a store.
    pub fn sweep_ttl() -> Self {
        operation!(Name::SweepTtl)
    }

    /// `close` of a saver or a store.
    pub fn close() -> Self {
        operation!(Name::Close)
    }
}

/// The calls of one saver or store and of its clones.
#[derive(Debug)]
pub struct Calls {
    backend: &'static str,
    metrics: CallMetrics,
    closed: AtomicBool,
    /// Running calls hold a shared lock, `close` waits for the exclusive lock.
    under_way: RwLock<()>,
}

impl Calls {
    /// For a saver. Takes the backend's name for errors, and the database system for OpenTelemetry's `db.system.name`.
    pub const fn saver(backend: &'static str, system: &'static str) -> Self {
        Self::new(Component::Saver, backend, system)
    }

    /// For a store, otherwise as [`saver`](Self::saver).
    pub const fn store(backend: &'static str, system: &'static str) -> Self {
        Self::new(Component::Store, backend, system)
    }

    const fn new(component: Component, backend: &'static str, system: &'static str) -> Self {
        let metrics = CallMetrics::new(component, system);
        Self { backend, metrics, closed: AtomicBool::new(false), under_way: RwLock::new(()) }
    }

    /// Runs a call in its span, measures it, and adds backend and operation to its error, and what it was to store.
    ///
    /// # Errors
    /// Any error from the call, and [`Unavailable`](ErrorKind::Unavailable) after [`close`](Self::close).
    ///
    /// # Cancellation
    /// Drops the call, which then appears in no metric.
    pub async fn run<T>(
        &self,
        operation: Operation<'_>,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let observed = self.observe(operation);
        let result = match self.under_way.try_read() {
            Some(_guard) if !self.is_closed() => {
                named(observed.name.as_str(), call).instrument(observed.span.clone()).await
            }
            _ => Err(Error::new(ErrorKind::Unavailable, "it is closed; make a new one")),
        };
        observed.end(result)
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
        let observed = self.observe(Operation::close());
        let close = async {
            let _guard = self.under_way.write().await;
            release.await
        };
        let result = close.instrument(observed.span.clone()).await;
        observed.end(result)
    }

    /// The system's name in metrics; see [`telemetry`](super::telemetry).
    pub fn system(&self) -> &'static str {
        self.metrics.system
    }

    fn observe<'a>(&'a self, operation: Operation<'a>) -> Observed<'a> {
        let Operation { name, span, context } = operation;
        // A disabled span would still look the names up.
        if !span.is_disabled() {
            span.record("db.system.name", self.metrics.system);
            span.record("checkpoint.component", self.metrics.component.as_str());
        }
        Observed { calls: self, name, span, context, begun: Instant::now() }
    }
}

/// A call under way.
struct Observed<'a> {
    calls: &'a Calls,
    name: Name,
    span: Span,
    context: [(&'static str, &'a str); 4],
    begun: Instant,
}

impl Observed<'_> {
    /// Counts the call, and adds what its error lacks.
    fn end<T>(self, result: Result<T>) -> Result<T> {
        let Self { calls, name, span, context, begun } = self;
        let error = result.as_ref().err().map(Error::kind);
        calls.metrics.count(name, begun.elapsed(), error);
        if let Some(kind) = error {
            span.record("error.type", kind.as_str());
            span.record("otel.status_code", "ERROR");
        }
        result.map_err(|error| {
            let known = context.into_iter().filter(|(_, value)| !value.is_empty());
            let error = known.fold(error, |error, (key, value)| error.with_missing(key, value));
            error.at(calls.backend, name.as_str())
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::{join, pending, poll_immediate, ready};

    use super::*;

    fn calls() -> Calls {
        Calls::saver("test", "other_sql")
    }

    #[tokio::test]
    async fn errors_name_backend_and_operation() {
        let failed = calls().run(Operation::setup(), ready(Err::<(), _>(Error::codec("bad")))).await;
        assert_eq!(failed.unwrap_err().to_string(), "test: setup: bad");
    }

    #[tokio::test]
    async fn errors_name_what_was_to_be_stored() {
        let config = CheckpointConfig::new("t").with_checkpoint_id("c");
        let bad = Error::codec("bad").with("channel", "ch").with("task_id", "known");
        let error =
            calls().run(Operation::put_writes(&config, "task"), ready(Err::<(), _>(bad))).await.unwrap_err();
        let expected =
            r#"test: put_writes: bad (channel="ch", task_id="known", thread_id="t", checkpoint_id="c")"#;
        assert_eq!(error.to_string(), expected);
    }

    #[tokio::test]
    async fn close_waits_for_calls_and_refuses_later_ones() {
        let calls = calls();
        let (send, receive) = futures_channel::oneshot::channel::<()>();
        let mut call = Box::pin(
            calls.run(Operation::setup(), async { receive.await.map_err(|_| Error::codec("dropped")) }),
        );
        assert!(poll_immediate(&mut call).await.is_none());
        let mut close = Box::pin(calls.close(ready(Ok(()))));
        assert!(poll_immediate(&mut close).await.is_none(), "a call is still running");
        let late = calls.run(Operation::setup(), pending::<Result<()>>()).await.unwrap_err();
        assert_eq!((late.kind(), late.is_retryable()), (ErrorKind::Unavailable, false));
        send.send(()).unwrap();
        let (called, closed) = join(call, close).await;
        called.unwrap();
        closed.unwrap();
        calls.close(ready(Ok(()))).await.unwrap();
        calls.run(Operation::setup(), pending::<Result<()>>()).await.unwrap_err();
    }

    #[tokio::test]
    async fn dropped_calls_do_not_block_close() {
        let calls = calls();
        let mut call = Box::pin(calls.run(Operation::setup(), pending::<Result<()>>()));
        assert!(poll_immediate(&mut call).await.is_none());
        drop(call);
        let mut close = Box::pin(calls.close(pending()));
        assert!(poll_immediate(&mut close).await.is_none());
        drop(close);
        calls.run(Operation::setup(), ready(Ok(()))).await.unwrap_err();
        calls.close(ready(Ok(()))).await.unwrap();
    }
}
