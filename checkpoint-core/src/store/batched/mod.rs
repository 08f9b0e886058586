//! A store that joins the calls of concurrent tasks into batches.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use async_trait::async_trait;
use futures_channel::oneshot;
use futures_util::future::{BoxFuture, Either, FutureExt, Shared, WeakShared, select};

use super::{BaseStore, Expected, GetOp, ItemIndex, Op, OpResult, PutOp, StoreCapabilities};
use crate::{Error, ErrorKind, Result, ResultExt};

/// Joins the calls of concurrent tasks into batches of the inner store. Clones join with each other.
///
/// A batch of one operation, such as every call of [`StoreExt`](super::StoreExt), waits for the joint batch that is
/// running, if there is one, and then runs together with all calls that arrived in the meantime. A hundred tasks that
/// each read an item cost the database two batches instead of a hundred, and a single task never waits. A batch of
/// several operations is passed on unchanged, and so is [`put_if`](BaseStore::put_if): neither waits for the calls that
/// are queued.
///
/// * Identical reads are run once, and each caller gets the result.
/// * Reads see the store as it was before the puts of their joint batch; of several puts to one key the last one wins.
///   To read its own put, a task awaits the put first, as with any store.
/// * A joint batch has at most 256 operations, and about 4 MiB of values to put. Further calls wait for the next batch.
/// * Operations that need embeddings (queries, and puts in a store with an index) are batched separately, so that no
///   read by key waits for a model or fails because of it.
/// * Every operation is validated before it joins. If a joint batch fails nevertheless, it is retried in halves, so
///   that only the calls whose own operations are at fault fail. Errors that single operations do not cause are
///   returned to all callers of the batch: `InvalidConfig`, `Schema`, `Unavailable`, `Timeout` and `Conflict`.
///
/// It needs no runtime and spawns no task: every caller polls the joint batch, so that no caller depends on another one
/// being polled. A caller that is dropped cancels only its own operation, unless that has started.
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
    /// Operations without embeddings.
    plain: Arc<Lane<S>>,
    embedded: Arc<Lane<S>>,
}

/// A queue of calls, and the future that runs them batch after batch.
struct Lane<S> {
    store: Arc<S>,
    state: Mutex<State>,
    /// Held while a caller polls the runner.
    ///
    /// [`Shared`] alone is not enough: a caller that finds another one polling returns `Pending` immediately. If the
    /// runner is woken at that moment, only the polling caller can poll again, and it may be dropped or never be polled.
    turn: Mutex<()>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Entry>,
    /// Completes when the queue is empty. Owned by the calls: it is dropped with the last of them.
    runner: Option<WeakShared<Runner>>,
}

type Runner = BoxFuture<'static, ()>;

/// Sends a caller its result. It is cancelled when the caller is dropped.
type Caller = oneshot::Sender<Result<OpResult>>;

struct Entry {
    op: Op,
    caller: Caller,
}

/// An operation, and all callers that wait for its result.
struct Joint {
    op: Op,
    callers: Vec<Caller>,
}

/// The maximum number of operations in a joint batch.
const MAX_OPS: usize = 256;

/// A joint batch with values of this many bytes is full.
const MAX_BYTES: usize = 4 << 20;

