//! Calls whose futures are dropped: each has full effect or none, and the saver keeps working.

use checkpoint_core::{
    BaseCheckpointSaver, CheckpointConfig, ListQuery, PruneStrategy, RetainOptions, Retention, SaverExt,
};
use futures_util::StreamExt;

use crate::case::{Ctx, Need};
use crate::fixture::{
    Cuts, Done, chain, checkpoint, encode, id_of, ids, list, newest_first, prepared, put, random, read, write,
};

cases!("cancellation";
    put_is_whole_or_absent,
    put_writes_are_whole_or_absent,
    delete_thread_is_whole_or_absent,
    copy_thread_is_whole_or_absent [Need::CopyThread],
    prune_is_whole_or_absent [Need::Prune],
    retain_is_whole_or_absent [Need::Retain],
    delete_for_runs_is_whole_or_absent [Need::DeleteForRuns],
    reads_may_be_dropped,
    setup_may_be_dropped,
);

/// For each round of a case, the number of polls before the future is dropped. No server answers before the first poll ends,
/// so five rounds are cut on any machine; the last round ends by itself.
pub(super) fn rounds() -> impl Iterator<Item = usize> {
    let spread = (0..15).map(|round| round * 7 % 31);
    (0..12).chain([1, 1, 1, 20, 50]).chain(spread).chain([usize::MAX])
}

/// Waits until dropped calls have ended, by another write on the same saver.
async fn settle(ctx: &Ctx) -> Done {
    put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
    Ok(())
}

async fn put_is_whole_or_absent(ctx: Ctx) -> Done {
    let mut config = CheckpointConfig::new(ctx.thread());
    let mut cuts = Cuts::default();
    for polls in rounds() {
        let made =
            checkpoint(&[("text", "x".into()), ("items", encode(&list(&[1, 2, 3]))?), ("n", 1.into())]);
        let finished = cuts.run(put(ctx.saver(), &config, &made), polls).await.transpose()?;
        settle(&ctx).await?;
        let stored = config.clone().with_checkpoint_id(made.id.clone());
        match ctx.saver().get_tuple(&stored).await? {
            Some(tuple) => {
                ensure_eq!(tuple.checkpoint, made, "checkpoint after {polls} polls");
                ensure_eq!(tuple.parent_checkpoint_id(), config.checkpoint_id(), "parent");
                config = stored;
            }
            None => ensure!(finished.is_none(), "the call returned, but nothing is stored"),
        }
    }
    cuts.check(ctx.waits())
}

async fn put_writes_are_whole_or_absent(ctx: Ctx) -> Done {
    let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
    let mut cuts = Cuts::default();
    for polls in rounds() {
        let task = random();
        let writes = [("a", 1.into()), ("b", encode(&list(&[1]))?), ("c", "x".into())];
        let finished = cuts.run(write(ctx.saver(), &stored, &task, &writes), polls).await.transpose()?;
        settle(&ctx).await?;
        let found = read(ctx.saver(), &stored).await?.pending_writes;
        let found = found.iter().filter(|write| write.task_id == task).count();
        ensure!(found == 3 || (found == 0 && finished.is_none()), "{found} of 3 writes after {polls} polls");
    }
    cuts.check(ctx.waits())
}

async fn delete_thread_is_whole_or_absent(ctx: Ctx) -> Done {
    let mut cuts = Cuts::default();
    for polls in rounds() {
        let thread_id = ctx.thread();
        let stored = chain(ctx.saver(), &thread_id, "", 3).await?;
        write(ctx.saver(), prepared(stored.first())?, "task", &[("ch", 1.into())]).await?;
        let finished = cuts.run(ctx.saver().delete_thread(&thread_id), polls).await.transpose()?;
        settle(&ctx).await?;
        let left = ctx.saver().list_all(ListQuery::thread(thread_id)).await?;
        let writes: usize = left.iter().map(|tuple| tuple.pending_writes.len()).sum();
        let whole = (left.len(), writes) == (3, 1) && finished.is_none();
        ensure!(left.is_empty() || whole, "{} of 3 checkpoints after {polls} polls", left.len());
    }
    cuts.check(ctx.waits())
}

async fn copy_thread_is_whole_or_absent(ctx: Ctx) -> Done {
    let source = ctx.thread();
    for config in chain(ctx.saver(), &source, "", 8).await? {
        write(ctx.saver(), &config, "task", &[("ch", encode(&list(&[1]))?)]).await?;
    }
    let mut cuts = Cuts::default();
    for polls in rounds() {
        let target = ctx.thread();
        let finished = cuts.run(ctx.saver().copy_thread(&source, &target), polls).await.transpose()?;
        settle(&ctx).await?;
        let copied = ctx.saver().list_all(ListQuery::thread(target)).await?;
        let writes: usize = copied.iter().map(|tuple| tuple.pending_writes.len()).sum();
        let none = copied.is_empty() && finished.is_none();
        ensure!(none || (copied.len(), writes) == (8, 8), "{} of 8 copies after {polls} polls", copied.len());
    }
    cuts.check(ctx.waits())
}

