//! Decodes rows.

use std::cell::Cell;

use bytes::Bytes;
use checkpoint_core::backend::{CheckpointKey, ValueCodec};
use checkpoint_core::delta::{CheckpointReader, MessagePackReader};
use checkpoint_core::serde::document;
use checkpoint_core::{
    Checkpoint, CheckpointMetadata, Error, ErrorKind, PendingWrite, Result, Str, TypedBytes, opaque,
};
use rusqlite::Row;

use crate::connection::Config;
use crate::error::OrConvert;

/// Reads a column that must hold text.
pub(crate) fn text(row: &Row<'_>, column: usize) -> Result<Str> {
    row.get(column).or_convert()
}

/// Reads a column that may hold text.
pub(crate) fn optional_text(row: &Row<'_>, column: usize) -> Result<Option<Str>> {
    row.get(column).or_convert()
}

thread_local! {
    static BYTES_READ: Cell<usize> = const { Cell::new(0) };
}

/// How many bytes of values and metadata this thread has read since the last call of this function.
pub(crate) fn take_bytes_read() -> usize {
    BYTES_READ.take()
}

/// Reads a column of bytes; old writers stored some of them as text.
pub(crate) fn optional_bytes<'a>(row: &'a Row<'_>, column: usize) -> Result<Option<&'a [u8]>> {
    let value = row.get_ref(column).or_convert()?;
    let bytes = value.as_bytes_or_null().map_err(|source| {
        Error::codec("a column of bytes holds a number").with("column", column).with_source(source)
    })?;
    BYTES_READ.set(BYTES_READ.get() + bytes.map_or(0, <[u8]>::len));
    Ok(bytes)
}

/// Reads metadata; NULL is an empty map.
pub(crate) fn metadata(row: &Row<'_>, column: usize) -> Result<CheckpointMetadata> {
    optional_bytes(row, column)?
        .map_or_else(|| Ok(CheckpointMetadata::default()), CheckpointMetadata::from_json)
}

/// Reads a type tag and the bytes in the column after it. A value of no bytes may be stored as NULL.
pub(crate) fn typed(row: &Row<'_>, column: usize) -> Result<TypedBytes> {
    let tag = optional_text(row, column)?;
    let data = optional_bytes(row, column + 1)?.map(Bytes::copy_from_slice);
    match (tag, data) {
        (Some(tag), Some(data)) => Ok(TypedBytes::new(tag.to_string(), data)),
        (Some(tag), None) if matches!(&*tag, "null" | "empty") => {
            Ok(TypedBytes::new(tag.to_string(), Bytes::new()))
        }
        (Some(_), None) => Err(Error::codec("the row has a type tag but no value")),
        (None, _) => Err(Error::codec("the row has no type tag")),
    }
}

/// The columns of `sql::SELECT_CHECKPOINT` and `sql::SELECT_LATEST_CHECKPOINT`.
pub(crate) struct CheckpointColumns;

impl CheckpointColumns {
    pub(crate) const CHECKPOINT_ID: usize = 0;
    pub(crate) const PARENT_CHECKPOINT_ID: usize = 1;
    /// The value is in the column after it.
    pub(crate) const TYPE: usize = 2;
    pub(crate) const METADATA: usize = 4;
}

/// The columns of `sql::select_writes`.
struct WriteColumns;

impl WriteColumns {
    const TASK_ID: usize = 0;
    const TASK_PATH: usize = 1;
    const IDX: usize = 2;
    const CHANNEL: usize = 3;
    /// The value is in the column after it.
    const TYPE: usize = 4;
}

/// A key as the parameters of a statement.
pub(crate) fn key_columns(key: CheckpointKey<'_>) -> (&str, &str, &str) {
    (key.thread_id, key.checkpoint_ns, key.checkpoint_id)
}

/// Decrypts and decodes a checkpoint. It stays one value if it must not be decoded, or if it does not decrypt and is kept.
pub(crate) fn checkpoint(
    codec: &ValueCodec,
    typed: TypedBytes,
    key: CheckpointKey<'_>,
) -> Result<Checkpoint> {
    let typed = codec.open(typed, &key.checkpoint_data())?;
    if codec.opaque_values || typed.is_sealed() {
        return Ok(opaque::checkpoint(key.checkpoint_id, typed));
    }
    document::decode_checkpoint(&typed.to_unvalidated_msgpack()?)
}

/// Decrypts a checkpoint from the columns of [`CheckpointColumns`].
pub(crate) fn open_checkpoint(
    codec: &ValueCodec,
    row: &Row<'_>,
    key: CheckpointKey<'_>,
) -> Result<TypedBytes> {
    codec.open(typed(row, CheckpointColumns::TYPE)?, &key.checkpoint_data())
}

/// Decodes a decrypted checkpoint: with the builder's reader, or as LangGraph's MessagePack.
pub(crate) fn look<T>(
    config: &Config,
    typed: &TypedBytes,
    read: impl FnOnce(&dyn CheckpointReader, &TypedBytes) -> Result<T>,
) -> Result<T> {
    match &config.reader {
        Some(reader) => read(&**reader, typed),
        None => read(&MessagePackReader, typed).map_err(|error| {
            if !config.codec.opaque_values {
                return error;
            }
            Error::new(
                ErrorKind::Unsupported,
                "this call has to look into the checkpoint, which is another serializer's; give the builder a \
                 checkpoint_reader",
            )
            .with("tag", &typed.tag)
            .with_source(error)
        }),
    }
}

/// Decrypts and decodes a write from the columns of [`WriteColumns`], if its channel is wanted.
pub(crate) fn write(
    codec: &ValueCodec,
    row: &Row<'_>,
    key: CheckpointKey<'_>,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Option<PendingWrite>> {
    let channel = text(row, WriteColumns::CHANNEL)?;
    if !is_wanted(&channel) {
        return Ok(None);
    }
    let task_id = text(row, WriteColumns::TASK_ID)?;
    let task_path = optional_text(row, WriteColumns::TASK_PATH)?.unwrap_or_default();
    let idx: i32 = row.get(WriteColumns::IDX).or_convert()?;
    let typed = typed(row, WriteColumns::TYPE)?;
    let value = codec.open_value(typed, &key.write_data(&task_id, idx, &channel))?;
    Ok(Some(PendingWrite::new(task_id, channel, value).with_position(task_path, idx)))
}
