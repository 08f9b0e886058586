//! Conditions on the values of items.

use std::cmp::Ordering;

use crate::filter::{Number, lookup};
use crate::serde::Value;
use crate::{Error, Result, Str};

/// How deeply conditions may be nested.
const MAX_DEPTH: usize = 32;

/// The prefix of an operator's name.
const OPERATOR_PREFIX: char = '$';

/// How a value is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// `$eq`: equal JSON. Numbers compare by value (`1` equals `1.0`), objects regardless of the order of keys.
    Eq,
    /// `$ne`: exists and is not equal.
    Ne,
    /// `$gt`: greater. Numbers compare with numbers, texts with texts by code point; other types never match.
    Gt,
    /// `$gte`: greater or equal, compared as by [`Gt`](Self::Gt).
    Gte,
    /// `$lt`: less, compared as by [`Gt`](Self::Gt).
    Lt,
    /// `$lte`: less or equal, compared as by [`Gt`](Self::Gt).
    Lte,
}

impl Comparison {
    /// The operators by their names.
    const ALL: [(&'static str, Self); 6] = [
        ("$eq", Self::Eq),
        ("$ne", Self::Ne),
        ("$gt", Self::Gt),
        ("$gte", Self::Gte),
        ("$lt", Self::Lt),
        ("$lte", Self::Lte),
    ];

    fn named(name: &str) -> Result<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, comparison)| *comparison).ok_or_else(
            || {
                Error::invalid_argument("unknown filter operator; use $eq, $ne, $gt, $gte, $lt or $lte")
                    .with("operator", name)
            },
        )
    }

    fn holds(self, found: &Value, wanted: &Value) -> bool {
        match self {
            Self::Eq => equal(found, wanted),
            Self::Ne => !equal(found, wanted),
            Self::Gt => order(found, wanted).is_some_and(Ordering::is_gt),
            Self::Gte => order(found, wanted).is_some_and(Ordering::is_ge),
            Self::Lt => order(found, wanted).is_some_and(Ordering::is_lt),
            Self::Lte => order(found, wanted).is_some_and(Ordering::is_le),
        }
    }
}

/// A condition on one part of an item's value. A missing part meets no condition.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Condition {
    /// The comparison with a value holds.
    Compare(Comparison, Value),
    /// It is an object whose entries of these keys exist and meet their conditions. Other entries are ignored.
    Entries(Vec<(Str, Self)>),
    /// It is a list of this length, and each item meets the condition at its index.
    Items(Vec<Self>),
    /// It meets all of these.
    All(Vec<Self>),
}

impl Condition {
    /// Whether a value meets the condition.
    pub(crate) fn matches(&self, value: &Value) -> bool {
        match self {
            Self::Compare(comparison, wanted) => comparison.holds(value, wanted),
            Self::Entries(entries) => match value {
                Value::Map(found) => entries
                    .iter()
                    .all(|(key, condition)| entry(found, key).is_some_and(|value| condition.matches(value))),
                _ => false,
            },
            Self::Items(conditions) => match value {
                Value::Array(found) => {
                    found.len() == conditions.len()
                        && conditions.iter().zip(found).all(|(condition, value)| condition.matches(value))
                }
                _ => false,
            },
            Self::All(conditions) => conditions.iter().all(|condition| condition.matches(value)),
        }
    }

    /// Parses the condition on one part in a JSON filter: operators, entries, items, or a plain value.
    fn from_value(value: Value) -> Result<Self> {
        match value {
            Value::Map(entries) if entries.iter().any(|(key, _)| is_operator(key)) => {
                let mut all = entries
                    .into_iter()
                    .map(|(name, wanted)| Ok(Self::Compare(Comparison::named(text(&name)?)?, wanted)))
                    .collect::<Result<Vec<_>>>()?;
                Ok(if all.len() == 1 { all.swap_remove(0) } else { Self::All(all) })
            }
            Value::Map(entries) => entries
                .into_iter()
                .map(|(key, value)| Ok((text(&key)?.into(), Self::from_value(value)?)))
                .collect::<Result<_>>()
                .map(Self::Entries),
            Value::Array(items) => {
                items.into_iter().map(Self::from_value).collect::<Result<_>>().map(Self::Items)
            }
            scalar => Ok(Self::Compare(Comparison::Eq, scalar)),
        }
    }

    fn check(&self, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::invalid_argument("the filter is nested too deeply").with("limit", MAX_DEPTH));
        }
        match self {
            Self::Compare(Comparison::Eq | Comparison::Ne, wanted) => check_json(wanted, depth),
            Self::Compare(_, wanted @ (Value::Int(_) | Value::UInt(_) | Value::Float(_) | Value::Str(_))) => {
                check_json(wanted, depth)
            }
            Self::Compare(..) => {
                Err(Error::invalid_argument("$gt, $gte, $lt and $lte need a number or a text"))
            }
            Self::Entries(entries) => entries.iter().try_for_each(|(key, condition)| {
                check_text(key)?;
                condition.check(depth + 1)
            }),
            Self::Items(conditions) | Self::All(conditions) => {
                conditions.iter().try_for_each(|condition| condition.check(depth + 1))
            }
        }
    }
}

