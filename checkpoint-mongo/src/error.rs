//! Converts errors of the server and the driver to ours, in one table.

use std::error::Error as StdError;
use std::fmt;

use checkpoint_core::{Error, ErrorKind};
use mongodb::error::{Error as DriverError, ErrorKind as Driver, WriteFailure};

/// The backend's name in errors.
pub(crate) const BACKEND: &str = "mongo";

/// The system's name in spans and metrics.
pub(crate) const SYSTEM: &str = "mongodb";

const LOST: &str = "the connection to the server was lost";
const UNREACHABLE: &str = "the server cannot be reached; check host and port, and that it runs";
const NO_PRIMARY: &str = "the replica set has no primary at the moment; try again";
const BAD_LOGIN: &str = "the server refused the login; check user, password and authSource";
const NO_PERMISSION: &str =
    "the user lacks a permission; grant it the role readWrite on the database of the checkpoints";
const TOO_LARGE: &str = "the server refused the size of a document or of the call";
const TOO_OLD: &str =
    "the server's version is not supported; MongoDB 4.4, or a server that is compatible with it, is needed";
const SLOW: &str = "the server did not answer in time";
const CONFLICT: &str = "other writers changed the same documents; try again";

/// Kind, message with the remedy, and whether a retry may succeed.
pub(crate) type Description = (ErrorKind, &'static str, bool);

const NOT_UNDERSTOOD: &str =
    "the server's response was not understood; check that it speaks MongoDB's protocol";

/// Whether an error says that a response was not one of the protocol.
pub(crate) fn is_not_understood(error: &Error) -> bool {
    error.message() == NOT_UNDERSTOOD
}

/// The code of an insert whose `_id` is taken.
pub(crate) const DUPLICATE: i32 = 11000;

/// Whether the server refused the login.
pub fn is_refused_connection(error: &Error) -> bool {
    error.kind() == ErrorKind::InvalidConfig && error.message().contains(BAD_LOGIN)
}

/// The error of a call that took too long.
pub(crate) fn timeout() -> Error {
    Error::new(ErrorKind::Timeout, SLOW).retryable(true)
}

/// Converts an error of the driver. The source is kept without documents, which messages of the server may quote.
#[expect(clippy::needless_pass_by_value, reason = "it is the error to convert")]
pub(crate) fn convert(error: DriverError) -> Error {
    let (kind, message, retryable) = describe(&error);
    Error::new(kind, message).retryable(retryable).with_source(Refusal::of(&error))
}

/// The server's code in an error, if it is one of the server.
pub(crate) fn code(error: &DriverError) -> Option<i32> {
    match error.kind.as_ref() {
        Driver::Command(command) => Some(command.code),
        Driver::Write(WriteFailure::WriteError(write)) => Some(write.code),
        Driver::Write(WriteFailure::WriteConcernError(concern)) => Some(concern.code),
        Driver::InsertMany(many) => {
            let first = many.write_errors.as_ref().and_then(|errors| errors.first()).map(|error| error.code);
            first.or_else(|| many.write_concern_error.as_ref().map(|error| error.code))
        }
        _ => None,
    }
}

/// The error of a command of which the server has refused a part.
pub(crate) fn refused(code: i32, name: &str) -> Error {
    let (kind, message, retryable) = describe_code(code, |_| false);
    let source = Refusal { code: Some(code), detail: name.to_owned() };
    Error::new(kind, message).retryable(retryable).with_source(source)
}

fn describe(error: &DriverError) -> Description {
    use ErrorKind::{Backend, InvalidConfig, Timeout, Unavailable, Unsupported};
    if let Some(code) = code(error) {
        return describe_code(code, |label| error.contains_label(label));
    }
    match error.kind.as_ref() {
        Driver::Authentication { .. } => (InvalidConfig, BAD_LOGIN, false),
        Driver::InvalidArgument { .. } => (InvalidConfig, "the driver refused an option of the URL", false),
        Driver::InvalidTlsConfig { .. } => {
            (InvalidConfig, "TLS cannot be used; check the files that the URL names", false)
        }
        Driver::DnsResolve { .. } => {
            (Unavailable, "the host of the URL cannot be resolved; check its name", true)
        }
        Driver::Io(_) | Driver::ConnectionPoolCleared { .. } => (Unavailable, LOST, true),
        Driver::ServerSelection { message, .. } => {
            // The driver has looked for it for the whole of its timeout.
            if names_login(message) {
                (InvalidConfig, BAD_LOGIN, false)
            } else if message.contains("wire version") {
                (Unsupported, TOO_OLD, false)
            } else {
                (Unavailable, UNREACHABLE, false)
            }
        }
        Driver::IncompatibleServer { .. } | Driver::SessionsNotSupported => (Unsupported, TOO_OLD, false),
        Driver::Shutdown => (Unavailable, "the saver was closed", false),
        Driver::InvalidResponse { .. } | Driver::Bson(_) => (Backend, NOT_UNDERSTOOD, false),
        _ if error.contains_label("RetryableWriteError") => (Timeout, SLOW, true),
        _ => (Backend, "the driver refused the call", false),
    }
}

fn names_login(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    message.contains("authenticat") || message.contains("scram")
}

/// The table of the server's codes.
fn describe_code(code: i32, has_label: impl Fn(&str) -> bool) -> Description {
    use ErrorKind::{Backend, Conflict, InvalidArgument, InvalidConfig, Timeout, Unavailable, Unsupported};
    match code {
        18 | 11 | 334 => (InvalidConfig, BAD_LOGIN, false),
        13 | 8000 => (InvalidConfig, NO_PERMISSION, false),
        10334 | 17280 | 17419 | 17420 => (InvalidArgument, TOO_LARGE, false),
        73 => (InvalidConfig, "the server refuses the name of the database or of the collection", false),
        // Network errors, and a primary that steps down or comes back.
        6 | 7 | 89 | 91 | 189 | 262 | 9001 | 10107 | 11600 | 11602 | 13435 | 13436 | 63 | 150 | 13388
        | 234 | 133 => (Unavailable, NO_PRIMARY, true),
        50 | 64 => (Timeout, SLOW, true),
        DUPLICATE | 112 => (Conflict, CONFLICT, true),
        59 | 115 | 238 => (Unsupported, "the server does not know a command that the saver needs", false),
        14031 => (Backend, "the server's disk is full", false),
        _ if has_label("RetryableWriteError") || has_label("TransientTransactionError") => {
            (Unavailable, NO_PRIMARY, true)
        }
        _ => (Backend, "the server rejected the call", false),
    }
}

/// What an error of the driver says, without documents and ids.
struct Refusal {
    code: Option<i32>,
    detail: String,
}

impl Refusal {
    fn of(error: &DriverError) -> Self {
        const LONGEST: usize = 300;
        let detail = match error.kind.as_ref() {
            Driver::Command(command) => format!("{}: {}", command.code_name, command.message),
            Driver::Io(io) => io.to_string(),
            Driver::ServerSelection { message, .. } | Driver::Authentication { message, .. } => {
                message.clone()
            }
            // They quote keys, and with them ids.
            Driver::InsertMany(_) | Driver::Write(_) => "a write failed".to_owned(),
            kind => kind.to_string(),
        };
        let detail = match detail.find("dup key") {
            Some(at) => detail.get(..at).unwrap_or_default().to_owned(),
            None => detail,
        };
        Self { code: code(error), detail: detail.chars().take(LONGEST).collect() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Some(code) => write!(f, "{} (code {code})", self.detail),
            None => f.write_str(&self.detail),
        }
    }
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Refusal({self})")
    }
}

impl StdError for Refusal {}
