//! `retain`, and what `prune` keeps: a thread is looked at without a lock, and nothing of it is removed if somebody stored
//! anything in it since.

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use checkpoint_core::backend::{CheckpointKey, StoredCheckpoint, StoredThread, StoredWrites, Verdict};
use checkpoint_core::delta::CheckpointSummary;
use checkpoint_core::{
    Error, ErrorKind, FilterSemantics, Result, RetainOptions, RetainReport, Retention, Str, ThreadStatus, id,
};
use redis::Value;

use crate::connection::Access;
use crate::keys::{self, ThreadKeys, WriteName, kind};
use crate::leases;
use crate::list::AllCheckpoints;
use crate::load::Row;
use crate::prune::{self, MEMBERS, Replaced, Step};
use crate::reply;
use crate::row::{self, Document, Head, StoredWrite};
use crate::shared::Shared;
use crate::write::forget_thread;

/// How often a thread is looked at again in which something was stored meanwhile.
const ATTEMPTS: usize = 5;

/// Keeps the newest checkpoint of each namespace of a thread, and what it needs.
pub(crate) async fn keep_latest(shared: &Shared, thread_id: &str) -> Result<()> {
    shared.ready().await?;
    for _ in 0..ATTEMPTS {
        let Some(look) = Look::at(shared, thread_id, &Retention::keep_latest(), 0).await? else { continue };
        let parents = look.without_parents()?;
        let (rows, writes) = look.removed();
        if prune::remove(shared, thread_id, rows, writes, parents).await? {
            return Ok(());
        }
    }
    Err(Error::new(ErrorKind::Conflict, "the thread changed all the time; try again").retryable(true))
}

/// Applies a policy to threads, one after the other.
pub(crate) async fn retain(
    shared: &Shared,
    thread_ids: &[Str],
    policy: &Retention,
    options: &RetainOptions,
) -> Result<RetainReport> {
    policy.validate()?;
    shared.ready().await?;
    let now = options.now_micros();
    let mut report = RetainReport::default();
    for thread_id in thread_ids {
        match retain_thread(shared, thread_id, policy, options.dry_run, now).await? {
            Some(done) => report.add(&done),
            None => report.busy.push(thread_id.clone()),
        }
    }
    Ok(report)
}

/// `None` if others keep changing the thread.
async fn retain_thread(
    shared: &Shared,
    thread_id: &str,
    policy: &Retention,
    dry_run: bool,
    now: i64,
) -> Result<Option<RetainReport>> {
    let keys = shared.keys.thread(thread_id);
    // What went in attempts that did not come to an end.
    let mut gone = RetainReport::default();
    let mut attempts = 0;
    while attempts < ATTEMPTS {
        attempts += 1;
        let mut generation = redis::cmd("HGET");
        generation.arg(&keys.hash).arg(kind::GENERATION);
        let generation = shared.read(&generation).await?;
        if generation == Value::Nil {
            return Ok(Some(gone));
        }
        let Some(mut look) = Look::at(shared, thread_id, policy, now).await? else { continue };
        let values = look.measure(shared).await?;
        let mut report = RetainReport::default();
        look.verdict.count(&look.thread, values, &mut report);
        if dry_run || !look.verdict.is_change() {
            report.add_earlier(&gone);
            return Ok(Some(report));
        }
        let generation = reply::integer(&generation)?;
        if look.verdict.whole {
            if !prune::remove_thread(shared, thread_id, generation).await? {
                continue;
            }
            leases::delete_expired(shared, thread_id).await?;
            let mut forget = redis::cmd("ZREM");
            forget.arg(shared.keys.directory(thread_id)).arg(thread_id);
            forget_thread(shared, thread_id, &forget).await?;
            report.add_earlier(&gone);
            return Ok(Some(report));
        }
        let steps = look.steps();
        let taken = prune::take_steps(shared, thread_id, generation, &steps).await?;
        if taken < steps.len() {
            if taken > 0 {
                attempts = 0;
                gone.add_earlier(&look.taken(steps.iter().take(taken)));
            }
            continue;
        }
        report.add_earlier(&gone);
        return Ok(Some(report));
    }
    Ok((gone.changed > 0).then_some(gone))
}

