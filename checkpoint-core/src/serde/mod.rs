//! The serializer: Rust values to and from the bytes of Python LangGraph's `JsonPlusSerializer`.
//!
//! A value is MessagePack with eight extension codes for Python objects (0 to 7), or raw bytes, under a type tag.
//! Decoding never constructs objects by name: extensions stay data, [`crate::python`] has typed views of the common ones,
//! and unknown payloads are preserved byte for byte.

/// Implements `From` of several types for one, each by an expression.
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

/// The nesting limit of decoding, including extension payloads. (Python encodes at most 254 levels in one payload.)
pub const MAX_DEPTH: usize = 512;

/// The newtype name under which [`Value`] serializes an extension as a pair of code and payload.
pub(crate) const EXT_NAME: &str = "$checkpoint_core::Ext";

/// The newtype name by which [`Value`] asks the decoder for the value's MessagePack.
pub(crate) const VALUE_NAME: &str = "$checkpoint_core::Value";

/// A Python class, parsed from the serde name of a Rust type: `py:CODE:MODULE:NAME`, or `py:7` for a delta snapshot.
///
/// A struct or newtype with such a name (`#[serde(rename = "py:5:app.models:Profile")]`) is encoded as that extension,
/// and decoded from an object of that class, but of no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PythonClass<'a> {
    pub(crate) code: i8,
    /// Module and class name.
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

    /// The last item of the payload, after the contents: the constructor that Python calls.
    pub(crate) fn trailer(self) -> Option<&'static str> {
        match self.code {
            3 => Some("fromisoformat"),
            5 => Some("model_validate_json"),
            _ => None,
        }
    }

    /// Whether an object of the class `found` decodes as this class: the same, or its name in other versions.
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
