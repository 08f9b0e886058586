//! Times to live (TTLs).
//!
//! No case measures time: cases wait until items expire, and items that must not expire have hours left.

use std::time::{Duration, Instant};

use checkpoint_core::store::{BaseStore, ItemFilter, Namespace, Op, PutOp, StoreExt, Ttl, TtlConfig};
use checkpoint_core::{ErrorKind, Result};

use super::items::{all_keys, below, eventually, get_op, got, keys, n, object, put_op, read, value};
use crate::fixture::{Done, expect_kind, prepared};
use crate::store_case::{StoreCtx, StoreNeed};
use crate::{Store, StoreFacility, StoreOptions};

cases!(stores "store_ttl";
    an_item_expires,
    fractions_of_a_minute,
    no_ttl_by_default,
    invisible_in_every_read,
    a_default,
    no_ttl_overrides_the_default,
    a_ttl_overrides_the_default,
    a_put_without_ttl_clears_it,
    a_put_resets_it,
    a_put_over_an_expired_item_is_a_new_item,
    delete_of_an_expired_item,
    a_get_refreshes,
    a_search_refreshes,
    a_read_with_refresh_off,
    a_store_that_does_not_refresh,
    a_read_with_refresh_on,
    only_found_items_are_refreshed,
    an_expired_item_is_not_refreshed,
    invalid_ttls_are_rejected,
    long_ttls,
    a_refresh_is_not_an_update,
    sweep_removes_expired_items [StoreNeed::Target(StoreFacility::Fresh)],
    sweep_without_expired_items [StoreNeed::Target(StoreFacility::Fresh)],
    sweep_of_many_items [StoreNeed::Target(StoreFacility::Fresh)],
);

const SHORT: Duration = Duration::from_millis(80);
const HOURS: Duration = Duration::from_secs(5 * 3600);

/// A handle with this configuration.
async fn with(ctx: &StoreCtx, config: TtlConfig) -> Result<Store> {
    ctx.open(StoreOptions::new().ttl(config)).await
}

/// Whether an item is gone, read without a refresh.
async fn is_gone(store: &Store, namespace: &Namespace, key: &str) -> Result<bool> {
    Ok(store.get(namespace, key).refresh_ttl(false).await?.is_none())
}

/// Waits until an item is gone.
async fn expires(store: &Store, namespace: &Namespace, key: &str) -> Done {
    eventually(&format!("{key} has expired"), || is_gone(store, namespace, key)).await
}

/// Waits until an item that is put now with the short TTL has expired, and with it all that were put before.
async fn short_is_over(store: &Store, namespace: &Namespace) -> Done {
    store.put(namespace, "the clock", n(0)).ttl(SHORT).await?;
    expires(store, namespace, "the clock").await
}

async fn an_item_expires(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "long", n(1)).ttl(HOURS).await?;
    store.put(&root, "short", n(2)).ttl(SHORT).await?;
    store.put(&root, "ever", n(3)).await?;
    expires(store, &root, "short").await?;
    ensure_eq!(all_keys(store, &root).await?, ["ever", "long"], "keys");
    Ok(())
}

/// TTLs that a column of whole minutes cannot represent.
async fn fractions_of_a_minute(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    let put = |key: &str, minutes: f64| -> Result<Op> {
        let mut op = PutOp::new(&root, key, object(&n(1))?);
        op.ttl = Ttl::Minutes(minutes);
        Ok(Op::Put(op))
    };
    store.batch(vec![put("0.001", 0.001)?, put("0.4", 0.4)?, put("0.5", 0.5)?, put("1.4", 1.4)?]).await?;
    expires(store, &root, "0.001").await?;
    // Half a minute is not rounded to zero: these items exist, and still do after a read.
    for _ in 0..2 {
        for key in ["0.4", "0.5", "1.4"] {
            read(store, &root, key).await?;
        }
    }
    ensure_eq!(all_keys(store, &root).await?, ["0.4", "0.5", "1.4"], "keys");
    Ok(())
}

async fn no_ttl_by_default(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "default", n(1)).await?;
    store.put(&root, "never", n(1)).no_ttl().await?;
    short_is_over(store, &root).await?;
    ensure_eq!(all_keys(store, &root).await?, ["never", "default"], "keys");
    Ok(())
}

