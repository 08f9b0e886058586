//! `get_tuple`: LangGraph's own cases.

use checkpoint_core::{BaseCheckpointSaver, ChannelVersions, CheckpointConfig, CheckpointMetadata};

use crate::case::Ctx;
use crate::fixture::{Done, chain, checkpoint, put, put_with, random, read, triples, value, write};

cases!("get_tuple";
    nonexistent_returns_none,
    latest_when_no_checkpoint_id,
    specific_checkpoint_id,
    config_structure,
    checkpoint_fields,
    metadata,
    parent_config,
    pending_writes,
    respects_namespace,
    nonexistent_checkpoint_id,
);

async fn nonexistent_returns_none(ctx: Ctx) -> Done {
    let config = CheckpointConfig::new(ctx.thread());
    ensure_eq!(ctx.saver().get_tuple(&config).await?, None, "a thread without checkpoints");
    Ok(())
}

async fn latest_when_no_checkpoint_id(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = chain(ctx.saver(), &thread_id, "", 3).await?;
    let tuple = read(ctx.saver(), &CheckpointConfig::new(thread_id)).await?;
    ensure_eq!(Some(&tuple.config), stored.last(), "the newest");
    ensure_eq!(value(&tuple, "step")?, 2.into(), "its value");
    Ok(())
}

async fn specific_checkpoint_id(ctx: Ctx) -> Done {
    let stored = chain(ctx.saver(), &ctx.thread(), "", 3).await?;
    for (step, config) in (0_i64..).zip(&stored) {
        let tuple = read(ctx.saver(), config).await?;
        ensure_eq!(&tuple.config, config, "config");
        ensure_eq!(value(&tuple, "step")?, step.into(), "value");
    }
    Ok(())
}

async fn config_structure(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let checkpoint = checkpoint(&[]);
    let asked = CheckpointConfig::new(thread_id.clone()).with_metadata("user", "u");
    put(ctx.saver(), &asked, &checkpoint).await?;
    let expected = CheckpointConfig::new(thread_id).with_checkpoint_id(checkpoint.id.clone());
    ensure_eq!(read(ctx.saver(), &asked).await?.config, expected, "config of the newest");
    let asked = asked.with_checkpoint_id(checkpoint.id);
    ensure_eq!(read(ctx.saver(), &asked).await?.config, expected, "config by id");
    Ok(())
}

async fn checkpoint_fields(ctx: Ctx) -> Done {
    let mut checkpoint = checkpoint(&[("k", "v".into())]);
    checkpoint.v = 1;
    checkpoint.versions_seen.insert("node".into(), ChannelVersions::from_iter([("k".into(), 1.into())]));
    let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint).await?;
    ensure_eq!(read(ctx.saver(), &stored).await?.checkpoint, checkpoint, "checkpoint");
    Ok(())
}

async fn metadata(ctx: Ctx) -> Done {
    let metadata = CheckpointMetadata::new("input", -1).with("custom", "data");
    let config = CheckpointConfig::new(ctx.thread());
    let stored = put_with(ctx.saver(), &config, &checkpoint(&[]), &metadata).await?;
    ensure_eq!(read(ctx.saver(), &stored).await?.metadata, metadata, "metadata");
    Ok(())
}

async fn parent_config(ctx: Ctx) -> Done {
    let stored = chain(ctx.saver(), &ctx.thread(), "", 2).await?;
    let mut parent = None;
    for config in stored {
        ensure_eq!(read(ctx.saver(), &config).await?.parent_config, parent, "parent");
        parent = Some(config);
    }
    Ok(())
}

async fn pending_writes(ctx: Ctx) -> Done {
    let stored = chain(ctx.saver(), &ctx.thread(), "", 1).await?;
    let task = random();
    for config in &stored {
        write(ctx.saver(), config, &task, &[("ch1", "v1".into()), ("ch2", "v2".into())]).await?;
        let tuple = read(ctx.saver(), config).await?;
        let expected = [(&*task, "ch1", &"v1".into()), (&*task, "ch2", &"v2".into())];
        ensure_eq!(triples(&tuple.pending_writes), expected, "writes");
    }
    Ok(())
}

async fn respects_namespace(ctx: Ctx) -> Done {
    let root = CheckpointConfig::new(ctx.thread());
    let child = root.clone().with_checkpoint_ns("child:1");
    let in_root = put(ctx.saver(), &root, &checkpoint(&[])).await?;
    let in_child = put(ctx.saver(), &child, &checkpoint(&[])).await?;
    ensure_eq!(read(ctx.saver(), &root).await?.config, in_root, "newest of the root");
    ensure_eq!(read(ctx.saver(), &child).await?.config, in_child, "newest of the child");
    let swapped = in_child.clone().with_checkpoint_ns("");
    ensure_eq!(ctx.saver().get_tuple(&swapped).await?, None, "the child's id in the root");
    Ok(())
}

async fn nonexistent_checkpoint_id(ctx: Ctx) -> Done {
    let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
    let unknown = stored.with_checkpoint_id(random());
    ensure_eq!(ctx.saver().get_tuple(&unknown).await?, None, "an unknown id");
    Ok(())
}
