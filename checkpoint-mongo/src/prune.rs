//! Removes checkpoints, then what only they referred to: for `prune`, `retain`, `keep_last` and `delete_for_runs`.
//!
//! Nothing locks a thread. What goes is noted first, in documents of the thread, so that a run that is cut off is finished by
//! the next one. Then the checkpoints are deleted, the oldest first; and, after [`LINGER`], what no checkpoint refers to.
//! A writer loses nothing to that:
//!
//! * A `put` that relies on values of its parent looks whether the parent is stored, at most [`LINGER`] before its own
//!   checkpoint is, or else again afterwards. If the parent was there, the checkpoint is stored before values are counted.
//!   Otherwise the `put` stores all of its values.
//! * A `put` that finds a document stored already marks it as held, in `h`, before it relies on it. For [`HELD`] it is not
//!   deleted: the delete itself asks for that. It stays noted, and a later run deletes it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, SystemTime};

use checkpoint_core::backend::segments::{Address, Addresses};
use checkpoint_core::{Error, ErrorKind, Result, Str, id};
use futures_util::future::try_join;
use mongodb::bson::{Bson, DateTime, Document, doc};

use crate::client::{Find, Inserted, not_understood, within};
use crate::keys::{Range, ThreadKeys, kind};
use crate::list::all_rows;
use crate::load::{self, Payload, Row};
use crate::row::{self, Name};
use crate::shared::Shared;
use crate::{leases, tokens};

/// How long it takes from the deletion of checkpoints until it is counted which values are still referred to, at least.
pub(crate) const LINGER: Duration = Duration::from_millis(250);

/// How long a document is not removed that a `put` has found stored: longer than that `put` takes, and than the clocks of
/// machines differ.
const HELD: Duration = Duration::from_secs(5 * 60);

/// How long what a call has stored stays that nothing refers to: the call may be under way.
const YOUNG: Duration = Duration::from_secs(60 * 60);

/// How long a note of another run means that it is still under way.
const FRESH: Duration = Duration::from_secs(2);

/// The most `_id`s, or ranges, that one statement names.
const IDS: usize = 1000;

/// The most statements of one request.
const STATEMENTS: usize = 16;

/// The most `_id`s of one note.
const NOTED: usize = 20_000;

/// How often a note is tried that others are faster with.
const ATTEMPTS: usize = 20;

/// What is to be removed from a thread.
#[derive(Debug)]
pub(crate) struct Removal {
    thread_id: Str,
    keys: ThreadKeys,
    /// The `_id`s of checkpoints, which take their writes with them, or of such that are not stored, whose writes go; of
    /// values to which they referred; and what the `_id`s of chunks begin with.
    ids: BTreeSet<String>,
    /// The `_id`s of decisions about these checkpoints, with the checkpoint, by namespace.
    decisions: BTreeMap<Str, Vec<(String, Str)>>,
    /// Whether everything goes that nothing refers to, and the lease if nobody holds it.
    whole: bool,
    /// How long it does not delete what a `put` has found stored.
    hold: Duration,
    /// Tells the notes of this run from those of others.
    run: Str,
}

impl Removal {
    pub(crate) fn new(thread_id: &str) -> Self {
        Self {
            thread_id: thread_id.into(),
            keys: ThreadKeys::new(thread_id),
            ids: BTreeSet::new(),
            decisions: BTreeMap::new(),
            whole: false,
            hold: HELD,
            run: id::uuid6(0),
        }
    }

    pub(crate) fn thread_id(&self) -> &Str {
        &self.thread_id
    }

    /// Removes all of the thread.
    pub(crate) fn whole(mut self, whole: bool) -> Self {
        self.whole = whole;
        self
    }

    /// Adds a checkpoint with all that it refers to.
    pub(crate) fn add(&mut self, row: &Row) {
        self.ids.insert(row.id.clone());
        self.ids.extend(row.names.iter().map(|name| self.keys.value(&row.checkpoint_ns, name)));
        let owners = [&row.metadata, &row.document].into_iter().filter_map(Payload::owner);
        self.ids.extend(owners.map(|owner| self.keys.owner(owner)));
        // A parent can have another newest child, and a step be made again.
        let child = self.keys.child(&row.checkpoint_ns, row.parent.as_deref().unwrap_or_default());
        let of_namespace = self.decisions.entry(row.checkpoint_ns.clone()).or_default();
        let decisions = [Some(child), row.step.clone()].into_iter().flatten();
        of_namespace.extend(decisions.map(|id| (id, row.checkpoint_id.clone())));
    }

