//! The real binary, on a file that Python wrote and on new files.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod shared;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value as Json;

use shared::{Golden, ckpt, failure, key_file, rows, text};

#[test]
fn history_has_every_checkpoint_of_a_thread_that_python_wrote() {
    let golden = Golden::new();
    let rows = golden.lines(&["history", "rich-1", "--json"]);
    let ids: Vec<_> = rows.iter().map(|row| row["checkpoint_id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 19);
    assert!(ids.is_sorted_by(|newer, older| newer > older), "newest first");
    for row in &rows {
        for field in
            ["thread_id", "checkpoint_ns", "parent_checkpoint_id", "ts", "step", "source", "pending_writes"]
        {
            assert!(row.get(field).is_some(), "{field} is missing in {row}");
        }
    }
    assert_eq!((&rows[0]["source"], &rows[0]["step"]), (&"fork".into(), &4.into()));
    assert_eq!(golden.lines(&["history", "rich-1", "--ns", "", "--json"]).len(), 12);
    assert_eq!(golden.lines(&["history", "rich-1", "--limit", "3", "--json"]).len(), 3);

    let tree = golden.text(&["history", "rich-1"]);
    assert!(tree.starts_with("rich-1 19 checkpoints in 3 namespaces\n"), "{tree}");
    let positions: Vec<_> =
        ids.iter().map(|id| tree.find(id).unwrap_or_else(|| panic!("{id} is missing"))).collect();
    assert_eq!(tree.matches("1f1e4fbf-").count(), 19, "each once: {tree}");
    // Parents are above their children, and a subgraph below the step that ran it.
    for row in &rows {
        let at = |id: &str| positions[ids.iter().position(|known| *known == id).unwrap()];
        let id = row["checkpoint_id"].as_str().unwrap();
        for above in [row["parent_checkpoint_id"].as_str(), row["metadata"]["parents"][""].as_str()] {
            assert!(above.is_none_or(|above| at(above) < at(id)), "{id} is above {above:?}");
        }
    }
    for part in ["├─", "subgraph sub:c126881c", "update", "__interrupt__", "__error__"] {
        assert!(tree.contains(part), "{part} is missing in {tree}");
    }
}

#[test]
fn show_decodes_every_checkpoint() {
    let golden = Golden::new();
    for row in golden.lines(&["history", "rich-1", "--json"]) {
        let id = row["checkpoint_id"].as_str().unwrap();
        let shown = golden.lines(&["show", "rich-1", id, "--json"]);
        assert_eq!(
            (&shown[0]["checkpoint_id"], &shown[0]["checkpoint_ns"]),
            (&row["checkpoint_id"], &row["checkpoint_ns"])
        );
        assert!(!shown[0].to_string().contains("$error"), "{}", shown[0]);
        assert!(golden.text(&["show", "rich-1", id]).contains(id));
    }
    let newest = golden.text(&["show", "rich-1"]);
    for part in
        ["human:  hi 世界", "calls lookup({\"q\":\"x\"})", "2024-04-19T23:04:57.051022+00:00", "\"worker-2\""]
    {
        assert!(newest.contains(part), "{part} is missing in {newest}");
    }
    assert_eq!(golden.text(&["show", "rich-1", "--channel", "topic"]), "  rust\n");
    let channel = golden.lines(&["show", "rich-1", "--channel", "count", "--json"]);
    assert_eq!(channel[0]["channels"], serde_json::json!({"count": 2}));
}

#[test]
fn missing_things_are_reported_with_the_existing_ones() {
    let golden = Golden::new();
    assert!(failure(&golden.run(&["history", "nobody"]), 3).contains("nobody"));
    assert!(failure(&golden.run(&["history", ""]), 3).contains("''"));
    assert!(failure(&golden.run(&["history", "rich-1", "--ns", "x"]), 3).contains("sub:c126881c"));
    assert!(failure(&golden.run(&["show", "rich-1", "no-such-id"]), 3).contains("no-such-id"));
    assert!(failure(&golden.run(&["show", "rich-1", "--channel", "x"]), 3).contains("messages"));
    assert!(failure(&golden.run(&["copy-thread", "nobody", "x"]), 3).contains("nobody"));
    assert!(failure(&golden.run(&["delete-thread", "nobody", "--yes"]), 3).contains("nobody"));
    assert!(failure(&golden.run(&["conformance", "no-such-case"]), 3).contains("case"));
}

#[test]
fn invalid_urls_keys_and_files_have_exit_codes() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| format!("sqlite:{}", directory.path().join(name).display());
    let run = |arguments: &[&str]| ckpt().args(arguments).output().unwrap();
    assert!(failure(&run(&["threads"]), 2).contains("CKPT_URL"));
    assert!(failure(&run(&["threads", "--url", "mysql://:secret@host"]), 2).contains("sqlite:PATH"));
    for url in ["mysql://:secret@host", "mongodb://:secret@host"] {
        assert!(!failure(&run(&["threads", "--url", url]), 2).contains("secret"));
    }
    for command in ["threads", "check"] {
        assert!(failure(&run(&[command, "--url", &at("missing")]), 4).contains("`ckpt setup`"), "{command}");
    }
    assert!(failure(&run(&["threads", "--url", ""]), 2).contains("sqlite:PATH"));
    for no_file in ["sqlite:", "sqlite://", "sqlite::memory:"] {
        assert!(failure(&run(&["setup", "--url", no_file]), 2).contains("sqlite:PATH"));
    }
    assert!(!directory.path().join("missing").exists(), "a read creates nothing");
    std::fs::write(directory.path().join("short"), [0; 15]).unwrap();
    let short = directory.path().join("short");
    assert!(
        failure(&run(&["threads", "--url", &at("x"), "--key-file", short.to_str().unwrap()]), 2)
            .contains("15")
    );
    std::fs::write(directory.path().join("text"), "this is a letter, not a database ".repeat(100)).unwrap();
    let damaged = failure(&run(&["threads", "--url", &at("text")]), 1);
    assert_eq!(damaged.matches("file is not a database").count(), 1, "{damaged}");
}

#[test]
fn an_encrypted_thread_shows_unencrypted_fields_without_its_key() {
    let golden = Golden::new();
    let rows = golden.lines(&["history", "enc-1", "--json"]);
    assert!(!rows.is_empty());
    assert!(rows.iter().all(|row| row["encrypted"] == true && row["step"].is_i64() && row["ts"].is_string()));
    assert!(golden.text(&["history", "enc-1"]).contains("encrypted, no key"));
    assert!(golden.text(&["show", "enc-1"]).contains("--key-file"));
    // A single channel prints nothing but its value, so ciphertext is a failure.
    for arguments in
        [&["show", "enc-1", "--channel", "secret"][..], &["show", "enc-1", "--channel", "x", "--json"]]
    {
        let output = golden.run(arguments);
        assert!(failure(&output, 6).contains("LANGGRAPH_AES_KEY") && output.stdout.is_empty());
    }

    let key = key_file(golden.directory.path());
    let opened = golden.lines(&["show", "enc-1", "--json", "--key-file", key.to_str().unwrap()]);
    assert_eq!(opened[0]["encrypted"], false);
    assert!(opened[0]["channels"].as_object().is_some_and(|channels| !channels.is_empty()));
    let by_variable = ckpt()
        .args(["show", "enc-1", "--url", &format!("sqlite:{}", golden.path.display())])
        .env("LANGGRAPH_AES_KEY", "0123456789abcdef")
        .output()
        .unwrap();
    assert!(failure(&by_variable, 6).contains("--key-file"));
    // Fields that need no key are shown with a wrong one too.
    let wrong = golden.directory.path().join("wrong");
    std::fs::write(&wrong, [9; 32]).unwrap();
    let history = golden.text(&["history", "enc-1", "--key-file", wrong.to_str().unwrap()]);
    assert!(history.contains("encrypted, no key opens it"), "{history}");
    let newline = golden.directory.path().join("newline");
    std::fs::write(&newline, b"0123456789abcdef\n").unwrap();
    for arguments in [
        ["show", "enc-1", "--key-file", newline.to_str().unwrap()],
        ["show", "enc-1", "--gcm-key", &format!("k={}", newline.display())],
    ] {
        assert!(failure(&golden.run(&arguments), 2).contains("newline"), "the file is named");
    }
}

#[test]
fn threads_are_copied_pruned_and_deleted() {
    let golden = Golden::new();
    let threads = |golden: &Golden| -> Vec<String> {
        let rows = golden.lines(&["threads", "--json"]);
        rows.iter().map(|row| row["thread_id"].as_str().unwrap().to_owned()).collect()
    };
    let before = threads(&golden);
    assert!(before.contains(&"rich-1".to_owned()) && golden.text(&["threads"]).contains("rich-1"));
    golden.text(&["setup"]);
    assert_eq!(golden.lines(&["setup", "--json"])[0]["ready"], true);
    assert_eq!(golden.lines(&["check", "--json"])[0]["ready"], true);
    golden.text(&["copy-thread", "rich-1", "copy"]);
    assert_eq!(golden.lines(&["history", "copy", "--json"]).len(), 19);
    // Merging two histories needs consent.
    assert!(failure(&golden.run(&["copy-thread", "func-1", "copy"]), 2).contains("--yes"));
    assert_eq!(golden.lines(&["history", "copy", "--json"]).len(), 19);
    golden.text(&["copy-thread", "rich-1", "copy", "--yes"]);
    // Without a terminal there is no prompt.
    assert!(failure(&golden.run(&["prune", "copy"]), 2).contains("--yes"));
    assert!(failure(&golden.run(&["delete-thread", "copy"]), 2).contains("--yes"));
    assert_eq!(golden.lines(&["prune", "copy", "--yes", "--json"])[0]["pruned"], 1);
    assert_eq!(golden.lines(&["history", "copy", "--json"]).len(), 3, "one for each namespace");
    golden.text(&["delete-thread", "copy", "--yes"]);
    assert_eq!(threads(&golden), before);
    let waiting = golden.lines(&["threads", "--json", "--status", "waiting"]);
    assert!(waiting.iter().all(|row| row["status"] == "waiting"), "{waiting:?}");
    let by_status = |status| golden.lines(&["threads", "--json", "--status", status]).len();
    assert_eq!(["running", "waiting", "done"].map(by_status).iter().sum::<usize>(), before.len());
    let rich = golden.text(&["threads", "--with-status", "--prefix", "rich-"]);
    assert!(rich.contains("STATUS") && rich.contains("rich-1") && rich.lines().count() == 3, "{rich}");
    golden.text(&["prune", "--all", "--strategy", "delete", "--yes"]);
    assert!(threads(&golden).is_empty());
    assert_eq!(golden.text(&["threads"]), "0 threads\n");
}

#[test]
fn retention_removes_what_its_policy_does_not_keep() {
    let golden = Golden::new();
    let threads = |golden: &Golden| golden.lines(&["threads", "--json"]).len();
    let history = |thread: &str| golden.lines(&["history", thread, "--json"]).len();
    for (arguments, part) in [
        (&["retain"][..], "--keep-last"),
        (&["retain", "--keep-last", "0"], "keep_last"),
        (&["retain", "--max-age", "0s"], "max_age"),
        (&["retain", "--idle-for", "99999years"], "idle_for"),
        (&["retain", "--keep-last", "1", "--pin", "a"], "NAME=VALUE"),
        (&["retain", "--ns-keep-last", "a=b"], "not a number"),
        (&["retain", "--ns-max-age", "a=b"], "--ns-max-age"),
        (&["retain", "--keep-last", "2"], "--yes"),
    ] {
        let line = failure(&golden.run(arguments), 2);
        assert!(line.contains(part), "{arguments:?}: {line}");
    }
    assert_eq!(golden.run(&["retain", "--idle-for", "soon"]).status.code(), Some(2));
    failure(&golden.run(&["retain", "--keep-last", "2", "--thread", "none", "--yes"]), 3);

    // A dry run says what a run does, and a second run finds nothing.
    let arguments = ["retain", "--keep-last", "2", "--json", "--thread", "rich-1"];
    let run = |more: &str| golden.lines(&[&arguments[..], &[more]].concat()).remove(0);
    let (before, planned) = (history("rich-1"), run("--dry-run"));
    assert_eq!(history("rich-1"), before);
    let removed = run("--yes");
    assert_eq!(removed["removed"], planned["removed"]);
    assert_eq!(removed["removed"]["checkpoints"], before - history("rich-1"));
    assert_eq!(removed["removed"], removed["by_rule"]["keep_last"]);
    assert_eq!((removed["dry_run"].as_bool(), removed["threads"].as_u64()), (Some(false), Some(1)));
    assert_eq!(run("--yes")["removed"]["checkpoints"], 0);
    assert!(golden.text(&["show", "rich-1"]).contains("messages"));

    // Pinned threads stay, and those that wait for a person.
    let all = threads(&golden);
    let pinned =
        golden.lines(&["retain", "--idle-for", "1s", "--pin", "step=-1", "--yes", "--json"]).remove(0);
    assert_eq!(
        pinned["removed"]["threads"].as_u64().unwrap()
            + pinned["waiting"].as_u64().unwrap()
            + pinned["pinned"].as_u64().unwrap(),
        all as u64
    );
    assert!(pinned["waiting"].as_u64().unwrap() > 0 && pinned["pinned"].as_u64().unwrap() > 0);
    let left = threads(&golden);
    let text = golden.text(&["retain", "--idle-for", "1s", "--dry-run", "--prefix", "rich"]);
    assert!(left > 0 && text.contains("would go"), "{text}");
    golden.text(&["retain", "--idle-for", "1s", "--include-waiting", "--yes"]);
    assert_eq!(threads(&golden), 0);
}

#[test]
fn usage_counts_what_is_stored() {
    let golden = Golden::new();
    let threads = golden.lines(&["threads", "--json"]);
    let used = golden.lines(&["usage", "--json", "--largest", "2"]).remove(0);
    assert_eq!(used["threads"], threads.len());
    let checkpoints: usize = threads
        .iter()
        .map(|row| golden.lines(&["history", row["thread_id"].as_str().unwrap(), "--json"]).len())
        .sum();
    assert_eq!(used["checkpoints"], checkpoints);
    let largest = used["largest"].as_array().unwrap();
    assert!(largest.len() == 2 && largest[0]["bytes"].as_u64() >= largest[1]["bytes"].as_u64());
    assert_eq!(used["days"][0]["day"], "2026-11-20");
    assert_eq!(
        used["days"].as_array().unwrap().iter().map(|day| day["checkpoints"].as_u64().unwrap()).sum::<u64>(),
        checkpoints as u64
    );
    assert!(used["on_disk"].as_u64() > used["bytes"].as_u64() && used["would_go"].is_null());
    let planned = golden.lines(&["usage", "--json", "--keep-last", "1"]).remove(0);
    let dry = golden.lines(&["retain", "--keep-last", "1", "--dry-run", "--json"]).remove(0);
    assert_eq!(planned["would_go"], dry["removed"]);
    assert!(failure(&golden.run(&["usage", "--keep-last", "0"]), 2).contains("keep_last"));
    let text = golden.text(&["usage", "--idle-for", "1s", "--days", "0"]);
    assert!(
        text.contains("LARGEST THREADS") && text.contains("The policy would remove") && !text.contains("DAY")
    );
}

/// The numbers of `ckpt rekey --json`: values by key id or cipher, sealed again, left, and failed threads.
fn rekeyed(output: &std::process::Output) -> (BTreeMap<String, u64>, [u64; 3]) {
    let line: Json = serde_json::from_slice(&output.stdout).unwrap();
    let name = |key: &Json| {
        let name = key["key_id"].as_str().or_else(|| key["cipher"].as_str()).unwrap_or("plain");
        (name.to_owned(), key["values"].as_u64().unwrap())
    };
    let keys = line["keys"].as_array().unwrap().iter().map(name).collect();
    (keys, ["resealed", "remaining", "failed"].map(|field| line[field].as_u64().unwrap()))
}

/// The steps of a key rotation: from plain and Python's AES to one GCM key, and from that to another.
#[test]
fn keys_are_rotated() {
    let golden = Golden::new();
    let python = key_file(golden.directory.path()).display().to_string();
    let gcm = |id: &str, byte: u8| {
        let path = golden.directory.path().join(id);
        std::fs::write(&path, [byte; 32]).unwrap();
        format!("{id}={}", path.display())
    };
    let (old, new) = (gcm("old", 1), gcm("new", 2));
    let rekey = |arguments: &[&str]| golden.run(&[&["rekey", "--json"], arguments].concat());

    golden.text(&["setup"]);
    // Which keys are in use, without any key.
    let before = rows(&golden.path);
    let (keys, counts) = rekeyed(&rekey(&["--dry-run"]));
    assert!(keys.keys().eq(["aes", "plain"]) && counts[0] == 0, "{keys:?}");
    let total: u64 = keys.values().sum();
    assert!(golden.text(&["rekey", "--dry-run"]).contains("AES-EAX, no key id"));
    assert!(failure(&rekey(&[]), 2).contains("--dry-run"));
    assert!(failure(&rekey(&["--old-key-file", &python]), 2).contains("--gcm-key"));
    assert_eq!(rows(&golden.path), before);

    // Without Python's key, its thread fails and the others are done.
    let failed = rekey(&["--gcm-key", &old]);
    assert!(failure(&failed, 6).contains("enc-1"));
    let (keys, counts) = rekeyed(&failed);
    assert!(
        keys.keys().eq(["old"]) && counts[0] == keys["old"] && counts[1..] == [0, 1],
        "{keys:?} {counts:?}"
    );
    let done = rekey(&["--gcm-key", &old, "--key-file", &python]);
    assert_eq!(rekeyed(&done).0, [("old".to_owned(), total)].into());
    assert!(done.status.success() && rekeyed(&done).1[1..] == [0, 0]);
    let expected = golden.text(&["show", "enc-1", "--json", "--gcm-key", &old]);

    // One thread, then all without the old key: the missing key id is named, and nothing of a thread is changed.
    let one = golden.text(&["rekey", "rich-1", "--gcm-key", &new, "--gcm-key", &old]);
    assert!(one.contains("key id new") && one.contains("1 thread,"), "{one}");
    let before = rows(&golden.path);
    let without = rekey(&["--gcm-key", &new]);
    let shown = String::from_utf8(without.stderr.clone()).unwrap();
    assert_eq!((without.status.code(), shown.matches("key_id=\"old\"").count()), (Some(1), 5), "{shown}");
    assert_eq!(rekeyed(&without).1, [0, 0, 5]);
    assert_eq!(rows(&golden.path), before);

    let done = rekey(&["--gcm-key", &new, "--gcm-key", &old]);
    assert!(done.status.success());
    assert_eq!(rekeyed(&rekey(&["--dry-run"])).0, [("new".to_owned(), total)].into());
    assert_eq!(rekeyed(&rekey(&["--gcm-key", &new])).1, [0, 0, 0], "nothing to do");
    assert_eq!(golden.text(&["show", "enc-1", "--json", "--gcm-key", &new]), expected);
    assert!(
        failure(&golden.run(&["show", "enc-1", "--channel", "log", "--gcm-key", &old]), 6).contains("new")
    );
    assert!(failure(&rekey(&["nobody", "--gcm-key", &new]), 3).contains("nobody"));
}

#[test]
fn one_aes_key_is_replaced_by_another() {
    let golden = Golden::new();
    let old = key_file(golden.directory.path()).display().to_string();
    let new = golden.directory.path().join("new");
    std::fs::write(&new, [7; 16]).unwrap();
    let new = new.display().to_string();
    let expected = golden.text(&["show", "enc-1", "--json", "--key-file", &old]);
    let dry = rekeyed(&golden.run(&["rekey", "enc-1", "--json", "--dry-run", "--key-file", &new]));
    assert_eq!(dry.1, [0, dry.0["aes"], 0], "another AES key has sealed all of them");
    let wrong = golden.run(&["rekey", "enc-1", "--key-file", &new]);
    assert!(failure(&wrong, 6).contains("enc-1"));
    let done = golden.run(&["rekey", "enc-1", "--json", "--key-file", &new, "--old-key-file", &old]);
    assert_eq!(rekeyed(&done), (dry.0.clone(), [dry.0["aes"], 0, 0]));
    assert_eq!(golden.text(&["show", "enc-1", "--json", "--key-file", &new]), expected);
    let dry = rekeyed(&golden.run(&["rekey", "enc-1", "--json", "--dry-run", "--key-file", &new]));
    assert_eq!(dry.1, [0, 0, 0]);
}

#[test]
fn a_closed_pipe_is_not_a_failure() {
    let golden = Golden::new();
    let mut child = ckpt()
        .args(["history", "rich-1", "--json", "--url", &format!("sqlite:{}", golden.path.display())])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Closed before anything is read.
    drop(child.stdout.take());
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert!(child.wait().unwrap().success() && errors.is_empty(), "{errors}");
}

#[test]
fn stored_text_cannot_inject_escape_sequences() {
    let golden = Golden::new();
    let bell = "\u{7}\u{1b}[2J";
    let connection = rusqlite::Connection::open(&golden.path).unwrap();
    connection.execute("UPDATE checkpoints SET thread_id = ?1 WHERE thread_id = 'func-1'", [bell]).unwrap();
    for arguments in [&["threads"][..], &["history", bell], &["show", bell]] {
        let text = golden.text(arguments);
        assert!(!text.contains('\u{7}') && text.contains("\\u{7}\\u{1b}[2J"), "{text}");
    }
}

#[test]
fn help_does_not_show_the_value_of_the_url_variable() {
    for arguments in [&["--help"][..], &["history", "-h"]] {
        let output = ckpt().env("CKPT_URL", "sqlite:secret").args(arguments).output().unwrap();
        let help = text(&output);
        assert!(help.contains("CKPT_URL") && !help.contains("secret"), "{help}");
    }
    let alone = ckpt().output().unwrap();
    let help = String::from_utf8(alone.stderr).unwrap();
    assert!(help.contains("ckpt demo") && !help.contains("demo-agent"), "{help}");
    assert_eq!(alone.status.code(), Some(2));
}

#[test]
fn history_shows_checkpoints_newer_than_a_malformed_row() {
    let golden = Golden::new();
    let ids: Vec<_> = golden
        .lines(&["history", "rich-1", "--ns", "", "--json"])
        .iter()
        .map(|row| row["checkpoint_id"].as_str().unwrap().to_owned())
        .collect();
    let connection = rusqlite::Connection::open(&golden.path).unwrap();
    connection
        .execute("UPDATE checkpoints SET checkpoint = x'c1' WHERE checkpoint_id = ?1", [&ids[3]])
        .unwrap();
    for form in [&["history", "rich-1", "--ns", ""][..], &["history", "rich-1", "--ns", "", "--json"]] {
        let output = golden.run(form);
        assert!(failure(&output, 1).contains(&ids[3]));
        let shown = String::from_utf8(output.stdout).unwrap();
        assert!(shown.contains(&ids[0]) && shown.contains(&ids[2]) && !shown.contains(&ids[4]), "{shown}");
    }
}

#[test]
fn a_delta_channel_without_a_snapshot_is_named() {
    let golden = Golden::new();
    let rows = golden.lines(&["history", "delta-1", "--json"]);
    let mut named = 0;
    for row in &rows {
        let counted = row["metadata"]["counters_since_delta_snapshot"].get("items").is_some();
        let id = row["checkpoint_id"].as_str().unwrap();
        let shown = golden.lines(&["show", "delta-1", id, "--json"]);
        let missing = counted && shown[0]["channels"].get("items").is_none();
        assert_eq!(
            golden.text(&["show", "delta-1", id]).contains("items\n  no snapshot here"),
            missing,
            "{id}"
        );
        if missing {
            named += 1;
            let alone = golden.run(&["show", "delta-1", id, "--channel", "items"]);
            assert!(failure(&alone, 3).contains("delta channel"));
        }
    }
    assert!((1..rows.len()).contains(&named), "some have a snapshot, some have none: {named}");
}

#[test]
fn changed_channels_are_not_guessed_without_the_parent() {
    let golden = Golden::new();
    let newest = golden.text(&["history", "rich-1", "--limit", "1"]);
    assert!(newest.contains("(parent not shown)") && !newest.contains("messages"), "{newest}");
    assert!(!golden.text(&["history", "rich-1"]).contains("(parent not shown)"));
}

/// A service account reads a file that another one protects.
#[test]
#[cfg(unix)]
fn a_file_in_a_read_only_directory_is_read() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    const NOBODY: u32 = 65534;
    let golden = Golden::new();
    let directory = golden.directory.path();
    let allow = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    // The other user needs access to the binary as well.
    let binary = directory.join("ckpt");
    std::fs::copy(env!("CARGO_BIN_EXE_ckpt"), &binary).unwrap();
    allow(&binary, 0o555);
    allow(&golden.path, 0o444);
    allow(directory, 0o555);
    let run = |arguments: &[&str]| {
        let mut ckpt = Command::new(&binary);
        ckpt.env_remove("LANGGRAPH_AES_KEY").env("CKPT_URL", format!("sqlite:{}", golden.path.display()));
        // Root ignores permissions.
        if rustix::process::geteuid().is_root() {
            ckpt.uid(NOBODY).gid(NOBODY);
        }
        ckpt.args(arguments).stdin(Stdio::null()).output()
    };
    // The directory has to be writable again for its removal, also after a failure.
    let history = run(&["history", "rich-1", "--json"]).inspect_err(|_| allow(directory, 0o755)).unwrap();
    let shown = run(&["show", "rich-1"]).unwrap();
    let deleted = run(&["delete-thread", "rich-1", "--yes"]).unwrap();
    let left = std::fs::read_dir(directory).unwrap().count();
    allow(directory, 0o755);
    assert_eq!(text(&history).lines().count(), 19);
    assert!(text(&shown).contains("messages"));
    assert!(failure(&deleted, 2).contains("read-only"));
    assert_eq!(left, 2, "nothing was created beside the file and the binary");
}

