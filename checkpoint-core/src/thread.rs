//! A thin typed layer over any saver.

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::serde::{Value, decode, document, to_msgpack_within};
use crate::{
    BaseCheckpointSaver, ChannelValue, ChannelValues, ChannelVersion, ChannelVersions, Checkpoint,
    CheckpointConfig, CheckpointMetadata, CheckpointTuple, Error, ListQuery, PendingWrite, Result, Str, id,
    special,
};

/// The channel that records that a task finished without writing anything.
const NO_WRITES: &str = "__no_writes__";

/// The metadata key with which LangGraph decides when a delta channel needs a snapshot.
const COUNTERS: &str = "counters_since_delta_snapshot";

/// The prefix of a task's name in its path: LangGraph's mark for a task that a trigger started.
const PATH_PREFIX: &str = "~__pregel_pull, ";

/// One thread of a saver, read into Rust structs and committed from them: one channel per field.
///
/// It writes ordinary checkpoints and pending writes, which Python LangGraph opens. Channels that the struct has no
/// field for stay unchanged, so a struct may be a view of some channels.
///
/// ```
/// use checkpoint_core::{InMemorySaver, SaverExt};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct State {
///     question: String,
///     notes: Vec<String>,
/// }
/// #[derive(Serialize, Deserialize)]
/// struct Note {
///     note: String,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> checkpoint_core::Result<()> {
/// let thread = InMemorySaver::new().thread("thread-1");
/// let start = thread.begin(&State { question: "why?".into(), notes: vec![] }).await?;
/// // A task of this step finished; its result is stored before the step is.
/// thread.record(&start, "search", &Note { note: "because".into() }).await?;
///
/// // After a crash: finished tasks are not run again.
/// let at = thread.latest().await?.unwrap();
/// assert!(at.is_done("search") && !at.is_done("read"));
/// let mut state: State = at.values()?;
/// state.notes.push(at.result::<Note>("search")?.unwrap().note);
/// let next = thread.commit(&at, &state).await?;
/// assert_eq!(next.step(), 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Thread<S> {
    saver: S,
    config: CheckpointConfig,
}

impl<S: BaseCheckpointSaver> Thread<S> {
    /// Opens a thread at its root namespace. It does no I/O.
    pub fn new(saver: S, thread_id: impl Into<Str>) -> Self {
        Self { saver, config: CheckpointConfig::new(thread_id) }
    }

    /// Selects the namespace; the root is `""`.
    #[must_use]
    pub fn namespace(mut self, checkpoint_ns: impl Into<Str>) -> Self {
        self.config = self.config.with_checkpoint_ns(checkpoint_ns);
        self
    }

    /// Adds an entry to the metadata of every checkpoint that this handle stores, such as a `run_id`.
    #[must_use]
    pub fn with_metadata(mut self, key: impl Into<Str>, value: impl Into<Value>) -> Self {
        self.config = self.config.with_metadata(key, value);
        self
    }

    /// The saver.
    pub fn saver(&self) -> &S {
        &self.saver
    }

    /// The thread.
    pub fn thread_id(&self) -> &str {
        self.config.thread_id()
    }

    /// Reads the newest state.
    ///
    /// # Errors
    /// As [`BaseCheckpointSaver::get_tuple`].
    ///
    /// # Cancellation
    /// May be dropped at any time.
    pub async fn latest(&self) -> Result<Option<StateSnapshot>> {
        self.read(self.config.clone()).await
    }

    /// Reads the state of one checkpoint.
    ///
    /// # Errors
    /// As [`BaseCheckpointSaver::get_tuple`].
    ///
    /// # Cancellation
    /// May be dropped at any time.
    pub async fn at(&self, checkpoint_id: impl Into<Str> + Send) -> Result<Option<StateSnapshot>> {
        self.read(self.config.clone().with_checkpoint_id(checkpoint_id)).await
    }

