//! Converts plain data from and to Python: JSON values, ids, versions.

use checkpoint_core::{ChannelVersion, ChannelVersions, CheckpointMetadata, Filter, Str, Value};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyMapping, PyString, PyTuple};

/// Deeper than any JSON that a database accepts; stops at values that contain themselves.
const DEEPEST: usize = 500;

/// Converts a value of JSON's types: `None`, booleans, 64-bit integers, floats, texts, lists, tuples, maps.
pub(crate) fn to_value(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    value_within(object, 0)
}

fn value_within(object: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    if depth > DEEPEST {
        return Err(PyValueError::new_err("the value is nested too deeply, or contains itself"));
    }
    if object.is_none() {
        return Ok(Value::Nil);
    }
    if let Ok(text) = object.cast::<PyString>() {
        return Ok(Value::Str(text_of(text)?));
    }
    if let Ok(flag) = object.cast::<PyBool>() {
        return Ok(Value::Bool(flag.is_true()));
    }
    if object.is_instance_of::<PyInt>() {
        return integer(object);
    }
    if let Ok(number) = object.cast::<PyFloat>() {
        return Ok(Value::Float(number.value()));
    }
    if let Ok(map) = object.cast::<PyDict>() {
        let mut entries = Vec::with_capacity(map.len());
        for (key, value) in map {
            entries.push((key_of(&key)?, value_within(&value, depth + 1)?));
        }
        return Ok(Value::Map(entries));
    }
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        let items = object.try_iter()?.map(|item| value_within(&item?, depth + 1));
        return Ok(Value::Array(items.collect::<PyResult<_>>()?));
    }
    Err(PyTypeError::new_err(format!("Object of type {} is not JSON serializable", type_name(object))))
}

fn integer(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    if let Ok(number) = object.extract::<i64>() {
        return Ok(Value::Int(number));
    }
    object
        .extract::<u64>()
        .map(Value::UInt)
        .map_err(|_| PyValueError::new_err("an integer has more than 64 bits"))
}

/// A key as Python's `json` formats it.
fn key_of(key: &Bound<'_, PyAny>) -> PyResult<Value> {
    if let Ok(text) = key.cast::<PyString>() {
        return Ok(Value::Str(text_of(text)?));
    }
    if key.is_none() {
        return Ok("null".into());
    }
    if let Ok(flag) = key.cast::<PyBool>() {
        return Ok(if flag.is_true() { "true" } else { "false" }.into());
    }
    if key.is_instance_of::<PyInt>() || key.is_instance_of::<PyFloat>() {
        return Ok(Value::Str(key.str()?.to_cow()?.into_owned()));
    }
    Err(PyTypeError::new_err(format!("keys must be str, int, float, bool or None, not {}", type_name(key))))
}

/// The text without lone surrogates, which no database can store; Python's SQLite saver removes them as well.
fn text_of(text: &Bound<'_, PyString>) -> PyResult<String> {
    if let Ok(text) = text.to_cow() {
        return Ok(text.into_owned());
    }
    let bytes = text.call_method1("encode", ("utf-8", "ignore"))?;
    Ok(String::from_utf8_lossy(bytes.cast::<PyBytes>()?.as_bytes()).into_owned())
}

/// The name of an object's class, for messages.
pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string())
}

/// Converts a value to a Python object.
pub(crate) fn from_value<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Nil => py.None().into_bound(py),
        Value::Bool(flag) => PyBool::new(py, *flag).to_owned().into_any(),
        Value::Int(number) => number.into_pyobject(py)?.into_any(),
        Value::UInt(number) => number.into_pyobject(py)?.into_any(),
        Value::Float(number) => PyFloat::new(py, *number).into_any(),
        Value::Str(text) => PyString::new(py, text).into_any(),
        Value::Bin(bytes) | Value::Ext(_, bytes) => PyBytes::new(py, bytes).into_any(),
        Value::Array(items) => {
            let list = PyList::empty(py);
            for item in items {
                list.append(from_value(py, item)?)?;
            }
            list.into_any()
        }
        Value::Map(entries) => {
            let map = PyDict::new(py);
            for (key, value) in entries {
                map.set_item(from_value(py, key)?, from_value(py, value)?)?;
            }
            map.into_any()
        }
    })
}

