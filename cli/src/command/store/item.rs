//! Prints items.

use std::borrow::Cow;
use std::io::Write;

use checkpoint_core::store::{Item, JsonObject, Namespace, SearchItem};
use serde::Serialize;

use crate::failure::Result;
use crate::output::{self, BOLD, DIM, GOOD, ID, NAME, clean, fit, json_line, stdout, styled, time, width};

/// The indentation of one level.
const INDENT: &str = "  ";

/// An item as JSON, with LangGraph's field names.
#[derive(Serialize)]
struct Line<'a> {
    namespace: Vec<&'a str>,
    key: &'a str,
    value: &'a JsonObject,
    created_at: String,
    updated_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f64>,
}

impl<'a> Line<'a> {
    fn new(item: &'a Item, score: Option<f64>) -> Self {
        Self {
            namespace: labels(&item.namespace),
            key: &item.key,
            value: &item.value,
            created_at: item.created_at.to_rfc3339(),
            updated_at: item.updated_at.to_rfc3339(),
            score,
        }
    }
}

pub(super) fn labels(namespace: &Namespace) -> Vec<&str> {
    namespace.labels().iter().map(|label| &**label).collect()
}

/// A namespace for display.
pub(super) fn namespace(namespace: &Namespace) -> String {
    styled(NAME, output::namespace(&namespace.to_text()))
}

/// A key for display; an empty one is quoted.
pub(super) fn key(key: &str) -> String {
    let key = if key.is_empty() { Cow::Borrowed("''") } else { clean(key) };
    styled(ID, key)
}

/// Prints one item.
pub(super) fn show(item: &Item, json: bool) -> Result<()> {
    let mut out = stdout();
    if json {
        json_line(&mut out, &Line::new(item, None))?;
    } else {
        let field = |name: &str, value: &str| format!("{} {value}", styled(DIM, format!("{name:<10}")));
        writeln!(out, "{}", field("namespace", &namespace(&item.namespace)))?;
        writeln!(out, "{}", field("key", &styled(BOLD, key(&item.key))))?;
        writeln!(out, "{}", field("created", &time(&item.created_at.to_rfc3339(), "")))?;
        writeln!(out, "{}", field("updated", &time(&item.updated_at.to_rfc3339(), "")))?;
        writeln!(out)?;
        for line in pretty(item.value.as_str()).lines() {
            writeln!(out, "{}", clean(line))?;
        }
    }
    Ok(out.flush()?)
}

/// Prints search results; as text two lines each, truncated to the terminal's width.
pub(super) fn list(found: &[SearchItem], json: bool) -> Result<()> {
    let mut out = stdout();
    for SearchItem { item, score, .. } in found {
        if json {
            json_line(&mut out, &Line::new(item, *score))?;
            continue;
        }
        let score =
            score.map(|score| format!(" {}", styled(GOOD, format!("{score:.3}")))).unwrap_or_default();
        let updated = styled(DIM, time(&item.updated_at.to_rfc3339(), ""));
        writeln!(out, "{} {}{score} {updated}", namespace(&item.namespace), key(&item.key))?;
        let value = format!("{INDENT}{}", clean(item.value.as_str()));
        writeln!(out, "{}", width().map_or_else(|| value.clone(), |width| fit(&value, width)))?;
    }
    if !json {
        let plural = if found.len() == 1 { "item" } else { "items" };
        writeln!(out, "{}", styled(DIM, format!("{} {plural}", found.len())))?;
    }
    Ok(out.flush()?)
}

/// Pretty-prints JSON without parsing it, which preserves numbers and texts unchanged.
fn pretty(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    let mut chars = json.chars().filter(|c| !c.is_ascii_whitespace() || *c == ' ').peekable();
    while let Some(c) = chars.next() {
        if in_text {
            out.push(c);
            in_text = escaped || c != '"';
            escaped = c == '\\' && !escaped;
            continue;
        }
        let line = |out: &mut String, depth: usize| {
            out.push('\n');
            out.push_str(&INDENT.repeat(depth));
        };
        match c {
            ' ' => {}
            '{' | '[' => {
                out.push(c);
                while chars.next_if_eq(&' ').is_some() {}
                if let Some(close) = chars.next_if(|next| matches!(next, '}' | ']')) {
                    out.push(close);
                } else {
                    depth += 1;
                    line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            '"' => {
                in_text = true;
                out.push(c);
            }
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pretty_preserves_numbers_and_texts() {
        let text = r#"{"b" :123456789012345678901234567890,"a":[ ],"t":"x, \"{:\\","n":{"l":[1.50,{}]}}"#;
        assert_eq!(
            pretty(text),
            "{\n  \"b\": 123456789012345678901234567890,\n  \"a\": [],\n  \"t\": \"x, \\\"{:\\\\\",\n  \"n\": {\n    \
             \"l\": [\n      1.50,\n      {}\n    ]\n  }\n}"
        );
    }
}