/// Conditions on the values of items, all of which must hold. An empty filter matches every item.
///
/// A key is a top-level key of the value: dots in it are not interpreted as a path. A missing key meets no condition, not
/// even [`ne`](Self::ne) and `null`.
///
/// ```
/// use checkpoint_core::store::ItemFilter;
/// use serde_json::json;
///
/// let filter = ItemFilter::new().eq("kind", "report").gte("score", 4.5);
/// assert_eq!(filter, ItemFilter::from_json(&json!({"kind": "report", "score": {"$gte": 4.5}}))?);
/// # Ok::<(), checkpoint_core::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ItemFilter(Vec<(Str, Condition)>);

impl ItemFilter {
    /// Makes an empty filter.
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses a filter in the form of Python LangGraph: an object of keys, each with a value or with operators
    /// (`{"score": {"$gt": 3}}`). An object without operators is a condition on its entries, a list on its items.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a filter that is no object, an unknown operator,
    /// operators mixed with keys, and an ordering operator (such as `$gt`) with neither number nor text.
    pub fn from_json(filter: &serde_json::Value) -> Result<Self> {
        let filter: Value = serde::Deserialize::deserialize(filter).map_err(|error: serde_json::Error| {
            Error::invalid_argument("the filter is not valid JSON").with_source(error)
        })?;
        let Value::Map(entries) = filter else {
            return Err(Error::invalid_argument("a filter must be an object of keys and conditions"));
        };
        let conditions = entries
            .into_iter()
            .map(|(key, value)| Ok((text(&key)?.into(), Condition::from_value(value)?)))
            .collect::<Result<_>>()?;
        let filter = Self(conditions);
        filter.check()?;
        Ok(filter)
    }

    /// Adds the condition that the entry `key` equals this value.
    #[must_use]
    pub fn eq(self, key: impl Into<Str>, value: impl Into<Value>) -> Self {
        self.and(key, Condition::Compare(Comparison::Eq, value.into()))
    }

    /// Adds the condition that the entry `key` exists and does not equal this value.
    #[must_use]
    pub fn ne(self, key: impl Into<Str>, value: impl Into<Value>) -> Self {
        self.and(key, Condition::Compare(Comparison::Ne, value.into()))
    }

    /// Adds the condition that the entry `key` is greater than this number or text.
    #[must_use]
    pub fn gt(self, key: impl Into<Str>, value: impl Into<Value>) -> Self {
        self.and(key, Condition::Compare(Comparison::Gt, value.into()))
    }

    /// Adds the condition that the entry `key` is at least this number or text.
    #[must_use]
    pub fn gte(self, key: impl Into<Str>, value: impl Into<Value>) -> Self {
        self.and(key, Condition::Compare(Comparison::Gte, value.into()))
    }

    /// Adds the condition that the entry `key` is less than this number or text.
    #[must_use]
    pub fn lt(self, key: impl Into<Str>, value: impl Into<Value>) -> Self {
        self.and(key, Condition::Compare(Comparison::Lt, value.into()))
    }

    /// Adds the condition that the entry `key` is at most this number or text.
    #[must_use]
    pub fn lte(self, key: impl Into<Str>, value: impl Into<Value>) -> Self {
        self.and(key, Condition::Compare(Comparison::Lte, value.into()))
    }

    /// Adds a condition on the entry `key`.
    #[must_use]
    pub fn and(mut self, key: impl Into<Str>, condition: Condition) -> Self {
        self.0.push((key.into(), condition));
        self
    }

    /// Whether there is no condition.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The conditions in the order in which they were added.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Str, &Condition)> {
        self.0.iter().map(|(key, condition)| (key, condition))
    }

    /// Whether an item's value meets every condition.
    pub fn matches(&self, value: &Value) -> bool {
        let Value::Map(entries) = value else { return false };
        self.0
            .iter()
            .all(|(key, condition)| entry(entries, key).is_some_and(|value| condition.matches(value)))
    }

    /// Rejects values that JSON lacks, and nesting deeper than 32 levels.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) that says what is wrong.
    pub(crate) fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(|(key, condition)| {
            check_text(key)?;
            condition.check(1)
        })
    }
}

fn is_operator(key: &Value) -> bool {
    key.as_str().is_some_and(|key| key.starts_with(OPERATOR_PREFIX))
}

fn text(key: &Value) -> Result<&str> {
    key.as_str().ok_or_else(|| Error::invalid_argument("the keys of a filter must be text"))
}

fn entry<'a>(entries: &'a [(Value, Value)], key: &str) -> Option<&'a Value> {
    entries.iter().rev().find(|(candidate, _)| candidate.as_str() == Some(key)).map(|(_, value)| value)
}

