//! `setup()`, calls before it, and reopening.

use std::sync::Arc;

use checkpoint_core::{
    BaseCheckpointSaver, CheckpointConfig, ErrorKind, ListQuery, PruneStrategy, SaverExt, ThreadQuery,
};
use futures_util::TryStreamExt;

use crate::case::{Ctx, Need};
use crate::fixture::{Done, chain, checkpoint, expect_kind, ids, newest_first, put, random, read, write};
use crate::target::{Facility, OpenOptions};

cases!("setup";
    a_second_setup_keeps_the_data,
    eight_concurrent_setups [Need::Target(Facility::Fresh)],
    calls_before_setup_fail_with_schema [Need::Target(Facility::Fresh), Need::Durable],
    probes_before_and_after_setup [Need::Target(Facility::Fresh)],
    a_second_handle_sees_everything,
    a_reopened_database_has_everything [Need::Target(Facility::Fresh), Need::Durable],
    errors_name_the_backend,
);

async fn a_second_setup_keeps_the_data(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = chain(ctx.saver(), &thread_id, "", 3).await?;
    ctx.saver().setup().await?;
    ctx.target().open(OpenOptions::default()).await?.setup().await?;
    ensure_eq!(ids(ctx.saver(), ListQuery::thread(thread_id)).await?, newest_first(&stored), "ids");
    Ok(())
}

async fn eight_concurrent_setups(ctx: Ctx) -> Done {
    for _ in 0..4 {
        let target = ctx.target().fresh().await?;
        let mut calls = Vec::new();
        let start = Arc::new(tokio::sync::Barrier::new(8));
        for _ in 0..8 {
            let saver = target.open(OpenOptions::default()).await?;
            let start = start.clone();
            calls.push(tokio::spawn(async move {
                start.wait().await;
                saver.setup().await?;
                let config = CheckpointConfig::new("thread");
                put(&saver, &config, &checkpoint(&[])).await
            }));
        }
        for call in calls {
            call.await??;
        }
        let saver = target.open(OpenOptions::default()).await?;
        ensure_eq!(ids(&saver, ListQuery::thread("thread")).await?.len(), 8, "number of checkpoints");
    }
    Ok(())
}

async fn calls_before_setup_fail_with_schema(ctx: Ctx) -> Done {
    let target = ctx.target().fresh().await?;
    let saver = target.open(OpenOptions::default()).await?;
    let config = CheckpointConfig::new("thread").with_checkpoint_id(random());
    let kind = ErrorKind::Schema;
    expect_kind(saver.get_tuple(&config).await, kind, "get_tuple")?;
    expect_kind(saver.list_all(ListQuery::all()).await, kind, "list")?;
    let threads: Result<Vec<_>, _> = saver.list_threads(ThreadQuery::all()).try_collect().await;
    expect_kind(threads, kind, "list_threads")?;
    expect_kind(put(&saver, &config, &checkpoint(&[])).await, kind, "put")?;
    expect_kind(write(&saver, &config, "task", &[("ch", 1.into())]).await, kind, "put_writes")?;
    expect_kind(saver.delete_thread("thread").await, kind, "delete_thread")?;
    expect_kind(saver.get_delta_channel_history(&config, &["ch"]).await, kind, "get_delta_channel_history")?;
    let capabilities = saver.capabilities();
    if capabilities.delete_for_runs {
        expect_kind(saver.delete_for_runs(&["run"]).await, kind, "delete_for_runs")?;
    }
    if capabilities.copy_thread {
        expect_kind(saver.copy_thread("thread", "other").await, kind, "copy_thread")?;
    }
    if capabilities.prune {
        expect_kind(saver.prune(&["thread"], PruneStrategy::KeepLatest).await, kind, "prune")?;
    }
    // The same handle works afterwards.
    saver.setup().await?;
    ensure_eq!(saver.get_tuple(&config).await?, None, "a checkpoint of an empty database");
    let stored = put(&saver, &config, &checkpoint(&[])).await?;
    read(&saver, &stored).await?;
    Ok(())
}

/// The probes neither need tables nor create them.
async fn probes_before_and_after_setup(ctx: Ctx) -> Done {
    let target = ctx.target().fresh().await?;
    let saver = target.open(OpenOptions::default()).await?;
    let durable = saver.capabilities().durable;
    for _ in 0..2 {
        saver.ping().await?;
        if durable {
            expect_kind(saver.check_schema().await, ErrorKind::Schema, "check_schema")?;
            expect_kind(saver.list_all(ListQuery::all()).await, ErrorKind::Schema, "list")?;
        }
    }
    saver.setup().await?;
    for saver in [saver, target.open(OpenOptions::default()).await?] {
        saver.ping().await?;
        saver.check_schema().await?;
        saver.close().await?;
        expect_kind(saver.ping().await, ErrorKind::Unavailable, "ping after close")?;
        expect_kind(saver.check_schema().await, ErrorKind::Unavailable, "check_schema after close")?;
        if !durable {
            break;
        }
    }
    Ok(())
}

async fn a_second_handle_sees_everything(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    for config in chain(ctx.saver(), &thread_id, "", 3).await? {
        write(ctx.saver(), &config, "task", &[("ch", 1.into())]).await?;
    }
    let other = ctx.target().open(OpenOptions::default()).await?;
    let query = ListQuery::thread(thread_id.clone());
    let expected = ctx.saver().list_all(query.clone()).await?;
    ensure_eq!(other.list_all(query.clone()).await?, expected, "the listing of the second handle");
    put(&other, &CheckpointConfig::new(thread_id), &checkpoint(&[])).await?;
    ensure_eq!(ids(ctx.saver(), query).await?.len(), 4, "number of checkpoints after a put on the second");
    Ok(())
}

async fn a_reopened_database_has_everything(ctx: Ctx) -> Done {
    let target = ctx.target().fresh().await?;
    let query = ListQuery::thread("thread");
    let expected = {
        let saver = target.open(OpenOptions::default()).await?;
        saver.setup().await?;
        for config in chain(&saver, &"thread".into(), "", 3).await? {
            write(&saver, &config, "task", &[("ch", 1.into())]).await?;
        }
        saver.list_all(query.clone()).await?
    };
    // Every handle is closed here.
    let saver = target.open(OpenOptions::default()).await?;
    ensure_eq!(saver.list_all(query).await?, expected, "the listing after opening again");
    Ok(())
}

async fn errors_name_the_backend(ctx: Ctx) -> Done {
    let name = ctx.saver().backend();
    ensure!(
        !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase()),
        "the backend's name is {name:?}"
    );
    let refused = ctx
        .saver()
        .put_writes(&CheckpointConfig::new(ctx.thread()), &[("ch".into(), 1.into())], "t", "")
        .await;
    match refused {
        Ok(()) => Err(crate::Failure::new("put_writes without a checkpoint id succeeded")),
        Err(error) => {
            ensure_eq!(error.backend(), Some(name), "backend in an error");
            ensure_eq!(error.operation(), Some("put_writes"), "operation in an error");
            Ok(())
        }
    }
}
