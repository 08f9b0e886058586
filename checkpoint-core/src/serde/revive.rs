//! Objects under the legacy `json` tag.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{MAX_DEPTH, Value, from_msgpack, to_msgpack};
use crate::python::{AiMessage, HumanMessage, Object, RemoveMessage, SystemMessage, ToolMessage};

/// Converts the objects of the legacy `json` tag (`lc`, `type`, `id`, …) to the extensions that are written today.
///
/// Nothing is constructed. Maps that are no such object, or have no counterpart, are unchanged.
pub fn revive(value: Value) -> Value {
    revive_within(value, 0)
}

fn revive_within(value: Value, depth: usize) -> Value {
    if depth >= MAX_DEPTH {
        return value;
    }
    match value {
        Value::Array(items) => {
            Value::Array(items.into_iter().map(|item| revive_within(item, depth + 1)).collect())
        }
        Value::Map(entries) => {
            let entries = entries.into_iter().map(|(key, value)| (key, revive_within(value, depth + 1)));
            let map = Value::Map(entries.collect());
            object(&map).unwrap_or(map)
        }
        scalar => scalar,
    }
}

/// The extension or bytes of an object of LangChain (`lc` 1) or LangGraph (`lc` 2).
fn object(map: &Value) -> Option<Value> {
    let lc = map.get("lc")?.as_i64()?;
    if map.get("type")?.as_str()? != "constructor" {
        return None;
    }
    let id = map.get("id")?.as_array()?.iter().map(Value::as_str).collect::<Option<Vec<_>>>()?;
    let (name, path) = id.split_last()?;
    let none = Value::Nil;
    let kwargs = map.get("kwargs").unwrap_or(&none);
    match lc {
        1 if matches!(path, ["langchain" | "langchain_core", ..]) => langchain(name, kwargs),
        2 if matches!(path, ["langchain_core", "messages" | "documents", ..]) => langchain(name, kwargs),
        2 if !path.is_empty() => {
            let args = match map.get("args") {
                None | Some(Value::Nil) => &[],
                Some(args) => args.as_array()?,
            };
            let kwargs = if kwargs.is_nil() { &[] } else { kwargs.as_map()? };
            let method = map.get("method").unwrap_or(&none);
            Call { module: path.join("."), name, args, kwargs }.object(method)
        }
        _ => None,
    }
}

/// The constructor call of an object.
struct Call<'a> {
    module: String,
    name: &'a str,
    args: &'a [Value],
    kwargs: &'a [(Value, Value)],
}

