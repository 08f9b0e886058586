//! A thin typed layer over any saver.

mod channels;
mod commit;
mod history;
mod lease;
mod record;
mod snapshot;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::Serialize;

pub use self::commit::Commit;
pub use self::history::History;
pub use self::lease::LeasedThread;
pub use self::snapshot::StateSnapshot;

use self::channels::Channels;
use self::commit::Source;
use crate::serde::Value;
use crate::{BaseCheckpointSaver, CheckpointConfig, Error, Lease, ListQuery, Result, Str, id};

/// The channel that records that a task finished without writing anything.
const NO_WRITES: &str = "__no_writes__";

/// The channel of a result that is not a struct, as in LangGraph's functional API.
const RETURN: &str = "__return__";

/// The prefix of a task's name in its path: LangGraph's mark for a task that a trigger started.
const PATH_PREFIX: &str = "~__pregel_pull, ";

/// One thread of a saver, read into Rust structs and committed from them: one channel per field.
///
/// It writes ordinary checkpoints and pending writes, which Python LangGraph opens. Channels that the struct has no
/// field for stay unchanged, so a struct may be a view of some channels. A field that `skip_serializing_if` skips is a
/// field of the struct all the same: its channel loses its value. (Serde does not tell which entries a map or a
/// `#[serde(flatten)]` struct leaves out: write `None` there, or the channel stays unchanged.)
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
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> checkpoint_core::Result<()> {
/// let thread = InMemorySaver::new().thread("thread-1");
/// let start = thread.begin(&State { question: "why?".into(), notes: vec![] }).await?;
/// // A task of this step finished; its result is stored before the step is.
/// let start = thread.record(&start, "search", "because").await?;
/// assert_eq!(start.done_tasks(), ["search"]);
///
/// // After a crash: finished tasks are not run again.
/// let at = thread.latest().await?.unwrap();
/// assert!(at.is_done("search") && !at.is_done("read"));
/// let mut state: State = at.values()?;
/// state.notes.push(at.result("search")?.unwrap());
/// let next = thread.commit(&at, &state).await?;
/// assert_eq!(next.step(), 0);
/// # Ok(())
/// # }
/// ```
///
/// # Several workers
///
/// A commit succeeds only while its parent is stored: what a person deleted does not come back. Two workers that commit on
/// the same state create two branches, as in LangGraph. To prevent that, [`commit_if_latest`](Self::commit_if_latest)
/// refuses the second one, and a [`lease`](Self::lease) lets only one worker write at all. A [step
/// key](Commit::step_key) makes it safe to repeat a commit whose outcome is unknown.
///
/// ```
/// # use checkpoint_core::{ErrorKind, InMemorySaver, SaverExt};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct State { count: u32 }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> checkpoint_core::Result<()> {
/// let thread = InMemorySaver::new().thread("thread-1");
/// let start = thread.begin(&State { count: 0 }).step_key("request-17").await?;
/// let next = thread.commit_if_latest(&start, &State { count: 1 }).metadata("worker", "a").await?;
/// let late = thread.commit_if_latest(&start, &State { count: 2 }).await.unwrap_err();
/// assert_eq!(late.kind(), ErrorKind::Conflict);
/// # assert_eq!(next.metadata().get("worker").and_then(|worker| worker.as_str()), Some("a"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Thread<S> {
    saver: S,
    config: CheckpointConfig,
    metadata: Vec<(Str, Value)>,
    lease: Option<Lease>,
}

impl<S: BaseCheckpointSaver> Thread<S> {
    /// Opens a thread at its root namespace. It does no I/O.
    pub fn new(saver: S, thread_id: impl Into<Str>) -> Self {
        Self { saver, config: CheckpointConfig::new(thread_id), metadata: Vec::new(), lease: None }
    }

    /// Selects the namespace; the root is `""`.
    #[must_use]
    pub fn namespace(mut self, checkpoint_ns: impl Into<Str>) -> Self {
        self.config = self.config.with_checkpoint_ns(checkpoint_ns);
        self
    }

    /// Adds an entry to the metadata of every checkpoint that this handle stores, such as a `run_id`. What the saver sets
    /// itself is refused by the call that stores: `source`, `step`, `parents`, `step_key`, ids, and keys that begin with
    /// `__`.
    #[must_use]
    pub fn with_metadata(mut self, key: impl Into<Str>, value: impl Into<Value>) -> Self {
        self.metadata.push((key.into(), value.into()));
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

    /// The namespace.
    pub fn checkpoint_ns(&self) -> &str {
        self.config.checkpoint_ns()
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
        let tuple = self.saver.get_tuple(&config).await?;
        Ok(tuple.map(|tuple| StateSnapshot { tuple, backend: Some(self.saver.backend()) }))
    }

    /// Streams the history of this namespace, newest first. [`History`] narrows it.
    pub fn history(&self) -> History<S>
    where
        S: Clone,
    {
        History::new(self.saver.clone(), ListQuery::from_config(&self.config))
    }

    /// Stores an input: the first state of a thread (step -1), or new values on top of the newest state. It begins a
    /// deleted thread again.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) when the value is not a struct or map; else as [`Commit`].
    ///
    /// # Cancellation
    /// A dropped call has stored the whole state or nothing.
    pub fn begin<T: Serialize + ?Sized>(&self, input: &T) -> Commit<'_, S> {
        Commit::new(self, Source::Input, None, Channels::of(input))
    }

