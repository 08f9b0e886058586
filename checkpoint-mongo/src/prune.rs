//! `prune` and `delete_for_runs`: removes checkpoints, then what only they referred to.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use checkpoint_core::backend::segments::Addresses;
use checkpoint_core::delta::NeededAncestors;
use checkpoint_core::{ErrorKind, Result, Str};
use mongodb::bson::{Bson, Document, doc};

use crate::client::{Find, within};
use crate::keys::{Range, ThreadKeys, kind};
use crate::list::all_rows;
use crate::load::{self, Payload, Row};
use crate::row::{self, Name};
use crate::shared::Shared;
use crate::tokens;

/// The most `_id`s, or ranges, that one statement names.
const IDS: usize = 1000;

/// Keeps the newest checkpoint of each namespace of a thread, and what it needs.
pub(crate) async fn keep_latest(shared: &Shared, thread_id: &str) -> Result<()> {
    shared.ready().await?;
    let rows = all_rows(shared, thread_id, None).await?;
    let mut newest: BTreeMap<Str, Str> = BTreeMap::new();
    for row in &rows {
        let id = newest.entry(row.checkpoint_ns.clone()).or_default();
        *id = id.clone().max(row.checkpoint_id.clone());
    }
    let mut keep: HashSet<(Str, Str)> = HashSet::new();
    let mut rows = rows;
    for (ns, id) in &newest {
        keep.insert((ns.clone(), id.clone()));
        let needed = needed(shared, thread_id, ns, id, &mut rows).await?;
        keep.extend(needed.into_iter().map(|id| (ns.clone(), id)));
    }
    let is_kept = |row: &Row| keep.contains(&(row.checkpoint_ns.clone(), row.checkpoint_id.clone()));
    let (kept, removed): (Vec<_>, Vec<_>) = rows.into_iter().partition(is_kept);
    // Writes may precede their checkpoint: those beyond the newest are kept.
    let is_orphan = |ns: &Str, id: &Str| {
        !keep.contains(&(ns.clone(), id.clone())) && newest.get(ns).is_some_and(|newest| id < newest)
    };
    let orphans = orphans(shared, thread_id, is_orphan).await?;
    // Children first lose their parents, so that none has one that is gone.
    let is_cut = |row: &&Row| {
        row.parent.as_ref().is_some_and(|parent| !keep.contains(&(row.checkpoint_ns.clone(), parent.clone())))
    };
    let cut: Vec<String> = kept.iter().filter(is_cut).map(|row| row.id.clone()).collect();
    if !cut.is_empty() {
        let filter = shared.mongo.by_ids(thread_id, cut);
        shared.mongo.update(filter, doc! { "$unset": { "p": "" } }).await?;
    }
    remove(shared, thread_id, removed, orphans).await
}

/// The ancestors that a checkpoint needs for its delta channels.
async fn needed(
    shared: &Shared,
    thread_id: &str,
    ns: &Str,
    newest: &Str,
    rows: &mut [Row],
) -> Result<Vec<Str>> {
    let places: BTreeMap<Str, usize> = rows
        .iter()
        .enumerate()
        .filter(|(_, row)| row.checkpoint_ns == *ns)
        .map(|(at, row)| (row.checkpoint_id.clone(), at))
        .collect();
    let mut ancestors: Option<NeededAncestors> = None;
    let mut next = Some(newest.clone());
    while let Some(row) = next.take().and_then(|id| rows.get_mut(*places.get(&id)?)) {
        load::chunks(shared, thread_id, vec![&mut row.metadata, &mut row.document]).await?;
        let summary = row::summary(shared.values(), row.key(), row)?;
        let walk = match ancestors.take() {
            None => NeededAncestors::new(&summary),
            Some(mut walk) => {
                walk.visit(summary);
                walk
            }
        };
        next = walk.next().cloned();
        ancestors = Some(walk);
    }
    Ok(ancestors.map(NeededAncestors::finish).unwrap_or_default())
}

/// The checkpoints whose writes are to be removed.
async fn orphans(
    shared: &Shared,
    thread_id: &str,
    is_removed: impl Fn(&Str, &Str) -> bool,
) -> Result<BTreeSet<(Str, Str)>> {
    let filter = shared.mongo.in_range(thread_id, &ThreadKeys::new(thread_id).all(kind::WRITE));
    let find = Find { filter, projection: Some(doc! { "n": 1, "c": 1 }), ..Find::default() };
    let mut found = BTreeSet::new();
    for write in shared.mongo.find(find).await? {
        let (ns, id) = (load::text(&write, "n")?, load::text(&write, "c")?);
        if is_removed(&ns, &id) {
            found.insert((ns, id));
        }
    }
    Ok(found)
}

