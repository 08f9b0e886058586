//! Runs one group of the workload on one saver or store, and prints one line of JSON with the latencies of each operation.
//!
//! Every run starts with a new file or database. Reads are checked outside the timed part.

mod floor;
mod floor_store;
mod groups;
mod pgbench;
mod place;
mod recall;
mod stores;

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use checkpoint_benches::{Items, Latencies, Mark, Phase, Recorder, messages};
use checkpoint_core::{BaseCheckpointSaver, InMemorySaver, Str, id};
use checkpoint_postgres::{Compression, PostgresSaver};
use checkpoint_sqlite::{SqliteSaver, Synchronous};
use clap::{Args, Parser, ValueEnum};
use indexmap::IndexMap;
use serde::Serialize;
use tokio::runtime::Builder;

use crate::groups::{STEPS, Saver, THREADS};
use crate::place::{Database, Disk, Place, Server};
use crate::recall::RecallArguments;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Runs one group of the workload on one saver or store.
#[derive(Debug, Clone, Parser)]
struct Arguments {
    /// The saver or store, or a baseline.
    #[arg(long, value_enum, default_value_t = Implementation::Sqlite)]
    r#impl: Implementation,
    /// What to run.
    #[arg(long, value_enum)]
    group: Group,
    /// The durability of commits: SQLite's synchronous FULL or NORMAL, PostgreSQL's `synchronous_commit`.
    #[arg(long, value_enum, default_value_t = Synchrony::On)]
    sync: Synchrony,
    /// The number of tasks (conc, 1 by default) or of steps (scale, 100 by default).
    #[arg(long)]
    level: Option<usize>,
    /// The duration of conc.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// The folder in which the file is created, in a temporary subfolder; the system's temporary folder by default.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Runs everything on one thread, instead of one per CPU.
    #[arg(long)]
    current_thread: bool,
    #[command(flatten)]
    postgres: PostgresArguments,
    #[command(flatten)]
    recall: RecallArguments,
}

/// The options for PostgreSQL.
#[derive(Debug, Clone, Args)]
struct PostgresArguments {
    #[command(flatten)]
    server: Server,
    /// The size of the connection pool; by default that of the saver or store.
    #[arg(long)]
    pool: Option<usize>,
    /// Uses the server's default compression of blobs.
    #[arg(long)]
    no_lz4: bool,
    /// Makes the store build its index for filters.
    #[arg(long)]
    filter_index: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Implementation {
    Sqlite,
    Memory,
    Postgres,
    /// The statements of PostgreSQL without the saver, sent directly by this driver.
    Floor,
    /// The statements of PostgreSQL by pgbench: writes only, and without group big.
    Pgbench,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Group {
    /// Ten chats of 100 steps, then reads, listings, writes and deletions.
    Chat,
    /// One channel of 1 MiB, written and read.
    Big,
    /// Several tasks, each with its own thread.
    Conc,
    /// One long thread whose state stays the same size.
    Scale,
    /// Items that are put, read, searched, put in batches, and their namespaces.
    Store,
    /// Searches with a query, compared with exact results.
    Recall,
    /// Runs nothing: prints the items of group store as JSON, for a driver in another language.
    Items,
    /// Runs nothing: prints the messages of the ten chats as JSON, one chat per line, for a driver in another language.
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
    r#impl: String,
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

/// The result of a group.
struct Run {
    ops: IndexMap<&'static str, Latencies>,
    level: Option<usize>,
    disk: Option<Disk>,
}

impl Run {
    /// Summarizes the steps of several tasks.
    fn of_steps(walls: Vec<Duration>, seconds: Duration, begun: Mark, phase: Phase, tasks: usize) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a run has far fewer than 2^52 steps")]
        let steps_s = walls.len() as f64 / seconds.as_secs_f64();
        let mut recorder = Recorder::default();
        recorder.record_many("step", walls, begun);
        recorder.end("step", phase);
        let mut ops = recorder.finish();
        if let Some(step) = ops.get_mut("step") {
            step.steps_s = Some(steps_s);
        }
        Self { ops, level: Some(tasks), disk: None }
    }
}

impl Arguments {
    /// A name for the settings of this run.
    fn name(&self) -> String {
        let mut name = match self.r#impl {
            Implementation::Sqlite => "rust-sqlite",
            Implementation::Memory => "rust-memory",
            Implementation::Postgres => "rust-postgres",
            Implementation::Floor => "rust-floor",
            Implementation::Pgbench => "rust-pgbench",
        }
        .to_owned();
        if let Some(pool) = self.postgres.pool {
            name.push_str("+pool-");
            name.push_str(&pool.to_string());
        }
        let settings = [
            (self.postgres.no_lz4, "+no-lz4"),
            (self.postgres.filter_index, "+filter-index"),
            (self.current_thread, "+current-thread"),
        ];
        for (given, suffix) in settings {
            if given {
                name += suffix;
            }
        }
        name
    }

    fn level(&self) -> usize {
        self.level.unwrap_or(if self.group == Group::Scale { 100 } else { 1 })
    }

    async fn run(&self) -> Result<Run> {
        if self.group == Group::Store {
            return stores::run(self).await;
        }
        match self.r#impl {
            Implementation::Memory => self.run_on(Arc::new(InMemorySaver::new()), &Place::Memory).await,
            Implementation::Sqlite => {
                let directory = self.directory.clone().unwrap_or_else(std::env::temp_dir);
                let folder = tempfile::tempdir_in(directory)?;
                let path = folder.path().join("bench.sqlite");
                let synchronous = match self.sync {
                    Synchrony::On => Synchronous::Full,
                    Synchrony::Off => Synchronous::Normal,
                };
                let saver = SqliteSaver::builder(&path).synchronous(synchronous).build()?;
                saver.setup().await?;
                self.run_on(Arc::new(saver), &Place::File(path)).await
            }
            Implementation::Pgbench => {
                let server = &self.postgres.server;
                match self.group {
                    Group::Chat => pgbench::chat(server, self.sync).await,
                    Group::Conc => pgbench::conc(server, self.sync, self.level(), self.seconds).await,
                    _ => Err("pgbench has only chat and conc".into()),
                }
            }
            Implementation::Postgres | Implementation::Floor => {
                let place = Place::Database(self.postgres.server.database(self.sync).await?);
                let run = self.run_in(&place).await;
                if let Place::Database(database) = place {
                    database.remove().await?;
                }
                run
            }
        }
    }

