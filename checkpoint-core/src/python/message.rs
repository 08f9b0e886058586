//! LangChain's messages.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::Fields;
use super::record::record;
use crate::serde::decode::{Reader, Token, contents};
use crate::serde::from_msgpack;
use crate::{Result, Value};

macro_rules! message {
    ($(#[$doc:meta])* $type:ident { $($(#[$field_doc:meta])* $field:ident: $field_type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct $type {
            /// The text, or a list of texts and content blocks.
            pub content: Value,
            /// Additional data of the model's provider.
            pub additional_kwargs: Fields,
            /// Metadata of the response, such as the model and the finish reason.
            pub response_metadata: Fields,
            /// The name of the author.
            pub name: Option<String>,
            /// The id, by which a message is replaced or removed.
            pub id: Option<String>,
            $($(#[$field_doc])* pub $field: $field_type,)*
            /// Further fields, written back after the known ones.
            pub extra: Fields,
        }

        impl $type {
            /// The text of the message: the content, or its text blocks joined.
            pub fn text(&self) -> Cow<'_, str> {
                text(&self.content)
            }

            /// Sets the id.
            #[must_use]
            pub fn with_id(mut self, id: impl Into<String>) -> Self {
                self.id = Some(id.into());
                self
            }
        }
    };
}

message! {
    /// A message of the user.
    HumanMessage {}
}

message! {
    /// A message of the model.
    AiMessage {
        /// The tool calls.
        tool_calls: Vec<ToolCall>,
        /// Tool calls that could not be parsed.
        invalid_tool_calls: Vec<InvalidToolCall>,
        /// The token usage.
        usage_metadata: Option<UsageMetadata>,
    }
}

message! {
    /// The result of a tool call.
    ToolMessage {
        /// The id of the tool call.
        tool_call_id: String,
        /// Output of the tool that is not sent to the model.
        artifact: Value,
        /// `success` or `error`.
        status: String,
    }
}

message! {
    /// Instructions to the model.
    SystemMessage {}
}

message! {
    /// Removes the message with its id from the list.
    RemoveMessage {}
}

record!(
    HumanMessage,
    "py:5:langchain_core.messages.human:HumanMessage",
    [content, additional_kwargs, response_metadata],
    "human",
    [name, id]
);
record!(
    AiMessage,
    "py:5:langchain_core.messages.ai:AIMessage",
    [content, additional_kwargs, response_metadata],
    "ai",
    [name, id, tool_calls, invalid_tool_calls, usage_metadata]
);
record!(
    ToolMessage,
    "py:5:langchain_core.messages.tool:ToolMessage",
    [content, additional_kwargs, response_metadata],
    "tool",
    [name, id, tool_call_id, artifact, status]
);
record!(
    SystemMessage,
    "py:5:langchain_core.messages.system:SystemMessage",
    [content, additional_kwargs, response_metadata],
    "system",
    [name, id]
);
record!(
    RemoveMessage,
    "py:5:langchain_core.messages.modifier:RemoveMessage",
    [content, additional_kwargs, response_metadata],
    "remove",
    [name, id]
);

impl HumanMessage {
    /// Creates a message of text or content blocks.
    pub fn new(content: impl Into<Value>) -> Self {
        Self { content: content.into(), ..Self::default() }
    }
}

impl AiMessage {
    /// Creates a message of text or content blocks.
    pub fn new(content: impl Into<Value>) -> Self {
        Self { content: content.into(), ..Self::default() }
    }
}

impl SystemMessage {
    /// Creates a message of text or content blocks.
    pub fn new(content: impl Into<Value>) -> Self {
        Self { content: content.into(), ..Self::default() }
    }
}

impl ToolMessage {
    /// Creates the result of a successful call.
    pub fn new(content: impl Into<Value>, tool_call_id: impl Into<String>) -> Self {
        Self {
            content: content.into(),
            tool_call_id: tool_call_id.into(),
            status: "success".into(),
            ..Self::default()
        }
    }
}

impl RemoveMessage {
    /// Creates a message that removes the one with this id.
    pub fn new(id: impl Into<String>) -> Self {
        Self { content: "".into(), id: Some(id.into()), ..Self::default() }
    }
}

/// A tool call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolCall {
    /// The tool.
    pub name: String,
    /// The arguments.
    pub args: Fields,
    /// The id that the result refers to.
    pub id: Option<String>,
    /// Further fields.
    pub extra: Fields,
}

record!(ToolCall, "ToolCall", [name, args, id], "tool_call", []);

/// A tool call that could not be parsed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InvalidToolCall {
    /// The id.
    pub id: Option<String>,
    /// The tool.
    pub name: Option<String>,
    /// The arguments as the model wrote them.
    pub args: Option<String>,
    /// The error.
    pub error: Option<String>,
    /// Further fields.
    pub extra: Fields,
}

