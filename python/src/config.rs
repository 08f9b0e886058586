//! LangGraph's configs: the checkpoint of a call, and the query of a list.

use checkpoint_core::{CheckpointConfig, ListQuery, SaverCapabilities, Str};
use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::convert::{to_filter, to_str, type_name};

/// A key of `config["configurable"]`.
fn configurable<'py>(config: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    config.get_item(intern!(config.py(), "configurable"))
}

fn optional<'py>(
    configurable: &Bound<'py, PyAny>,
    key: &Bound<'py, PyString>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let found = match configurable.cast::<PyDict>() {
        Ok(map) => map.get_item(key)?,
        Err(_) => Some(configurable.call_method1(intern!(key.py(), "get"), (key,))?),
    };
    Ok(found.filter(|value| !value.is_none()))
}

/// The id of a thread as text; LangGraph allows any object.
pub(crate) fn thread_id(id: &Bound<'_, PyAny>) -> PyResult<Str> {
    match id.cast::<PyString>() {
        Ok(text) => Ok(Str::from(&*text.to_cow()?)),
        Err(_) if id.is_none() => Err(PyValueError::new_err("the thread_id must not be None")),
        Err(_) => Ok(Str::from(&*id.str()?.to_cow()?)),
    }
}

fn required_thread_id(configurable: &Bound<'_, PyAny>) -> PyResult<Str> {
    // A lookup in the dict, so that it raises the same KeyError as LangGraph's own savers.
    thread_id(&configurable.get_item(intern!(configurable.py(), "thread_id"))?)
}

/// The thread, the namespace (by default the root) and optionally the checkpoint of a call.
pub(crate) fn to_config(config: &Bound<'_, PyAny>) -> PyResult<CheckpointConfig> {
    let py = config.py();
    let configurable = configurable(config)?;
    let mut out = CheckpointConfig::new(required_thread_id(&configurable)?);
    if let Some(checkpoint_ns) = optional(&configurable, intern!(py, "checkpoint_ns"))? {
        out = out.with_checkpoint_ns(to_str(&checkpoint_ns, "checkpoint_ns")?);
    }
    if let Some(checkpoint_id) = optional(&configurable, intern!(py, "checkpoint_id"))? {
        out = out.with_checkpoint_id(to_str(&checkpoint_id, "checkpoint_id")?);
    }
    Ok(out)
}

/// The same for a call that needs a checkpoint; without one it raises the exception of LangGraph's own savers.
pub(crate) fn to_config_of_checkpoint(config: &Bound<'_, PyAny>) -> PyResult<CheckpointConfig> {
    let out = to_config(config)?;
    match out.checkpoint_id() {
        Some(_) => Ok(out),
        None => Err(PyKeyError::new_err("checkpoint_id")),
    }
}

/// The config of a stored or found checkpoint.
pub(crate) fn from_config<'py>(py: Python<'py>, config: &CheckpointConfig) -> PyResult<Bound<'py, PyDict>> {
    let configurable = PyDict::new(py);
    configurable.set_item(intern!(py, "thread_id"), config.thread_id())?;
    configurable.set_item(intern!(py, "checkpoint_ns"), config.checkpoint_ns())?;
    if let Some(checkpoint_id) = config.checkpoint_id() {
        configurable.set_item(intern!(py, "checkpoint_id"), checkpoint_id)?;
    }
    let out = PyDict::new(py);
    out.set_item(intern!(py, "configurable"), configurable)?;
    Ok(out)
}

/// The query of a list.
pub(crate) fn to_query(
    capabilities: SaverCapabilities,
    config: Option<&Bound<'_, PyAny>>,
    filter: Option<&Bound<'_, PyAny>>,
    before: Option<&Bound<'_, PyAny>>,
    limit: Option<&Bound<'_, PyAny>>,
) -> PyResult<ListQuery> {
    let mut query = ListQuery::all();
    if let Some(config) = config {
        let py = config.py();
        let configurable = configurable(config)?;
        query = ListQuery::thread(required_thread_id(&configurable)?);
        // Without this key a list covers all namespaces.
        if let Some(checkpoint_ns) = optional(&configurable, intern!(py, "checkpoint_ns"))? {
            query = query.checkpoint_ns(to_str(&checkpoint_ns, "checkpoint_ns")?);
        }
        if let Some(checkpoint_id) = optional(&configurable, intern!(py, "checkpoint_id"))? {
            query = query.checkpoint_id(to_str(&checkpoint_id, "checkpoint_id")?);
        }
    }
    if let Some(filter) = filter {
        query = query.filter(to_filter(filter)?);
    }
    if let Some(limit) = limit {
        let limit: i64 = limit.extract().map_err(|_| {
            PyTypeError::new_err(format!("limit must be int or None, not {}", type_name(limit)))
        })?;
        let limit = usize::try_from(limit).map_err(|_| {
            PyValueError::new_err("limit must not be negative; leave it out to list everything")
        })?;
        query = query.limit(limit);
    }
    if let Some(before) = before {
        let id = optional(&configurable(before)?, intern!(before.py(), "checkpoint_id"))?;
        query = match id {
            Some(id) => query.before(to_str(&id, "checkpoint_id")?),
            // As in LangGraph's own savers: nothing is older than a missing checkpoint, but in memory it is ignored.
            None if !capabilities.durable => query,
            None => query.limit(0),
        };
    }
    Ok(query)
}