/// A thread, and what goes of it.
struct Look {
    /// Newest first.
    rows: Vec<Row>,
    /// The fields of all writes.
    writes: Vec<(WriteName, Bytes)>,
    thread: StoredThread,
    verdict: Verdict,
    keys: ThreadKeys,
    /// The values to which only checkpoints refer that go, without their kind, with the addresses of the segments that go with
    /// them. Known once it was measured.
    values: Vec<(Vec<u8>, Vec<Vec<u8>>)>,
}

impl Look {
    /// Looks at a thread and decides; `None` if a checkpoint was just deleted.
    async fn at(shared: &Shared, thread_id: &str, policy: &Retention, now: i64) -> Result<Option<Self>> {
        let keys = shared.keys.thread(thread_id);
        let mut rows = Vec::new();
        let mut all = AllCheckpoints::new(thread_id);
        while let Some(page) = all.next_page(shared).await? {
            rows.extend(page);
        }
        let writes = all_writes(shared, &keys).await?;
        let mut thread = StoredThread::default();
        for row in &rows {
            thread.checkpoints.push(checkpoint(shared, row, policy).await?);
        }
        let mut counts: BTreeMap<(&Str, &Str), u64> = BTreeMap::new();
        for (name, _) in &writes {
            *counts.entry((&name.checkpoint_ns, &name.checkpoint_id)).or_default() += 1;
        }
        thread.writes.extend(counts.into_iter().map(|((ns, id), count)| StoredWrites {
            checkpoint_ns: ns.clone(),
            checkpoint_id: id.clone(),
            count,
            bytes: 0,
        }));
        if !policy.include_waiting {
            thread.waits = waits(shared, &keys, &thread, &writes, thread_id).await?;
        }
        let mut verdict = policy.decide(&thread, now);
        let partial: Vec<Str> = verdict.partial().cloned().collect();
        for checkpoint_ns in partial {
            let of_namespace: Vec<&Row> =
                rows.iter().filter(|row| row.checkpoint_ns == checkpoint_ns).collect();
            let Some(summaries) = summaries(shared, &keys, &of_namespace).await? else { return Ok(None) };
            verdict.keep_ancestors(&checkpoint_ns, |id| Ok(summaries.get(id).cloned()))?;
        }
        Ok(Some(Self { rows, writes, thread, verdict, keys, values: Vec::new() }))
    }

    fn is_dropped(&self, row: &Row) -> bool {
        let found = self.verdict.namespaces.get(&row.checkpoint_ns);
        found.is_some_and(|found| found.dropped.contains_key(&row.checkpoint_id))
    }

    /// The checkpoints to remove, and the fields of the writes to remove whose checkpoint is not stored.
    fn removed(self) -> (Vec<Row>, Vec<Bytes>) {
        let is_lost = |name: &WriteName| {
            let found = self.verdict.namespaces.get(&name.checkpoint_ns);
            found.is_some_and(|found| found.writes.contains_key(&name.checkpoint_id))
        };
        let lost =
            self.writes.iter().filter(|(name, _)| is_lost(name)).map(|(_, field)| field.clone()).collect();
        let dropped = |row: &Row| {
            let found = self.verdict.namespaces.get(&row.checkpoint_ns);
            found.is_some_and(|found| found.dropped.contains_key(&row.checkpoint_id))
        };
        (self.rows.into_iter().filter(dropped).collect(), lost)
    }

