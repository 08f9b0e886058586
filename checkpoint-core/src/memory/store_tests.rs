use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use serde_json::json;

use super::*;
use crate::ErrorKind;
use crate::store::{
    Distance, Embeddings, GetOp, Item, JsonObject, ListNamespacesOp, Namespace, PutOp, SearchItem, SearchOp,
    StoreExt, Ttl,
};

const MINUTE: Micros = 60_000_000;

fn put(namespace: &str, key: &str, value: &serde_json::Value) -> PutOp {
    PutOp::new(Namespace::from_text(namespace), key, JsonObject::new(value).unwrap())
}

fn keys(found: &[SearchItem]) -> Vec<&str> {
    found.iter().map(|found| &*found.item.key).collect()
}

/// A store with a manual clock.
struct ManualClockStore {
    store: InMemoryStore,
    now: AtomicI64,
}

impl ManualClockStore {
    fn new(ttl: TtlConfig) -> Self {
        let store = InMemoryStore::builder().ttl(ttl).build().unwrap();
        Self { store, now: AtomicI64::new(1_000 * MINUTE) }
    }

    fn advance(&self, time: Micros) {
        self.now.fetch_add(time, Ordering::Relaxed);
    }

    async fn run(&self, op: Op) -> OpResult {
        self.store.run(vec![op], || self.now.load(Ordering::Relaxed)).await.unwrap().remove(0)
    }

    async fn put(&self, key: &str, ttl: Ttl) {
        self.run(Op::Put(PutOp { ttl, ..put("n", key, &json!({"k": key})) })).await;
    }

    async fn get(&self, key: &str, refresh_ttl: Option<bool>) -> Option<Item> {
        match self.run(Op::Get(GetOp { refresh_ttl, ..GetOp::new(["n"], key) })).await {
            OpResult::Item(item) => item,
            other => panic!("{other:?}"),
        }
    }

    async fn search(&self, limit: usize) -> Vec<SearchItem> {
        match self.run(Op::Search(SearchOp { limit, ..SearchOp::new(["n"]) })).await {
            OpResult::Items(items) => items,
            other => panic!("{other:?}"),
        }
    }

