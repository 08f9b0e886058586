//! The Redis saver next to the round trip of a PING through the same connection, calls in turns.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use checkpoint_benches::{calls, concurrent};
use checkpoint_core::{BaseCheckpointSaver, Checkpoint, CheckpointConfig, CheckpointMetadata};
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
    let before = cpu(&mut raw).await?;
    let begun = Instant::now();
    let rate = concurrent(Arc::new(saver.clone()), arguments.tasks, arguments.seconds).await?;
    let busy = (cpu(&mut raw).await? - before) / begun.elapsed().as_secs_f64();
    println!();
    println!(
        "{} tasks on one connection: {rate:.0} steps/s (a put and a put_writes each), {:.0} % of a core used by the server",
        arguments.tasks,
        busy * 100.0
    );
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

/// CPU seconds that the server has used.
async fn cpu(raw: &mut redis::aio::MultiplexedConnection) -> Result<f64> {
    let info: String = redis::cmd("INFO").arg("cpu").query_async(raw).await?;
    let of = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    Ok(of("used_cpu_sys:").unwrap_or_default() + of("used_cpu_user:").unwrap_or_default())
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