    /// Stores the state after a step. Only channels whose bytes changed get a new version.
    ///
    /// Committing twice on the same snapshot creates two branches; the later one is the newest. See
    /// [`commit_if_latest`](Self::commit_if_latest).
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    ///
    /// # Cancellation
    /// A dropped call has stored the whole state or nothing.
    pub fn commit<'a, T: Serialize + ?Sized>(&'a self, on: &'a StateSnapshot, state: &T) -> Commit<'a, S> {
        Commit::new(self, Source::Loop, Some(on), Channels::of(state))
    }

    /// Stores the state after a step if the snapshot is still the newest of the thread and namespace (compare and set), in
    /// the same round trip.
    ///
    /// # Errors
    /// [`Conflict`](crate::ErrorKind::Conflict), naming the newer checkpoint, when there is one; else as
    /// [`begin`](Self::begin).
    ///
    /// # Cancellation
    /// A dropped call has stored the whole state or nothing.
    pub fn commit_if_latest<'a, T: Serialize + ?Sized>(
        &'a self,
        on: &'a StateSnapshot,
        state: &T,
    ) -> Commit<'a, S> {
        self.commit(on, state).if_latest()
    }

    /// Stores values that were changed from outside: by a person, or by a program that is not the agent.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    ///
    /// # Cancellation
    /// A dropped call has stored the whole state or nothing.
    pub fn update<'a, T: Serialize + ?Sized>(&'a self, on: &'a StateSnapshot, values: &T) -> Commit<'a, S> {
        Commit::new(self, Source::Update, Some(on), Channels::of(values))
    }

    /// Stores a copy of an earlier state as the newest, so that the agent continues from there. The history is kept.
    ///
    /// The copy has no recorded results: its tasks run again, as in LangGraph.
    ///
    /// # Errors
    /// As [`Commit`].
    ///
    /// # Cancellation
    /// A dropped call has stored the whole state or nothing.
    pub fn fork<'a>(&'a self, from: &'a StateSnapshot) -> Commit<'a, S> {
        Commit::new(self, Source::Fork, Some(from), Ok(Channels::default()))
    }

    /// Records the result of a finished task of a step, in one round trip. It survives a crash, see
    /// [`StateSnapshot::is_done`]. Returns the snapshot with this result.
    ///
    /// A struct or map is one write per field, as a LangGraph node writes channels; any other value is one write, as in
    /// LangGraph's functional API. The first result of a task is kept as a whole. Recording the same result again succeeds.
    ///
    /// # Errors
    /// [`Conflict`](crate::ErrorKind::Conflict) when another result of the task is recorded, the checkpoint was deleted,
    /// or the lease was lost; [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a snapshot of another thread;
    /// else as [`BaseCheckpointSaver::put_writes`].
    ///
    /// # Cancellation
    /// A dropped call has recorded the whole result or nothing.
    pub async fn record<T: Serialize + Sync + ?Sized>(
        &self,
        on: &StateSnapshot,
        task: &str,
        result: &T,
    ) -> Result<StateSnapshot> {
        record::record(self, on, task, result).await
    }

    /// Acquires the lease of the thread and returns a handle whose writes require it, so that one worker at a time writes
    /// to the thread. It covers all namespaces, and each write renews it.
    ///
    /// # Errors
    /// [`Conflict`](crate::ErrorKind::Conflict) while another worker has it; else as
    /// [`BaseCheckpointSaver::acquire_lease`].
    ///
    /// # Cancellation
    /// A dropped call may have acquired the lease, which then expires.
    pub async fn lease(&self, ttl: Duration) -> Result<LeasedThread<S>>
    where
        S: Clone,
    {
        let lease = self.saver.acquire_lease(self.thread_id(), ttl).await?;
        Ok(LeasedThread::new(Self { lease: Some(lease.clone()), ..self.clone() }, lease))
    }

    /// Rejects a snapshot of another thread, namespace or backend.
    fn check(&self, on: &StateSnapshot) -> Result<()> {
        let config = on.config();
        let is_other_backend = on.backend.is_some_and(|backend| backend != self.saver.backend());
        if is_other_backend
            || config.thread_id() != self.thread_id()
            || config.checkpoint_ns() != self.checkpoint_ns()
        {
            return Err(Error::invalid_argument(
                "the snapshot belongs to another thread, namespace or saver; read it from this one",
            )
            .with("thread_id", self.thread_id())
            .with("checkpoint_ns", self.checkpoint_ns())
            .with("snapshot_thread_id", config.thread_id())
            .with("snapshot_checkpoint_ns", config.checkpoint_ns()));
        }
        id::validate(on.id()).map(|_| ())
    }
}
