//! What the cases on closing savers and stores have in common.

use std::sync::atomic::{AtomicUsize, Ordering};

use checkpoint_core::{ErrorKind, Result};
use futures_util::future::{BoxFuture, join, join_all, poll_immediate};

use crate::case::Failure;
use crate::fixture::{Done, poll_then_drop};

/// How many calls are made at once.
pub(crate) const CALLS: i64 = 24;

/// An open saver or store.
pub(crate) trait Closing {
    /// What a put returns; what was stored is found by it.
    type Stored;

    fn backend(&self) -> &'static str;

    fn close(&self) -> BoxFuture<'static, Result<()>>;

    /// Puts something that is stored apart from what has another number.
    fn put(&self, number: i64) -> Result<BoxFuture<'static, Result<Self::Stored>>>;
}

/// Calls that were made and have not ended yet.
pub(crate) type UnderWay<T> = Vec<BoxFuture<'static, Result<T>>>;

/// A call is refused in a way that says by whom, and that it is of no use to repeat it.
pub(crate) fn is_refused<T>(by: &impl Closing, operation: &str, result: Result<T>) -> Done {
    let Err(error) = result else {
        return Err(Failure::new(format!("{operation} succeeded after close")));
    };
    let found = (error.kind(), error.is_retryable(), error.backend(), error.operation());
    let expected = (ErrorKind::Unavailable, false, Some(by.backend()), Some(operation));
    ensure_eq!(found, expected, "{operation} after close ({error})");
    Ok(())
}

/// Puts under way: each was polled once. Those that ended with that are in the first list.
pub(crate) async fn puts_under_way<C: Closing>(open: &C) -> Result<(Vec<C::Stored>, UnderWay<C::Stored>)> {
    let (mut ended, mut under_way) = (Vec::new(), Vec::new());
    for number in 0..CALLS {
        let mut call = open.put(number)?;
        match poll_immediate(&mut call).await {
            Some(stored) => ended.push(stored?),
            None => under_way.push(call),
        }
    }
    Ok((ended, under_way))
}

/// `close` returns after the calls under way. Returns what they stored.
pub(crate) async fn waits_for_calls_under_way<C: Closing>(
    open: &C,
    waits: bool,
) -> Result<Vec<C::Stored>, Failure> {
    let (mut stored, under_way) = puts_under_way(open).await?;
    ensure!(!under_way.is_empty() || !waits, "no call was under way");
    let (begun, ended) = (under_way.len(), AtomicUsize::new(0));
    let puts = join_all(under_way.into_iter().map(|call| async {
        let stored = call.await;
        ended.fetch_add(1, Ordering::Relaxed);
        stored
    }));
    let close = async {
        let closed = open.close().await;
        (closed, ended.load(Ordering::Relaxed))
    };
    // `close` is polled first: it has to wait for calls that go on later.
    let ((closed, ended), puts) = join(close, puts).await;
    closed?;
    ensure_eq!(ended, begun, "calls that had ended when close returned");
    for put in puts {
        stored.push(put?);
    }
    Ok(stored)
}

/// Several `close` at once, and one more. Returns what the calls under way stored.
pub(crate) async fn may_be_repeated<C: Closing>(open: &C) -> Result<Vec<C::Stored>, Failure> {
    let (mut stored, under_way) = puts_under_way(open).await?;
    let closing = (0..4).map(|_| tokio::spawn(open.close()));
    let (closed, puts) = join(join_all(closing), join_all(under_way)).await;
    for closed in closed {
        closed??;
    }
    for put in puts {
        stored.push(put?);
    }
    open.close().await?;
    is_refused(open, "put", open.put(CALLS)?.await)?;
    Ok(stored)
}

/// A `close` that is dropped after so many polls, and one more. Returns what the calls under way stored.
pub(crate) async fn may_be_dropped<C: Closing>(open: &C, polls: usize) -> Result<Vec<C::Stored>, Failure> {
    let (mut stored, under_way) = puts_under_way(open).await?;
    poll_then_drop(open.close(), polls).await.transpose()?;
    is_refused(open, "put", open.put(CALLS)?.await)?;
    for put in join_all(under_way).await {
        stored.push(put?);
    }
    open.close().await?;
    is_refused(open, "put", open.put(CALLS)?.await)?;
    Ok(stored)
}
