//! Short ways to put items and to read them back, and embeddings that say what they will be.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use checkpoint_core::store::{
    BaseStore, Distance, Embeddings, GetOp, IndexConfig, Item, JsonObject, ListNamespacesOp, MatchCondition,
    Namespace, Op, OpResult, PutOp, SearchItem, SearchOp, StoreExt,
};
use checkpoint_core::{Error, ErrorKind, Result, Str, async_trait};
use serde_json::{Value as Json, json};

use crate::case::Failure;
use crate::{Store, StoreOptions};

/// The namespace below another.
pub(super) fn below<const N: usize>(root: &Namespace, labels: [&str; N]) -> Namespace {
    root.labels().iter().cloned().chain(labels.map(Str::from)).collect()
}

/// The value `{"n": n}`.
pub(super) fn n(n: i64) -> Json {
    json!({ "n": n })
}

pub(super) fn object(value: &Json) -> Result<JsonObject> {
    JsonObject::new(value)
}

pub(super) fn put_op(namespace: &Namespace, key: &str, value: &Json) -> Result<Op> {
    Ok(Op::Put(PutOp::new(namespace, key, object(value)?)))
}

pub(super) fn delete_op(namespace: &Namespace, key: &str) -> Op {
    Op::Put(PutOp::delete(namespace, key))
}

pub(super) fn get_op(namespace: &Namespace, key: &str) -> Op {
    Op::Get(GetOp::new(namespace, key))
}

/// Finds whatever is in a namespace and below.
pub(super) fn all_op(namespace: &Namespace) -> Op {
    let mut op = SearchOp::new(namespace);
    op.limit = 1000;
    Op::Search(op)
}

pub(super) fn list_op(prefix: &Namespace) -> Op {
    let mut op = ListNamespacesOp::new();
    op.match_conditions.push(MatchCondition::Prefix(prefix.clone()));
    Op::ListNamespaces(op)
}

/// Puts numbered items, each in its own call: keys `k0`, `k1` and so on, values `{"n": 0}`, `{"n": 1}` and so on.
pub(super) async fn put_numbered(store: &Store, namespace: &Namespace, count: i64) -> Result<()> {
    for number in 0..count {
        store.put(namespace, format!("k{number}"), n(number)).await?;
    }
    Ok(())
}

/// Puts items with these values in one batch.
pub(super) async fn put_all(store: &Store, namespace: &Namespace, items: &[(&str, Json)]) -> Result<()> {
    let ops = items.iter().map(|(key, value)| put_op(namespace, key, value)).collect::<Result<_>>()?;
    store.batch(ops).await.map(drop)
}

/// Reads an item that must exist.
#[track_caller]
pub(super) fn read<'a>(
    store: &'a Store,
    namespace: &Namespace,
    key: &'a str,
) -> impl Future<Output = std::result::Result<Item, Failure>> + Send + use<'a> {
    let missing = Failure::new(format!("the item {key:?} is missing"));
    let namespace = namespace.clone();
    async move { store.get(namespace, key).await?.ok_or(missing) }
}

/// Reads the value of an item that must exist.
#[track_caller]
pub(super) fn value<'a>(
    store: &'a Store,
    namespace: &Namespace,
    key: &'a str,
) -> impl Future<Output = std::result::Result<Json, Failure>> + Send + use<'a> {
    let read = read(store, namespace, key);
    async move { Ok(read.await?.value.decode()?) }
}

/// The keys of the found items, in their order.
pub(super) fn keys(found: &[SearchItem]) -> Vec<&str> {
    found.iter().map(|found| &*found.item.key).collect()
}

/// The keys of all items in and below a namespace, newest first.
pub(super) async fn all_keys(store: &Store, namespace: &Namespace) -> Result<Vec<String>> {
    let found = store.search(namespace).limit(10_000).await?;
    Ok(keys(&found).into_iter().map(str::to_owned).collect())
}

