//! Setup, handles, and the store's name and debug output.

use checkpoint_core::ErrorKind;
use checkpoint_core::store::{BaseStore, Distance, Namespace, StoreExt};

use super::items::{indexed, keys, n, put_op, text, value};
use crate::case::Failure;
use crate::fixture::{Done, expect_kind};
use crate::store_case::{StoreCtx, StoreNeed};
use crate::{StoreFacility, StoreOptions};

cases!(stores "store_setup";
    is_idempotent,
    many_concurrent_setups,
    concurrent_setups_by_many_handles [StoreNeed::Target(StoreFacility::Fresh)],
    probes_before_and_after_setup [StoreNeed::Target(StoreFacility::Fresh)],
    probes_of_an_index [StoreNeed::Durable, StoreNeed::Target(StoreFacility::Fresh), StoreNeed::Target(StoreFacility::Index)],
    errors_name_the_backend,
    errors_show_no_values,
    boxes_and_arcs_are_stores,
    debug_shows_no_values,
    an_index_added_later [StoreNeed::Durable, StoreNeed::Target(StoreFacility::Fresh), StoreNeed::Target(StoreFacility::Index)],
);

async fn is_idempotent(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    ctx.store().put(&root, "k", n(1)).await?;
    for _ in 0..3 {
        ctx.store().setup().await?;
    }
    ensure_eq!(value(ctx.store(), &root, "k").await?, n(1), "value");
    Ok(())
}

async fn many_concurrent_setups(ctx: StoreCtx) -> Done {
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let store = ctx.store().clone();
            tokio::spawn(async move { store.setup().await })
        })
        .collect();
    for call in calls {
        call.await??;
    }
    Ok(())
}

async fn concurrent_setups_by_many_handles(ctx: StoreCtx) -> Done {
    let target = ctx.fresh().await?;
    let mut calls = Vec::new();
    for at in 0..8 {
        let store = target.open(StoreOptions::default()).await?;
        calls.push(tokio::spawn(async move {
            store.setup().await?;
            store.put(["a"], at.to_string(), n(at)).await
        }));
    }
    for call in calls {
        call.await??;
    }
    let store = target.open(StoreOptions::default()).await?;
    ensure_eq!(store.search(["a"]).await?.len(), 8, "items");
    Ok(())
}

/// The probes neither need tables nor create them.
async fn probes_before_and_after_setup(ctx: StoreCtx) -> Done {
    let target = ctx.fresh().await?;
    let store = target.open(StoreOptions::default()).await?;
    for _ in 0..2 {
        store.ping().await?;
        if store.capabilities().durable {
            expect_kind(store.check_schema().await, ErrorKind::Schema, "check_schema")?;
            expect_kind(store.get(["a"], "k").await, ErrorKind::Schema, "get")?;
        }
    }
    store.setup().await?;
    store.ping().await?;
    store.check_schema().await?;
    store.close().await?;
    expect_kind(store.ping().await, ErrorKind::Unavailable, "ping after close")?;
    expect_kind(store.check_schema().await, ErrorKind::Unavailable, "check_schema after close")
}

/// Tables without vectors do not suffice for a store with an index.
async fn probes_of_an_index(ctx: StoreCtx) -> Done {
    let target = ctx.fresh().await?;
    target.open(StoreOptions::default()).await?.setup().await?;
    let store = target.open(indexed(Distance::Cosine)).await?;
    store.ping().await?;
    expect_kind(store.check_schema().await, ErrorKind::Schema, "check_schema")?;
    store.setup().await?;
    Ok(store.check_schema().await?)
}

async fn errors_name_the_backend(ctx: StoreCtx) -> Done {
    let (backend, root) = (ctx.store().backend(), ctx.root());
    ensure!(!backend.is_empty(), "the backend has no name");
    let Err(error) = ctx.store().search(&root).query("x").await else {
        return Err(Failure::new("a query without an index succeeded"));
    };
    ensure_eq!(error.backend(), Some(backend), "backend of {error}");
    Ok(())
}

async fn errors_show_no_values(ctx: StoreCtx) -> Done {
    let ops = vec![
        put_op(&ctx.root(), "k", &text("secret word"))?,
        put_op(&Namespace::root(), "k", &text("secret word"))?,
    ];
    let Err(error) = ctx.store().batch(ops).await else {
        return Err(Failure::new("a put at the root was accepted"));
    };
    ensure_eq!(error.kind(), ErrorKind::InvalidArgument, "kind of error");
    ensure!(!format!("{error} {error:?}").contains("secret word"), "{error:?}");
    ensure!(!error.to_string().contains('\n'), "{error}");
    Ok(())
}

async fn boxes_and_arcs_are_stores(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    let boxed: Box<dyn BaseStore> = Box::new(ctx.store().clone());
    boxed.setup().await?;
    boxed.put(&root, "k", n(1)).await?;
    ensure_eq!(boxed.backend(), ctx.store().backend(), "backend");
    ensure_eq!(boxed.capabilities(), ctx.store().capabilities(), "capabilities");
    ensure_eq!(keys(&boxed.search(&root).await?), ["k"], "keys");
    Ok(())
}

async fn debug_shows_no_values(ctx: StoreCtx) -> Done {
    let root = ctx.root();
    ctx.store().put(&root, "k", text("secret word")).await?;
    let store = ctx.target().open(StoreOptions::default()).await?;
    ensure!(!format!("{store:?}").contains("secret word"), "the store shows values: {store:?}");
    Ok(())
}

/// Earlier items are found without a query, and by a query after they are put again.
async fn an_index_added_later(ctx: StoreCtx) -> Done {
    let target = ctx.fresh().await?;
    let plain = target.open(StoreOptions::default()).await?;
    plain.setup().await?;
    plain.put(["a"], "old", text("1")).await?;
    let store = target.open(indexed(Distance::InnerProduct)).await?;
    store.setup().await?;
    ensure_eq!(store.search(["a"]).query("1").await?.len(), 0, "items by a query");
    ensure_eq!(keys(&store.search(["a"]).await?), ["old"], "keys");
    store.put(["a"], "old", text("1")).await?;
    ensure_eq!(keys(&store.search(["a"]).query("1").await?), ["old"], "keys by a query");
    // A handle without an index deletes vectors, too.
    plain.delete(["a"], "old").await?;
    plain.put(["a"], "old", text("1")).await?;
    ensure_eq!(
        store.search(["a"]).query("1").await?.len(),
        0,
        "items by a query after they were put without an index"
    );
    Ok(())
}
