//! The native part of the Python package `langgraph_ckpt`: LangGraph's checkpointers, stores and caches over the backends of
//! this workspace. The classes that users import are in the Python files beside it.

#[macro_use]
mod connection;

mod cache;
mod cache_postgres;
mod cache_redis;
mod cache_sqlite;
mod call;
mod cipher;
mod config;
mod convert;
mod embeddings;
mod error;
mod event_loop;
mod list;
mod memory;
mod mongo;
mod opened;
mod postgres;
mod redis;
mod retention;
mod runtime;
mod saver;
mod sqlite;
mod store;
mod store_ops;
mod tuple;

use pyo3::prelude::*;

/// The native module. Every file adds its own classes.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    runtime::register(module)?;
    call::register(module)?;
    cipher::register(module)?;
    saver::register(module)?;
    memory::register(module)?;
    sqlite::register(module)?;
    postgres::register(module)?;
    mongo::register(module)?;
    redis::register(module)?;
    store::register(module)?;
    cache::register(module)?;
    cache_sqlite::register(module)?;
    cache_postgres::register(module)?;
    cache_redis::register(module)
}
