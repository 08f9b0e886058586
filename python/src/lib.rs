//! The native part of the Python package `langgraph_ckpt`: LangGraph's checkpointers and stores over the backends of
//! this workspace. What users import stands in the Python files beside it.

mod call;
#[macro_use]
mod connection;
mod embeddings;
mod error;
mod event_loop;
mod runtime;
mod store;
mod store_ops;

use pyo3::prelude::*;

/// What the Python files build on. Every file adds its own classes.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    call::register(module)?;
    runtime::register(module)?;
    store::register(module)
}