    /// What goes, the newest checkpoints first, so that those which are left have the ancestors that they need. With a
    /// checkpoint goes what neither an older one nor one that stays refers to.
    fn steps(&self) -> Vec<Step> {
        let mut writes: HashMap<(&Str, &Str), Vec<&Bytes>> = HashMap::new();
        let mut step = Step::default();
        for (name, field) in &self.writes {
            let Some(found) = self.verdict.namespaces.get(&name.checkpoint_ns) else { continue };
            if found.writes.contains_key(&name.checkpoint_id) {
                step.members.push(field.to_vec());
                step.fields.push(field.to_vec());
            } else if found.dropped.contains_key(&name.checkpoint_id) {
                writes.entry((&name.checkpoint_ns, &name.checkpoint_id)).or_default().push(field);
            }
        }
        let dropped: Vec<&Row> = self.rows.iter().filter(|row| self.is_dropped(row)).collect();
        let mut last: HashMap<Vec<u8>, usize> = HashMap::new();
        for (at, row) in dropped.iter().enumerate() {
            last.extend(
                row.fields(kind::BLOB).map(|field| (field.get(1..).unwrap_or_default().to_vec(), at)),
            );
        }
        let mut fields: Vec<Vec<Vec<u8>>> = vec![Vec::new(); dropped.len()];
        let mut segments: HashMap<&Vec<u8>, usize> = HashMap::new();
        for (value, addresses) in &self.values {
            let at = last.get(value).copied().unwrap_or_default();
            let Some(fields) = fields.get_mut(at) else { continue };
            fields.extend([kind::BLOB, kind::ADDRESSES].map(|of| keys::name(of, &[value])));
            for address in addresses {
                let last = segments.entry(address).or_default();
                *last = at.max(*last);
            }
        }
        for (address, at) in segments {
            let Some(fields) = fields.get_mut(at) else { continue };
            fields.push(keys::name(kind::SEGMENT, &[address]));
        }
        let mut steps = Vec::new();
        for (row, fields) in dropped.into_iter().zip(fields) {
            if step.is_full() {
                steps.push(std::mem::take(&mut step));
            }
            let suffix = row.suffix();
            step.checkpoints += 1;
            step.members.push(keys::name(kind::CHECKPOINT, &[&suffix]));
            step.members.push(keys::all(&row.checkpoint_ns, &row.checkpoint_id));
            step.fields.push(keys::name(kind::METADATA, &[&suffix]));
            step.fields.push(keys::name(kind::CHECKPOINT, &[&suffix]));
            if !row.head.step.is_empty() {
                step.fields.push(row.head.step.clone());
            }
            step.fields.extend(fields);
            for write in writes.remove(&(&row.checkpoint_ns, &row.checkpoint_id)).into_iter().flatten() {
                step.members.push(write.to_vec());
                step.fields.push(write.to_vec());
            }
        }
        steps.push(step);
        steps
    }