    async fn read(&self, config: CheckpointConfig) -> Result<Option<StateSnapshot>> {
        Ok(self.saver.get_tuple(&config).await?.map(|tuple| StateSnapshot { tuple }))
    }

    /// Streams the history of this namespace, newest first.
    pub fn history(&self) -> BoxStream<'static, Result<StateSnapshot>> {
        let query = ListQuery::from_config(&self.config);
        self.saver.list(query).map(|tuple| tuple.map(|tuple| StateSnapshot { tuple })).boxed()
    }

    /// Stores an input: the first state of a thread (step -1), or new values on top of the newest state.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) when the value is not a struct or map; else as
    /// [`BaseCheckpointSaver::put`].
    ///
    /// # Cancellation
    /// A dropped call has stored the whole state or nothing.
    pub async fn begin<T: Serialize + Sync + ?Sized>(&self, input: &T) -> Result<StateSnapshot> {
        let values = channels_of(input)?;
        let latest = self.latest().await?;
        self.store("input", latest.as_ref(), values).await
    }

    /// Stores the state after a step. Only channels whose bytes changed get a new version.
    ///
    /// Committing twice on the same snapshot creates two branches; the later one is the newest.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    ///
    /// # Cancellation
    /// A dropped call has stored the whole state or nothing.
    pub async fn commit<T: Serialize + Sync + ?Sized>(
        &self,
        on: &StateSnapshot,
        state: &T,
    ) -> Result<StateSnapshot> {
        self.store("loop", Some(on), channels_of(state)?).await
    }

    /// Stores values that were changed from outside: by a person, or by a program that is not the agent.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    ///
    /// # Cancellation
    /// A dropped call has stored the whole state or nothing.
    pub async fn update<T: Serialize + Sync + ?Sized>(
        &self,
        on: &StateSnapshot,
        values: &T,
    ) -> Result<StateSnapshot> {
        self.store("update", Some(on), channels_of(values)?).await
    }

    /// Stores a copy of an earlier state as the newest, so that the agent continues from there. The history is kept.
    ///
    /// # Errors
    /// As [`BaseCheckpointSaver::put`].
    ///
    /// # Cancellation
    /// A dropped call has stored the whole state or nothing.
    pub async fn fork(&self, from: &StateSnapshot) -> Result<StateSnapshot> {
        self.store("fork", Some(from), ChannelValues::new()).await
    }

    /// Records the result of a finished task of a step: one write per field, or that it wrote nothing (`&()`). It
    /// survives a crash, see [`StateSnapshot::is_done`]. As in LangGraph, writes that are already recorded are kept, by
    /// their position, and a second call only adds positions beyond them: check whether the task is done first.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) when the value is neither a struct or map nor `()`; else as
    /// [`BaseCheckpointSaver::put_writes`].
    ///
    /// # Cancellation
    /// A dropped call has recorded the whole result or nothing.
    pub async fn record<T: Serialize + Sync + ?Sized>(
        &self,
        on: &StateSnapshot,
        task: &str,
        result: &T,
    ) -> Result<()> {
        let mut writes: Vec<_> = match ChannelValue::encode(result)? {
            ChannelValue::Null => Vec::new(),
            ChannelValue::Blob(blob) => split(&blob.to_unvalidated_msgpack()?)?.into_iter().collect(),
            _ => return Err(no_struct()),
        };
        if writes.is_empty() {
            writes.push((NO_WRITES.into(), ChannelValue::Null));
        }
        let task_id = task_id(on, task)?;
        self.saver.put_writes(on.config(), &writes, &task_id, &format!("{PATH_PREFIX}{task}")).await
    }

    async fn store(
        &self,
        source: &str,
        on: Option<&StateSnapshot>,
        values: ChannelValues,
    ) -> Result<StateSnapshot> {
        let step = on.map_or(-1, |on| on.step().saturating_add(1));
        let mut checkpoint = Checkpoint::new(step);
        let mut metadata = CheckpointMetadata::new(source, step);
        let mut config = self.config.clone();
        if let Some(on) = on {
            let old = &on.tuple.checkpoint;
            old.require_channels().map_err(|error| error.with("checkpoint_id", on.id()))?;
            // Includes unknown fields, and the version from which LangGraph migrates old formats.
            checkpoint = Checkpoint { id: checkpoint.id, ts: checkpoint.ts, ..old.clone() };
            checkpoint.updated_channels = None;
            checkpoint.extra.shift_remove("updated_channels");
            if source == "loop" {
                // Old versions kept the step's tasks here; the step is over.
                checkpoint.extra.shift_remove("pending_sends");
            }
            for key in ["parents", COUNTERS] {
                if let Some(value) = on.tuple.metadata.get(key) {
                    metadata.insert(key, value.clone());
                }
            }
            config = config.with_checkpoint_id(old.id.clone());
        }
        if source == "input" {
            checkpoint.versions_seen.entry("__input__".into()).or_default();
        }
        // As in LangGraph, all channels that one step changed get the same version.
        let version =
            self.saver.get_next_version(ChannelVersion::newest(checkpoint.channel_versions.values()));
        let mut new_versions = ChannelVersions::new();
        for (channel, value) in values {
            if checkpoint.channel_values.get(&channel).is_some_and(|old| same_bytes(old, &value)) {
                continue;
            }
            checkpoint.channel_versions.insert(channel.clone(), version.clone());
            checkpoint.channel_values.insert(channel.clone(), value);
            new_versions.insert(channel, version.clone());
        }
        if matches!(source, "input" | "loop") {
            let mut updated: Vec<Str> = new_versions.keys().cloned().collect();
            updated.sort_unstable();
            checkpoint.updated_channels = Some(updated);
        }
        let stored = self.saver.put(&config, &checkpoint, &metadata, &new_versions).await?;
        let parent = on.map(|on| on.tuple.checkpoint.id.clone());
        let tuple = CheckpointTuple::new(stored, checkpoint, metadata.merged(&config), parent, Vec::new());
        Ok(StateSnapshot { tuple })
    }
}

