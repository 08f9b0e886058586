//! Retention that is killed, doubled and cut off while agents write. What they store and the policy keeps stays whole, and
//! after the next run there is nothing else.
//!
//! The agents do the same to the model, which applies the policy once, at the end.

#![allow(dead_code, reason = "each binary uses its part of this")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use checkpoint_core::retention::{Freed, Limits, RetainSummary};
use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, ChannelVersions, Checkpoint, CheckpointConfig, CheckpointMetadata,
    CheckpointTuple, Filter, InMemorySaver, ListQuery, Result, RetainOptions, Retention, SaverExt, Str,
    ThreadQuery, Value, id, special,
};
use futures_util::TryStreamExt;

use super::kills::{self, Moment, was_killed};
use super::soak::{Random, rounds};
use super::writers::{Load, list, may_fail};

/// What a child process is to do: where the data is, and when it is killed.
const CHILD: &str = "CHECKPOINT_TEST_RETAIN";

/// The number of runs that are killed in an ordinary run of the tests.
const KILLS: u64 = 10;

const AGENTS: u64 = 8;

/// How many checkpoints are kept of the root namespace, and of the other one.
const KEPT: [usize; 2] = [3, 2];

const NAMESPACES: [&str; 2] = ["", "researcher:1"];

fn policy() -> Retention {
    Retention::new()
        .keep_last(KEPT[0])
        .in_namespace("researcher", Limits::new().keep_last(KEPT[1]))
        .idle_for(Duration::from_secs(60 * 60))
        .pin(Filter::new().eq("legal_hold", "yes"))
}

/// Applies the policy to every thread.
async fn run_once(saver: &impl BaseCheckpointSaver) -> Result<RetainSummary> {
    saver.retain_all(policy(), RetainOptions::default(), ThreadQuery::all()).try_collect().await
}

/// A database of a test's own.
pub(crate) trait Place {
    type Saver: BaseCheckpointSaver + Clone;

    /// What a child process opens.
    fn place(&self) -> String;

    /// A saver past all proxies.
    fn open(&self) -> Self::Saver;

    /// How many rows each table has, or what corresponds to rows and tables.
    async fn rows(&self) -> BTreeMap<String, u64>;
}

/// Applies the policy again and again until it is killed, if this process was started for that.
pub(crate) fn as_child<S: BaseCheckpointSaver>(open: impl Fn(&str) -> Result<S>) -> Option<Result<()>> {
    let task = std::env::var(CHILD).ok()?;
    let (moment, place) = task.split_once('\n').unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    Some(runtime.block_on(async {
        let saver = open(place)?;
        let runs = async {
            loop {
                let summary = run_once(&saver).await?;
                assert!(summary.failed.is_empty(), "{:?}", summary.failed);
            }
        };
        Moment::read(moment).end(runs).await
    }))
}

/// Processes apply the policy while agents write, so many of them at a time, and are killed.
pub(crate) async fn runs_are_killed<P: Place>(database: &P, fresh: &P, at_once: usize) {
    let kills = async {
        let (mut random, mut killed) = (Random(29), 0);
        while killed < rounds(KILLS) {
            let start = |_| {
                // Some savers do a batch in a task of its own, for which the process waits once.
                let waits = random.below(20);
                let moment = Moment::after(waits, 50_000, &mut random).write();
                kills::start(CHILD, &format!("{moment}\n{}", database.place()))
            };
            let runs = (0..at_once).map(start).collect();
            for status in kills::ended(runs).await {
                assert!(was_killed(status), "a run ended by itself");
                killed += 1;
            }
        }
        println!("{killed} runs were killed");
    };
    while_agents_write(database, fresh, &database.open(), kills).await;
}

