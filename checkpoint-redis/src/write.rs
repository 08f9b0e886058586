//! `put`, `put_writes` and `delete_thread`.

use std::sync::Arc;

use bytes::Bytes;
use checkpoint_core::backend::records::version_key;
use checkpoint_core::backend::segments::Segment;
use checkpoint_core::backend::{
    CheckpointKey, Decision, Found, FoundWrites, Inline, PreparedWrites, SplitCheckpoint,
};
use checkpoint_core::{
    ChannelValue, ChannelVersions, Checkpoint, CheckpointConfig, CheckpointMetadata, Error, ErrorKind,
    PutCondition, PutOptions, PutWritesOptions, Result, Str, id,
};
use redis::{Pipeline, Value};

use crate::connection::Access;
use crate::error::BACKEND;
use crate::keys::{self, ThreadKeys, kind};
use crate::leases;
use crate::list;
use crate::reply::{self, Items};
use crate::retention;
use crate::row::{self, Head, Named, Record, Rules};
use crate::script;
use crate::shared::{Shared, text};

/// What a `put` sends, checked and encrypted.
struct Put<'a> {
    config: &'a CheckpointConfig,
    checkpoint_id: &'a str,
    options: &'a PutOptions,
    keys: ThreadKeys,
    /// The checkpoint's part of names.
    suffix: Vec<u8>,
    /// The parent's, if there is one.
    parent: Option<Vec<u8>>,
    /// The field of the step key, or nothing.
    step: Vec<u8>,
    /// The metadata, and the checkpoint without large values, as they are stored.
    head: Vec<u8>,
    checkpoint: Bytes,
    /// Values, lists of addresses, segments.
    fields: Vec<(Vec<u8>, Bytes)>,
    /// Names of values that the parent must refer to.
    unchanged: Vec<Vec<u8>>,
    /// Fields that must be there already.
    required: Vec<Vec<u8>>,
    /// The segments of its values.
    segments: Vec<Segment>,
}

/// What became of a `put`.
enum Outcome {
    /// With the thread's generation, if it is time to prune behind it.
    Stored(Option<Bytes>),
    Repeats(Str),
    /// Not everything is there that the checkpoint carries over.
    Missing,
}

/// Stores a checkpoint, with the values that its thread does not have, and prunes behind it.
pub(crate) async fn put(
    shared: &Arc<Shared>,
    config: &CheckpointConfig,
    checkpoint: &Checkpoint,
    metadata: &CheckpointMetadata,
    new_versions: &ChannelVersions,
    options: &PutOptions,
) -> Result<CheckpointConfig> {
    id::validate(&checkpoint.id)?;
    match options.condition {
        PutCondition::None | PutCondition::ParentStored | PutCondition::ParentIsLatest => {}
        _ => return Err(Error::unsupported(BACKEND, "put")),
    }
    let metadata = options.metadata(metadata, config)?;
    shared.ready().await?;
    let all = &checkpoint.channel_versions;
    for (new_versions, trusts) in [(new_versions, true), (all, false)] {
        let put = Put::new(shared, config, checkpoint, &metadata, new_versions, options, trusts)?;
        shared.enter(config.thread_id()).await?;
        let outcome = match put.store(shared).await {
            Err(error) if shared.finds_proxy(&error) => {
                shared.enter(config.thread_id()).await?;
                put.store(shared).await?
            }
            outcome => outcome?,
        };
        match outcome {
            Outcome::Stored(due) => {
                shared.codec.remember(config.thread_id(), &put.segments);
                if let Some((keep, generation)) = shared.keep_last.zip(due) {
                    retention::prune_behind(shared, config, keep, generation).await;
                }
                return Ok(config.for_checkpoint(checkpoint.id.clone()));
            }
            Outcome::Repeats(checkpoint_id) => return Ok(config.for_checkpoint(checkpoint_id)),
            // The parent was deleted meanwhile, perhaps with values that did not change, or another process deleted segments:
            // everything is stored.
            Outcome::Missing => {
                shared.codec.forget(config.thread_id());
                if let Some(channel) = options.unchanged.first() {
                    let message =
                        "the thread does not have the value of an unchanged channel; retry with all values";
                    return Err(Error::new(ErrorKind::Conflict, message).with("channel", channel));
                }
            }
        }
    }
    Err(Error::new(ErrorKind::Conflict, "the thread changed while its checkpoint was stored").retryable(true))
}

