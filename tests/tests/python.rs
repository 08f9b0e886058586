//! Rust and Python's LangGraph take turns on one SQLite file, for each generation that shares our files.
//!
//! The Pythons are named by environment variables, which `cargo xtask test` sets. Without them the cases are ignored;
//! with `CHECKPOINT_TEST_REQUIRE=python` they fail.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod shared {
    pub(crate) mod copy;
}

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use checkpoint_core::python::{
    AiMessage, Date, DateTime, Decimal, HumanMessage, Interrupt, Message, Send, Set, TimeDelta, ToolCall,
    ToolMessage, Uuid,
};
use checkpoint_core::{
    BaseCheckpointSaver, Bytes, ChannelValue, Checkpoint, CheckpointConfig, CheckpointMetadata, Cipher,
    ListQuery, PruneStrategy, SaverExt, Snapshot, Str, Value, special,
};
use checkpoint_sqlite::SqliteSaver;
use libtest_mimic::{Arguments, Completion, Trial};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

/// The generations, with the variable that names the Python of each.
const GENERATIONS: [(&str, &str); 2] =
    [("4.2", "CHECKPOINT_TEST_PYTHON_4_2"), ("4.3", "CHECKPOINT_TEST_PYTHON_4_3")];

/// The task under which LangGraph looks for answers that belong to no task.
const NULL_TASK: &str = "00000000-0000-0000-0000-000000000000";

const THREAD: &str = "shared-1";
const KEY: &str = "0123456789abcdef0123456789abcdef";

/// One file that both languages open.
struct Turns {
    python: PathBuf,
    other_python: Option<PathBuf>,
    directory: tempfile::TempDir,
    path: PathBuf,
    key: Option<&'static str>,
}

impl Turns {
    fn new(python: &Path, other_python: Option<&Path>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shared.sqlite");
        let other_python = other_python.map(Path::to_path_buf);
        Self { python: python.to_path_buf(), other_python, directory, path, key: None }
    }

    fn command(&self, python: &Path, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(python);
        command
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("python/agent.py"))
            .arg(name)
            .arg(&self.path)
            .args(arguments)
            .env_remove("LANGGRAPH_AES_KEY")
            // Unlisted classes stay data, and nothing is sent anywhere.
            .env("LANGSMITH_TRACING", "false")
            .stdin(Stdio::null());
        if let Some(key) = self.key {
            command.env("LANGGRAPH_AES_KEY", key);
        }
        command
    }

    /// Lets Python do one thing, and returns what it says about it.
    fn python(&self, name: &str, arguments: &[&str]) -> Json {
        answer(name, &self.command(&self.python, name, arguments).output().unwrap())
    }

    fn saver(&self) -> SqliteSaver {
        let mut builder = SqliteSaver::builder(&self.path);
        if let Some(key) = self.key {
            builder = builder.cipher(Cipher::aes(key.as_bytes()).unwrap());
        }
        builder.build().unwrap()
    }
}

fn answer(name: &str, output: &std::process::Output) -> Json {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "Python's {name} failed: {errors}");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("Python's {name}: {error}: {errors}"))
}

#[derive(Debug, Serialize, Deserialize)]
struct State {
    topic: String,
    when: DateTime,
    log: Vec<String>,
    messages: Vec<Message>,
}

