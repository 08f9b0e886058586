//! The Postgres saver.

use checkpoint_postgres::{Compression, PostgresSaver};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::cipher::PyCipher;
use crate::connection::config;
use crate::error::OrRaise;
use crate::saver::{Backend, NativeSaver};

/// Creates a saver on the database of a connection string.
#[pyfunction]
#[pyo3(signature = (conn_string, *, cipher, read_replica, compression, options))]
fn postgres_saver(
    py: Python<'_>,
    conn_string: &str,
    cipher: Option<&Bound<'_, PyCipher>>,
    read_replica: Option<&str>,
    compression: &str,
    options: &Bound<'_, PyDict>,
) -> PyResult<NativeSaver> {
    let compression = match compression {
        "lz4" => Compression::Lz4,
        "server" => Compression::Server,
        _ => return Err(PyValueError::new_err("compression must be \"lz4\" or \"server\"")),
    };
    let builder =
        PostgresSaver::from_config(config(py, conn_string)?).opaque_values(true).compression(compression);
    let mut builder = connect!(builder, options);
    if let Some(cipher) = cipher {
        builder = builder.cipher(cipher.get().get());
    }
    if let Some(conn_string) = read_replica {
        builder = builder.read_replica_config(config(py, conn_string)?);
    }
    Ok(NativeSaver::new(py, Backend::new(builder.build().or_raise(py)?)))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(postgres_saver, module)?)
}
