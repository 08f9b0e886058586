//! `list_threads`.

use checkpoint_core::{BaseCheckpointSaver, CheckpointConfig, Str, ThreadInfo, ThreadQuery};
use futures_util::{StreamExt, TryStreamExt};

use crate::case::Ctx;
use crate::fixture::{Done, chain, checkpoint, id_of, put, random, write};

cases!("threads";
    a_stable_order_without_gaps,
    ascending_by_id,
    each_thread_once_with_its_newest,
    after_and_limit,
    deleted_threads_are_gone,
    threads_with_writes_only_are_not_listed,
    pages_of_hundreds,
    ids_of_all_threads,
);

/// Threads whose ids begin with a text that no other thread has.
async fn with_prefix(ctx: &Ctx, suffixes: &[&str]) -> checkpoint_core::Result<(Str, Vec<ThreadInfo>)> {
    let prefix = Str::from(format!("conformance-{}", random()));
    let mut stored = Vec::new();
    for suffix in suffixes {
        let thread_id = ctx.use_thread(&format!("{prefix}{suffix}"));
        let config = put(ctx.saver(), &CheckpointConfig::new(thread_id.clone()), &checkpoint(&[])).await?;
        stored.push(ThreadInfo::new(thread_id, id_of(&config)));
    }
    stored.sort_by(|a, b| a.thread_id.cmp(&b.thread_id));
    Ok((prefix, stored))
}

/// The listed threads with a prefix. Every id after the bare prefix begins with it, or follows all that do.
async fn listed(ctx: &Ctx, prefix: &Str) -> checkpoint_core::Result<Vec<ThreadInfo>> {
    let mut threads = ctx.saver().list_threads(ThreadQuery::all().after(prefix.clone()));
    let mut found = Vec::new();
    while let Some(thread) = threads.try_next().await? {
        if !thread.thread_id.starts_with(&**prefix) {
            break;
        }
        found.push(thread);
    }
    Ok(found)
}

/// Collations differ between databases. With any of them, the order is stable, no thread is omitted, and a listing
/// that starts after a thread continues there.
async fn a_stable_order_without_gaps(ctx: Ctx) -> Done {
    let suffixes =
        ["b", "a", "B", "é", "e\u{301}", "10", "9", "a:1", "世", "_", "a ", "a_b", "ab", "\\", "A b"];
    let (prefix, mut stored) = with_prefix(&ctx, &suffixes).await?;
    let found = listed(&ctx, &prefix).await?;
    let mut sorted = found.clone();
    let by_id = |thread: &ThreadInfo| thread.thread_id.clone();
    sorted.sort_by_key(by_id);
    stored.sort_by_key(by_id);
    ensure_eq!(sorted, stored, "threads, whatever their order");
    ensure_eq!(listed(&ctx, &prefix).await?, found, "the second listing");
    for (at, thread) in found.iter().enumerate() {
        let query = ThreadQuery::all().after(thread.thread_id.clone()).limit(found.len() - at - 1);
        let rest: Vec<_> = ctx.saver().list_threads(query).try_collect().await?;
        ensure_eq!(rest, found[at + 1..], "what comes after {:?}", thread.thread_id);
    }
    Ok(())
}

async fn ascending_by_id(ctx: Ctx) -> Done {
    let (prefix, stored) = with_prefix(&ctx, &["c", "a", "b", "10", "11", "09"]).await?;
    ensure_eq!(listed(&ctx, &prefix).await?, stored, "threads");
    Ok(())
}

async fn each_thread_once_with_its_newest(ctx: Ctx) -> Done {
    let (prefix, _) = with_prefix(&ctx, &["a"]).await?;
    let thread_id = Str::from(format!("{prefix}a"));
    let mut newest = None;
    for checkpoint_ns in ["", "child:1", "child:2"] {
        newest = chain(ctx.saver(), &thread_id, checkpoint_ns, 3).await?.last().map(id_of);
    }
    let expected = [ThreadInfo::new(thread_id, newest.unwrap_or_default())];
    ensure_eq!(listed(&ctx, &prefix).await?, expected, "threads");
    Ok(())
}

