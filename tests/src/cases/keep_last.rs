//! The option `keep_last` of a saver: what `put` removes behind itself.

use checkpoint_core::{
    BaseCheckpointSaver, ChannelVersions, Checkpoint, CheckpointConfig, ListQuery, PutCondition, PutOptions,
    Result, SaverExt, Str, Value,
};

use crate::case::{Ctx, Failure, Need};
use crate::fixture::{
    Done, at_version, chain, checkpoint, encode, ids, list, metadata, newest_first, prepared, put, put_with,
    read, snapshot, triples, write,
};
use crate::target::{Facility, OpenOptions, Saver};

cases!("keep_last", [Need::Target(Facility::KeepLast)];
    at_least_as_many_stay,
    one_is_enough,
    conditional_puts_prune,
    other_namespaces_and_threads_stay,
    what_stays_is_whole,
    what_delta_channels_need_stays,
    writes_ahead_of_their_checkpoint_stay,
    branches_go_on_side_by_side,
);

async fn open(ctx: &Ctx, count: usize) -> Result<Saver> {
    ctx.target().open(OpenOptions { keep_last: Some(count), ..OpenOptions::default() }).await
}

async fn left(ctx: &Ctx, thread_id: &Str, checkpoint_ns: &str) -> Result<Vec<Str>> {
    ids(ctx.saver(), ListQuery::thread(thread_id.clone()).checkpoint_ns(checkpoint_ns)).await
}

async fn at_least_as_many_stay(ctx: Ctx) -> Done {
    const KEPT: usize = 3;
    let saver = open(&ctx, KEPT).await?;
    let thread_id = ctx.thread();
    let mut config = CheckpointConfig::new(thread_id.clone());
    let (mut stored, mut most) = (Vec::new(), 0);
    for step in 1..=25_usize {
        config = put(&saver, &config, &checkpoint(&[("step", 1.into())])).await?;
        write(&saver, &config, "task", &[("ch", "value".into())]).await?;
        stored.push(config.clone());
        let left = left(&ctx, &thread_id, "").await?;
        ensure!(left.len() >= KEPT.min(step), "{} checkpoints are left after {step}", left.len());
        ensure_eq!(left, newest_first(&stored)[..left.len()], "the newest are left");
        most = most.max(left.len());
    }
    ensure!(most <= 2 * KEPT, "{most} checkpoints were left");
    Ok(())
}

async fn one_is_enough(ctx: Ctx) -> Done {
    let saver = open(&ctx, 1).await?;
    let thread_id = ctx.thread();
    let stored = chain(&saver, &thread_id, "", 6).await?;
    ensure_eq!(left(&ctx, &thread_id, "").await?, newest_first(&stored)[..1], "what is left");
    Ok(())
}

async fn conditional_puts_prune(ctx: Ctx) -> Done {
    let saver = open(&ctx, 2).await?;
    let thread_id = ctx.thread();
    let mut config = CheckpointConfig::new(thread_id.clone());
    let mut stored = Vec::new();
    for _ in 0..8 {
        let made = checkpoint(&[("step", 1.into())]);
        let options = PutOptions::default().condition(PutCondition::ParentIsLatest);
        config = saver.put_with(&config, &made, &metadata(0), &made.channel_versions, &options).await?;
        stored.push(config.clone());
    }
    let left = left(&ctx, &thread_id, "").await?;
    ensure!((2..=4).contains(&left.len()), "{} checkpoints are left", left.len());
    ensure_eq!(left, newest_first(&stored)[..left.len()], "the newest are left");
    Ok(())
}

async fn other_namespaces_and_threads_stay(ctx: Ctx) -> Done {
    let (thread_id, other) = (ctx.thread(), ctx.thread());
    chain(ctx.saver(), &thread_id, "child:1", 5).await?;
    chain(ctx.saver(), &other, "", 5).await?;
    let saver = open(&ctx, 1).await?;
    chain(&saver, &thread_id, "", 5).await?;
    ensure_eq!(left(&ctx, &thread_id, "").await?.len(), 1, "left in the root");
    ensure_eq!(left(&ctx, &thread_id, "child:1").await?.len(), 5, "left in the other namespace");
    ensure_eq!(left(&ctx, &other, "").await?.len(), 5, "left in the other thread");
    // Where there are far too many, not each call tries.
    chain(&saver, &thread_id, "child:1", 60).await?;
    ensure_eq!(
        left(&ctx, &thread_id, "child:1").await?.len(),
        1,
        "left in the other namespace, once it was put to"
    );
    Ok(())
}