    /// What went with the first steps, without the bytes of values.
    fn taken<'a>(&self, steps: impl Iterator<Item = &'a Step>) -> RetainReport {
        let count = steps.map(|step| step.checkpoints).sum();
        let dropped = self.rows.iter().filter(|row| self.is_dropped(row)).take(count);
        let gone: HashSet<(&Str, &Str)> =
            dropped.map(|row| (&row.checkpoint_ns, &row.checkpoint_id)).collect();
        let is_lost = |row: &&StoredWrites| {
            let found = self.verdict.namespaces.get(&row.checkpoint_ns);
            found.is_some_and(|found| found.writes.contains_key(&row.checkpoint_id))
        };
        let is_gone = |row: &&StoredWrites| gone.contains(&(&row.checkpoint_ns, &row.checkpoint_id));
        let thread = StoredThread {
            checkpoints: (self.thread.checkpoints.iter())
                .filter(|row| gone.contains(&(&row.checkpoint_ns, &row.checkpoint_id)))
                .cloned()
                .collect(),
            writes: (self.thread.writes.iter()).filter(|row| is_gone(row) || is_lost(row)).cloned().collect(),
            waits: false,
        };
        let mut report = RetainReport::default();
        self.verdict.count(&thread, 0, &mut report);
        report
    }

    /// The metadata of kept checkpoints whose parents are not kept, without them.
    fn without_parents(&self) -> Result<Replaced> {
        let is_cut = |row: &&Row| {
            let Some(found) = self.verdict.namespaces.get(&row.checkpoint_ns) else { return false };
            let is_kept = found.kept.contains(&row.checkpoint_id);
            is_kept && row.head.parent().is_some_and(|parent| !found.kept.contains(&parent))
        };
        let cut = |row: &Row| {
            let suffix = row.suffix();
            let new = Head { parent: Str::default(), ..row.head.clone() };
            let (old, new) = (row.head.to_bytes()?.into(), new.to_bytes()?.into());
            Ok((keys::name(kind::METADATA, &[&suffix]), old, new))
        };
        self.rows.iter().filter(is_cut).map(cut).collect()
    }

    /// Measures what goes: sets the bytes of checkpoints and writes, and returns those of values to which only they refer.
    async fn measure(&mut self, shared: &Shared) -> Result<u64> {
        let (mut fields, mut live, mut dead) = (Vec::new(), HashSet::new(), HashSet::new());
        for row in &self.rows {
            let names = row.fields(kind::BLOB).map(|field| field.get(1..).unwrap_or_default().to_vec());
            if self.is_dropped(row) {
                dead.extend(names);
            } else {
                live.extend(names);
            }
        }
        dead.retain(|name| !live.contains(name));
        let of_rows: Vec<usize> =
            self.rows.iter().enumerate().filter(|(_, row)| self.is_dropped(row)).map(|(at, _)| at).collect();
        for at in &of_rows {
            let suffix = self.rows.get(*at).map(Row::suffix).unwrap_or_default();
            fields.push(keys::name(kind::CHECKPOINT, &[&suffix]));
        }
        let is_removed = |name: &WriteName| {
            let found = self.verdict.namespaces.get(&name.checkpoint_ns);
            let (ns_found, id) = (found, &name.checkpoint_id);
            ns_found.is_some_and(|found| found.dropped.contains_key(id) || found.writes.contains_key(id))
        };
        let of_writes: Vec<usize> = self
            .writes
            .iter()
            .enumerate()
            .filter(|(_, (name, _))| is_removed(name))
            .map(|(at, _)| at)
            .collect();
        fields
            .extend(of_writes.iter().filter_map(|at| self.writes.get(*at)).map(|(_, field)| field.to_vec()));
        let dead: Vec<Vec<u8>> = dead.into_iter().collect();
        fields.extend(dead.iter().map(|name| keys::name(kind::BLOB, &[name])));
        let mut lists = prune::lists(shared, &self.keys, &dead).await?;
        let mut segments: HashSet<Vec<u8>> = lists.iter().flatten().cloned().collect();
        if !segments.is_empty() {
            let live: Vec<_> = live.into_iter().collect();
            for address in prune::lists(shared, &self.keys, &live).await?.iter().flatten() {
                segments.remove(address);
            }
        }
        for list in &mut lists {
            list.retain(|address| segments.contains(address));
        }
        fields.extend(segments.iter().map(|address| keys::name(kind::SEGMENT, &[address])));
        self.values = dead.into_iter().zip(lists).collect();
        let mut lengths = lengths(shared, &self.keys, &fields).await?.into_iter();
        let mut by_place: HashMap<(Str, Str), u64> = HashMap::new();
        for at in of_rows {
            let length = lengths.next().unwrap_or_default();
            let Some(row) = self.rows.get(at) else { continue };
            by_place.insert((row.checkpoint_ns.clone(), row.checkpoint_id.clone()), length);
        }
        for stored in &mut self.thread.checkpoints {
            let place = (stored.checkpoint_ns.clone(), stored.checkpoint_id.clone());
            stored.bytes += by_place.get(&place).copied().unwrap_or_default();
        }
        by_place.clear();
        for at in of_writes {
            let length = lengths.next().unwrap_or_default();
            let Some((name, _)) = self.writes.get(at) else { continue };
            *by_place.entry((name.checkpoint_ns.clone(), name.checkpoint_id.clone())).or_default() += length;
        }
        for stored in &mut self.thread.writes {
            let place = (stored.checkpoint_ns.clone(), stored.checkpoint_id.clone());
            stored.bytes += by_place.get(&place).copied().unwrap_or_default();
        }
        Ok(lengths.sum())
    }
}

async fn checkpoint(shared: &Shared, row: &Row, policy: &Retention) -> Result<StoredCheckpoint> {
    let (codec, key) = (shared.values().requiring_decryption(), row.key());
    let is_pinned = match &policy.pinned {
        Some(filter) => {
            let metadata = row.head.open_metadata(&codec, key).map_err(key.context())?;
            filter.matches(&metadata, FilterSemantics::Equality)
        }
        None => false,
    };
    let mut ts = None;
    if policy.needs_ages() && id::unix_micros(&row.checkpoint_id).is_none() {
        let mut read = redis::cmd("HGET");
        let field = keys::name(kind::CHECKPOINT, &[&row.suffix()]);
        read.arg(shared.keys.thread(&row.thread_id).hash).arg(field);
        if let Some(document) = reply::optional(shared.read(&read).await?)? {
            let document = Document::read(&codec, key, &row.head, &document).map_err(key.context())?;
            ts = document.map(|document| document.checkpoint.ts);
        }
    }
    Ok(StoredCheckpoint {
        checkpoint_ns: row.checkpoint_ns.clone(),
        checkpoint_id: row.checkpoint_id.clone(),
        parent_checkpoint_id: row.head.parent(),
        ts,
        is_pinned,
        needs_parent: false,
        bytes: u64::try_from(row.head.metadata.len()).unwrap_or_default(),
    })
}

