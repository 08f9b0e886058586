//! A server that evicts keys, and threads of which one key is gone: nothing is silently missing.

use checkpoint_conformance::Missing;
use checkpoint_core::{BaseCheckpointSaver, Checkpoint, CheckpointConfig, ErrorKind, ListQuery, SaverExt};
use checkpoint_redis::RedisSaver;

use super::load::{conversation, is_sound};
use crate::shared::redis::{HASH, INDEX, Prefix, Server, Test, tests};
use crate::shared::server::Private;
use crate::shared::writers::{metadata, writes};

/// Puts a chain of checkpoints with writes. Returns them with their configs.
async fn chain(saver: &RedisSaver, thread_id: &str, count: u64) -> Vec<(CheckpointConfig, Checkpoint)> {
    let mut config = CheckpointConfig::new(thread_id);
    let mut stored = Vec::new();
    for number in 0..count {
        let made = conversation(number);
        config = saver.put(&config, &made, &metadata(), &made.channel_versions).await.unwrap();
        saver.put_writes(&config, &writes(number), "task", "~path").await.unwrap();
        stored.push((config.clone(), made));
    }
    stored
}

/// Everything is there, by every way of reading.
async fn is_whole(saver: &RedisSaver, thread_id: &str, stored: &[(CheckpointConfig, Checkpoint)]) {
    let listed = saver.list_all(ListQuery::thread(thread_id)).await.unwrap();
    let ids: Vec<_> = listed.iter().map(|tuple| &tuple.checkpoint.id).collect();
    assert_eq!(ids, stored.iter().rev().map(|(_, made)| &made.id).collect::<Vec<_>>(), "{thread_id}");
    assert!(listed.iter().map(|tuple| &tuple.checkpoint).eq(stored.iter().rev().map(|(_, made)| made)));
    for (config, made) in stored {
        let found = saver.get_tuple(config).await.unwrap().unwrap();
        assert_eq!((&found.checkpoint, found.pending_writes.len()), (made, 2));
    }
    let latest = saver.get_tuple(&CheckpointConfig::new(thread_id)).await.unwrap().unwrap();
    assert_eq!(latest.checkpoint, stored.last().unwrap().1);
}

/// The order of a thread is gone. What it had can be seen in the hash.
async fn a_lost_index_is_rebuilt(server: &Server) {
    for scripts in [true, false] {
        let prefix = Prefix::set_up(server.url()).await;
        let raw = prefix.raw().await;
        let saver = prefix.builder().scripts(scripts).build().unwrap();
        for first in ["latest", "by id", "list", "put", "put_writes", "copy", "history"] {
            let mut stored = chain(&saver, first, 5).await;
            let (config, _) = stored.last().unwrap().clone();
            raw.call::<u64>(&[b"DEL", &prefix.key(first, INDEX)]).await;
            // Whatever comes first.
            match first {
                "latest" => {
                    let found = saver.get_tuple(&CheckpointConfig::new(first)).await.unwrap();
                    assert_eq!(found.map(|tuple| tuple.config), Some(config));
                }
                "by id" => {
                    let found = saver.get_tuple(&config).await.unwrap().unwrap();
                    assert_eq!(found.pending_writes.len(), 2);
                }
                "put" => {
                    let made = conversation(9);
                    let put = saver.put(&config, &made, &metadata(), &made.channel_versions).await.unwrap();
                    saver.put_writes(&put, &writes(9), "task", "~path").await.unwrap();
                    stored.push((put, made));
                }
                "put_writes" => {
                    saver.put_writes(&config, &writes(4), "task", "~path").await.unwrap();
                }
                "copy" => {
                    saver.copy_thread(first, "copied").await.unwrap();
                    let copied = saver.list_all(ListQuery::thread("copied")).await.unwrap();
                    assert_eq!(copied.len(), stored.len());
                }
                "history" => {
                    let history = saver.get_delta_channel_history(&config, &["absent"]).await.unwrap();
                    assert!(history.contains_key("absent"));
                }
                _ => {}
            }
            is_whole(&saver, first, &stored).await;
        }
        is_sound(&prefix, &saver).await;
    }
}

