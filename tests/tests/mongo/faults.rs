//! The MongoDB saver while things break: connections are cut after every document and before every answer, futures are
//! dropped, processes are killed.
//!
//! Afterwards every acknowledged write is stored, whole; what was not acknowledged is stored as a whole, or not visible; and
//! the collection of garbage leaves nothing behind.

use std::time::Duration;

use checkpoint_core::{
    BaseCheckpointSaver, Checkpoint, CheckpointConfig, ListQuery, PruneStrategy, Result, RetainOptions,
    Retention, SaverExt,
};
use checkpoint_mongo::MongoSaver;

use super::load::{Own, builder, conversation, has_no_garbage, is_sound, put};
use crate::shared::mongo::wire::{Cut, Relay, Then};
use crate::shared::mongo::{Server, Test, in_runtime, tests};
use crate::shared::writers::{
    self, kill_in_turns, may_fail, metadata, place_of_child, read_back, write_until_killed,
};

/// Of a saver that is cut: it does not try for long.
fn through(own: &Own, relay: &Relay, then: Then) -> MongoSaver {
    // The driver looks at a server again after half a second.
    let (retries, wait) = if then == Then::Die { (0, 300) } else { (5, 10_000) };
    let builder = own.at(relay.url()).max_retries(retries);
    builder.connect_timeout(Duration::from_millis(wait)).timeout(Duration::from_secs(20)).build().unwrap()
}

/// Two checkpoints with values that they share, and writes.
async fn prepare(own: &Own, thread_id: &str) -> CheckpointConfig {
    let mut config = CheckpointConfig::new(thread_id);
    for number in 0..2 {
        config = put(&own.saver, &config, &conversation(number)).await.unwrap();
        let writes = [("a".into(), 1.into()), ("b".into(), 2.into())];
        own.saver.put_writes(&config, &writes, "task", "").await.unwrap();
    }
    config
}

/// Makes a call that is cut at each place in turn, until there is none left, and checks the thread each time.
async fn cut_everywhere<C, V>(server: &Server, cut: fn(usize) -> Cut, then: Then, call: C, verify: V)
where
    C: AsyncFn(&MongoSaver, &CheckpointConfig, &Checkpoint) -> Result<()>,
    V: AsyncFn(&Own, &CheckpointConfig, &Checkpoint, bool),
{
    let own = Own::set_up(server).await;
    let relay = Relay::start(server.url()).await.unwrap();
    for place in 0.. {
        let thread_id = format!("thread-{place}");
        let latest = prepare(&own, &thread_id).await;
        let next = conversation(7);
        let saver = through(&own, &relay, then);
        // Connected, and the schema is checked.
        saver.get_tuple(&latest).await.unwrap();
        let before = relay.cuts();
        relay.cut(cut(place), then);
        let done = call(&saver, &latest, &next).await;
        let was_cut = relay.cuts() > before;
        relay.heal();
        if let Err(error) = &done {
            assert!(then == Then::Die && was_cut, "{place}: {error:?}");
            may_fail(error);
        }
        verify(&own, &latest, &next, done.is_ok()).await;
        // Whatever has happened: the call succeeds now, and nothing is left of the first attempt.
        call(&own.saver, &latest, &next).await.unwrap();
        verify(&own, &latest, &next, true).await;
        own.saver.collect_garbage(&thread_id, Duration::ZERO).await.unwrap();
        has_no_garbage(&own, &thread_id).await;
        verify(&own, &latest, &next, true).await;
        own.saver.delete_thread(&thread_id).await.unwrap();
        assert_eq!(own.documents(&thread_id).await, 0);
        if !was_cut {
            assert!(place > 1, "the call was cut at {place} places");
            return;
        }
    }
}

/// Stores a step that carries a value over from its parent.
async fn put_next(saver: &MongoSaver, parent: &CheckpointConfig, next: &Checkpoint) -> Result<()> {
    let new =
        next.channel_versions.clone().into_iter().filter(|(channel, _)| &**channel != "constant").collect();
    saver.put(parent, next, &metadata(), &new).await.map(drop)
}

