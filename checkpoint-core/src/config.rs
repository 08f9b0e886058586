//! The config of a call (thread, namespace, checkpoint) and the queries of listings.

use crate::filter::{Filter, FilterSemantics};
use crate::serde::Value;
use crate::{CheckpointMetadata, Error, Result, ThreadState, ThreadStatus};

/// A string that is cheap to clone: ids, channel names, namespaces.
pub type Str = std::sync::Arc<str>;

/// Names one checkpoint, or the newest of a thread and namespace if it has no checkpoint id.
///
/// This is the `configurable` part of LangGraph's `RunnableConfig`. The root namespace is `""`; the namespace of a
/// subgraph is `node:task_id`, nested ones joined by `|`.
///
/// ```
/// use checkpoint_core::CheckpointConfig;
/// let newest = CheckpointConfig::new("thread-1");
/// let one = newest.clone().with_checkpoint_id("1f1e4fbf-bea1-6f34-bfff-a8ab9f516d8b");
/// assert_eq!(newest.checkpoint_id(), None);
/// assert_eq!(one.checkpoint_ns(), "");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointConfig {
    thread_id: Str,
    checkpoint_ns: Str,
    checkpoint_id: Option<Str>,
    run_metadata: CheckpointMetadata,
    configurable: CheckpointMetadata,
}

impl CheckpointConfig {
    /// Points to the newest checkpoint of a thread's root namespace.
    pub fn new(thread_id: impl Into<Str>) -> Self {
        Self {
            thread_id: thread_id.into(),
            checkpoint_ns: Str::from(""),
            checkpoint_id: None,
            run_metadata: CheckpointMetadata::default(),
            configurable: CheckpointMetadata::default(),
        }
    }

    /// Chooses the namespace; the root is `""`.
    #[must_use]
    pub fn with_checkpoint_ns(mut self, checkpoint_ns: impl Into<Str>) -> Self {
        self.checkpoint_ns = checkpoint_ns.into();
        self
    }

    /// Chooses one checkpoint. As in Python, an empty id means the newest.
    #[must_use]
    pub fn with_checkpoint_id(mut self, checkpoint_id: impl Into<Str>) -> Self {
        self.checkpoint_id = Some(checkpoint_id.into()).filter(|id| !id.is_empty());
        self
    }

    /// Removes the checkpoint id, so that the config names the newest checkpoint.
    #[must_use]
    pub fn latest(mut self) -> Self {
        self.checkpoint_id = None;
        self
    }

    /// Adds one entry of the run's metadata (`config["metadata"]`), which `put` merges into the checkpoint's
    /// metadata: `run_id`, a tenant, a user.
    #[must_use]
    pub fn with_metadata(mut self, key: impl Into<Str>, value: impl Into<Value>) -> Self {
        self.run_metadata.insert(key, value);
        self
    }

    /// Adds one more entry of `config["configurable"]`, which `put` merges after the run's metadata.
    #[must_use]
    pub fn with_configurable(mut self, key: impl Into<Str>, value: impl Into<Value>) -> Self {
        self.configurable.insert(key, value);
        self
    }

    /// Names another checkpoint of the same thread and namespace, without metadata.
    #[must_use]
    pub fn for_checkpoint(&self, checkpoint_id: impl Into<Str>) -> Self {
        self.without_metadata().with_checkpoint_id(checkpoint_id)
    }

    /// Names the same thread, namespace and checkpoint, without metadata. The result is cheap to clone.
    #[must_use]
    pub fn without_metadata(&self) -> Self {
        Self {
            thread_id: self.thread_id.clone(),
            checkpoint_ns: self.checkpoint_ns.clone(),
            checkpoint_id: self.checkpoint_id.clone(),
            run_metadata: CheckpointMetadata::default(),
            configurable: CheckpointMetadata::default(),
        }
    }

    /// The thread.
    pub fn thread_id(&self) -> &str {
        &self.thread_id
    }

    /// The namespace, `""` for the root.
    pub fn checkpoint_ns(&self) -> &str {
        &self.checkpoint_ns
    }