    /// Adds the writes on a checkpoint that need not be stored, and whose chunks they have.
    pub(crate) fn add_writes(&mut self, checkpoint_ns: &str, checkpoint_id: &str, owners: &[String]) {
        self.ids.insert(self.keys.checkpoint(checkpoint_ns, checkpoint_id));
        self.ids.extend(owners.iter().map(|owner| self.keys.owner(owner)));
    }

    /// Adds a value.
    pub(crate) fn add_value(&mut self, checkpoint_ns: &str, name: &Name) {
        self.ids.insert(self.keys.value(checkpoint_ns, name));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The `_id`s of checkpoints, stored or not.
    pub(crate) fn checkpoints(&self) -> Vec<String> {
        self.of(kind::CHECKPOINT).cloned().collect()
    }

    fn of(&self, kind: char) -> impl Iterator<Item = &String> {
        self.ids.iter().filter(move |id| id.starts_with(kind))
    }

    /// Notes what goes, and what a run that was cut off has left to do. `false` if another run is under way, unless that does
    /// not matter.
    pub(crate) async fn note(&mut self, shared: &Shared, even_if_busy: bool) -> Result<bool> {
        for _ in 0..ATTEMPTS {
            if shared.mongo.insert(&self.documents(shared), true).await? == Inserted::All {
                return Ok(true);
            }
            let filter = shared.mongo.in_range(&self.thread_id, &self.keys.removals());
            let found = shared.mongo.find(Find { filter, ..Find::default() }).await?;
            if !even_if_busy && found.iter().any(is_fresh) {
                return Ok(false);
            }
            for note in &found {
                self.take_over(note)?;
            }
            // What both of them remove is removed once.
            let mut others: Vec<Document> = Vec::new();
            for note in &found {
                let id = note.get_str("_id").map_err(|_| not_understood("_id"))?;
                let mut exactly = shared.mongo.by_id(&self.thread_id, id);
                exactly.insert("by", load::text(note, "by")?.to_string());
                others.push(exactly);
            }
            shared.mongo.delete(others).await?;
        }
        Ok(false)
    }

    /// Notes what a later run is to delete. If another one is under way, that is left to `collect_garbage`.
    async fn note_for_others(&mut self, shared: &Shared) -> Result<()> {
        let mut notes = self.documents(shared);
        for note in &mut notes {
            note.insert("ct", DateTime::MIN);
        }
        shared.mongo.insert(&notes, true).await.map(|_| ())
    }

    /// Notes what goes, in place of what this process has noted before and not finished.
    pub(crate) async fn note_with(&mut self, shared: &Shared, before: Self) -> Result<()> {
        self.ids.extend(before.ids);
        self.whole |= before.whole;
        self.run = before.run;
        shared.mongo.replace(&self.thread_id, &self.documents(shared)).await
    }

    fn documents(&self, shared: &Shared) -> Vec<Document> {
        let ids: Vec<Bson> = self.ids.iter().cloned().map(Bson::String).collect();
        let note = |(number, ids): (usize, &[Bson])| {
            let mut note = doc! {
                "_id": self.keys.removal(number),
                "t": &*self.thread_id,
                "by": &*self.run,
                "w": self.whole,
                "go": ids.to_vec(),
            };
            shared.stamp(&mut note, true);
            note
        };
        ids.chunks(NOTED).enumerate().map(note).collect()
    }

    /// Adds what another run has noted.
    pub(crate) fn take_over(&mut self, note: &Document) -> Result<()> {
        for id in note.get_array("go").map_err(|_| not_understood("go"))? {
            self.ids.insert(id.as_str().ok_or_else(|| not_understood("go"))?.to_owned());
        }
        self.whole |= note.get_bool("w").unwrap_or_default();
        Ok(())
    }

    fn notes(&self, shared: &Shared) -> Document {
        let mut notes = shared.mongo.in_range(&self.thread_id, &self.keys.removals());
        notes.insert("by", &*self.run);
        notes
    }

    /// Deletes the checkpoints: from now on none of them is visible. Then the writes, if it is known whose chunks they have.
    pub(crate) async fn delete_checkpoints(
        &self,
        shared: &Shared,
        rows: &[Row],
        with_writes: bool,
    ) -> Result<()> {
        let mut ids: Vec<&String> = rows.iter().map(|row| &row.id).collect();
        // The oldest first: what is left of a call that was cut off is the newest part of the thread.
        ids.sort_unstable();
        let by_ids =
            |ids: &[&String]| shared.mongo.by_ids(&*self.thread_id, ids.iter().map(|id| (*id).clone()));
        let mut filters: Vec<Document> = ids.chunks(IDS).map(by_ids).collect();
        for decisions in self.decisions.values().flat_map(|decisions| decisions.chunks(IDS)) {
            let ids = decisions.iter().map(|(id, _)| id.clone());
            let checkpoints: Vec<&str> = decisions.iter().map(|(_, checkpoint)| &**checkpoint).collect();
            let mut of_these = shared.mongo.by_ids(&*self.thread_id, ids);
            of_these.insert("c", doc! { "$in": checkpoints });
            filters.push(of_these);
        }
        if with_writes {
            let on: Vec<Range> = self.of(kind::CHECKPOINT).flat_map(|id| self.keys.on(id)).collect();
            filters.extend(on.chunks(IDS).map(|on| shared.mongo.in_ranges(&*self.thread_id, on)));
        }
        delete(shared, &filters).await
    }

    /// Deletes what no checkpoint refers to any more, then the notes of this run: [`LINGER`] after the checkpoints.
    pub(crate) async fn finish(&self, shared: &Shared) -> Result<()> {
        let Garbage { mut filters, ids, values, mut used, mut owners, held } = self.garbage(shared).await?;
        let thread_id = &*self.thread_id;
        let free = |ids: &[String]| not_held(shared.mongo.by_ids(thread_id, ids.iter().cloned()), self.hold);
        filters.extend(ids.chunks(IDS).map(free));
        let mut segments = BTreeSet::new();
        if !values.is_empty() {
            // Values that turn out to be held keep their parts.
            delete(shared, &std::mem::take(&mut filters)).await?;
            let left = heads_of(shared, thread_id, values.iter().map(|value| &value.id)).await?;
            let left: HashSet<String> = left.into_iter().map(|value| value.id).collect();
            for value in &values {
                if left.contains(&value.id) {
                    used.extend(value.addresses.iter());
                } else {
                    segments.extend(value.addresses.iter());
                    owners.extend(value.owner.as_ref().map(|owner| self.keys.owner(owner)));
                }
            }
        }
        let segments: Vec<String> =
            segments.difference(&used).map(|address| self.keys.segment(*address)).collect();
        filters.extend(segments.chunks(IDS).map(free));
        let chunks: Vec<Range> = owners.iter().map(|owner| Range::below(owner)).collect();
        filters.extend(chunks.chunks(IDS).map(|chunks| shared.mongo.in_ranges(thread_id, chunks)));
        filters.push(self.notes(shared));
        delete(shared, &filters).await?;
        if held.is_empty() {
            return Ok(());
        }
        let mut rest = Self { ids: held, ..Self::new(thread_id) };
        rest.note_for_others(shared).await
    }

    /// Finds what no checkpoint refers to any more.
    async fn garbage(&self, shared: &Shared) -> Result<Garbage> {
        let (thread_id, keys, mongo) = (&*self.thread_id, &self.keys, &shared.mongo);
        // Values first, then the checkpoints: what is stored between the two is seen.
        let has_values = self.of(kind::VALUE).next().is_some();
        let stored = if has_values { all_values(shared, thread_id).await? } else { Vec::new() };
        let rows = all_rows(shared, thread_id, Some(load::heads())).await?;
        let mut live: HashSet<String> = rows.iter().map(|row| row.id.clone()).collect();
        for row in &rows {
            live.extend(row.names.iter().map(|name| keys.value(&row.checkpoint_ns, name)));
            let owners = [&row.metadata, &row.document].into_iter().filter_map(Payload::owner);
            live.extend(owners.map(|owner| keys.owner(owner)));
        }
        // Of a run that was cut off.
        let left: Vec<Range> =
            self.of(kind::CHECKPOINT).filter(|id| live.contains(*id)).map(|id| keys.writes_on(id)).collect();
        if !left.is_empty() {
            let owners = owners_of(shared, thread_id, &left).await?;
            live.extend(owners.iter().map(|owner| keys.owner(owner)));
        }
        let dead = |kind| self.of(kind).filter(|id| !live.contains(*id));
        let on: Vec<[Range; 2]> = dead(kind::CHECKPOINT).map(|id| keys.on(id)).collect();
        let writes: Vec<Range> = on.iter().map(|[writes, _]| writes.clone()).collect();
        let seen: HashSet<&str> = stored.iter().map(|value| &*value.id).collect();
        let newer =
            live.iter().filter(|id| has_values && id.starts_with(kind::VALUE) && !seen.contains(id.as_str()));
        let (owners, newer) =
            try_join(owners_of(shared, thread_id, &writes), heads_of(shared, thread_id, newer)).await?;
        let owners =
            owners.into_iter().map(|owner| keys.owner(&owner)).chain(dead(kind::CHUNK).cloned()).collect();
        let is_dead = |value: &ValueHead| self.ids.contains(&value.id) && !live.contains(&value.id);
        let (values, kept): (Vec<ValueHead>, Vec<ValueHead>) =
            stored.into_iter().chain(newer).partition(is_dead);
        let (held, values): (Vec<ValueHead>, Vec<ValueHead>) =
            values.into_iter().partition(|value| value.held.is_some_and(|held| held >= ago(self.hold)));
        let ids = values.iter().map(|value| value.id.clone()).collect();
        let values = values.into_iter().filter(ValueHead::has_parts).collect();
        let used = kept.iter().chain(&held).flat_map(|value| value.addresses.iter()).collect();
        let ranges = on.concat();
        let mut filters: Vec<Document> =
            ranges.chunks(IDS).map(|on| mongo.in_ranges(thread_id, on)).collect();
        if self.whole && rows.is_empty() {
            // Of calls that were cut off. What is younger may belong to one that is under way.
            let kinds = [kind::VALUE, kind::SEGMENT, kind::CHUNK].map(|kind| keys.all(kind));
            let mut old = not_held(mongo.in_ranges(thread_id, &kinds), HELD);
            old.insert("ct", doc! { "$lt": ago(YOUNG) });
            filters.extend([old, leases::over(shared, thread_id)]);
        }
        let held = held.into_iter().map(|value| value.id).collect();
        Ok(Garbage { filters, ids, values, used, owners, held })
    }
}

/// What nothing refers to.
struct Garbage {
    /// Writes, and what else goes in any case.
    filters: Vec<Document>,
    /// The `_id`s of values.
    ids: Vec<String>,
    /// Those of them that have segments or chunks.
    values: Vec<ValueHead>,
    /// The segments of values that stay.
    used: BTreeSet<Address>,
    /// What the `_id`s of chunks begin with.
    owners: BTreeSet<String>,
    /// The `_id`s of values that are held.
    held: BTreeSet<String>,
}

/// A value, without it.
#[derive(Debug)]
pub(crate) struct ValueHead {
    pub(crate) id: String,
    pub(crate) addresses: Addresses,
    /// Whose chunks it has.
    pub(crate) owner: Option<String>,
    pub(crate) bytes: u64,
    /// When a `put` has found it.
    held: Option<DateTime>,
}

impl ValueHead {
    fn read(mut document: Document) -> Result<Self> {
        let addresses = match document.remove("a") {
            Some(Bson::Binary(binary)) => Addresses::new(binary.bytes)?,
            _ => Addresses::default(),
        };
        let id = document.get_str("_id").map_err(|_| not_understood("_id"))?.to_owned();
        let held = document.get_datetime("h").ok().copied();
        Ok(Self { id, addresses, owner: load::owner(&document), bytes: load::size(&document), held })
    }