    async fn list(&self) -> usize {
        match self.run(Op::ListNamespaces(ListNamespacesOp::new())).await {
            OpResult::Namespaces(namespaces) => namespaces.len(),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn an_expired_item_is_invisible_to_the_microsecond() {
    let store = ManualClockStore::new(TtlConfig::new());
    store.put("k", Ttl::Minutes(1.0)).await;
    store.advance(MINUTE - 1);
    assert!(store.get("k", Some(false)).await.is_some());
    store.advance(1);
    assert!(store.get("k", None).await.is_none());
    assert!(store.search(10).await.is_empty());
    assert_eq!(store.list().await, 0);
    assert_eq!(store.store.read().len(), 1, "not swept yet");
    assert_eq!(store.store.write().sweep(store.now.load(Ordering::Relaxed)), 1);
    assert_eq!(store.store.read().len(), 0);
    // The shortest TTL is not rounded to zero.
    store.put("k", Ttl::Minutes(1e-9)).await;
    assert!(store.get("k", Some(false)).await.is_some());
}

#[tokio::test]
async fn reads_refresh_the_ttl_of_the_items_found() {
    let store = ManualClockStore::new(TtlConfig::new());
    for key in ["got", "found", "left"] {
        store.put(key, Ttl::Minutes(2.0)).await;
    }
    store.put("found", Ttl::Minutes(2.0)).await;
    store.advance(MINUTE);
    assert!(store.get("got", None).await.is_some());
    assert_eq!(keys(&store.search(1).await), ["found"]);
    assert!(store.get("left", Some(false)).await.is_some());
    store.advance(MINUTE);
    assert!(store.get("left", None).await.is_none());
    store.advance(MINUTE - 1);
    let (now, store) = (store.now.load(Ordering::Relaxed), &store);
    assert_eq!(store.store.write().sweep(now), 1, "those that were read are not swept");
    assert_eq!(store.search(10).await.len(), 2);

    let fixed =
        ManualClockStore::new(TtlConfig::new().default_ttl(Duration::from_secs(60)).refresh_on_read(false));
    fixed.put("a", Ttl::Default).await;
    fixed.put("b", Ttl::Never).await;
    fixed.advance(MINUTE - 1);
    assert!(fixed.get("a", None).await.is_some());
    assert!(fixed.get("a", None).await.is_some());
    fixed.advance(1);
    assert!(fixed.get("a", None).await.is_none());
    assert!(fixed.get("b", None).await.is_some());
}

#[tokio::test]
async fn puts_sweep_expired_items_and_replace_them_by_new_ones() {
    let store = ManualClockStore::new(TtlConfig::new());
    for number in 0..100 {
        store.put(&number.to_string(), Ttl::Minutes(1.0)).await;
    }
    let first = store.get("0", Some(false)).await.unwrap();
    store.put("0", Ttl::Never).await;
    let second = store.get("0", None).await.unwrap();
    assert_eq!(second.created_at, first.created_at);
    assert!(second.updated_at > first.updated_at, "even if the clock did not advance");
    store.put("1", Ttl::Minutes(1.0)).await;
    store.advance(MINUTE);
    store.put("1", Ttl::Default).await;
    let new = store.get("1", None).await.unwrap();
    assert_eq!(new.created_at, new.updated_at);
    assert_eq!(store.store.read().len(), 2, "expired items are removed");
    store.advance(100 * MINUTE);
    assert_eq!(store.search(10).await.len(), 2, "a put without a TTL clears an earlier one");
}

#[tokio::test]
async fn order_is_last_put_first_then_namespace_and_key() {
    let store = InMemoryStore::new();
    let namespaces = ["a.b", "a-b", "a", "é", "a.b.c", "Z"];
    let ops = namespaces.iter().flat_map(|n| ["k2", "k1"].map(|k| Op::Put(put(n, k, &json!({}))))).collect();
    store.batch(ops).await.unwrap();
    store.put(["a", "b"], "k2", json!({})).await.unwrap();
    let found = store.search(()).limit(100).await.unwrap();
    let paths: Vec<_> =
        found.iter().map(|found| format!("{}/{}", found.item.namespace, found.item.key)).collect();
    assert_eq!(
        paths,
        [
            "a.b/k2", "Z/k1", "Z/k2", "a/k1", "a/k2", "a-b/k1", "a-b/k2", "a.b/k1", "a.b.c/k1", "a.b.c/k2",
            "é/k1", "é/k2"
        ]
    );
    let page = store.search(()).limit(3).offset(5).await.unwrap();
    assert_eq!(
        page.iter().map(|found| found.item.updated_at).collect::<Vec<_>>(),
        vec![page[0].item.updated_at; 3]
    );
    assert_eq!(keys(&page), keys(&found[5..8]));
    assert!(store.search(()).limit(usize::MAX).offset(usize::MAX).await.unwrap().is_empty());
    let below: Vec<_> =
        store.search(["a"]).await.unwrap().iter().map(|f| f.item.namespace.to_text()).collect();
    assert_eq!(below, ["a.b", "a", "a", "a.b", "a.b.c", "a.b.c"], "`a-b` is not below `a`");

    let text = |found: Vec<Namespace>| found.iter().map(Namespace::to_text).collect::<Vec<_>>();
    let listed = text(store.list_namespaces().await.unwrap());
    assert_eq!(listed, ["Z", "a", "a-b", "a.b", "a.b.c", "é"]);
    let truncated = store.list_namespaces().max_depth(2).prefix(["a"]).offset(1).await.unwrap();
    assert_eq!(text(truncated), ["a.b"]);
    store.delete(["Z"], "k1").await.unwrap();
    store.delete(["Z"], "k2").await.unwrap();
    assert_eq!(text(store.list_namespaces().limit(1).await.unwrap()), ["a"]);
}

/// Parses the numbers in a text to a vector; fails while the flag is set.
#[derive(Debug, Default)]
struct Numbers {
    fails: AtomicBool,
}

#[async_trait]
impl Embeddings for Numbers {
    async fn embed_documents(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Unavailable, "no model"));
        }
        Ok(texts.iter().map(|text| text.split(' ').map(|part| part.parse().unwrap()).collect()).collect())
    }
}