    /// The checkpoint, or `None` for the newest. Never an empty string.
    pub fn checkpoint_id(&self) -> Option<&str> {
        self.checkpoint_id.as_deref()
    }

    /// Thread and namespace, as shared strings.
    pub(crate) fn shared_key(&self) -> (Str, Str) {
        (self.thread_id.clone(), self.checkpoint_ns.clone())
    }

    /// The run's metadata.
    pub fn run_metadata(&self) -> &CheckpointMetadata {
        &self.run_metadata
    }

    /// Further entries of `configurable`.
    pub fn configurable(&self) -> &CheckpointMetadata {
        &self.configurable
    }

    /// The checkpoint id, for calls that require one.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) when there is none.
    pub(crate) fn require_checkpoint_id(&self) -> Result<&str> {
        self.checkpoint_id().ok_or_else(|| {
            Error::invalid_argument("the config names no checkpoint; add with_checkpoint_id(…)")
                .with("thread_id", &self.thread_id)
        })
    }
}

/// Selects the checkpoints that `list` returns. All fields that are set must match.
///
/// ```
/// use checkpoint_core::{Filter, ListQuery};
/// let query = ListQuery::thread("thread-1").checkpoint_ns("").filter(Filter::new().eq("source", "loop")).limit(10);
/// assert_eq!(query.limit, Some(10));
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct ListQuery {
    /// One thread, or all.
    pub thread_id: Option<Str>,
    /// One namespace (`""` is the root), or all.
    pub checkpoint_ns: Option<Str>,
    /// One checkpoint id, or all.
    pub checkpoint_id: Option<Str>,
    /// Conditions on the metadata; an empty filter matches everything.
    pub filter: Filter,
    /// Only checkpoints with an id strictly below this one.
    pub before: Option<Str>,
    /// The maximum number of results; 0 yields nothing.
    pub limit: Option<usize>,
}

impl ListQuery {
    /// Lists every checkpoint of every thread.
    pub fn all() -> Self {
        Self::default()
    }

    /// Lists one thread, all namespaces.
    pub fn thread(thread_id: impl Into<Str>) -> Self {
        Self { thread_id: Some(thread_id.into()), ..Self::default() }
    }

    /// Lists the config's thread and namespace, and only its checkpoint if it names one.
    pub fn from_config(config: &CheckpointConfig) -> Self {
        Self {
            thread_id: Some(config.thread_id.clone()),
            checkpoint_ns: Some(config.checkpoint_ns.clone()),
            checkpoint_id: config.checkpoint_id.clone(),
            ..Self::default()
        }
    }

    /// Narrows to one namespace; `""` is the root.
    #[must_use]
    pub fn checkpoint_ns(mut self, checkpoint_ns: impl Into<Str>) -> Self {
        self.checkpoint_ns = Some(checkpoint_ns.into());
        self
    }

    /// Narrows to one checkpoint id. As in Python, an empty id means no restriction.
    #[must_use]
    pub fn checkpoint_id(mut self, checkpoint_id: impl Into<Str>) -> Self {
        self.checkpoint_id = Some(checkpoint_id.into()).filter(|id| !id.is_empty());
        self
    }

    /// Narrows by metadata.
    #[must_use]
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = filter;
        self
    }

    /// Narrows to checkpoints older than this id.
    #[must_use]
    pub fn before(mut self, checkpoint_id: impl Into<Str>) -> Self {
        self.before = Some(checkpoint_id.into());
        self
    }

    /// Limits the number of results.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = Some(limit);
        self
    }
}

/// Selects the threads that `list_threads` returns. All fields that are set must match.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct ThreadQuery {
    /// Only threads whose id sorts strictly after this one, in the order of `list_threads`.
    pub after: Option<Str>,
    /// Only threads whose id begins with this text.
    pub prefix: Option<Str>,
    /// Only threads whose newest checkpoint was made at this time or later, in microseconds since 1970.
    pub active_since: Option<i64>,
    /// Only threads whose newest checkpoint was made before this time, in microseconds since 1970.
    pub idle_since: Option<i64>,
    /// Only threads with this status.
    pub status: Option<ThreadStatus>,
    /// Conditions on the metadata of the newest checkpoint; see [`ThreadState`].
    pub filter: Filter,
    /// Whether each [`ThreadInfo`] has its [`state`](ThreadInfo::state), which takes longer. A status or filter implies it.
    pub with_state: bool,
    /// The maximum number of results; 0 yields nothing.
    pub limit: Option<usize>,
}

