//! `delete_thread`: LangGraph's own cases.

use checkpoint_core::{BaseCheckpointSaver, CheckpointConfig, ListQuery};

use crate::case::Ctx;
use crate::fixture::{Done, chain, ids, put, random, read, write};

cases!("delete_thread";
    removes_checkpoints,
    removes_writes,
    removes_all_namespaces,
    preserves_other_threads,
    nonexistent_noop,
);

async fn removes_checkpoints(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = chain(ctx.saver(), &thread_id, "", 3).await?;
    ctx.saver().delete_thread(&thread_id).await?;
    for config in stored {
        ensure_eq!(ctx.saver().get_tuple(&config).await?, None, "a deleted checkpoint");
    }
    ensure_eq!(ids(ctx.saver(), ListQuery::thread(thread_id)).await?.len(), 0, "what is left");
    Ok(())
}

async fn removes_writes(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let config = CheckpointConfig::new(thread_id.clone());
    let checkpoint = crate::fixture::checkpoint(&[]);
    let stored = put(ctx.saver(), &config, &checkpoint).await?;
    write(ctx.saver(), &stored, &random(), &[("ch", "val".into())]).await?;
    ctx.saver().delete_thread(&thread_id).await?;
    ensure_eq!(ctx.saver().get_tuple(&stored).await?, None, "the deleted checkpoint");
    // The same checkpoint again would show writes that were left.
    put(ctx.saver(), &config, &checkpoint).await?;
    ensure_eq!(read(ctx.saver(), &stored).await?.pending_writes, [], "writes");
    Ok(())
}

async fn removes_all_namespaces(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    for checkpoint_ns in ["", "child:1"] {
        chain(ctx.saver(), &thread_id, checkpoint_ns, 1).await?;
    }
    ctx.saver().delete_thread(&thread_id).await?;
    for checkpoint_ns in ["", "child:1"] {
        let config = CheckpointConfig::new(thread_id.clone()).with_checkpoint_ns(checkpoint_ns);
        ensure_eq!(ctx.saver().get_tuple(&config).await?, None, "namespace {checkpoint_ns:?}");
    }
    Ok(())
}

async fn preserves_other_threads(ctx: Ctx) -> Done {
    let (gone, kept) = (ctx.thread(), ctx.thread());
    chain(ctx.saver(), &gone, "", 1).await?;
    let stored = chain(ctx.saver(), &kept, "", 1).await?;
    ctx.saver().delete_thread(&gone).await?;
    for config in stored {
        read(ctx.saver(), &config).await?;
    }
    Ok(())
}

async fn nonexistent_noop(ctx: Ctx) -> Done {
    ctx.saver().delete_thread(&ctx.thread()).await?;
    Ok(())
}
