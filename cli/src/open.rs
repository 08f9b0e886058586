//! From a URL to a saver or a store: the one place that knows the backends.

mod store;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint_core::cipher::AES_KEY_VARIABLE;
use checkpoint_core::{BaseCheckpointSaver, Cipher};
use checkpoint_postgres::{PostgresConfig, PostgresSaver};
use checkpoint_sqlite::SqliteSaver;
use secrecy::SecretString;

pub(crate) use store::{Scratch, Store, Vectors, store};

use crate::arguments::Options;
use crate::failure::{Failure, Result};

/// What this program can open.
const KNOWN: &str = "sqlite:PATH or postgres://USER@HOST/DATABASE";

/// The environment variable of a password that the URL does not have, as everywhere with PostgreSQL.
const PASSWORD_VARIABLE: &str = "PGPASSWORD";

/// The port of a PostgreSQL server whose URL has none.
const POSTGRES_PORT: &str = ":5432";

/// What the flags for keys begin with that every command has.
const EVERY_COMMAND: &str = "--";

/// A saver of any backend.
pub(crate) type Saver = Arc<dyn BaseCheckpointSaver>;

/// What to do with values that the keys at hand do not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sealed {
    /// Show that they are there.
    Keep,
    /// Show that they are there where no key was given; a key that does not open them is a mistake.
    KeepWithoutKey,
    /// Fail.
    Refuse,
}

/// Opens the database that the options name, with the keys that they name.
pub(crate) fn saver(options: &Options, sealed: Sealed) -> Result<Saver> {
    let cipher = cipher(&Keys::of_every_command(options))?;
    let sealed = match sealed {
        Sealed::KeepWithoutKey if cipher.is_some() => Sealed::Refuse,
        other => other,
    };
    open(url(options)?, cipher, sealed)
}

/// The URL, which every command on a database needs.
pub(crate) fn url(options: &Options) -> Result<&str> {
    options.url.as_deref().ok_or_else(|| {
        Failure::usage(format!("no database is named; give --url or set CKPT_URL, for example {KNOWN}"))
    })
}

/// What stands before the colon of a URL, and behind it.
fn scheme(url: &str) -> Result<(&str, &str)> {
    if url.is_empty() {
        return Err(Failure::usage(format!("the URL is empty; this ckpt opens {KNOWN}")));
    }
    // What was given may hold a password, so no more than a scheme is shown of it.
    let is_scheme = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    url.split_once(':')
        .filter(|(scheme, _)| is_scheme(scheme))
        .ok_or_else(|| Failure::usage(format!("what was given is no URL; this ckpt opens {KNOWN}")))
}

/// Opens a URL.
pub(crate) fn open(url: &str, cipher: Option<Cipher>, sealed: Sealed) -> Result<Saver> {
    let (scheme, rest) = scheme(url)?;
    match scheme {
        "sqlite" => {
            let path = rest.strip_prefix("//").unwrap_or(rest);
            if path.is_empty() || path == ":memory:" {
                return Err(Failure::usage("the URL names no file; give it as sqlite:PATH"));
            }
            let mut builder = SqliteSaver::builder(path);
            if let Some(cipher) = cipher {
                builder = builder.cipher(cipher);
            }
            Ok(Arc::new(builder.keep_sealed(sealed != Sealed::Refuse).build()?))
        }
        "postgres" | "postgresql" => postgres(url, cipher, sealed),
        _ => Err(Failure::usage(format!("this ckpt does not open {scheme}: URLs; it opens {KNOWN}"))),
    }
}

/// Where a URL leads, and the schema that it names.
fn postgres_config(url: &str) -> Result<(PostgresConfig, Option<String>)> {
    let (url, schema) = take_schema(url)?;
    let mut config = PostgresConfig::from_url(&url)?;
    if let Some(password) = std::env::var(PASSWORD_VARIABLE).ok().filter(|_| !has_password(&url)) {
        config = config.password(SecretString::from(password));
    }
    Ok((config, schema))
}

