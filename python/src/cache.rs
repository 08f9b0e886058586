//! The native class of every cache of results.

use checkpoint_core::{Bytes, Result, TypedBytes, async_trait};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::call::Call;
use crate::opened::Opened;

/// How many expired entries a `set` removes at most.
pub(crate) const SWEPT: i64 = 100;

/// What a value is stored under.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) namespace: Vec<String>,
    pub(crate) key: String,
}

/// A value to store.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    /// In seconds.
    pub(crate) ttl: Option<f64>,
    pub(crate) value: TypedBytes,
}

/// A cache in a database.
#[async_trait]
pub(crate) trait Cache: Send + Sync + 'static {
    /// Creates what it stores in.
    async fn setup(&self) -> Result<()>;
    /// Reads the values of keys, in their order.
    async fn get(&self, keys: Vec<Key>) -> Result<Vec<Option<TypedBytes>>>;
    /// Stores values atomically.
    async fn set(&self, entries: Vec<Entry>) -> Result<()>;
    /// Deletes the values of some namespaces, or all.
    async fn clear(&self, namespaces: Option<Vec<Vec<String>>>) -> Result<()>;
    /// Closes its connections.
    async fn close(&self) -> Result<()>;
}

/// The native part of a cache. Its methods return calls, to be run with `wait()` or `await`.
#[pyclass(frozen, name = "Cache", module = "langgraph_ckpt._native")]
pub(crate) struct NativeCache {
    opened: Opened<Box<dyn Cache>>,
}

impl NativeCache {
    pub(crate) fn new(py: Python<'_>, cache: impl Cache) -> Self {
        let cache: Box<dyn Cache> = Box::new(cache);
        Self { opened: Opened::new(py, "cache", false, cache, |cache| cache.close()) }
    }
}

#[pymethods]
impl NativeCache {
    fn get(&self, keys: &Bound<'_, PyAny>) -> PyResult<Call> {
        let keys: Vec<_> = keys.try_iter()?.map(|key| to_key(&key?)).collect::<PyResult<_>>()?;
        Ok(self.opened.call(|cache| async move { cache.get(keys).await }, from_values))
    }

    fn set(&self, entries: &Bound<'_, PyAny>) -> PyResult<Call> {
        let entries: Vec<_> = entries.try_iter()?.map(|entry| to_entry(&entry?)).collect::<PyResult<_>>()?;
        Ok(self.opened.call(|cache| async move { cache.set(entries).await }, |py, ()| Ok(py.None())))
    }

    #[pyo3(signature = (namespaces))]
    fn clear(&self, namespaces: Option<&Bound<'_, PyAny>>) -> PyResult<Call> {
        let namespaces = namespaces
            .map(|namespaces| {
                namespaces.try_iter()?.map(|one| to_namespace(&one?)).collect::<PyResult<Vec<_>>>()
            })
            .transpose()?;
        Ok(self.opened.call(|cache| async move { cache.clear(namespaces).await }, |py, ()| Ok(py.None())))
    }

    fn setup(&self) -> Call {
        self.opened.call(|cache| async move { cache.setup().await }, |py, ()| Ok(py.None()))
    }

    /// Whether there is nothing to close.
    #[getter]
    fn closed(&self) -> bool {
        self.opened.is_closed()
    }

    fn close(&self) -> Call {
        self.opened.close()
    }
}

fn to_namespace(namespace: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    namespace.extract().map_err(|_| PyTypeError::new_err("a namespace of a cache must be a tuple of str"))
}

fn to_key(key: &Bound<'_, PyAny>) -> PyResult<Key> {
    let (namespace, key): (Bound<'_, PyAny>, Bound<'_, PyAny>) = key.extract()?;
    let namespace = to_namespace(&namespace)?;
    let key = key.extract().map_err(|_| PyTypeError::new_err("a key of a cache must be str"))?;
    Ok(Key { namespace, key })
}

fn to_entry(entry: &Bound<'_, PyAny>) -> PyResult<Entry> {
    type Parts<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, String, PyBackedBytes);
    let (namespace, key, ttl, tag, data): Parts<'_> = entry.extract()?;
    let key = to_key(PyTuple::new(entry.py(), [namespace, key])?.as_any())?;
    let ttl: Option<f64> = ttl
        .extract()
        .map_err(|_| PyTypeError::new_err("a TTL of a cache must be a number of seconds, or None"))?;
    if ttl.is_some_and(|ttl| !ttl.is_finite()) {
        return Err(PyValueError::new_err("a TTL of a cache must be finite; None never expires"));
    }
    Ok(Entry { key, ttl, value: TypedBytes::new(tag, Bytes::copy_from_slice(&data)) })
}

fn from_values(py: Python<'_>, values: Vec<Option<TypedBytes>>) -> PyResult<Py<PyAny>> {
    let values = values.into_iter().map(|value| {
        value.map(|value| (value.tag.into_owned(), PyBytes::new(py, &value.data))).into_pyobject(py)
    });
    Ok(PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)?.into_any().unbind())
}

/// A stored value.
pub(crate) fn typed(tag: &str, data: &[u8]) -> TypedBytes {
    TypedBytes::new(tag.to_owned(), Bytes::copy_from_slice(data))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NativeCache>()
}
