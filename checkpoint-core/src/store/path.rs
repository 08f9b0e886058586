//! Paths to the texts of an item, in the syntax of LangGraph's index fields.

use crate::Result;
use crate::serde::{Value, json};

/// The whole value.
const WHOLE: &str = "$";

/// A parsed path.
pub(super) struct Path(Vec<Token>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    /// The entry of a key.
    Key(String),
    /// Items of a list, in brackets.
    Item(String),
    /// Several entries, in braces: each a path of keys.
    Entries(Vec<Vec<String>>),
    /// Every entry or item.
    Every,
}

impl Path {
    pub(super) fn parse(path: &str) -> Self {
        if path == WHOLE {
            Self(Vec::new())
        } else {
            Self(tokens(path).iter().map(|token| Token::new(token)).collect())
        }
    }

    /// The texts at the path.
    pub(super) fn texts(&self, value: &Value) -> Result<Vec<String>> {
        let mut texts = Vec::new();
        collect(value, &self.0, &mut texts)?;
        Ok(texts)
    }
}

impl Token {
    fn new(token: &str) -> Self {
        let within = |open, close| token.strip_prefix(open).and_then(|rest: &str| rest.strip_suffix(close));
        if let Some(index) = within('[', ']') {
            Self::Item(index.to_owned())
        } else if let Some(fields) = within('{', '}') {
            Self::Entries(fields.split(',').map(|field| tokens(field.trim())).collect())
        } else if token == "*" {
            Self::Every
        } else {
            Self::Key(token.to_owned())
        }
    }
}

/// Splits at dots, and around brackets and braces, which may be left open.
fn tokens(path: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut current = String::new();
    let mut chars = path.chars();
    while let Some(c) = chars.next() {
        let close = match c {
            '[' => ']',
            '{' => '}',
            '.' => {
                end(&mut current, &mut tokens);
                continue;
            }
            _ => {
                current.push(c);
                continue;
            }
        };
        end(&mut current, &mut tokens);
        current.push(c);
        let mut open = 1;
        for inner in chars.by_ref() {
            current.push(inner);
            if inner == c {
                open += 1;
            } else if inner == close {
                open -= 1;
                if open == 0 {
                    break;
                }
            }
        }
        end(&mut current, &mut tokens);
    }
    end(&mut current, &mut tokens);
    tokens
}

fn end(current: &mut String, tokens: &mut Vec<String>) {
    if !current.is_empty() {
        tokens.push(std::mem::take(current));
    }
}

fn collect(value: &Value, path: &[Token], texts: &mut Vec<String>) -> Result<()> {
    let Some((token, rest)) = path.split_first() else {
        texts.extend(text(value)?);
        return Ok(());
    };
    match (token, value) {
        (Token::Key(key), Value::Map(_)) => {
            value.get(key).map_or(Ok(()), |value| collect(value, rest, texts))
        }
        (Token::Every, Value::Map(entries)) => {
            entries.iter().try_for_each(|(_, value)| collect(value, rest, texts))
        }
        (Token::Every, Value::Array(items)) => items.iter().try_for_each(|item| collect(item, rest, texts)),
        (Token::Item(index), Value::Array(items)) if index == "*" => {
            items.iter().try_for_each(|item| collect(item, rest, texts))
        }
        (Token::Item(index), Value::Array(items)) => {
            item(items, index).map_or(Ok(()), |item| collect(item, rest, texts))
        }
        // Tokens after the braces are ignored, as in LangGraph.
        (Token::Entries(fields), Value::Map(_)) => {
            for field in fields.iter().filter(|field| !field.is_empty()) {
                if let Some(found) = field.iter().try_fold(value, |value, key| value.get(key)) {
                    texts.extend(text(found)?);
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn item<'a>(items: &'a [Value], index: &str) -> Option<&'a Value> {
    let index: i64 = index.trim().parse().ok()?;
    let at = if index < 0 { i64::try_from(items.len()).ok()?.checked_add(index)? } else { index };
    items.get(usize::try_from(at).ok()?)
}

/// The text of the value at the end of a path, formatted as Python's `str` and `json.dumps(sort_keys=True)`.
fn text(value: &Value) -> Result<Option<String>> {
    Ok(match value {
        Value::Nil => None,
        Value::Bool(flag) => Some(if *flag { "True" } else { "False" }.to_owned()),
        Value::Str(text) => Some(text.clone()),
        Value::Array(_) | Value::Map(_) => Some(json::to_string(&sorted(value), json::Style::Plain)?),
        number => Some(json::scalar_text(number).into_owned()),
    })
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        Value::Map(entries) => {
            let mut entries: Vec<_> =
                entries.iter().map(|(key, value)| (key.clone(), sorted(value))).collect();
            entries.sort_by(|(a, _), (b, _)| a.as_str().cmp(&b.as_str()));
            Value::Map(entries)
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Golden {
        documents: Vec<Document>,
    }

    #[derive(serde::Deserialize)]
    struct Document {
        document: String,
        cases: Vec<Case>,
    }

    #[derive(serde::Deserialize)]
    struct Case {
        path: String,
        tokens: Vec<String>,
        texts: Vec<String>,
    }

    #[test]
    fn splits_and_finds_as_langgraph_does() {
        let golden: Golden =
            serde_json::from_str(include_str!("../../../tests/vectors/store_paths.json")).unwrap();
        let mut cases = 0;
        for Document { document, cases: of_document } in golden.documents {
            let document = json::parse(document.as_bytes()).unwrap();
            for Case { path, tokens: expected, texts } in of_document {
                assert_eq!(tokens(&path), expected, "{path}");
                assert_eq!(Path::parse(&path).texts(&document).unwrap(), texts, "{path}");
                cases += 1;
            }
        }
        assert_eq!(cases, 76);
    }
}
