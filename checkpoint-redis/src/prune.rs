//! What `prune` and `delete_for_runs` remove: checkpoints, then what only they referred to; and the steps of `retain`.

use std::collections::HashSet;

use bytes::Bytes;
use checkpoint_core::{ErrorKind, Result, Str};
use redis::{Pipeline, Value};

use crate::connection::Access;
use crate::keys::{self, ThreadKeys, kind};
use crate::list::AllCheckpoints;
use crate::load::{self, Row};
use crate::reply;
use crate::row::Head;
use crate::script;
use crate::shared::{Shared, text};
use crate::threads::{Directory, PAGE as DIRECTORY_PAGE};

/// The most members, and the most fields, that one step removes.
const REMOVED_AT_A_TIME: usize = 4000;

/// How often garbage is looked for without scripts, while others write to the thread.
const COLLECTIONS: usize = 20;

/// How many checkpoints of each thread are looked at, before all of them are.
const NEWEST: usize = 64;

/// How many members of the index are read at a time.
pub(crate) const MEMBERS: usize = 1000;

/// Fields with their old and new values.
pub(crate) type Replaced = Vec<(Vec<u8>, Bytes, Bytes)>;

/// The fields of the writes on checkpoints.
pub(crate) async fn writes_on(shared: &Shared, thread_id: &str, rows: &[Row]) -> Result<Vec<Bytes>> {
    let index = shared.keys.thread(thread_id).index;
    let mut writes = Vec::new();
    for rows in rows.chunks(MEMBERS) {
        let commands = rows.iter().map(|row| load::writes_of(&index, &row.suffix())).collect();
        for reply in shared.connections.each(Access::Read, commands).await? {
            writes.extend(reply::list(reply)?);
        }
    }
    Ok(writes)
}

/// Removes checkpoints and writes, replaces fields in the same step, and collects what only these checkpoints referred to.
/// Many checkpoints are removed in several steps, the newest ones last. `false` if a field to replace has
/// changed.
pub(crate) async fn remove(
    shared: &Shared,
    thread_id: &str,
    rows: Vec<Row>,
    writes: Vec<Bytes>,
    replaced: Replaced,
) -> Result<bool> {
    if rows.is_empty() && writes.is_empty() && replaced.is_empty() {
        return Ok(true);
    }
    let keys = shared.keys.thread(thread_id);
    let mut values: HashSet<Vec<u8>> = HashSet::new();
    // Rows are newest first.
    let mut members: Vec<Vec<u8>> = writes.iter().map(|write| write.to_vec()).collect();
    let mut fields = members.clone();
    for row in rows.iter().rev() {
        let suffix = row.suffix();
        members.push(keys::name(kind::CHECKPOINT, &[&suffix]));
        members.push(keys::all(&row.checkpoint_ns, &row.checkpoint_id));
        fields.push(keys::name(kind::METADATA, &[&suffix]));
        fields.push(keys::name(kind::CHECKPOINT, &[&suffix]));
        if !row.head.step.is_empty() {
            fields.push(row.head.step.clone());
        }
        // Without their kind.
        values.extend(row.fields(kind::BLOB).map(|field| field.get(1..).unwrap_or_default().to_vec()));
    }
    while members.len() > REMOVED_AT_A_TIME {
        let rest = members.split_off(REMOVED_AT_A_TIME);
        remove_fields(shared, &keys, &Vec::new(), &std::mem::replace(&mut members, rest), &[]).await?;
    }
    while fields.len() > REMOVED_AT_A_TIME {
        // Invisible, because they are not in the index any more.
        let rest = fields.split_off(REMOVED_AT_A_TIME);
        let first = std::mem::replace(&mut fields, rest);
        remove_fields(shared, &keys, &Vec::new(), &[], &first).await?;
    }
    if !remove_fields(shared, &keys, &replaced, &members, &fields).await? {
        return Ok(false);
    }
    collect(shared, thread_id, &keys, values.into_iter().collect(), Vec::new()).await?;
    Ok(true)
}

/// What goes at once: members of the index, and fields.
#[derive(Debug, Default)]
pub(crate) struct Step {
    /// How many checkpoints go.
    pub(crate) checkpoints: usize,
    pub(crate) members: Vec<Vec<u8>>,
    pub(crate) fields: Vec<Vec<u8>>,
}

impl Step {
    pub(crate) fn is_full(&self) -> bool {
        self.members.len().max(self.fields.len()) >= REMOVED_AT_A_TIME
    }
}

