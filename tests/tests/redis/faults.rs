//! The Redis saver while things break: the server restarts, loses its scripts, cuts its clients; networks delay, dribble,
//! cut and reset; futures are dropped, processes are killed.
//!
//! Afterwards every acknowledged write is stored, whole, and the saver still works.

use std::collections::BTreeMap;
use std::time::Duration;

use checkpoint_conformance::Missing;
use checkpoint_core::{BaseCheckpointSaver, CheckpointConfig, Result};
use checkpoint_redis::RedisSaver;

use super::agents::{open, place};
use super::load::{conversation, is_sound};
use crate::shared::faulty::{Fault, Faulty};
use crate::shared::redis::{HASH, Prefix, Server, Test, in_runtime, tests, words};
use crate::shared::retaining::{self, Place, runs_are_cut_off, runs_are_killed};
use crate::shared::server::Private;
use crate::shared::soak::rounds;
use crate::shared::writers::{
    self, Acknowledged, kill_in_turns, may_fail, metadata, place_of_child, read_back, start, step,
    write_until_killed,
};

async fn verify(prefix: &Prefix, saver: &RedisSaver, known: &[Acknowledged]) {
    let acknowledged = read_back(saver, known).await;
    assert!(acknowledged > 0, "nothing was written between the faults");
    is_sound(prefix, saver).await;
}

/// Stops the server cleanly, then by a crash, and restarts it while writers continue. It has no scripts afterwards.
async fn the_server_is_stopped_and_started(_server: &Server) -> Result<(), Missing> {
    let server = Private::new(&checkpoint_servers::REDIS).await?;
    let prefix = Prefix::set_up(&server.url()).await;
    // So that a crash loses nothing that was acknowledged.
    let always = words("CONFIG SET appendfsync always");
    prefix.raw().await.tried::<()>(&always).await.unwrap();
    let saver = prefix.builder().build().unwrap();
    let (load, writers) = start(&saver, 6, conversation);
    load.goes_on(30).await;
    for _ in 0..rounds(1) {
        for crash in [false, true] {
            server.restart(crash).await;
            prefix.raw().await.tried::<()>(&always).await.unwrap();
            load.goes_on(30).await;
        }
    }
    let known = load.end(writers).await;
    verify(&prefix, &saver, &known).await;
    Ok(())
}

async fn scripts_are_forgotten_in_a_loop(server: &Server) {
    let prefix = Prefix::set_up(server.url()).await;
    let saver = prefix.builder().build().unwrap();
    let raw = prefix.raw().await;
    let (load, writers) = start(&saver, 4, conversation);
    let reader = tokio::spawn({
        let (saver, load) = (saver.clone(), load.clone());
        async move {
            while load.lasts() {
                // Forgotten scripts are no error of a call.
                saver.get_tuple(&CheckpointConfig::new("thread-0")).await.unwrap();
            }
        }
    });
    for _ in 0..rounds(300) {
        raw.words::<()>("SCRIPT FLUSH").await;
    }
    load.goes_on(10).await;
    let known = load.end(writers).await;
    reader.await.unwrap();
    verify(&prefix, &saver, &known).await;
}

async fn clients_are_cut_in_a_loop(_server: &Server) -> Result<(), Missing> {
    // The clients of other tests are none of ours.
    let server = Private::new(&checkpoint_servers::REDIS).await?;
    let prefix = Prefix::set_up(&server.url()).await;
    let saver = prefix.builder().build().unwrap();
    let raw = prefix.raw().await;
    let (load, writers) = start(&saver, 8, conversation);
    let mut cut = 0;
    while cut < rounds(200) {
        cut += raw.words::<u64>("CLIENT KILL TYPE normal SKIPME yes").await;
        load.goes_on(1).await;
    }
    let known = load.end(writers).await;
    verify(&prefix, &saver, &known).await;
    Ok(())
}

