//! JSON in Python's dialect: metadata, and values under the legacy `json` tag.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::LazyLock;

use super::{Value, float};
use crate::{Error, Result};

pub use super::revive::revive;

/// The nesting limit of lists and maps, which is also the parser's.
const MAX_JSON_DEPTH: usize = 127;

/// Which characters are escaped. Separators are always `, ` and `: `.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Style {
    /// `json.dumps(…, ensure_ascii=False)`: text unescaped, as in SQLite metadata.
    Plain,
    /// `json.dumps(…)`: non-ASCII characters escaped.
    Ascii,
}

/// Parses JSON as Python's `json.loads` does: `NaN` and infinities are numbers, the last of duplicate keys counts.
/// Integers beyond 64 bits become doubles, or infinities if they exceed those; a lone surrogate becomes `?`, as when
/// Python encodes it.
///
/// # Errors
/// [`Codec`](crate::ErrorKind::Codec) for invalid JSON and for nesting of 128 levels.
pub fn parse(text: &[u8]) -> Result<Value> {
    let mut value = serde_json::from_slice(text).or_else(|strict| {
        // Python's dialect is rare, so the tolerant parser runs only after the strict one failed.
        parse_tolerant(text)
            .ok_or_else(|| Error::codec("invalid JSON").with_source(ErrorPosition::from(&strict)))
    })?;
    if *NUMBERS_AS_MAPS {
        set_numbers(&mut value);
    }
    Ok(value)
}

/// Whether another crate of the program enabled `serde_json/arbitrary_precision`: the parser then returns floats and
/// large integers as maps with their text.
static NUMBERS_AS_MAPS: LazyLock<bool> =
    LazyLock::new(|| matches!(serde_json::from_str("1.5"), Ok(Value::Map(_))));

const NUMBER_KEY: &str = "$serde_json::private::Number";

/// Converts such maps to numbers.
fn set_numbers(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(set_numbers),
        Value::Map(entries) => {
            if let [(Value::Str(key), Value::Str(text))] = entries.as_slice()
                && key == NUMBER_KEY
                && let Some(number) = number_of(text)
            {
                *value = number;
                return;
            }
            for (_, value) in entries {
                set_numbers(value);
            }
        }
        _ => {}
    }
}

fn number_of(text: &str) -> Option<Value> {
    let int = || text.parse::<i64>().ok().map(Value::Int);
    let uint = || text.parse::<u64>().ok().map(Value::UInt);
    int().or_else(uint).or_else(|| text.parse().ok().map(Value::Float))
}

/// A parser's error without its message, which could quote the text.
#[derive(Debug)]
struct ErrorPosition {
    line: usize,
    column: usize,
}

impl From<&serde_json::Error> for ErrorPosition {
    fn from(error: &serde_json::Error) -> Self {
        Self { line: error.line(), column: error.column() }
    }
}

impl std::fmt::Display for ErrorPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "not JSON at line {} column {}", self.line, self.column)
    }
}

impl std::error::Error for ErrorPosition {}

/// Replaces numbers that JSON lacks by `null`, parses, then restores them by the order of the nulls. So no text in the
/// input can be confused with a placeholder.
fn parse_tolerant(text: &[u8]) -> Option<Value> {
    let text = std::str::from_utf8(text).ok()?;
    let (plain, nulls) = strict_json(text)?;
    let mut value = serde_json::from_str(&plain).ok()?;
    let mut nulls = nulls.into_iter();
    set_nulls(&mut value, &mut nulls)?;
    Some(value)
}

/// The text as strict JSON, and the value that each of its nulls represents. `None` if there is nothing to change.
fn strict_json(text: &str) -> Option<(String, Vec<Value>)> {
    let mut out = String::with_capacity(text.len());
    let mut nulls = Vec::new();
    let mut changed = false;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let null = null_token(rest);
        let (len, plain) = if let Some((len, value)) = null {
            changed |= value != Value::Nil;
            nulls.push(value);
            (len, "null".into())
        } else if first == '"' {
            string_token(rest)
        } else {
            let len = numeral_length(rest).max(first.len_utf8());
            (len, rest.get(..len)?.into())
        };
        changed |= matches!(plain, Cow::Owned(_));
        out.push_str(&plain);
        rest = rest.get(len..)?;
    }
    changed.then_some((out, nulls))
}

