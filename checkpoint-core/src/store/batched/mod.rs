//! A store that joins the calls of concurrent tasks.

mod engine;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, Weak};

use async_trait::async_trait;
use futures_util::future::FutureExt;

use self::engine::{Call, Engine, Slot, lock, pause};
use super::{BaseStore, GetOp, ItemIndex, Op, OpResult, StoreCapabilities};
use crate::{Error, ErrorKind, Result, ResultExt};

/// Joins the calls of concurrent tasks into batches of the store within. Clones join with each other.
///
/// A batch of one operation, such as every call of [`StoreExt`](super::StoreExt) is, waits for the joint batch that is
/// under way, if one is, and then runs together with all that came in the meantime. So a hundred tasks that each read
/// an item cost a database two batches, not a hundred, while a task that is alone with its call waits for nobody. A
/// batch of several operations is passed on as it is.
///
/// * Identical reads are run once, and each caller gets the result.
/// * Reads see the store as it was before the puts of their joint batch; of several puts to one key the last one
///   counts. To see what it has put, a task awaits the put before it reads, as with any store.
/// * A joint batch has at most 256 operations, and about 4 MiB of values to put. What is more waits for the next.
/// * What has to be embedded (queries, and puts in a store with an index) is joined apart from what has not, so that no
///   read by key waits for a model, or fails with it.
/// * Every operation is checked before it joins. If a joint batch fails nevertheless, it is run again in halves, so that
///   only the calls whose own operations are at fault fail. An error that does not come from single operations goes to
///   all of the batch's callers: `InvalidConfig`, `Schema`, `Unavailable`, `Timeout` and `Conflict`.
///
/// It needs no runtime and starts no task: the callers drive the joint batch, any one of them in the place of the
/// others. One that is dropped takes only its own operation along, if that has not begun.
///
/// ```
/// use checkpoint_core::InMemoryStore;
/// use checkpoint_core::store::{BatchedStore, StoreExt};
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> checkpoint_core::Result<()> {
/// let store = BatchedStore::new(InMemoryStore::new());
/// let (ann, bob) = (json!({"name": "Ann"}), json!({"name": "Bob"}));
/// // One batch of two puts.
/// let (first, second) = tokio::join!(store.put(["users"], "ann", ann), store.put(["users"], "bob", bob));
/// first?;
/// second?;
/// assert_eq!(store.search(["users"]).await?.len(), 2);
/// # Ok(())
/// # }
/// ```
pub struct BatchedStore<S> {
    store: Arc<S>,
    /// What the embeddings have no part in.
    plain: Arc<Lane<S>>,
    embedded: Arc<Lane<S>>,
}

/// Calls that wait, and what runs them batch after batch.
struct Lane<S> {
    store: Arc<S>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Entry>,
    /// It ends when the queue is empty. The calls keep it: when the last of them is gone, so is it.
    engine: Weak<Engine>,
}

struct Entry {
    op: Op,
    caller: Weak<Slot>,
}

/// An operation, and all who want its result.
struct Joint {
    op: Op,
    callers: Vec<Weak<Slot>>,
}

/// How many operations a joint batch has at most.
const MOST_OPS: usize = 256;

/// When the values of a joint batch have so many bytes, no more are added.
const MOST_BYTES: usize = 4 << 20;

impl<S: BaseStore> BatchedStore<S> {
    /// Joins the calls on this store.
    pub fn new(store: S) -> Self {
        let store = Arc::new(store);
        let lane = || Arc::new(Lane { store: Arc::clone(&store), state: Mutex::default() });
        Self { plain: lane(), embedded: lane(), store }
    }

    async fn join(&self, op: Op) -> Result<OpResult> {
        op.check()?;
        let semantic = self.store.capabilities().semantic_search;
        let has_text = match &op {
            Op::Search(search) => search.query.is_some(),
            Op::Put(put) => semantic && put.value.is_some() && put.index != ItemIndex::Off,
            Op::Get(_) | Op::ListNamespaces(_) => false,
        };
        if has_text && !semantic {
            return Err(super::no_index(self.backend()));
        }
        let lane = if has_text { &self.embedded } else { &self.plain };
        lane.call(op).await
    }
}

impl<S: BaseStore> Lane<S> {
    fn call(self: &Arc<Self>, op: Op) -> Call {
        let slot = Arc::<Slot>::default();
        let mut state = lock(&self.state);
        state.queue.push_back(Entry { op, caller: Arc::downgrade(&slot) });
        // An engine that is still there has not seen an empty queue, and will not before it has run this call.
        let engine = state.engine.upgrade().unwrap_or_else(|| {
            let engine = Arc::new(Engine::new(Arc::clone(self).run().boxed()));
            state.engine = Arc::downgrade(&engine);
            engine
        });
        engine.add(Arc::downgrade(&slot));
        Call::new(slot, engine)
    }

    async fn run(self: Arc<Self>) {
        let _leavings = Leavings(&self.state);
        while let Some(batch) = self.next() {
            run(&*self.store, batch).await;
            pause().await;
        }
    }

    /// Takes the next batch out of the queue. The engine ends if there is none.
    fn next(&self) -> Option<Vec<Joint>> {
        let mut batch = Batch::default();
        let mut state = lock(&self.state);
        while batch.has_room()
            && let Some(Entry { op, caller }) = state.queue.pop_front()
        {
            if caller.strong_count() > 0 {
                batch.add(op, caller);
            }
        }
        if batch.reads.is_empty() && batch.puts.is_empty() {
            state.engine = Weak::new();
            return None;
        }
        Some(batch.into_ops())
    }
}

/// Takes the calls out of the queue that were dropped, when the engine is dropped with the last of them.
struct Leavings<'a>(&'a Mutex<State>);

