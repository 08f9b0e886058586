//! `ckpt show`: prints the values of a checkpoint.

use std::io::Write;

use checkpoint_core::python::{self, Message};
use checkpoint_core::{ChannelValue, CheckpointConfig, CheckpointTuple, ListQuery, SaverExt, Value};
use serde_json::{Value as Json, json};

use super::history::task;
use super::{describe, is_sealed, nothing_in};
use crate::failure::{Failure, GIVE_KEY, Result};
use crate::open::Saver;
use crate::output::{
    self, BAD, BOLD, DIM, GOOD, ID, NAME, clean, json_line, namespace, stdout, styled, time,
};

/// The hint for a delta channel without a snapshot.
const IN_WRITES: &str = "its value is in the pending writes since the last one, see `ckpt history`";

/// The arguments of `show`.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) thread: String,
    pub(crate) id: Option<String>,
    pub(crate) channel: Option<String>,
    pub(crate) ns: Option<String>,
}

pub(crate) async fn run(saver: &Saver, asked: &Asked, json: bool) -> Result<()> {
    let Some(tuple) = find(saver, asked).await? else { return Err(missing(saver, asked).await) };
    let checkpoint = &tuple.checkpoint;
    if let Some(channel) = &asked.channel
        && !checkpoint.channel_values.contains_key(channel.as_str())
        && !checkpoint.is_sealed()
    {
        if tuple.metadata.delta_channels().any(|delta| delta == channel) {
            return Err(Failure::not_found(format!(
                "channel {} is a delta channel without a snapshot here; {IN_WRITES}",
                clean(channel)
            )));
        }
        let known: Vec<_> = checkpoint.channel_values.keys().map(|name| clean(name)).collect();
        return Err(Failure::not_found(format!(
            "the checkpoint has no value in channel {}; it has values in: {}",
            clean(channel),
            known.join(", ")
        )));
    }
    let sealed = |channel: &String| {
        let value = checkpoint.channel_values.get(channel.as_str());
        checkpoint.is_sealed() || matches!(value, Some(ChannelValue::Blob(blob)) if blob.is_sealed())
    };
    if asked.channel.as_ref().is_some_and(sealed) {
        return Err(Failure::sealed(format!("the values are encrypted; {GIVE_KEY}")));
    }
    let mut out = stdout();
    if json {
        print_json(&mut out, asked, &tuple)?;
    } else {
        print(&mut out, asked, &tuple)?;
    }
    Ok(out.flush()?)
}

async fn find(saver: &Saver, asked: &Asked) -> Result<Option<CheckpointTuple>> {
    let root = CheckpointConfig::new(asked.thread.as_str());
    Ok(match (&asked.id, &asked.ns) {
        (None, ns) => saver.get_tuple(&root.with_checkpoint_ns(ns.as_deref().unwrap_or_default())).await?,
        (Some(id), Some(ns)) => {
            saver.get_tuple(&root.with_checkpoint_ns(ns.as_str()).with_checkpoint_id(id.as_str())).await?
        }
        // An id is rarely in two namespaces of one thread; then either will do.
        (Some(id), None) => {
            saver.list_first(ListQuery::thread(asked.thread.as_str()).checkpoint_id(id.as_str())).await?
        }
    })
}

/// The failure for a missing checkpoint; it lists what exists.
async fn missing(saver: &Saver, asked: &Asked) -> Failure {
    let Some(id) = &asked.id else {
        return nothing_in(saver, &asked.thread, Some(asked.ns.as_deref().unwrap_or_default())).await;
    };
    match saver.list_first(ListQuery::thread(asked.thread.as_str())).await {
        Ok(Some(_)) => Failure::not_found(format!(
            "thread {} has no checkpoint {}{}; `ckpt history` lists the existing ones",
            output::thread(&asked.thread),
            clean(id),
            asked.ns.as_deref().map(|ns| format!(" in namespace {}", namespace(ns))).unwrap_or_default()
        )),
        Ok(None) => nothing_in(saver, &asked.thread, None).await,
        Err(error) => error.into(),
    }
}

fn channels<'a>(
    asked: &'a Asked,
    tuple: &'a CheckpointTuple,
) -> impl Iterator<Item = (&'a str, &'a ChannelValue)> {
    let values = tuple.checkpoint.channel_values.iter().map(|(name, value)| (&**name, value));
    values.filter(|(name, _)| asked.channel.as_deref().is_none_or(|wanted| wanted == *name))
}

/// The decoded value, or why it cannot be decoded.
fn decode(value: &ChannelValue) -> Result<Value, String> {
    match value {
        ChannelValue::Blob(blob) if blob.is_sealed() => Err("encrypted, no key".into()),
        value => value.to_value().map_err(|error| error.to_string()),
    }
}

fn decode_json(value: &ChannelValue) -> Json {
    match decode(value) {
        Ok(value) => python::to_json(&value),
        Err(why) => json!({ "$error": why }),
    }
}

fn print_json(out: &mut impl Write, asked: &Asked, tuple: &CheckpointTuple) -> Result<()> {
    let values = channels(asked, tuple).map(|(name, value)| (name.to_owned(), decode_json(value)));
    let versions = tuple.checkpoint.channel_versions.iter();
    let versions = versions.map(|(name, version)| (name.to_string(), json!(version)));
    let mut line = describe(tuple, |write| Some(decode_json(&write.value)));
    line.insert("channels".into(), Json::Object(values.collect()));
    line.insert("channel_versions".into(), Json::Object(versions.collect()));
    json_line(out, &Json::Object(line))
}