record!(InvalidToolCall, "InvalidToolCall", [], "invalid_tool_call", [id, name, args, error]);

/// The token usage of a response.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UsageMetadata {
    /// Tokens of the input.
    pub input_tokens: i64,
    /// Tokens of the output.
    pub output_tokens: i64,
    /// The sum of both.
    pub total_tokens: i64,
    /// Further fields, such as `input_token_details`.
    pub extra: Fields,
}

record!(UsageMetadata, "UsageMetadata", [input_tokens, output_tokens, total_tokens], []);

/// Any message.
///
/// It is decoded from a message object, or from a plain map by its `type`. Other values, including messages that do not
/// fit their class, are preserved unchanged.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Message {
    /// A message of the user.
    Human(HumanMessage),
    /// A message of the model.
    Ai(AiMessage),
    /// The result of a tool call.
    Tool(ToolMessage),
    /// Instructions to the model.
    System(SystemMessage),
    /// Removes another message from the list.
    Remove(RemoveMessage),
    /// Anything else, byte for byte.
    Other(Value),
}

impl Message {
    /// The text of the message: the content, or its text blocks joined; empty for other classes.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Human(message) => message.text(),
            Self::Ai(message) => message.text(),
            Self::Tool(message) => message.text(),
            Self::System(message) => message.text(),
            Self::Remove(message) => message.text(),
            Self::Other(_) => Cow::Borrowed(""),
        }
    }

    /// The id; `None` for other classes.
    pub fn id(&self) -> Option<&str> {
        match self {
            Self::Human(message) => message.id.as_deref(),
            Self::Ai(message) => message.id.as_deref(),
            Self::Tool(message) => message.id.as_deref(),
            Self::System(message) => message.id.as_deref(),
            Self::Remove(message) => message.id.as_deref(),
            Self::Other(_) => None,
        }
    }

    /// Decodes a message of this class or `type`.
    fn typed(class: &str, fields: &[u8]) -> Option<Self> {
        match class {
            "HumanMessage" | "human" => from_msgpack(fields).ok().map(Self::Human),
            "AIMessage" | "ai" => from_msgpack(fields).ok().map(Self::Ai),
            "ToolMessage" | "tool" => from_msgpack(fields).ok().map(Self::Tool),
            "SystemMessage" | "system" => from_msgpack(fields).ok().map(Self::System),
            "RemoveMessage" | "remove" => from_msgpack(fields).ok().map(Self::Remove),
            _ => None,
        }
    }

    fn from_object(payload: &[u8]) -> Option<Self> {
        let mut head = Reader::new(payload);
        match (head.token().ok()?, head.token().ok()?, head.token().ok()?) {
            (Token::Array(4), Token::Str(module), Token::Str(name)) if is_class(module, name) => {
                Self::typed(name, contents(5, payload).ok()?)
            }
            _ => None,
        }
    }
}

fn is_class(module: &str, name: &str) -> bool {
    let module = module.strip_prefix("langchain_core.messages.");
    matches!(
        (module, name),
        (Some("human"), "HumanMessage")
            | (Some("ai"), "AIMessage")
            | (Some("tool"), "ToolMessage")
            | (Some("system"), "SystemMessage")
            | (Some("modifier"), "RemoveMessage")
    )
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Human(message) => message.serialize(serializer),
            Self::Ai(message) => message.serialize(serializer),
            Self::Tool(message) => message.serialize(serializer),
            Self::System(message) => message.serialize(serializer),
            Self::Remove(message) => message.serialize(serializer),
            Self::Other(value) => value.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let typed = match &value {
            Value::Ext(5, payload) => Self::from_object(payload),
            Value::Map(_) => {
                let fields = value.to_msgpack().map_err(de::Error::custom)?;
                value.get("type").and_then(Value::as_str).and_then(|kind| Self::typed(kind, &fields))
            }
            _ => None,
        };
        Ok(typed.unwrap_or(Self::Other(value)))
    }
}

macro_rules! from {
    ($($variant:ident($type:ty)),*) => {$(
        impl From<$type> for Message {
            fn from(message: $type) -> Self {
                Self::$variant(message)
            }
        }
    )*};
}

from!(Human(HumanMessage), Ai(AiMessage), Tool(ToolMessage), System(SystemMessage), Remove(RemoveMessage));

fn text(content: &Value) -> Cow<'_, str> {
    match content {
        Value::Str(text) => Cow::Borrowed(text),
        Value::Array(blocks) => blocks.iter().filter_map(block_text).collect(),
        _ => Cow::Borrowed(""),
    }
}

fn block_text(block: &Value) -> Option<&str> {
    match block {
        Value::Str(text) => Some(text),
        _ if block.get("type")?.as_str()? == "text" => block.get("text")?.as_str(),
        _ => None,
    }
}
