//! `put`: LangGraph's own cases.

use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, ChannelVersion, ChannelVersions, Checkpoint, CheckpointConfig,
    CheckpointMetadata, Str,
};

use crate::case::Ctx;
use crate::fixture::{
    Done, at_version, checkpoint, encode, id_of, list, map, metadata, put, put_with, random, read, value,
};

cases!("put";
    returns_config,
    roundtrip,
    preserves_channel_values,
    preserves_channel_versions,
    preserves_versions_seen,
    preserves_metadata,
    root_namespace,
    child_namespace,
    default_namespace,
    multiple_checkpoints_same_thread,
    multiple_threads_isolated,
    parent_config,
    incremental_channel_update,
    new_channel_added,
    channel_removed,
    preserves_run_id,
    preserves_versions_seen_values,
);

async fn returns_config(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let checkpoint = checkpoint(&[("k", "v".into())]);
    let config = CheckpointConfig::new(thread_id.clone()).with_metadata("user", "u");
    let stored = put(ctx.saver(), &config, &checkpoint).await?;
    ensure_eq!(
        stored,
        CheckpointConfig::new(thread_id).with_checkpoint_id(checkpoint.id),
        "the returned config"
    );
    Ok(())
}

async fn roundtrip(ctx: Ctx) -> Done {
    let checkpoint = checkpoint(&[("msg", "hello".into())]);
    let metadata = CheckpointMetadata::new("input", -1);
    let stored = put_with(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint, &metadata).await?;
    let tuple = read(ctx.saver(), &stored).await?;
    ensure_eq!(tuple.config, stored, "config");
    ensure_eq!(tuple.checkpoint, checkpoint, "checkpoint");
    ensure_eq!(tuple.metadata, metadata, "metadata");
    ensure_eq!(tuple.pending_writes, [], "pending writes");
    Ok(())
}

async fn preserves_channel_values(ctx: Ctx) -> Done {
    let values = [
        ("str_val", ChannelValue::from("hello")),
        ("int_val", 42.into()),
        ("list_val", encode(&list(&[1, 2, 3]))?),
        ("dict_val", encode(&map(&[("nested", true.into())]))?),
    ];
    let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&values)).await?;
    let tuple = read(ctx.saver(), &stored).await?;
    ensure_eq!(tuple.checkpoint.channel_values.len(), values.len(), "number of values");
    for (channel, expected) in values {
        ensure_eq!(value(&tuple, channel)?, expected, "channel {channel}");
    }
    Ok(())
}

fn versions(entries: &[(&str, i64)]) -> ChannelVersions {
    entries.iter().map(|(channel, version)| (Str::from(*channel), ChannelVersion::from(*version))).collect()
}

async fn preserves_channel_versions(ctx: Ctx) -> Done {
    let mut checkpoint = checkpoint(&[("a", "x".into()), ("b", "y".into())]);
    checkpoint.channel_versions = versions(&[("a", 1), ("b", 2)]);
    let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint).await?;
    let tuple = read(ctx.saver(), &stored).await?;
    for (channel, expected) in &checkpoint.channel_versions {
        let found = tuple.checkpoint.channel_versions.get(channel).map(ChannelVersion::major);
        ensure_eq!(found, Some(expected.major()), "version of {channel}");
    }
    Ok(())
}

async fn preserves_versions_seen(ctx: Ctx) -> Done {
    let mut checkpoint = checkpoint(&[]);
    checkpoint.versions_seen.insert("node1".into(), versions(&[("ch", 1)]));
    checkpoint.versions_seen.insert("node2".into(), versions(&[("ch", 2)]));
    let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint).await?;
    let tuple = read(ctx.saver(), &stored).await?;
    let mut nodes: Vec<_> = tuple.checkpoint.versions_seen.keys().map(|node| &**node).collect();
    nodes.sort_unstable();
    ensure_eq!(nodes, ["node1", "node2"], "nodes");
    Ok(())
}

async fn preserves_metadata(ctx: Ctx) -> Done {
    let metadata = CheckpointMetadata::new("loop", 3).with("custom_key", "custom_value");
    let stored =
        put_with(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[]), &metadata).await?;
    let found = read(ctx.saver(), &stored).await?.metadata;
    ensure_eq!((found.source(), found.step()), (Some("loop"), Some(3)), "source and step");
    ensure_eq!(found.get("custom_key"), Some(&"custom_value".into()), "custom key");
    ensure_eq!(found.get("parents"), Some(&map(&[])), "parents");
    Ok(())
}

async fn in_namespace(ctx: Ctx, checkpoint_ns: &str) -> Done {
    let config = CheckpointConfig::new(ctx.thread()).with_checkpoint_ns(checkpoint_ns);
    let stored = put(ctx.saver(), &config, &checkpoint(&[])).await?;
    ensure_eq!(stored.checkpoint_ns(), checkpoint_ns, "namespace of the returned config");
    ensure_eq!(read(ctx.saver(), &stored).await?.config, stored, "config by id");
    ensure_eq!(read(ctx.saver(), &config).await?.config, stored, "config of the newest");
    Ok(())
}

async fn root_namespace(ctx: Ctx) -> Done {
    in_namespace(ctx, "").await
}

async fn child_namespace(ctx: Ctx) -> Done {
    in_namespace(ctx, "child:abc").await
}