/// A text that is cheap to clone.
pub(crate) fn to_str(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Str> {
    let text = object
        .cast::<PyString>()
        .map_err(|_| PyTypeError::new_err(format!("{what} must be str, not {}", type_name(object))))?;
    Ok(Str::from(&*text.to_cow()?))
}

/// The texts of any iterable but a text.
pub(crate) fn to_strings(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<String>> {
    if object.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(format!("{what} must be a sequence of str, not a str")));
    }
    object.try_iter()?.map(|item| Ok(item?.str()?.to_cow()?.into_owned())).collect()
}

/// Calls a function with each entry of any mapping.
pub(crate) fn for_each_entry<'py>(
    map: &Bound<'py, PyAny>,
    mut entry: impl FnMut(Bound<'py, PyAny>, Bound<'py, PyAny>) -> PyResult<()>,
) -> PyResult<()> {
    if let Ok(map) = map.cast::<PyDict>() {
        // Collected first: the function may call Python code that changes the map.
        for item in map.items() {
            let (key, value) = item.extract()?;
            entry(key, value)?;
        }
        return Ok(());
    }
    for item in map.cast::<PyMapping>()?.items()? {
        let (key, value) = item.extract()?;
        entry(key, value)?;
    }
    Ok(())
}

/// The versions of channels.
pub(crate) fn to_versions(map: &Bound<'_, PyAny>) -> PyResult<ChannelVersions> {
    let mut versions = ChannelVersions::new();
    for_each_entry(map, |channel, version| {
        versions.insert(to_str(&channel, "the name of a channel")?, to_version(&version)?);
        Ok(())
    })?;
    Ok(versions)
}

pub(crate) fn to_version(version: &Bound<'_, PyAny>) -> PyResult<ChannelVersion> {
    if let Ok(text) = version.cast::<PyString>() {
        return Ok(ChannelVersion::Str(Str::from(&*text.to_cow()?)));
    }
    if version.is_instance_of::<PyFloat>() {
        return Ok(ChannelVersion::Float(version.extract()?));
    }
    version.extract().map(ChannelVersion::Int).map_err(|_| {
        PyTypeError::new_err(format!(
            "a channel's version must be str, int or float, not {}",
            type_name(version)
        ))
    })
}

pub(crate) fn from_versions<'py>(
    py: Python<'py>,
    versions: &ChannelVersions,
) -> PyResult<Bound<'py, PyDict>> {
    let map = PyDict::new(py);
    for (channel, version) in versions {
        map.set_item(&**channel, from_version(py, version)?)?;
    }
    Ok(map)
}

pub(crate) fn from_version<'py>(py: Python<'py>, version: &ChannelVersion) -> PyResult<Bound<'py, PyAny>> {
    Ok(match version {
        ChannelVersion::Int(number) => number.into_pyobject(py)?.into_any(),
        ChannelVersion::Float(number) => PyFloat::new(py, *number).into_any(),
        ChannelVersion::Str(text) => PyString::new(py, text).into_any(),
    })
}

/// The metadata of a checkpoint.
pub(crate) fn to_metadata(map: &Bound<'_, PyAny>) -> PyResult<CheckpointMetadata> {
    let mut metadata = CheckpointMetadata::default();
    for_each_entry(map, |key, value| {
        metadata.insert(to_str(&key, "a key of the metadata")?, to_value(&value)?);
        Ok(())
    })?;
    Ok(metadata)
}

pub(crate) fn from_metadata<'py>(
    py: Python<'py>,
    metadata: &CheckpointMetadata,
) -> PyResult<Bound<'py, PyDict>> {
    let map = PyDict::new(py);
    for (key, value) in metadata.iter() {
        map.set_item(&**key, from_value(py, value)?)?;
    }
    Ok(map)
}

/// Conditions on metadata.
pub(crate) fn to_filter(map: &Bound<'_, PyAny>) -> PyResult<Filter> {
    let mut filter = Filter::new();
    for_each_entry(map, |key, value| {
        filter = std::mem::take(&mut filter).eq(to_str(&key, "a key of the filter")?, to_value(&value)?);
        Ok(())
    })?;
    Ok(filter)
}