/// The length of a leading token that becomes `null`, and its value.
fn null_token(text: &str) -> Option<(usize, Value)> {
    for (token, value) in [
        ("null", Value::Nil),
        ("NaN", Value::Float(f64::NAN)),
        ("Infinity", Value::Float(f64::INFINITY)),
        ("-Infinity", Value::Float(f64::NEG_INFINITY)),
    ] {
        if text.starts_with(token) {
            return Some((token.len(), value));
        }
    }
    // Python parses an overflowing double as an infinity. It parses large integers exactly, which `Value` cannot hold.
    if !text.starts_with(['-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']) {
        return None;
    }
    let len = numeral_length(text);
    let token = text.get(..len)?;
    let mantissa = token.get(..token.find(['e', 'E']).unwrap_or(len))?;
    let number: f64 = token.parse().ok()?;
    (is_mantissa(mantissa) && number.is_infinite()).then_some((len, Value::Float(number)))
}

/// Whether a text is a JSON number without exponent, of any size.
fn is_mantissa(text: &str) -> bool {
    let text = text.strip_prefix('-').unwrap_or(text);
    let (whole, fraction) = text.split_once('.').map_or((text, None), |(whole, rest)| (whole, Some(rest)));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_digits(whole) && (whole == "0" || !whole.starts_with('0')) && fraction.is_none_or(is_digits)
}

/// The number of leading characters that may be part of a number.
fn numeral_length(text: &str) -> usize {
    text.find(|c: char| !matches!(c, '0'..='9' | '.' | '-' | '+' | 'e' | 'E')).unwrap_or(text.len())
}

/// The length of a leading string, and the string with its quotes and `?` for each lone surrogate.
fn string_token(text: &str) -> (usize, Cow<'_, str>) {
    let surrogate = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok().filter(|code| (0xd800..0xe000).contains(code))
    };
    let mut out = String::new();
    let mut copied = 0;
    let mut at = 1;
    let bytes = text.as_bytes();
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at += 1;
                break;
            }
            b'\\' => match (surrogate(at), surrogate(at + 6)) {
                (Some(0xd800..0xdc00), Some(0xdc00..)) => at += 12,
                (Some(_), _) => {
                    out.push_str(text.get(copied..at).unwrap_or_default());
                    out.push('?');
                    at += 6;
                    copied = at;
                }
                (None, _) => at += 2,
            },
            _ => at += 1,
        }
    }
    let at = (at..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    if copied == 0 {
        return (at, text.get(..at).unwrap_or_default().into());
    }
    out.push_str(text.get(copied..at).unwrap_or_default());
    (at, out.into())
}

fn set_nulls(value: &mut Value, nulls: &mut impl Iterator<Item = Value>) -> Option<()> {
    match value {
        Value::Nil => *value = nulls.next()?,
        Value::Array(items) => items.iter_mut().try_for_each(|item| set_nulls(item, nulls))?,
        Value::Map(entries) => entries.iter_mut().try_for_each(|(_, value)| set_nulls(value, nulls))?,
        _ => {}
    }
    Some(())
}

/// Formats JSON as Python's `json.dumps` does. A key that is a number, a boolean or null becomes its JSON text.
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for values that JSON lacks: bytes, extensions, keys that are
/// lists or maps; and for nesting of 128 levels.
pub fn to_string(value: &Value, style: Style) -> Result<String> {
    let mut out = String::new();
    write(&mut out, value, style, 0)?;
    Ok(out)
}

