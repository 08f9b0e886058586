//! Metadata of checkpoints.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::serde::{Value, json};
use crate::{CheckpointConfig, Error, Result, Str};

/// Keys of the config that LangGraph never copies into a checkpoint's metadata.
const EXCLUDED_KEYS: [&str; 9] = [
    "thread_id",
    "checkpoint_id",
    "checkpoint_ns",
    "checkpoint_map",
    "langgraph_step",
    "langgraph_node",
    "langgraph_triggers",
    "langgraph_path",
    "langgraph_checkpoint_ns",
];

/// The metadata of a checkpoint: an ordered map with typed accessors. Unknown keys are preserved.
///
/// Filters compare metadata. It is stored unencrypted, even with a cipher.
///
/// ```
/// use checkpoint_core::CheckpointMetadata;
/// let metadata = CheckpointMetadata::new("loop", 3).with("tenant", "acme");
/// assert_eq!((metadata.source(), metadata.step()), (Some("loop"), Some(3)));
/// assert_eq!(metadata.get("tenant").and_then(|tenant| tenant.as_str()), Some("acme"));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CheckpointMetadata(IndexMap<Str, Value>);

impl CheckpointMetadata {
    /// Creates metadata with `source` (`input`, `loop`, `update` or `fork`), `step` and empty `parents`, as LangGraph
    /// does.
    pub fn new(source: &str, step: i64) -> Self {
        Self::default().with("source", source).with("step", step).with("parents", Value::Map(Vec::new()))
    }

    /// Creates metadata from the entries of a map whose keys are text.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) when a key is not text.
    pub fn from_entries(entries: &[(Value, Value)]) -> Result<Self> {
        let entry = |(key, value): &(Value, Value)| match key {
            Value::Str(key) => Ok((Str::from(key.as_str()), value.clone())),
            _ => Err(Error::invalid_argument("a metadata key must be text")),
        };
        entries.iter().map(entry).collect::<Result<_>>().map(Self)
    }

    /// Parses the JSON object that Python or [`to_json`](Self::to_json) wrote.
    ///
    /// # Errors
    /// [`ErrorKind::Codec`](crate::ErrorKind::Codec) for text that is no JSON object.
    pub fn from_json(text: &[u8]) -> Result<Self> {
        match json::parse(text)? {
            Value::Map(entries) => Self::from_entries(&entries),
            _ => Err(Error::codec("the stored metadata is no JSON object")),
        }
    }

    /// Formats a JSON object as Python does for SQLite, with the keys in their order.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for values that JSON lacks, such as bytes.
    pub fn to_json(&self) -> Result<String> {
        json::object_to_string(self.0.iter().map(|(key, value)| (&**key, value)), json::Style::Plain)
    }

    /// Adds or replaces an entry.
    #[must_use]
    pub fn with(mut self, key: impl Into<Str>, value: impl Into<Value>) -> Self {
        self.insert(key, value);
        self
    }

    /// Adds or replaces an entry.
    pub fn insert(&mut self, key: impl Into<Str>, value: impl Into<Value>) {
        self.0.insert(key.into(), value.into());
    }

    /// Removes an entry, keeping the order of the others.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        self.0.shift_remove(key)
    }

    /// Reads an entry.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// The entries in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Str, &Value)> {
        self.0.iter()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How the checkpoint was created: `input`, `loop`, `update` or `fork`.
    pub fn source(&self) -> Option<&str> {
        self.get("source")?.as_str()
    }

    /// The number of the step: -1 for the first input, 0 for the first state after it.
    pub fn step(&self) -> Option<i64> {
        self.get("step")?.as_i64()
    }

    /// The run that created the checkpoint, if the caller set one.
    pub fn run_id(&self) -> Option<&str> {
        self.get("run_id")?.as_str()
    }

    /// The checkpoint of an enclosing namespace that this one belongs to.
    pub fn parent_in(&self, checkpoint_ns: &str) -> Option<&str> {
        self.get("parents")?.get(checkpoint_ns)?.as_str()
    }

    /// The delta channels with updates since their last snapshot; their values depend on ancestors of this checkpoint.
    pub fn delta_channels(&self) -> impl Iterator<Item = &str> {
        let counters = match self.get("counters_since_delta_snapshot") {
            Some(Value::Map(entries)) => entries.as_slice(),
            _ => &[],
        };
        counters.iter().filter_map(|(channel, _)| channel.as_str())
    }

    /// Whether a key is set by LangGraph or by a saver, so that a caller cannot choose its value.
    pub(crate) fn is_reserved(key: &str) -> bool {
        const SET_BY_SAVERS: [&str; 5] =
            ["source", "step", "parents", "step_key", "counters_since_delta_snapshot"];
        key.is_empty()
            || key.starts_with("__")
            || SET_BY_SAVERS.contains(&key)
            || EXCLUDED_KEYS.contains(&key)
    }

    /// The metadata that `put` stores, as LangGraph's `get_checkpoint_metadata`: this metadata, then the scalars of the
    /// config's metadata and configurable that have no entry yet, except reserved keys. U+0000 is removed from top-level
    /// texts.
    #[must_use]
    pub fn merged(&self, config: &CheckpointConfig) -> Self {
        let mut out = self.clone();
        for value in out.0.values_mut() {
            strip_nul(value);
        }
        for (key, value) in config.run_metadata().iter().chain(config.configurable().iter()) {
            let scalar = matches!(
                value,
                Value::Str(_) | Value::Int(_) | Value::UInt(_) | Value::Bool(_) | Value::Float(_)
            );
            if !scalar || key.starts_with("__") || EXCLUDED_KEYS.contains(&&**key) || out.0.contains_key(key)
            {
                continue;
            }
            let mut value = value.clone();
            strip_nul(&mut value);
            out.0.insert(key.clone(), value);
        }
        out
    }
}

fn strip_nul(value: &mut Value) {
    if let Value::Str(text) = value
        && text.contains('\0')
    {
        *text = text.replace('\0', "");
    }
}

impl FromIterator<(Str, Value)> for CheckpointMetadata {
    fn from_iter<I: IntoIterator<Item = (Str, Value)>>(entries: I) -> Self {
        Self(entries.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_scalars_of_the_config_as_python_does() {
        let config = CheckpointConfig::new("t")
            .with_metadata("run_id", "r\0un")
            .with_metadata("source", "not this one")
            .with_metadata("list", Value::Array(vec![]))
            .with_metadata("nothing", Value::Nil)
            .with_configurable("user", 7_i64)
            .with_configurable("run_id", "second")
            .with_configurable("__pregel_x", "hidden")
            .with_configurable("checkpoint_map", "hidden");
        let nested = Value::Map(vec![("k".into(), "x\0".into())]);
        let merged = CheckpointMetadata::new("lo\0op", 1).with("writes", nested.clone()).merged(&config);
        let keys: Vec<_> = merged.iter().map(|(key, _)| &**key).collect();
        assert_eq!(keys, ["source", "step", "parents", "writes", "run_id", "user"]);
        assert_eq!((merged.source(), merged.run_id()), (Some("loop"), Some("run")));
        assert_eq!(merged.get("writes"), Some(&nested), "nested U+0000 stays");
    }
}
