//! `ckpt store demo`: an in-memory store, with embeddings without a model.

use std::io::Write;

use checkpoint_core::InMemoryStore;
use checkpoint_core::store::{IndexConfig, ItemFilter, NgramEmbeddings, StoreExt};
use serde_json::json;

use super::item;
use crate::failure::{Failure, Result};
use crate::output::{BOLD, stdout, styled};

const DIMS: usize = 512;

/// User, key, text, and how often the note was used.
const NOTES: [(&str, &str, &str, i64); 5] = [
    ("ann", "drink", "Ann drinks green tea in the morning", 12),
    ("ann", "pet", "Ann has two cats, which sleep all day", 3),
    ("ann", "trip", "Ann wants to travel to Lisbon in March", 7),
    ("bob", "drink", "Bob drinks black coffee, and much of it", 9),
    ("bob", "work", "Bob repairs old bicycles", 1),
];

pub(super) async fn run(json: bool) -> Result<()> {
    let index = IndexConfig::new(DIMS, NgramEmbeddings::new(DIMS)).fields(["text"]);
    let store = InMemoryStore::builder().index(index).build()?;
    for (who, key, text, used) in NOTES {
        store.put(["users", who], key, json!({ "text": text, "used": used })).await?;
    }
    print(json, &format!("{} notes about two users are put into a store.", NOTES.len()), None)?;

    print(
        json,
        "1. By filter: notes that were used more than five times",
        Some("'{\"used\": {\"$gt\": 5}}'"),
    )?;
    let often = store.search(["users"]).filter(ItemFilter::new().gt("used", 5)).await?;
    item::list(&often, json)?;
    check(often.len() == 3, "three notes were used more than five times")?;

    print(json, "2. By question, about ann only: where does she travel?", None)?;
    let near = store.search(["users", "ann"]).query("where does she travel?").limit(1).await?;
    item::list(&near, json)?;
    check(near.iter().any(|found| &*found.item.key == "trip"), "the note on the trip is the nearest")?;

    print(json, "3. By question and filter, about both: who drinks coffee?", None)?;
    let filter = ItemFilter::new().gt("used", 5);
    let near = store.search(["users"]).query("who drinks coffee?").filter(filter).limit(2).await?;
    item::list(&near, json)?;
    check(near.first().is_some_and(|found| found.item.namespace.to_text() == "users.bob"), "it is bob")
}

fn print(json: bool, line: &str, filter: Option<&str>) -> Result<()> {
    if json {
        return Ok(());
    }
    let mut out = stdout();
    let filter = filter.map(|filter| format!(" ({filter})")).unwrap_or_default();
    writeln!(out, "{}{filter}", styled(BOLD, line))?;
    Ok(out.flush()?)
}

/// Fails the demo when something that it shows is not so.
fn check(holds: bool, claim: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(Failure::failed(format!("the demo failed: expected that {claim}"))) }
}
