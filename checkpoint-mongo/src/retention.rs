//! `retain`, what `prune` keeps, what `keep_last` does behind a `put`, and `usage`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use checkpoint_core::backend::segments::Address;
use checkpoint_core::backend::{
    CheckpointKey, KeepLast, StoredCheckpoint, StoredThread, StoredWrites, Verdict, distinct,
};
use checkpoint_core::delta::CheckpointSummary;
use checkpoint_core::retention::{ThreadUsage, Usage, UsageOptions};
use checkpoint_core::{
    CheckpointConfig, Filter, FilterSemantics, Result, RetainOptions, RetainReport, Retention, Str,
    ThreadStatus, id,
};
use futures_util::future::{try_join, try_join3};
use futures_util::{StreamExt, TryStreamExt, stream};
use mongodb::bson::{Document, doc};

use crate::client::{Find, within};
use crate::keys::{Range, ThreadKeys, kind};
use crate::list::all_rows;
use crate::load::{self, Row, WriteRow};
use crate::prune::{self, Removal, ValueHead, is_fresh};
use crate::row::{self, Document as Decoded, StoredWrite};
use crate::shared::{Shared, is_expired};
use crate::tokens;

/// How many threads are looked at before anything of them is removed.
const THREADS: usize = 128;

/// How many of them at the same time.
const AT_ONCE: usize = 8;

/// How often a thread is looked at again of which another run has removed something meanwhile.
const ATTEMPTS: usize = 5;

/// How many ancestors are read at a time.
const ANCESTORS: usize = 64;

/// How many documents are measured at a time.
const SCANNED: usize = 10_000;

/// Keeps the newest checkpoint of each namespace of threads, and what it needs.
pub(crate) async fn keep_latest(shared: &Shared, thread_ids: &[Str]) -> Result<()> {
    shared.ready().await?;
    let thread_ids: Vec<&str> = thread_ids.iter().map(|thread_id| &**thread_id).collect();
    for thread_ids in distinct(&thread_ids).chunks(THREADS) {
        let mut removals = Vec::new();
        for thread_id in thread_ids {
            let look = Look::at(shared, thread_id, &Retention::keep_latest(), 0).await?;
            // Children first lose their parents, so that none has one that is gone.
            let orphans = look.without_parents();
            if !orphans.is_empty() {
                let filter = shared.mongo.by_ids(*thread_id, orphans);
                shared.mongo.update(filter, doc! { "$unset": { "p": "" } }).await?;
            }
            removals.push((look.removal(), look.removed));
        }
        prune::remove(shared, removals).await?;
    }
    Ok(())
}

/// Applies a policy to threads.
pub(crate) async fn retain(
    shared: &Arc<Shared>,
    thread_ids: &[Str],
    policy: &Retention,
    options: &RetainOptions,
) -> Result<RetainReport> {
    policy.validate()?;
    shared.ready().await?;
    let now = options.now_micros();
    let thread_ids: Vec<&str> = thread_ids.iter().map(|thread_id| &**thread_id).collect();
    let mut report = RetainReport::default();
    for thread_ids in distinct(&thread_ids).chunks(THREADS) {
        if !options.dry_run {
            finish_others(shared, thread_ids).await?;
        }
        // If one of them fails, nothing of the others is removed.
        let look = |thread_id: &&'_ str| {
            let thread_id = Str::from(*thread_id);
            async move {
                let mut look = Look::at(shared, &thread_id, policy, now).await?;
                look.measure(shared).await?;
                Ok(look)
            }
        };
        let looks = stream::iter(thread_ids.iter().map(look).collect::<Vec<_>>());
        let looks: Vec<Look> = looks.buffered(AT_ONCE).try_collect().await?;
        if options.dry_run {
            for look in &looks {
                look.count(&mut report);
            }
            continue;
        }
        let begin: Vec<_> = looks.into_iter().map(|look| look.begin(shared, policy, now)).collect();
        let done: Vec<_> = stream::iter(begin).buffered(AT_ONCE).try_collect().await?;
        for done in done {
            match done {
                Ok(done) => report.add(&done),
                Err(thread_id) => report.busy.push(thread_id),
            }
        }
    }
    Ok(report)
}

