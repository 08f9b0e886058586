//! Rust and Python's LangGraph take turns on one SQLite file and on one PostgreSQL database, for each generation that
//! shares them.

use std::collections::BTreeMap;

use checkpoint_conformance::Missing;
use checkpoint_core::python::{
    AiMessage, Date, DateTime, Decimal, HumanMessage, Interrupt, Message, Send, Set, TimeDelta, ToolCall,
    ToolMessage, Uuid,
};
use checkpoint_core::{
    BaseCheckpointSaver, Bytes, ChannelValue, Checkpoint, CheckpointConfig, CheckpointMetadata,
    CheckpointTuple, ListQuery, PruneStrategy, SaverExt, StateSnapshot, Str, ThreadStatus, Value, special,
};
use checkpoint_sqlite::SqliteSaver;
use libtest_mimic::{Completion, Trial};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use crate::shared::agents;
use crate::shared::postgres::{Database, Ended, Kind, Server, in_runtime, rows};
use crate::shared::pythons::{self, GENERATIONS};
use crate::shared::turns::{Backend, Location, Turns};

/// The task under which LangGraph looks for answers that belong to no task.
const NULL_TASK: &str = "00000000-0000-0000-0000-000000000000";

const THREAD: &str = "shared-1";
const KEY: &str = "0123456789abcdef0123456789abcdef";

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
async fn interrupted(turns: &Turns) -> StateSnapshot {
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
    assert_eq!(at.status(), ThreadStatus::Waiting);
    let [write] = at.tuple().pending_writes.as_slice() else { panic!("{:?}", at.tuple().pending_writes) };
    assert_eq!((&*write.channel, write.idx), (special::INTERRUPT, -3));
    let interrupts: Vec<Interrupt> = write.value.decode().unwrap();
    assert_eq!(interrupts[0].value.get("question").and_then(Value::as_str), Some("go on?"));
    at
}

/// Answers the interrupt from Rust, the way LangGraph records an answer that it was given.
async fn answer_by_rust(turns: &Turns, at: &StateSnapshot, text: &str) {
    let writes = [(Str::from(special::RESUME), ChannelValue::from(text))];
    turns.saver().put_writes(at.config(), &writes, NULL_TASK, "").await.unwrap();
}

/// What Python's state history says, and that Rust lists what Python lists, in every namespace.
async fn history(turns: &Turns) -> Vec<Json> {
    history_by(turns, "history").await
}

async fn history_by(turns: &Turns, command: &str) -> Vec<Json> {
    let mut python = turns.python(command, &[THREAD]);
    let rust = turns.saver().list_all(ListQuery::thread(THREAD)).await.unwrap();
    let rust: Json = rust.iter().map(listed).collect();
    assert_eq!(python["stored"], rust);
    let Json::Array(states) = python["states"].take() else { panic!("no list: {python}") };
    let ids = |listed: &[Json]| -> Vec<Json> { listed.iter().map(|state| state["id"].clone()).collect() };
    let root: Vec<_> = rust.as_array().unwrap().iter().filter(|state| state["ns"] == "").cloned().collect();
    assert_eq!(ids(&states), ids(&root));
    // The status that Rust derives agrees with the tasks that LangGraph would run next.
    let newest = turns.saver().thread(THREAD).latest().await.unwrap().unwrap();
    let is_done = states[0]["next"] == json!([]);
    assert_eq!(newest.status() == ThreadStatus::Done, is_done, "{:?} {}", newest.status(), states[0]);
    states
}

fn listed(tuple: &CheckpointTuple) -> Json {
    let checkpoint = &tuple.checkpoint;
    let versions = checkpoint.channel_versions.iter();
    let mut values: Vec<_> = checkpoint.channel_values.keys().map(|channel| &**channel).collect();
    let mut writes: Vec<_> =
        tuple.pending_writes.iter().map(|write| [&*write.task_id, &*write.channel]).collect();
    values.sort_unstable();
    writes.sort_unstable();
    json!({
        "ns": tuple.config.checkpoint_ns(),
        "id": &*checkpoint.id,
        "parent": tuple.parent_checkpoint_id(),
        "source": tuple.metadata.source(),
        "step": tuple.metadata.step(),
        "versions": versions
            .map(|(channel, version)| (channel.to_string(), Json::from(version.to_string())))
            .collect::<Json>(),
        "values": values,
        "writes": writes,
    })
}

