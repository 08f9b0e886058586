//! Threads that grow step by step, on any saver: single calls next to the round trip of a ping, and concurrent steps.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, ChannelVersions, Checkpoint, CheckpointConfig, CheckpointMetadata, Str,
};

use crate::{Message, Settings, message, messages};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// A thread with a list of messages, a few small channels and a value that never changes.
struct Stepping {
    thread: u64,
    messages: Vec<Message>,
    settings: ChannelValue,
    step: i64,
    config: CheckpointConfig,
}

impl Stepping {
    fn new(thread: u64, count: u64, config: CheckpointConfig) -> Result<Self> {
        let settings = ChannelValue::encode(&Settings::of_every_thread())?;
        let messages = messages(thread, count);
        Ok(Self { thread, messages, settings, step: 0, config })
    }

    /// The next step: one message more.
    fn next(&mut self) -> Result<(Checkpoint, CheckpointMetadata, ChannelVersions)> {
        self.step += 1;
        self.messages.push(message(self.thread, self.messages.len() as u64));
        let version = format!("{:032}.0.5", self.step);
        let mut checkpoint = Checkpoint::new(self.step)
            .with_channel("messages", ChannelValue::encode(&self.messages)?, &*version)
            .with_channel("step", self.step, &*version)
            .with_channel("settings", self.settings.clone(), "1");
        for node in ["agent", "tools"] {
            let seen: ChannelVersions = [(Str::from("messages"), (&*version).into())].into_iter().collect();
            checkpoint.versions_seen.insert(node.into(), seen);
        }
        let mut new: ChannelVersions = checkpoint.channel_versions.clone();
        if self.step > 1 {
            new.shift_remove("settings");
        }
        Ok((checkpoint, CheckpointMetadata::new("loop", self.step), new))
    }
}

/// A percentile of durations, in microseconds.
fn percentile(durations: &mut [Duration], percent: usize) -> f64 {
    durations.sort_unstable();
    let at = (durations.len() * percent / 100).min(durations.len().saturating_sub(1));
    durations.get(at).map_or(0.0, |found| found.as_secs_f64() * 1e6)
}

/// Times `ping`, `put` and `get_tuple` in turns, and prints them as rows of a table.
///
/// # Errors
/// Any error of the saver, and if another checkpoint was read than stored.
///
/// # Cancellation
/// A dropped call has stored some of its threads.
pub async fn calls(saver: &dyn BaseCheckpointSaver, name: &str, messages: u64, rounds: usize) -> Result<()> {
    let mut times: [Vec<Duration>; 3] = Default::default();
    let mut bytes = 0;
    let mut thread = 0;
    let mut state = Stepping::new(thread, messages, CheckpointConfig::new(format!("{name}-{thread}")))?;
    for round in 0..rounds {
        // The state stays about as large as it is.
        if round % 10 == 0 {
            thread += 1;
            state = Stepping::new(thread, messages, CheckpointConfig::new(format!("{name}-{thread}")))?;
            let (checkpoint, metadata, new) = state.next()?;
            state.config = saver.put(&state.config, &checkpoint, &metadata, &new).await?;
        }
        let (checkpoint, metadata, new) = state.next()?;
        bytes = checkpoint
            .channel_values
            .values()
            .filter_map(ChannelValue::as_blob)
            .map(|blob| blob.data.len())
            .sum::<usize>();
        let begun = Instant::now();
        saver.ping().await?;
        let pinged = Instant::now();
        let stored = saver.put(&state.config, &checkpoint, &metadata, &new).await?;
        let put = Instant::now();
        let found = saver.get_tuple(&state.config.clone().latest()).await?;
        let got = Instant::now();
        if found.is_none_or(|found| found.checkpoint.channel_values != checkpoint.channel_values) {
            return Err("another checkpoint was read than stored".into());
        }
        let [of_ping, of_put, of_get] = &mut times;
        of_ping.push(pinged - begun);
        of_put.push(put - pinged);
        of_get.push(got - put);
        state.config = stored;
    }
    let [of_ping, of_put, of_get] = &mut times;
    let ping = percentile(of_ping, 50);
    for (call, times) in [("PING", of_ping), ("put", of_put), ("get_tuple", of_get)] {
        let (p50, p99) = (percentile(times, 50), percentile(times, 99));
        println!("| {} KB | {call} | {p50:.0} | {p99:.0} | {:.2} |", bytes / 1000, p50 / ping);
    }
    Ok(())
}

/// Steps threads in `tasks` at the same time: a `put` and a `put_writes` each. Returns the steps per second.
///
/// # Errors
/// Any error of the saver.
///
/// # Cancellation
/// The tasks of a dropped call go on.
pub async fn concurrent(saver: Arc<dyn BaseCheckpointSaver>, tasks: u64, seconds: u64) -> Result<f64> {
    let (steps, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut running = Vec::new();
    let begun = Instant::now();
    for task in 0..tasks {
        let (saver, steps, stop) = (saver.clone(), Arc::clone(&steps), Arc::clone(&stop));
        let mut config = CheckpointConfig::new(format!("concurrent-{task}"));
        running.push(tokio::spawn(async move {
            let value = ChannelValue::encode(&message(task, 0))?;
            let writes = [(Str::from("messages"), value.clone())];
            let mut number = 0_i64;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                let version = format!("{number:032}.0.5");
                let checkpoint = Checkpoint::new(number).with_channel("messages", value.clone(), &*version);
                let new = checkpoint.channel_versions.clone();
                let metadata = CheckpointMetadata::new("loop", number);
                config = saver.put(&config, &checkpoint, &metadata, &new).await?;
                saver.put_writes(&config, &writes, "task", "").await?;
                steps.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, checkpoint_core::Error>(())
        }));
    }
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    stop.store(true, Ordering::Relaxed);
    for task in running {
        task.await??;
    }
    #[expect(clippy::cast_precision_loss, reason = "it is shown rounded")]
    let steps = steps.load(Ordering::Relaxed) as f64;
    Ok(steps / begun.elapsed().as_secs_f64())
}
