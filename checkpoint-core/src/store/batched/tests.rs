use std::future::IntoFuture;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use serde_json::json;
use tokio::sync::Semaphore;

use super::*;
use crate::InMemoryStore;
use crate::store::{IndexConfig, Item, JsonObject, NgramEmbeddings, SearchOp, StoreExt};

/// A store that records each batch, runs one batch per permit, and fails as configured.
#[derive(Debug, Clone)]
struct Probe {
    store: InMemoryStore,
    seen: Arc<Mutex<Vec<Vec<String>>>>,
    gate: Arc<Semaphore>,
    fault: fn(&Op) -> Option<Error>,
}

impl Probe {
    fn new() -> Self {
        let (seen, gate) = (Arc::default(), Arc::new(Semaphore::new(1_000_000)));
        Self { store: InMemoryStore::new(), seen, gate, fault: |_| None }
    }

    fn closed() -> Self {
        Self { gate: Arc::new(Semaphore::new(0)), ..Self::new() }
    }

    fn failing(fault: fn(&Op) -> Option<Error>) -> Self {
        Self { fault, ..Self::new() }
    }

    fn batched(&self) -> BatchedStore<Self> {
        BatchedStore::new(self.clone())
    }

    fn seen(&self) -> Vec<Vec<String>> {
        lock(&self.seen).clone()
    }

    fn sizes(&self) -> Vec<usize> {
        self.seen().iter().map(Vec::len).collect()
    }
}

fn key(op: &Op) -> &str {
    match op {
        Op::Get(get) => &get.key,
        Op::Put(put) => &put.key,
        Op::Search(_) => "search",
        Op::ListNamespaces(_) => "list",
    }
}

#[async_trait]
impl BaseStore for Probe {
    fn backend(&self) -> &'static str {
        "probe"
    }
    fn capabilities(&self) -> StoreCapabilities {
        self.store.capabilities()
    }
    async fn setup(&self) -> Result<()> {
        Ok(())
    }
    async fn ping(&self) -> Result<()> {
        Ok(())
    }
    async fn check_schema(&self) -> Result<()> {
        Ok(())
    }
    async fn batch(&self, ops: Vec<Op>) -> Result<Vec<OpResult>> {
        lock(&self.seen).push(ops.iter().map(|op| key(op).to_owned()).collect());
        self.gate.acquire().await.unwrap().forget();
        if let Some(error) = ops.iter().find_map(self.fault) {
            return Err(error);
        }
        self.store.batch(ops).await
    }
    async fn put_if(&self, put: PutOp, expected: Expected) -> Result<()> {
        self.store.put_if(put, expected).await
    }
    async fn close(&self) -> Result<()> {
        Ok(())
    }

    async fn sweep_ttl(&self) -> Result<u64> {
        Ok(0)
    }
}

/// Lets every runnable task run.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

async fn get(store: &impl BaseStore, key: &str) -> Option<Item> {
    store.get(["n"], key).await.unwrap()
}

async fn put(store: &impl BaseStore, key: &str, value: u32) -> Result<()> {
    store.put(["n"], key, json!({"v": value})).await
}

fn value(item: Option<Item>) -> serde_json::Value {
    item.map_or(serde_json::Value::Null, |item| {
        item.value.decode::<serde_json::Value>().unwrap()["v"].clone()
    })
}

/// A read that can be polled by hand.
fn read<'a>(store: &'a BatchedStore<Probe>, key: &'a str) -> BoxFuture<'a, Result<Option<Item>>> {
    store.get(["n"], key).into_future()
}

