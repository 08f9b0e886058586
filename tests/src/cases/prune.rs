//! `prune`: LangGraph's own cases, and ours.

use checkpoint_core::{BaseCheckpointSaver, CheckpointConfig, ListQuery, PruneStrategy, SaverExt, Str};

use crate::case::{Ctx, Need};
use crate::fixture::{
    Done, at_version, chain, checkpoint, encode, id_of, ids, list, newest_first, prepared, put, random, read,
    triples, value, write,
};

cases!("prune", [Need::Prune];
    keep_latest_single_thread,
    keep_latest_multiple_threads,
    keep_latest_across_namespaces,
    keep_latest_preserves_writes,
    delete_all,
    preserves_other_threads,
    empty_list_noop,
    nonexistent_noop,
    clears_the_parent_of_the_survivor,
    removes_the_writes_of_the_pruned,
    keeps_values_that_did_not_change,
    delete_takes_every_namespace,
    goes_on_after,
    keeps_writes_that_are_ahead_of_their_checkpoint,
);

async fn keep_latest(ctx: &Ctx, threads: &[&str]) -> checkpoint_core::Result<()> {
    ctx.saver().prune(threads, PruneStrategy::KeepLatest).await
}

/// The ids of a thread's checkpoints, newest first.
async fn left(ctx: &Ctx, thread_id: &Str) -> checkpoint_core::Result<Vec<Str>> {
    ids(ctx.saver(), ListQuery::thread(thread_id.clone())).await
}

async fn keep_latest_single_thread(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = chain(ctx.saver(), &thread_id, "", 4).await?;
    keep_latest(&ctx, &[&thread_id]).await?;
    ensure_eq!(left(&ctx, &thread_id).await?, newest_first(&stored)[..1], "what is left");
    Ok(())
}

async fn keep_latest_multiple_threads(ctx: Ctx) -> Done {
    let threads = [ctx.thread(), ctx.thread()];
    let mut expected = Vec::new();
    for (thread_id, count) in threads.iter().zip([3, 2]) {
        expected.push(newest_first(&chain(ctx.saver(), thread_id, "", count).await?));
    }
    keep_latest(&ctx, &threads.each_ref().map(|thread_id| &**thread_id)).await?;
    for (thread_id, expected) in threads.iter().zip(expected) {
        ensure_eq!(left(&ctx, thread_id).await?, expected[..1], "what is left");
    }
    Ok(())
}

async fn keep_latest_across_namespaces(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let mut expected = Vec::new();
    for (checkpoint_ns, count) in [("", 3), ("child:1", 2)] {
        let stored = chain(ctx.saver(), &thread_id, checkpoint_ns, count).await?;
        expected.push((checkpoint_ns, newest_first(&stored)));
    }
    keep_latest(&ctx, &[&thread_id]).await?;
    for (checkpoint_ns, expected) in expected {
        let query = ListQuery::thread(thread_id.clone()).checkpoint_ns(checkpoint_ns);
        ensure_eq!(ids(ctx.saver(), query).await?, expected[..1], "what is left in {checkpoint_ns:?}");
    }
    Ok(())
}

async fn keep_latest_preserves_writes(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = chain(ctx.saver(), &thread_id, "", 3).await?;
    let task = random();
    for config in stored.iter().rev().take(1) {
        write(ctx.saver(), config, &task, &[("ch", "val".into())]).await?;
    }
    keep_latest(&ctx, &[&thread_id]).await?;
    let tuple = read(ctx.saver(), &CheckpointConfig::new(thread_id)).await?;
    ensure_eq!(triples(&tuple.pending_writes), [(&*task, "ch", &"val".into())], "writes");
    Ok(())
}

async fn delete_all(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    chain(ctx.saver(), &thread_id, "", 3).await?;
    ctx.saver().prune(&[&thread_id], PruneStrategy::Delete).await?;
    ensure_eq!(left(&ctx, &thread_id).await?.len(), 0, "number of checkpoints left");
    Ok(())
}

async fn preserves_other_threads(ctx: Ctx) -> Done {
    let (pruned, other) = (ctx.thread(), ctx.thread());
    chain(ctx.saver(), &pruned, "", 3).await?;
    chain(ctx.saver(), &other, "", 2).await?;
    let before = ctx.saver().list_all(ListQuery::thread(other.clone())).await?;
    keep_latest(&ctx, &[&pruned]).await?;
    ensure_eq!(ctx.saver().list_all(ListQuery::thread(other)).await?, before, "the other thread");
    Ok(())
}

