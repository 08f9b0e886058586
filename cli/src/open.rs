//! From a URL to a saver: the one place that knows the backends.

use std::path::Path;
use std::sync::Arc;

use checkpoint_core::{BaseCheckpointSaver, Cipher};
use checkpoint_sqlite::SqliteSaver;

use crate::Global;
use crate::failure::{Exit, Failure};

pub(crate) type Saver = Arc<dyn BaseCheckpointSaver>;

pub(crate) fn saver(global: &Global) -> Result<Saver, Failure> {
    let url = global.url.as_deref().ok_or_else(|| {
        Failure::new(Exit::Usage, "no database is named; give --url sqlite:PATH or set CKPT_URL")
    })?;
    let cipher = cipher(global)?;
    let path = url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite:"));
    match path {
        Some(path) if !path.is_empty() => {
            let mut builder = SqliteSaver::builder(path).keep_sealed(cipher.is_none());
            if let Some(cipher) = cipher {
                builder = builder.cipher(cipher);
            }
            Ok(Arc::new(builder.build()?))
        }
        // The URL itself is not shown: it may hold a password.
        _ => Err(Failure::new(Exit::Usage, "the URL names no backend of this build; it knows: sqlite:PATH")),
    }
}

fn cipher(global: &Global) -> Result<Option<Cipher>, Failure> {
    let aes = match &global.key_file {
        Some(file) => Some(Cipher::aes(&key(file)?).map_err(|error| wrong_key(&error))?),
        None => Cipher::from_env().map_err(|error| wrong_key(&error))?,
    };
    global.gcm_key.iter().try_fold(aes, |cipher, argument| {
        let (id, file) = argument
            .split_once('=')
            .ok_or_else(|| Failure::new(Exit::Usage, "--gcm-key takes ID=FILE, a key id and a file"))?;
        let key = key(Path::new(file))?;
        match cipher {
            Some(cipher) => cipher.and_open_aes_gcm(id, &key),
            None => Cipher::aes_gcm(id, &key),
        }
        .map(Some)
        .map_err(|error| wrong_key(&error))
    })
}

fn wrong_key(error: &checkpoint_core::Error) -> Failure {
    Failure::new(Exit::Crypto, error.to_string())
}

fn key(file: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(file).map_err(|error| {
        Failure::new(Exit::Crypto, format!("the key file {} cannot be read: {error}", file.display()))
    })
}
