//! Converts the driver's errors to ours, in one table.

use checkpoint_core::{Error, ErrorKind, Result};
use rusqlite::ffi::{self, ErrorCode};

/// The backend's name in errors and spans.
pub(crate) const BACKEND: &str = "sqlite";

/// The message for missing tables.
pub(crate) const RUN_SETUP: &str = "the file does not have the tables; run setup()";

/// The message for a write to a read-only file.
pub(crate) const READ_ONLY: &str =
    "the file is read-only for this process; open it where it can be written to";

/// Converts an error of the driver, with the remedy and whether a retry may succeed, and keeps it as the source.
///
/// For programs that use SQLite themselves beside the saver, and want the same errors.
pub fn convert(error: rusqlite::Error) -> Error {
    let (kind, message, retryable) = describe(&error);
    Error::new(kind, message).retryable(retryable).with_source(error)
}

/// The table: kind, message with the remedy, and whether a retry may succeed.
fn describe(error: &rusqlite::Error) -> (ErrorKind, &'static str, bool) {
    use ErrorKind::{Backend, Codec, Conflict, InvalidArgument, InvalidConfig, Schema, Timeout, Unavailable};
    let (code, extended, text) = match error {
        rusqlite::Error::SqliteFailure(code, text) => {
            (code.code, code.extended_code, text.as_deref().unwrap_or_default())
        }
        rusqlite::Error::SqlInputError { error, msg, .. } => (error.code, error.extended_code, msg.as_str()),
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::Utf8Error(..)
        | rusqlite::Error::InvalidColumnType(..) => {
            return (Codec, "a stored row does not have LangGraph's shape", false);
        }
        rusqlite::Error::NulError(_) | rusqlite::Error::InvalidPath(_) => {
            return (InvalidConfig, "SQLite cannot use this path", false);
        }
        _ => return (Backend, "SQLite refused the call", false),
    };
    match code {
        _ if extended == ffi::SQLITE_READONLY_DBMOVED => {
            (Unavailable, "the file was moved or deleted while it was in use", true)
        }
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed => {
            (Timeout, "another connection held its lock on the file for too long; try again", true)
        }
        ErrorCode::SchemaChanged => (Conflict, "the tables were changed meanwhile; try again", true),
        ErrorCode::ReadOnly => (ErrorKind::Unsupported, READ_ONLY, false),
        ErrorCode::CannotOpen | ErrorCode::PermissionDenied => (
            Unavailable,
            "SQLite cannot open the file; look at the permissions of it and its directory",
            false,
        ),
        ErrorCode::NotADatabase => {
            (Backend, "the file is not a SQLite database, or it is damaged; choose another path", false)
        }
        ErrorCode::DatabaseCorrupt => {
            (Backend, "the database file is damaged; restore it from a backup", false)
        }
        ErrorCode::DiskFull => (Backend, "the disk is full; nothing was written", false),
        ErrorCode::SystemIoFailure => (Backend, "the system could not read or write the file", false),
        ErrorCode::OutOfMemory => (Backend, "SQLite ran out of memory", false),
        ErrorCode::TooBig => (InvalidArgument, "SQLite holds at most 1,000,000,000 bytes in one row", false),
        ErrorCode::Unknown if names_missing_object(text) => (Schema, RUN_SETUP, false),
        _ => (Backend, "SQLite refused the call", false),
    }
}

/// SQLite has one code for every error in a statement. Ours are constant, so only the tables can be wrong.
fn names_missing_object(text: &str) -> bool {
    ["no such table", "no such column", "has no column named"].iter().any(|part| text.contains(part))
}

/// Whether an attempt may be retried immediately, because it lost a race that is over.
pub(crate) fn is_passing(error: &rusqlite::Error) -> bool {
    matches!(error, rusqlite::Error::SqliteFailure(code, _)
        if matches!(code.extended_code, ffi::SQLITE_BUSY_SNAPSHOT | ffi::SQLITE_BUSY_RECOVERY))
}

