//! The in-memory store: the reference that every other store is compared with.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use futures_util::future::{self, ready};

use super::BACKEND;
use super::items::{CheckedPut, Items, Micros, Query};
use crate::backend::{Calls, Operation};
use crate::store::{
    BaseStore, Expected, IndexConfig, Op, OpResult, Ops, PutOp, StoreCapabilities, TtlConfig,
};
use crate::{Error, Result, ResultExt};

/// Keeps items in memory, for tests and for agents that need no durability. Clones share their items.
///
/// A batch runs under one lock, so it is atomic and sees all earlier batches. Texts are embedded before the lock is
/// taken, so other batches run meanwhile.
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
/// // Any `Embeddings` will do: these need no model, but know only spelling.
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
/// # Details that other stores may handle differently
///
/// * A search is exact: it reads every item under its namespace, and with a query all their vectors. Its cost is linear
///   in their number; items of other namespaces add none.
/// * With [`Distance::Cosine`](crate::store::Distance::Cosine) a vector of zeros never matches: an item without another
///   vector is not found by queries, and a query with such a vector finds nothing. A score is never NaN.
/// * Each batch of puts has a later `updated_at` than the one before, by at least a microsecond, even if the clock was
///   set back. The puts of one batch have the same.
/// * A TTL has a resolution of a microsecond. Puts and [`sweep_ttl`](BaseStore::sweep_ttl) remove expired items; nothing
///   runs in the background.
/// * A value is stored as its text. It is parsed when a filter first reads it, and the parsed form is kept as well.
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
        Self { calls: Calls::store(BACKEND, BACKEND), items: RwLock::default(), index, ttl }
    }
}

/// Builds an [`InMemoryStore`].
#[derive(Debug, Clone, Default)]
#[must_use = "call build()"]
pub struct InMemoryStoreBuilder {
    index: Option<IndexConfig>,
    ttl: TtlConfig,
}

impl InMemoryStoreBuilder {
    /// Enables semantic search.
    pub fn index(mut self, index: IndexConfig) -> Self {
        self.index = Some(index);
        self
    }

    /// Sets the default TTL of items. Without it they do not expire, unless their put sets a TTL.
    pub fn ttl(mut self, ttl: TtlConfig) -> Self {
        self.ttl = ttl;
        self
    }

    /// Creates an empty store.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for an invalid index or TTL.
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
    /// Creates an empty store without an index, in which items do not expire unless their put sets a TTL.
    pub fn new() -> Self {
        Self(Arc::new(Shared::new(None, TtlConfig::default())))
    }

    /// Configures a store with an index or a default TTL.
    pub fn builder() -> InMemoryStoreBuilder {
        InMemoryStoreBuilder::default()
    }