async fn default_namespace(ctx: Ctx) -> Done {
    let config = CheckpointConfig::new(ctx.thread());
    put(ctx.saver(), &config, &checkpoint(&[])).await?;
    ensure_eq!(read(ctx.saver(), &config).await?.config.checkpoint_ns(), "", "namespace");
    Ok(())
}

async fn multiple_checkpoints_same_thread(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let mut config = CheckpointConfig::new(thread_id.clone());
    let mut ids = Vec::new();
    for step in 0..3 {
        config = put_with(ctx.saver(), &config, &checkpoint(&[]), &metadata(step)).await?;
        ids.push(id_of(&config));
    }
    for id in ids {
        let tuple =
            read(ctx.saver(), &CheckpointConfig::new(thread_id.clone()).with_checkpoint_id(id.clone()))
                .await?;
        ensure_eq!(tuple.checkpoint.id, id, "id");
    }
    Ok(())
}

async fn multiple_threads_isolated(ctx: Ctx) -> Done {
    let threads = [ctx.thread(), ctx.thread()];
    for (thread_id, text) in threads.iter().zip(["thread1", "thread2"]) {
        put(ctx.saver(), &CheckpointConfig::new(thread_id.clone()), &checkpoint(&[("x", text.into())]))
            .await?;
    }
    for (thread_id, text) in threads.iter().zip(["thread1", "thread2"]) {
        let tuple = read(ctx.saver(), &CheckpointConfig::new(thread_id.clone())).await?;
        ensure_eq!(value(&tuple, "x")?, ChannelValue::from(text), "value");
    }
    Ok(())
}

async fn parent_config(ctx: Ctx) -> Done {
    let first = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
    let second = put(ctx.saver(), &first, &checkpoint(&[])).await?;
    ensure_eq!(read(ctx.saver(), &second).await?.parent_config, Some(first), "parent");
    Ok(())
}

/// Puts a checkpoint that names only some of its channels as new.
async fn put_changed(
    ctx: &Ctx,
    config: &CheckpointConfig,
    checkpoint: &Checkpoint,
    changed: &[(&str, i64)],
) -> checkpoint_core::Result<CheckpointConfig> {
    ctx.saver().put(config, checkpoint, &metadata(1), &versions(changed)).await
}

async fn incremental_channel_update(ctx: Ctx) -> Done {
    // Once with scalars, once with values that a backend may store in separate rows.
    for wrap in [false, true] {
        let make = |text: &str| if wrap { encode(&map(&[("is", text.into())])) } else { Ok(text.into()) };
        let first = checkpoint(&[("a", make("v1")?), ("b", make("v2")?)]);
        let first_config = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &first).await?;
        let mut second = checkpoint(&[("b", make("v2")?)]);
        second = second.with_channel("a", make("v1_updated")?, 2);
        let second_config = put_changed(&ctx, &first_config, &second, &[("a", 2)]).await?;
        let tuple = read(ctx.saver(), &second_config).await?;
        ensure_eq!(tuple.checkpoint.channel_values, second.channel_values, "values of the second");
        let tuple = read(ctx.saver(), &first_config).await?;
        ensure_eq!(tuple.checkpoint.channel_values, first.channel_values, "values of the first");
    }
    Ok(())
}

async fn new_channel_added(ctx: Ctx) -> Done {
    let first = checkpoint(&[("a", "v1".into())]);
    let config = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &first).await?;
    let second = checkpoint(&[("a", "v1".into()), ("b", "new_channel".into())]);
    let config = put_changed(&ctx, &config, &second, &[("b", 1)]).await?;
    ensure_eq!(read(ctx.saver(), &config).await?.checkpoint.channel_values, second.channel_values, "values");
    Ok(())
}

async fn channel_removed(ctx: Ctx) -> Done {
    let first = checkpoint(&[("a", "v1".into()), ("b", encode(&list(&[2]))?)]);
    let config = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &first).await?;
    let second = at_version(2, &[("a", "v1_updated".into())]);
    let config = put_changed(&ctx, &config, &second, &[("a", 2)]).await?;
    ensure_eq!(read(ctx.saver(), &config).await?.checkpoint.channel_values, second.channel_values, "values");
    Ok(())
}

async fn preserves_run_id(ctx: Ctx) -> Done {
    let run_id = random();
    let metadata = metadata(0).with("run_id", &*run_id);
    let stored =
        put_with(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[]), &metadata).await?;
    ensure_eq!(read(ctx.saver(), &stored).await?.metadata.run_id(), Some(&*run_id), "run id");
    Ok(())
}

async fn preserves_versions_seen_values(ctx: Ctx) -> Done {
    let mut checkpoint = checkpoint(&[]);
    checkpoint.versions_seen.insert("node1".into(), versions(&[("ch_a", 1), ("ch_b", 2)]));
    checkpoint.versions_seen.insert("node2".into(), versions(&[("ch_a", 3)]));
    let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint).await?;
    let found = read(ctx.saver(), &stored).await?.checkpoint.versions_seen;
    for (node, seen) in &checkpoint.versions_seen {
        for (channel, expected) in seen {
            let found = found.get(node).and_then(|seen| seen.get(channel)).map(ChannelVersion::major);
            ensure_eq!(found, Some(expected.major()), "{node} has seen {channel}");
        }
    }
    Ok(())
}
