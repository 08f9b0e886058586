//! Puts and deletions of an item that is as expected: compare and set.

use std::time::Duration;

use checkpoint_core::store::{
    BaseStore, BatchedStore, Distance, Expected, Item, JsonObject, Namespace, PutOp, StoreExt, Ttl,
};
use checkpoint_core::{ErrorKind, Result};

use super::items::{
    Numbers, all_keys, below, eventually, indexed, keys, n, object, put_numbered, read, text, value,
};
use crate::case::Failure;
use crate::fixture::{Done, expect_kind};
use crate::store_case::{StoreCtx, StoreNeed};
use crate::{Store, StoreFacility};

cases!(stores "store_conditions";
    if_absent_stores_a_new_item,
    if_absent_keeps_an_item,
    if_absent_replaces_an_expired_item,
    if_absent_after_a_deletion,
    if_unchanged_replaces_the_item_that_was_read,
    if_unchanged_keeps_an_item_that_was_put_again,
    if_unchanged_keeps_an_item_that_was_put_at_once,
    if_unchanged_stores_no_item_that_was_deleted,
    if_unchanged_stores_no_item_that_has_expired,
    a_refresh_is_no_change,
    other_items_do_not_matter,
    delete_if_unchanged,
    delete_if_absent,
    a_conflict_changes_nothing,
    a_conflict_names_the_item_and_is_final,
    a_ttl_is_set_and_cleared,
    an_item_of_another_key_is_rejected,
    invalid_puts_are_rejected,
    one_of_many_stores_an_absent_item,
    one_of_many_replaces_an_item,
    one_of_many_deletes_an_item,
    increments_are_not_lost,
    increments_beside_puts_of_other_kinds,
    vectors_are_replaced [StoreNeed::Target(StoreFacility::Index)],
    vectors_are_kept_by_a_conflict [StoreNeed::Target(StoreFacility::Index)],
    vectors_are_deleted [StoreNeed::Target(StoreFacility::Index)],
    embedding_errors_change_nothing [StoreNeed::Target(StoreFacility::Index)],
    in_a_batched_store,
);

const SHORT: Duration = Duration::from_millis(80);
const HOURS: Duration = Duration::from_secs(5 * 3600);
const TASKS: i64 = 16;

/// Fails unless a call failed because the item is not as expected.
fn expect_conflict(result: Result<()>, what: &str) -> Done {
    expect_kind(result, ErrorKind::Conflict, what)
}

/// Fails unless an item is exactly as it was.
async fn expect_same(store: &Store, before: &Item) -> Done {
    let after = read(store, &before.namespace, &before.key).await?;
    ensure_eq!(after.value.as_str(), before.value.as_str(), "value");
    ensure_eq!(after.created_at, before.created_at, "created_at");
    ensure_eq!(after.updated_at, before.updated_at, "updated_at");
    Ok(())
}

/// Waits until an item has expired.
async fn expires(store: &Store, namespace: &Namespace, key: &str) -> Done {
    let gone = async || Ok(store.get(namespace, key).refresh_ttl(false).await?.is_none());
    eventually(&format!("{key} has expired"), gone).await
}

async fn if_absent_stores_a_new_item(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "k", n(1)).if_absent().await?;
    let item = read(store, &root, "k").await?;
    ensure_eq!(item.value.decode::<serde_json::Value>()?, n(1), "value");
    ensure_eq!(item.created_at, item.updated_at, "times of a new item");
    Ok(())
}

async fn if_absent_keeps_an_item(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "k", n(1)).await?;
    let before = read(store, &root, "k").await?;
    expect_conflict(store.put(&root, "k", n(2)).if_absent().await, "a put over an item")?;
    expect_same(store, &before).await
}

async fn if_absent_replaces_an_expired_item(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "k", n(1)).ttl(SHORT).await?;
    let before = store.get(&root, "k").refresh_ttl(false).await?;
    expires(store, &root, "k").await?;
    store.put(&root, "k", n(2)).if_absent().await?;
    let item = read(store, &root, "k").await?;
    ensure_eq!(item.value.decode::<serde_json::Value>()?, n(2), "value");
    if let Some(before) = before {
        ensure!(item.created_at > before.created_at, "the item is the expired one");
    }
    expect_conflict(store.put(&root, "k", n(3)).if_absent().await, "a second put")
}

