//! Runs one group of the workload on one saver and prints one line of JSON with the latency of each operation.
//!
//! Only the saver's calls are timed: building arguments and checking results is not.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use checkpoint_benches::{Message, big_blob, message};
use checkpoint_core::serde::to_msgpack;
use checkpoint_core::{
    BaseCheckpointSaver, Bytes, ChannelValue, ChannelVersions, Checkpoint, CheckpointConfig,
    CheckpointMetadata, InMemorySaver, ListQuery, SaverExt, Str, TypedBytes, Value, id,
};
use checkpoint_sqlite::{SqliteSaver, Synchronous};
use clap::{Parser, ValueEnum};
use serde_json::{Value as Json, json};

const THREADS: u64 = 10;
const STEPS: u64 = 100;
const TASK_PATH: &str = "~__pregel_pull, agent";

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;
type Walls = BTreeMap<&'static str, Vec<Duration>>;

/// Runs one group of the workload on one saver.
#[derive(Debug, Parser)]
struct Arguments {
    /// The saver.
    #[arg(long, value_enum, default_value = "sqlite")]
    r#impl: Implementation,
    /// What to run.
    #[arg(long, value_enum)]
    group: Group,
    /// Whether a commit waits for the disk.
    #[arg(long, value_enum, default_value = "on")]
    sync: Sync,
    /// The file, which must not exist yet; the default is one in a temporary folder.
    #[arg(long)]
    path: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Implementation {
    Sqlite,
    Memory,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Group {
    /// Ten chats of 100 steps, then reads, listings, writes and deletions.
    Chat,
    /// One channel of 1 MiB, written and read.
    Big,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Sync {
    On,
    Off,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let folder = tempfile::tempdir()?;
    let path = arguments.path.clone().unwrap_or_else(|| folder.path().join("bench.sqlite"));
    let walls = match arguments.r#impl {
        Implementation::Memory => group(arguments.group, InMemorySaver::new()).await?,
        Implementation::Sqlite => {
            let synchronous = match arguments.sync {
                Sync::On => Synchronous::Full,
                Sync::Off => Synchronous::Normal,
            };
            let saver = SqliteSaver::builder(path).synchronous(synchronous).build()?;
            saver.setup().await?;
            group(arguments.group, saver).await?
        }
    };
    let name = |value: Option<clap::builder::PossibleValue>| {
        value.map(|value| value.get_name().to_owned()).unwrap_or_default()
    };
    let ops: serde_json::Map<String, Json> =
        walls.into_iter().map(|(op, walls)| (op.to_owned(), summary(walls))).collect();
    println!(
        "{}",
        json!({
            "impl": format!("rust-{}", name(arguments.r#impl.to_possible_value())),
            "group": name(arguments.group.to_possible_value()),
            "sync": name(arguments.sync.to_possible_value()),
            "ops": ops,
            "at": &*id::now(),
        })
    );
    Ok(())
}

async fn group<S: BaseCheckpointSaver>(group: Group, saver: S) -> Result<Walls> {
    match group {
        Group::Chat => chat(&saver).await,
        Group::Big => big(&saver).await,
    }
}

/// One chat: its messages, and what of it is stored.
struct Chat<'a, S> {
    saver: &'a S,
    thread_id: Str,
    messages: Vec<Message>,
    ids: Vec<Str>,
    versions: ChannelVersions,
}

/// The arguments of the two calls of one step.
struct Step {
    parent: CheckpointConfig,
    writes: Vec<(Str, ChannelValue)>,
    task_id: String,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
}

impl<'a, S: BaseCheckpointSaver> Chat<'a, S> {
    fn new(saver: &'a S, run: u128, number: u64) -> Self {
        Self {
            saver,
            thread_id: format!("{:08x}-0000-4000-8000-{number:012}", run & 0xFFFF_FFFF).into(),
            messages: (0..=STEPS).map(|k| message(number % THREADS, k)).collect(),
            ids: Vec::new(),
            versions: ChannelVersions::new(),
        }
    }

    fn config(&self) -> CheckpointConfig {
        CheckpointConfig::new(self.thread_id.clone())
    }

    fn config_at(&self, step: usize) -> CheckpointConfig {
        self.ids.get(step).map_or_else(|| self.config(), |id| self.config().with_checkpoint_id(id.clone()))
    }

    fn next(&mut self) -> Result<Step> {
        let i = self.ids.len();
        let step = i64::try_from(i)?;
        let unchanging: &[(&str, Json)] = &[
            ("user_id", json!("user-000042")),
            ("locale", json!("en-US")),
            ("temperature", json!(0.2)),
            (
                "settings",
                json!({"theme": "dark", "units": "metric", "max_tokens": 1024, "stream": true, "stop": ["END"],
                       "safety": {"level": "default", "block": false}}),
            ),
            ("tools", json!(["search", "calculator", "calendar"])),
        ];
        let parent = self.config_at(i.wrapping_sub(1));
        let before = self.versions.clone();
        let version = self.saver.get_next_version(before.get("messages"));
        let mut changed = vec!["messages", "counter"];
        let mut checkpoint = Checkpoint::with_id(id::uuid6(step));
        checkpoint.channel_values.insert("messages".into(), ChannelValue::encode(&self.messages[..=i])?);
        checkpoint.channel_values.insert("counter".into(), step.into());
        for (channel, value) in unchanging {
            checkpoint.channel_values.insert((*channel).into(), ChannelValue::encode(value)?);
        }
        if i == 0 {
            changed.extend(unchanging.iter().map(|(channel, _)| *channel));
        }
        let new_versions: ChannelVersions =
            changed.iter().map(|channel| (Str::from(*channel), version.clone())).collect();
        self.versions.extend(new_versions.clone());
        checkpoint.channel_versions.clone_from(&self.versions);
        let seen = |channels: &[&str]| -> ChannelVersions {
            channels
                .iter()
                .filter_map(|c| before.get(*c).map(|version| (Str::from(*c), version.clone())))
                .collect()
        };
        checkpoint.versions_seen = [
            ("__input__", seen(&[])),
            ("__start__", seen(&[])),
            ("agent", seen(&["messages", "counter"])),
            ("tools", seen(&["messages"])),
        ]
        .map(|(node, versions)| (Str::from(node), versions))
        .into_iter()
        .collect();
        changed.sort_unstable();
        checkpoint.updated_channels = Some(changed.into_iter().map(Str::from).collect());
        self.ids.push(checkpoint.id.clone());
        let metadata = CheckpointMetadata::new(if i == 0 { "input" } else { "loop" }, step - 1);
        Ok(Step {
            parent,
            writes: vec![
                ("messages".into(), ChannelValue::encode(&self.messages[i])?),
                ("counter".into(), step.into()),
            ],
            task_id: format!("00000000-0000-4000-9000-{i:012}"),
            checkpoint,
            metadata,
            new_versions,
        })
    }

    async fn start(&mut self) -> Result<()> {
        let step = self.next()?;
        self.saver.put(&step.parent, &step.checkpoint, &step.metadata, &step.new_versions).await?;
        Ok(())
    }

    async fn step(&mut self, walls: &mut Walls) -> Result<()> {
        let step = self.next()?;
        let begun = Instant::now();
        self.saver.put_writes(&step.parent, &step.writes, &step.task_id, TASK_PATH).await?;
        let written = Instant::now();
        self.saver.put(&step.parent, &step.checkpoint, &step.metadata, &step.new_versions).await?;
        let end = Instant::now();
        walls.entry("put_writes").or_default().push(written - begun);
        walls.entry("put").or_default().push(end - written);
        walls.entry("step").or_default().push(end - begun);
        Ok(())
    }
}

fn check(holds: bool, what: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(format!("the saver returned something else: {what}").into()) }
}

/// Checks what a read returned; decoding is the caller's work and not timed.
fn messages_in(checkpoint: &Checkpoint) -> Result<usize> {
    let messages = checkpoint.channel_values.get("messages").ok_or("there are no messages")?;
    Ok(messages.decode::<Vec<Value>>()?.len())
}

async fn chat<S: BaseCheckpointSaver>(saver: &S) -> Result<Walls> {
    let mut walls = Walls::new();
    let run = std::time::UNIX_EPOCH.elapsed()?.as_nanos();
    let mut warm = Chat::new(saver, run, 999_999);
    warm.start().await?;
    for _ in 0..2 {
        warm.step(&mut Walls::new()).await?;
        saver.get_tuple(&warm.config()).await?;
    }
    saver.delete_thread(&warm.thread_id).await?;

    let mut chats = Vec::new();
    for number in 0..THREADS {
        let mut chat = Chat::new(saver, run, number);
        chat.start().await?;
        for _ in 0..STEPS {
            chat.step(&mut walls).await?;
        }
        chats.push(chat);
    }
    for chat in chats.iter().cycle().take(200) {
        let begun = Instant::now();
        let got = saver.get_tuple(&chat.config()).await?;
        walls.entry("get_latest").or_default().push(begun.elapsed());
        let got = got.ok_or("the newest checkpoint is gone")?;
        check(messages_in(&got.checkpoint)? == 101 && got.pending_writes.is_empty(), "the newest")?;
    }
    for chat in chats.iter().cycle().take(200) {
        let config = chat.config_at(50);
        let begun = Instant::now();
        let got = saver.get_tuple(&config).await?;
        walls.entry("get_mid").or_default().push(begun.elapsed());
        let got = got.ok_or("an old checkpoint is gone")?;
        check(messages_in(&got.checkpoint)? == 51 && got.pending_writes.len() == 2, "an old one")?;
    }
    for (name, times, limit) in [("list_10", 50, 10), ("list_all", 10, 101)] {
        for chat in chats.iter().cycle().take(times) {
            let query = ListQuery::from_config(&chat.config());
            let query = if limit == 10 { query.limit(limit) } else { query };
            let begun = Instant::now();
            let got = saver.list_all(query).await?;
            walls.entry(name).or_default().push(begun.elapsed());
            check(got.len() == limit, name)?;
        }
    }
    let ten = (0..10)
        .map(|k| Ok((Str::from("messages"), ChannelValue::encode(&message(7, k))?)))
        .collect::<Result<Vec<_>>>()?;
    for (i, chat) in chats.iter().cycle().take(200).enumerate() {
        let (config, task_id) = (chat.config_at(100), format!("00000000-0000-4000-a000-{i:012}"));
        let begun = Instant::now();
        saver.put_writes(&config, &ten, &task_id, TASK_PATH).await?;
        walls.entry("put_writes_10").or_default().push(begun.elapsed());
    }
    for chat in &chats {
        let begun = Instant::now();
        saver.delete_thread(&chat.thread_id).await?;
        walls.entry("delete_thread").or_default().push(begun.elapsed());
        check(saver.get_tuple(&chat.config()).await?.is_none(), "a deleted thread")?;
    }
    Ok(walls)
}

async fn big<S: BaseCheckpointSaver>(saver: &S) -> Result<Walls> {
    let mut walls = Walls::new();
    let thread = CheckpointConfig::new("big");
    let (mut config, mut version) = (thread.clone(), None);
    for i in 0..=20 {
        let next = saver.get_next_version(version.as_ref());
        let value =
            ChannelValue::Blob(TypedBytes::msgpack(to_msgpack(&Value::Bin(Bytes::from(big_blob(i))))?));
        let step = i64::try_from(i)?;
        let mut checkpoint = Checkpoint::with_id(id::uuid6(step)).with_channel("blob", value, next.clone());
        checkpoint.updated_channels = Some(vec!["blob".into()]);
        let metadata = CheckpointMetadata::new("loop", step - 1);
        let begun = Instant::now();
        config = saver.put(&config, &checkpoint, &metadata, &checkpoint.channel_versions).await?;
        if i > 0 {
            walls.entry("put_1mb").or_default().push(begun.elapsed());
        }
        version = Some(next);
    }
    for _ in 0..20 {
        let begun = Instant::now();
        let got = saver.get_tuple(&thread).await?;
        walls.entry("get_latest_1mb").or_default().push(begun.elapsed());
        check(got.is_some(), "the newest blob")?;
    }
    Ok(walls)
}

/// Percentiles by nearest rank.
#[expect(clippy::cast_precision_loss, reason = "a run has a few thousand operations at most")]
fn summary(mut walls: Vec<Duration>) -> Json {
    walls.sort_unstable();
    let ms = |wall: Option<&Duration>| wall.map_or(0.0, |wall| wall.as_secs_f64() * 1000.0);
    let at = |percent: usize| ms(walls.get(percent * walls.len() / 100));
    let mean = ms(Some(&walls.iter().sum())) / walls.len().max(1) as f64;
    json!({"n": walls.len(), "mean_ms": mean, "p50_ms": at(50), "p95_ms": at(95), "p99_ms": at(99),
           "max_ms": ms(walls.last()), "ops_s": 1000.0 / mean})
}
