//! The Postgres saver and store.

use checkpoint_postgres::{Compression, PostgresSaver};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use store_postgres::PostgresStore;

use crate::cipher::PyCipher;
use crate::connection::{Options, config};
use crate::error::OrRaise;
use crate::saver::{Backend, NativeSaver};
use crate::store::{NativeStore, StoreIndex, ttl};

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
    if let Some(count) = Options(options).number("keep_last")? {
        builder = builder.keep_last(count);
    }
    if let Some(conn_string) = read_replica {
        builder = builder.read_replica_config(config(py, conn_string)?);
    }
    Ok(NativeSaver::new(py, Backend::new(builder.build().or_raise(py)?)))
}

/// Creates a store on the database of a connection string.
#[pyfunction]
#[pyo3(signature = (conn_string, index, default_ttl, refresh_on_read, options))]
fn postgres_store(
    py: Python<'_>,
    conn_string: &str,
    index: Option<&StoreIndex>,
    default_ttl: Option<f64>,
    refresh_on_read: bool,
    options: &Bound<'_, PyDict>,
) -> PyResult<NativeStore> {
    let builder =
        PostgresStore::from_config(config(py, conn_string)?).ttl(ttl(py, default_ttl, refresh_on_read)?);
    let mut builder = connect!(builder, options);
    let options = Options(options);
    if let Some(filter_index) = options.flag("filter_index")? {
        builder = builder.filter_index(filter_index);
    }
    if let Some(candidates) = options.number("ef_search")? {
        builder = builder.ef_search(candidates);
    }
    if let Some(lists) = options.number("probes")? {
        builder = builder.probes(lists);
    }
    if let Some(StoreIndex { config, ann, vector_type }) = index {
        builder = builder.index(config.clone()).ann_index(*ann).vector_type(*vector_type);
    }
    Ok(NativeStore::new(py, builder.build().or_raise(py)?, index))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(postgres_saver, module)?)?;
    module.add_function(wrap_pyfunction!(postgres_store, module)?)
}
