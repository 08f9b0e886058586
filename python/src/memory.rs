//! The in-memory saver.

use checkpoint_core::InMemorySaver;
use pyo3::prelude::*;

use crate::saver::{Backend, NativeSaver};

/// Creates a saver whose checkpoints are dropped with it.
#[pyfunction]
fn memory_saver(py: Python<'_>) -> NativeSaver {
    NativeSaver::new(py, Backend::new(InMemorySaver::new().with_opaque_values(true)))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(memory_saver, module)?)
}
