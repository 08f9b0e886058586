//! Concurrent writers: in one process, in several, and in one that is killed.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod shared;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use checkpoint_core::{
    BaseCheckpointSaver, Checkpoint, CheckpointConfig, CheckpointMetadata, ErrorKind, ListQuery, Result,
    SaverExt,
};
use checkpoint_sqlite::SqliteSaver;
use checkpoint_sqlite::rusqlite::Connection;
use futures_util::FutureExt;
use futures_util::future::join_all;

use shared::{place, saver};

/// Tells a child process of a test which file to use.
const CHILD: &str = "CHECKPOINT_SQLITE_TEST_CHILD";

async fn put(saver: &SqliteSaver, thread_id: &str, step: i64) -> Result<CheckpointConfig> {
    let checkpoint = Checkpoint::new(step).with_channel("step", step, "1");
    let metadata = CheckpointMetadata::new("loop", step);
    saver.put(&CheckpointConfig::new(thread_id), &checkpoint, &metadata, &checkpoint.channel_versions).await
}

/// This test binary again, to run one test as a child with a file.
fn child(test: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(CHILD, path);
    command
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// The number of transactions in the write-ahead log: the last frame of each has the size of the database.
fn commits_in_log(path: &Path) -> usize {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let log = std::fs::read(log).unwrap();
    let number = |at: usize| u32::from_be_bytes(log[at..at + 4].try_into().unwrap());
    let (frame, salt) = (24 + number(8) as usize, &log[16..24]);
    (32..log.len().saturating_sub(frame - 1))
        .step_by(frame)
        .filter(|at| &log[at + 8..at + 16] == salt && number(at + 4) != 0)
        .count()
}

#[test]
fn concurrent_setup_from_threads_and_processes() {
    if let Ok(path) = std::env::var(CHILD) {
        return block_on(saver(Path::new(&path)).setup()).unwrap();
    }
    let (_directory, path) = place();
    let children: Vec<_> = (0..4)
        .map(|_| {
            child("setup_from_threads_and_processes_at_once", &path).stdout(Stdio::null()).spawn().unwrap()
        })
        .collect();
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || block_on(saver(&path).setup()))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap().unwrap();
    }
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let file = Connection::open(&path).unwrap();
    let mode: String = file.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
    assert_eq!(mode, "wal");
    let columns: Vec<String> = file
        .prepare("SELECT name FROM pragma_table_info('writes')")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(std::result::Result::unwrap)
        .collect();
    let wanted = [
        "thread_id",
        "checkpoint_ns",
        "checkpoint_id",
        "task_id",
        "task_path",
        "idx",
        "channel",
        "type",
        "value",
    ];
    assert_eq!(columns, wanted);
    block_on(put(&saver(&path), "t", 0)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn queued_writes_are_committed_together_and_a_bad_one_fails_alone() {
    let (_directory, path) = place();
    let saver = saver(&path);
    saver.setup().await.unwrap();
    let other = Connection::open(&path).unwrap();
    other
        .execute_batch(
            "CREATE TRIGGER bad BEFORE INSERT ON checkpoints WHEN NEW.thread_id = 'bad' \
             BEGIN SELECT RAISE(ABORT, 'no'); END",
        )
        .unwrap();
    put(&saver, "warm", 0).await.unwrap();
    let before = commits_in_log(&path);
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut puts = Vec::new();
    for at in 0..100 {
        let thread_id = if at == 50 { "bad".to_owned() } else { format!("t{at}") };
        let mut put = Box::pin({
            let saver = saver.clone();
            async move { (thread_id.clone(), put(&saver, &thread_id, at).await) }
        });
        // The first poll queues the write, which cannot be committed while the lock is held.
        assert!((&mut put).now_or_never().is_none());
        puts.push(put);
    }
    other.execute_batch("COMMIT").unwrap();
    for (thread_id, outcome) in join_all(puts).await {
        match outcome {
            Ok(config) => assert_eq!(config.thread_id(), thread_id),
            Err(error) => assert_eq!((&*thread_id, error.kind()), ("bad", ErrorKind::Backend), "{error}"),
        }
    }
    assert_eq!(commits_in_log(&path) - before, 1, "one commit for all");
    drop(saver);
    let reopened = self::saver(&path);
    assert_eq!(reopened.list_all(ListQuery::all()).await.unwrap().len(), 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_puts_are_all_stored_after_reopening() {
    let (_directory, path) = place();
    let saver = saver(&path);
    saver.setup().await.unwrap();
    let second = self::saver(&path);
    let tasks = (0..16).map(|agent| {
        let saver = if agent % 2 == 0 { saver.clone() } else { second.clone() };
        tokio::spawn(async move {
            for step in 0..20 {
                let config = put(&saver, &format!("agent-{agent}"), step).await.unwrap();
                let write = [("x".into(), step.into())];
                saver.put_writes(&config, &write, "task", "").await.unwrap();
                let read = saver.get_tuple(&config).await.unwrap().unwrap();
                assert_eq!(read.pending_writes[0].value, step.into(), "own writes are seen");
            }
        })
    });
    for task in join_all(tasks).await {
        task.unwrap();
    }
    drop((saver, second));
    let reopened = self::saver(&path);
    for agent in 0..16 {
        let tuples = reopened.list_all(ListQuery::thread(format!("agent-{agent}"))).await.unwrap();
        assert_eq!(tuples.len(), 20);
        assert!(tuples.iter().all(|tuple| tuple.pending_writes.len() == 1));
    }
}

#[tokio::test]
async fn a_queued_write_whose_caller_was_dropped_is_skipped() {
    let (_directory, path) = place();
    let saver = saver(&path);
    saver.setup().await.unwrap();
    put(&saver, "warm", 0).await.unwrap();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    // The first write waits for the lock; the second is queued behind it when its caller is dropped.
    let mut first = Box::pin(put(&saver, "first", 0));
    assert!((&mut first).now_or_never().is_none());
    let mut dropped = Box::pin(put(&saver, "dropped", 0));
    assert!((&mut dropped).now_or_never().is_none());
    drop(dropped);
    other.execute_batch("COMMIT").unwrap();
    first.await.unwrap();
    put(&saver, "last", 0).await.unwrap();
    assert!(saver.get_tuple(&CheckpointConfig::new("dropped")).await.unwrap().is_none());
    assert!(saver.get_tuple(&CheckpointConfig::new("first")).await.unwrap().is_some());
}

#[tokio::test]
async fn all_queued_writes_fail_if_the_lock_is_not_released() {
    let (_directory, path) = place();
    let saver = SqliteSaver::builder(&path).busy_timeout(Duration::from_millis(20)).build().unwrap();
    saver.setup().await.unwrap();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    for outcome in join_all((0..50).map(|step| put(&saver, "t", step))).await {
        let error = outcome.unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Timeout, true), "{error}");
        assert_eq!(error.operation(), Some("put"));
    }
    other.execute_batch("COMMIT").unwrap();
    put(&saver, "t", 50).await.unwrap();
    assert_eq!(saver.list_all(ListQuery::all()).await.unwrap().len(), 1);
}

#[test]
fn acknowledged_writes_survive_a_kill() {
    if let Ok(path) = std::env::var(CHILD) {
        let saver = Arc::new(saver(Path::new(&path)));
        block_on(async {
            for step in 0.. {
                let puts = (0..4).map(|_| put(&saver, "t", step));
                for config in join_all(puts).await {
                    println!("stored {}", config.unwrap().checkpoint_id().unwrap());
                    std::io::stdout().flush().unwrap();
                }
            }
        });
    }
    let (_directory, path) = place();
    block_on(saver(&path).setup()).unwrap();
    let mut child =
        child("acknowledged_writes_survive_a_kill", &path).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(std::result::Result::unwrap);
    let acknowledged = |lines: &mut dyn Iterator<Item = String>, most| -> Vec<String> {
        lines.filter_map(|line| line.split_once("stored ").map(|(_, id)| id.to_owned())).take(most).collect()
    };
    let mut stored = acknowledged(&mut lines, 40);
    child.kill().unwrap();
    child.wait().unwrap();
    // The last line may be incomplete.
    stored.extend(acknowledged(&mut lines, usize::MAX).into_iter().filter(|id| id.len() == 36));
    assert!(stored.len() >= 40);
    let saver = saver(&path);
    block_on(async {
        for id in &stored {
            let config = CheckpointConfig::new("t").with_checkpoint_id(id.as_str());
            assert!(saver.get_tuple(&config).await.unwrap().is_some(), "{id} was acknowledged");
        }
    });
    let intact: String =
        Connection::open(&path).unwrap().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(intact, "ok");
}
