//! Any Python object as class, contents and trailing items.

use crate::serde::{Encoder, MAX_DEPTH, decode};
use crate::{Result, Value};

/// A Python object that was encoded with its class: extension codes 0 to 5.
///
/// [`to_value`](Self::to_value) returns the bytes that Python or this crate wrote, unchanged.
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    /// The extension code: how the object is constructed from its contents.
    pub code: i8,
    /// The module of the class.
    pub module: String,
    /// The class.
    pub name: String,
    /// The argument (0, 3), the arguments (1) or the fields (2, 4, 5).
    pub contents: Value,
    /// The items after the contents, such as the name of a method.
    pub trailing: Vec<Value>,
}

impl Object {
    /// Decodes an extension; `None` for other values, numpy arrays, delta snapshots and malformed payloads.
    pub fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Ext(code @ 0..=5, payload) => Self::from_payload(*code, payload, 0),
            _ => None,
        }
    }

    /// Decodes a payload at this depth of nesting.
    pub(super) fn from_payload(code: i8, payload: &[u8], depth: usize) -> Option<Self> {
        if depth >= MAX_DEPTH {
            return None;
        }
        let payload = decode::value(&mut decode::Reader::new(payload), depth).ok()?;
        let Value::Array(items) = payload else { return None };
        let mut items = items.into_iter();
        match (items.next()?, items.next()?, items.next()?) {
            (Value::Str(module), Value::Str(name), contents) => {
                Some(Self { code, module, name, contents, trailing: items.collect() })
            }
            _ => None,
        }
    }

    /// Encodes the extension.
    ///
    /// # Errors
    /// Those of [`Value::to_msgpack`].
    pub fn to_value(&self) -> Result<Value> {
        let mut payload = Encoder::new();
        payload.array(3 + self.trailing.len())?;
        payload.enter()?;
        payload.str(&self.module)?;
        payload.str(&self.name)?;
        payload.value(&self.contents)?;
        for item in &self.trailing {
            payload.value(item)?;
        }
        Ok(Value::Ext(self.code, payload.into_bytes().into()))
    }

    /// Whether it is an object of this class.
    pub fn is(&self, module: &str, name: &str) -> bool {
        self.module == module && self.name == name
    }
}
