//! Shared by the tests of the binary.

#![expect(dead_code, reason = "each test binary uses some of it")]
#![allow(unused_macros, unused_imports, reason = "each test binary uses some of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, Checkpoint, CheckpointConfig, CheckpointMetadata, Str, Value,
};
use checkpoint_sqlite::{SqliteSaver, Synchronous};
use rusqlite::types::Value as SqlValue;
use serde_json::Value as Json;

pub(crate) mod everywhere;

/// Lists functions as tests, by name. They start processes, so none of them is async.
macro_rules! blocking {
    ($($test:ident),* $(,)?) => {
        &[$((stringify!($test), |server| {
            $test(server);
            Ok(())
        })),*]
    };
}
pub(crate) use blocking;

/// The key with which Python encrypted the thread `enc-1` of its file: the bytes 0 to 31.
pub(crate) fn key_file(directory: &Path) -> PathBuf {
    let path = directory.join("key");
    std::fs::write(&path, (0..32).collect::<Vec<u8>>()).unwrap();
    path
}

pub(crate) struct Golden {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl Golden {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("python_thread.sqlite");
        let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors/python_thread.sqlite");
        std::fs::write(&path, std::fs::read(original).unwrap()).unwrap();
        Self { directory, path }
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.path.display())
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        ckpt().env("CKPT_URL", self.url()).args(arguments).output().unwrap()
    }

    /// The output of a command that succeeds.
    pub(crate) fn text(&self, arguments: &[&str]) -> String {
        text(&self.run(arguments))
    }

    pub(crate) fn lines(&self, arguments: &[&str]) -> Vec<Json> {
        self.text(arguments).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

pub(crate) fn ckpt() -> Command {
    let mut ckpt = Command::new(env!("CARGO_BIN_EXE_ckpt"));
    let libpq =
        ["PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGSSLMODE", "PGSSLROOTCERT", "PGSERVICE"];
    for variable in ["LANGGRAPH_AES_KEY", "CKPT_URL", "CKPT_FROM", "CKPT_TO"].into_iter().chain(libpq) {
        ckpt.env_remove(variable);
    }
    ckpt.stdin(Stdio::null());
    ckpt
}

pub(crate) fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(!text.contains('\u{1b}'), "no colours in a pipe");
    text
}

/// The one line of a command that fails with this code.
pub(crate) fn failure(output: &Output, code: i32) -> String {
    let line = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{line}");
    assert!(line.starts_with("ckpt: ") && line.lines().count() == 1, "{line}");
    line
}

/// Every row of a file's tables, by table, in the order of their keys.
pub(crate) fn rows(path: &Path) -> [Vec<Vec<SqlValue>>; 2] {
    let connection = rusqlite::Connection::open(path).unwrap();
    let read = |sql: &str| {
        let mut statement = connection.prepare(sql).unwrap();
        let columns = statement.column_count();
        let rows = statement.query_map((), |row| (0..columns).map(|column| row.get(column)).collect());
        rows.unwrap().collect::<Result<Vec<_>, _>>().unwrap()
    };
    [
        read(
            "SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata \
             FROM checkpoints ORDER BY 1, 2, 3",
        ),
        read(
            "SELECT thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, type, value \
             FROM writes ORDER BY 1, 2, 3, 4, 5",
        ),
    ]
}

/// Fails with only the first row that differs.
pub(crate) fn assert_same_rows(left: &Path, right: &Path) {
    for (left, right) in rows(left).iter().zip(&rows(right)) {
        for (left, right) in left.iter().zip(right) {
            assert_eq!(left, right);
        }
        assert_eq!(left.len(), right.len());
    }
}

/// Compares all rows, ignoring the order of keys, which not every database preserves.
pub(crate) fn assert_same_values(left: &Path, right: &Path) {
    let read = |path: &Path| {
        rows(path).map(|mut rows| {
            for row in &mut rows {
                if let [.., SqlValue::Blob(checkpoint), SqlValue::Blob(metadata)] = row.as_mut_slice() {
                    *checkpoint = sorted(Value::from_msgpack(checkpoint).unwrap()).to_msgpack().unwrap();
                    let value: Value = serde_json::from_slice(metadata).unwrap();
                    *metadata = sorted(value).to_msgpack().unwrap();
                }
            }
            rows
        })
    };
    for (left, right) in read(left).iter().zip(&read(right)) {
        assert!(!left.is_empty(), "a table has no rows to compare");
        for (left, right) in left.iter().zip(right) {
            assert!(left == right, "{:?} differs", &left[..3]);
        }
        assert_eq!(left.len(), right.len());
    }
}

