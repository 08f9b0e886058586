//! Messages of langchain.

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
            /// What the model's provider added.
            pub additional_kwargs: Fields,
            /// How the answer came about: model, reason for its end and so on.
            pub response_metadata: Fields,
            /// Who speaks.
            pub name: Option<String>,
            /// The id, by which a message is replaced or removed.
            pub id: Option<String>,
            $($(#[$field_doc])* pub $field: $field_type,)*
            /// Further fields, written back behind the known ones.
            pub extra: Fields,
        }

        impl $type {
            /// The text of the message: the content, or its text blocks joined.
            pub fn text(&self) -> Cow<'_, str> {
                text(&self.content)
            }

            /// Gives the message an id.
            #[must_use]
            pub fn with_id(mut self, id: impl Into<String>) -> Self {
                self.id = Some(id.into());
                self
            }
        }
    };
}

message! {
    /// What a person said.
    HumanMessage {}
}

message! {
    /// What a model said.
    AiMessage {
        /// The tools to be called.
        tool_calls: Vec<ToolCall>,
        /// Calls that the model wrote in a form that could not be read.
        invalid_tool_calls: Vec<InvalidToolCall>,
        /// What it cost.
        usage_metadata: Option<UsageMetadata>,
    }
}

message! {
    /// What a tool answered.
    ToolMessage {
        /// The call that is answered.
        tool_call_id: String,
        /// What the tool made beside the text for the model.
        artifact: Value,
        /// `success` or `error`.
        status: String,
    }
}

message! {
    /// What the model is told to be.
    SystemMessage {}
}

message! {
    /// Takes the message with its id out of the list.
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
    /// A message of this text or these content blocks.
    pub fn new(content: impl Into<Value>) -> Self {
        Self { content: content.into(), ..Self::default() }
    }
}

impl AiMessage {
    /// A message of this text or these content blocks.
    pub fn new(content: impl Into<Value>) -> Self {
        Self { content: content.into(), ..Self::default() }
    }
}

impl SystemMessage {
    /// A message of this text or these content blocks.
    pub fn new(content: impl Into<Value>) -> Self {
        Self { content: content.into(), ..Self::default() }
    }
}

impl ToolMessage {
    /// The successful answer to a call.
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
    /// Removes the message with this id.
    pub fn new(id: impl Into<String>) -> Self {
        Self { content: "".into(), id: Some(id.into()), ..Self::default() }
    }
}

/// A tool to be called.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolCall {
    /// The tool.
    pub name: String,
    /// Its arguments.
    pub args: Fields,
    /// The id that the answer refers to.
    pub id: Option<String>,
    /// Further fields.
    pub extra: Fields,
}

record!(ToolCall, "ToolCall", [name, args, id], "tool_call", []);

/// A call that could not be read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InvalidToolCall {
    /// The id.
    pub id: Option<String>,
    /// The tool.
    pub name: Option<String>,
    /// The arguments as the model wrote them.
    pub args: Option<String>,
    /// What is wrong with them.
    pub error: Option<String>,
    /// Further fields.
    pub extra: Fields,
}

record!(InvalidToolCall, "InvalidToolCall", [], "invalid_tool_call", [id, name, args, error]);

/// How many tokens an answer took.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UsageMetadata {
    /// Tokens read.
    pub input_tokens: i64,
    /// Tokens written.
    pub output_tokens: i64,
    /// Both.
    pub total_tokens: i64,
    /// Further fields, such as `input_token_details`.
    pub extra: Fields,
}

record!(UsageMetadata, "UsageMetadata", [input_tokens, output_tokens, total_tokens], []);

/// Any message.
///
/// It is read from a message object, or from a plain map by its `type`. What is no message of a known class, or
/// does not fit it, is kept as it is.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Message {
    /// What a person said.
    Human(HumanMessage),
    /// What a model said.
    Ai(AiMessage),
    /// What a tool answered.
    Tool(ToolMessage),
    /// What the model is told to be.
    System(SystemMessage),
    /// Takes another message out of the list.
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

    /// The message that stands in these fields, by the class or `type` given.
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
