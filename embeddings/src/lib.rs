//! Embeddings for the semantic search of stores.
//!
//! [`OpenAiEmbeddings`] calls a server with OpenAI's API: OpenAI itself, or Ollama, vLLM, LM Studio, llama.cpp and
//! others on your own machine. Pass it to an [`IndexConfig`](checkpoint_core::store::IndexConfig), with the number of
//! dimensions of the model's vectors:
//!
#![cfg_attr(feature = "openai", doc = "```no_run")]
#![cfg_attr(not(feature = "openai"), doc = "```ignore")]
//! use checkpoint_core::store::{IndexConfig, StoreExt};
//! use checkpoint_core::InMemoryStore;
//! use checkpoint_embeddings::OpenAiEmbeddings;
//! use serde_json::json;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> checkpoint_core::Result<()> {
//! // OPENAI_API_KEY, and OPENAI_BASE_URL for a server other than OpenAI's.
//! let embeddings = OpenAiEmbeddings::from_env("text-embedding-3-small").build()?;
//! let store = InMemoryStore::builder().index(IndexConfig::new(1536, embeddings).fields(["text"])).build()?;
//! store.put(["notes"], "1", json!({"text": "the cat sleeps all day"})).await?;
//! let found = store.search(["notes"]).query("tired animals").await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Privacy
//!
//! Texts are only sent to `{base_url}/embeddings`. Proxies from the environment are not used, and redirects are not
//! followed, so that neither texts nor the key reach a host that was not configured. `https` trusts the system's
//! certificates, or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name. `http` is unencrypted, including the key: use
//! it for a server on the same machine or in a network that you trust.
//!
//! Neither errors nor logs contain texts, the key, or the server's messages, which might repeat both.
//!
//! # Limits
//!
//! A call is split into requests of [`batch_size`](OpenAiEmbeddingsBuilder::batch_size) texts, of which
//! [`concurrency`](OpenAiEmbeddingsBuilder::concurrency) run concurrently. If one fails, the call fails. An empty text
//! is sent as one space, because OpenAI rejects requests with an empty text.
//!
//! It needs a Tokio runtime with I/O and time.

#[cfg(feature = "openai")]
mod openai;

#[cfg(feature = "openai")]
pub use openai::{EncodingFormat, OpenAiEmbeddings, OpenAiEmbeddingsBuilder};
#[cfg(feature = "openai")]
pub use secrecy;