impl Drop for Leavings<'_> {
    fn drop(&mut self) {
        lock(self.0).queue.retain(|entry| entry.caller.strong_count() > 0);
    }
}

#[derive(Default)]
struct Batch {
    reads: Vec<Joint>,
    gets: HashMap<GetOp, usize>,
    puts: Vec<Joint>,
    bytes: usize,
}

impl Batch {
    fn has_room(&self) -> bool {
        self.reads.len() + self.puts.len() < MOST_OPS && self.bytes < MOST_BYTES
    }

    fn add(&mut self, op: Op, caller: Weak<Slot>) {
        let next = self.reads.len();
        let earlier = match &op {
            Op::Put(put) => {
                self.bytes += put.value.as_ref().map_or(0, |value| value.as_str().len());
                // Not joined by key: the store within lets the last one count, and each may fail for itself.
                self.puts.push(Joint { op, callers: vec![caller] });
                return;
            }
            Op::Get(get) => *self.gets.entry(get.clone()).or_insert(next),
            // These are rare, and differ early.
            Op::Search(search) => self.position(|op| matches!(op, Op::Search(earlier) if earlier == search)),
            Op::ListNamespaces(list) => {
                self.position(|op| matches!(op, Op::ListNamespaces(earlier) if earlier == list))
            }
        };
        match self.reads.get_mut(earlier) {
            Some(joint) => joint.callers.push(caller),
            None => self.reads.push(Joint { op, callers: vec![caller] }),
        }
    }

    fn position(&self, is_same: impl Fn(&Op) -> bool) -> usize {
        self.reads.iter().position(|joint| is_same(&joint.op)).unwrap_or(self.reads.len())
    }

    /// The reads before the puts, so that they see nothing of these if the batch has to be divided.
    fn into_ops(mut self) -> Vec<Joint> {
        self.reads.append(&mut self.puts);
        self.reads
    }
}

/// Runs a batch, and if an operation of it is at fault, its halves.
async fn run<S: BaseStore>(store: &S, batch: Vec<Joint>) {
    let mut parts = vec![batch];
    while let Some(mut part) = parts.pop() {
        let ops = part.iter().map(|joint| joint.op.clone()).collect();
        match attempt(store, ops).await {
            Ok(results) => {
                for (joint, result) in part.into_iter().zip(results) {
                    joint.succeed(&result);
                }
            }
            Err(error) if part.len() > 1 && is_of_one(&error) => {
                let later = part.split_off(part.len() / 2);
                parts.push(later);
                parts.push(part);
            }
            Err(error) => fail(&part, error),
        }
    }
}

async fn attempt<S: BaseStore>(store: &S, ops: Vec<Op>) -> Result<Vec<OpResult>> {
    let count = ops.len();
    // A panic must not leave the callers waiting that did not drive the batch.
    let results = AssertUnwindSafe(async { store.batch(ops).await }).catch_unwind().await;
    let wrong = match results {
        Ok(Ok(results)) if results.len() == count => return Ok(results),
        Ok(Ok(_)) => "the store answered with another number of results than there were operations",
        Ok(Err(error)) => return Err(error),
        Err(_) => "the store panicked",
    };
    Err(Error::new(ErrorKind::Backend, wrong).at(store.backend(), "batch"))
}

/// Whether one operation may be to blame for the failure of a batch. What is wrong with the database, or with the
/// embeddings, is wrong for all: those that are not embedded are in batches of their own.
fn is_of_one(error: &Error) -> bool {
    use ErrorKind::{Conflict, InvalidConfig, Schema, Timeout, Unavailable};
    !error.is_retryable() && ![InvalidConfig, Schema, Unavailable, Timeout, Conflict].contains(&error.kind())
}

fn fail(part: &[Joint], error: Error) {
    let callers: Vec<_> = part.iter().flat_map(|joint| &joint.callers).filter_map(Weak::upgrade).collect();
    if let [only] = &*callers {
        only.fill(Err(error));
        return;
    }
    let error = Arc::new(error);
    for caller in callers {
        caller.fill(Err(Error::share(&error)));
    }
}

impl Joint {
    fn succeed(self, result: &OpResult) {
        for caller in self.callers.iter().filter_map(Weak::upgrade) {
            caller.fill(Ok(result.clone()));
        }
    }
}

impl<S> Clone for BatchedStore<S> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            plain: Arc::clone(&self.plain),
            embedded: Arc::clone(&self.embedded),
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for BatchedStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BatchedStore").field(&self.store).finish()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: BaseStore> BaseStore for BatchedStore<S> {
    fn backend(&self) -> &'static str {
        self.store.backend()
    }

    fn capabilities(&self) -> StoreCapabilities {
        self.store.capabilities()
    }

    async fn setup(&self) -> Result<()> {
        self.store.setup().await
    }

    /// Runs a batch as [`BaseStore::batch`] says, joined with those of others if it is of one operation.
    ///
    /// # Cancellation
    /// A dropped batch has stored all of its puts or none, or stores them yet: what has begun together with the
    /// operations of others goes on with these.
    async fn batch(&self, mut ops: Vec<Op>) -> Result<Vec<OpResult>> {
        match (ops.pop(), ops.is_empty()) {
            (Some(op), true) => {
                let result = self.join(op).await.at(self.backend(), "batch")?;
                Ok(vec![result])
            }
            (last, _) => {
                ops.extend(last);
                self.store.batch(ops).await
            }
        }
    }

    async fn sweep_ttl(&self) -> Result<u64> {
        self.store.sweep_ttl().await
    }

    async fn close(&self) -> Result<()> {
        self.store.close().await
    }
}