/// Finishes what runs have begun that were cut off.
async fn finish_others(shared: &Shared, thread_ids: &[&str]) -> Result<()> {
    let ranges: Vec<Range> =
        thread_ids.iter().map(|thread_id| ThreadKeys::new(thread_id).removals()).collect();
    let only = match thread_ids {
        [only] => Some(*only),
        _ => None,
    };
    let filter = shared.mongo.in_ranges(only, &ranges);
    let mut removals: BTreeMap<Str, Removal> = BTreeMap::new();
    for note in shared.mongo.find(Find { filter, ..Find::default() }).await? {
        let thread_id = load::text(&note, "t")?;
        if !is_fresh(&note) {
            removals.entry(thread_id.clone()).or_insert_with(|| Removal::new(&thread_id)).take_over(&note)?;
        }
    }
    for (_, mut removal) in removals {
        if removal.note(shared, false).await? {
            removal.finish(shared).await?;
        }
    }
    Ok(())
}

/// The writes on one checkpoint, which need not be stored.
#[derive(Debug, Default)]
struct Writes {
    count: u64,
    bytes: u64,
    /// Whose chunks they have.
    owners: Vec<String>,
}

/// A thread, and what goes of it.
struct Look {
    thread_id: Str,
    keys: ThreadKeys,
    /// The checkpoints that stay, and those that go.
    kept: Vec<Row>,
    removed: Vec<Row>,
    /// By namespace and checkpoint.
    writes: BTreeMap<(Str, Str), Writes>,
    thread: StoredThread,
    verdict: Verdict,
    /// The bytes of values that go.
    values: u64,
}

impl Look {
    /// Looks at a thread and decides.
    async fn at(shared: &Shared, thread_id: &str, policy: &Retention, now: i64) -> Result<Self> {
        let rows = all_rows(shared, thread_id, Some(load::heads()));
        let (rows, writes, pinned) =
            try_join3(rows, all_writes(shared, thread_id), pinned(shared, thread_id, policy.pinned.as_ref()))
                .await?;
        let mut thread = StoredThread::default();
        let times = times(shared, thread_id, policy, &rows).await?;
        for row in &rows {
            thread.checkpoints.push(row.stored(times.get(&row.id).cloned(), pinned.contains(&row.id)));
        }
        thread.writes.extend(writes.iter().map(|((ns, id), writes)| StoredWrites {
            checkpoint_ns: ns.clone(),
            checkpoint_id: id.clone(),
            count: writes.count,
            bytes: writes.bytes,
        }));
        if !policy.include_waiting {
            thread.waits = waits(shared, thread_id, &thread, &writes).await?;
        }
        Self::decide(shared, thread_id, policy, now, thread, rows, writes).await
    }

    async fn decide(
        shared: &Shared,
        thread_id: &str,
        policy: &Retention,
        now: i64,
        thread: StoredThread,
        rows: Vec<Row>,
        writes: BTreeMap<(Str, Str), Writes>,
    ) -> Result<Self> {
        let mut verdict = policy.decide(&thread, now);
        let partial: Vec<Str> = verdict.partial().cloned().collect();
        for checkpoint_ns in partial {
            keep_ancestors(shared, thread_id, &checkpoint_ns, &rows, &mut verdict).await?;
        }
        let is_dropped = |row: &Row| {
            let found = verdict.namespaces.get(&row.checkpoint_ns);
            found.is_some_and(|found| found.dropped.contains_key(&row.checkpoint_id))
        };
        let (removed, kept) = rows.into_iter().partition(is_dropped);
        let keys = ThreadKeys::new(thread_id);
        Ok(Self { thread_id: thread_id.into(), keys, kept, removed, writes, thread, verdict, values: 0 })
    }

