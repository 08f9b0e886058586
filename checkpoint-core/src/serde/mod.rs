//! The serializer: Rust values to and from the bytes that LangGraph's Python (`JsonPlusSerializer`) writes.
//!
//! A value travels as MessagePack with eight extension codes for Python objects (0 to 7), or as raw bytes, under a
//! type tag. Nothing is ever constructed by name: an extension stays what it is, [`crate::python`] has typed views
//! of the usual ones, and unknown payloads survive byte for byte.

/// `From` of several types for one, each by an expression.
macro_rules! from {
    ($target:ident: $($type:ty => |$value:ident| $make:expr),* $(,)?) => {$(
        impl From<$type> for $target {
            fn from($value: $type) -> Self {
                $make
            }
        }
    )*};
}

pub(crate) mod decode;
pub mod document;
mod encode;
pub(crate) mod float;
pub mod json;
mod reader;
mod revive;
mod typed_bytes;
mod value;

pub use decode::from_msgpack;
pub use encode::to_msgpack;
pub(crate) use encode::{Encoder, to_msgpack_within};
pub use typed_bytes::{Tag, TypedBytes};
pub use value::Value;

/// How deep a value may be nested to be decoded, extension payloads included. (Python encodes at most 254 levels in
/// one payload.)
pub const MAX_DEPTH: usize = 512;

/// The newtype name under which [`Value`] serializes an extension as a pair of code and payload.
pub(crate) const EXT_NAME: &str = "$checkpoint_core::Ext";

/// The newtype name under which [`Value`] asks for exact tokens.
pub(crate) const VALUE_NAME: &str = "$checkpoint_core::Value";

/// A Python class as the serde name of a Rust type tells it: `py:CODE:MODULE:NAME`, or `py:7` for a delta snapshot.
///
/// A struct or newtype renamed so (`#[serde(rename = "py:5:app.models:Profile")]`) is written as that extension,
/// and read only from an object of that class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PythonClass<'a> {
    pub(crate) code: i8,
    pub(crate) path: Option<(&'a str, &'a str)>,
}

impl<'a> PythonClass<'a> {
    pub(crate) fn parse(name: &'a str) -> Option<Self> {
        let rest = name.strip_prefix("py:")?;
        let mut parts = rest.splitn(3, ':');
        let code = parts.next()?.parse().ok()?;
        match (code, parts.next(), parts.next()) {
            (7, None, None) => Some(Self { code, path: None }),
            (0..=5, Some(module), Some(class)) => Some(Self { code, path: Some((module, class)) }),
            _ => None,
        }
    }

    /// What stands behind the contents of the payload.
    pub(crate) fn trailer(self) -> Option<&'static str> {
        match self.code {
            3 => Some("fromisoformat"),
            5 => Some("model_validate_json"),
            _ => None,
        }
    }

    /// Whether an object of the class found may be read as this class: itself, or what other versions call it.
    pub(crate) fn accepts(self, found: Option<(&str, &str)>) -> bool {
        self.path == found
            || matches!(
                (self.path, found),
                (Some(("uuid", "UUID")), Some(("langgraph.checkpoint.base.id", "UUID")))
                    | (Some(("langgraph.types", "Send")), Some(("langgraph.constants", "Send")))
                    | (
                        Some(("pathlib", "PosixPath")),
                        Some(("pathlib" | "pathlib._local", "PosixPath" | "WindowsPath" | "Path")),
                    )
            )
    }
}
