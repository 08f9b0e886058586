//! The operations of a store, and their results.

use std::collections::HashMap;

use chrono::{DateTime, Utc};

use super::{
    IndexConfig, Item, ItemFilter, ItemIndex, JsonObject, MatchCondition, Namespace, SearchItem, Ttl,
    TtlConfig,
};
use crate::{Error, ErrorKind, Result, Str};

/// Reads one item.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct GetOp {
    /// The item's namespace.
    pub namespace: Namespace,
    /// The item's key.
    pub key: Str,
    /// Whether the read refreshes the item's TTL; the store's [`TtlConfig`] decides unless set.
    pub refresh_ttl: Option<bool>,
}

impl GetOp {
    /// Creates a read of an item.
    pub fn new(namespace: impl Into<Namespace>, key: impl Into<Str>) -> Self {
        Self { namespace: namespace.into(), key: key.into(), refresh_ttl: None }
    }
}

/// Finds items under a namespace.
///
/// They are sorted by `updated_at`, most recent first, then by namespace and key, by code point. With a query they are
/// sorted by score first, and items without a vector are not found.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SearchOp {
    /// The namespace to search, with its descendants. The root has every item.
    pub namespace_prefix: Namespace,
    /// Conditions on the values.
    pub filter: ItemFilter,
    /// The maximum number of items.
    pub limit: usize,
    /// How many of the first items to skip.
    pub offset: usize,
    /// The query of a semantic search.
    pub query: Option<Str>,
    /// Whether the search refreshes the TTL of the items found; the store's [`TtlConfig`] decides unless set.
    pub refresh_ttl: Option<bool>,
}

impl SearchOp {
    /// The default maximum number of items.
    pub const DEFAULT_LIMIT: usize = 10;

    /// Creates a search for the first ten items.
    pub fn new(namespace_prefix: impl Into<Namespace>) -> Self {
        Self {
            namespace_prefix: namespace_prefix.into(),
            filter: ItemFilter::new(),
            limit: Self::DEFAULT_LIMIT,
            offset: 0,
            query: None,
            refresh_ttl: None,
        }
    }
}

/// Stores an item, or deletes it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PutOp {
    /// The item's namespace.
    pub namespace: Namespace,
    /// The item's key.
    pub key: Str,
    /// The item's new value; `None` deletes the item.
    pub value: Option<JsonObject>,
    /// Which texts of it are indexed for semantic search. Ignored by a store without an index.
    pub index: ItemIndex,
    /// How long the item lives.
    pub ttl: Ttl,
}

impl PutOp {
    /// Stores a value.
    pub fn new(namespace: impl Into<Namespace>, key: impl Into<Str>, value: JsonObject) -> Self {
        Self { value: Some(value), ..Self::delete(namespace, key) }
    }

    /// Deletes an item.
    pub fn delete(namespace: impl Into<Namespace>, key: impl Into<Str>) -> Self {
        Self {
            namespace: namespace.into(),
            key: key.into(),
            value: None,
            index: ItemIndex::Default,
            ttl: Ttl::Default,
        }
    }

    /// Rejects an invalid put, as [`Op::check`] does.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) that says what is wrong.
    pub fn check(&self) -> Result<()> {
        if self.value.is_some() {
            self.namespace.check_for_put()?;
        } else {
            self.namespace.check()?;
        }
        self.index.check()?;
        self.ttl.resolve(&TtlConfig::default()).map(|_| ())
    }
}

/// What an item must be for [`BaseStore::put_if`](super::BaseStore::put_if) to change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Expected {
    /// There is no item, or it has expired.
    Absent,
    /// The item was last put at this time: [`Item::updated_at`] as it was read. Every put of an item has a later one.
    UpdatedAt(DateTime<Utc>),
}

impl Expected {
    /// Whether an item that was last put at this time is as expected; `None` if there is none. For stores.
    pub fn is_met(self, updated_at: Option<DateTime<Utc>>) -> bool {
        match self {
            Self::Absent => updated_at.is_none(),
            Self::UpdatedAt(expected) => updated_at == Some(expected),
        }
    }

