//! The order of a listing, its limits, and paging during concurrent writes.

use std::collections::BTreeSet;

use checkpoint_core::{
    BaseCheckpointSaver, CheckpointConfig, CheckpointMetadata, Filter, ListQuery, SaverExt, Str,
};
use futures_util::{StreamExt, TryStreamExt};

use crate::case::Ctx;
use crate::fixture::{
    Done, chain, checkpoint, id_of, ids, metadata, newest_first, prepared, put, put_with, random, write,
};

cases!("listing";
    limit_zero_yields_nothing,
    limit_beyond_the_end,
    one_checkpoint_id,
    an_empty_id_matches_every_id,
    before_alone,
    before_in_every_combination,
    unknown_threads_and_namespaces_yield_nothing,
    equal_ids_are_ordered_by_thread_and_namespace,
    many_pages_are_complete,
    paging_during_writes_and_deletes,
    a_dropped_listing_leaves_the_saver_usable,
    two_interleaved_listings,
    whole_tuples,
);

async fn limit_zero_yields_nothing(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    chain(ctx.saver(), &thread_id, "", 2).await?;
    ensure_eq!(ids(ctx.saver(), ListQuery::thread(thread_id).limit(0)).await?.len(), 0, "of a thread");
    ensure_eq!(ids(ctx.saver(), ListQuery::all().limit(0)).await?.len(), 0, "of all threads");
    Ok(())
}

async fn limit_beyond_the_end(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = chain(ctx.saver(), &thread_id, "", 3).await?;
    for limit in [3, 4, 1_000_000, usize::MAX] {
        let found = ids(ctx.saver(), ListQuery::thread(thread_id.clone()).limit(limit)).await?;
        ensure_eq!(found, newest_first(&stored), "ids with limit {limit}");
    }
    Ok(())
}

async fn one_checkpoint_id(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    for config in chain(ctx.saver(), &thread_id, "", 3).await? {
        ensure_eq!(
            ids(ctx.saver(), ListQuery::from_config(&config)).await?,
            [id_of(&config)],
            "ids by config"
        );
        let query = ListQuery::thread(thread_id.clone()).checkpoint_id(id_of(&config));
        ensure_eq!(ids(ctx.saver(), query.clone()).await?, [id_of(&config)], "ids in every namespace");
        let found = ids(ctx.saver(), query.before(id_of(&config))).await?;
        ensure_eq!(found.len(), 0, "one id, and only what is older than it");
    }
    Ok(())
}

async fn an_empty_id_matches_every_id(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = chain(ctx.saver(), &thread_id, "", 3).await?;
    let query = ListQuery::thread(thread_id).checkpoint_id("");
    ensure_eq!(ids(ctx.saver(), query.clone()).await?, newest_first(&stored), "ids");
    let mut query = query;
    query.checkpoint_id = Some(Str::from(""));
    ensure_eq!(ids(ctx.saver(), query).await?, newest_first(&stored), "ids, where the field was set");
    Ok(())
}

async fn before_alone(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = newest_first(&chain(ctx.saver(), &thread_id, "", 3).await?);
    let query = ListQuery::thread(thread_id);
    ensure_eq!(ids(ctx.saver(), query.clone().before(random())).await?, stored, "before a later id");
    let oldest = stored.last().cloned().unwrap_or_default();
    ensure_eq!(ids(ctx.saver(), query.clone().before(oldest)).await?.len(), 0, "before the oldest");
    ensure_eq!(ids(ctx.saver(), query.before("")).await?.len(), 0, "before the empty text");
    Ok(())
}

