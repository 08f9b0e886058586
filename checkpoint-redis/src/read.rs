//! `get_tuple` and `get_delta_channel_history`.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use checkpoint_core::backend::jitter;
use checkpoint_core::backend::segments::Addresses;
use checkpoint_core::delta::{DeltaChannelHistory, HistoryWalk};
use checkpoint_core::{CheckpointConfig, CheckpointTuple, Error, ErrorKind, Result, Str};
use redis::Pipeline;

use crate::connection::Access;
use crate::error::BACKEND;
use crate::keys::{self, ThreadKeys, kind};
use crate::load::{self, Assembler, Loaded, Row, Segments};
use crate::reply::{self, Items};
use crate::row::{self, Document, Head};
use crate::script::{self, found};
use crate::shared::{Shared, text};
use crate::{list, repair};

/// How often a checkpoint is read again of which a part is not there.
const ATTEMPTS: usize = 6;

/// The most fields that the script for one checkpoint returns.
const MAX_INLINE_FIELDS: usize = 256;

/// How many ancestors one page of a history has.
const ANCESTORS: usize = 64;

/// What was found of a checkpoint.
enum Found<'a> {
    Nothing,
    IndexLost,
    DataLost,
    /// Small ones with everything.
    Row(Box<Row>, Option<Box<Loaded<'a>>>),
}

/// The error for a thread whose data is gone while its index is not.
pub(crate) fn data_lost(thread_id: &str) -> Error {
    let message = "the server has lost a part of the thread, probably by eviction: its maxmemory-policy must be noeviction; \
                   delete the thread";
    Error::new(ErrorKind::Backend, message).with("thread_id", thread_id)
}

/// Pauses before something is read again that is just being changed.
pub(crate) async fn pause() {
    tokio::time::sleep(Duration::from_millis(5).mul_f64(1.0 + 3.0 * jitter())).await;
}

/// Reads one tuple: one trip for a small one, otherwise two.
pub(crate) async fn get_tuple(shared: &Shared, config: &CheckpointConfig) -> Result<Option<CheckpointTuple>> {
    shared.ready().await?;
    let thread_id = config.thread_id();
    for _ in 0..ATTEMPTS {
        let (row, loaded) = match find(shared, config).await? {
            Found::Nothing => return Ok(None),
            Found::DataLost => return Err(data_lost(thread_id)),
            Found::IndexLost => {
                repair::repair(shared, thread_id).await?;
                continue;
            }
            Found::Row(row, loaded) => (row, loaded),
        };
        let mut loaded = if let Some(loaded) = loaded {
            *loaded
        } else {
            let all = load::values(shared, std::slice::from_ref(&row), Segments::Unknown).await?;
            all.into_values().next().unwrap_or_else(|| Loaded::new(shared, thread_id))
        };
        if let Some(tuple) = Assembler::new(shared, &mut loaded).tuple(&row)? {
            return Ok(Some(tuple));
        }
        pause().await;
    }
    Err(Error::codec("values of the checkpoint are missing")
        .with("thread_id", thread_id)
        .with("checkpoint_ns", config.checkpoint_ns()))
}

