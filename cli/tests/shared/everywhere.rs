//! What `ckpt` does on every server, whose URL is an empty place: `setup` was not run for
//! [`every_command_works_as_on_a_file`], and was for the others.

use checkpoint_core::Value;
use serde_json::Value as Json;

use super::{
    Golden, assert_same_values, copy, counts, failure, file, filled, key_file, rows, run, sorted, sqlite,
    text,
};

/// `ready` is what `setup` and `check` print. JSON columns do not keep the order of keys, so neither do channels and metadata.
pub(crate) fn every_command_works_as_on_a_file(url: &str, ready: &str, keeps_order: bool) {
    let golden = Golden::new();
    let key = key_file(golden.directory.path());
    let key = key.to_str().unwrap();
    assert!(failure(&run(url, &["check"]), 4).contains("`ckpt setup`"));
    let not_set_up = copy(&golden.url(), url, &["func-1"]).output().unwrap();
    assert!(failure(&not_set_up, 4).contains("--to"));
    for command in ["setup", "setup", "check"] {
        assert_eq!(text(&run(url, &[command])), format!("{ready}\n"));
    }
    let clear = ["delta-1", "delta-slow-1", "delta-slow-exit-1", "func-1", "rich-1"];
    counts(&golden.url(), url, &clear);
    counts(&golden.url(), url, &["enc-1", "--key-file", key]);
    for arguments in [
        &["threads"][..],
        &["threads", "--with-status", "--prefix", "delta-"],
        &["threads", "--json", "--after", "delta-1", "--limit", "2"],
        &["history", "rich-1"],
        &["history", "rich-1", "--json"],
        &["history", "func-1", "--ns", "", "--limit", "2"],
        &["show", "rich-1", "--channel", "messages"],
        &["show", "func-1"],
        &["show", "rich-1", "1f1e4fbf-bec5-6005-8001-2d43fac462cf", "--json"],
    ] {
        let (there, here) = (text(&run(url, arguments)), golden.text(arguments));
        let comparable = |text: &str| -> Vec<Value> {
            let lines = text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| line.into()));
            let mut lines: Vec<_> = lines.map(sorted).collect();
            if arguments[0] == "show" {
                lines.sort_by_cached_key(|line| format!("{line:?}"));
            }
            lines
        };
        let same = if keeps_order { there == here } else { comparable(&there) == comparable(&here) };
        assert!(!here.is_empty() && same, "{arguments:?}:\n{there}\n{here}");
    }
    let sealed = run(url, &["show", "enc-1", "--channel", "log"]);
    assert!(failure(&sealed, 6).contains("LANGGRAPH_AES_KEY"));
    assert!(text(&run(url, &["show", "enc-1"])).contains("--key-file"));
    let rows = text(&run(url, &["history", "enc-1", "--json"]));
    assert_eq!(rows.lines().count(), 9, "{rows}");
    assert!(rows.lines().all(|line| line.contains("\"encrypted\":true")), "{rows}");
    let opened = run(url, &["show", "enc-1", "--json", "--key-file", key]);
    assert!(!text(&opened).contains("$error"));

    text(&run(url, &["copy-thread", "rich-1", "copy"]));
    assert!(failure(&run(url, &["copy-thread", "func-1", "copy"]), 2).contains("--yes"));
    text(&run(url, &["prune", "copy", "--yes"]));
    assert_eq!(text(&run(url, &["history", "copy", "--json"])).lines().count(), 3);
    text(&run(url, &["delete-thread", "copy", "--yes"]));
    assert!(failure(&run(url, &["history", "copy"]), 3).contains("copy"));
    text(&run(url, &["prune", "--all", "--strategy", "delete", "--yes"]));
    assert_eq!(text(&run(url, &["threads"])), "0 threads\n");
}

pub(crate) fn there_is_no_store(url: &str) {
    assert!(failure(&run(url, &["store", "setup"]), 2).contains("no store"));
}

pub(crate) fn keys_are_rotated(url: &str) {
    let golden = Golden::new();
    let python = key_file(golden.directory.path()).display().to_string();
    counts(&golden.url(), url, &["--key-file", &python]);
    let gcm = |id: &str, byte: u8| {
        let path = golden.directory.path().join(id);
        std::fs::write(&path, [byte; 32]).unwrap();
        format!("{id}={}", path.display())
    };
    let (old, new) = (gcm("old", 1), gcm("new", 2));
    let rekey = |arguments: &[&str]| -> Json {
        serde_json::from_str(&text(&run(url, &[&["rekey", "--json"], arguments].concat()))).unwrap()
    };
    let show = |key: &[&str]| run(url, &[&["show", "rich-1", "--json"], key].concat());
    let expected = text(&show(&["--key-file", &python]));
    for (keys, id) in [
        (vec!["--gcm-key", &*old, "--key-file", &*python], "old"),
        (vec!["--gcm-key", &*new, "--gcm-key", &*old], "new"),
    ] {
        let before = rekey(&["--dry-run"]);
        let done = rekey(&keys);
        let values = &before["keys"][0]["values"];
        assert_eq!((&done["resealed"], &done["remaining"], &done["failed"]), (values, &0.into(), &0.into()));
        let after = rekey(&["--dry-run"]);
        assert_eq!(after["keys"].as_array().unwrap().len(), 1);
        assert_eq!((after["keys"][0]["key_id"].as_str(), &after["keys"][0]["values"]), (Some(id), values));
    }
    assert_eq!(text(&show(&["--gcm-key", &new])), expected);
    assert!(failure(&run(url, &["rekey", "rich-1", "--gcm-key", &old]), 6).contains("key_id=\"new\""));
}

