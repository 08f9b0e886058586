//! Reading columns, and parameter types that the driver lacks.

use std::error::Error as StdError;
use std::fmt;

use bytes::{BufMut, BytesMut};
use checkpoint_core::{Result, Str};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use crate::convert;

/// The version byte of the binary format of `jsonb`, which precedes the text.
const JSONB_VERSION: u8 = 1;

/// JSON text as a parameter or column of type `jsonb`.
pub struct Json<'a>(pub &'a str);

// The driver logs parameters, so `Debug` must not show user values.
impl fmt::Debug for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Json({} bytes)", self.0.len())
    }
}

impl ToSql for Json<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        out.reserve(self.0.len() + 1);
        out.put_u8(JSONB_VERSION);
        out.put_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(of_type: &Type) -> bool {
        *of_type == Type::JSONB
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Json<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        match raw {
            [JSONB_VERSION, text @ ..] => Ok(Self(std::str::from_utf8(text)?)),
            _ => Err("unknown jsonb version".into()),
        }
    }

    fn accepts(of_type: &Type) -> bool {
        *of_type == Type::JSONB
    }
}

/// Reads a column, which borrows from the row.
///
/// # Errors
/// [`Codec`](checkpoint_core::ErrorKind::Codec) for a column of another type.
pub fn column<'a, T: FromSql<'a>>(row: &'a Row, at: usize) -> Result<T> {
    row.try_get(at).map_err(convert)
}

/// Reads a column of text.
///
/// # Errors
/// As [`column()`].
pub fn text(row: &Row, at: usize) -> Result<Str> {
    column::<&str>(row, at).map(Str::from)
}

/// Quotes an identifier.
pub fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Makes an array of [`Param`](crate::Param)s, type by type: `params![TEXT: thread_id, channel; INT8: limit]`.
#[macro_export]
macro_rules! params {
    ($($of_type:ident: $($value:expr),+);+) => {
        [$($((&$value as &(dyn $crate::tokio_postgres::types::ToSql + Sync), $crate::tokio_postgres::types::Type::$of_type)),+),+]
    };
}
