//! Closing a saver: what is under way ends, what comes later is refused, and what was acknowledged stays.

use std::sync::Arc;

use checkpoint_core::{BaseCheckpointSaver, CheckpointConfig, ListQuery, Result, ThreadQuery};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};

use super::operations::operations;
use crate::OpenOptions;
use crate::case::{Ctx, Failure, Need};
use crate::closing::{self, CALLS, is_refused, puts_under_way};
use crate::fixture::{Done, checkpoint, encode, id_of, list as numbers, put, read};
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

impl closing::Closing for Opened {
    type Stored = CheckpointConfig;

    fn backend(&self) -> &'static str {
        self.saver.backend()
    }

    fn close(&self) -> BoxFuture<'static, Result<()>> {
        let saver = self.saver.clone();
        Box::pin(async move { saver.close().await })
    }

    fn put(&self, number: i64) -> Result<BoxFuture<'static, Result<CheckpointConfig>>> {
        put_one(&self.saver, number)
    }
}

/// A put into the thread of this number.
fn put_one(saver: &Saver, number: i64) -> Result<BoxFuture<'static, Result<CheckpointConfig>>> {
    let saver = saver.clone();
    let made = checkpoint(&[("numbers", encode(&numbers(&[1, 2, 3]))?), ("text", "x".into())]);
    Ok(Box::pin(async move { put(&saver, &CheckpointConfig::new(number.to_string()), &made).await }))
}

async fn refuses_every_later_call(ctx: Ctx) -> Done {
    let opened = open(&ctx).await?;
    opened.saver.close().await?;
    for operation in operations(&opened.saver, &ctx.thread(), &ctx.thread()) {
        is_refused(&opened, operation.name, operation.call.await)?;
    }
    Ok(())
}

async fn refuses_the_next_page_of_a_listing(ctx: Ctx) -> Done {
    // More than a page of either listing.
    const THREADS: usize = 300;
    let opened = open(&ctx).await?;
    let saver = &opened.saver;
    let puts = (0..).take(THREADS).map(|number| put_one(saver, number)).collect::<Result<Vec<_>>>()?;
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
        is_refused(&opened, operation, last)?;
    }
    Ok(())
}

async fn waits_for_calls_under_way(ctx: Ctx) -> Done {
    let opened = open(&ctx).await?;
    let stored = closing::waits_for_calls_under_way(&opened, ctx.waits()).await?;
    opened.has(&stored).await
}

async fn may_be_repeated(ctx: Ctx) -> Done {
    let opened = open(&ctx).await?;
    let stored = closing::may_be_repeated(&opened).await?;
    opened.has(&stored).await
}

async fn may_be_dropped(ctx: Ctx) -> Done {
    for polls in [1, 2, 5, 20] {
        let opened = open(&ctx).await?;
        let stored = closing::may_be_dropped(&opened, polls).await?;
        opened.has(&stored).await?;
    }
    Ok(())
}

async fn leaves_other_handles_open(ctx: Ctx) -> Done {
    let opened = open(&ctx).await?;
    let other = opened.target.open(OpenOptions::default()).await?;
    let mut stored = vec![put_one(&opened.saver, 1)?.await?, put_one(&other, 2)?.await?];
    opened.saver.close().await?;
    stored.push(put_one(&other, 3)?.await?);
    for config in &stored {
        read(&other, config).await?;
    }
    other.close().await?;
    opened.has(&stored).await
}

async fn a_dropped_saver_loses_nothing(ctx: Ctx) -> Done {
    let opened = open(&ctx).await?;
    let saver = opened.target.open(OpenOptions::default()).await?;
    let other = Opened { target: opened.target.clone(), saver };
    let mut stored = Vec::new();
    for number in CALLS..CALLS + 3 {
        stored.push(put_one(&other.saver, number)?.await?);
    }
    let (ended, mut under_way) = puts_under_way(&other).await?;
    stored.extend(ended);
    // Some calls end, the others are dropped with the saver.
    let half = under_way.len() / 2;
    for call in under_way.drain(..half) {
        stored.push(call.await?);
    }
    drop((other, under_way));
    opened.has(&stored).await
}
