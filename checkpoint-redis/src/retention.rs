//! `retain`, and what `prune` and a `put` with `keep_last` keep: a thread is looked at without a lock, and nothing of it is
//! removed if somebody stored anything in it since. `usage`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use checkpoint_core::backend::records::{self, WriteName};
use checkpoint_core::backend::{
    CheckpointKey, KeepLast, StoredCheckpoint, StoredThread, StoredWrites, Verdict,
};
use checkpoint_core::delta::CheckpointSummary;
use checkpoint_core::retention::{ThreadUsage, Usage, UsageOptions};
use checkpoint_core::{
    CheckpointConfig, Error, ErrorKind, FilterSemantics, Result, RetainOptions, RetainReport, Retention, Str,
    ThreadStatus, id,
};
use futures_util::future::try_join;
use redis::Value;

use crate::connection::Access;
use crate::keys::{self, ThreadKeys, kind};
use crate::leases;
use crate::list::{self, AllCheckpoints};
use crate::load::{self, Row};
use crate::prune::{self, MEMBERS, Replaced, Step};
use crate::reply;
use crate::row::{Document, Head, StoredWrite};
use crate::runtime;
use crate::shared::Shared;
use crate::threads::{Directory, PAGE as DIRECTORY_PAGE};
use crate::write::forget_thread;

/// How often a thread is looked at again in which something was stored meanwhile.
const ATTEMPTS: usize = 5;

/// How many fields `usage` has in memory, unless one thread has more.
const FIELDS: usize = 20_000;

/// How many fields are measured at a time.
const MEASURED: usize = 10_000;