fn postgres(url: &str, cipher: Option<Cipher>, sealed: Sealed) -> Result<Saver> {
    let (config, schema) = postgres_config(url)?;
    let mut builder = PostgresSaver::from_config(config).keep_sealed(sealed != Sealed::Refuse);
    if let Some(schema) = schema {
        builder = builder.schema(schema);
    }
    if let Some(cipher) = cipher {
        builder = builder.cipher(cipher);
    }
    Ok(Arc::new(builder.build()?))
}

/// Takes the parameter `schema` off a URL: it is ours, and no driver knows it.
fn take_schema(url: &str) -> Result<(String, Option<String>)> {
    let Some((address, query)) = url.split_once('?') else { return Ok((url.to_owned(), None)) };
    let (ours, rest): (Vec<_>, Vec<_>) = query.split('&').partition(|part| part.starts_with("schema="));
    let schema = match ours.as_slice() {
        [] => None,
        [one] => Some(decode(one.trim_start_matches("schema="))?),
        _ => return Err(Failure::usage("the URL names the schema twice")),
    };
    let rest = rest.join("&");
    Ok((if rest.is_empty() { address.to_owned() } else { format!("{address}?{rest}") }, schema))
}

/// Undoes percent-encoding.
fn decode(text: &str) -> Result<String> {
    let wrong = || Failure::usage("the schema in the URL is not percent-encoded as it should be");
    let mut parts = text.split('%');
    let mut out = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (hex, rest) = part.split_at_checked(2).ok_or_else(wrong)?;
        out.push(u8::from_str_radix(hex, 16).map_err(|_| wrong())?);
        out.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(out).map_err(|_| wrong())
}

fn has_password(url: &str) -> bool {
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let (_, address) = address.split_once("://").unwrap_or(("", address));
    let user = address.rsplit_once('@').map_or("", |(user, _)| user);
    user.contains(':') || query.split('&').any(|part| part.starts_with("password="))
}

/// Server, database and schema of a URL, without how to get in.
fn server(url: &str) -> Option<(String, String, Option<String>)> {
    if !(url.starts_with("postgres://") || url.starts_with("postgresql://")) {
        return None;
    }
    let (url, schema) = take_schema(url).ok()?;
    let (_, address) = url.split_once("://")?;
    let address = address.split('?').next().unwrap_or_default();
    let (user, place) = address.rsplit_once('@').unwrap_or(("", address));
    let (host, database) = place.split_once('/').unwrap_or((place, ""));
    let mut host = host.to_ascii_lowercase();
    if !host.rsplit(']').next().unwrap_or_default().contains(':') {
        host.push_str(POSTGRES_PORT);
    }
    for local in ["127.0.0.1:", "[::1]:", ":"] {
        if let Some(port) = host.strip_prefix(local) {
            host = format!("localhost:{port}");
        }
    }
    let database = if database.is_empty() { user.split(':').next().unwrap_or_default() } else { database };
    Some((host, database.to_owned(), schema))
}

/// Whether two URLs name one database, as far as they tell.
pub(crate) fn same_database(one: &str, other: &str) -> bool {
    one == other
        || matches!((file(one), file(other)), (Some(one), Some(other)) if same_file(&one, &other))
        || matches!((server(one), server(other)), (Some(one), Some(other)) if one == other)
}

/// The file that a URL names, if it is one of a file.
fn file(url: &str) -> Option<PathBuf> {
    let rest = url.strip_prefix("sqlite:")?;
    Some(PathBuf::from(rest.strip_prefix("//").unwrap_or(rest)))
}

fn same_file(one: &Path, other: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        if let (Ok(one), Ok(other)) = (std::fs::metadata(one), std::fs::metadata(other)) {
            return (one.dev(), one.ino()) == (other.dev(), other.ino());
        }
    }
    let resolved = |path: &Path| std::fs::canonicalize(path).or_else(|_| std::path::absolute(path)).ok();
    resolved(one).is_some_and(|one| resolved(other) == Some(one))
}

