//! Checkpoints in the bytes of another serializer, for bindings to other languages.
//!
//! A saver with `opaque_values` does not look into values, whatever their type tags say. Where a backend stores a
//! checkpoint as one value ([`CheckpointLayout::Whole`](crate::CheckpointLayout::Whole)), the whole checkpoint is such a
//! value: [`checkpoint`] makes what is given to `put`, and [`value`] takes it out of what was read. Rust programs use
//! neither.

use crate::{Checkpoint, Str, TypedBytes, id};

/// Makes a checkpoint of one value. The id is known, the time is taken from it, and there are no channels.
///
/// Only a saver that stores whole checkpoints, and has `opaque_values`, stores it.
pub fn checkpoint(id: impl Into<Str>, value: TypedBytes) -> Checkpoint {
    let id = id.into();
    let ts = id::unix_micros(&id).map(id::isoformat).unwrap_or_default();
    Checkpoint { ts: ts.into(), opaque: Some(value), ..Checkpoint::with_id(id) }
}

/// The value that a checkpoint consists of: the bytes of another serializer, or ciphertext that could not be decrypted
/// where the saver was told to show it. `None` for every other checkpoint.
pub fn value(checkpoint: &Checkpoint) -> Option<&TypedBytes> {
    checkpoint.opaque.as_ref()
}
