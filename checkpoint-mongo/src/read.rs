//! `get_tuple` and `get_delta_channel_history`.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use checkpoint_core::backend::{CheckpointKey, jitter};
use checkpoint_core::delta::{DeltaChannelHistory, HistoryWalk};
use checkpoint_core::{CheckpointConfig, CheckpointTuple, Error, Result, Str};
use futures_util::future::try_join;

use crate::client::Find;
use crate::keys::{ThreadKeys, kind};
use crate::load::{self, Ahead, Assembler, Row, TUPLE};
use crate::row::Document;
use crate::shared::Shared;

/// How often a checkpoint is read again of which a part is not there.
const ATTEMPTS: usize = 6;

/// How many ancestors one page of a history has.
const ANCESTORS: usize = 64;

/// Pauses before something is read again that is just being changed.
pub(crate) async fn pause() {
    tokio::time::sleep(Duration::from_millis(5).mul_f64(1.0 + 3.0 * jitter())).await;
}

/// Reads one tuple.
pub(crate) async fn get_tuple(shared: &Shared, config: &CheckpointConfig) -> Result<Option<CheckpointTuple>> {
    shared.ready().await?;
    let thread_id = config.thread_id();
    let mut guess = Some(guess(shared, config));
    for _ in 0..ATTEMPTS {
        let ahead = guess.take();
        let ahead = async {
            match ahead {
                Some(ahead) => ahead.await,
                None => Ok(Ahead::default()),
            }
        };
        let (row, ahead) = try_join(find(shared, config), ahead).await?;
        let Some(row) = row else { return Ok(None) };
        let mut rows = [row];
        let mut loaded = load::details_after(shared, thread_id, &mut rows, TUPLE, ahead).await?;
        let mut assembler = Assembler::new(shared, thread_id, &mut loaded);
        let [row] = &rows;
        if let Some(tuple) = assembler.tuple(row)? {
            shared.remember(thread_id, &row.checkpoint_ns, assembler.known(row));
            if shared.refresh_on_read {
                shared.raise(thread_id).await?;
            }
            return Ok(Some(tuple));
        }
        pause().await;
    }
    Err(Error::codec("values of the checkpoint are missing")
        .with("thread_id", thread_id)
        .with("checkpoint_ns", config.checkpoint_ns()))
}

/// Reads what a checkpoint probably refers to: the newest one that this process knows, if there is no newer one.
async fn guess(shared: &Shared, config: &CheckpointConfig) -> Result<Ahead> {
    let (thread_id, ns) = (config.thread_id(), config.checkpoint_ns());
    let known = match config.checkpoint_id() {
        Some(id) => shared.known(thread_id, ns, id),
        None => shared.newest(thread_id, ns),
    };
    let known_id = known.as_ref().map(|known| &*known.checkpoint_id);
    let Some(id) = config.checkpoint_id().or(known_id) else { return Ok(Ahead::default()) };
    let names = known.iter().flat_map(|known| known.values.keys());
    Ahead::read(shared, CheckpointKey::new(thread_id, ns, id), names).await
}

/// The document of a checkpoint: that of the config, or the newest one.
async fn find(shared: &Shared, config: &CheckpointConfig) -> Result<Option<Row>> {
    let (thread_id, ns) = (config.thread_id(), config.checkpoint_ns());
    let keys = ThreadKeys::new(thread_id);
    let found = if let Some(id) = config.checkpoint_id() {
        shared.mongo.get(thread_id, &keys.checkpoint(ns, id), None).await?
    } else {
        let filter = shared.mongo.in_range(thread_id, &keys.of_namespace(kind::CHECKPOINT, ns));
        shared.mongo.find(Find { filter, descending: true, limit: 1, ..Find::default() }).await?.pop()
    };
    found.map_or(Ok(None), Row::read)
}

/// Walks from the parent of the target to the root, a page of ancestors at a time.
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
    let Some(target) = find(shared, config).await? else { return Ok(walk.finish()) };
    walk.go_to(target.parent);
    // Older checkpoints of the namespace by their ids, in descending order: mostly the ancestors.
    let mut older: HashMap<Str, Row> = HashMap::new();
    while let Some(next) = walk.next().cloned() {
        if !older.contains_key(&next) {
            older = self::older(shared, config, &next).await?;
        }
        let mut rows = Vec::new();
        let mut id = Some(next);
        while let Some(row) = id.take().and_then(|id| older.remove(&id)) {
            id.clone_from(&row.parent);
            rows.push(row);
        }
        if rows.is_empty() {
            // It is not stored.
            break;
        }
        if !visit(shared, config.thread_id(), &mut walk, rows).await? {
            break;
        }
    }
    Ok(walk.finish())
}

/// A checkpoint, and those of its namespace that are older.
async fn older(shared: &Shared, config: &CheckpointConfig, from: &str) -> Result<HashMap<Str, Row>> {
    let (thread_id, ns) = (config.thread_id(), config.checkpoint_ns());
    let keys = ThreadKeys::new(thread_id);
    let mut range = keys.of_namespace(kind::CHECKPOINT, ns);
    range.to = format!("{}\u{1}", keys.checkpoint(ns, from));
    let filter = shared.mongo.in_range(thread_id, &range);
    let found =
        shared.mongo.find(Find { filter, descending: true, limit: ANCESTORS, ..Find::default() }).await?;
    let mut rows = HashMap::new();
    for document in found {
        rows.extend(Row::read(document)?.map(|row| (row.checkpoint_id.clone(), row)));
    }
    Ok(rows)
}

/// Adds ancestors to a walk. `false` if it ends here: they are sealed, and the saver returns such checkpoints as they are.
async fn visit(shared: &Shared, thread_id: &str, walk: &mut HistoryWalk, mut rows: Vec<Row>) -> Result<bool> {
    // Those behind the one where every channel has a value are not needed.
    let mut open: Vec<Str> = walk.unseeded().into_iter().map(Str::from).collect();
    let mut documents = Vec::new();
    for row in &mut rows {
        if open.is_empty() {
            break;
        }
        load::chunks(shared, thread_id, vec![&mut row.document]).await?;
        let read = Document::read(shared.values(), row.key(), &row.names, row.document.bytes()?);
        let Some(document) = read.map_err(row.key().context())? else { break };
        let summary = document.summary();
        open.retain(|channel| !summary.values.contains_key(channel));
        documents.push(document);
    }
    rows.truncate(documents.len());
    if rows.is_empty() {
        return Ok(false);
    }
    let mut loaded = load::details(shared, thread_id, &mut rows, TUPLE).await?;
    for (row, document) in rows.iter().zip(documents) {
        if walk.next() != Some(&row.checkpoint_id) {
            break;
        }
        let mut assembler = Assembler::new(shared, thread_id, &mut loaded);
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
        walk.visit(row.parent.clone(), &writes, |channel| values.remove(channel));
    }
    Ok(true)
}