/// Where keys are given.
pub(crate) struct Keys<'a> {
    /// What the names of the flags begin with.
    pub(crate) flags: &'static str,
    pub(crate) file: Option<&'a Path>,
    pub(crate) gcm: &'a [String],
}

impl<'a> Keys<'a> {
    /// The flags that every command has; without a file, the environment is looked at too.
    pub(crate) fn of_every_command(options: &'a Options) -> Self {
        Self { flags: EVERY_COMMAND, file: options.key_file.as_deref(), gcm: &options.gcm_key }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.file.is_none() && self.gcm.is_empty()
    }
}

/// The keys: from files, else from the environment.
pub(crate) fn cipher(keys: &Keys<'_>) -> Result<Option<Cipher>> {
    let flags = keys.flags;
    let aes = match keys.file {
        Some(file) => Some((key(file)?, format!("the key file {}", file.display()))),
        None if flags != EVERY_COMMAND => None,
        None => std::env::var_os(AES_KEY_VARIABLE)
            .map(|key| (key.into_encoded_bytes(), AES_KEY_VARIABLE.to_owned())),
    };
    let named = |from: &str| {
        let from = from.to_owned();
        move |error: checkpoint_core::Error| Failure::usage(format!("{from}: {error}"))
    };
    let mut cipher: Option<Cipher> = None;
    for given in keys.gcm {
        let (id, file) = given.split_once('=').ok_or_else(|| {
            Failure::usage(format!(
                "{flags}gcm-key takes ID=FILE: the key's id, and a file with its 32 bytes"
            ))
        })?;
        let key = key(Path::new(file))?;
        let next = match cipher {
            None => Cipher::aes_gcm(id, &key),
            Some(cipher) => cipher.with_aes_gcm_decryption_key(id, &key),
        };
        cipher = Some(next.map_err(named(&format!("{flags}gcm-key {given}")))?);
    }
    Ok(match (cipher, aes) {
        (Some(cipher), Some((key, from))) => {
            Some(cipher.with_aes_decryption_key(&key).map_err(named(&from))?)
        }
        (None, Some((key, from))) => Some(Cipher::aes(&key).map_err(named(&from))?),
        (cipher, None) => cipher,
    })
}

fn key(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file)
        .map_err(|error| Failure::usage(format!("the key file {} cannot be read: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_taken_off_the_url() {
        for (url, rest, schema) in [
            ("postgres://h/d", "postgres://h/d", None),
            ("postgres://h/d?schema=a", "postgres://h/d", Some("a")),
            ("postgres://h/d?x=1&schema=%C3%A4%25&y=2", "postgres://h/d?x=1&y=2", Some("ä%")),
        ] {
            assert_eq!(take_schema(url).unwrap(), (rest.to_owned(), schema.map(str::to_owned)));
        }
        for wrong in [
            "x://?schema=a&schema=b",
            "x://?schema=%",
            "x://?schema=%zz",
            "x://?schema=%ff",
            "x://?schema=%ä",
        ] {
            assert!(take_schema(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn one_database_is_known_under_its_names() {
        let one = "postgres://me:pw@localhost/agents";
        for same in [
            one,
            "postgresql://you@127.0.0.1:5432/agents?sslmode=disable",
            "postgres://agents@LOCALHOST",
            "postgres:///agents",
        ] {
            assert!(same_database(one, same), "{same}");
        }
        for other in [
            "postgres://localhost:5433/agents",
            "postgres://localhost/agents?schema=s",
            "postgres://db/agents",
            "sqlite:agents",
        ] {
            assert!(!same_database(one, other), "{other}");
        }
    }

    #[test]
    fn a_password_in_the_url_is_seen() {
        assert!(has_password("postgres://me:pw@h/d") && has_password("postgres://h/d?password=x"));
        assert!(!has_password("postgres://me@h:5432/d?user=x") && !has_password("postgres://h:5432"));
    }
}
