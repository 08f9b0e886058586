//! A thread that Python's LangGraph wrote into PostgreSQL: read as Python reads it, written as Python writes it.

use checkpoint_core::{BaseCheckpointSaver, ListQuery, PruneStrategy, SaverExt, ThreadInfo, ThreadQuery};
use checkpoint_postgres::PostgresSaver;
use futures_util::TryStreamExt;
use serde_json::Value as Json;

use crate::shared::copy::copy_by_hand;
use crate::shared::golden::{
    THREAD, check_latest, check_list, check_queries, check_tuples, json_vectors, vectors,
};
use crate::shared::postgres::{Database, Server, Test, rows, tests};

/// What Python reads, with pending writes in the order of the later generation: by path, task and index. The generation
/// that wrote the file sorts by task first.
fn expected() -> Json {
    let mut expected = json_vectors("python_thread.pg.expected.json");
    let rows = expected["raw_rows"]["checkpoint_writes"].as_array().unwrap().clone();
    for tuples in ["get_tuple", "list"] {
        for tuple in expected[tuples].as_array_mut().unwrap() {
            let at = tuple["config"]["configurable"].clone();
            let mut order: Vec<_> = rows
                .iter()
                .filter(|row| {
                    row["checkpoint_id"] == at["checkpoint_id"] && row["checkpoint_ns"] == at["checkpoint_ns"]
                })
                .map(|row| {
                    let text = |key: &str| row[key].as_str().unwrap().to_owned();
                    (text("task_id"), row["idx"].as_i64().unwrap(), text("task_path"))
                })
                .collect();
            order.sort();
            let writes = tuple["pending_writes"].as_array_mut().unwrap();
            assert_eq!(writes.len(), order.len());
            let mut placed: Vec<_> = order.into_iter().zip(writes.drain(..)).collect();
            assert!(placed.iter().all(|((task_id, ..), write)| write[0] == **task_id));
            placed.sort_by(|((a, i, p), _), ((b, j, q), _)| (p, a, i).cmp(&(q, b, j)));
            writes.extend(placed.into_iter().map(|(_, write)| write));
        }
    }
    expected
}

/// A database with Python's dump.
async fn restored(server: &Server) -> (Database, PostgresSaver) {
    let database = Database::create(server.url()).await;
    let dump = String::from_utf8(vectors("python_thread.sql")).unwrap();
    database.client().await.batch_execute(&dump).await.unwrap();
    let saver = database.builder().build().unwrap();
    (database, saver)
}

/// Runs a test on the original tables, and again after `setup()`.
async fn on_pythons_tables(server: &Server, test: impl AsyncFn(&PostgresSaver)) {
    let (_database, saver) = restored(server).await;
    test(&saver).await;
    saver.setup().await.unwrap();
    test(&saver).await;
}

async fn every_checkpoint_reads_as_in_python(server: &Server) {
    on_pythons_tables(server, async |saver| check_tuples(saver, &expected()).await).await;
}

async fn the_listing_is_pythons(server: &Server) {
    on_pythons_tables(server, async |saver| check_list(saver, &expected()).await).await;
}

async fn the_newest_of_each_namespace_is_pythons(server: &Server) {
    let expected = expected();
    on_pythons_tables(server, async |saver| {
        check_latest(saver, &expected).await;
        let threads: Vec<_> = saver.list_threads(ThreadQuery::all()).try_collect().await.unwrap();
        let newest = expected["list"][0]["checkpoint"]["id"].as_str().unwrap();
        assert_eq!(threads, [ThreadInfo::new(THREAD, newest)]);
    })
    .await;
}

async fn every_recorded_query_returns_the_same_as_in_python(server: &Server) {
    on_pythons_tables(server, async |saver| check_queries(saver, &expected()).await).await;
}

/// Each table with its columns; JSON and bytes in the server's text form, which is canonical.
const TABLES: [(&str, &str); 3] = [
    (
        "checkpoints",
        "SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata \
         FROM checkpoints ORDER BY 1, 2, 3",
    ),
    (
        "checkpoint_blobs",
        "SELECT thread_id, checkpoint_ns, channel, version, type, blob FROM checkpoint_blobs ORDER BY 1, 2, 3, 4",
    ),
    (
        "checkpoint_writes",
        "SELECT thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob, task_path \
         FROM checkpoint_writes ORDER BY 1, 2, 3, 4, 5",
    ),
];