    fn has_parts(&self) -> bool {
        self.owner.is_some() || !self.addresses.is_empty()
    }

    fn projection() -> Document {
        doc! { "a": 1, "d.o": 1, "b": 1, "h": 1 }
    }
}

/// All values of a thread.
pub(crate) async fn all_values(shared: &Shared, thread_id: &str) -> Result<Vec<ValueHead>> {
    let filter = shared.mongo.in_range(thread_id, &ThreadKeys::new(thread_id).all(kind::VALUE));
    let find = Find { filter, projection: Some(ValueHead::projection()), ..Find::default() };
    shared.mongo.find(find).await?.into_iter().map(ValueHead::read).collect()
}

/// Those of these values that are stored.
async fn heads_of<'i>(
    shared: &Shared,
    thread_id: &str,
    ids: impl Iterator<Item = &'i String>,
) -> Result<Vec<ValueHead>> {
    let ids: Vec<String> = ids.cloned().collect();
    let found = load::by_ids(shared, Some(thread_id), ids, Some(ValueHead::projection())).await?;
    found.into_iter().map(ValueHead::read).collect()
}

/// Whose chunks the writes in these ranges have.
async fn owners_of(shared: &Shared, thread_id: &str, ranges: &[Range]) -> Result<Vec<String>> {
    let mut owners = Vec::new();
    for ranges in ranges.chunks(IDS) {
        let mut filter = shared.mongo.in_ranges(thread_id, ranges);
        filter.insert("d.o", doc! { "$exists": true });
        let find = Find { filter, projection: Some(doc! { "d.o": 1 }), ..Find::default() };
        owners.extend(shared.mongo.find(find).await?.iter().filter_map(load::owner));
    }
    Ok(owners)
}

