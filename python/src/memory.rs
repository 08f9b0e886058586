//! The in-memory saver.

use std::sync::Arc;

use checkpoint_core::InMemorySaver;
use pyo3::prelude::*;

use crate::saver::{Backend, NativeSaver};
use crate::tuple::{Channels, Layout};

/// Creates a saver whose checkpoints are dropped with it.
#[pyfunction]
fn memory_saver(py: Python<'_>) -> NativeSaver {
    let layout = Layout::Channels(Channels {
        inline: Arc::new(|_| true),
        // Nothing is converted to scalars, so that objects keep their class.
        subclasses: false,
    });
    let saver = InMemorySaver::new().with_opaque_values(true);
    NativeSaver::new(py, Backend::new(saver, layout))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(memory_saver, module)?)
}
