//! Converts checkpoints and pending writes from and to Python. Values are passed as the bytes of LangGraph's serializer.

use checkpoint_core::{
    Bytes, ChannelValue, ChannelVersions, Checkpoint, CheckpointLayout, CheckpointTuple, InlineScalars,
    PendingWrite, PutOptions, SaverCapabilities, Str, TypedBytes, opaque,
};
use pyo3::exceptions::{PyNotImplementedError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PySequence, PyString, PyTuple};

use crate::config::from_config;
use crate::convert::{
    for_each_entry, from_metadata, from_value, from_versions, to_str, to_value, to_versions, type_name,
};
use crate::error::OrRaise;

/// The channel of sends that old checkpoints stored on their parent.
const TASKS: &str = "__pregel_tasks";

/// Integers with fewer digits fit 64 bits.
const LONG: usize = 19;

static CHECKPOINT_TUPLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static DELTA_SNAPSHOT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Which values of a backend that stores channel by channel are scalars. All others are the serializer's.
struct Scalars {
    inline: InlineScalars,
    /// An object of a subclass (an enum that is a text) is a scalar too and comes back as the plain one, as in
    /// LangGraph's savers for databases. In memory nothing is converted, so that objects keep their class.
    subclasses: bool,
}

/// The saver's serializer.
pub(crate) struct Serde {
    object: Py<PyAny>,
}

impl Serde {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> Self {
        Self { object: object.clone().unbind() }
    }

    fn dumps(&self, value: &Bound<'_, PyAny>) -> PyResult<TypedBytes> {
        let py = value.py();
        let typed = self.object.bind(py).call_method1(intern!(py, "dumps_typed"), (value,))?;
        let (tag, data): (Bound<'_, PyAny>, Bound<'_, PyAny>) = typed.extract()?;
        let tag = tag.cast::<PyString>()?.to_cow()?.into_owned();
        Ok(TypedBytes::new(tag, bytes_of(&data)?))
    }

    fn loads<'py>(&self, py: Python<'py>, typed: &TypedBytes) -> PyResult<Bound<'py, PyAny>> {
        let tag = match &*typed.tag {
            "msgpack" => intern!(py, "msgpack").clone(),
            tag => PyString::new(py, tag),
        };
        let pair = (tag, PyBytes::new(py, &typed.data));
        let loaded = self.object.bind(py).call_method1(intern!(py, "loads_typed"), (pair,));
        loaded.map_err(|error| if typed.is_sealed() { without_key(py, &typed.tag, error) } else { error })
    }

    /// Decodes a checkpoint that is stored as one value.
    pub(crate) fn read_whole<'py>(&self, py: Python<'py>, typed: &TypedBytes) -> PyResult<Bound<'py, PyAny>> {
        self.loads(py, typed)
    }

    /// Encodes any value with the serializer.
    pub(crate) fn blob(&self, value: &Bound<'_, PyAny>) -> PyResult<ChannelValue> {
        self.dumps(value).map(ChannelValue::Blob)
    }
}

/// The exception for an encrypted value: a serializer without encryption only reports an unknown type.
fn without_key(py: Python<'_>, tag: &str, error: PyErr) -> PyErr {
    if !error.is_instance_of::<PyNotImplementedError>(py) {
        return error;
    }
    let refused = PyValueError::new_err(format!(
        "the value is encrypted ({tag}); give the saver a cipher with its key, or LangGraph's EncryptedSerializer as serde"
    ));
    refused.set_cause(py, Some(error));
    refused
}

fn bytes_of(data: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    if let Ok(bytes) = data.cast::<PyBytes>() {
        return Ok(Bytes::copy_from_slice(bytes.as_bytes()));
    }
    let bytes = data.py().get_type::<PyBytes>().call1((data,))?;
    Ok(Bytes::copy_from_slice(bytes.cast::<PyBytes>()?.as_bytes()))
}

/// Whether a value is a delta channel's snapshot.
pub(crate) fn is_delta_snapshot(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let class = DELTA_SNAPSHOT.import(value.py(), "langgraph.checkpoint.serde.types", "_DeltaSnapshot")?;
    value.is_instance(class)
}

