//! Opens the saver or the store of a URL. Only this module knows the backends.

mod mongo;
mod redis;
mod store;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint_core::cipher::AES_KEY_VARIABLE;
use checkpoint_core::{BaseCheckpointSaver, Cipher};
use checkpoint_mongo::MongoSaver;
use checkpoint_postgres::{PostgresConfig, PostgresSaver};
use checkpoint_redis::RedisSaver;
use checkpoint_sqlite::SqliteSaver;

pub(crate) use store::{Scratch, Store, Vectors, store};

use crate::arguments::Options;
use crate::failure::{Failure, Result};

/// The URLs that this program can open.
const KNOWN: &str = "sqlite:PATH, postgres://USER@HOST/DATABASE, \"host=HOST dbname=DATABASE\", \
                     mongodb://USER@HOST/DATABASE (or mongodb+srv://) or \
                     redis://USER@HOST (rediss:// with TLS, redis+cluster://, redis+sentinel://HOST/SERVICE)";

/// The prefix of the flags for keys that every command has.
const EVERY_COMMAND: &str = "--";

/// A saver of any backend.
pub(crate) type Saver = Arc<dyn BaseCheckpointSaver>;

/// What to do with encrypted values that the given keys do not decrypt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sealed {
    /// Show them as encrypted.
    Keep,
    /// Show them as encrypted if no key is given; fail if a key is given that does not decrypt them.
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

/// Opens the database that the options name, with the keys that they name and former AES keys.
pub(crate) fn saver_with_old_keys(
    options: &Options,
    old_key_files: &[PathBuf],
) -> Result<(Saver, Option<Cipher>)> {
    let mut cipher = cipher(&Keys::of_every_command(options))?;
    for file in old_key_files {
        let with = cipher
            .ok_or_else(|| {
                Failure::usage("--old-key-file only decrypts; give the new key by --key-file or --gcm-key")
            })?
            .with_aes_decryption_key(&key(file)?);
        cipher = Some(with.map_err(named(&format!("the key file {}", file.display())))?);
    }
    let saver = open(url(options)?, cipher.clone(), Sealed::Refuse)?;
    Ok((saver, cipher))
}

/// The `--url` option, required by every command on a database.
pub(crate) fn url(options: &Options) -> Result<&str> {
    options.url.as_deref().ok_or_else(|| {
        Failure::usage(format!("no database given; pass --url or set CKPT_URL, for example {KNOWN}"))
    })
}

