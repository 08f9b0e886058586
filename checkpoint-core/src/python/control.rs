//! Control flow of a graph: sends, interrupts, commands, delta snapshots.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, SerializeSeq, Serializer};
use serde::{Deserialize, Serialize};

use super::Fields;
use super::record::{Name, record};
use crate::{Str, Value};

/// A task for a node, with its input (`langgraph.types.Send`).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Send<T = Value> {
    /// The node.
    pub node: String,
    /// Its input.
    pub arg: T,
    /// The time limit (`TimeoutPolicy`), if there is one.
    pub timeout: Option<Value>,
}

impl<T> Send<T> {
    const CLASS: &str = "py:1:langgraph.types:Send";

    /// Creates a task without a time limit.
    pub fn new(node: impl Into<String>, arg: T) -> Self {
        Self { node: node.into(), arg, timeout: None }
    }
}

impl<T: Serialize> Serialize for Send<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Arguments<'a, T>(&'a Send<T>);
        impl<T: Serialize> Serialize for Arguments<'_, T> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let Send { node, arg, timeout } = self.0;
                let mut list = serializer.serialize_seq(Some(2 + usize::from(timeout.is_some())))?;
                list.serialize_element(node)?;
                list.serialize_element(arg)?;
                if let Some(timeout) = timeout {
                    list.serialize_element(timeout)?;
                }
                list.end()
            }
        }
        serializer.serialize_newtype_struct(Self::CLASS, &Arguments(self))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Send<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SendVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for SendVisitor<T> {
            type Value = Send<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a node and its input")
            }
            fn visit_newtype_struct<D: Deserializer<'de>>(
                self,
                deserializer: D,
            ) -> Result<Send<T>, D::Error> {
                deserializer.deserialize_seq(self)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Send<T>, A::Error> {
                let missing = |at| de::Error::invalid_length(at, &"a node and its input");
                let node = items.next_element()?.ok_or_else(|| missing(0))?;
                let arg = items.next_element()?.ok_or_else(|| missing(1))?;
                Ok(Send { node, arg, timeout: items.next_element()? })
            }
        }
        deserializer.deserialize_newtype_struct(Self::CLASS, SendVisitor(PhantomData))
    }
}

/// A pause of a run that waits for an answer (`langgraph.types.Interrupt`).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Interrupt<T = Value> {
    /// The question.
    pub value: T,
    /// The id that an answer refers to; interrupts of old versions have none.
    pub id: Option<String>,
    /// Further fields, such as `response_schema`.
    pub extra: Fields,
}

impl<T> Interrupt<T> {
    const CLASS: &str = "py:2:langgraph.types:Interrupt";
}

impl<T: Serialize> Serialize for Interrupt<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Contents<'a, T>(&'a Interrupt<T>);
        impl<T: Serialize> Serialize for Contents<'_, T> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let Interrupt { value, id, extra } = self.0;
                let len = 1 + usize::from(id.is_some()) + extra.len();
                let mut map = serializer.serialize_map(Some(len))?;
                map.serialize_entry("value", value)?;
                if let Some(id) = id {
                    map.serialize_entry("id", id)?;
                }
                for (name, value) in extra {
                    map.serialize_entry(name, value)?;
                }
                map.end()
            }
        }
        serializer.serialize_newtype_struct(Self::CLASS, &Contents(self))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Interrupt<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InterruptVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for InterruptVisitor<T> {
            type Value = Interrupt<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the fields of Interrupt")
            }
            fn visit_newtype_struct<D: Deserializer<'de>>(
                self,
                deserializer: D,
            ) -> Result<Interrupt<T>, D::Error> {
                deserializer.deserialize_map(self)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Interrupt<T>, A::Error> {
                let (mut value, mut id, mut extra) = (None, None, Fields::new());
                while let Some(Name(name)) = map.next_key()? {
                    match &*name {
                        "value" => value = Some(map.next_value()?),
                        "id" => id = map.next_value()?,
                        other => {
                            let name = Str::from(other);
                            extra.insert(name, map.next_value()?);
                        }
                    }
                }
                Ok(Interrupt { value: value.ok_or_else(|| de::Error::missing_field("value"))?, id, extra })
            }
        }
        deserializer.deserialize_newtype_struct(Self::CLASS, InterruptVisitor(PhantomData))
    }
}

/// An instruction of a node or caller to a graph (`langgraph.types.Command`).
#[derive(Debug, Clone, PartialEq)]
pub struct Command {
    /// The target graph; `__parent__` is the enclosing one.
    pub graph: Option<String>,
    /// The update of the state.
    pub update: Value,
    /// The answer to an interrupt, or answers by interrupt id.
    pub resume: Value,
    /// The next nodes: a node, a [`Send`], or a list of those.
    pub goto: Value,
    /// Further fields.
    pub extra: Fields,
}

impl Default for Command {
    fn default() -> Self {
        Self {
            graph: None,
            update: Value::Nil,
            resume: Value::Nil,
            goto: Value::Array(Vec::new()),
            extra: Fields::new(),
        }
    }
}

record!(Command, "py:2:langgraph.types:Command", [graph, update, resume, goto], []);

/// The whole value of a delta channel at one step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename = "py:7")]
pub struct DeltaSnapshot<T>(pub T);
