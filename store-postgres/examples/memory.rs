//! The long-term memory of an agent in PostgreSQL: items under namespaces, filters, search by meaning.
//!
//! ```sh
//! cargo run -p store-postgres --example memory -- postgres://agents@localhost/agents
//! ```
//!
//! Without an argument, the URL comes from `DATABASE_URL`. The tables are made in the schema `memory_example`. Queries
//! need the extension pgvector.

use std::time::Duration;

use checkpoint_core::store::{BaseStore, IndexConfig, ItemFilter, NgramEmbeddings, StoreExt};
use checkpoint_core::{Error, ErrorKind, Result};
use serde_json::json;
use store_postgres::PostgresStore;

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args()
        .nth(1)
        .or_else(|| std::env::var("DATABASE_URL").ok())
        .ok_or_else(|| Error::new(ErrorKind::InvalidConfig, "give a URL as argument, or set DATABASE_URL"))?;

    // The field `text` is embedded. These embeddings need no model and compare spelling; in production take a model's, for
    // instance by `checkpoint-embeddings`.
    let index = IndexConfig::new(256, NgramEmbeddings::new(256)).fields(["text"]);
    let store = PostgresStore::builder(url).schema("memory_example").index(index).build()?;
    store.setup().await?; // Creates or migrates the tables; a no-op afterwards.

    // An item is a JSON object under a namespace and a key. All threads see it.
    let ann = ["users", "ann", "memories"];
    store.put(ann, "food", json!({"text": "likes pizza with olives", "stars": 5})).await?;
    store.put(ann, "music", json!({"text": "plays the piano", "stars": 3})).await?;
    store.put(ann, "mood", json!({"text": "is tired today"})).ttl(Duration::from_secs(3600)).await?;

    if let Some(item) = store.get(ann, "food").await? {
        println!("by key:      {}", item.value.as_str());
    }
    // A filter compares values, and a prefix of the namespace is enough.
    for found in store.search(["users"]).filter(ItemFilter::new().gte("stars", 4)).await? {
        println!("by filter:   {} {}", found.item.namespace, found.item.key);
    }
    // A query ranks by similarity to the embedded texts. A higher score is nearer.
    for found in store.search(["users", "ann"]).query("which pizza does she like?").limit(2).await? {
        println!("by query:    {} (score {:.2})", found.item.key, found.score.unwrap_or_default());
    }
    for namespace in store.list_namespaces().prefix(["users"]).max_depth(2).await? {
        println!("namespace:   {namespace}");
    }

    // Cleans up what this example stored, and closes the connections.
    for key in ["food", "music", "mood"] {
        store.delete(ann, key).await?;
    }
    store.close().await
}