    /// The error of a put whose item is not as expected. For stores.
    pub fn conflict(self, put: &PutOp) -> Error {
        let message = match self {
            Self::Absent => "the item exists already; read it to decide what to do",
            Self::UpdatedAt(_) => "the item was put again or deleted since it was read; read it again",
        };
        Error::new(ErrorKind::Conflict, message)
            .retryable(false)
            .with("namespace", &put.namespace)
            .with("key", &put.key)
    }
}

/// Lists the namespaces that have items, sorted by code point of their dotted text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ListNamespacesOp {
    /// Conditions, all of which a namespace must meet.
    pub match_conditions: Vec<MatchCondition>,
    /// Truncates namespaces to this many labels, and removes duplicates.
    pub max_depth: Option<usize>,
    /// The maximum number of namespaces.
    pub limit: usize,
    /// How many of the first to skip.
    pub offset: usize,
}

impl ListNamespacesOp {
    /// The default maximum number of namespaces.
    pub const DEFAULT_LIMIT: usize = 100;

    /// Lists the first hundred.
    pub fn new() -> Self {
        Self { match_conditions: Vec::new(), max_depth: None, limit: Self::DEFAULT_LIMIT, offset: 0 }
    }
}

impl Default for ListNamespacesOp {
    fn default() -> Self {
        Self::new()
    }
}

/// One operation of a batch.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Op {
    /// Reads one item.
    Get(GetOp),
    /// Finds items.
    Search(SearchOp),
    /// Stores or deletes an item.
    Put(PutOp),
    /// Lists namespaces.
    ListNamespaces(ListNamespacesOp),
}

impl Op {
    /// Rejects an invalid operation: a namespace with invalid labels, a put without a namespace or under a reserved
    /// one, an invalid TTL, a filter that compares with values that JSON lacks, an invalid index path. Stores call it
    /// for every operation before they run any.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) that says what is wrong.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Get(get) => get.namespace.check(),
            Self::Search(search) => {
                search.namespace_prefix.check()?;
                search.filter.check()
            }
            Self::Put(put) => put.check(),
            Self::ListNamespaces(list) => {
                if list.max_depth == Some(0) {
                    return Err(Error::invalid_argument("max_depth must be at least 1").with("max_depth", 0));
                }
                list.match_conditions.iter().try_for_each(|condition| condition.pattern().check())
            }
        }
    }
}

/// The result of one operation of a batch.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum OpResult {
    /// Of a [`GetOp`]: the item, if it exists.
    Item(Option<Item>),
    /// Of a [`SearchOp`]: the items found.
    Items(Vec<SearchItem>),
    /// Of a [`PutOp`].
    Done,
    /// Of a [`ListNamespacesOp`]: the namespaces.
    Namespaces(Vec<Namespace>),
}

/// A batch grouped by kind, for stores. Each read comes with the index of its result.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Ops {
    /// The reads of one item.
    pub gets: Vec<(usize, GetOp)>,
    /// The searches.
    pub searches: Vec<(usize, SearchOp)>,
    /// The puts that take effect: for each namespace and key the last one, at the position of the first.
    pub puts: Vec<PutOp>,
    /// The lists of namespaces.
    pub lists: Vec<(usize, ListNamespacesOp)>,
}

impl Ops {
    /// Checks every operation and groups the batch by kind. Queries need an index.
    ///
    /// # Errors
    /// Those of [`Op::check`], and [`Unsupported`](crate::ErrorKind::Unsupported) for a query without an index.
    pub fn new(ops: Vec<Op>, backend: &'static str, index: Option<&IndexConfig>) -> Result<Self> {
        let mut grouped = Self::default();
        let mut positions: HashMap<(Namespace, Str), usize> = HashMap::new();
        for (at, op) in ops.into_iter().enumerate() {
            op.check()?;
            match op {
                Op::Get(get) => grouped.gets.push((at, get)),
                Op::Search(search) => {
                    if search.query.is_some() && index.is_none() {
                        return Err(super::no_index(backend));
                    }
                    grouped.searches.push((at, search));
                }
                Op::ListNamespaces(list) => grouped.lists.push((at, list)),
                Op::Put(put) => {
                    let next = grouped.puts.len();
                    let position = *positions.entry((put.namespace.clone(), put.key.clone())).or_insert(next);
                    match grouped.puts.get_mut(position) {
                        Some(earlier) => *earlier = put,
                        None => grouped.puts.push(put),
                    }
                }
            }
        }
        Ok(grouped)
    }
}