/// Two runs at a time apply the policy while agents write, all by way of connections that are cut, until they were cut often
/// enough.
pub(crate) async fn runs_are_cut_off<P: Place>(
    database: &P,
    fresh: &P,
    through: P::Saver,
    cuts: impl Fn() -> u64,
    stop_cutting: impl Fn(),
) {
    let runs = async {
        let again = async || {
            let (mut ended, mut failed) = (0, 0);
            while cuts() < rounds(40 * KILLS) {
                match run_once(&through).await {
                    Ok(summary) => {
                        ended += 1;
                        summary.failed.iter().for_each(|(_, error)| may_fail(error));
                    }
                    Err(error) => {
                        failed += 1;
                        may_fail(&error);
                    }
                }
            }
            println!("{ended} runs ended, {failed} failed");
        };
        futures_util::future::join(again(), again()).await;
        println!("{} connections were cut", cuts());
        stop_cutting();
    };
    while_agents_write(database, fresh, &through, runs).await;
}

/// Has agents write until something has happened, then compares the database with the model.
async fn while_agents_write<P: Place>(
    database: &P,
    fresh: &P,
    saver: &P::Saver,
    happens: impl Future<Output = ()>,
) {
    let load = Arc::<Load>::default();
    let model = InMemorySaver::new().with_filter_semantics(saver.capabilities().filter);
    let agents = (0..AGENTS).map(|number| {
        let agent = Agent {
            real: saver.clone(),
            model: model.clone(),
            load: load.clone(),
            random: Random(number),
            number,
        };
        tokio::spawn(agent.work())
    });
    let agents = agents.collect();
    load.goes_on(50).await;
    happens.await;
    load.goes_on(50).await;
    load.end(agents).await;
    verify(database, fresh, &model).await;
}

struct Agent<S> {
    real: S,
    model: InMemorySaver,
    load: Arc<Load>,
    random: Random,
    number: u64,
}