/// From the interrupt on: Rust answers, Python goes on; Rust forks, Python goes another way.
async fn answer_and_fork(turns: &Turns) {
    let at = interrupted(turns).await;
    let states = history(turns).await;
    assert_eq!((&states[0]["next"], &states[0]["id"]), (&json!(["ask"]), &json!(at.id())));
    answer_by_rust(turns, &at, "yes").await;
    let states = history(turns).await;
    assert_eq!(states[0]["next"], json!(["ask"]), "an answer alone is no step");
    let end = turns.python("go_on", &[THREAD]);
    assert_eq!(log_of(&end["values"]), [&DONE[..], &["asked", "finish yes"]].concat());
    assert_eq!((&end["values"]["answer"], &end["next"]), (&json!("yes"), &json!([])));
    let states = history(turns).await;
    assert_eq!((&states[0]["values"], &states[0]["id"]), (&end["values"], &end["id"]));

    let fork = turns.saver().thread(THREAD).fork(&at).await.unwrap();
    let states = history(turns).await;
    assert_eq!(states[0]["id"], fork.id());
    assert_eq!((&states[0]["source"], &states[0]["next"]), (&json!("fork"), &json!(["ask"])));
    assert_eq!(states[0]["parent"], at.id());
    let other_end = turns.python("resume", &[THREAD, "no"]);
    // The fork has not asked yet: Python asks, finds the answer that came with the command, and finishes.
    assert_eq!(log_of(&other_end["values"]), [&DONE[..], &["asked", "finish no"]].concat());
    let states = history(turns).await;
    let answers: Vec<_> = states.iter().filter_map(|state| state["values"]["answer"].as_str()).collect();
    assert!(answers.contains(&"yes") && answers.contains(&"no"), "both ends are in the history: {answers:?}");
}