/// The data of a thread is gone, and its order says that there was some.
async fn lost_data_is_an_error(server: &Server) {
    for scripts in [true, false] {
        let prefix = Prefix::set_up(server.url()).await;
        let raw = prefix.raw().await;
        let saver = prefix.builder().scripts(scripts).build().unwrap();
        let other = chain(&saver, "other", 3).await;
        for first in ["latest", "by id", "list", "copy", "history"] {
            let stored = chain(&saver, first, 3).await;
            raw.call::<u64>(&[b"DEL", &prefix.key(first, HASH)]).await;
            let latest = CheckpointConfig::new(first);
            // Not only the first call sees it.
            for _ in 0..2 {
                let failed = match first {
                    "latest" => saver.get_tuple(&latest).await.map(drop),
                    "by id" => saver.get_tuple(&stored[1].0).await.map(drop),
                    "list" => saver.list_all(ListQuery::thread(first)).await.map(drop),
                    "copy" => saver.copy_thread(first, "copied").await,
                    _ => saver.get_delta_channel_history(&latest, &["absent"]).await.map(drop),
                };
                let Err(error) = failed else { panic!("scripts: {scripts}, {first}: silently missing") };
                assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Backend, false), "{error:?}");
                assert!(error.to_string().contains("evict"), "{first}: {error}");
            }
            // The thread can begin again.
            saver.delete_thread(first).await.unwrap();
            assert!(saver.get_tuple(&latest).await.unwrap().is_none());
            let again = chain(&saver, first, 2).await;
            is_whole(&saver, first, &again).await;
        }
        // Others are not affected.
        is_whole(&saver, "other", &other).await;
    }
}

/// Parts of the data are gone, as after a failover that lost them.
async fn a_lost_value_is_an_error_until_it_is_put_again(server: &Server) {
    for scripts in [true, false] {
        let prefix = Prefix::set_up(server.url()).await;
        let raw = prefix.raw().await;
        let saver = prefix.builder().scripts(scripts).build().unwrap();
        let stored = chain(&saver, "thread", 3).await;
        let hash = prefix.key("thread", HASH);
        let mut lost = 0;
        for field in raw.fields(&hash).await.into_keys() {
            if matches!(field.first(), Some(b'b' | b's')) {
                lost += raw.call::<u64>(&[b"HDEL", &hash, &field]).await;
            }
        }
        assert!(lost > 0);
        let (config, _) = stored.last().unwrap();
        let error = saver.get_tuple(config).await.map(drop).unwrap_err();
        assert!(!error.to_string().contains('\n'), "{error:?}");
        // The next step has all values of its own, the unchanged ones too.
        let next = conversation(7);
        let mut new_versions = next.channel_versions.clone();
        new_versions.retain(|channel, _| &**channel != "constant");
        let put = saver.put(config, &next, &metadata(), &new_versions).await.unwrap();
        assert_eq!(saver.get_tuple(&put).await.unwrap().unwrap().checkpoint, next);
    }
}

async fn evicted_threads_are_whole_or_reported(_server: &Server) -> Result<(), Missing> {
    let server = Private::new(&checkpoint_servers::REDIS).await?;
    let prefix = Prefix::set_up(&server.url()).await;
    let raw = prefix.raw().await;
    let saver = prefix.builder().build().unwrap();
    saver.setup().await.unwrap();
    raw.words::<()>("CONFIG SET maxmemory-policy allkeys-lru maxmemory 12mb").await;
    let (mut threads, mut refused) = (Vec::new(), 0);
    for number in 0..400 {
        let thread_id = format!("thread-{number}");
        let mut config = CheckpointConfig::new(thread_id.as_str());
        let mut last = None;
        for step in 0..3 {
            let made = conversation(number + step);
            match saver.put(&config, &made, &metadata(), &made.channel_versions).await {
                Ok(stored) => {
                    config = stored;
                    last = Some((config.clone(), made));
                }
                // Its data was evicted between two steps.
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Backend, "{error:?}");
                    refused += 1;
                }
            }
        }
        threads.extend(last);
    }
    let (mut whole, mut gone, mut reported) = (0, 0, 0);
    for (config, made) in &threads {
        let keys = [HASH, INDEX].map(|end| prefix.key(config.thread_id(), end));
        let there = [raw.exists(&keys[0]).await, raw.exists(&keys[1]).await];
        match saver.get_tuple(config).await {
            Ok(Some(found)) => {
                assert_eq!(&found.checkpoint, made);
                whole += 1;
            }
            // Like a thread that has expired.
            Ok(None) => {
                assert_eq!(there, [false, false], "{config:?} is half there, and silently missing");
                gone += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Backend, "{error:?}");
                reported += 1;
            }
        }
    }
    println!("{whole} threads are whole, {gone} gone, {reported} reported, {refused} puts refused");
    assert!(whole > 0 && gone + reported > 0, "{whole} whole, {gone} gone, {reported} reported");
    Ok(())
}

pub(crate) fn tests() -> &'static [Test] {
    tests![
        a_lost_index_is_rebuilt,
        lost_data_is_an_error,
        a_lost_value_is_an_error_until_it_is_put_again,
        evicted_threads_are_whole_or_reported,
    ]
}
