//! `ckpt copy` between two files.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod shared;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, Checkpoint, CheckpointConfig, CheckpointMetadata, CheckpointTuple,
    Cipher, ListQuery, SaverExt, Str,
};
use checkpoint_sqlite::{SqliteSaver, Synchronous};
use serde_json::Value as Json;

use shared::{Golden, assert_same_rows, block_on, ckpt, failure, fill, key_file, rows, text};

/// A folder with an empty target, and optionally a source.
struct Files {
    directory: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let files = Self { directory: tempfile::tempdir().unwrap() };
        block_on(async { saver(&files.target()).setup().await.unwrap() });
        files
    }

    /// With a source of these threads, each of this number of steps.
    fn filled(threads: &[&str], steps: i64, bytes: usize) -> Self {
        let files = Self::new();
        block_on(async {
            let source = saver(&files.source());
            source.setup().await.unwrap();
            fill(&source, threads, steps, bytes).await;
        });
        files
    }

    fn source(&self) -> PathBuf {
        self.directory.path().join("source.sqlite")
    }

    fn target(&self) -> PathBuf {
        self.directory.path().join("target.sqlite")
    }

    fn copy(&self, arguments: &[&str]) -> Output {
        copy(&self.source(), &self.target(), arguments).output().unwrap()
    }

    fn counts(&self, arguments: &[&str]) -> Json {
        counts(&self.copy(arguments))
    }

    fn edit(&self, sql: &str) {
        let connection = rusqlite::Connection::open(self.target()).unwrap();
        assert!(connection.execute(sql, ()).unwrap() > 0, "{sql}");
    }
}

fn copy(from: &Path, to: &Path, arguments: &[&str]) -> Command {
    let mut copy = ckpt();
    copy.args(["copy", "--json", "--from", &format!("sqlite:{}", from.display())]);
    copy.args(["--to", &format!("sqlite:{}", to.display())]).args(arguments);
    copy
}

fn counts(output: &Output) -> Json {
    serde_json::from_str(&text(output)).unwrap()
}

fn saver(path: &Path) -> SqliteSaver {
    SqliteSaver::builder(path).synchronous(Synchronous::Normal).build().unwrap()
}

/// Every checkpoint in a file.
fn tuples(path: &Path, cipher: Option<Cipher>) -> Vec<CheckpointTuple> {
    let mut builder = SqliteSaver::builder(path);
    if let Some(cipher) = cipher {
        builder = builder.cipher(cipher);
    }
    block_on(builder.build().unwrap().list_all(ListQuery::all())).unwrap()
}

#[test]
fn every_row_that_python_wrote_arrives() {
    let golden = Golden::new();
    let files = Files::new();
    // Ciphertext differs each time.
    golden.text(&["delete-thread", "enc-1", "--yes"]);
    // Adds the column of task paths, which the file's writer did not have.
    golden.text(&["setup"]);
    let counted = counts(&copy(&golden.path, &files.target(), &[]).output().unwrap());
    let source = rows(&golden.path);
    let target = rows(&files.target());
    // The order of a checkpoint's fields depends on the writer; everything else is equal byte by byte.
    assert_eq!(tuples(&files.target(), None), tuples(&golden.path, None));
    for (source, target) in source[0].iter().zip(&target[0]) {
        assert_eq!((&source[..5], &source[6..]), (&target[..5], &target[6..]));
    }
    assert!(source[1] == target[1], "the writes differ");
    assert_eq!(counted["checkpoints"], source[0].len());
    assert_eq!(counted["writes"], source[1].len());
    assert!(counted["bytes"].as_u64().unwrap() > 1000);
    let again = copy(&golden.path, &files.target(), &[]).output().unwrap();
    let again = counts(&again);
    assert_eq!((&again["checkpoints"], &again["writes"], &again["bytes"]), (&0.into(), &0.into(), &0.into()));
    assert_eq!(again["checkpoints_there_already"], source[0].len());
    assert!(rows(&files.target()) == target, "nothing is written again");
}