/// Deletes what filters match, one after the other.
async fn delete(shared: &Shared, filters: &[Document]) -> Result<()> {
    for filters in filters.chunks(STATEMENTS) {
        shared.mongo.delete(filters.to_vec()).await?;
    }
    Ok(())
}

/// Leaves out what a `put` has found stored, and relies on, for so long.
pub(crate) fn not_held(mut filter: Document, grace: Duration) -> Document {
    filter.insert("h", doc! { "$not": { "$gte": ago(grace) } });
    filter
}

/// The time so long ago.
pub(crate) fn ago(age: Duration) -> DateTime {
    SystemTime::now().checked_sub(age).map_or(DateTime::MIN, DateTime::from_system_time)
}

/// Whether another run is still under way.
pub(crate) fn is_fresh(note: &Document) -> bool {
    note.get_datetime("ct").is_ok_and(|created| *created >= ago(FRESH))
}

/// Deletes those of these values to which no checkpoint refers any more, with their segments and chunks, also if a `put` has
/// found them.
pub(crate) async fn collect(shared: &Shared, thread_id: &str, names: &BTreeSet<(Str, Name)>) -> Result<()> {
    let mut removal = Removal { hold: Duration::ZERO, ..Removal::new(thread_id) };
    for (ns, name) in names {
        removal.add_value(ns, name);
    }
    removal.finish(shared).await
}

