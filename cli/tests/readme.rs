//! The README's quick start, compiled and run.

use std::path::Path;
use std::process::Command;

use checkpoint_core::{BaseCheckpointSaver, SaverExt};
use checkpoint_sqlite::SqliteSaver;

const README: &str = include_str!("../../README.md");

#[derive(serde::Serialize, serde::Deserialize)]
struct State {
    question: String,
    answer: Option<String>,
}

#[rustfmt::skip]
async fn quick_start(path: &Path) -> checkpoint_core::Result<()> {
    let saver = SqliteSaver::builder(path).build()?;
    saver.setup().await?; // creates the tables; safe to run at every deploy
    let thread = saver.thread("thread-1");
    let at = match thread.latest().await? {
        Some(at) => at, // resume
        None => thread.begin(&State { question: "why?".into(), answer: None }).await?,
    };
    let mut state: State = at.values()?;
    state.answer = Some("because".into());
    thread.commit(&at, &state).await?; // durable when this returns
    Ok(())
}

#[test]
fn the_quick_start_runs_and_resumes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agents.sqlite");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    for checkpoints in [2, 3] {
        runtime.block_on(quick_start(&path)).unwrap();
        let history = Command::new(env!("CARGO_BIN_EXE_ckpt"))
            .args(["history", "thread-1", "--json", "--url", &format!("sqlite:{}", path.display())])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(history.stdout).unwrap().lines().count(), checkpoints);
    }
}

#[test]
fn the_readme_equals_the_code_run_here() {
    let (_, block) = README.split_once("```rust,no_run\n").unwrap();
    let (block, _) = block.split_once("```\n").unwrap();
    assert!(block.lines().all(|line| !line.starts_with('#') || line.starts_with("#[")), "no hidden lines");
    let body = |text: &str| -> Vec<String> {
        let (_, rest) = text.split_once("    let saver = ").unwrap();
        let (body, _) = rest.split_once("\n}\n").unwrap();
        body.replacen("\"agents.sqlite\"", "path", 1).lines().map(str::to_owned).collect()
    };
    assert_eq!(body(block), body(include_str!("readme.rs")));
}
