//! `list`: LangGraph's own cases.

use checkpoint_core::{CheckpointConfig, CheckpointMetadata, Filter, ListQuery, SaverExt, Str};

use crate::case::{Ctx, Failure};
use crate::fixture::{Done, chain, checkpoint, ids, newest_first, put, put_with, random, triples, write};

cases!("list";
    all,
    by_thread,
    by_namespace,
    ordering,
    metadata_filter_single_key,
    metadata_filter_step,
    metadata_filter_multiple_keys,
    metadata_filter_no_match,
    metadata_custom_keys,
    before,
    limit,
    limit_plus_before,
    combined_thread_and_filter,
    empty_result,
    includes_pending_writes,
    multiple_namespaces,
);

/// A thread with four checkpoints, whose ids are returned newest first.
async fn four(ctx: &Ctx) -> Result<(ListQuery, [Str; 4]), Failure> {
    let thread_id = ctx.thread();
    let stored = chain(ctx.saver(), &thread_id, "", 4).await?;
    let ids = newest_first(&stored).try_into().map_err(|_| Failure::new("four were stored"))?;
    Ok((ListQuery::thread(thread_id).checkpoint_ns(""), ids))
}

async fn all(ctx: Ctx) -> Done {
    let (query, expected) = four(&ctx).await?;
    ensure_eq!(ids(ctx.saver(), query).await?, expected, "ids");
    Ok(())
}

async fn by_thread(ctx: Ctx) -> Done {
    let (query, expected) = four(&ctx).await?;
    ensure_eq!(ids(ctx.saver(), ListQuery::thread(ctx.thread())).await?.len(), 0, "ids of another thread");
    ensure_eq!(ids(ctx.saver(), query).await?, expected, "ids");
    Ok(())
}

async fn by_namespace(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    for checkpoint_ns in ["", "child:1"] {
        let config = CheckpointConfig::new(thread_id.clone()).with_checkpoint_ns(checkpoint_ns);
        let stored = put(ctx.saver(), &config, &checkpoint(&[])).await?;
        let query = ListQuery::thread(thread_id.clone()).checkpoint_ns(checkpoint_ns);
        let found: Vec<_> =
            ctx.saver().list_all(query).await?.into_iter().map(|tuple| tuple.config).collect();
        ensure_eq!(found, [stored], "namespace {checkpoint_ns:?}");
    }
    Ok(())
}

async fn ordering(ctx: Ctx) -> Done {
    let (query, _) = four(&ctx).await?;
    let found = ids(ctx.saver(), query).await?;
    ensure_eq!(found.len(), 4, "number of ids");
    ensure!(found.iter().rev().is_sorted(), "not newest first: {found:?}");
    Ok(())
}

async fn metadata_filter_single_key(ctx: Ctx) -> Done {
    let (query, [_, second, _, fourth]) = four(&ctx).await?;
    let query = query.filter(Filter::new().eq("source", "input"));
    ensure_eq!(ids(ctx.saver(), query).await?, [second, fourth], "ids");
    Ok(())
}

async fn metadata_filter_step(ctx: Ctx) -> Done {
    let (query, [_, _, third, _]) = four(&ctx).await?;
    ensure_eq!(ids(ctx.saver(), query.filter(Filter::new().eq("step", 1))).await?, [third], "ids");
    Ok(())
}

async fn metadata_filter_multiple_keys(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let config = CheckpointConfig::new(thread_id.clone());
    for (source, step) in [("input", 1), ("loop", 1), ("input", 2)] {
        put_with(ctx.saver(), &config, &checkpoint(&[]), &CheckpointMetadata::new(source, step)).await?;
    }
    let query = ListQuery::thread(thread_id).filter(Filter::new().eq("source", "input").eq("step", 2));
    let found = ctx.saver().list_all(query).await?;
    let found: Vec<_> = found.iter().map(|tuple| (tuple.metadata.source(), tuple.metadata.step())).collect();
    ensure_eq!(found, [(Some("input"), Some(2))], "source and step");
    Ok(())
}

