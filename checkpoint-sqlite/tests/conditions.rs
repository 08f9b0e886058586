//! Conditional calls: committed together with others, from several savers, on rows that other programs wrote.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod shared;

use std::path::Path;

use checkpoint_core::{
    BaseCheckpointSaver, Checkpoint, CheckpointConfig, CheckpointMetadata, ErrorKind, ListQuery,
    PutCondition, PutOptions, PutWritesOptions, Result, SaverExt,
};
use checkpoint_sqlite::SqliteSaver;
use checkpoint_sqlite::rusqlite::Connection;
use futures_util::FutureExt;
use futures_util::future::join_all;

use shared::{place, saver};

async fn put(
    saver: &SqliteSaver,
    config: &CheckpointConfig,
    options: &PutOptions,
) -> Result<CheckpointConfig> {
    let checkpoint = Checkpoint::new(0).with_channel("topic", "rust", "1");
    let metadata = CheckpointMetadata::new("loop", 0);
    saver.put_with(config, &checkpoint, &metadata, &checkpoint.channel_versions, options).await
}

fn if_latest() -> PutOptions {
    PutOptions::default().condition(PutCondition::ParentIsLatest)
}

/// Polls all futures once while another connection has the lock, so that they are committed together; then awaits them.
async fn committed_together<T>(path: &Path, calls: Vec<impl Future<Output = T>>) -> Vec<T> {
    let other = Connection::open(path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut calls: Vec<_> = calls.into_iter().map(Box::pin).collect();
    for call in &mut calls {
        assert!(call.now_or_never().is_none());
    }
    other.execute_batch("COMMIT").unwrap();
    join_all(calls).await
}

#[tokio::test]
async fn a_conflict_leaves_the_others_of_its_transaction_alone() {
    let (_directory, path) = place();
    let saver = saver(&path);
    saver.setup().await.unwrap();
    let root = put(&saver, &CheckpointConfig::new("t"), &PutOptions::default()).await.unwrap();
    let other = CheckpointConfig::new("other");
    let (first, plain) = (if_latest().step_key("a"), PutOptions::default());
    let calls = [
        (&root, first.clone()),
        (&other, plain.clone()),
        (&root, if_latest()),
        (&root, first),
        (&other, plain),
    ];
    let calls = calls.into_iter().map(|(config, options)| {
        let saver = saver.clone();
        async move { put(&saver, config, &options).await }
    });
    let outcomes = committed_together(&path, calls.collect()).await;
    let stored = outcomes[0].as_ref().unwrap();
    assert!(outcomes[1].is_ok() && outcomes[4].is_ok());
    let conflict = outcomes[2].as_ref().unwrap_err();
    assert_eq!((conflict.kind(), conflict.is_retryable()), (ErrorKind::Conflict, false));
    assert!(conflict.to_string().contains(stored.checkpoint_id().unwrap()), "{conflict}");
    assert_eq!(outcomes[3].as_ref().unwrap(), stored, "the step is repeated");
    assert_eq!(saver.list_all(ListQuery::thread("t")).await.unwrap().len(), 2);
    assert_eq!(saver.list_all(ListQuery::thread("other")).await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_conflict_is_with_can_be_read() {
    let (_directory, path) = place();
    let saver = saver(&path);
    saver.setup().await.unwrap();
    let other = self::saver(&path);
    let config = CheckpointConfig::new("t");
    let mut newest = put(&saver, &config, &PutOptions::default()).await.unwrap();
    for _ in 0..20 {
        let calls = (0..6).map(|at| {
            let (saver, parent) = (if at == 5 { other.clone() } else { saver.clone() }, newest.clone());
            tokio::spawn(async move {
                let outcome = put(&saver, &parent, &if_latest()).await;
                let read = saver.get_tuple(&CheckpointConfig::new("t")).await.unwrap().unwrap().config;
                if let Err(error) = &outcome {
                    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                    assert!(error.to_string().contains(read.checkpoint_id().unwrap()), "{error}");
                }
                outcome.ok()
            })
        });
        let stored: Vec<_> = join_all(calls).await.into_iter().filter_map(|call| call.unwrap()).collect();
        assert_eq!(stored.len(), 1, "one of the calls stores its checkpoint");
        newest = stored[0].clone();
    }
    assert_eq!(saver.list_all(ListQuery::thread("t")).await.unwrap().len(), 21);
}

#[tokio::test]
async fn a_step_key_is_found_among_the_children_of_its_parent() {
    let (_directory, path) = place();
    let saver = saver(&path);
    saver.setup().await.unwrap();
    let options = PutOptions::default().step_key("a");
    let start = CheckpointConfig::new("t");
    let first = put(&saver, &start, &options).await.unwrap();
    // Some writers store an empty text for no parent.
    let file = Connection::open(&path).unwrap();
    assert_eq!(file.execute("UPDATE checkpoints SET parent_checkpoint_id = ''", []).unwrap(), 1);
    assert_eq!(put(&saver, &start, &options).await.unwrap(), first);
    // The key counts per parent, and per namespace.
    let second = put(&saver, &first, &options).await.unwrap();
    assert_ne!(second, first);
    assert_eq!(put(&saver, &first, &options).await.unwrap(), second);
    let inner = put(&saver, &start.clone().with_checkpoint_ns("inner"), &options).await.unwrap();
    assert_eq!(inner.checkpoint_ns(), "inner");
    assert_eq!(saver.list_all(ListQuery::thread("t")).await.unwrap().len(), 3);

    // A child whose metadata cannot be read may be the one that is searched for.
    let damage = "UPDATE checkpoints SET metadata = x'7b22' WHERE checkpoint_id = ?1";
    assert_eq!(file.execute(damage, [second.checkpoint_id().unwrap()]).unwrap(), 1);
    let error = put(&saver, &first, &options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Codec, "{error}");
    assert!(error.to_string().contains(second.checkpoint_id().unwrap()), "{error}");
    put(&saver, &first, &PutOptions::default()).await.unwrap();
}

#[tokio::test]
async fn conditional_writes_are_stored_whole_or_not_at_all() {
    let (_directory, path) = place();
    let saver = saver(&path);
    saver.setup().await.unwrap();
    let config = put(&saver, &CheckpointConfig::new("t"), &PutOptions::default()).await.unwrap();
    let calls = (0..4_i64).map(|at| {
        let (saver, config) = (saver.clone(), &config);
        async move {
            let writes = [("x".into(), at.into()), ("y".into(), at.into())];
            saver.put_writes_with(config, &writes, "task", "", &PutWritesOptions::default().once()).await
        }
    });
    let outcomes = committed_together(&path, calls.collect()).await;
    assert!(outcomes[0].is_ok());
    for outcome in &outcomes[1..] {
        assert_eq!(outcome.as_ref().unwrap_err().kind(), ErrorKind::Conflict);
    }
    let writes = saver.get_tuple(&config).await.unwrap().unwrap().pending_writes;
    assert_eq!(writes.len(), 2);
    assert!(writes.iter().all(|write| write.value == 0_i64.into()), "{writes:?}");
}