#[tokio::test]
async fn concurrent_calls_are_one_batch() {
    let probe = Probe::new();
    put(&probe, "a", 1).await.unwrap();
    let store = probe.batched();
    let found = join_all(["a", "b", "a", "c", "a"].map(|key| get(&store, key))).await;
    assert_eq!(
        found.into_iter().map(value).collect::<Vec<_>>(),
        [json!(1), json!(null), json!(1), json!(null), json!(1)]
    );
    let (all, again, other, spaces, same) = tokio::join!(
        store.search(["n"]).into_future(),
        store.search(["n"]).into_future(),
        store.search(["n"]).limit(0).into_future(),
        store.list_namespaces().into_future(),
        store.list_namespaces().into_future(),
    );
    assert_eq!([all.unwrap().len(), again.unwrap().len(), other.unwrap().len()], [1, 1, 0]);
    assert_eq!(spaces.unwrap(), same.unwrap());
    assert_eq!(probe.seen()[1..], [vec!["a", "b", "c"], vec!["search", "search", "list"]]);
}

#[tokio::test]
async fn calls_during_a_batch_form_the_next_batch() {
    let probe = Probe::closed();
    let store = probe.batched();
    let task = |number: usize| {
        let store = store.clone();
        tokio::spawn(async move { put(&store, &number.to_string(), 0).await })
    };
    let first = task(0);
    settle().await;
    let mut tasks: Vec<_> = (1..=20).map(task).collect();
    settle().await;
    assert_eq!(probe.sizes(), [1]);
    probe.gate.add_permits(2);
    tasks.push(first);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(probe.sizes(), [1, 20]);
    assert_eq!(probe.store.search(["n"]).limit(100).await.unwrap().len(), 21);
}

#[tokio::test]
async fn reads_run_before_puts_and_the_last_put_wins() {
    let probe = Probe::new();
    let store = probe.batched();
    let (first, read, second) = tokio::join!(put(&store, "k", 1), get(&store, "k"), put(&store, "k", 2));
    first.unwrap();
    second.unwrap();
    assert_eq!(value(read), json!(null));
    let (gone, read) = tokio::join!(store.delete(["n"], "k").into_future(), get(&store, "k"));
    gone.unwrap();
    assert_eq!(value(read), json!(2));
    assert_eq!(value(get(&store, "k").await), json!(null));
    assert_eq!(probe.seen(), [vec!["k", "k", "k"], vec!["k", "k"], vec!["k"]]);
}

#[tokio::test]
async fn the_caller_that_polled_the_batch_may_be_dropped() {
    for is_dropped in [true, false] {
        let probe = Probe::closed();
        let store = probe.batched();
        let (mut driver, mut other) = (read(&store, "a"), read(&store, "b"));
        for _ in 0..2 {
            assert!((&mut driver).now_or_never().is_none());
            assert!((&mut other).now_or_never().is_none());
        }
        let queued = read(&store, "c");
        assert_eq!(probe.seen(), [["a", "b"]]);
        // Otherwise it is alive, and no caller polls it any more.
        let driver = (!is_dropped).then_some(driver);
        probe.gate.add_permits(2);
        assert!(tokio::spawn(settle()).await.is_ok());
        assert!(queued.await.unwrap().is_none());
        assert!(other.await.unwrap().is_none());
        if let Some(driver) = driver {
            assert!(driver.now_or_never().unwrap().unwrap().is_none());
        }
        assert_eq!(probe.seen(), [vec!["a", "b"], vec!["c"]]);
    }
}

#[tokio::test]
async fn operations_dropped_before_their_batch_starts_are_not_run() {
    let probe = Probe::closed();
    let store = probe.batched();
    let first = tokio::spawn({
        let store = store.clone();
        async move { put(&store, "first", 1).await }
    });
    settle().await;
    let mut dropped = store.put(["n"], "dropped", json!({})).into_future();
    assert!((&mut dropped).now_or_never().is_none());
    let mut kept = store.put(["n"], "kept", json!({})).into_future();
    assert!((&mut kept).now_or_never().is_none());
    drop(dropped);
    probe.gate.add_permits(2);
    kept.await.unwrap();
    first.await.unwrap().unwrap();
    assert_eq!(probe.seen(), [["first"], ["kept"]]);
}