async fn a_program_that_copies_the_thread_leaves_the_same_rows(server: &Server) {
    let (original, from) = restored(server).await;
    let copy = Database::set_up(server.url()).await;
    copy_by_hand(&from, &copy.builder().build().unwrap(), THREAD).await;
    let (original, copy) = (original.client().await, copy.client().await);
    let recorded = expected()["raw_rows"].clone();
    for (table, query) in TABLES {
        let (original, copied) = (rows(&original, query).await, rows(&copy, query).await);
        assert_eq!(copied.len(), recorded[table].as_array().unwrap().len(), "{table}");
        for (original, copied) in original.iter().zip(&copied) {
            assert_eq!(copied, original, "{table}");
        }
        assert_eq!(copied.len(), original.len(), "{table}");
    }
    // The file describes the same rows.
    let query = "SELECT checkpoint_ns, checkpoint_id, checkpoint, metadata FROM checkpoints";
    for row in rows(&copy, query).await {
        let [Some(ns), Some(id), Some(checkpoint), Some(metadata)] = row.as_slice() else {
            panic!("{row:?}")
        };
        let all = recorded["checkpoints"].as_array().unwrap();
        let recorded = all.iter().find(|one| one["checkpoint_ns"] == **ns && one["checkpoint_id"] == **id);
        let parse = |text: &str| -> Json { serde_json::from_str(text).unwrap() };
        assert_eq!(parse(checkpoint), recorded.unwrap()["checkpoint"]);
        assert_eq!(parse(metadata), recorded.unwrap()["metadata"]);
    }
}

/// Before version 4, the sends of the next step were stored among the writes of the parent.
async fn pending_sends_of_old_checkpoints(server: &Server) {
    const SENDS: &str = r#"
        INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata)
        VALUES ('old', '', '1ef00000-0000-6000-8000-000000000001', NULL,
                '{"v": 1, "ts": "2024-01-01T00:00:00+00:00", "id": "1ef00000-0000-6000-8000-000000000001",
                  "channel_values": {}, "channel_versions": {}, "versions_seen": {}}', '{}'),
               ('old', '', '1ef00000-0000-6000-8000-000000000002', '1ef00000-0000-6000-8000-000000000001',
                '{"v": 1, "ts": "2024-01-01T00:00:01+00:00", "id": "1ef00000-0000-6000-8000-000000000002",
                  "channel_values": {"x": 1}, "channel_versions": {"x": "00000000000000000000000000000003.0.5"},
                  "versions_seen": {}}', '{}');
        INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob)
        VALUES ('old', '', '1ef00000-0000-6000-8000-000000000001', 'b', '~a', 0, '__pregel_tasks', 'msgpack', '\x02'),
               ('old', '', '1ef00000-0000-6000-8000-000000000001', 'a', '~b', 1, '__pregel_tasks', 'msgpack', '\x04'),
               ('old', '', '1ef00000-0000-6000-8000-000000000001', 'a', '~b', 0, '__pregel_tasks', 'msgpack', '\x03'),
               ('old', '', '1ef00000-0000-6000-8000-000000000001', 'a', '~b', 2, 'other', 'msgpack', '\x09'),
               ('old', '', '1ef00000-0000-6000-8000-000000000001', 'c', '', 0, '__pregel_tasks', 'msgpack', '\x01');
    "#;
    let database = Database::set_up(server.url()).await;
    database.client().await.batch_execute(SENDS).await.unwrap();
    let saver = database.builder().build().unwrap();
    let [newest, oldest] = &*saver.list_all(ListQuery::thread("old")).await.unwrap() else {
        panic!("not two")
    };
    assert_eq!(saver.get_tuple(&newest.config).await.unwrap().as_ref(), Some(newest));
    let checkpoint = &newest.checkpoint;
    let sends: Vec<i64> = checkpoint.channel_values["__pregel_tasks"].decode().unwrap();
    assert_eq!(sends, [1, 2, 3, 4]);
    assert_eq!(checkpoint.channel_versions["__pregel_tasks"], checkpoint.channel_versions["x"]);
    assert!(!oldest.checkpoint.channel_values.contains_key("__pregel_tasks"), "it has no parent");
    assert_eq!(oldest.pending_writes.len(), 5);
    // A list of another serializer's values is left to the caller.
    let opaque = database.builder().opaque_values(true).build().unwrap();
    let tuple = opaque.get_tuple(&newest.config).await.unwrap().unwrap();
    let sends: Vec<&[u8]> = tuple.pending_sends.iter().map(|send| &*send.data).collect();
    assert_eq!(sends, [b"\x01", b"\x02", b"\x03", b"\x04"]);
    assert!(!tuple.checkpoint.channel_values.contains_key("__pregel_tasks"));
    assert_eq!(tuple.checkpoint.channel_versions, checkpoint.channel_versions);
    assert!(newest.pending_sends.is_empty() && oldest.pending_sends.is_empty());
    // Pruning keeps the sends of the remaining checkpoint.
    saver.prune(&["old"], PruneStrategy::KeepLatest).await.unwrap();
    let pruned = saver.get_tuple(&newest.config.clone().latest()).await.unwrap().unwrap();
    assert_eq!(pruned.checkpoint, newest.checkpoint);
}

pub(crate) fn tests() -> &'static [Test] {
    tests![
        every_checkpoint_reads_as_in_python,
        the_listing_is_pythons,
        the_newest_of_each_namespace_is_pythons,
        every_recorded_query_returns_the_same_as_in_python,
        a_program_that_copies_the_thread_leaves_the_same_rows,
        pending_sends_of_old_checkpoints,
    ]
}
