//! Connection strings that are pairs: `host=localhost dbname=agents user=agents`.

use std::iter::Peekable;
use std::str::Chars;

use checkpoint_core::{Error, Result};

use super::{PostgresConfig, invalid, parameters};

/// Reads `key = value` pairs, separated by spaces. A value with spaces is in single quotes; a backslash escapes the next
/// character.
pub(super) fn parse(text: &str, config: &mut PostgresConfig) -> Result<()> {
    if text.contains('\0') {
        return Err(invalid("the connection string must not have a NUL byte"));
    }
    let mut rest = text.chars().peekable();
    let mut after_password = false;
    loop {
        skip_spaces(&mut rest);
        if rest.peek().is_none() {
            return Ok(());
        }
        let mut key = String::new();
        while let Some(c) = rest.next_if(|c| *c != '=' && !c.is_ascii_whitespace()) {
            key.push(c);
        }
        skip_spaces(&mut rest);
        if rest.next() != Some('=') {
            return Err(wrong("a parameter of the connection string has no value (no = sign)"));
        }
        skip_spaces(&mut rest);
        let value = parse_value(&mut rest)?;
        // An unknown key may be part of the password, so it is not shown.
        if after_password && !parameters::KNOWN.contains(&&*key) {
            return Err(wrong("a parameter of the connection string is unknown"));
        }
        after_password |= key == "password";
        config.set(&key, &value)?;
    }
}

fn parse_value(rest: &mut Peekable<Chars<'_>>) -> Result<String> {
    let quoted = rest.next_if_eq(&'\'').is_some();
    let mut value = String::new();
    loop {
        match rest.next() {
            Some('\'') if quoted => return Ok(value),
            None if quoted => {
                return Err(wrong("a quoted value of the connection string has no closing quote"));
            }
            None => return Ok(value),
            Some(c) if !quoted && c.is_ascii_whitespace() => return Ok(value),
            // libpq ignores one at the end of an unquoted value.
            Some('\\') => value.extend(rest.next()),
            Some(c) => value.push(c),
        }
    }
}

fn skip_spaces(rest: &mut Peekable<Chars<'_>>) {
    while rest.next_if(char::is_ascii_whitespace).is_some() {}
}

fn wrong(what: &str) -> Error {
    Error::invalid_config(format!(
        "{what}; a value with spaces needs single quotes, and a quote or a backslash in a value needs a backslash before it"
    ))
}