/// The server accepts no writes for a moment, again and again.
async fn the_server_pauses(_server: &Server) -> Result<(), Missing> {
    let server = Private::new(&checkpoint_servers::REDIS).await?;
    let prefix = Prefix::set_up(&server.url()).await;
    let saver = prefix.builder().timeout(Duration::from_millis(150)).build().unwrap();
    let raw = prefix.raw().await;
    let (load, writers) = start(&saver, 4, conversation);
    for pause in [20, 100, 400] {
        for _ in 0..rounds(2) {
            raw.words::<()>(&format!("CLIENT PAUSE {pause} WRITE")).await;
            load.goes_on(5).await;
        }
    }
    let known = load.end(writers).await;
    verify(&prefix, &saver, &known).await;
    Ok(())
}

/// Writers and readers by way of a proxy, until it has done enough damage.
async fn through(server: &Server, fault: Fault, enough: u64) {
    let prefix = Prefix::set_up(server.url()).await;
    let proxy = Faulty::start(server.address(), Fault::None).await;
    let url = format!("redis://{}", proxy.address());
    let saver = prefix.builder_at(&url).timeout(Duration::from_millis(500)).build().unwrap();
    let (load, writers) = start(&saver, 4, conversation);
    load.goes_on(5).await;
    proxy.set(fault);
    let reader = tokio::spawn({
        let (saver, load) = (saver.clone(), load.clone());
        async move {
            while load.lasts() {
                match saver.get_tuple(&CheckpointConfig::new("thread-0")).await {
                    Ok(found) => assert!(found.is_some()),
                    Err(error) => may_fail(&error),
                }
            }
        }
    });
    if enough == 0 {
        load.goes_on(rounds(30)).await;
    }
    while proxy.faults() < rounds(enough) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    proxy.set(Fault::None);
    load.goes_on(10).await;
    let known = load.end(writers).await;
    reader.await.unwrap();
    verify(&prefix, &saver, &known).await;
}

async fn replies_are_late(server: &Server) {
    through(server, Fault::Delays(Duration::from_millis(30)), 0).await;
}

async fn replies_come_in_small_parts(server: &Server) {
    through(server, Fault::Dribbles, 0).await;
}

async fn connections_are_cut_within_replies(server: &Server) {
    through(server, Fault::Cuts(3000), 60).await;
}

async fn connections_are_reset_within_replies(server: &Server) {
    through(server, Fault::Resets(3000), 60).await;
}

async fn connections_fall_silent_within_replies(server: &Server) {
    through(server, Fault::FallsSilent(3000), 6).await;
}

/// The reply of the transaction is cut after each number of bytes: what the server did is not undone or done twice.
async fn a_reply_is_cut_after_every_byte(server: &Server) {
    let prefix = Prefix::set_up(server.url()).await;
    let direct = prefix.builder().build().unwrap();
    let proxy = Faulty::start(server.address(), Fault::None).await;
    let url = format!("redis://{}", proxy.address());
    for most in (1..rounds(60)).step_by(3) {
        proxy.set(Fault::Resets(most));
        let saver = prefix.builder_at(&url).max_retries(0).timeout(Duration::from_secs(2)).build().unwrap();
        let config = CheckpointConfig::new(format!("thread-{most}"));
        let made = step(most);
        let stored = config.clone().with_checkpoint_id(made.id.clone());
        if let Err(error) = saver.put(&config, &made, &metadata(), &made.channel_versions).await {
            may_fail(&error);
        }
        // It is there as a whole, or not at all.
        if let Some(found) = direct.get_tuple(&stored).await.unwrap() {
            assert_eq!(found.checkpoint, made);
        }
        // The same call again: it succeeds, and changes nothing.
        for _ in 0..2 {
            direct.put(&config, &made, &metadata(), &made.channel_versions).await.unwrap();
            assert_eq!(direct.get_tuple(&stored).await.unwrap().unwrap().checkpoint, made);
        }
    }
    is_sound(&prefix, &direct).await;
}