/// Encodes one channel per field of a struct or entry of a map.
fn channels_of<T: Serialize + ?Sized>(value: &T) -> Result<ChannelValues> {
    // The struct becomes the checkpoint's map of channels.
    split(&to_msgpack_within(value, 1)?.into())
}

fn split(msgpack: &Bytes) -> Result<ChannelValues> {
    document::split_map(msgpack).map_err(|_| no_struct())
}

fn no_struct() -> Error {
    Error::codec("a thread's values must be a struct or a map with text keys: one channel per field")
}

fn same_bytes(a: &ChannelValue, b: &ChannelValue) -> bool {
    match (a, b) {
        // Not `==`: NaN equals itself here, and -0.0 differs from 0.0.
        (ChannelValue::Float(a), ChannelValue::Float(b)) => a.to_bits() == b.to_bits(),
        _ => a == b,
    }
}

/// The id of a task as LangGraph makes it: the hash of checkpoint, namespace, step and name.
fn task_id(on: &StateSnapshot, task: &str) -> Result<String> {
    let checkpoint_id = id::validate(on.id())?;
    let checkpoint_ns = on.config().checkpoint_ns();
    let separator = if checkpoint_ns.is_empty() { "" } else { "|" };
    let mut bytes = checkpoint_id.as_bytes().to_vec();
    let step = on.step().saturating_add(1);
    bytes.extend_from_slice(format!("{checkpoint_ns}{separator}{task}{step}{task}__pregel_pull").as_bytes());
    let hash = xxhash_rust::xxh3::xxh3_128(&bytes);
    Ok(uuid::Uuid::from_u128(hash).hyphenated().to_string())
}

/// The state of a thread at one checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct StateSnapshot {
    tuple: CheckpointTuple,
}

