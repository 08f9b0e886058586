//! The items of group store, and the reads of them.

use checkpoint_core::Str;
use checkpoint_core::store::Namespace;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::{ItemValue, SplitMix64, item_value};

/// The number of items that are put one by one.
const PUTS: u64 = 10_000;
/// The number of users, each with a namespace.
const USERS: u64 = 100;
/// The number of items in a batch.
const BATCH: u64 = 100;
/// The number of batches.
const BATCHES: u64 = 50;
/// The number of reads.
const GETS: usize = 1000;
/// The number of searches of each scope.
const SEARCHES: usize = 100;
/// The number of kinds of items.
const KINDS: usize = 10;
/// The limit of a search.
const SEARCH_LIMIT: usize = 10;

/// An item to store.
#[derive(Debug, Clone)]
pub struct StoreItem {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its key.
    pub key: Str,
    /// Its value.
    pub value: ItemValue,
}

impl StoreItem {
    fn new(number: u64, namespace: Namespace) -> Self {
        Self { namespace, key: format!("i{number:06}").into(), value: item_value(number) }
    }
}

/// Serializes the namespace as text.
impl Serialize for StoreItem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut item = serializer.serialize_struct("StoreItem", 3)?;
        item.serialize_field("namespace", &self.namespace.to_text())?;
        item.serialize_field("key", &self.key)?;
        item.serialize_field("value", &self.value)?;
        item.end()
    }
}

/// A search by namespace and kind.
#[derive(Debug, Clone)]
pub struct StoreSearch {
    /// The namespace to search.
    pub prefix: Namespace,
    /// The required `kind`.
    pub kind: String,
    /// The keys of the expected items, most recently put first.
    pub keys: Vec<Str>,
}

/// The items of group store.
#[derive(Debug, Clone, Serialize)]
pub struct Items {
    /// The items that are put one by one.
    pub puts: Vec<StoreItem>,
    /// The indexes of those that are read.
    pub gets: Vec<usize>,
    /// The items that are put in batches.
    pub batches: Vec<Vec<StoreItem>>,
}

impl Items {
    /// Generates all items.
    pub fn new() -> Self {
        let namespace = |number: u64| Namespace::from(["bench", "users", &format!("u{:03}", number % USERS)]);
        let puts: Vec<_> = (0..PUTS).map(|number| StoreItem::new(number, namespace(number))).collect();
        let batch = |number: u64| {
            let namespace = Namespace::from(["batch", &format!("b{number:03}")]);
            let first = PUTS + number * BATCH;
            (first..first + BATCH).map(|number| StoreItem::new(number, namespace.clone())).collect()
        };
        let mut random = SplitMix64::new(0x6E7);
        Self {
            gets: (0..GETS).map(|_| random.below(puts.len())).collect(),
            batches: (0..BATCHES).map(batch).collect(),
            puts,
        }
    }

    /// The common namespace of all items that are put one by one.
    pub fn prefix() -> Namespace {
        Namespace::from(["bench"])
    }

    /// The items that are read.
    pub fn read(&self) -> impl Iterator<Item = &StoreItem> {
        self.gets.iter().filter_map(|number| self.puts.get(*number))
    }

    /// Searches of everything, or each of one user's items.
    pub fn searches(&self, of_user: bool) -> Vec<StoreSearch> {
        let search = |(turn, item): (usize, &StoreItem)| {
            let prefix = if of_user { item.namespace.clone() } else { Self::prefix() };
            let kind = format!("k{}", turn % KINDS);
            let found = |item: &&StoreItem| item.namespace.is_within(&prefix) && item.value.kind == kind;
            let keys = self
                .puts
                .iter()
                .rev()
                .filter(found)
                .take(SEARCH_LIMIT)
                .map(|item| item.key.clone())
                .collect();
            StoreSearch { prefix, kind, keys }
        };
        self.puts.iter().enumerate().take(SEARCHES).map(search).collect()
    }

    /// The namespaces of the items that are put one by one, in order.
    pub fn namespaces(&self) -> Vec<Namespace> {
        let mut all: Vec<_> = self.puts.iter().map(|item| item.namespace.clone()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

impl Default for Items {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_items_are_the_workloads() {
        let items = Items::new();
        let names = |item: &StoreItem| (item.namespace.to_text(), item.key.to_string());
        assert_eq!(names(&items.puts[1234]), ("bench.users.u034".to_owned(), "i001234".to_owned()));
        assert_eq!(items.puts[1234].value, item_value(1234));
        assert_eq!(names(&items.batches[49][99]), ("batch.b049".to_owned(), "i014999".to_owned()));
        assert_eq!(items.batches[49][99].value, item_value(14_999));
        assert_eq!((items.puts.len(), items.gets.len(), items.batches.len()), (10_000, 1000, 50));
        assert_eq!(items.namespaces().len(), 100);
        // The first outputs of the generator with this seed, below 10,000.
        let mut random = SplitMix64::new(0x6E7);
        assert_eq!(items.gets[..3], [(); 3].map(|()| usize::try_from(random.next_u64() % 10_000).unwrap()));
        assert_eq!(items.read().count(), 1000);
    }

    #[test]
    fn searches_have_the_newest_of_a_kind() {
        let items = Items::new();
        for (of_user, prefix) in [(false, "bench"), (true, "bench.users.u013")] {
            let searches = items.searches(of_user);
            assert_eq!(searches.len(), 100);
            let search = &searches[13];
            assert_eq!((search.prefix.to_text(), &*search.kind), (prefix.to_owned(), "k3"));
            assert!(search.keys.is_sorted_by(|one, other| one > other), "the last put first");
            assert!(of_user || search.keys.len() == 10);
            for key in &search.keys {
                let number: usize = key[1..].parse().unwrap();
                let item = &items.puts[number];
                assert!(item.value.kind == "k3" && item.namespace.to_text().starts_with(prefix));
            }
        }
        assert!(items.searches(true).iter().all(|search| !search.keys.is_empty()));
    }
}