/// The value as a scalar, if it is one.
fn scalar(value: &Bound<'_, PyAny>, subclasses: bool) -> PyResult<Option<ChannelValue>> {
    if value.is_none() {
        return Ok(Some(ChannelValue::Null));
    }
    if let Ok(text) = value.cast::<PyString>() {
        let plain = subclasses || text.is_exact_instance_of::<PyString>();
        // A text with a lone surrogate is left to the serializer, which handles it.
        return Ok(if plain {
            text.to_cow().ok().map(|text| ChannelValue::Str(Str::from(&*text)))
        } else {
            None
        });
    }
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(Some(ChannelValue::Bool(flag.is_true())));
    }
    if let Ok(number) = value.cast::<PyInt>() {
        if !subclasses && !number.is_exact_instance_of::<PyInt>() {
            return Ok(None);
        }
        if let Ok(number) = number.extract() {
            return Ok(Some(ChannelValue::Int(number)));
        }
        // The serializer does not support integers beyond 64 bits.
        let digits =
            value.py().get_type::<PyInt>().call_method1(intern!(value.py(), "__repr__"), (number,))?;
        let digits = digits.cast::<PyString>()?.to_cow()?.into_owned();
        return Ok(Some(ChannelValue::Blob(TypedBytes::new("json", digits))));
    }
    if let Ok(number) = value.cast::<PyFloat>() {
        let plain = subclasses || number.is_exact_instance_of::<PyFloat>();
        return Ok(plain.then(|| ChannelValue::Float(number.value())));
    }
    Ok(None)
}

impl Scalars {
    /// The scalar that a value is stored as, if any.
    fn scalar(&self, value: &Bound<'_, PyAny>) -> PyResult<Option<ChannelValue>> {
        let scalar = scalar(value, self.subclasses)?;
        Ok(scalar.filter(|scalar| scalar.as_blob().is_some() || self.inline.contains(scalar)))
    }
}

/// Converts a checkpoint: complete, or only what changed since its parent.
pub(crate) fn to_checkpoint(
    capabilities: SaverCapabilities,
    serde: &Serde,
    checkpoint: &Bound<'_, PyAny>,
    changed: Option<&ChannelVersions>,
) -> PyResult<(Checkpoint, PutOptions)> {
    let py = checkpoint.py();
    let id = to_str(&checkpoint.get_item(intern!(py, "id"))?, "the id of a checkpoint")?;
    let mut options = PutOptions::default();
    let CheckpointLayout::Channels { inline } = capabilities.layout else {
        return Ok((opaque::checkpoint(id, serde.dumps(checkpoint)?), options));
    };
    let scalars = Scalars { inline, subclasses: capabilities.durable };
    let mut out = Checkpoint::with_id(id);
    out.ts = Str::default();
    for_each_entry(checkpoint, |key, value| {
        let key = to_str(&key, "a key of a checkpoint")?;
        match &*key {
            "id" => {}
            "v" => out.v = value.extract()?,
            "ts" => out.ts = to_str(&value, "the time of a checkpoint")?,
            "channel_values" => {
                for_each_entry(&value, |channel, value| {
                    let channel = to_str(&channel, "the name of a channel")?;
                    if let Some(scalar) = scalars.scalar(&value)? {
                        out.channel_values.insert(channel, scalar);
                        return Ok(());
                    }
                    if is_delta_snapshot(&value)? {
                        options.delta_snapshots.push(channel.clone());
                    }
                    if changed.is_none_or(|changed| changed.contains_key(&channel)) {
                        out.channel_values.insert(channel, serde.blob(&value)?);
                    } else {
                        options.unchanged.push(channel);
                    }
                    Ok(())
                })?;
            }
            "channel_versions" => out.channel_versions = to_versions(&value)?,
            "versions_seen" => {
                for_each_entry(&value, |node, versions| {
                    out.versions_seen.insert(to_str(&node, "the name of a node")?, to_versions(&versions)?);
                    Ok(())
                })?;
            }
            // `None` is a field like any other: what is absent stays absent, and what is `None` stays `None`.
            "updated_channels" if !value.is_none() => {
                let names = value.try_iter()?.map(|name| to_str(&name?, "the name of a channel"));
                out.updated_channels = Some(names.collect::<PyResult<_>>()?);
            }
            _ => {
                out.extra.insert(key, ChannelValue::encode(&to_value(&value)?).or_raise(py)?);
            }
        }
        Ok(())
    })?;
    Ok((out, options))
}

/// Converts the writes of a task: pairs of a channel and a value, as any sequences. LangGraph's caches return lists.
pub(crate) fn to_writes(serde: &Serde, writes: &Bound<'_, PyAny>) -> PyResult<Vec<(Str, ChannelValue)>> {
    let write = |write: PyResult<Bound<'_, PyAny>>| {
        let (channel, value) = pair(&write?)?;
        Ok((to_str(&channel, "the name of a channel")?, serde.blob(&value)?))
    };
    writes.try_iter()?.map(write).collect()
}