pub(crate) fn copies_of_pythons_file_to_the_server_and_back_are_equal(url: &str) {
    let golden = Golden::new();
    let key = key_file(golden.directory.path());
    let key = key.to_str().unwrap();
    golden.text(&["setup"]);
    let back = file(golden.directory.path(), "back.sqlite");
    let first = counts(&golden.url(), url, &["--key-file", key]);
    let second = counts(url, &sqlite(&back), &["--key-file", key]);
    let [checkpoints, writes] = rows(&golden.path);
    for counted in [first, second] {
        assert_eq!(
            (&counted["checkpoints"], &counted["writes"]),
            (&checkpoints.len().into(), &writes.len().into())
        );
    }
    // Compared in both directions, nothing is missing and nothing differs on any side.
    let sides = [golden.url(), url.to_owned(), sqlite(&back)];
    for from in &sides {
        for to in sides.iter().filter(|to| *to != from) {
            let counted = counts(from, to, &["--dry-run", "--key-file", key]);
            for nothing in ["checkpoints", "writes", "checkpoints_only_in_target", "threads_not_whole"] {
                assert_eq!(counted[nothing], 0, "{nothing}");
            }
            assert_eq!(counted["checkpoints_there_already"], checkpoints.len());
        }
    }
}

pub(crate) fn rows_come_back_byte_by_byte(url: &str) {
    let directory = tempfile::tempdir().unwrap();
    let source = filled(directory.path(), &["a", "b", ""], 40, 3000);
    let back = file(directory.path(), "back.sqlite");
    counts(&sqlite(&source), url, &[]);
    counts(url, &sqlite(&back), &[]);
    assert_same_values(&source, &back);
}

pub(crate) fn copies_can_encrypt_values(url: &str, stored: impl FnOnce() -> Vec<u8>) {
    let directory = tempfile::tempdir().unwrap();
    let source = filled(directory.path(), &["canary"], 12, 50);
    let key = directory.path().join("gcm");
    std::fs::write(&key, [7; 32]).unwrap();
    let key = format!("k1={}", key.display());
    counts(&sqlite(&source), url, &["--to-gcm-key", &key]);
    let stored = stored();
    let has = |text: &str| stored.windows(text.len()).any(|window| window == text.as_bytes());
    // The thread's name is in the keys, its value `rust` nowhere.
    assert!(has("canary") && !has("rust"));
    let back = file(directory.path(), "back.sqlite");
    failure(&copy(url, &sqlite(&back), &[]).output().unwrap(), 6);
    assert!(rows(&back).iter().all(Vec::is_empty));
    counts(url, &sqlite(&back), &["--from-gcm-key", &key]);
    assert_same_values(&source, &back);
}

pub(crate) fn usage_and_retain_say_the_same_as_on_a_file(url: &str) {
    let directory = tempfile::tempdir().unwrap();
    let source = filled(directory.path(), &["a", "b"], 12, 3000);
    counts(&sqlite(&source), url, &[]);
    let both = |arguments: &[&str]| -> [Json; 2] {
        [&sqlite(&source), url].map(|url| serde_json::from_str(&text(&run(url, arguments))).unwrap())
    };
    let [file, here] = both(&["usage", "--json", "--keep-last", "5", "--include-waiting"]);
    for name in ["threads", "checkpoints", "writes"] {
        assert_eq!(here[name], file[name], "{name}");
    }
    let per_day = |usage: &Json| {
        let days = usage["days"].as_array().unwrap().iter();
        days.map(|day| (day["day"].clone(), day["checkpoints"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(per_day(&here), per_day(&file));
    assert_eq!(here["would_go"]["checkpoints"], file["would_go"]["checkpoints"]);
    // Never more than there is.
    let bytes = |value: &Json| value["bytes"].as_u64().unwrap();
    assert!(0 < bytes(&here["would_go"]) && bytes(&here["would_go"]) < bytes(&here), "{here}");
    let [file, here] = both(&[
        "retain",
        "--keep-last",
        "5",
        "--include-waiting",
        "--thread",
        "a",
        "--thread",
        "b",
        "--yes",
        "--json",
    ]);
    assert_eq!((&here["threads"], &here["checkpoints"]), (&file["threads"], &file["checkpoints"]));
    assert_eq!(here["removed"]["checkpoints"], file["removed"]["checkpoints"]);
    let [file, here] = both(&["usage", "--json"]);
    assert_eq!(here["checkpoints"], file["checkpoints"]);
}

pub(crate) fn the_suite_runs(url: &str) {
    let lines = text(&run(url, &["conformance", "put_writes", "--json"]));
    let summary: Json = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert!(summary["passed"].as_u64().is_some_and(|passed| passed >= 10), "{summary}");
    assert_eq!(text(&run(url, &["threads"])), "0 threads\n");
}
