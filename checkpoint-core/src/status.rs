//! Whether a thread is running, waits for a person, or is done.

use std::collections::BTreeSet;

use crate::{CheckpointTuple, Str, special};

/// Channels whose value starts a task of the next step, as LangGraph names them.
const TRIGGERS: [&str; 3] = ["branch:", "join:", "start:"];

/// The channel of sends, each of which starts a task of the next step.
const TASKS: &str = "__pregel_tasks";

/// The channel of an input that no step has read yet.
const START: &str = "__start__";

/// The task of writes that belong to the whole run, such as the value that resumes it.
const NULL_TASK: &str = "00000000-0000-0000-0000-000000000000";

/// What a thread was doing when its newest checkpoint was stored.
///
/// It follows from the newest checkpoint of the root namespace (or, if there is none, of the thread) and the writes on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ThreadStatus {
    /// A step is unfinished: the checkpoint is an input that no step followed, it names tasks of the next step
    /// ([`Commit::next`](crate::Commit::next), or LangGraph's triggers and sends), or tasks have stored writes on it. An
    /// agent works on it, or crashed. A task that failed counts as unfinished.
    Running,
    /// A task was interrupted and waits for an answer of a person.
    Waiting,
    /// Nothing is left to do.
    Done,
}

impl ThreadStatus {
    /// The name, in lower case.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Done => "done",
        }
    }

    /// The status by a checkpoint that was read.
    pub fn of(tuple: &CheckpointTuple) -> Self {
        let checkpoint = &tuple.checkpoint;
        let has_triggers = match &checkpoint.updated_channels {
            Some(updated) => updated.iter().any(|channel| is_trigger(channel)),
            None => checkpoint.channel_values.keys().any(|channel| is_trigger(channel)),
        };
        let writes = tuple.pending_writes.iter().map(|write| (&*write.task_id, &*write.channel));
        Self::from_parts(tuple.metadata.source(), has_triggers || !tuple.pending_sends.is_empty(), writes)
    }

    /// The status by parts of a checkpoint. For implementers that need not read all of it: its `source`, whether one of its
    /// [triggers](is_trigger) is set, and task and channel of each write on it.
    pub fn from_parts<'a>(
        source: Option<&str>,
        has_triggers: bool,
        writes: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let (mut interrupted, mut answered, mut finished) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for (task_id, channel) in writes {
            match channel {
                special::INTERRUPT => interrupted.insert(task_id),
                special::RESUME => answered.insert(task_id),
                special::ERROR | special::SCHEDULED => finished.insert(""),
                _ => finished.insert(task_id),
            };
        }
        // An answer to the run as a whole means that it continues, except for a task that had earlier answers and was
        // interrupted again.
        let run_answered = answered.contains(NULL_TASK);
        let waits = interrupted
            .iter()
            .any(|task| !finished.contains(task) && (!run_answered || answered.contains(task)));
        if waits {
            Self::Waiting
        } else if has_triggers
            || source == Some("input")
            || !(interrupted.is_empty() && answered.is_empty() && finished.is_empty())
        {
            Self::Running
        } else {
            Self::Done
        }
    }
}

/// Whether a channel starts a task of the next step if the last step set it. For implementers.
pub fn is_trigger(channel: &str) -> bool {
    channel == TASKS || channel == START || TRIGGERS.iter().any(|prefix| channel.starts_with(prefix))
}

/// How many threads have each status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadCounts {
    /// The number of [`Running`](ThreadStatus::Running) threads.
    pub running: u64,
    /// The number of [`Waiting`](ThreadStatus::Waiting) threads.
    pub waiting: u64,
    /// The number of [`Done`](ThreadStatus::Done) threads.
    pub done: u64,
}

impl ThreadCounts {
    /// The number of threads.
    pub fn total(self) -> u64 {
        self.running + self.waiting + self.done
    }

    pub(crate) fn add(mut self, status: ThreadStatus) -> Self {
        match status {
            ThreadStatus::Running => self.running += 1,
            ThreadStatus::Waiting => self.waiting += 1,
            ThreadStatus::Done => self.done += 1,
        }
        self
    }
}

/// The newest state of a thread, as far as [`ThreadQuery`](crate::ThreadQuery) asks for it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ThreadState {
    /// The checkpoint: the newest of the root namespace, or, if there is none, of the thread.
    pub checkpoint_id: Str,
    /// Its metadata.
    pub metadata: crate::CheckpointMetadata,
    /// What the thread was doing.
    pub status: ThreadStatus,
}

impl ThreadState {
    /// Describes the newest state.
    pub fn new(
        checkpoint_id: impl Into<Str>,
        metadata: crate::CheckpointMetadata,
        status: ThreadStatus,
    ) -> Self {
        Self { checkpoint_id: checkpoint_id.into(), metadata, status }
    }

    /// The state by a checkpoint that was read.
    pub fn of(tuple: &CheckpointTuple) -> Self {
        Self::new(tuple.checkpoint.id.clone(), tuple.metadata.clone(), ThreadStatus::of(tuple))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(source: &str, triggers: bool, writes: &[(&str, &str)]) -> ThreadStatus {
        ThreadStatus::from_parts(Some(source), triggers, writes.iter().copied())
    }

    #[test]
    fn the_status_follows_from_source_triggers_and_writes() {
        use ThreadStatus::{Done, Running, Waiting};
        assert_eq!(status("loop", false, &[]), Done);
        assert_eq!(status("input", false, &[]), Running);
        assert_eq!(status("loop", true, &[]), Running);
        assert_eq!(status("loop", false, &[("a", "notes")]), Running);
        assert_eq!(status("loop", true, &[("a", special::ERROR)]), Running);
        let interrupted = ("a", special::INTERRUPT);
        assert_eq!(status("loop", true, &[interrupted]), Waiting);
        assert_eq!(status("loop", true, &[interrupted, ("b", "notes")]), Waiting, "another task finished");
        let resume = (NULL_TASK, special::RESUME);
        assert_eq!(status("loop", true, &[interrupted, resume]), Running, "answered");
        assert_eq!(
            status("loop", true, &[interrupted, resume, ("a", special::RESUME)]),
            Waiting,
            "asked again"
        );
        assert_eq!(status("loop", true, &[interrupted, resume, ("a", "notes")]), Running, "finished");
    }

    #[test]
    fn triggers_are_langgraphs() {
        for channel in ["branch:to:agent", "join:a+b:c", "__start__", "__pregel_tasks", "start:agent"] {
            assert!(is_trigger(channel), "{channel}");
        }
        for channel in ["messages", "branches", "__end__", ""] {
            assert!(!is_trigger(channel), "{channel}");
        }
    }
}
