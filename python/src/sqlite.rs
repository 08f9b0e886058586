//! The SQLite saver.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use checkpoint_core::delta::{ChannelSummary, CheckpointReader};
use checkpoint_core::{ChannelValue, Error, ErrorKind, Result, TypedBytes};
use checkpoint_sqlite::{SqliteSaver, Synchronous};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::cipher::PyCipher;
use crate::connection::Options;
use crate::convert::{for_each_entry, to_str};
use crate::error::OrRaise;
use crate::saver::{Backend, NativeSaver};
use crate::tuple::{Serde, is_delta_snapshot};

/// Decodes complete checkpoints with the saver's serializer.
struct Reader {
    serde: Serde,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

impl Reader {
    /// Called on threads of the saver; threads that wait for them have released the GIL.
    fn attached<T>(read: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T> {
        let read = Python::try_attach(read);
        let read = read.ok_or_else(|| Error::new(ErrorKind::Unavailable, "the interpreter is exiting"))?;
        read.map_err(|error| Error::codec("the saver's serializer failed").with_source(error))
    }
}

impl CheckpointReader for Reader {
    fn summarize(&self, checkpoint: &TypedBytes) -> Result<ChannelSummary> {
        Self::attached(|py| {
            let checkpoint = self.serde.read_whole(py, checkpoint)?;
            let (mut versioned, mut values) = (Vec::new(), Vec::new());
            for_each_entry(&checkpoint.get_item(intern!(py, "channel_versions"))?, |channel, _| {
                versioned.push(to_str(&channel, "the name of a channel")?);
                Ok(())
            })?;
            for_each_entry(&checkpoint.get_item(intern!(py, "channel_values"))?, |channel, value| {
                values.push((to_str(&channel, "the name of a channel")?, is_delta_snapshot(&value)?));
                Ok(())
            })?;
            Ok(ChannelSummary::new(versioned, values))
        })
    }

    fn values(&self, checkpoint: &TypedBytes, channels: &[&str]) -> Result<Vec<Option<ChannelValue>>> {
        Self::attached(|py| {
            let checkpoint = self.serde.read_whole(py, checkpoint)?;
            let values = checkpoint.get_item(intern!(py, "channel_values"))?;
            let value = |channel: &&str| {
                if !values.contains(channel)? {
                    return Ok(None);
                }
                self.serde.blob(&values.get_item(channel)?).map(Some)
            };
            channels.iter().map(value).collect()
        })
    }
}

/// Creates a saver on the file at a path. `reader`, if given, decodes its checkpoints.
#[pyfunction]
#[pyo3(signature = (path, *, reader, cipher, options))]
fn sqlite_saver(
    py: Python<'_>,
    path: PathBuf,
    reader: Option<&Bound<'_, PyAny>>,
    cipher: Option<&Bound<'_, PyCipher>>,
    options: &Bound<'_, PyDict>,
) -> PyResult<NativeSaver> {
    let mut builder = SqliteSaver::builder(path).opaque_values(true);
    if let Some(serde) = reader {
        builder = builder.checkpoint_reader(Arc::new(Reader { serde: Serde::new(serde) }));
    }
    if let Some(cipher) = cipher {
        builder = builder.cipher(cipher.get().get());
    }
    let options = Options(options);
    if let Some(timeout) = options.seconds("busy_timeout")? {
        builder = builder.busy_timeout(timeout);
    }
    match options.text("synchronous")?.as_deref() {
        None => {}
        Some("full") => builder = builder.synchronous(Synchronous::Full),
        Some("normal") => builder = builder.synchronous(Synchronous::Normal),
        Some(_) => return Err(PyValueError::new_err("synchronous must be \"full\" or \"normal\"")),
    }
    if let Some(readers) = options.number("readers")? {
        builder = builder.readers(readers);
    }
    if let Some(read_only) = options.flag("read_only")? {
        builder = builder.read_only(read_only);
    }
    if let Some(count) = options.number("keep_last")? {
        builder = builder.keep_last(count);
    }
    let backend = Backend::new(builder.build().or_raise(py)?);
    Ok(NativeSaver::new(py, backend.sets_up_itself()))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(sqlite_saver, module)?)
}