async fn if_absent_after_a_deletion(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "k", n(1)).await?;
    store.delete(&root, "k").await?;
    store.put(&root, "k", n(2)).if_absent().await?;
    ensure_eq!(value(store, &root, "k").await?, n(2), "value");
    Ok(())
}

async fn if_unchanged_replaces_the_item_that_was_read(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "k", n(0)).await?;
    let mut last = read(store, &root, "k").await?;
    let created_at = last.created_at;
    for number in 1..5 {
        store.put(&root, "k", n(number)).if_unchanged(&last).await?;
        let item = read(store, &root, "k").await?;
        ensure_eq!(item.value.decode::<serde_json::Value>()?, n(number), "value");
        ensure_eq!(item.created_at, created_at, "created_at");
        ensure!(item.updated_at > last.updated_at, "updated_at stays {}", item.updated_at);
        last = item;
    }
    // A search finds the same times.
    let found = store.search(&root).await?;
    let [found] = &*found else { return Err(Failure::new("a search finds something else")) };
    store.put(&root, "k", n(9)).if_unchanged(&found.item).await?;
    ensure_eq!(value(store, &root, "k").await?, n(9), "value");
    Ok(())
}

async fn if_unchanged_keeps_an_item_that_was_put_again(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "k", n(1)).await?;
    let stale = read(store, &root, "k").await?;
    store.put(&root, "k", n(2)).await?;
    let before = read(store, &root, "k").await?;
    expect_conflict(store.put(&root, "k", n(3)).if_unchanged(&stale).await, "a put over a newer item")?;
    expect_same(store, &before).await?;
    store.put(&root, "k", n(4)).if_unchanged(&before).await?;
    ensure_eq!(value(store, &root, "k").await?, n(4), "value");
    Ok(())
}

/// As fast as the store can, and with equal values: each put is a change.
async fn if_unchanged_keeps_an_item_that_was_put_at_once(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "k", n(1)).await?;
    for round in 0..30 {
        let stale = read(store, &root, "k").await?;
        store.put(&root, "k", n(1)).await?;
        let put = store.put(&root, "k", n(2)).if_unchanged(&stale).await;
        expect_conflict(put, &format!("put {round} over a newer item"))?;
        let now = read(store, &root, "k").await?;
        store.put(&root, "k", n(1)).if_unchanged(&now).await?;
        let put = store.put(&root, "k", n(2)).if_unchanged(&now).await;
        expect_conflict(put, &format!("a second put {round} of the same item"))?;
    }
    ensure_eq!(value(store, &root, "k").await?, n(1), "value");
    Ok(())
}

async fn if_unchanged_stores_no_item_that_was_deleted(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "k", n(1)).await?;
    let stale = read(store, &root, "k").await?;
    store.delete(&root, "k").await?;
    expect_conflict(store.put(&root, "k", n(2)).if_unchanged(&stale).await, "a put of a deleted item")?;
    ensure!(store.get(&root, "k").await?.is_none(), "the deleted item is there again");
    store.put(&root, "k", n(1)).await?;
    expect_conflict(store.put(&root, "k", n(2)).if_unchanged(&stale).await, "a put over its successor")?;
    ensure_eq!(value(store, &root, "k").await?, n(1), "value");
    Ok(())
}

async fn if_unchanged_stores_no_item_that_has_expired(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "k", n(1)).ttl(Duration::from_millis(400)).await?;
    let stale = store.get(&root, "k").refresh_ttl(false).await?;
    expires(store, &root, "k").await?;
    // A slow server may have needed all of the time.
    if let Some(stale) = stale {
        expect_conflict(store.put(&root, "k", n(2)).if_unchanged(&stale).await, "a put of an expired item")?;
        expect_conflict(
            store.delete(&root, "k").if_unchanged(&stale).await,
            "a deletion of an expired item",
        )?;
    }
    ensure_eq!(all_keys(store, &root).await?, Vec::<String>::new(), "keys");
    Ok(())
}