fn pair<'py>(write: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    if let Ok(pair) = write.extract() {
        return Ok(pair);
    }
    // A text of two letters is a sequence too.
    if !write.is_instance_of::<PyString>()
        && let Ok(sequence) = write.cast::<PySequence>()
        && sequence.len()? == 2
    {
        return Ok((sequence.get_item(0)?, sequence.get_item(1)?));
    }
    let found = type_name(write);
    Err(PyTypeError::new_err(format!("a write must be a pair of channel and value, not {found}")))
}

/// Converts a value to a Python object.
pub(crate) fn from_channel_value<'py>(
    py: Python<'py>,
    serde: &Serde,
    value: &ChannelValue,
) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        ChannelValue::Null => py.None().into_bound(py),
        ChannelValue::Bool(flag) => PyBool::new(py, *flag).to_owned().into_any(),
        ChannelValue::Int(number) => number.into_pyobject(py)?.into_any(),
        ChannelValue::Float(number) => PyFloat::new(py, *number).into_any(),
        ChannelValue::Str(text) => PyString::new(py, text).into_any(),
        ChannelValue::Blob(blob) if blob.tag == "json" && is_long_integer(&blob.data) => {
            py.get_type::<PyInt>().call1((PyBytes::new(py, &blob.data),))?
        }
        ChannelValue::Blob(blob) => serde.loads(py, blob)?,
    })
}

fn is_long_integer(digits: &[u8]) -> bool {
    digits.len() >= LONG && digits.strip_prefix(b"-").unwrap_or(digits).iter().all(u8::is_ascii_digit)
}

/// Task, channel and value of a pending write.
pub(crate) fn from_write<'py>(
    py: Python<'py>,
    serde: &Serde,
    write: &PendingWrite,
) -> PyResult<Bound<'py, PyTuple>> {
    let value = from_channel_value(py, serde, &write.value)?;
    (&*write.task_id, &*write.channel, value).into_pyobject(py)
}

/// Creates LangGraph's `CheckpointTuple`.
pub(crate) fn from_tuple(py: Python<'_>, serde: &Serde, found: &CheckpointTuple) -> PyResult<Py<PyAny>> {
    let class = CHECKPOINT_TUPLE.import(py, "langgraph.checkpoint.base", "CheckpointTuple")?;
    let checkpoint = match opaque::value(&found.checkpoint) {
        Some(whole) => serde.loads(py, whole)?,
        None => from_checkpoint(py, serde, &found.checkpoint, &found.pending_sends)?.into_any(),
    };
    let writes = PyList::empty(py);
    for write in &found.pending_writes {
        writes.append(from_write(py, serde, write)?)?;
    }
    let parent = found.parent_config.as_ref().map(|parent| from_config(py, parent)).transpose()?;
    let fields =
        (from_config(py, &found.config)?, checkpoint, from_metadata(py, &found.metadata)?, parent, writes);
    class.call1(fields).map(Bound::unbind)
}

fn from_checkpoint<'py>(
    py: Python<'py>,
    serde: &Serde,
    checkpoint: &Checkpoint,
    pending_sends: &[TypedBytes],
) -> PyResult<Bound<'py, PyDict>> {
    let values = PyDict::new(py);
    for (channel, value) in &checkpoint.channel_values {
        values.set_item(&**channel, from_channel_value(py, serde, value)?)?;
    }
    if !pending_sends.is_empty() {
        let sends = pending_sends.iter().map(|send| serde.loads(py, send)).collect::<PyResult<Vec<_>>>()?;
        values.set_item(TASKS, sends)?;
    }
    let seen = PyDict::new(py);
    for (node, versions) in &checkpoint.versions_seen {
        seen.set_item(&**node, from_versions(py, versions)?)?;
    }
    let out = PyDict::new(py);
    out.set_item(intern!(py, "v"), checkpoint.v)?;
    out.set_item(intern!(py, "ts"), &*checkpoint.ts)?;
    out.set_item(intern!(py, "id"), &*checkpoint.id)?;
    out.set_item(intern!(py, "channel_values"), values)?;
    out.set_item(intern!(py, "channel_versions"), from_versions(py, &checkpoint.channel_versions)?)?;
    out.set_item(intern!(py, "versions_seen"), seen)?;
    if let Some(names) = &checkpoint.updated_channels {
        let names = PyList::new(py, names.iter().map(|name| &**name))?;
        out.set_item(intern!(py, "updated_channels"), names)?;
    }
    for (key, value) in &checkpoint.extra {
        out.set_item(&**key, from_value(py, &value.to_value().or_raise(py)?)?)?;
    }
    Ok(out)
}
