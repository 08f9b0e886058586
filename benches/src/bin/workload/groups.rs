//! The groups of the workload, each on one saver. Reads are checked outside the timed part.

use std::sync::Arc;
use std::time::{Duration, Instant};

use checkpoint_benches::{
    BIG_BYTES, ChatThread, Mark, Phase, Recorder, State, TASK_PATH, big_blob, message, messages, thread_id,
};
use checkpoint_core::{
    BaseCheckpointSaver, Bytes, ChannelValue, Checkpoint, CheckpointConfig, CheckpointMetadata,
    CheckpointTuple, ListQuery, SaverExt, Str, TypedBytes,
};

use crate::place::Place;
use crate::{Result, Run};

/// The number of chats of a group.
pub(crate) const THREADS: u64 = 10;
/// The number of steps of a chat after its input.
pub(crate) const STEPS: u64 = 100;
/// The number of big blobs after the first.
pub(crate) const BIG_STEPS: u64 = 20;

pub(crate) type Saver = Arc<dyn BaseCheckpointSaver>;

pub(crate) fn check(holds: bool, what: &str) -> Result<()> {
    if holds {
        Ok(())
    } else {
        Err(format!("the saver returned something else than was stored: {what}").into())
    }
}

/// A number that distinguishes the threads of different runs.
pub(crate) fn run_id() -> u32 {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    now.subsec_nanos() ^ std::process::id().rotate_left(16)
}

/// Reads one tuple and decodes its channels. Records the call under one name, and the call with decoding under another.
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

/// Reads a list to its end and decodes the channels of all tuples.
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

/// Records each call with and without the encoding of its values.
async fn record_step(thread: &mut ChatThread, recorder: &mut Recorder) -> Result<()> {
    let step = thread.next_step();
    let begun = Mark::now();
    let writes = step.writes()?;
    let encoded = Mark::now();
    thread.put_encoded_writes(&step, &writes).await?;
    recorder.record("put_writes_encoded", encoded);
    recorder.record("put_writes", begun);
    let written = Mark::now();
    let checkpoint = step.checkpoint()?;
    let encoded = Mark::now();
    thread.put_encoded(&step, &checkpoint).await?;
    recorder.record("put_encoded", encoded);
    recorder.record("put", written);
    recorder.record("step", begun);
    Ok(())
}

pub(crate) async fn chat(saver: Saver, place: &Place) -> Result<Run> {
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

    let phase = Phase::begin();
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
    recorder.end("step", phase);
    let disk = place.disk().await?;
    place.analyze().await?;

    let phase = Phase::begin();
    for thread in threads.iter().cycle().take(200) {
        let names = ("get_latest", "get_latest_decoded");
        let (tuple, state) = read_state(&saver, &thread.latest(), &mut recorder, names).await?;
        check(state.messages.len() == 101 && state.counter == 100, "the newest state")?;
        check(tuple.checkpoint.channel_values.len() == 7 && tuple.pending_writes.is_empty(), "the newest")?;
    }
    recorder.end("get_latest", phase);
    let phase = Phase::begin();
    for thread in threads.iter().cycle().take(200) {
        let names = ("get_mid", "get_mid_decoded");
        let (tuple, state) = read_state(&saver, &thread.at(50), &mut recorder, names).await?;
        check(state.messages.len() == 51 && tuple.pending_writes.len() == 2, "an old one")?;
    }
    recorder.end("get_mid", phase);
    let phase = Phase::begin();
    for thread in threads.iter().cycle().take(50) {
        let query = ListQuery::from_config(&thread.latest()).limit(10);
        let states = read_listing(&saver, query, &mut recorder, ("list_10", "list_10_decoded")).await?;
        check(states.iter().map(|state| state.counter).eq((91..=100).rev()), "ten of a listing")?;
    }
    recorder.end("list_10", phase);
    let phase = Phase::begin();
    for thread in threads.iter().cycle().take(10) {
        let query = ListQuery::from_config(&thread.latest());
        let states = read_listing(&saver, query, &mut recorder, ("list_all", "list_all_decoded")).await?;
        check(states.iter().map(|state| state.counter).eq((0..=100).rev()), "a whole listing")?;
    }
    recorder.end("list_all", phase);
    let phase = Phase::begin();
    let ten: Vec<_> = (0..10).map(|k| message(7, k)).collect();
    for (i, thread) in threads.iter().cycle().take(200).enumerate() {
        let task_id = format!("00000000-0000-4000-a000-{i:012}");
        let config = thread.last();
        let begun = Mark::now();
        let encode = |message| Ok((Str::from("messages"), ChannelValue::encode(message)?));
        let writes = ten.iter().map(encode).collect::<checkpoint_core::Result<Vec<_>>>()?;
        let encoded = Mark::now();
        saver.put_writes(&config, &writes, &task_id, TASK_PATH).await?;
        recorder.record("put_writes_10_encoded", encoded);
        recorder.record("put_writes_10", begun);
    }
    recorder.end("put_writes_10", phase);
    let phase = Phase::begin();
    for thread in &threads {
        let begun = Mark::now();
        saver.delete_thread(thread.thread_id()).await?;
        recorder.record("delete_thread", begun);
        check(saver.get_tuple(&thread.latest()).await?.is_none(), "a deleted thread")?;
    }
    recorder.end("delete_thread", phase);
    Ok(Run { ops: recorder.finish(), level: None, disk })
}

pub(crate) async fn big(saver: Saver, place: &Place) -> Result<Run> {
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
    let disk = place.disk().await?;
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

pub(crate) async fn conc(saver: Saver, tasks: usize, seconds: f64) -> Result<Run> {
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
    let phase = Phase::begin();
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
            // The in-memory saver never yields; without this a few tasks would run all the steps.
            tokio::task::consume_budget().await;
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
    let run = Run::of_steps(walls, seconds, begun, phase, tasks);
    for thread in &finished {
        let tuple = saver.get_tuple(&thread.latest()).await?.ok_or("a thread is gone")?;
        check(tuple.config.checkpoint_id() == thread.last().checkpoint_id(), "a thread's last step")?;
    }
    Ok(run)
}

pub(crate) async fn scale(saver: Saver, place: &Place, length: usize) -> Result<Run> {
    let mut thread = ChatThread::new(Arc::clone(&saver), run_id(), 0, messages(0, STEPS + 1)).windowed();
    thread.start().await?;
    for _ in 0..length {
        thread.step().await?;
    }
    place.analyze().await?;
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
