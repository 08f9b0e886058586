//! One request and its answer, sent again where that may help.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use checkpoint_core::{Error, Result};
use http_body_util::{BodyExt, Collected, Full, Limited};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Request, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::{ClientConfig, RootCertStore};

use super::error::{Refused, Retry};

/// What it says of itself.
const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("checkpoint-embeddings/", env!("CARGO_PKG_VERSION")));
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// OpenAI's own header, finer than `Retry-After`.
const RETRY_AFTER_MS: &str = "retry-after-ms";

/// How much of a refusal is read: it has a word in it that says why.
const REFUSAL_BYTES: usize = 64 << 10;

const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(8);

/// The longest time that a server may ask to be left alone.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);

/// How patient it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) max_retries: u32,
    pub(super) timeout: Duration,
}

/// A connection pool to one place.
pub(super) struct Http {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    url: Uri,
    authorization: Option<HeaderValue>,
    limits: Limits,
}

impl Http {
    pub(super) fn new(url: Uri, authorization: Option<HeaderValue>, limits: Limits) -> Result<Self> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls(url.scheme_str() == Some("https"))?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Ok(Self { client, url, authorization, limits })
    }

    pub(super) fn url(&self) -> &Uri {
        &self.url
    }

    /// Sends JSON, and returns the answer, which has so many bytes at most.
    pub(super) async fn post(&self, body: Bytes, longest: usize) -> Result<Bytes, Refused> {
        let mut tries = 0;
        loop {
            let refused = match self.send(body.clone(), longest).await {
                Ok(answer) => return Ok(answer),
                Err(refused) => refused,
            };
            let wait = match refused.retry {
                Retry::No => return Err(refused),
                Retry::After(wait) if wait > LONGEST_RETRY_AFTER => return Err(refused),
                _ if tries == self.limits.max_retries => return Err(refused),
                Retry::After(wait) => wait,
                Retry::Soon => wait_before(tries),
            };
            tries += 1;
            tracing::debug!(tries, wait_ms = wait.as_millis(), "embeddings: the request is sent again");
            tokio::time::sleep(wait).await;
        }
    }

    async fn send(&self, body: Bytes, longest: usize) -> Result<Bytes, Refused> {
        let mut request = Request::post(&self.url)
            .header(ACCEPT, JSON)
            .header(CONTENT_TYPE, JSON)
            .header(USER_AGENT, AGENT);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(Full::new(body)).map_err(|error| {
            Refused::finally(Error::invalid_config("the request cannot be made").with_source(error))
        })?;
        let exchange = async {
            let answer = self.client.request(request).await.map_err(Refused::unreachable)?;
            let (head, body) = answer.into_parts();
            let longest = if head.status == StatusCode::OK { longest } else { REFUSAL_BYTES };
            let body = Limited::new(body, longest).collect().await.map(Collected::to_bytes);
            match (head.status, body) {
                (StatusCode::OK, body) => body.map_err(Refused::broken),
                (status, body) => {
                    let retry_after = retry_after(&head.headers, SystemTime::now());
                    Err(Refused::status(status, &body.unwrap_or_default(), retry_after))
                }
            }
        };
        match tokio::time::timeout(self.limits.timeout, exchange).await {
            Ok(result) => result,
            Err(_) => Err(Refused::late(self.limits.timeout)),
        }
        .map_err(|refused| refused.naming(&self.url))
    }
}

/// What encrypts connections. The system's certificates are read where they are needed.
fn tls(needed: bool) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    if needed {
        let found = rustls_native_certs::load_native_certs();
        // One that cannot be read among hundreds is the system's business.
        let (taken, _) = roots.add_parsable_certificates(found.certs);
        if taken == 0 {
            let error = Error::invalid_config(
                "the system has no certificates that it trusts; name a file in SSL_CERT_FILE",
            );
            return Err(match found.errors.into_iter().next() {
                Some(source) => error.with_source(source),
                None => error,
            });
        }
    }
    // Named here, so that nothing depends on what the application chose for its whole process.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::invalid_config("this build has no TLS that can be used").with_source(error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

/// How long the server wants to be left alone.
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

/// Twice as long each time, and by chance up to half of it less, so that many do not come back at once.
fn wait_before(tries: u32) -> Duration {
    let wait = FIRST_WAIT.saturating_mul(1_u32.checked_shl(tries).unwrap_or(u32::MAX)).min(LONGEST_WAIT);
    let chance = f64::from(getrandom::u32().unwrap_or_default()) / f64::from(u32::MAX);
    wait.mul_f64(1.0 - chance / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_may_say_when() {
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
    fn waits_grow_and_stay_short() {
        for (tries, most) in
            [(0, 500), (1, 1000), (3, 4000), (4, 8000), (31, 8000), (32, 8000), (u32::MAX, 8000)]
        {
            let wait = wait_before(tries);
            let most = Duration::from_millis(most);
            assert!(wait <= most && wait >= most / 2, "{tries}: {wait:?}");
        }
    }
}
