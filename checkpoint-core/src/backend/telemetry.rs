//! Spans and metrics: their names, and functions that count.
//!
//! # Spans
//! Every call of a saver or store makes a [`tracing`] span at level DEBUG with the name of the operation, each page of a
//! listing one of its own. The fields follow OpenTelemetry's semantic conventions for database clients:
//!
//! | field | value |
//! |---|---|
//! | `otel.kind` | `client` |
//! | `db.system.name` | `postgresql`, `sqlite`, … |
//! | `db.operation.name` | the operation, such as `get_tuple` |
//! | `checkpoint.component` | `saver` or `store` |
//! | `thread_id`, `checkpoint_ns`, `checkpoint_id`, `parent_checkpoint_id`, `task_id`, `source_thread_id`, `target_thread_id`, `before`, `after`, `limit`, `dry_run` | the arguments of a saver's call that has them; `runs` and `threads` count ids |
//! | `namespace`, `key`, `limit` | the arguments of a store's call with one operation |
//! | `db.operation.batch.size` | the number of operations of a store's `batch` with several or none |
//! | `otel.status_code`, `error.type` | `ERROR` and the [`ErrorKind`] of a call that failed, such as `unavailable` |
//!
//! No field has a stored value, a key or a password.
//!
//! # Events
//! A retry is an event at level WARN in the span of its call, whose fields say what was tried and when it is tried again:
//! `db.operation.name`, `attempt` (the number of the one that failed), `pause_ms`, `error.type` (its [`ErrorKind`]) and
//! `error.message` (without ids and without the source).
//!
//! # Metrics
//! They go through the [`metrics`] facade: install any recorder to see them, then call [`describe`] if it shows units and
//! descriptions.
//!
//! | metric | kind | labels |
//! |---|---|---|
//! | [`OPERATION_DURATION`] | histogram, seconds | `checkpoint.component`, `db.system.name`, `db.operation.name`, and `error.type` of failed calls |
//! | [`CALLS`] | counter | `checkpoint.component`, `db.system.name`, `db.operation.name` |
//! | [`ERRORS`] | counter | `checkpoint.component`, `db.system.name`, `db.operation.name`, `error.type` |
//! | [`RETRIES`] | counter | `db.system.name`, `error.type` |
//! | [`POOL_WAIT`] | histogram, seconds | `db.system.name` |
//! | [`BYTES_WRITTEN`], [`BYTES_READ`] | counter, bytes | `db.system.name` |
//!
//! In memory, no bytes are counted.

use std::sync::OnceLock;
use std::time::Duration;

use metrics::{
    Key, Label, Level, Metadata, Unit, counter, describe_counter, describe_histogram, histogram,
    with_recorder,
};

use crate::ErrorKind;

/// How long a call took, retries included.
pub const OPERATION_DURATION: &str = "db.client.operation.duration";
/// The number of finished calls.
pub const CALLS: &str = "checkpoint.calls";
/// The number of failed calls.
pub const ERRORS: &str = "checkpoint.errors";
/// The number of retries after transient errors.
pub const RETRIES: &str = "checkpoint.retries";
/// How long a call waited for a connection of the pool.
pub const POOL_WAIT: &str = "db.client.connection.wait_time";
/// The bytes of checkpoints, items, values and metadata that were sent to the database.
pub const BYTES_WRITTEN: &str = "checkpoint.bytes.written";
/// The bytes that were read from the database; on PostgreSQL those of whole rows.
pub const BYTES_READ: &str = "checkpoint.bytes.read";

const COMPONENT: &str = "checkpoint.component";
const SYSTEM: &str = "db.system.name";
const OPERATION: &str = "db.operation.name";
const ERROR: &str = "error.type";

/// What a call is of: savers and stores both have a `put`.
#[derive(Debug, Clone, Copy)]
pub(super) enum Component {
    Saver,
    Store,
}

impl Component {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Saver => "saver",
            Self::Store => "store",
        }
    }
}

/// Gives the installed recorder units and descriptions of the metrics, which some exporters show. Call it once, after a
/// recorder was installed.
pub fn describe() {
    describe_histogram!(OPERATION_DURATION, Unit::Seconds, "Duration of calls of savers and stores");
    describe_counter!(CALLS, "Calls of savers and stores that ended");
    describe_counter!(ERRORS, "Calls of savers and stores that failed");
    describe_counter!(RETRIES, "Attempts that were repeated after a transient error");
    describe_histogram!(POOL_WAIT, Unit::Seconds, "Time to obtain a connection from the pool");
    describe_counter!(BYTES_WRITTEN, Unit::Bytes, "Bytes sent to the database");
    describe_counter!(BYTES_READ, Unit::Bytes, "Bytes read from the database");
}

