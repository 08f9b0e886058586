//! Retention on PostgreSQL: checkpoints removed per second, what an agent's `put` takes meanwhile, the naive script beside it,
//! and what `keep_last` costs a `put`. Prints one line of JSON for each.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use checkpoint_core::ChannelValue;
use checkpoint_core::retention::{RetainSummary, Retention};
use checkpoint_core::{
    BaseCheckpointSaver, Checkpoint, CheckpointConfig, CheckpointMetadata, RetainOptions, SaverExt,
    ThreadQuery, Value, id,
};
use checkpoint_postgres::PostgresSaver;
use checkpoint_postgres::tokio_postgres::{Client, Config, NoTls};
use clap::Parser;
use futures_util::TryStreamExt;
use serde_json::json;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Measures retention on PostgreSQL.
#[derive(Debug, Clone, Parser)]
struct Arguments {
    #[arg(long, env = "BENCH_PG_HOST", default_value = "127.0.0.1")]
    host: String,
    #[arg(long, env = "BENCH_PG_PORT", default_value_t = 5432)]
    port: u16,
    #[arg(long, env = "BENCH_PG_USER", default_value = "postgres")]
    user: String,
    #[arg(long, env = "BENCH_PG_PASSWORD", default_value = "postgres", hide_env_values = true)]
    password: String,
    /// How many threads there are.
    #[arg(long, default_value_t = 20_000)]
    threads: u32,
    /// How many checkpoints each of them has.
    #[arg(long, default_value_t = 50)]
    steps: u32,
    /// How many of them stay.
    #[arg(long, default_value_t = 20)]
    keep: usize,
    /// How long the agent puts alone.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// How many puts are measured with and without `keep_last`, in each of the rounds.
    #[arg(long, default_value_t = 400)]
    puts: u32,
    /// Leaves out the naive script, which may take long.
    #[arg(long)]
    without_naive: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let name = format!("bench_retention_{}", std::process::id());
    let admin = arguments.connect("postgres").await?;
    admin.batch_execute(&format!("CREATE DATABASE {name}")).await?;
    let measured = measure(&arguments, &name).await;
    admin.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await?;
    measured
}

