//! Calls whose futures are dropped: each has full effect or none, and the store keeps working.

use checkpoint_core::Result;
use checkpoint_core::store::{BaseStore, Distance, StoreExt, TtlConfig};

use super::items::{all_keys, delete_op, get_op, indexed, keys, n, put_op, text, value};
use crate::cases::cancellation::rounds;
use crate::fixture::{Cuts, Done};
use crate::store_case::{StoreCtx, StoreNeed};
use crate::{StoreFacility, StoreOptions};

cases!(stores "store_cancellation";
    a_batch_of_puts_is_whole_or_absent,
    a_batch_of_updates_is_whole_or_absent,
    a_mixed_batch_is_whole_or_absent,
    vectors_are_stored_with_their_items [StoreNeed::Target(StoreFacility::Index)],
    reads_may_be_dropped,
    refreshes_may_be_dropped,
    sweeps_may_be_dropped [StoreNeed::Target(StoreFacility::Fresh)],
    setup_may_be_dropped,
);

/// Waits until dropped calls have ended, by another write on the same store.
async fn settle(ctx: &StoreCtx) -> Done {
    ctx.store().put(ctx.root(), "settle", n(0)).await?;
    Ok(())
}

async fn a_batch_of_puts_is_whole_or_absent(ctx: StoreCtx) -> Done {
    let mut cuts = Cuts::default();
    for polls in rounds() {
        let root = ctx.root();
        let ops = (0..20).map(|at| put_op(&root, &at.to_string(), &n(at))).collect::<Result<_>>()?;
        let finished = cuts.run(ctx.store().batch(ops), polls).await.transpose()?;
        settle(&ctx).await?;
        let found = all_keys(ctx.store(), &root).await?.len();
        ensure!(found == 20 || (found == 0 && finished.is_none()), "{found} of 20 items after {polls} polls");
    }
    cuts.check(ctx.waits())
}

async fn a_batch_of_updates_is_whole_or_absent(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let batch =
        |number: i64| (0..10).map(|at| put_op(&root, &at.to_string(), &n(number))).collect::<Result<_>>();
    ctx.store().batch(batch(0)?).await?;
    let mut last = 0;
    let mut cuts = Cuts::default();
    for (number, polls) in (1..).zip(rounds()) {
        let finished = cuts.run(ctx.store().batch(batch(number)?), polls).await.transpose()?;
        settle(&ctx).await?;
        let found = ctx.store().search(&root).await?;
        let values = found
            .iter()
            .map(|found| found.item.value.decode())
            .collect::<Result<Vec<serde_json::Value>>>()?;
        // A call that was sent before it was dropped may still commit while the next one runs.
        let now = (last..=number).find(|number| values.iter().all(|value| *value == n(*number)));
        let Some(now) = now.filter(|now| values.len() == 10 && (*now == number || finished.is_none())) else {
            return Err(crate::case::Failure::new(format!("{values:?} after {polls} polls")));
        };
        last = now;
    }
    cuts.check(ctx.waits())
}

async fn a_mixed_batch_is_whole_or_absent(ctx: StoreCtx) -> Done {
    let mut cuts = Cuts::default();
    for polls in rounds() {
        let root = ctx.root();
        let ops = ["a", "b"].map(|key| put_op(&root, key, &n(1))).into_iter().collect::<Result<_>>()?;
        ctx.store().batch(ops).await?;
        let ops = vec![
            get_op(&root, "a"),
            delete_op(&root, "a"),
            put_op(&root, "b", &n(2))?,
            put_op(&root, "c", &n(3))?,
        ];
        let finished = cuts.run(ctx.store().batch(ops), polls).await.transpose()?;
        settle(&ctx).await?;
        // One search for both checks: the dropped call may still be running on another connection.
        let found = ctx.store().search(&root).await?;
        let items = found.iter().map(|found| Ok((&*found.item.key, found.item.value.decode()?)));
        let items = items.collect::<Result<Vec<(&str, serde_json::Value)>>>()?;
        let done = items == [("b", n(2)), ("c", n(3))];
        let absent = items == [("a", n(1)), ("b", n(1))] && finished.is_none();
        ensure!(done || absent, "{items:?} after {polls} polls");
    }
    cuts.check(ctx.waits())
}

