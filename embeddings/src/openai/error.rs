//! Maps HTTP statuses and connection errors to the workspace's `Error`, in one table.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use checkpoint_core::{Error, ErrorKind};
use reqwest::{StatusCode, Url};
use serde_json::Value;

/// The maximum length of an error code that is shown.
const MAX_CODE_BYTES: usize = 48;

/// OpenAI's error code for an account without credit. Its status is 429, like that of a rate limit.
const NO_QUOTA: &str = "insufficient_quota";

/// Whether and when to retry.
#[derive(Debug, Clone, Copy)]
pub(super) enum Retry {
    No,
    Soon,
    /// After the server's `Retry-After`.
    After(Duration),
}

/// A failed request.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) error: Error,
    /// The server's error code.
    code: Option<String>,
    pub(super) retry: Retry,
}

impl Refused {
    pub(super) fn finally(error: Error) -> Self {
        Self { error, code: None, retry: Retry::No }
    }

    fn for_now(error: Error) -> Self {
        Self { error: error.retryable(true), code: None, retry: Retry::Soon }
    }

    /// The response is longer than allowed.
    pub(super) fn too_long() -> Self {
        Self::finally(Error::codec("the response is longer than the vectors can be"))
    }

    /// The response has an error status.
    pub(super) fn status(status: StatusCode, body: &[u8], retry_after: Option<Duration>) -> Self {
        let code = code(body);
        let (kind, message, again) = describe(status, code.as_deref());
        let error = Error::new(kind, message).with("status", status.as_u16());
        if !again {
            return Self { code, ..Self::finally(error) };
        }
        let (error, retry) = match retry_after {
            Some(wait) => (error.with("retry_after_s", wait.as_secs_f64()), Retry::After(wait)),
            None => (error, Retry::Soon),
        };
        Self { code, retry, ..Self::for_now(error) }
    }

    /// Adds the server's URL.
    pub(super) fn with_url(mut self, url: &Url) -> Self {
        self.error = self.error.with("url", url);
        self
    }

    /// Adds the timeout, if the error is a timeout.
    pub(super) fn with_timeout(mut self, timeout: Duration) -> Self {
        if self.error.kind() == ErrorKind::Timeout {
            self.error = self.error.with("timeout_ms", timeout.as_millis());
        }
        self
    }

    /// The error with the context of the request.
    pub(super) fn described(self, model: &str, texts: &[&str]) -> Error {
        let mut error = self.error;
        // A code that occurs in one of the texts might be a copy of it.
        if let Some(code) = self.code.filter(|code| !texts.iter().any(|text| text.contains(code.as_str()))) {
            error = error.with("code", code);
        }
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or_default();
        error.with("model", model).with("texts", texts.len()).with("longest_text_bytes", longest)
    }
}

impl From<reqwest::Error> for Refused {
    fn from(error: reqwest::Error) -> Self {
        // The URL is already in the context.
        let error = error.without_url();
        if error.is_timeout() {
            let message =
                "the embeddings server did not respond in time; raise timeout(), or lower batch_size()";
            return Self::finally(Error::new(ErrorKind::Timeout, message).retryable(true).with_source(error));
        }
        if is_tls(&error) {
            return Self::finally(
                Error::invalid_config(
                    "the TLS handshake failed: the server's certificate must be for the host, from an authority that the \
                    system trusts or SSL_CERT_FILE names; use an http:// URL for a server without TLS",
                )
                .with_source(error),
            );
        }
        let message = if error.is_connect() {
            "the embeddings server cannot be reached; check base_url, and that it is running"
        } else {
            "the connection to the embeddings server broke"
        };
        Self::for_now(Error::new(ErrorKind::Unavailable, message).with_source(error))
    }
}

/// The table of statuses: error kind, message, and whether to retry.
fn describe(status: StatusCode, code: Option<&str>) -> (ErrorKind, &'static str, bool) {
    use ErrorKind::{Backend, InvalidArgument, InvalidConfig, Unavailable};
    match status.as_u16() {
        300..400 => (
            InvalidConfig,
            "the server redirects to another URL; set base_url to that if you trust it",
            false,
        ),
        400 | 422 => (
            InvalidArgument,
            "the server rejects the request: the model may be unknown, may not support dimensions, or a text may be \
            too long for it",
            false,
        ),
        401 => (InvalidConfig, "the server rejects the API key", false),
        403 => (InvalidConfig, "the API key may not use the model", false),
        404 | 405 => (
            InvalidConfig,
            "the server has no such model, or no embeddings at this URL; base_url usually ends with /v1",
            false,
        ),
        408 | 409 | 425 => (Unavailable, "the embeddings server asks to retry", true),
        413 => (InvalidArgument, "the request is too large for the server; lower batch_size()", false),
        429 if code == Some(NO_QUOTA) => (Backend, "the account has no quota left for the model", false),
        429 => (Unavailable, "the server limits the rate of requests; lower concurrency(), or wait", true),
        501 => (InvalidConfig, "the server does not support embeddings", false),
        500..600 => (Unavailable, "the embeddings server failed", true),
        _ => (Backend, "the response has a status that an embeddings API does not use", false),
    }
}

/// The server's error code. Its messages are not used: they may repeat texts and keys.
fn code(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let error = body.get("error").unwrap_or(&body);
    let is_word = |text: &&str| {
        text.len() <= MAX_CODE_BYTES && text.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_')
    };
    ["code", "type"].iter().find_map(|name| error.get(name)?.as_str().filter(is_word)).map(str::to_owned)
}

/// Whether the TLS handshake failed.
fn is_tls(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<rustls::Error>() {
            return true;
        }
        // An I/O error does not return the error that it wraps as its source.
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_code_is_taken_from_an_error_response() {
        for (body, expected) in [
            (r#"{"error":{"message":"m","type":"t","code":"model_not_found"}}"#, Some("model_not_found")),
            (
                r#"{"error":{"message":"m","type":"invalid_request_error","code":null}}"#,
                Some("invalid_request_error"),
            ),
            (
                r#"{"object":"error","message":"m","type":"BadRequestError","code":400}"#,
                Some("BadRequestError"),
            ),
            (r#"{"error":"model \"x\" not found"}"#, None),
            (r#"{"error":{"code":"sk-123"}}"#, None),
            (r#"{"error":{"code":"two words"}}"#, None),
            ("<html>", None),
            ("", None),
        ] {
            assert_eq!(code(body.as_bytes()).as_deref(), expected, "{body}");
        }
    }
}