impl<'a> Put<'a> {
    /// `trusts`: segments that this process knows to be stored are not sent.
    fn new(
        shared: &Shared,
        config: &'a CheckpointConfig,
        checkpoint: &'a Checkpoint,
        metadata: &CheckpointMetadata,
        new_versions: &ChannelVersions,
        options: &'a PutOptions,
        trusts: bool,
    ) -> Result<Self> {
        let (codec, thread_id) = (shared.values(), config.thread_id());
        let rules = Rules(&shared.codec);
        let split = SplitCheckpoint::new(codec, &rules, config, checkpoint, new_versions, options)?;
        let ns = keys::namespace(config.checkpoint_ns());
        let is_snapshot = |channel: &str| {
            split.inline.iter().any(|(found, inline)| *found == channel && *inline == Inline::DeltaSnapshot)
        };
        let (mut named, mut fields, mut required) = (Vec::new(), Vec::new(), Vec::new());
        let mut unchanged = Vec::new();
        for blob in &split.blobs {
            let name = keys::value(codec, &blob.channel, &blob.version);
            fields.push((keys::name(kind::BLOB, &[&ns, &name]), row::value(&blob.value)?.into()));
            let list = keys::name(kind::ADDRESSES, &[&ns, &name]);
            if !blob.addresses.is_empty() {
                fields.push((list, blob.addresses.as_bytes().clone()));
            }
            for segment in &blob.segments {
                let field = keys::segment(segment.address());
                if trusts && segment.is_known() {
                    required.push(field);
                } else {
                    let sealed = shared.codec.seal_segment(segment, thread_id)?;
                    fields.push((field, row::value(&sealed)?.into()));
                }
            }
            let channel = blob.channel.clone();
            named.push(Named { is_snapshot: is_snapshot(&channel), channel, name: Some(name) });
        }
        for (channel, version) in &split.carried_over {
            let name = keys::value(codec, channel, &version_key(version));
            required.push(keys::name(kind::BLOB, &[&ns, &name]));
            if options.unchanged.iter().any(|named| **named == **channel) {
                unchanged.push(name.clone());
            }
            named.push(Named {
                channel: (*channel).into(),
                is_snapshot: is_snapshot(channel),
                name: Some(name),
            });
        }
        let key = CheckpointKey::new(thread_id, config.checkpoint_ns(), &checkpoint.id);
        let step = options.step_key.as_ref().map(|step| keys::step(codec, config, step)).unwrap_or_default();
        let parent = config.checkpoint_id();
        let record = Record::new(codec, key, checkpoint, &split, &named, metadata)?;
        let head = Head {
            parent: parent.unwrap_or_default().into(),
            names: named.into_iter().filter_map(|named| named.name).collect(),
            step: step.clone(),
            metadata: record.metadata,
        };
        Ok(Self {
            config,
            checkpoint_id: &checkpoint.id,
            options,
            keys: shared.keys.thread(thread_id),
            suffix: keys::of(config, &checkpoint.id),
            parent: config.checkpoint_id().map(|parent| keys::of(config, parent)),
            step,
            head: head.to_bytes()?,
            checkpoint: record.checkpoint,
            fields,
            unchanged,
            required,
            segments: split.blobs.into_iter().flat_map(|blob| blob.segments).collect(),
        })
    }

    /// Stores it by a script; without scripts by a transaction, which is optimistic if it depends on what is stored.
    async fn store(&self, shared: &Shared) -> Result<Outcome> {
        if shared.scripts {
            return self.store_by_script(shared).await;
        }
        if self.options.is_conditional() || !self.required.is_empty() {
            return self.store_optimistically(shared).await;
        }
        let replies = shared.connections.transaction(&self.keys.hash, &self.commands(shared)).await?;
        self.committed(shared, replies).await
    }

    /// After a transaction of [`commands`](Self::commands).
    async fn committed(&self, shared: &Shared, replies: Vec<Value>) -> Result<Outcome> {
        let mut replies = Items::of(replies);
        let (generation, had_index, _added) = (replies.next(), replies.next(), replies.next());
        self.stored(shared, &generation, &had_index, &replies.next()).await
    }