impl<S: BaseStore> BatchedStore<S> {
    /// Joins the calls on this store.
    pub fn new(store: S) -> Self {
        let store = Arc::new(store);
        let lane =
            || Arc::new(Lane { store: Arc::clone(&store), state: Mutex::default(), turn: Mutex::default() });
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
    async fn call(self: &Arc<Self>, op: Op) -> Result<OpResult> {
        let (caller, result) = oneshot::channel();
        let mut runner = self.enqueue(Entry { op, caller });
        let driven = async {
            // Concurrent calls, by other tasks or by this one, can still join the batch.
            pause().await;
            poll_fn(|task| {
                let _turn = lock(&self.turn);
                runner.poll_unpin(task)
            })
            .await;
        };
        let driven = std::pin::pin!(driven);
        let result = match select(result, driven).await {
            Either::Left((result, _)) => result.ok(),
            Either::Right(((), mut result)) => result.try_recv().ok().flatten(),
        };
        result
            .unwrap_or_else(|| Err(Error::new(ErrorKind::Backend, "the joint batch ended without a result")))
    }

    fn enqueue(self: &Arc<Self>, entry: Entry) -> Shared<Runner> {
        let mut state = lock(&self.state);
        state.queue.push_back(entry);
        // A runner that still exists has not seen an empty queue, and will run this call before it does.
        if let Some(runner) = state.runner.as_ref().and_then(WeakShared::upgrade) {
            return runner;
        }
        let runner = self.runner();
        state.runner = runner.downgrade();
        runner
    }

    fn runner(self: &Arc<Self>) -> Shared<Runner> {
        // Created outside the future, so that it is dropped even with a runner that was never polled.
        let lane = Purge(Arc::clone(self));
        let run = async move {
            while let Some(batch) = lane.0.next() {
                run(&*lane.0.store, batch).await;
                // Callers that got their results can make their next calls.
                pause().await;
            }
        };
        run.boxed().shared()
    }

    /// Takes the next batch from the queue. The runner ends if there is none.
    fn next(&self) -> Option<Vec<Joint>> {
        let mut batch = Batch::default();
        let mut state = lock(&self.state);
        while batch.has_room()
            && let Some(Entry { op, caller }) = state.queue.pop_front()
        {
            if !caller.is_canceled() {
                batch.add(op, caller);
            }
        }
        if batch.reads.is_empty() && batch.puts.is_empty() {
            state.runner = None;
            return None;
        }
        Some(batch.into_ops())
    }
}

/// Removes the calls of dropped callers from the queue, when the runner is dropped with the last caller.
struct Purge<S>(Arc<Lane<S>>);

impl<S> Drop for Purge<S> {
    fn drop(&mut self) {
        lock(&self.0.state).queue.retain(|entry| !entry.caller.is_canceled());
    }
}

// Only polls under `turn` can panic while a lock is held, and `turn` protects no data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Yields to the executor once.
async fn pause() {
    let mut has_paused = false;
    poll_fn(|task| {
        if has_paused {
            return Poll::Ready(());
        }
        has_paused = true;
        task.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
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
        self.reads.len() + self.puts.len() < MAX_OPS && self.bytes < MAX_BYTES
    }

    fn add(&mut self, op: Op, caller: Caller) {
        let next = self.reads.len();
        let earlier = match &op {
            Op::Put(put) => {
                self.bytes += put.value.as_ref().map_or(0, |value| value.as_str().len());
                // Not joined by key: in the inner store the last one wins, and each may fail on its own.
                self.puts.push(Joint { op, callers: vec![caller] });
                return;
            }
            Op::Get(get) => *self.gets.entry(get.clone()).or_insert(next),
            // Rare, and cheap to compare.
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

    /// Reads before puts, so that reads do not see the puts if the batch is split.
    fn into_ops(mut self) -> Vec<Joint> {
        self.reads.append(&mut self.puts);
        self.reads
    }
}

/// Runs a batch. If one of its operations may be at fault, runs the halves.
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
            Err(error) => fail(part, error),
        }
    }
}

async fn attempt<S: BaseStore>(store: &S, ops: Vec<Op>) -> Result<Vec<OpResult>> {
    let count = ops.len();
    // A panic becomes an error, so that all callers get it, not just the one that polls.
    let results = AssertUnwindSafe(async { store.batch(ops).await }).catch_unwind().await;
    let wrong = match results {
        Ok(Ok(results)) if results.len() == count => return Ok(results),
        Ok(Ok(_)) => "the store returned a different number of results than operations",
        Ok(Err(error)) => return Err(error),
        Err(_) => "the store panicked",
    };
    Err(Error::new(ErrorKind::Backend, wrong).at(store.backend(), "batch"))
}

/// Whether a single operation may have caused an error. Errors of the database or the embeddings affect all operations.
fn is_of_one(error: &Error) -> bool {
    use ErrorKind::{Conflict, InvalidConfig, Schema, Timeout, Unavailable};
    !error.is_retryable() && ![InvalidConfig, Schema, Unavailable, Timeout, Conflict].contains(&error.kind())
}

fn fail(part: Vec<Joint>, error: Error) {
    let mut callers: Vec<_> = part.into_iter().flat_map(|joint| joint.callers).collect();
    // Sending fails if the caller was dropped meanwhile; it needs no result.
    if callers.len() == 1 {
        let _ = callers.remove(0).send(Err(error));
        return;
    }
    let error = Arc::new(error);
    for caller in callers {
        let _ = caller.send(Err(Error::share(&error)));
    }
}

impl Joint {
    fn succeed(self, result: &OpResult) {
        for caller in self.callers.into_iter().filter(|caller| !caller.is_canceled()) {
            let _ = caller.send(Ok(result.clone()));
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

    async fn ping(&self) -> Result<()> {
        self.store.ping().await
    }

    async fn check_schema(&self) -> Result<()> {
        self.store.check_schema().await
    }

    /// Runs a batch as [`BaseStore::batch`] does, joined with concurrent calls if it has one operation.
    ///
    /// # Cancellation
    /// A dropped batch has stored all of its puts or none, or they are stored later: a joint batch that has started
    /// continues for its other callers.
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

    async fn put_if(&self, put: PutOp, expected: Expected) -> Result<()> {
        self.store.put_if(put, expected).await
    }

    async fn sweep_ttl(&self) -> Result<u64> {
        self.store.sweep_ttl().await
    }

    async fn close(&self) -> Result<()> {
        self.store.close().await
    }
}