async fn find<'a>(shared: &'a Shared, config: &CheckpointConfig) -> Result<Found<'a>> {
    let keys = shared.keys.thread(config.thread_id());
    let ns = keys::namespace(config.checkpoint_ns());
    let suffix = config.checkpoint_id().map(|id| keys::of(config, id));
    if !shared.scripts {
        return find_by_steps(shared, config, &keys, suffix).await;
    }
    let limits =
        [shared.max_inline_bytes as u64, MAX_INLINE_FIELDS as u64, shared.read_ttl_millis()].map(text);
    let [bytes, fields, millis] = &limits;
    let args: [&[u8]; 5] = [&ns, suffix.as_deref().unwrap_or_default(), bytes, fields, millis];
    // A time to live that is set later needs no replica's confirmation.
    let reply = shared.connections.script(Access::Read, &script::GET, &keys.both(), &args).await?;
    let mut reply = Items::new(reply)?;
    match reply::integer(&reply.next())? {
        found::NOTHING => return Ok(Found::Nothing),
        found::INDEX_LOST => return Ok(Found::IndexLost),
        found::DATA_LOST => return Ok(Found::DataLost),
        found::CHECKPOINT => {}
        _ => return Err(Error::unsupported(BACKEND, "get_tuple")),
    }
    let (ns, id) = keys::read_checkpoint(&reply::bytes(reply.next())?)?;
    let head = Head::read(&reply::bytes(reply.next())?)?;
    let mut row = Row::new(config.thread_id(), ns, id, head);
    row.document = reply::bytes(reply.next())?;
    row.writes = reply::list(reply.next())?;
    row.lists = reply::list(reply.next())?.into_iter().map(Addresses::new).collect::<Result<_>>()?;
    let values = reply.next();
    if values == redis::Value::Nil {
        return Ok(Found::Row(Box::new(row), None));
    }
    let (values, addresses, segments) =
        (reply::optionals(values)?, reply::list(reply.next())?, reply::optionals(reply.next())?);
    let fields = row.writes.iter().cloned().chain(row.fields(kind::BLOB).map(Bytes::from));
    let mut loaded = Loaded::new(shared, config.thread_id());
    loaded.fields = fields.zip(values).filter_map(|(field, value)| Some((field, value?))).collect();
    for (address, segment) in addresses.into_iter().zip(segments) {
        let address = Addresses::new(address)?.iter().next();
        if let Some((address, segment)) = address.zip(segment) {
            loaded.reader.add(address, row::read_value(&segment)?);
        }
    }
    Ok(Found::Row(Box::new(row), Some(Box::new(loaded))))
}

/// Without scripts: the newest id, then metadata, then the rest.
async fn find_by_steps<'a>(
    shared: &'a Shared,
    config: &CheckpointConfig,
    keys: &ThreadKeys,
    suffix: Option<Vec<u8>>,
) -> Result<Found<'a>> {
    let (hash, index) = (&keys.hash, &keys.index);
    let mut commands = Pipeline::new();
    commands.cmd("HEXISTS").arg(hash).arg(kind::GENERATION);
    commands.cmd("EXISTS").arg(index);
    keys.expire(&mut commands, shared.read_ttl_millis());
    let skipped = if shared.read_ttl_millis() > 0 { 2 } else { 0 };
    let metadata = |suffix: &[u8]| keys::name(kind::METADATA, &[suffix]);
    if let Some(suffix) = &suffix {
        commands.cmd("ZSCORE").arg(index).arg(keys::name(kind::CHECKPOINT, &[suffix]));
        commands.cmd("HGET").arg(hash).arg(metadata(suffix));
    } else {
        let all = keys::name(kind::CHECKPOINT, &[&keys::namespace(config.checkpoint_ns())]);
        let (from, to) = list::bounds(&all);
        commands.cmd("ZREVRANGEBYLEX").arg(index).arg(from).arg(to).arg("LIMIT").arg(0).arg(1);
    }
    let mut replies = Items::of(shared.connections.pipeline(Access::Read, hash, &commands).await?);
    let has_data = reply::integer(&replies.next())? == 1;
    let has_index = reply::integer(&replies.next())? == 1;
    (0..skipped).for_each(|_| {
        replies.next();
    });
    let nothing = || match (has_data, has_index) {
        (true, false) => Found::IndexLost,
        (false, true) => Found::DataLost,
        _ => Found::Nothing,
    };
    let (suffix, head) = if let Some(suffix) = suffix {
        if replies.next() == redis::Value::Nil {
            return Ok(nothing());
        }
        (suffix, reply::optional(replies.next())?)
    } else {
        let Some(newest) = reply::list(replies.next())?.pop() else { return Ok(nothing()) };
        let suffix = newest.slice(1..).to_vec();
        let mut read = redis::cmd("HGET");
        read.arg(hash).arg(metadata(&suffix));
        let head = reply::optional(shared.read(&read).await?)?;
        (suffix, head)
    };
    let Some(head) = head else {
        // Pruned at this moment, or lost.
        return Ok(if has_data { Found::Nothing } else { Found::DataLost });
    };
    let (ns, id) = keys::read_checkpoint(&suffix)?;
    let mut row = Row::new(config.thread_id(), ns, id, Head::read(&head)?);
    load::details(shared, std::slice::from_mut(&mut row)).await?;
    Ok(Found::Row(Box::new(row), None))
}

