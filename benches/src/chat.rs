//! A chat thread, step by step.

use std::sync::Arc;

use checkpoint_core::serde::from_msgpack;
use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, ChannelValues, ChannelVersions, Checkpoint, CheckpointConfig,
    CheckpointMetadata, Result, Str,
};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::{Message, Settings, TOOLS};

/// The number of messages of a windowed thread at every step.
pub const WINDOW: usize = 20;

/// The channels that change at every step.
const CHANGING: [&str; 2] = ["messages", "counter"];

/// The channels that only step 0 writes.
const UNCHANGING: [&str; 5] = ["user_id", "locale", "temperature", "settings", "tools"];

/// All channels of a chat, as application types.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The conversation so far, or its window.
    pub messages: Vec<Message>,
    /// The step.
    pub counter: i64,
    /// Always the same.
    pub user_id: String,
    /// Always the same.
    pub locale: String,
    /// Always the same.
    pub temperature: f64,
    /// Always the same.
    pub settings: Settings,
    /// Always the same.
    pub tools: Vec<String>,
}

impl State {
    /// Decodes every channel that was read.
    ///
    /// # Errors
    /// [`Codec`](checkpoint_core::ErrorKind::Codec) for a channel that is missing or does not have its type.
    pub fn decode(values: &ChannelValues) -> Result<Self> {
        Ok(Self {
            messages: channel(values, "messages")?,
            counter: channel(values, "counter")?,
            user_id: channel(values, "user_id")?,
            locale: channel(values, "locale")?,
            temperature: channel(values, "temperature")?,
            settings: channel(values, "settings")?,
            tools: channel(values, "tools")?,
        })
    }
}

fn channel<T: serde::de::DeserializeOwned>(values: &ChannelValues, name: &str) -> Result<T> {
    // Empty bytes are invalid MessagePack, so a missing channel is a decoder error.
    values.get(name).map_or_else(|| from_msgpack(&[]), ChannelValue::decode)
}

/// The id of a thread of a run: 36 characters.
pub fn thread_id(run: u32, number: u64) -> Str {
    format!("{run:08x}-0000-4000-8000-{number:012}").into()
}

/// A thread and the saver that keeps it.
#[derive(Debug)]
pub struct ChatThread {
    saver: Arc<dyn BaseCheckpointSaver>,
    thread_id: Str,
    messages: Arc<[Message]>,
    window: Option<usize>,
    ids: Vec<Str>,
    versions: ChannelVersions,
}

impl ChatThread {
    /// Starts a thread whose messages grow by one with every step.
    pub fn new(
        saver: Arc<dyn BaseCheckpointSaver>,
        run: u32,
        number: u64,
        messages: impl Into<Arc<[Message]>>,
    ) -> Self {
        Self {
            saver,
            thread_id: thread_id(run, number),
            messages: messages.into(),
            window: None,
            ids: Vec::new(),
            versions: ChannelVersions::new(),
        }
    }

    /// Keeps only [`WINDOW`] messages at every step, so that every step costs the same.
    #[must_use]
    pub fn windowed(mut self) -> Self {
        self.window = Some(WINDOW);
        self
    }

    /// The thread's id.
    pub fn thread_id(&self) -> &str {
        &self.thread_id
    }

    /// The config of the newest checkpoint.
    pub fn latest(&self) -> CheckpointConfig {
        CheckpointConfig::new(self.thread_id.clone())
    }

    /// The config of the checkpoint of a step, or of the newest if there is no such step.
    pub fn at(&self, step: usize) -> CheckpointConfig {
        self.ids.get(step).map_or_else(|| self.latest(), |id| self.latest().with_checkpoint_id(id.clone()))
    }

    /// The config of the last step's checkpoint, with its id.
    pub fn last(&self) -> CheckpointConfig {
        self.at(self.ids.len().wrapping_sub(1))
    }

