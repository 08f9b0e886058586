//! Writers that go on while things break, and what must be stored afterwards: all that was acknowledged, and whole.

#![allow(dead_code, reason = "each binary uses its part of this")]

use std::io::{BufRead, BufReader, Write};
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, Checkpoint, CheckpointConfig, CheckpointMetadata, Error, ErrorKind,
    ListQuery, PruneStrategy, Result, SaverExt, Str, Value, id,
};
use tokio::task::JoinHandle;

use super::soak::{Random, rounds};

/// Concurrent writers.
#[derive(Debug, Default)]
pub(crate) struct Load {
    stop: AtomicBool,
    /// The number of acknowledged writes.
    stored: AtomicU64,
}

impl Load {
    /// Whether writers should continue.
    pub(crate) fn lasts(&self) -> bool {
        !self.stop.load(Ordering::Acquire)
    }

    /// Counts an acknowledged write.
    pub(crate) fn count(&self) {
        self.stored.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits until `more` further writes are acknowledged.
    pub(crate) async fn goes_on(&self, more: u64) {
        let enough = self.stored.load(Ordering::Acquire) + more;
        while self.stored.load(Ordering::Acquire) < enough {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn end<T>(&self, writers: Vec<JoinHandle<T>>) -> Vec<T> {
        self.stop.store(true, Ordering::Release);
        join(writers).await
    }
}

pub(crate) async fn join<T>(tasks: Vec<JoinHandle<T>>) -> Vec<T> {
    let mut done = Vec::new();
    for task in tasks {
        done.push(task.await.unwrap());
    }
    done
}

/// A call may fail while the server is down, but only with a retryable error.
#[track_caller]
pub(crate) fn may_fail(error: &Error) {
    let expected = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Conflict);
    assert!(expected && error.is_retryable(), "{error:?}");
}

pub(crate) fn list(number: u64) -> ChannelValue {
    let items = (0..40).map(|at| Value::from(i64::try_from(number).unwrap() + at)).collect();
    ChannelValue::from_msgpack(Value::Array(items).to_msgpack().unwrap().into()).unwrap()
}

/// A checkpoint whose values are all new.
pub(crate) fn step(number: u64) -> Checkpoint {
    let version = format!("{:032}.{}", number + 1, id::uuid6(0));
    ["items", "more"]
        .into_iter()
        .fold(Checkpoint::new(0), |made, channel| made.with_channel(channel, list(number), version.as_str()))
        .with_channel("number", i64::try_from(number).unwrap(), version.as_str())
}

pub(crate) fn metadata() -> CheckpointMetadata {
    CheckpointMetadata::new("loop", 1)
}

pub(crate) fn writes(number: u64) -> [(Str, ChannelValue); 2] {
    [("items".into(), list(number)), ("number".into(), i64::try_from(number).unwrap().into())]
}

/// The acknowledged writes of a writer.
#[derive(Debug, Default)]
pub(crate) struct Acknowledged {
    pub(crate) checkpoints: Vec<(CheckpointConfig, Checkpoint)>,
    /// Checkpoints whose writes were acknowledged, too.
    pub(crate) writes: Vec<CheckpointConfig>,
}

/// Starts writers, about three per thread. Checkpoints are made from their numbers.
pub(crate) fn start<S: BaseCheckpointSaver + Clone>(
    saver: &S,
    writers: usize,
    step: fn(u64) -> Checkpoint,
) -> (Arc<Load>, Vec<JoinHandle<Acknowledged>>) {
    let load = Arc::<Load>::default();
    let start =
        |at| writer(saver.clone(), format!("thread-{}", at % writers.div_ceil(3)), load.clone(), step);
    let running = (0..writers).map(start).collect();
    (load, running)
}

/// Puts checkpoints and writes until the load ends, and continues after failures.
fn writer<S: BaseCheckpointSaver>(
    saver: S,
    thread_id: String,
    load: Arc<Load>,
    step: fn(u64) -> Checkpoint,
) -> JoinHandle<Acknowledged> {
    tokio::spawn(async move {
        let mut known = Acknowledged::default();
        let mut config = CheckpointConfig::new(thread_id);
        let mut number = 0;
        while load.lasts() {
            number += 1;
            let made = step(number);
            match saver.put(&config, &made, &metadata(), &made.channel_versions).await {
                Ok(stored) => {
                    config = stored;
                    known.checkpoints.push((config.clone(), made));
                    load.count();
                }
                Err(error) => {
                    may_fail(&error);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                }
            }
            match saver.put_writes(&config, &writes(number), "task", "~path").await {
                Ok(()) => known.writes.push(config.clone()),
                Err(error) => {
                    may_fail(&error);
                }
            }
        }
        known
    })
}

/// Checks that all acknowledged data is stored. Returns the number of checkpoints.
pub(crate) async fn read_back(saver: &impl BaseCheckpointSaver, known: &[Acknowledged]) -> usize {
    for known in known {
        for (config, made) in &known.checkpoints {
            let found = saver.get_tuple(config).await.unwrap();
            let found = found.unwrap_or_else(|| panic!("{config:?} was acknowledged and is gone"));
            assert_eq!(&found.checkpoint, made);
        }
        for config in &known.writes {
            let found = saver.get_tuple(config).await.unwrap().unwrap().pending_writes;
            let Some(ChannelValue::Int(number)) = found.get(1).map(|write| write.value.clone()) else {
                panic!("the writes of {config:?} were acknowledged and are gone: {found:?}")
            };
            let wanted = writes(number.unsigned_abs());
            assert!(found.iter().map(|write| &write.value).eq(wanted.iter().map(|(_, value)| value)));
        }
    }
    known.iter().map(|known| known.checkpoints.len()).sum()
}

/// Drops a future at a random point, after a few polls or a few milliseconds.
pub(crate) async fn drop_somewhere<F: Future>(future: F, random: &mut Random) -> Option<F::Output> {
    let mut future = pin!(future);
    if random.below(2) == 0 {
        let longest = *random.pick(&[500, 2_000, 10_000, 50_000]);
        return tokio::time::timeout(Duration::from_micros(random.below(longest)), future).await.ok();
    }
    for _ in 0..random.below(30) {
        if let Poll::Ready(output) =
            std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
        {
            return Some(output);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// Drops calls of every kind somewhere. Returns the acknowledged writes.
pub(crate) async fn drop_futures<S: BaseCheckpointSaver + Clone>(
    saver: &S,
    step: fn(u64) -> Checkpoint,
) -> Vec<Acknowledged> {
    let mut tasks = Vec::new();
    for seed in 0..6 {
        let saver = saver.clone();
        tasks.push(tokio::spawn(async move {
            let mut random = Random(seed);
            let mut known = Acknowledged::default();
            let thread_id = format!("thread-{}", seed % 2);
            let mut config = CheckpointConfig::new(thread_id.clone());
            for number in 0..120 {
                let made = step(number);
                let metadata = metadata();
                let put = saver.put(&config, &made, &metadata, &made.channel_versions);
                // Some calls are not dropped, so that the others have a parent.
                let stays = number % 10 == 0;
                let stored = if stays { Some(put.await) } else { drop_somewhere(put, &mut random).await };
                if let Some(stored) = stored {
                    config = stored.unwrap();
                    known.checkpoints.push((config.clone(), made));
                }
                let Some((newest, _)) = known.checkpoints.last().cloned() else { continue };
                let (copy, task) = (format!("copy-{seed}"), format!("task-{number}"));
                let (threads, writes) = ([copy.as_str()], writes(number));
                match random.below(5) {
                    0 => drop(drop_somewhere(saver.get_tuple(&newest), &mut random).await),
                    1 => {
                        let query = ListQuery::thread(thread_id.clone());
                        drop(drop_somewhere(saver.list_all(query), &mut random).await);
                    }
                    2 => drop(drop_somewhere(saver.copy_thread(&thread_id, &copy), &mut random).await),
                    3 => {
                        let call = saver.prune(&threads, PruneStrategy::KeepLatest);
                        drop(drop_somewhere(call, &mut random).await);
                    }
                    _ => {
                        // Each with its own task: a dropped call may have stored its writes.
                        let call = saver.put_writes(&newest, &writes, &task, "");
                        drop(drop_somewhere(call, &mut random).await);
                    }
                }
            }
            known
        }));
    }
    let known = join(tasks).await;
    for known in &known {
        assert!(
            (12..120).contains(&known.checkpoints.len()),
            "{} calls were finished",
            known.checkpoints.len()
        );
    }
    known
}

/// If set to a place, this binary writes to the database there until it is killed.
const CHILD: &str = "CHECKPOINT_TEST_WRITER";

/// The thread of the processes.
pub(crate) const THREAD: &str = "shared";

/// A process that writes to the shared thread.
pub(crate) struct Writer {
    process: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Writer {
    pub(crate) fn start(place: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .env(CHILD, place)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (send, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(std::io::Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Self { process, lines }
    }

    /// Waits until `count` checkpoints were acknowledged.
    pub(crate) fn wait(&self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.lines.recv_timeout(Duration::from_secs(60)).unwrap()).collect()
    }

    /// Kills it at any point, and returns the remaining acknowledged checkpoints.
    pub(crate) fn kill(mut self) -> Vec<String> {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.lines.iter().collect()
    }
}

/// The place that this process is to write to, if it was started for that.
pub(crate) fn place_of_child() -> Option<String> {
    std::env::var(CHILD).ok()
}

/// The process: each line of its output is the id of a checkpoint that is stored with its writes.
pub(crate) async fn write_until_killed(
    saver: &impl BaseCheckpointSaver,
    step: fn(u64) -> Checkpoint,
) -> Result<()> {
    let mut config = CheckpointConfig::new(THREAD);
    for number in 0.. {
        let made = step(number);
        config = saver.put(&config, &made, &metadata(), &made.channel_versions).await?;
        saver.put_writes(&config, &writes(number), "task", "~path").await?;
        let mut output = std::io::stdout().lock();
        if writeln!(output, "{}", made.id).and_then(|()| output.flush()).is_err() {
            break;
        }
    }
    Ok(())
}

/// Two processes write at a time, and the older one is killed, again and again. Everything that was acknowledged is stored.
pub(crate) async fn kill_in_turns(saver: &impl BaseCheckpointSaver, place: &str, kills: u64) {
    let place = place.to_owned();
    let acknowledged = tokio::task::spawn_blocking(move || {
        let mut acknowledged = Vec::new();
        let mut running = Writer::start(&place);
        for round in 0..usize::try_from(rounds(kills)).unwrap() {
            let other = Writer::start(&place);
            acknowledged.extend(running.wait(3));
            acknowledged.extend(other.wait(2 + round % 4));
            acknowledged.extend(running.kill());
            running = other;
        }
        acknowledged.extend(running.kill());
        acknowledged
    })
    .await
    .unwrap();
    let stored = saver.list_all(ListQuery::thread(THREAD)).await.unwrap();
    let by_id: std::collections::HashMap<&str, _> =
        stored.iter().map(|tuple| (&*tuple.checkpoint.id, tuple)).collect();
    for id in &acknowledged {
        let tuple = by_id.get(&**id);
        let tuple = tuple.unwrap_or_else(|| panic!("{id} was acknowledged and is gone"));
        assert_eq!(tuple.pending_writes.len(), 2, "{id}");
    }
    for tuple in &stored {
        let values = &tuple.checkpoint.channel_values;
        let number: i64 = values["number"].decode().unwrap();
        let wanted = list(number.unsigned_abs());
        assert_eq!((&values["items"], &values["more"]), (&wanted, &wanted));
        // The writes of a task come together.
        assert!([0, 2].contains(&tuple.pending_writes.len()), "{:?}", tuple.pending_writes);
    }
}
