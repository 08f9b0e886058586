//! Decoding what stands in the tables.

use bytes::Bytes;
use checkpoint_core::cipher::{self, Place};
use checkpoint_core::serde::document;
use checkpoint_core::{
    ChannelValue, Checkpoint, CheckpointMetadata, Error, ErrorKind, PendingWrite, Result, Str, TypedBytes,
};
use rusqlite::Row;
use rusqlite::types::ValueRef;

use crate::connection::Config;
use crate::error::OrConvert;

/// Reads a column that must hold text.
pub(crate) fn text(row: &Row<'_>, column: usize) -> Result<Str> {
    optional_text(row, column)?
        .ok_or_else(|| Error::codec("a column that must hold text is empty").with("column", column))
}

/// Reads a column that may hold text.
pub(crate) fn optional_text(row: &Row<'_>, column: usize) -> Result<Option<Str>> {
    match row.get_ref(column).or_convert()? {
        ValueRef::Null => Ok(None),
        ValueRef::Text(text) => {
            std::str::from_utf8(text).map(|text| Some(Str::from(text))).map_err(|source| {
                Error::codec("a column that must hold text is not UTF-8")
                    .with("column", column)
                    .with_source(source)
            })
        }
        _ => Err(Error::codec("a column that must hold text holds something else").with("column", column)),
    }
}

/// Reads a column of bytes in their one allocation; old writers stored some of them as text.
pub(crate) fn optional_bytes(row: &Row<'_>, column: usize) -> Result<Option<Bytes>> {
    match row.get_ref(column).or_convert()? {
        ValueRef::Null => Ok(None),
        ValueRef::Blob(bytes) | ValueRef::Text(bytes) => Ok(Some(Bytes::copy_from_slice(bytes))),
        _ => Err(Error::codec("a column that must hold bytes holds something else").with("column", column)),
    }
}

/// Reads metadata; none at all is an empty map.
pub(crate) fn metadata(row: &Row<'_>, column: usize) -> Result<CheckpointMetadata> {
    match row.get_ref(column).or_convert()? {
        ValueRef::Null => Ok(CheckpointMetadata::default()),
        ValueRef::Blob(bytes) | ValueRef::Text(bytes) => CheckpointMetadata::from_json(bytes),
        _ => Err(Error::codec("the metadata column holds something else than JSON").with("column", column)),
    }
}

/// Reads a type tag and the bytes in the column after it. A value of no bytes may be stored as NULL.
pub(crate) fn typed(row: &Row<'_>, column: usize) -> Result<TypedBytes> {
    let tag = optional_text(row, column)?;
    let data = optional_bytes(row, column + 1)?;
    match (tag, data) {
        (Some(tag), Some(data)) => Ok(TypedBytes::new(tag.to_string(), data)),
        (Some(tag), None) if matches!(&*tag, "null" | "empty") => {
            Ok(TypedBytes::new(tag.to_string(), Bytes::new()))
        }
        (Some(_), None) => Err(Error::codec("the row has a type tag but no value")),
        (None, _) => Err(Error::codec("the row has no type tag")),
    }
}

/// Opens and decodes a checkpoint. With `keep_sealed`, ciphertext that does not open is kept instead.
pub(crate) fn checkpoint(
    config: &Config,
    typed: TypedBytes,
    (thread_id, checkpoint_ns, checkpoint_id): (&str, &str, &str),
) -> Result<Checkpoint> {
    match open_checkpoint(config, &typed, (thread_id, checkpoint_ns, checkpoint_id)) {
        Ok(document) => document::decode_checkpoint(&document),
        Err(error) if config.keep_sealed && error.kind() == ErrorKind::Crypto && typed.is_sealed() => {
            Ok(Checkpoint::sealed(checkpoint_id, typed))
        }
        Err(error) => Err(error),
    }
}

/// Opens a checkpoint as one MessagePack map.
pub(crate) fn open_checkpoint(
    config: &Config,
    typed: &TypedBytes,
    (thread_id, checkpoint_ns, checkpoint_id): (&str, &str, &str),
) -> Result<Bytes> {
    let place = Place::Checkpoint { thread_id, checkpoint_ns, checkpoint_id };
    cipher::open(config.cipher.as_ref(), typed.clone(), &place)?.readable()
}

/// Opens and decodes a write from the columns of `sql::select_writes`.
pub(crate) fn write(
    config: &Config,
    row: &Row<'_>,
    (thread_id, checkpoint_ns, checkpoint_id): (&str, &str, &str),
    keep_sealed: bool,
) -> Result<PendingWrite> {
    let task_id = text(row, 0)?;
    let task_path = optional_text(row, 1)?.unwrap_or_default();
    let idx: i32 = row.get(2).or_convert()?;
    let channel = text(row, 3)?;
    let typed = typed(row, 4)?;
    let place =
        Place::Write { thread_id, checkpoint_ns, checkpoint_id, task_id: &task_id, idx, channel: &channel };
    let value = match cipher::open(config.cipher.as_ref(), typed.clone(), &place) {
        Ok(typed) => ChannelValue::from_typed(typed)?,
        Err(error) if keep_sealed && error.kind() == ErrorKind::Crypto => ChannelValue::Blob(typed),
        Err(error) => return Err(error),
    };
    Ok(PendingWrite::new(task_id, channel, value).stored_at(task_path, idx))
}