impl Arguments {
    async fn connect(&self, database: &str) -> Result<Client> {
        let mut config = Config::new();
        config.host(&self.host).port(self.port).user(&self.user).password(&self.password).dbname(database);
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    fn url(&self, database: &str) -> String {
        let Self { host, port, user, password, .. } = self;
        format!("postgres://{user}:{password}@{host}:{port}/{database}?sslmode=disable")
    }
}

async fn measure(arguments: &Arguments, name: &str) -> Result<()> {
    let saver = PostgresSaver::builder(arguments.url(name)).build()?;
    saver.setup().await?;
    let client = arguments.connect(name).await?;

    let put = keep_last(arguments, name, &saver).await?;
    println!("{put}");

    fill(&client, arguments).await?;
    let alone = {
        let agent = Agent::start(&saver);
        tokio::time::sleep(Duration::from_secs_f64(arguments.seconds)).await;
        agent.stop().await?
    };
    let agent = Agent::start(&saver);
    let begun = Instant::now();
    let policy = Retention::new().keep_last(arguments.keep);
    let query = ThreadQuery::all().prefix("thread-");
    let (mut summary, mut batches) = (RetainSummary::default(), 0_u32);
    {
        let mut stream = std::pin::pin!(saver.retain_all(policy, RetainOptions::default(), query));
        while let Some(batch) = stream.try_next().await? {
            batches += 1;
            summary.add(batch);
        }
    }
    let took = begun.elapsed();
    let meanwhile = agent.stop().await?;
    let total = summary.report.total();
    report("retain", arguments, &client, total.checkpoints, took, &alone, &meanwhile, json!({
        "batches": batches, "freed_bytes": total.bytes, "writes": total.writes, "busy": summary.report.busy.len(),
        "failures": summary.failures, "peak_memory_mib": peak_memory(),
    }))
    .await?;

    if arguments.without_naive {
        return saver.close().await.map_err(Into::into);
    }
    client.batch_execute("TRUNCATE checkpoints, checkpoint_blobs, checkpoint_writes").await?;
    fill(&client, arguments).await?;
    let agent = Agent::start(&saver);
    let begun = Instant::now();
    let removed = naive(&client, arguments.keep).await?;
    let took = begun.elapsed();
    let meanwhile = agent.stop().await?;
    report("naive DELETE … WHERE", arguments, &client, removed, took, &alone, &meanwhile, json!({})).await?;
    saver.close().await.map_err(Into::into)
}

#[expect(clippy::too_many_arguments, reason = "each is one number of the report")]
async fn report(
    what: &str,
    arguments: &Arguments,
    client: &Client,
    removed: u64,
    took: Duration,
    alone: &[Duration],
    meanwhile: &[Duration],
    more: serde_json::Value,
) -> Result<()> {
    let left: i64 = client
        .query_one("SELECT count(*) FROM checkpoints WHERE thread_id LIKE 'thread-%'", &[])
        .await?
        .get(0);
    let seconds = took.as_secs_f64();
    println!(
        "{}",
        json!({
            "what": what,
            "threads": arguments.threads,
            "checkpoints": u64::from(arguments.threads) * u64::from(arguments.steps),
            "removed": removed,
            "left": left,
            "seconds": seconds,
            "removed_per_second": (to_f64(removed) / seconds).round(),
            "put_alone_p50_us": percentile(alone, 50),
            "put_meanwhile_p50_us": percentile(meanwhile, 50),
            "put_meanwhile_p99_us": percentile(meanwhile, 99),
            "put_meanwhile_max_us": percentile(meanwhile, 100),
            "more": more,
        })
    );
    Ok(())
}

/// Threads of steps as LangGraph stores them: a list that changes in each step, a map that does not, and two writes.
async fn fill(client: &Client, arguments: &Arguments) -> Result<()> {
    let Arguments { threads, steps, .. } = arguments;
    // 2026-01-01 in the calendar of version 6 ids, a second per step.
    let id = |step: &str| {
        let tick = format!("(139865184000000000 + (t::int8 * 60 + {step}) * 10000000)");
        format!(
            "lpad(to_hex({tick} >> 28), 8, '0') || '-' || lpad(to_hex(({tick} >> 12) & 65535), 4, '0') || '-6' || \
             lpad(to_hex({tick} & 4095), 3, '0') || '-8000-' || lpad(to_hex(t), 12, '0')"
        )
    };
    let series = format!("generate_series(1, {threads}) t, generate_series(1, {steps}) s");
    let thread = "'thread-' || lpad(t::text, 8, '0')";
    let (this, parent) = (id("s"), id("(s - 1)"));
    let checkpoints = format!(
        "INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata) \
         SELECT {thread}, '', {this}, CASE WHEN s > 1 THEN {parent} END, \
         jsonb_build_object('v', 4, 'ts', '2026-01-01T00:00:00+00:00', 'id', {this}, \
         'channel_values', jsonb_build_object('counter', s, 'topic', 'retention'), \
         'channel_versions', jsonb_build_object('__start__', '1', 'counter', s::text, 'topic', '1', 'messages', s::text, 'settings', '1'), \
         'versions_seen', jsonb_build_object('__input__', jsonb_build_object(), 'agent', jsonb_build_object('counter', s::text)), \
         'updated_channels', jsonb_build_array('counter', 'messages')), \
         jsonb_build_object('step', s, 'source', 'loop', 'parents', jsonb_build_object(), 'run_id', md5((t * 7)::text)) FROM {series}"
    );
    let blobs = format!(
        "INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob) \
         SELECT {thread}, '', 'messages', s::text, 'msgpack', decode(repeat(md5((t * 100 + s)::text), 16), 'hex') FROM {series} \
         UNION ALL SELECT {thread}, '', 'settings', '1', 'msgpack', '\\x80'::bytea FROM generate_series(1, {threads}) t"
    );
    let writes = format!(
        "INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob) \
         SELECT {thread}, '', {this}, 'task', '', i, 'messages', 'msgpack', decode(repeat(md5(s::text), 4), 'hex') \
         FROM {series}, generate_series(0, 1) i"
    );
    for sql in [&*checkpoints, &blobs, &writes, "VACUUM ANALYZE", "CHECKPOINT"] {
        client.batch_execute(sql).await?;
    }
    Ok(())
}

/// What people's scripts do: everything but the newest, then what is left of it.
async fn naive(client: &Client, keep: usize) -> Result<u64> {
    let checkpoints = format!(
        "DELETE FROM checkpoints WHERE (thread_id, checkpoint_ns, checkpoint_id) IN (\
         SELECT thread_id, checkpoint_ns, checkpoint_id FROM (SELECT thread_id, checkpoint_ns, checkpoint_id, \
         row_number() OVER (PARTITION BY thread_id, checkpoint_ns ORDER BY checkpoint_id DESC) AS age \
         FROM checkpoints WHERE thread_id LIKE 'thread-%') c WHERE age > {keep})"
    );
    let removed = client.execute(&checkpoints, &[]).await?;
    for sql in [
        "DELETE FROM checkpoint_writes w WHERE NOT EXISTS (SELECT FROM checkpoints c WHERE c.thread_id = w.thread_id \
         AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id)",
        "DELETE FROM checkpoint_blobs b WHERE NOT EXISTS (SELECT FROM checkpoints c WHERE c.thread_id = b.thread_id \
         AND c.checkpoint_ns = b.checkpoint_ns AND c.checkpoint->'channel_versions'->>b.channel = b.version)",
    ] {
        client.batch_execute(sql).await?;
    }
    Ok(removed)
}

/// An agent that puts all the time, on threads of its own.
struct Agent {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Result<Vec<Duration>>>,
}

impl Agent {
    fn start(saver: &PostgresSaver) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (saver, stopped) = (saver.clone(), Arc::clone(&stop));
        let task = tokio::spawn(async move {
            let mut took = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                took.extend(puts(&saver, &format!("agent-{}", id::uuid6(0)), 20).await?);
            }
            Ok(took)
        });
        Self { stop, task }
    }

    async fn stop(self) -> Result<Vec<Duration>> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await?
    }
}