async fn before_in_every_combination(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let mut stored = Vec::new();
    for checkpoint_ns in ["", "a", "b"] {
        stored.extend(chain(ctx.saver(), &thread_id, checkpoint_ns, 4).await?);
    }
    let steps = |id: &Str| stored.iter().position(|config| id_of(config) == *id).unwrap_or_default() % 4;
    for cursor in stored.iter().map(id_of) {
        for checkpoint_ns in [None, Some(""), Some("b")] {
            for source in [None, Some("input")] {
                for limit in [None, Some(1), Some(2), Some(5)] {
                    let mut query = ListQuery::thread(thread_id.clone()).before(cursor.clone());
                    query.checkpoint_ns = checkpoint_ns.map(Str::from);
                    query.limit = limit;
                    if let Some(source) = source {
                        query = query.filter(Filter::new().eq("source", source));
                    }
                    let expected: Vec<Str> = stored
                        .iter()
                        .rev()
                        .filter(|config| checkpoint_ns.is_none_or(|wanted| wanted == config.checkpoint_ns()))
                        .map(id_of)
                        .filter(|id| *id < cursor && (source.is_none() || steps(id) % 2 == 0))
                        .take(limit.unwrap_or(usize::MAX))
                        .collect();
                    ensure_eq!(ids(ctx.saver(), query.clone()).await?, expected, "{query:?}");
                }
            }
        }
    }
    Ok(())
}

async fn unknown_threads_and_namespaces_yield_nothing(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    chain(ctx.saver(), &thread_id, "known", 2).await?;
    let known = ListQuery::thread(thread_id.clone());
    for query in [
        ListQuery::thread(ctx.thread()),
        known.clone().checkpoint_ns(""),
        known.clone().checkpoint_ns("unknown"),
        known.clone().checkpoint_id(random()),
        known.checkpoint_ns("know"),
    ] {
        ensure_eq!(ids(ctx.saver(), query.clone()).await?.len(), 0, "{query:?}");
    }
    let config = CheckpointConfig::new(thread_id);
    ensure_eq!(ctx.saver().get_tuple(&config).await?, None, "the newest of an unknown namespace");
    Ok(())
}

async fn equal_ids_are_ordered_by_thread_and_namespace(ctx: Ctx) -> Done {
    let tag = random();
    let metadata = metadata(0).with("tag", &*tag);
    let mut threads = [ctx.thread(), ctx.thread(), ctx.thread()];
    threads.sort();
    let (older, newer) = (random(), random());
    let mut expected = Vec::new();
    for id in [&newer, &older] {
        for thread_id in &threads {
            for checkpoint_ns in ["", "a", "a:1", "b"] {
                let config = CheckpointConfig::new(thread_id.clone()).with_checkpoint_ns(checkpoint_ns);
                expected.push(config.with_checkpoint_id(id.clone()));
            }
        }
    }
    // Written in an order that is neither of these.
    for at in (0..expected.len()).map(|at| at * 7 % expected.len()) {
        let config = prepared(expected.get(at))?;
        let mut made = checkpoint(&[]);
        made.id = id_of(config);
        put_with(ctx.saver(), &config.clone().latest(), &made, &metadata).await?;
    }
    let query = ListQuery::all().filter(Filter::new().eq("tag", &*tag));
    let found: Vec<_> =
        ctx.saver().list_all(query.clone()).await?.into_iter().map(|tuple| tuple.config).collect();
    ensure_eq!(found, expected, "configs");
    for limit in [1, 5, 13] {
        let found = ctx.saver().list_all(query.clone().limit(limit)).await?;
        let found: Vec<_> = found.into_iter().map(|tuple| tuple.config).collect();
        ensure_eq!(found, expected[..limit], "configs with limit {limit}");
    }
    Ok(())
}

async fn many_pages_are_complete(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let mut stored = chain(ctx.saver(), &thread_id, "", 300).await?;
    stored.extend(chain(ctx.saver(), &thread_id, "child", 250).await?);
    let all = newest_first(&stored);
    let query = ListQuery::thread(thread_id);
    ensure!(ids(ctx.saver(), query.clone()).await? == all, "the listing is not the stored ids, newest first");
    ensure!(ids(ctx.saver(), query.clone().limit(333)).await? == all[..333], "the first 333");
    let cursor = prepared(all.get(199))?;
    ensure!(
        ids(ctx.saver(), query.before(cursor.clone())).await? == all[200..],
        "what is older than the 200th"
    );
    Ok(())
}