/// Formats a map with text keys, as [`to_string`] does.
pub(crate) fn object_to_string<'a>(
    entries: impl Iterator<Item = (&'a str, &'a Value)>,
    style: Style,
) -> Result<String> {
    let mut out = String::from("{");
    for (i, (key, value)) in entries.enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        write_text(&mut out, key, style);
        out.push_str(": ");
        write(&mut out, value, style, 1)?;
    }
    out.push('}');
    Ok(out)
}

fn write(out: &mut String, value: &Value, style: Style, depth: usize) -> Result<()> {
    if depth >= MAX_JSON_DEPTH && matches!(value, Value::Array(_) | Value::Map(_)) {
        return Err(
            Error::invalid_argument("the value is nested too deeply for JSON").with("limit", MAX_JSON_DEPTH)
        );
    }
    match value {
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write(out, item, style, depth + 1)?;
            }
            out.push(']');
        }
        Value::Map(entries) => {
            out.push('{');
            for (i, (key, value)) in entries.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write_key(out, key, style)?;
                out.push_str(": ");
                write(out, value, style, depth + 1)?;
            }
            out.push('}');
        }
        Value::Str(text) => write_text(out, text, style),
        Value::Bin(_) => return Err(Error::invalid_argument("JSON cannot represent bytes")),
        Value::Ext(code, _) => {
            return Err(Error::invalid_argument("JSON cannot represent a Python object").with("code", code));
        }
        scalar => out.push_str(&scalar_text(scalar)),
    }
    Ok(())
}

fn write_key(out: &mut String, key: &Value, style: Style) -> Result<()> {
    match key {
        Value::Str(text) => write_text(out, text, style),
        Value::Nil | Value::Bool(_) | Value::Int(_) | Value::UInt(_) | Value::Float(_) => {
            out.push('"');
            out.push_str(&scalar_text(key));
            out.push('"');
        }
        _ => {
            return Err(Error::invalid_argument("a key in JSON must be text, a number, a boolean or null"));
        }
    }
    Ok(())
}

/// The JSON of a scalar other than text.
pub(crate) fn scalar_text(value: &Value) -> Cow<'static, str> {
    match value {
        Value::Bool(true) => "true".into(),
        Value::Bool(false) => "false".into(),
        Value::Int(number) => number.to_string().into(),
        Value::UInt(number) => number.to_string().into(),
        Value::Float(number) if number.is_nan() => "NaN".into(),
        Value::Float(number) if number.is_infinite() => {
            if *number > 0.0 {
                "Infinity".into()
            } else {
                "-Infinity".into()
            }
        }
        Value::Float(number) => float::repr(*number).into(),
        _ => "null".into(),
    }
}

