//! The Postgres saver while things break: the server stops, connections are cut, futures are dropped, processes are killed.
//!
//! Afterwards every acknowledged write is stored, no checkpoint names a missing value, no session is left in a
//! transaction, and the pool still works.

use std::collections::BTreeMap;

use checkpoint_conformance::Missing;
use checkpoint_core::{BaseCheckpointSaver, CheckpointConfig, ListQuery, Result, SaverExt};
use checkpoint_postgres::PostgresSaver;

use super::load::is_sound;
use crate::shared::faults::{cut_again_and_again, cut_when_idle, nobody_is_inside, restart_under};
use crate::shared::faulty::{Fault, Faulty};
use crate::shared::postgres::{Database, Kind, Server, Test, count, in_runtime, rows, tests};
use crate::shared::retaining::{self, Place, runs_are_cut_off, runs_are_killed};
use crate::shared::server;
use crate::shared::writers::{
    self, Acknowledged, THREAD, join, kill_in_turns, metadata, place_of_child, read_back, start, step,
    write_until_killed,
};

/// Checks that all acknowledged data is stored, and that the database is consistent.
async fn verify(database: &Database, saver: &PostgresSaver, known: &[Acknowledged]) {
    read_back(saver, known).await;
    is_sound(database, saver).await;
}

/// Stops the server cleanly, then by a crash, and restarts it while writers continue.
async fn the_server_is_stopped_and_started(_server: &Server) -> Result<(), Missing> {
    let server = server::Private::new(&checkpoint_servers::POSTGRES).await?;
    let database = Database::set_up(&server.url()).await;
    let saver = database.builder().max_connections(5).build().unwrap();
    let (load, writers) = start(&saver, 6, step);
    restart_under(&load, &server, &database).await;
    let known = load.end(writers).await;
    verify(&database, &saver, &known).await;
    Ok(())
}

async fn connections_are_cut_a_thousand_times(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let saver = database.builder().max_connections(8).max_retries(2).build().unwrap();
    let (load, writers) = start(&saver, 8, step);
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
    let known = writers::drop_futures(saver, step).await;
    verify(database, saver, &known).await;
}

async fn two_processes_are_killed_in_turns(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let saver = database.builder().build().unwrap();
    kill_in_turns(&saver, database.url(), 10).await;
    is_sound(&database, &saver).await;
}

impl Place for Database {
    type Saver = PostgresSaver;

    fn place(&self) -> String {
        self.url().to_owned()
    }

    fn open(&self) -> PostgresSaver {
        self.builder().max_connections(8).build().unwrap()
    }

    async fn rows(&self) -> BTreeMap<String, u64> {
        const TABLES: &str = "SELECT tablename, 1 FROM pg_tables WHERE schemaname = 'public'";
        let client = self.client().await;
        let mut found = BTreeMap::new();
        for table in rows(&client, TABLES).await {
            let table = table[0].clone().unwrap();
            let count = count(&client, &format!("SELECT count(*) FROM {table}")).await;
            found.insert(table, count.unsigned_abs());
        }
        found
    }
}

async fn a_retention_run_is_killed(server: &Server) {
    let (database, fresh) = (Database::set_up(server.url()).await, Database::set_up(server.url()).await);
    runs_are_killed(&database, &fresh, 1).await;
    nobody_is_inside(&database.client().await).await;
}

async fn two_retention_runs_are_killed(server: &Server) {
    let (database, fresh) = (Database::set_up(server.url()).await, Database::set_up(server.url()).await);
    runs_are_killed(&database, &fresh, 2).await;
    nobody_is_inside(&database.client().await).await;
}

async fn retention_runs_are_cut_off(server: &Server) {
    let (database, fresh) = (Database::set_up(server.url()).await, Database::set_up(server.url()).await);
    let proxy = Faulty::start(database.address(), Fault::Resets(100_000)).await;
    let url = database.url().replace(database.address(), &proxy.address().to_string());
    let saver = PostgresSaver::builder(url).max_connections(8).build().unwrap();
    runs_are_cut_off(&database, &fresh, saver, || proxy.faults(), || proxy.set(Fault::None)).await;
    nobody_is_inside(&database.client().await).await;
}

/// Runs the child's part instead of tests, if this process was started as a child.
pub(crate) fn as_child() -> Option<Result<()>> {
    let retains = retaining::as_child(|url| PostgresSaver::builder(url).max_connections(4).build());
    if retains.is_some() {
        return retains;
    }
    let url = place_of_child()?;
    Some(in_runtime(async { write_until_killed(&PostgresSaver::builder(url).build()?, step).await }))
}

pub(crate) fn tests() -> &'static [Test] {
    tests![
        the_server_is_stopped_and_started,
        connections_are_cut_a_thousand_times,
        idle_connections_are_cut,
        futures_are_dropped,
        futures_are_dropped_behind_pgbouncer,
        two_processes_are_killed_in_turns,
        a_retention_run_is_killed,
        two_retention_runs_are_killed,
        retention_runs_are_cut_off,
    ]
}
