//! The number of round trips and statements per call, once its statements are prepared, as documented by the backend.

use std::sync::Arc;
use std::time::Duration;

use checkpoint_core::store::{BaseStore, Distance, ItemFilter, Op, SearchOp, StoreExt, Ttl, TtlConfig};
use checkpoint_core::{ErrorKind, Result};

use super::items::{all_keys, delete_op, get_op, indexed, keys, list_op, n, put_op, read, text};
use crate::fixture::{Done, expect_kind};
use crate::rounds::Rounds;
use crate::store_case::{StoreCtx, StoreNeed};
use crate::{CountedStore, StoreCall, StoreFacility, StoreOptions};

cases!(stores "store_round_trips", [StoreNeed::Target(StoreFacility::RoundTrips)];
    get,
    get_that_refreshes,
    put,
    put_with_an_index [StoreNeed::Target(StoreFacility::Index)],
    delete,
    search,
    search_by_a_query [StoreNeed::Target(StoreFacility::Index)],
    list_namespaces,
    batches_of_every_kind,
    sweep [StoreNeed::Target(StoreFacility::Fresh)],
    setup,
    setup_with_an_index [StoreNeed::Target(StoreFacility::Index)],
);

fn rounds(counted: &CountedStore, call: StoreCall) -> Rounds<'_> {
    Rounds::new(&counted.proxy, format!("{call:?}"), (counted.cost)(call))
}

async fn get(ctx: StoreCtx) -> Done {
    let counted = ctx.counted(StoreOptions::new()).await?;
    let root = ctx.root();
    for at in 0..3 {
        ctx.store().put(&root, at.to_string(), n(at)).await?;
    }
    let mut one = rounds(&counted, StoreCall::Get);
    while one.go_on()? {
        ensure!(one.call(counted.handle.get(&root, "1").into_future()).await?.is_some(), "no item");
        // A missing item costs the same.
        ensure!(one.call(counted.handle.get(&root, "absent").into_future()).await?.is_none(), "an item");
    }
    for items in [2, 3, 100] {
        let mut many = rounds(&counted, StoreCall::GetMany { items });
        while many.go_on()? {
            let ops = (0..items).map(|at| get_op(&root, &at.to_string())).collect();
            many.call(counted.handle.batch(ops)).await?;
        }
    }
    Ok(())
}

async fn get_that_refreshes(ctx: StoreCtx) -> Done {
    let hour = Duration::from_secs(3600);
    let counted = ctx.counted(StoreOptions::new().ttl(TtlConfig::new().default_ttl(hour))).await?;
    let root = ctx.root();
    counted.handle.put(&root, "k", n(1)).await?;
    let mut rounds = rounds(&counted, StoreCall::GetRefreshed);
    while rounds.go_on()? {
        ensure!(rounds.call(counted.handle.get(&root, "k").into_future()).await?.is_some(), "no item");
    }
    Ok(())
}

async fn put(ctx: StoreCtx) -> Done {
    let counted = ctx.counted(StoreOptions::new()).await?;
    check_puts(&ctx, &counted, false).await
}

async fn put_with_an_index(ctx: StoreCtx) -> Done {
    let counted = ctx.counted(indexed(Distance::Cosine)).await?;
    check_puts(&ctx, &counted, true).await
}

async fn check_puts(ctx: &StoreCtx, counted: &Arc<CountedStore>, indexed: bool) -> Done {
    let root = ctx.root();
    let mut one = rounds(counted, StoreCall::Put { indexed });
    let mut number = 0;
    while one.go_on()? {
        number += 1;
        one.call(counted.handle.put(&root, number.to_string(), text("1 2")).into_future()).await?;
        // An update costs the same.
        one.call(counted.handle.put(&root, number.to_string(), text("3")).into_future()).await?;
    }
    let mut conditional = rounds(counted, StoreCall::PutIf { indexed });
    while conditional.go_on()? {
        let key = "conditional";
        let put = || counted.handle.put(&root, key, text("1 2"));
        conditional.call(put().if_absent().into_future()).await?;
        // A conflict costs the same.
        let conflict = conditional.call(async { Ok(put().if_absent().await) }).await?;
        expect_kind(conflict, ErrorKind::Conflict, "a second put of an absent item")?;
        let item = read(&counted.handle, &root, key).await?;
        conditional.call(put().if_unchanged(&item).into_future()).await?;
        let item = read(&counted.handle, &root, key).await?;
        conditional.call(counted.handle.delete(&root, key).if_unchanged(&item).into_future()).await?;
    }
    let mut many = rounds(counted, StoreCall::PutMany { indexed });
    while many.go_on()? {
        number += 1;
        let mut ops = (0..10)
            .map(|at| put_op(&root, &format!("{number}-{at}"), &text("1 2")))
            .collect::<Result<Vec<_>>>()?;
        ops.push(delete_op(&root, &format!("{}-1", number - 1)));
        many.call(counted.handle.batch(ops)).await?;
    }
    ensure_eq!(all_keys(&counted.handle, &root).await?.contains(&format!("{number}-9")), true, "stored");
    Ok(())
}

async fn delete(ctx: StoreCtx) -> Done {
    let counted = ctx.counted(StoreOptions::new()).await?;
    let root = ctx.root();
    let mut rounds = rounds(&counted, StoreCall::Delete);
    while rounds.go_on()? {
        ctx.store().put(&root, "k", n(1)).await?;
        rounds.call(counted.handle.delete(&root, "k").into_future()).await?;
        ensure!(ctx.store().get(&root, "k").await?.is_none(), "not deleted");
    }
    Ok(())
}