/// The backend of a URL, and its part of the URL.
enum Backend<'a> {
    Sqlite(&'a Path),
    /// A connection string.
    Postgres(&'a str),
    /// A URL of MongoDB.
    Mongo(&'a str),
    /// A URL of Redis.
    Redis(&'a str),
}

impl<'a> Backend<'a> {
    fn of(url: &'a str) -> Result<Self> {
        if url.is_empty() {
            return Err(Failure::usage(format!("the URL is empty; this ckpt opens {KNOWN}")));
        }
        if mongo::is_url(url) {
            return Ok(Self::Mongo(url));
        }
        if redis::is_url(url) {
            return Ok(Self::Redis(url));
        }
        if PostgresConfig::is_conn_string(url) {
            return Ok(Self::Postgres(url));
        }
        // The rest may contain a password, so at most the scheme is shown.
        let is_scheme = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
        match url.split_once(':').filter(|(scheme, _)| is_scheme(scheme)) {
            Some(("sqlite", rest)) => match rest.strip_prefix("//").unwrap_or(rest) {
                "" | ":memory:" => Err(Failure::usage("the URL names no file; give it as sqlite:PATH")),
                path => Ok(Self::Sqlite(Path::new(path))),
            },
            Some((scheme, _)) => {
                Err(Failure::usage(format!("this ckpt does not open {scheme}: URLs; it opens {KNOWN}")))
            }
            None => Err(Failure::usage(format!("not a database URL; this ckpt opens {KNOWN}"))),
        }
    }
}

/// The name of the backend of a URL.
pub(crate) fn backend(url: &str) -> &'static str {
    match Backend::of(url) {
        Ok(Backend::Sqlite(_)) => "sqlite",
        Ok(Backend::Postgres(_)) => "postgres",
        Ok(Backend::Mongo(_)) => "mongo",
        Ok(Backend::Redis(_)) => "redis",
        Err(_) => "unknown",
    }
}

/// Opens the saver of a URL.
pub(crate) fn open(url: &str, cipher: Option<Cipher>, sealed: Sealed) -> Result<Saver> {
    let return_sealed = sealed != Sealed::Refuse;
    Ok(match Backend::of(url)? {
        Backend::Sqlite(path) => {
            let mut builder = SqliteSaver::builder(path).return_sealed(return_sealed);
            if let Some(cipher) = cipher {
                builder = builder.cipher(cipher);
            }
            Arc::new(builder.build()?)
        }
        Backend::Postgres(conn_string) => {
            let mut builder = PostgresSaver::builder(conn_string).return_sealed(return_sealed);
            if let Some(cipher) = cipher {
                builder = builder.cipher(cipher);
            }
            Arc::new(builder.build()?)
        }
        Backend::Mongo(url) => {
            let mut builder = MongoSaver::builder(url).return_sealed(return_sealed);
            if let Some(cipher) = cipher {
                builder = builder.cipher(cipher);
            }
            Arc::new(builder.build()?)
        }
        Backend::Redis(url) => {
            let mut builder = RedisSaver::builder(url).return_sealed(return_sealed);
            if let Some(cipher) = cipher {
                builder = builder.cipher(cipher);
            }
            Arc::new(builder.build()?)
        }
    })
}

/// Whether two URLs name the same database, judging by their texts.
pub(crate) fn same_database(one: &str, other: &str) -> bool {
    match (Backend::of(one), Backend::of(other)) {
        (Ok(Backend::Sqlite(one)), Ok(Backend::Sqlite(other))) => same_file(one, other),
        (Ok(Backend::Postgres(one)), Ok(Backend::Postgres(other))) => {
            let (one, other) =
                (PostgresConfig::from_conn_string(one), PostgresConfig::from_conn_string(other));
            matches!((one, other), (Ok(one), Ok(other)) if one.is_same_database(&other))
        }
        (Ok(Backend::Mongo(one)), Ok(Backend::Mongo(other))) => mongo::is_same_database(one, other),
        (Ok(Backend::Redis(one)), Ok(Backend::Redis(other))) => redis::is_same_database(one, other),
        _ => false,
    }
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

/// The flags that give keys.
pub(crate) struct Keys<'a> {
    /// The prefix of the flags' names.
    pub(crate) flags: &'static str,
    pub(crate) file: Option<&'a Path>,
    pub(crate) gcm: &'a [String],
}

impl<'a> Keys<'a> {
    /// The flags that every command has. Without a file, the environment variable is used.
    pub(crate) fn of_every_command(options: &'a Options) -> Self {
        Self { flags: EVERY_COMMAND, file: options.key_file.as_deref(), gcm: &options.gcm_key }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.file.is_none() && self.gcm.is_empty()
    }
}

/// The keys from files, otherwise from the environment.
pub(crate) fn cipher(keys: &Keys<'_>) -> Result<Option<Cipher>> {
    let flags = keys.flags;
    let aes = match keys.file {
        Some(file) => Some((key(file)?, format!("the key file {}", file.display()))),
        None if flags != EVERY_COMMAND => None,
        None => std::env::var_os(AES_KEY_VARIABLE)
            .map(|key| (key.into_encoded_bytes(), AES_KEY_VARIABLE.to_owned())),
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

/// Names the source of an invalid key.
fn named(from: &str) -> impl Fn(checkpoint_core::Error) -> Failure + use<> {
    let from = from.to_owned();
    move |error| Failure::usage(format!("{from}: {error}"))
}

fn key(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file)
        .map_err(|error| Failure::usage(format!("the key file {} cannot be read: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_lead_to_their_backends() {
        for (url, expected) in [
            ("sqlite:a.sqlite", "sqlite"),
            ("sqlite:///tmp/host=a", "sqlite"),
            ("postgres://h/d", "postgres"),
            ("postgresql://", "postgres"),
            ("host=h dbname=d", "postgres"),
            ("  sslmode = require host=h", "postgres"),
            ("password=a:b host=h", "postgres"),
            ("redis://h", "redis"),
            ("Rediss://me:pw@h/1?prefix=a=b", "redis"),
            ("valkey://", "redis"),
            ("valkeys+cluster://a,b", "redis"),
            ("redis+sentinel://h/s", "redis"),
            ("redis+unix:///run/redis", "redis"),
            ("redis://h?ttl=soon", "redis"),
            ("redish://h", "unknown"),
            ("mongodb://h", "mongo"),
            ("MongoDB+srv://me:pw@h/d?w=1", "mongo"),
            ("mongodb://h/?ttl=soon", "mongo"),
            ("mongo://h", "unknown"),
            ("mysql://h", "unknown"),
            ("agents.sqlite", "unknown"),
            ("sqlite:", "unknown"),
            ("", "unknown"),
        ] {
            assert_eq!(backend(url), expected, "{url}");
        }
    }

    #[test]
    fn different_names_of_one_database_are_recognized() {
        let one = "postgres://me:pw@localhost/agents";
        for same in
            [one, "postgresql://you@127.0.0.1:5432/agents?sslmode=disable", "host=LOCALHOST dbname=agents"]
        {
            assert!(same_database(one, same), "{same}");
        }
        assert!(same_database("redis://localhost", "valkey://127.0.0.1:6379?prefix=ckpt"));
        assert!(same_database("mongodb://localhost", "mongodb://127.0.0.1:27017/langgraph"));
        for other in [
            "redis://localhost",
            "mongodb://localhost/agents",
            "postgres://localhost:5433/agents",
            "postgres://localhost/agents?schema=s",
            "sqlite:agents",
        ] {
            assert!(!same_database(one, other), "{other}");
        }
        assert!(same_database("sqlite:a", "sqlite://a") && !same_database("sqlite:a", "sqlite:b"));
    }
}