impl ThreadQuery {
    /// Lists every thread.
    pub fn all() -> Self {
        Self::default()
    }

    /// Continues after this thread id.
    #[must_use]
    pub fn after(mut self, thread_id: impl Into<Str>) -> Self {
        self.after = Some(thread_id.into());
        self
    }

    /// Narrows to ids that begin with this text.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<Str>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Narrows to threads with a checkpoint made at this time or later, in microseconds since 1970.
    #[must_use]
    pub fn active_since(mut self, unix_micros: i64) -> Self {
        self.active_since = Some(unix_micros);
        self
    }

    /// Narrows to threads without a checkpoint made at this time or later, in microseconds since 1970.
    #[must_use]
    pub fn idle_since(mut self, unix_micros: i64) -> Self {
        self.idle_since = Some(unix_micros);
        self
    }

    /// Narrows to one status: for example, [`ThreadStatus::Running`] finds what a crash left unfinished.
    #[must_use]
    pub fn status(mut self, status: ThreadStatus) -> Self {
        self.status = Some(status);
        self
    }

    /// Narrows by the metadata of the newest checkpoint.
    #[must_use]
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = filter;
        self
    }

    /// Reads the state of each thread, too.
    #[must_use]
    pub fn with_state(mut self) -> Self {
        self.with_state = true;
        self
    }

    /// Limits the number of results.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Whether the state of each thread must be read. For implementers.
    pub fn needs_state(&self) -> bool {
        self.with_state || self.status.is_some() || !self.filter.is_empty()
    }

    /// Whether a thread matches, apart from the limit.
    pub(crate) fn matches(&self, thread: &ThreadInfo, semantics: FilterSemantics) -> bool {
        // An id without a time is of no known age.
        let micros = crate::id::unix_micros(&thread.latest_checkpoint_id);
        self.prefix.as_ref().is_none_or(|prefix| thread.thread_id.starts_with(&**prefix))
            && self.active_since.is_none_or(|since| micros.is_some_and(|micros| micros >= since))
            && self.idle_since.is_none_or(|since| micros.is_some_and(|micros| micros < since))
            && self
                .status
                .is_none_or(|status| thread.state.as_ref().is_some_and(|state| state.status == status))
            && (self.filter.is_empty()
                || thread.state.as_ref().is_some_and(|state| self.filter.matches(&state.metadata, semantics)))
    }
}

/// One thread, as `list_threads` returns it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ThreadInfo {
    /// The thread.
    pub thread_id: Str,
    /// The newest checkpoint id over all its namespaces. Its time is in [`crate::id::unix_micros`].
    pub latest_checkpoint_id: Str,
    /// The newest state, if the query asks for it.
    pub state: Option<ThreadState>,
}

impl ThreadInfo {
    /// Describes one thread, without its state.
    pub fn new(thread_id: impl Into<Str>, latest_checkpoint_id: impl Into<Str>) -> Self {
        Self { thread_id: thread_id.into(), latest_checkpoint_id: latest_checkpoint_id.into(), state: None }
    }

    /// Sets the state.
    #[must_use]
    pub fn with_state(mut self, state: Option<ThreadState>) -> Self {
        self.state = state;
        self
    }
}

/// What `prune` keeps of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PruneStrategy {
    /// The newest checkpoint of every namespace with its pending writes, and every ancestor that its delta channels
    /// still need. The oldest checkpoint that is kept loses its parent id.
    KeepLatest,
    /// Nothing.
    Delete,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn errors_name_the_missing_key() {
        let error = CheckpointConfig::new("t").require_checkpoint_id().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}