    async fn run_in(&self, place: &Place) -> Result<Run> {
        let Place::Database(database) = place else { return Err("this needs a database".into()) };
        let saver = self.saver(database).await?;
        if self.r#impl == Implementation::Postgres {
            return self.run_on(saver, place).await;
        }
        match self.group {
            Group::Chat => floor::chat(saver, place, database).await,
            Group::Big => floor::big(database).await,
            Group::Conc => floor::conc(database, self.level(), self.seconds).await,
            Group::Scale => floor::scale(saver, database, self.level()).await,
            Group::Store | Group::Recall | Group::Items | Group::Data => {
                Err("this group has no saver".into())
            }
        }
    }

    async fn saver(&self, database: &Database) -> Result<Saver> {
        let mut builder = PostgresSaver::builder(database.url());
        if let Some(pool) = self.postgres.pool {
            builder = builder.max_connections(pool);
        }
        if self.postgres.no_lz4 {
            builder = builder.compression(Compression::Server);
        }
        let saver = builder.build()?;
        saver.setup().await?;
        database.run("CHECKPOINT").await?;
        Ok(Arc::new(saver))
    }

    async fn run_on(&self, saver: Saver, place: &Place) -> Result<Run> {
        match self.group {
            Group::Chat => groups::chat(saver, place).await,
            Group::Big => groups::big(saver, place).await,
            Group::Conc => groups::conc(saver, self.level(), self.seconds).await,
            Group::Scale => groups::scale(saver, place, self.level()).await,
            Group::Store | Group::Recall | Group::Items | Group::Data => {
                Err("this group has no saver".into())
            }
        }
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if arguments.group == Group::Items {
        println!("{}", serde_json::to_string(&Items::new())?);
        return Ok(());
    }
    if arguments.group == Group::Data {
        for number in 0..THREADS {
            println!("{}", serde_json::to_string(&messages(number, STEPS + 1))?);
        }
        return Ok(());
    }
    let mut builder =
        if arguments.current_thread { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    let runtime = builder.enable_all().build()?;
    let task = arguments.clone();
    if arguments.group == Group::Recall {
        return runtime.block_on(async { tokio::spawn(async move { recall::run(&task).await }).await })?;
    }
    let run = match arguments.r#impl {
        // On the thread that waits for SQLite's threads.
        Implementation::Memory | Implementation::Sqlite => runtime.block_on(task.run())?,
        // In a task, like an application's calls: the connections are tasks too, on the same threads.
        _ => runtime.block_on(async { tokio::spawn(async move { task.run().await }).await })??,
    };
    let line = Line {
        r#impl: arguments.name(),
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

/// The peak memory of this process, if the system reports it.
fn max_rss_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or_default() / 1024.0
}