/// Whether another connection held a lock.
pub(crate) fn is_busy(error: &Error) -> bool {
    error.kind() == ErrorKind::Timeout
}

/// Whether a connection should not be used again after this error.
pub(crate) fn spoils_connection(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Backend | ErrorKind::Unavailable | ErrorKind::Schema)
}

/// Converts results of the driver.
pub(crate) trait OrConvert<T> {
    /// Converts the driver's error.
    fn or_convert(self) -> Result<T>;
}

impl<T> OrConvert<T> for rusqlite::Result<T> {
    fn or_convert(self) -> Result<T> {
        self.map_err(convert)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    fn failure(code: i32, text: &str) -> rusqlite::Error {
        rusqlite::Error::SqliteFailure(ffi::Error::new(code), Some(text.to_owned()))
    }

    #[test]
    fn every_code_has_its_kind() {
        let table = [
            (ffi::SQLITE_BUSY, "", ErrorKind::Timeout, true),
            (ffi::SQLITE_BUSY_SNAPSHOT, "", ErrorKind::Timeout, true),
            (ffi::SQLITE_LOCKED, "", ErrorKind::Timeout, true),
            (ffi::SQLITE_PROTOCOL, "", ErrorKind::Timeout, true),
            (ffi::SQLITE_SCHEMA, "", ErrorKind::Conflict, true),
            (ffi::SQLITE_READONLY, "", ErrorKind::Unsupported, false),
            (ffi::SQLITE_READONLY_DIRECTORY, "", ErrorKind::Unsupported, false),
            (ffi::SQLITE_READONLY_DBMOVED, "", ErrorKind::Unavailable, true),
            (ffi::SQLITE_CANTOPEN, "", ErrorKind::Unavailable, false),
            (ffi::SQLITE_PERM, "", ErrorKind::Unavailable, false),
            (ffi::SQLITE_NOTADB, "", ErrorKind::Backend, false),
            (ffi::SQLITE_CORRUPT, "", ErrorKind::Backend, false),
            (ffi::SQLITE_FULL, "", ErrorKind::Backend, false),
            (ffi::SQLITE_IOERR_WRITE, "", ErrorKind::Backend, false),
            (ffi::SQLITE_NOMEM, "", ErrorKind::Backend, false),
            (ffi::SQLITE_CONSTRAINT_NOTNULL, "", ErrorKind::Backend, false),
            (ffi::SQLITE_TOOBIG, "", ErrorKind::InvalidArgument, false),
            (ffi::SQLITE_ERROR, "no such table: checkpoints", ErrorKind::Schema, false),
            (ffi::SQLITE_ERROR, "no such column: task_path", ErrorKind::Schema, false),
            (ffi::SQLITE_ERROR, "table writes has no column named task_path", ErrorKind::Schema, false),
            (ffi::SQLITE_ERROR, "something else", ErrorKind::Backend, false),
        ];
        for (code, text, kind, retryable) in table {
            let error = convert(failure(code, text));
            assert_eq!((error.kind(), error.is_retryable()), (kind, retryable), "code {code} {text}");
            assert!(error.source().is_some(), "the driver's words are kept");
        }
        let odd = convert(rusqlite::Error::InvalidColumnType(0, "idx".into(), rusqlite::types::Type::Blob));
        assert_eq!(odd.kind(), ErrorKind::Codec);
    }

    #[test]
    fn only_lost_races_are_repeated_at_once() {
        assert!(is_passing(&failure(ffi::SQLITE_BUSY_SNAPSHOT, "")));
        assert!(is_passing(&failure(ffi::SQLITE_BUSY_RECOVERY, "")));
        assert!(!is_passing(&failure(ffi::SQLITE_BUSY, "")));
        assert!(!is_passing(&rusqlite::Error::QueryReturnedNoRows));
    }
}
