//! The in-memory saver and store.

use checkpoint_core::{InMemorySaver, InMemoryStore};
use pyo3::prelude::*;

use crate::error::OrRaise;
use crate::saver::{Backend, NativeSaver};
use crate::store::{NativeStore, StoreIndex, ttl};

/// Creates a saver whose checkpoints are dropped with it.
#[pyfunction]
fn memory_saver(py: Python<'_>) -> NativeSaver {
    NativeSaver::new(py, Backend::new(InMemorySaver::new().with_opaque_values(true)))
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
