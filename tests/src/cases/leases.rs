//! Leases of threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use checkpoint_core::{
    BaseCheckpointSaver, CheckpointConfig, ErrorKind, Lease, ListQuery, PruneStrategy, PutCondition,
    PutOptions, PutWritesOptions, SaverExt, Str,
};

use crate::case::{Ctx, Failure, Need};
use crate::fixture::{Done, at_version, checkpoint, expect_kind, ids, metadata, put, random, read};
use crate::target::OpenOptions;

cases!("leases", [Need::Leases];
    one_holder_at_a_time,
    a_lease_that_was_given_back,
    an_expired_lease_is_taken_over,
    an_expired_lease_that_nobody_took_is_still_held,
    writes_renew_a_lease,
    writes_without_the_lease_are_refused,
    deletion_ends_a_lease,
    pruning_everything_ends_a_lease [Need::Prune],
    leases_are_per_thread,
    times_to_live_have_bounds,
    many_workers_never_commit_under_a_former_lease,
);

const LONG: Duration = Duration::from_secs(600);

/// Short enough to wait for, and long enough for a few calls.
const SHORT: Duration = Duration::from_millis(50);

/// Waits until a lease with the short time to live has expired.
async fn expire() {
    tokio::time::sleep(SHORT * 3).await;
}

/// Fails unless the error says that the lease was lost.
#[track_caller]
fn expect_lost<T>(result: checkpoint_core::Result<T>, what: &str) -> Done {
    match result {
        Err(error) if Lease::is_lost(&error) && !error.is_retryable() => Ok(()),
        Err(error) => Err(Failure::new(format!("{what}: {error}, expected a lost lease"))),
        Ok(_) => Err(Failure::new(format!("{what}: succeeded, expected a lost lease"))),
    }
}

fn with(lease: &Lease) -> PutOptions {
    PutOptions::default().lease(lease.clone())
}

async fn put_under(ctx: &Ctx, thread_id: &Str, lease: &Lease) -> checkpoint_core::Result<CheckpointConfig> {
    let made = checkpoint(&[("a", 1.into())]);
    let config = CheckpointConfig::new(thread_id.clone());
    ctx.saver().put_with(&config, &made, &metadata(0), &made.channel_versions, &with(lease)).await
}

async fn one_holder_at_a_time(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let lease = ctx.saver().acquire_lease(&thread_id, LONG).await?;
    ensure_eq!((lease.thread_id(), lease.ttl()), (&*thread_id, LONG), "lease");
    let other = ctx.target().open(OpenOptions::default()).await?;
    for saver in [ctx.saver(), &other] {
        let error = match saver.acquire_lease(&thread_id, LONG).await {
            Err(error) => error,
            Ok(second) => return Err(Failure::new(format!("two holders: {lease:?}, {second:?}"))),
        };
        ensure!(error.kind() == ErrorKind::Conflict && !error.is_retryable(), "{error:?}");
        ensure!(error.to_string().contains("expires_in_seconds"), "{error}");
        ensure!(!Lease::is_lost(&error), "{error}");
    }
    ctx.saver().renew_lease(&lease).await?;
    // A handle from elsewhere works on it.
    other.renew_lease(&lease).await?;
    Ok(())
}

async fn a_lease_that_was_given_back(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let first = ctx.saver().acquire_lease(&thread_id, LONG).await?;
    ctx.saver().release_lease(&first).await?;
    expect_lost(ctx.saver().renew_lease(&first).await, "renewal")?;
    expect_lost(put_under(&ctx, &thread_id, &first).await, "put")?;
    let second = ctx.saver().acquire_lease(&thread_id, LONG).await?;
    ensure!(second.token() > first.token(), "tokens: {first:?}, {second:?}");
    // No-ops, which must not take the second one away.
    ctx.saver().release_lease(&first).await?;
    ctx.saver().renew_lease(&second).await?;
    ctx.saver().release_lease(&second).await?;
    ctx.saver().release_lease(&second).await?;
    Ok(())
}

async fn an_expired_lease_is_taken_over(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let first = ctx.saver().acquire_lease(&thread_id, SHORT).await?;
    expire().await;
    let second = ctx.saver().acquire_lease(&thread_id, LONG).await?;
    ensure!(second.token() > first.token(), "tokens: {first:?}, {second:?}");
    expect_lost(ctx.saver().renew_lease(&first).await, "renewal")?;
    expect_lost(put_under(&ctx, &thread_id, &first).await, "put")?;
    ctx.saver().release_lease(&first).await?;
    put_under(&ctx, &thread_id, &second).await?;
    Ok(())
}

