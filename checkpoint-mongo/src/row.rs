//! Encodes and decodes what documents hold: [records].

use checkpoint_core::Result;
use checkpoint_core::backend::records;
use checkpoint_core::backend::{CheckpointKey, ValueCodec};
use checkpoint_core::delta::CheckpointSummary;

use crate::load::Row;

pub(crate) use checkpoint_core::backend::records::{
    Record, Rules, StoredWrite, open_metadata, read_value, read_write, reseal_metadata, value, write,
};

/// The name of a value.
pub(crate) type Name = [u8; 24];

/// A value that a checkpoint refers to: its channel, and its part of a name.
pub(crate) type Named = records::Named<Name>;

/// A decoded checkpoint record.
pub(crate) type Document = records::Document<Name>;

/// What `prune` reads of a checkpoint.
pub(crate) fn summary(codec: &ValueCodec, key: CheckpointKey<'_>, row: &Row) -> Result<CheckpointSummary> {
    let read = || {
        let (document, metadata) = (row.document.bytes()?, row.metadata.bytes()?);
        records::summary(codec, key, document, metadata, row.parent.clone())
    };
    read().map_err(key.context())
}