async fn invisible_in_every_read(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    let (a, b) = (below(&root, ["a"]), below(&root, ["b"]));
    store.put(&a, "short", n(1)).ttl(SHORT).await?;
    store.put(&b, "short", n(1)).ttl(SHORT).await?;
    store.put(&b, "long", n(1)).ttl(HOURS).await?;
    expires(store, &b, "short").await?;
    expires(store, &a, "short").await?;
    ensure!(store.get(&a, "short").await?.is_none(), "a refreshing get finds it");
    ensure_eq!(all_keys(store, &root).await?, ["long"], "keys");
    let found = store.search(&root).filter(ItemFilter::new().eq("n", 1)).await?;
    ensure_eq!(keys(&found), ["long"], "keys by a filter");
    let found = store.search(&root).limit(1).await?;
    ensure_eq!(keys(&found), ["long"], "the first key");
    ensure_eq!(store.search(&root).offset(1).await?.len(), 0, "items after the first");
    ensure_eq!(store.list_namespaces().prefix(&root).await?, std::slice::from_ref(&b), "namespaces");
    ensure_eq!(
        store.list_namespaces().prefix(&root).max_depth(2).await?,
        std::slice::from_ref(&b),
        "namespaces that are cut"
    );
    ensure_eq!(store.list_namespaces().prefix(&a).max_depth(1).await?, [], "namespaces of expired items");
    let results = store.batch(vec![get_op(&a, "short"), get_op(&root, "short")]).await?;
    ensure_eq!(got(&results[0])?, None, "the result of a get in a batch");
    Ok(())
}

async fn a_default(ctx: StoreCtx) -> Done {
    let store = with(&ctx, TtlConfig::new().default_ttl(SHORT)).await?;
    let root = ctx.root();
    store.put(&root, "k", n(1)).await?;
    expires(&store, &root, "k").await?;
    // An update has it, too.
    store.put(&root, "k", n(1)).no_ttl().await?;
    store.put(&root, "k", n(2)).await?;
    expires(&store, &root, "k").await
}

async fn no_ttl_overrides_the_default(ctx: StoreCtx) -> Done {
    let store = with(&ctx, TtlConfig::new().default_ttl(SHORT)).await?;
    let root = ctx.root();
    store.put(&root, "stays", n(1)).no_ttl().await?;
    store.put(&root, "updated", n(1)).await?;
    store.put(&root, "updated", n(2)).no_ttl().await?;
    short_is_over(&store, &root).await?;
    ensure_eq!(all_keys(&store, &root).await?, ["updated", "stays"], "keys");
    Ok(())
}

async fn a_ttl_overrides_the_default(ctx: StoreCtx) -> Done {
    let store = with(&ctx, TtlConfig::new().default_ttl(SHORT)).await?;
    let root = ctx.root();
    store.put(&root, "long", n(1)).ttl(HOURS).await?;
    short_is_over(&store, &root).await?;
    ensure_eq!(all_keys(&store, &root).await?, ["long"], "keys");
    let store = with(&ctx, TtlConfig::new().default_ttl(HOURS)).await?;
    store.put(&root, "short", n(1)).ttl(SHORT).await?;
    expires(&store, &root, "short").await
}

async fn a_put_without_ttl_clears_it(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "short", n(1)).ttl(SHORT).await?;
    store.put(&root, "short", n(2)).await?;
    short_is_over(store, &root).await?;
    ensure_eq!(value(store, &root, "short").await?, n(2), "value");
    Ok(())
}

async fn a_put_resets_it(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "longer", n(1)).ttl(SHORT).await?;
    store.put(&root, "longer", n(2)).ttl(HOURS).await?;
    store.put(&root, "shorter", n(1)).ttl(HOURS).await?;
    store.put(&root, "shorter", n(2)).ttl(SHORT).await?;
    expires(store, &root, "shorter").await?;
    ensure_eq!(all_keys(store, &root).await?, ["longer"], "keys");
    Ok(())
}

async fn a_put_over_an_expired_item_is_a_new_item(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    // On a slow machine the first one may expire before it is read.
    let mut first = None;
    for seconds in [1, 4, 16] {
        store.put(&root, "k", n(1)).ttl(Duration::from_secs(seconds)).await?;
        first = store.get(&root, "k").refresh_ttl(false).await?;
        expires(store, &root, "k").await?;
        if first.is_some() {
            break;
        }
    }
    let first = prepared(first)?;
    store.put(&root, "k", n(2)).await?;
    let second = read(store, &root, "k").await?;
    ensure_eq!(second.value.decode::<serde_json::Value>()?, n(2), "value");
    ensure_eq!(second.created_at, second.updated_at, "times of a new item");
    ensure!(second.created_at > first.created_at, "created_at is that of the expired item");
    Ok(())
}

