//! What an in-memory store holds, and each operation on it as one step.

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

/// Items by the dotted text of their namespace, then by key: the order in which namespaces are listed, and in which
/// all that is below one stands together.
#[derive(Default)]
pub(super) struct Items {
    spaces: BTreeMap<Str, Space>,
    /// When to look whether an item has expired, in that order: one entry for each item that has a time to live. The
    /// time is never later than that at which it does expire.
    deadlines: BTreeSet<Deadline>,
    last_put: Micros,
}

type Deadline = (Micros, Str, Str);

struct Space {
    namespace: Namespace,
    /// Never empty.
    rows: BTreeMap<Str, Row>,
}

struct Row {
    value: JsonObject,
    /// The value, once a filter has looked into it.
    parsed: OnceLock<Value>,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
    vectors: Vec<Arc<[f32]>>,
    life: Option<Life>,
}

struct Life {
    ttl: Micros,
    /// Atomic, so that reading an item, which lets its time begin anew, keeps out no other reader.
    expires_at: AtomicI64,
    /// Where its entry among the deadlines is.
    deadline: Micros,
}

/// A query's vector, and how near to it others are.
pub(super) struct Query<'a> {
    pub(super) vector: &'a [f32],
    pub(super) distance: Distance,
}

/// A row that a search may return.
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
            // What is left of neighbours need not be neighbours: between `a.b` and `a.b.c` stands `a.b-c`.
            Some(max_depth) => {
                let cut: BTreeSet<_> = spaces.map(|space| space.namespace.truncated(max_depth)).collect();
                cut.into_iter().skip(op.offset).take(op.limit).collect()
            }
        }
    }

    /// Stores or deletes each item; those that are stored have one time of change.
    pub(super) fn put(
        &mut self,
        puts: impl IntoIterator<Item = (PutOp, Option<Duration>, Vec<Arc<[f32]>>)>,
        now: Micros,
    ) {
        // What is put later has a later time, also within a microsecond and when the clock was set back.
        self.last_put = now.max(self.last_put.saturating_add(1));
        let updated_at = DateTime::from_timestamp_micros(self.last_put).unwrap_or_default();
        for (put, ttl, vectors) in puts {
            let text: Str = put.namespace.to_text().into();
            let earlier = self.remove(&text, &put.key).filter(|row| row.is_alive(now));
            let Some(value) = put.value else { continue };
            let life = ttl.map(|ttl| Life::new(ttl, now));
            if let Some(life) = &life {
                self.deadlines.insert((life.deadline, Arc::clone(&text), Arc::clone(&put.key)));
            }
            let row = Row {
                value,
                parsed: OnceLock::new(),
                created_at: earlier.map_or(updated_at, |row| row.created_at),
                updated_at,
                vectors,
                life,
            };
            let namespace = put.namespace;
            let space = self.spaces.entry(text).or_insert_with(|| Space { namespace, rows: BTreeMap::new() });
            space.rows.insert(put.key, row);
        }
    }

    /// Removes what has expired.
    pub(super) fn sweep(&mut self, now: Micros) -> u64 {
        let mut swept = 0;
        while let Some((due, ..)) = self.deadlines.first()
            && *due <= now
            && let Some((_, text, key)) = self.deadlines.pop_first()
        {
            let row = self.spaces.get_mut(&text).and_then(|space| space.rows.get_mut(&key));
            let Some(life) = row.and_then(|row| row.life.as_mut()) else { continue };
            let expires_at = *life.expires_at.get_mut();
            if expires_at > now {
                life.deadline = expires_at;
                self.deadlines.insert((expires_at, text, key));
            } else {
                self.remove(&text, &key);
                swept += 1;
            }
        }
        swept
    }

    /// How many items there are, with those that have expired and were not swept yet.
    pub(super) fn len(&self) -> usize {
        self.spaces.values().map(|space| space.rows.len()).sum()
    }

    /// The namespaces that are `prefix` or below it.
    fn within(&self, prefix: &Namespace) -> impl Iterator<Item = (&Str, &Space)> {
        let text = prefix.to_text();
        // What follows a dot stands before a slash, the character after it.
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
        if let Some(life) = &row.life {
            self.deadlines.remove(&(life.deadline, Arc::clone(text), Arc::clone(key)));
        }
        Some(row)
    }
}

impl Row {
    fn is_alive(&self, now: Micros) -> bool {
        self.life.as_ref().is_none_or(|life| life.expires_at.load(atomic::Ordering::Relaxed) > now)
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

    /// The score of the nearest of its vectors. A vector of zeros is near to nothing by its angle, as it has none.
    fn score(&self, query: &Query<'_>) -> Option<f64> {
        let scores = self.vectors.iter().map(|vector| query.distance.score(query.vector, vector));
        scores.filter(|score| !score.is_nan()).max_by(f64::total_cmp)
    }

    fn item(&self, namespace: &Namespace, key: &Str, refresh: bool, now: Micros) -> Item {
        if refresh && let Some(life) = &self.life {
            // Of two readers the later one counts.
            life.expires_at.fetch_max(now.saturating_add(life.ttl), atomic::Ordering::Relaxed);
        }
        Item::new(namespace, Arc::clone(key), self.value.clone(), self.created_at, self.updated_at)
    }
}

impl Life {
    fn new(ttl: Duration, now: Micros) -> Self {
        // Rounded up, so that nothing has expired when it is put.
        let micros = ttl.as_nanos().div_ceil(1000);
        let ttl = Micros::try_from(micros).unwrap_or(Micros::MAX);
        let deadline = now.saturating_add(ttl);
        Self { ttl, expires_at: AtomicI64::new(deadline), deadline }
    }
}

impl Found<'_> {
    /// By score if there is one, then the last put first, then by namespace and key.
    fn order(&self, other: &Self) -> Ordering {
        let score = |found: &Self| found.score.unwrap_or_default();
        (score(other).total_cmp(&score(self)))
            .then_with(|| other.row.updated_at.cmp(&self.row.updated_at))
            .then_with(|| self.text.cmp(other.text))
            .then_with(|| self.key.cmp(other.key))
    }
}
