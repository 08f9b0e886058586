//! Closing a saver: what is under way ends, what comes later is refused, and what was acknowledged stays.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use checkpoint_core::{BaseCheckpointSaver, CheckpointConfig, ErrorKind, ListQuery, Result, ThreadQuery};
use futures_util::future::{BoxFuture, join, join_all, poll_immediate};
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};

use super::operations::operations;
use crate::OpenOptions;
use crate::case::{Ctx, Failure, Need};
use crate::fixture::{Done, checkpoint, encode, id_of, list as numbers, poll_then_drop, put, read};
use crate::target::{Facility, Saver, Target};

// In memory, closing one handle closes them all: every case has a database of its own.
cases!("close", [Need::Target(Facility::Fresh)];
    refuses_every_later_call,
    refuses_the_next_page_of_a_listing,
    waits_for_calls_under_way,
    may_be_repeated,
    may_be_dropped,
    leaves_other_handles_open [Need::Durable],
    a_dropped_saver_loses_nothing [Need::Durable],
);

/// How many calls are made at once.
const CALLS: usize = 24;

struct Opened {
    target: Arc<dyn Target>,
    saver: Saver,
}

async fn open(ctx: &Ctx) -> Result<Opened> {
    let target = ctx.target().fresh().await?;
    let saver = target.open(OpenOptions::default()).await?;
    saver.setup().await?;
    Ok(Opened { target, saver })
}

impl Opened {
    /// Fails unless a new handle finds these checkpoints. In memory they end with the saver.
    async fn has(&self, stored: &[CheckpointConfig]) -> Done {
        if !self.saver.capabilities().durable {
            return Ok(());
        }
        let saver = self.target.open(OpenOptions::default()).await?;
        for config in stored {
            ensure_eq!(id_of(&read(&saver, config).await?.config), id_of(config), "id");
        }
        Ok(())
    }
}

/// A call is refused in a way that says by whom, and that it is of no use to repeat it.
fn is_refused<T>(saver: &Saver, operation: &str, result: Result<T>) -> Done {
    let Err(error) = result else {
        return Err(Failure::new(format!("{operation} succeeded after close")));
    };
    let found = (error.kind(), error.is_retryable(), error.backend(), error.operation());
    let expected = (ErrorKind::Unavailable, false, Some(saver.backend()), Some(operation));
    ensure_eq!(found, expected, "{operation} after close ({error})");
    Ok(())
}

/// A put into a thread of its own.
fn put_one(saver: &Saver) -> Result<BoxFuture<'static, Result<CheckpointConfig>>> {
    let saver = saver.clone();
    let made = checkpoint(&[("numbers", encode(&numbers(&[1, 2, 3]))?), ("text", "x".into())]);
    Ok(Box::pin(async move { put(&saver, &CheckpointConfig::new(made.id.clone()), &made).await }))
}

/// Puts under way: each was polled once. Those that ended with that are in the first list.
async fn puts_under_way(
    saver: &Saver,
) -> Result<(Vec<CheckpointConfig>, Vec<BoxFuture<'static, Result<CheckpointConfig>>>)> {
    let (mut ended, mut under_way) = (Vec::new(), Vec::new());
    for _ in 0..CALLS {
        let mut call = put_one(saver)?;
        match poll_immediate(&mut call).await {
            Some(stored) => ended.push(stored?),
            None => under_way.push(call),
        }
    }
    Ok((ended, under_way))
}

async fn refuses_every_later_call(ctx: Ctx) -> Done {
    let Opened { saver, target: _target } = open(&ctx).await?;
    saver.close().await?;
    for operation in operations(&saver, &ctx.thread(), &ctx.thread()) {
        is_refused(&saver, operation.name, operation.call.await)?;
    }
    Ok(())
}