#[tokio::test]
async fn a_batch_without_callers_is_dropped_and_the_next_call_runs() {
    let probe = Probe::closed();
    let store = probe.batched();
    for round in 1..=3 {
        let mut calls = [read(&store, "a"), read(&store, "b")];
        let mut late = read(&store, "late");
        for _ in 0..3 {
            for call in &mut calls {
                assert!(call.now_or_never().is_none());
            }
        }
        assert!((&mut late).now_or_never().is_none());
        assert_eq!(probe.sizes(), vec![2; round]);
        drop(calls);
        drop(late);
        assert!(lock(&store.plain.state).queue.is_empty(), "no entries of dropped callers remain");
    }
    probe.gate.add_permits(1);
    assert!(get(&store, "c").await.is_none());
    assert_eq!(probe.seen()[3..], [["c"]]);
}

#[tokio::test]
async fn a_call_dropped_before_any_poll_leaves_no_entry() {
    let probe = Probe::new();
    let store = probe.batched();
    let mut dropped = read(&store, "a");
    assert!((&mut dropped).now_or_never().is_none());
    assert_eq!(lock(&store.plain.state).queue.len(), 1);
    drop(dropped);
    assert!(lock(&store.plain.state).queue.is_empty());
    assert!(get(&store, "b").await.is_none());
    assert_eq!(probe.seen(), [["b"]]);
}

/// A store whose batch is woken while a caller polls it, and then waits for another caller to poll.
#[derive(Debug, Clone, Default)]
struct Woken {
    store: InMemoryStore,
    /// Before this stage no poll makes progress.
    stage: Arc<AtomicUsize>,
}

impl Woken {
    /// The next poll is woken.
    const OPEN: usize = 1;
    /// A poll was woken and has not returned.
    const WOKEN: usize = 2;
    /// Another caller polls, and the batch goes on.
    const POLLED: usize = 3;

    fn stage(&self) -> usize {
        self.stage.load(Ordering::SeqCst)
    }

    fn enter(&self, stage: usize) {
        self.stage.store(stage, Ordering::SeqCst);
    }
}

#[async_trait]
impl BaseStore for Woken {
    fn backend(&self) -> &'static str {
        "woken"
    }
    fn capabilities(&self) -> StoreCapabilities {
        self.store.capabilities()
    }
    async fn setup(&self) -> Result<()> {
        Ok(())
    }
    async fn ping(&self) -> Result<()> {
        Ok(())
    }
    async fn check_schema(&self) -> Result<()> {
        Ok(())
    }
    async fn batch(&self, ops: Vec<Op>) -> Result<Vec<OpResult>> {
        poll_fn(|task| match self.stage() {
            Self::POLLED => Poll::Ready(()),
            Self::OPEN => {
                self.enter(Self::WOKEN);
                task.waker().wake_by_ref();
                while self.stage() == Self::WOKEN {
                    std::thread::yield_now();
                }
                // Time for the other poll to end if it does not wait for this one.
                std::thread::sleep(Duration::from_millis(20));
                Poll::Pending
            }
            _ => Poll::Pending,
        })
        .await;
        self.store.batch(ops).await
    }
    async fn put_if(&self, put: PutOp, expected: Expected) -> Result<()> {
        self.store.put_if(put, expected).await
    }
    async fn close(&self) -> Result<()> {
        Ok(())
    }

    async fn sweep_ttl(&self) -> Result<u64> {
        Ok(0)
    }
}

struct Signal(mpsc::Sender<()>);

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

#[test]
fn a_wake_up_while_another_caller_polls_is_not_lost() {
    let woken = Woken::default();
    let store = BatchedStore::new(woken.clone());
    let (signal, woke) = mpsc::channel();
    let waker = Waker::from(Arc::new(Signal(signal)));
    let mut task = Context::from_waker(&waker);
    let (mut leaving, mut other) = (store.get(["n"], "a").into_future(), store.get(["n"], "b").into_future());
    for _ in 0..2 {
        assert!((&mut leaving).now_or_never().is_none());
        assert!(other.as_mut().poll(&mut task).is_pending());
    }
    while woke.try_recv().is_ok() {}
    woken.enter(Woken::OPEN);
    std::thread::scope(|threads| {
        let leaving = threads.spawn(|| (&mut leaving).now_or_never().is_none());
        woke.recv().unwrap();
        woken.enter(Woken::POLLED);
        while other.as_mut().poll(&mut task).is_pending() {
            // No other caller is left that could be woken instead.
            assert!(woke.recv_timeout(Duration::from_secs(20)).is_ok(), "the wake-up was lost");
        }
        assert!(leaving.join().unwrap());
    });
}