    /// The `_id`s of checkpoints that stay without their parents.
    fn without_parents(&self) -> Vec<String> {
        let is_cut = |row: &&Row| {
            let kept = self.verdict.namespaces.get(&row.checkpoint_ns).map(|found| &found.kept);
            row.parent.as_ref().is_some_and(|parent| kept.is_some_and(|kept| !kept.contains(parent)))
        };
        self.kept.iter().filter(is_cut).map(|row| row.id.clone()).collect()
    }

    /// What goes.
    fn removal(&self) -> Removal {
        let mut removal = Removal::new(&self.thread_id).whole(self.verdict.whole);
        for row in &self.removed {
            removal.add(row);
        }
        for (checkpoint_ns, found) in &self.verdict.namespaces {
            for id in found.dropped.keys().chain(found.writes.keys()) {
                let writes = self.writes.get(&(checkpoint_ns.clone(), id.clone()));
                let owners = writes.map(|writes| writes.owners.as_slice()).unwrap_or_default();
                removal.add_writes(checkpoint_ns, id, owners);
            }
        }
        removal
    }

    fn count(&self, report: &mut RetainReport) {
        self.verdict.count(&self.thread, self.values, report);
    }

    /// Deletes the checkpoints that go. The thread itself, if another run removes something of it.
    async fn begin(
        mut self,
        shared: &Arc<Shared>,
        policy: &Retention,
        now: i64,
    ) -> Result<std::result::Result<RetainReport, Str>> {
        for _ in 0..ATTEMPTS {
            let mut report = RetainReport::default();
            self.count(&mut report);
            if !self.verdict.is_change() {
                return Ok(Ok(report));
            }
            let Some(removal) = self.note(shared).await? else { break };
            // Another run may have been done with it before: what goes counts once. And a checkpoint may have followed its
            // writes.
            let id = Some(doc! { "_id": 1 });
            let left = load::by_ids(shared, Some(&self.thread_id), removal.checkpoints(), id).await?;
            let left: BTreeSet<&str> = left.iter().filter_map(|left| left.get_str("_id").ok()).collect();
            let is_same =
                left.iter().copied().eq(self.removed.iter().map(|row| &*row.id).collect::<BTreeSet<_>>());
            if is_same {
                if self.verdict.whole {
                    shared.forget(&self.thread_id);
                }
                removal.delete_checkpoints(shared, &self.removed, true).await?;
            }
            shared.finish_later(removal)?;
            if is_same {
                return Ok(Ok(report));
            }
            self = Self::at(shared, &self.thread_id, policy, now).await?;
            self.measure(shared).await?;
        }
        Ok(Err(self.thread_id))
    }

    /// Notes what goes. `None` if another run is under way.
    async fn note(&self, shared: &Shared) -> Result<Option<Removal>> {
        let mut removal = self.removal();
        match shared.take_begun(&self.thread_id) {
            Some(before) => removal.note_with(shared, before).await?,
            None if !removal.note(shared, false).await? => return Ok(None),
            None => {}
        }
        Ok(Some(removal))
    }

