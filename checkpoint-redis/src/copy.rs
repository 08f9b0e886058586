//! `copy_thread`: data first, the index at the end, so that nothing of an incomplete copy is visible.

use std::collections::HashSet;

use bytes::Bytes;
use checkpoint_core::backend::segments::Address;
use checkpoint_core::backend::{AssociatedData, CheckpointKey, jitter};
use checkpoint_core::cipher::BOUND_SUFFIX;
use checkpoint_core::{Error, ErrorKind, Result, TypedBytes};
use redis::{Pipeline, Value};

use crate::connection::Access;
use crate::keys::{self, ThreadKeys, kind};
use crate::load::{Loaded, Row};
use crate::pages::{RowPages, WritePages};
use crate::reply::{self, Items};
use crate::row::{self, Document, StoredWrite};
use crate::script;
use crate::shared::{Shared, text};

/// How many fields, or members, one command adds.
const MEMBERS: usize = 256;

/// How often a copy begins again because the thread was pruned meanwhile.
const ATTEMPTS: usize = 5;

pub(crate) async fn copy_thread(shared: &Shared, source: &str, target: &str) -> Result<()> {
    shared.ready().await?;
    if source == target {
        return Ok(());
    }
    for _ in 0..ATTEMPTS {
        let mut copy = Copy {
            shared,
            source,
            target,
            keys: shared.keys.thread(source),
            target_keys: shared.keys.thread(target),
            copied: HashSet::new(),
            segments: HashSet::new(),
            members: Vec::new(),
            removals: Bytes::new(),
        };
        copy.begin().await?;
        if copy.data().await? && copy.publish().await? {
            return Ok(());
        }
    }
    Err(Error::new(ErrorKind::Conflict, "the thread changed while it was copied; try again").retryable(true))
}

/// A copy that is under way.
struct Copy<'a> {
    shared: &'a Shared,
    source: &'a str,
    target: &'a str,
    keys: ThreadKeys,
    target_keys: ThreadKeys,
    /// Fields of values.
    copied: HashSet<Vec<u8>>,
    segments: HashSet<Address>,
    members: Vec<Vec<u8>>,
    /// The number of removals from the target when the copy began.
    removals: Bytes,
}

/// Whether a value is bound to its row.
fn is_bound(typed: &TypedBytes) -> bool {
    typed.tag.ends_with(BOUND_SUFFIX)
}

