//! Hash maps and hash sets in a canonical order.
//!
//! Their order differs from one map to the next, even if the contents are equal: in the order of the map, a channel would
//! get a new version with every commit.

use std::ops::Range;

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use super::Encoder;
use crate::Result;

/// Where the hash maps and hash sets of the standard library and of hashbrown are defined, and their iterators. Nothing
/// else is, so no order that has a meaning is lost.
const HASHED: [&str; 2] = ["std::collections::hash::", "hashbrown::"];

/// Whether a collection has no order of its own.
///
/// serde does not tell, so the type's name has to. If a later compiler changes these names, entries are written in the
/// order of the map, which is valid, and a test fails.
fn is_hashed<C>() -> bool {
    let name = std::any::type_name::<C>().trim_start_matches('&');
    HASHED.iter().any(|module| name.starts_with(module))
}

/// The number of items, if the iterator knows it.
fn exact_len(items: &impl Iterator) -> Option<usize> {
    match items.size_hint() {
        (least, Some(most)) if least == most => Some(least),
        _ => None,
    }
}

impl Encoder {
    /// Writes a list; that of a hash set ordered by the encoded items.
    pub(super) fn list<I: IntoIterator<Item: Serialize>>(&mut self, items: I) -> Result<()> {
        let mut spans = is_hashed::<I>().then(Vec::new);
        let items = items.into_iter();
        let mut list = (&mut *self).serialize_seq(exact_len(&items))?;
        for item in items {
            let start = list.encoder.out.len();
            list.serialize_element(&item)?;
            if let Some(spans) = &mut spans {
                spans.push(start..list.encoder.out.len());
            }
        }
        if let Some(spans) = spans {
            list.encoder.sort(spans);
        }
        SerializeSeq::end(list)
    }

    /// Writes a map; a hash map ordered by the encoded keys.
    pub(super) fn entries<K: Serialize, V: Serialize, I: IntoIterator<Item = (K, V)>>(
        &mut self,
        entries: I,
    ) -> Result<()> {
        let mut spans = is_hashed::<I>().then(Vec::new);
        let entries = entries.into_iter();
        let mut map = (&mut *self).serialize_map(exact_len(&entries))?;
        for (key, value) in entries {
            let start = map.encoder.out.len();
            map.serialize_entry(&key, &value)?;
            if let Some(spans) = &mut spans {
                spans.push(start..map.encoder.out.len());
            }
        }
        if let Some(spans) = spans {
            map.encoder.sort(spans);
        }
        SerializeMap::end(map)
    }

    /// Orders the spans that were written last by their bytes. No MessagePack value is the beginning of another, so whole
    /// entries compare as their keys do.
    fn sort(&mut self, mut spans: Vec<Range<usize>>) {
        let Some(start) = spans.first().map(|span| span.start) else { return };
        let bytes = |span: &Range<usize>| self.out.get(span.clone()).unwrap_or_default();
        if spans.is_sorted_by(|a, b| bytes(a) <= bytes(b)) {
            return;
        }
        spans.sort_unstable_by(|a, b| bytes(a).cmp(bytes(b)));
        let mut sorted = Vec::with_capacity(self.out.len() - start);
        for span in &spans {
            sorted.extend_from_slice(bytes(span));
        }
        self.out.truncate(start);
        self.out.extend_from_slice(&sorted);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
    use std::hash::{BuildHasher, DefaultHasher, Hasher};
    use std::rc::Rc;
    use std::sync::Arc;

    use serde::Serialize;

    use crate::serde::{from_msgpack, to_msgpack};
    use crate::{InMemorySaver, SaverExt};

    /// Maps with different seeds have different orders.
    #[derive(Clone)]
    struct Seed(u64);

    impl BuildHasher for Seed {
        type Hasher = DefaultHasher;
        fn build_hasher(&self) -> DefaultHasher {
            let mut hasher = DefaultHasher::default();
            hasher.write_u64(self.0);
            hasher
        }
    }

    type Map<K, V> = HashMap<K, V, Seed>;
    type Set<T> = HashSet<T, Seed>;

    const KEYS: [&str; 8] =
        ["a", "bb", "", "a key of more than 31 bytes, so with another head", "c", "ä", "B", "0"];

    fn map(seed: u64) -> Map<&'static str, i64> {
        let mut map = Map::with_hasher(Seed(seed));
        map.extend(KEYS.into_iter().zip(0..));
        map
    }