async fn metadata_filter_no_match(ctx: Ctx) -> Done {
    let (query, _) = four(&ctx).await?;
    let query = query.filter(Filter::new().eq("source", "update").eq("step", 99));
    ensure_eq!(ids(ctx.saver(), query).await?.len(), 0, "matches");
    Ok(())
}

async fn metadata_custom_keys(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let config = CheckpointConfig::new(thread_id.clone());
    for (score, run_id) in [(42, "run-abc"), (99, "run-xyz")] {
        let metadata = CheckpointMetadata::new("loop", 0).with("score", score).with("run_id", run_id);
        put_with(ctx.saver(), &config, &checkpoint(&[]), &metadata).await?;
    }
    let query = ListQuery::thread(thread_id).filter(Filter::new().eq("score", 42));
    let found = ctx.saver().list_all(query).await?;
    let found: Vec<_> = found.iter().map(|tuple| tuple.metadata.run_id()).collect();
    ensure_eq!(found, [Some("run-abc")], "runs");
    Ok(())
}

async fn before(ctx: Ctx) -> Done {
    let (query, [_, second, third, fourth]) = four(&ctx).await?;
    ensure_eq!(ids(ctx.saver(), query.before(second)).await?, [third, fourth], "ids");
    Ok(())
}

async fn limit(ctx: Ctx) -> Done {
    let (query, [first, second, ..]) = four(&ctx).await?;
    ensure_eq!(ids(ctx.saver(), query.clone().limit(1)).await?, std::slice::from_ref(&first), "one");
    ensure_eq!(ids(ctx.saver(), query.limit(2)).await?, [first, second], "two");
    Ok(())
}

async fn limit_plus_before(ctx: Ctx) -> Done {
    let (query, [first, second, ..]) = four(&ctx).await?;
    ensure_eq!(ids(ctx.saver(), query.before(first).limit(1)).await?, [second], "ids");
    Ok(())
}

async fn combined_thread_and_filter(ctx: Ctx) -> Done {
    let (query, [first, _, third, _]) = four(&ctx).await?;
    four(&ctx).await?;
    let query = query.filter(Filter::new().eq("source", "loop"));
    ensure_eq!(ids(ctx.saver(), query).await?, [first, third], "ids");
    Ok(())
}

async fn empty_result(ctx: Ctx) -> Done {
    let query = ListQuery::thread(ctx.thread()).filter(Filter::new().eq("source", "nonexistent"));
    ensure_eq!(ids(ctx.saver(), query).await?.len(), 0, "matches");
    Ok(())
}

async fn includes_pending_writes(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = put(ctx.saver(), &CheckpointConfig::new(thread_id.clone()), &checkpoint(&[])).await?;
    let task = random();
    write(ctx.saver(), &stored, &task, &[("ch", "val".into())]).await?;
    let found = ctx.saver().list_all(ListQuery::thread(thread_id)).await?;
    let found: Vec<_> = found.iter().map(|tuple| triples(&tuple.pending_writes)).collect();
    ensure_eq!(found, [vec![(&*task, "ch", &"val".into())]], "writes");
    Ok(())
}

async fn multiple_namespaces(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let mut stored = Vec::new();
    for checkpoint_ns in ["", "child:1", "child:2"] {
        let config = CheckpointConfig::new(thread_id.clone()).with_checkpoint_ns(checkpoint_ns);
        stored.push(put(ctx.saver(), &config, &checkpoint(&[])).await?);
    }
    let root = ListQuery::thread(thread_id.clone()).checkpoint_ns("");
    ensure_eq!(ids(ctx.saver(), root).await?.len(), 1, "checkpoints of the root");
    ensure_eq!(
        ids(ctx.saver(), ListQuery::thread(thread_id)).await?,
        newest_first(&stored),
        "ids of all namespaces"
    );
    Ok(())
}
