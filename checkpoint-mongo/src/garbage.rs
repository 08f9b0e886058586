//! What expired, and what calls that were cut off have left.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use checkpoint_core::backend::segments::Addresses;
use checkpoint_core::{Result, Str};
use mongodb::bson::{Bson, DateTime, Document, doc};

use crate::client::Find;
use crate::keys::{ThreadKeys, kind};
use crate::list::all_rows;
use crate::load;
use crate::prune::{ago, not_held};
use crate::shared::Shared;

/// The most `_id`s that one statement names.
const IDS: usize = 1000;

/// How many times longer than values writes stay whose checkpoint is not stored: they may come before it.
const WRITES: u32 = 24;

/// Deletes what has expired.
pub(crate) async fn purge_expired(shared: &Shared) -> Result<u64> {
    shared.ready().await?;
    shared.mongo.delete(vec![doc! { "x": { "$lt": DateTime::now() } }]).await
}

/// Deletes what nothing refers to, if it is older than the grace period.
pub(crate) async fn collect(shared: &Shared, thread_id: &str, grace: Duration) -> Result<u64> {
    shared.ready().await?;
    shared.forget(thread_id);
    let keys = ThreadKeys::new(thread_id);
    let (old, very_old) = (ago(grace), ago(grace.saturating_mul(WRITES)));
    // What is old first, then what is referred to: a checkpoint that is stored between the two keeps its values.
    let projection = Some(doc! { "ct": 1, "h": 1, "a": 1, "d.o": 1 });
    let mut found = Vec::new();
    for kind in [kind::VALUE, kind::SEGMENT, kind::CHUNK] {
        let filter = shared.mongo.in_range(thread_id, &keys.all(kind));
        found.push(
            shared.mongo.find(Find { filter, projection: projection.clone(), ..Find::default() }).await?,
        );
    }
    let filter = shared.mongo.in_range(thread_id, &keys.all(kind::WRITE));
    let projection = Some(doc! { "ct": 1, "n": 1, "c": 1, "d.o": 1 });
    let writes = shared.mongo.find(Find { filter, projection, ..Find::default() }).await?;
    let rows = all_rows(shared, thread_id, Some(load::heads())).await?;
    // When it was stored, or found by a `put` that relies on it.
    let is_before = |document: &Document, limit: DateTime| {
        document.get_datetime("h").or_else(|_| document.get_datetime("ct")).is_ok_and(|used| *used <= limit)
    };
    let id = |document: &Document| document.get_str("_id").unwrap_or_default().to_owned();
    let mut garbage: Vec<String> = Vec::new();
    let mut owners: HashSet<String> = HashSet::new();
    let stored: HashSet<(Str, Str)> =
        rows.iter().map(|row| (row.checkpoint_ns.clone(), row.checkpoint_id.clone())).collect();
    for write in &writes {
        let of = (load::text(write, "n")?, load::text(write, "c")?);
        if !stored.contains(&of) && is_before(write, very_old) {
            garbage.push(id(write));
        } else {
            owners.extend(load::owner(write));
        }
    }
    owners.extend(
        rows.iter().flat_map(|row| [row.metadata.owner(), row.document.owner()]).flatten().map(str::to_owned),
    );
    let live: BTreeSet<String> = rows
        .iter()
        .flat_map(|row| row.names.iter().map(|name| keys.value(&row.checkpoint_ns, name)))
        .collect();
    let mut segments: HashSet<String> = HashSet::new();
    let mut found = found.into_iter();
    for mut value in found.next().unwrap_or_default() {
        let of = id(&value);
        if !live.contains(&of) && is_before(&value, old) {
            garbage.push(of);
            continue;
        }
        owners.extend(load::owner(&value));
        if let Some(Bson::Binary(binary)) = value.remove("a") {
            let addresses = Addresses::new(binary.bytes)?;
            segments.extend(addresses.iter().map(|address| keys.segment(address)));
        }
    }
    for segment in found.next().unwrap_or_default() {
        let of = id(&segment);
        if !segments.contains(&of) && is_before(&segment, old) {
            garbage.push(of);
        }
    }
    for chunk in found.next().unwrap_or_default() {
        let of = id(&chunk);
        let is_live = of.split('!').nth(2).is_some_and(|owner| owners.contains(owner));
        if !is_live && is_before(&chunk, old) {
            garbage.push(of);
        }
    }
    let mut deleted = 0;
    for ids in garbage.chunks(IDS) {
        let ids = shared.mongo.by_ids(thread_id, ids.iter().cloned());
        deleted += shared.mongo.delete(vec![not_held(ids, grace)]).await?;
    }
    Ok(deleted)
}
