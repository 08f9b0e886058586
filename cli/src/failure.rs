//! How a command fails: one line on standard error, and an exit code that says what to do.

use std::fmt::{self, Display};
use std::io;
use std::process::ExitCode;

use checkpoint_core::{Error, ErrorKind};

use crate::output::clean;

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// What the exit codes mean; it stands in `--help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed
  2  wrong usage or argument
  3  no such thread, checkpoint, namespace, channel or item
  4  the tables are missing or of another version: run `ckpt setup` or `ckpt store setup`, or update ckpt
  5  unreachable, locked or too slow: try again
  6  a value could not be opened: no key, the wrong key, or altered bytes
  130  interrupted";

/// How a key is given.
pub(crate) const GIVE_KEY: &str = "keys are given by LANGGRAPH_AES_KEY, --key-file or --gcm-key";

/// The libraries speak to programs: what they say, and what it is on the command line.
const WORDS: [(&str, &str); 8] = [
    ("run setup()", "run `ckpt setup`"),
    ("say pgbouncer(true)", "add pgbouncer=true to the URL"),
    ("base_url", "--embed-url"),
    ("; a key is given by api_key()", ", and no key, which is in OPENAI_API_KEY"),
    (", or give it by api_key()", ""),
    ("leave dimensions away", "leave --embed-shorten away"),
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

    /// Something went wrong that no argument would mend.
    pub(crate) fn failed(line: impl Display) -> Self {
        Self::new(1, line)
    }

    /// An argument is wrong.
    pub(crate) fn usage(line: impl Display) -> Self {
        Self::new(2, line)
    }

    /// What was asked for is not there.
    pub(crate) fn not_found(line: impl Display) -> Self {
        Self::new(3, line)
    }

    /// A value is encrypted, and there is no key.
    pub(crate) fn sealed(line: impl Display) -> Self {
        Self::new(6, line)
    }

    /// The user had enough.
    pub(crate) fn interrupted(line: impl Display) -> Self {
        Self::new(130, line)
    }

    /// Says before the line what was being done.
    pub(crate) fn within(mut self, what: impl Display) -> Self {
        self.line = format!("{what}: {}", self.line);
        self
    }

    /// Says what mends missing tables where a store was asked.
    pub(crate) fn of_store(mut self) -> Self {
        self.line = self.line.replacen("`ckpt setup`", "`ckpt store setup`", 1);
        self
    }

    /// Prints the line. The reader of a pipe who has seen enough is no failure.
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
        let said = error.to_string();
        let mut line = WORDS.iter().fold(said, |line, (said, meant)| line.replacen(said, meant, 1));
        let mut source = std::error::Error::source(&error);
        let mut last = String::new();
        while let Some(cause) = source {
            let text = cause.to_string();
            // Some drivers say the same again with a number before it.
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
