//! `ckpt show`: the state at one checkpoint.

use std::io::Write as _;

use anstyle::Style;
use checkpoint_core::{CheckpointTuple, ListQuery, SaverExt as _, python};
use serde_json::{Map, Value as Json};

use crate::failure::{Exit, Failure};
use crate::history;
use crate::open::Saver;
use crate::{manage, text};

pub(crate) async fn run(
    saver: &Saver,
    thread: &str,
    id: Option<&str>,
    ns: Option<&str>,
    channel: Option<&str>,
    as_json: bool,
) -> Result<(), Failure> {
    let tuple = find(saver, thread, id, ns).await?;
    let values = &tuple.checkpoint.channel_values;
    if let Some(channel) = channel
        && !values.contains_key(channel)
        && !tuple.checkpoint.is_sealed()
    {
        let known: Vec<_> = values.keys().map(|name| text::short(name, 60)).collect();
        let channel = text::short(channel, 60);
        let message = format!("no channel {channel:?} at this checkpoint; there are: {}", known.join(", "));
        return Err(Failure::new(Exit::NotFound, message));
    }
    let channels: Map<String, Json> = values
        .iter()
        .filter(|(name, _)| channel.is_none_or(|channel| channel == &***name))
        .map(|(name, value)| (name.to_string(), text::project(value)))
        .collect();
    let metadata: Map<String, Json> =
        tuple.metadata.iter().map(|(name, value)| (name.to_string(), python::to_json(value))).collect();
    let mut record = history::record(&tuple);
    let mut out = anstream::stdout();
    if as_json {
        if let Json::Object(record) = &mut record {
            record.insert("channels".into(), Json::Object(channels));
            record.insert("metadata".into(), Json::Object(metadata));
        }
        writeln!(out, "{record}")?;
        return Ok(());
    }
    let (bold, dim) = (Style::new().bold(), Style::new().dimmed());
    if channel.is_none() {
        let step = tuple.metadata.step().map_or_else(|| "?".into(), |step| step.to_string());
        let source = text::line(tuple.metadata.source().unwrap_or("?"));
        let ns = tuple.config.checkpoint_ns();
        let place = if ns.is_empty() { String::new() } else { format!("  in {}", text::line(ns)) };
        let (id, ts) = (text::line(&tuple.checkpoint.id), text::line(&tuple.checkpoint.ts));
        writeln!(out, "{bold}step {step}{bold:#} {source}  {id}  {dim}{ts}{dim:#}{place}")?;
    }
    if tuple.checkpoint.is_sealed() {
        writeln!(out, "\nThe values are encrypted, no key: set LANGGRAPH_AES_KEY or give --key-file.")?;
    }
    for (name, value) in &channels {
        writeln!(out, "\n{bold}{}{bold:#}", text::line(name))?;
        print(&mut out, value)?;
    }
    if channel.is_some() {
        return Ok(());
    }
    if !tuple.pending_writes.is_empty() {
        writeln!(out, "\n{bold}Pending writes{bold:#}")?;
        for write in &tuple.pending_writes {
            let task = text::short(&write.task_id, 8);
            writeln!(out, "  task {task}  {}", text::line(&write.channel))?;
            print(&mut out, &text::project(&write.value))?;
        }
    }
    writeln!(out, "\n{bold}Metadata{bold:#}")?;
    for (name, value) in &metadata {
        writeln!(out, "  {}: {}", text::line(name), text::line(&value.to_string()))?;
    }
    Ok(())
}

async fn find(
    saver: &Saver,
    thread: &str,
    id: Option<&str>,
    ns: Option<&str>,
) -> Result<CheckpointTuple, Failure> {
    let mut query = ListQuery::thread(thread);
    match (ns, id) {
        (Some(ns), _) => {
            history::require_namespace(saver, thread, ns).await?;
            query = query.checkpoint_ns(ns);
        }
        (None, Some(_)) => manage::require(saver, thread).await?,
        (None, None) => {
            history::require_namespace(saver, thread, "").await?;
            query = query.checkpoint_ns("");
        }
    }
    if let Some(id) = id {
        query = query.checkpoint_id(id);
    }
    saver.list_first(query).await?.ok_or_else(|| {
        let id = text::short(id.unwrap_or_default(), 80);
        Failure::new(
            Exit::NotFound,
            format!("no checkpoint {id:?}; `ckpt history` lists the ids of this thread"),
        )
    })
}

/// The kind and text of a message, if a value is one.
fn message(value: &Json) -> Option<(&str, String)> {
    let kind = value.get("type")?.as_str()?;
    let content = value.get("content")?;
    value.get("additional_kwargs")?;
    let mut text = content.as_str().map_or_else(|| content.to_string(), ToOwned::to_owned);
    for call in value.get("tool_calls").and_then(Json::as_array).into_iter().flatten() {
        let name = call.get("name").and_then(Json::as_str).unwrap_or("?");
        let arguments = call.get("args").map(ToString::to_string).unwrap_or_default();
        text = format!("{text}\n→ {name}({arguments})");
    }
    Some((kind, text.trim_start().to_owned()))
}

fn print(out: &mut impl std::io::Write, value: &Json) -> Result<(), Failure> {
    let items = value.as_array().map_or_else(|| std::slice::from_ref(value), Vec::as_slice);
    if !items.is_empty() && items.iter().all(|item| message(item).is_some()) {
        for (kind, content) in items.iter().filter_map(message) {
            for (at, part) in content.split('\n').enumerate() {
                let who = if at == 0 { format!("{}:", text::line(kind)) } else { String::new() };
                writeln!(out, "  {who:<8} {}", text::line(part))?;
            }
        }
        return Ok(());
    }
    let pretty =
        serde_json::to_string_pretty(value).map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    for part in pretty.lines() {
        writeln!(out, "  {}", text::line(part))?;
    }
    Ok(())
}