#[test]
#[cfg(unix)]
fn an_interrupted_suite_leaves_no_threads() {
    use std::io::BufRead;

    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("own.sqlite").display());
    let mut child = ckpt()
        .args(["--url", &url, "conformance", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    // Each case is printed when it ends.
    out.read_line(&mut line).unwrap();
    assert!(line.contains("passed"), "{line}");
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(failure(&output, 130).contains("interrupted"));
    assert!(rest.lines().last().unwrap().contains("\"failed\":0"), "{rest}");
    let threads = ckpt().args(["--url", &url, "threads", "--json"]).output().unwrap();
    assert_eq!(text(&threads), "");
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&ckpt().args(["completions", shell]).output().unwrap());
        assert!(script.contains("copy-thread") && script.contains("key-file"), "{shell}");
        assert!(!script.contains("demo-agent"), "{shell}");
        assert!(script.contains("ckpt"));
    }
    let help = text(&ckpt().args(["--help"]).output().unwrap());
    assert!(help.contains("Exit codes") && help.contains("CKPT_URL"));
    for command in [
        "demo",
        "setup",
        "check",
        "threads",
        "history",
        "show",
        "copy-thread",
        "delete-thread",
        "prune",
        "retain",
        "usage",
        "conformance",
    ] {
        let help = text(&ckpt().args([command, "--help"]).output().unwrap());
        assert!(help.contains("Example"), "{command}");
    }
}