#[tokio::test]
async fn a_bad_operation_fails_only_its_own_callers() {
    fn fault(op: &Op) -> Option<Error> {
        assert_ne!(key(op), "panics", "the store panics");
        key(op).starts_with("bad").then(|| Error::invalid_argument("bad").with("key", key(op)))
    }
    let probe = Probe::failing(fault);
    let store = probe.batched();
    let keys: Vec<_> = (0..40)
        .map(|number| match number {
            7 | 8 => format!("bad{number}"),
            20 => "panics".to_owned(),
            _ => number.to_string(),
        })
        .collect();
    let results = join_all(keys.iter().map(|key| put(&store, key, 1))).await;
    for (key, result) in keys.iter().zip(results) {
        match key.as_str() {
            "bad7" | "bad8" => assert!(result.unwrap_err().to_string().contains(key)),
            "panics" => assert_eq!(result.unwrap_err().kind(), ErrorKind::Backend),
            _ => result.unwrap(),
        }
    }
    assert_eq!(probe.sizes()[0], 40);
    assert_eq!(probe.store.search(["n"]).limit(100).await.unwrap().len(), 37);

    // Reads still run before puts, and both callers of a bad read get its error.
    let (read, put, bad, same) = tokio::join!(
        get(&store, "new"),
        put(&store, "new", 1),
        store.get(["n"], "bad").into_future(),
        async { store.get(["n"], "bad").await }
    );
    put.unwrap();
    assert!(read.is_none());
    assert_eq!(bad.unwrap_err().to_string(), same.unwrap_err().to_string());
}

#[tokio::test]
async fn an_error_of_the_whole_batch_is_returned_to_all_callers() {
    fn fault(op: &Op) -> Option<Error> {
        (key(op) == "bad").then(|| {
            let root = Error::codec("root");
            let source = Error::codec("source").with_source(root);
            Error::new(ErrorKind::Unavailable, "gone")
                .retryable(true)
                .with("n", 1)
                .with_source(source)
                .at("probe", "put")
        })
    }
    let probe = Probe::failing(fault);
    let store = probe.batched();
    let results = join_all(["a", "bad", "c"].map(|key| store.get(["n"], key).into_future())).await;
    for result in results {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.is_retryable());
        assert_eq!(error.to_string(), r#"probe: put: gone (n="1")"#);
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(source.to_string(), "source");
        assert_eq!(source.source().unwrap().to_string(), "root");
        assert!(format!("{error:?}").contains("root"));
    }
    assert_eq!(probe.sizes(), [3]);
}

