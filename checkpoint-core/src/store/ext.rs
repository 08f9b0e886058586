//! Convenience calls on every store.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde::ser::Serialize;

use super::{
    BaseStore, Expected, GetOp, Item, ItemFilter, ItemIndex, JsonObject, ListNamespacesOp, MatchCondition,
    Namespace, Op, OpResult, PutOp, SearchItem, SearchOp, Ttl,
};
use crate::{Error, ErrorKind, Result, Str};

/// Convenience calls on every store. Do not implement it yourself.
///
/// Each call returns a builder that runs when it is awaited. Its errors are those of [`BaseStore::batch`], and with a
/// condition those of [`BaseStore::put_if`].
///
/// A builder is no future yet: functions that take futures get one by `into_future()`.
///
/// ```
/// use std::future::IntoFuture;
///
/// use checkpoint_core::InMemoryStore;
/// use checkpoint_core::store::{BatchedStore, StoreExt};
/// use futures_util::future::{join_all, try_join_all};
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> checkpoint_core::Result<()> {
/// // One batch each, because a `BatchedStore` joins concurrent calls.
/// let store = BatchedStore::new(InMemoryStore::new());
/// let names = ["ann", "bob"];
/// try_join_all(names.map(|name| store.put(["users"], name, json!({"name": name})).into_future())).await?;
/// let found = join_all(names.map(|name| store.get(["users"], name).into_future())).await;
/// assert!(found.iter().all(|item| matches!(item, Ok(Some(_)))));
/// # Ok(())
/// # }
/// ```
pub trait StoreExt: BaseStore {
    /// Reads an item.
    fn get(&self, namespace: impl Into<Namespace>, key: impl Into<Str>) -> Get<'_, Self> {
        Get { store: self, op: GetOp::new(namespace, key) }
    }

    /// Reads an item's value as a type: [`get`](Self::get) with [`decode`](Get::decode).
    ///
    /// ```
    /// # use checkpoint_core::{InMemoryStore, store::StoreExt};
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Prefs {
    ///     theme: String,
    ///     visits: u32,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> checkpoint_core::Result<()> {
    /// # let store = InMemoryStore::new();
    /// store.put(["users", "ann"], "prefs", Prefs { theme: "dark".into(), visits: 12 }).await?;
    /// let prefs = store.get_as::<Prefs>(["users", "ann"], "prefs").await?;
    /// assert_eq!(prefs.map(|prefs| prefs.visits), Some(12));
    ///
    /// let found = store.search(["users"]).limit(3).decode::<Prefs>().await?;
    /// assert_eq!((&*found[0].item.key, &*found[0].value.theme), ("prefs", "dark"));
    /// # Ok(())
    /// # }
    /// ```
    fn get_as<T: DeserializeOwned>(
        &self,
        namespace: impl Into<Namespace>,
        key: impl Into<Str>,
    ) -> DecodedGet<'_, Self, T> {
        self.get(namespace, key).decode()
    }

    /// Stores an item, or replaces it. The value must serialize to a JSON object.
    fn put(
        &self,
        namespace: impl Into<Namespace>,
        key: impl Into<Str>,
        value: impl Serialize,
    ) -> Put<'_, Self> {
        let op = JsonObject::new(&value).map(|value| PutOp::new(namespace, key, value));
        Put { store: self, op, expected: None }
    }

    /// Deletes an item. Deleting an absent item is a no-op.
    fn delete(&self, namespace: impl Into<Namespace>, key: impl Into<Str>) -> Delete<'_, Self> {
        Delete { store: self, op: Ok(PutOp::delete(namespace, key)), expected: None }
    }

    /// Finds items in a namespace and its descendants.
    fn search(&self, namespace_prefix: impl Into<Namespace>) -> Search<'_, Self> {
        Search { store: self, op: SearchOp::new(namespace_prefix) }
    }

    /// Lists the namespaces that have items.
    fn list_namespaces(&self) -> ListNamespaces<'_, Self> {
        ListNamespaces { store: self, op: ListNamespacesOp::new() }
    }
}

impl<S: BaseStore + ?Sized> StoreExt for S {}