async fn a_refresh_is_no_change(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "k", n(1)).ttl(HOURS).await?;
    let item = read(store, &root, "k").await?;
    store.get(&root, "k").refresh_ttl(true).await?;
    store.put(&root, "k", n(2)).if_unchanged(&item).await?;
    ensure_eq!(value(store, &root, "k").await?, n(2), "value");
    Ok(())
}

async fn other_items_do_not_matter(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    let inner = below(&root, ["a"]);
    put_numbered(store, &root, 3).await?;
    put_numbered(store, &inner, 3).await?;
    let item = read(store, &root, "k1").await?;
    let others = [read(store, &root, "k0").await?, read(store, &inner, "k1").await?];
    store.put(&inner, "k2", n(9)).await?;
    store.put(&root, "k1", n(10)).if_unchanged(&item).await?;
    store.put(&inner, "new", n(11)).if_absent().await?;
    for other in &others {
        expect_same(store, other).await?;
    }
    ensure_eq!(value(store, &root, "k1").await?, n(10), "value");
    Ok(())
}

async fn delete_if_unchanged(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    put_numbered(store, &root, 2).await?;
    let stale = read(store, &root, "k0").await?;
    store.put(&root, "k0", n(5)).await?;
    let item = read(store, &root, "k0").await?;
    expect_conflict(store.delete(&root, "k0").if_unchanged(&stale).await, "a deletion of a newer item")?;
    expect_same(store, &item).await?;
    store.delete(&root, "k0").if_unchanged(&item).await?;
    ensure_eq!(all_keys(store, &root).await?, ["k1"], "keys");
    expect_conflict(store.delete(&root, "k0").if_unchanged(&item).await, "a second deletion")
}

/// There is nothing to delete, but it says whether there is an item.
async fn delete_if_absent(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put_if(PutOp::delete(&root, "k"), Expected::Absent).await?;
    store.put(&root, "k", n(1)).await?;
    let item = read(store, &root, "k").await?;
    let deleted = store.put_if(PutOp::delete(&root, "k"), Expected::Absent).await;
    expect_conflict(deleted, "a deletion of an item that is there")?;
    expect_same(store, &item).await
}

async fn a_conflict_changes_nothing(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "ever", n(1)).await?;
    store.put(&root, "for hours", n(1)).ttl(HOURS).await?;
    let ever = read(store, &root, "ever").await?;
    let stale = Expected::UpdatedAt(ever.updated_at - Duration::from_micros(1));
    for key in ["ever", "for hours"] {
        let before = read(store, &root, key).await?;
        for expected in [Expected::Absent, stale] {
            let mut put = PutOp::new(&root, key, object(&n(2))?);
            put.ttl = Ttl::Minutes(1.0 / 60_000.0);
            expect_conflict(store.put_if(put, expected).await, "a put")?;
            expect_conflict(store.put_if(PutOp::delete(&root, key), expected).await, "a deletion")?;
        }
        expect_same(store, &before).await?;
    }
    // Were the TTL changed, they would have expired by now.
    store.put(&root, "the clock", n(0)).ttl(SHORT).await?;
    expires(store, &root, "the clock").await?;
    ensure_eq!(all_keys(store, &root).await?, ["for hours", "ever"], "keys");
    Ok(())
}

async fn a_conflict_names_the_item_and_is_final(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "a key", n(1)).await?;
    let item = read(store, &root, "a key").await?;
    store.put(&root, "a key", n(2)).await?;
    let absent = store.put(&root, "a key", n(3)).if_absent().await;
    let unchanged = store.put(&root, "a key", n(3)).if_unchanged(&item).await;
    for result in [absent, unchanged] {
        let Err(error) = result else { return Err(Failure::new("no conflict")) };
        ensure_eq!(error.kind(), ErrorKind::Conflict, "kind");
        ensure!(!error.is_retryable(), "a retry cannot succeed: {error}");
        ensure_eq!(error.backend(), Some(store.backend()), "backend");
        ensure_eq!(error.operation(), Some("put_if"), "operation");
        let shown = error.to_string();
        ensure!(shown.contains(&root.to_text()) && shown.contains("a key"), "no item in {shown:?}");
    }
    Ok(())
}

