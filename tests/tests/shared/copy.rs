//! Python's golden file, and a copy of a thread by the calls that a program would make.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use checkpoint_core::{BaseCheckpointSaver, CheckpointTuple, ListQuery, PendingWrite, SaverExt, special};

/// A copy of Python's file, which a test may write to.
#[allow(dead_code, reason = "not every binary has a file")]
pub(crate) fn golden_file(directory: &tempfile::TempDir) -> PathBuf {
    let path = directory.path().join("python_thread.sqlite");
    let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors/python_thread.sqlite");
    // Not `fs::copy`, which would keep a read-only mode.
    std::fs::write(&path, std::fs::read(original).unwrap()).unwrap();
    path
}

/// Writes a checkpoint's pending writes by the calls that a program would have made: special ones in a call of their
/// own, then the others at their positions, which special ones may take too.
async fn put_writes(saver: &impl BaseCheckpointSaver, tuple: &CheckpointTuple) {
    let mut tasks: BTreeMap<(&str, &str), Vec<&PendingWrite>> = BTreeMap::new();
    for write in &tuple.pending_writes {
        tasks.entry((&write.task_id, &write.task_path)).or_default().push(write);
    }
    for ((task_id, task_path), writes) in tasks {
        let (special, regular): (Vec<_>, Vec<_>) =
            writes.into_iter().partition(|write| special::index(&write.channel).is_some());
        let pair = |write: &&PendingWrite| (write.channel.clone(), write.value.clone());
        let special: Vec<_> = special.iter().map(pair).collect();
        saver.put_writes(&tuple.config, &special, task_id, task_path).await.unwrap();
        let mut call = Vec::new();
        for write in &regular {
            while call.len() < usize::try_from(write.idx).unwrap() {
                call.push(special.first().unwrap().clone());
            }
            call.push(pair(write));
        }
        saver.put_writes(&tuple.config, &call, task_id, task_path).await.unwrap();
    }
}

/// Reads every tuple of a thread and writes it through the saver's own calls.
pub(crate) async fn copy_by_hand(
    from: &impl BaseCheckpointSaver,
    into: &impl BaseCheckpointSaver,
    thread_id: &str,
) {
    let tuples = from.list_all(ListQuery::thread(thread_id)).await.unwrap();
    assert!(!tuples.is_empty(), "{thread_id}");
    for tuple in tuples.iter().rev() {
        let parent = tuple.parent_config.clone().unwrap_or_else(|| tuple.config.clone().latest());
        let versions = &tuple.checkpoint.channel_versions;
        let stored = into.put(&parent, &tuple.checkpoint, &tuple.metadata, versions).await.unwrap();
        assert_eq!(stored, tuple.config);
        put_writes(into, tuple).await;
    }
    assert_eq!(into.list_all(ListQuery::thread(thread_id)).await.unwrap(), tuples, "{thread_id}");
}