async fn vectors_are_stored_with_their_items(ctx: StoreCtx) -> Done {
    let store = ctx.open(indexed(Distance::InnerProduct)).await?;
    let mut cuts = Cuts::default();
    for polls in rounds() {
        let root = ctx.root();
        store.put(&root, "old", text("1")).await?;
        let ops = vec![put_op(&root, "old", &text("3"))?, put_op(&root, "new", &text("2"))?];
        let finished = cuts.run(store.batch(ops), polls).await.transpose()?;
        store.put(ctx.root(), "settle", text("0")).await?;
        let found = store.search(&root).query("1").await?;
        let scores: Vec<_> =
            found.iter().filter_map(|found| found.score).map(|score| score.to_string()).collect();
        let found = (keys(&found), scores.iter().map(|score| &**score).collect::<Vec<_>>());
        let done = found == (vec!["old", "new"], vec!["3", "2"]);
        let absent = found == (vec!["old"], vec!["1"]) && finished.is_none();
        ensure!(done || absent, "{found:?} after {polls} polls");
    }
    cuts.check(ctx.waits())
}

async fn reads_may_be_dropped(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    for at in 0..5 {
        ctx.store().put(&root, at.to_string(), n(at)).await?;
    }
    let mut cuts = Cuts::default();
    for polls in rounds() {
        cuts.run(ctx.store().get(&root, "1").into_future(), polls).await.transpose()?;
        cuts.run(ctx.store().search(&root).into_future(), polls).await.transpose()?;
        let listing = ctx.store().list_namespaces().prefix(&root).into_future();
        cuts.run(listing, polls).await.transpose()?;
    }
    ensure_eq!(all_keys(ctx.store(), &root).await?, ["4", "3", "2", "1", "0"], "keys");
    cuts.check(ctx.waits())
}

async fn refreshes_may_be_dropped(ctx: StoreCtx) -> Done {
    let hour = std::time::Duration::from_secs(3600);
    let store = ctx.open(StoreOptions::new().ttl(TtlConfig::new().default_ttl(hour))).await?;
    let root = ctx.root();
    for at in 0..5 {
        store.put(&root, at.to_string(), n(at)).await?;
    }
    let mut cuts = Cuts::default();
    for polls in rounds() {
        cuts.run(store.get(&root, "1").into_future(), polls).await.transpose()?;
        cuts.run(store.search(&root).into_future(), polls).await.transpose()?;
        store.put(&root, "4", n(4)).await?;
    }
    ensure_eq!(all_keys(&store, &root).await?, ["4", "3", "2", "1", "0"], "keys");
    cuts.check(ctx.waits())
}

async fn sweeps_may_be_dropped(ctx: StoreCtx) -> Done {
    let store = ctx.fresh().await?.open(StoreOptions::default()).await?;
    store.setup().await?;
    store.put(["a"], "ever", n(1)).await?;
    let mut cuts = Cuts::default();
    for polls in rounds() {
        for at in 0..5 {
            store.put(["a"], at.to_string(), n(at)).ttl(std::time::Duration::from_millis(1)).await?;
        }
        cuts.run(store.sweep_ttl(), polls).await.transpose()?;
    }
    super::items::eventually("the others have expired", || async {
        Ok(store.search(["a"]).refresh_ttl(false).await?.len() == 1)
    })
    .await?;
    store.sweep_ttl().await?;
    ensure_eq!(store.sweep_ttl().await?, 0, "items swept again");
    ensure_eq!(all_keys(&store, &["a"].into()).await?, ["ever"], "keys");
    cuts.check(ctx.waits())
}

async fn setup_may_be_dropped(ctx: StoreCtx) -> Done {
    let mut cuts = Cuts::default();
    for polls in rounds() {
        cuts.run(ctx.store().setup(), polls).await.transpose()?;
    }
    ctx.store().setup().await?;
    let root = ctx.root();
    ctx.store().put(&root, "k", n(1)).await?;
    ensure_eq!(value(ctx.store(), &root, "k").await?, n(1), "value");
    cuts.check(ctx.waits())
}
