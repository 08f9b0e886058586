//! Ciphers.

use checkpoint_core::Cipher;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::OrRaise;

/// Encrypts stored values, and decrypts them when they are read: with one key it encrypts, with all it decrypts.
#[pyclass(frozen, name = "Cipher", module = "langgraph_ckpt")]
pub(crate) struct PyCipher {
    cipher: Cipher,
}

impl PyCipher {
    /// The cipher for a builder.
    pub(crate) fn get(&self) -> Cipher {
        self.cipher.clone()
    }
}

#[pymethods]
impl PyCipher {
    /// Encrypts with AES-256-GCM: a key of 32 bytes, and a key id of 1 to 255 bytes that is stored with each value.
    ///
    /// A value is bound to its row, so that moved values are rejected. LangGraph's own savers cannot read it.
    #[staticmethod]
    fn aes_gcm(py: Python<'_>, key_id: &str, key: &[u8]) -> PyResult<Self> {
        Cipher::aes_gcm(key_id, key).or_raise(py).map(|cipher| Self { cipher })
    }

    /// Encrypts as LangGraph's `EncryptedSerializer.from_pycryptodome_aes` does: AES-EAX with 16, 24 or 32 bytes.
    ///
    /// Without a key, it is the text of the environment variable `LANGGRAPH_AES_KEY`, which must be set then.
    #[staticmethod]
    #[pyo3(signature = (key=None))]
    fn aes(py: Python<'_>, key: Option<&[u8]>) -> PyResult<Self> {
        let Some(key) = key else {
            let missing = "LANGGRAPH_AES_KEY environment variable is not set; set it, or pass a key";
            return Self::from_env(py)?.ok_or_else(|| PyValueError::new_err(missing));
        };
        Cipher::aes(key).or_raise(py).map(|cipher| Self { cipher })
    }

    /// Encrypts as `aes` does, with the key in the variable `LANGGRAPH_AES_KEY`; `None` if that is not set.
    #[staticmethod]
    fn from_env(py: Python<'_>) -> PyResult<Option<Self>> {
        Ok(Cipher::from_env().or_raise(py)?.map(|cipher| Self { cipher }))
    }

    /// Returns a copy with another key, for values that `aes_gcm` encrypted with this key id.
    fn with_aes_gcm_decryption_key(&self, py: Python<'_>, key_id: &str, key: &[u8]) -> PyResult<Self> {
        self.get().with_aes_gcm_decryption_key(key_id, key).or_raise(py).map(|cipher| Self { cipher })
    }

    /// Returns a copy with another key, for values that `aes` or LangGraph encrypted.
    fn with_aes_decryption_key(&self, py: Python<'_>, key: &[u8]) -> PyResult<Self> {
        self.get().with_aes_decryption_key(key).or_raise(py).map(|cipher| Self { cipher })
    }

    /// Shows the key ids, never the keys.
    fn __repr__(&self) -> String {
        format!("{:?}", self.cipher)
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyCipher>()
}