async fn delete_of_an_expired_item(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "k", n(1)).ttl(SHORT).await?;
    expires(store, &root, "k").await?;
    store.delete(&root, "k").await?;
    ensure_eq!(all_keys(store, &root).await?, Vec::<String>::new(), "keys");
    Ok(())
}

/// The TTL of refreshed items. No step of a case takes as long, unless the machine is suspended, which is detected.
const REFRESHED: Duration = Duration::from_millis(1500);

/// Refreshes an item until another one with the same TTL, which was put with it, has expired. The first must still
/// exist then.
async fn is_kept_alive<F: Future<Output = Result<()>>>(
    store: &Store,
    root: &Namespace,
    refresh: impl Fn() -> F,
) -> Done {
    // Repeats if the refresh was too late to prove anything.
    for _ in 0..20 {
        let put = |key| -> Result<Op> {
            let mut op = PutOp::new(root, key, object(&n(1))?);
            op.ttl = REFRESHED.into();
            Ok(Op::Put(op))
        };
        let mut late = Instant::now();
        store.batch(vec![put("kept")?, put("other")?]).await?;
        loop {
            let begun = Instant::now();
            refresh().await?;
            let is_late = late.elapsed() >= REFRESHED;
            late = begun;
            if is_late {
                break;
            }
            if is_gone(store, root, "other").await? {
                let kept = !is_gone(store, root, "kept").await?;
                if kept {
                    return Ok(());
                }
                if begun.elapsed() < REFRESHED {
                    return Err(crate::Failure::new("an item expired despite its refresh"));
                }
                break;
            }
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
    }
    Err(crate::Failure::new("the machine is too slow for this case"))
}

async fn a_get_refreshes(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    is_kept_alive(store, &root, || async { store.get(&root, "kept").await.map(drop) }).await
}

async fn a_search_refreshes(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    // A search that found both would refresh both, so it uses limit and offset.
    is_kept_alive(store, &root, || async { store.search(&root).limit(1).await.map(drop) }).await
}

async fn a_read_with_refresh_off(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "k", n(1)).ttl(SHORT * 4).await?;
    eventually("reads without a refresh let it expire", || async {
        let by_get = store.get(&root, "k").refresh_ttl(false).await?.is_none();
        let by_search = store.search(&root).refresh_ttl(false).await?.is_empty();
        store.list_namespaces().prefix(&root).await?;
        Ok(by_get && by_search)
    })
    .await
}

async fn a_store_that_does_not_refresh(ctx: StoreCtx) -> Done {
    let store = with(&ctx, TtlConfig::new().refresh_on_read(false)).await?;
    let root = ctx.root();
    store.put(&root, "k", n(1)).ttl(SHORT * 4).await?;
    eventually("reads let it expire", || async {
        let by_get = store.get(&root, "k").await?.is_none();
        Ok(by_get && store.search(&root).await?.is_empty())
    })
    .await
}

async fn a_read_with_refresh_on(ctx: StoreCtx) -> Done {
    let store = with(&ctx, TtlConfig::new().refresh_on_read(false)).await?;
    let root = ctx.root();
    is_kept_alive(&store, &root, || async { store.get(&root, "kept").refresh_ttl(true).await.map(drop) })
        .await?;
    let root = ctx.root();
    is_kept_alive(&store, &root, || async { store.search(&root).limit(1).refresh_ttl(true).await.map(drop) })
        .await
}

async fn only_found_items_are_refreshed(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    let (inner, beside) = (below(&root, ["a"]), below(&root, ["b"]));
    for (namespace, key, number) in
        [(&inner, "other number", 1), (&beside, "elsewhere", 2), (&inner, "second", 2)]
    {
        store.put(namespace, key, n(number)).ttl(SHORT * 4).await?;
    }
    store.put(&inner, "found", n(2)).ttl(HOURS).await?;
    eventually("items that a search does not find expire", || async {
        let filter = ItemFilter::new().eq("n", 2);
        let found = store.search(&inner).filter(filter).limit(1).await?;
        let gone = is_gone(store, &inner, "other number").await?
            && is_gone(store, &beside, "elsewhere").await?
            && is_gone(store, &inner, "second").await?;
        Ok(gone && keys(&found) == ["found"])
    })
    .await
}

async fn an_expired_item_is_not_refreshed(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "k", n(1)).ttl(SHORT).await?;
    expires(store, &root, "k").await?;
    for _ in 0..3 {
        ensure!(store.get(&root, "k").refresh_ttl(true).await?.is_none(), "a get brings it back");
        ensure!(store.search(&root).refresh_ttl(true).await?.is_empty(), "a search brings it back");
    }
    Ok(())
}