/// Runs one operation.
async fn run<S: BaseStore + ?Sized>(store: &S, op: Op) -> Result<OpResult> {
    let mut results = store.batch(vec![op]).await?;
    match (results.pop(), results.is_empty()) {
        (Some(result), true) => Ok(result),
        _ => Err(mismatch(store)),
    }
}

/// The error of a store that breaks the contract of [`BaseStore::batch`].
fn mismatch<S: BaseStore + ?Sized>(store: &S) -> Error {
    Error::new(ErrorKind::Backend, "the store returned a result of another kind than the operation's")
        .at(store.backend(), "batch")
}

/// A read of one item, built by [`StoreExt::get`].
#[derive(Debug)]
#[must_use = "it does nothing until it is awaited"]
pub struct Get<'a, S: ?Sized> {
    store: &'a S,
    op: GetOp,
}

impl<S: ?Sized> Get<'_, S> {
    /// Sets whether the read refreshes the item's TTL; the store's configuration decides unless set.
    pub fn refresh_ttl(mut self, refresh: bool) -> Self {
        self.op.refresh_ttl = Some(refresh);
        self
    }
}

impl<'a, S: ?Sized> Get<'a, S> {
    /// Decodes the item's value. A value that does not fit the type is an error of kind
    /// [`Codec`](ErrorKind::Codec) that names the item.
    pub fn decode<T: DeserializeOwned>(self) -> DecodedGet<'a, S, T> {
        DecodedGet { get: self, value: PhantomData }
    }
}

/// A read of one item's value as a type, built by [`StoreExt::get_as`] or [`Get::decode`].
#[derive(Debug)]
#[must_use = "it does nothing until it is awaited"]
pub struct DecodedGet<'a, S: ?Sized, T> {
    get: Get<'a, S>,
    value: PhantomData<fn() -> T>,
}

impl<'a, S: BaseStore + ?Sized, T: DeserializeOwned + 'a> IntoFuture for DecodedGet<'a, S, T> {
    type Output = Result<Option<T>>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let store = self.get.store;
        let read = self.get.into_future();
        Box::pin(async move {
            let Some(item) = read.await? else { return Ok(None) };
            decode(store, &item, "get").map(Some)
        })
    }
}

/// Decodes an item's value.
fn decode<S: BaseStore + ?Sized, T: DeserializeOwned>(
    store: &S,
    item: &Item,
    operation: &'static str,
) -> Result<T> {
    item.value.decode().map_err(|error| {
        error.with("namespace", &item.namespace).with("key", &item.key).at(store.backend(), operation)
    })
}

impl<'a, S: BaseStore + ?Sized> IntoFuture for Get<'a, S> {
    type Output = Result<Option<Item>>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match run(self.store, Op::Get(self.op)).await? {
                OpResult::Item(item) => Ok(item),
                _ => Err(mismatch(self.store)),
            }
        })
    }
}

/// A write of one item, built by [`StoreExt::put`].
#[derive(Debug)]
#[must_use = "it does nothing until it is awaited"]
pub struct Put<'a, S: ?Sized> {
    store: &'a S,
    op: Result<PutOp>,
    expected: Option<Expected>,
}

