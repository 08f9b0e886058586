//! Concurrent writers and readers.

use std::sync::Arc;

use checkpoint_core::{BaseCheckpointSaver, CheckpointConfig, ListQuery, SaverExt};

use crate::case::{Ctx, Failure, Need};
use crate::fixture::{
    Done, at_version, chain, checkpoint, encode, id_of, ids, list, put, random, read, value, write,
};
use crate::target::OpenOptions;

cases!("concurrency";
    two_handles_put_on_one_thread,
    a_handle_reads_what_another_one_has_stored,
    concurrent_writes_of_many_tasks,
    concurrent_writes_of_one_task,
    concurrent_replacing_writes,
    concurrent_puts_of_one_checkpoint,
    readers_see_whole_checkpoints,
    concurrent_puts_on_many_threads,
    concurrent_delete_and_put,
    concurrent_copies [Need::CopyThread],
    concurrent_prune_and_put [Need::Prune],
);

async fn two_handles_put_on_one_thread(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let mut writers = Vec::new();
    for _ in 0..2 {
        // A handle without setup works on a database that is set up.
        let saver = ctx.target().open(OpenOptions::default()).await?;
        for writer in 0..4_i64 {
            let (saver, mut config) = (saver.clone(), CheckpointConfig::new(thread_id.clone()));
            writers.push(tokio::spawn(async move {
                let mut stored = Vec::new();
                for version in 1..=12 {
                    let made =
                        at_version(version, &[("by", writer.into()), ("items", encode(&list(&[version]))?)]);
                    config = repeat!(put(&saver, &config, &made))?;
                    repeat!(write(&saver, &config, "task", &[("log", version.into())]))?;
                    stored.push((config.clone(), made));
                }
                Ok::<_, Failure>(stored)
            }));
        }
    }
    let mut all = Vec::new();
    for writer in writers {
        all.extend(writer.await??);
    }
    for (config, _) in &all {
        let tuple = read(ctx.saver(), config).await?;
        ensure_eq!(tuple.pending_writes.len(), 1, "number of writes");
    }
    let mut expected: Vec<_> = all.iter().map(|(config, _)| id_of(config)).collect();
    expected.sort_by(|a, b| b.cmp(a));
    ensure_eq!(ids(ctx.saver(), ListQuery::thread(thread_id)).await?, expected, "ids");
    Ok(())
}

/// What a saver remembers of its own calls never stands for what is stored.
async fn a_handle_reads_what_another_one_has_stored(ctx: Ctx) -> Done {
    let (saver, other) = (ctx.saver(), ctx.target().open(OpenOptions::default()).await?);
    let root = CheckpointConfig::new(ctx.thread());
    let text = |letter: &str| encode(&letter.repeat(2000).as_str().into());
    let made = at_version(1, &[("text", text("a")?), ("kept", text("k")?)]);
    let first = put(saver, &root, &made).await?;
    ensure_eq!(read(saver, &root).await?.checkpoint, made, "its own checkpoint");

    write(&other, &first, "task", &[("log", 1.into())]).await?;
    ensure_eq!(read(saver, &root).await?.pending_writes.len(), 1, "number of the other's writes");
    let newer = at_version(2, &[("text", text("b")?)]).with_channel("kept", text("k")?, 1);
    let second = put(&other, &first, &newer).await?;
    ensure_eq!(read(saver, &root).await?.checkpoint, newer, "the other's checkpoint");
    ensure_eq!(read(saver, &first).await?.checkpoint, made, "its own checkpoint, by id");

    other.delete_thread(root.thread_id()).await?;
    for config in [&root, &first, &second] {
        ensure!(saver.get_tuple(config).await?.is_none(), "a deleted thread was read");
    }
    // The same id and the same versions, with another value.
    let mut again = made.clone();
    again.channel_values.insert("text".into(), text("c")?);
    put(&other, &root, &again).await?;
    for config in [&root, &first] {
        let found = read(saver, config).await?;
        ensure_eq!(found.checkpoint, again, "the thread that was made again");
        ensure_eq!(found.pending_writes, [], "its writes");
    }
    Ok(())
}