async fn paging_during_writes_and_deletes(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let config = CheckpointConfig::new(thread_id.clone());
    let can_delete = ctx.saver().capabilities().delete_for_runs;
    let mut stored: Vec<(Str, Str)> = Vec::new();
    for step in 0..600 {
        let run_id = random();
        let metadata = CheckpointMetadata::new("loop", step).with("run_id", &*run_id);
        stored.push((id_of(&put_with(ctx.saver(), &config, &checkpoint(&[]), &metadata).await?), run_id));
    }
    let mut deleted = BTreeSet::new();
    let mut seen = Vec::new();
    let mut listing = ctx.saver().list(ListQuery::thread(thread_id));
    while let Some(tuple) = listing.try_next().await? {
        seen.push(tuple.checkpoint.id);
        if seen.len() % 40 != 0 {
            continue;
        }
        // Concurrently, put a newer checkpoint, write to the oldest, and delete one ahead of the cursor and one behind.
        put(ctx.saver(), &config, &checkpoint(&[])).await?;
        let oldest =
            config.clone().with_checkpoint_id(stored.first().map(|(id, _)| id.clone()).unwrap_or_default());
        write(ctx.saver(), &oldest, &random(), &[("ch", 1.into())]).await?;
        let ahead = stored.len().checked_sub(seen.len() + 9).and_then(|at| stored.get(at));
        let behind = stored.get(stored.len().saturating_sub(seen.len() / 2));
        for (id, run_id) in ahead.into_iter().chain(behind) {
            if can_delete && *id != id_of(&oldest) && deleted.insert(id.clone()) {
                ctx.saver().delete_for_runs(&[run_id]).await?;
            }
        }
    }
    ensure!(seen.iter().rev().is_sorted(), "not newest first");
    let known: BTreeSet<_> = stored.iter().map(|(id, _)| id).collect();
    let must: Vec<_> = stored.iter().rev().map(|(id, _)| id).filter(|id| !deleted.contains(*id)).collect();
    let found: Vec<_> = seen.iter().filter(|id| known.contains(id) && !deleted.contains(*id)).collect();
    ensure!(
        found == must,
        "{} of {} rows that existed throughout were listed, each once",
        found.len(),
        must.len()
    );
    let distinct: BTreeSet<_> = seen.iter().collect();
    ensure_eq!(distinct.len(), seen.len(), "number of distinct ids");
    Ok(())
}

async fn a_dropped_listing_leaves_the_saver_usable(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = chain(ctx.saver(), &thread_id, "", 30).await?;
    for taken in 0..20 {
        let listing = ctx.saver().list(ListQuery::thread(thread_id.clone()));
        ensure_eq!(listing.take(taken).count().await, taken, "taken");
    }
    // An open listing does not block writers.
    let mut open = ctx.saver().list(ListQuery::thread(thread_id.clone()));
    ensure!(open.try_next().await?.is_some(), "the listing is empty");
    put(ctx.saver(), &CheckpointConfig::new(thread_id.clone()), &checkpoint(&[])).await?;
    let rest = open.try_collect::<Vec<_>>().await?;
    ensure_eq!(rest.len(), stored.len() - 1, "the rest of the open listing");
    ctx.saver().delete_thread(&thread_id).await?;
    Ok(())
}

async fn two_interleaved_listings(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let expected = newest_first(&chain(ctx.saver(), &thread_id, "", 300).await?);
    let (mut one, mut other) = (
        ctx.saver().list(ListQuery::thread(thread_id.clone())),
        ctx.saver().list(ListQuery::thread(thread_id)),
    );
    let (mut from_one, mut from_other) = (Vec::new(), Vec::new());
    loop {
        let (a, b) = (one.try_next().await?, other.try_next().await?);
        if a.is_none() && b.is_none() {
            break;
        }
        from_one.extend(a.map(|tuple| tuple.checkpoint.id));
        from_other.extend(b.map(|tuple| tuple.checkpoint.id));
    }
    ensure!(from_one == expected && from_other == expected, "the listings interfere with each other");
    Ok(())
}

async fn whole_tuples(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    for checkpoint_ns in ["", "child:1"] {
        for config in chain(ctx.saver(), &thread_id, checkpoint_ns, 5).await? {
            write(ctx.saver(), &config, "task", &[("ch", random().into()), ("other", 1.into())]).await?;
        }
    }
    for listed in ctx.saver().list_all(ListQuery::thread(thread_id)).await? {
        let read = ctx.saver().get_tuple(&listed.config).await?;
        ensure_eq!(Some(&listed), read.as_ref(), "listed, and read by id");
    }
    Ok(())
}
