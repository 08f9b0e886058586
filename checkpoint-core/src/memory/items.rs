//! The items of an in-memory store, and the operations on them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{self, AtomicI64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::serde::Value;
use crate::store::{
    Distance, GetOp, Item, ItemFilter, JsonObject, ListNamespacesOp, MatchCondition, Namespace, PutOp,
    SearchItem, SearchOp,
};
use crate::{Result, Str};

/// A point in time: microseconds since 1970.
pub(super) type Micros = i64;

/// Items by the dotted text of their namespace, then by key. In this order namespaces are listed, and the descendants of
/// a namespace are contiguous.
#[derive(Default)]
pub(super) struct Items {
    spaces: BTreeMap<Str, Space>,
    /// One entry for each item with a TTL: when to check whether it has expired, never later than it does.
    deadlines: BTreeSet<Deadline>,
    last_put: Micros,
}

/// When to check an item. Ordered by time.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Deadline {
    due: Micros,
    /// The dotted text of the namespace.
    namespace: Str,
    key: Str,
}

/// A put with its resolved TTL and its vectors.
pub(super) struct CheckedPut {
    pub(super) op: PutOp,
    pub(super) ttl: Option<Duration>,
    pub(super) vectors: Vec<Arc<[f32]>>,
}

/// The items of one namespace.
struct Space {
    namespace: Namespace,
    /// Never empty.
    rows: BTreeMap<Str, Row>,
}

struct Row {
    value: JsonObject,
    /// The parsed value, once a filter has read it.
    parsed: OnceLock<Value>,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
    vectors: Vec<Arc<[f32]>>,
    expiry: Option<Expiry>,
}

struct Expiry {
    ttl: Micros,
    /// Atomic, so that a read can refresh the TTL under a shared lock.
    expires_at: AtomicI64,
    /// When the item's entry in [`Items::deadlines`] is due.
    due: Micros,
}

/// The vector of a query, and how to compare it with others.
pub(super) struct Query<'a> {
    pub(super) vector: &'a [f32],
    pub(super) distance: Distance,
}

/// A row that matches a search.
struct Found<'a> {
    text: &'a Str,
    namespace: &'a Namespace,
    key: &'a Str,
    row: &'a Row,
    score: Option<f64>,
}

impl Items {
    pub(super) fn get(&self, op: &GetOp, refresh: bool, now: Micros) -> Option<Item> {
        let space = self.spaces.get(&*op.namespace.to_text())?;
        let (key, row) = space.rows.get_key_value(&op.key)?;
        row.is_alive(now).then(|| row.item(&space.namespace, key, refresh, now))
    }

    /// When the item of a put was last put, if it exists.
    pub(super) fn updated_at(&self, put: &PutOp, now: Micros) -> Option<DateTime<Utc>> {
        let row = self.spaces.get(&*put.namespace.to_text())?.rows.get(&put.key)?;
        row.is_alive(now).then_some(row.updated_at)
    }

    pub(super) fn search(
        &self,
        op: &SearchOp,
        query: Option<&Query<'_>>,
        refresh: bool,
        now: Micros,
    ) -> Result<Vec<SearchItem>> {
        if op.limit == 0 {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for (text, Space { namespace, rows }) in self.within(&op.namespace_prefix) {
            for (key, row) in rows {
                if !row.is_alive(now) || !row.matches(&op.filter)? {
                    continue;
                }
                let score = query.map(|query| row.score(query));
                if score != Some(None) {
                    found.push(Found { text, namespace, key, row, score: score.flatten() });
                }
            }
        }
        let wanted = op.offset.saturating_add(op.limit);
        if wanted < found.len() {
            found.select_nth_unstable_by(wanted, Found::order);
            found.truncate(wanted);
        }
        found.sort_unstable_by(Found::order);
        let item = |found: &Found<'_>| {
            SearchItem::new(found.row.item(found.namespace, found.key, refresh, now), found.score)
        };
        Ok(found.iter().skip(op.offset).map(item).collect())
    }

    pub(super) fn list(&self, op: &ListNamespacesOp, now: Micros) -> Vec<Namespace> {
        let prefixes = op.match_conditions.iter().map(MatchCondition::literal_prefix);
        let prefix = prefixes.max_by_key(|prefix| prefix.labels().len()).unwrap_or_default();
        let spaces = self.within(&prefix).map(|(_, space)| space).filter(|space| {
            op.match_conditions.iter().all(|condition| condition.matches(&space.namespace))
                && space.rows.values().any(|row| row.is_alive(now))
        });
        match op.max_depth {
            None => spaces.skip(op.offset).take(op.limit).map(|space| space.namespace.clone()).collect(),
            // Equal truncated namespaces are not always adjacent: `a.b-c` sorts between `a.b` and `a.b.c`.
            Some(max_depth) => {
                let truncated: BTreeSet<_> =
                    spaces.map(|space| space.namespace.truncated(max_depth)).collect();
                truncated.into_iter().skip(op.offset).take(op.limit).collect()
            }
        }
    }