    // Nothing panics while the lock is held (out of memory aborts the process), so a poisoned lock can be used.
    fn read(&self) -> RwLockReadGuard<'_, Items> {
        self.0.items.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Items> {
        self.0.items.write().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(&self, ops: Vec<Op>, clock: impl Fn() -> Micros + Send) -> Result<Vec<OpResult>> {
        let count = ops.len();
        let ops = Ops::new(ops, BACKEND, self.0.index.as_ref())?;
        let ttls = self.check_puts(&ops.puts)?;
        let (queries, vectors) = self.embed(&ops).await?;
        self.apply(count, ops, ttls, &queries, vectors, &clock)
    }

    async fn run_if(&self, put: PutOp, expected: Expected, clock: impl Fn() -> Micros + Send) -> Result<()> {
        let ops = Ops::new(vec![Op::Put(put)], BACKEND, self.0.index.as_ref())?;
        let ttls = self.check_puts(&ops.puts)?;
        let (_, vectors) = self.embed(&ops).await?;
        let mut items = self.write();
        let now = clock();
        if let Some(put) = ops.puts.iter().find(|put| !expected.is_met(items.updated_at(put, now))) {
            return Err(expected.conflict(put));
        }
        items.sweep(now);
        items.put(checked(ops.puts, ttls, vectors), now);
        Ok(())
    }

    /// Returns the TTLs of puts.
    fn check_puts(&self, puts: &[PutOp]) -> Result<Vec<Option<Duration>>> {
        let check = |put: &PutOp| {
            if let Some(value) = &put.value {
                // `JsonObject::from_stored` does not check its text; invalid JSON would later fail every filter.
                value.to_value().map_err(|error| {
                    Error::invalid_argument("the item's value is not valid JSON").with_source(error)
                })?;
            }
            put.ttl.resolve(&self.0.ttl)
        };
        puts.iter().map(check).collect()
    }

    /// Returns the vectors of the searches, and those of the puts.
    async fn embed(&self, ops: &Ops) -> Result<(Vec<Option<Vector>>, Vec<Vec<Vector>>)> {
        let Some(index) = &self.0.index else {
            return Ok((vec![None; ops.searches.len()], vec![Vec::new(); ops.puts.len()]));
        };
        let queries = index.embed_searches(&ops.searches);
        let (queries, puts) = future::try_join(queries, index.embed_puts(&ops.puts)).await?;
        let vectors = |named: Vec<(String, Vector)>| named.into_iter().map(|(_, vector)| vector).collect();
        Ok((queries, puts.into_iter().map(vectors).collect()))
    }

    /// Runs the batch under the lock.
    fn apply(
        &self,
        count: usize,
        ops: Ops,
        ttls: Vec<Option<Duration>>,
        queries: &[Option<Vector>],
        vectors: Vec<Vec<Vector>>,
        clock: &impl Fn() -> Micros,
    ) -> Result<Vec<OpResult>> {
        if ops.puts.is_empty() {
            let items = self.read();
            return self.run_reads(&items, count, &ops, queries, clock());
        }
        let mut items = self.write();
        let now = clock();
        let results = self.run_reads(&items, count, &ops, queries, now)?;
        items.sweep(now);
        items.put(checked(ops.puts, ttls, vectors), now);
        Ok(results)
    }

    fn run_reads(
        &self,
        items: &Items,
        count: usize,
        ops: &Ops,
        queries: &[Option<Vector>],
        now: Micros,
    ) -> Result<Vec<OpResult>> {
        let refresh = |wanted: Option<bool>| wanted.unwrap_or(self.0.ttl.refresh_on_read);
        let mut results = vec![OpResult::Done; count];
        let mut set = |at: usize, result| {
            if let Some(slot) = results.get_mut(at) {
                *slot = result;
            }
        };
        for (at, get) in &ops.gets {
            set(*at, OpResult::Item(items.get(get, refresh(get.refresh_ttl), now)));
        }
        let distance = self.0.index.as_ref().map(|index| index.distance).unwrap_or_default();
        for ((at, search), vector) in ops.searches.iter().zip(queries) {
            let query = vector.as_deref().map(|vector| Query { vector, distance });
            let found = items.search(search, query.as_ref(), refresh(search.refresh_ttl), now)?;
            set(*at, OpResult::Items(found));
        }
        for (at, list) in &ops.lists {
            set(*at, OpResult::Namespaces(items.list(list, now)));
        }
        Ok(results)
    }
}

type Vector = Arc<[f32]>;

fn checked(
    puts: Vec<PutOp>,
    ttls: Vec<Option<Duration>>,
    vectors: Vec<Vec<Vector>>,
) -> impl Iterator<Item = CheckedPut> {
    let puts = puts.into_iter().zip(ttls).zip(vectors);
    puts.map(|((op, ttl), vectors)| CheckedPut { op, ttl, vectors })
}

/// Microseconds since 1970.
fn now() -> Micros {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Micros::try_from(since_epoch.as_micros()).unwrap_or(Micros::MAX)
}

/// Omits the items, which are user data.
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

    async fn ping(&self) -> Result<()> {
        self.0.calls.run(Operation::ping(), ready(Ok(()))).await
    }

    async fn check_schema(&self) -> Result<()> {
        self.0.calls.run(Operation::check_schema(), ready(Ok(()))).await
    }

    async fn batch(&self, ops: Vec<Op>) -> Result<Vec<OpResult>> {
        self.0.calls.run(Operation::batch(&ops), self.run(ops, now)).await
    }

    async fn put_if(&self, put: PutOp, expected: Expected) -> Result<()> {
        self.0.calls.run(Operation::put_if(&put), self.run_if(put, expected, now)).await
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
