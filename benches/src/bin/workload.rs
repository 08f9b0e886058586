//! Runs one group of the workload on one saver, and prints one line of JSON with the latencies of each operation.
//!
//! Every run begins with a fresh file. What is read is checked, outside of the timed part.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use checkpoint_benches::{
    BIG_BYTES, ChatThread, Latencies, Mark, Recorder, State, TASK_PATH, big_blob, message, messages,
    thread_id,
};
use checkpoint_core::{
    BaseCheckpointSaver, Bytes, ChannelValue, Checkpoint, CheckpointConfig, CheckpointMetadata,
    CheckpointTuple, InMemorySaver, ListQuery, SaverExt, Str, TypedBytes, id,
};
use checkpoint_sqlite::{SqliteSaver, Synchronous};
use clap::{Parser, ValueEnum};
use indexmap::IndexMap;
use serde::Serialize;

const THREADS: u64 = 10;
const STEPS: u64 = 100;
const BIG_STEPS: u64 = 20;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;
type Saver = Arc<dyn BaseCheckpointSaver>;

/// Runs one group of the workload on one saver.
#[derive(Debug, Parser)]
struct Arguments {
    /// The saver.
    #[arg(long, value_enum, default_value_t = Implementation::Sqlite)]
    r#impl: Implementation,
    /// What to run.
    #[arg(long, value_enum)]
    group: Group,
    /// Whether a commit waits for the disk: synchronous FULL, or NORMAL.
    #[arg(long, value_enum, default_value_t = Synchrony::On)]
    sync: Synchrony,
    /// How many tasks (conc, 1 unless given), or how many steps (scale, 100 unless given).
    #[arg(long)]
    level: Option<usize>,
    /// How long the tasks of conc run.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Where the file is made, in a folder of its own that is removed afterwards; the default is the system's place
    /// for temporary files.
    #[arg(long)]
    directory: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Implementation {
    Sqlite,
    Memory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Group {
    /// Ten chats of 100 steps, then reads, listings, writes and deletions.
    Chat,
    /// One channel of 1 MiB, written and read.
    Big,
    /// Several tasks, each with a thread of its own.
    Conc,
    /// One long thread whose state stays the same size.
    Scale,
    /// Nothing: prints the messages of the ten chats as JSON, one chat a line, for a driver in another language.
    Data,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Synchrony {
    On,
    Off,
}

#[derive(Debug, Serialize)]
struct Line {
    r#impl: &'static str,
    group: Group,
    sync: Synchrony,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<usize>,
    ops: IndexMap<&'static str, Latencies>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<Disk>,
    max_rss_mb: f64,
    at: Str,
}

/// The size of the database's files.
#[derive(Debug, Serialize)]
struct Disk {
    sqlite: Files,
}

#[derive(Debug, Serialize)]
struct Files {
    file: u64,
    wal: u64,
}

/// What a group leaves.
struct Run {
    ops: IndexMap<&'static str, Latencies>,
    level: Option<usize>,
    disk: Option<Disk>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let directory = arguments.directory.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::tempdir_in(directory)?;
    let path = folder.path().join("bench.sqlite");
    let saver: Saver = match arguments.r#impl {
        Implementation::Memory => Arc::new(InMemorySaver::new()),
        Implementation::Sqlite => {
            let synchronous = match arguments.sync {
                Synchrony::On => Synchronous::Full,
                Synchrony::Off => Synchronous::Normal,
            };
            let saver = SqliteSaver::builder(&path).synchronous(synchronous).build()?;
            saver.setup().await?;
            Arc::new(saver)
        }
    };
    let run = match arguments.group {
        Group::Chat => chat(saver, &path).await?,
        Group::Big => big(saver, &path).await?,
        Group::Conc => conc(saver, arguments.level.unwrap_or(1), arguments.seconds).await?,
        Group::Scale => scale(saver, arguments.level.unwrap_or(100)).await?,
        Group::Data => {
            for number in 0..THREADS {
                println!("{}", serde_json::to_string(&messages(number, STEPS + 1))?);
            }
            return Ok(());
        }
    };
    let line = Line {
        r#impl: match arguments.r#impl {
            Implementation::Sqlite => "rust-sqlite",
            Implementation::Memory => "rust-memory",
        },
        group: arguments.group,
        sync: arguments.sync,
        level: run.level,
        ops: run.ops,
        disk: run.disk,
        max_rss_mb: max_rss_mb(),
        at: id::now(),
    };
    println!("{}", serde_json::to_string(&line)?);
    Ok(())
}

fn check(holds: bool, what: &str) -> Result<()> {
    if holds {
        Ok(())
    } else {
        Err(format!("the saver returned something else than was stored: {what}").into())
    }
}

/// A number that tells the threads of one run from those of another.
fn run_id() -> u32 {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    now.subsec_nanos() ^ std::process::id().rotate_left(16)
}

fn disk(path: &std::path::Path) -> Option<Disk> {
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    let file = std::fs::metadata(path).ok()?.len();
    Some(Disk { sqlite: Files { file, wal: std::fs::metadata(wal).map_or(0, |metadata| metadata.len()) } })
}

/// The most memory that this process ever had, where the system tells.
fn max_rss_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or_default() / 1024.0
}