impl StateSnapshot {
    /// The checkpoint's id.
    pub fn id(&self) -> &str {
        &self.tuple.checkpoint.id
    }

    /// The step: -1 for the first input, 0 for the first state after it.
    pub fn step(&self) -> i64 {
        self.tuple.metadata.step().unwrap_or(-1)
    }

    /// How the state was created: `input`, `loop`, `update` or `fork`.
    pub fn source(&self) -> Option<&str> {
        self.tuple.metadata.source()
    }

    /// Thread, namespace and id.
    pub fn config(&self) -> &CheckpointConfig {
        &self.tuple.config
    }

    /// The id of the state before it, if any.
    pub fn parent_id(&self) -> Option<&str> {
        self.tuple.parent_checkpoint_id()
    }

    /// The whole tuple, as it was read.
    pub fn tuple(&self) -> &CheckpointTuple {
        &self.tuple
    }

    /// Decodes the channels that the type has fields for.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) for a value that does not match the type; the error names the channel.
    pub fn values<T: DeserializeOwned>(&self) -> Result<T> {
        decode::from_channels(&self.tuple.checkpoint.channel_values)
    }

    /// Decodes one channel, or `None` when it has no value.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) for a value that does not match the type.
    pub fn channel<T: DeserializeOwned>(&self, channel: &str) -> Result<Option<T>> {
        let value = self.tuple.checkpoint.channel_values.get(channel);
        value.map(|value| value.decode().map_err(|error| error.with("channel", channel))).transpose()
    }

    /// Whether a task of this step has finished and its result is recorded.
    pub fn is_done(&self, task: &str) -> bool {
        self.results_of(task).next().is_some()
    }

    /// The names of the tasks of this step that have finished, sorted.
    pub fn done_tasks(&self) -> Vec<&str> {
        let results = self.tuple.pending_writes.iter().filter(|write| is_result(write));
        let mut names: Vec<_> =
            results.filter_map(|write| write.task_path.strip_prefix(PATH_PREFIX)).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Decodes the recorded result of a task, or `None` when it has not finished.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) for a value that does not match the type; the error names the channel.
    pub fn result<T: DeserializeOwned>(&self, task: &str) -> Result<Option<T>> {
        if !self.is_done(task) {
            return Ok(None);
        }
        let writes = self.results_of(task).filter(|write| &*write.channel != NO_WRITES);
        let values = writes.map(|write| (write.channel.clone(), write.value.clone())).collect();
        decode::from_channels(&values).map(Some)
    }

    fn results_of<'a>(&'a self, task: &'a str) -> impl Iterator<Item = &'a PendingWrite> + 'a {
        let of_task = move |write: &&PendingWrite| write.task_path.strip_prefix(PATH_PREFIX) == Some(task);
        self.tuple.pending_writes.iter().filter(of_task).filter(|write| is_result(write))
    }
}

/// Errors, interrupts and resume values do not finish a task.
fn is_result(write: &PendingWrite) -> bool {
    special::index(&write.channel).is_none()
}

#[cfg(test)]
mod tests {
    use futures_util::TryStreamExt;
    use serde::Deserialize;

    use super::*;
    use crate::{ErrorKind, InMemorySaver, SaverExt};

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct State {
        topic: String,
        score: f64,
        notes: Vec<String>,
        answer: Option<String>,
    }

    fn start() -> State {
        State { topic: "rust".into(), score: f64::NAN, notes: vec![], answer: None }
    }

