//! The Pythons of the cross-language tests.
//!
//! They are named by environment variables, which `cargo xtask test` sets. Without them the cases are ignored; with
//! `CHECKPOINT_TEST_REQUIRE=python` they fail; `python-4.3` asks for one generation.

#![allow(dead_code, reason = "each binary uses its part of this")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use checkpoint_conformance::Missing;
use serde_json::{Value as Json, json};

/// The generations that share databases, with the variable that names the Python of each.
pub(crate) const GENERATIONS: [(&str, &str); 2] =
    [("4.2", "CHECKPOINT_TEST_PYTHON_4_2"), ("4.3", "CHECKPOINT_TEST_PYTHON_4_3")];

/// The Pythons of the environment, in the order of the generations.
fn given() -> [Option<PathBuf>; 2] {
    GENERATIONS.map(|(_, variable)| std::env::var_os(variable).map(PathBuf::from))
}

/// The Python of a generation.
pub(crate) fn find(at: usize) -> Result<PathBuf, Missing> {
    let (generation, variable) = GENERATIONS[at];
    given()[at].clone().ok_or_else(|| {
        let names = ["python", &format!("python-{generation}")];
        Missing::new("python", format!("{variable} is not set; cargo xtask test sets it"), &names)
    })
}

/// The Python of the other generation. Fails where both variables name the same one.
pub(crate) fn other(at: usize) -> Result<PathBuf, Missing> {
    let other = GENERATIONS.len() - 1 - at;
    for (at, (generation, variable)) in GENERATIONS.into_iter().enumerate() {
        let version = version(&find(at)?);
        assert!(version.starts_with(generation), "{variable} has langgraph-checkpoint {version}");
    }
    find(other)
}

/// The version of the package after which generations are named.
fn version(python: &Path) -> String {
    const PRINT: &str = "import importlib.metadata as m; print(m.version('langgraph-checkpoint'))";
    let output = Command::new(python).args(["-c", PRINT]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A Python that has imported everything, and forks for each command: `python/worker.py`. It ends with this process, which
/// holds the other end of its standard input.
#[derive(Debug)]
struct Worker {
    python: PathBuf,
    port: u16,
    _process: Child,
}

impl Worker {
    fn start(python: &Path) -> Self {
        let mut process = Command::new(python)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("python/worker.py"))
            .args(["agent", "stores"])
            // Unlisted classes stay data, and nothing is sent anywhere.
            .env("LANGSMITH_TRACING", "false")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().parse().unwrap_or_else(|_| panic!("{} does not start", python.display()));
        Self { python: python.to_owned(), port, _process: process }
    }
}

/// Runs the `main` of a module of `python/` in a process of its own. The connection is its standard input and output.
pub(crate) fn start(
    python: &Path,
    module: &str,
    arguments: &[&str],
    environment: &[(&str, Option<&str>)],
) -> TcpStream {
    static WORKERS: Mutex<Vec<Worker>> = Mutex::new(Vec::new());
    let port = {
        let mut workers = WORKERS.lock().unwrap_or_else(PoisonError::into_inner);
        let at = workers.iter().position(|worker| worker.python == python).unwrap_or_else(|| {
            workers.push(Worker::start(python));
            workers.len() - 1
        });
        workers[at].port
    };
    let mut connection = TcpStream::connect(("127.0.0.1", port)).unwrap();
    connection.set_nodelay(true).unwrap();
    let environment: Json = environment.iter().map(|(name, value)| (*name, json!(value))).collect();
    let request = json!({"module": module, "arguments": arguments, "environment": environment});
    connection.write_all(format!("{request}\n").as_bytes()).unwrap();
    connection
}
