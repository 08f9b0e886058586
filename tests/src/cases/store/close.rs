//! Closing a store: what is under way ends, what comes later is refused, and what was acknowledged stays.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use checkpoint_core::store::{BaseStore, StoreExt};
use checkpoint_core::{ErrorKind, Result};
use futures_util::future::{BoxFuture, join, join_all, poll_immediate};

use super::items::{n, value};
use super::operations::operations;
use crate::case::Failure;
use crate::fixture::{Done, poll_then_drop};
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

/// How many calls are made at once.
const CALLS: i64 = 24;

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

/// A call is refused in a way that says by whom, and that it is of no use to repeat it.
fn is_refused<T>(store: &Store, operation: &str, result: Result<T>) -> Done {
    let Err(error) = result else {
        return Err(Failure::new(format!("{operation} succeeded after close")));
    };
    let found = (error.kind(), error.is_retryable(), error.backend(), error.operation());
    let expected = (ErrorKind::Unavailable, false, Some(store.backend()), Some(operation));
    ensure_eq!(found, expected, "{operation} after close ({error})");
    Ok(())
}

/// Puts an item with a number, which it returns.
fn put(store: &Store, number: i64) -> BoxFuture<'static, Result<i64>> {
    let store = store.clone();
    Box::pin(async move { store.put(NAMESPACE, number.to_string(), n(number)).await.map(|()| number) })
}

/// Puts under way: each was polled once. Those that ended with that are in the first list.
async fn puts_under_way(store: &Store) -> Result<(Vec<i64>, Vec<BoxFuture<'static, Result<i64>>>)> {
    let (mut ended, mut under_way) = (Vec::new(), Vec::new());
    for number in 0..CALLS {
        let mut call = put(store, number);
        match poll_immediate(&mut call).await {
            Some(stored) => ended.push(stored?),
            None => under_way.push(call),
        }
    }
    Ok((ended, under_way))
}

async fn refuses_every_later_call(ctx: StoreCtx) -> Done {
    let store = open(&ctx).await?.store;
    store.close().await?;
    for operation in operations(&store, &ctx.root())? {
        is_refused(&store, operation.name, operation.call.await)?;
    }
    Ok(())
}

async fn waits_for_calls_under_way(ctx: StoreCtx) -> Done {
    let opened = open(&ctx).await?;
    let store = &opened.store;
    let (mut stored, under_way) = puts_under_way(store).await?;
    ensure!(!under_way.is_empty() || !ctx.waits(), "no call was under way");
    let (begun, ended) = (under_way.len(), AtomicUsize::new(0));
    let puts = join_all(under_way.into_iter().map(|call| async {
        let stored = call.await;
        ended.fetch_add(1, Ordering::Relaxed);
        stored
    }));
    let close = async {
        let closed = store.close().await;
        (closed, ended.load(Ordering::Relaxed))
    };
    // `close` is polled first: it has to wait for calls that go on later.
    let ((closed, ended), puts) = join(close, puts).await;
    closed?;
    ensure_eq!(ended, begun, "calls that had ended when close returned");
    for put in puts {
        stored.push(put?);
    }
    opened.has(&stored).await
}

async fn may_be_repeated(ctx: StoreCtx) -> Done {
    let opened = open(&ctx).await?;
    let store = &opened.store;
    let (mut stored, under_way) = puts_under_way(store).await?;
    let closing = (0..4).map(|_| {
        let store = store.clone();
        tokio::spawn(async move { store.close().await })
    });
    let (closed, puts) = join(join_all(closing), join_all(under_way)).await;
    for closed in closed {
        closed??;
    }
    for put in puts {
        stored.push(put?);
    }
    store.close().await?;
    is_refused(store, "put", put(store, CALLS).await)?;
    opened.has(&stored).await
}

async fn may_be_dropped(ctx: StoreCtx) -> Done {
    for polls in [1, 2, 5, 20] {
        let opened = open(&ctx).await?;
        let store = &opened.store;
        let (mut stored, under_way) = puts_under_way(store).await?;
        poll_then_drop(store.close(), polls).await.transpose()?;
        is_refused(store, "put", put(store, CALLS).await)?;
        for put in join_all(under_way).await {
            stored.push(put?);
        }
        store.close().await?;
        is_refused(store, "put", put(store, CALLS).await)?;
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
    let (mut stored, mut under_way) = puts_under_way(&store).await?;
    // Some calls end, the others are dropped with the store.
    let half = under_way.len() / 2;
    for call in under_way.drain(..half) {
        stored.push(call.await?);
    }
    drop((store, under_way));
    opened.has(&stored).await
}
