//! Translates filters to SQL: conditions that an index supports to `@>`, the rest to one `jsonpath`.
//!
//! A path compares by type and never fails: numbers with numbers, texts with texts by code point, and a missing part
//! does not match. It is strict, since the lax mode unwraps arrays.

use std::fmt::Write as _;

use checkpoint_core::Result;
use checkpoint_core::serde::{Value, json};
use checkpoint_core::store::{Comparison, Condition, ItemFilter};

/// A filter as parameters of a statement.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Conditions {
    /// A JSON object that the value must contain (`@>`).
    pub(crate) contained: Option<String>,
    /// A path that must match in the value (`@?`).
    pub(crate) path: Option<String>,
}

impl Conditions {
    pub(crate) fn new(filter: &ItemFilter) -> Result<Self> {
        let mut contained: Vec<(Value, Value)> = Vec::new();
        let mut paths = Vec::new();
        for (key, condition) in filter.iter() {
            match condition {
                // For a scalar, containment is equality.
                Condition::Compare(Comparison::Eq, wanted)
                    if is_scalar(wanted)
                        && !contained.iter().any(|(known, _)| known.as_str() == Some(&**key)) =>
                {
                    contained.push((Value::from(&**key), wanted.clone()));
                }
                condition => paths.push(at_key(key, condition)?),
            }
        }
        let contained = if contained.is_empty() {
            None
        } else {
            Some(json::to_string(&Value::Map(contained), json::Style::Plain)?)
        };
        let path = (!paths.is_empty()).then(|| format!("strict $ ? ({})", paths.join(" && ")));
        Ok(Self { contained, path })
    }
}

fn is_scalar(value: &Value) -> bool {
    !matches!(value, Value::Array(_) | Value::Map(_))
}

/// The entry of a key exists and meets a condition.
fn at_key(key: &str, condition: &Condition) -> Result<String> {
    Ok(format!("exists(@.{} ? ({}))", text(key)?, test(condition)?))
}

/// The array element at an index exists and meets a condition.
fn at_index(index: usize, condition: &str) -> String {
    format!("exists(@[{index}] ? ({condition}))")
}

/// A condition on `@`.
fn test(condition: &Condition) -> Result<String> {
    Ok(match condition {
        Condition::Compare(Comparison::Eq, wanted) => same(wanted)?,
        // A comparison of different types is unknown, and so is its negation; `exists` is always true or false.
        Condition::Compare(Comparison::Ne, wanted) => format!("!exists(@ ? ({}))", same(wanted)?),
        Condition::Compare(comparison, wanted) => {
            let operator = match comparison {
                Comparison::Gt => ">",
                Comparison::Gte => ">=",
                Comparison::Lt => "<",
                _ => "<=",
            };
            format!("@ {operator} {}", scalar(wanted)?)
        }
        Condition::Entries(entries) => {
            let mut all = IS_OBJECT.to_owned();
            for (key, condition) in entries {
                let _ = write!(all, " && {}", at_key(key, condition)?);
            }
            all
        }
        Condition::Items(conditions) => {
            let items = conditions.iter().map(test).collect::<Result<Vec<_>>>()?;
            items_meet(&items)
        }
        Condition::All(conditions) => {
            let mut all = String::from(ALWAYS);
            for condition in conditions {
                let _ = write!(all, " && ({})", test(condition)?);
            }
            all
        }
        _ => {
            return Err(checkpoint_core::Error::unsupported(common_postgres::BACKEND, "search"));
        }
    })
}

const IS_OBJECT: &str = r#"@.type() == "object""#;
const ALWAYS: &str = "1 == 1";

/// `@` is an array of this length, and each element meets the condition at its index.
fn items_meet(conditions: &[String]) -> String {
    let mut all = format!(r#"@.type() == "array" && @.size() == {}"#, conditions.len());
    for (index, condition) in conditions.iter().enumerate() {
        let _ = write!(all, " && {}", at_index(index, condition));
    }
    all
}

/// `@` equals a value.
fn same(value: &Value) -> Result<String> {
    match value {
        Value::Array(items) => {
            let items = items.iter().map(same).collect::<Result<Vec<_>>>()?;
            Ok(items_meet(&items))
        }
        Value::Map(entries) => {
            let mut all = IS_OBJECT.to_owned();
            let mut others = String::from(ALWAYS);
            for (key, value) in entries {
                let key = text(key.as_str().unwrap_or_default())?;
                let _ = write!(others, " && @.key != {key}");
                let _ = write!(all, " && exists(@.{key} ? ({}))", same(value)?);
            }
            let _ = write!(all, " && !exists(@.keyvalue() ? ({others}))");
            Ok(all)
        }
        scalar_value => Ok(format!("@ == {}", scalar(scalar_value)?)),
    }
}

fn scalar(value: &Value) -> Result<String> {
    json::to_string(value, json::Style::Plain)
}

/// A string literal of a path, which has JSON's syntax.
fn text(text: &str) -> Result<String> {
    scalar(&Value::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexable_conditions_are_separate() {
        let filter = ItemFilter::new().eq("kind", "k\"1").gt("score", -1.5).eq("l", Value::Array(vec![]));
        let conditions = Conditions::new(&filter).unwrap();
        assert_eq!(conditions.contained.unwrap(), r#"{"kind": "k\"1"}"#);
        assert_eq!(
            conditions.path.unwrap(),
            r#"strict $ ? (exists(@."score" ? (@ > -1.5)) && exists(@."l" ? (@.type() == "array" && @.size() == 0)))"#
        );
        assert_eq!(Conditions::new(&ItemFilter::new()).unwrap(), Conditions::default());
        let twice = Conditions::new(&ItemFilter::new().eq("a", 1_i64).eq("a", 2_i64)).unwrap();
        assert!(twice.contained.is_some() && twice.path.is_some(), "neither condition is lost");
    }
}