async fn empty_list_noop(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    chain(ctx.saver(), &thread_id, "", 2).await?;
    keep_latest(&ctx, &[]).await?;
    ctx.saver().prune(&[], PruneStrategy::Delete).await?;
    ensure_eq!(left(&ctx, &thread_id).await?.len(), 2, "number of checkpoints");
    Ok(())
}

async fn nonexistent_noop(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    keep_latest(&ctx, &[&thread_id]).await?;
    ctx.saver().prune(&[&thread_id], PruneStrategy::Delete).await?;
    ensure_eq!(left(&ctx, &thread_id).await?.len(), 0, "number of checkpoints");
    Ok(())
}

async fn clears_the_parent_of_the_survivor(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    chain(ctx.saver(), &thread_id, "", 3).await?;
    keep_latest(&ctx, &[&thread_id]).await?;
    let tuple = read(ctx.saver(), &CheckpointConfig::new(thread_id)).await?;
    ensure_eq!(tuple.parent_config, None, "parent");
    Ok(())
}

async fn removes_the_writes_of_the_pruned(ctx: Ctx) -> Done {
    let config = CheckpointConfig::new(ctx.thread());
    let old = checkpoint(&[]);
    let stored = put(ctx.saver(), &config, &old).await?;
    write(ctx.saver(), &stored, "task", &[("ch", "old".into())]).await?;
    put(ctx.saver(), &stored, &checkpoint(&[])).await?;
    keep_latest(&ctx, &[config.thread_id()]).await?;
    ensure_eq!(ctx.saver().get_tuple(&stored).await?, None, "the pruned checkpoint");
    put(ctx.saver(), &config, &old).await?;
    ensure_eq!(read(ctx.saver(), &stored).await?.pending_writes, [], "writes of the pruned");
    Ok(())
}

async fn keeps_values_that_did_not_change(ctx: Ctx) -> Done {
    let config = CheckpointConfig::new(ctx.thread());
    let mut made = at_version(1, &[("kept", encode(&list(&[7]))?), ("changed", encode(&list(&[1]))?)]);
    let mut stored = put(ctx.saver(), &config, &made).await?;
    for version in 2..=4 {
        let next = at_version(version, &[("changed", encode(&list(&[version]))?)]);
        let changed = next.channel_versions.clone();
        made = next.with_channel("kept", value(&read(ctx.saver(), &stored).await?, "kept")?, 1);
        stored = ctx.saver().put(&stored, &made, &crate::fixture::metadata(version), &changed).await?;
    }
    keep_latest(&ctx, &[config.thread_id()]).await?;
    ensure_eq!(read(ctx.saver(), &config).await?.checkpoint, made, "the survivor");
    Ok(())
}

async fn delete_takes_every_namespace(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    for checkpoint_ns in ["", "a", "a:1|b:2"] {
        chain(ctx.saver(), &thread_id, checkpoint_ns, 2).await?;
    }
    ctx.saver().prune(&[&thread_id], PruneStrategy::Delete).await?;
    ensure_eq!(left(&ctx, &thread_id).await?.len(), 0, "number of checkpoints left");
    Ok(())
}

async fn goes_on_after(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    chain(ctx.saver(), &thread_id, "", 3).await?;
    keep_latest(&ctx, &[&thread_id]).await?;
    keep_latest(&ctx, &[&thread_id]).await?;
    let survivor = read(ctx.saver(), &CheckpointConfig::new(thread_id.clone())).await?.config;
    let next = put(ctx.saver(), &survivor, &checkpoint(&[])).await?;
    ensure_eq!(left(&ctx, &thread_id).await?, [id_of(&next), id_of(&survivor)], "ids");
    ensure_eq!(read(ctx.saver(), &next).await?.parent_config, Some(survivor), "parent");
    Ok(())
}

async fn keeps_writes_that_are_ahead_of_their_checkpoint(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = chain(ctx.saver(), &thread_id, "", 3).await?;
    let newest = prepared(stored.last())?;
    let ahead = checkpoint(&[]);
    let config = newest.clone().with_checkpoint_id(ahead.id.clone());
    write(ctx.saver(), &config, "task", &[("ch", "early".into())]).await?;
    keep_latest(&ctx, &[&thread_id]).await?;
    let stored = put(ctx.saver(), newest, &ahead).await?;
    let tuple = read(ctx.saver(), &stored).await?;
    ensure_eq!(triples(&tuple.pending_writes), [("task", "ch", &"early".into())], "writes");
    Ok(())
}