/// Reads one tuple and decodes its channels. The call alone is recorded under one name, with decoding under another.
async fn read_state(
    saver: &Saver,
    config: &CheckpointConfig,
    recorder: &mut Recorder,
    (call, decoded): (&'static str, &'static str),
) -> Result<(CheckpointTuple, State)> {
    let begun = Mark::now();
    let found = saver.get_tuple(config).await?;
    recorder.record(call, begun);
    let tuple = found.ok_or("a checkpoint is gone")?;
    let state = State::decode(&tuple.checkpoint.channel_values)?;
    recorder.record(decoded, begun);
    Ok((tuple, state))
}

/// Reads a listing to its end and decodes the channels of all tuples.
async fn read_listing(
    saver: &Saver,
    query: ListQuery,
    recorder: &mut Recorder,
    (call, decoded): (&'static str, &'static str),
) -> Result<Vec<State>> {
    let begun = Mark::now();
    let tuples = saver.list_all(query).await?;
    recorder.record(call, begun);
    let states = tuples
        .iter()
        .map(|tuple| State::decode(&tuple.checkpoint.channel_values))
        .collect::<Result<_, _>>()?;
    recorder.record(decoded, begun);
    Ok(states)
}

async fn record_step(thread: &mut ChatThread, recorder: &mut Recorder) -> Result<()> {
    let step = thread.next_step();
    let begun = Mark::now();
    thread.put_writes(&step).await?;
    recorder.record("put_writes", begun);
    let written = Mark::now();
    thread.put(&step).await?;
    recorder.record("put", written);
    recorder.record("step", begun);
    Ok(())
}

async fn chat(saver: Saver, path: &std::path::Path) -> Result<Run> {
    let mut recorder = Recorder::default();
    let run = run_id();
    let first = messages(0, STEPS + 1);
    for _ in 0..2 {
        let mut warm = ChatThread::new(Arc::clone(&saver), run, 999_999, first.clone());
        warm.start().await?;
        warm.step().await?;
        saver.get_tuple(&warm.latest()).await?;
    }
    saver.delete_thread(&thread_id(run, 999_999)).await?;

    let mut threads = Vec::new();
    for number in 0..THREADS {
        let data = messages(number, STEPS + 1);
        let mut thread = ChatThread::new(Arc::clone(&saver), run, number, data);
        thread.start().await?;
        for _ in 0..STEPS {
            record_step(&mut thread, &mut recorder).await?;
        }
        threads.push(thread);
    }
    let disk = disk(path);

    for thread in threads.iter().cycle().take(200) {
        let names = ("get_latest", "get_latest_decoded");
        let (tuple, state) = read_state(&saver, &thread.latest(), &mut recorder, names).await?;
        check(state.messages.len() == 101 && state.counter == 100, "the newest state")?;
        check(tuple.checkpoint.channel_values.len() == 7 && tuple.pending_writes.is_empty(), "the newest")?;
    }
    for thread in threads.iter().cycle().take(200) {
        let names = ("get_mid", "get_mid_decoded");
        let (tuple, state) = read_state(&saver, &thread.at(50), &mut recorder, names).await?;
        check(state.messages.len() == 51 && tuple.pending_writes.len() == 2, "an old one")?;
    }
    for thread in threads.iter().cycle().take(50) {
        let query = ListQuery::from_config(&thread.latest()).limit(10);
        let states = read_listing(&saver, query, &mut recorder, ("list_10", "list_10_decoded")).await?;
        check(states.iter().map(|state| state.counter).eq((91..=100).rev()), "ten of a listing")?;
    }
    for thread in threads.iter().cycle().take(10) {
        let query = ListQuery::from_config(&thread.latest());
        let states = read_listing(&saver, query, &mut recorder, ("list_all", "list_all_decoded")).await?;
        check(states.iter().map(|state| state.counter).eq((0..=100).rev()), "a whole listing")?;
    }
    let ten: Vec<_> = (0..10).map(|k| message(7, k)).collect();
    for (i, thread) in threads.iter().cycle().take(200).enumerate() {
        let task_id = format!("00000000-0000-4000-a000-{i:012}");
        let config = thread.last();
        let begun = Mark::now();
        let encode = |message| Ok((Str::from("messages"), ChannelValue::encode(message)?));
        let writes = ten.iter().map(encode).collect::<checkpoint_core::Result<Vec<_>>>()?;
        saver.put_writes(&config, &writes, &task_id, TASK_PATH).await?;
        recorder.record("put_writes_10", begun);
    }
    for thread in &threads {
        let begun = Mark::now();
        saver.delete_thread(thread.thread_id()).await?;
        recorder.record("delete_thread", begun);
        check(saver.get_tuple(&thread.latest()).await?.is_none(), "a deleted thread")?;
    }
    Ok(Run { ops: recorder.finish(), level: None, disk })
}

