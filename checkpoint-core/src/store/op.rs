//! The operations of a store, and their results.

use std::collections::HashMap;

use super::{
    IndexConfig, Item, ItemFilter, ItemIndex, JsonObject, MatchCondition, Namespace, SearchItem, Ttl,
    TtlConfig,
};
use crate::{Error, Result, Str};

/// Reads one item.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct GetOp {
    /// Where it is.
    pub namespace: Namespace,
    /// Its key.
    pub key: Str,
    /// Whether its time to live begins anew; as the store's [`TtlConfig`] says, unless set.
    pub refresh_ttl: Option<bool>,
}

impl GetOp {
    /// Names the item.
    pub fn new(namespace: impl Into<Namespace>, key: impl Into<Str>) -> Self {
        Self { namespace: namespace.into(), key: key.into(), refresh_ttl: None }
    }
}

/// Finds items under a namespace.
///
/// They come with the last put first, then by namespace and key, by code point. With a query the nearest come first, and
/// in that order where they are equally near; those that have no vector are not found then.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SearchOp {
    /// Where to look: the namespace itself and all below it. The root has everything.
    pub namespace_prefix: Namespace,
    /// What the values must be like.
    pub filter: ItemFilter,
    /// How many items at most.
    pub limit: usize,
    /// How many of the first items to leave out.
    pub offset: usize,
    /// What the items should be near to in meaning.
    pub query: Option<Str>,
    /// Whether the times to live of what is found begin anew; as the store's [`TtlConfig`] says, unless set.
    pub refresh_ttl: Option<bool>,
}

impl SearchOp {
    /// How many items a search finds unless it says otherwise.
    pub const LIMIT: usize = 10;

    /// Finds the first ten items.
    pub fn new(namespace_prefix: impl Into<Namespace>) -> Self {
        Self {
            namespace_prefix: namespace_prefix.into(),
            filter: ItemFilter::new(),
            limit: Self::LIMIT,
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
    /// Where it is.
    pub namespace: Namespace,
    /// Its key.
    pub key: Str,
    /// Its new value; without one it is deleted.
    pub value: Option<JsonObject>,
    /// What of it is found by queries. Without an index in the store it means nothing.
    pub index: ItemIndex,
    /// How long it lives.
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
}

/// Lists the namespaces that have items, by code point of their dotted text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ListNamespacesOp {
    /// Which ones: those that meet all conditions.
    pub match_conditions: Vec<MatchCondition>,
    /// Cuts namespaces to so many labels, and lists each once that is left.
    pub max_depth: Option<usize>,
    /// How many at most.
    pub limit: usize,
    /// How many of the first to leave out.
    pub offset: usize,
}

impl ListNamespacesOp {
    /// How many namespaces a listing has unless it says otherwise.
    pub const LIMIT: usize = 100;

    /// Lists the first hundred.
    pub fn new() -> Self {
        Self { match_conditions: Vec::new(), max_depth: None, limit: Self::LIMIT, offset: 0 }
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
    /// Refuses what no store can run: a namespace with labels that cannot be kept apart, a put without a namespace or
    /// under one that is reserved, a time to live that is none, a filter that compares with what JSON does not have,
    /// an index path that is none. Stores call it for every operation before they run any.
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
            Self::Put(put) => {
                if put.value.is_some() {
                    put.namespace.check_for_put()?;
                } else {
                    put.namespace.check()?;
                }
                put.index.check()?;
                put.ttl.resolve(&TtlConfig::default()).map(|_| ())
            }
            Self::ListNamespaces(list) => {
                if list.max_depth == Some(0) {
                    return Err(Error::invalid_argument("namespaces are cut to at least one label")
                        .with("max_depth", 0));
                }
                list.match_conditions.iter().try_for_each(|condition| condition.pattern().check())
            }
        }
    }
}

/// What one operation of a batch came to.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum OpResult {
    /// Of a [`GetOp`]: the item, if it is there.
    Item(Option<Item>),
    /// Of a [`SearchOp`]: what was found.
    Items(Vec<SearchItem>),
    /// Of a [`PutOp`]: it is done.
    Done,
    /// Of a [`ListNamespacesOp`]: the namespaces.
    Namespaces(Vec<Namespace>),
}

/// A batch by kinds, for stores: each operation with the place of its result.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Ops {
    /// The reads of one item.
    pub gets: Vec<(usize, GetOp)>,
    /// The searches.
    pub searches: Vec<(usize, SearchOp)>,
    /// The puts that take effect: for each namespace and key the last one, where the first one stood.
    pub puts: Vec<PutOp>,
    /// The listings of namespaces.
    pub lists: Vec<(usize, ListNamespacesOp)>,
}

impl Ops {
    /// Checks every operation and sorts the batch by kinds. Queries need an index.
    ///
    /// # Errors
    /// As [`Op::check`], and [`Unsupported`](crate::ErrorKind::Unsupported) for a query without an index.
    pub fn new(ops: Vec<Op>, backend: &'static str, index: Option<&IndexConfig>) -> Result<Self> {
        let mut sorted = Self::default();
        let mut places: HashMap<(Namespace, Str), usize> = HashMap::new();
        for (at, op) in ops.into_iter().enumerate() {
            op.check()?;
            match op {
                Op::Get(get) => sorted.gets.push((at, get)),
                Op::Search(search) => {
                    if search.query.is_some() && index.is_none() {
                        return Err(super::no_index(backend));
                    }
                    sorted.searches.push((at, search));
                }
                Op::ListNamespaces(list) => sorted.lists.push((at, list)),
                Op::Put(put) => {
                    let next = sorted.puts.len();
                    let place = *places.entry((put.namespace.clone(), put.key.clone())).or_insert(next);
                    match sorted.puts.get_mut(place) {
                        Some(earlier) => *earlier = put,
                        None => sorted.puts.push(put),
                    }
                }
            }
        }
        Ok(sorted)
    }
}