/// Removes checkpoints with their writes and decisions, and the writes of others, then the values that only they referred
/// to.
async fn remove(
    shared: &Shared,
    thread_id: &str,
    rows: Vec<Row>,
    orphans: BTreeSet<(Str, Str)>,
) -> Result<()> {
    if rows.is_empty() && orphans.is_empty() {
        return Ok(());
    }
    shared.forget(thread_id);
    let keys = ThreadKeys::new(thread_id);
    // The oldest first: what is left of a call that was cut off is the newest part of the thread.
    for rows in rows.rchunks(IDS) {
        let filter = shared.mongo.by_ids(thread_id, rows.iter().map(|row| row.id.clone()));
        shared.mongo.delete(vec![filter]).await?;
    }
    let mut owners: BTreeSet<String> = BTreeSet::new();
    owners.extend(
        rows.iter()
            .flat_map(|row| [&row.metadata, &row.document])
            .filter_map(Payload::owner)
            .map(str::to_owned),
    );
    let of_rows = rows.iter().map(|row| (row.checkpoint_ns.clone(), row.checkpoint_id.clone()));
    let checkpoints: Vec<(Str, Str)> = of_rows.chain(orphans).collect();
    for checkpoints in checkpoints.chunks(IDS) {
        let writes: Vec<Range> = checkpoints.iter().map(|(ns, id)| keys.writes(ns, id)).collect();
        owners.extend(owners_of(shared, thread_id, &writes).await?);
        let once = checkpoints.iter().map(|(ns, id)| keys.once_on(ns, id));
        let ranges: Vec<Range> = writes.iter().cloned().chain(once).collect();
        shared.mongo.delete(vec![shared.mongo.in_ranges(thread_id, &ranges)]).await?;
    }
    // A parent can have another newest child, and a step be made again.
    let decisions = rows.iter().flat_map(|row| {
        let parent = row.parent.as_deref().unwrap_or_default();
        [Some(keys.child(&row.checkpoint_ns, parent)), row.step.clone()]
            .into_iter()
            .flatten()
            .map(move |id| (id, row))
    });
    let mut filters = Vec::new();
    for (id, row) in decisions {
        let mut exactly = shared.mongo.by_id(thread_id, &id);
        exactly.insert("c", &*row.checkpoint_id);
        filters.push(exactly);
    }
    for filters in filters.chunks(IDS) {
        shared.mongo.delete(filters.to_vec()).await?;
    }
    let names: BTreeSet<(Str, Name)> =
        rows.iter().flat_map(|row| row.names.iter().map(|name| (row.checkpoint_ns.clone(), *name))).collect();
    collect(shared, thread_id, &names, owners).await
}

/// Whose chunks the writes in these ranges have.
async fn owners_of(shared: &Shared, thread_id: &str, ranges: &[Range]) -> Result<Vec<String>> {
    let mut filter = shared.mongo.in_ranges(thread_id, ranges);
    filter.insert("d.o", doc! { "$exists": true });
    let find = Find { filter, projection: Some(doc! { "d.o": 1 }), ..Find::default() };
    let owner = |mut document: Document| match document.remove("d") {
        Some(Bson::Document(parts)) => parts.get_str("o").ok().map(str::to_owned),
        _ => None,
    };
    Ok(shared.mongo.find(find).await?.into_iter().filter_map(owner).collect())
}

/// Deletes those of these values to which no checkpoint refers any more, with their segments and chunks.
pub(crate) async fn collect(
    shared: &Shared,
    thread_id: &str,
    names: &BTreeSet<(Str, Name)>,
    mut owners: BTreeSet<String>,
) -> Result<()> {
    let keys = ThreadKeys::new(thread_id);
    let projection = Some(doc! { "t": 1, "n": 1, "c": 1, "nm": 1, "x": 1 });
    let left = all_rows(shared, thread_id, projection).await?;
    let live: HashSet<(Str, Name)> =
        left.iter().flat_map(|row| row.names.iter().map(|name| (row.checkpoint_ns.clone(), *name))).collect();
    let dead: BTreeSet<String> =
        names.iter().filter(|name| !live.contains(*name)).map(|(ns, name)| keys.value(ns, name)).collect();
    if !dead.is_empty() {
        // Their segments may be shared with values that stay, in every namespace.
        let filter = shared.mongo.in_range(thread_id, &keys.all(kind::VALUE));
        let find = Find { filter, projection: Some(doc! { "a": 1, "d.o": 1 }), ..Find::default() };
        let (mut garbage, mut shared_ones) = (HashSet::new(), HashSet::new());
        for mut value in shared.mongo.find(find).await? {
            let is_dead = value.get_str("_id").is_ok_and(|id| dead.contains(id));
            if let Some(Bson::Binary(binary)) = value.remove("a") {
                let addresses = Addresses::new(binary.bytes)?;
                if is_dead { garbage.extend(addresses.iter()) } else { shared_ones.extend(addresses.iter()) }
            }
            if let Some(Bson::Document(parts)) = value.remove("d").filter(|_| is_dead) {
                owners.extend(parts.get_str("o").ok().map(str::to_owned));
            }
        }
        let segments = garbage.difference(&shared_ones).map(|address| keys.segment(*address));
        let ids: Vec<String> = dead.into_iter().chain(segments).collect();
        for ids in ids.chunks(IDS) {
            shared.mongo.delete(vec![shared.mongo.by_ids(thread_id, ids.iter().cloned())]).await?;
        }
    }
    let owners: Vec<Range> = owners.iter().map(|owner| keys.chunks(owner)).collect();
    for owners in owners.chunks(IDS) {
        shared.mongo.delete(vec![shared.mongo.in_ranges(thread_id, owners)]).await?;
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
    for (thread_id, mut rows) in threads {
        // Newest first, as a listing has them.
        rows.sort_by(|a, b| b.checkpoint_id.cmp(&a.checkpoint_id));
        remove(shared, &thread_id, rows, BTreeSet::new()).await?;
    }
    Ok(())
}
