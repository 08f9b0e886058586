//! `put_writes`: LangGraph's own cases.

use checkpoint_core::{ChannelValue, CheckpointConfig, CheckpointTuple, special};

use crate::case::{Ctx, Failure};
use crate::fixture::{Done, checkpoint, encode, map, put, random, read, triples, write, write_at};

cases!("put_writes";
    basic,
    multiple_writes_same_task,
    multiple_tasks,
    preserves_task_id,
    preserves_channel_and_value,
    task_path,
    idempotent,
    special_channels,
    across_namespaces,
    cleared_on_next_checkpoint,
);

/// A new thread with one checkpoint.
async fn stored(ctx: &Ctx) -> checkpoint_core::Result<CheckpointConfig> {
    put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await
}

/// Writes once and reads back.
async fn written(
    ctx: &Ctx,
    task_id: &str,
    writes: &[(&str, ChannelValue)],
) -> Result<CheckpointTuple, Failure> {
    let config = stored(ctx).await?;
    write(ctx.saver(), &config, task_id, writes).await?;
    read(ctx.saver(), &config).await
}

async fn basic(ctx: Ctx) -> Done {
    let task = random();
    let tuple = written(&ctx, &task, &[("channel1", "value1".into())]).await?;
    ensure_eq!(triples(&tuple.pending_writes), [(&*task, "channel1", &"value1".into())], "writes");
    Ok(())
}

async fn multiple_writes_same_task(ctx: Ctx) -> Done {
    let task = random();
    let tuple =
        written(&ctx, &task, &[("ch1", "v1".into()), ("ch2", "v2".into()), ("ch3", "v3".into())]).await?;
    let expected =
        [(&*task, "ch1", &"v1".into()), (&*task, "ch2", &"v2".into()), (&*task, "ch3", &"v3".into())];
    ensure_eq!(triples(&tuple.pending_writes), expected, "writes");
    Ok(())
}

async fn multiple_tasks(ctx: Ctx) -> Done {
    let config = stored(&ctx).await?;
    let (first, second) = (random(), random());
    write(ctx.saver(), &config, &first, &[("ch", "from_t1".into())]).await?;
    write(ctx.saver(), &config, &second, &[("ch", "from_t2".into())]).await?;
    let tuple = read(ctx.saver(), &config).await?;
    let expected = [(&*first, "ch", &"from_t1".into()), (&*second, "ch", &"from_t2".into())];
    ensure_eq!(triples(&tuple.pending_writes), expected, "writes");
    Ok(())
}

async fn preserves_task_id(ctx: Ctx) -> Done {
    let task = random();
    let tuple = written(&ctx, &task, &[("ch", "val".into())]).await?;
    let tasks: Vec<_> = tuple.pending_writes.iter().map(|write| write.task_id.clone()).collect();
    ensure_eq!(tasks, [task], "tasks");
    Ok(())
}

async fn preserves_channel_and_value(ctx: Ctx) -> Done {
    let task = random();
    let value = encode(&map(&[("data", 123.into())]))?;
    let tuple = written(&ctx, &task, &[("my_channel", value.clone())]).await?;
    ensure_eq!(triples(&tuple.pending_writes), [(&*task, "my_channel", &value)], "writes");
    Ok(())
}

async fn task_path(ctx: Ctx) -> Done {
    let config = stored(&ctx).await?;
    write_at(ctx.saver(), &config, &random(), "a:b:c", &[("ch", "v".into())]).await?;
    let writes = read(ctx.saver(), &config).await?.pending_writes;
    ensure_eq!(writes.len(), 1, "number of writes");
    Ok(())
}

async fn idempotent(ctx: Ctx) -> Done {
    let config = stored(&ctx).await?;
    let task = random();
    for _ in 0..2 {
        write(ctx.saver(), &config, &task, &[("ch", "val".into())]).await?;
    }
    let tuple = read(ctx.saver(), &config).await?;
    ensure_eq!(triples(&tuple.pending_writes), [(&*task, "ch", &"val".into())], "writes");
    Ok(())
}

async fn special_channels(ctx: Ctx) -> Done {
    let task = random();
    let reason = encode(&map(&[("reason", "human_input".into())]))?;
    let writes = [(special::ERROR, "something went wrong".into()), (special::INTERRUPT, reason.clone())];
    let tuple = written(&ctx, &task, &writes).await?;
    let mut found = triples(&tuple.pending_writes);
    found.sort_by_key(|(_, channel, _)| *channel);
    let error = ChannelValue::from("something went wrong");
    ensure_eq!(found, [(&*task, special::ERROR, &error), (&*task, special::INTERRUPT, &reason)], "writes");
    Ok(())
}

async fn across_namespaces(ctx: Ctx) -> Done {
    let root = CheckpointConfig::new(ctx.thread());
    let child = root.clone().with_checkpoint_ns("child:1");
    let mut stored = Vec::new();
    for (config, text) in [(root, "root_val"), (child, "child_val")] {
        let config = put(ctx.saver(), &config, &checkpoint(&[])).await?;
        let task = random();
        write(ctx.saver(), &config, &task, &[("ch", text.into())]).await?;
        stored.push((config, task, text));
    }
    for (config, task, text) in stored {
        let tuple = read(ctx.saver(), &config).await?;
        ensure_eq!(triples(&tuple.pending_writes), [(&*task, "ch", &text.into())], "writes of {text}");
    }
    Ok(())
}

async fn cleared_on_next_checkpoint(ctx: Ctx) -> Done {
    let first = stored(&ctx).await?;
    write(ctx.saver(), &first, &random(), &[("ch", "old_write".into())]).await?;
    let second = put(ctx.saver(), &first, &checkpoint(&[])).await?;
    ensure_eq!(read(ctx.saver(), &second).await?.pending_writes, [], "writes of the second");
    ensure_eq!(read(ctx.saver(), &first).await?.pending_writes.len(), 1, "writes of the first");
    Ok(())
}