/// Walks from the parent of the target to the root: three trips per page of ancestors.
pub(crate) async fn delta_history(
    shared: &Shared,
    config: &CheckpointConfig,
    channels: &[&str],
) -> Result<BTreeMap<Str, DeltaChannelHistory>> {
    let mut walk = HistoryWalk::new(channels);
    if walk.unseeded().is_empty() {
        return Ok(walk.finish());
    }
    shared.ready().await?;
    let mut start = config.checkpoint_id().map(Str::from);
    let mut is_target = true;
    loop {
        let mut rows = ancestors(shared, config, start.as_deref().unwrap_or_default()).await?;
        let is_first = is_target;
        if is_target {
            if rows.is_empty() {
                match find(shared, config).await? {
                    Found::DataLost => return Err(data_lost(config.thread_id())),
                    Found::IndexLost => repair::repair(shared, config.thread_id()).await?,
                    Found::Nothing => break,
                    Found::Row(..) => pause().await,
                }
                continue;
            }
            let target = rows.remove(0);
            walk.go_to(target.head.parent());
            is_target = false;
        }
        visit(shared, &mut walk, rows).await?;
        let Some(next) = walk.next() else { break };
        // Where parents form a cycle, the target is its own ancestor.
        if !is_first && start.as_ref() == Some(next) {
            // It is not stored.
            break;
        }
        start = Some(next.clone());
    }
    Ok(walk.finish())
}

/// Adds ancestors to a walk.
async fn visit(shared: &Shared, walk: &mut HistoryWalk, mut rows: Vec<Row>) -> Result<()> {
    load::details(shared, &mut rows).await?;
    // Those behind the one where every channel has a value are not needed.
    let mut open: Vec<Str> = walk.unseeded().into_iter().map(Str::from).collect();
    let mut documents = Vec::new();
    for row in &rows {
        if open.is_empty() {
            break;
        }
        let read = Document::read(shared.values(), row.key(), &row.head.names, &row.document);
        let Some(document) = read.map_err(row.key().context())? else { break };
        let summary = document.summary();
        open.retain(|channel| !summary.values.contains_key(channel));
        documents.push(document);
    }
    rows.truncate(documents.len());
    let loaded = load::values(shared, &rows, Segments::Unknown).await?;
    let Some(mut loaded) = loaded.into_values().next() else { return Ok(()) };
    for (row, document) in rows.iter().zip(documents) {
        if walk.next() != Some(&row.checkpoint_id) {
            break;
        }
        let mut assembler = Assembler::new(shared, &mut loaded);
        let missing =
            || row.key().context()(Error::codec("a part of the checkpoint is missing; read it again"));
        let writes = assembler.writes(row)?.ok_or_else(missing)?;
        let mut values = HashMap::new();
        for channel in walk.unseeded() {
            let at =
                document.named.iter().position(|named| named.name.is_some() && *named.channel == *channel);
            let value = match at {
                Some(at) => Some(assembler.value(row, &document, at)?.ok_or_else(missing)?),
                None => document.checkpoint.channel_values.get(channel).cloned(),
            };
            values.extend(value.map(|value| (Str::from(channel), value)));
        }
        walk.visit(row.head.parent(), &writes, |channel| values.remove(channel));
    }
    Ok(())
}

/// A checkpoint and its ancestors, nearest first, as far as they are stored.
async fn ancestors(shared: &Shared, config: &CheckpointConfig, from: &str) -> Result<Vec<Row>> {
    let keys = shared.keys.thread(config.thread_id());
    let ns = keys::namespace(config.checkpoint_ns());
    if !shared.scripts {
        let config = if from.is_empty() { config.clone().latest() } else { config.for_checkpoint(from) };
        let suffix = config.checkpoint_id().map(|id| keys::of(&config, id));
        let found = find_by_steps(shared, &config, &keys, suffix).await?;
        let Found::Row(found, _) = found else { return Ok(Vec::new()) };
        return Ok(vec![*found]);
    }
    let count = text(ANCESTORS);
    let args: [&[u8]; 3] = [&ns, from.as_bytes(), &count];
    let reply = shared.connections.script(Access::Read, &script::WALK, &keys.both(), &args).await?;
    let mut rows = Vec::new();
    let mut items = reply::list(reply)?.into_iter();
    while let (Some(id), Some(head)) = (items.next(), items.next()) {
        let id = std::str::from_utf8(&id).map_err(|_| Error::codec("a checkpoint's id is damaged"))?;
        rows.push(Row::new(config.thread_id(), config.checkpoint_ns().into(), id.into(), Head::read(&head)?));
    }
    Ok(rows)
}