async fn futures_are_dropped(server: &Server) {
    let prefix = Prefix::set_up(server.url()).await;
    let saver = prefix.builder().build().unwrap();
    let known = writers::drop_futures(&saver, conversation).await;
    verify(&prefix, &saver, &known).await;
}

async fn futures_are_dropped_without_scripts(server: &Server) {
    let prefix = Prefix::set_up(server.url()).await;
    let saver = prefix.builder().scripts(false).build().unwrap();
    let known = writers::drop_futures(&saver, conversation).await;
    verify(&prefix, &saver, &known).await;
}

async fn two_processes_are_killed_in_turns(server: &Server) {
    let prefix = Prefix::set_up(server.url()).await;
    let saver = prefix.builder().build().unwrap();
    kill_in_turns(&saver, &place(&prefix), 20).await;
    is_sound(&prefix, &saver).await;
}

impl Place for Prefix {
    type Saver = RedisSaver;

    fn place(&self) -> String {
        place(self)
    }

    fn open(&self) -> RedisSaver {
        self.builder().build().unwrap()
    }

    /// By kind of key and of what it holds.
    async fn rows(&self) -> BTreeMap<String, u64> {
        let raw = self.raw().await;
        let mut found = BTreeMap::new();
        for key in raw.keys(self.name()).await.unwrap() {
            let text = String::from_utf8_lossy(&key).into_owned();
            let (end, members) = match text.rsplit_once('}').unwrap().1 {
                end @ HASH => (end, raw.fields(&key).await.into_keys().collect()),
                end => {
                    let (_, parts) = raw.contents(&key).await.unwrap();
                    (end, parts.chunks(2).map(|pair| pair[0].clone()).collect::<Vec<_>>())
                }
            };
            *found.entry(format!("keys {end}")).or_default() += 1;
            for member in members {
                let kind = if end.is_empty() { '-' } else { char::from(member[0]) };
                *found.entry(format!("{end} {kind}")).or_default() += 1;
            }
        }
        found
    }
}

async fn a_retention_run_is_killed(server: &Server) {
    let (prefix, fresh) = (Prefix::set_up(server.url()).await, Prefix::set_up(server.url()).await);
    runs_are_killed(&prefix, &fresh, 1).await;
}

async fn two_retention_runs_are_killed(server: &Server) {
    let (prefix, fresh) = (Prefix::set_up(server.url()).await, Prefix::set_up(server.url()).await);
    runs_are_killed(&prefix, &fresh, 2).await;
}

async fn retention_runs_are_cut_off(server: &Server) {
    let (prefix, fresh) = (Prefix::set_up(server.url()).await, Prefix::set_up(server.url()).await);
    let proxy = Faulty::start(server.address(), Fault::Resets(100_000)).await;
    let saver = prefix.builder_at(&format!("redis://{}", proxy.address())).build().unwrap();
    runs_are_cut_off(&prefix, &fresh, saver, || proxy.faults(), || proxy.set(Fault::None)).await;
}

/// Runs the child's part instead of tests, if this process was started as a child.
pub(crate) fn as_child() -> Option<Result<()>> {
    let retains = retaining::as_child(open);
    if retains.is_some() {
        return retains;
    }
    let place = place_of_child()?;
    Some(in_runtime(async { write_until_killed(&open(&place)?, conversation).await }))
}

pub(crate) fn tests() -> &'static [Test] {
    tests![
        the_server_is_stopped_and_started,
        scripts_are_forgotten_in_a_loop,
        clients_are_cut_in_a_loop,
        the_server_pauses,
        replies_are_late,
        replies_come_in_small_parts,
        connections_are_cut_within_replies,
        connections_are_reset_within_replies,
        connections_fall_silent_within_replies,
        a_reply_is_cut_after_every_byte,
        futures_are_dropped,
        futures_are_dropped_without_scripts,
        two_processes_are_killed_in_turns,
        a_retention_run_is_killed,
        two_retention_runs_are_killed,
        retention_runs_are_cut_off,
    ]
}
