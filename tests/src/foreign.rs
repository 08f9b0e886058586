//! A serializer other than LangGraph's, whose values no saver can decode.

use checkpoint_core::delta::{ChannelSummary, CheckpointReader};
use checkpoint_core::{ChannelValue, Checkpoint, Error, Result, Str, TypedBytes};
use serde_json::{Map, Value, json};

/// Its type tag may be any, even that of another format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Foreign {
    pub(crate) tag: &'static str,
}

/// The key in a snapshot of a delta channel.
const SNAPSHOT: &str = "snapshot of";

/// Scrambles JSON into bytes that are neither text nor MessagePack, and back.
fn scramble(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| byte ^ 0xa5).collect()
}

impl Foreign {
    fn bytes(self, value: &Value) -> TypedBytes {
        TypedBytes::new(self.tag, scramble(value.to_string().as_bytes()))
    }

    /// A value of a channel or of a write.
    pub(crate) fn value(self, number: i64) -> ChannelValue {
        self.bytes(&json!({ "number": number })).into()
    }

    /// A snapshot of a delta channel, which only this serializer recognizes.
    pub(crate) fn snapshot(self, number: i64) -> ChannelValue {
        self.bytes(&json!({ SNAPSHOT: number })).into()
    }

    /// Whether a value is one that [`snapshot`](Self::snapshot) made.
    pub(crate) fn is_snapshot(self, value: &ChannelValue) -> bool {
        let parsed = value.as_blob().and_then(|blob| self.loads(blob).ok());
        parsed.is_some_and(|value| value.get(SNAPSHOT).is_some())
    }

    /// A whole checkpoint whose values are all this serializer's.
    pub(crate) fn dumps(self, checkpoint: &Checkpoint) -> TypedBytes {
        let value = |value: &ChannelValue| json!({ "snapshot": self.is_snapshot(value), "bytes": value.as_blob().map(|blob| blob.data.to_vec()) });
        let values: Map<_, _> =
            checkpoint.channel_values.iter().map(|(channel, of)| (channel.to_string(), value(of))).collect();
        let versioned: Vec<_> = checkpoint.channel_versions.keys().map(ToString::to_string).collect();
        self.bytes(&json!({ "versioned": versioned, "values": values }))
    }

    fn loads(self, checkpoint: &TypedBytes) -> Result<Value> {
        let parsed = serde_json::from_slice(&scramble(&checkpoint.data)).ok();
        parsed
            .filter(|_| checkpoint.tag == self.tag)
            .ok_or_else(|| Error::codec("another serializer's checkpoint"))
    }

    fn channel_value(self, value: &Value) -> Option<ChannelValue> {
        let bytes: Vec<u8> = serde_json::from_value(value.get("bytes")?.clone()).ok()?;
        Some(TypedBytes::new(self.tag, bytes).into())
    }
}

impl CheckpointReader for Foreign {
    fn summarize(&self, checkpoint: &TypedBytes) -> Result<ChannelSummary> {
        let document = self.loads(checkpoint)?;
        let versioned = document["versioned"].as_array().into_iter().flatten();
        let values = document["values"].as_object().into_iter().flatten();
        Ok(ChannelSummary::new(
            versioned.filter_map(Value::as_str).map(Str::from),
            values.map(|(channel, value)| (Str::from(channel.as_str()), value["snapshot"] == true)),
        ))
    }

    fn values(&self, checkpoint: &TypedBytes, channels: &[&str]) -> Result<Vec<Option<ChannelValue>>> {
        let document = self.loads(checkpoint)?;
        let value =
            |channel: &&str| document["values"].get(*channel).and_then(|value| self.channel_value(value));
        Ok(channels.iter().map(value).collect())
    }
}