    /// After it was stored: the thread's generation, whether there was an index, and, with `keep_last`, how many checkpoints
    /// the namespace has.
    async fn stored(
        &self,
        shared: &Shared,
        generation: &Value,
        had_index: &Value,
        count: &Value,
    ) -> Result<Outcome> {
        shared.wrote(self.config.thread_id(), generation, had_index).await?;
        let Some(keep) = shared.keep_last else { return Ok(Outcome::Stored(None)) };
        let count = usize::try_from(reply::integer(count)?).unwrap_or_default();
        let is_due = keep.is_due(count, self.checkpoint_id);
        let generation = reply::integer(generation)?;
        Ok(Outcome::Stored(is_due.then(|| text(generation))))
    }

    /// The commands that store it.
    fn commands(&self, shared: &Shared) -> Pipeline {
        let (hash, index) = (&self.keys.hash, &self.keys.index);
        let mut commands = Pipeline::new();
        commands.atomic();
        commands.cmd("HINCRBY").arg(hash).arg(kind::GENERATION).arg(1);
        commands.cmd("EXISTS").arg(index);
        let [of_namespace, of_thread] = self.members();
        commands.cmd("ZADD").arg(index).arg(0).arg(of_namespace).arg(0).arg(of_thread);
        if shared.keep_last.is_some() {
            let (to, from) = self.of_namespace();
            commands.cmd("ZLEXCOUNT").arg(index).arg(from).arg(to);
        }
        let set = commands.cmd("HSET").arg(hash);
        set.arg(keys::name(kind::METADATA, &[&self.suffix])).arg(&self.head);
        set.arg(keys::name(kind::CHECKPOINT, &[&self.suffix])).arg(&*self.checkpoint);
        if !self.step.is_empty() {
            set.arg(&self.step).arg(self.checkpoint_id);
        }
        // Of two values under one version the first is kept, as in Python's savers.
        for (field, value) in &self.fields {
            commands.cmd("HSETNX").arg(hash).arg(field).arg(&**value);
        }
        self.keys.expire(&mut commands, shared.ttl_millis());
        shared.list_thread(&mut commands, self.config.thread_id());
        commands
    }

    fn members(&self) -> [Vec<u8>; 2] {
        let of_thread = keys::all(self.config.checkpoint_ns(), self.checkpoint_id);
        [keys::name(kind::CHECKPOINT, &[&self.suffix]), of_thread]
    }

    /// The range of the namespace's checkpoints in the index, from its end to its beginning.
    fn of_namespace(&self) -> (Vec<u8>, Vec<u8>) {
        list::bounds(&keys::name(kind::CHECKPOINT, &[&keys::namespace(self.config.checkpoint_ns())]))
    }

    async fn store_by_script(&self, shared: &Shared) -> Result<Outcome> {
        let thread_id = self.config.thread_id();
        let condition: &[u8] = match self.options.condition {
            PutCondition::ParentStored => b"p",
            PutCondition::ParentIsLatest => b"l",
            _ => b"",
        };
        let ns = keys::namespace(self.config.checkpoint_ns());
        let [token, holder, ttl] = leases::arguments(self.options.lease.as_ref());
        let millis = text(shared.ttl_millis());
        let (fields, unchanged) = (text(self.fields.len()), text(self.unchanged.len()));
        let counts: &[u8] = if shared.keep_last.is_some() { b"1" } else { b"0" };
        let [_, of_thread] = self.members();
        let mut args: Vec<&[u8]> = vec![
            &millis,
            thread_id.as_bytes(),
            &self.suffix,
            &of_thread,
            &self.head,
            &self.checkpoint,
            &self.step,
            condition,
            self.parent.as_deref().unwrap_or_default(),
            &ns,
            &token,
            &holder,
            &ttl,
            &fields,
            &unchanged,
            counts,
        ];
        args.extend(self.fields.iter().flat_map(|(field, value)| [&**field, &**value]));
        args.extend(self.unchanged.iter().chain(&self.required).map(|field| &**field));
        let directory = shared.with_directory(thread_id);
        let keys: Vec<&[u8]> = self.keys.both().into_iter().chain(directory.as_deref()).collect();
        let reply = shared.connections.script(Access::Write, &script::PUT, &keys, &args).await?;
        let mut reply = Items::new(reply)?;
        let found = match reply::integer(&reply.next())? {
            script::put::STORED => {
                return self.stored(shared, &reply.next(), &reply.next(), &reply.next()).await;
            }
            script::put::MISSING => return Ok(Outcome::Missing),
            script::put::LOST_LEASE => Found::default(),
            script::put::REPEATS => {
                Found { holds_lease: true, repeated: Some(id_of(reply.next())?), ..Found::default() }
            }
            script::put::REFUSED => {
                let newest = Some(id_of(reply.next())?).filter(|id| !id.is_empty());
                let parent_is_stored = reply::integer(&reply.next())? == 1;
                Found { holds_lease: true, newest, parent_is_stored, ..Found::default() }
            }
            _ => return Err(unknown()),
        };
        match self.options.decide(self.config, found)? {
            Decision::Repeats(checkpoint_id) => Ok(Outcome::Repeats(checkpoint_id)),
            Decision::Store => Err(Error::codec("the server refused a checkpoint without a reason")),
        }
    }

