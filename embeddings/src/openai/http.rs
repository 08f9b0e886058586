//! One request and its response, with retries.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use checkpoint_core::{Bytes, Error, Result};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url, redirect, retry};
use rustls::{ClientConfig, RootCertStore};

use super::error::{Refused, Retry};

const USER_AGENT: &str = concat!("checkpoint-embeddings/", env!("CARGO_PKG_VERSION"));
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// OpenAI's own header, more precise than `Retry-After`.
const RETRY_AFTER_MS: &str = "retry-after-ms";

/// The maximum bytes of an error response that are read.
const MAX_ERROR_BYTES: usize = 64 << 10;

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(8);

/// With a longer `Retry-After`, the call fails immediately.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Retries and timeout of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) max_retries: u32,
    pub(super) timeout: Duration,
}

/// A client of one URL, with a connection pool.
pub(super) struct Http {
    client: Client,
    url: Url,
    limits: Limits,
}

impl Http {
    pub(super) fn new(url: Url, authorization: Option<HeaderValue>, limits: Limits) -> Result<Self> {
        let mut headers = HeaderMap::from_iter([(ACCEPT, JSON), (CONTENT_TYPE, JSON)]);
        headers.extend(authorization.map(|authorization| (AUTHORIZATION, authorization)));
        let client = Client::builder()
            .tls_backend_preconfigured(tls(url.scheme() == "https")?)
            .user_agent(USER_AGENT)
            .default_headers(headers)
            .timeout(limits.timeout)
            // No proxy and no redirect may receive the texts and the key.
            .no_proxy()
            .redirect(redirect::Policy::none())
            // `post` does the retries, with the server's `Retry-After`.
            .retry(retry::never())
            .build()
            .map_err(|error| Error::invalid_config("the HTTP client cannot be created").with_source(error))?;
        Ok(Self { client, url, limits })
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    /// Sends JSON and returns the response, which has at most `max_bytes` bytes.
    pub(super) async fn post(&self, body: Bytes, max_bytes: usize) -> Result<Bytes, Refused> {
        let mut tries = 0;
        loop {
            let refused = match self.send(body.clone(), max_bytes).await {
                Ok(answer) => return Ok(answer),
                Err(refused) => refused,
            };
            let wait = match refused.retry {
                Retry::No => return Err(refused),
                Retry::After(wait) if wait > MAX_RETRY_AFTER => return Err(refused),
                _ if tries == self.limits.max_retries => return Err(refused),
                Retry::After(wait) => wait,
                Retry::Soon => wait_before(tries),
            };
            tries += 1;
            tracing::warn!(
                operation = "embed",
                attempt = tries,
                pause_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
                error.type = refused.error.kind().as_str(),
                "the request failed; trying again"
            );
            tokio::time::sleep(wait).await;
        }
    }

    async fn send(&self, body: Bytes, max_bytes: usize) -> Result<Bytes, Refused> {
        let exchange = async {
            let mut response = self.client.post(self.url.clone()).body(body).send().await?;
            let status = response.status();
            if status == StatusCode::OK {
                return read(&mut response, max_bytes).await?.ok_or_else(Refused::too_long);
            }
            let retry_after = retry_after(response.headers(), SystemTime::now());
            // If the body is cut off or too long, the status alone describes the error.
            let body = match read(&mut response, MAX_ERROR_BYTES).await {
                Err(error) if error.is_timeout() => return Err(error.into()),
                body => body.ok().flatten().unwrap_or_default(),
            };
            Err(Refused::status(status, &body, retry_after))
        };
        exchange
            .await
            .map_err(|refused: Refused| refused.with_url(&self.url).with_timeout(self.limits.timeout))
    }
}

/// The body of a response, or `None` if it is longer than allowed.
async fn read(response: &mut Response, max_bytes: usize) -> Result<Option<Bytes>, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if chunk.len() > max_bytes - body.len() {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body.into()))
}

/// The TLS configuration. The system's certificates are only read if they are needed.
fn tls(needed: bool) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    if needed {
        let found = rustls_native_certs::load_native_certs();
        // Certificates that cannot be parsed are ignored, as long as there are others.
        let (taken, _) = roots.add_parsable_certificates(found.certs);
        if taken == 0 {
            let error =
                Error::invalid_config("the system has no trusted certificates; name a file in SSL_CERT_FILE");
            return Err(match found.errors.into_iter().next() {
                Some(source) => error.with_source(source),
                None => error,
            });
        }
    }
    // Explicit, so that it does not depend on the process-wide default provider of the application.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::invalid_config("this build has no usable TLS version").with_source(error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

/// The server's pause before the next attempt.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    if let Some(ms) = text(RETRY_AFTER_MS).and_then(|ms| ms.parse::<f64>().ok()) {
        return Duration::try_from_secs_f64(ms / 1000.0).ok();
    }
    let text = text(RETRY_AFTER.as_str())?;
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// Exponential backoff with jitter.
fn wait_before(tries: u32) -> Duration {
    let wait = FIRST_PAUSE.saturating_mul(1_u32.checked_shl(tries).unwrap_or(u32::MAX)).min(MAX_PAUSE);
    let chance = f64::from(getrandom::u32().unwrap_or_default()) / f64::from(u32::MAX);
    wait.mul_f64(1.0 - chance / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_parsed() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let read = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            retry_after(&headers, now)
        };
        assert_eq!(read("retry-after", "7"), Some(Duration::from_secs(7)));
        assert_eq!(read("retry-after", "0.5"), Some(Duration::from_millis(500)));
        assert_eq!(read("retry-after", "Sun, 06 Nov 1994 08:49:40 GMT"), Some(Duration::from_secs(3)));
        assert_eq!(read("retry-after", "Sun, 06 Nov 1994 08:49:30 GMT"), Some(Duration::ZERO));
        assert_eq!(read("retry-after-ms", "20"), Some(Duration::from_millis(20)));
        for none in ["-1", "soon", "NaN", "inf", "1e40", ""] {
            assert_eq!(read("retry-after", none), None, "{none}");
        }
    }

    #[test]
    fn pauses_grow_up_to_a_maximum() {
        for (tries, most) in
            [(0, 500), (1, 1000), (3, 4000), (4, 8000), (31, 8000), (32, 8000), (u32::MAX, 8000)]
        {
            let wait = wait_before(tries);
            let most = Duration::from_millis(most);
            assert!(wait <= most && wait >= most / 2, "{tries}: {wait:?}");
        }
    }
}