    /// Prepares the arguments of the next step's two calls, except for the encoded values.
    pub fn next_step(&mut self) -> Step {
        let index = self.ids.len();
        let counter = i64::try_from(index).unwrap_or(i64::MAX);
        let version = self.saver.get_next_version(self.versions.get(CHANGING[0]));
        let mut changed = CHANGING.to_vec();
        if index == 0 {
            changed.extend(UNCHANGING);
        }
        let new_versions: ChannelVersions =
            changed.iter().map(|channel| (Str::from(*channel), version.clone())).collect();

        let mut checkpoint = Checkpoint::new(counter);
        checkpoint.versions_seen = self.versions_seen();
        let parent = self.last();
        self.versions.extend(new_versions.clone());
        checkpoint.channel_versions.clone_from(&self.versions);
        changed.sort_unstable();
        checkpoint.updated_channels = Some(changed.into_iter().map(Str::from).collect());
        self.ids.push(checkpoint.id.clone());

        let source = if index == 0 { "input" } else { "loop" };
        Step {
            parent,
            task_id: format!("00000000-0000-4000-9000-{index:012}"),
            metadata: CheckpointMetadata::new(source, counter - 1),
            new_versions,
            messages: self.messages_at(index),
            counter,
            checkpoint,
        }
    }

    fn messages_at(&self, index: usize) -> Vec<Message> {
        match self.window {
            None => self.messages.iter().take(index + 1).cloned().collect(),
            Some(window) => self
                .messages
                .iter()
                .cycle()
                .skip(index % self.messages.len().max(1))
                .take(window)
                .cloned()
                .collect(),
        }
    }

    fn versions_seen(&self) -> IndexMap<Str, ChannelVersions> {
        let seen = |channels: &[&str]| {
            let version = |channel: &&str| {
                self.versions.get(*channel).map(|version| (Str::from(*channel), version.clone()))
            };
            channels.iter().filter_map(version).collect()
        };
        IndexMap::from([
            ("__input__".into(), ChannelVersions::new()),
            ("__start__".into(), ChannelVersions::new()),
            ("agent".into(), seen(&CHANGING)),
            ("tools".into(), seen(&CHANGING[..1])),
        ])
    }

    /// Runs step 0, the input: one `put`.
    ///
    /// # Errors
    /// Those of the saver's `put`.
    pub async fn start(&mut self) -> Result<()> {
        let step = self.next_step();
        self.put(&step).await
    }

    /// Runs the next step: one `put_writes` and one `put`.
    ///
    /// # Errors
    /// Those of these calls.
    pub async fn step(&mut self) -> Result<()> {
        let step = self.next_step();
        self.put_writes(&step).await?;
        self.put(&step).await
    }

    /// Encodes and stores the writes of a step.
    ///
    /// # Errors
    /// Those of the saver's `put_writes`.
    pub async fn put_writes(&self, step: &Step) -> Result<()> {
        self.put_encoded_writes(step, &step.writes()?).await
    }

    /// Stores the encoded writes of a step.
    ///
    /// # Errors
    /// Those of the saver's `put_writes`.
    pub async fn put_encoded_writes(&self, step: &Step, writes: &[(Str, ChannelValue)]) -> Result<()> {
        self.saver.put_writes(&step.parent, writes, &step.task_id, TASK_PATH).await
    }

    /// Encodes and stores the checkpoint of a step.
    ///
    /// # Errors
    /// Those of the saver's `put`.
    pub async fn put(&self, step: &Step) -> Result<()> {
        self.put_encoded(step, &step.checkpoint()?).await
    }

    /// Stores the checkpoint of a step, with encoded values.
    ///
    /// # Errors
    /// Those of the saver's `put`.
    pub async fn put_encoded(&self, step: &Step, checkpoint: &Checkpoint) -> Result<()> {
        self.saver.put(&step.parent, checkpoint, &step.metadata, &step.new_versions).await.map(|_| ())
    }
}

/// The path of the task in the graph.
pub const TASK_PATH: &str = "~__pregel_pull, agent";

/// One step of a thread, with its values as application types, not yet encoded.
#[derive(Debug)]
pub struct Step {
    parent: CheckpointConfig,
    task_id: String,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
    messages: Vec<Message>,
    counter: i64,
    checkpoint: Checkpoint,
}

impl Step {
    /// Encodes the writes of the step's task: the newest message and the counter.
    ///
    /// # Errors
    /// Those of [`ChannelValue::encode`].
    pub fn writes(&self) -> Result<Vec<(Str, ChannelValue)>> {
        let message = ChannelValue::encode(&self.messages.last())?;
        Ok(vec![("messages".into(), message), ("counter".into(), self.counter.into())])
    }

