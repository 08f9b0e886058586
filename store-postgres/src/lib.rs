//! LangGraph stores in PostgreSQL, in the tables of Python LangGraph (`langgraph-checkpoint-postgres`), with semantic
//! search by pgvector.
//!
//! ```no_run
//! use checkpoint_core::store::{BaseStore, IndexConfig, ItemFilter, NgramEmbeddings, StoreExt};
//! use serde_json::json;
//! use store_postgres::PostgresStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> checkpoint_core::Result<()> {
//! let store = PostgresStore::builder("postgres://agents@localhost/agents?sslmode=verify-full")
//!     .index(IndexConfig::new(256, NgramEmbeddings::new(256)).fields(["text"])) // for queries; optional
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
//! # Tables
//!
//! | table | key | other columns |
//! |---|---|---|
//! | `store` | `prefix, key` | `value`: JSON; `created_at`, `updated_at`; `expires_at` and `ttl_minutes` of items that expire |
//! | `store_vectors` | `prefix, key, field_name` | `embedding`: `vector` or `halfvec`; deleted with the item |
//! | `store_migrations`, `vector_migrations` | `v` | the migrations that were run |
//!
//! `prefix` is the namespace, its labels joined by dots. `store_vectors` and its index `store_vectors_embedding_idx`
//! exist only with an [`IndexConfig`](checkpoint_core::store::IndexConfig). Everything but the index for filters
//! (`store_value_idx`, [`PostgresStoreBuilder::filter_index`]) is created by Python's migrations: either side may set up
//! the tables.
//!
//! # Round trips
//!
//! A batch takes one statement and one round trip for each kind of operation in it, and one more if it read items whose
//! TTL is refreshed. Embeddings are computed before the first statement.
//!
//! | operation | finds its rows by |
//! |---|---|
//! | `get` | the primary key |
//! | `search` | the index on prefixes, or the index for filters if there is one; sorts the matches |
//! | `search` with a query | all vectors under the namespace if it has at most 1,000 items, or with [`AnnIndex::Flat`]: exact. Otherwise the vector index, by an iterative scan (pgvector 0.8) until enough vectors match namespace and filter. If the scan ends early or yields too few items, the search is repeated with more candidates, and finally over all vectors: 1 or 2 more round trips. The first search of a process takes 1 more, for the version of pgvector |
//! | `list_namespaces` | a skip scan of the index on prefixes |
//! | `put`, `delete` | the primary key; vectors in the same statement |
//! | `put_if` | the primary key; vectors in the same statement. 1 round trip, whether the item is as expected or not |
//! | `sweep_ttl` | the index on expiry, 1,000 items a round trip, until one finds fewer |
//! | `ping` | nothing: 1 round trip |
//! | `check_schema` | 1 round trip, 1 more with an index for filters, 3 more with one for queries |
//! | `setup` | 1 round trip once the tables exist, 1 more with an index for filters, 4 more with one for queries |
//!
//! The conformance suite counts round trips and statements, and compares them with this page.
//!
//! A statement's first use on a connection takes one more round trip. Behind PgBouncer in transaction mode
//! ([`PostgresStoreBuilder::pgbouncer`]) statements are unnamed: that round trip is saved, but each call is planned again.
//! Batches of puts are one pipelined transaction. So are searches by a vector index, which set `hnsw.ef_search`
//! ([`PostgresStoreBuilder::ef_search`], 100 unless set) or `ivfflat.probes`.
//!
//! # Isolation
//!
//! The puts and deletions of a batch are atomic and have the same timestamp; only where an item's last put has the same or
//! a later one, it is a microsecond after that, so that each put of an item has a later one. The batch's reads run before
//! them; each kind of operation reads one snapshot of committed data. Every write but `put_if` and the put of a single
//! item without vectors, which lock the row of one item only, takes advisory locks first (class 1937010546, at most 256
//! keys, in sorted order), which prevents deadlocks between batches
//! that share items. Python's writers take no such locks; on a deadlock with them the call is retried. A call that fails
//! because the server restarts, the connection was lost, or another transaction conflicted is retried too (see
//! [`PostgresStoreBuilder::max_retries`]): every operation is safe to run twice, but a `put_if` whose reply was lost may
//! find its own item and report a conflict. A dropped call leaves no connection inside
//! a transaction; the statements that it sent run to completion.
//!
//! # Time to live
//!
//! An item is invisible from the moment it expires; [`PostgresStore::start_ttl_sweeper`] or `sweep_ttl` delete it. The
//! column `ttl_minutes` holds whole minutes: reading an item extends its life by its TTL, rounded up to minutes.
//!
//! # What differs from Python's store
//!
//! | Python | here |
//! |---|---|
//! | `$gt`, `$lte` and so on compare as text: 10 < 3 | numbers compare with numbers, texts with texts by code point |
//! | a filter by an object without operators is an error | it is a condition on the object's entries; operators may be nested deeper |
//! | an empty object in a filter is ignored | the entry has to be an object |
//! | a TTL of half a minute or less is stored as 0, and reading such an item makes it expire | it is rounded up, and reading never shortens a life |
//! | expired items are visible until they are swept, unless `omit_expired` is set | they are invisible |
//! | an item put over an expired one keeps its `created_at` | it is a new one |
//! | puts in the same microsecond have the same `updated_at` | every put of an item has a later one. Python's put goes unnoticed by `put_if` only if it has the very microsecond that was expected |
//! | vectors of removed fields stay, and the item is found by them | they are deleted |
//! | a query without an index is ignored | it is an error: [`Unsupported`](checkpoint_core::ErrorKind::Unsupported) |
//! | an empty query is ignored | it is a query |
//! | integers beyond 64 bits are embedded as their digits | as the text of the nearest double |
//! | `index=["$"]` in a put finds nothing | it is the whole value, as in the configuration |
//! | a vector of zeros has the score NaN | with cosine distance it is not found |
//! | namespaces are listed in the database's collation, items put at the same time in any order | by code point |
//! | an index for another distance, or vectors of another length, fail searches and puts | they fail `setup` |
//!
//! As with Python's store, a store without an index leaves the vectors of the items that it writes unchanged.
//!
//! # Encryption
//!
//! Nothing is encrypted: a filter has to read values, and vectors reveal what texts are about. Keep secrets out of a
//! store, or encrypt the server's disk.
//!
//! # Errors
//!
//! | kind | when |
//! |---|---|
//! | `InvalidConfig` | a connection string or option is invalid; password, role, database or certificate is rejected; the role lacks a privilege; there is no tokio runtime with I/O and timers; the embeddings return vectors of another length than `dims` |
//! | `Schema` | the tables are missing (run `setup()`), newer than this program, or made for another index; the server has no pgvector (the message says what to install) |
//! | `InvalidArgument` | an invalid namespace, filter, TTL or value; U+0000 in a key or value; an id too long for an index |
//! | `Unsupported` | a query without an index; the server is read-only |
//! | `Unavailable` | the server cannot be reached or shuts down; may be retried |
//! | `Timeout` | no connection became free, a statement ran for too long, or a lock was not granted |
//! | `Conflict` | another transaction conflicted; may be retried. The item of a `put_if` is not as expected; not retryable |
//!
//! Errors of the embeddings are returned unchanged; nothing was stored then.

mod builder;
mod filter;
mod read;
mod schema;
mod sql;
mod store;
mod sweep;
mod write;

pub use builder::{AnnIndex, PostgresStoreBuilder, VectorType};
pub use common_postgres::{PostgresConfig, SslMode, deadpool_postgres, secrecy, tokio_postgres};
pub use store::PostgresStore;
pub use sweep::TtlSweeper;