/// Keeps the newest checkpoint of each namespace of a thread, and what it needs.
pub(crate) async fn keep_latest(shared: &Shared, thread_id: &str) -> Result<()> {
    shared.ready().await?;
    for _ in 0..ATTEMPTS {
        let look = Look::at(shared, thread_id, None, &Retention::keep_latest(), 0).await?;
        let Some(look) = look else { continue };
        let parents = look.without_parents()?;
        let (rows, mut writes) = look.removed(Look::is_lost);
        writes.extend(prune::writes_on(shared, thread_id, &rows).await?);
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
    // What went in attempts that did not come to an end.
    let mut gone = RetainReport::default();
    let mut attempts = 0;
    while attempts < ATTEMPTS {
        attempts += 1;
        let Some(generation) = generation(shared, thread_id).await? else { return Ok(Some(gone)) };
        let Some(mut look) = Look::at(shared, thread_id, None, policy, now).await? else { continue };
        let values = look.measure(shared).await?;
        let mut report = RetainReport::default();
        look.verdict.count(&look.thread, values, &mut report);
        if dry_run || !look.verdict.is_change() {
            report.add_earlier(&gone);
            return Ok(Some(report));
        }
        if look.verdict.whole {
            if !prune::remove_thread(shared, thread_id, &generation).await? {
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
        let taken = prune::take_steps(shared, thread_id, &generation, &steps).await?;
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

/// The number of calls that have written to a thread, if there is one.
async fn generation(shared: &Shared, thread_id: &str) -> Result<Option<Bytes>> {
    let mut read = redis::cmd("HGET");
    read.arg(shared.keys.thread(thread_id).hash).arg(kind::GENERATION);
    reply::optional(shared.read(&read).await?)
}

/// Prunes the namespace in which a checkpoint was stored, if nothing was stored in the thread since it had this generation,
/// or later. It runs to its end even if the call is dropped. A failure is only logged: the checkpoint is stored.
pub(crate) async fn prune_behind(
    shared: &Arc<Shared>,
    config: &CheckpointConfig,
    keep: KeepLast,
    generation: Bytes,
) {
    let (shared, config) = (Arc::clone(shared), config.clone());
    let prune = async move { prune_namespace(&shared, &config, keep, generation).await };
    if let Err(error) = runtime::to_the_end(Box::pin(prune)).await {
        tracing::warn!(%error, "old checkpoints were not removed; a later call tries again");
    }
}

async fn prune_namespace(
    shared: &Shared,
    config: &CheckpointConfig,
    keep: KeepLast,
    mut since: Bytes,
) -> Result<()> {
    let (thread_id, policy) = (config.thread_id(), keep.policy());
    for _ in 0..ATTEMPTS {
        let look = Look::at(shared, thread_id, Some(config.checkpoint_ns()), &policy, 0).await?;
        if let Some(look) = look
            && (!look.verdict.is_change() || look.remove(shared, thread_id, since).await?)
        {
            return Ok(());
        }
        let Some(now) = generation(shared, thread_id).await? else { return Ok(()) };
        since = now;
    }
    tracing::debug!("others keep storing something in the thread; a later call removes old checkpoints");
    Ok(())
}

/// A thread, or a namespace of it, and what goes of it.
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
    /// Looks at a thread, or one of its namespaces, and decides; `None` if a checkpoint was just deleted.
    async fn at(
        shared: &Shared,
        thread_id: &str,
        checkpoint_ns: Option<&str>,
        policy: &Retention,
        now: i64,
    ) -> Result<Option<Self>> {
        let keys = shared.keys.thread(thread_id);
        // In one round trip, if there are few; the writes first, lest they are seen without a checkpoint that is just stored.
        let (writes, rows) = try_join(
            all_writes(shared, &keys, checkpoint_ns),
            all_checkpoints(shared, thread_id, checkpoint_ns),
        )
        .await?;
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
            let of_namespace = rows.iter().filter(|row| row.checkpoint_ns == checkpoint_ns);
            let of_namespace: HashMap<&Str, &Row> =
                of_namespace.map(|row| (&row.checkpoint_id, row)).collect();
            if !keep_ancestors(shared, &keys, &mut verdict, &checkpoint_ns, &of_namespace).await? {
                return Ok(None);
            }
        }
        Ok(Some(Self { rows, writes, thread, verdict, keys, values: Vec::new() }))
    }

    fn is_dropped(&self, row: &Row) -> bool {
        let found = self.verdict.namespaces.get(&row.checkpoint_ns);
        found.is_some_and(|found| found.dropped.contains_key(&row.checkpoint_id))
    }

    /// Whether a write goes without a checkpoint, which is not stored.
    fn is_lost(&self, name: &WriteName) -> bool {
        let found = self.verdict.namespaces.get(&name.checkpoint_ns);
        found.is_some_and(|found| found.writes.contains_key(&name.checkpoint_id))
    }

    /// Whether a write goes.
    fn is_removed(&self, name: &WriteName) -> bool {
        let found = self.verdict.namespaces.get(&name.checkpoint_ns);
        self.is_lost(name) || found.is_some_and(|found| found.dropped.contains_key(&name.checkpoint_id))
    }

    /// The checkpoints to remove, and the fields of writes of this kind.
    fn removed(mut self, is_of_kind: fn(&Self, &WriteName) -> bool) -> (Vec<Row>, Vec<Bytes>) {
        let writes = self.writes.iter().filter(|(name, _)| is_of_kind(&self, name));
        let writes = writes.map(|(_, field)| field.clone()).collect();
        let rows = std::mem::take(&mut self.rows);
        (rows.into_iter().filter(|row| self.is_dropped(row)).collect(), writes)
    }

    /// Removes what goes. `false` if anything was stored in the thread since it had this generation, or another run has
    /// removed some of it.
    async fn remove(self, shared: &Shared, thread_id: &str, since: Bytes) -> Result<bool> {
        let mut unchanged = vec![(kind::GENERATION.to_vec(), since.clone(), since)];
        let (rows, writes) = self.removed(Self::is_removed);
        // The last one to go.
        if let Some(row) = rows.first() {
            let stored: Bytes = row.head.to_bytes()?.into();
            unchanged.push((keys::name(kind::METADATA, &[&row.suffix()]), stored.clone(), stored));
        }
        prune::remove(shared, thread_id, rows, writes, unchanged).await
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
        let of_writes: Vec<usize> = self
            .writes
            .iter()
            .enumerate()
            .filter(|(_, (name, _))| self.is_removed(name))
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
        let fields: Vec<_> = fields.iter().map(|field| (&*self.keys.hash, field)).collect();
        let mut lengths = lengths(shared, &fields).await?.into_iter();
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
        ts = timestamp(shared, row).await?;
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

/// The `ts` of a checkpoint, unless it was just deleted.
async fn timestamp(shared: &Shared, row: &Row) -> Result<Option<Str>> {
    let mut read = redis::cmd("HGET");
    let field = keys::name(kind::CHECKPOINT, &[&row.suffix()]);
    read.arg(shared.keys.thread(&row.thread_id).hash).arg(field);
    let Some(document) = reply::optional(shared.read(&read).await?)? else { return Ok(None) };
    let (codec, key) = (shared.values().requiring_decryption(), row.key());
    let document = Document::read(&codec, key, &row.head.names, &document).map_err(key.context())?;
    Ok(document.map(|document| document.checkpoint.ts))
}

/// All checkpoints of a thread, or of a namespace, newest first.
async fn all_checkpoints(shared: &Shared, thread_id: &str, checkpoint_ns: Option<&str>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut all = AllCheckpoints::new(thread_id, checkpoint_ns);
    while let Some(page) = all.next_page(shared).await? {
        rows.extend(page);
    }
    Ok(rows)
}

/// All writes of a thread, or of a namespace: their names and fields.
async fn all_writes(
    shared: &Shared,
    keys: &ThreadKeys,
    checkpoint_ns: Option<&str>,
) -> Result<Vec<(WriteName, Bytes)>> {
    let of_namespace = checkpoint_ns.map(keys::namespace).unwrap_or_default();
    let (to, mut from) = list::bounds(&keys::name(kind::WRITE, &[&of_namespace]));
    let mut found = Vec::new();
    loop {
        let mut read = redis::cmd("ZRANGEBYLEX");
        read.arg(&keys.index).arg(&from).arg(&to).arg("LIMIT").arg(0).arg(MEMBERS);
        let page = reply::list(shared.read(&read).await?)?;
        for member in &page {
            found.push((keys::read_write(member)?, member.clone()));
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

/// Keeps the ancestors that the delta channels of a namespace need. `false` if a checkpoint was just deleted.
///
/// Where there are no delta channels, only what stays is read.
async fn keep_ancestors(
    shared: &Shared,
    keys: &ThreadKeys,
    verdict: &mut Verdict,
    checkpoint_ns: &Str,
    stored: &HashMap<&Str, &Row>,
) -> Result<bool> {
    let kept = verdict.namespaces.get(checkpoint_ns).map(|found| &found.kept);
    let (first, others) =
        stored.values().copied().partition(|row| kept.is_some_and(|kept| kept.contains(&row.checkpoint_id)));
    let mut found = HashMap::new();
    for rows in [first, others] {
        if !summaries(shared, keys, rows, &mut found).await? {
            return Ok(false);
        }
        let (mut decided, mut is_complete) = (verdict.clone(), true);
        decided.keep_ancestors(checkpoint_ns, |id| {
            is_complete &= found.contains_key(id) || !stored.contains_key(id);
            Ok(found.get(id).cloned())
        })?;
        if is_complete {
            *verdict = decided;
            break;
        }
    }
    Ok(true)
}

/// Reads what decides which ancestors checkpoints need. `false` if one of them was just deleted.
async fn summaries(
    shared: &Shared,
    keys: &ThreadKeys,
    rows: Vec<&Row>,
    found: &mut HashMap<Str, CheckpointSummary>,
) -> Result<bool> {
    for rows in rows.chunks(MEMBERS) {
        let mut read = redis::cmd("HMGET");
        read.arg(&keys.hash);
        for row in rows {
            read.arg(keys::name(kind::CHECKPOINT, &[&row.suffix()]));
        }
        for (row, document) in rows.iter().zip(reply::optionals(shared.read(&read).await?)?) {
            let Some(document) = document else { return Ok(false) };
            let (key, head) = (row.key(), &row.head);
            let summary = records::summary(shared.values(), key, &document, &head.metadata, head.parent())
                .map_err(key.context())?;
            found.insert(row.checkpoint_id.clone(), summary);
        }
    }
    Ok(true)
}

/// The lengths of fields of hashes, in their order.
async fn lengths<F: AsRef<[u8]>>(shared: &Shared, fields: &[(&[u8], F)]) -> Result<Vec<u64>> {
    let mut found = Vec::with_capacity(fields.len());
    for fields in fields.chunks(MEASURED) {
        let mut commands = Vec::with_capacity(fields.len());
        for (hash, field) in fields {
            let mut command = redis::cmd("HSTRLEN");
            command.arg(*hash).arg(field.as_ref());
            commands.push(command);
        }
        for reply in shared.connections.each(Access::Read, commands).await? {
            found.push(u64::try_from(reply::integer(&reply)?).unwrap_or_default());
        }
    }
    Ok(found)
}

/// Measures all threads: reads the names and lengths of their fields.
pub(crate) async fn usage(shared: &Shared, options: &UsageOptions) -> Result<Usage> {
    shared.ready().await?;
    let mut usage = Usage::default();
    let mut directory = Directory::new(None, None);
    while let Some(ids) = directory.next_page(shared, DIRECTORY_PAGE).await? {
        let counts = of_each(shared, "HLEN", &ids).await?;
        let (mut batch, mut fields) = (Vec::new(), 0_usize);
        for (thread_id, count) in ids.into_iter().zip(counts) {
            let count = usize::try_from(reply::integer(&count)?).unwrap_or_default();
            if fields.saturating_add(count) > FIELDS {
                measure(shared, &std::mem::take(&mut batch), options, &mut usage).await?;
                fields = 0;
            }
            fields = fields.saturating_add(count);
            batch.push(thread_id);
        }
        measure(shared, &batch, options, &mut usage).await?;
    }
    Ok(usage)
}

/// The replies to a command on the hash of each thread.
async fn of_each(shared: &Shared, command: &'static str, ids: &[Str]) -> Result<Vec<Value>> {
    let of = |thread_id: &Str| {
        let mut command = redis::cmd(command);
        command.arg(shared.keys.thread(thread_id).hash);
        command
    };
    shared.connections.each(Access::Read, ids.iter().map(of).collect()).await
}

/// Measures threads: one trip, and one for each [`MEASURED`] of their fields.
async fn measure(shared: &Shared, ids: &[Str], options: &UsageOptions, usage: &mut Usage) -> Result<()> {
    if ids.is_empty() {
        return Ok(());
    }
    let names = of_each(shared, "HKEYS", ids).await?.into_iter().map(reply::list);
    let names = names.collect::<Result<Vec<_>>>()?;
    let hashes: Vec<Vec<u8>> = ids.iter().map(|thread_id| shared.keys.thread(thread_id).hash).collect();
    let fields = hashes.iter().zip(&names).flat_map(|(hash, names)| names.iter().map(|name| (&**hash, name)));
    let mut lengths = lengths(shared, &fields.collect::<Vec<_>>()).await?.into_iter();
    for (thread_id, names) in ids.iter().zip(&names) {
        let mut thread = ThreadUsage { thread_id: thread_id.clone(), ..ThreadUsage::default() };
        let mut checkpoints: HashMap<&[u8], u64> = HashMap::new();
        for name in names {
            let bytes = lengths.next().unwrap_or_default();
            let Some((of, suffix)) = name.split_first() else { continue };
            match *of {
                kind::METADATA | kind::CHECKPOINT => *checkpoints.entry(suffix).or_default() += bytes,
                kind::WRITE => thread.writes += 1,
                kind::BLOB | kind::ADDRESSES | kind::SEGMENT => {}
                _ => continue,
            }
            thread.bytes += bytes;
        }
        thread.checkpoints = u64::try_from(checkpoints.len()).unwrap_or(u64::MAX);
        for (suffix, bytes) in checkpoints {
            let (checkpoint_ns, checkpoint_id) = keys::read_checkpoint(suffix)?;
            let mut ts = None;
            if id::unix_micros(&checkpoint_id).is_none() {
                ts = match timestamp_at(shared, thread_id, checkpoint_ns, checkpoint_id.clone()).await {
                    // A checkpoint that cannot be opened has no time.
                    Err(error) if matches!(error.kind(), ErrorKind::Crypto | ErrorKind::Codec) => None,
                    found => found?,
                };
            }
            usage.add_to_day(&checkpoint_id, ts.as_deref(), bytes);
        }
        if thread.checkpoints + thread.writes > 0 {
            usage.add_thread(thread, options);
        }
    }
    Ok(())
}

/// The `ts` of a checkpoint whose metadata was not read.
async fn timestamp_at(
    shared: &Shared,
    thread_id: &Str,
    checkpoint_ns: Str,
    checkpoint_id: Str,
) -> Result<Option<Str>> {
    let place = (thread_id.clone(), (checkpoint_ns.clone(), checkpoint_id.clone()));
    let Some(head) = load::heads(shared, &[place]).await?.pop().flatten() else { return Ok(None) };
    timestamp(shared, &Row::new(thread_id, checkpoint_ns, checkpoint_id, Head::read(&head)?)).await
}
