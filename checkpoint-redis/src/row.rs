//! Encodes and decodes what the fields of a thread hold: [records], and in front of the metadata what scripts read:
//!
//! 1 ‖ length of the parent's id (4 bytes) ‖ parent's id ‖ number of names of values (4 bytes), of each: length (4 bytes) ‖ name
//! ‖ length of the step key's field (4 bytes) ‖ field ‖ the record of the metadata.

use bytes::Bytes;
use checkpoint_core::backend::records::{self, FORMAT, damaged, put, take, take_text};
use checkpoint_core::backend::{CheckpointKey, ValueCodec};
use checkpoint_core::{CheckpointMetadata, PendingWrite, Result, Str};

use crate::keys;

pub(crate) use checkpoint_core::backend::records::{Record, Rules, StoredWrite, read_value, value, write};

/// A value that a checkpoint refers to: its channel, and its part of a name.
pub(crate) type Named = records::Named<Vec<u8>>;

/// A decoded checkpoint record.
pub(crate) type Document = records::Document<Vec<u8>>;

/// Decodes a write.
pub(crate) fn read_write(
    codec: &ValueCodec,
    thread_id: &str,
    field: &[u8],
    bytes: &Bytes,
) -> Result<PendingWrite> {
    records::read_write(codec, thread_id, &keys::read_write(field)?, bytes)
}

/// The metadata of a checkpoint, with what is stored in front of it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Head {
    /// The parent's id, or nothing.
    pub(crate) parent: Str,
    /// The values that the checkpoint refers to.
    pub(crate) names: Vec<Vec<u8>>,
    /// The field of the step key, or nothing.
    pub(crate) step: Vec<u8>,
    /// The metadata, encoded as a value.
    pub(crate) metadata: Bytes,
}

impl Head {
    /// As it is stored.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut out = vec![FORMAT];
        put(&mut out, self.parent.as_bytes())?;
        out.extend_from_slice(&u32::try_from(self.names.len()).unwrap_or(u32::MAX).to_be_bytes());
        self.names.iter().try_for_each(|name| put(&mut out, name))?;
        put(&mut out, &self.step)?;
        out.extend_from_slice(&self.metadata);
        Ok(out)
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        const WHAT: &str = "metadata";
        let Some((&FORMAT, mut rest)) = bytes.split_first() else { return Err(damaged(WHAT)) };
        let parent = take_text(&mut rest, WHAT)?.into();
        let Some((count, after)) = rest.split_first_chunk() else { return Err(damaged(WHAT)) };
        rest = after;
        let mut names = Vec::new();
        for _ in 0..u32::from_be_bytes(*count) {
            names.push(take(&mut rest, WHAT)?.to_vec());
        }
        let step = take(&mut rest, WHAT)?.to_vec();
        Ok(Self { parent, names, step, metadata: Bytes::copy_from_slice(rest) })
    }

    /// The parent's id.
    pub(crate) fn parent(&self) -> Option<Str> {
        Some(self.parent.clone()).filter(|parent| !parent.is_empty())
    }

    /// Decrypts the metadata.
    pub(crate) fn open_metadata(
        &self,
        codec: &ValueCodec,
        key: CheckpointKey<'_>,
    ) -> Result<CheckpointMetadata> {
        records::open_metadata(codec, key, &self.metadata)
    }

    /// Decrypts the metadata for one row and encrypts it for another.
    pub(crate) fn reseal(
        &self,
        codec: &ValueCodec,
        from: CheckpointKey<'_>,
        to: CheckpointKey<'_>,
    ) -> Result<Self> {
        Ok(Self { metadata: records::reseal_metadata(codec, from, to, &self.metadata)?, ..self.clone() })
    }
}
