//! `get_delta_channel_history`: LangGraph's own cases.

use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, CheckpointConfig, DeltaChannelHistory, Result, Str,
};

use crate::case::{Ctx, Failure};
use crate::fixture::{Done, at_version, checkpoint, encode, list, put, snapshot, write};

cases!("delta_channel_history";
    returns_writes_oldest_first,
    seed_is_nearest_snapshot,
    excludes_target_pending_writes,
    multi_channel,
    empty_channels_returns_empty,
    walk_to_root_no_seed,
    migration_plain_value_as_seed,
    seed_ancestor_own_writes_are_replayed,
);

/// Puts a checkpoint in which the channels have new versions, and values only where given.
async fn step(
    ctx: &Ctx,
    parent: &CheckpointConfig,
    version: i64,
    channels: &[&str],
    values: &[(&str, ChannelValue)],
) -> Result<CheckpointConfig> {
    let mut made = at_version(version, values);
    for channel in channels {
        made.channel_versions.insert(Str::from(*channel), version.into());
    }
    put(ctx.saver(), parent, &made).await
}

/// One channel's history: its seed, and its writes as task and value.
async fn history(
    ctx: &Ctx,
    config: &CheckpointConfig,
    channel: &str,
) -> std::result::Result<DeltaChannelHistory, Failure> {
    let mut found = ctx.saver().get_delta_channel_history(config, &[channel]).await?;
    ensure_eq!(found.keys().map(|key| &**key).collect::<Vec<_>>(), [channel], "channels");
    found.remove(channel).ok_or_else(|| Failure::new("the channel is missing"))
}

fn values(history: &DeltaChannelHistory) -> Vec<ChannelValue> {
    history.writes.iter().map(|write| write.value.clone()).collect()
}

async fn returns_writes_oldest_first(ctx: Ctx) -> Done {
    let mut config = CheckpointConfig::new(ctx.thread());
    for version in 1..=3 {
        config = step(&ctx, &config, version, &["log"], &[]).await?;
        write(ctx.saver(), &config, "task", &[("log", version.into())]).await?;
    }
    let target = step(&ctx, &config, 4, &["log"], &[]).await?;
    let found = history(&ctx, &target, "log").await?;
    ensure_eq!(values(&found), [1.into(), 2.into(), 3.into()], "writes");
    Ok(())
}

async fn seed_is_nearest_snapshot(ctx: Ctx) -> Done {
    let mut config = CheckpointConfig::new(ctx.thread());
    for version in 1..=4_i64 {
        // Versions 1 and 3 have snapshots.
        let snapshots = if version % 2 == 1 { vec![("log", snapshot(&list(&[version]))?)] } else { vec![] };
        config = step(&ctx, &config, version, &["log"], &snapshots).await?;
        write(ctx.saver(), &config, "task", &[("log", version.into())]).await?;
    }
    let target = step(&ctx, &config, 5, &["log"], &[]).await?;
    let found = history(&ctx, &target, "log").await?;
    ensure_eq!(found.seed, Some(snapshot(&list(&[3]))?), "seed");
    ensure_eq!(values(&found), [3.into(), 4.into()], "writes");
    Ok(())
}

async fn excludes_target_pending_writes(ctx: Ctx) -> Done {
    let first = step(&ctx, &CheckpointConfig::new(ctx.thread()), 1, &["log"], &[]).await?;
    write(ctx.saver(), &first, "task", &[("log", "first".into())]).await?;
    let second = step(&ctx, &first, 2, &["log"], &[]).await?;
    write(ctx.saver(), &second, "task", &[("log", "second".into())]).await?;
    for config in [&second, &second.clone().latest()] {
        ensure_eq!(values(&history(&ctx, config, "log").await?), ["first".into()], "writes");
    }
    ensure_eq!(history(&ctx, &first, "log").await?, DeltaChannelHistory::default(), "at the first");
    Ok(())
}

