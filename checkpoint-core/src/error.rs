//! One error type for the whole workspace.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// The result of every fallible call in this workspace.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, by which a caller can decide what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is invalid or cannot be stored. Nothing was sent.
    InvalidArgument,
    /// The configuration of a saver, store or cipher is invalid. Nothing was opened.
    InvalidConfig,
    /// The tables are missing, too old or newer than this program.
    Schema,
    /// The backend does not support this operation; see its capabilities.
    Unsupported,
    /// Bytes could not be encoded or decoded.
    Codec,
    /// A value could not be encrypted or decrypted: no key, wrong key, or altered bytes.
    Crypto,
    /// The database cannot be reached.
    Unavailable,
    /// The database did not answer, or did not grant a lock, in time.
    Timeout,
    /// The call conflicted with another writer; it changed nothing and may be retried.
    Conflict,
    /// The database rejected the call for another reason.
    Backend,
}

impl ErrorKind {
    /// The kind's name in lower case, such as `invalid argument`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid argument",
            Self::InvalidConfig => "invalid configuration",
            Self::Schema => "schema",
            Self::Unsupported => "unsupported",
            Self::Codec => "codec",
            Self::Crypto => "crypto",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Conflict => "conflict",
            Self::Backend => "backend",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error of every call in this workspace, with a kind, a message and an optional source.
///
/// `Display` is one line that says what to do. It does not repeat the source and never contains stored values or
/// secrets. The type has the size of a pointer.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: Cow<'static, str>,
    backend: Option<&'static str>,
    operation: Option<&'static str>,
    retryable: bool,
    context: Vec<(&'static str, String)>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Creates an error with a message that says what is wrong and what to do.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            backend: None,
            operation: None,
            retryable: matches!(kind, ErrorKind::Conflict),
            context: Vec::new(),
            source: None,
        }))
    }

    /// Shorthand for [`ErrorKind::InvalidArgument`].
    pub fn invalid_argument(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    /// Shorthand for [`ErrorKind::InvalidConfig`].
    pub fn invalid_config(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidConfig, message)
    }

    /// Shorthand for [`ErrorKind::Codec`].
    pub fn codec(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Codec, message)
    }

    /// Shorthand for [`ErrorKind::Crypto`].
    pub fn crypto(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Crypto, message)
    }

    /// Shorthand for [`ErrorKind::Unsupported`] with the operation that a backend lacks.
    pub fn unsupported(backend: &'static str, operation: &'static str) -> Self {
        Self::new(
            ErrorKind::Unsupported,
            "this backend does not support the operation; see its capabilities()",
        )
        .at(backend, operation)
    }

    /// Sets the backend and the operation, unless a deeper layer has set them already.
    #[must_use]
    pub fn at(mut self, backend: &'static str, operation: &'static str) -> Self {
        self.0.backend.get_or_insert(backend);
        self.0.operation.get_or_insert(operation);
        self
    }

    /// Adds context that helps to find the row: an id or a count, never a stored value or a secret.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl fmt::Display) -> Self {
        self.0.context.push((key, shorten(value.to_string())));
        self
    }

    /// Adds context, unless a deeper layer has set this key already.
    #[must_use]
    pub(crate) fn with_missing(self, key: &'static str, value: impl fmt::Display) -> Self {
        if self.0.context.iter().any(|(known, _)| *known == key) { self } else { self.with(key, value) }
    }

    /// Sets the error that caused this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Copies an error for one more caller of what failed; the copies share the source.
    #[must_use]
    pub fn share(error: &Arc<Self>) -> Self {
        let inner = &*error.0;
        let source = inner.source.as_ref().map(|_| Box::new(SharedSource(Arc::clone(error))) as _);
        Self(Box::new(Inner {
            message: inner.message.clone(),
            context: inner.context.clone(),
            source,
            ..*inner
        }))
    }

    /// Sets whether a retry of the same call may succeed.
    #[must_use]
    pub fn retryable(mut self, retryable: bool) -> Self {
        self.0.retryable = retryable;
        self
    }

    /// The source, if it has this type. It also finds that of an error which several callers [share](Self::share).
    pub fn source_as<T: StdError + 'static>(&self) -> Option<&T> {
        let source = self.0.source.as_deref()?;
        match source.downcast_ref::<SharedSource>() {
            Some(SharedSource(error)) => error.source_as(),
            None => source.downcast_ref(),
        }
    }

    /// The kind to branch on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether a retry of the same call may succeed.
    pub fn is_retryable(&self) -> bool {
        self.0.retryable
    }

    /// The message alone, without backend, operation and context.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The backend that failed, such as `sqlite`.
    pub fn backend(&self) -> Option<&'static str> {
        self.0.backend
    }

    /// The operation that failed, such as `put`.
    pub fn operation(&self) -> Option<&'static str> {
        self.0.operation
    }
}

