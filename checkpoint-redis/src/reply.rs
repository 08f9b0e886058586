//! Decodes the replies of the server.

use bytes::Bytes;
use checkpoint_core::{Error, Result};
use redis::Value;

fn unexpected(reply: &Value) -> Error {
    let kind = match reply {
        Value::Nil => "nothing",
        Value::Int(_) => "an integer",
        Value::BulkString(_) | Value::SimpleString(_) => "a text",
        Value::Array(_) => "an array",
        _ => "another type",
    };
    Error::codec("the server's reply has an unexpected type").with("reply", kind)
}

/// An integer; a truth value of RESP3 is 0 or 1.
pub(crate) fn integer(reply: &Value) -> Result<i64> {
    match reply {
        Value::Int(number) => Ok(*number),
        Value::Boolean(flag) => Ok(i64::from(*flag)),
        Value::BulkString(digits) => {
            let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
            number.ok_or_else(|| unexpected(reply))
        }
        _ => Err(unexpected(reply)),
    }
}

/// Bytes, or `None` for nothing.
pub(crate) fn optional(reply: Value) -> Result<Option<Bytes>> {
    match reply {
        Value::BulkString(bytes) => Ok(Some(bytes.into())),
        Value::SimpleString(text) => Ok(Some(text.into())),
        Value::Nil => Ok(None),
        other => Err(unexpected(&other)),
    }
}

/// Bytes.
pub(crate) fn bytes(reply: Value) -> Result<Bytes> {
    optional(reply)?.ok_or_else(|| unexpected(&Value::Nil))
}

/// The items of an array.
pub(crate) fn array(reply: Value) -> Result<Vec<Value>> {
    match reply {
        Value::Array(items) | Value::Set(items) => Ok(items),
        other => Err(unexpected(&other)),
    }
}

/// The items of an array of bytes.
pub(crate) fn list(reply: Value) -> Result<Vec<Bytes>> {
    array(reply)?.into_iter().map(bytes).collect()
}

/// The items of an array of bytes, of which some may be missing.
pub(crate) fn optionals(reply: Value) -> Result<Vec<Option<Bytes>>> {
    array(reply)?.into_iter().map(optional).collect()
}

/// The items of an array, one after the other.
#[derive(Debug)]
pub(crate) struct Items(std::vec::IntoIter<Value>);

impl Items {
    pub(crate) fn new(reply: Value) -> Result<Self> {
        Ok(Self(array(reply)?.into_iter()))
    }

    pub(crate) fn of(items: Vec<Value>) -> Self {
        Self(items.into_iter())
    }

    /// The next item, or nothing behind the last one.
    pub(crate) fn next(&mut self) -> Value {
        self.0.next().unwrap_or(Value::Nil)
    }
}
