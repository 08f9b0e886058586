//! `copy_thread`: LangGraph's own cases, and ours.

use checkpoint_core::{BaseCheckpointSaver, CheckpointConfig, CheckpointTuple, ListQuery, SaverExt, Str};

use crate::case::{Ctx, Need};
use crate::fixture::{
    Done, at_version, canonical_metadata, chain, checkpoint, encode, ids, list, newest_first, put, random,
    read, triples, write,
};

cases!("copy_thread", [Need::CopyThread];
    basic,
    all_checkpoints,
    preserves_metadata,
    preserves_namespaces,
    preserves_writes,
    preserves_ordering,
    source_unchanged,
    nonexistent_source,
    preserves_parents,
    copies_blobs_of_every_version,
    copies_writes_without_a_checkpoint,
    adds_to_what_the_target_has,
    replaces_writes_of_the_target,
    onto_itself_changes_nothing,
    copies_live_apart,
);

async fn tuples(ctx: &Ctx, thread_id: &Str) -> checkpoint_core::Result<Vec<CheckpointTuple>> {
    ctx.saver().list_all(ListQuery::thread(thread_id.clone())).await
}

/// Copies a new thread with `count` checkpoints.
async fn copied(ctx: &Ctx, count: i64) -> checkpoint_core::Result<(Str, Str)> {
    let (source, target) = (ctx.thread(), ctx.thread());
    chain(ctx.saver(), &source, "", count).await?;
    ctx.saver().copy_thread(&source, &target).await?;
    Ok((source, target))
}

async fn basic(ctx: Ctx) -> Done {
    let (_, target) = copied(&ctx, 3).await?;
    ensure_eq!(ids(ctx.saver(), ListQuery::thread(target)).await?.len(), 3, "number of copies");
    Ok(())
}

async fn all_checkpoints(ctx: Ctx) -> Done {
    let (source, target) = copied(&ctx, 3).await?;
    let (originals, copies) = (tuples(&ctx, &source).await?, tuples(&ctx, &target).await?);
    ensure_eq!(copies.len(), originals.len(), "number of copies");
    for (original, copy) in originals.iter().zip(&copies) {
        ensure_eq!(copy.checkpoint, original.checkpoint, "checkpoint");
        ensure_eq!(copy.config.thread_id(), &*target, "thread");
    }
    Ok(())
}

async fn preserves_metadata(ctx: Ctx) -> Done {
    let (source, target) = copied(&ctx, 2).await?;
    for (original, copy) in tuples(&ctx, &source).await?.iter().zip(tuples(&ctx, &target).await?) {
        ensure_eq!(canonical_metadata(&copy.metadata), canonical_metadata(&original.metadata), "metadata");
    }
    Ok(())
}

async fn preserves_namespaces(ctx: Ctx) -> Done {
    let (source, target) = (ctx.thread(), ctx.thread());
    for checkpoint_ns in ["", "child:1"] {
        chain(ctx.saver(), &source, checkpoint_ns, 1).await?;
    }
    ctx.saver().copy_thread(&source, &target).await?;
    for checkpoint_ns in ["", "child:1"] {
        let query = ListQuery::thread(target.clone()).checkpoint_ns(checkpoint_ns);
        ensure_eq!(ids(ctx.saver(), query).await?.len(), 1, "copies in {checkpoint_ns:?}");
    }
    Ok(())
}

async fn preserves_writes(ctx: Ctx) -> Done {
    let (source, target) = (ctx.thread(), ctx.thread());
    let task = random();
    for config in chain(ctx.saver(), &source, "", 1).await? {
        write(ctx.saver(), &config, &task, &[("ch", "write_val".into())]).await?;
    }
    ctx.saver().copy_thread(&source, &target).await?;
    let tuple = read(ctx.saver(), &CheckpointConfig::new(target)).await?;
    ensure_eq!(triples(&tuple.pending_writes), [(&*task, "ch", &"write_val".into())], "writes");
    Ok(())
}

async fn preserves_ordering(ctx: Ctx) -> Done {
    let (source, target) = copied(&ctx, 4).await?;
    let expected = ids(ctx.saver(), ListQuery::thread(source)).await?;
    ensure_eq!(ids(ctx.saver(), ListQuery::thread(target)).await?, expected, "ids");
    Ok(())
}

async fn source_unchanged(ctx: Ctx) -> Done {
    let (source, target) = (ctx.thread(), ctx.thread());
    chain(ctx.saver(), &source, "", 2).await?;
    let before = tuples(&ctx, &source).await?;
    ctx.saver().copy_thread(&source, &target).await?;
    ensure_eq!(tuples(&ctx, &source).await?, before, "the source");
    Ok(())
}

async fn nonexistent_source(ctx: Ctx) -> Done {
    let target = ctx.thread();
    ctx.saver().copy_thread(&ctx.thread(), &target).await?;
    ensure_eq!(ids(ctx.saver(), ListQuery::thread(target)).await?.len(), 0, "number of copies");
    Ok(())
}