    /// Adds the bytes of what goes: of chunks, and of values to which only removed checkpoints refer, with their segments.
    async fn measure(&mut self, shared: &Shared) -> Result<()> {
        if !self.verdict.is_change() {
            return Ok(());
        }
        let names = |rows: &[Row]| -> HashSet<String> {
            let names = rows
                .iter()
                .flat_map(|row| row.names.iter().map(|name| self.keys.value(&row.checkpoint_ns, name)));
            names.collect()
        };
        let (kept, removed) = (names(&self.kept), names(&self.removed));
        let dead: HashSet<&String> = removed.difference(&kept).collect();
        let stored =
            if dead.is_empty() { Vec::new() } else { prune::all_values(shared, &self.thread_id).await? };
        let (dead, others): (Vec<ValueHead>, Vec<ValueHead>) =
            stored.into_iter().partition(|value| dead.contains(&value.id));
        let used: HashSet<Address> = others.iter().flat_map(|value| value.addresses.iter()).collect();
        let segments: BTreeSet<Address> = dead
            .iter()
            .flat_map(|value| value.addresses.iter())
            .filter(|address| !used.contains(address))
            .collect();
        let segments: Vec<String> = segments.into_iter().map(|address| self.keys.segment(address)).collect();
        let owners =
            |row: &Row| [row.metadata.owner(), row.document.owner()].map(|owner| owner.map(str::to_owned));
        let has_chunks = dead.iter().any(|value| value.owner.is_some())
            || self.removed.iter().any(|row| owners(row).iter().any(Option::is_some))
            || self.writes.values().any(|writes| !writes.owners.is_empty());
        let (segments, chunks) = try_join(
            load::by_ids(shared, Some(&self.thread_id), segments, Some(doc! { "b": 1 })),
            chunks(shared, &self.thread_id, has_chunks),
        )
        .await?;
        let of = |owner: &Option<String>| {
            owner.as_ref().and_then(|owner| chunks.get(owner)).copied().unwrap_or_default()
        };
        self.values = dead.iter().map(|value| value.bytes + of(&value.owner)).sum::<u64>()
            + segments.iter().map(load::size).sum::<u64>();
        let rows: HashMap<(&Str, &Str), &Row> =
            self.removed.iter().map(|row| ((&row.checkpoint_ns, &row.checkpoint_id), row)).collect();
        for stored in &mut self.thread.checkpoints {
            if let Some(row) = rows.get(&(&stored.checkpoint_ns, &stored.checkpoint_id)) {
                stored.bytes += owners(row).iter().map(of).sum::<u64>();
            }
        }
        for stored in &mut self.thread.writes {
            let place = (stored.checkpoint_ns.clone(), stored.checkpoint_id.clone());
            let owners = self.writes.get(&place).map(|writes| writes.owners.as_slice()).unwrap_or_default();
            stored.bytes += owners.iter().map(|owner| of(&Some(owner.clone()))).sum::<u64>();
        }
        Ok(())
    }
}

/// All writes of a thread, without their values.
async fn all_writes(shared: &Shared, thread_id: &str) -> Result<BTreeMap<(Str, Str), Writes>> {
    let filter = shared.mongo.in_range(thread_id, &ThreadKeys::new(thread_id).all(kind::WRITE));
    let projection = Some(doc! { "n": 1, "c": 1, "b": 1, "d.o": 1 });
    let mut found: BTreeMap<(Str, Str), Writes> = BTreeMap::new();
    for write in shared.mongo.find(Find { filter, projection, ..Find::default() }).await? {
        let writes = found.entry((load::text(&write, "n")?, load::text(&write, "c")?)).or_default();
        writes.count += 1;
        writes.bytes += load::size(&write);
        writes.owners.extend(load::owner(&write));
    }
    Ok(found)
}

/// The bytes of a thread's chunks, by whose they are.
async fn chunks(shared: &Shared, thread_id: &str, are_there: bool) -> Result<HashMap<String, u64>> {
    let mut found: HashMap<String, u64> = HashMap::new();
    if !are_there {
        return Ok(found);
    }
    let filter = shared.mongo.in_range(thread_id, &ThreadKeys::new(thread_id).all(kind::CHUNK));
    for chunk in
        shared.mongo.find(Find { filter, projection: Some(doc! { "b": 1 }), ..Find::default() }).await?
    {
        let owner = chunk.get_str("_id").ok().and_then(|id| id.split('!').nth(2)).unwrap_or_default();
        *found.entry(owner.to_owned()).or_default() += load::size(&chunk);
    }
    Ok(found)
}

/// The `_id`s of the checkpoints that pin a thread.
async fn pinned(shared: &Shared, thread_id: &str, filter: Option<&Filter>) -> Result<HashSet<String>> {
    let Some(wanted) = filter else { return Ok(HashSet::new()) };
    let mut filter = shared.mongo.in_range(thread_id, &ThreadKeys::new(thread_id).all(kind::CHECKPOINT));
    tokens::condition(shared.values(), wanted, &mut filter);
    let mut projection = load::heads();
    for part in ["md.o", "md.l"] {
        projection.remove(part);
    }
    projection.insert("md", 1);
    let mut found = HashSet::new();
    for document in
        shared.mongo.find(Find { filter, projection: Some(projection), ..Find::default() }).await?
    {
        let Some(mut row) = Row::read(document)? else { continue };
        load::chunks(shared, thread_id, vec![&mut row.metadata]).await?;
        let codec = shared.values().requiring_decryption();
        let metadata = row.metadata.bytes().and_then(|bytes| row::open_metadata(&codec, row.key(), bytes));
        let metadata = metadata.map_err(row.key().context())?;
        if wanted.matches(&metadata, FilterSemantics::Equality) {
            found.insert(row.id);
        }
    }
    Ok(found)
}