/// Takes steps, of which each leaves a thread that is whole, as long as nobody else changes it: its generation was this one.
/// Returns how many were taken.
pub(crate) async fn take_steps(
    shared: &Shared,
    thread_id: &str,
    generation: &[u8],
    steps: &[Step],
) -> Result<usize> {
    let keys = shared.keys.thread(thread_id);
    let generation = reply::integer(&Value::BulkString(generation.to_vec()))?;
    // Each step counts as a change.
    for (taken, (generation, step)) in (generation..).zip(steps).enumerate() {
        let stored = text(generation);
        let unchanged = vec![(kind::GENERATION.to_vec(), stored.clone(), stored)];
        if !remove_fields(shared, &keys, &unchanged, &step.members, &step.fields).await? {
            return Ok(taken);
        }
    }
    shared.codec.forget(thread_id);
    Ok(steps.len())
}

/// Removes a thread with everything but its lease, in one step, if its generation is still this one. The server frees the
/// memory in the background.
pub(crate) async fn remove_thread(shared: &Shared, thread_id: &str, generation: &[u8]) -> Result<bool> {
    let keys = shared.keys.thread(thread_id);
    shared.codec.forget(thread_id);
    if shared.scripts {
        let args: [&[u8]; 1] = [generation];
        let reply =
            shared.connections.script(Access::Write, &script::REMOVE_THREAD, &keys.both(), &args).await?;
        return Ok(reply::integer(&reply)? == 1);
    }
    let mut read = Pipeline::new();
    read.cmd("HMGET").arg(&keys.hash).arg(kind::GENERATION).arg(kind::LEASE);
    read.cmd("PTTL").arg(&keys.hash);
    let decide = |replies: Vec<Value>| {
        let mut replies = reply::Items::of(replies);
        let mut stored = reply::optionals(replies.next())?.into_iter().map(Option::unwrap_or_default);
        let (found, lease) = (stored.next().unwrap_or_default(), stored.next().unwrap_or_default());
        if *found != *generation {
            return Ok((None, false));
        }
        let millis = reply::integer(&replies.next())?;
        let mut commands = Pipeline::new();
        commands.cmd("UNLINK").arg(&keys.hash).arg(&keys.index);
        if !lease.is_empty() {
            commands.cmd("HSET").arg(&keys.hash).arg(kind::LEASE).arg(&*lease);
            if millis > 0 {
                commands.cmd("PEXPIRE").arg(&keys.hash).arg(millis);
            }
        }
        Ok((Some(commands), true))
    };
    Ok(shared.connections.optimistic(&keys.both(), &read, decide).await?.1)
}

/// Replaces fields, removes members of the index, then fields, in one step, which counts as a change of the thread. `false`
/// if a field to replace has changed.
async fn remove_fields(
    shared: &Shared,
    keys: &ThreadKeys,
    replaced: &Replaced,
    members: &[Vec<u8>],
    fields: &[Vec<u8>],
) -> Result<bool> {
    if shared.scripts {
        let (of_replaced, count) = (text(replaced.len()), text(members.len()));
        let mut args: Vec<&[u8]> = vec![&of_replaced];
        args.extend(replaced.iter().flat_map(|(field, old, new)| [&**field, &**old, &**new]));
        args.push(&count);
        args.extend(members.iter().chain(fields).map(|name| &**name));
        let reply = shared.connections.script(Access::Write, &script::REMOVE, &keys.both(), &args).await?;
        return Ok(reply::integer(&reply)? == 1);
    }
    let mut commands = Pipeline::new();
    commands.atomic();
    for (field, _, new) in replaced {
        commands.cmd("HSET").arg(&keys.hash).arg(field).arg(&**new);
    }
    for members in members.chunks(MEMBERS) {
        commands.cmd("ZREM").arg(&keys.index).arg(members);
    }
    for fields in fields.chunks(MEMBERS) {
        commands.cmd("HDEL").arg(&keys.hash).arg(fields);
    }
    commands.cmd("HINCRBY").arg(&keys.hash).arg(kind::GENERATION).arg(1);
    // A copy that is under way notices it.
    commands.cmd("HINCRBY").arg(&keys.hash).arg(kind::REMOVALS).arg(1);
    if replaced.is_empty() {
        shared.connections.transaction(&keys.hash, &commands).await?;
        return Ok(true);
    }
    replace_with(shared, keys, replaced, commands).await
}

