//! Splits a checkpoint into its document and the values that are stored once per version.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::segments::{Addresses, Segment, SegmentCodec, SplitValue};
use super::{AssociatedData, ValueCodec};
use crate::delta::is_snapshot;
use crate::{
    ChannelValue, ChannelVersion, ChannelVersions, Checkpoint, CheckpointConfig, Error, PutOptions, Result,
    Str, TypedBytes,
};

/// How a backend stores channel values.
pub trait SplitRules {
    /// Whether the document returns this value unchanged. Not called with a cipher: encrypted values are never inline.
    fn is_inline(&self, value: &ChannelValue) -> bool;

    /// The version as it is part of a value's key.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a version that the database cannot store.
    fn version_key(&self, version: &ChannelVersion) -> Result<String>;

    /// Checks a channel or type tag that is stored in a row. `what` is `channel` or `type`.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a name that the database cannot store.
    fn check_name(&self, what: &'static str, name: &str) -> Result<()>;

    /// Whether scalars that are not inline are carried over like other values. The backend then has to find out whether
    /// the value is stored: an older checkpoint may have it inline under the same version.
    fn carries_scalars(&self) -> bool {
        false
    }

    /// Splits long values into segments, if the backend stores them so. It has the cipher of the checkpoint's
    /// [`ValueCodec`].
    fn segments(&self) -> Option<&SegmentCodec> {
        None
    }
}

/// A value that is stored separately, under its channel and version.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BlobRow {
    /// The channel.
    pub channel: Str,
    /// The version, see [`SplitRules::version_key`].
    pub version: String,
    /// The value, or the manifest of one that was split, encrypted where there is a cipher.
    pub value: TypedBytes,
    /// The addresses of the segments of a value that was split, to be stored beside it.
    pub addresses: Addresses,
    /// These segments. A backend leaves out those that the thread has.
    pub segments: Vec<Segment>,
}

/// What the document holds for a channel.
#[derive(Debug, Clone, PartialEq)]
pub enum Inline<'a> {
    /// The value itself.
    Value(Cow<'a, ChannelValue>),
    /// A marker: the value, which is stored separately, is the snapshot of a delta channel.
    DeltaSnapshot,
}

/// The channel values of one `put`, checked and encrypted.
#[derive(Debug)]
#[non_exhaustive]
pub struct SplitCheckpoint<'a> {
    /// What the document holds, in the order of the checkpoint's channels.
    pub inline: Vec<(&'a str, Inline<'a>)>,
    /// The values to store, ordered by channel and version. Concurrent calls lock their rows in this order.
    pub blobs: Vec<BlobRow>,
    /// The versions of values that are already stored, by the parent.
    pub carried_over: BTreeMap<&'a str, &'a ChannelVersion>,
}

impl<'a> SplitCheckpoint<'a> {
    /// Splits a checkpoint.
    ///
    /// Values that are not inline are stored if their channel is in `new_versions`, else carried over. A scalar that is
    /// not inline is always stored, unless [`SplitRules::carries_scalars`]: an older checkpoint may have it inline under the
    /// same version.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a channel without a version; any error from the rules;
    /// [`Conflict`](crate::ErrorKind::Conflict) for a channel that is both unchanged and new; else as
    /// [`ChannelValue::from_typed`], [`ChannelValue::to_typed`] and [`ValueCodec::seal`]. The error for a value names its
    /// channel.
    pub fn new(
        codec: &ValueCodec,
        rules: &impl SplitRules,
        config: &CheckpointConfig,
        checkpoint: &'a Checkpoint,
        new_versions: &ChannelVersions,
        options: &'a PutOptions,
    ) -> Result<Self> {
        checkpoint.require_channels()?;
        let is_marked = |channel: &str, value: &ChannelValue| {
            if codec.opaque_values { options.is_delta_snapshot(channel) } else { is_snapshot(value) }
        };
        let mut split = Self { inline: Vec::new(), blobs: Vec::new(), carried_over: BTreeMap::new() };
        for (channel, value) in &checkpoint.channel_values {
            let mut add = || {
                let value = codec.normalize(value)?;
                if codec.cipher.is_none() && !is_marked(channel, &value) && rules.is_inline(&value) {
                    split.inline.push((channel, Inline::Value(value)));
                    return Ok(());
                }
                if is_marked(channel, &value) {
                    split.inline.push((channel, Inline::DeltaSnapshot));
                }
                let version = checkpoint.channel_versions.get(channel).ok_or_else(|| {
                    Error::invalid_argument(
                        "a channel has a value but no version; add it to channel_versions",
                    )
                })?;
                rules.check_name("channel", channel)?;
                let is_carried = value.as_blob().is_some() || rules.carries_scalars();
                if is_carried && !new_versions.contains_key(channel) {
                    split.carried_over.insert(channel, version);
                    return Ok(());
                }
                let version = rules.version_key(version)?;
                let data = AssociatedData::Blob {
                    thread_id: config.thread_id(),
                    checkpoint_ns: config.checkpoint_ns(),
                    channel,
                    version: &version,
                };
                let typed = value.to_typed()?;
                let (value, addresses, segments) = match rules.segments() {
                    None => (codec.seal(typed, &data)?, Addresses::default(), Vec::new()),
                    Some(codec) => {
                        let SplitValue { value, addresses, segments } = codec.split(typed, &data)?;
                        (value, addresses, segments)
                    }
                };
                rules.check_name("type", &value.tag)?;
                split.blobs.push(BlobRow { channel: channel.clone(), version, value, addresses, segments });
                Ok(())
            };
            add().map_err(|error: Error| error.with_missing("channel", channel))?;
        }
        for channel in &options.unchanged {
            let version = checkpoint.unchanged_version(channel)?;
            if new_versions.contains_key(channel) {
                return Err(Checkpoint::gone(channel));
            }
            if codec.opaque_values && options.is_delta_snapshot(channel) {
                split.inline.push((channel, Inline::DeltaSnapshot));
            }
            split.carried_over.insert(channel, version);
        }
        split.blobs.sort_unstable_by(|a, b| (&a.channel, &a.version).cmp(&(&b.channel, &b.version)));
        Ok(split)
    }

    /// The approximate size of the values that are stored separately, in bytes.
    pub fn bytes(&self) -> usize {
        let size = |blob: &BlobRow| {
            let segments: usize = blob.segments.iter().map(Segment::len).sum();
            blob.channel.len() + blob.value.data.len() + blob.addresses.as_bytes().len() + segments
        };
        self.blobs.iter().map(size).sum()
    }
}
