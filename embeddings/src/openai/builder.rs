//! The configuration of the client.

use std::sync::Arc;
use std::time::Duration;

use checkpoint_core::{Error, Result, ResultExt};
use reqwest::Url;
use reqwest::header::HeaderValue;
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::Semaphore;

use super::http::{Http, Limits};
use super::{BACKEND, EncodingFormat, Inner, OpenAiEmbeddings};

const OPENAI: &str = "https://api.openai.com/v1";
const KEY_VARIABLE: &str = "OPENAI_API_KEY";
const URL_VARIABLE: &str = "OPENAI_BASE_URL";

/// OpenAI's maximum number of texts in one request.
const MAX_TEXTS: usize = 2048;

/// Configures [`OpenAiEmbeddings`].
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it is built"]
pub struct OpenAiEmbeddingsBuilder {
    model: String,
    base_url: String,
    api_key: Option<SecretString>,
    dimensions: Option<usize>,
    encoding_format: EncodingFormat,
    batch_size: usize,
    concurrency: usize,
    limits: Limits,
}

impl OpenAiEmbeddingsBuilder {
    pub(super) fn new(model: String) -> Self {
        Self {
            model,
            base_url: OPENAI.to_owned(),
            api_key: None,
            dimensions: None,
            encoding_format: EncodingFormat::default(),
            batch_size: 256,
            concurrency: 4,
            limits: Limits { max_retries: 3, timeout: Duration::from_secs(60) },
        }
    }

    pub(super) fn with_env(mut self) -> Self {
        // If a value is not UTF-8, `build` rejects its replacement characters.
        let variable = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        self.api_key = variable(KEY_VARIABLE).map(SecretString::from).or(self.api_key);
        self.base_url = variable(URL_VARIABLE).unwrap_or(self.base_url);
        self
    }

    /// Sets the server's URL: the part before `/embeddings`, such as `http://localhost:11434/v1`; OpenAI's unless set.
    pub fn base_url(mut self, url: impl Into<String>) -> Self {
        self.base_url = url.into();
        self
    }

    /// Sets the API key. OpenAI requires one; your own server may not.
    pub fn api_key(mut self, key: SecretString) -> Self {
        self.api_key = Some(key);
        self
    }

    /// Requests shorter vectors than the model's default. Only some models support this; the call fails if the server
    /// ignores it.
    pub fn dimensions(mut self, dimensions: usize) -> Self {
        self.dimensions = Some(dimensions);
        self
    }

    /// Sets the encoding of vectors in responses: base64 unless set.
    pub fn encoding_format(mut self, format: EncodingFormat) -> Self {
        self.encoding_format = format;
        self
    }

    /// Sets the maximum number of texts per request, from 1 to 2,048: 256 unless set. Requests with long texts have fewer.
    pub fn batch_size(mut self, texts: usize) -> Self {
        self.batch_size = texts;
        self
    }

    /// Sets the maximum number of concurrent requests of all clones together: 4 unless set.
    pub fn concurrency(mut self, requests: usize) -> Self {
        self.concurrency = requests;
        self
    }

    /// Sets the maximum number of retries of a request: 3 unless set.
    ///
    /// A request is retried if the server cannot be reached, if the connection breaks, and for the status 408, 409, 429,
    /// and 500 and above. The backoff is exponential with jitter, from 0.5 to 8 seconds, or the server's `Retry-After`.
    /// If that is more than a minute, the call fails immediately.
    pub fn max_retries(mut self, times: u32) -> Self {
        self.limits.max_retries = times;
        self
    }

