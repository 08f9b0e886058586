//! Long-term memory: items under namespaces, shared by all threads, found by key, by filter and by semantic search.
//!
//! * [`BaseStore`] is the trait that a backend implements; its operations are [`batch`](BaseStore::batch) and
//!   [`put_if`](BaseStore::put_if). [`StoreExt`] has `get`, `put`, `delete`, `search` and `list_namespaces` on top of
//!   them.
//! * [`InMemoryStore`](crate::InMemoryStore) keeps everything in the process; it is the reference for all others.
//! * [`BatchedStore`] combines the calls of concurrent tasks into one batch.
//! * [`IndexConfig`] and [`Embeddings`] configure semantic search, [`TtlConfig`] expiry.
//!
//! ```
//! use checkpoint_core::store::{ItemFilter, StoreExt};
//! use checkpoint_core::InMemoryStore;
//! use serde_json::json;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> checkpoint_core::Result<()> {
//! let store = InMemoryStore::new();
//! store.put(["users", "ann"], "prefs", json!({"theme": "dark", "visits": 12})).await?;
//!
//! let item = store.get(["users", "ann"], "prefs").await?.unwrap();
//! assert_eq!(item.value.decode::<serde_json::Value>()?["theme"], "dark");
//!
//! let often = store.search(["users"]).filter(ItemFilter::new().gt("visits", 9)).await?;
//! assert_eq!(often[0].item.key.as_ref(), "prefs");
//! # Ok(())
//! # }
//! ```

mod batched;
mod ext;
mod filter;
mod index;
mod item;
mod namespace;
mod ngram;
mod op;
mod path;
mod ttl;

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;

use crate::{Error, Result};

pub use batched::BatchedStore;
pub use ext::{Decoded, DecodedGet, DecodedSearch, Delete, Get, ListNamespaces, Put, Search, StoreExt};
pub use filter::{Comparison, Condition, ItemFilter};
pub use index::{Distance, Embeddings, IndexConfig, IndexedText, ItemIndex};
pub use item::{Item, JsonObject, SearchItem};
pub use namespace::{MatchCondition, Namespace};
pub use ngram::NgramEmbeddings;
pub use op::{Expected, GetOp, ListNamespacesOp, Op, OpResult, Ops, PutOp, SearchOp};
pub use ttl::{Ttl, TtlConfig};

/// The optional capabilities of a store. The conformance suite checks that it has those it declares, and no others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCapabilities {
    /// Searches may have a query, because the store has an [`IndexConfig`]. Without it they fail with
    /// [`Unsupported`](crate::ErrorKind::Unsupported).
    pub semantic_search: bool,
    /// Items outlive the process.
    pub durable: bool,
    /// Calls do no I/O: their futures are ready when they are first polled, unless texts have to be embedded.
    pub immediate: bool,
}

impl StoreCapabilities {
    /// A durable store, with or without semantic search.
    pub const fn durable(semantic_search: bool) -> Self {
        Self { semantic_search, durable: true, immediate: false }
    }

    /// A store that ends with the process and does no I/O, with or without an index for queries.
    pub const fn in_memory(semantic_search: bool) -> Self {
        Self { semantic_search, durable: false, immediate: true }
    }
}

