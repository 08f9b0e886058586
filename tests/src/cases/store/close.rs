//! Closing a store: what is under way ends, what comes later is refused, and what was acknowledged stays.

use std::sync::Arc;

use checkpoint_core::Result;
use checkpoint_core::store::{BaseStore, StoreExt};
use futures_util::future::BoxFuture;

use super::items::{n, value};
use super::operations::operations;
use crate::closing::{self, is_refused, puts_under_way};
use crate::fixture::Done;
use crate::store_case::{StoreCtx, StoreNeed};
use crate::{Store, StoreFacility, StoreOptions, StoreTarget};

// In memory, closing one handle closes them all: every case has a database of its own.
cases!(stores "store_close", [StoreNeed::Target(StoreFacility::Fresh)];
    refuses_every_later_call,
    waits_for_calls_under_way,
    may_be_repeated,
    may_be_dropped,
    leaves_other_handles_open [StoreNeed::Durable],
    a_dropped_store_loses_nothing [StoreNeed::Durable],
);

const NAMESPACE: [&str; 1] = ["closing"];

struct Opened {
    target: Arc<dyn StoreTarget>,
    store: Store,
}

async fn open(ctx: &StoreCtx) -> Result<Opened> {
    let target = ctx.fresh().await?;
    let store = target.open(StoreOptions::default()).await?;
    store.setup().await?;
    Ok(Opened { target, store })
}

impl Opened {
    /// Fails unless a new handle finds the items with these numbers. In memory they end with the store.
    async fn has(&self, stored: &[i64]) -> Done {
        if !self.store.capabilities().durable {
            return Ok(());
        }
        let store = self.target.open(StoreOptions::default()).await?;
        for number in stored {
            let found = value(&store, &NAMESPACE.into(), &number.to_string()).await?;
            ensure_eq!(found, n(*number), "item {number}");
        }
        Ok(())
    }
}

impl closing::Closing for Opened {
    type Stored = i64;

    fn backend(&self) -> &'static str {
        self.store.backend()
    }

    fn close(&self) -> BoxFuture<'static, Result<()>> {
        let store = self.store.clone();
        Box::pin(async move { store.close().await })
    }

    fn put(&self, number: i64) -> Result<BoxFuture<'static, Result<i64>>> {
        Ok(put(&self.store, number))
    }
}

/// Puts an item with a number, which it returns.
fn put(store: &Store, number: i64) -> BoxFuture<'static, Result<i64>> {
    let store = store.clone();
    Box::pin(async move { store.put(NAMESPACE, number.to_string(), n(number)).await.map(|()| number) })
}

async fn refuses_every_later_call(ctx: StoreCtx) -> Done {
    let opened = open(&ctx).await?;
    opened.store.close().await?;
    for operation in operations(&opened.store, &ctx.root())? {
        is_refused(&opened, operation.name, operation.call.await)?;
    }
    Ok(())
}

async fn waits_for_calls_under_way(ctx: StoreCtx) -> Done {
    let opened = open(&ctx).await?;
    let stored = closing::waits_for_calls_under_way(&opened, ctx.waits()).await?;
    opened.has(&stored).await
}

async fn may_be_repeated(ctx: StoreCtx) -> Done {
    let opened = open(&ctx).await?;
    let stored = closing::may_be_repeated(&opened).await?;
    opened.has(&stored).await
}

async fn may_be_dropped(ctx: StoreCtx) -> Done {
    for polls in [1, 2, 5, 20] {
        let opened = open(&ctx).await?;
        let stored = closing::may_be_dropped(&opened, polls).await?;
        opened.has(&stored).await?;
    }
    Ok(())
}

async fn leaves_other_handles_open(ctx: StoreCtx) -> Done {
    let opened = open(&ctx).await?;
    let other = opened.target.open(StoreOptions::default()).await?;
    let mut stored = vec![put(&opened.store, 1).await?, put(&other, 2).await?];
    opened.store.close().await?;
    stored.push(put(&other, 3).await?);
    other.close().await?;
    opened.has(&stored).await
}

async fn a_dropped_store_loses_nothing(ctx: StoreCtx) -> Done {
    let opened = open(&ctx).await?;
    let store = opened.target.open(StoreOptions::default()).await?;
    let other = Opened { target: opened.target.clone(), store };
    let (mut stored, mut under_way) = puts_under_way(&other).await?;
    // Some calls end, the others are dropped with the store.
    let half = under_way.len() / 2;
    for call in under_way.drain(..half) {
        stored.push(call.await?);
    }
    drop((other, under_way));
    opened.has(&stored).await
}