    async fn store_optimistically(&self, shared: &Shared) -> Result<Outcome> {
        let (hash, index) = (&self.keys.hash, &self.keys.index);
        let mut read = Pipeline::new();
        read.cmd("TIME");
        let own = keys::name(kind::METADATA, &[&self.suffix]);
        let parent = keys::name(kind::METADATA, &[self.parent.as_deref().unwrap_or_default()]);
        read.cmd("HMGET").arg(hash).arg(kind::LEASE).arg(if self.step.is_empty() {
            b"-"
        } else {
            &*self.step
        });
        read.cmd("HEXISTS").arg(hash).arg(own);
        read.cmd("HGET").arg(hash).arg(parent);
        let (from, to) = self.of_namespace();
        read.cmd("ZREVRANGEBYLEX").arg(index).arg(from).arg(to).arg("LIMIT").arg(0).arg(1);
        for field in &self.required {
            read.cmd("HEXISTS").arg(hash).arg(field);
        }
        let decide = |replies: Vec<Value>| {
            let mut replies = Items::of(replies);
            let now = leases::micros(replies.next())?;
            let mut fields = Items::new(replies.next())?;
            let lease = reply::optional(fields.next())?;
            let repeated = reply::optional(fields.next())?.filter(|_| !self.step.is_empty());
            let renewed = self
                .options
                .lease
                .as_ref()
                .and_then(|lease_of| leases::renewed(lease_of, lease.as_deref(), now));
            let is_stored = reply::integer(&replies.next())? == 1;
            let parent = reply::optional(replies.next())?.as_deref().map(Head::read).transpose()?;
            let newest = reply::list(replies.next())?.pop();
            let found = Found {
                holds_lease: renewed.is_some(),
                repeated: repeated.map(|id| id_of(Value::BulkString(id.into()))).transpose()?,
                is_stored,
                parent_is_stored: parent.is_some(),
                newest: newest
                    .map(|member| Ok::<_, Error>(keys::read_checkpoint(&member[1..])?.1))
                    .transpose()?,
            };
            if self.options.is_conditional()
                && let Decision::Repeats(checkpoint_id) = self.options.decide(self.config, found)?
            {
                return Ok((None, Outcome::Repeats(checkpoint_id)));
            }
            let of_parent = parent.map(|parent| parent.names).unwrap_or_default();
            if !self.unchanged.iter().all(|name| of_parent.contains(name)) {
                return Ok((None, Outcome::Missing));
            }
            for _ in &self.required {
                if reply::integer(&replies.next())? == 0 {
                    return Ok((None, Outcome::Missing));
                }
            }
            let mut commands = self.commands(shared);
            if let Some(renewed) = renewed {
                commands.cmd("HSET").arg(hash).arg(kind::LEASE).arg(renewed);
            }
            Ok((Some(commands), Outcome::Stored(None)))
        };
        let (replies, outcome) = shared.connections.optimistic(&self.keys.both(), &read, decide).await?;
        match replies {
            Some(replies) => self.committed(shared, replies).await,
            None => Ok(outcome),
        }
    }
}

fn unknown() -> Error {
    Error::codec("the server's reply is none of the script's")
}

fn too_few() -> Error {
    Error::codec("the server sent too few replies")
}

fn id_of(reply: Value) -> Result<Str> {
    let bytes = reply::bytes(reply)?;
    let id = std::str::from_utf8(&bytes).map_err(|_| Error::codec("a checkpoint's id is damaged"))?;
    Ok(id.into())
}

