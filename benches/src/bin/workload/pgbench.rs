//! The baselines by PostgreSQL's `pgbench`: one script each, on new tables.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use checkpoint_benches::{Latencies, Mark, Phase, Recorder};
use checkpoint_core::BaseCheckpointSaver;
use checkpoint_postgres::{Compression, PostgresSaver};
use indexmap::IndexMap;

use crate::floor::{MEAN_MESSAGES, Payload, WINDOW_MESSAGES};
use crate::groups::{STEPS, THREADS};
use crate::place::{Database, Server};
use crate::{Result, Run, Synchrony};

const CHECKPOINT: &str = "
INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata)
VALUES ('f' || :client_id || '-' || :i / 100, '', lpad((:i)::text, 36, '0'), lpad((:i - 1)::text, 36, '0'),
  :checkpoint::jsonb, :metadata::jsonb)
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id)
DO UPDATE SET checkpoint = EXCLUDED.checkpoint, metadata = EXCLUDED.metadata";

/// One statement that writes a checkpoint and a blob for each channel with its variable.
fn put(channels: &[(&str, &str)]) -> String {
    let row = |(channel, variable): &(&str, &str)| {
        format!(
            "('f' || :client_id || '-' || :i / 100, '', '{channel}', lpad((:i)::text, 32, '0') || '.0.5', \
             'msgpack', convert_to(:{variable}::text, 'UTF8'))"
        )
    };
    let rows: Vec<_> = channels.iter().map(row).collect();
    format!(
        "WITH b AS (INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob) \
         VALUES {} ON CONFLICT (thread_id, checkpoint_ns, channel, version) DO NOTHING){CHECKPOINT};\n",
        rows.join(", ")
    )
}

/// One statement that writes a pending write for each variable.
fn writes(variables: &[&str]) -> String {
    let row = |(index, variable): (usize, &&str)| {
        format!(
            "('f' || :client_id || '-' || :i / 100, '', lpad((:i - 1)::text, 36, '0'), \
             '00000000-0000-4000-9000-000000000000', '~__pregel_pull, agent', {index}, 'messages', 'msgpack', \
             convert_to(:{variable}::text, 'UTF8'))"
        )
    };
    let rows: Vec<_> = variables.iter().enumerate().map(row).collect();
    format!(
        "INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, \
         type, blob) VALUES {} ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO NOTHING;\n",
        rows.join(", ")
    )
}

/// A complete step as LangGraph runs it: two statements and two commits.
fn step() -> String {
    writes(&["message", "tiny"]) + &put(&[("messages", "messages")])
}

/// Group chat: the statements one by one, each in a new database.
pub(crate) async fn chat(server: &Server, sync: Synchrony) -> Result<Run> {
    let payload = Payload::of(MEAN_MESSAGES)?;
    let put_2 = put(&[("messages", "messages"), ("note", "settings")]);
    let scripts = [
        ("put", put_2.clone(), Compression::Lz4),
        ("put_pglz", put_2, Compression::Server),
        ("put_writes", writes(&["message", "tiny"]), Compression::Lz4),
        ("put_writes_10", writes(&["message"; 10]), Compression::Lz4),
        ("step", step(), Compression::Server),
        ("step_lz4", step(), Compression::Lz4),
    ];
    let mut ops = IndexMap::new();
    for (operation, script, compression) in scripts {
        let limit = ["-c", "1", "-t", &(THREADS * STEPS).to_string()].map(ToOwned::to_owned);
        let script = Script { operation, text: &script, compression, payload: &payload };
        ops.extend(script.measure(server, sync, &limit).await?);
    }
    Ok(Run { ops, level: None, disk: None })
}

/// Group conc: complete steps, with a connection for each task.
pub(crate) async fn conc(server: &Server, sync: Synchrony, tasks: usize, seconds: f64) -> Result<Run> {
    let payload = Payload::of(WINDOW_MESSAGES)?;
    let seconds = Duration::try_from_secs_f64(seconds)?.as_secs().max(1);
    let mut ops = IndexMap::new();
    for (operation, compression) in [("step", Compression::Server), ("step_lz4", Compression::Lz4)] {
        let limit = ["-c", &tasks.to_string(), "-T", &seconds.to_string()].map(ToOwned::to_owned);
        let script = Script { operation, text: &step(), compression, payload: &payload };
        for (name, mut latencies) in script.measure(server, sync, &limit).await? {
            #[expect(clippy::cast_precision_loss, reason = "a run has far fewer than 2^52 steps")]
            let steps_s = latencies.n as f64 / seconds as f64;
            latencies.steps_s = Some(steps_s);
            ops.insert(name, latencies);
        }
    }
    Ok(Run { ops, level: Some(tasks), disk: None })
}

