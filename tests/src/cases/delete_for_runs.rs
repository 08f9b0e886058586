//! `delete_for_runs`: LangGraph's own cases.

use checkpoint_core::{BaseCheckpointSaver, CheckpointConfig, ListQuery, SaverExt, Str};

use crate::case::{Ctx, Need};
use crate::fixture::{Done, checkpoint, metadata, put, put_with, random, read, write};

cases!("delete_for_runs", [Need::DeleteForRuns];
    single,
    multiple,
    preserves_other_runs,
    removes_writes,
    empty_list_noop,
    nonexistent_noop,
    across_namespaces,
    removes_the_writes_of_the_run_alone,
    matches_whole_ids,
);

async fn put_run(
    ctx: &Ctx,
    config: &CheckpointConfig,
    run_id: &str,
) -> checkpoint_core::Result<CheckpointConfig> {
    put_with(ctx.saver(), config, &checkpoint(&[]), &metadata(0).with("run_id", run_id)).await
}

/// The runs of a thread's checkpoints, newest first.
async fn runs(ctx: &Ctx, thread_id: &Str) -> checkpoint_core::Result<Vec<Option<String>>> {
    let tuples = ctx.saver().list_all(ListQuery::thread(thread_id.clone())).await?;
    Ok(tuples.iter().map(|tuple| tuple.metadata.run_id().map(str::to_owned)).collect())
}

/// A thread with a checkpoint of each of some new runs.
async fn with_runs<const N: usize>(ctx: &Ctx) -> checkpoint_core::Result<(Str, [Str; N])> {
    let thread_id = ctx.thread();
    let run_ids = std::array::from_fn(|_| random());
    let mut config = CheckpointConfig::new(thread_id.clone());
    for run_id in &run_ids {
        config = put_run(ctx, &config, run_id).await?;
    }
    Ok((thread_id, run_ids))
}

async fn single(ctx: Ctx) -> Done {
    let (thread_id, [first, second]) = with_runs(&ctx).await?;
    ensure_eq!(runs(&ctx, &thread_id).await?.len(), 2, "number of checkpoints before");
    ctx.saver().delete_for_runs(&[&first]).await?;
    ensure_eq!(runs(&ctx, &thread_id).await?, [Some(second.to_string())], "runs");
    Ok(())
}

async fn multiple(ctx: Ctx) -> Done {
    let (thread_id, [first, second, third]) = with_runs(&ctx).await?;
    ensure_eq!(runs(&ctx, &thread_id).await?.len(), 3, "number of checkpoints before");
    ctx.saver().delete_for_runs(&[&first, &second]).await?;
    ensure_eq!(runs(&ctx, &thread_id).await?, [Some(third.to_string())], "runs");
    Ok(())
}

async fn preserves_other_runs(ctx: Ctx) -> Done {
    let (thread_id, [kept, gone]) = with_runs(&ctx).await?;
    put(ctx.saver(), &CheckpointConfig::new(thread_id.clone()), &checkpoint(&[])).await?;
    ctx.saver().delete_for_runs(&[&gone]).await?;
    ensure_eq!(runs(&ctx, &thread_id).await?, [None, Some(kept.to_string())], "runs");
    Ok(())
}

async fn removes_writes(ctx: Ctx) -> Done {
    let run_id = random();
    let config = CheckpointConfig::new(ctx.thread());
    let made = checkpoint(&[]);
    let metadata = metadata(0).with("run_id", &*run_id);
    let stored = put_with(ctx.saver(), &config, &made, &metadata).await?;
    write(ctx.saver(), &stored, &random(), &[("ch", "val".into())]).await?;
    ensure_eq!(read(ctx.saver(), &stored).await?.pending_writes.len(), 1, "number of writes before");
    ctx.saver().delete_for_runs(&[&run_id]).await?;
    ensure_eq!(ctx.saver().get_tuple(&stored).await?, None, "the deleted checkpoint");
    put(ctx.saver(), &config, &made).await?;
    ensure_eq!(read(ctx.saver(), &stored).await?.pending_writes, [], "writes");
    Ok(())
}

async fn empty_list_noop(ctx: Ctx) -> Done {
    let (thread_id, [run_id]) = with_runs(&ctx).await?;
    ctx.saver().delete_for_runs(&[]).await?;
    ensure_eq!(runs(&ctx, &thread_id).await?, [Some(run_id.to_string())], "runs");
    Ok(())
}

async fn nonexistent_noop(ctx: Ctx) -> Done {
    let (thread_id, [run_id]) = with_runs(&ctx).await?;
    ctx.saver().delete_for_runs(&[&random()]).await?;
    ensure_eq!(runs(&ctx, &thread_id).await?, [Some(run_id.to_string())], "runs");
    Ok(())
}

async fn across_namespaces(ctx: Ctx) -> Done {
    let (thread_id, run_id) = (ctx.thread(), random());
    for checkpoint_ns in ["", "child:1"] {
        let config = CheckpointConfig::new(thread_id.clone()).with_checkpoint_ns(checkpoint_ns);
        put_run(&ctx, &config, &run_id).await?;
    }
    ensure_eq!(runs(&ctx, &thread_id).await?.len(), 2, "number of checkpoints before");
    ctx.saver().delete_for_runs(&[&run_id]).await?;
    ensure_eq!(runs(&ctx, &thread_id).await?, [], "runs");
    Ok(())
}

async fn removes_the_writes_of_the_run_alone(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let run_id = random();
    let gone = put_run(&ctx, &CheckpointConfig::new(thread_id.clone()), &run_id).await?;
    let kept = put_run(&ctx, &gone, &random()).await?;
    for config in [&gone, &kept] {
        write(ctx.saver(), config, "task", &[("ch", "val".into())]).await?;
    }
    ctx.saver().delete_for_runs(&[&run_id]).await?;
    let tuple = read(ctx.saver(), &kept).await?;
    ensure_eq!(tuple.pending_writes.len(), 1, "number of writes on what was kept");
    ensure_eq!(tuple.parent_config, Some(gone), "the parent's id stays");
    Ok(())
}

async fn matches_whole_ids(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let run_id = random();
    let config = CheckpointConfig::new(thread_id.clone());
    let near = [format!("{run_id}x"), run_id.to_uppercase().replace('-', "_"), format!("{run_id}'")];
    for run_id in &near {
        put_run(&ctx, &config, run_id).await?;
    }
    ctx.saver()
        .delete_for_runs(&[&run_id, "%", &format!("{run_id}%"), &format!("{run_id}' OR '1'='1")])
        .await?;
    ensure_eq!(runs(&ctx, &thread_id).await?.len(), near.len(), "number of checkpoints of other runs");
    ctx.saver().delete_for_runs(&near.each_ref().map(String::as_str)).await?;
    ensure_eq!(runs(&ctx, &thread_id).await?, [], "runs");
    Ok(())
}
