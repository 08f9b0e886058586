//! Failures of commands: one line on standard error, and an exit code.

use std::fmt::{self, Display};
use std::io;
use std::process::ExitCode;

use checkpoint_core::{Error, ErrorKind};

use crate::output::clean;

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// The meaning of the exit codes, printed by `--help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  failure
  2  invalid usage or argument
  3  no such thread, checkpoint, namespace, channel or item
  4  the tables are missing or have another version: run `ckpt setup` or `ckpt store setup`, or update ckpt
  5  unreachable, locked or timed out: try again
  6  a value could not be decrypted: no key, the wrong key, or altered bytes
  130  interrupted";

/// The hint on how to pass keys.
pub(crate) const GIVE_KEY: &str = "pass keys by LANGGRAPH_AES_KEY, --key-file or --gcm-key";

/// Phrases in the libraries' error messages, and their equivalents on the command line.
const PHRASES: [(&str, &str); 11] = [
    ("run setup()", "run `ckpt setup`"),
    ("set pgbouncer(true)", "add pgbouncer=true to the URL"),
    ("or set scripts(false)", "or add scripts=false to the URL"),
    ("choose another key_prefix", "choose another prefix=… in the URL"),
    ("key_prefix must", "prefix in the URL must"),
    ("base_url", "--embed-url"),
    ("pass the key to api_key()", "set the key in OPENAI_API_KEY"),
    (", or pass it to api_key()", ""),
    ("do not set dimensions", "do not set --embed-shorten"),
    ("set dims to the model's", "set --embed-dims to the model's"),
    ("AnnIndex::Flat", "--ann flat"),
];

/// A line to print and the code to exit with.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    line: String,
}

impl Failure {
    fn new(code: u8, line: impl Display) -> Self {
        Self { code, line: line.to_string() }
    }

    /// A failure that is not caused by the arguments.
    pub(crate) fn failed(line: impl Display) -> Self {
        Self::new(1, line)
    }

    /// An invalid argument.
    pub(crate) fn usage(line: impl Display) -> Self {
        Self::new(2, line)
    }

    /// Something that does not exist.
    pub(crate) fn not_found(line: impl Display) -> Self {
        Self::new(3, line)
    }

    /// An encrypted value without a key.
    pub(crate) fn sealed(line: impl Display) -> Self {
        Self::new(6, line)
    }

    /// Interrupted by the user.
    pub(crate) fn interrupted(line: impl Display) -> Self {
        Self::new(130, line)
    }

    /// Prefixes the line with what was being done.
    pub(crate) fn within(mut self, what: impl Display) -> Self {
        self.line = format!("{what}: {}", self.line);
        self
    }

    /// Replaces the remedy for missing tables by that of a store.
    pub(crate) fn of_store(mut self) -> Self {
        self.line = self.line.replacen("`ckpt setup`", "`ckpt store setup`", 1);
        self
    }

    /// Prints the line and returns the exit code. A closed pipe is not a failure.
    pub(crate) fn report(self) -> ExitCode {
        if self.code == 0 {
            return ExitCode::SUCCESS;
        }
        anstream::eprintln!("ckpt: {}", clean(&self.line.replace(['\n', '\r'], " ")));
        ExitCode::from(self.code)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::InvalidArgument | ErrorKind::InvalidConfig | ErrorKind::Unsupported => 2,
            ErrorKind::Schema => 4,
            ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Conflict => 5,
            ErrorKind::Crypto => 6,
            _ => 1,
        };
        let message = error.to_string();
        let mut line = PHRASES.iter().fold(message, |line, (from, to)| line.replacen(from, to, 1));
        let mut source = std::error::Error::source(&error);
        let mut last = String::new();
        while let Some(cause) = source {
            let text = cause.to_string();
            // Some drivers repeat the message with a code before it.
            if last.is_empty() || !text.ends_with(&last) {
                line.push_str(": ");
                line.push_str(&text);
            }
            last = text;
            source = cause.source();
        }
        if error.kind() == ErrorKind::Crypto {
            line.push_str("; ");
            line.push_str(GIVE_KEY);
        }
        Self::new(code, line)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(u8::from(error.kind() != io::ErrorKind::BrokenPipe), error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        if error.is_io() { io::Error::from(error).into() } else { Self::failed(error) }
    }
}
