//! Compares checkpoints of two databases, ignoring differences in representation.

use std::cmp::Ordering;

use checkpoint_core::delta::is_snapshot;
use checkpoint_core::{
    ChannelValue, ChannelValues, Checkpoint, CheckpointMetadata, CheckpointTuple, PendingWrite, Value, opaque,
};

/// The metadata key of old checkpoints that LangGraph's Postgres saver does not store.
const OPTIONAL_KEY: &str = "writes";

/// The approximate size of a value in bytes.
pub(super) fn size(value: &ChannelValue) -> usize {
    match value {
        ChannelValue::Blob(blob) => blob.data.len(),
        ChannelValue::Str(text) => text.len(),
        _ => 8,
    }
}

/// Whether the target's checkpoint equals the source's. A parent that only the target has was pruned in the source.
pub(super) fn same_checkpoint(source: &CheckpointTuple, target: &CheckpointTuple) -> bool {
    let parent = source.parent_checkpoint_id();
    (parent.is_none() || parent == target.parent_checkpoint_id())
        && same_content(&source.checkpoint, &target.checkpoint)
        && same_metadata(&source.metadata, &target.metadata)
}

/// Whether two writes of the same task and index are equal.
pub(super) fn same_write(source: &PendingWrite, target: &PendingWrite) -> bool {
    source.channel == target.channel && same_channel_value(&source.value, &target.value)
}

fn same_content(a: &Checkpoint, b: &Checkpoint) -> bool {
    a.v == b.v
        && a.id == b.id
        && a.ts == b.ts
        && a.channel_versions == b.channel_versions
        && a.versions_seen == b.versions_seen
        && a.updated_channels == b.updated_channels
        // Databases that store values by version return a delta channel's snapshot with every checkpoint of that version,
        // others only with the one where it was taken. The channel's value is the same.
        && same_entries_of(&a.channel_values, &b.channel_values, is_snapshot)
        && same_entries_of(&a.extra, &b.extra, |_| false)
        && opaque::value(a) == opaque::value(b)
}

/// Whether both have the same values; values that only one of them has must be `optional`.
fn same_entries_of(a: &ChannelValues, b: &ChannelValues, optional: impl Fn(&ChannelValue) -> bool) -> bool {
    let half = |a: &ChannelValues, b: &ChannelValues| {
        a.iter().all(|(name, value)| {
            b.get(name).map_or_else(|| optional(value), |other| same_channel_value(value, other))
        })
    };
    half(a, b) && half(b, a)
}

fn same_channel_value(a: &ChannelValue, b: &ChannelValue) -> bool {
    // Most values are equal bytes and need no decoding.
    a == b || matches!((a.to_value(), b.to_value()), (Ok(a), Ok(b)) if same_value(&a, &b))
}

fn same_metadata(source: &CheckpointMetadata, target: &CheckpointMetadata) -> bool {
    let entries = |metadata: &CheckpointMetadata, other: &CheckpointMetadata| {
        metadata.iter().all(|(key, value)| match other.get(key) {
            Some(other) => same_value(value, other),
            None => &**key == OPTIONAL_KEY,
        })
    };
    entries(source, target) && entries(target, source)
}

/// Equality that ignores the order of map entries and whether a number is an integer or a float: JSON columns preserve
/// neither.
fn same_value(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_value(a, b))
        }
        (Value::Map(a), Value::Map(b)) => a.len() == b.len() && same_entries(a, b),
        // JSON columns do not preserve the sign of zero.
        (Value::Float(a), Value::Float(b)) => {
            a.partial_cmp(b).map_or_else(|| a.is_nan() && b.is_nan(), Ordering::is_eq)
        }
        (Value::Float(number), Value::Int(_) | Value::UInt(_)) => is_whole(*number, b),
        (Value::Int(_) | Value::UInt(_), Value::Float(number)) => is_whole(*number, a),
        _ => a == b,
    }
}

fn same_entries(a: &[(Value, Value)], b: &[(Value, Value)]) -> bool {
    let same = |(a, b): (&(Value, Value), &(Value, Value))| same_value(&a.0, &b.0) && same_value(&a.1, &b.1);
    // Usually in the same order; otherwise sorted by their text.
    let sorted = |entries: &[(Value, Value)]| {
        let mut entries = entries.to_vec();
        entries.sort_by_cached_key(|(key, _)| format!("{key:?}"));
        entries
    };
    a.iter().zip(b).all(same) || sorted(a).iter().zip(&sorted(b)).all(same)
}

fn is_whole(float: f64, integer: &Value) -> bool {
    let text = match integer {
        Value::Int(number) => number.to_string(),
        Value::UInt(number) => number.to_string(),
        _ => return false,
    };
    // Compares digits, since a conversion could round.
    format!("{float}") == text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, Value)]) -> Value {
        Value::Map(entries.iter().map(|(key, value)| ((*key).into(), value.clone())).collect())
    }

    #[test]
    fn values_compare_by_content_not_representation() {
        let nested = |first: &[(&str, Value)]| map(&[("k", Value::Array(vec![map(first)]))]);
        let ab = nested(&[("a", 1_i64.into()), ("b", Value::Nil)]);
        assert!(same_value(&ab, &nested(&[("b", Value::Nil), ("a", 1_i64.into())])));
        assert!(!same_value(&ab, &nested(&[("b", Value::Nil), ("a", 2_i64.into())])));
        assert!(!same_value(&ab, &nested(&[("a", 1_i64.into())])));
        assert!(same_value(&1e16.into(), &10_000_000_000_000_000_i64.into()));
        assert!(!same_value(&1.5.into(), &1_i64.into()) && !same_value(&1_i64.into(), &true.into()));
        assert!(!same_value(&9_007_199_254_740_993_i64.into(), &9_007_199_254_740_992.0.into()));
        assert!(same_value(&f64::NAN.into(), &f64::NAN.into()));
    }

    #[test]
    fn a_snapshot_may_be_in_only_one_of_them() {
        let with = |channel: &str, value: ChannelValue| {
            let mut values = ChannelValues::new();
            values.insert(channel.into(), value);
            values
        };
        let snapshot = ChannelValue::encode(&Value::Ext(7, Vec::from([0x90]).into())).unwrap();
        let (none, one, other) = (ChannelValues::new(), with("c", snapshot.clone()), with("c", 1_i64.into()));
        for (a, b, same) in [(&none, &one, true), (&none, &other, false), (&one, &other, false)] {
            assert_eq!(same_entries_of(a, b, is_snapshot), same);
            assert_eq!(same_entries_of(b, a, is_snapshot), same);
        }
        assert!(!same_entries_of(&none, &one, |_| false));
    }

    #[test]
    fn only_the_metadata_that_postgres_drops_is_optional() {
        let metadata = CheckpointMetadata::new("loop", 1);
        assert!(same_metadata(&metadata.clone().with("writes", "x"), &metadata));
        assert!(!same_metadata(&metadata.clone().with("user", "x"), &metadata));
        assert!(!same_metadata(&metadata, &metadata.clone().with("user", "x")));
        assert!(!same_metadata(&metadata.clone().with("writes", "x"), &metadata.with("writes", "y")));
    }
}
