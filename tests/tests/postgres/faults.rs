//! The Postgres saver while things break: the server stops, connections are cut, futures are dropped, processes are killed.
//!
//! Afterwards every acknowledged write is stored, no checkpoint names a missing value, no session is left in a
//! transaction, and the pool still works.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use checkpoint_conformance::Missing;
use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, Checkpoint, CheckpointConfig, ListQuery, PruneStrategy, Result,
    SaverExt,
};
use checkpoint_postgres::PostgresSaver;
use tokio::task::JoinHandle;

use super::load::{is_sound, list, metadata, step, writes};
use crate::shared::faults::{
    Load, Random, cut_again_and_again, cut_when_idle, drop_somewhere, join, may_fail, restart_under, rounds,
};
use crate::shared::postgres::{Database, Kind, Server, Test, in_runtime, tests};
use crate::shared::server;

/// If set to a database URL, this binary writes to that database until it is killed.
const CHILD: &str = "CHECKPOINT_TEST_WRITER";

const THREAD: &str = "shared";

/// The acknowledged writes of a writer.
#[derive(Debug, Default)]
struct Acknowledged {
    checkpoints: Vec<(CheckpointConfig, Checkpoint)>,
    /// Checkpoints whose writes were acknowledged, too.
    writes: Vec<CheckpointConfig>,
}

/// Starts writers, about three per thread.
fn start(saver: &PostgresSaver, writers: usize) -> (Arc<Load>, Vec<JoinHandle<Acknowledged>>) {
    let load = Arc::<Load>::default();
    let start = |at| writer(saver.clone(), format!("thread-{}", at % 3), load.clone());
    let running = (0..writers).map(start).collect();
    (load, running)
}

/// Puts checkpoints and writes until the load ends, and continues after failures.
fn writer(saver: PostgresSaver, thread_id: String, load: Arc<Load>) -> JoinHandle<Acknowledged> {
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

/// Checks that all acknowledged data is stored, and that the database is consistent.
async fn verify(database: &Database, saver: &PostgresSaver, known: &[Acknowledged]) {
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
    is_sound(database, saver).await;
}

/// Stops the server cleanly, then by a crash, and restarts it while writers continue.
async fn the_server_is_stopped_and_started(_server: &Server) -> Result<(), Missing> {
    let server = server::Private::new(&checkpoint_servers::POSTGRES).await?;
    let database = Database::set_up(&server.url()).await;
    let saver = database.builder().max_connections(5).build().unwrap();
    let (load, writers) = start(&saver, 6);
    restart_under(&load, &server, &database).await;
    let known = load.end(writers).await;
    verify(&database, &saver, &known).await;
    Ok(())
}

async fn connections_are_cut_a_thousand_times(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let saver = database.builder().max_connections(8).max_retries(2).build().unwrap();
    let (load, writers) = start(&saver, 8);
    cut_again_and_again(&database, 1000).await;
    let known = load.end(writers).await;
    let acknowledged: usize = known.iter().map(|known| known.checkpoints.len()).sum();
    assert!(acknowledged > 0, "nothing was written between the cuts");
    verify(&database, &saver, &known).await;
}

/// A pool does not return connections that were cut while it was idle.
async fn idle_connections_are_cut(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let saver = database.builder().max_connections(6).build().unwrap();
    let put_at_once = async |_| {
        let calls = (0..12).map(|at| {
            let (saver, made) = (saver.clone(), step(at));
            tokio::spawn(async move {
                saver.put(&CheckpointConfig::new(THREAD), &made, &metadata(), &made.channel_versions).await
            })
        });
        join(calls.collect()).await.into_iter().for_each(|put| drop(put.unwrap()));
    };
    let list_all = async |rounds| {
        let found = saver.list_all(ListQuery::thread(THREAD)).await.unwrap();
        assert_eq!(found.len() as u64, 12 * rounds);
    };
    cut_when_idle(&database, put_at_once, list_all).await;
    is_sound(&database, &saver).await;
}

async fn futures_are_dropped(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let saver = database.builder().max_connections(3).build().unwrap();
    drop_futures(&database, &saver).await;
}

async fn futures_are_dropped_behind_pgbouncer(server: &Server) -> Result<(), Missing> {
    let bouncer = Server::find(Kind::PgBouncer)?;
    let database = Database::set_up(server.url()).await;
    let builder = PostgresSaver::builder(database.through(bouncer.url()));
    let saver = builder.pgbouncer(true).max_connections(3).build().unwrap();
    drop_futures(&database, &saver).await;
    Ok(())
}

async fn drop_futures(database: &Database, saver: &PostgresSaver) {
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
    verify(database, saver, &known).await;
}

/// A process that writes to the shared thread.
struct Writer {
    process: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Writer {
    fn start(url: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .env(CHILD, url)
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
    fn wait(&self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.lines.recv_timeout(Duration::from_secs(60)).unwrap()).collect()
    }

    /// Kills it at any point, and returns the remaining acknowledged checkpoints.
    fn kill(mut self) -> Vec<String> {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.lines.iter().collect()
    }
}

/// The process: each line of its output is the id of a checkpoint that is stored with its writes.
async fn write_until_killed(url: &str) -> Result<()> {
    let saver = PostgresSaver::builder(url).build()?;
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

async fn two_processes_are_killed_in_turns(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let url = database.url().to_owned();
    let acknowledged = tokio::task::spawn_blocking(move || {
        let mut acknowledged = Vec::new();
        let mut running = Writer::start(&url);
        for round in 0..usize::try_from(rounds(10)).unwrap() {
            let other = Writer::start(&url);
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
    let saver = database.builder().build().unwrap();
    let stored = saver.list_all(ListQuery::thread(THREAD)).await.unwrap();
    for id in &acknowledged {
        let tuple = stored.iter().find(|tuple| *tuple.checkpoint.id == **id);
        let tuple = tuple.unwrap_or_else(|| panic!("{id} was acknowledged and is gone"));
        assert_eq!(tuple.pending_writes.len(), 2, "{id}");
    }
    for tuple in &stored {
        let values = &tuple.checkpoint.channel_values;
        let number: i64 = values["number"].decode().unwrap();
        let wanted = list(number.unsigned_abs());
        assert_eq!((&values["items"], &values["more"]), (&wanted, &wanted));
    }
    is_sound(&database, &saver).await;
}

/// Runs the child's part instead of tests, if this process was started as a child.
pub(crate) fn as_child() -> Option<Result<()>> {
    let url = std::env::var(CHILD).ok()?;
    Some(in_runtime(write_until_killed(&url)))
}

pub(crate) fn tests() -> &'static [Test] {
    tests![
        the_server_is_stopped_and_started,
        connections_are_cut_a_thousand_times,
        idle_connections_are_cut,
        futures_are_dropped,
        futures_are_dropped_behind_pgbouncer,
        two_processes_are_killed_in_turns,
    ]
}
