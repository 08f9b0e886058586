//! How a command ends other than well.

use std::error::Error as _;
use std::io;

use checkpoint_core::{Error, ErrorKind};

/// What the exit code says.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(crate) enum Exit {
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    Schema = 4,
    TryAgain = 5,
    Crypto = 6,
}

/// Why a command ends.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nobody reads the output any more, as under `head`: no failure to speak of.
    Closed,
    /// An exit code and what to say.
    Said(Exit, String),
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self::Said(exit, message.into())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Said(Exit::Failed, error.to_string()),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exit = match error.kind() {
            ErrorKind::InvalidArgument | ErrorKind::InvalidConfig => Exit::Usage,
            ErrorKind::Schema => Exit::Schema,
            ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Conflict => Exit::TryAgain,
            ErrorKind::Crypto => Exit::Crypto,
            _ => Exit::Failed,
        };
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        Self::Said(exit, message)
    }
}
