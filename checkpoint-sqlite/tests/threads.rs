//! Listings of threads: order and prefix, pages with their states, rows that cannot be read.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod shared;

use checkpoint_core::{
    BaseCheckpointSaver, Checkpoint, CheckpointConfig, CheckpointMetadata, Cipher, ErrorKind, Filter,
    SaverExt, ThreadInfo, ThreadQuery, ThreadStatus,
};
use checkpoint_sqlite::SqliteSaver;
use checkpoint_sqlite::rusqlite::Connection;
use futures_util::TryStreamExt;

use shared::{place, saver};

async fn put(saver: &SqliteSaver, config: &CheckpointConfig, source: &str, text: &str) -> CheckpointConfig {
    let checkpoint = Checkpoint::new(0).with_channel("topic", text, "1");
    let metadata = CheckpointMetadata::new(source, 0);
    saver.put(config, &checkpoint, &metadata, &checkpoint.channel_versions).await.unwrap()
}

async fn threads(saver: &SqliteSaver, query: ThreadQuery) -> Vec<ThreadInfo> {
    saver.list_threads(query).try_collect().await.unwrap()
}

async fn ids(saver: &SqliteSaver, query: ThreadQuery) -> Vec<String> {
    threads(saver, query).await.into_iter().map(|info| info.thread_id.to_string()).collect()
}

#[tokio::test]
async fn a_prefix_is_compared_by_bytes_and_goes_on_behind_after() {
    let (_directory, path) = place();
    let saver = saver(&path);
    saver.setup().await.unwrap();
    let all = ["", "A", "a", "a%", "a_1", "ab", "aé", "a\u{10ffff}", "b"];
    for thread_id in all {
        put(&saver, &CheckpointConfig::new(thread_id), "loop", "").await;
    }
    assert_eq!(ids(&saver, ThreadQuery::all()).await, all);
    assert_eq!(ids(&saver, ThreadQuery::all().prefix("")).await, all);
    assert_eq!(ids(&saver, ThreadQuery::all().prefix("a")).await, all[2..8]);
    assert_eq!(ids(&saver, ThreadQuery::all().prefix("a").after("A")).await, all[2..8]);
    assert_eq!(ids(&saver, ThreadQuery::all().prefix("a").after("a")).await, all[3..8]);
    assert_eq!(ids(&saver, ThreadQuery::all().prefix("a").after("a%").limit(2)).await, all[4..6]);
    assert_eq!(ids(&saver, ThreadQuery::all().prefix("a%")).await, ["a%"]);
    assert_eq!(ids(&saver, ThreadQuery::all().prefix("a").after("b")).await, all[..0]);
    assert_eq!(ids(&saver, ThreadQuery::all().prefix("c")).await, all[..0]);
}

#[tokio::test]
async fn the_state_is_that_of_the_root_namespace_or_else_the_newest() {
    let (_directory, path) = place();
    let saver = saver(&path);
    saver.setup().await.unwrap();
    let root = put(&saver, &CheckpointConfig::new("both"), "loop", "").await;
    let inner = put(&saver, &CheckpointConfig::new("both").with_checkpoint_ns("n"), "input", "").await;
    put(&saver, &CheckpointConfig::new("inner").with_checkpoint_ns("a"), "loop", "").await;
    let newest = put(&saver, &CheckpointConfig::new("inner").with_checkpoint_ns("b"), "input", "").await;
    put(&saver, &CheckpointConfig::new("inner").with_checkpoint_ns("c"), "loop", "").await;
    let oldest = "UPDATE checkpoints SET checkpoint_id = '00000000-0000-6000-8000-000000000000' \
         WHERE thread_id = 'inner' AND checkpoint_ns = 'c'";
    assert_eq!(Connection::open(&path).unwrap().execute(oldest, []).unwrap(), 1);

    let found = threads(&saver, ThreadQuery::all().with_state()).await;
    assert_eq!(Some(&*found[0].latest_checkpoint_id), inner.checkpoint_id());
    assert_eq!(Some(&*found[1].latest_checkpoint_id), newest.checkpoint_id());
    let states: Vec<_> = found.iter().map(|info| info.state.as_ref().unwrap()).collect();
    assert_eq!(Some(&*states[0].checkpoint_id), root.checkpoint_id());
    assert_eq!(Some(&*states[1].checkpoint_id), newest.checkpoint_id());
    assert_eq!([states[0].status, states[1].status], [ThreadStatus::Done, ThreadStatus::Running]);
    assert_eq!(ids(&saver, ThreadQuery::all().status(ThreadStatus::Running)).await, ["inner"]);
    assert_eq!(ids(&saver, ThreadQuery::all().filter(Filter::new().eq("source", "loop"))).await, ["both"]);
    assert!(threads(&saver, ThreadQuery::all()).await.iter().all(|info| info.state.is_none()));
}

#[tokio::test]
async fn large_states_come_in_several_pages() {
    let (_directory, path) = place();
    let saver = saver(&path);
    saver.setup().await.unwrap();
    let large = "x".repeat(3 << 20);
    for thread_id in ["a", "b", "c", "d", "e"] {
        put(&saver, &CheckpointConfig::new(thread_id), "loop", &large).await;
    }
    assert_eq!(ids(&saver, ThreadQuery::all().with_state()).await, ["a", "b", "c", "d", "e"]);
    assert_eq!(ids(&saver, ThreadQuery::all().with_state().limit(3)).await, ["a", "b", "c"]);
    assert_eq!(saver.count_threads(ThreadQuery::all()).await.unwrap().done, 5);
}

#[tokio::test]
async fn a_state_that_cannot_be_read_ends_the_listing_after_those_before_it() {
    let (_directory, path) = place();
    let cipher = || Cipher::aes_gcm("k", &[1; 32]).unwrap();
    let sealing = SqliteSaver::builder(&path).cipher(cipher()).build().unwrap();
    let saver = saver(&path);
    saver.setup().await.unwrap();
    put(&saver, &CheckpointConfig::new("a"), "loop", "").await;
    put(&saver, &CheckpointConfig::new("b"), "loop", "").await;
    put(&sealing, &CheckpointConfig::new("c"), "input", "").await;
    put(&saver, &CheckpointConfig::new("d"), "loop", "").await;
    let damage = "UPDATE checkpoints SET checkpoint = x'81' WHERE thread_id = 'b'";
    assert_eq!(Connection::open(&path).unwrap().execute(damage, []).unwrap(), 1);

    assert_eq!(ids(&saver, ThreadQuery::all()).await, ["a", "b", "c", "d"]);
    for (after, before, broken, kind) in
        [("", &["a"][..], "b", ErrorKind::Codec), ("b", &[], "c", ErrorKind::Crypto)]
    {
        let mut listing = saver.list_threads(ThreadQuery::all().after(after).with_state());
        for thread_id in before {
            assert_eq!(&*listing.try_next().await.unwrap().unwrap().thread_id, *thread_id);
        }
        let error = listing.try_next().await.unwrap_err();
        assert_eq!((error.kind(), error.operation()), (kind, Some("list_threads")), "{error}");
        assert!(error.to_string().contains(&format!("thread_id=\"{broken}\"")), "{error}");
        assert_eq!(listing.try_next().await.unwrap(), None);
    }
    assert_eq!(ids(&saver, ThreadQuery::all().after("c").with_state()).await, ["d"]);
    // Without the key, the status follows from what is not encrypted.
    let blind = SqliteSaver::builder(&path).return_sealed(true).build().unwrap();
    assert_eq!(ids(&blind, ThreadQuery::all().after("b").status(ThreadStatus::Running)).await, ["c"]);
}