async fn a_ttl_is_set_and_cleared(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "new", n(1)).ttl(SHORT).if_absent().await?;
    expires(store, &root, "new").await?;
    for key in ["set", "cleared"] {
        store.put(&root, key, n(1)).ttl(HOURS).await?;
        let item = read(store, &root, key).await?;
        let put = store.put(&root, key, n(2)).if_unchanged(&item);
        if key == "set" { put.ttl(SHORT).await? } else { put.no_ttl().await? }
    }
    expires(store, &root, "set").await?;
    ensure_eq!(all_keys(store, &root).await?, ["cleared"], "keys");
    Ok(())
}

async fn an_item_of_another_key_is_rejected(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "a", n(1)).await?;
    let item = read(store, &root, "a").await?;
    for (namespace, key) in [(root.clone(), "b"), (below(&root, ["a"]), "a")] {
        let put = store.put(&namespace, key, n(2)).if_unchanged(&item).await;
        expect_kind(put, ErrorKind::InvalidArgument, "a put of another item")?;
        let deleted = store.delete(&namespace, key).if_unchanged(&item).await;
        expect_kind(deleted, ErrorKind::InvalidArgument, "a deletion of another item")?;
    }
    ensure_eq!(all_keys(store, &root).await?, ["a"], "keys");
    Ok(())
}

async fn invalid_puts_are_rejected(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    let put = |namespace: Namespace| Ok::<_, Failure>(PutOp::new(namespace, "k", object(&n(1))?));
    let mut no_time = put(root.clone())?;
    no_time.ttl = Ttl::Minutes(-1.0);
    let mut broken = put(root.clone())?;
    broken.value = Some(JsonObject::from_stored("{no JSON")?);
    let invalid =
        [put(Namespace::root())?, put(["langgraph"].into())?, put(below(&root, ["a.b"]))?, no_time, broken];
    store.put(&root, "k", n(0)).await?;
    let item = read(store, &root, "k").await?;
    for op in invalid {
        for expected in [Expected::Absent, Expected::UpdatedAt(item.updated_at)] {
            let what = format!("{op:?}");
            expect_kind(store.put_if(op.clone(), expected).await, ErrorKind::InvalidArgument, &what)?;
        }
    }
    expect_same(store, &item).await
}

/// Runs a call on each of many tasks, and returns how many succeeded. The others must have met a conflict.
async fn winners<F>(call: impl Fn(i64) -> F) -> std::result::Result<usize, Failure>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let tasks: Vec<_> = (0..TASKS).map(|number| tokio::spawn(call(number))).collect();
    let mut succeeded = 0;
    for task in tasks {
        match task.await? {
            Ok(()) => succeeded += 1,
            failed => expect_conflict(failed, "a call that came later")?,
        }
    }
    Ok(succeeded)
}

async fn one_of_many_stores_an_absent_item(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    for key in ["a", "b", "c"] {
        let succeeded = winners(|number| {
            let (store, root) = (ctx.store().clone(), root.clone());
            async move { store.put(root, key, n(number)).if_absent().await }
        });
        ensure_eq!(succeeded.await?, 1, "puts that succeeded");
    }
    ensure_eq!(all_keys(ctx.store(), &root).await?.len(), 3, "items");
    Ok(())
}

async fn one_of_many_replaces_an_item(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    ctx.store().put(&root, "k", n(-1)).await?;
    for _ in 0..5 {
        let item = read(ctx.store(), &root, "k").await?;
        let succeeded = winners(|number| {
            let (store, item) = (ctx.store().clone(), item.clone());
            async move { store.put(&item.namespace, "k", n(number)).if_unchanged(&item).await }
        });
        ensure_eq!(succeeded.await?, 1, "puts that succeeded");
    }
    Ok(())
}