    /// Sets the timeout of one attempt of a request, including the whole response: a minute unless set. Timeouts are
    /// not retried.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.limits.timeout = timeout;
        self
    }

    /// Validates the configuration. It opens no connection; for `https` it reads the system's certificates.
    ///
    /// # Errors
    /// [`InvalidConfig`](checkpoint_core::ErrorKind::InvalidConfig) for an invalid URL or one with more than host,
    /// port and path, a missing key for OpenAI's server, a key with characters that headers cannot contain, an empty
    /// model, and zero for any number.
    pub fn build(self) -> Result<OpenAiEmbeddings> {
        self.check().at(BACKEND, "build")
    }

    fn check(self) -> Result<OpenAiEmbeddings> {
        let invalid = Error::invalid_config;
        if self.model.is_empty() {
            return Err(invalid("the model's name is empty"));
        }
        if self.batch_size == 0 || self.batch_size > MAX_TEXTS {
            return Err(invalid("batch_size must be from 1 to 2,048").with("batch_size", self.batch_size));
        }
        if self.concurrency == 0 || self.concurrency > Semaphore::MAX_PERMITS {
            return Err(invalid("concurrency must be at least 1").with("concurrency", self.concurrency));
        }
        if self.limits.timeout.is_zero() {
            return Err(invalid("timeout must not be zero"));
        }
        if self.dimensions == Some(0) {
            return Err(invalid("dimensions must be at least 1"));
        }
        let url = endpoint(&self.base_url)?;
        if self.api_key.is_none() && self.base_url.trim_end_matches('/') == OPENAI {
            return Err(invalid(
                "OpenAI's server requires a key: set OPENAI_API_KEY, or pass it to api_key()",
            ));
        }
        let http = Http::new(url, self.api_key.as_ref().map(authorization).transpose()?, self.limits)?;
        Ok(OpenAiEmbeddings(Arc::new(Inner {
            http,
            model: self.model,
            dimensions: self.dimensions,
            encoding_format: self.encoding_format,
            batch_size: self.batch_size,
            permits: Semaphore::new(self.concurrency),
        })))
    }
}

/// The URL of requests. Errors show no part of it: it may contain a key.
fn endpoint(base_url: &str) -> Result<Url> {
    let wrong = || {
        Error::invalid_config(
            "base_url must be http:// or https://, a host, and a path, as in http://localhost:11434/v1; \
            pass the key to api_key()",
        )
    };
    let (_, rest) = base_url.split_once("://").ok_or_else(wrong)?;
    let authority = rest.split('/').next().unwrap_or_default();
    // The parser follows the rules of browsers, and would also accept extra slashes, backslashes and line breaks.
    let is_odd = |c: char| "?#\\".contains(c) || c.is_ascii_whitespace() || c.is_ascii_control();
    if authority.is_empty() || authority.contains('@') || base_url.contains(is_odd) {
        return Err(wrong());
    }
    let mut url: Url = base_url.parse().map_err(|_| wrong())?;
    if !["http", "https"].contains(&url.scheme()) {
        return Err(wrong());
    }
    url.path_segments_mut().map_err(|()| wrong())?.pop_if_empty().push("embeddings");
    Ok(url)
}

fn authorization(key: &SecretString) -> Result<HeaderValue> {
    let key = key.expose_secret();
    let wrong = || {
        Error::invalid_config(
            "the API key is empty, or contains spaces, line breaks or other invalid characters",
        )
    };
    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(wrong());
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| wrong())?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_only_host_and_path() {
        for (base, url) in [
            (OPENAI, "https://api.openai.com/v1/embeddings"),
            ("http://localhost:11434/v1/", "http://localhost:11434/v1/embeddings"),
            ("http://[::1]:8000", "http://[::1]:8000/embeddings"),
        ] {
            assert_eq!(endpoint(base).unwrap().to_string(), url);
        }
        for wrong in [
            "",
            "localhost:11434/v1",
            "/v1",
            "ftp://host/v1",
            "http://",
            "http:///v1",
            "http://me:hunter2@host/v1",
            "http://host/v1?key=hunter2",
            "http://host/v1#hunter2",
            "http://ho st/",
            "http://ho\nst/",
            "http:\\\\host/",
            "http://host\\@hunter2/v1",
            "http://@host/v1",
        ] {
            let error = endpoint(wrong).unwrap_err();
            assert_eq!(error.kind(), checkpoint_core::ErrorKind::InvalidConfig, "{wrong}");
            assert!(!format!("{error:?}").contains("hunter2"));
        }
    }
}
