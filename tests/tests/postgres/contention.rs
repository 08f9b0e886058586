//! Contention on a few threads of the Postgres saver: no deadlocks, and no checkpoint loses a value.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use checkpoint_core::{
    BaseCheckpointSaver, ChannelVersions, CheckpointConfig, ErrorKind, PruneStrategy, PutCondition,
    PutOptions, PutWritesOptions, Result, id,
};
use checkpoint_postgres::PostgresSaver;

use super::load::is_sound;
use crate::shared::faults::{Random, join, rounds};
use crate::shared::postgres::{Database, Server, Test, count, tests};
use crate::shared::writers::{metadata, step, writes};

/// Deadlocks that the server has seen in this database. A session reports them when it ends.
async fn deadlocks(database: &Database) -> i64 {
    let client = database.client().await;
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                  AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
    for _ in 0..250 {
        if count(&client, others).await == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(count(&client, others).await, 0, "sessions are left after the pool was closed");
    count(&client, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").await
}

/// Puts a step of this number.
async fn put_step(
    saver: &PostgresSaver,
    config: &CheckpointConfig,
    number: u64,
    options: &PutOptions,
) -> Result<()> {
    let made = step(number);
    saver.put_with(config, &made, &metadata(), &made.channel_versions, options).await.map(|_| ())
}

/// An id of the thread for writes without a checkpoint.
fn newest_of(thread: &str) -> CheckpointConfig {
    CheckpointConfig::new(thread).with_checkpoint_id(id::uuid6(0))
}

/// A condition that does not hold is no failure; a deadlock is, and may be retried.
fn unless_refused(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::Conflict && !error.is_retryable() => Ok(()),
        other => other,
    }
}

/// All operations concurrently on few threads. Without retries, so that every conflict is visible.
async fn nothing_deadlocks(server: &Server) {
    const THREADS: [&str; 3] = ["a", "b", "c"];
    let database = Database::set_up(server.url()).await;
    let saver = database.builder().max_connections(12).max_retries(0).build().unwrap();
    let done = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..12)
        .map(|seed| {
            let (saver, done) = (saver.clone(), done.clone());
            tokio::spawn(async move {
                let mut random = Random(seed);
                let mut newest = CheckpointConfig::new("a").with_checkpoint_id(id::uuid6(0));
                for number in 0..rounds(100) {
                    let (thread, other) = (*random.pick(&THREADS), *random.pick(&THREADS));
                    let ns = *random.pick(&["", "child:1"]);
                    let run_id = format!("run-{}", random.below(20));
                    let config = CheckpointConfig::new(thread)
                        .with_checkpoint_ns(ns)
                        .with_metadata("run_id", run_id.as_str());
                    match random.below(16) {
                        0 => saver.delete_thread(thread).await,
                        1 => saver.copy_thread(thread, other).await,
                        2 => saver.prune(&THREADS, PruneStrategy::KeepLatest).await,
                        3 => saver.prune(&["c", "b", "a"], PruneStrategy::KeepLatest).await,
                        4 => saver.delete_for_runs(&[&run_id, "run-1", "run-0"]).await,
                        5 => saver.prune(&["c", "a"], PruneStrategy::Delete).await,
                        12 => {
                            let first = PutWritesOptions::default().once().checkpoint_stored();
                            let writes = writes(number);
                            let put = saver.put_writes_with(&newest, &writes, "first", "", &first);
                            unless_refused(put.await)
                        }
                        13 => {
                            let latest = PutOptions::default()
                                .condition(PutCondition::ParentIsLatest)
                                .step_key(format!("step-{}", random.below(3)));
                            unless_refused(put_step(&saver, &newest, number, &latest).await)
                        }
                        14 => {
                            let parent = PutOptions::default().condition(PutCondition::ParentStored);
                            unless_refused(put_step(&saver, &newest, number, &parent).await)
                        }
                        15 => {
                            let acquired = saver.acquire_lease(thread, Duration::from_millis(5)).await;
                            let leased = async {
                                let lease = acquired?;
                                let options = PutOptions::default().lease(lease.clone());
                                put_step(&saver, &config, number, &options).await?;
                                let options = PutWritesOptions::default().lease(lease.clone());
                                let writes = writes(number);
                                saver
                                    .put_writes_with(&newest_of(thread), &writes, "task", "", &options)
                                    .await?;
                                saver.release_lease(&lease).await
                            };
                            unless_refused(leased.await)
                        }
                        6 | 7 => saver.put_writes(&newest, &writes(number), "task", "").await,
                        8 => {
                            let special =
                                [("__resume__".into(), 1.into()), ("__interrupt__".into(), 2.into())];
                            saver.put_writes(&newest, &special, "special", "").await
                        }
                        _ => {
                            let made = step(number);
                            let stored = saver.put(&config, &made, &metadata(), &made.channel_versions).await;
                            stored.map(|stored| newest = stored)
                        }
                    }
                    .unwrap_or_else(|error| panic!("{error:?}"));
                    done.fetch_add(1, Ordering::AcqRel);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(done.load(Ordering::Acquire), rounds(1200));
    is_sound(&database, &saver).await;
    drop(saver);
    assert_eq!(deadlocks(&database).await, 0);
}

/// Steps carry values over from the previous step, while others prune, copy and delete the same thread and run: every
/// value that a checkpoint names is stored.
async fn carried_over_values_are_never_lost(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let saver = database.builder().max_connections(8).max_retries(0).build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    // The progress of each writer.
    let steps: Arc<[AtomicU64; 3]> = Arc::default();
    let sweepers: Vec<_> = (0..4)
        .map(|which| {
            let (saver, stop, steps) = (saver.clone(), stop.clone(), steps.clone());
            tokio::spawn(async move {
                let mut random = Random(which);
                while !stop.load(Ordering::Acquire) {
                    let writer = random.below(3);
                    let thread = format!("thread-{writer}");
                    let last = steps[usize::try_from(writer).unwrap()].load(Ordering::Acquire);
                    let run_id = format!("run-{writer}-{}", (last + 1).saturating_sub(random.below(4)));
                    match which {
                        0 => saver.prune(&[&thread], PruneStrategy::KeepLatest).await,
                        1 => saver.delete_for_runs(&[&run_id]).await,
                        2 => saver.copy_thread(&thread, &format!("copy-{}", random.below(2))).await,
                        _ => saver.delete_thread(&thread).await,
                    }
                    .unwrap();
                    tokio::time::sleep(Duration::from_millis(random.below(5))).await;
                }
            })
        })
        .collect();
    let writers: Vec<_> = (0..3)
        .map(|which| {
            let (saver, steps) = (saver.clone(), steps.clone());
            tokio::spawn(async move {
                let mut config = CheckpointConfig::new(format!("thread-{which}"));
                let mut last = step(0);
                let mut found = 0;
                for number in 0..rounds(60) {
                    // One channel is new, the others are unchanged.
                    let new = step(number);
                    let mut made = last.clone();
                    made.id = new.id.clone();
                    let mut changed = ChannelVersions::new();
                    let channels: &[&str] = if number == 0 {
                        &["items", "more", "number"]
                    } else {
                        &[["items", "number"][usize::try_from(number % 2).unwrap()]]
                    };
                    for channel in channels {
                        made.channel_values.insert((*channel).into(), new.channel_values[*channel].clone());
                        made.channel_versions
                            .insert((*channel).into(), new.channel_versions[*channel].clone());
                        changed.insert((*channel).into(), new.channel_versions[*channel].clone());
                    }
                    let run_id = format!("run-{which}-{number}");
                    let on = config.clone().with_metadata("run_id", run_id.as_str());
                    config = saver.put(&on, &made, &metadata(), &changed).await.unwrap();
                    if let Some(tuple) = saver.get_tuple(&config).await.unwrap() {
                        assert_eq!(tuple.checkpoint, made);
                        found += 1;
                    }
                    last = made;
                    steps[which].store(number, Ordering::Release);
                }
                found
            })
        })
        .collect();
    for found in join(writers).await {
        assert!(found > 0, "a writer never found what it had put");
    }
    stop.store(true, Ordering::Release);
    for sweeper in sweepers {
        sweeper.await.unwrap();
    }
    is_sound(&database, &saver).await;
}

/// A step that carries over all of its values is put while its thread is deleted: it is stored completely or not at all.
async fn concurrent_delete_and_next_step(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let saver = database.builder().max_connections(8).max_retries(0).build().unwrap();
    let tasks: Vec<_> = (0..3)
        .map(|which| {
            let saver = saver.clone();
            tokio::spawn(async move {
                let mut random = Random(which);
                let mut found = 0;
                let thread = format!("thread-{which}");
                for number in 0..rounds(250) {
                    let made = step(number);
                    let config = CheckpointConfig::new(thread.clone());
                    let stored =
                        saver.put(&config, &made, &metadata(), &made.channel_versions).await.unwrap();
                    let mut next = made;
                    next.id = id::uuid6(0);
                    let deleting = {
                        let (saver, thread) = (saver.clone(), thread.clone());
                        tokio::spawn(async move { saver.delete_thread(&thread).await })
                    };
                    // The calls overlap at a different point each time; a timer is too coarse for that.
                    let (begun, apart) = (Instant::now(), Duration::from_micros(random.below(3000)));
                    while begun.elapsed() < apart {
                        std::hint::spin_loop();
                    }
                    let put = saver.put(&stored, &next, &metadata(), &ChannelVersions::new()).await.unwrap();
                    deleting.await.unwrap().unwrap();
                    if let Some(tuple) = saver.get_tuple(&put).await.unwrap() {
                        assert_eq!(tuple.checkpoint, next);
                        found += 1;
                    }
                    saver.delete_thread(&thread).await.unwrap();
                }
                found
            })
        })
        .collect();
    for found in join(tasks).await {
        assert!(found > 0, "no step was there after its thread had been deleted");
    }
    is_sound(&database, &saver).await;
}

pub(crate) fn tests() -> &'static [Test] {
    tests![nothing_deadlocks, carried_over_values_are_never_lost, concurrent_delete_and_next_step]
}