impl<S: ?Sized> Put<'_, S> {
    fn with(mut self, set: impl FnOnce(&mut PutOp)) -> Self {
        if let Ok(op) = &mut self.op {
            set(op);
        }
        self
    }

    /// Sets the paths of the texts that are indexed for semantic search, instead of the store's (see
    /// [`IndexConfig::fields`](super::IndexConfig::fields)).
    pub fn index<P: Into<Str>>(self, fields: impl IntoIterator<Item = P>) -> Self {
        let fields = fields.into_iter().map(Into::into).collect();
        self.with(|op| op.index = ItemIndex::Fields(fields))
    }

    /// Excludes the item from semantic search.
    pub fn no_index(self) -> Self {
        self.with(|op| op.index = ItemIndex::Off)
    }

    /// Sets the item's TTL, instead of the store's default.
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(|op| op.ttl = ttl.into())
    }

    /// Disables expiry of the item, whatever the store's default.
    pub fn no_ttl(self) -> Self {
        self.with(|op| op.ttl = Ttl::Never)
    }

    /// Stores the item only if there is none, and fails with [`Conflict`](ErrorKind::Conflict) otherwise.
    pub fn if_absent(mut self) -> Self {
        self.expected = Some(Expected::Absent);
        self
    }

    /// Replaces the item only if nobody has put or deleted it since it was read, and fails with
    /// [`Conflict`](ErrorKind::Conflict) otherwise.
    ///
    /// ```
    /// use checkpoint_core::store::{BaseStore, StoreExt};
    /// use checkpoint_core::{ErrorKind, InMemoryStore, Result};
    /// use serde_json::{Value, json};
    ///
    /// /// Counts a visit. Concurrent calls lose none.
    /// async fn visit(store: &impl BaseStore) -> Result<()> {
    ///     loop {
    ///         let put = match store.get(["users", "ann"], "visits").await? {
    ///             None => store.put(["users", "ann"], "visits", json!({"n": 1})).if_absent(),
    ///             Some(item) => {
    ///                 let n = item.value.decode::<Value>()?["n"].as_i64().unwrap_or(0);
    ///                 store.put(["users", "ann"], "visits", json!({"n": n + 1})).if_unchanged(&item)
    ///             }
    ///         };
    ///         match put.await {
    ///             Err(error) if error.kind() == ErrorKind::Conflict => {} // another call was faster
    ///             done => return done,
    ///         }
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// let store = InMemoryStore::new();
    /// let (first, second) = tokio::join!(visit(&store), visit(&store));
    /// first?;
    /// second?;
    /// let visits = store.get_as::<Value>(["users", "ann"], "visits").await?;
    /// assert_eq!(visits, Some(json!({"n": 2})));
    /// # Ok(())
    /// # }
    /// ```
    pub fn if_unchanged(mut self, item: &Item) -> Self {
        self.op = self.op.and_then(|op| is_of(op, item));
        self.expected = Some(Expected::UpdatedAt(item.updated_at));
        self
    }
}

/// Rejects a condition on another item than the one that is put.
fn is_of(op: PutOp, item: &Item) -> Result<PutOp> {
    if (&op.namespace, &op.key) == (&item.namespace, &item.key) {
        return Ok(op);
    }
    let error = Error::invalid_argument("the item of if_unchanged() has another namespace or key");
    Err(error.with("namespace", &op.namespace).with("key", &op.key))
}

/// Runs a put or deletion, under its condition if it has one.
async fn write<S: BaseStore + ?Sized>(
    store: &S,
    op: Result<PutOp>,
    expected: Option<Expected>,
    operation: &'static str,
) -> Result<()> {
    let op = op.map_err(|error| error.at(store.backend(), operation))?;
    match expected {
        Some(expected) => store.put_if(op, expected).await,
        None => run(store, Op::Put(op)).await.map(|_| ()),
    }
}

impl<'a, S: BaseStore + ?Sized> IntoFuture for Put<'a, S> {
    type Output = Result<()>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(write(self.store, self.op, self.expected, "put"))
    }
}

/// A deletion of one item, built by [`StoreExt::delete`].
#[derive(Debug)]
#[must_use = "it does nothing until it is awaited"]
pub struct Delete<'a, S: ?Sized> {
    store: &'a S,
    op: Result<PutOp>,
    expected: Option<Expected>,
}

impl<S: ?Sized> Delete<'_, S> {
    /// Deletes the item only if nobody has put or deleted it since it was read, and fails with
    /// [`Conflict`](ErrorKind::Conflict) otherwise.
    pub fn if_unchanged(mut self, item: &Item) -> Self {
        self.op = self.op.and_then(|op| is_of(op, item));
        self.expected = Some(Expected::UpdatedAt(item.updated_at));
        self
    }
}

impl<'a, S: BaseStore + ?Sized> IntoFuture for Delete<'a, S> {
    type Output = Result<()>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(write(self.store, self.op, self.expected, "delete"))
    }
}

/// A search, built by [`StoreExt::search`]. It finds at most ten items unless [`limit`](Self::limit) is set.
#[derive(Debug)]
#[must_use = "it does nothing until it is awaited"]
pub struct Search<'a, S: ?Sized> {
    store: &'a S,
    op: SearchOp,
}

