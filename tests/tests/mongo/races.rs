//! Calls of several savers at the same time.

use std::time::Duration;

use checkpoint_core::{
    BaseCheckpointSaver, CheckpointConfig, ListQuery, PruneStrategy, RetainOptions, Retention, SaverExt,
    Value,
};
use mongodb::bson::{DateTime, doc};

use super::load::{Own, builder, conversation, encode, has_no_garbage, put};
use crate::shared::mongo::{Database, Server, Test, tests};
use crate::shared::soak::{Random, rounds};
use crate::shared::writers::{join, metadata};

async fn fifty_writers_on_one_thread(server: &Server) {
    let own = Own::set_up(server).await;
    let root = put(&own.saver, &CheckpointConfig::new("thread"), &conversation(0)).await.unwrap();
    let writers = (1..=50).map(|number| {
        let (saver, root) = (builder(&own.database.url()).build().unwrap(), root.clone());
        tokio::spawn(async move {
            let made = conversation(number);
            let stored = put(&saver, &root, &made).await.unwrap();
            saver
                .put_writes(&stored, &[("a".into(), 1.into()), ("b".into(), 2.into())], "t", "")
                .await
                .unwrap();
            (stored, made)
        })
    });
    let mut stored = join(writers.collect()).await;
    for (config, made) in &stored {
        let tuple = own.saver.get_tuple(config).await.unwrap().unwrap();
        assert_eq!((&tuple.checkpoint, tuple.pending_writes.len()), (made, 2));
    }
    stored.sort_by(|(_, a), (_, b)| a.id.cmp(&b.id));
    let latest = own.saver.get_tuple(&CheckpointConfig::new("thread")).await.unwrap().unwrap();
    assert_eq!(latest.checkpoint, stored.last().unwrap().1);
    assert_eq!(own.saver.list_all(ListQuery::thread("thread")).await.unwrap().len(), 51);
    own.saver.collect_garbage("thread", Duration::ZERO).await.unwrap();
    has_no_garbage(&own, "thread").await;
}

/// A saver remembers what it has stored, and notices that another one has deleted it.
async fn a_thread_that_another_process_has_deleted(server: &Server) {
    let own = Own::set_up(server).await;
    for deleted in ["thread", "checkpoint"] {
        let mut config = CheckpointConfig::new(deleted);
        for number in 30..33 {
            config = put(&own.saver, &config, &conversation(number)).await.unwrap();
        }
        let other = builder(&own.database.url()).build().unwrap();
        if deleted == "thread" {
            other.delete_thread(deleted).await.unwrap();
        } else {
            own.collection().await.delete_one(doc! { "c": config.checkpoint_id() }).await.unwrap();
            other.prune(&[deleted], PruneStrategy::KeepLatest).await.unwrap();
            other.collect_garbage(deleted, Duration::ZERO).await.unwrap();
        }
        let made = conversation(33);
        let new =
            made.channel_versions.clone().into_iter().filter(|(name, _)| &**name != "constant").collect();
        let stored = own.saver.put(&config, &made, &metadata(), &new).await.unwrap();
        assert_eq!(other.get_tuple(&stored).await.unwrap().unwrap().checkpoint, made);
    }
}

async fn the_same_put_twice_at_once(server: &Server) {
    let own = Own::set_up(server).await;
    for round in 0..5 {
        let config = CheckpointConfig::new(format!("thread-{round}"));
        let made = conversation(round);
        let calls = (0..2).map(|_| {
            let (saver, config, made) =
                (builder(&own.database.url()).build().unwrap(), config.clone(), made.clone());
            tokio::spawn(async move { put(&saver, &config, &made).await.unwrap() })
        });
        let stored = join(calls.collect()).await;
        assert_eq!(stored[0], stored[1]);
        assert_eq!(own.saver.get_tuple(&config).await.unwrap().unwrap().checkpoint, made);
        has_no_garbage(&own, config.thread_id()).await;
    }
}

/// Of two processes that store the result of one task, each index has the value of one of them.
async fn the_same_task_in_two_processes(server: &Server) {
    let own = Own::set_up(server).await;
    let config = put(&own.saver, &CheckpointConfig::new("thread"), &conversation(0)).await.unwrap();
    for round in 0..5 {
        let task = format!("task-{round}");
        let calls = (0..2_i64).map(|by| {
            let (saver, config, task) =
                (builder(&own.database.url()).build().unwrap(), config.clone(), task.clone());
            tokio::spawn(async move {
                let writes = [("a".into(), by.into()), ("b".into(), by.into())];
                saver.put_writes(&config, &writes, &task, "").await.unwrap();
            })
        });
        join(calls.collect()).await;
        let tuple = own.saver.get_tuple(&config).await.unwrap().unwrap();
        let of_task = tuple.pending_writes.iter().filter(|write| *write.task_id == *task).count();
        assert_eq!(of_task, 2);
    }
}