/// The `ts` of checkpoints whose ids have no time, by their `_id`s.
async fn times(
    shared: &Shared,
    thread_id: &str,
    policy: &Retention,
    rows: &[Row],
) -> Result<HashMap<String, Str>> {
    let mut found = HashMap::new();
    if !policy.needs_ages() {
        return Ok(found);
    }
    let undated = rows.iter().filter(|row| id::unix_micros(&row.checkpoint_id).is_none());
    let undated: Vec<String> = undated.map(|row| row.id.clone()).collect();
    for row in whole_rows(shared, thread_id, undated).await? {
        if let Some(ts) = timestamp(shared, &row)? {
            found.insert(row.id, ts);
        }
    }
    Ok(found)
}

/// The `ts` of a checkpoint.
fn timestamp(shared: &Shared, row: &Row) -> Result<Option<Str>> {
    let codec = shared.values().requiring_decryption();
    let read = || Decoded::read(&codec, row.key(), &row.names, row.document.bytes()?);
    Ok(read().map_err(row.key().context())?.map(|document| document.checkpoint.ts))
}

/// Those of these checkpoints that are stored, with their records.
async fn whole_rows(shared: &Shared, thread_id: &str, ids: Vec<String>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for document in load::by_ids(shared, Some(thread_id), ids, None).await? {
        rows.extend(Row::read(document)?);
    }
    let payloads = rows.iter_mut().flat_map(|row: &mut Row| [&mut row.metadata, &mut row.document]).collect();
    load::chunks(shared, thread_id, payloads).await?;
    Ok(rows)
}

/// Whether a thread waits for a person, by the writes on its newest checkpoint.
async fn waits(
    shared: &Shared,
    thread_id: &str,
    thread: &StoredThread,
    writes: &BTreeMap<(Str, Str), Writes>,
) -> Result<bool> {
    let Some((checkpoint_ns, checkpoint_id)) = thread.newest() else { return Ok(false) };
    if !writes.contains_key(&(checkpoint_ns.clone(), checkpoint_id.clone())) {
        return Ok(false);
    }
    let range = ThreadKeys::new(thread_id).writes(checkpoint_ns, checkpoint_id);
    let mut writes = load::visible(load::writes_in(shared, Some(thread_id), &[range]).await?);
    load::chunks(shared, thread_id, writes.iter_mut().map(|write| &mut write.record).collect()).await?;
    let key = CheckpointKey::new(thread_id, checkpoint_ns, checkpoint_id);
    let codec = shared.values().requiring_decryption();
    let channel = |write: &WriteRow| {
        let stored = StoredWrite::read(write.record.bytes()?)?;
        Ok((write.name.task_id.clone(), stored.open_header(&codec, key, &write.name)?.0))
    };
    let tasks: Vec<(Str, Str)> = writes.iter().map(channel).collect::<Result<_>>().map_err(key.context())?;
    let tasks = tasks.iter().map(|(task_id, channel)| (&**task_id, &**channel));
    Ok(ThreadStatus::from_parts(None, false, tasks) == ThreadStatus::Waiting)
}

