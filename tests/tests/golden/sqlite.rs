//! A thread that Python's LangGraph wrote into a SQLite file: read as Python reads it, and copied byte for byte.

use std::path::Path;

use checkpoint_core::{
    BaseCheckpointSaver, Cipher, ErrorKind, ListQuery, SaverExt, ThreadInfo, ThreadQuery, Value,
};
use checkpoint_sqlite::SqliteSaver;
use futures_util::TryStreamExt;
use rusqlite::types::Value as Cell;
use serde_json::Value as Json;

use crate::shared::copy::{copy_by_hand, golden_file};
use crate::shared::golden::{
    THREAD, check_latest, check_list, check_queries, check_tuples, json_vectors, of_tuple,
};

/// A thread in the same file that Python's `EncryptedSerializer` sealed.
const ENCRYPTED: &str = "enc-1";
/// Threads of the file whose rows are in the clear.
const CLEAR: [&str; 5] = ["delta-1", "delta-slow-1", "delta-slow-exit-1", "func-1", THREAD];

fn expected() -> Json {
    json_vectors("python_thread.sqlite.expected.json")
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap().block_on(future)
}

/// Runs a test on the file as it is, and once more after `setup()` has brought it up to date.
fn on_both_generations(test: &impl AsyncFn(&SqliteSaver)) {
    for set_up in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let saver = SqliteSaver::builder(golden_file(&directory)).build().unwrap();
        run(async {
            if set_up {
                saver.setup().await.unwrap();
            }
            test(&saver).await;
        });
    }
}

#[test]
fn every_checkpoint_reads_as_in_python() {
    on_both_generations(&async |saver| check_tuples(saver, &expected()).await);
}

#[test]
fn the_listing_is_pythons() {
    on_both_generations(&async |saver| check_list(saver, &expected()).await);
}

#[test]
fn the_newest_of_each_namespace_is_pythons() {
    let expected = expected();
    on_both_generations(&async |saver| {
        check_latest(saver, &expected).await;
        let threads: Vec<_> = saver.list_threads(ThreadQuery::all()).try_collect().await.unwrap();
        let ids: Vec<_> = threads.iter().map(|thread| &*thread.thread_id).collect();
        assert_eq!(ids, ["delta-1", "delta-slow-1", "delta-slow-exit-1", ENCRYPTED, "func-1", THREAD]);
        let newest = expected["list"][0]["checkpoint"]["id"].as_str().unwrap();
        assert!(threads.contains(&ThreadInfo::new(THREAD, newest)));
    });
}

#[test]
fn every_recorded_query_returns_the_same_as_in_python() {
    on_both_generations(&async |saver| check_queries(saver, &expected()).await);
}

fn rows(path: &Path, query: &str) -> Vec<Vec<Cell>> {
    let connection = rusqlite::Connection::open(path).unwrap();
    let mut statement = connection.prepare(query).unwrap();
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| (0..columns).map(|at| row.get(at)).collect()).unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

const CHECKPOINTS: &str = "SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata, \
     typeof(checkpoint), typeof(metadata) FROM checkpoints WHERE thread_id <> 'enc-1' \
     ORDER BY thread_id, checkpoint_ns, checkpoint_id";
const WRITES: &str = "SELECT thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value, typeof(value) \
     FROM writes WHERE thread_id <> 'enc-1' ORDER BY thread_id, checkpoint_ns, checkpoint_id, task_id, idx";

/// The position of the checkpoint among these columns.
const CHECKPOINT: usize = 5;
/// The metadata of an exit-mode stub.
const STUB: &[u8] = br#"{"step": -2}"#;

#[test]
fn a_program_that_copies_the_threads_leaves_the_same_rows() {
    let directory = tempfile::tempdir().unwrap();
    let (original, target) = (golden_file(&directory), directory.path().join("copy.sqlite"));
    run(async {
        let from = SqliteSaver::builder(&original).build().unwrap();
        let into = SqliteSaver::builder(&target).build().unwrap();
        into.setup().await.unwrap();
        for thread_id in CLEAR {
            copy_by_hand(&from, &into, thread_id).await;
        }
    });
    for query in [CHECKPOINTS, WRITES] {
        let (original, copied) = (rows(&original, query), rows(&target, query));
        assert_eq!(copied.len(), original.len());
        assert!(original.len() >= 50, "{} rows", original.len());
        let mut in_another_order = 0;
        for (original, mut copied) in original.into_iter().zip(copied) {
            // LangGraph writes the fields of its exit-mode stub in an order of its own; we always in the usual one.
            if original.contains(&Cell::Blob(STUB.into())) {
                assert_eq!(fields(&copied[CHECKPOINT]), fields(&original[CHECKPOINT]));
                copied[CHECKPOINT] = original[CHECKPOINT].clone();
                in_another_order += 1;
            }
            assert_eq!(copied, original);
        }
        assert_eq!(in_another_order, usize::from(query == CHECKPOINTS));
    }
}

/// The fields of a stored checkpoint without their order.
fn fields(cell: &Cell) -> Vec<(String, Value)> {
    let Cell::Blob(bytes) = cell else { panic!("a checkpoint must be a blob") };
    let document = Value::from_msgpack(bytes).unwrap();
    let entry = |(key, value): &(Value, Value)| (key.as_str().unwrap().to_owned(), value.clone());
    let mut fields: Vec<_> = document.as_map().unwrap().iter().map(entry).collect();
    fields.sort_by(|(a, _), (b, _)| a.cmp(b));
    fields
}

#[test]
fn pythons_encrypted_thread_decrypts_only_with_its_key() {
    let directory = tempfile::tempdir().unwrap();
    let path = golden_file(&directory);
    let key: Vec<u8> = (0..32).collect();
    run(async {
        let query = ListQuery::thread(ENCRYPTED);
        let clear = SqliteSaver::builder(&path).build().unwrap();
        assert_eq!(clear.list_all(query.clone()).await.unwrap_err().kind(), ErrorKind::Crypto);
        let wrong = SqliteSaver::builder(&path).cipher(Cipher::aes(&[9; 32]).unwrap()).build().unwrap();
        assert_eq!(wrong.list_all(query.clone()).await.unwrap_err().kind(), ErrorKind::Crypto);
        let saver = SqliteSaver::builder(&path).cipher(Cipher::aes(&key).unwrap()).build().unwrap();
        let tuples = saver.list_all(query).await.unwrap();
        assert!(tuples.iter().any(|tuple| !tuple.pending_writes.is_empty()));
        for tuple in &tuples {
            // Everything inside decodes.
            assert_eq!(of_tuple(tuple)["checkpoint"]["id"], &*tuple.checkpoint.id);
        }
        // A mixed file: the clear thread reads with the same key, and both are copied under it.
        let target = directory.path().join("copy.sqlite");
        let into = SqliteSaver::builder(&target).cipher(Cipher::aes(&key).unwrap()).build().unwrap();
        into.setup().await.unwrap();
        for thread_id in [ENCRYPTED, THREAD] {
            copy_by_hand(&saver, &into, thread_id).await;
        }
    });
}
