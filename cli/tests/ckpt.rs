//! The real binary on a thread that Python wrote.

use std::path::PathBuf;
use std::process::{Command, Output};

fn ckpt(file: &PathBuf, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ckpt"))
        .env_remove("LANGGRAPH_AES_KEY")
        .arg("--url")
        .arg(format!("sqlite:{}", file.display()))
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn shows_all_of_a_thread_that_python_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("thread.sqlite");
    std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/python_thread.sqlite"), &file)
        .unwrap();
    let history = ckpt(&file, &["--json", "history", "rich-1"]);
    let rows: Vec<serde_json::Value> = String::from_utf8(history.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), 19);
    let ids: Vec<_> = rows.iter().map(|row| row["checkpoint_id"].as_str().unwrap()).collect();
    assert!(ids.windows(2).all(|pair| pair[0] > pair[1]), "newest first");
    let text = String::from_utf8(ckpt(&file, &["history", "rich-1"]).stdout).unwrap();
    for id in ids {
        assert!(text.contains(id), "{id}");
        assert!(ckpt(&file, &["show", "rich-1", id]).status.success());
    }
    let missing = ckpt(&file, &["history", "nothing"]);
    assert_eq!(
        (missing.status.code(), missing.stderr.iter().filter(|byte| **byte == b'\n').count()),
        (Some(3), 1)
    );
    let sealed = String::from_utf8(ckpt(&file, &["history", "enc-1"]).stdout).unwrap();
    assert!(sealed.contains("encrypted, no key") && sealed.contains("step 4 loop"), "{sealed}");
}

#[test]
fn the_demo_holds_its_claims() {
    let dir = tempfile::tempdir().unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_ckpt")).args(["demo", "--dir"]).arg(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