impl<S: ?Sized> Search<'_, S> {
    /// Sets conditions on the items' values.
    pub fn filter(mut self, filter: ItemFilter) -> Self {
        self.op.filter = filter;
        self
    }

    /// Sets the query of a semantic search; the best matches come first.
    pub fn query(mut self, query: impl Into<Str>) -> Self {
        self.op.query = Some(query.into());
        self
    }

    /// Sets the maximum number of items.
    pub fn limit(mut self, limit: usize) -> Self {
        self.op.limit = limit;
        self
    }

    /// Skips this many of the first.
    pub fn offset(mut self, offset: usize) -> Self {
        self.op.offset = offset;
        self
    }

    /// Sets whether the search refreshes the TTL of the items found; the store's configuration decides unless set.
    pub fn refresh_ttl(mut self, refresh: bool) -> Self {
        self.op.refresh_ttl = Some(refresh);
        self
    }
}

impl<'a, S: ?Sized> Search<'a, S> {
    /// Decodes the items' values. A value that does not fit the type is an error of kind
    /// [`Codec`](ErrorKind::Codec) that names the item: search where all items are of the type, or
    /// [`filter`](Self::filter) them.
    pub fn decode<T: DeserializeOwned>(self) -> DecodedSearch<'a, S, T> {
        DecodedSearch { search: self, value: PhantomData }
    }
}

/// A search whose items' values are of a type, built by [`Search::decode`].
#[derive(Debug)]
#[must_use = "it does nothing until it is awaited"]
pub struct DecodedSearch<'a, S: ?Sized, T> {
    search: Search<'a, S>,
    value: PhantomData<fn() -> T>,
}

/// An item that a search found, with its value.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Decoded<T> {
    /// The item's value.
    pub value: T,
    /// The item.
    pub item: Item,
    /// As in [`SearchItem::score`].
    pub score: Option<f64>,
}

impl<'a, S: BaseStore + ?Sized, T: DeserializeOwned + 'a> IntoFuture for DecodedSearch<'a, S, T> {
    type Output = Result<Vec<Decoded<T>>>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let store = self.search.store;
        let search = self.search.into_future();
        Box::pin(async move {
            let decoded = search.await?.into_iter().map(|SearchItem { item, score }| {
                Ok(Decoded { value: decode(store, &item, "search")?, item, score })
            });
            decoded.collect()
        })
    }
}

impl<'a, S: BaseStore + ?Sized> IntoFuture for Search<'a, S> {
    type Output = Result<Vec<SearchItem>>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match run(self.store, Op::Search(self.op)).await? {
                OpResult::Items(items) => Ok(items),
                _ => Err(mismatch(self.store)),
            }
        })
    }
}

/// A list of namespaces, built by [`StoreExt::list_namespaces`]. It has at most a hundred unless
/// [`limit`](Self::limit) is set.
#[derive(Debug)]
#[must_use = "it does nothing until it is awaited"]
pub struct ListNamespaces<'a, S: ?Sized> {
    store: &'a S,
    op: ListNamespacesOp,
}

impl<S: ?Sized> ListNamespaces<'_, S> {
    /// Lists those that begin with these labels; `*` matches any one label.
    pub fn prefix(mut self, pattern: impl Into<Namespace>) -> Self {
        self.op.match_conditions.push(MatchCondition::Prefix(pattern.into()));
        self
    }

    /// Lists those that end with these labels; `*` matches any one label.
    pub fn suffix(mut self, pattern: impl Into<Namespace>) -> Self {
        self.op.match_conditions.push(MatchCondition::Suffix(pattern.into()));
        self
    }

    /// Truncates namespaces to this many labels, and removes duplicates.
    pub fn max_depth(mut self, max_depth: usize) -> Self {
        self.op.max_depth = Some(max_depth);
        self
    }

    /// Sets the maximum number of namespaces.
    pub fn limit(mut self, limit: usize) -> Self {
        self.op.limit = limit;
        self
    }

    /// Skips this many of the first.
    pub fn offset(mut self, offset: usize) -> Self {
        self.op.offset = offset;
        self
    }
}

impl<'a, S: BaseStore + ?Sized> IntoFuture for ListNamespaces<'a, S> {
    type Output = Result<Vec<Namespace>>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match run(self.store, Op::ListNamespaces(self.op)).await? {
                OpResult::Namespaces(namespaces) => Ok(namespaces),
                _ => Err(mismatch(self.store)),
            }
        })
    }
}
