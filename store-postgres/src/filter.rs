//! Filters in the server's own terms: what an index can find as `@>`, the rest as one path in `jsonpath`.
//!
//! A path compares by type and never fails: numbers with numbers, texts with texts by code point, and a part that is not
//! there is not found. It is strict, since the lax mode would look into lists by itself.

use std::fmt::Write as _;

use checkpoint_core::Result;
use checkpoint_core::serde::{Value, json};
use checkpoint_core::store::{Comparison, Condition, ItemFilter};

/// A filter as parameters of a statement.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Conditions {
    /// A JSON object that the value contains (`@>`), if there is such a condition.
    pub(crate) contained: Option<String>,
    /// A path that finds something in the value (`@?`), if there is such a condition.
    pub(crate) path: Option<String>,
}

impl Conditions {
    pub(crate) fn new(filter: &ItemFilter) -> Result<Self> {
        let mut contained: Vec<(Value, Value)> = Vec::new();
        let mut paths = Vec::new();
        for (key, condition) in filter.iter() {
            match condition {
                // A scalar below a key is contained just where it is the same.
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

/// That the entry of a key is there and meets a condition.
fn at_key(key: &str, condition: &Condition) -> Result<String> {
    Ok(format!("exists(@.{} ? ({}))", text(key)?, test(condition)?))
}

/// That the item at a place is there and meets a condition.
fn at_place(place: usize, condition: &str) -> String {
    format!("exists(@[{place}] ? ({condition}))")
}

/// A condition on `@`.
fn test(condition: &Condition) -> Result<String> {
    Ok(match condition {
        Condition::Compare(Comparison::Eq, wanted) => same(wanted)?,
        // What cannot be compared is neither true nor false: only a search for it tells.
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

/// That `@` is a list whose items meet each its condition.
fn items_meet(conditions: &[String]) -> String {
    let mut all = format!(r#"@.type() == "array" && @.size() == {}"#, conditions.len());
    for (place, condition) in conditions.iter().enumerate() {
        let _ = write!(all, " && {}", at_place(place, condition));
    }
    all
}

/// That `@` is the same JSON as a value.
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

/// A text as it stands in a path, which is as in JSON.
fn text(text: &str) -> Result<String> {
    scalar(&Value::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_index_finds_is_apart() {
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
