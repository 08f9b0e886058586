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
//! | `thread_id`, `checkpoint_ns`, `checkpoint_id`, `parent_checkpoint_id`, `task_id`, `source_thread_id`, `target_thread_id`, `before`, `after`, `limit` | the arguments of a saver's call that has them; `runs` and `threads` count ids |
//! | `namespace`, `key`, `limit` | the arguments of a store's call with one operation |
//! | `db.operation.batch.size` | the number of operations of a store's `batch` with several or none |
//! | `otel.status_code`, `error.type` | `ERROR` and the [`ErrorKind`] of a call that failed, such as `unavailable` |
//!
//! No field has a stored value, a key or a password. A retry is an event at level WARN in the span of its call.
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

use std::time::Duration;

use metrics::{Label, Unit, counter, describe_counter, describe_histogram, histogram};

use crate::ErrorKind;

/// How long a call took, retries included.
pub const OPERATION_DURATION: &str = "db.client.operation.duration";
/// How many calls have ended.
pub const CALLS: &str = "checkpoint.calls";
/// How many of them have failed.
pub const ERRORS: &str = "checkpoint.errors";
/// How many attempts were made again after a transient error.
pub const RETRIES: &str = "checkpoint.retries";
/// How long a call waited for a connection of the pool.
pub const POOL_WAIT: &str = "db.client.connection.wait_time";
/// How many bytes of checkpoints, items, values and metadata were sent to the database.
pub const BYTES_WRITTEN: &str = "checkpoint.bytes.written";
/// How many bytes of them were read from it; on PostgreSQL of whole rows.
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

/// Counts a call that has ended.
pub(super) fn call(
    component: Component,
    system: &'static str,
    operation: &'static str,
    duration: Duration,
    error: Option<ErrorKind>,
) {
    let mut labels = vec![
        Label::from_static_parts(COMPONENT, component.as_str()),
        Label::from_static_parts(SYSTEM, system),
        Label::from_static_parts(OPERATION, operation),
    ];
    counter!(CALLS, labels.clone()).increment(1);
    if let Some(kind) = error {
        labels.push(Label::from_static_parts(ERROR, kind.as_str()));
        counter!(ERRORS, labels.clone()).increment(1);
    }
    histogram!(OPERATION_DURATION, labels).record(duration);
}

/// Counts an attempt that is made again.
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