async fn concurrent_writes_of_many_tasks(ctx: Ctx) -> Done {
    let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
    let other = ctx.target().open(OpenOptions::default()).await?;
    let tasks: Vec<_> = (0..32)
        .map(|at| {
            let saver = if at % 2 == 0 { ctx.saver().clone() } else { other.clone() };
            let config = stored.clone();
            tokio::spawn(async move {
                let task = format!("task {at:02}");
                repeat!(write(&saver, &config, &task, &[("a", at.into()), ("b", at.into())]))
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    let writes = read(ctx.saver(), &stored).await?.pending_writes;
    let found: Vec<_> = writes.iter().map(|write| (write.task_id.to_string(), write.idx)).collect();
    let expected: Vec<_> =
        (0..32).flat_map(|at| [(format!("task {at:02}"), 0), (format!("task {at:02}"), 1)]).collect();
    ensure_eq!(found, expected, "tasks and indexes");
    Ok(())
}

async fn concurrent_writes_of_one_task(ctx: Ctx) -> Done {
    let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
    let calls: Vec<_> = (0..16_i64)
        .map(|at| {
            let (saver, config) = (ctx.saver().clone(), stored.clone());
            tokio::spawn(async move {
                repeat!(write(
                    &saver,
                    &config,
                    "task",
                    &[("a", at.into()), ("b", at.into()), ("c", at.into())]
                ))
            })
        })
        .collect();
    for call in calls {
        call.await??;
    }
    let tuple = read(ctx.saver(), &stored).await?;
    ensure_eq!(tuple.pending_writes.len(), 3, "number of writes");
    let winner = tuple.pending_writes.first().map(|write| write.value.clone());
    ensure!(
        tuple.pending_writes.iter().all(|write| Some(&write.value) == winner.as_ref()),
        "the writes of two calls are interleaved: {:?}",
        tuple.pending_writes
    );
    Ok(())
}

async fn concurrent_replacing_writes(ctx: Ctx) -> Done {
    use checkpoint_core::special::{INTERRUPT, RESUME};
    let stored = put(ctx.saver(), &CheckpointConfig::new(ctx.thread()), &checkpoint(&[])).await?;
    let calls: Vec<_> = (0..16_i64)
        .map(|at| {
            let (saver, config) = (ctx.saver().clone(), stored.clone());
            // Half of the calls name the channels in reverse order.
            let writes = if at % 2 == 0 { [RESUME, INTERRUPT] } else { [INTERRUPT, RESUME] };
            tokio::spawn(async move {
                repeat!(write(&saver, &config, "task", &writes.map(|channel| (channel, at.into()))))
            })
        })
        .collect();
    for call in calls {
        call.await??;
    }
    let writes = read(ctx.saver(), &stored).await?.pending_writes;
    let [resume, interrupt] = &*writes else {
        return Err(Failure::new(format!("found {} writes, expected 2", writes.len())));
    };
    ensure_eq!((&*resume.channel, &*interrupt.channel), (RESUME, INTERRUPT), "channels");
    ensure_eq!(resume.value, interrupt.value, "writes of one call");
    Ok(())
}

async fn concurrent_puts_of_one_checkpoint(ctx: Ctx) -> Done {
    let config = CheckpointConfig::new(ctx.thread());
    let made = checkpoint(&[("a", encode(&list(&[1]))?)]);
    let calls: Vec<_> = (0..16)
        .map(|_| {
            let (saver, config, made) = (ctx.saver().clone(), config.clone(), made.clone());
            tokio::spawn(async move { repeat!(put(&saver, &config, &made)) })
        })
        .collect();
    for call in calls {
        call.await??;
    }
    let found = ctx.saver().list_all(ListQuery::from_config(&config)).await?;
    let found: Vec<_> = found.into_iter().map(|tuple| tuple.checkpoint).collect();
    ensure_eq!(found, [made], "checkpoints");
    Ok(())
}

async fn readers_see_whole_checkpoints(ctx: Ctx) -> Done {
    let config = CheckpointConfig::new(ctx.thread());
    let made = |version: i64| -> checkpoint_core::Result<_> {
        let items = encode(&list(&vec![version; 50]))?;
        Ok(at_version(version, &[("number", version.into()), ("a", items.clone()), ("b", items)]))
    };
    put(ctx.saver(), &config, &made(1)?).await?;
    let writer = {
        let (saver, config) = (ctx.saver().clone(), config.clone());
        tokio::spawn(async move {
            for version in 2..=60 {
                repeat!(put(&saver, &config, &made(version)?))?;
            }
            Ok::<_, Failure>(())
        })
    };
    let reader = ctx.target().open(OpenOptions::default()).await?;
    let mut last = 0;
    while !writer.is_finished() || last == 0 {
        let tuple = read(&reader, &config).await?;
        let number: i64 = value(&tuple, "number")?.decode()?;
        for channel in ["a", "b"] {
            ensure_eq!(
                value(&tuple, channel)?,
                encode(&list(&vec![number; 50]))?,
                "channel {channel} of {number}"
            );
        }
        ensure!(number >= last, "went backwards from {last} to {number}");
        last = number;
        tokio::task::yield_now().await;
    }
    writer.await?
}

async fn concurrent_puts_on_many_threads(ctx: Ctx) -> Done {
    let calls: Vec<_> = (0..24_i64)
        .map(|_| {
            let (saver, thread_id) = (ctx.saver().clone(), ctx.thread());
            tokio::spawn(async move {
                let stored = repeat!(chain(&saver, &thread_id, "", 5))?;
                Ok::<_, Failure>((thread_id, stored))
            })
        })
        .collect();
    for call in calls {
        let (thread_id, stored) = call.await??;
        let found = ids(ctx.saver(), ListQuery::thread(thread_id)).await?;
        ensure_eq!(found, crate::fixture::newest_first(&stored), "ids");
    }
    Ok(())
}

async fn concurrent_delete_and_put(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let deleter = {
        let (saver, thread_id) = (ctx.saver().clone(), thread_id.clone());
        tokio::spawn(async move {
            for _ in 0..20 {
                repeat!(saver.delete_thread(&thread_id))?;
                tokio::task::yield_now().await;
            }
            Ok::<_, Failure>(())
        })
    };
    let config = CheckpointConfig::new(thread_id.clone());
    for version in 1..=40 {
        let made = at_version(version, &[("a", encode(&list(&[version]))?)]);
        let stored = repeat!(put(ctx.saver(), &config, &made))?;
        if let Some(tuple) = ctx.saver().get_tuple(&stored).await? {
            ensure_eq!(tuple.checkpoint, made, "checkpoint, whole or not there");
        }
    }
    deleter.await??;
    repeat!(ctx.saver().delete_thread(&thread_id))?;
    ensure_eq!(ids(ctx.saver(), ListQuery::thread(thread_id)).await?.len(), 0, "number of checkpoints left");
    Ok(())
}

async fn concurrent_copies(ctx: Ctx) -> Done {
    let source = ctx.thread();
    let stored = chain(ctx.saver(), &source, "", 20).await?;
    let expected = Arc::new(crate::fixture::newest_first(&stored));
    let calls: Vec<_> = (0..6)
        .map(|_| {
            let (saver, source, target, expected) =
                (ctx.saver().clone(), source.clone(), ctx.thread(), expected.clone());
            tokio::spawn(async move {
                repeat!(saver.copy_thread(&source, &target))?;
                ensure_eq!(ids(&saver, ListQuery::thread(target)).await?, *expected, "ids");
                Ok::<_, Failure>(())
            })
        })
        .collect();
    for call in calls {
        call.await??;
    }
    Ok(())
}

async fn concurrent_prune_and_put(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let pruner = {
        let (saver, thread_id) = (ctx.saver().clone(), thread_id.clone());
        tokio::spawn(async move {
            for _ in 0..20 {
                repeat!(saver.prune(&[&thread_id], checkpoint_core::PruneStrategy::KeepLatest))?;
                tokio::task::yield_now().await;
            }
            Ok::<_, Failure>(())
        })
    };
    let mut config = CheckpointConfig::new(thread_id.clone());
    let steady = encode(&list(&[7]))?;
    for version in 1..=40 {
        let changed = at_version(version, &[("a", encode(&list(&[version]))?)]);
        let versions = if version == 1 { None } else { Some(changed.channel_versions.clone()) };
        let made = changed.with_channel("steady", steady.clone(), 1);
        let versions = versions.unwrap_or_else(|| made.channel_versions.clone());
        config = repeat!(ctx.saver().put(&config, &made, &crate::fixture::metadata(version), &versions))?;
        let newest = read(ctx.saver(), &CheckpointConfig::new(thread_id.clone())).await?;
        ensure_eq!(newest.checkpoint, made, "the newest");
        write(ctx.saver(), &config, &random(), &[("ch", 1.into())]).await?;
        ensure_eq!(read(ctx.saver(), &config).await?.pending_writes.len(), 1, "writes of the newest");
    }
    pruner.await?
}