async fn a_holder_of_the_lock_dies(server: &Server) {
    for (ends_in, name) in [(-1000, "past"), (700, "soon")] {
        let database = Database::new(server.url());
        let until = DateTime::from_millis(DateTime::now().timestamp_millis() + ends_in);
        let lock = doc! { "_id": "!lock", "t": "", "owner": "dead", "until": until };
        database.raw().await.collection("lg_checkpoints").insert_one(lock).await.unwrap();
        let calls = (0..4).map(|_| {
            let saver = builder(&database.url()).build().unwrap();
            tokio::spawn(async move { saver.setup().await.unwrap() })
        });
        join(calls.collect()).await;
        let saver = builder(&database.url()).build().unwrap();
        put(&saver, &CheckpointConfig::new(name), &conversation(0)).await.unwrap();
        let locks = database.raw().await.collection::<mongodb::bson::Document>("lg_checkpoints");
        assert_eq!(locks.find_one(doc! { "_id": "!lock" }).await.unwrap(), None);
    }
}

/// Checkpoints are removed while others are stored that need what the removed ones have: as children of them, or because they
/// have the same values under the same versions. Whoever is first, what is stored is whole.
async fn what_is_removed_is_needed_again(server: &Server) {
    let own = Own::set_up(server).await;
    let mut random = Random(7);
    for round in 0..rounds(8) {
        let thread_id = format!("thread-{round}");
        let mut stored = Vec::new();
        let mut config = CheckpointConfig::new(&*thread_id);
        for number in 0..4 {
            // Each has values of its own; those of the first one are needed again.
            let mut made = conversation(number);
            made = made.with_channel(
                "constant",
                encode(&Value::Array(vec![number.into(); 300])),
                i64::from(number == 0),
            );
            config = put(&own.saver, &config, &made).await.unwrap();
            stored.push((config.clone(), made));
        }
        let (first, oldest) = stored[0].clone();
        let child = builder(&own.database.url()).build().unwrap();
        child.get_tuple(&first).await.unwrap().unwrap();
        let again = builder(&own.database.url()).build().unwrap();
        again.get_tuple(&CheckpointConfig::new("absent")).await.unwrap();
        let pauses = [random.below(8), random.below(8), random.below(8)].map(Duration::from_millis);
        let put_child = async {
            tokio::time::sleep(pauses[0]).await;
            let mut made = conversation(50);
            made = made.with_channel("constant", oldest.channel_values["constant"].clone(), 1);
            let new = made.channel_versions.iter().filter(|(channel, _)| &***channel != "constant");
            let new = new.map(|(channel, version)| (channel.clone(), version.clone())).collect();
            let config = child.put(&first, &made, &metadata(), &new).await.unwrap();
            (config, made)
        };
        let put_again = async {
            tokio::time::sleep(pauses[1]).await;
            let mut made = oldest.clone();
            made.id = conversation(60).id;
            let config = put(&again, &CheckpointConfig::new(&*thread_id), &made).await.unwrap();
            (config, made)
        };
        let remove = async {
            tokio::time::sleep(pauses[2]).await;
            let (policy, options) = (Retention::new().keep_last(1), RetainOptions::default());
            own.saver.retain(&[&thread_id], &policy, &options).await.unwrap()
        };
        let (child, again, report) = tokio::join!(put_child, put_again, remove);
        assert!(report.busy.is_empty() && report.total().checkpoints >= 3, "{report:?}");
        for _ in 0..2 {
            let fresh = builder(&own.database.url()).build().unwrap();
            for (config, made) in [&child, &again] {
                if let Some(tuple) = fresh.get_tuple(config).await.unwrap() {
                    assert_eq!(tuple.checkpoint, *made, "round {round}");
                }
            }
            // Until what the removed ones referred to is gone, too.
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
    }
}

pub(crate) fn tests() -> &'static [Test] {
    tests![
        fifty_writers_on_one_thread,
        a_thread_that_another_process_has_deleted,
        the_same_put_twice_at_once,
        the_same_task_in_two_processes,
        a_holder_of_the_lock_dies,
        what_is_removed_is_needed_again,
    ]
}