/// Deletes values to which no checkpoint refers any more, given without their kind, with their segments, and other segments.
pub(crate) async fn collect(
    shared: &Shared,
    thread_id: &str,
    keys: &ThreadKeys,
    values: Vec<Vec<u8>>,
    segments: Vec<Vec<u8>>,
) -> Result<()> {
    if shared.scripts {
        let count = text(values.len());
        let mut args: Vec<&[u8]> = vec![&count];
        args.extend(values.iter().chain(&segments).map(|name| &**name));
        shared.connections.script(Access::Write, &script::COLLECT, &keys.both(), &args).await?;
        return Ok(());
    }
    // The thread must not change between the look at its checkpoints and the deletion.
    for _ in 0..COLLECTIONS {
        let mut generation = redis::cmd("HGET");
        generation.arg(&keys.hash).arg(kind::GENERATION);
        let before = reply::optional(shared.read(&generation).await?)?;
        let garbage = garbage(shared, thread_id, keys, &values, &segments).await?;
        let mut read = Pipeline::new();
        read.cmd("HGET").arg(&keys.hash).arg(kind::GENERATION);
        read.cmd("EXISTS").arg(&keys.index);
        read.cmd("HEXISTS").arg(&keys.hash).arg(kind::REMOVALS);
        let decide = |replies: Vec<Value>| {
            let mut replies = reply::Items::of(replies);
            if reply::optional(replies.next())? != before {
                return Ok((None, false));
            }
            let is_empty = reply::integer(&replies.next())? == 0;
            let has_removals = reply::integer(&replies.next())? == 1;
            let mut commands = Pipeline::new();
            for fields in garbage.chunks(MEMBERS) {
                commands.cmd("HDEL").arg(&keys.hash).arg(fields);
            }
            if is_empty {
                commands.cmd("HDEL").arg(&keys.hash).arg(kind::GENERATION).arg(kind::REMOVALS);
            } else if has_removals && !commands.is_empty() {
                commands.cmd("HINCRBY").arg(&keys.hash).arg(kind::REMOVALS).arg(1);
            }
            Ok((Some(commands).filter(|commands| !commands.is_empty()), true))
        };
        let (_, is_done) = shared.connections.optimistic(&keys.both(), &read, decide).await?;
        if is_done {
            return Ok(());
        }
    }
    tracing::warn!(
        values = values.len(),
        "the thread changed all the time; values that nothing refers to are left"
    );
    Ok(())
}

/// The fields to delete, without scripts.
async fn garbage(
    shared: &Shared,
    thread_id: &str,
    keys: &ThreadKeys,
    values: &[Vec<u8>],
    segments: &[Vec<u8>],
) -> Result<Vec<Vec<u8>>> {
    let mut live: HashSet<Vec<u8>> = HashSet::new();
    let mut all = AllCheckpoints::new(thread_id, None);
    while let Some(page) = all.next_page(shared).await? {
        let names = page.iter().flat_map(|row| row.fields(kind::BLOB));
        live.extend(names.map(|field| field.get(1..).unwrap_or_default().to_vec()));
    }
    let dead: Vec<_> = values.iter().filter(|name| !live.contains(*name)).cloned().collect();
    let mut candidates: HashSet<Vec<u8>> = segments.iter().cloned().collect();
    candidates.extend(addresses(shared, keys, &dead).await?);
    if !candidates.is_empty() {
        for address in addresses(shared, keys, &live.into_iter().collect::<Vec<_>>()).await? {
            candidates.remove(&address);
        }
    }
    let fields = dead.iter().flat_map(|name| [kind::BLOB, kind::ADDRESSES].map(|of| keys::name(of, &[name])));
    Ok(fields.chain(candidates.iter().map(|address| keys::name(kind::SEGMENT, &[address]))).collect())
}

/// The addresses of the segments of values.
async fn addresses(shared: &Shared, keys: &ThreadKeys, names: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
    Ok(lists(shared, keys, names).await?.into_iter().flatten().collect())
}

/// The addresses of the segments of each value.
pub(crate) async fn lists(
    shared: &Shared,
    keys: &ThreadKeys,
    names: &[Vec<u8>],
) -> Result<Vec<Vec<Vec<u8>>>> {
    let mut found = Vec::new();
    for names in names.chunks(MEMBERS) {
        let mut read = redis::cmd("HMGET");
        read.arg(&keys.hash);
        for name in names {
            read.arg(keys::name(kind::ADDRESSES, &[name]));
        }
        for list in reply::optionals(shared.read(&read).await?)? {
            let list = list.unwrap_or_default();
            found.push(list.as_chunks::<24>().0.iter().map(|address| address.to_vec()).collect());
        }
    }
    Ok(found)
}

/// Replaces fields, all or none, if none of them has changed. Nothing stands for a field that is not there.
pub(crate) async fn replace(
    shared: &Shared,
    keys: &ThreadKeys,
    fields: &[(Vec<u8>, Bytes, Bytes)],
) -> Result<bool> {
    if shared.scripts {
        let args: Vec<&[u8]> =
            fields.iter().flat_map(|(field, old, new)| [&**field, &**old, &**new]).collect();
        let reply = shared.connections.script(Access::Write, &script::REPLACE, &keys.both(), &args).await?;
        return Ok(reply::integer(&reply)? == 1);
    }
    let mut commands = Pipeline::new();
    for (field, _, new) in fields {
        if new.is_empty() {
            commands.cmd("HDEL").arg(&keys.hash).arg(field);
        } else {
            commands.cmd("HSET").arg(&keys.hash).arg(field).arg(&**new);
        }
    }
    replace_with(shared, keys, fields, commands).await
}