fn check_text(text: &str) -> Result<()> {
    if text.contains('\0') {
        return Err(Error::invalid_argument("a text in a filter must not contain U+0000"));
    }
    Ok(())
}

fn check_json(value: &Value, depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(Error::invalid_argument("the filter is nested too deeply").with("limit", MAX_DEPTH));
    }
    match value {
        Value::Float(number) if !number.is_finite() => {
            Err(Error::invalid_argument("a number in a filter must be finite"))
        }
        Value::Str(text) => check_text(text),
        Value::Array(items) => items.iter().try_for_each(|item| check_json(item, depth + 1)),
        Value::Map(entries) => entries.iter().try_for_each(|(key, value)| {
            check_text(text(key)?)?;
            check_json(value, depth + 1)
        }),
        Value::Bin(_) | Value::Ext(..) => Err(Error::invalid_argument(
            "a filter compares with JSON values, not with bytes or Python objects",
        )),
        _ => Ok(()),
    }
}

/// Whether two values are equal JSON.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Map(a), Value::Map(b)) => {
            a.len() == b.len() && b.iter().all(|(key, b)| lookup(a, key).is_some_and(|a| equal(a, b)))
        }
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Bool(_), _) | (_, Value::Bool(_)) => false,
        (Value::Nil, Value::Nil) => true,
        (Value::Str(a), Value::Str(b)) => a == b,
        _ => order(a, b).is_some_and(Ordering::is_eq),
    }
}

fn order(a: &Value, b: &Value) -> Option<Ordering> {
    match (a, b) {
        (Value::Str(a), Value::Str(b)) => Some(a.cmp(b)),
        (Value::Bool(_), _) | (_, Value::Bool(_)) => None,
        _ => Number::of(a)?.order(Number::of(b)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use serde_json::json;

    fn value(json: &serde_json::Value) -> Value {
        serde::Deserialize::deserialize(json).unwrap()
    }

    #[test]
    fn compares_by_type() {
        let item = value(&json!({
            "n": 10, "f": 1.5, "s": "x", "t": true, "z": null, "l": [1, 2], "o": {"p": 1, "q": "r"}, "big": u64::MAX
        }));
        let table = [
            (json!({"n": {"$gt": 3}}), true),
            (json!({"n": {"$gt": "3"}}), false),
            (json!({"n": 10.0}), true),
            (json!({"n": "10"}), false),
            (json!({"big": {"$gt": 1.8e19}}), true),
            (json!({"big": {"$lt": 18_446_744_073_709_551_615_u64}}), false),
            (json!({"f": {"$gte": 1.5, "$lt": 2}}), true),
            (json!({"s": {"$gt": "a"}}), true),
            (json!({"s": {"$gt": 1}}), false),
            (json!({"t": true}), true),
            (json!({"t": 1}), false),
            (json!({"z": null}), true),
            (json!({"missing": null}), false),
            (json!({"missing": {"$ne": 1}}), false),
            (json!({"z": {"$ne": 1}}), true),
            (json!({"l": [1, 2.0]}), true),
            (json!({"l": [1, {"$gt": 1}]}), true),
            (json!({"l": [2, 1]}), false),
            (json!({"l": [1]}), false),
            (json!({"l": 1}), false),
            (json!({"o": {"p": 1}}), true),
            (json!({"o": {"p": {"$gt": 0}, "q": "r"}}), true),
            (json!({"o": {"$eq": {"p": 1}}}), false),
            (json!({"o": {"$eq": {"q": "r", "p": 1.0}}}), true),
            (json!({"o": {"$ne": {"p": 1}}}), true),
            (json!({"o": {}}), true),
            (json!({"n": {}}), false),
            (json!({"o.p": 1}), false),
            (json!({}), true),
        ];
        for (filter, expected) in table {
            assert_eq!(ItemFilter::from_json(&filter).unwrap().matches(&item), expected, "{filter}");
        }
    }

    #[test]
    fn rejects_invalid_filters() {
        for wrong in [
            json!({"n": {"$in": [1]}}),
            json!({"n": {"$gt": true}}),
            json!({"n": {"$lt": [1]}}),
            json!({"n": {"$eq": 1, "k": 2}}),
            json!({"a\0": 1}),
            json!([1]),
        ] {
            assert_eq!(
                ItemFilter::from_json(&wrong).unwrap_err().kind(),
                ErrorKind::InvalidArgument,
                "{wrong}"
            );
        }
        for wrong in [
            ItemFilter::new().eq("n", f64::NAN),
            ItemFilter::new().gt("n", true),
            ItemFilter::new().eq("n", Value::Bin(crate::Bytes::new())),
            ItemFilter::new()
                .and("n", (0..40).fold(Condition::All(vec![]), |inner, _| Condition::All(vec![inner]))),
        ] {
            assert_eq!(wrong.check().unwrap_err().kind(), ErrorKind::InvalidArgument, "{wrong:?}");
        }
    }
}
