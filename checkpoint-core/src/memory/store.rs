//! The in-memory store: the model that every other store is compared with.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use futures_util::future::{self, ready};

use super::BACKEND;
use super::items::{Items, Micros, Query};
use crate::backend::{Calls, Operation};
use crate::store::{BaseStore, IndexConfig, Op, OpResult, Ops, StoreCapabilities, TtlConfig};
use crate::{Error, Result, ResultExt};

/// Keeps items in this process, for tests and for agents that need not outlive it. Clones share their items.
///
/// A batch is one step under one lock, so that it is atomic and sees all that came before. Texts are embedded before
/// that step; while the embeddings are waited for, other batches run.
///
/// ```
/// use std::time::Duration;
///
/// use checkpoint_core::InMemoryStore;
/// use checkpoint_core::store::{IndexConfig, NgramEmbeddings, StoreExt, TtlConfig};
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> checkpoint_core::Result<()> {
/// // Any `Embeddings` will do: these know spelling only, and need no model.
/// let index = IndexConfig::new(256, NgramEmbeddings::new(256)).fields(["text"]);
/// let store = InMemoryStore::builder()
///     .index(index)
///     .ttl(TtlConfig::new().default_ttl(Duration::from_secs(3600)))
///     .build()?;
///
/// let ann = ["memories", "ann"];
/// store.put(ann, "food", json!({"text": "Ann likes to eat pizza with olives"})).await?;
/// store.put(ann, "home", json!({"text": "Ann lives in a small house by the sea"})).await?;
///
/// let found = store.search(ann).query("a house near the sea").limit(1).await?;
/// assert_eq!(found[0].item.key.as_ref(), "home");
/// assert!(found[0].score.is_some_and(|score| score > 0.3));
/// # Ok(())
/// # }
/// ```
///
/// # What it does where databases have a choice
///
/// * A search is exact: it looks at every item under its namespace, and at all vectors of these where it has a query.
///   Searches cost time in proportion to that; the other namespaces cost nothing.
/// * By [`Distance::Cosine`](crate::store::Distance::Cosine) a vector of zeros is near to nothing: an item that has no
///   other is not found by queries, and a query whose vector is zero finds nothing. A score is never NaN.
/// * Of two puts the later one has the later `updated_at`, at least by a microsecond, even if the clock was set back.
///   Those of one batch have the same.
/// * A time to live is kept to the microsecond. What has expired is removed when something is put, and by
///   [`sweep_ttl`](BaseStore::sweep_ttl); nothing runs in the background.
/// * A value is kept as its text, and parsed when a filter first looks into it; from then on it is kept parsed, too.
#[derive(Clone)]
pub struct InMemoryStore(Arc<Shared>);

struct Shared {
    calls: Calls,
    items: RwLock<Items>,
    index: Option<IndexConfig>,
    ttl: TtlConfig,
}

impl Shared {
    fn new(index: Option<IndexConfig>, ttl: TtlConfig) -> Self {
        Self { calls: Calls::new(BACKEND, BACKEND), items: RwLock::default(), index, ttl }
    }
}

/// Puts an [`InMemoryStore`] together.
#[derive(Debug, Clone, Default)]
#[must_use = "call build()"]
pub struct InMemoryStoreBuilder {
    index: Option<IndexConfig>,
    ttl: TtlConfig,
}

impl InMemoryStoreBuilder {
    /// Makes the store search by meaning.
    pub fn index(mut self, index: IndexConfig) -> Self {
        self.index = Some(index);
        self
    }

    /// Sets how long items live. Without it they live for ever, unless their put says otherwise.
    pub fn ttl(mut self, ttl: TtlConfig) -> Self {
        self.ttl = ttl;
        self
    }

    /// Makes the store, with nothing in it.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for an index or a time to live that no store can have.
    pub fn build(self) -> Result<InMemoryStore> {
        let Self { index, ttl } = self;
        index.as_ref().map_or(Ok(()), IndexConfig::check).at(BACKEND, "build")?;
        ttl.check().at(BACKEND, "build")?;
        Ok(InMemoryStore(Arc::new(Shared::new(index, ttl))))
    }
}

impl Default for InMemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl InMemoryStore {
    /// Makes an empty store without an index, in which items live for ever unless their put says otherwise.
    pub fn new() -> Self {
        Self(Arc::new(Shared::new(None, TtlConfig::default())))
    }

    /// Begins a store with an index, or with a time to live.
    pub fn builder() -> InMemoryStoreBuilder {
        InMemoryStoreBuilder::default()
    }

    // No step can panic half-way but for want of memory, which ends the process: a poisoned lock is taken over.
    fn read(&self) -> RwLockReadGuard<'_, Items> {
        self.0.items.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Items> {
        self.0.items.write().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(&self, ops: Vec<Op>, clock: impl Fn() -> Micros + Send) -> Result<Vec<OpResult>> {
        let count = ops.len();
        let ops = Ops::new(ops, BACKEND, self.0.index.as_ref())?;
        let mut lives = Vec::with_capacity(ops.puts.len());
        for put in &ops.puts {
            lives.push(put.ttl.resolve(&self.0.ttl)?);
            if let Some(value) = &put.value {
                // What claims to come from a database need not be JSON; later it would fail every filter.
                value.to_value().map_err(|error| {
                    Error::invalid_argument("the item's value is no JSON").with_source(error)
                })?;
            }
        }
        let (queries, vectors) = self.embed(&ops).await?;
        self.step(count, ops, lives, &queries, vectors, &clock)
    }

    /// The vectors of the searches, and those of the puts.
    async fn embed(&self, ops: &Ops) -> Result<(Vec<Option<Vector>>, Vec<Vec<Vector>>)> {
        let Some(index) = &self.0.index else {
            return Ok((vec![None; ops.searches.len()], vec![Vec::new(); ops.puts.len()]));
        };
        let queries = index.embed_searches(&ops.searches);
        let (queries, puts) = future::try_join(queries, index.embed_puts(&ops.puts)).await?;
        let vectors = |named: Vec<(String, Vector)>| named.into_iter().map(|(_, vector)| vector).collect();
        Ok((queries, puts.into_iter().map(vectors).collect()))
    }

    fn step(
        &self,
        count: usize,
        ops: Ops,
        lives: Vec<Option<Duration>>,
        queries: &[Option<Vector>],
        vectors: Vec<Vec<Vector>>,
        clock: &impl Fn() -> Micros,
    ) -> Result<Vec<OpResult>> {
        if ops.puts.is_empty() {
            let items = self.read();
            return self.reads(&items, count, &ops, queries, clock());
        }
        let mut items = self.write();
        let now = clock();
        let results = self.reads(&items, count, &ops, queries, now)?;
        items.sweep(now);
        items.put(ops.puts.into_iter().zip(lives).zip(vectors).map(|((put, ttl), v)| (put, ttl, v)), now);
        Ok(results)
    }

    fn reads(
        &self,
        items: &Items,
        count: usize,
        ops: &Ops,
        queries: &[Option<Vector>],
        now: Micros,
    ) -> Result<Vec<OpResult>> {
        let refresh = |wanted: Option<bool>| wanted.unwrap_or(self.0.ttl.refresh_on_read);
        let mut results = vec![OpResult::Done; count];
        let mut answer = |at: usize, result| {
            if let Some(place) = results.get_mut(at) {
                *place = result;
            }
        };
        for (at, get) in &ops.gets {
            answer(*at, OpResult::Item(items.get(get, refresh(get.refresh_ttl), now)));
        }
        let distance = self.0.index.as_ref().map(|index| index.distance).unwrap_or_default();
        for ((at, search), vector) in ops.searches.iter().zip(queries) {
            let query = vector.as_deref().map(|vector| Query { vector, distance });
            let found = items.search(search, query.as_ref(), refresh(search.refresh_ttl), now)?;
            answer(*at, OpResult::Items(found));
        }
        for (at, list) in &ops.lists {
            answer(*at, OpResult::Namespaces(items.list(list, now)));
        }
        Ok(results)
    }
}

type Vector = Arc<[f32]>;

/// Microseconds since 1970.
fn now() -> Micros {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Micros::try_from(since_epoch.as_micros()).unwrap_or(Micros::MAX)
}

/// Without the items: they are the users'.
impl fmt::Debug for InMemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemoryStore")
            .field("items", &self.read().len())
            .field("index", &self.0.index)
            .field("ttl", &self.0.ttl)
            .finish()
    }
}

#[async_trait]
impl BaseStore for InMemoryStore {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities::in_memory(self.0.index.is_some())
    }

    async fn setup(&self) -> Result<()> {
        self.0.calls.run(Operation::setup(), ready(Ok(()))).await
    }

    async fn batch(&self, ops: Vec<Op>) -> Result<Vec<OpResult>> {
        self.0.calls.run(Operation::batch(&ops), self.run(ops, now)).await
    }

    async fn sweep_ttl(&self) -> Result<u64> {
        self.0.calls.run(Operation::sweep_ttl(), async { Ok(self.write().sweep(now())) }).await
    }

    async fn close(&self) -> Result<()> {
        self.0.calls.close(ready(Ok(()))).await
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
