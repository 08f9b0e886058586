//! Checkpoints encoded by another serializer, for bindings to other languages.
//!
//! A saver with `opaque_values` never decodes values, regardless of their type tags. If a backend stores a checkpoint
//! as one value ([`CheckpointLayout::Whole`](crate::CheckpointLayout::Whole)), the whole checkpoint is opaque:
//! [`checkpoint`] wraps the bytes for `put`, and [`value`] unwraps them after a read. Rust programs need neither.

use crate::{Checkpoint, Str, TypedBytes, id};

/// Makes a checkpoint from one value. The time is taken from the id, and there are no channels.
///
/// Only a saver that stores whole checkpoints, with `opaque_values`, accepts it.
pub fn checkpoint(id: impl Into<Str>, value: TypedBytes) -> Checkpoint {
    let id = id.into();
    let ts = id::unix_micros(&id).map(id::isoformat).unwrap_or_default();
    Checkpoint { ts: ts.into(), opaque: Some(value), ..Checkpoint::with_id(id) }
}

/// The single value of an opaque checkpoint: the bytes of another serializer, or ciphertext that could not be decrypted
/// if the saver was configured to return it. `None` for every other checkpoint.
pub fn value(checkpoint: &Checkpoint) -> Option<&TypedBytes> {
    checkpoint.opaque.as_ref()
}