async fn multi_channel(ctx: Ctx) -> Done {
    let both = &["a", "b"];
    let first =
        step(&ctx, &CheckpointConfig::new(ctx.thread()), 1, both, &[("a", snapshot(&list(&[0]))?)]).await?;
    write(ctx.saver(), &first, "task", &[("a", "a1".into()), ("b", "b1".into())]).await?;
    let second = step(&ctx, &first, 2, both, &[("b", snapshot(&list(&[9]))?)]).await?;
    write(ctx.saver(), &second, "task", &[("a", "a2".into()), ("b", "b2".into()), ("c", "c2".into())])
        .await?;
    let target = step(&ctx, &second, 3, both, &[]).await?;
    let found = ctx.saver().get_delta_channel_history(&target, both).await?;
    ensure_eq!(found.len(), 2, "number of channels");
    let expected = [("a", 0, vec!["a1", "a2"]), ("b", 9, vec!["b2"])];
    for (channel, seed, writes) in expected {
        let Some(found) = found.get(channel) else { return Err(Failure::new("a channel is missing")) };
        ensure_eq!(found.seed, Some(snapshot(&list(&[seed]))?), "seed of {channel}");
        let writes: Vec<ChannelValue> = writes.into_iter().map(ChannelValue::from).collect();
        ensure_eq!(values(found), writes, "writes of {channel}");
    }
    Ok(())
}

async fn empty_channels_returns_empty(ctx: Ctx) -> Done {
    let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
    ensure!(
        ctx.saver().get_delta_channel_history(&stored, &[]).await?.is_empty(),
        "no channels were asked for"
    );
    let unknown = CheckpointConfig::new(ctx.thread());
    ensure_eq!(history(&ctx, &unknown, "log").await?, DeltaChannelHistory::default(), "an unknown thread");
    Ok(())
}

async fn walk_to_root_no_seed(ctx: Ctx) -> Done {
    let first = step(&ctx, &CheckpointConfig::new(ctx.thread()), 1, &["log"], &[]).await?;
    write(ctx.saver(), &first, "task", &[("log", "first".into())]).await?;
    let target = step(&ctx, &first, 2, &["log"], &[]).await?;
    let found = history(&ctx, &target, "log").await?;
    ensure_eq!(found.seed, None, "seed");
    ensure_eq!(values(&found), ["first".into()], "writes");
    Ok(())
}

async fn migration_plain_value_as_seed(ctx: Ctx) -> Done {
    for plain in [encode(&list(&[1, 2]))?, "text".into(), true.into(), 0.into()] {
        let first =
            step(&ctx, &CheckpointConfig::new(ctx.thread()), 1, &[], &[("log", plain.clone())]).await?;
        write(ctx.saver(), &first, "task", &[("log", "more".into())]).await?;
        let target = step(&ctx, &first, 2, &["log"], &[]).await?;
        let found = history(&ctx, &target, "log").await?;
        ensure_eq!(found.seed, Some(plain), "seed");
        ensure_eq!(values(&found), ["more".into()], "writes");
    }
    Ok(())
}

async fn seed_ancestor_own_writes_are_replayed(ctx: Ctx) -> Done {
    let root = step(&ctx, &CheckpointConfig::new(ctx.thread()), 1, &["log"], &[]).await?;
    write(ctx.saver(), &root, "task", &[("log", "before the seed".into())]).await?;
    let seeded = step(&ctx, &root, 2, &[], &[("log", snapshot(&list(&[5]))?)]).await?;
    write(ctx.saver(), &seeded, "task", &[("log", "on the seed".into())]).await?;
    let target = step(&ctx, &seeded, 3, &["log"], &[]).await?;
    let found = history(&ctx, &target, "log").await?;
    ensure_eq!(found.seed, Some(snapshot(&list(&[5]))?), "seed");
    ensure_eq!(values(&found), ["on the seed".into()], "writes");
    Ok(())
}
