//! The in-memory saver and store.

use std::num::NonZeroUsize;

use checkpoint_core::{InMemorySaver, InMemoryStore};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::connection::Options;
use crate::error::OrRaise;
use crate::saver::{Backend, NativeSaver};
use crate::store::{NativeStore, StoreIndex, ttl};

/// Creates a saver whose checkpoints are dropped with it.
#[pyfunction]
#[pyo3(signature = (*, options))]
fn memory_saver(py: Python<'_>, options: &Bound<'_, PyDict>) -> PyResult<NativeSaver> {
    let mut saver = InMemorySaver::new().with_opaque_values(true);
    if let Some(count) = Options(options).number::<usize>("keep_last")? {
        let refused = || PyValueError::new_err("keep_last must be at least 1");
        saver = saver.with_keep_last(NonZeroUsize::new(count).ok_or_else(refused)?);
    }
    Ok(NativeSaver::new(py, Backend::new(saver)))
}

/// Creates a store whose items are dropped with it.
#[pyfunction]
#[pyo3(signature = (index, default_ttl, refresh_on_read))]
fn memory_store(
    py: Python<'_>,
    index: Option<&StoreIndex>,
    default_ttl: Option<f64>,
    refresh_on_read: bool,
) -> PyResult<NativeStore> {
    let mut builder = InMemoryStore::builder().ttl(ttl(py, default_ttl, refresh_on_read)?);
    if let Some(index) = index {
        builder = builder.index(index.config.clone());
    }
    Ok(NativeStore::new(py, builder.build().or_raise(py)?, index))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(memory_saver, module)?)?;
    module.add_function(wrap_pyfunction!(memory_store, module)?)
}
