//! What `retain` gives back of a file, and how it lets others write meanwhile.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod shared;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use checkpoint_core::retention::{Limits, RetainSummary, Retention, UsageOptions};
use checkpoint_core::{
    BaseCheckpointSaver, Checkpoint, CheckpointConfig, CheckpointMetadata, ListQuery, RetainOptions,
    SaverExt, ThreadQuery, TypedBytes,
};
use checkpoint_sqlite::rusqlite::Connection;
use checkpoint_sqlite::{SqliteSaver, Synchronous};
use futures_util::TryStreamExt;
use futures_util::future::{join, try_join_all};

use shared::place;

/// How large a checkpoint is.
const SIZE: usize = 40_000;

fn saver(path: &Path) -> SqliteSaver {
    SqliteSaver::builder(path).synchronous(Synchronous::Normal).build().unwrap()
}

async fn put(saver: &SqliteSaver, config: &CheckpointConfig, size: usize) -> CheckpointConfig {
    let checkpoint = Checkpoint::new(0).with_channel("data", TypedBytes::new("bytes", vec![7; size]), "1");
    let metadata = CheckpointMetadata::new("loop", 0);
    saver.put(config, &checkpoint, &metadata, &checkpoint.channel_versions).await.unwrap()
}

/// Stores threads, each with so many checkpoints.
async fn fill(saver: &SqliteSaver, threads: usize, checkpoints: usize) {
    for number in 0..threads {
        let mut config = CheckpointConfig::new(format!("thread-{number}"));
        for _ in 0..checkpoints {
            config = put(saver, &config, SIZE).await;
        }
    }
}

async fn keep_one(saver: &SqliteSaver) -> RetainSummary {
    let policy = Retention::new().keep_last(1);
    saver.retain_all(policy, RetainOptions::default(), ThreadQuery::all()).try_collect().await.unwrap()
}

fn pragma(path: &Path, name: &str) -> i64 {
    Connection::open(path).unwrap().pragma_query_value(None, name, |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn the_file_shrinks_while_others_write() {
    let (_directory, path) = place();
    let saver = saver(&path);
    saver.setup().await.unwrap();
    fill(&saver, 40, 10).await;
    let before = saver.usage(&UsageOptions::default()).await.unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (saver, ended) = (saver.clone(), Arc::clone(&ended));
        async move {
            let mut config = CheckpointConfig::new("writer");
            let mut count = 0;
            while !ended.load(Ordering::Acquire) {
                config = put(&saver, &config, 10).await;
                count += 1;
            }
            count
        }
    });
    let summary = keep_one(&saver).await;
    ended.store(true, Ordering::Release);
    assert_eq!(summary.failures, 0, "{:?}", summary.failed);
    // Removing and giving back take dozens of transactions, and nobody waits for more than one of them.
    let written = writer.await.unwrap();
    assert!(written > 5, "{written} checkpoints were written meanwhile");
    keep_one(&saver).await;
    let after = saver.usage(&UsageOptions::default()).await.unwrap();
    assert_eq!((after.threads, after.checkpoints, after.dead), (41, 41, Some(0)));
    assert!(after.on_disk.unwrap() < before.on_disk.unwrap() / 4, "{before:?} {after:?}");
    assert_eq!(saver.list_all(ListQuery::all()).await.unwrap().len(), 41);
    saver.close().await.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), after.on_disk.unwrap());
    let sound: String =
        Connection::open(&path).unwrap().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(sound, "ok");
}