async fn big(saver: Saver, path: &std::path::Path) -> Result<Run> {
    let mut recorder = Recorder::default();
    let newest = CheckpointConfig::new(thread_id(run_id(), 0));
    let blobs: Vec<Bytes> = (0..=BIG_STEPS).map(big_blob).collect();
    let (mut config, mut version) = (newest.clone(), None);
    for (step, blob) in (0_i64..).zip(&blobs) {
        let next = saver.get_next_version(version.as_ref());
        let metadata = CheckpointMetadata::new("loop", step - 1);
        let begun = Mark::now();
        let value = TypedBytes::new("bytes", blob.clone());
        let mut checkpoint = Checkpoint::new(step).with_channel("blob", value, next.clone());
        checkpoint.updated_channels = Some(vec!["blob".into()]);
        config = saver.put(&config, &checkpoint, &metadata, &checkpoint.channel_versions).await?;
        if step > 0 {
            recorder.record("put_1mb", begun);
        }
        version = Some(next);
    }
    let disk = disk(path);
    for _ in 0..BIG_STEPS {
        let begun = Mark::now();
        let found = saver.get_tuple(&newest).await?;
        recorder.record("get_latest_1mb", begun);
        let tuple = found.ok_or("the blob is gone")?;
        let Some(ChannelValue::Blob(read)) = tuple.checkpoint.channel_values.get("blob") else {
            return Err("the blob came back as something else".into());
        };
        check(read.data.len() == BIG_BYTES && Some(&read.data) == blobs.last(), "a blob")?;
    }
    Ok(Run { ops: recorder.finish(), level: None, disk })
}

async fn conc(saver: Saver, tasks: usize, seconds: f64) -> Result<Run> {
    let run = run_id();
    let seconds = Duration::try_from_secs_f64(seconds)?;
    let data: Arc<[_]> = messages(0, STEPS + 1).into();
    let mut threads = Vec::new();
    for number in (0..).take(tasks) {
        let mut thread = ChatThread::new(Arc::clone(&saver), run, number, Arc::clone(&data)).windowed();
        thread.start().await?;
        thread.step().await?;
        threads.push(thread);
    }
    let begun = Mark::now();
    let deadline = Instant::now() + seconds;
    let work = |mut thread: ChatThread| async move {
        let mut walls = Vec::new();
        loop {
            let step = thread.next_step();
            let begun = Instant::now();
            thread.put_writes(&step).await?;
            thread.put(&step).await?;
            let end = Instant::now();
            if end > deadline {
                return Result::<_>::Ok((thread, walls));
            }
            walls.push(end - begun);
            // The in-memory saver never waits; without this a few tasks would do all the steps.
            tokio::task::yield_now().await;
        }
    };
    let tasks_running: Vec<_> = threads.into_iter().map(|thread| tokio::spawn(work(thread))).collect();
    let mut walls = Vec::new();
    let mut finished = Vec::new();
    for task in tasks_running {
        let (thread, of_task) = task.await??;
        walls.extend(of_task);
        finished.push(thread);
    }
    #[expect(clippy::cast_precision_loss, reason = "a run has far fewer than 2^52 steps")]
    let steps_s = walls.len() as f64 / seconds.as_secs_f64();
    let mut recorder = Recorder::default();
    recorder.record_many("step", walls, begun);
    for thread in &finished {
        let tuple = saver.get_tuple(&thread.latest()).await?.ok_or("a thread is gone")?;
        check(tuple.config.checkpoint_id() == thread.last().checkpoint_id(), "a thread's last step")?;
    }
    let mut ops = recorder.finish();
    if let Some(step) = ops.get_mut("step") {
        step.steps_s = Some(steps_s);
    }
    Ok(Run { ops, level: Some(tasks), disk: None })
}

async fn scale(saver: Saver, length: usize) -> Result<Run> {
    let mut thread = ChatThread::new(Arc::clone(&saver), run_id(), 0, messages(0, STEPS + 1)).windowed();
    thread.start().await?;
    for _ in 0..length {
        thread.step().await?;
    }
    let mut recorder = Recorder::default();
    let mut warm = Recorder::default();
    for i in 0..240 {
        let names = ("get_latest", "get_latest_decoded");
        let into = if i < 40 { &mut warm } else { &mut recorder };
        let (tuple, state) = read_state(&saver, &thread.latest(), into, names).await?;
        check(state.messages.len() == 20 && tuple.pending_writes.is_empty(), "the newest state")?;
    }
    for i in 0..70 {
        let into = if i < 40 { &mut warm } else { &mut recorder };
        let query = ListQuery::from_config(&thread.latest()).limit(10);
        let states = read_listing(&saver, query, into, ("list_10", "list_10_decoded")).await?;
        check(states.len() == 10.min(length + 1), "ten of a listing")?;
    }
    for _ in 0..100 {
        record_step(&mut thread, &mut recorder).await?;
    }
    let begun = Mark::now();
    saver.delete_thread(thread.thread_id()).await?;
    recorder.record("delete_thread", begun);
    check(saver.get_tuple(&thread.latest()).await?.is_none(), "a deleted thread")?;
    Ok(Run { ops: recorder.finish(), level: Some(length), disk: None })
}