/// Puts steps of a chat, and returns how long each took.
async fn puts(saver: &PostgresSaver, thread_id: &str, steps: u32) -> Result<Vec<Duration>> {
    let mut config = CheckpointConfig::new(thread_id);
    let text = "x".repeat(500);
    let mut took = Vec::new();
    for step in 0..i64::from(steps) {
        let message = Value::Array(vec![text.as_str().into(), step.into()]);
        let checkpoint = Checkpoint::new(step)
            .with_channel("messages", ChannelValue::from_msgpack(message.to_msgpack()?.into())?, step + 1)
            .with_channel("counter", step, step + 1);
        let (metadata, versions) =
            (CheckpointMetadata::new("loop", step), checkpoint.channel_versions.clone());
        let begun = Instant::now();
        config = saver.put(&config, &checkpoint, &metadata, &versions).await?;
        took.push(begun.elapsed());
    }
    Ok(took)
}

/// Puts with and without `keep_last`, in turns, on threads that have more checkpoints than stay.
async fn keep_last(arguments: &Arguments, name: &str, plain: &PostgresSaver) -> Result<serde_json::Value> {
    const ROUNDS: usize = 6;
    let pruning = PostgresSaver::builder(arguments.url(name)).keep_last(arguments.keep).build()?;
    let (mut without, mut with): (Vec<Duration>, Vec<Duration>) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        for (saver, into) in [(plain, &mut without), (&pruning, &mut with)] {
            let took = puts(saver, &format!("keep-{}", id::uuid6(0)), arguments.puts).await?;
            if round > 0 {
                into.extend(took);
            }
        }
    }
    pruning.close().await?;
    let mean =
        |took: &[Duration]| took.iter().sum::<Duration>().as_secs_f64() * 1e6 / to_f64(took.len() as u64);
    let (plain, pruned) = (mean(&without), mean(&with));
    Ok(json!({
        "what": "put with keep_last",
        "keep": arguments.keep,
        "mean_without_us": plain.round(),
        "mean_with_us": pruned.round(),
        "more_percent": ((pruned / plain - 1.0) * 1000.0).round() / 10.0,
        "p50_without_us": percentile(&without, 50),
        "p50_with_us": percentile(&with, 50),
        "p99_with_us": percentile(&with, 99),
    }))
}

/// Microseconds.
fn percentile(took: &[Duration], percent: usize) -> u128 {
    let mut sorted = took.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len().saturating_sub(1)) * percent / 100;
    sorted.get(at).map_or(0, Duration::as_micros)
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn to_f64(count: u64) -> f64 {
    count as f64
}

/// The most memory that this process had at a time.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib / 1024)
}