#[test]
fn the_demo_resumes_after_being_killed() {
    let directory = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        ckpt().arg("demo").arg("--dir").arg(directory.path()).args(arguments).output().unwrap()
    };
    let events = text(&run(&["--json"]));
    let events: Vec<Json> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let fact = |event: &str, fact: &str| {
        let found = events.iter().find(|line| line["event"] == event).unwrap_or_else(|| panic!("{event}"));
        found["facts"][fact].clone()
    };
    assert_eq!(fact("killed", "done"), serde_json::json!(["climate"]));
    assert_eq!(fact("resumed", "starts"), serde_json::json!([1, 2, 2]));
    assert_ne!(fact("resumed", "answer"), fact("forked", "answer"));
    // The log of the tasks confirms it.
    let log = std::fs::read_to_string(directory.path().join("started-tasks.txt")).unwrap();
    assert_eq!(log.lines().filter(|line| *line == "climate").count(), 1);
    let file = directory.path().join("started-tasks.txt");
    let no_folder = ckpt().arg("demo").arg("--dir").arg(&file).output().unwrap();
    assert!(failure(&no_folder, 2).contains("started-tasks.txt"));
    // It does not overwrite an older one.
    assert!(failure(&run(&[]), 2).contains("--dir"));

    let directory = tempfile::tempdir().unwrap();
    let story = text(&ckpt().arg("demo").arg("--dir").arg(directory.path()).output().unwrap());
    for part in ["SIGKILL", "was not run again", "├─", "fork", "ckpt --url"] {
        assert!(story.contains(part), "{part} is missing in {story}");
    }
}