type Operations = IndexMap<&'static str, Latencies>;

/// One transaction, and its table.
struct Script<'a> {
    operation: &'static str,
    text: &'a str,
    compression: Compression,
    payload: &'a Payload,
}

impl Script<'_> {
    async fn measure(&self, server: &Server, sync: Synchrony, limit: &[String]) -> Result<Operations> {
        let database = server.database(sync).await?;
        let measured = self.measure_in(&database, limit).await;
        database.remove().await?;
        measured
    }

    async fn measure_in(&self, database: &Database, limit: &[String]) -> Result<Operations> {
        PostgresSaver::builder(database.url()).compression(self.compression).build()?.setup().await?;
        database.run("CHECKPOINT").await?;
        let folder = tempfile::tempdir()?;
        let (file, log) = (folder.path().join("script.sql"), folder.path().join("log"));
        std::fs::write(&file, format!("\\set i :i + 1\n{}", self.text))?;
        let mut command = Command::new("pgbench");
        command.args(["-n", "-M", "prepared", "-j", "1", "-l", "-D", "i=0", "-f"]).arg(&file);
        command.arg("--log-prefix").arg(&log).args(limit);
        let variables = [
            ("messages", self.payload.messages.as_str()),
            ("message", &self.payload.message),
            ("settings", &self.payload.settings),
            ("checkpoint", &self.payload.checkpoint),
            ("metadata", &self.payload.metadata),
            ("tiny", "50"),
        ];
        for (name, value) in variables {
            command.arg("-D").arg(format!("{name}={value}"));
        }
        let Server { host, port, user, password } = &database.server;
        command.env("PGHOST", host).env("PGPORT", port.to_string()).env("PGUSER", user);
        command.env("PGPASSWORD", password).env("PGDATABASE", &database.name);
        command
            .env("PGSSLMODE", "disable")
            .env("PGGSSENCMODE", "disable")
            .env("PGOPTIONS", database.options());
        let (phase, begun, before) = (Phase::begin(), Mark::now(), processor_of_children());
        let done = command.output().map_err(|error| format!("pgbench could not be started: {error}"))?;
        if !done.status.success() {
            return Err(format!("pgbench failed: {}", String::from_utf8_lossy(&done.stderr)).into());
        }
        let mut recorder = Recorder::default();
        recorder.record_many(self.operation, latencies(folder.path())?, begun);
        recorder.end(self.operation, phase);
        let mut operations = recorder.finish();
        for latencies in operations.values_mut() {
            // The recorder measured this process, which only waited.
            #[expect(clippy::cast_precision_loss, reason = "a run has far fewer than 2^52 transactions")]
            let n = latencies.n as f64;
            latencies.client_cpu_ms = (processor_of_children() - before) * 1000.0 / n;
        }
        Ok(operations)
    }
}

/// The CPU time of all child processes in seconds, counted in ticks of 10 ms.
fn processor_of_children() -> f64 {
    let line = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The program's name comes before, and may contain blanks.
    let after_name = line.rsplit(')').next().unwrap_or_default();
    let ticks: f64 =
        after_name.split_whitespace().skip(13).take(2).filter_map(|word| word.parse::<f64>().ok()).sum();
    #[expect(clippy::cast_precision_loss, reason = "it is about 100")]
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    ticks / per_second
}

/// Reads pgbench's logs: the third word of a line is the duration of a transaction in microseconds.
fn latencies(folder: &Path) -> Result<Vec<Duration>> {
    let mut walls = Vec::new();
    for file in std::fs::read_dir(folder)? {
        let file = file?;
        if !file.file_name().to_string_lossy().starts_with("log.") {
            continue;
        }
        let lines = std::fs::read_to_string(file.path())?;
        for line in lines.lines() {
            let took = line.split_whitespace().nth(2).ok_or("pgbench wrote a log in an unknown format")?;
            walls.push(Duration::from_micros(took.parse()?));
        }
    }
    Ok(walls)
}
