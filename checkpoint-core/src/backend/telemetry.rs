//! The names of the metrics, which are emitted through the [`metrics`] facade: install any recorder to see them.
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
/// The number of finished calls.
pub const CALLS: &str = "checkpoint.calls";
/// The number of failed calls.
pub const ERRORS: &str = "checkpoint.errors";
/// The number of retries after transient errors.
pub const RETRIES: &str = "checkpoint.retries";
/// How long a call waited for a connection of the pool.
pub const POOL_WAIT: &str = "db.client.connection.wait_time";
/// The bytes of values, documents and metadata that were sent to the database.
pub const BYTES_WRITTEN: &str = "checkpoint.bytes.written";
/// The bytes of values, documents and metadata that were read from the database.
pub const BYTES_READ: &str = "checkpoint.bytes.read";

const SYSTEM: &str = "db.system.name";
const OPERATION: &str = "db.operation.name";
const ERROR: &str = "error.type";

/// Counts a finished call.
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
    counter!(BYTES_WRITTEN, SYSTEM => system).increment(bytes as u64);
}

/// Counts bytes that were read from the database.
pub fn bytes_read(system: &'static str, bytes: usize) {
    counter!(BYTES_READ, SYSTEM => system).increment(bytes as u64);
}