/// Removes checkpoints of threads, with all that only they need, and returns when that is done.
pub(crate) async fn remove(shared: &Shared, removals: Vec<(Removal, Vec<Row>)>) -> Result<()> {
    let mut begun = Vec::new();
    for (mut removal, rows) in removals {
        if removal.is_empty() {
            continue;
        }
        if !removal.note(shared, true).await? {
            let message = "others remove checkpoints of the thread all the time; try again";
            return Err(Error::new(ErrorKind::Conflict, message).retryable(true));
        }
        removal.delete_checkpoints(shared, &rows, false).await?;
        begun.push(removal);
    }
    if !begun.is_empty() {
        tokio::time::sleep(LINGER).await;
    }
    for removal in begun {
        removal.finish(shared).await?;
    }
    Ok(())
}

/// Removes the checkpoints of runs, in every thread.
pub(crate) async fn delete_for_runs(shared: &Shared, run_ids: &[Str]) -> Result<()> {
    shared.ready().await?;
    if run_ids.is_empty() {
        return Ok(());
    }
    let runs: Vec<String> = run_ids.iter().map(|run_id| tokens::run(shared.values(), run_id)).collect();
    let mut filter = within(&Range::kind(kind::CHECKPOINT));
    tokens::either(shared.values(), doc! { "r": { "$in": runs } }, &mut filter);
    let mut threads: BTreeMap<Str, Vec<Row>> = BTreeMap::new();
    for document in shared.mongo.find(Find { filter, ..Find::default() }).await? {
        let Some(mut row) = Row::read(document)? else { continue };
        let thread_id = row.thread_id.clone();
        load::chunks(shared, &thread_id, vec![&mut row.metadata]).await?;
        let (key, codec) = (row.key(), shared.values().requiring_decryption());
        let is_of_runs = match row::open_metadata(&codec, key, row.metadata.bytes()?) {
            // Others have another key.
            Err(error) if error.kind() == ErrorKind::Crypto => false,
            Err(error) => return Err(key.context()(error)),
            Ok(metadata) => {
                metadata.run_id().is_some_and(|run_id| run_ids.iter().any(|wanted| **wanted == *run_id))
            }
        };
        if is_of_runs {
            threads.entry(row.thread_id.clone()).or_default().push(row);
        }
    }
    let removal = |(thread_id, rows): (Str, Vec<Row>)| {
        let mut removal = Removal::new(&thread_id);
        for row in &rows {
            removal.add(row);
        }
        (removal, rows)
    };
    remove(shared, threads.into_iter().map(removal).collect()).await
}
