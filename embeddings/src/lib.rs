//! Embeddings for stores that search by meaning.
//!
//! [`OpenAiEmbeddings`] asks a server that speaks OpenAI's API: OpenAI itself, or Ollama, vLLM, LM Studio, llama.cpp and
//! others on a machine of your own. Give it to an [`IndexConfig`](checkpoint_core::store::IndexConfig), with as many
//! dimensions as the model's vectors have:
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
//! // OPENAI_API_KEY, and OPENAI_BASE_URL for another server than OpenAI's.
//! let embeddings = OpenAiEmbeddings::from_env("text-embedding-3-small").build()?;
//! let store = InMemoryStore::builder().index(IndexConfig::new(1536, embeddings).fields(["text"])).build()?;
//! store.put(["notes"], "1", json!({"text": "the cat sleeps all day"})).await?;
//! let found = store.search(["notes"]).query("tired animals").await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is sent, and where
//!
//! Texts go to `{base_url}/embeddings` and nowhere else. Proxies that the environment names are not used, and redirects
//! are not followed, so that neither texts nor the key reach a host that nobody named. `https` trusts the system's
//! certificates, or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name. With `http` everything is in clear, the key
//! too: it is for a server on the same machine or in a network that you trust.
//!
//! Neither errors nor logs show texts, the key, or what the server says in words, which might repeat both.
//!
//! # Limits
//!
//! A call of many texts becomes requests of [`batch_size`](OpenAiEmbeddingsBuilder::batch_size) texts, of which
//! [`concurrency`](OpenAiEmbeddingsBuilder::concurrency) run at once. When one fails, the call fails. An empty
//! text is sent as one space, because OpenAI refuses a request with an empty one.
//!
//! It needs a Tokio runtime with I/O and time.

#[cfg(feature = "openai")]
mod openai;

#[cfg(feature = "openai")]
pub use openai::{EncodingFormat, OpenAiEmbeddings, OpenAiEmbeddingsBuilder};
#[cfg(feature = "openai")]
pub use secrecy;
