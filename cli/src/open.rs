//! From a URL to a saver: the one place that knows the backends.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint_core::cipher::AES_KEY_VARIABLE;
use checkpoint_core::{BaseCheckpointSaver, Cipher};
use checkpoint_sqlite::SqliteSaver;

use crate::arguments::Options;
use crate::failure::{Failure, Result};
use crate::output::clean;

/// What this program can open.
const KNOWN: &str = "sqlite:PATH";

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

/// Opens a URL.
pub(crate) fn open(url: &str, cipher: Option<Cipher>, sealed: Sealed) -> Result<Saver> {
    if url.is_empty() {
        return Err(Failure::usage(format!("the URL is empty; this ckpt opens {KNOWN}")));
    }
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(Failure::usage(format!("{} is no URL; this ckpt opens {KNOWN}", clean(url))));
    };
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
        // The rest may hold a password.
        _ => {
            Err(Failure::usage(format!("this ckpt does not open {}: URLs; it opens {KNOWN}", clean(scheme))))
        }
    }
}

/// Whether two URLs name one database, as far as they tell.
pub(crate) fn same_database(one: &str, other: &str) -> bool {
    one == other || matches!((file(one), file(other)), (Some(one), Some(other)) if same_file(&one, &other))
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
            Some(cipher) => cipher.and_open_aes_gcm(id, &key),
        };
        cipher = Some(next.map_err(named(&format!("{flags}gcm-key {given}")))?);
    }
    Ok(match (cipher, aes) {
        (Some(cipher), Some((key, from))) => Some(cipher.and_open_aes(&key).map_err(named(&from))?),
        (None, Some((key, from))) => Some(Cipher::aes(&key).map_err(named(&from))?),
        (cipher, None) => cipher,
    })
}

fn key(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file)
        .map_err(|error| Failure::usage(format!("the key file {} cannot be read: {error}", file.display())))
}