/// Keeps the ancestors that a namespace's delta channels need.
async fn keep_ancestors(
    shared: &Shared,
    thread_id: &str,
    checkpoint_ns: &Str,
    rows: &[Row],
    verdict: &mut Verdict,
) -> Result<()> {
    let keys = ThreadKeys::new(thread_id);
    // Newest first, as they are.
    let rows: Vec<&Row> = rows.iter().filter(|row| row.checkpoint_ns == *checkpoint_ns).collect();
    let places: HashMap<&Str, usize> =
        rows.iter().enumerate().map(|(at, row)| (&row.checkpoint_id, at)).collect();
    let mut known: HashMap<Str, Option<CheckpointSummary>> = HashMap::new();
    loop {
        // A walk that meets one that was not read yet tells which one.
        let mut wanted: BTreeSet<Str> = BTreeSet::new();
        let mut walked = verdict.clone();
        walked.keep_ancestors(checkpoint_ns, |id| {
            if let Some(known) = known.get(id) {
                return Ok(known.clone());
            }
            wanted.insert(id.clone());
            Ok(None)
        })?;
        if wanted.is_empty() {
            *verdict = walked;
            return Ok(());
        }
        // The ancestors of an old one are mostly those before it.
        let oldest = wanted.first().and_then(|oldest| places.get(oldest)).copied().unwrap_or(rows.len());
        wanted.extend(rows.iter().skip(oldest).take(ANCESTORS).map(|row| row.checkpoint_id.clone()));
        wanted.retain(|id| !known.contains_key(id));
        let ids = wanted.iter().map(|id| keys.checkpoint(checkpoint_ns, id)).collect();
        known.extend(wanted.into_iter().map(|id| (id, None)));
        for row in whole_rows(shared, thread_id, ids).await? {
            let summary = row::summary(shared.values(), row.key(), &row)?;
            known.insert(row.checkpoint_id.clone(), Some(summary));
        }
    }
}

/// The newest checkpoints of the namespace that is put to, without their records: as many as tell whether it is time to prune
/// it.
pub(crate) async fn newest(shared: &Shared, config: &CheckpointConfig, keep: KeepLast) -> Result<Vec<Row>> {
    let thread_id = config.thread_id();
    let range = ThreadKeys::new(thread_id).of_namespace(kind::CHECKPOINT, config.checkpoint_ns());
    let filter = shared.mongo.in_range(thread_id, &range);
    let find = Find { filter, projection: Some(load::heads()), descending: true, limit: keep.counted() };
    let mut rows = Vec::new();
    for document in shared.mongo.find(find).await? {
        rows.extend(Row::read(document)?);
    }
    Ok(rows)
}

/// Prunes the namespace in which a checkpoint was stored, if it is time. A failure is only logged: the checkpoint is stored.
pub(crate) async fn prune_behind(
    shared: &Arc<Shared>,
    config: &CheckpointConfig,
    checkpoint_id: &str,
    keep: KeepLast,
    newest: Result<Vec<Row>>,
) {
    let prune = async {
        let (thread_id, rows) = (config.thread_id(), newest?);
        // The new one counts, whether it was seen or not.
        let is_unseen = rows.iter().all(|row| *row.checkpoint_id != *checkpoint_id);
        if !keep.is_due_at_sample(rows.len() + usize::from(is_unseen), checkpoint_id) {
            return Ok(());
        }
        let mut thread = StoredThread::default();
        thread.checkpoints.extend(rows.iter().map(|row| row.stored(None, false)));
        thread.checkpoints.extend(is_unseen.then(|| StoredCheckpoint {
            checkpoint_ns: config.checkpoint_ns().into(),
            checkpoint_id: checkpoint_id.into(),
            parent_checkpoint_id: config.checkpoint_id().map(Str::from),
            ..StoredCheckpoint::default()
        }));
        let look = Look::decide(shared, thread_id, &keep.policy(), 0, thread, rows, BTreeMap::new()).await?;
        if look.removed.is_empty() {
            return Ok(());
        }
        let Some(removal) = look.note(shared).await? else { return Ok(()) };
        removal.delete_checkpoints(shared, &look.removed, false).await?;
        shared.finish_later(removal)
    };
    let pruned: Result<()> = prune.await;
    if let Err(error) = pruned {
        tracing::warn!(%error, "old checkpoints were not removed; a later call tries again");
    }
}

