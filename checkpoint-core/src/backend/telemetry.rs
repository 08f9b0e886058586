//! The names of the metrics, which go through the [`metrics`] facade: install any recorder to see them.
//!
//! Spans and metrics follow OpenTelemetry's semantic conventions for database clients.
//!
//! | metric | kind | labels |
//! |---|---|---|
//! | [`OPERATION_DURATION`] | histogram, seconds | `db.system.name`, `db.operation.name`, and `error.type` of failed calls |
//! | [`CALLS`] | counter | `db.system.name`, `db.operation.name` |
//! | [`ERRORS`] | counter | `db.system.name`, `db.operation.name`, `error.type` |
//! | [`RETRIES`] | counter | `db.system.name`, `error.type` |
//! | [`POOL_WAIT`] | histogram, seconds | `db.system.name` |
//! | [`BYTES_WRITTEN`], [`BYTES_READ`] | counter, bytes | `db.system.name` |
//!
//! `error.type` is the [`ErrorKind`], such as `unavailable`.

use std::time::Duration;

use metrics::{counter, histogram};

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
/// How many bytes of values, documents and metadata were sent to the database.
pub const BYTES_WRITTEN: &str = "checkpoint.bytes.written";
/// How many bytes of them were read from it.
pub const BYTES_READ: &str = "checkpoint.bytes.read";

const SYSTEM: &str = "db.system.name";
const OPERATION: &str = "db.operation.name";
const ERROR: &str = "error.type";

/// Counts a call that has ended.
pub(super) fn call(
    system: &'static str,
    operation: &'static str,
    duration: Duration,
    error: Option<ErrorKind>,
) {
    counter!(CALLS, SYSTEM => system, OPERATION => operation).increment(1);
    if let Some(kind) = error {
        let kind = kind.as_str();
        counter!(ERRORS, SYSTEM => system, OPERATION => operation, ERROR => kind).increment(1);
        histogram!(OPERATION_DURATION, SYSTEM => system, OPERATION => operation, ERROR => kind)
            .record(duration);
    } else {
        histogram!(OPERATION_DURATION, SYSTEM => system, OPERATION => operation).record(duration);
    }
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
    counter!(BYTES_WRITTEN, SYSTEM => system).increment(bytes as u64);
}

/// Counts bytes that were read from the database.
pub fn bytes_read(system: &'static str, bytes: usize) {
    counter!(BYTES_READ, SYSTEM => system).increment(bytes as u64);
}