#[tokio::test]
async fn files_that_others_made_keep_their_size_and_use_it_again() {
    for mode in ["NONE", "FULL"] {
        let (_directory, path) = place();
        let own = format!("PRAGMA auto_vacuum = {mode}; CREATE TABLE orders (id INTEGER PRIMARY KEY);");
        Connection::open(&path).unwrap().execute_batch(&own).unwrap();
        let saver = saver(&path);
        saver.setup().await.unwrap();
        assert_eq!(pragma(&path, "auto_vacuum"), i64::from(mode == "FULL"));
        fill(&saver, 4, 10).await;
        let before = saver.usage(&UsageOptions::default()).await.unwrap();
        assert_eq!(keep_one(&saver).await.report.total().checkpoints, 36);
        let after = saver.usage(&UsageOptions::default()).await.unwrap();
        if mode == "FULL" {
            // SQLite gives pages back by itself, at each commit.
            assert_eq!(after.dead, Some(0));
            assert!(after.on_disk < before.on_disk);
            continue;
        }
        assert_eq!(after.on_disk, before.on_disk);
        assert!(after.dead.unwrap() > before.on_disk.unwrap() / 2, "{after:?}");
        fill(&saver, 4, 9).await;
        let again = saver.usage(&UsageOptions::default()).await.unwrap();
        assert_eq!(again.on_disk, before.on_disk);
    }
}

/// A thread that is removed in several transactions.
#[tokio::test]
async fn a_long_thread_goes_in_portions() {
    const COUNT: usize = 1700;
    let hour = Duration::from_secs(60 * 60);
    let by_count = Retention::new().keep_last(3).in_namespace("child", Limits::new().keep_last(2));
    let policies = [(by_count, [3, 2]), (Retention::new().idle_for(hour), [0, 0])];
    for (policy, expected) in policies {
        let (_directory, path) = place();
        let saver = saver(&path);
        saver.setup().await.unwrap();
        let mut newest = Vec::new();
        for checkpoint_ns in ["", "child:1"] {
            let base = CheckpointConfig::new("long").with_checkpoint_ns(checkpoint_ns);
            let puts = (0..COUNT).map(|number| {
                let made = Checkpoint::with_id(format!("1ed00000-{number:04x}-6000-8000-000000000000"))
                    .with_channel("step", 7, "1");
                let (saver, base) = (saver.clone(), base.clone());
                async move {
                    let metadata = CheckpointMetadata::new("loop", 0);
                    let stored = saver.put(&base, &made, &metadata, &made.channel_versions).await?;
                    saver.put_writes(&stored, &[("step".into(), 8.into())], "task", "").await?;
                    Ok::<_, checkpoint_core::Error>(stored)
                }
            });
            let stored = try_join_all(puts).await.unwrap();
            newest.extend(stored.into_iter().rev().take(3));
        }
        let options = RetainOptions::default();
        let plan = saver.retain(&["long"], &policy, &options.dry_run(true)).await.unwrap();
        let retain = saver.retain(&["long"], &policy, &options);
        let file = Connection::open(&path).unwrap();
        let other = async {
            let mut portions = BTreeSet::new();
            let mut config = CheckpointConfig::new("other");
            for _ in 0..20 {
                config = put(&saver, &config, 10).await;
                // While this thread counts, the run cannot begin another portion.
                let count = "SELECT count(*) FROM checkpoints WHERE thread_id = 'long'";
                portions.insert(file.query_row(count, (), |row| row.get::<_, u32>(0)).unwrap());
                let left = saver.list_all(ListQuery::thread("long")).await.unwrap();
                // What is left at any time can be continued: the newest are there, or nothing.
                if let Some(first) = left.first() {
                    assert!(newest.contains(&first.config), "{:?}", first.config);
                }
            }
            portions
        };
        let (report, portions) = join(retain, other).await;
        assert_eq!(report.unwrap(), plan);
        let kept = expected.iter().sum::<usize>();
        let is_between = |left: &u32| (kept + 1..2 * COUNT).contains(&usize::try_from(*left).unwrap());
        assert!(portions.iter().any(is_between), "no other call came in between: {portions:?}");
        for (checkpoint_ns, expected) in ["", "child:1"].into_iter().zip(expected) {
            let query = ListQuery::thread("long").checkpoint_ns(checkpoint_ns);
            let left = saver.list_all(query).await.unwrap();
            assert_eq!(left.len(), expected);
            assert!(left.iter().all(|tuple| tuple.pending_writes.len() == 1));
        }
        let usage = saver.usage(&UsageOptions::default()).await.unwrap();
        let left: usize = expected.iter().sum();
        assert_eq!((usage.checkpoints, usage.writes), (left as u64 + 20, left as u64));
    }
}
