//! The Redis saver next to the round trip of a PING through the same connection, calls in turns.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use checkpoint_benches::{Message, Settings, message, messages};
use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, ChannelVersions, Checkpoint, CheckpointConfig, CheckpointMetadata, Str,
};
use checkpoint_redis::RedisSaver;
use clap::Parser;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

#[derive(Debug, Parser)]
#[command(about = "The Redis saver next to the round trip of a PING")]
struct Arguments {
    /// The server.
    #[arg(long, env = "BENCH_REDIS_URL")]
    url: String,
    /// How often the calls of one state are made.
    #[arg(long, default_value_t = 2000)]
    rounds: usize,
    /// How long the concurrent tasks run, in seconds.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// How many tasks step threads of their own at once, on one connection.
    #[arg(long, default_value_t = 64)]
    tasks: u64,
}

/// A thread with a list of messages, a few small channels and a value that never changes.
struct State {
    thread: u64,
    messages: Vec<Message>,
    settings: ChannelValue,
    step: i64,
    config: CheckpointConfig,
}

impl State {
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

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let prefix = format!("bench{}", std::process::id());
    let saver = RedisSaver::builder(&*arguments.url).key_prefix(&*prefix).build()?;
    saver.setup().await?;
    let raw = redis::Client::open(&*arguments.url)?;
    let mut raw = raw.get_multiplexed_async_connection().await?;
    println!("| state | call | p50 µs | p99 µs | p50 / PING |");
    println!("|---|---|---|---|---|");
    for (name, messages, rounds) in [("small", 9, arguments.rounds), ("large", 1000, arguments.rounds / 4)] {
        calls(&saver, name, messages, rounds).await?;
    }
    concurrent(&saver, &arguments, &mut raw).await?;
    memory(&saver, &mut raw).await?;
    let mut cursor = 0_u64;
    loop {
        let (next, keys): (u64, Vec<Vec<u8>>) = redis::cmd("SCAN")
            .arg(cursor)
            .arg("MATCH")
            .arg(format!("{prefix}:*"))
            .arg("COUNT")
            .arg(1000)
            .query_async(&mut raw)
            .await?;
        if !keys.is_empty() {
            redis::cmd("UNLINK").arg(keys).query_async::<()>(&mut raw).await?;
        }
        if next == 0 {
            return Ok(());
        }
        cursor = next;
    }
}

/// Times PING, `put` and `get_tuple` in turns.
async fn calls(saver: &RedisSaver, name: &str, messages: u64, rounds: usize) -> Result<()> {
    let mut times: [Vec<Duration>; 3] = Default::default();
    let mut bytes = 0;
    let mut thread = 0;
    let mut state = State::new(thread, messages, CheckpointConfig::new(format!("{name}-{thread}")))?;
    for round in 0..rounds {
        // The state stays about as large as it is.
        if round % 10 == 0 {
            thread += 1;
            state = State::new(thread, messages, CheckpointConfig::new(format!("{name}-{thread}")))?;
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

/// CPU seconds that the server has used.
async fn cpu(raw: &mut redis::aio::MultiplexedConnection) -> Result<f64> {
    let info: String = redis::cmd("INFO").arg("cpu").query_async(raw).await?;
    let of = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    Ok(of("used_cpu_sys:").unwrap_or_default() + of("used_cpu_user:").unwrap_or_default())
}

/// Steps threads concurrently on one connection: `put_writes` and `put`.
async fn concurrent(
    saver: &RedisSaver,
    arguments: &Arguments,
    raw: &mut redis::aio::MultiplexedConnection,
) -> Result<()> {
    let (steps, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut tasks = Vec::new();
    let before = cpu(raw).await?;
    let begun = Instant::now();
    for task in 0..arguments.tasks {
        let (saver, steps, stop) = (saver.clone(), Arc::clone(&steps), Arc::clone(&stop));
        let mut config = CheckpointConfig::new(format!("concurrent-{task}"));
        tasks.push(tokio::spawn(async move {
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
    tokio::time::sleep(Duration::from_secs(arguments.seconds)).await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await??;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let busy = (cpu(raw).await? - before) / seconds;
    #[expect(clippy::cast_precision_loss, reason = "it is shown rounded")]
    let rate = steps.load(Ordering::Relaxed) as f64 / seconds;
    println!();
    println!(
        "{} tasks on one connection: {rate:.0} steps/s (a put and a put_writes each), {:.0} % of a core used by the server",
        arguments.tasks,
        busy * 100.0
    );
    Ok(())
}

/// What tiny checkpoints with two writes take.
async fn memory(saver: &RedisSaver, raw: &mut redis::aio::MultiplexedConnection) -> Result<()> {
    async fn used(raw: &mut redis::aio::MultiplexedConnection) -> Result<i64> {
        let info: String = redis::cmd("INFO").arg("memory").query_async(raw).await?;
        let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        Ok(used.ok_or("the server does not tell its memory")?.trim().parse()?)
    }
    const THREADS: i64 = 100;
    const STEPS: i64 = 20;
    let before = used(raw).await?;
    for thread in 0..THREADS {
        let mut config = CheckpointConfig::new(format!("tiny-{thread}"));
        for step in 0..STEPS {
            let version = format!("{step:032}.0.5");
            let checkpoint = Checkpoint::new(step).with_channel("count", step, &*version);
            let new = checkpoint.channel_versions.clone();
            config = saver.put(&config, &checkpoint, &CheckpointMetadata::new("loop", step), &new).await?;
            let writes = [("count".into(), step.into()), ("other".into(), step.into())];
            saver.put_writes(&config, &writes, "task", "").await?;
        }
    }
    let bytes = (used(raw).await? - before) / (THREADS * STEPS);
    println!("memory of a tiny checkpoint with two writes: {bytes} bytes");
    Ok(())
}
