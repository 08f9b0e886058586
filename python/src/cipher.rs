//! Ciphers.

use checkpoint_core::Cipher;
use pyo3::prelude::*;

use crate::error::OrRaise;

/// Seals what a saver stores, and opens it when it is read: one key seals, every key of the ring opens.
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
    /// Seals with AES-256-GCM: a key of 32 bytes, and a name for it of 1 to 255 bytes that is stored with each value.
    ///
    /// A value is bound to its place, so that no row can be moved elsewhere. LangGraph's own savers cannot read it.
    #[staticmethod]
    fn aes_gcm(py: Python<'_>, key_id: &str, key: &[u8]) -> PyResult<Self> {
        Cipher::aes_gcm(key_id, key).or_raise(py).map(|cipher| Self { cipher })
    }

    /// Seals as LangGraph's `EncryptedSerializer.from_pycryptodome_aes` does: AES-EAX with a key of 16, 24 or 32 bytes.
    #[staticmethod]
    fn aes(py: Python<'_>, key: &[u8]) -> PyResult<Self> {
        Cipher::aes(key).or_raise(py).map(|cipher| Self { cipher })
    }

    /// Seals as `aes` does, with the key in the variable `LANGGRAPH_AES_KEY`; `None` where that is not set.
    #[staticmethod]
    fn from_env(py: Python<'_>) -> PyResult<Option<Self>> {
        Ok(Cipher::from_env().or_raise(py)?.map(|cipher| Self { cipher }))
    }

    /// The same with one more key that opens values which `aes_gcm` sealed under this name.
    fn with_aes_gcm_decryption_key(&self, py: Python<'_>, key_id: &str, key: &[u8]) -> PyResult<Self> {
        self.get().with_aes_gcm_decryption_key(key_id, key).or_raise(py).map(|cipher| Self { cipher })
    }

    /// The same with one more key that opens values which `aes` or LangGraph sealed.
    fn with_aes_decryption_key(&self, py: Python<'_>, key: &[u8]) -> PyResult<Self> {
        self.get().with_aes_decryption_key(key).or_raise(py).map(|cipher| Self { cipher })
    }

    /// The names of the keys; never the keys.
    fn __repr__(&self) -> String {
        format!("{:?}", self.cipher)
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyCipher>()
}