/// Stores the writes of a task.
pub(crate) async fn put_writes(
    shared: &Shared,
    config: &CheckpointConfig,
    writes: &[(Str, ChannelValue)],
    task_id: &str,
    task_path: &str,
    options: &PutWritesOptions,
) -> Result<()> {
    let writes = PreparedWrites::new(shared.values(), config, writes, task_id, task_path)?.with(options)?;
    if writes.rows.is_empty() {
        return Ok(());
    }
    shared.ready().await?;
    let thread_id = &*writes.thread_id;
    let call = Writes::new(shared, &writes)?;
    shared.enter(thread_id).await?;
    let (generation, had_index) = match call.store(shared, config, options).await {
        Err(error) if shared.finds_proxy(&error) => {
            shared.enter(thread_id).await?;
            call.store(shared, config, options).await?
        }
        stored => stored?,
    };
    shared.wrote(thread_id, &generation, &had_index).await
}

/// What a `put_writes` sends.
struct Writes<'a> {
    prepared: &'a PreparedWrites,
    keys: ThreadKeys,
    suffix: Vec<u8>,
    task: Vec<u8>,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl<'a> Writes<'a> {
    fn new(shared: &Shared, writes: &'a PreparedWrites) -> Result<Self> {
        let PreparedWrites { thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, rows, .. } = writes;
        let key = CheckpointKey::new(thread_id, checkpoint_ns, checkpoint_id);
        let suffix = keys::checkpoint(checkpoint_ns, checkpoint_id);
        let task = keys::task(task_id);
        let field = |row: &checkpoint_core::backend::WriteRow| {
            let field = keys::name(kind::WRITE, &[&suffix, &task, &keys::index(row.idx)]);
            Ok((field, row::write(shared.values(), key, task_id, task_path, row)?))
        };
        let fields = rows.iter().map(field).collect::<Result<_>>()?;
        Ok(Self { prepared: writes, keys: shared.keys.thread(thread_id), suffix, task, fields })
    }

    /// Stores them, and returns the generation of the thread and whether there was an index.
    async fn store(
        &self,
        shared: &Shared,
        config: &CheckpointConfig,
        options: &PutWritesOptions,
    ) -> Result<(Value, Value)> {
        if shared.scripts {
            return self.store_by_script(shared, config, options).await;
        }
        if options.is_conditional() {
            return self.store_optimistically(shared, config, options).await;
        }
        let replies = shared.connections.transaction(&self.keys.hash, &self.commands(shared)).await?;
        let [generation, had_index, ..] = &*replies else { return Err(too_few()) };
        Ok((generation.clone(), had_index.clone()))
    }

    fn commands(&self, shared: &Shared) -> Pipeline {
        let (hash, index) = (&self.keys.hash, &self.keys.index);
        let mut commands = Pipeline::new();
        commands.atomic();
        commands.cmd("HINCRBY").arg(hash).arg(kind::GENERATION).arg(1);
        commands.cmd("EXISTS").arg(index);
        if self.prepared.replace {
            let set = commands.cmd("HSET").arg(hash);
            for (field, value) in &self.fields {
                set.arg(field).arg(value);
            }
        } else {
            for (field, value) in &self.fields {
                commands.cmd("HSETNX").arg(hash).arg(field).arg(value);
            }
        }
        let add = commands.cmd("ZADD").arg(index);
        for (field, _) in &self.fields {
            add.arg(0).arg(field);
        }
        self.keys.expire(&mut commands, shared.ttl_millis());
        shared.list_thread(&mut commands, &self.prepared.thread_id);
        commands
    }

    async fn store_by_script(
        &self,
        shared: &Shared,
        config: &CheckpointConfig,
        options: &PutWritesOptions,
    ) -> Result<(Value, Value)> {
        let flag = |flag: bool| -> &[u8] { if flag { b"1" } else { b"0" } };
        let [token, holder, ttl] = leases::arguments(options.lease.as_ref());
        let millis = text(shared.ttl_millis());
        let thread_id = &self.prepared.thread_id;
        let mut args: Vec<&[u8]> = vec![
            &millis,
            thread_id.as_bytes(),
            &self.suffix,
            &self.task,
            flag(options.once),
            flag(options.checkpoint_stored),
            flag(self.prepared.replace),
            &token,
            &holder,
            &ttl,
        ];
        args.extend(self.fields.iter().flat_map(|(field, value)| [&**field, &**value]));
        let directory = shared.with_directory(thread_id);
        let keys: Vec<&[u8]> = self.keys.both().into_iter().chain(directory.as_deref()).collect();
        let reply = shared.connections.script(Access::Write, &script::PUT_WRITES, &keys, &args).await?;
        let mut reply = Items::new(reply)?;
        let found = match reply::integer(&reply.next())? {
            script::put::STORED => return Ok((reply.next(), reply.next())),
            script::put::LOST_LEASE => FoundWrites::default(),
            script::put::REFUSED => FoundWrites {
                holds_lease: true,
                checkpoint_is_stored: reply::integer(&reply.next())? == 1,
                has_writes: reply::integer(&reply.next())? == 1,
            },
            _ => return Err(unknown()),
        };
        options.decide(config, &self.prepared.task_id, found)?;
        Err(Error::codec("the server refused writes without a reason"))
    }

    async fn store_optimistically(
        &self,
        shared: &Shared,
        config: &CheckpointConfig,
        options: &PutWritesOptions,
    ) -> Result<(Value, Value)> {
        let (hash, index) = (&self.keys.hash, &self.keys.index);
        let mut read = Pipeline::new();
        read.cmd("TIME");
        read.cmd("HGET").arg(hash).arg(kind::LEASE);
        read.cmd("HEXISTS").arg(hash).arg(keys::name(kind::METADATA, &[&self.suffix]));
        let first = keys::name(kind::WRITE, &[&self.suffix, &self.task]);
        let (from, to) = ([b"[", &*first, b"\x80"].concat(), [b"(", &*first, b"\xff"].concat());
        read.cmd("ZRANGEBYLEX").arg(index).arg(from).arg(to).arg("LIMIT").arg(0).arg(1);
        let decide = |replies: Vec<Value>| {
            let mut replies = Items::of(replies);
            let now = leases::micros(replies.next())?;
            let held = reply::optional(replies.next())?;
            let renewed =
                options.lease.as_ref().and_then(|lease| leases::renewed(lease, held.as_deref(), now));
            let found = FoundWrites {
                holds_lease: renewed.is_some(),
                checkpoint_is_stored: reply::integer(&replies.next())? == 1,
                has_writes: !reply::array(replies.next())?.is_empty(),
            };
            options.decide(config, &self.prepared.task_id, found)?;
            let mut commands = self.commands(shared);
            if let Some(renewed) = renewed {
                commands.cmd("HSET").arg(hash).arg(kind::LEASE).arg(renewed);
            }
            Ok((Some(commands), ()))
        };
        let (replies, ()) = shared.connections.optimistic(&self.keys.both(), &read, decide).await?;
        match replies.as_deref() {
            Some([generation, had_index, ..]) => Ok((generation.clone(), had_index.clone())),
            _ => Err(too_few()),
        }
    }
}

