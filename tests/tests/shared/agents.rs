//! An agent of parallel tasks on the typed thread. Its processes are killed at every point where it waits, and resumed by
//! two workers at once.

#![allow(dead_code, reason = "each binary uses its part of this")]

use std::process::Child;

use checkpoint_core::{BaseCheckpointSaver, ErrorKind, ListQuery, Result, SaverExt, ThreadStatus};
use futures_util::future::{try_join, try_join_all};
use serde::{Deserialize, Serialize};

use super::kills::{self, Moment, was_killed};
use super::soak::{Random, rounds};

/// What a child process is to do: where the data is, the thread, the worker's name, and when it is killed.
const CHILD: &str = "CHECKPOINT_TEST_AGENT";

/// The number of processes that must be killed in an ordinary run of the tests.
const KILLS: u64 = 60;

const STEPS: i64 = 4;

const TASKS: [&str; 3] = ["search", "read", "think"];

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct State {
    notes: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    answer: Option<String>,
}

/// The result of a task. Which worker ran it differs from run to run, what it found does not.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Note {
    found: String,
    by: String,
}

/// Runs the agent from wherever it is to its end.
pub(crate) async fn run<S: BaseCheckpointSaver + Clone>(
    saver: S,
    thread_id: &str,
    worker: &str,
) -> Result<State> {
    let thread = saver.thread(thread_id);
    let mut at = thread.begin(&State::default()).step_key("request").next(TASKS).await?;
    loop {
        // A worker that was late finds the state of the other one.
        at = match thread.latest().await? {
            Some(latest) => latest,
            None => at,
        };
        let mut state: State = at.values()?;
        if at.status() == ThreadStatus::Done {
            return Ok(state);
        }
        let step = at.step() + 1;
        let (thread_ref, at_ref, seen) = (&thread, &at, state.notes.len());
        let tasks = TASKS.iter().filter(|task| !at_ref.is_done(task)).map(|task| async move {
            tokio::task::yield_now().await;
            let note = Note { found: format!("{task} {step} after {seen}"), by: worker.to_owned() };
            match thread_ref.record(at_ref, task, &note).await {
                // The other worker was faster; its result counts.
                Err(error) if error.kind() == ErrorKind::Conflict => Ok(()),
                result => result.map(|_| ()),
            }
        });
        try_join_all(tasks).await?;
        let Some(done) = thread.at(at.id()).await? else { continue };
        for task in TASKS {
            let Some(note) = done.result::<Note>(task)? else { continue };
            state.notes.push(format!("{} by {}", note.found, note.by));
        }
        let is_last = step + 1 == STEPS;
        state.answer = is_last.then(|| format!("{} notes", state.notes.len()));
        let next = if is_last { &[][..] } else { &TASKS[..] };
        let commit = thread.commit_if_latest(&done, &state).step_key(format!("step {step}"));
        match commit.next(next.iter().copied()).await {
            Err(error) if error.kind() == ErrorKind::Conflict => {}
            result => at = result?,
        }
    }
}

/// What an undisturbed run finds.
fn expected() -> Vec<String> {
    let steps = (0..STEPS).zip((0..).step_by(TASKS.len()));
    steps.flat_map(|(step, seen)| TASKS.map(|task| format!("{task} {step} after {seen}"))).collect()
}

/// Runs an agent until it is killed, if this process was started for that.
pub(crate) fn as_child<S: BaseCheckpointSaver + Clone>(
    open: impl Fn(&str) -> Result<S>,
) -> Option<Result<()>> {
    let task = std::env::var(CHILD).ok()?;
    let (place, task) = task.split_once('\n').unwrap();
    let [thread_id, worker, moment] = task.split('\n').collect::<Vec<_>>()[..] else { panic!("{task}") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    Some(runtime.block_on(async {
        let agent = run(open(place)?, thread_id, worker);
        Moment::read(moment).end(agent).await.map(|_| ())
    }))
}

/// A series of killed agents.
pub(crate) struct Kills {
    place: String,
    random: Random,
}

impl Kills {
    pub(crate) fn new(place: &str) -> Self {
        Self { place: place.to_owned(), random: Random(17) }
    }

    fn start(&mut self, thread_id: &str, worker: &str, waits: u64) -> Child {
        let moment = Moment::after(waits, 3000, &mut self.random).write();
        kills::start(CHILD, &format!("{}\n{thread_id}\n{worker}\n{moment}", self.place))
    }

    /// Kills agents at one point after the other, until enough were killed.
    pub(crate) async fn check<S: BaseCheckpointSaver + Clone>(mut self, open: impl Fn() -> Result<S>) {
        let saver = open().unwrap();
        saver.setup().await.unwrap();
        let (mut killed, mut waits) = (0, 0);
        let wanted = rounds(KILLS);
        for number in 0.. {
            let thread_id = format!("agent-{number}");
            let mut workers = vec![self.start(&thread_id, "first", waits)];
            if number % 2 == 1 {
                let waits = self.random.below(waits + 1);
                workers.push(self.start(&thread_id, "second", waits));
            }
            let ended = kills::ended(workers).await;
            killed += ended.iter().map(|status| u64::from(was_killed(*status))).sum::<u64>();
            // An agent that ended by itself has no further point at which to kill it.
            waits = if ended[0].success() { 0 } else { waits + 1 };
            let (a, b) = (open().unwrap(), open().unwrap());
            let finished = try_join(run(a, &thread_id, "third"), run(b, &thread_id, "fourth")).await;
            let (one, other) = finished.unwrap_or_else(|error| panic!("{thread_id}: {error:?}"));
            assert_eq!((&one.notes, &one.answer), (&other.notes, &other.answer), "{thread_id}");
            verify(&saver, &thread_id, &one).await;
            saver.delete_thread(&thread_id).await.unwrap();
            if killed >= wanted {
                break;
            }
        }
        println!("{killed} agents were killed");
    }
}

/// Every step was committed once, one after the other, and the result is that of an undisturbed run.
async fn verify<S: BaseCheckpointSaver>(saver: &S, thread_id: &str, state: &State) {
    let stored = saver.list_all(ListQuery::thread(thread_id)).await.unwrap();
    let steps: Vec<_> = stored.iter().rev().map(|tuple| tuple.metadata.step().unwrap()).collect();
    assert_eq!(steps, (-1..STEPS).collect::<Vec<_>>(), "{thread_id}");
    for pair in stored.windows(2) {
        assert_eq!(pair[0].parent_config.as_ref(), Some(&pair[1].config), "{thread_id}");
    }
    for tuple in &stored[1..] {
        // Each task has one result as a whole.
        assert_eq!(tuple.pending_writes.len(), 2 * TASKS.len(), "{thread_id}: {:?}", tuple.pending_writes);
    }
    let found: Vec<_> = state.notes.iter().map(|note| note.split(" by ").next().unwrap()).collect();
    assert_eq!(found, expected(), "{thread_id}");
    assert_eq!(state.answer.as_deref(), Some("12 notes"), "{thread_id}");
}