/// Runs commands, if fields have their old values. Without scripts.
async fn replace_with(
    shared: &Shared,
    keys: &ThreadKeys,
    fields: &[(Vec<u8>, Bytes, Bytes)],
    commands: Pipeline,
) -> Result<bool> {
    let mut read = Pipeline::new();
    let names: Vec<&[u8]> = fields.iter().map(|(field, ..)| &**field).collect();
    read.cmd("HMGET").arg(&keys.hash).arg(&names);
    let decide = |replies: Vec<Value>| {
        let found = reply::optionals(reply::Items::of(replies).next())?;
        let same = |(found, (_, old, _)): (Option<Bytes>, &(Vec<u8>, Bytes, Bytes))| {
            found.unwrap_or_default() == *old
        };
        let is_same = found.into_iter().zip(fields).all(same);
        Ok((is_same.then(|| commands.clone()), is_same))
    };
    Ok(shared.connections.optimistic(&[&keys.hash], &read, decide).await?.1)
}

/// Removes the checkpoints of runs, in every thread.
pub(crate) async fn delete_for_runs(shared: &Shared, run_ids: &[&str]) -> Result<()> {
    shared.ready().await?;
    if run_ids.is_empty() {
        return Ok(());
    }
    let mut threads = Directory::new(None, None);
    while let Some(ids) = threads.next_page(shared, DIRECTORY_PAGE).await? {
        for thread_id in with_runs(shared, ids, run_ids).await? {
            delete_in_thread(shared, &thread_id, run_ids).await?;
        }
    }
    Ok(())
}

/// Which of these threads may have checkpoints of runs: those of which a checkpoint among the newest has one, and those
/// with more checkpoints. Two trips for all of them.
async fn with_runs(shared: &Shared, ids: Vec<Str>, run_ids: &[&str]) -> Result<Vec<Str>> {
    let all = |id: &Str| {
        let mut newest = redis::cmd("ZREVRANGEBYLEX");
        newest.arg(shared.keys.thread(id).index).arg("(b").arg("[a").arg("LIMIT").arg(0).arg(NEWEST);
        newest
    };
    let replies = shared.connections.each(Access::Read, ids.iter().map(all).collect()).await?;
    let (mut found, mut asked, mut commands) = (Vec::new(), Vec::new(), Vec::new());
    for (id, reply) in ids.into_iter().zip(replies) {
        let members = load::members(reply)?;
        if members.len() == NEWEST {
            found.push(id);
        } else if !members.is_empty() {
            let mut read = redis::cmd("HMGET");
            read.arg(shared.keys.thread(&id).hash).arg(load::metadata_fields(&members));
            commands.push(read);
            asked.push((id, members));
        }
    }
    if commands.is_empty() {
        return Ok(found);
    }
    let replies = shared.connections.each(Access::Read, commands).await?;
    for ((id, members), reply) in asked.into_iter().zip(replies) {
        let mut has_run = false;
        for ((ns, checkpoint_id), head) in members.into_iter().zip(reply::optionals(reply)?) {
            let Some(head) = head else { continue };
            has_run |= is_of_runs(shared, &Row::new(&id, ns, checkpoint_id, Head::read(&head)?), run_ids)?;
        }
        if has_run {
            found.push(id);
        }
    }
    Ok(found)
}

/// Whether a checkpoint is of one of these runs. It is not, if its metadata cannot be opened: others have another key.
fn is_of_runs(shared: &Shared, row: &Row, run_ids: &[&str]) -> Result<bool> {
    let key = row.key();
    match row.head.open_metadata(&shared.values().requiring_decryption(), key) {
        Err(error) if error.kind() == ErrorKind::Crypto => Ok(false),
        Err(error) => Err(key.context()(error)),
        Ok(metadata) => Ok(metadata.run_id().is_some_and(|run_id| run_ids.contains(&run_id))),
    }
}

async fn delete_in_thread(shared: &Shared, thread_id: &str, run_ids: &[&str]) -> Result<()> {
    let mut all = AllCheckpoints::new(thread_id, None);
    let mut removed = Vec::new();
    while let Some(page) = all.next_page(shared).await? {
        for row in page {
            if is_of_runs(shared, &row, run_ids)? {
                removed.push(row);
            }
        }
    }
    let writes = writes_on(shared, thread_id, &removed).await?;
    remove(shared, thread_id, removed, writes, Vec::new()).await.map(|_| ())
}