async fn after_and_limit(ctx: Ctx) -> Done {
    let (prefix, stored) = with_prefix(&ctx, &["1", "2", "3", "4", "5"]).await?;
    let start = ThreadQuery::all().after(prefix);
    for limit in [0, 1, 3, 5] {
        let found: Vec<_> = ctx.saver().list_threads(start.clone().limit(limit)).try_collect().await?;
        ensure_eq!(found, stored[..limit], "the first {limit}");
    }
    for (at, thread) in stored.iter().enumerate().take(4) {
        let query = ThreadQuery::all().after(thread.thread_id.clone()).limit(1);
        let found: Vec<_> = ctx.saver().list_threads(query).try_collect().await?;
        ensure_eq!(found, stored[at + 1..at + 2], "the one after");
    }
    ensure_eq!(ctx.saver().list_threads(ThreadQuery::all().limit(0)).count().await, 0, "limit 0 of all");
    ensure!(ctx.saver().list_threads(ThreadQuery::all().limit(3)).count().await == 3, "limit 3 of all");
    Ok(())
}

async fn deleted_threads_are_gone(ctx: Ctx) -> Done {
    let (prefix, stored) = with_prefix(&ctx, &["a", "b", "c"]).await?;
    ctx.saver().delete_thread(&format!("{prefix}b")).await?;
    let expected: Vec<_> = stored.into_iter().filter(|thread| !thread.thread_id.ends_with('b')).collect();
    ensure_eq!(listed(&ctx, &prefix).await?, expected, "threads");
    Ok(())
}

async fn threads_with_writes_only_are_not_listed(ctx: Ctx) -> Done {
    let (prefix, stored) = with_prefix(&ctx, &["a"]).await?;
    let config = CheckpointConfig::new(ctx.use_thread(&format!("{prefix}b"))).with_checkpoint_id(random());
    write(ctx.saver(), &config, "task", &[("ch", 1.into())]).await?;
    ensure_eq!(listed(&ctx, &prefix).await?, stored, "threads");
    Ok(())
}

async fn pages_of_hundreds(ctx: Ctx) -> Done {
    let suffixes: Vec<_> = (0..350).map(|at| format!("{at:05}")).collect();
    let suffixes: Vec<_> = suffixes.iter().map(String::as_str).collect();
    let (prefix, stored) = with_prefix(&ctx, &suffixes).await?;
    ensure!(listed(&ctx, &prefix).await? == stored, "the threads differ");
    Ok(())
}

/// Ids are listed of threads with only writes, too, in the order of `list_threads`.
async fn ids_of_all_threads(ctx: Ctx) -> Done {
    let (prefix, stored) = with_prefix(&ctx, &["a", "c", "e"]).await?;
    let mut expected: Vec<Str> = stored.into_iter().map(|info| info.thread_id).collect();
    for suffix in ["b", "d", "f"] {
        let thread_id = ctx.use_thread(&format!("{prefix}{suffix}"));
        let config = CheckpointConfig::new(thread_id.clone()).with_checkpoint_id(random());
        write(ctx.saver(), &config, "task", &[("ch", 1.into())]).await?;
        expected.push(thread_id);
    }
    expected.sort();
    for (after, limit, range) in [(&prefix, 6, 0..6), (&expected[1], 3, 2..5), (&prefix, 0, 0..0)] {
        let query = ThreadQuery::all().after(after.clone()).limit(limit);
        let found: Vec<_> = ctx.saver().list_thread_ids(query).try_collect().await?;
        ensure_eq!(found, expected[range], "ids after {after}");
    }
    ctx.saver().delete_thread(&expected[1]).await?;
    expected.remove(1);
    let query = ThreadQuery::all().after(prefix).limit(5);
    let found: Vec<_> = ctx.saver().list_thread_ids(query).try_collect().await?;
    ensure_eq!(found, expected, "ids without the deleted one");
    Ok(())
}
