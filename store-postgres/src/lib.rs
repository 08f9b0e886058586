//! LangGraph stores in PostgreSQL, in the very tables that LangGraph's Python (`langgraph-checkpoint-postgres`) uses,
//! with semantic search by pgvector.
//!
//! ```no_run
//! use checkpoint_core::store::{BaseStore, IndexConfig, ItemFilter, NgramEmbeddings, StoreExt};
//! use serde_json::json;
//! use store_postgres::PostgresStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> checkpoint_core::Result<()> {
//! let store = PostgresStore::builder("postgres://agents@localhost/agents?sslmode=verify-full")
//!     .index(IndexConfig::new(256, NgramEmbeddings::new(256)).fields(["text"])) // for queries; may be left out
//!     .build()?;
//! store.setup().await?;
//!
//! store.put(["users", "ann"], "food", json!({"text": "likes pizza", "stars": 5})).await?;
//! let found = store.search(["users"]).filter(ItemFilter::new().gte("stars", 4)).query("pizza?").await?;
//! assert_eq!(found[0].item.key.as_ref(), "food");
//! # Ok(())
//! # }
//! ```
//!
//! # Where the bytes go
//!
//! | table | key | other columns |
//! |---|---|---|
//! | `store` | `prefix, key` | `value`: JSON; `created_at`, `updated_at`; `expires_at` and `ttl_minutes` of items that expire |
//! | `store_vectors` | `prefix, key, field_name` | `embedding`: `vector` or `halfvec`; goes with the item |
//! | `store_migrations`, `vector_migrations` | `v` | the migrations that were run |
//!
//! `prefix` is the namespace, its labels joined by dots. `store_vectors` and its index `store_vectors_embedding_idx` are
//! there with an [`IndexConfig`](checkpoint_core::store::IndexConfig) alone. All but the index for filters
//! (`store_value_idx`, [`PostgresStoreBuilder::filter_index`]) is as Python makes it, in Python's migrations: either side
//! may set up the tables.
//!
//! # Round trips
//!
//! A batch is one statement and one round trip for each kind of operation in it, and one more where it read items whose
//! time to live begins anew. Embeddings are asked before the first of them.
//!
//! | operation | finds its rows by |
//! |---|---|
//! | `get` | the primary key |
//! | `search` | the index on prefixes, or the index for filters if there is one; sorts what it finds |
//! | `search` with a query | all vectors under the namespace where that has at most 1,000 items, or with [`AnnIndex::Flat`]: exact. Else the index of vectors, which goes on (pgvector 0.8) until enough of them fit namespace and filter. Where the index gives up early, or brings fewer items than were wanted, the search is repeated further, and in the end over all vectors: 1 or 2 round trips more. The first of a process is 1 more, to learn the version of pgvector |
//! | `list_namespaces` | jumps from one namespace to the next in the index on prefixes |
//! | `put`, `delete` | the primary key; vectors in the same statement |
//! | `sweep_ttl` | the index on expiry, 1,000 items a round trip |
//! | `setup` | 1 round trip once the tables are there, 1 more with an index for filters, 4 more with one for queries |
//!
//! The first time that a connection sees a statement costs one round trip more; behind PgBouncer in transaction mode
//! ([`PostgresStoreBuilder::pgbouncer`]) statements have no names, and that cost is none, but each is planned anew. Batches
//! of puts are a transaction, sent at once, and so are searches in an index of vectors, since they set `hnsw.ef_search`
//! ([`PostgresStoreBuilder::ef_search`], 100 unless set) or `ivfflat.probes`.
//!
//! # Isolation
//!
//! The puts and deletions of a batch are one statement: all or none of them, and all with the same time. Reads before them
//! see what was committed by then, each kind of operation one state of the database. Anything but the put of one item without
//! vectors takes advisory locks first (class 1937010546, at most 256 numbers in their order), so that batches that have items
//! in common do not wait for each other in a circle; Python's writers take none, and where the server finds a circle with
//! them, the call is repeated. A call that fails
//! because the server restarts, a connection was cut, or another transaction was in the way is repeated too (see
//! [`PostgresStoreBuilder::max_retries`]): every operation may be run twice. A dropped call leaves no connection inside of a
//! transaction; what it sent runs to its end.
//!
//! # Times to live
//!
//! An item expires exactly when its time is over, and is there for nobody from then on; [`PostgresStore::start_ttl_sweeper`]
//! or `sweep_ttl` remove it. The column `ttl_minutes` holds whole minutes: reading an item prolongs its life to its time to
//! live, rounded up to minutes.
//!
//! # What differs from Python's store
//!
//! | Python | here |
//! |---|---|
//! | `$gt`, `$lte` and so on compare as text: 10 < 3 | numbers compare with numbers, texts with texts by code point |
//! | a filter by an object without operators is an error | it is a condition on the object's entries; operators may stand deeper |
//! | an empty object in a filter is no condition | the entry has to be an object |
//! | a time to live of half a minute or less is stored as 0, and reading such an item lets it expire | it is rounded up, and reading never shortens a life |
//! | expired items are there until they are swept, unless `omit_expired` is set | they are not there |
//! | an item put over one that has expired keeps its `created_at` | it is a new one |
//! | vectors of fields that an item no longer has stay, and it is found by them | they go |
//! | a query without an index is left out of account | it is an error: [`Unsupported`](checkpoint_core::ErrorKind::Unsupported) |
//! | a query that is the empty text is none | it is a query |
//! | integers beyond 64 bits are embedded as their digits | as the text of the nearest double |
//! | `index=["$"]` in a put finds nothing | it is the whole value, as in the configuration |
//! | a vector of zeros has the score NaN | by cosine it is not found |
//! | namespaces are listed in the database's collation, items put at the same time in any order | by code point |
//! | an index for another distance, or vectors of another length, are found out by searches and puts | `setup` says so |
//!
//! As with Python's, a store without an index leaves the vectors of items that it writes as they are.
//!
//! # What is not encrypted
//!
//! Everything: a filter has to see values, and vectors tell what texts are about. Keep secrets out of a store, or use a
//! database that encrypts its disk.
//!
//! # Errors
//!
//! | kind | when |
//! |---|---|
//! | `InvalidConfig` | a connection string or option is invalid; password, role, database or certificate is refused; the role lacks a privilege; the embeddings make vectors of another length than `dims` |
//! | `Schema` | the tables are missing (run `setup()`), newer than this program, or made for another index; the server has no pgvector (says what to install) |
//! | `InvalidArgument` | a namespace, filter, time to live or value that cannot be; U+0000 in a key or value; an id too long for an index |
//! | `Unsupported` | a query without an index; the server is read-only |
//! | `Unavailable` | the server cannot be reached or shuts down; may be repeated |
//! | `Timeout` | no connection became free, a statement ran for too long, or a lock was not granted |
//! | `Conflict` | another transaction was in the way; may be repeated |
//!
//! What the embeddings say comes as it is; nothing was stored then.

mod builder;
mod filter;
mod read;
mod schema;
mod sql;
mod store;
mod sweep;
mod write;

pub use builder::{AnnIndex, PostgresStoreBuilder, VectorType};
pub use common_postgres::{PostgresConfig, SslMode, deadpool_postgres, tokio_postgres};
pub use store::PostgresStore;
pub use sweep::TtlSweeper;