    /// Stores or deletes each item; all have the same `updated_at`.
    pub(super) fn put(&mut self, puts: impl IntoIterator<Item = CheckedPut>, now: Micros) {
        // Strictly increasing, also within a microsecond and when the clock was set back.
        self.last_put = now.max(self.last_put.saturating_add(1));
        let updated_at = DateTime::from_timestamp_micros(self.last_put).unwrap_or_default();
        for CheckedPut { op: put, ttl, vectors } in puts {
            let text: Str = put.namespace.to_text().into();
            let earlier = self.remove(&text, &put.key).filter(|row| row.is_alive(now));
            let Some(value) = put.value else { continue };
            let expiry = ttl.map(|ttl| Expiry::new(ttl, now));
            if let Some(expiry) = &expiry {
                self.deadlines.insert(expiry.deadline(&text, &put.key));
            }
            let row = Row {
                value,
                parsed: OnceLock::new(),
                created_at: earlier.map_or(updated_at, |row| row.created_at),
                updated_at,
                vectors,
                expiry,
            };
            let namespace = put.namespace;
            let space = self.spaces.entry(text).or_insert_with(|| Space { namespace, rows: BTreeMap::new() });
            space.rows.insert(put.key, row);
        }
    }

    /// Removes expired items, and returns their number.
    pub(super) fn sweep(&mut self, now: Micros) -> u64 {
        let mut swept = 0;
        while let Some(first) = self.deadlines.first()
            && first.due <= now
            && let Some(Deadline { namespace, key, .. }) = self.deadlines.pop_first()
        {
            let row = self.spaces.get_mut(&namespace).and_then(|space| space.rows.get_mut(&key));
            let Some(expiry) = row.and_then(|row| row.expiry.as_mut()) else { continue };
            let expires_at = *expiry.expires_at.get_mut();
            if expires_at > now {
                expiry.due = expires_at;
                self.deadlines.insert(Deadline { due: expires_at, namespace, key });
            } else {
                self.remove(&namespace, &key);
                swept += 1;
            }
        }
        swept
    }

    /// The number of items, including expired ones that were not swept yet.
    pub(super) fn len(&self) -> usize {
        self.spaces.values().map(|space| space.rows.len()).sum()
    }

    /// The namespace `prefix` and its descendants.
    fn within(&self, prefix: &Namespace) -> impl Iterator<Item = (&Str, &Space)> {
        let text = prefix.to_text();
        // Descendants sort between the dot and the slash, the character after it.
        let (first, end) = (format!("{text}."), format!("{text}/"));
        let below = if prefix.is_root() {
            (Bound::Unbounded, Bound::Unbounded)
        } else {
            (Bound::Included(&*first), Bound::Excluded(&*end))
        };
        self.spaces.get_key_value(&*text).into_iter().chain(self.spaces.range::<str, _>(below))
    }

    fn remove(&mut self, text: &Str, key: &Str) -> Option<Row> {
        let space = self.spaces.get_mut(text)?;
        let row = space.rows.remove(key)?;
        if space.rows.is_empty() {
            self.spaces.remove(text);
        }
        if let Some(expiry) = &row.expiry {
            self.deadlines.remove(&expiry.deadline(text, key));
        }
        Some(row)
    }
}

impl Row {
    fn is_alive(&self, now: Micros) -> bool {
        self.expiry.as_ref().is_none_or(|expiry| expiry.expires_at.load(atomic::Ordering::Relaxed) > now)
    }

    fn matches(&self, filter: &ItemFilter) -> Result<bool> {
        if filter.is_empty() {
            return Ok(true);
        }
        if let Some(value) = self.parsed.get() {
            return Ok(filter.matches(value));
        }
        let value = self.value.to_value()?;
        Ok(filter.matches(self.parsed.get_or_init(|| value)))
    }

    /// The score of the nearest of its vectors. With cosine distance a vector of zeros has no score.
    fn score(&self, query: &Query<'_>) -> Option<f64> {
        let scores = self.vectors.iter().map(|vector| query.distance.score(query.vector, vector));
        scores.filter(|score| !score.is_nan()).max_by(f64::total_cmp)
    }

    fn item(&self, namespace: &Namespace, key: &Str, refresh: bool, now: Micros) -> Item {
        if refresh && let Some(expiry) = &self.expiry {
            // Of concurrent readers the latest counts.
            expiry.expires_at.fetch_max(now.saturating_add(expiry.ttl), atomic::Ordering::Relaxed);
        }
        Item::new(namespace, Arc::clone(key), self.value.clone(), self.created_at, self.updated_at)
    }
}

impl Expiry {
    fn new(ttl: Duration, now: Micros) -> Self {
        // Rounded up, so that no item is expired when it is put.
        let micros = ttl.as_nanos().div_ceil(1000);
        let ttl = Micros::try_from(micros).unwrap_or(Micros::MAX);
        let due = now.saturating_add(ttl);
        Self { ttl, expires_at: AtomicI64::new(due), due }
    }

    fn deadline(&self, namespace: &Str, key: &Str) -> Deadline {
        Deadline { due: self.due, namespace: Arc::clone(namespace), key: Arc::clone(key) }
    }
}

impl Found<'_> {
    /// By score if there is one, then most recently put first, then by namespace and key.
    fn order(&self, other: &Self) -> Ordering {
        let score = |found: &Self| found.score.unwrap_or_default();
        (score(other).total_cmp(&score(self)))
            .then_with(|| other.row.updated_at.cmp(&self.row.updated_at))
            .then_with(|| self.text.cmp(other.text))
            .then_with(|| self.key.cmp(other.key))
    }
}
