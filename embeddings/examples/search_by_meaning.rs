//! Search by meaning in memory, with a model behind OpenAI's API.
//!
//! ```sh
//! OPENAI_API_KEY=… cargo run -p checkpoint-embeddings --example search_by_meaning -- text-embedding-3-small 1536
//! OPENAI_BASE_URL=http://localhost:11434/v1 \
//!     cargo run -p checkpoint-embeddings --example search_by_meaning -- nomic-embed-text 768
//! ```

use checkpoint_core::store::{IndexConfig, StoreExt};
use checkpoint_core::{Error, ErrorKind, InMemoryStore, Result};
use checkpoint_embeddings::OpenAiEmbeddings;
use serde_json::json;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (model, dims) = (arguments.next(), arguments.next().and_then(|dims| dims.parse().ok()));
    let (Some(model), Some(dims)) = (model, dims) else {
        return Err(Error::new(ErrorKind::InvalidConfig, "give a model and the number of its dimensions"));
    };

    // The key comes from OPENAI_API_KEY. OPENAI_BASE_URL names another server than OpenAI's.
    let embeddings = OpenAiEmbeddings::from_env(model).build()?;
    // The field `text` of each item is embedded when it is put.
    let store =
        InMemoryStore::builder().index(IndexConfig::new(dims, embeddings).fields(["text"])).build()?;
    store.put(["notes"], "cat", json!({"text": "the cat sleeps all day"})).await?;
    store.put(["notes"], "invoice", json!({"text": "the invoice is due on Friday"})).await?;

    for found in store.search(["notes"]).query("tired animals").await? {
        println!("{:.3}  {}", found.score.unwrap_or_default(), found.item.value.as_str());
    }
    Ok(())
}