/// Keys and scores of the found items, in their order; scores with five decimal places.
pub(super) fn scores(found: &[SearchItem]) -> Vec<(&str, String)> {
    let score = |found: &SearchItem| match found.score {
        // Drops the sign of zero.
        Some(score) => format!("{:.5}", if score.abs() < 5e-6 { 0.0 } else { score }),
        None => "none".to_owned(),
    };
    found.iter().map(|found| (&*found.item.key, score(found))).collect()
}

/// The result of a search in a batch.
pub(super) fn found(result: &OpResult) -> std::result::Result<&[SearchItem], Failure> {
    match result {
        OpResult::Items(items) => Ok(items),
        other => Err(Failure::new(format!("a search returned {other:?}"))),
    }
}

/// The result of a get in a batch.
pub(super) fn got(result: &OpResult) -> std::result::Result<Option<Json>, Failure> {
    match result {
        OpResult::Item(item) => Ok(item.as_ref().map(|item| item.value.decode()).transpose()?),
        other => Err(Failure::new(format!("a get returned {other:?}"))),
    }
}

/// Polls until a condition holds, with a timeout that suits slow servers.
pub(super) async fn eventually<F: Future<Output = Result<bool>>>(
    what: &str,
    ask: impl Fn() -> F,
) -> std::result::Result<(), Failure> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        if ask().await? {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(Failure::new(format!("did not happen within a minute: {what}")))
}

/// The dimensions of the indexes of the suite.
pub(super) const DIMS: usize = 3;

/// Predictable embeddings: the vector of a text is the numbers in it, in their order, padded with zeros. Words in the
/// text trigger faults.
#[derive(Debug, Clone, Default)]
pub(super) struct Numbers {
    /// The number of embedded texts.
    pub(super) texts: Arc<AtomicUsize>,
    /// The number of calls.
    pub(super) calls: Arc<AtomicUsize>,
}

impl Numbers {
    pub(super) const FAIL: &'static str = "FAIL";
    pub(super) const SHORT: &'static str = "SHORT";
    pub(super) const LONG: &'static str = "LONG";
    pub(super) const NAN: &'static str = "NAN";
    pub(super) const INFINITE: &'static str = "INFINITE";
    pub(super) const FEWER: &'static str = "FEWER";
    pub(super) const MORE: &'static str = "MORE";

    fn vector(text: &str) -> Result<Vec<f32>> {
        if text.contains(Self::FAIL) {
            return Err(Error::new(ErrorKind::Unavailable, "the embeddings cannot be reached"));
        }
        let of_number = |c: char| c.is_ascii_digit() || c == '-' || c == '.';
        let numbers = text.split(|c| !of_number(c)).filter_map(|number| number.parse::<f32>().ok());
        let mut vector: Vec<_> = numbers.chain(std::iter::repeat(0.0)).take(DIMS).collect();
        if text.contains(Self::SHORT) {
            vector.pop();
        }
        if text.contains(Self::LONG) {
            vector.push(0.0);
        }
        for (word, number) in [(Self::NAN, f32::NAN), (Self::INFINITE, f32::INFINITY)] {
            if text.contains(word) {
                vector[0] = number;
            }
        }
        Ok(vector)
    }
}

#[async_trait]
impl Embeddings for Numbers {
    async fn embed_documents(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.texts.fetch_add(texts.len(), Ordering::Relaxed);
        // Lets other tasks run, as during a call of a model.
        tokio::task::yield_now().await;
        let mut vectors = texts.iter().map(|text| Self::vector(text)).collect::<Result<Vec<_>>>()?;
        if texts.iter().any(|text| text.contains(Self::FEWER)) {
            vectors.pop();
        }
        if texts.iter().any(|text| text.contains(Self::MORE)) {
            vectors.push(vec![0.0; DIMS]);
        }
        Ok(vectors)
    }
}

/// An index of the entry `text`.
pub(super) fn index(distance: Distance) -> IndexConfig {
    IndexConfig::new(DIMS, Numbers::default()).fields(["text"]).distance(distance)
}

/// Options with an index of the entry `text`.
pub(super) fn indexed(distance: Distance) -> StoreOptions {
    StoreOptions::new().index(index(distance))
}

/// A value with a text.
pub(super) fn text(text: &str) -> Json {
    json!({ "text": text })
}