/// Deletes a thread with its lease. On one server, thread and directory in one transaction.
pub(crate) async fn delete_thread(shared: &Shared, thread_id: &str) -> Result<()> {
    shared.ready().await?;
    let keys = shared.keys.thread(thread_id);
    shared.codec.forget(thread_id);
    let mut unlink = redis::cmd("UNLINK");
    unlink.arg(&keys.hash).arg(&keys.index);
    let mut forget = redis::cmd("ZREM");
    forget.arg(shared.keys.directory(thread_id)).arg(thread_id);
    if !shared.is_spread() {
        let mut commands = Pipeline::new();
        commands.atomic().add_command(unlink.clone()).add_command(forget.clone());
        match shared.connections.transaction(&keys.hash, &commands).await {
            Err(error) if shared.finds_proxy(&error) => {}
            deleted => return deleted.map(|_| ()),
        }
    }
    shared.connections.command(Access::Write, &unlink).await?;
    forget_thread(shared, thread_id, &forget).await
}

/// Removes a thread that is gone from the directory. Another process may have made it again at this moment.
pub(crate) async fn forget_thread(shared: &Shared, thread_id: &str, forget: &redis::Cmd) -> Result<()> {
    shared.connections.command(Access::Write, forget).await?;
    let keys = shared.keys.thread(thread_id);
    let mut exists = redis::cmd("EXISTS");
    exists.arg(&keys.index);
    if reply::integer(&shared.read(&exists).await?)? == 1 {
        shared.add_to_directory(thread_id).await?;
    }
    Ok(())
}