async fn invalid_ttls_are_rejected(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "old", n(1)).await?;
    for minutes in [0.0, -0.0, -1.0, -1e-9, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300, 1e-300] {
        let mut op = PutOp::new(&root, "k", object(&n(1))?);
        op.ttl = Ttl::Minutes(minutes);
        let call = store.batch(vec![put_op(&root, "old", &n(2))?, Op::Put(op)]).await;
        expect_kind(call, ErrorKind::InvalidArgument, &format!("{minutes} minutes"))?;
    }
    expect_kind(
        store.put(&root, "k", n(1)).ttl(Duration::ZERO).await,
        ErrorKind::InvalidArgument,
        "no time",
    )?;
    expect_kind(
        store.put(&root, "k", n(1)).ttl(Duration::MAX).await,
        ErrorKind::InvalidArgument,
        "all time",
    )?;
    ensure_eq!(all_keys(store, &root).await?, ["old"], "keys");
    ensure_eq!(value(store, &root, "old").await?, n(1), "value");
    let opened =
        ctx.target().open(StoreOptions::new().ttl(TtlConfig::new().default_ttl(Duration::ZERO))).await;
    expect_kind(opened, ErrorKind::InvalidConfig, "a default TTL of zero")
}

async fn long_ttls(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    for years in [1, 100, 1000, 3999] {
        let ttl = Duration::from_secs(years * 365 * 24 * 3600);
        store.put(&root, years.to_string(), n(1)).ttl(ttl).await?;
        // A refresh adds the TTL again.
        read(store, &root, &years.to_string()).await?;
    }
    ensure_eq!(all_keys(store, &root).await?, ["3999", "1000", "100", "1"], "keys");
    Ok(())
}

async fn a_refresh_is_not_an_update(ctx: StoreCtx) -> Done {
    let (store, root) = (ctx.store(), ctx.root());
    store.put(&root, "a", n(1)).ttl(HOURS).await?;
    store.put(&root, "b", n(1)).ttl(HOURS).await?;
    let before = read(store, &root, "a").await?;
    for _ in 0..3 {
        store.get(&root, "a").refresh_ttl(true).await?;
    }
    let after = read(store, &root, "a").await?;
    ensure_eq!((after.created_at, after.updated_at), (before.created_at, before.updated_at), "times");
    ensure_eq!(all_keys(store, &root).await?, ["b", "a"], "keys in their order");
    Ok(())
}

async fn sweep_removes_expired_items(ctx: StoreCtx) -> Done {
    let store = ctx.fresh().await?.open(StoreOptions::default()).await?;
    store.setup().await?;
    let root = Namespace::from(["a"]);
    for at in 0..25 {
        store.put(&root, format!("short {at}"), n(at)).ttl(SHORT).await?;
        store.put(below(&root, ["b"]), format!("long {at}"), n(at)).ttl(HOURS).await?;
    }
    store.put(&root, "ever", n(1)).await?;
    for at in 0..25 {
        expires(&store, &root, &format!("short {at}")).await?;
    }
    ensure_eq!(store.sweep_ttl().await?, 25, "items swept");
    ensure_eq!(store.sweep_ttl().await?, 0, "items swept again");
    ensure_eq!(all_keys(&store, &root).await?.len(), 26, "items left");
    Ok(())
}

async fn sweep_without_expired_items(ctx: StoreCtx) -> Done {
    let store = ctx.fresh().await?.open(StoreOptions::default()).await?;
    store.setup().await?;
    ensure_eq!(store.sweep_ttl().await?, 0, "items swept in an empty store");
    store.put(["a"], "k", n(1)).await?;
    store.put(["a"], "l", n(1)).ttl(HOURS).await?;
    ensure_eq!(store.sweep_ttl().await?, 0, "items swept where none has expired");
    Ok(())
}

async fn sweep_of_many_items(ctx: StoreCtx) -> Done {
    let store = ctx.fresh().await?.open(StoreOptions::default()).await?;
    store.setup().await?;
    store.put(["a"], "k", n(1)).await?;
    let mut op = PutOp::new(["b"], "", object(&n(1))?);
    op.ttl = SHORT.into();
    let ops = (0..3000).map(|at| {
        let mut op = op.clone();
        op.key = at.to_string().into();
        Op::Put(op)
    });
    store.batch(ops.collect()).await?;
    eventually("all have expired", || async { Ok(store.search(["b"]).refresh_ttl(false).await?.is_empty()) })
        .await?;
    ensure_eq!(store.sweep_ttl().await?, 3000, "items swept");
    ensure_eq!(all_keys(&store, &Namespace::root()).await?, ["k"], "keys left");
    Ok(())
}