async fn refuses_the_next_page_of_a_listing(ctx: Ctx) -> Done {
    // More than a page of either listing.
    const THREADS: usize = 300;
    let Opened { saver, target: _target } = open(&ctx).await?;
    let puts = (0..THREADS).map(|_| put_one(&saver)).collect::<Result<Vec<_>>>()?;
    stream::iter(puts).buffer_unordered(8).try_collect::<Vec<_>>().await?;

    let checkpoints = saver.list(ListQuery::all()).map_ok(|tuple| tuple.checkpoint.id).boxed();
    let threads = saver.list_threads(ThreadQuery::all()).map_ok(|info| info.thread_id).boxed();
    let mut listings: [(&str, BoxStream<'_, Result<_>>); 2] =
        [("list", checkpoints), ("list_threads", threads)];
    for (_, listing) in &mut listings {
        listing.try_next().await?;
    }
    saver.close().await?;
    for (operation, listing) in listings {
        let mut rest: Vec<_> = listing.collect().await;
        ensure!(rest.len() < THREADS, "{operation} read {} items after close", rest.len());
        let last = rest.pop().ok_or_else(|| Failure::new("the listing ended without an error"))?;
        ensure!(rest.iter().all(Result::is_ok), "{operation} went on after an error");
        is_refused(&saver, operation, last)?;
    }
    Ok(())
}

async fn waits_for_calls_under_way(ctx: Ctx) -> Done {
    let opened = open(&ctx).await?;
    let saver = &opened.saver;
    let (mut stored, under_way) = puts_under_way(saver).await?;
    ensure!(!under_way.is_empty() || !ctx.waits(), "no call was under way");
    let (begun, ended) = (under_way.len(), AtomicUsize::new(0));
    let puts = join_all(under_way.into_iter().map(|call| async {
        let stored = call.await;
        ended.fetch_add(1, Ordering::Relaxed);
        stored
    }));
    let close = async {
        let closed = saver.close().await;
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

async fn may_be_repeated(ctx: Ctx) -> Done {
    let opened = open(&ctx).await?;
    let saver = &opened.saver;
    let (mut stored, under_way) = puts_under_way(saver).await?;
    let closing = (0..4).map(|_| {
        let saver = saver.clone();
        tokio::spawn(async move { saver.close().await })
    });
    let (closed, puts) = join(join_all(closing), join_all(under_way)).await;
    for closed in closed {
        closed??;
    }
    for put in puts {
        stored.push(put?);
    }
    saver.close().await?;
    is_refused(saver, "put", put_one(saver)?.await)?;
    opened.has(&stored).await
}

async fn may_be_dropped(ctx: Ctx) -> Done {
    for polls in [1, 2, 5, 20] {
        let opened = open(&ctx).await?;
        let saver = &opened.saver;
        let (mut stored, under_way) = puts_under_way(saver).await?;
        let finished = poll_then_drop(saver.close(), polls).await;
        finished.transpose()?;
        is_refused(saver, "put", put_one(saver)?.await)?;
        for put in join_all(under_way).await {
            stored.push(put?);
        }
        saver.close().await?;
        is_refused(saver, "put", put_one(saver)?.await)?;
        opened.has(&stored).await?;
    }
    Ok(())
}

async fn leaves_other_handles_open(ctx: Ctx) -> Done {
    let opened = open(&ctx).await?;
    let other = opened.target.open(OpenOptions::default()).await?;
    let mut stored = vec![put_one(&opened.saver)?.await?, put_one(&other)?.await?];
    opened.saver.close().await?;
    stored.push(put_one(&other)?.await?);
    for config in &stored {
        read(&other, config).await?;
    }
    other.close().await?;
    opened.has(&stored).await
}

async fn a_dropped_saver_loses_nothing(ctx: Ctx) -> Done {
    let opened = open(&ctx).await?;
    let saver = opened.target.open(OpenOptions::default()).await?;
    let mut stored = Vec::new();
    for _ in 0..3 {
        stored.push(put_one(&saver)?.await?);
    }
    let (ended, mut under_way) = puts_under_way(&saver).await?;
    stored.extend(ended);
    // Some calls end, the others are dropped with the saver.
    let half = under_way.len() / 2;
    for call in under_way.drain(..half) {
        stored.push(call.await?);
    }
    drop((saver, under_way));
    opened.has(&stored).await
}