pub(crate) fn sorted(value: Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        Value::Map(mut entries) => {
            entries.sort_by_cached_key(|(key, _)| format!("{key:?}"));
            Value::Map(entries.into_iter().map(|(key, value)| (key, sorted(value))).collect())
        }
        other => other,
    }
}

/// Runs a future.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(future)
}

/// Fills a database with threads of `steps` steps, with forks, subgraphs, parallel tasks, and index gaps among writes.
pub(crate) async fn fill(saver: &SqliteSaver, threads: &[&str], steps: i64, bytes: usize) {
    for thread in threads {
        let mut ids = Vec::new();
        for step in 0..steps {
            // Every tenth step is a fork from an older one.
            let parent = if step % 10 == 9 { ids.get(ids.len() / 2) } else { ids.last() };
            let mut at = CheckpointConfig::new(*thread);
            if let Some(parent) = parent {
                at = at.with_checkpoint_id(Str::clone(parent));
            }
            let text = format!("{thread} {step} ").repeat(bytes / 8 + 1);
            let blob = Value::Array(vec![text.as_str().into(), Value::Map(vec![("n".into(), step.into())])]);
            let checkpoint = Checkpoint::new(step)
                .with_channel(
                    "messages",
                    ChannelValue::encode(&blob).unwrap(),
                    format!("{:032}.{step}", step + 1).as_str(),
                )
                .with_channel("topic", "rust", format!("{:032}.5", 1).as_str())
                .with_channel("count", step, step + 1);
            let metadata = CheckpointMetadata::new("loop", step).with("run_id", "r").with("user", *thread);
            let versions = checkpoint.channel_versions.clone();
            let stored = saver.put(&at, &checkpoint, &metadata, &versions).await.unwrap();
            let write = |channel: &str, value: i64| (Str::from(channel), ChannelValue::from(value));
            for (task, path, writes) in [
                ("a", "~__pregel_pull, a", vec![write("x", 1), write("x", 2)]),
                ("b", "~__pregel_pull, b", vec![write("__resume__", step)]),
                ("b", "~__pregel_pull, b", vec![write("__resume__", step), write("y", 3)]),
                ("c", "", vec![write("__error__", 1), write("__interrupt__", 2)]),
            ] {
                saver.put_writes(&stored, &writes, &format!("{task}{step}"), path).await.unwrap();
            }
            if step % 7 == 3 {
                let sub = CheckpointConfig::new(*thread).with_checkpoint_ns(format!("sub:{step}|leaf"));
                let mut checkpoint = Checkpoint::new(step);
                checkpoint.updated_channels = Some(vec!["z".into()]);
                let metadata =
                    metadata.with("parents", Value::Map(vec![("".into(), (&*checkpoint.id).into())]));
                let checkpoint = checkpoint.with_channel("z", f64::NAN, "2");
                saver.put(&sub, &checkpoint, &metadata, &checkpoint.channel_versions).await.unwrap();
            }
            ids.push(checkpoint.id);
        }
    }
}

/// A file of SQLite, set up.
pub(crate) fn file(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    let saver = SqliteSaver::builder(&path).synchronous(Synchronous::Normal).build().unwrap();
    block_on(saver.setup()).unwrap();
    path
}

/// A file with threads.
pub(crate) fn filled(directory: &Path, threads: &[&str], steps: i64, bytes: usize) -> PathBuf {
    let path = file(directory, "source.sqlite");
    let saver = SqliteSaver::builder(&path).synchronous(Synchronous::Normal).build().unwrap();
    block_on(fill(&saver, threads, steps, bytes));
    path
}

pub(crate) fn sqlite(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

pub(crate) fn copy(from: &str, to: &str, arguments: &[&str]) -> Command {
    // By the environment, since other users can see arguments with a password.
    let mut copy = ckpt();
    copy.env("CKPT_FROM", from).env("CKPT_TO", to).args(["copy", "--json"]).args(arguments);
    copy
}

/// Copies, and returns what was counted.
pub(crate) fn counts(from: &str, to: &str, arguments: &[&str]) -> Json {
    serde_json::from_str(&text(&copy(from, to, arguments).output().unwrap())).unwrap()
}

pub(crate) fn run(url: &str, arguments: &[&str]) -> Output {
    ckpt().env("CKPT_URL", url).args(arguments).output().unwrap()
}