async fn an_expired_lease_that_nobody_took_is_still_held(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let lease = ctx.saver().acquire_lease(&thread_id, SHORT).await?;
    expire().await;
    put_under(&ctx, &thread_id, &lease).await?;
    expire().await;
    ctx.saver().renew_lease(&lease).await?;
    Ok(())
}

async fn writes_renew_a_lease(ctx: Ctx) -> Done {
    // Longer than the calls below take together, even on a slow machine.
    let ttl = Duration::from_secs(3);
    let thread_id = ctx.thread();
    let lease = ctx.saver().acquire_lease(&thread_id, ttl).await?;
    tokio::time::sleep(ttl / 2).await;
    let config = put_under(&ctx, &thread_id, &lease).await?;
    let left = match ctx.saver().acquire_lease(&thread_id, ttl).await {
        Err(error) => error.to_string(),
        Ok(second) => return Err(Failure::new(format!("two holders: {second:?}"))),
    };
    tokio::time::sleep(ttl / 2).await;
    let options = PutWritesOptions::default().lease(lease.clone());
    ctx.saver().put_writes_with(&config, &[("a".into(), 1.into())], "task", "", &options).await?;
    tokio::time::sleep(ttl / 2).await;
    let third = ctx.saver().acquire_lease(&thread_id, ttl).await;
    expect_kind(third, ErrorKind::Conflict, &format!("acquisition after a renewal ({left})"))
}

async fn writes_without_the_lease_are_refused(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let lost = ctx.saver().acquire_lease(&thread_id, LONG).await?;
    ctx.saver().release_lease(&lost).await?;
    let held = ctx.saver().acquire_lease(&thread_id, LONG).await?;
    let config = put_under(&ctx, &thread_id, &held).await?;
    for options in [
        with(&lost),
        with(&lost).condition(PutCondition::ParentStored),
        with(&lost).condition(PutCondition::ParentIsLatest),
        with(&lost).step_key("k"),
    ] {
        let made = at_version(2, &[("a", 2.into())]);
        let versions = &made.channel_versions;
        expect_lost(ctx.saver().put_with(&config, &made, &metadata(1), versions, &options).await, "put")?;
    }
    let writes = [("a".into(), 1.into()), ("b".into(), 2.into())];
    let lost = PutWritesOptions::default().lease(lost);
    for options in [lost.clone(), lost.clone().once(), lost.checkpoint_stored()] {
        expect_lost(ctx.saver().put_writes_with(&config, &writes, "task", "", &options).await, "put_writes")?;
    }
    let tuple = read(ctx.saver(), &config.clone().latest()).await?;
    ensure!(tuple.config == config && tuple.pending_writes.is_empty(), "something was stored: {tuple:?}");
    let options = PutWritesOptions::default().lease(held).once().checkpoint_stored();
    ctx.saver().put_writes_with(&config, &writes, "task", "", &options).await?;
    ensure_eq!(read(ctx.saver(), &config).await?.pending_writes.len(), 2, "number of writes");
    // A call without a lease is not checked.
    put(ctx.saver(), &config, &at_version(2, &[("a", 2.into())])).await?;
    Ok(())
}

async fn deletion_ends_a_lease(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let first = ctx.saver().acquire_lease(&thread_id, LONG).await?;
    put_under(&ctx, &thread_id, &first).await?;
    ctx.saver().delete_thread(&thread_id).await?;
    expect_lost(put_under(&ctx, &thread_id, &first).await, "put")?;
    ensure_eq!(ids(ctx.saver(), ListQuery::thread(thread_id.clone())).await?, [] as [Str; 0], "ids");
    let second = ctx.saver().acquire_lease(&thread_id, LONG).await?;
    ensure!(second.token() > first.token(), "tokens: {first:?}, {second:?}");
    expect_lost(put_under(&ctx, &thread_id, &first).await, "put")
}

