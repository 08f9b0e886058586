//! Delta channels over deep and branching chains, and the parts of them that `prune` keeps.

use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, CheckpointConfig, ListQuery, PruneStrategy, Result, SaverExt, Str,
    Value, delta,
};

use crate::case::{Ctx, Failure, Need};
use crate::fixture::{
    Done, at_version, checkpoint, encode, id_of, ids, list, map, metadata, prepared, put, random, read,
    snapshot, value, write, write_at,
};

cases!("delta";
    a_deep_chain,
    forks_have_their_own_history,
    writes_are_ordered_by_path_task_and_index,
    history_equals_reading_each_ancestor,
    a_missing_parent_ends_the_walk,
    a_checkpoint_may_be_its_own_ancestor,
    an_unknown_channel_has_no_history,
    special_channels_have_a_history,
    prune_keeps_the_history [Need::Prune],
    prune_keeps_a_fork_that_is_the_newest [Need::Prune],
    prune_keeps_one_checkpoint_without_delta_channels [Need::Prune],
    prune_keeps_only_a_snapshot [Need::Prune],
    copies_have_the_history [Need::CopyThread],
);

/// Puts the next checkpoint of a thread whose channel `log` is a delta channel. Without a snapshot, the metadata counts
/// the updates since the last one, as LangGraph's does.
async fn step(
    ctx: &Ctx,
    parent: &CheckpointConfig,
    version: i64,
    log: Option<ChannelValue>,
) -> Result<CheckpointConfig> {
    let mut made = at_version(version, &[("plain", encode(&list(&[version]))?)]);
    made.channel_versions.insert("log".into(), version.into());
    let mut metadata = metadata(version);
    match log {
        Some(value) => {
            made.channel_values.insert("log".into(), value);
        }
        None => metadata.insert("counters_since_delta_snapshot", map(&[("log", list(&[version, version]))])),
    }
    let new_versions = made.channel_versions.clone();
    ctx.saver().put(parent, &made, &metadata, &new_versions).await
}

/// A chain of steps in which some have snapshots; each step has two writes to `log` and one to another channel.
async fn deep(ctx: &Ctx, thread_id: &Str, steps: i64, snapshots: &[i64]) -> Result<Vec<CheckpointConfig>> {
    let mut config = CheckpointConfig::new(thread_id.clone());
    let mut stored = Vec::new();
    for version in 1..=steps {
        let log = snapshots.contains(&version).then(|| snapshot(&list(&[version]))).transpose()?;
        config = step(ctx, &config, version, log).await?;
        let writes = [("log", version.into()), ("other", 0.into()), ("log", encode(&list(&[version]))?)];
        write(ctx.saver(), &config, "task", &writes).await?;
        stored.push(config.clone());
    }
    Ok(stored)
}

/// Seed and values of the writes of `log`.
async fn history(
    ctx: &Ctx,
    config: &CheckpointConfig,
) -> std::result::Result<(Option<ChannelValue>, Vec<ChannelValue>), Failure> {
    let mut found = ctx.saver().get_delta_channel_history(config, &["log"]).await?;
    let history = found.remove("log").ok_or_else(|| Failure::new("the channel is missing"))?;
    Ok((history.seed, history.writes.into_iter().map(|write| write.value).collect()))
}

fn writes_of(versions: impl IntoIterator<Item = i64>) -> Result<Vec<ChannelValue>> {
    let mut all = Vec::new();
    for version in versions {
        all.extend([version.into(), encode(&list(&[version]))?]);
    }
    Ok(all)
}

async fn a_deep_chain(ctx: Ctx) -> Done {
    let stored = deep(&ctx, &ctx.thread(), 150, &[1, 40, 100]).await?;
    for (at, seed) in [(150, 100), (101, 100), (100, 40), (41, 40), (40, 1), (2, 1)] {
        let config = prepared(stored.get(at - 1))?;
        let found = history(&ctx, config).await?;
        ensure_eq!(found.0, Some(snapshot(&list(&[seed]))?), "seed at {at}");
        ensure_eq!(found.1, writes_of(seed..i64::try_from(at).unwrap_or_default())?, "writes at {at}");
    }
    Ok(())
}

async fn forks_have_their_own_history(ctx: Ctx) -> Done {
    let stored = deep(&ctx, &ctx.thread(), 6, &[2]).await?;
    let start = prepared(stored.get(3))?;
    let mut fork = start.clone();
    for version in [50, 51] {
        fork = step(&ctx, &fork, version, None).await?;
        write(ctx.saver(), &fork, "task", &[("log", version.into())]).await?;
    }
    let target = step(&ctx, &fork, 52, None).await?;
    let mut expected = writes_of([2, 3, 4])?;
    expected.extend([50.into(), 51.into()]);
    ensure_eq!(history(&ctx, &target).await?.1, expected, "writes of the fork");
    let main = prepared(stored.last())?;
    ensure_eq!(history(&ctx, main).await?.1, writes_of([2, 3, 4, 5])?, "writes of the main line");
    Ok(())
}