#[tokio::test]
async fn invalid_operations_do_not_join_and_larger_batches_pass_through() {
    let probe = Probe::new();
    let store = probe.batched();
    assert_eq!(store.get(["a.b"], "k").await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(store.search(["a"]).query("q").await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(probe.seen().is_empty());
    let op = || Op::Get(GetOp::new(["n"], "k"));
    let (several, none, one) =
        tokio::join!(store.batch(vec![op(), op()]), store.batch(Vec::new()), store.batch(vec![op()]));
    assert_eq!([several.unwrap().len(), none.unwrap().len(), one.unwrap().len()], [2, 0, 1]);
    assert_eq!(probe.sizes(), [2, 0, 1]);
}

#[tokio::test]
async fn a_batch_has_a_maximum_size() {
    let probe = Probe::new();
    let store = probe.batched();
    let keys: Vec<_> = (0..600).map(|number| number.to_string()).collect();
    join_all(keys.iter().map(|key| get(&store, key))).await;
    assert_eq!(probe.sizes(), [256, 256, 88]);
    let large = JsonObject::new(&json!({"text": "x".repeat(MAX_BYTES / 3)})).unwrap();
    let puts =
        keys.iter().take(7).map(|key| store.batch(vec![Op::Put(PutOp::new(["n"], &**key, large.clone()))]));
    assert!(join_all(puts).await.iter().all(Result::is_ok));
    assert_eq!(probe.sizes()[3..], [3, 3, 1]);
}

#[tokio::test]
async fn operations_without_embeddings_do_not_wait_for_embeddings() {
    let index = IndexConfig::new(64, NgramEmbeddings::new(64));
    let probe = Probe { store: InMemoryStore::builder().index(index).build().unwrap(), ..Probe::new() };
    let store = probe.batched();
    let search = SearchOp { query: Some("v".into()), ..SearchOp::new(["n"]) };
    let (embedded, read, plain, gone, query) = tokio::join!(
        put(&store, "embedded", 1),
        get(&store, "read"),
        store.put(["n"], "plain", json!({})).no_index().into_future(),
        store.delete(["n"], "gone").into_future(),
        store.batch(vec![Op::Search(search)]),
    );
    embedded.and(plain).and(gone).unwrap();
    assert!(read.is_none() && query.is_ok());
    let mut seen = probe.seen();
    seen.sort();
    assert_eq!(seen, [vec!["read", "plain", "gone"], vec!["search", "embedded"]]);
}

/// A store whose results come from other threads.
#[derive(Debug, Clone)]
struct Remote {
    store: InMemoryStore,
    batches: Arc<AtomicUsize>,
}

#[async_trait]
impl BaseStore for Remote {
    fn backend(&self) -> &'static str {
        "remote"
    }
    fn capabilities(&self) -> StoreCapabilities {
        self.store.capabilities()
    }
    async fn setup(&self) -> Result<()> {
        Ok(())
    }
    async fn ping(&self) -> Result<()> {
        Ok(())
    }
    async fn check_schema(&self) -> Result<()> {
        Ok(())
    }
    async fn batch(&self, ops: Vec<Op>) -> Result<Vec<OpResult>> {
        self.batches.fetch_add(1, Ordering::Relaxed);
        for _ in 0..3 {
            tokio::spawn(tokio::task::yield_now()).await.unwrap();
        }
        if ops.len() > 1 && ops.iter().any(|op| key(op) == "bad") {
            return Err(Error::codec("bad"));
        }
        self.store.batch(ops).await
    }
    async fn put_if(&self, put: PutOp, expected: Expected) -> Result<()> {
        self.store.put_if(put, expected).await
    }
    async fn close(&self) -> Result<()> {
        Ok(())
    }

    async fn sweep_ttl(&self) -> Result<u64> {
        Ok(0)
    }
}

#[test]
fn many_concurrent_tasks_all_get_their_results() {
    const TASKS: usize = 64;
    const ROUNDS: u32 = 60;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().unwrap();
    let remote = Remote { store: InMemoryStore::new(), batches: Arc::default() };
    let store = BatchedStore::new(remote.clone());
    runtime.block_on(async {
        let tasks: Vec<_> = (0..TASKS)
            .map(|number| {
                let store = store.clone();
                tokio::spawn(async move {
                    let key = number.to_string();
                    for round in 0..ROUNDS {
                        put(&store, &key, round).await.unwrap();
                        assert_eq!(value(get(&store, &key).await), json!(round), "a task reads its own puts");
                        // Calls that are dropped at any point, or that fail, do not affect other calls.
                        let mut dropped = Box::pin(get(&store, "shared"));
                        for _ in 0..round % 5 {
                            if (&mut dropped).now_or_never().is_some() {
                                break;
                            }
                            tokio::task::yield_now().await;
                        }
                        if round % 7 == 0 {
                            assert!(get(&store, "bad").await.is_none());
                        }
                        drop(dropped);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    let calls = TASKS * usize::try_from(ROUNDS).unwrap() * 2;
    let batches = remote.batches.load(Ordering::Relaxed);
    assert!(batches < calls / 2, "{batches} batches for {calls} calls");
    assert!(lock(&store.plain.state).queue.is_empty());
}