    #[tokio::test]
    async fn only_changed_channels_get_a_new_version() {
        let thread = InMemorySaver::new().thread("t");
        let first = thread.begin(&start()).await.unwrap();
        assert_eq!((first.step(), first.source(), first.parent_id()), (-1, Some("input"), None));
        let next = State { notes: vec!["a".into()], ..start() };
        let second = thread.commit(&first, &next).await.unwrap();
        let checkpoint = &second.tuple().checkpoint;
        let majors: Vec<_> =
            checkpoint.channel_versions.iter().map(|(name, version)| (&**name, version.major())).collect();
        assert_eq!(majors, [("topic", 1), ("score", 1), ("notes", 2), ("answer", 1)]);
        assert_eq!(checkpoint.updated_channels.as_deref(), Some(&[Str::from("notes")][..]));
        assert_eq!((second.step(), second.source(), second.parent_id()), (0, Some("loop"), Some(first.id())));
        let stored = thread.latest().await.unwrap().unwrap();
        // As text, because NaN is not equal to itself.
        assert_eq!(format!("{stored:?}"), format!("{second:?}"), "commit returns the stored state");
    }

    #[tokio::test]
    async fn views_leave_other_channels_alone() {
        #[derive(Serialize, Deserialize)]
        struct Answer {
            answer: Option<String>,
        }
        let thread = InMemorySaver::new().thread("t").with_metadata("run_id", "r1");
        let first = thread.begin(&start()).await.unwrap();
        let second = thread.update(&first, &Answer { answer: Some("42".into()) }).await.unwrap();
        let state: State = second.values().unwrap();
        assert_eq!((state.topic.as_str(), state.answer.as_deref()), ("rust", Some("42")));
        assert_eq!(second.channel::<Option<String>>("answer").unwrap(), Some(Some("42".into())));
        assert_eq!(second.channel::<String>("nothing").unwrap(), None);
        assert_eq!(second.tuple().metadata.run_id(), Some("r1"));
        assert_eq!(second.tuple().checkpoint.updated_channels, None);
        let wrong = second.channel::<Vec<String>>("topic").unwrap_err();
        assert!(wrong.kind() == ErrorKind::Codec && wrong.to_string().contains("topic"), "{wrong}");
    }

    #[tokio::test]
    async fn finished_tasks_are_found_by_name() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Note {
            note: String,
        }
        let thread = InMemorySaver::new().thread("t").namespace("sub:1");
        let on = thread.begin(&start()).await.unwrap();
        thread.record(&on, "search", &Note { note: "first".into() }).await.unwrap();
        thread.record(&on, "search", &Note { note: "again".into() }).await.unwrap();
        thread.record(&on, "log", &()).await.unwrap();
        let failed = [(Str::from(special::ERROR), ChannelValue::from("boom"))];
        let path = format!("{PATH_PREFIX}fail");
        thread.saver().put_writes(on.config(), &failed, "other", &path).await.unwrap();