impl Call<'_> {
    fn object(self, method: &Value) -> Option<Value> {
        let is_set = |entries: &[(Value, Value)]| !entries.is_empty();
        match (self.module.as_str(), self.name, method, self.args) {
            ("datetime", "datetime", Value::Str(method), [text @ Value::Str(_)])
                if method == "fromisoformat" =>
            {
                let (text, method) = (text.clone(), method.as_str().into());
                self.extension(3, text, vec![method])
            }
            ("builtins", "bytes", Value::Str(method), [Value::Str(hex)]) if method == "fromhex" => {
                unhex(hex).map(Value::Bin)
            }
            (_, _, Value::Array(methods), []) => {
                let kwargs = Value::Map(self.kwargs.to_vec());
                match methods.iter().filter_map(Value::as_str).next_back()? {
                    "model_construct" => self.extension(5, kwargs, vec!["model_validate_json".into()]),
                    "construct" => self.extension(4, kwargs, vec![]),
                    _ => None,
                }
            }
            (_, _, Value::Nil, args) => match args {
                _ if self.module == "datetime" && self.name == "time" => self.time(),
                _ if matches!(self.module.as_str(), "langgraph.types" | "langgraph.constants")
                    && self.name == "Send" =>
                {
                    self.send()
                }
                [] if is_set(self.kwargs) => {
                    let kwargs = Value::Map(self.kwargs.to_vec());
                    self.extension(2, kwargs, vec![])
                }
                _ if is_set(self.kwargs) => None,
                [single] if !self.always_positional() => {
                    let single = single.clone();
                    self.extension(0, single, vec![])
                }
                args => {
                    let args = Value::Array(args.to_vec());
                    self.extension(1, args, vec![])
                }
            },
            _ => None,
        }
    }

    /// Whether the class's arguments are always a list, even a single one.
    fn always_positional(&self) -> bool {
        matches!(
            (self.module.as_str(), self.name),
            ("datetime" | "pathlib" | "pathlib._local", _) | ("re", "compile")
        )
    }

    fn time(self) -> Option<Value> {
        const NAMES: [&str; 6] = ["hour", "minute", "second", "microsecond", "tzinfo", "fold"];
        let given = |(at, name): (usize, &str)| {
            let by_name = || self.kwargs.iter().find(|(key, _)| key.as_str() == Some(name));
            let value = self.args.get(at).or_else(|| by_name().map(|(_, value)| value)).cloned();
            let default = if name == "tzinfo" { Value::Nil } else { Value::Int(0) };
            (Value::from(name), value.unwrap_or(default))
        };
        let fields = NAMES.into_iter().enumerate().map(given).collect();
        self.extension(2, Value::Map(fields), vec![])
    }

    fn send(self) -> Option<Value> {
        let by_name =
            |name| self.kwargs.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value);
        let node = self.args.first().or_else(|| by_name("node"))?.clone();
        let arg = self.args.get(1).or_else(|| by_name("arg"))?.clone();
        Self { module: "langgraph.types".into(), ..self }.extension(1, Value::Array(vec![node, arg]), vec![])
    }

    fn extension(self, code: i8, contents: Value, trailing: Vec<Value>) -> Option<Value> {
        let name = match (self.module.as_str(), self.name) {
            // Python constructs its platform's class, and writes that.
            ("pathlib", "Path") => "PosixPath",
            (_, name) => name,
        };
        Object { code, module: self.module, name: name.into(), contents, trailing }.to_value().ok()
    }
}

/// A LangChain message or document, with all of its fields in today's order.
fn langchain(name: &str, kwargs: &Value) -> Option<Value> {
    let fields = kwargs.as_map()?;
    let module = match name.trim_end_matches("Chunk") {
        "HumanMessage" => "langchain_core.messages.human",
        "AIMessage" => "langchain_core.messages.ai",
        "ToolMessage" => "langchain_core.messages.tool",
        "SystemMessage" => "langchain_core.messages.system",
        "RemoveMessage" => "langchain_core.messages.modifier",
        "ChatMessage" => "langchain_core.messages.chat",
        "FunctionMessage" => "langchain_core.messages.function",
        "Document" => "langchain_core.documents.base",
        _ => return None,
    };
    match name {
        "HumanMessage" => typed::<HumanMessage>(kwargs),
        "AIMessage" => typed::<AiMessage>(kwargs),
        "ToolMessage" => typed::<ToolMessage>(kwargs),
        "SystemMessage" => typed::<SystemMessage>(kwargs),
        "RemoveMessage" => typed::<RemoveMessage>(kwargs),
        _ => {
            let contents = if name == "Document" { document(kwargs)? } else { fields.to_vec() };
            let (contents, trailing) = (Value::Map(contents), vec!["model_validate_json".into()]);
            Object { code: 5, module: module.into(), name: name.into(), contents, trailing }.to_value().ok()
        }
    }
}

fn typed<T: Serialize + DeserializeOwned>(kwargs: &Value) -> Option<Value> {
    kwargs.get("content")?;
    let message: T = from_msgpack(&kwargs.to_msgpack().ok()?).ok()?;
    Value::from_msgpack(&to_msgpack(&message).ok()?).ok()
}

fn document(kwargs: &Value) -> Option<Vec<(Value, Value)>> {
    let or = |name: &str, default| (name.into(), kwargs.get(name).cloned().unwrap_or(default));
    let text = kwargs.get("page_content")?.clone();
    Some(vec![
        or("id", Value::Nil),
        or("metadata", Value::Map(vec![])),
        ("page_content".into(), text),
        or("type", "Document".into()),
    ])
}

fn unhex(text: &str) -> Option<Bytes> {
    let digits = text.chars().map(|digit| digit.to_digit(16)).collect::<Option<Vec<_>>>()?;
    let pairs = digits.chunks(2).map(|pair| match pair {
        [high, low] => u8::try_from(high << 4 | low).ok(),
        _ => None,
    });
    pairs.collect()
}