async fn prune_is_whole_or_absent(ctx: Ctx) -> Done {
    let mut cuts = Cuts::default();
    for polls in rounds() {
        let thread_id = ctx.thread();
        let stored = newest_first(&chain(ctx.saver(), &thread_id, "", 5).await?);
        let threads = [&*thread_id];
        let call = ctx.saver().prune(&threads, PruneStrategy::KeepLatest);
        cuts.run(call, polls).await.transpose()?;
        settle(&ctx).await?;
        // One listing for both checks: the dropped call may still be running on another connection.
        let left = ctx.saver().list_all(ListQuery::thread(thread_id)).await?;
        let kept: Vec<_> = left.iter().map(|tuple| tuple.checkpoint.id.clone()).collect();
        ensure!(kept == stored || kept == stored[..1], "{} of 5 checkpoints after {polls} polls", left.len());
        let orphan = left.first().is_some_and(|tuple| tuple.parent_config.is_none());
        ensure_eq!(orphan, left.len() == 1, "whether the parent was cleared");
    }
    cuts.check(ctx.waits())
}

async fn retain_is_whole_or_absent(ctx: Ctx) -> Done {
    let mut cuts = Cuts::default();
    let (policy, options) = (Retention::new().keep_last(2), RetainOptions::default());
    for polls in rounds() {
        let threads = [ctx.thread(), ctx.thread()];
        let mut stored = Vec::new();
        for thread_id in &threads {
            let chain = chain(ctx.saver(), thread_id, "", 5).await?;
            for config in &chain {
                write(ctx.saver(), config, "task", &[("ch", "value".into())]).await?;
            }
            stored.push(newest_first(&chain));
        }
        let names = threads.each_ref().map(|thread_id| &**thread_id);
        cuts.run(ctx.saver().retain(&names, &policy, &options), polls).await.transpose()?;
        settle(&ctx).await?;
        for (thread_id, stored) in threads.iter().zip(stored) {
            let left = ctx.saver().list_all(ListQuery::thread(thread_id.clone())).await?;
            let kept: Vec<_> = left.iter().map(|tuple| tuple.checkpoint.id.clone()).collect();
            ensure!(
                kept == stored || kept == stored[..2],
                "{} of 5 checkpoints after {polls} polls",
                left.len()
            );
            let writes: usize = left.iter().map(|tuple| tuple.pending_writes.len()).sum();
            ensure_eq!(writes, left.len(), "writes after {polls} polls");
        }
        // The next run continues.
        repeat!(ctx.saver().retain(&names, &policy, &options))?;
    }
    cuts.check(ctx.waits())
}

async fn delete_for_runs_is_whole_or_absent(ctx: Ctx) -> Done {
    let mut cuts = Cuts::default();
    for polls in rounds() {
        let (thread_id, run_id) = (ctx.thread(), random());
        for checkpoint_ns in ["", "child"] {
            let config = CheckpointConfig::new(thread_id.clone())
                .with_checkpoint_ns(checkpoint_ns)
                .with_metadata("run_id", &*run_id);
            put(ctx.saver(), &config, &checkpoint(&[])).await?;
        }
        cuts.run(ctx.saver().delete_for_runs(&[&run_id]), polls).await.transpose()?;
        settle(&ctx).await?;
        let left = ids(ctx.saver(), ListQuery::thread(thread_id)).await?.len();
        ensure!(left == 0 || left == 2, "{left} of 2 checkpoints after {polls} polls");
    }
    cuts.check(ctx.waits())
}

async fn reads_may_be_dropped(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = chain(ctx.saver(), &thread_id, "", 10).await?;
    let mut cuts = Cuts::default();
    for polls in rounds() {
        for config in &stored {
            cuts.run(ctx.saver().get_tuple(config), polls).await.transpose()?;
            cuts.run(ctx.saver().get_delta_channel_history(config, &["step"]), polls).await.transpose()?;
        }
        let mut listing = ctx.saver().list(ListQuery::thread(thread_id.clone()));
        cuts.run(listing.next(), polls).await.flatten().transpose()?;
    }
    ensure_eq!(ids(ctx.saver(), ListQuery::thread(thread_id)).await?, newest_first(&stored), "ids");
    cuts.check(ctx.waits())
}

async fn setup_may_be_dropped(ctx: Ctx) -> Done {
    let mut cuts = Cuts::default();
    for polls in rounds() {
        cuts.run(ctx.saver().setup(), polls).await.transpose()?;
    }
    ctx.saver().setup().await?;
    let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
    ensure_eq!(id_of(&read(ctx.saver(), &stored).await?.config), id_of(&stored), "id");
    cuts.check(ctx.waits())
}
