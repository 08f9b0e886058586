//! Many tasks on one thread: they put, fork, write, prune, copy, delete, list and read. Whatever a reader sees is whole.

use checkpoint_core::{
    BaseCheckpointSaver, CheckpointConfig, CheckpointTuple, ListQuery, PruneStrategy, SaverExt,
};
use checkpoint_redis::RedisSaver;

use super::load::{conversation, is_sound};
use crate::shared::redis::{Prefix, Server, Test, tests};
use crate::shared::soak::{Random, rounds};
use crate::shared::writers::{join, metadata, writes};

const THREAD: &str = "thread";

/// A checkpoint says in each of its channels which one it is.
fn is_whole(tuple: &CheckpointTuple) {
    let values = &tuple.checkpoint.channel_values;
    let number: i64 = values["number"].decode().unwrap();
    let number = number.unsigned_abs();
    let wanted = conversation(number).channel_values;
    assert_eq!(values, &wanted, "{:?}", tuple.config);
    for pair in tuple.pending_writes.chunks(2) {
        assert_eq!(pair.len(), 2, "{:?}", tuple.pending_writes);
        assert_eq!(pair[0].task_id, pair[1].task_id);
    }
}

async fn task(saver: RedisSaver, seed: u64, operations: u64, deletes: bool) {
    let mut random = Random(seed);
    let latest = CheckpointConfig::new(THREAD);
    for number in 0..operations {
        match random.below(12) {
            0..=3 => {
                let parent = saver.get_tuple(&latest).await.unwrap();
                let parent = parent.map_or_else(|| latest.clone(), |tuple| tuple.config);
                let made = conversation(number);
                let mut new_versions = made.channel_versions.clone();
                if parent.checkpoint_id().is_some() {
                    // The parent has it, unless somebody deletes it at this moment.
                    new_versions.retain(|channel, _| &**channel != "constant");
                }
                let stored = saver.put(&parent, &made, &metadata(), &new_versions).await.unwrap();
                let task_id = format!("task-{seed}-{number}");
                saver.put_writes(&stored, &writes(number), &task_id, "").await.unwrap();
            }
            4 => {
                // A fork from any checkpoint.
                let all = saver.list_all(ListQuery::thread(THREAD)).await.unwrap();
                if !all.is_empty() {
                    let parent = random.pick(&all);
                    let made = conversation(number);
                    saver.put(&parent.config, &made, &metadata(), &made.channel_versions).await.unwrap();
                }
            }
            5 => saver.prune(&[THREAD], PruneStrategy::KeepLatest).await.unwrap(),
            6 => {
                let copy = format!("copy-{seed}");
                saver.delete_thread(&copy).await.unwrap();
                saver.copy_thread(THREAD, &copy).await.unwrap();
                saver.list_all(ListQuery::thread(copy)).await.unwrap().iter().for_each(is_whole);
            }
            7 if deletes && random.below(4) == 0 => saver.delete_thread(THREAD).await.unwrap(),
            8 => saver.list_all(ListQuery::thread(THREAD)).await.unwrap().iter().for_each(is_whole),
            _ => {
                if let Some(found) = saver.get_tuple(&latest).await.unwrap() {
                    is_whole(&found);
                    if let Some(again) = saver.get_tuple(&found.config).await.unwrap() {
                        is_whole(&again);
                    }
                }
            }
        }
    }
}

async fn race(server: &Server, scripts: bool, deletes: bool) {
    let prefix = Prefix::set_up(server.url()).await;
    let tasks = (0..8).map(|seed| {
        // Several processes: each has its own saver. Some prune behind their puts.
        let mut builder = prefix.builder().scripts(scripts);
        if seed % 2 == 1 {
            builder = builder.keep_last(3);
        }
        let saver = builder.build().unwrap();
        tokio::spawn(task(saver, seed, rounds(60), deletes))
    });
    join(tasks.collect()).await;
    let saver = prefix.builder().scripts(scripts).build().unwrap();
    is_sound_after_deletes(&prefix, &saver).await;
    // Nothing is left of what was pruned.
    let made = conversation(1);
    let config = CheckpointConfig::new(THREAD);
    saver.put(&config, &made, &metadata(), &made.channel_versions).await.unwrap();
    saver.prune(&[THREAD], PruneStrategy::KeepLatest).await.unwrap();
    let left = saver.list_all(ListQuery::thread(THREAD)).await.unwrap();
    assert_eq!(left.len(), 1);
    is_whole(&left[0]);
}

/// Writes may come before their checkpoint, and so after it was deleted.
async fn is_sound_after_deletes(prefix: &Prefix, saver: &RedisSaver) {
    for tuple in saver.list_all(ListQuery::all()).await.unwrap() {
        is_whole(&tuple);
        assert_eq!(saver.get_tuple(&tuple.config).await.unwrap().as_ref(), Some(&tuple));
    }
    is_sound(prefix, saver).await;
}

async fn everybody_on_one_thread(server: &Server) {
    race(server, true, false).await;
}

async fn everybody_on_one_thread_that_is_deleted(server: &Server) {
    race(server, true, true).await;
}

async fn everybody_on_one_thread_without_scripts(server: &Server) {
    race(server, false, true).await;
}

pub(crate) fn tests() -> &'static [Test] {
    tests![
        everybody_on_one_thread,
        everybody_on_one_thread_that_is_deleted,
        everybody_on_one_thread_without_scripts,
    ]
}