async fn preserves_parents(ctx: Ctx) -> Done {
    let (source, target) = copied(&ctx, 3).await?;
    for (original, copy) in tuples(&ctx, &source).await?.iter().zip(tuples(&ctx, &target).await?) {
        ensure_eq!(copy.parent_checkpoint_id(), original.parent_checkpoint_id(), "parent");
    }
    Ok(())
}

async fn copies_blobs_of_every_version(ctx: Ctx) -> Done {
    let (source, target) = (ctx.thread(), ctx.thread());
    let mut config = CheckpointConfig::new(source.clone());
    for version in 1..=3 {
        let made = at_version(version, &[("items", encode(&list(&[version]))?)]);
        config = put(ctx.saver(), &config, &made).await?;
    }
    ctx.saver().copy_thread(&source, &target).await?;
    ctx.saver().delete_thread(&source).await?;
    for (tuple, version) in tuples(&ctx, &target).await?.iter().zip([3, 2, 1]) {
        ensure_eq!(crate::fixture::value(tuple, "items")?, encode(&list(&[version]))?, "version {version}");
    }
    Ok(())
}

async fn copies_writes_without_a_checkpoint(ctx: Ctx) -> Done {
    let (source, target) = (ctx.thread(), ctx.thread());
    chain(ctx.saver(), &source, "", 1).await?;
    let ahead = checkpoint(&[]);
    let config = CheckpointConfig::new(source.clone()).with_checkpoint_id(ahead.id.clone());
    write(ctx.saver(), &config, "task", &[("ch", "early".into())]).await?;
    ctx.saver().copy_thread(&source, &target).await?;
    let stored = put(ctx.saver(), &CheckpointConfig::new(target), &ahead).await?;
    let tuple = read(ctx.saver(), &stored).await?;
    ensure_eq!(triples(&tuple.pending_writes), [("task", "ch", &"early".into())], "writes");
    Ok(())
}

async fn adds_to_what_the_target_has(ctx: Ctx) -> Done {
    let (source, target) = (ctx.thread(), ctx.thread());
    let old = chain(ctx.saver(), &target, "", 2).await?;
    let new = chain(ctx.saver(), &source, "", 2).await?;
    ctx.saver().copy_thread(&source, &target).await?;
    let expected: Vec<_> = newest_first(&new).into_iter().chain(newest_first(&old)).collect();
    ensure_eq!(ids(ctx.saver(), ListQuery::thread(target.clone())).await?, expected, "ids");
    // A second copy replaces rows with the same ids.
    ctx.saver().copy_thread(&source, &target).await?;
    ensure_eq!(ids(ctx.saver(), ListQuery::thread(target)).await?, expected, "ids after the second copy");
    Ok(())
}

async fn replaces_writes_of_the_target(ctx: Ctx) -> Done {
    let (source, target, made) = (ctx.thread(), ctx.thread(), checkpoint(&[]));
    for (thread_id, value) in [(&target, "old"), (&source, "new")] {
        let stored = put(ctx.saver(), &CheckpointConfig::new(thread_id.clone()), &made).await?;
        write(ctx.saver(), &stored, "task", &[("ch", value.into())]).await?;
    }
    let other = CheckpointConfig::new(target.clone()).with_checkpoint_id(made.id.clone());
    write(ctx.saver(), &other, "task of the target", &[("ch", "kept".into())]).await?;
    ctx.saver().copy_thread(&source, &target).await?;
    let tuple = read(ctx.saver(), &other).await?;
    let expected = [("task", "ch", &"new".into()), ("task of the target", "ch", &"kept".into())];
    ensure_eq!(triples(&tuple.pending_writes), expected, "writes");
    Ok(())
}

async fn onto_itself_changes_nothing(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = chain(ctx.saver(), &thread_id, "", 3).await?;
    for config in &stored {
        write(ctx.saver(), config, "task", &[("ch", encode(&list(&[1]))?)]).await?;
    }
    let before = tuples(&ctx, &thread_id).await?;
    ctx.saver().copy_thread(&thread_id, &thread_id).await?;
    ensure_eq!(tuples(&ctx, &thread_id).await?, before, "the thread");
    Ok(())
}

async fn copies_live_apart(ctx: Ctx) -> Done {
    let (source, target) = copied(&ctx, 2).await?;
    let newest = read(ctx.saver(), &CheckpointConfig::new(target.clone())).await?.config;
    put(ctx.saver(), &newest, &checkpoint(&[])).await?;
    write(ctx.saver(), &newest, "task", &[("ch", "in the copy".into())]).await?;
    let originals = tuples(&ctx, &source).await?;
    ensure_eq!(originals.len(), 2, "checkpoints of the source");
    ensure!(
        originals.iter().all(|tuple| tuple.pending_writes.is_empty()),
        "the source has the copy's writes"
    );
    ctx.saver().delete_thread(&source).await?;
    ensure_eq!(tuples(&ctx, &target).await?.len(), 3, "checkpoints of the copy");
    Ok(())
}