/// The source of an error that several callers share.
struct SharedSource(Arc<Error>);

impl fmt::Display for SharedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.source.as_ref().map_or(Ok(()), |source| source.fmt(f))
    }
}

impl fmt::Debug for SharedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.source.fmt(f)
    }
}

impl StdError for SharedSource {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        StdError::source(&*self.0).and_then(StdError::source)
    }
}

/// Truncates long values: ids may have thousands of characters.
fn shorten(value: String) -> String {
    const MAX_CHARS: usize = 120;
    match value.char_indices().nth(MAX_CHARS) {
        None => value,
        Some((end, _)) => format!("{}… ({} bytes)", value.get(..end).unwrap_or_default(), value.len()),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        match (inner.backend, inner.operation) {
            (Some(backend), Some(operation)) => write!(f, "{backend}: {operation}: ")?,
            (Some(name), None) | (None, Some(name)) => write!(f, "{name}: ")?,
            (None, None) => {}
        }
        f.write_str(&inner.message)?;
        for (i, (key, value)) in inner.context.iter().enumerate() {
            write!(f, "{}{key}={value:?}", if i == 0 { " (" } else { ", " })?;
        }
        if !inner.context.is_empty() {
            f.write_str(")")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("retryable", &self.0.retryable)
            .field("text", &self.to_string())
            .field("source", &self.0.source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

/// Sets backend and operation on a result's error, as [`Error::at`] does.
pub trait ResultExt<T> {
    /// Sets the backend and the operation, unless a deeper layer has set them already.
    ///
    /// # Errors
    /// The error it was called on.
    fn at(self, backend: &'static str, operation: &'static str) -> Result<T>;
}

impl<T> ResultExt<T> for Result<T> {
    fn at(self, backend: &'static str, operation: &'static str) -> Self {
        self.map_err(|error| error.at(backend, operation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_one_pointer_and_one_line() {
        assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
        let error = Error::invalid_argument("the id is no UUID")
            .with("checkpoint_id", "a\nb")
            .with_source(Error::codec("inner"))
            .at("sqlite", "put")
            .at("outer", "outer");
        assert_eq!(error.to_string(), r#"sqlite: put: the id is no UUID (checkpoint_id="a\nb")"#);
        assert!(StdError::source(&error).is_some_and(|source| source.to_string() == "inner"));
        let long = Error::codec("x").with("thread_id", "é".repeat(5000)).to_string();
        assert!(long.len() < 400 && long.contains("(10000 bytes)"), "{long}");
    }

    #[test]
    fn sources_are_found_by_their_type_also_in_shared_errors() {
        let error = Error::codec("outer").with_source(fmt::Error);
        assert!(error.source_as::<fmt::Error>().is_some() && error.source_as::<Error>().is_none());
        let shared = Arc::new(Error::share(&Arc::new(error)));
        assert!(Error::share(&shared).source_as::<fmt::Error>().is_some());
        assert!(Error::codec("none").source_as::<fmt::Error>().is_none());
    }
}