#[test]
fn forks_subgraphs_and_index_gaps_are_copied_for_the_named_threads_only() {
    let files = Files::filled(&["a", "b", "c", ""], 25, 10);
    let would = files.counts(&["--dry-run", "b", ""]);
    assert!(rows(&files.target()).iter().all(Vec::is_empty), "nothing is written");
    let done = files.counts(&["b", "", "b"]);
    for count in ["threads", "checkpoints", "writes", "bytes"] {
        assert_eq!(would[count], done[count], "{count}");
    }
    let thread = |row: &Vec<rusqlite::types::Value>| match &row[0] {
        rusqlite::types::Value::Text(thread) => thread.clone(),
        other => panic!("{other:?}"),
    };
    let named = rows(&files.source()).map(|mut rows| {
        rows.retain(|row| ["b", ""].contains(&thread(row).as_str()));
        rows
    });
    assert_eq!(rows(&files.target()), named);
    files.counts(&[]);
    assert_same_rows(&files.target(), &files.source());
    let missing = failure(&files.copy(&["a", "nobody"]), 3);
    assert!(missing.contains("nobody"), "{missing}");
}

#[test]
fn a_repeatedly_killed_copy_completes() {
    let files = Files::filled(&["a", "b"], 400, 200);
    let source = rows(&files.source());
    let target = rusqlite::Connection::open(files.target()).unwrap();
    let arrived =
        || -> isize { target.query_row("SELECT count(*) FROM checkpoints", (), |row| row.get(0)).unwrap() };
    let (mut kills, mut goal) = (0, 1);
    loop {
        let mut child = copy(&files.source(), &files.target(), &[])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // At a different moment each time, between two checkpoints or within one.
        while arrived() < goal && child.try_wait().unwrap().is_none() {}
        child.kill().unwrap();
        if child.wait().unwrap().success() {
            break;
        }
        kills += 1;
        goal = arrived() + 37;
        // The target has the older part of each thread, and every checkpoint has all its writes.
        let [checkpoints, writes] = rows(&files.target());
        for thread in ["a", "b"] {
            let of = |rows: &[Vec<rusqlite::types::Value>]| -> Vec<_> {
                let mut of: Vec<_> =
                    rows.iter().filter(|row| row[0] == thread.to_owned().into()).cloned().collect();
                of.sort_by_key(|row| format!("{:?}", row[2]));
                of
            };
            let there = of(&checkpoints);
            assert_eq!(there, of(&source[0])[..there.len()], "after {kills}");
            let complete =
                of(&source[1]).into_iter().filter(|write| there.iter().any(|row| row[2] == write[2]));
            let writes = of(&writes);
            assert!(complete.into_iter().all(|write| writes.contains(&write)), "after {kills}");
        }
    }
    assert!(kills > 2, "{kills}");
    assert_same_rows(&files.target(), &files.source());
    files.counts(&[]);
    assert_same_rows(&files.target(), &files.source());
}

#[test]
fn new_writes_of_the_source_are_copied_and_those_of_the_target_kept() {
    let files = Files::filled(&["a", "b"], 5, 10);
    files.counts(&[]);
    // A task finished and an answer changed in the source, on a checkpoint that had been copied.
    let (source, target) = (saver(&files.source()), saver(&files.target()));
    let newest = |saver: &SqliteSaver, thread: &str| {
        let saver = saver.clone();
        let at = CheckpointConfig::new(thread);
        block_on(async move { saver.get_tuple(&at).await.unwrap().unwrap() })
    };
    let write = |channel: &str, value: &str| (Str::from(channel), ChannelValue::from(value));
    let put_writes = |saver: &SqliteSaver, thread: &str, task: &str, writes: &[(Str, ChannelValue)]| {
        let at = newest(saver, thread).config;
        block_on(saver.put_writes(&at, writes, task, "")).unwrap();
    };
    put_writes(&source, "a", "late", &[write("x", "done")]);
    put_writes(&source, "a", "b4", &[write("__resume__", "yes")]);
    let counted = files.counts(&[]);
    assert_eq!((&counted["checkpoints"], &counted["writes"]), (&0.into(), &2.into()));
    assert_same_rows(&files.target(), &files.source());

    // The target diverges: none of its writes is lost, and the source does not replace its answer.
    put_writes(&target, "a", "own", &[write("x", "own")]);
    put_writes(&target, "a", "b4", &[write("__resume__", "no")]);
    put_writes(&source, "a", "b4", &[write("__resume__", "perhaps")]);
    let next = Checkpoint::new(9).with_channel("count", 9, 9);
    let at = newest(&target, "a").config;
    block_on(target.put(&at, &next, &CheckpointMetadata::default(), &next.channel_versions)).unwrap();
    let before = rows(&files.target());
    let counted = files.counts(&[]);
    assert_eq!((&counted["checkpoints"], &counted["writes"]), (&0.into(), &0.into()));
    assert_eq!(counted["checkpoints_only_in_target"], 1);
    assert_eq!(rows(&files.target()), before);
    // Also without --json.
    let summary = ckpt()
        .env("CKPT_FROM", format!("sqlite:{}", files.source().display()))
        .env("CKPT_TO", format!("sqlite:{}", files.target().display()))
        .arg("copy")
        .output()
        .unwrap();
    assert!(text(&summary).contains("1 checkpoint only in the target"), "{}", text(&summary));
}