async fn one_of_many_deletes_an_item(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    for _ in 0..5 {
        ctx.store().put(&root, "k", n(0)).await?;
        let item = read(ctx.store(), &root, "k").await?;
        let succeeded = winners(|number| {
            let (store, item) = (ctx.store().clone(), item.clone());
            async move {
                // Half of them would replace it.
                if number % 2 == 0 {
                    store.delete(&item.namespace, "k").if_unchanged(&item).await
                } else {
                    store.put(&item.namespace, "k", n(number)).if_unchanged(&item).await
                }
            }
        });
        ensure_eq!(succeeded.await?, 1, "calls that succeeded");
        store_is_consistent(ctx.store(), &root).await?;
    }
    Ok(())
}

/// The key is there at most once.
async fn store_is_consistent(store: &Store, root: &Namespace) -> Done {
    let keys = all_keys(store, root).await?;
    ensure!(keys.is_empty() || keys == ["k"], "keys {keys:?}");
    Ok(())
}

/// Adds one to a number, again until nobody came in between. Each conflict is another call's success, so they are few.
async fn increment(store: &impl BaseStore, namespace: &Namespace, key: &str) -> Result<()> {
    let mut conflicts = 0;
    loop {
        let put = match store.get(namespace, key).await? {
            None => store.put(namespace, key, n(1)).if_absent(),
            Some(item) => {
                let number = item.value.decode::<serde_json::Value>()?["n"].as_i64().unwrap_or(-1000);
                store.put(namespace, key, n(number + 1)).if_unchanged(&item)
            }
        };
        match put.await {
            Err(error) if error.kind() == ErrorKind::Conflict && conflicts < 1000 => {
                conflicts += 1;
                tokio::task::yield_now().await;
            }
            done => return done,
        }
    }
}

