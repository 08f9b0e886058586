//! The MongoDB saver.

use checkpoint_mongo::MongoSaver;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::cipher::PyCipher;
use crate::connection::Options;
use crate::error::OrRaise;
use crate::saver::{Backend, NativeSaver};

/// Creates a saver on the servers of a URL.
#[pyfunction]
#[pyo3(signature = (url, *, cipher, refresh_on_read, options))]
fn mongo_saver(
    py: Python<'_>,
    url: &str,
    cipher: Option<&Bound<'_, PyCipher>>,
    refresh_on_read: bool,
    options: &Bound<'_, PyDict>,
) -> PyResult<NativeSaver> {
    let mut builder = MongoSaver::builder(url).opaque_values(true).refresh_on_read(refresh_on_read);
    if let Some(cipher) = cipher {
        builder = builder.cipher(cipher.get().get());
    }
    let options = Options(options);
    if let Some(name) = options.text("database")? {
        builder = builder.database(name);
    }
    if let Some(name) = options.text("collection")? {
        builder = builder.collection(name);
    }
    if let Some(ttl) = options.seconds("ttl")? {
        builder = builder.ttl(ttl);
    }
    if let Some(sharded) = options.flag("sharded")? {
        builder = builder.sharded(sharded);
    }
    if let Some(level) = options.number::<u8>("compression")? {
        builder = builder.compression(i32::from(level));
    }
    if let Some(timeout) = options.seconds("connect_timeout")? {
        builder = builder.connect_timeout(timeout);
    }
    if let Some(timeout) = options.seconds("timeout")? {
        builder = builder.timeout(timeout);
    }
    if let Some(retries) = options.number("max_retries")? {
        builder = builder.max_retries(retries);
    }
    if let Some(most) = options.number("max_pool_size")? {
        builder = builder.max_pool_size(most);
    }
    if let Some(name) = options.text("app_name")? {
        builder = builder.app_name(name);
    }
    if let Some(count) = options.number("keep_last")? {
        builder = builder.keep_last(count);
    }
    let backend = Backend::new(builder.build().or_raise(py)?);
    // LangGraph's class makes its indexes when it is created.
    Ok(NativeSaver::new(py, backend.sets_up_itself()))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(mongo_saver, module)?)
}