fn indexed(distance: Distance) -> (InMemoryStore, Arc<Numbers>) {
    let numbers = Arc::new(Numbers::default());
    let index = IndexConfig::new(2, Arc::clone(&numbers)).fields(["v", "w[*]"]).distance(distance);
    (InMemoryStore::builder().index(index).build().unwrap(), numbers)
}

#[tokio::test]
async fn the_nearest_vector_of_an_item_counts() {
    for (distance, expected, score) in [
        (Distance::Cosine, vec!["far", "two", "near"], 1.0),
        (Distance::L2, vec!["near", "zero", "two", "far"], -1.0),
        (Distance::InnerProduct, vec!["far", "two", "near", "zero"], 20.0),
    ] {
        let (store, _) = indexed(distance);
        store.put(["n"], "near", json!({"v": "2 1"})).await.unwrap();
        store.put(["n"], "far", json!({"v": "10 0"})).await.unwrap();
        store.put(["n"], "two", json!({"v": "-9 0", "w": ["0 -9", "4 1"]})).await.unwrap();
        store.put(["n"], "zero", json!({"v": "0 0"})).await.unwrap();
        store.put(["n"], "none", json!({"x": 1})).await.unwrap();
        store.put(["n"], "off", json!({"v": "2 0"})).no_index().await.unwrap();
        let found = store.search(["n"]).query("2 0").await.unwrap();
        assert_eq!(keys(&found), expected, "{distance:?}");
        assert!((found[0].score.unwrap() - score).abs() < 1e-9, "{distance:?}");
        assert_eq!(store.search(["n"]).query("0 0").await.unwrap().is_empty(), distance == Distance::Cosine);
        // All vectors are replaced, even if there is no new one.
        store.put(["n"], "far", json!({"v": "10 0"})).no_index().await.unwrap();
        assert!(!keys(&store.search(["n"]).query("2 0").await.unwrap()).contains(&"far"));
        assert_eq!(store.search(["n"]).await.unwrap().len(), 6);
    }
}

#[tokio::test]
async fn a_failed_batch_changes_nothing() {
    let (store, numbers) = indexed(Distance::L2);
    store.put(["n"], "k", json!({"v": "1 1"})).await.unwrap();
    numbers.fails.store(true, Ordering::Relaxed);
    let ops = || vec![Op::Put(PutOp::delete(["n"], "k")), Op::Put(put("n", "new", &json!({"v": "1 2"})))];
    assert_eq!(store.batch(ops()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    numbers.fails.store(false, Ordering::Relaxed);
    let damaged = JsonObject::from_stored("{\"a\": ").unwrap();
    for wrong in [
        put("n", "wide", &json!({"v": "1 2 3"})),
        put("langgraph", "k", &json!({})),
        PutOp { ttl: Ttl::Minutes(-1.0), ..put("n", "k2", &json!({})) },
        PutOp::new(["n"], "damaged", damaged),
    ] {
        let mut ops = ops();
        ops.push(Op::Put(wrong));
        assert!(store.batch(ops).await.is_err());
        assert_eq!(keys(&store.search(["n"]).await.unwrap()), ["k"]);
    }
    assert!(InMemoryStore::new().search(()).query("q").await.is_err());
    let long = TtlConfig::new().default_ttl(Duration::ZERO);
    assert_eq!(InMemoryStore::builder().ttl(long).build().unwrap_err().kind(), ErrorKind::InvalidConfig);
}

#[tokio::test]
async fn debug_does_not_contain_items() {
    let store = InMemoryStore::new();
    store.put(["n"], "key", json!({"text": "a secret"})).await.unwrap();
    let shown = format!("{store:?}");
    assert!(shown.contains("items: 1") && !shown.contains("secret"), "{shown}");
}