    /// Encodes the step's checkpoint: all seven channels, as Python does.
    ///
    /// # Errors
    /// Those of [`ChannelValue::encode`].
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        let mut checkpoint = self.checkpoint.clone();
        checkpoint.channel_values = ChannelValues::from([
            ("messages".into(), ChannelValue::encode(&self.messages)?),
            ("counter".into(), self.counter.into()),
            ("user_id".into(), "user-000042".into()),
            ("locale".into(), "en-US".into()),
            ("temperature".into(), 0.2.into()),
            ("settings".into(), ChannelValue::encode(&Settings::of_every_thread())?),
            ("tools".into(), ChannelValue::encode(&TOOLS)?),
        ]);
        Ok(checkpoint)
    }
}

#[cfg(test)]
mod tests {
    use checkpoint_core::InMemorySaver;

    use super::*;
    use crate::{message, messages};

    fn thread() -> ChatThread {
        ChatThread::new(Arc::new(InMemorySaver::new()), 0xABCD, 7, messages(7, 101))
    }

    #[test]
    fn step_0_changes_every_channel_and_has_seen_none() {
        let step = thread().next_step();
        let checkpoint = step.checkpoint().unwrap();
        let state = State::decode(&checkpoint.channel_values).unwrap();
        assert_eq!((state.messages, state.counter), (vec![message(7, 0)], 0));
        assert_eq!(checkpoint.channel_versions, step.new_versions);
        assert_eq!(
            checkpoint.updated_channels.unwrap().join(" "),
            "counter locale messages settings temperature tools user_id"
        );
        assert!(checkpoint.versions_seen.values().all(IndexMap::is_empty));
        assert_eq!((step.metadata.source(), step.metadata.step()), (Some("input"), Some(-1)));
        assert_eq!(step.parent.checkpoint_id(), None);
        assert_eq!(step.parent.thread_id(), "0000abcd-0000-4000-8000-000000000007");
    }

    #[test]
    fn later_steps_follow_the_one_before() {
        let mut thread = thread();
        let first = thread.next_step();
        let step = thread.next_step();
        let checkpoint = step.checkpoint().unwrap();
        assert_eq!(step.parent.checkpoint_id(), Some(&*first.checkpoint.id));
        let before = &first.checkpoint.channel_versions["messages"];
        assert_eq!(
            checkpoint.versions_seen["tools"],
            ChannelVersions::from([("messages".into(), before.clone())])
        );
        assert_eq!(checkpoint.versions_seen["agent"].len(), 2);
        assert!(checkpoint.channel_versions["counter"].is_newer_than(before));
        assert_eq!(&checkpoint.channel_versions["tools"], before);
        assert_eq!(step.new_versions.keys().map(|name| &**name).collect::<Vec<_>>(), CHANGING);
        assert_eq!(State::decode(&checkpoint.channel_values).unwrap().messages, messages(7, 2));
        let writes = step.writes().unwrap();
        assert_eq!(writes[0].1.decode::<Message>().unwrap(), message(7, 1));
        assert_eq!(writes[1], ("counter".into(), ChannelValue::Int(1)));
        assert_eq!(step.task_id, "00000000-0000-4000-9000-000000000001");
    }

    #[tokio::test]
    async fn a_windowed_thread_keeps_20_messages_at_every_step() {
        let mut thread = thread().windowed();
        thread.start().await.unwrap();
        for _ in 0..90 {
            thread.step().await.unwrap();
        }
        let stored = thread.saver.get_tuple(&thread.latest()).await.unwrap().unwrap();
        let state = State::decode(&stored.checkpoint.channel_values).unwrap();
        let wanted: Vec<_> = (0..20).map(|j| message(7, (90 + j) % 101)).collect();
        assert_eq!((state.messages, state.counter), (wanted, 90));
        assert_eq!(stored.config.checkpoint_id(), thread.last().checkpoint_id());
    }

    #[test]
    fn a_missing_channel_is_an_error() {
        let mut values = thread().next_step().checkpoint().unwrap().channel_values;
        values.shift_remove("locale");
        assert_eq!(State::decode(&values).unwrap_err().kind(), checkpoint_core::ErrorKind::Codec);
    }
}