/// The name of an operation.
#[derive(Debug, Clone, Copy)]
pub(super) enum Name {
    Setup,
    Ping,
    CheckSchema,
    GetTuple,
    List,
    ListThreads,
    ListThreadIds,
    Put,
    PutWrites,
    DeleteThread,
    GetDeltaChannelHistory,
    DeleteForRuns,
    CopyThread,
    Prune,
    Retain,
    Usage,
    AcquireLease,
    RenewLease,
    ReleaseLease,
    Rekey,
    Get,
    Search,
    Delete,
    ListNamespaces,
    Batch,
    PutIf,
    SweepTtl,
    Close,
}

impl Name {
    const COUNT: usize = 28;

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Setup => "setup",
            Self::Ping => "ping",
            Self::CheckSchema => "check_schema",
            Self::GetTuple => "get_tuple",
            Self::List => "list",
            Self::ListThreads => "list_threads",
            Self::ListThreadIds => "list_thread_ids",
            Self::Put => "put",
            Self::PutWrites => "put_writes",
            Self::DeleteThread => "delete_thread",
            Self::GetDeltaChannelHistory => "get_delta_channel_history",
            Self::DeleteForRuns => "delete_for_runs",
            Self::CopyThread => "copy_thread",
            Self::Prune => "prune",
            Self::Retain => "retain",
            Self::Usage => "usage",
            Self::AcquireLease => "acquire_lease",
            Self::RenewLease => "renew_lease",
            Self::ReleaseLease => "release_lease",
            Self::Rekey => "rekey",
            Self::Get => "get",
            Self::Search => "search",
            Self::Delete => "delete",
            Self::ListNamespaces => "list_namespaces",
            Self::Batch => "batch",
            Self::PutIf => "put_if",
            Self::SweepTtl => "sweep_ttl",
            Self::Close => "close",
        }
    }
}

/// Counts the calls of a saver or store.
#[derive(Debug)]
pub(super) struct CallMetrics {
    pub(super) component: Component,
    pub(super) system: &'static str,
    /// By [`Name`].
    keys: [OnceLock<Keys>; Name::COUNT],
}

/// The keys of the metrics of one operation, made once: counting a call that succeeded allocates nothing.
#[derive(Debug)]
struct Keys {
    calls: Key,
    duration: Key,
}

impl CallMetrics {
    pub(super) const fn new(component: Component, system: &'static str) -> Self {
        Self { component, system, keys: [const { OnceLock::new() }; Name::COUNT] }
    }

    fn labels(&self, name: Name) -> Vec<Label> {
        vec![
            Label::from_static_parts(COMPONENT, self.component.as_str()),
            Label::from_static_parts(SYSTEM, self.system),
            Label::from_static_parts(OPERATION, name.as_str()),
        ]
    }

    /// Counts a call that has ended.
    pub(super) fn count(&self, name: Name, duration: Duration, error: Option<ErrorKind>) {
        static METADATA: Metadata<'_> = Metadata::new(module_path!(), Level::INFO, Some(module_path!()));
        let keys = self.keys.get(name as usize).map(|keys| {
            keys.get_or_init(|| Keys {
                calls: Key::from_parts(CALLS, self.labels(name)),
                duration: Key::from_parts(OPERATION_DURATION, self.labels(name)),
            })
        });
        let Some(keys) = keys else { return };
        with_recorder(|recorder| {
            recorder.register_counter(&keys.calls, &METADATA).increment(1);
            if error.is_none() {
                recorder.register_histogram(&keys.duration, &METADATA).record(duration);
            }
        });
        if let Some(kind) = error {
            let mut labels = self.labels(name);
            labels.push(Label::from_static_parts(ERROR, kind.as_str()));
            counter!(ERRORS, labels.clone()).increment(1);
            histogram!(OPERATION_DURATION, labels).record(duration);
        }
    }
}

/// Counts a retry.
pub fn retry(system: &'static str, error: ErrorKind) {
    counter!(RETRIES, SYSTEM => system, ERROR => error.as_str()).increment(1);
}

/// Records how long a call waited for a connection.
pub fn pool_wait(system: &'static str, waited: Duration) {
    histogram!(POOL_WAIT, SYSTEM => system).record(waited);
}

/// Counts bytes that were sent to the database.
pub fn bytes_written(system: &'static str, bytes: usize) {
    if bytes > 0 {
        counter!(BYTES_WRITTEN, SYSTEM => system).increment(bytes as u64);
    }
}

/// Counts bytes that were read from the database.
pub fn bytes_read(system: &'static str, bytes: usize) {
    if bytes > 0 {
        counter!(BYTES_READ, SYSTEM => system).increment(bytes as u64);
    }
}
