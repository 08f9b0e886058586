//! Typed views of the Python objects that agents store, and a projection of any value for display.
//!
//! A type of this module is encoded as the extension that Python LangGraph writes for its counterpart. It is decoded from
//! that, or from a plain value of the same form (such as a [`DateTime`] from text). In formats other than this crate's
//! MessagePack it is that plain value.
//!
//! Your own types do the same by their serde name: `py:CODE:MODULE:NAME`, where the code is 5 for a pydantic model and
//! 2 for a dataclass. (Serde treats a struct with a flattened field as a map, so it is encoded as a map.)
//!
//! ```
//! use checkpoint_core::{ChannelValue, python::{HumanMessage, Message}};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! #[serde(rename = "py:5:app.models:Profile")]
//! struct Profile {
//!     name: String,
//! }
//!
//! let profile = ChannelValue::encode(&Profile { name: "Ada".into() })?;
//! assert_eq!(profile.decode::<Profile>()?.name, "Ada");
//! let messages = ChannelValue::encode(&[Message::from(HumanMessage::new("hello"))])?;
//! assert_eq!(messages.decode::<Vec<Message>>()?[0].text(), "hello");
//! # Ok::<(), checkpoint_core::Error>(())
//! ```

#[cfg(feature = "python-views")]
mod control;
mod message;
mod object;
#[cfg(feature = "python-views")]
mod projection;
mod record;
#[cfg(feature = "python-views")]
mod scalar;
#[cfg(feature = "python-views")]
mod time;

#[cfg(feature = "python-views")]
mod views {
    pub use super::control::{Command, DeltaSnapshot, Interrupt, Send};
    pub use super::message::{InvalidToolCall, Message, ToolCall, UsageMetadata};
    pub use super::projection::to_json;
    pub use super::scalar::{Decimal, FrozenSet, Path, Set, Uuid};
    pub use super::time::{Date, DateTime, Time, TimeDelta};
    pub use {chrono, uuid};
}

pub use message::{AiMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage};
pub use object::Object;
pub use record::Fields;
#[cfg(feature = "python-views")]
pub use views::*;