fn print(out: &mut impl Write, asked: &Asked, tuple: &CheckpointTuple) -> Result<()> {
    let checkpoint = &tuple.checkpoint;
    if asked.channel.is_none() {
        let field = |name: &str, value: String| format!("{} {value}", styled(DIM, format!("{name:<10}")));
        writeln!(out, "{}", field("thread", styled(BOLD, output::thread(tuple.config.thread_id()))))?;
        writeln!(out, "{}", field("namespace", namespace(tuple.config.checkpoint_ns()).into_owned()))?;
        writeln!(out, "{}", field("checkpoint", styled(ID, clean(&checkpoint.id))))?;
        let parent = tuple.parent_checkpoint_id().map_or_else(|| "none".into(), |id| clean(id).into_owned());
        writeln!(out, "{}", field("parent", parent))?;
        writeln!(out, "{}", field("time", time(&checkpoint.ts, &checkpoint.id)))?;
        for (key, value) in tuple.metadata.iter() {
            writeln!(out, "{}", field(&clean(key), clean(&python::to_json(value).to_string()).into_owned()))?;
        }
        writeln!(out)?;
    }
    if is_sealed(tuple) {
        writeln!(out, "{}", styled(BAD, format!("The values are encrypted; {GIVE_KEY}.")))?;
    }
    let mut several = false;
    for (name, value) in channels(asked, tuple) {
        if asked.channel.is_none() {
            let version =
                checkpoint.channel_versions.get(name).map(|version| format!(" v{}", version.major()));
            if std::mem::replace(&mut several, true) {
                writeln!(out)?;
            }
            writeln!(out, "{}{}", styled(NAME, clean(name)), styled(DIM, version.unwrap_or_default()))?;
        }
        print_value(out, value, "  ")?;
    }
    let deltas =
        tuple.metadata.delta_channels().filter(|name| !checkpoint.channel_values.contains_key(*name));
    for name in deltas.filter(|_| asked.channel.is_none() && !checkpoint.is_sealed()) {
        writeln!(
            out,
            "\n{}\n  {}",
            styled(NAME, clean(name)),
            styled(DIM, format!("no snapshot here; {IN_WRITES}"))
        )?;
    }
    if !tuple.pending_writes.is_empty() && asked.channel.is_none() {
        writeln!(out, "\n{}", styled(BOLD, "pending writes"))?;
        for write in &tuple.pending_writes {
            let task = task(&write.task_path, &write.task_id);
            writeln!(out, "  {} {}", styled(GOOD, task), styled(NAME, clean(&write.channel)))?;
            print_value(out, &write.value, "    ")?;
        }
    }
    Ok(())
}

fn print_value(out: &mut impl Write, value: &ChannelValue, indent: &str) -> Result<()> {
    let value = match decode(value) {
        Ok(value) => value,
        Err(why) => {
            writeln!(out, "{indent}{}", styled(BAD, clean(&why)))?;
            return Ok(());
        }
    };
    if let Some(messages) = chat(&value) {
        return messages.iter().try_for_each(|message| print_message(out, message, indent));
    }
    let json = python::to_json(&value);
    let text = match &json {
        Json::String(text) => text.clone(),
        json => serde_json::to_string_pretty(json)?,
    };
    print_lines(out, &text, indent)
}

fn print_lines(out: &mut impl Write, text: &str, indent: &str) -> Result<()> {
    for line in text.lines() {
        writeln!(out, "{indent}{}", clean(line))?;
    }
    if text.is_empty() {
        writeln!(out, "{indent}{}", styled(DIM, "(empty)"))?;
    }
    Ok(())
}

/// The messages, if the value is a message or a list of only messages.
fn chat(value: &Value) -> Option<Vec<Message>> {
    let one = |value: &Value| {
        let message: Message = ChannelValue::encode(value).ok()?.decode().ok()?;
        let is_message = match (&message, value) {
            (Message::Other(_), _) => false,
            // A plain map is a message only if it has the field that every message has.
            (_, Value::Map(_)) => value.get("content").is_some(),
            _ => true,
        };
        is_message.then_some(message)
    };
    match value {
        Value::Array(items) if !items.is_empty() => items.iter().map(one).collect(),
        Value::Array(_) => None,
        other => one(other).map(|message| vec![message]),
    }
}

fn print_message(out: &mut impl Write, message: &Message, indent: &str) -> Result<()> {
    let who = match message {
        Message::Human(_) => "human",
        Message::Ai(_) => "ai",
        Message::Tool(_) => "tool",
        Message::System(_) => "system",
        Message::Remove(_) => "remove",
        _ => "other",
    };
    let text = message.text();
    let mut lines = text.lines();
    let first = match (message, lines.next()) {
        (Message::Remove(_), _) => clean(message.id().unwrap_or_default()).into_owned(),
        (_, first) => clean(first.unwrap_or_default()).into_owned(),
    };
    writeln!(out, "{indent}{} {first}", styled(GOOD, format!("{:<7}", format!("{who}:"))))?;
    for line in lines {
        writeln!(out, "{indent}        {}", clean(line))?;
    }
    if let Message::Ai(message) = message {
        for call in &message.tool_calls {
            let args = Value::Map(
                call.args.iter().map(|(key, value)| (Value::from(&**key), value.clone())).collect(),
            );
            let call = format!("{}({})", clean(&call.name), clean(&python::to_json(&args).to_string()));
            writeln!(out, "{indent}        {} {call}", styled(DIM, "calls"))?;
        }
    }
    Ok(())
}
