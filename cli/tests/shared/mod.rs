//! What the tests of the binary share.

#![expect(dead_code, reason = "each test binary uses some of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value as Json;

/// The key with which Python sealed the thread `enc-1` of its file: the bytes 0 to 31.
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

    /// What a command that succeeds prints.
    pub(crate) fn text(&self, arguments: &[&str]) -> String {
        text(&self.run(arguments))
    }

    pub(crate) fn lines(&self, arguments: &[&str]) -> Vec<Json> {
        self.text(arguments).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

pub(crate) fn ckpt() -> Command {
    let mut ckpt = Command::new(env!("CARGO_BIN_EXE_ckpt"));
    for variable in ["LANGGRAPH_AES_KEY", "CKPT_URL", "CKPT_FROM", "CKPT_TO"] {
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
