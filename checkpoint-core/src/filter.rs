//! Conditions on metadata.

use std::cmp::Ordering;

use crate::serde::Value;
use crate::{CheckpointMetadata, Str};

/// Conditions on metadata, all of which must hold. An empty filter matches everything.
///
/// How a condition compares nested values and `null` depends on the backend: see [`FilterSemantics`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter(Vec<(Str, Value)>);

/// How a backend compares metadata with a filter. It follows what Python's saver for that database does.
///
/// Under both, numbers compare by value (`1` matches `1.0`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FilterSemantics {
    /// In memory and SQLite: the stored value equals the wanted one; `null` also matches a missing key; `true`
    /// equals `1`; a missing key with dots is a path into nested maps.
    Equality,
    /// Postgres (`jsonb @>`): a stored map may have more entries than the wanted one, a stored list more items in any
    /// order; `null` matches only an explicit null; `true` is not `1`.
    Containment,
}

impl Filter {
    /// Makes an empty filter.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the condition that the entry `key` has this value.
    #[must_use]
    pub fn eq(mut self, key: impl Into<Str>, value: impl Into<Value>) -> Self {
        self.0.push((key.into(), value.into()));
        self
    }

    /// Whether there is no condition.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The conditions in the order in which they were added.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Str, &Value)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// Whether metadata meets every condition.
    pub fn matches(&self, metadata: &CheckpointMetadata, semantics: FilterSemantics) -> bool {
        self.0.iter().all(|(key, wanted)| match semantics {
            FilterSemantics::Equality => {
                let stored = metadata.get(key).or_else(|| by_path(metadata, key)).unwrap_or(&Value::Nil);
                equal(stored, wanted)
            }
            FilterSemantics::Containment => metadata.get(key).is_some_and(|stored| contains(stored, wanted)),
        })
    }
}

impl<K: Into<Str>, V: Into<Value>> FromIterator<(K, V)> for Filter {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(conditions: I) -> Self {
        Self(conditions.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
    }
}

fn by_path<'a>(metadata: &'a CheckpointMetadata, key: &str) -> Option<&'a Value> {
    let (first, rest) = key.split_once('.')?;
    rest.split('.').try_fold(metadata.get(first)?, |value, part| value.get(part))
}

/// Equality as in Python: numbers and booleans by value, maps regardless of order.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Map(a), Value::Map(b)) => {
            a.len() == b.len() && b.iter().all(|(key, b)| lookup(a, key).is_some_and(|a| equal(a, b)))
        }
        _ => same_scalar(a, b) || matches!((Number::of(a), Number::of(b)), (Some(a), Some(b)) if a.same(b)),
    }
}

/// `jsonb @>` below the top level.
fn contains(stored: &Value, wanted: &Value) -> bool {
    match (stored, wanted) {
        (Value::Map(stored), Value::Map(wanted)) => wanted
            .iter()
            .all(|(key, wanted)| lookup(stored, key).is_some_and(|stored| contains(stored, wanted))),
        (Value::Array(stored), Value::Array(wanted)) => {
            wanted.iter().all(|wanted| stored.iter().any(|stored| contains(stored, wanted)))
        }
        (Value::Bool(_), _) | (_, Value::Bool(_)) => stored == wanted,
        _ => {
            same_scalar(stored, wanted)
                || matches!((Number::of(stored), Number::of(wanted)), (Some(a), Some(b)) if a.same(b))
        }
    }
}

pub(crate) fn lookup<'a>(map: &'a [(Value, Value)], key: &Value) -> Option<&'a Value> {
    map.iter().rev().find(|(candidate, _)| candidate == key).map(|(_, value)| value)
}

fn same_scalar(a: &Value, b: &Value) -> bool {
    !matches!(a, Value::Array(_) | Value::Map(_)) && a == b
}

/// A number. Integers and floats compare by value without loss of precision.
#[derive(Clone, Copy)]
pub(crate) enum Number {
    Integer(i128),
    Float(f64),
}

/// Greater than any signed or unsigned 64-bit integer.
const BEYOND_INTEGERS: f64 = 1e30;

impl Number {
    /// Converts a value; booleans count as 0 and 1.
    pub(crate) fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(flag) => Some(Self::Integer(i128::from(*flag))),
            Value::Int(number) => Some(Self::Integer(i128::from(*number))),
            Value::UInt(number) => Some(Self::Integer(i128::from(*number))),
            Value::Float(number) => Some(Self::Float(*number)),
            _ => None,
        }
    }

    fn same(self, other: Self) -> bool {
        self.order(other).is_some_and(Ordering::is_eq)
    }

    /// Compares by value; `None` for NaN.
    pub(crate) fn order(self, other: Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Integer(a), Self::Integer(b)) => Some(a.cmp(&b)),
            (Self::Float(a), Self::Float(b)) => a.partial_cmp(&b),
            (Self::Integer(whole), Self::Float(float)) => integer_to_float(whole, float),
            (Self::Float(float), Self::Integer(whole)) => {
                integer_to_float(whole, float).map(Ordering::reverse)
            }
        }
    }
}

fn integer_to_float(whole: i128, float: f64) -> Option<Ordering> {
    if float.is_nan() {
        return None;
    }
    if float.abs() >= BEYOND_INTEGERS {
        return 0.0.partial_cmp(&float);
    }
    #[expect(clippy::cast_possible_truncation, reason = "the fraction is compared below")]
    let floor = float.floor() as i128;
    Some(whole.cmp(&floor).then_with(|| if float.fract() == 0.0 { Ordering::Equal } else { Ordering::Less }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use FilterSemantics::{Containment, Equality};

    fn map(entries: &[(&str, Value)]) -> Value {
        Value::Map(entries.iter().map(|(key, value)| ((*key).into(), value.clone())).collect())
    }

    #[test]
    fn matches_as_both_databases_do() {
        let metadata = CheckpointMetadata::default()
            .with("a", map(&[("b", 1_i64.into()), ("c", 2_i64.into())]))
            .with("k", Value::Nil)
            .with("s", 1_i64)
            .with("t", true)
            .with("l", Value::Array(vec![1_i64.into(), 2_i64.into()]))
            .with("p", map(&[("", "id".into())]));
        // (key, wanted, matches by equality, matches by containment)
        let table = [
            ("a", map(&[("c", 2_i64.into()), ("b", 1.0.into())]), true, true),
            ("a", map(&[("b", 1_i64.into())]), false, true),
            ("a.b", 1_i64.into(), true, false),
            ("k", Value::Nil, true, true),
            ("missing", Value::Nil, true, false),
            ("s", 1.0.into(), true, true),
            ("s", true.into(), true, false),
            ("t", 1_i64.into(), true, false),
            ("t", false.into(), false, false),
            ("l", Value::Array(vec![1_i64.into(), 2_i64.into()]), true, true),
            ("l", Value::Array(vec![]), false, true),
            ("p", map(&[]), false, true),
            ("s", "1".into(), false, false),
        ];
        for (key, wanted, equality, containment) in table {
            let filter = Filter::new().eq(key, wanted.clone());
            assert_eq!(filter.matches(&metadata, Equality), equality, "{key} = {wanted:?}");
            assert_eq!(filter.matches(&metadata, Containment), containment, "{key} @> {wanted:?}");
        }
        assert!(Filter::new().matches(&metadata, Containment));
    }
}