async fn pruning_everything_ends_a_lease(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let lease = ctx.saver().acquire_lease(&thread_id, LONG).await?;
    put_under(&ctx, &thread_id, &lease).await?;
    ctx.saver().prune(&[&thread_id], PruneStrategy::KeepLatest).await?;
    put_under(&ctx, &thread_id, &lease).await?;
    ctx.saver().prune(&[&thread_id], PruneStrategy::Delete).await?;
    expect_lost(put_under(&ctx, &thread_id, &lease).await, "put")
}

async fn leases_are_per_thread(ctx: Ctx) -> Done {
    let (a, b) = (ctx.thread(), ctx.thread());
    let first = ctx.saver().acquire_lease(&a, LONG).await?;
    let second = ctx.saver().acquire_lease(&b, LONG).await?;
    let kind = ErrorKind::InvalidArgument;
    expect_kind(put_under(&ctx, &a, &second).await, kind, "put with the lease of another thread")?;
    let config = put_under(&ctx, &a, &first).await?;
    let options = PutWritesOptions::default().lease(second.clone());
    let writes = [("a".into(), 1.into())];
    let written = ctx.saver().put_writes_with(&config, &writes, "task", "", &options).await;
    expect_kind(written, kind, "put_writes with the lease of another thread")?;
    put_under(&ctx, &b, &second).await?;
    let odd = ctx.use_thread(&format!("conformance-{}-'%_\n世", random()));
    let third = ctx.saver().acquire_lease(&odd, LONG).await?;
    put_under(&ctx, &odd, &third).await?;
    Ok(())
}

async fn times_to_live_have_bounds(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    for ttl in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
        let result = ctx.saver().acquire_lease(&thread_id, ttl).await;
        expect_kind(result, ErrorKind::InvalidArgument, "acquire_lease")?;
    }
    ctx.saver().acquire_lease(&thread_id, Duration::from_secs(300 * 24 * 60 * 60)).await?;
    Ok(())
}

/// Workers that pause longer than their leases live, as if their clocks had jumped. After a commit under one token was
/// acknowledged, no commit under a lower token may begin and succeed.
async fn many_workers_never_commit_under_a_former_lease(ctx: Ctx) -> Done {
    const WORKERS: u64 = 16;
    const COMMITS: u64 = 4;
    let thread_id = ctx.thread();
    let root = CheckpointConfig::new(thread_id.clone());
    put(ctx.saver(), &root, &at_version(1, &[("count", 0.into())])).await?;
    let highest = Arc::new(AtomicI64::new(0));
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let (saver, root, highest) = (ctx.saver().clone(), root.clone(), Arc::clone(&highest));
            tokio::spawn(async move {
                let (mut committed, mut refused, mut turn) = (0, 0_u64, worker);
                while committed < COMMITS {
                    turn += 1;
                    let ttl = Duration::from_millis(3 + (turn * 7 + worker) % 11);
                    let Ok(lease) = saver.acquire_lease(root.thread_id(), ttl).await else {
                        tokio::time::sleep(Duration::from_millis(1 + (turn + worker) % 5)).await;
                        continue;
                    };
                    if (turn + worker) % 3 == 0 {
                        tokio::time::sleep(ttl * 2).await;
                    }
                    let tuple = read(&saver, &root).await?;
                    let before = highest.load(Ordering::SeqCst);
                    let made = at_version(2, &[("by", lease.token().into())]);
                    let (metadata, options) = (metadata(0), with(&lease));
                    let put =
                        saver.put_with(&tuple.config, &made, &metadata, &made.channel_versions, &options);
                    match put.await {
                        Ok(_) if lease.token() < before => {
                            return Err(Failure::new(format!("{} committed after {before}", lease.token())));
                        }
                        Ok(_) => {
                            highest.fetch_max(lease.token(), Ordering::SeqCst);
                            committed += 1;
                        }
                        Err(error) if Lease::is_lost(&error) => refused += 1,
                        Err(error) => return Err(error.into()),
                    }
                    if turn % 2 == 0 {
                        saver.release_lease(&lease).await?;
                    }
                }
                Ok::<_, Failure>(refused)
            })
        })
        .collect();
    let mut refused = 0;
    for worker in workers {
        refused += worker.await??;
    }
    let stored = ctx.saver().list_all(ListQuery::from_config(&root)).await?;
    ensure_eq!(u64::try_from(stored.len()), Ok(WORKERS * COMMITS + 1), "number of checkpoints");
    ensure!(refused > 0, "no worker lost its lease, so the case checked nothing");
    Ok(())
}