#[test]
fn a_checkpoint_that_differs_is_kept_and_reported() {
    let files = Files::filled(&["a", "b"], 5, 10);
    files.counts(&[]);
    let id = &tuples(&files.source(), None)[3].checkpoint.id.clone();
    files.edit(&format!(
        "UPDATE checkpoints SET metadata = '{{\"source\": \"own\"}}' WHERE checkpoint_id = '{id}'"
    ));
    let before = rows(&files.target());
    let line = String::from_utf8(files.copy(&[]).stderr).unwrap();
    assert_eq!(files.copy(&[]).status.code(), Some(1));
    assert!(line.contains(&**id) && line.contains("1 of 2 threads"), "{line}");
    assert_eq!(rows(&files.target()), before);
    // Missing checkpoints are copied nevertheless.
    files.edit("DELETE FROM checkpoints WHERE thread_id = 'a'");
    assert_eq!(files.copy(&[]).status.code(), Some(1));
    let whole = rows(&files.target());
    assert_eq!(whole[0].len(), before[0].len());
}

#[test]
fn a_failing_thread_does_not_stop_the_others() {
    let files = Files::filled(&["a", "b", "c"], 5, 10);
    let connection = rusqlite::Connection::open(files.source()).unwrap();
    // A write of a saver without fixed indexes, and a malformed row.
    connection
        .execute("UPDATE writes SET idx = 7 WHERE thread_id = 'a' AND channel = '__interrupt__'", ())
        .unwrap();
    let damage = "UPDATE checkpoints SET checkpoint = x'c1' WHERE thread_id = 'c' AND checkpoint_id = \
                  (SELECT min(checkpoint_id) FROM checkpoints WHERE thread_id = 'c')";
    assert_eq!(connection.execute(damage, ()).unwrap(), 1);
    let output = files.copy(&[]);
    assert_eq!(output.status.code(), Some(1));
    let lines = String::from_utf8(output.stderr).unwrap();
    for part in ["thread a, checkpoint ", "__interrupt__ has index 7", "thread c", "2 of 3 threads"] {
        assert!(lines.contains(part), "{part} is missing in {lines}");
    }
    let threads: Vec<_> = rows(&files.target())[0].iter().map(|row| row[0].clone()).collect();
    assert!(
        !threads.is_empty() && threads.iter().all(|thread| *thread == "b".to_owned().into()),
        "{threads:?}"
    );
    assert!(failure(&files.copy(&["a"]), 1).contains("index 7"));
}