fn log_of(values: &Json) -> Vec<&str> {
    values["log"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect()
}

/// What the graph has done when it waits for an answer; the first line is the input's.
const DONE: [&str; 5] = ["start", "plan rust", "left", "right", "inner"];

/// Checks, by what Rust reads, that the graph waits for an answer.
async fn interrupted(turns: &Turns) -> Snapshot {
    let at = turns.saver().thread(THREAD).latest().await.unwrap().unwrap();
    let state: State = at.values().unwrap();
    assert_eq!((state.topic.as_str(), state.log.as_slice()), ("rust", DONE.map(String::from).as_slice()));
    assert_eq!(state.when.as_str(), "2026-01-02T03:04:05.678901+00:00");
    let messages: Vec<_> = state.messages.iter().map(|message| (message.id(), message.text())).collect();
    let wanted = [(Some("h1"), "hello"), (Some("a1"), "looking"), (Some("t1"), "found")];
    assert_eq!(messages, wanted.map(|(id, text)| (id, text.into())));
    let [Message::Human(_), Message::Ai(ai), Message::Tool(tool)] = state.messages.as_slice() else {
        panic!("{:?}", state.messages)
    };
    assert_eq!((ai.tool_calls[0].name.as_str(), tool.tool_call_id.as_str()), ("search", "c1"));
    assert!(!at.is_done("ask"));
    let [write] = at.tuple().pending_writes.as_slice() else { panic!("{:?}", at.tuple().pending_writes) };
    assert_eq!((&*write.channel, write.idx), (special::INTERRUPT, -3));
    let interrupts: Vec<Interrupt> = write.value.decode().unwrap();
    assert_eq!(interrupts[0].value.get("question").and_then(Value::as_str), Some("go on?"));
    at
}

/// Answers the interrupt from Rust, the way LangGraph records an answer that it was given.
async fn answer_by_rust(turns: &Turns, at: &Snapshot, text: &str) {
    let writes = [(Str::from(special::RESUME), ChannelValue::from(text))];
    turns.saver().put_writes(at.config(), &writes, NULL_TASK, "").await.unwrap();
}

/// What Python's state history says, and that Rust lists the same.
async fn history(turns: &Turns) -> Vec<Json> {
    let Json::Array(python) = turns.python("history", &[THREAD]) else { panic!("no list") };
    let rust = turns.saver().list_all(ListQuery::thread(THREAD).checkpoint_ns("")).await.unwrap();
    let rust: Vec<_> = rust
        .iter()
        .map(|tuple| {
            json!({
                "id": &*tuple.checkpoint.id,
                "parent": tuple.parent_checkpoint_id().map(|id| &**id),
                "source": tuple.metadata.source(),
                "step": tuple.metadata.step(),
            })
        })
        .collect();
    let shown: Vec<_> = python
        .iter()
        .map(|state| json!({"id": state["id"], "parent": state["parent"], "source": state["source"], "step": state["step"]}))
        .collect();
    assert_eq!(shown, rust);
    python
}

/// From the interrupt on: Rust answers, Python goes on; Rust forks, Python goes another way.
async fn answer_and_fork(turns: &Turns) {
    let at = interrupted(turns).await;
    answer_by_rust(turns, &at, "yes").await;
    let end = turns.python("go_on", &[THREAD]);
    assert_eq!(log_of(&end["values"]), [&DONE[..], &["asked", "finish yes"]].concat());
    assert_eq!((&end["values"]["answer"], &end["next"]), (&json!("yes"), &json!([])));

    let fork = turns.saver().thread(THREAD).fork(&at).await.unwrap();
    let states = history(turns).await;
    assert_eq!(states[0]["id"], &**fork.id());
    assert_eq!((&states[0]["source"], &states[0]["next"]), (&json!("fork"), &json!(["ask"])));
    assert_eq!(states[0]["parent"], &**at.id());
    let other_end = turns.python("resume", &[THREAD, "no"]);
    // The fork has not asked yet: Python asks, finds the answer that came with the command, and finishes.
    assert_eq!(log_of(&other_end["values"]), [&DONE[..], &["asked", "finish no"]].concat());
    let states = history(turns).await;
    let answers: Vec<_> = states.iter().filter_map(|state| state["values"]["answer"].as_str()).collect();
    assert!(answers.contains(&"yes") && answers.contains(&"no"), "both ends are in the history: {answers:?}");
}

async fn python_begins(turns: Turns) {
    let waiting = turns.python("start", &[THREAD, "rust"]);
    assert_eq!(waiting["next"], json!(["ask"]));
    answer_and_fork(&turns).await;
    // Python's own update, then a state that Rust changes.
    let updated = turns.python("update", &[THREAD, "python"]);
    let thread = turns.saver().thread(THREAD);
    let at = thread.latest().await.unwrap().unwrap();
    assert_eq!((&**at.id(), at.source()), (updated["id"].as_str().unwrap(), Some("update")));
    assert_eq!(at.channel::<String>("topic").unwrap().as_deref(), Some("python"));
    thread.update(&at, &BTreeMap::from([("topic", "both")])).await.unwrap();
    let states = history(&turns).await;
    assert_eq!((&states[0]["values"]["topic"], &states[0]["source"]), (&json!("both"), &json!("update")));
    assert_eq!(turns.python("resume", &[THREAD, "fine"])["values"]["answer"], "fine");
}

#[derive(Serialize)]
struct Input {
    topic: String,
    log: Vec<String>,
    messages: Vec<Message>,
}

fn input() -> Input {
    Input {
        topic: "rust".into(),
        log: vec!["start".into()],
        messages: vec![HumanMessage::new("hello").with_id("h1").into()],
    }
}

async fn rust_begins(turns: Turns) {
    #[derive(Serialize)]
    struct Start {
        #[serde(rename = "__start__")]
        start: Input,
    }
    let saver = turns.saver();
    saver.setup().await.unwrap();
    saver.thread(THREAD).begin(&Start { start: input() }).await.unwrap();
    assert_eq!(turns.python("go_on", &[THREAD])["next"], json!(["ask"]));
    answer_and_fork(&turns).await;
}

async fn rust_begins_by_the_trait(turns: Turns) {
    let saver = turns.saver();
    saver.setup().await.unwrap();
    let start = ChannelValue::encode(&input()).unwrap();
    let mut checkpoint = Checkpoint::new(-1).with_channel("__start__", start, saver.get_next_version(None));
    checkpoint.versions_seen.entry("__input__".into()).or_default();
    checkpoint.updated_channels = Some(vec!["__start__".into()]);
    let versions = checkpoint.channel_versions.clone();
    let metadata = CheckpointMetadata::new("input", -1);
    saver.put(&CheckpointConfig::new(THREAD), &checkpoint, &metadata, &versions).await.unwrap();
    assert_eq!(turns.python("go_on", &[THREAD])["next"], json!(["ask"]));
    interrupted(&turns).await;
}

async fn encrypted(mut turns: Turns) {
    turns.key = Some(KEY);
    turns.python("start", &[THREAD, "rust"]);
    answer_and_fork(&turns).await;
    let stored = std::fs::read(&turns.path).unwrap();
    assert!(!stored.windows(7).any(|window| window == b"looking"), "a message lies in the clear");
}

async fn copied(turns: Turns) {
    const GOLDEN: &str = "rich-1";
    let golden = shared::copy::golden_file(&turns.directory);
    let saver = turns.saver();
    saver.setup().await.unwrap();
    shared::copy::copy_by_hand(&SqliteSaver::builder(&golden).build().unwrap(), &saver, GOLDEN).await;
    let compared = turns.python("equal", &[golden.to_str().unwrap(), GOLDEN]);
    assert_eq!(compared, json!({"equal": true, "count": 19}));
}

async fn delta_channels(turns: Turns) {
    let before = turns.python("delta_start", &[THREAD, "5"]);
    let saver = turns.saver();
    let config = CheckpointConfig::new(THREAD);
    let found = saver.get_delta_channel_history(&config, &["items"]).await.unwrap().remove("items").unwrap();
    let writes: Vec<_> = found
        .writes
        .iter()
        .map(|write| json!([&*write.task_id, &*write.channel, write.value.decode::<Vec<String>>().unwrap()]))
        .collect();
    assert!(!writes.is_empty());
    assert_eq!(json!(writes), before["writes"]);
    let seed: Option<Vec<String>> = found.seed.map(|seed| seed.decode().unwrap());
    assert_eq!(json!(seed), before["seed"]);
    assert!(seed.is_some(), "the history goes back to a snapshot");

    saver.prune(&[THREAD], PruneStrategy::KeepLatest).await.unwrap();
    let after = turns.python("delta_state", &[THREAD]);
    assert_eq!((&after["values"], &after["writes"]), (&before["values"], &before["writes"]));
    let count = |state: &Json| state["count"].as_u64().unwrap();
    assert!(1 < count(&after) && count(&after) < count(&before), "{before} {after}");
}

async fn every_view(turns: Turns) {
    #[derive(Serialize)]
    struct Everything {
        when: DateTime,
        day: Date,
        span: TimeDelta,
        uuid: Uuid,
        price: Decimal,
        tags: Set<String>,
        human: HumanMessage,
        ai: AiMessage,
        tool: ToolMessage,
        send: Send,
        raw: Value,
        list: Value,
    }
    let call = ToolCall {
        name: "search".into(),
        args: [(Str::from("q"), Value::from("x"))].into_iter().collect(),
        id: Some("c1".into()),
        ..ToolCall::default()
    };
    let everything = Everything {
        when: DateTime::parse("2026-01-02T03:04:05.678901+00:00").unwrap(),
        day: Date("2026-01-02".parse().unwrap()),
        span: TimeDelta { days: 1, seconds: 2, microseconds: 3 },
        uuid: Uuid("12345678-1234-5678-1234-567812345678".parse().unwrap()),
        price: Decimal::new("1.50"),
        tags: ["a", "b"].map(String::from).into_iter().collect(),
        human: HumanMessage::new("hello").with_id("h1"),
        ai: AiMessage { tool_calls: vec![call], ..AiMessage::new("looking").with_id("a1") },
        tool: ToolMessage::new("found", "c1").with_id("t1"),
        send: Send::new("node", Value::Map(vec![("x".into(), 1_i64.into())])),
        raw: Value::Bin(Bytes::from_static(b"\x00\xff")),
        list: Value::Array(vec![
            1_i64.into(),
            (-1_i64).into(),
            (1_u64 << 63).into(),
            0.5.into(),
            Value::Nil,
            true.into(),
            "text".into(),
        ]),
    };
    let saver = turns.saver();
    saver.setup().await.unwrap();
    saver.thread(THREAD).begin(&everything).await.unwrap();
    assert_eq!(turns.python("types", &[THREAD]), json!({"wrong": {}, "checked": 12}));
}

/// A file that one generation made is brought up to date by Rust and goes on under both.
async fn across_generations(turns: Turns) {
    turns.python("start", &[THREAD, "rust"]);
    let saver = turns.saver();
    saver.setup().await.unwrap();
    let at = interrupted(&turns).await;
    saver.thread(THREAD).record(&at, "note", &BTreeMap::from([("note", "by rust")])).await.unwrap();
    saver.setup().await.unwrap();
    let other = turns.other_python.as_deref().unwrap_or(&turns.python);
    let end = answer("resume", &turns.command(other, "resume", &[THREAD, "yes"]).output().unwrap());
    assert_eq!(log_of(&end["values"]), [&DONE[..], &["asked", "finish yes"]].concat());
    let at = saver.thread(THREAD).at(at.id().clone()).await.unwrap().unwrap();
    assert!(at.is_done("note"));
    history(&turns).await;
}

async fn both_at_once(turns: Turns) {
    const COUNT: usize = 40;
    let saver = turns.saver();
    saver.setup().await.unwrap();
    let count = COUNT.to_string();
    let python =
        turns.command(&turns.python, "put_many", &[THREAD, &count]).stdout(Stdio::piped()).spawn().unwrap();
    let mut ids = Vec::new();
    for step in 0..i64::try_from(COUNT).unwrap() {
        let checkpoint = Checkpoint::new(step).with_channel("by", "rust", 1);
        let metadata = CheckpointMetadata::new("loop", step);
        let config = CheckpointConfig::new(THREAD);
        let stored = saver.put(&config, &checkpoint, &metadata, &checkpoint.channel_versions).await.unwrap();
        saver.put_writes(&stored, &[("by".into(), "rust".into())], "task", "").await.unwrap();
        ids.push(checkpoint.id.to_string());
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let by_python = answer("put_many", &python.wait_with_output().unwrap());
    ids.extend(by_python["ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()));
    ids.sort_unstable_by(|a, b| b.cmp(a));
    let listed = saver.list_all(ListQuery::thread(THREAD)).await.unwrap();
    assert_eq!(listed.iter().map(|tuple| tuple.checkpoint.id.to_string()).collect::<Vec<_>>(), ids);
    assert!(listed.iter().all(|tuple| tuple.pending_writes.len() == 1));
}

type Run = fn(Turns);

macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        [$((stringify!($case), (|turns| in_runtime($case(turns))) as Run)),*]
    };
}

fn in_runtime(case: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(case);
}

fn main() -> ExitCode {
    let required = std::env::var("CHECKPOINT_TEST_REQUIRE")
        .is_ok_and(|list| list.split(',').any(|name| name == "python"));
    let pythons = GENERATIONS.map(|(_, variable)| std::env::var_os(variable).map(PathBuf::from));
    let cases = cases![
        python_begins,
        rust_begins,
        rust_begins_by_the_trait,
        encrypted,
        copied,
        delta_channels,
        every_view,
        across_generations,
        both_at_once,
    ];
    let mut trials = Vec::new();
    for (at, (generation, variable)) in GENERATIONS.into_iter().enumerate() {
        let python = pythons[at].clone();
        let other = pythons.iter().rev().nth(at).cloned().flatten();
        for (name, run) in cases {
            let (python, other) = (python.clone(), other.clone());
            let trial = Trial::ignorable_test(format!("{name}::{generation}"), move || match python {
                Some(python) => {
                    run(Turns::new(&python, other.as_deref()));
                    Ok(Completion::Completed)
                }
                None if required => Err(format!("{variable} names no Python; run cargo xtask test").into()),
                None => {
                    Ok(Completion::ignored_with(format!("{variable} is not set; cargo xtask test sets it")))
                }
            });
            trials.push(trial.with_kind("python"));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
