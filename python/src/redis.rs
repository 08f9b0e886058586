//! The Redis saver.

use std::time::Duration;

use checkpoint_redis::{Durability, RedisSaver, RedisSaverBuilder};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::cipher::PyCipher;
use crate::connection::Options;
use crate::error::OrRaise;
use crate::saver::{Backend, NativeSaver};
use crate::store::ttl;

/// How long a write waits for replicas.
const REPLICAS: Duration = Duration::from_secs(1);

/// A builder with the options of connections.
pub(crate) fn builder(url: &str, options: &Bound<'_, PyDict>) -> PyResult<RedisSaverBuilder> {
    let (mut builder, options) = (RedisSaver::builder(url), Options(options));
    if let Some(prefix) = options.text("key_prefix")? {
        builder = builder.key_prefix(prefix);
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
    if let Some(name) = options.text("client_name")? {
        builder = builder.client_name(name);
    }
    Ok(builder)
}

/// Creates a saver on the servers of a URL.
#[pyfunction]
#[pyo3(signature = (url, *, cipher, default_ttl, refresh_on_read, options))]
fn redis_saver(
    py: Python<'_>,
    url: &str,
    cipher: Option<&Bound<'_, PyCipher>>,
    default_ttl: Option<f64>,
    refresh_on_read: bool,
    options: &Bound<'_, PyDict>,
) -> PyResult<NativeSaver> {
    let mut builder = builder(url, options)?.opaque_values(true).refresh_on_read(refresh_on_read);
    if let Some(ttl) = ttl(py, default_ttl, refresh_on_read)?.default_ttl {
        builder = builder.ttl(ttl);
    }
    if let Some(cipher) = cipher {
        builder = builder.cipher(cipher.get().get());
    }
    let options = Options(options);
    if let Some(scripts) = options.flag("scripts")? {
        builder = builder.scripts(scripts);
    }
    if let Some(bytes) = options.number("max_inline_bytes")? {
        builder = builder.max_inline_bytes(bytes);
    }
    if let Some(level) = options.number::<u8>("compression")? {
        builder = builder.compression(i32::from(level));
    }
    if let Some(count) = options.number("keep_last")? {
        builder = builder.keep_last(count);
    }
    let aof = options.flag("wait_aof")?.unwrap_or(false);
    let replicas = options.number("wait_replicas")?.unwrap_or(0);
    let timeout = options.seconds("wait_timeout")?;
    if replicas > 0 || aof {
        builder = builder.durability(Durability { replicas, timeout: timeout.unwrap_or(REPLICAS), aof });
    } else if timeout.is_some() {
        return Err(PyValueError::new_err("wait_timeout needs wait_replicas or wait_aof"));
    }
    Ok(NativeSaver::new(py, Backend::new(builder.build().or_raise(py)?)))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(redis_saver, module)?)
}