impl Copy<'_> {
    /// Notes the number of removals from the target: what was copied could be among what is removed.
    async fn begin(&mut self) -> Result<()> {
        let mut commands = Pipeline::new();
        commands.atomic();
        // Random, so that it is another one after the target was deleted.
        let first = (jitter() * f64::from(u32::MAX)).to_bits() >> 12;
        commands.cmd("HSETNX").arg(&self.target_keys.hash).arg(kind::REMOVALS).arg(first);
        commands.cmd("HGET").arg(&self.target_keys.hash).arg(kind::REMOVALS);
        self.target_keys.expire(&mut commands, self.shared.ttl_millis());
        let replies = self.shared.connections.transaction(&self.target_keys.hash, &commands).await?;
        let mut replies = Items::of(replies);
        replies.next();
        self.removals = reply::bytes(replies.next())?;
        Ok(())
    }

    /// Copies everything but the index. `false` if a part was not there any more.
    async fn data(&mut self) -> Result<bool> {
        let mut pages = RowPages::new(self.source);
        while let Some((rows, loaded)) = pages.next(self.shared).await? {
            if !self.rows(&rows, &loaded).await? {
                return Ok(false);
            }
        }
        self.writes().await
    }

    async fn rows(&mut self, rows: &[Row], loaded: &Loaded<'_>) -> Result<bool> {
        let mut fields: Vec<(Vec<u8>, Bytes)> = Vec::new();
        for row in rows {
            if row.document.is_empty() || !self.row(row, loaded, &mut fields).map_err(row.key().context())? {
                return Ok(false);
            }
        }
        self.store(&fields).await?;
        Ok(true)
    }

    fn row(&mut self, row: &Row, loaded: &Loaded<'_>, fields: &mut Vec<(Vec<u8>, Bytes)>) -> Result<bool> {
        let codec = self.shared.values();
        let (from, to) = (row.key(), row.key().in_thread(self.target));
        let suffix = row.suffix();
        let stored = row::read_value(&row.document)?;
        let is_sealed = is_bound(&stored);
        let (head, document) = if is_sealed {
            let document = codec.reseal(stored, &from.checkpoint_data(), &to.checkpoint_data())?;
            (row.head.reseal(codec, from, to)?, row::value(&document)?.into())
        } else {
            (row.head.clone(), row.document.clone())
        };
        if !row.head.step.is_empty() {
            fields.push((row.head.step.clone(), Bytes::copy_from_slice(row.checkpoint_id.as_bytes())));
        }
        let strict = codec.requiring_decryption();
        let opened = Document::read(&strict, from, &row.head.names, &row.document)?;
        let named = opened.as_ref().map(|opened| &*opened.named).unwrap_or_default();
        for (at, field) in row.fields(kind::BLOB).enumerate() {
            let Some(stored) = loaded.fields.get(&*field) else { return Ok(false) };
            let Some(list) = row.lists.get(at) else { return Ok(false) };
            for address in list.iter() {
                if !self.segments.insert(address) {
                    continue;
                }
                let Some(segment) = loaded.segments.get(&address) else { return Ok(false) };
                let mut typed = row::read_value(segment)?;
                if is_bound(&typed) {
                    typed = self.shared.codec.reseal_segment(address, typed, self.source, self.target)?;
                }
                fields.push((keys::segment(address), row::value(&typed)?.into()));
            }
            if !self.copied.insert(field.clone()) {
                continue;
            }
            let mut typed = row::read_value(stored)?;
            if is_bound(&typed) {
                let Some((channel, opened)) = named.get(at).map(|named| &*named.channel).zip(opened.as_ref())
                else {
                    return Ok(false);
                };
                let version = opened.version(channel)?;
                let data = |thread_id| AssociatedData::Blob {
                    thread_id,
                    checkpoint_ns: &row.checkpoint_ns,
                    channel,
                    version: &version,
                };
                typed = codec
                    .reseal(typed, &data(self.source), &data(self.target))
                    .map_err(|error| error.with("channel", channel))?;
            }
            if !list.is_empty() {
                let list_field = keys::name(kind::ADDRESSES, &[field.get(1..).unwrap_or_default()]);
                fields.push((list_field, list.as_bytes().clone()));
            }
            fields.push((field, row::value(&typed)?.into()));
        }
        fields.push((keys::name(kind::METADATA, &[&suffix]), head.to_bytes()?.into()));
        fields.push((keys::name(kind::CHECKPOINT, &[&suffix]), document));
        self.members.push(keys::name(kind::CHECKPOINT, &[&suffix]));
        self.members.push(keys::all(&row.checkpoint_ns, &row.checkpoint_id));
        Ok(true)
    }

    /// Copies all writes.
    async fn writes(&mut self) -> Result<bool> {
        let mut pages = WritePages::new(self.keys.clone());
        while let Some(writes) = pages.next(self.shared).await? {
            let mut fields = Vec::with_capacity(writes.len());
            for (name, stored) in writes {
                let Some(stored) = stored else { return Ok(false) };
                fields.push((name.to_vec(), self.write(&name, stored)?));
                self.members.push(name.into());
            }
            self.store(&fields).await?;
        }
        Ok(true)
    }

    fn write(&self, field: &[u8], bytes: Bytes) -> Result<Bytes> {
        let stored = StoredWrite::read(&bytes)?;
        if !is_bound(&stored.value) && !is_bound(&stored.header) {
            return Ok(bytes);
        }
        let name = keys::read_write(field)?;
        let from = CheckpointKey::new(self.source, &name.checkpoint_ns, &name.checkpoint_id);
        let resealed = stored.reseal(self.shared.values(), from, from.in_thread(self.target), &name);
        Ok(resealed.map_err(from.context())?.into())
    }

    async fn store(&self, fields: &[(Vec<u8>, Bytes)]) -> Result<()> {
        for fields in fields.chunks(MEMBERS) {
            let mut commands = Pipeline::new();
            commands.atomic();
            let set = commands.cmd("HSET").arg(&self.target_keys.hash);
            for (field, value) in fields {
                set.arg(field).arg(&**value);
            }
            self.target_keys.expire(&mut commands, self.shared.ttl_millis());
            self.shared.connections.transaction(&self.target_keys.hash, &commands).await?;
        }
        Ok(())
    }

    /// Makes the copy visible. `false` if something was removed from the target meanwhile.
    async fn publish(self) -> Result<bool> {
        let Self { shared, target, target_keys: keys, members, removals, .. } = self;
        if members.is_empty() {
            return Ok(true);
        }
        // In the directory first, and again afterwards: another call may delete the thread meanwhile.
        shared.add_to_directory(target).await?;
        let is_published = if shared.scripts {
            let millis = text(shared.ttl_millis());
            let mut args: Vec<&[u8]> = vec![&removals, &millis];
            args.extend(members.iter().map(|member| &**member));
            let reply =
                shared.connections.script(Access::Write, &script::PUBLISH, &keys.both(), &args).await?;
            reply::integer(&reply)? == 1
        } else {
            let mut read = Pipeline::new();
            read.cmd("HGET").arg(&keys.hash).arg(kind::REMOVALS);
            let decide = |replies: Vec<Value>| {
                if reply::optional(Items::of(replies).next())?.as_ref() != Some(&removals) {
                    return Ok((None, false));
                }
                let mut commands = Pipeline::new();
                commands.cmd("HINCRBY").arg(&keys.hash).arg(kind::GENERATION).arg(1);
                for members in members.chunks(MEMBERS) {
                    let add = commands.cmd("ZADD").arg(&keys.index);
                    for member in members {
                        add.arg(0).arg(member);
                    }
                }
                keys.expire(&mut commands, shared.ttl_millis());
                Ok((Some(commands), true))
            };
            shared.connections.optimistic(&keys.both(), &read, decide).await?.1
        };
        shared.add_to_directory(target).await?;
        Ok(is_published)
    }
}