/// Keeps items under namespaces. Backends implement it; [`StoreExt`] has the calls that users make.
///
/// Expired items are invisible, even before [`sweep_ttl`](Self::sweep_ttl) has removed them.
#[async_trait]
pub trait BaseStore: Debug + Send + Sync + 'static {
    /// The backend's name, such as `postgres`: used in errors and spans.
    fn backend(&self) -> &'static str;

    /// What this store can do.
    fn capabilities(&self) -> StoreCapabilities;

    /// Creates or upgrades the tables. Idempotent, and safe to run from many processes concurrently.
    ///
    /// # Errors
    /// [`Schema`](crate::ErrorKind::Schema) when the tables are newer than this program, `Timeout` when another
    /// process holds the lock for too long, and any error from the database.
    ///
    /// # Cancellation
    /// A dropped call leaves every migration applied or not; the next call runs the rest.
    async fn setup(&self) -> Result<()>;

    /// Checks that the database can be reached, in one round trip, also before [`setup`](Self::setup). Retries at most
    /// once. For health checks.
    ///
    /// # Errors
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if it cannot be reached, and any other error from connecting to it.
    ///
    /// # Cancellation
    /// Changes nothing; may be dropped at any time.
    async fn ping(&self) -> Result<()>;

    /// Checks that [`setup`](Self::setup) has nothing left to do that calls depend on, and changes nothing. For readiness
    /// probes, and for programs whose role may not create tables.
    ///
    /// # Errors
    /// [`Schema`](crate::ErrorKind::Schema) if tables are missing, incomplete, older than needed, or newer than this
    /// program, and any error from the database.
    ///
    /// # Cancellation
    /// Changes nothing; may be dropped at any time.
    async fn check_schema(&self) -> Result<()>;

    /// Runs operations, and returns one result for each, in their order.
    ///
    /// The reads run first, so that they see the store as it was before the batch. Then the puts are applied
    /// atomically; of several puts to one key the last one counts. Every operation is checked before any is run.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid operation (see [`Op::check`]) or a value that the database cannot store,
    /// `Unsupported` for a query without an index, and any error from the embeddings or the database. No put has taken
    /// effect then, unless the connection was lost before the database confirmed it.
    ///
    /// # Cancellation
    /// A dropped batch has stored all of its puts or none.
    async fn batch(&self, ops: Vec<Op>) -> Result<Vec<OpResult>>;

    /// Stores or deletes an item if it is as expected, atomically: compare and set. Of several calls with the same
    /// expectation exactly one succeeds, and a put or deletion in between makes them all fail. A put without a value
    /// deletes the item.
    ///
    /// If the reply is lost, the call is retried and may then find its own item: it fails with `Conflict` although it
    /// took effect. Read the item to know.
    ///
    /// # Errors
    /// [`Conflict`](crate::ErrorKind::Conflict), which is not retryable, if the item is not as expected; nothing was
    /// changed then. Otherwise as [`batch`](Self::batch).
    ///
    /// # Cancellation
    /// A dropped call took effect completely or not at all.
    async fn put_if(&self, put: PutOp, expected: Expected) -> Result<()>;

    /// Removes expired items, and returns their number.
    ///
    /// # Errors
    /// Any error from the database.
    ///
    /// # Cancellation
    /// A dropped call may have removed some of them.
    async fn sweep_ttl(&self) -> Result<u64>;

    /// Closes the store and its clones: refuses calls from now on, waits for those under way, and releases connections.
    /// Idempotent. Later calls fail with `Unavailable`.
    ///
    /// A pool that belongs to the application stays open. Dropping a store without closing it is safe.
    ///
    /// # Errors
    /// Any error from the database while it is released; the store is closed all the same.
    ///
    /// # Cancellation
    /// Calls stay refused. The next `close` goes on.
    async fn close(&self) -> Result<()>;
}

macro_rules! forward {
    ($wrapper:ident) => {
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<T: BaseStore + ?Sized> BaseStore for $wrapper<T> {
            fn backend(&self) -> &'static str {
                (**self).backend()
            }
            fn capabilities(&self) -> StoreCapabilities {
                (**self).capabilities()
            }
            async fn setup(&self) -> Result<()> {
                (**self).setup().await
            }
            async fn ping(&self) -> Result<()> {
                (**self).ping().await
            }
            async fn check_schema(&self) -> Result<()> {
                (**self).check_schema().await
            }
            async fn batch(&self, ops: Vec<Op>) -> Result<Vec<OpResult>> {
                (**self).batch(ops).await
            }
            async fn put_if(&self, put: PutOp, expected: Expected) -> Result<()> {
                (**self).put_if(put, expected).await
            }
            async fn sweep_ttl(&self) -> Result<u64> {
                (**self).sweep_ttl().await
            }
            async fn close(&self) -> Result<()> {
                (**self).close().await
            }
        }
    };
}

forward!(Arc);
forward!(Box);

/// The error of a search with a query in a store without an index.
pub(crate) fn no_index(backend: &'static str) -> Error {
    Error::new(
        crate::ErrorKind::Unsupported,
        "a search with a query needs an index; give the store an IndexConfig, or search by filter",
    )
    .at(backend, "search")
}
