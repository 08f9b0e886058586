//! Decodes rows, and encodes parameters for which the driver has no type.

use std::error::Error as StdError;
use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use checkpoint_core::backend::{CheckpointKey, ValueCodec};
use checkpoint_core::{CheckpointMetadata, Error, PendingWrite, Result, Str, TypedBytes};
use common_postgres::tokio_postgres::Row;
use common_postgres::tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use common_postgres::{Json, column};

use crate::sql::column as at;

/// Bytes as a parameter of type `bytea`.
pub(crate) struct Blob<'a>(pub(crate) &'a [u8]);

// The driver logs parameters, so `Debug` must not show user values.
impl fmt::Debug for Blob<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({} bytes)", self.0.len())
    }
}

impl ToSql for Blob<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        out.put_slice(self.0);
        Ok(IsNull::No)
    }

    fn accepts(of_type: &Type) -> bool {
        *of_type == Type::BYTEA
    }

    to_sql_checked!();
}

/// Reads a column that may hold text.
pub(crate) fn optional_text(row: &Row, at: usize) -> Result<Option<Str>> {
    Ok(column::<Option<&str>>(row, at)?.map(Str::from))
}

/// Reads a type tag and bytes.
pub(crate) fn typed(row: &Row, tag: usize, data: usize) -> Result<TypedBytes> {
    let tag: &str =
        column::<Option<&str>>(row, tag)?.ok_or_else(|| Error::codec("the row has no type tag"))?;
    match column::<Option<&[u8]>>(row, data)? {
        Some(data) => Ok(TypedBytes::new(tag.to_owned(), Bytes::copy_from_slice(data))),
        None if matches!(tag, "null" | "empty") => Ok(TypedBytes::new(tag.to_owned(), Bytes::new())),
        None => Err(Error::codec("the row has a type tag but no value")),
    }
}

/// Reads metadata.
pub(crate) fn metadata(row: &Row, at: usize) -> Result<CheckpointMetadata> {
    CheckpointMetadata::from_json(column::<Json<'_>>(row, at)?.0.as_bytes())
}

/// Reads a write on a checkpoint from the columns of [`sql::column`](at).
pub(crate) fn write(row: &Row, key: CheckpointKey<'_>, codec: &ValueCodec) -> Result<PendingWrite> {
    let (task_id, channel) = (column::<&str>(row, at::TASK_ID)?, column::<&str>(row, at::WRITE_CHANNEL)?);
    let idx = column(row, at::IDX)?;
    let value = codec.open_value(typed(row, at::TYPE, at::DATA)?, &key.write_data(task_id, idx, channel))?;
    Ok(PendingWrite::new(task_id, channel, value).with_position(column::<&str>(row, at::TASK_PATH)?, idx))
}
