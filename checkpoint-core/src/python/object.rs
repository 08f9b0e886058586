//! Any object as class, contents and what stands behind them.

use crate::serde::{Encoder, MAX_DEPTH, decode};
use crate::{Result, Value};

/// A Python object that was written with its class: extension codes 0 to 5.
///
/// What Python or this crate wrote comes back from [`to_value`](Self::to_value) byte for byte.
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    /// The extension code: how the object is made from its contents.
    pub code: i8,
    /// The module of the class.
    pub module: String,
    /// The class.
    pub name: String,
    /// The argument (0, 3), the arguments (1) or the fields (2, 4, 5).
    pub contents: Value,
    /// What stands behind the contents, such as the name of a method.
    pub trailing: Vec<Value>,
}

impl Object {
    /// Reads an extension; `None` for other values, numpy arrays, delta snapshots and damaged payloads.
    pub fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Ext(code @ 0..=5, payload) => Self::from_payload(*code, payload, 0),
            _ => None,
        }
    }

    /// As `from_value`, inside of so many containers.
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

    /// Makes the extension.
    ///
    /// # Errors
    /// As [`Value::to_msgpack`].
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