#[test]
fn values_are_decrypted_with_the_keys_of_one_side_and_encrypted_with_those_of_the_other() {
    let golden = Golden::new();
    let directory = golden.directory.path();
    let old = key_file(directory);
    let old = old.to_str().unwrap();
    let new = directory.join("new");
    std::fs::write(&new, [7; 32]).unwrap();
    let gcm = format!("k1={}", new.display());
    let expected = tuples(&golden.path, Some(Cipher::aes(&std::fs::read(old).unwrap()).unwrap()));
    let at = |name: &str| {
        let path = directory.join(name);
        block_on(async { saver(&path).setup().await.unwrap() });
        path
    };
    let (plain, sealed, back) = (at("plain"), at("sealed"), at("back"));
    let run = |from: &Path, to: &Path, arguments: &[&str]| copy(from, to, arguments).output().unwrap();

    // Missing or wrong keys fail before anything is written.
    for arguments in [&[][..], &["--from-key-file", new.to_str().unwrap()], &["--from-gcm-key", &gcm]] {
        let line = failure(&run(&golden.path, &plain, arguments), 6);
        assert!(line.contains("reading --from") && line.contains("enc-1"), "{line}");
    }
    assert!(rows(&plain).iter().all(Vec::is_empty));

    let output = run(&golden.path, &plain, &["--from-key-file", old]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("stored there unencrypted"));
    assert_eq!(tuples(&plain, None), expected);
    counts(&run(&plain, &sealed, &["--to-gcm-key", &gcm]));
    assert_eq!(tuples(&sealed, Some(Cipher::aes_gcm("k1", &[7; 32]).unwrap())), expected);
    for table in rows(&sealed) {
        let sealed = table.iter().flatten().filter(
            |value| matches!(value, rusqlite::types::Value::Text(tag) if tag.ends_with("+aes256gcm")),
        );
        assert_eq!(sealed.count(), table.len(), "every value");
    }
    // Without a key, unencrypted values are not added to an encrypted database.
    let line = failure(&run(&plain, &sealed, &[]), 6);
    assert!(line.contains("reading --to"), "{line}");
    counts(&run(&sealed, &back, &["--from-gcm-key", &gcm, "--to-key-file", old]));
    assert_eq!(tuples(&back, Some(Cipher::aes(&std::fs::read(old).unwrap()).unwrap())), expected);
    // The common keys apply to both sides.
    let again = counts(&run(&golden.path, &back, &["--key-file", old]));
    assert_eq!(again["checkpoints"], 0);
}

#[test]
fn invalid_sides_are_rejected() {
    let files = Files::filled(&["a"], 2, 10);
    let link = files.directory.path().join("link");
    std::fs::hard_link(files.source(), &link).unwrap();
    let beside = files.directory.path().join(".").join("source.sqlite");
    for same in [files.source(), link, beside] {
        assert!(failure(&copy(&files.source(), &same, &[]).output().unwrap(), 2).contains("same database"));
    }
    let missing = files.directory.path().join("missing");
    let no_tables = failure(&copy(&files.source(), &missing, &[]).output().unwrap(), 4);
    assert!(no_tables.contains("--to") && no_tables.contains("`ckpt setup`"), "{no_tables}");
    assert!(failure(&copy(&missing, &files.target(), &[]).output().unwrap(), 4).contains("--from"));
    let unknown = ckpt().args(["copy", "--from", "x:secret", "--to", "sqlite:y"]).output().unwrap();
    let message = failure(&unknown, 2);
    assert!(message.contains("--from") && !message.contains("secret"), "{message}");
    let help = ckpt().env("CKPT_TO", "x:hidden").args(["copy", "--help"]).output().unwrap();
    assert!(!text(&help).contains("x:hidden"));
}

/// A history far larger than the memory limit.
#[test]
#[cfg(target_os = "linux")]
fn memory_does_not_grow_with_the_thread() {
    const STEPS: i64 = 2000;
    const BYTES: usize = 100_000;
    let files = Files::filled(&["long"], STEPS, BYTES);
    let mut child = copy(&files.source(), &files.target(), &[]).stdout(Stdio::piped()).spawn().unwrap();
    let status = PathBuf::from(format!("/proc/{}/status", child.id()));
    let mut peak_kib = 0;
    while child.try_wait().unwrap().is_none() {
        let status = std::fs::read_to_string(&status).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|peak| peak.trim().strip_suffix(" kB")?.parse().ok());
        peak_kib = peak_kib.max(peak.unwrap_or(0));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let counted = counts(&child.wait_with_output().unwrap());
    assert!(counted["checkpoints"].as_u64().unwrap() > 2000, "{counted}");
    assert!(counted["bytes"].as_u64().unwrap() > 200_000_000, "{counted}");

    assert!((1..100 << 10).contains(&peak_kib), "{peak_kib} KiB");
    assert_eq!(counts(&files.copy(&["--dry-run"]))["checkpoints"], 0);
}
