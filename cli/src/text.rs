//! Stored text on its way to a terminal.

use checkpoint_core::{ChannelValue, python};
use serde_json::{Value as Json, json};

/// Text on one line: control characters, which a terminal would obey, are shown as escapes.
pub(crate) fn line(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        // Bidirectional overrides reorder what stands around them.
        if c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
        out
    })
}

/// The beginning of a text, on one line.
pub(crate) fn short(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => line(text),
        Some((end, _)) => format!("{}…", line(text.get(..end).unwrap_or_default())),
    }
}

/// Decodes a value for display; what cannot be decoded says why.
pub(crate) fn project(value: &ChannelValue) -> Json {
    if let ChannelValue::Blob(blob) = value
        && blob.is_sealed()
    {
        return json!({"$sealed": "encrypted, no key", "tag": blob.tag, "bytes": blob.data.len()});
    }
    match value.to_value() {
        Ok(value) => python::to_json(&value),
        Err(error) => json!({"$error": error.to_string()}),
    }
}