async fn what_stays_is_whole(ctx: Ctx) -> Done {
    let saver = open(&ctx, 3).await?;
    let thread_id = ctx.thread();
    let mut config = CheckpointConfig::new(thread_id.clone());
    let mut made: Vec<Checkpoint> = Vec::new();
    for step in 1..=14_i64 {
        // Of two channels, one changes at every third step.
        let mut next = at_version(step, &[("each", encode(&list(&[step]))?)]);
        let mut changed = next.channel_versions.clone();
        let rare = (step - 1) / 3;
        next = next.with_channel("rare", encode(&list(&[rare]))?, rare + 1);
        if (step - 1) % 3 == 0 {
            changed.insert("rare".into(), (rare + 1).into());
        }
        config = saver.put(&config, &next, &metadata(step), &changed).await?;
        made.push(next);
        let found = ctx.saver().list_all(ListQuery::thread(thread_id.clone())).await?;
        let found: Vec<Checkpoint> = found.into_iter().rev().map(|tuple| tuple.checkpoint).collect();
        ensure_eq!(found, made[made.len() - found.len()..], "what is left after step {step}");
    }
    Ok(())
}

async fn what_delta_channels_need_stays(ctx: Ctx) -> Done {
    let saver = open(&ctx, 2).await?;
    let thread_id = ctx.thread();
    let mut config = CheckpointConfig::new(thread_id.clone());
    let mut written: Vec<i64> = Vec::new();
    for step in 1..=60_i64 {
        let mut made = at_version(step, &[]);
        made.channel_versions.insert("log".into(), step.into());
        let mut counters = Vec::new();
        if step % 7 == 1 {
            made.channel_values.insert("log".into(), snapshot(&list(&[step]))?);
        } else {
            counters.push(("log".into(), Value::Array(vec![1.into(), 1.into()])));
        }
        let metadata = metadata(step).with("counters_since_delta_snapshot", Value::Map(counters));
        config = put_with(&saver, &config, &made, &metadata).await?;
        if step % 7 == 1 {
            written.clear();
        } else {
            let found = saver.get_delta_channel_history(&config, &["log"]).await?;
            let found = prepared(found.get("log"))?;
            ensure_eq!(
                found.seed,
                Some(snapshot(&list(&[step - (step - 1) % 7]))?),
                "the seed at step {step}"
            );
            let values: Vec<_> = found.writes.iter().map(|write| write.value.clone()).collect();
            let expected: Vec<_> = written.iter().map(|step| (*step).into()).collect();
            ensure_eq!(values, expected, "the writes at step {step}");
        }
        write(&saver, &config, "task", &[("log", step.into())]).await?;
        written.push(step);
    }
    let left = left(&ctx, &thread_id, "").await?;
    // Far above the number to keep, a part of the calls prunes.
    ensure!(left.len() < 50, "{} checkpoints are left", left.len());
    Ok(())
}

/// With `durability="exit"`, writes are stored before their checkpoint.
async fn writes_ahead_of_their_checkpoint_stay(ctx: Ctx) -> Done {
    let saver = open(&ctx, 1).await?;
    let mut config = CheckpointConfig::new(ctx.thread());
    for step in 0..8_i64 {
        let made = checkpoint(&[]);
        let ahead = config.clone().with_checkpoint_id(made.id.clone());
        write(&saver, &ahead, "task", &[("ch", step.into())]).await?;
        config = put(&saver, &config, &made).await?;
        let tuple = read(&saver, &config).await?;
        ensure_eq!(triples(&tuple.pending_writes), [("task", "ch", &step.into())], "writes of step {step}");
    }
    Ok(())
}

async fn branches_go_on_side_by_side(ctx: Ctx) -> Done {
    let saver = open(&ctx, 4).await?;
    let thread_id = ctx.thread();
    let kept = encode(&list(&[7]))?;
    let mut root = at_version(1, &[]);
    root = root.with_channel("kept", kept.clone(), 1);
    let root = put(&saver, &CheckpointConfig::new(thread_id.clone()), &root).await?;
    let mut branches = [root.clone(), root];
    for step in 2..=15_i64 {
        for branch in &mut branches {
            let next = at_version(step, &[("step", encode(&list(&[step]))?)]);
            let changed: ChannelVersions = next.channel_versions.clone();
            let next = next.with_channel("kept", kept.clone(), 1);
            *branch = saver.put(branch, &next, &metadata(step), &changed).await?;
            let found =
                saver.get_tuple(branch).await?.ok_or_else(|| Failure::new("the checkpoint is missing"))?;
            ensure_eq!(found.checkpoint, next, "the checkpoint of step {step}");
        }
    }
    Ok(())
}