        let on = thread.at(on.id()).await.unwrap().unwrap();
        assert_eq!(on.done_tasks(), ["log", "search"]);
        assert!(on.is_done("search") && on.is_done("log") && !on.is_done("fail") && !on.is_done("sea"));
        assert_eq!(on.result::<Note>("search").unwrap(), Some(Note { note: "first".into() }));
        assert_eq!(on.result::<Note>("fail").unwrap(), None);
        assert_eq!(on.result::<Note>("log").unwrap_err().kind(), ErrorKind::Codec);
    }

    #[tokio::test]
    async fn a_fork_becomes_the_newest_and_keeps_the_history() {
        let thread = InMemorySaver::new().thread("t");
        let first = thread.begin(&start()).await.unwrap();
        let second = thread.commit(&first, &State { topic: "python".into(), ..start() }).await.unwrap();
        let fork = thread.fork(&first).await.unwrap();
        assert_eq!(thread.latest().await.unwrap().unwrap().id(), fork.id());
        assert_eq!(fork.parent_id(), Some(first.id()));
        assert_eq!(fork.values::<State>().unwrap().topic, "rust");
        let ids: Vec<_> =
            thread.history().map_ok(|snapshot| snapshot.id().to_owned()).try_collect().await.unwrap();
        assert_eq!(ids, [fork.id(), second.id(), first.id()]);
        let input = thread.begin(&State { topic: "next".into(), ..start() }).await.unwrap();
        assert_eq!((input.step(), input.parent_id()), (1, Some(fork.id())));
    }

    #[tokio::test]
    async fn commit_keeps_the_fields_that_langgraph_needs() {
        let saver = InMemorySaver::new();
        // As old versions of LangGraph left it: LangGraph renames the channels of checkpoints with `v` 1.
        let old = Checkpoint {
            v: 1,
            extra: [("pending_sends".into(), ChannelValue::encode(&["x"]).unwrap())].into_iter().collect(),
            ..Checkpoint::new(0).with_channel("start:n", 1, "1")
        };
        let counters = Value::Map(vec![("log".into(), Value::Array(vec![3.into(), 4.into()]))]);
        let parents = Value::Map(vec![("".into(), "id".into())]);
        let metadata = CheckpointMetadata::new("loop", 0)
            .with("parents", parents.clone())
            .with(COUNTERS, counters.clone())
            .with("writes", "of that step");
        saver.put(&CheckpointConfig::new("t"), &old, &metadata, &old.channel_versions).await.unwrap();
        let thread = saver.thread("t");
        let at = thread.latest().await.unwrap().unwrap();
        let fork = thread.fork(&at).await.unwrap();
        let checkpoint = &fork.tuple().checkpoint;
        assert_eq!((checkpoint.v, &checkpoint.extra), (1, &old.extra));
        assert!(checkpoint.id > old.id && checkpoint.ts >= old.ts);
        let metadata = &fork.tuple().metadata;
        assert_eq!((metadata.get("parents"), metadata.get(COUNTERS)), (Some(&parents), Some(&counters)));
        assert_eq!((metadata.source(), metadata.get("writes")), (Some("fork"), None));
        let next = thread.commit(&at, &std::collections::BTreeMap::from([("a", 1)])).await.unwrap();
        assert_eq!((next.tuple().checkpoint.v, next.tuple().checkpoint.extra.len()), (1, 0));
    }

    #[tokio::test]
    async fn commit_rejects_a_state_that_could_not_be_decrypted() {
        let thread = InMemorySaver::new().thread("t");
        let first = thread.begin(&start()).await.unwrap();
        let ciphertext = crate::TypedBytes::new("msgpack+aes", &b"..."[..]);
        let mut shut = first.clone();
        shut.tuple.checkpoint = crate::opaque::checkpoint(first.id(), ciphertext);
        for error in [
            thread.fork(&shut).await.unwrap_err(),
            thread.update(&shut, &start()).await.unwrap_err(),
            thread.commit(&shut, &start()).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Crypto, "{error}");
        }
        assert_eq!(thread.latest().await.unwrap().unwrap().id(), first.id());
    }

    #[test]
    fn only_the_channels_of_the_view_are_decoded() {
        #[derive(Debug, Deserialize)]
        struct View {
            topic: String,
        }
        #[derive(Debug, Deserialize)]
        struct Both {
            #[serde(rename = "old")]
            _old: Value,
        }
        let pickled = ChannelValue::Blob(crate::TypedBytes::new("pickle", &b"\x80"[..]));
        let values: ChannelValues =
            [("old".into(), pickled), ("topic".into(), "rust".into())].into_iter().collect();
        assert_eq!(decode::from_channels::<View>(&values).unwrap().topic, "rust");
        let error = decode::from_channels::<Both>(&values).unwrap_err();
        assert!(error.to_string().contains("pickle") && error.to_string().contains("old"), "{error}");
    }

    #[tokio::test]
    async fn values_other_than_structs_are_rejected_before_anything_is_stored() {
        let thread = InMemorySaver::new().thread("t");
        for error in [thread.begin("text").await.unwrap_err(), thread.begin(&[1, 2]).await.unwrap_err()] {
            assert!(error.kind() == ErrorKind::Codec && error.to_string().contains("struct"), "{error}");
        }
        assert!(thread.latest().await.unwrap().is_none());
    }
}
