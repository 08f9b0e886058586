//! OpenAI's embeddings API.

mod answer;
mod builder;
mod error;
mod http;

use std::fmt;
use std::sync::Arc;

use checkpoint_core::store::Embeddings;
use checkpoint_core::{Error, ErrorKind, Result, ResultExt, async_trait};
use futures_util::future::try_join_all;
use serde::Serialize;
use tokio::sync::Semaphore;

pub use builder::OpenAiEmbeddingsBuilder;
use http::Http;

/// The backend's name in errors.
const BACKEND: &str = "openai";

/// The maximum bytes of text in one request: OpenAI accepts at most 300,000 tokens, and a token has at least one byte.
const REQUEST_BYTES: usize = 300_000;

/// The replacement for an empty text, which OpenAI rejects.
const EMPTY: &str = " ";

/// The encoding of vectors in responses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum EncodingFormat {
    /// The bytes of 32-bit floats: a third of the size, and exact. OpenAI's own clients request it, so servers
    /// support it; a response with numbers is accepted, too.
    #[default]
    Base64,
    /// Numbers, for servers that reject base64.
    Float,
}

/// Embeddings from a server with OpenAI's API. Clones share connections and the concurrency limit.
///
/// ```no_run
/// use checkpoint_embeddings::OpenAiEmbeddings;
///
/// let local = OpenAiEmbeddings::builder("nomic-embed-text").base_url("http://localhost:11434/v1").build()?;
/// let openai = OpenAiEmbeddings::from_env("text-embedding-3-large").dimensions(1024).build()?;
/// # Ok::<(), checkpoint_core::Error>(())
/// ```
#[derive(Clone)]
pub struct OpenAiEmbeddings(Arc<Inner>);

struct Inner {
    http: Http,
    model: String,
    dimensions: Option<usize>,
    encoding_format: EncodingFormat,
    batch_size: usize,
    permits: Semaphore,
}

#[derive(Serialize)]
struct Request<'a> {
    model: &'a str,
    input: &'a [&'a str],
    encoding_format: EncodingFormat,
    #[serde(skip_serializing_if = "Option::is_none")]
    dimensions: Option<usize>,
}

impl OpenAiEmbeddings {
    /// Configures this model on OpenAI's server.
    pub fn builder(model: impl Into<String>) -> OpenAiEmbeddingsBuilder {
        OpenAiEmbeddingsBuilder::new(model.into())
    }

    /// Configures this model, with the key in `OPENAI_API_KEY` and the server in `OPENAI_BASE_URL`, if they are set and
    /// not empty.
    pub fn from_env(model: impl Into<String>) -> OpenAiEmbeddingsBuilder {
        Self::builder(model).with_env()
    }
}

impl Inner {
    async fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        // Held during the backoff, too: an overloaded server should get fewer requests.
        let _permit = self.permits.acquire().await.map_err(|error| {
            Error::new(ErrorKind::Unavailable, "the embeddings were closed").with_source(error)
        })?;
        let texts: Vec<&str> = texts.iter().map(|text| if text.is_empty() { EMPTY } else { text }).collect();
        let request = Request {
            model: &self.model,
            input: &texts,
            encoding_format: self.encoding_format,
            dimensions: self.dimensions,
        };
        let body = serde_json::to_vec(&request)
            .map_err(|error| Error::codec("the request cannot be written as JSON").with_source(error))?;
        let answer = self.http.post(body.into(), answer::max_bytes(texts.len())).await;
        let answer = answer.map_err(|refused| refused.described(&self.model, &texts))?;
        answer::decode(&answer, texts.len(), self.dimensions)
    }
}

/// Splits texts into requests.
fn requests<'a, 'b>(texts: &'a [&'b str], batch_size: usize) -> Vec<&'a [&'b str]> {
    let mut requests = Vec::new();
    let (mut from, mut bytes) = (0, 0_usize);
    for (at, text) in texts.iter().enumerate() {
        if at > from && (at - from == batch_size || bytes.saturating_add(text.len()) > REQUEST_BYTES) {
            requests.extend(texts.get(from..at));
            (from, bytes) = (at, 0);
        }
        bytes = bytes.saturating_add(text.len());
    }
    requests.extend(texts.get(from..).filter(|rest| !rest.is_empty()));
    requests
}

#[async_trait]
impl Embeddings for OpenAiEmbeddings {
    async fn embed_documents(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        let requests = requests(texts, self.0.batch_size);
        let answers = try_join_all(requests.into_iter().map(|texts| self.0.embed(texts))).await;
        Ok(answers.at(BACKEND, "embed")?.into_iter().flatten().collect())
    }
}

impl fmt::Debug for OpenAiEmbeddings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        f.debug_struct("OpenAiEmbeddings")
            .field("model", &inner.model)
            .field("url", &inner.http.url().as_str())
            .field("dimensions", &inner.dimensions)
            .field("encoding_format", &inner.encoding_format)
            .field("batch_size", &inner.batch_size)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_split_by_count_and_by_bytes() {
        let lengths = |texts: &[&str], batch_size| -> Vec<usize> {
            requests(texts, batch_size).iter().map(|request| request.len()).collect()
        };
        assert!(lengths(&[], 3).is_empty());
        assert_eq!(lengths(&["a"; 7], 3), [3, 3, 1]);
        assert_eq!(lengths(&["a"; 6], 3), [3, 3]);
        let (half, huge) = ("x".repeat(REQUEST_BYTES / 2), "y".repeat(REQUEST_BYTES + 1));
        assert_eq!(lengths(&[&half, &half, "a", &huge, "b"], 10), [2, 1, 1, 1]);
    }
}