    fn set(seed: u64) -> Set<(u16, &'static str)> {
        let mut set = Set::with_hasher(Seed(seed));
        set.extend((250..).zip(KEYS));
        set
    }

    /// Encodes values that differ only in the orders of their maps, and expects the same bytes.
    fn canonical<T: Serialize>(make: impl Fn(u64) -> T) -> Vec<u8> {
        let bytes = to_msgpack(&make(0)).unwrap();
        for seed in 1..20 {
            assert_eq!(to_msgpack(&make(seed)).unwrap(), bytes, "{}", std::any::type_name::<T>());
        }
        bytes
    }

    #[test]
    fn equal_maps_and_sets_encode_equally() {
        let orders: HashSet<Vec<&str>> = (0..20).map(|seed| map(seed).into_keys().collect()).collect();
        assert!(orders.len() > 1, "the maps differ in their order");

        let found: BTreeMap<String, i64> = from_msgpack(&canonical(map)).unwrap();
        assert!(found.iter().map(|(key, value)| (&**key, *value)).eq(BTreeMap::from_iter(map(0))));
        let found: BTreeSet<(u16, String)> = from_msgpack(&canonical(set)).unwrap();
        assert!(found.iter().map(|(number, text)| (*number, &**text)).eq(BTreeSet::from_iter(set(0))));
        canonical(|seed| {
            let mut map = hashbrown::HashMap::with_hasher(Seed(seed));
            map.extend(KEYS.into_iter().zip(0..));
            let mut set = hashbrown::HashSet::with_hasher(Seed(seed));
            set.extend(KEYS);
            (map, set)
        });
    }

    #[test]
    fn maps_are_ordered_wherever_they_are() {
        #[derive(Serialize)]
        enum Tree {
            Leaf(Set<(u16, &'static str)>),
            Node { children: Map<u8, Self> },
        }
        let node = |seed, count: u8| {
            let mut children = Map::with_hasher(Seed(seed));
            children.extend((0..count).map(|key| (key, Tree::Leaf(set(seed + u64::from(key))))));
            Tree::Node { children }
        };
        canonical(|seed| node(seed, 40));
        canonical(|seed| Some(vec![map(seed), map(seed + 1)]));
        canonical(|seed| (Arc::new(map(seed)), Box::new(set(seed)), Rc::new(Some(map(seed)))));
        canonical(|seed| BTreeMap::from([("a", [set(seed)]), ("b", [set(seed + 1)])]));
        let (one, other) = (map(1), map(2));
        assert_eq!(to_msgpack(&&&one).unwrap(), to_msgpack(&other).unwrap());
    }

    #[tokio::test]
    async fn an_unchanged_map_is_not_stored_again() {
        #[derive(Serialize, serde::Deserialize)]
        struct State {
            seen: HashMap<String, HashSet<u64>>,
        }
        let thread = InMemorySaver::new().thread("t");
        let seen = KEYS.into_iter().zip(1..).map(|(key, count)| (key.to_owned(), (0..count).collect()));
        let mut at = thread.begin(&State { seen: seen.collect() }).await.unwrap();
        for _ in 0..10 {
            at = thread.commit(&at, &at.values::<State>().unwrap()).await.unwrap();
            assert_eq!(at.tuple().checkpoint.updated_channels, Some(vec![]));
        }
    }

    #[test]
    fn other_collections_keep_their_order() {
        let list = ["b", "a", "c"];
        let expected = b"\x93\xa1b\xa1a\xa1c";
        assert_eq!(to_msgpack(&list.to_vec()).unwrap(), expected);
        assert_eq!(to_msgpack(&std::collections::VecDeque::from(list)).unwrap(), expected);
        assert_eq!(to_msgpack(&indexmap::IndexSet::from(list)).unwrap(), expected);
        let entries = indexmap::IndexMap::from([("b", 1), ("a", 2)]);
        assert_eq!(to_msgpack(&entries).unwrap(), b"\x82\xa1b\x01\xa1a\x02");
        let lists_of_maps = vec![Map::<&str, u8>::with_hasher(Seed(0)); 2];
        assert_eq!(to_msgpack(&lists_of_maps).unwrap(), b"\x92\x80\x80");
    }
}