fn write_text(out: &mut String, text: &str, style: Style) {
    out.push('"');
    let is_plain = |byte: u8| match byte {
        b'"' | b'\\' | 0..=0x1f => false,
        0x7f.. => style == Style::Plain,
        _ => true,
    };
    let plain = text.bytes().position(|byte| !is_plain(byte)).unwrap_or(text.len());
    let (plain, rest) = text.split_at_checked(plain).unwrap_or((text, ""));
    out.push_str(plain);
    for character in rest.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..=' ' | '\u{7f}'.. if character != ' ' && (character < ' ' || style == Style::Ascii) => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    // Writing to a string does not fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn plain(value: &Value) -> String {
        to_string(value, Style::Plain).unwrap()
    }

    #[test]
    fn writes_what_python_writes() {
        let value = parse(br#"{"a":[1,2.0,1e16,-0.0,true,null,18446744073709551615],"k\u00e9\n\u007f":"\ud83d\ude00\u0000\"\\/\b\f\r\t"}"#)
            .unwrap();
        assert_eq!(
            plain(&value),
            "{\"a\": [1, 2.0, 1e+16, -0.0, true, null, 18446744073709551615], \"k\u{e9}\\n\u{7f}\": \"\u{1f600}\\u0000\\\"\\\\/\\b\\f\\r\\t\"}"
        );
        assert_eq!(
            to_string(&value, Style::Ascii).unwrap(),
            r#"{"a": [1, 2.0, 1e+16, -0.0, true, null, 18446744073709551615], "k\u00e9\n\u007f": "\ud83d\ude00\u0000\"\\/\b\f\r\t"}"#
        );
        let keys = Value::Map(
            [Value::Nil, true.into(), 7_i64.into(), f64::NAN.into(), 1e-5.into()]
                .map(|key| (key, Value::Array(vec![])))
                .into(),
        );
        assert_eq!(plain(&keys), r#"{"null": [], "true": [], "7": [], "NaN": [], "1e-05": []}"#);
        for bad in [
            Value::Bin(bytes::Bytes::new()),
            Value::Ext(7, bytes::Bytes::new()),
            Value::Map(vec![(Value::Array(vec![]), Value::Nil)]),
        ] {
            assert_eq!(to_string(&bad, Style::Plain).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    }

    #[test]
    fn parses_pythons_dialect_outside_strings_only() {
        let text = r#"{"NaN": [NaN, null, -Infinity, Infinity, "NaN \" Infinity", 1e999, -1.5E+999, 1.5e308, 2], "NaN": null, "x\ud83d\ude00\ud800y\udc00": "\ud83d"}"#;
        let value = parse(text.as_bytes()).unwrap();
        assert_eq!(
            plain(&value),
            "{\"NaN\": [NaN, null, -Infinity, Infinity, \"NaN \\\" Infinity\", Infinity, -Infinity, 1.5e+308, 2], \"NaN\": null, \"x\u{1f600}?y?\": \"?\"}"
        );
        assert_eq!(value.get("NaN"), Some(&Value::Nil), "the last of duplicate keys counts");
        assert_eq!(
            parse(b"123456789012345678901234567890").unwrap(),
            Value::Float(1.234_567_890_123_456_8e29)
        );
        let beyond = format!("{{\"a\": -1{0}, \"b\": [1{0}, \"1{0}\"]}}", "0".repeat(400));
        let value = parse(beyond.as_bytes()).unwrap();
        assert_eq!(value.get("a"), Some(&Value::Float(f64::NEG_INFINITY)));
        assert!(plain(&value).contains("[Infinity, \"1000"));
        for bad in [
            "",
            "{",
            "NaNN",
            "-NaN",
            "1NaN",
            "[NaN,]",
            "nul",
            "01e999",
            "1.e999",
            ".5e999",
            "\"\\ud800",
            "\"\\",
            "{NaN: 1}",
            "\"\u{1}\\ud800\"",
        ] {
            let error = parse(bad.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Codec, "{bad}");
        }
        assert_eq!(parse(b"\"\xff\"").unwrap_err().kind(), ErrorKind::Codec);
    }

    #[test]
    fn numbers_handed_over_as_text_are_numbers() {
        let number = |text: &str| Value::Map(vec![(NUMBER_KEY.into(), text.into())]);
        let texts = ["1.5", "-7", "18446744073709551615", "123456789012345678901234567890", "-0.0", "1E400"];
        let mut value = Value::Map(vec![("a".into(), Value::Array(texts.map(number).into()))]);
        set_numbers(&mut value);
        assert_eq!(
            plain(&value),
            r#"{"a": [1.5, -7, 18446744073709551615, 1.2345678901234568e+29, -0.0, Infinity]}"#
        );
        let mut other = number("no number");
        set_numbers(&mut other);
        assert_eq!(other, number("no number"));
    }

    #[test]
    fn what_is_written_is_read_again_up_to_the_limit() {
        let nested = |depth: usize| (0..depth).fold(Value::Nil, |inner, _| Value::Array(vec![inner]));
        let deepest = nested(MAX_JSON_DEPTH);
        assert_eq!(parse(plain(&deepest).as_bytes()).unwrap(), deepest);
        let error = to_string(&nested(MAX_JSON_DEPTH + 1), Style::Plain).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(parse("[".repeat(100_000).as_bytes()).is_err());
    }
}
