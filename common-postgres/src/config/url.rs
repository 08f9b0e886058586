//! Connection strings that are URLs, parsed as libpq parses them.
//!
//! Errors show no part of the URL: if the password contains a delimiter, any part may belong to the password.

use std::borrow::Cow;

use checkpoint_core::{Error, Result};

use super::{DEFAULT_PORT, PostgresConfig, invalid, parameters};

/// If a `/` or `@` in the password is not percent-encoded, the rest of the password is parsed as another part of the URL.
const ENCODE: &str =
    "if the password contains one of @ : / ? % [ ], write them as %40 %3A %2F %3F %25 %5B %5D";

/// What follows the scheme of a URL.
pub(super) fn without_scheme(url: &str) -> Option<&str> {
    ["postgres://", "postgresql://"].into_iter().find_map(|scheme| url.strip_prefix(scheme))
}

/// Reads a URL into a configuration.
pub(super) fn parse(url: &str, config: &mut PostgresConfig) -> Result<()> {
    let rest =
        without_scheme(url).ok_or_else(|| invalid("the URL must begin with postgres:// or postgresql://"))?;
    if url.contains('\0') {
        return Err(invalid("the URL must not have a NUL byte"));
    }

    // As in libpq: the user ends at the first `@`, unless a `/` comes first.
    let rest = match rest.find(['@', '/']) {
        Some(end) if rest[end..].starts_with('@') => {
            parse_user(&rest[..end], config)?;
            &rest[end + 1..]
        }
        _ => rest,
    };
    if rest.contains('@') {
        return Err(wrong("the URL has an @ in the wrong place"));
    }
    let (authority, rest) = split_before(rest, &['/', '?']);
    let (path, query) = split_before(rest, &['?']);
    parse_hosts(authority, config)?;
    let database = path.strip_prefix('/').unwrap_or(path);
    if !database.is_empty() {
        config.database = Some(decode(database, "database")?.into_owned());
    }
    for pair in query.trim_start_matches('?').split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| wrong("a parameter of the URL has no value (no = sign)"))?;
        let key = decode(key, "name of a parameter")?;
        // An unknown name may be part of the password.
        let known = parameters::KNOWN.into_iter().find(|known| *known == key);
        let value = decode(value, known.unwrap_or("value of a parameter"))?;
        // JDBC's name of the parameter.
        match (&*key, &*value) {
            ("ssl", "true") => config.set("sslmode", "require")?,
            _ => config.set(&key, &value)?,
        }
    }
    Ok(())
}

fn parse_user(text: &str, config: &mut PostgresConfig) -> Result<()> {
    let (user, password) = match text.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (text, None),
    };
    config.set("user", &decode(user, "user")?)?;
    if let Some(password) = password {
        config.set("password", &decode(password, "password")?)?;
    }
    Ok(())
}

fn parse_hosts(text: &str, config: &mut PostgresConfig) -> Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let (mut hosts, mut ports) = (Vec::new(), Vec::new());
    let mut any_port = false;
    for part in text.split(',') {
        let (host, port) = if let Some(rest) = part.strip_prefix('[') {
            let (host, rest) =
                rest.split_once(']').ok_or_else(|| wrong("an IPv6 address in the URL has no closing ]"))?;
            match rest.strip_prefix(':') {
                Some(port) => (host, port),
                None if rest.is_empty() => (host, ""),
                None => return Err(wrong("only a port may follow the ] of an IPv6 address")),
            }
        } else {
            part.split_once(':').unwrap_or((part, ""))
        };
        let port = decode(port, "port")?;
        any_port |= !port.is_empty();
        let port = match &*port {
            "" => DEFAULT_PORT,
            port => port
                .parse()
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(|| wrong("the port in the URL must be a number from 1 to 65535"))?,
        };
        hosts.push(decode(host, "host")?.into_owned());
        ports.push(port);
    }
    if hosts.iter().any(|host| !host.is_empty()) {
        config.hosts = hosts;
    }
    // Without any port, the environment's ports are kept.
    if any_port {
        config.ports = ports;
    }
    Ok(())
}

fn split_before<'a>(text: &'a str, ends: &[char]) -> (&'a str, &'a str) {
    text.split_at(text.find(ends).unwrap_or(text.len()))
}

fn wrong(what: &str) -> Error {
    Error::invalid_config(format!("{what}; {ENCODE}"))
}

fn decode<'a>(text: &'a str, part: &'static str) -> Result<Cow<'a, str>> {
    if !text.contains('%') {
        return Ok(text.into());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes().iter();
    while let Some(&byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(*digit).to_digit(16));
        match (digit(), digit()) {
            (Some(0), Some(0)) => return Err(wrong(&format!("the {part} in the URL has %00"))),
            (Some(high), Some(low)) => bytes.extend(u8::try_from(high * 16 + low)),
            _ => return Err(wrong(&format!("the {part} in the URL has a % without two hexadecimal digits"))),
        }
    }
    // The error would contain the bytes.
    String::from_utf8(bytes)
        .map(Cow::Owned)
        .map_err(|_| wrong(&format!("the {part} in the URL is not UTF-8")))
}