async fn writes_are_ordered_by_path_task_and_index(ctx: Ctx) -> Done {
    let first = step(&ctx, &CheckpointConfig::new(ctx.thread()), 1, None).await?;
    for (task, path, name) in [("1", "~b", 3), ("2", "~a", 1), ("3", "", 0), ("0", "~b", 2)] {
        write_at(
            ctx.saver(),
            &first,
            task,
            path,
            &[("log", (name * 2).into()), ("log", (name * 2 + 1).into())],
        )
        .await?;
    }
    let target = step(&ctx, &first, 2, None).await?;
    let expected: Vec<ChannelValue> = (0..8_i64).map(ChannelValue::from).collect();
    ensure_eq!(history(&ctx, &target).await?.1, expected, "writes");
    let found = ctx.saver().get_delta_channel_history(&target, &["log"]).await?;
    let paths: Vec<_> =
        found.values().flat_map(|history| &history.writes).map(|write| &*write.task_path).collect();
    ensure_eq!(paths, ["", "", "~a", "~a", "~b", "~b", "~b", "~b"], "paths");
    Ok(())
}

async fn history_equals_reading_each_ancestor(ctx: Ctx) -> Done {
    let stored = deep(&ctx, &ctx.thread(), 12, &[3, 8]).await?;
    for config in stored.iter().chain(stored.first().map(|config| config.clone().latest()).as_ref()) {
        for channels in [&["log"][..], &["plain"], &["log", "other", "plain", "nothing"], &["log", "log"]] {
            let found = ctx.saver().get_delta_channel_history(config, channels).await?;
            let expected = delta::walk(ctx.saver(), config, channels).await?;
            ensure_eq!(found, expected, "history of {channels:?}");
        }
    }
    Ok(())
}

/// Parents may be stored later, so they can form a cycle. A walk goes around once.
async fn a_checkpoint_may_be_its_own_ancestor(ctx: Ctx) -> Done {
    let root = CheckpointConfig::new(ctx.thread());
    let (first, second) = (at_version(1, &[]), at_version(2, &[("log", 7.into())]));
    put(ctx.saver(), &root.for_checkpoint(second.id.clone()), &first).await?;
    let target = put(ctx.saver(), &root.for_checkpoint(first.id.clone()), &second).await?;
    write(ctx.saver(), &target, "task", &[("log", 8.into())]).await?;
    for config in [&target, &root] {
        let found = ctx.saver().get_delta_channel_history(config, &["log", "never"]).await?;
        let seeds: Vec<_> =
            found.values().map(|history| (history.seed.clone(), history.writes.len())).collect();
        ensure_eq!(seeds, [(Some(7.into()), 1), (None, 0)], "seeds and numbers of writes");
    }
    Ok(())
}

async fn a_missing_parent_ends_the_walk(ctx: Ctx) -> Done {
    let gone = CheckpointConfig::new(ctx.thread()).with_checkpoint_id(random());
    write(ctx.saver(), &gone, "task", &[("log", "of a missing checkpoint".into())]).await?;
    let first = step(&ctx, &gone, 1, None).await?;
    write(ctx.saver(), &first, "task", &[("log", "first".into())]).await?;
    let target = step(&ctx, &first, 2, None).await?;
    ensure_eq!(history(&ctx, &target).await?, (None, vec!["first".into()]), "history");
    let unknown = target.with_checkpoint_id(random());
    ensure_eq!(history(&ctx, &unknown).await?, (None, vec![]), "history at an unknown id");
    Ok(())
}

async fn an_unknown_channel_has_no_history(ctx: Ctx) -> Done {
    let stored = deep(&ctx, &ctx.thread(), 3, &[1]).await?;
    let target = prepared(stored.last())?;
    let found = ctx.saver().get_delta_channel_history(target, &["nothing", "", "log'"]).await?;
    ensure_eq!(found.len(), 3, "number of channels");
    ensure!(
        found.values().all(|history| *history == delta::DeltaChannelHistory::default()),
        "found {found:?}"
    );
    Ok(())
}