async fn puts(server: &Server, cut: fn(usize) -> Cut, then: Then) {
    let verify = async |own: &Own, parent: &CheckpointConfig, next: &Checkpoint, is_done: bool| {
        let fresh = builder(&own.database.url()).build().unwrap();
        let latest = fresh.get_tuple(&parent.clone().latest()).await.unwrap().unwrap();
        if latest.checkpoint.id == next.id {
            assert_eq!(latest.checkpoint, *next);
            assert_eq!(latest.parent_checkpoint_id(), parent.checkpoint_id());
        } else {
            assert!(!is_done, "a checkpoint that was acknowledged is not there");
            assert_eq!(Some(&*latest.checkpoint.id), parent.checkpoint_id());
        }
        // The parent is whole in any case.
        assert_eq!(fresh.get_tuple(parent).await.unwrap().unwrap().pending_writes.len(), 2);
    };
    cut_everywhere(server, cut, then, put_next, verify).await;
}

async fn a_put_is_cut_after_every_document(server: &Server) {
    puts(server, Cut::Documents, Then::Die).await;
}

async fn a_put_loses_its_connection_after_every_document(server: &Server) {
    puts(server, Cut::Documents, Then::GoOn).await;
}

async fn a_put_loses_every_answer(server: &Server) {
    puts(server, Cut::Answer, Then::GoOn).await;
}

/// The listed checkpoints of a thread; each of them can be read.
async fn listed(own: &Own, thread_id: &str) -> usize {
    let fresh = builder(&own.database.url()).build().unwrap();
    fresh.list_all(ListQuery::thread(thread_id)).await.unwrap().len()
}

async fn deletions_are_cut(server: &Server) {
    let call = async |saver: &MongoSaver, latest: &CheckpointConfig, _: &Checkpoint| {
        saver.delete_thread(latest.thread_id()).await
    };
    let verify = async |own: &Own, latest: &CheckpointConfig, _: &Checkpoint, is_done: bool| {
        let left = listed(own, latest.thread_id()).await;
        assert!(left == 0 || (left == 2 && !is_done), "{left} checkpoints");
    };
    cut_everywhere(server, Cut::Documents, Then::Die, call, verify).await;
}

/// After a call that leaves the newest of two checkpoints.
async fn the_newest_is_whole(own: &Own, latest: &CheckpointConfig, _: &Checkpoint, is_done: bool) {
    let left = listed(own, latest.thread_id()).await;
    assert!(left == 1 || (left == 2 && !is_done), "{left} checkpoints");
    let tuple = own.saver.get_tuple(latest).await.unwrap().unwrap();
    assert_eq!(tuple.pending_writes.len(), 2);
}

async fn prunings_are_cut(server: &Server) {
    let call = async |saver: &MongoSaver, latest: &CheckpointConfig, _: &Checkpoint| {
        saver.prune(&[latest.thread_id()], PruneStrategy::KeepLatest).await
    };
    cut_everywhere(server, Cut::Documents, Then::Die, call, the_newest_is_whole).await;
}