async fn search(ctx: StoreCtx) -> Done {
    let counted = ctx.counted(StoreOptions::new()).await?;
    let root = ctx.root();
    for at in 0..5 {
        ctx.store().put(&root, at.to_string(), n(at)).await?;
    }
    let filters = [ItemFilter::new(), ItemFilter::new().eq("n", 3), ItemFilter::new().gte("n", 1).lt("n", 4)];
    for (filter, found) in filters.into_iter().zip([5, 1, 3]) {
        let mut rounds = rounds(&counted, StoreCall::Search);
        while rounds.go_on()? {
            let search = counted.handle.search(&root).filter(filter.clone());
            ensure_eq!(rounds.call(search.into_future()).await?.len(), found, "items");
        }
    }
    let mut many = rounds(&counted, StoreCall::SearchMany { indexed: false });
    while many.go_on()? {
        let ops = (0..3).map(|_| Op::Search(SearchOp::new(&root))).collect();
        many.call(counted.handle.batch(ops)).await?;
    }
    Ok(())
}

async fn search_by_a_query(ctx: StoreCtx) -> Done {
    let counted = ctx.counted(indexed(Distance::Cosine)).await?;
    let root = ctx.root();
    for (key, words) in [("a", "1 0 0"), ("b", "0 1 0")] {
        counted.handle.put(&root, key, text(words)).await?;
    }
    let mut one = rounds(&counted, StoreCall::SearchByQuery);
    while one.go_on()? {
        let found = one.call(counted.handle.search(&root).query("0 2 0").into_future()).await?;
        ensure_eq!(keys(&found), ["b", "a"], "keys");
    }
    let mut many = rounds(&counted, StoreCall::SearchMany { indexed: true });
    while many.go_on()? {
        let plain = SearchOp::new(&root);
        let mut by_query = plain.clone();
        by_query.query = Some("1 0 0".into());
        many.call(counted.handle.batch(vec![Op::Search(plain), Op::Search(by_query)])).await?;
    }
    Ok(())
}

async fn list_namespaces(ctx: StoreCtx) -> Done {
    let counted = ctx.counted(StoreOptions::new()).await?;
    let root = ctx.root();
    for label in ["a", "b", "c"] {
        ctx.store().put(super::items::below(&root, [label]), "k", n(1)).await?;
    }
    let mut rounds = rounds(&counted, StoreCall::ListNamespaces);
    while rounds.go_on()? {
        let listing = counted.handle.list_namespaces().prefix(&root);
        ensure_eq!(rounds.call(listing.into_future()).await?.len(), 3, "namespaces");
    }
    Ok(())
}

async fn batches_of_every_kind(ctx: StoreCtx) -> Done {
    let counted = ctx.counted(StoreOptions::new()).await?;
    let root = ctx.root();
    let mut rounds = rounds(&counted, StoreCall::Mixed);
    while rounds.go_on()? {
        let ops = vec![
            put_op(&root, "k", &n(1))?,
            get_op(&root, "k"),
            Op::Search(SearchOp::new(&root)),
            list_op(&root),
        ];
        rounds.call(counted.handle.batch(ops)).await?;
    }
    Ok(())
}

async fn sweep(ctx: StoreCtx) -> Done {
    // A separate database, where no other items expire.
    let target = ctx.fresh().await?;
    let counted = target.counted(StoreOptions::new()).await?;
    for items in [0, 3, 1000] {
        let mut rounds = rounds(&counted, StoreCall::Sweep { items });
        while rounds.go_on()? {
            let ops: Vec<_> = (0..items)
                .map(|at| {
                    let mut op = put_op(&["a"].into(), &at.to_string(), &n(1))?;
                    if let Op::Put(put) = &mut op {
                        put.ttl = Ttl::Minutes(1.0 / 60_000.0);
                    }
                    Ok(op)
                })
                .collect::<Result<_>>()?;
            counted.handle.batch(ops).await?;
            // A read before they expire would refresh them.
            super::items::eventually("the items have expired", || async {
                Ok(counted.handle.search(["a"]).refresh_ttl(false).await?.is_empty())
            })
            .await?;
            let swept = rounds.call(counted.handle.sweep_ttl()).await?;
            ensure_eq!(swept, items as u64, "items swept");
        }
    }
    Ok(())
}

async fn setup(ctx: StoreCtx) -> Done {
    let counted = ctx.counted(StoreOptions::new()).await?;
    check_setup(&counted, false).await
}

async fn setup_with_an_index(ctx: StoreCtx) -> Done {
    let counted = ctx.counted(indexed(Distance::Cosine)).await?;
    check_setup(&counted, true).await
}

async fn check_setup(counted: &CountedStore, indexed: bool) -> Done {
    let mut rounds = rounds(counted, StoreCall::Setup { indexed });
    while rounds.go_on()? {
        rounds.call(counted.handle.setup()).await?;
    }
    let mut checks = self::rounds(counted, StoreCall::CheckSchema { indexed });
    while checks.go_on()? {
        checks.call(counted.handle.check_schema()).await?;
    }
    let mut pings = self::rounds(counted, StoreCall::Ping);
    while pings.go_on()? {
        pings.call(counted.handle.ping()).await?;
    }
    Ok(())
}