async fn special_channels_have_a_history(ctx: Ctx) -> Done {
    let first = step(&ctx, &CheckpointConfig::new(ctx.thread()), 1, None).await?;
    write(ctx.saver(), &first, "task", &[("log", 1.into()), ("__resume__", 2.into())]).await?;
    let target = step(&ctx, &first, 2, None).await?;
    let found = ctx.saver().get_delta_channel_history(&target, &["__resume__"]).await?;
    let values: Vec<_> =
        found.values().flat_map(|history| &history.writes).map(|write| write.value.clone()).collect();
    ensure_eq!(values, [2.into()], "writes");
    Ok(())
}

async fn prune(ctx: &Ctx, thread_id: &Str) -> Result<()> {
    ctx.saver().prune(&[thread_id], PruneStrategy::KeepLatest).await
}

async fn prune_keeps_the_history(ctx: Ctx) -> Done {
    for (steps, snapshots, left) in [(10, &[2, 6][..], 5), (10, &[][..], 10), (3, &[2][..], 2)] {
        let thread_id = ctx.thread();
        let stored = deep(&ctx, &thread_id, steps, snapshots).await?;
        let newest = prepared(stored.last())?;
        let before = (history(&ctx, newest).await?, read(ctx.saver(), newest).await?);
        prune(&ctx, &thread_id).await?;
        ensure_eq!(history(&ctx, newest).await?, before.0, "history after prune");
        ensure_eq!(read(ctx.saver(), newest).await?, before.1, "the newest after prune");
        let found = ctx.saver().list_all(ListQuery::thread(thread_id.clone())).await?;
        ensure_eq!(found.len(), left, "number of checkpoints that are left of {steps}");
        let oldest = found.last().and_then(|tuple| tuple.parent_config.clone());
        ensure_eq!(oldest, None, "parent of the oldest survivor");
        prune(&ctx, &thread_id).await?;
        ensure_eq!(history(&ctx, newest).await?, before.0, "history after the second prune");
    }
    Ok(())
}

async fn prune_keeps_a_fork_that_is_the_newest(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = deep(&ctx, &thread_id, 6, &[2]).await?;
    let start = prepared(stored.get(3))?;
    let fork = step(&ctx, start, 50, None).await?;
    let before = history(&ctx, &fork).await?;
    prune(&ctx, &thread_id).await?;
    ensure_eq!(history(&ctx, &fork).await?, before, "history after prune");
    let kept = stored.iter().skip(1).take(3).rev().map(id_of);
    let expected: Vec<_> = std::iter::once(id_of(&fork)).chain(kept).collect();
    ensure_eq!(ids(ctx.saver(), ListQuery::thread(thread_id)).await?, expected, "ids");
    Ok(())
}

async fn prune_keeps_one_checkpoint_without_delta_channels(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let mut config = CheckpointConfig::new(thread_id.clone());
    for version in 1..=5_i64 {
        // A consumed trigger has a version but no value, like a delta channel.
        let mut made = at_version(version, &[("plain", encode(&list(&[version]))?)]);
        made.channel_versions.insert("branch:to:node".into(), version.into());
        if version % 2 == 1 {
            made.channel_values.insert("branch:to:node".into(), ChannelValue::Null);
        }
        config = put(ctx.saver(), &config, &made).await?;
        write(ctx.saver(), &config, "task", &[("branch:to:node", ChannelValue::Null)]).await?;
    }
    let last = put(ctx.saver(), &config, &checkpoint(&[])).await?;
    prune(&ctx, &thread_id).await?;
    ensure_eq!(ids(ctx.saver(), ListQuery::thread(thread_id)).await?, [id_of(&last)], "ids");
    Ok(())
}

async fn prune_keeps_only_a_snapshot(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = deep(&ctx, &thread_id, 5, &[2, 5]).await?;
    prune(&ctx, &thread_id).await?;
    let expected = [id_of(prepared(stored.last())?)];
    ensure_eq!(ids(ctx.saver(), ListQuery::thread(thread_id.clone())).await?, expected, "ids");
    let tuple = read(ctx.saver(), &CheckpointConfig::new(thread_id)).await?;
    ensure_eq!(value(&tuple, "log")?, snapshot(&list(&[5]))?, "snapshot");
    Ok(())
}

async fn copies_have_the_history(ctx: Ctx) -> Done {
    let (source, target) = (ctx.thread(), ctx.thread());
    deep(&ctx, &source, 6, &[2]).await?;
    let expected = history(&ctx, &CheckpointConfig::new(source.clone())).await?;
    ctx.saver().copy_thread(&source, &target).await?;
    ctx.saver().delete_thread(&source).await?;
    ensure_eq!(history(&ctx, &CheckpointConfig::new(target)).await?, expected, "history of the copy");
    ensure_eq!(expected.0, Some(snapshot(&Value::Array(vec![2.into()]))?), "seed");
    Ok(())
}