async fn python_begins(turns: Turns) {
    turns.set_up_by_python().await;
    let waiting = turns.python("start", &[THREAD, "rust"]);
    assert_eq!(waiting["next"], json!(["ask"]));
    answer_and_fork(&turns).await;
    // Python's own update, then a state that Rust changes.
    let updated = turns.python("update", &[THREAD, "python"]);
    let thread = turns.saver().thread(THREAD);
    let at = thread.latest().await.unwrap().unwrap();
    assert_eq!((at.id(), at.source()), (updated["id"].as_str().unwrap(), Some("update")));
    assert_eq!(at.channel::<String>("topic").unwrap().as_deref(), Some("python"));
    assert_eq!(history(&turns).await[0]["values"]["topic"], "python");
    thread.update(&at, &BTreeMap::from([("topic", "both")])).await.unwrap();
    let states = history(&turns).await;
    assert_eq!((&states[0]["values"]["topic"], &states[0]["source"]), (&json!("both"), &json!("update")));
    assert_eq!(turns.python("resume", &[THREAD, "fine"])["values"]["answer"], "fine");
    assert_eq!(history(&turns).await[0]["values"]["answer"], "fine");
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

#[derive(Serialize)]
struct Start {
    #[serde(rename = "__start__")]
    start: Input,
}

async fn rust_begins(turns: Turns) {
    let saver = turns.set_up_by_rust().await;
    saver.thread(THREAD).begin(&Start { start: input() }).await.unwrap();
    assert_eq!(turns.python("go_on", &[THREAD])["next"], json!(["ask"]));
    answer_and_fork(&turns).await;
}

async fn an_agent_of_rust(turns: Turns) {
    let saver = turns.set_up_by_rust().await;
    agents::run(saver, THREAD, "rust").await.unwrap();
    assert_eq!(history(&turns).await[0]["source"], "loop");
}

async fn rust_begins_by_the_trait(turns: Turns) {
    let saver = turns.set_up_by_rust().await;
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
    turns.set_up_by_python().await;
    turns.python("start", &[THREAD, "rust"]);
    answer_and_fork(&turns).await;
    assert!(!turns.holds("looking").await, "a message lies in the clear");
}

/// Python leaves scalars in the clear on PostgreSQL. What Rust seals it opens all the same.
async fn scalars_sealed_by_rust(mut turns: Turns) {
    const CANARY: &str = "canary-of-rust";
    turns.key = Some(KEY);
    let saver = turns.set_up_by_rust().await;
    let thread = saver.thread(THREAD);
    let at = thread.begin(&Start { start: input() }).await.unwrap();
    thread.update(&at, &BTreeMap::from([("topic", CANARY)])).await.unwrap();
    thread.record(&at, "note", &BTreeMap::from([("note", CANARY)])).await.unwrap();
    assert!(!turns.holds(CANARY).await, "a scalar lies in the clear");
    assert!(turns.holds(THREAD).await, "the search itself works");
    let newest = turns.python("newest", &[THREAD]);
    assert_eq!(newest["values"]["topic"], format!("'{CANARY}'"));
    assert!(newest["values"]["__start__"].as_str().unwrap().contains("hello"), "{newest}");
    turns.key = Some("another key of 32 bytes, not that");
    turns.key = turns.key.map(|key| &key[..32]);
    let opened = turns.start(&turns.python, "newest", &[THREAD]).result();
    assert!(opened.is_err_and(|error| error.contains("MAC")), "another key opens it too");
}

/// Tasks that are sent, one that fails next to one that does not; Rust does the failed one's work.
async fn sends_and_a_failure(turns: Turns) {
    turns.set_up_by_python().await;
    assert_eq!(turns.python("fan_start", &[THREAD])["next"], json!(["worker", "worker", "worker"]));
    let saver = turns.saver();
    let at = saver.thread(THREAD).latest().await.unwrap().unwrap();
    let sends: Vec<Send> = at.channel("__pregel_tasks").unwrap().unwrap();
    let items: Vec<_> = sends.iter().map(|send| send.arg.get("item").and_then(Value::as_i64)).collect();
    assert_eq!(items, [Some(1), Some(2), Some(3)]);
    assert!(sends.iter().all(|send| send.node == "worker"));
    history_by(&turns, "fan_history").await;

    let failed = turns.python("fan_go_on", &[THREAD]);
    assert_eq!((&failed["raised"], &failed["next"]), (&json!("flaky"), &json!(["flaky"])));
    assert_eq!(failed["values"]["done"], json!([10, 20, 30]));
    let at = saver.thread(THREAD).latest().await.unwrap().unwrap();
    let writes = &at.tuple().pending_writes;
    let error = writes.iter().find(|write| *write.channel == *special::ERROR).unwrap();
    assert!(error.value.decode::<String>().unwrap().contains("flaky"));
    assert!(
        writes.iter().any(|write| *write.channel == *"log" && write.task_id != error.task_id),
        "{writes:?}"
    );
    let joined = writes.iter().find(|write| write.channel.starts_with("join:")).unwrap();
    let by_rust = ["flaky by rust".to_owned()];
    let done =
        [("log".into(), ChannelValue::encode(&by_rust).unwrap()), (joined.channel.clone(), "flaky".into())];
    saver.put_writes(at.config(), &done, &error.task_id, &error.task_path).await.unwrap();
    history_by(&turns, "fan_history").await;

    let end = turns.python("fan_go_on", &[THREAD]);
    assert_eq!((&end["raised"], &end["next"]), (&Json::Null, &json!([])));
    assert_eq!(log_of(&end["values"]), ["plan", "join", "flaky by rust", "steady", "finish"]);
    let states = history_by(&turns, "fan_history").await;
    assert_eq!(states[0]["values"], end["values"]);
}

/// What JSON cannot hold, Rust stores as blobs, and Python reads them.
async fn scalars_that_json_cannot_hold(turns: Turns) {
    let saver = turns.set_up_by_rust().await;
    let values: [(&str, ChannelValue, &str); 4] = [
        ("nan", f64::NAN.into(), "nan"),
        ("inf", f64::INFINITY.into(), "inf"),
        ("negative", f64::NEG_INFINITY.into(), "-inf"),
        ("nul", "a\0b".into(), r"'a\x00b'"),
    ];
    let made = values.iter().fold(Checkpoint::new(0), |made, (channel, value, _)| {
        made.with_channel(*channel, value.clone(), "00000000000000000000000000000001.0.5")
    });
    let config = CheckpointConfig::new(THREAD);
    let metadata = CheckpointMetadata::new("loop", 0);
    let stored = saver.put(&config, &made, &metadata, &made.channel_versions).await.unwrap();
    let writes: Vec<_> =
        values.iter().map(|(channel, value, _)| (Str::from(*channel), value.clone())).collect();
    saver.put_writes(&stored, &writes, "task", "").await.unwrap();
    let newest = turns.python("newest", &[THREAD]);
    for (at, (channel, _, repr)) in values.iter().enumerate() {
        assert_eq!(newest["values"][channel], *repr);
        assert_eq!(newest["writes"][at], json!(["task", channel, repr]));
    }
}

async fn copied(turns: Turns) {
    const GOLDEN: &str = "rich-1";
    let golden = crate::shared::copy::golden_file(&turns.directory);
    let saver = turns.set_up_by_rust().await;
    crate::shared::copy::copy_by_hand(&SqliteSaver::builder(&golden).build().unwrap(), &saver, GOLDEN).await;
    let compared = turns.python("equal", &[golden.to_str().unwrap(), GOLDEN]);
    assert_eq!(compared, json!({"equal": true, "count": 19}));
}

async fn delta_channels(turns: Turns) {
    turns.set_up_by_python().await;
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
    if turns.generation == "4.2" && turns.backend != Backend::Sqlite {
        // That saver looks at the task's id before its path.
        let sorted = |writes: &Json| {
            let mut writes: Vec<_> = writes.as_array().unwrap().iter().map(Json::to_string).collect();
            writes.sort();
            writes
        };
        assert_eq!(sorted(&json!(writes)), sorted(&before["writes"]));
    } else {
        assert_eq!(json!(writes), before["writes"]);
    }
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
    let saver = turns.set_up_by_rust().await;
    saver.thread(THREAD).begin(&everything).await.unwrap();
    assert_eq!(turns.python("types", &[THREAD]), json!({"wrong": {}, "checked": 12}));
}

/// What one generation made is brought up to date by Rust and goes on under both.
async fn across_generations(turns: Turns) -> Result<(), Missing> {
    let other = pythons::other(turns.at)?;
    turns.set_up_by_python().await;
    turns.python("start", &[THREAD, "rust"]);
    let saver = turns.saver();
    saver.setup().await.unwrap();
    let at = interrupted(&turns).await;
    saver.thread(THREAD).record(&at, "note", &BTreeMap::from([("note", "by rust")])).await.unwrap();
    saver.setup().await.unwrap();
    let end = turns.start(&other, "resume", &[THREAD, "yes"]).wait();
    assert_eq!(log_of(&end["values"]), [&DONE[..], &["asked", "finish yes"]].concat());
    let at = saver.thread(THREAD).at(at.id()).await.unwrap().unwrap();
    assert!(at.is_done("note"));
    history(&turns).await;
    Ok(())
}

async fn both_at_once(turns: Turns) {
    const COUNT: usize = 40;
    let saver = turns.set_up_by_rust().await;
    let count = COUNT.to_string();
    let python = turns.start(&turns.python, "put_many", &[THREAD, &count]);
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
    let by_python = python.wait();
    ids.extend(by_python["ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()));
    ids.sort_unstable_by(|a, b| b.cmp(a));
    let listed = saver.list_all(ListQuery::thread(THREAD)).await.unwrap();
    assert_eq!(listed.iter().map(|tuple| tuple.checkpoint.id.to_string()).collect::<Vec<_>>(), ids);
    assert!(listed.iter().all(|tuple| tuple.pending_writes.len() == 1));
}

/// Before version 4, what was to be sent stood among the writes of the parent.
async fn sends_of_old_checkpoints(turns: Turns) {
    const SENDS: &str = r#"
        INSERT INTO checkpoints (thread_id, checkpoint_id, parent_checkpoint_id, checkpoint)
        VALUES ('shared-1', '1ef00000-0000-6000-8000-000000000001', NULL,
                '{"v": 1, "ts": "2024-01-01T00:00:00+00:00", "id": "1ef00000-0000-6000-8000-000000000001",
                  "channel_values": {}, "channel_versions": {}, "versions_seen": {}}'),
               ('shared-1', '1ef00000-0000-6000-8000-000000000002', '1ef00000-0000-6000-8000-000000000001',
                '{"v": 1, "ts": "2024-01-01T00:00:01+00:00", "id": "1ef00000-0000-6000-8000-000000000002",
                  "channel_values": {"x": 1}, "channel_versions": {"x": "00000000000000000000000000000003.0.5"},
                  "versions_seen": {}}');"#;
    turns.set_up_by_python().await;
    let Location::Database(database) = &turns.place else { panic!("it is SQL for PostgreSQL") };
    database.client().await.batch_execute(SENDS).await.unwrap();
    let saver = turns.saver();
    let parent = CheckpointConfig::new(THREAD).with_checkpoint_id("1ef00000-0000-6000-8000-000000000001");
    for (task_path, task_id) in [("~b", "1"), ("~a", "2")] {
        let send = Send::new("node", Value::from(task_id));
        let writes = [("__pregel_tasks".into(), ChannelValue::encode(&send).unwrap())];
        saver.put_writes(&parent, &writes, task_id, task_path).await.unwrap();
    }
    let found = saver.get_tuple(&CheckpointConfig::new(THREAD)).await.unwrap().unwrap().checkpoint;
    let newest = turns.python("newest", &[THREAD]);
    assert_eq!(
        newest["values"]["__pregel_tasks"],
        "[Send(node='node', arg='2'), Send(node='node', arg='1')]"
    );
    let sends: Vec<Send> = found.channel_values["__pregel_tasks"].decode().unwrap();
    assert_eq!(sends, [Send::new("node", Value::from("2")), Send::new("node", Value::from("1"))]);
    for (channel, version) in &found.channel_versions {
        assert_eq!(newest["versions"][&**channel], version.to_string(), "{channel}");
    }
    assert_eq!(found.channel_versions.len(), 2);
}

/// Whoever comes first, the tables are the same.
async fn setup_in_both_orders(turns: Turns) {
    // Rust's table of leases stands beside Python's tables.
    const SCHEMA: &str = "
        SELECT table_name || '.' || column_name,
               concat_ws(' ', data_type, is_nullable, column_default, ordinal_position)
        FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'checkpoint_leases'
        UNION ALL SELECT indexdef, '' FROM pg_indexes
        WHERE schemaname = 'public' AND tablename <> 'checkpoint_leases'
        UNION ALL SELECT 'version', v::text FROM checkpoint_migrations
        ORDER BY 1, 2";
    let Location::Database(first) = &turns.place else { panic!("SQLite's tables have no versions") };
    turns.python("setup", &[]);
    let by_python = rows(&first.client().await, SCHEMA).await;
    let saver = turns.saver();
    saver.setup().await.unwrap();
    assert_eq!(rows(&first.client().await, SCHEMA).await, by_python, "Python, then Rust");
    turns.python("setup", &[]);

    let second = Database::create(Server::find(Kind::Postgres17).unwrap().url()).await;
    let turns = Turns { place: Location::Database(second), ..turns };
    turns.set_up_by_rust().await;
    let Location::Database(second) = &turns.place else { panic!("it is a database") };
    assert_eq!(rows(&second.client().await, SCHEMA).await, by_python, "Rust, then Python");
    turns.saver().setup().await.unwrap();
}

/// A case, and the backends that it is run on.
type Run = fn(Turns) -> Result<(), Missing>;

macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        &[$((stringify!($case), (|turns| in_runtime($case(turns)).ended()) as Run)),*]
    };
}

const EVERYWHERE: &[(&str, Run)] = cases![
    python_begins,
    rust_begins,
    encrypted,
    scalars_sealed_by_rust,
    sends_and_a_failure,
    delta_channels,
    across_generations,
    both_at_once,
];
/// Cases in which it is all the same how Python is called.
const SYNCHRONOUS: &[(&str, Run)] =
    cases![rust_begins_by_the_trait, an_agent_of_rust, copied, every_view, scalars_that_json_cannot_hold];
const POSTGRES: &[(&str, Run)] = cases![sends_of_old_checkpoints, setup_in_both_orders];

fn cases_of(backend: Backend) -> Vec<(&'static str, Run)> {
    let groups: &[&[_]] = match backend {
        Backend::Sqlite => &[EVERYWHERE, SYNCHRONOUS],
        Backend::Postgres => &[EVERYWHERE, SYNCHRONOUS, POSTGRES],
        Backend::PostgresAsync => &[EVERYWHERE],
    };
    groups.concat()
}

fn meet(at: usize, backend: Backend) -> Result<Turns, Missing> {
    let (generation, _) = GENERATIONS[at];
    let python = pythons::find(at)?;
    let directory = tempfile::tempdir().unwrap();
    let place = match backend {
        Backend::Sqlite => Location::File(directory.path().join("shared.sqlite")),
        Backend::Postgres | Backend::PostgresAsync => {
            let server = Server::find(Kind::Postgres17)?;
            Location::Database(in_runtime(Database::create(server.url())))
        }
    };
    Ok(Turns { generation, python, at, backend, place, directory, key: None })
}

/// Every case, with each generation and on each backend.
pub(crate) fn trials(module: &str) -> Vec<Trial> {
    let mut trials = Vec::new();
    for (at, (generation, _)) in GENERATIONS.into_iter().enumerate() {
        for backend in Backend::ALL {
            for (name, run) in cases_of(backend) {
                let name = format!("{module}::{name}::{}::{generation}", backend.name());
                let trial = Trial::ignorable_test(name, move || match meet(at, backend).and_then(run) {
                    Ok(()) => Ok(Completion::Completed),
                    Err(missing) => missing.end(),
                });
                trials.push(trial.with_kind("python"));
            }
        }
    }
    trials
}