/// All writes of a thread: their names and fields.
async fn all_writes(shared: &Shared, keys: &ThreadKeys) -> Result<Vec<(WriteName, Bytes)>> {
    let mut found = Vec::new();
    let mut from = b"[w".to_vec();
    loop {
        let mut read = redis::cmd("ZRANGEBYLEX");
        read.arg(&keys.index).arg(&from).arg("(x").arg("LIMIT").arg(0).arg(MEMBERS);
        let page = reply::list(shared.read(&read).await?)?;
        for member in &page {
            found.push((WriteName::read(member)?, member.clone()));
        }
        match page.last().filter(|_| page.len() == MEMBERS) {
            Some(last) => from = [b"(", &**last].concat(),
            None => return Ok(found),
        }
    }
}

/// Whether a thread waits for a person, by the writes on its newest checkpoint.
async fn waits(
    shared: &Shared,
    keys: &ThreadKeys,
    thread: &StoredThread,
    writes: &[(WriteName, Bytes)],
    thread_id: &str,
) -> Result<bool> {
    let Some((checkpoint_ns, checkpoint_id)) = thread.newest() else { return Ok(false) };
    let is_on =
        |name: &WriteName| name.checkpoint_ns == *checkpoint_ns && name.checkpoint_id == *checkpoint_id;
    let on: Vec<&(WriteName, Bytes)> = writes.iter().filter(|(name, _)| is_on(name)).collect();
    let codec = shared.values().requiring_decryption();
    let key = CheckpointKey::new(thread_id, checkpoint_ns, checkpoint_id);
    let mut tasks: Vec<(Str, Str)> = Vec::new();
    for on in on.chunks(MEMBERS) {
        let mut read = redis::cmd("HMGET");
        read.arg(&keys.hash);
        for (_, field) in on {
            read.arg(&**field);
        }
        for ((name, _), stored) in on.iter().zip(reply::optionals(shared.read(&read).await?)?) {
            let Some(stored) = stored else { continue };
            let header = StoredWrite::read(&stored).and_then(|write| write.open_header(&codec, key, name));
            tasks.push((name.task_id.clone(), header.map_err(key.context())?.0));
        }
    }
    let tasks = tasks.iter().map(|(task_id, channel)| (&**task_id, &**channel));
    Ok(ThreadStatus::from_parts(None, false, tasks) == ThreadStatus::Waiting)
}

/// What decides which ancestors checkpoints need, or `None` if one of them was just deleted.
async fn summaries(
    shared: &Shared,
    keys: &ThreadKeys,
    rows: &[&Row],
) -> Result<Option<HashMap<Str, CheckpointSummary>>> {
    let mut found = HashMap::new();
    for rows in rows.chunks(MEMBERS) {
        let mut read = redis::cmd("HMGET");
        read.arg(&keys.hash);
        for row in rows {
            read.arg(keys::name(kind::CHECKPOINT, &[&row.suffix()]));
        }
        for (row, document) in rows.iter().zip(reply::optionals(shared.read(&read).await?)?) {
            let Some(document) = document else { return Ok(None) };
            let summary = row::summary(shared.values(), row.key(), &row.head, &document)?;
            found.insert(row.checkpoint_id.clone(), summary);
        }
    }
    Ok(Some(found))
}

/// The lengths of fields, in their order.
async fn lengths(shared: &Shared, keys: &ThreadKeys, fields: &[Vec<u8>]) -> Result<Vec<u64>> {
    let mut found = Vec::new();
    for fields in fields.chunks(MEMBERS) {
        let length = |field: &Vec<u8>| {
            let mut command = redis::cmd("HSTRLEN");
            command.arg(&keys.hash).arg(field);
            command
        };
        for reply in shared.connections.each(Access::Read, fields.iter().map(length).collect()).await? {
            found.push(u64::try_from(reply::integer(&reply)?).unwrap_or_default());
        }
    }
    Ok(found)
}
