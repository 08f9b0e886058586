//! Nothing is left of what was deleted or pruned, and repeated calls add nothing.

use std::collections::BTreeMap;

use checkpoint_conformance::Missing;
use checkpoint_core::{
    BaseCheckpointSaver, Checkpoint, CheckpointConfig, CheckpointMetadata, ListQuery, PruneStrategy,
    SaverExt, ThreadQuery,
};
use checkpoint_redis::RedisSaver;
use futures_util::TryStreamExt;

use super::load::conversation;
use crate::shared::everything::everything_works;
use crate::shared::redis::{HASH, INDEX, Prefix, Raw, Server, Test, tests};
use crate::shared::server::Private;
use crate::shared::writers::{metadata, writes};

/// How many fields and members of each kind a thread has.
async fn kinds(raw: &Raw, prefix: &Prefix, thread_id: &str) -> BTreeMap<(&'static str, char), usize> {
    let mut kinds = BTreeMap::new();
    for field in raw.fields(&prefix.key(thread_id, HASH)).await.keys() {
        *kinds.entry((HASH, char::from(field[0]))).or_default() += 1;
    }
    let (_, members) = raw.contents(&prefix.key(thread_id, INDEX)).await.unwrap();
    for pair in members.chunks(2) {
        *kinds.entry((INDEX, char::from(pair[0][0]))).or_default() += 1;
    }
    kinds
}

async fn put(saver: &RedisSaver, config: &CheckpointConfig, made: &Checkpoint) -> CheckpointConfig {
    let stored = saver.put(config, made, &metadata(), &made.channel_versions).await.unwrap();
    saver.put_writes(&stored, &writes(1), "task", "").await.unwrap();
    stored
}

async fn deleted_threads_leave_nothing(server: &Server) {
    for scripts in [true, false] {
        let prefix = Prefix::set_up(server.url()).await;
        let raw = prefix.raw().await;
        let saver = prefix.builder().scripts(scripts).build().unwrap();
        saver.setup().await.unwrap();
        let before = raw.keys(prefix.name()).await.unwrap();
        everything_works(&saver).await;
        for number in 0..20 {
            let config = CheckpointConfig::new(format!("thread-{number}")).with_checkpoint_ns("ns");
            put(&saver, &config, &conversation(number)).await;
        }
        let threads: Vec<_> = saver.list_threads(ThreadQuery::all()).try_collect().await.unwrap();
        assert_eq!(threads.len(), 20);
        for (number, thread) in threads.iter().enumerate() {
            if number % 2 == 0 {
                saver.delete_thread(&thread.thread_id).await.unwrap();
            } else {
                saver.prune(&[&thread.thread_id], PruneStrategy::Delete).await.unwrap();
            }
        }
        assert_eq!(raw.keys(prefix.name()).await.unwrap(), before);
    }
}

async fn pruned_threads_keep_what_one_checkpoint_takes(server: &Server) {
    for scripts in [true, false] {
        let prefix = Prefix::set_up(server.url()).await;
        let raw = prefix.raw().await;
        let saver = prefix.builder().scripts(scripts).build().unwrap();
        for by_run in [false, true] {
            let (long, short) = (format!("long-{by_run}"), format!("short-{by_run}"));
            let mut config = CheckpointConfig::new(long.as_str());
            for number in 0..30 {
                let made = conversation(number);
                let metadata =
                    CheckpointMetadata::new("loop", 1).with("run_id", format!("run-{long}-{}", number / 29));
                config = saver.put(&config, &made, &metadata, &made.channel_versions).await.unwrap();
                saver.put_writes(&config, &writes(1), "task", "").await.unwrap();
            }
            let last = saver.get_tuple(&config).await.unwrap().unwrap();
            if by_run {
                saver.delete_for_runs(&[&format!("run-{long}-0")]).await.unwrap();
            } else {
                saver.prune(&[&long], PruneStrategy::KeepLatest).await.unwrap();
            }
            assert_eq!(saver.list_all(ListQuery::thread(long.as_str())).await.unwrap().len(), 1);
            let found = saver.get_tuple(&config).await.unwrap().unwrap();
            assert_eq!((&found.checkpoint, found.pending_writes.len()), (&last.checkpoint, 2));
            put(&saver, &CheckpointConfig::new(short.as_str()), &last.checkpoint).await;
            let mut left = kinds(&raw, &prefix, &long).await;
            // Without scripts, removals are counted from the first one on.
            left.retain(|(_, kind), _| *kind != 'r');
            assert_eq!(left, kinds(&raw, &prefix, &short).await, "{long}");
        }
    }
}

/// Values, segments and writes of checkpoints that went behind a `put` are gone, too, and those of others stay.
async fn puts_that_prune_leave_what_few_checkpoints_take(server: &Server) {
    const KEPT: usize = 3;
    for scripts in [true, false] {
        let prefix = Prefix::set_up(server.url()).await;
        let raw = prefix.raw().await;
        let builder = prefix.builder().scripts(scripts);
        let (saver, pruning) = (builder.clone().build().unwrap(), builder.keep_last(KEPT).build().unwrap());
        let mut configs = vec![CheckpointConfig::new("pruned")];
        for number in 0..40 {
            let last = configs.last().unwrap().clone();
            configs.push(put(&pruning, &last, &conversation(number)).await);
        }
        let left = saver.list_all(ListQuery::thread("pruned")).await.unwrap();
        assert!((KEPT..2 * KEPT).contains(&left.len()), "{} checkpoints", left.len());
        let mut last = CheckpointConfig::new("same");
        for tuple in left.iter().rev() {
            assert_eq!(tuple.pending_writes.len(), 2);
            last = put(&saver, &last, &tuple.checkpoint).await;
        }
        let mut found = kinds(&raw, &prefix, "pruned").await;
        found.retain(|(_, kind), _| *kind != 'r');
        assert_eq!(found, kinds(&raw, &prefix, "same").await);
    }
}

async fn repeated_calls_add_nothing(server: &Server) {
    let prefix = Prefix::set_up(server.url()).await;
    let raw = prefix.raw().await;
    let saver = prefix.builder().build().unwrap();
    let made = conversation(1);
    put(&saver, &CheckpointConfig::new("thread"), &made).await;
    let before = kinds(&raw, &prefix, "thread").await;
    for _ in 0..3 {
        put(&saver, &CheckpointConfig::new("thread"), &made).await;
    }
    assert_eq!(kinds(&raw, &prefix, "thread").await, before);
}

/// A script's text does not contain what differs from call to call.
async fn few_scripts_are_cached(_server: &Server) -> Result<(), Missing> {
    let server = Private::new(&checkpoint_servers::REDIS).await?;
    let prefix = Prefix::set_up(&server.url()).await;
    let raw = prefix.raw().await;
    let saver = prefix.builder().build().unwrap();
    for _ in 0..5 {
        everything_works(&saver).await;
    }
    let memory: String = raw.words("INFO memory").await;
    let scripts = memory.lines().find_map(|line| line.strip_prefix("number_of_cached_scripts:")).unwrap();
    assert!((1..=20).contains(&scripts.parse::<u64>().unwrap()), "{scripts} scripts");
    Ok(())
}

pub(crate) fn tests() -> &'static [Test] {
    tests![
        deleted_threads_leave_nothing,
        pruned_threads_keep_what_one_checkpoint_takes,
        puts_that_prune_leave_what_few_checkpoints_take,
        repeated_calls_add_nothing,
        few_scripts_are_cached,
    ]
}