#[test]
fn the_suite_runs_on_a_users_database() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("own.sqlite").display());
    let output = ckpt().args(["--url", &url, "conformance", "put_writes", "--json"]).output().unwrap();
    let lines = text(&output);
    let summary: Json = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert!(summary["passed"].as_u64().is_some_and(|passed| passed >= 10), "{summary}");
    assert_eq!(summary["failed"], 0);
}

#[test]
fn a_store_can_be_tried_without_a_database() {
    let demo = |arguments: &[&str]| text(&ckpt().args(["store", "demo"]).args(arguments).output().unwrap());
    let printed = demo(&[]);
    for part in ["5 notes", "3 items", "users.ann trip", "users.bob drink", "black coffee"] {
        assert!(printed.contains(part), "{part} is missing in {printed}");
    }
    let lines: Vec<Json> =
        demo(&["--json"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().filter(|line| line["score"].is_number()).count(), lines.len() - 3);
}

#[test]
fn a_file_has_no_store() {
    let golden = Golden::new();
    for arguments in [&["store", "get", "a", "k"][..], &["store", "setup"], &["conformance", "--store"]] {
        let line = failure(&golden.run(arguments), 2);
        assert!(line.contains("sqlite") && line.contains("postgres://"), "{line}");
    }
    assert!(failure(&ckpt().args(["store", "sweep"]).output().unwrap(), 2).contains("--url"));
}