/// Measures everything: reads the `_id` and the size of every document.
pub(crate) async fn usage(shared: &Shared, options: &UsageOptions) -> Result<Usage> {
    shared.ready().await?;
    let mut usage = Usage::default();
    let mut scans = Vec::new();
    for kind in [kind::CHECKPOINT, kind::WRITE, kind::VALUE, kind::SEGMENT, kind::CHUNK] {
        scans.push(Scan::new(kind));
    }
    loop {
        // Each kind is in the order of threads.
        let mut first: Option<String> = None;
        for scan in &mut scans {
            if let Some(next) = scan.next_thread(shared).await? {
                first = Some(first.map_or_else(|| next.clone(), |first| first.min(next.clone())));
            }
        }
        let Some(escaped) = first else { return Ok(usage) };
        let mut thread = ThreadUsage::default();
        let mut days = Vec::new();
        for scan in &mut scans {
            while let Some(document) = scan.next_of(shared, &escaped).await? {
                thread.thread_id = load::text(&document, "t")?;
                let bytes = load::size(&document);
                thread.bytes += bytes;
                match scan.kind {
                    kind::CHECKPOINT => {
                        thread.checkpoints += 1;
                        days.push((load::text(&document, "c")?, load::text(&document, "_id")?, bytes));
                    }
                    kind::WRITE => thread.writes += 1,
                    _ => {}
                }
            }
        }
        add_days(shared, &thread.thread_id, days, &mut usage).await;
        if thread.checkpoints + thread.writes > 0 {
            usage.add_thread(thread, options);
        } else {
            usage.bytes += thread.bytes;
        }
    }
}

/// Adds the checkpoints of a thread to their days. Those that cannot be opened, and have no time in their ids, have none.
async fn add_days(shared: &Shared, thread_id: &str, checkpoints: Vec<(Str, Str, u64)>, usage: &mut Usage) {
    let undated = checkpoints.iter().filter(|(id, ..)| id::unix_micros(id).is_none());
    let undated: Vec<String> = undated.map(|(_, id, _)| id.to_string()).collect();
    let mut times: HashMap<String, Str> = HashMap::new();
    if !undated.is_empty() {
        let rows = whole_rows(shared, thread_id, undated).await.unwrap_or_default();
        times.extend(rows.iter().filter_map(|row| Some((row.id.clone(), timestamp(shared, row).ok()??))));
    }
    for (checkpoint_id, id, bytes) in checkpoints {
        usage.add_to_day(&checkpoint_id, times.get(&*id).map(|ts| &**ts), bytes);
    }
}

/// The documents of a kind in all threads, in the order of their `_id`s, without their records.
struct Scan {
    kind: char,
    /// What is left to read.
    range: Option<Range>,
    page: VecDeque<Document>,
}

impl Scan {
    fn new(kind: char) -> Self {
        Self { kind, range: Some(Range::kind(kind)), page: VecDeque::new() }
    }

    /// The thread of the next document, escaped.
    async fn next_thread(&mut self, shared: &Shared) -> Result<Option<String>> {
        while self.page.is_empty() {
            let Some(range) = self.range.take() else { return Ok(None) };
            let find = Find {
                filter: within(&range),
                projection: Some(doc! { "t": 1, "c": 1, "b": 1, "x": 1 }),
                limit: SCANNED,
                ..Find::default()
            };
            self.page = shared.mongo.find(find).await?.into();
            let last = self.page.back().filter(|_| self.page.len() == SCANNED);
            self.range = last.and_then(|last| last.get_str("_id").ok()).map(|last| range.after(last));
            self.page.retain(|document| !is_expired(document));
        }
        let id = self.page.front().and_then(|next| next.get_str("_id").ok()).unwrap_or_default();
        Ok(id.split('!').nth(1).map(str::to_owned))
    }

    /// The next document, if it is of this thread.
    async fn next_of(&mut self, shared: &Shared, thread: &str) -> Result<Option<Document>> {
        let next = self.next_thread(shared).await?;
        Ok(next.filter(|next| next == thread).and_then(|_| self.page.pop_front()))
    }
}