/// Does the same to both savers, to the real one until it succeeds.
macro_rules! both {
    ($self:ident, |$saver:ident| $call:expr) => {{
        loop {
            let $saver = &$self.real;
            match $call.await {
                Ok(_) => break,
                Err(error) => {
                    may_fail(&error);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
        let $saver = &$self.model;
        $call.await.unwrap()
    }};
}

/// Asks both savers, which have to say the same.
macro_rules! same {
    ($self:ident, $what:expr, |$saver:ident| $call:expr) => {{
        let expected = {
            let $saver = &$self.model;
            $call.await.unwrap()
        };
        let found = loop {
            let $saver = &$self.real;
            match $call.await {
                Ok(found) => break found,
                Err(error) => {
                    may_fail(&error);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        };
        assert_eq!(found, expected, "{:?}", $what);
        expected
    }};
}

impl<S: BaseCheckpointSaver + Clone> Agent<S> {
    /// Holds one conversation after the other.
    async fn work(mut self) {
        for count in 0.. {
            if !self.load.lasts() {
                return;
            }
            // Later threads sort first, so that a run begins with those that agents work on.
            let thread_id = format!("{:06}-{}", 999_999 - count, self.number);
            match self.random.below(10) {
                0 => self.forget(&thread_id).await,
                1 => self.converse(&thread_id, "yes").await,
                _ => self.converse(&thread_id, "no").await,
            }
        }
    }

    /// Stores a thread that has been idle since long ago. It may go at any time.
    async fn forget(&mut self, thread_id: &str) {
        let mut config = CheckpointConfig::new(thread_id);
        for step in 0..6 {
            let id = format!("1ed00000-{step:04x}-6000-8000-000000000000");
            let version = format!("{:032}.0", step + 1);
            let made = Checkpoint::with_id(id).with_channel("items", list(step), version.as_str());
            let mut changed = made.channel_versions.clone();
            let made = made.with_channel("kept", list(7), "1");
            if step == 0 {
                changed = made.channel_versions.clone();
            }
            let metadata = CheckpointMetadata::new("loop", i64::try_from(step).unwrap());
            config = both!(self, |saver| saver.put(&config, &made, &metadata, &changed));
            let writes = [("items".into(), list(step))];
            both!(self, |saver| saver.put_writes(&config, &writes, "task", ""));
            self.load.count();
        }
    }

    /// Holds a conversation in two namespaces, and reads everything again that the policy keeps.
    async fn converse(&mut self, thread_id: &str, legal_hold: &str) {
        let mut kept: [VecDeque<CheckpointConfig>; 2] = Default::default();
        for step in 0..20 + self.random.below(30) {
            let at = usize::from(step > 0 && self.random.below(3) == 0);
            let base = CheckpointConfig::new(thread_id).with_checkpoint_ns(NAMESPACES[at]);
            // Some checkpoints are forks of an older one.
            let kept = &mut kept[at];
            let parent = if self.random.below(6) == 0 { self.random.below(kept.len() as u64 + 1) } else { 0 };
            let parent = kept.get(usize::try_from(parent).unwrap()).or_else(|| kept.front()).cloned();
            let config = self.step(parent.unwrap_or(base), step, legal_hold).await;
            kept.push_front(config);
            kept.truncate(KEPT[at]);
            for config in kept.iter() {
                self.read(config).await;
            }
            self.load.count();
            if !self.load.lasts() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What is stored of a checkpoint and the ancestors of its delta channel.
    async fn read(&self, config: &CheckpointConfig) -> CheckpointTuple {
        let found = same!(self, config, |saver| saver.get_tuple(config)).unwrap();
        if !found.checkpoint.channel_values.contains_key("log") {
            same!(self, config, |saver| saver.get_delta_channel_history(config, &["log"]));
        }
        found
    }

    /// Continues a checkpoint as a graph does: with its values, of which some change.
    async fn step(&mut self, parent: CheckpointConfig, step: u64, legal_hold: &str) -> CheckpointConfig {
        let mut made = Checkpoint::new(0);
        if parent.checkpoint_id().is_some() {
            let from = self.read(&parent).await.checkpoint;
            (made.channel_values, made.channel_versions) = (from.channel_values, from.channel_versions);
        }
        let number = i64::try_from(step).unwrap();
        let version = format!("{:032}.{}", step + 1, id::uuid6(0));
        let mut changed = ChannelVersions::new();
        let mut change = |made: &mut Checkpoint, channel: &str, value: Option<ChannelValue>| {
            made.channel_versions.insert(channel.into(), version.as_str().into());
            changed.insert(channel.into(), version.as_str().into());
            match value {
                Some(value) => drop(made.channel_values.insert(channel.into(), value)),
                None => drop(made.channel_values.shift_remove(channel)),
            }
        };
        change(&mut made, "items", Some(list(step)));
        change(&mut made, "number", Some(number.into()));
        if !made.channel_values.contains_key("kept") {
            change(&mut made, "kept", Some(list(7)));
        }
        if !made.channel_values.contains_key("messages") || self.random.below(5) == 0 {
            change(&mut made, "messages", Some(messages(step)));
        }
        let is_snapshot = self.random.below(4) == 0;
        change(&mut made, "log", is_snapshot.then(|| snapshot(number)));
        let mut metadata = CheckpointMetadata::new("loop", number).with("legal_hold", legal_hold);
        if !is_snapshot {
            let counted = Value::Array(vec![1.into(), 1.into()]);
            metadata.insert("counters_since_delta_snapshot", Value::Map(vec![("log".into(), counted)]));
        }
        if self.random.below(4) == 0 {
            // A task was faster than the checkpoint it works on.
            let ahead = parent.for_checkpoint(made.id.clone());
            both!(self, |saver| saver.put_writes(&ahead, &[("items".into(), list(step))], "ahead", ""));
        }
        let config = both!(self, |saver| saver.put(&parent, &made, &metadata, &changed));
        let writes = [("items".into(), list(step)), ("log".into(), number.into())];
        both!(self, |saver| saver.put_writes(&config, &writes, "task", "~path"));
        if self.random.below(5) == 0 {
            let question = [(special::INTERRUPT.into(), "approve?".into())];
            both!(self, |saver| saver.put_writes(&config, &question, "asks", ""));
            self.read(&config).await;
            let answer = [(special::RESUME.into(), "yes".into()), ("items".into(), list(step))];
            both!(self, |saver| saver.put_writes(&config, &answer, "asks", ""));
        }
        if parent.checkpoint_id().is_some() && self.random.below(6) == 0 {
            // A task was slower: its checkpoint may be gone.
            let late = [("items".into(), list(step))];
            both!(self, |saver| saver.put_writes(&parent, &late, "late", ""));
        }
        config
    }
}

/// A list that is long enough to be stored in parts.
fn messages(step: u64) -> ChannelValue {
    let message = |at: u64| Value::from(format!("message {at} of {step} {}", "and so on ".repeat(40)));
    encode(&Value::Array((0..24).map(message).collect()))
}

/// The snapshot of the delta channel.
fn snapshot(number: i64) -> ChannelValue {
    let items = Value::Array(vec![number.into()]);
    encode(&Value::Ext(7, items.to_msgpack().unwrap().into()))
}

fn encode(value: &Value) -> ChannelValue {
    ChannelValue::from_msgpack(value.to_msgpack().unwrap().into()).unwrap()
}

/// After one more run, the database has what the model has, and no row more than a database into which only that was put.
async fn verify<P: Place>(database: &P, fresh: &P, model: &InMemorySaver) {
    let saver = database.open();
    let summary = run_once(&saver).await.unwrap();
    assert_eq!((summary.failures, &summary.report.busy), (0, &Vec::new()), "{:?}", summary.failed);
    let again = run_once(&saver).await.unwrap();
    assert_eq!(again.report.total(), Freed::default(), "what a second run removes");
    let expected = run_once(model).await.unwrap();
    println!(
        "of {} checkpoints in {} threads {} are left; the last run removed {}",
        expected.report.checkpoints,
        expected.report.threads,
        again.report.checkpoints,
        summary.report.total().checkpoints
    );
    assert!(expected.report.total().checkpoints > 0, "nothing had to go");
    let threads = thread_ids(model).await;
    assert_eq!(thread_ids(&saver).await, threads);
    let copy = fresh.open();
    for thread_id in &threads {
        let query = ListQuery::thread(thread_id.clone());
        let kept = model.list_all(query.clone()).await.unwrap();
        assert_eq!(saver.list_all(query).await.unwrap(), kept, "{thread_id}");
        for tuple in kept.iter().rev() {
            store(&copy, tuple).await;
        }
    }
    assert_eq!(database.rows().await, fresh.rows().await, "rows, and rows that are needed");
}

async fn thread_ids(saver: &impl BaseCheckpointSaver) -> Vec<Str> {
    saver.list_thread_ids(ThreadQuery::all()).try_collect().await.unwrap()
}

/// Stores a checkpoint with its writes as it was read.
async fn store(saver: &impl BaseCheckpointSaver, tuple: &CheckpointTuple) {
    let made = &tuple.checkpoint;
    let parent = tuple.parent_config.clone().unwrap_or_else(|| tuple.config.clone().latest());
    saver.put(&parent, made, &tuple.metadata, &made.channel_versions).await.unwrap();
    let mut tasks: BTreeMap<(&Str, &Str), Vec<(Str, ChannelValue)>> = BTreeMap::new();
    for write in &tuple.pending_writes {
        let task = tasks.entry((&write.task_id, &write.task_path)).or_default();
        task.push((write.channel.clone(), write.value.clone()));
    }
    for ((task_id, task_path), writes) in tasks {
        saver.put_writes(&tuple.config, &writes, task_id, task_path).await.unwrap();
    }
}