async fn increments_are_not_lost(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let other = ctx.open(crate::StoreOptions::new()).await?;
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let store = if task % 2 == 0 { ctx.store().clone() } else { other.clone() };
            let root = root.clone();
            tokio::spawn(async move {
                for _ in 0..4 {
                    increment(&store, &root, "k").await?;
                }
                Ok::<_, Failure>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    ensure_eq!(value(ctx.store(), &root, "k").await?, n(TASKS * 4), "value");
    Ok(())
}

/// Deletions and expiry in between start again at one, but no call fails with anything but a conflict.
async fn increments_beside_puts_of_other_kinds(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (store, root) = (ctx.store().clone(), root.clone());
            tokio::spawn(async move {
                for number in 0..4 {
                    match (task + number) % 4 {
                        0 => store.put(&root, "k", n(0)).ttl(Duration::from_millis(2)).await?,
                        1 => store.delete(&root, "k").await?,
                        _ => increment(&store, &root, "k").await?,
                    }
                }
                Ok::<_, Failure>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    store_is_consistent(ctx.store(), &root).await
}

/// The keys that a query finds, the nearest first, with scores.
async fn near(store: &Store, root: &Namespace, query: &str) -> Result<Vec<(String, i64)>> {
    let found = store.search(root).query(query).limit(100).await?;
    #[expect(clippy::cast_possible_truncation, reason = "small numbers")]
    let rounded = |score: Option<f64>| score.unwrap_or(f64::MAX).round() as i64;
    Ok(found.iter().map(|found| (found.item.key.to_string(), rounded(found.score))).collect())
}

async fn vectors_are_replaced(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.open(indexed(Distance::InnerProduct)).await?, ctx.root());
    store.put(&root, "k", text("5 0 0")).if_absent().await?;
    ensure_eq!(near(&store, &root, "1 0 0").await?, [("k".to_owned(), 5)], "scores of a new item");
    let item = read(&store, &root, "k").await?;
    store.put(&root, "k", text("0 7 0")).if_unchanged(&item).await?;
    ensure_eq!(near(&store, &root, "1 0 0").await?, [("k".to_owned(), 0)], "scores by the old text");
    ensure_eq!(near(&store, &root, "0 1 0").await?, [("k".to_owned(), 7)], "scores by the new text");
    // Of other fields, of none.
    let item = read(&store, &root, "k").await?;
    let both = serde_json::json!({"a": "0 0 3", "b": "2 0 0", "text": "9 9 9"});
    store.put(&root, "k", both).index(["a", "b"]).if_unchanged(&item).await?;
    ensure_eq!(near(&store, &root, "0 0 1").await?, [("k".to_owned(), 3)], "scores by one field");
    ensure_eq!(near(&store, &root, "1 0 0").await?, [("k".to_owned(), 2)], "scores by another field");
    ensure_eq!(near(&store, &root, "0 1 0").await?, [("k".to_owned(), 0)], "scores by the old text");
    let item = read(&store, &root, "k").await?;
    store.put(&root, "k", text("1 1 1")).no_index().if_unchanged(&item).await?;
    ensure_eq!(near(&store, &root, "1 0 0").await?, [], "scores without an index");
    Ok(())
}

async fn vectors_are_kept_by_a_conflict(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.open(indexed(Distance::InnerProduct)).await?, ctx.root());
    store.put(&root, "k", text("5 0 0")).await?;
    let stale = read(&store, &root, "k").await?;
    store.put(&root, "k", text("6 0 0")).await?;
    expect_conflict(store.put(&root, "k", text("0 7 0")).if_absent().await, "a put over an item")?;
    expect_conflict(store.put(&root, "k", text("0 7 0")).if_unchanged(&stale).await, "a stale put")?;
    expect_conflict(store.put(&root, "k", text("")).no_index().if_unchanged(&stale).await, "a stale put")?;
    expect_conflict(store.delete(&root, "k").if_unchanged(&stale).await, "a stale deletion")?;
    ensure_eq!(near(&store, &root, "1 0 0").await?, [("k".to_owned(), 6)], "scores");
    ensure_eq!(near(&store, &root, "0 1 0").await?, [("k".to_owned(), 0)], "scores by what was not put");
    Ok(())
}

async fn vectors_are_deleted(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.open(indexed(Distance::InnerProduct)).await?, ctx.root());
    store.put(&root, "k", text("5 0 0")).await?;
    let item = read(&store, &root, "k").await?;
    store.delete(&root, "k").if_unchanged(&item).await?;
    ensure_eq!(near(&store, &root, "1 0 0").await?, [], "scores");
    // An expired item's vectors go with it.
    store.put(&root, "k", text("5 0 0")).ttl(SHORT).await?;
    expires(&store, &root, "k").await?;
    store.put(&root, "k", text("0 4 0")).if_absent().await?;
    ensure_eq!(near(&store, &root, "1 0 0").await?, [("k".to_owned(), 0)], "scores by the expired text");
    ensure_eq!(near(&store, &root, "0 1 0").await?, [("k".to_owned(), 4)], "scores by the new text");
    Ok(())
}

async fn embedding_errors_change_nothing(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.open(indexed(Distance::InnerProduct)).await?, ctx.root());
    store.put(&root, "k", text("5 0 0")).await?;
    let item = read(&store, &root, "k").await?;
    let put = store.put(&root, "k", text(Numbers::FAIL)).if_unchanged(&item).await;
    expect_kind(put, ErrorKind::Unavailable, "a put without a model")?;
    let put = store.put(&root, "new", text(Numbers::FAIL)).if_absent().await;
    expect_kind(put, ErrorKind::Unavailable, "a put without a model")?;
    expect_same(&store, &item).await?;
    ensure_eq!(keys(&store.search(&root).query("1 0 0").await?), ["k"], "keys");
    Ok(())
}

async fn in_a_batched_store(ctx: StoreCtx) -> Done {
    let (store, root) = (BatchedStore::new(ctx.store().clone()), ctx.root());
    store.put(&root, "k", n(0)).await?;
    expect_conflict(store.put(&root, "k", n(1)).if_absent().await, "a put over an item")?;
    let increments = (0..TASKS).map(|_| increment(&store, &root, "k"));
    for done in futures_util::future::join_all(increments).await {
        done?;
    }
    ensure_eq!(value(ctx.store(), &root, "k").await?, n(TASKS), "value");
    let item = read(ctx.store(), &root, "k").await?;
    store.delete(&root, "k").if_unchanged(&item).await?;
    expect_conflict(store.delete(&root, "k").if_unchanged(&item).await, "a second deletion")
}