/// A run of retention that was cut off is finished by a later one, when it is clear that nobody goes on with it.
async fn retentions_are_cut(server: &Server) {
    let call = async |saver: &MongoSaver, latest: &CheckpointConfig, _: &Checkpoint| {
        let (policy, options) = (Retention::new().keep_last(1), RetainOptions::default());
        loop {
            let report = saver.retain(&[latest.thread_id()], &policy, &options).await?;
            if report.busy.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    cut_everywhere(server, Cut::Documents, Then::Die, call, the_newest_is_whole).await;
}

/// Runs leave nothing behind, even those that were cut off.
async fn retention_leaves_nothing_behind(server: &Server) {
    let own = Own::set_up(server).await;
    let relay = Relay::start(server.url()).await.unwrap();
    let (policy, options) = (Retention::new().keep_last(1), RetainOptions::default());
    for place in [None, Some(0), Some(1), Some(2), Some(5)] {
        let thread_id = format!("thread-{}", place.map_or(-1, i64::from));
        let latest = prepare(&own, &thread_id).await;
        let saver = through(&own, &relay, Then::Die);
        saver.get_tuple(&latest).await.unwrap();
        if let Some(place) = place {
            relay.cut(Cut::Documents(usize::try_from(place).unwrap()), Then::Die);
        }
        _ = saver.retain(&[&thread_id], &policy, &options).await;
        if place.is_none() {
            saver.close().await.unwrap();
        }
        relay.heal();
        if place.is_some() {
            // Until it is clear that the first run does not go on.
            tokio::time::sleep(Duration::from_millis(2500)).await;
            let own_saver = builder(&own.database.url()).build().unwrap();
            let report = own_saver.retain(&[&thread_id], &policy, &options).await.unwrap();
            assert!(report.busy.is_empty(), "{report:?}");
            own_saver.close().await.unwrap();
        }
        assert_eq!(listed(&own, &thread_id).await, 1);
        // The same as a thread into which only the newest checkpoint was put.
        let only = put(&own.saver, &CheckpointConfig::new("only"), &conversation(1)).await.unwrap();
        let writes = [("a".into(), 1.into()), ("b".into(), 2.into())];
        own.saver.put_writes(&only, &writes, "task", "").await.unwrap();
        assert_eq!(own.documents(&thread_id).await, own.documents("only").await, "cut at {place:?}");
        own.saver.delete_thread("only").await.unwrap();
    }
}

async fn copies_are_cut(server: &Server) {
    let name = |source: &CheckpointConfig| format!("{}-copy", source.thread_id());
    let call = async |saver: &MongoSaver, source: &CheckpointConfig, _: &Checkpoint| {
        saver.copy_thread(source.thread_id(), &name(source)).await
    };
    let verify = async |own: &Own, source: &CheckpointConfig, _: &Checkpoint, is_done: bool| {
        let copied = own.saver.list_all(ListQuery::thread(name(source))).await.unwrap();
        assert!(copied.len() == 2 || !is_done, "{} checkpoints", copied.len());
        for tuple in copied {
            assert_eq!(tuple.pending_writes.len(), 2);
            let original = tuple.config.checkpoint_id().map(str::to_owned).unwrap();
            let original = source.for_checkpoint(original);
            assert_eq!(own.saver.get_tuple(&original).await.unwrap().unwrap().checkpoint, tuple.checkpoint);
        }
    };
    cut_everywhere(server, Cut::Documents, Then::Die, call, verify).await;
}

/// What a `put` has stored before its checkpoint is not garbage yet.
async fn a_put_under_way_is_not_collected(server: &Server) {
    let own = Own::set_up(server).await;
    let relay = Relay::start(server.url()).await.unwrap();
    let latest = prepare(&own, "thread").await;
    let saver = through(&own, &relay, Then::Die);
    saver.get_tuple(&latest).await.unwrap();
    relay.cut(Cut::Documents(2), Then::Die);
    put_next(&saver, &latest, &conversation(9)).await.unwrap_err();
    let before = own.documents("thread").await;
    assert_eq!(own.saver.collect_garbage("thread", Duration::from_secs(3600)).await.unwrap(), 0);
    assert_eq!(own.documents("thread").await, before);
    assert_eq!(own.saver.collect_garbage("thread", Duration::ZERO).await.unwrap(), 2);
}

async fn futures_are_dropped(server: &Server) {
    let own = Own::set_up(server).await;
    let known = writers::drop_futures(&own.saver, conversation).await;
    assert!(read_back(&own.saver, &known).await > 0);
    is_sound(&own).await;
}

async fn two_processes_are_killed_in_turns(server: &Server) {
    let own = Own::set_up(server).await;
    kill_in_turns(&own.saver, &own.database.url(), 10).await;
    is_sound(&own).await;
}

/// Runs the child's part instead of tests, if this process was started as a child.
pub(crate) fn as_child() -> Option<Result<()>> {
    let place = place_of_child()?;
    Some(in_runtime(async { write_until_killed(&builder(&place).build()?, conversation).await }))
}

pub(crate) fn tests() -> &'static [Test] {
    tests![
        a_put_is_cut_after_every_document,
        a_put_loses_its_connection_after_every_document,
        a_put_loses_every_answer,
        deletions_are_cut,
        prunings_are_cut,
        retentions_are_cut,
        retention_leaves_nothing_behind,
        copies_are_cut,
        a_put_under_way_is_not_collected,
        futures_are_dropped,
        two_processes_are_killed_in_turns,
    ]
}
