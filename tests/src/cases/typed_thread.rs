//! The typed `Thread` on a backend.

use std::collections::BTreeMap;
use std::time::Duration;

use checkpoint_core::{
    BaseCheckpointSaver, CheckpointConfig, ErrorKind, Filter, Lease, ListQuery, SaverExt, StateSnapshot,
    Thread, ThreadCounts, ThreadQuery, ThreadStatus, Value, id, special,
};
use futures_util::TryStreamExt;
use serde::{Deserialize, Serialize};

use crate::case::{Ctx, Failure, Need};
use crate::fixture::{
    Done, at_version, encode, expect_conflict, expect_kind, ids, list, prepared, put, write_at,
};
use crate::target::Saver;

cases!("typed_thread";
    a_snapshot_of_another_thread_is_refused,
    a_second_result_of_a_task_is_a_conflict,
    the_same_result_again_is_recorded,
    parallel_results_of_one_task,
    any_value_is_a_result,
    a_recorded_result_is_in_the_snapshot,
    a_skipped_field_loses_its_value,
    equal_maps_and_sets_keep_their_version,
    a_deleted_thread_stays_deleted,
    reserved_metadata_is_refused,
    metadata_of_one_commit,
    a_fork_runs_its_tasks_again,
    a_successor_is_newer_than_its_parent,
    commit_if_latest_names_the_newer_checkpoint,
    a_repeated_commit_finds_its_first_result,
    a_repeated_begin_finds_its_first_result,
    a_step_key_for_two_inputs,
    the_next_tasks_make_a_thread_running,
    an_interrupt_makes_a_thread_wait,
    threads_are_found_by_status_metadata_and_time,
    tasks_of_a_step_have_different_names,
    the_history_is_narrowed,
    values_that_cannot_be_encoded,
    a_leased_thread [Need::Leases],
    work_under_a_lease [Need::Leases],
    a_lease_lost_in_the_middle [Need::Leases],
);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct State {
    topic: String,
    notes: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    answer: Option<String>,
}

fn state(topic: &str) -> State {
    State { topic: topic.into(), notes: vec!["a note".into()], answer: None }
}

fn open(ctx: &Ctx) -> Thread<Saver> {
    ctx.saver().thread(ctx.thread())
}

async fn latest(thread: &Thread<Saver>) -> Result<StateSnapshot, Failure> {
    prepared(thread.latest().await?)
}

async fn count(ctx: &Ctx, thread: &Thread<Saver>) -> checkpoint_core::Result<usize> {
    Ok(ids(ctx.saver(), ListQuery::thread(thread.thread_id())).await?.len())
}

async fn a_snapshot_of_another_thread_is_refused(ctx: Ctx) -> Done {
    let (a, b) = (open(&ctx), open(&ctx));
    let inner = ctx.saver().thread(a.thread_id()).namespace("child:1");
    let of_a = a.begin(&state("a")).await?;
    let of_b = b.begin(&state("b")).await?;
    let of_inner = inner.begin(&state("inner")).await?;
    let kind = ErrorKind::InvalidArgument;
    for (thread, foreign) in [(&b, &of_a), (&a, &of_b), (&a, &of_inner), (&inner, &of_a)] {
        expect_kind(thread.commit(foreign, &state("mixed")).await, kind, "commit")?;
        expect_kind(thread.commit_if_latest(foreign, &state("mixed")).await, kind, "commit_if_latest")?;
        expect_kind(thread.update(foreign, &state("mixed")).await, kind, "update")?;
        expect_kind(thread.fork(foreign).await, kind, "fork")?;
        expect_kind(thread.record(foreign, "task", &1).await, kind, "record")?;
    }
    ensure_eq!((count(&ctx, &a).await?, count(&ctx, &b).await?), (2, 1), "number of checkpoints");
    for snapshot in [latest(&a).await?, latest(&b).await?, latest(&inner).await?] {
        ensure!(snapshot.done_tasks().is_empty(), "a result was recorded");
    }
    // The same snapshot, made from a tuple that was read without the layer.
    let tuple = prepared(ctx.saver().get_tuple(&CheckpointConfig::new(a.thread_id())).await?)?;
    a.commit(&tuple.into(), &state("a2")).await?;
    Ok(())
}

async fn a_second_result_of_a_task_is_a_conflict(ctx: Ctx) -> Done {
    let thread = open(&ctx);
    let on = thread.begin(&state("t")).await?;
    let first = BTreeMap::from([("x", 1)]);
    thread.record(&on, "task", &first).await?;
    let second = thread.record(&on, "task", &BTreeMap::from([("b", 2), ("x", 3)])).await;
    let message = expect_conflict(second, "another result")?;
    ensure!(message.contains("task"), "the task is not named: {message}");
    for other in [thread.record(&on, "task", &()).await, thread.record(&on, "task", &7).await] {
        expect_conflict(other, "another result")?;
    }
    let found: BTreeMap<String, i64> = prepared(latest(&thread).await?.result("task")?)?;
    ensure_eq!(found, BTreeMap::from([("x".to_owned(), 1)]), "result");
    Ok(())
}

async fn the_same_result_again_is_recorded(ctx: Ctx) -> Done {
    let thread = open(&ctx);
    let on = thread.begin(&state("t")).await?;
    for _ in 0..2 {
        let at = thread.record(&on, "map", &BTreeMap::from([("x", f64::NAN)])).await?;
        ensure!(at.is_done("map"), "the snapshot does not know the result");
        thread.record(&on, "nothing", &()).await?;
        thread.record(&on, "text", "an answer").await?;
    }
    ensure_eq!(latest(&thread).await?.done_tasks(), ["map", "nothing", "text"], "tasks");
    Ok(())
}

async fn parallel_results_of_one_task(ctx: Ctx) -> Done {
    let thread = open(&ctx);
    let on = thread.begin(&state("t")).await?;
    let calls: Vec<_> = (0..8_i64)
        .map(|at| {
            let (thread, on) = (thread.clone(), on.clone());
            tokio::spawn(async move {
                let result: BTreeMap<_, _> = (0..=at % 3).map(|key| (format!("c{key}"), at)).collect();
                (result.clone(), thread.record(&on, "task", &result).await)
            })
        })
        .collect();
    let mut winners = Vec::new();
    for call in calls {
        match call.await? {
            (result, Ok(_)) => winners.push(result),
            (_, conflict) => drop(expect_conflict(conflict, "a later result")?),
        }
    }
    let found: BTreeMap<String, i64> = prepared(latest(&thread).await?.result("task")?)?;
    ensure_eq!(winners, [found], "the results that were accepted");
    Ok(())
}

async fn any_value_is_a_result(ctx: Ctx) -> Done {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Odd {
        #[serde(rename = "__error__")]
        error: String,
        plain: i64,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Empty {}
    let thread = open(&ctx);
    let on = thread.begin(&state("t")).await?;
    let odd = Odd { error: "kept".into(), plain: 1 };
    let keyed = BTreeMap::from([(1, "one".to_owned()), (2, "two".to_owned())]);
    thread.record(&on, "int", &42).await?;
    thread.record(&on, "text", "text").await?;
    thread.record(&on, "list", &[1, 2, 3]).await?;
    thread.record(&on, "odd", &odd).await?;
    thread.record(&on, "keyed", &keyed).await?;
    thread.record(&on, "unit", &()).await?;
    thread.record(&on, "none", &None::<i64>).await?;
    thread.record(&on, "empty", &Empty {}).await?;
    thread.record(&on, "state", &state("s")).await?;
    let at = latest(&thread).await?;
    let mut tasks = ["int", "text", "list", "odd", "keyed", "unit", "none", "empty", "state"];
    tasks.sort_unstable();
    ensure_eq!(at.done_tasks(), tasks, "tasks");
    ensure_eq!(at.result::<i64>("int")?, Some(42), "int");
    ensure_eq!(at.result::<String>("text")?.as_deref(), Some("text"), "text");
    ensure_eq!(at.result::<Vec<i64>>("list")?, Some(vec![1, 2, 3]), "list");
    ensure_eq!(at.result::<Odd>("odd")?, Some(odd), "odd names");
    ensure_eq!(at.result::<BTreeMap<i64, String>>("keyed")?, Some(keyed), "integer keys");
    ensure_eq!(at.result::<()>("unit")?, Some(()), "unit");
    ensure_eq!(at.result::<Option<i64>>("none")?, Some(None), "none");
    ensure_eq!(at.result::<Empty>("empty")?, Some(Empty {}), "empty");
    ensure_eq!(at.result::<State>("state")?, Some(state("s")), "state");
    ensure_eq!(at.result::<i64>("absent")?, None, "absent");
    let wrong = at.result::<Vec<i64>>("text");
    ensure!(wrong.is_err_and(|error| error.to_string().contains("text")), "the task is not named");
    Ok(())
}

async fn a_recorded_result_is_in_the_snapshot(ctx: Ctx) -> Done {
    let thread = open(&ctx);
    let mut on = thread.begin(&state("t")).await?;
    for task in ["b", "a"] {
        on = thread.record(&on, task, &state(task)).await?;
    }
    ensure_eq!(on.done_tasks(), ["a", "b"], "tasks");
    ensure_eq!(on, latest(&thread).await?, "the snapshot and what is stored");
    Ok(())
}

async fn a_skipped_field_loses_its_value(ctx: Ctx) -> Done {
    #[derive(Serialize)]
    struct View {
        topic: &'static str,
    }
    let thread = open(&ctx);
    let with_answer = State { answer: Some("42".into()), ..state("t") };
    let first = thread.begin(&with_answer).await?;
    let second = thread.commit(&first, &View { topic: "view" }).await?;
    ensure_eq!(second.values::<State>()?.answer.as_deref(), Some("42"), "no field of the view");
    let third = thread.commit(&second, &State { answer: None, ..state("t") }).await?;
    ensure_eq!(third.values::<State>()?.answer, None, "returned state");
    let stored = latest(&thread).await?;
    ensure_eq!(stored.values::<State>()?, state("t"), "stored state");
    ensure!(!stored.tuple().checkpoint.channel_values.contains_key("answer"), "the channel has a value");
    let fourth = thread.update(&stored, &with_answer).await?;
    ensure_eq!(thread.fork(&fourth).await?.values::<State>()?, with_answer, "state after a fork");
    ensure_eq!(prepared(thread.at(first.id()).await?)?.values::<State>()?, with_answer, "first state");
    Ok(())
}

async fn equal_maps_and_sets_keep_their_version(ctx: Ctx) -> Done {
    use std::collections::{HashMap, HashSet};
    #[derive(Serialize)]
    struct Unordered {
        map: HashMap<String, u32>,
        set: HashSet<String>,
    }
    // Every map has a hasher of its own, so that 30 entries are in different orders.
    let fresh = || Unordered {
        map: (0..30).map(|at| (format!("key {at}"), at)).collect(),
        set: (0..30).map(|at| format!("key {at}")).collect(),
    };
    let thread = open(&ctx);
    let first = thread.begin(&fresh()).await?;
    let second = thread.commit(&first, &fresh()).await?;
    let versions = [&first, &second].map(|at| at.tuple().checkpoint.channel_versions.clone());
    ensure_eq!(versions[0], versions[1], "versions");
    Ok(())
}

async fn a_deleted_thread_stays_deleted(ctx: Ctx) -> Done {
    let thread = open(&ctx);
    let first = thread.begin(&state("t")).await?;
    let at = thread.commit(&first, &state("t2")).await?;
    ctx.saver().delete_thread(thread.thread_id()).await?;
    expect_conflict(thread.commit(&at, &state("t3")).await, "commit")?;
    expect_conflict(thread.commit_if_latest(&at, &state("t3")).await, "commit_if_latest")?;
    expect_conflict(thread.commit(&at, &state("t3")).step_key("k").await, "commit with a key")?;
    expect_conflict(thread.update(&at, &state("t3")).await, "update")?;
    expect_conflict(thread.fork(&first).await, "fork")?;
    expect_conflict(thread.record(&at, "task", &1).await, "record")?;
    ensure!(thread.latest().await?.is_none(), "the thread came back");
    let again = thread.begin(&state("again")).await?;
    ensure_eq!((again.step(), again.parent_id()), (-1, None), "the new beginning");
    expect_conflict(thread.commit(&at, &state("t3")).await, "commit on the deleted one")?;
    ensure_eq!(count(&ctx, &thread).await?, 1, "number of checkpoints");
    Ok(())
}

async fn reserved_metadata_is_refused(ctx: Ctx) -> Done {
    let thread = open(&ctx);
    for key in
        ["source", "step", "parents", "thread_id", "checkpoint_id", "checkpoint_ns", "step_key", "__x", ""]
    {
        let kind = ErrorKind::InvalidArgument;
        let handle = thread.clone().with_metadata(key, "x");
        expect_kind(handle.begin(&state("t")).await, kind, key)?;
        expect_kind(thread.begin(&state("t")).metadata(key, 1).await, kind, key)?;
    }
    ensure!(thread.latest().await?.is_none(), "something was stored");
    Ok(())
}

async fn metadata_of_one_commit(ctx: Ctx) -> Done {
    let thread = open(&ctx).with_metadata("run_id", "r1");
    let first = thread.begin(&state("t")).metadata("attempt", 1).await?;
    let nested = Value::Map(vec![("model".into(), "small".into())]);
    let second = thread.commit(&first, &state("t2")).metadata("usage", nested.clone()).await?;
    for at in [&second, &latest(&thread).await?] {
        ensure_eq!(at.metadata().get("usage"), Some(&nested), "metadata of the commit");
        ensure_eq!((at.metadata().run_id(), at.metadata().get("attempt")), (Some("r1"), None), "metadata");
    }
    ensure_eq!(first.metadata().get("attempt"), Some(&Value::Int(1)), "metadata of the input");
    Ok(())
}

async fn a_fork_runs_its_tasks_again(ctx: Ctx) -> Done {
    let thread = open(&ctx);
    let first = thread.begin(&state("t")).await?;
    let first = thread.record(&first, "task", &1).await?;
    let fork = thread.fork(&first).await?;
    ensure!(!fork.is_done("task") && !latest(&thread).await?.is_done("task"), "the fork has a result");
    thread.record(&fork, "task", &2).await?;
    ensure_eq!(latest(&thread).await?.result("task")?, Some(2), "result");
    ensure_eq!(prepared(thread.at(first.id()).await?)?.result("task")?, Some(1), "first result");
    Ok(())
}

/// The clock of the machine that made the parent may be ahead of this one's.
async fn a_successor_is_newer_than_its_parent(ctx: Ctx) -> Done {
    let thread = open(&ctx);
    let ahead = format!("2{}", &id::uuid6(0)[1..]);
    let mut made = at_version(1, &[("topic", "ahead".into()), ("notes", encode(&list(&[]))?)]);
    made.id = ahead.into();
    put(ctx.saver(), &CheckpointConfig::new(thread.thread_id()), &made).await?;
    let mut at = latest(&thread).await?;
    for step in 0..3 {
        let topic = format!("step {step}");
        at = thread.commit_if_latest(&at, &state(&topic)).step_key("k").await?;
        ensure_eq!(latest(&thread).await?, at, "the newest");
    }
    let again = thread.begin(&state("input")).step_key("input").await?;
    ensure_eq!(latest(&thread).await?, again, "the newest");
    Ok(())
}

async fn commit_if_latest_names_the_newer_checkpoint(ctx: Ctx) -> Done {
    let thread = open(&ctx);
    let first = thread.begin(&state("t")).await?;
    let second = thread.commit_if_latest(&first, &state("t2")).await?;
    let late = thread.commit_if_latest(&first, &state("t3")).await;
    let message = expect_conflict(late, "commit on the first")?;
    ensure!(message.contains(second.id()), "the newer checkpoint is not named: {message}");
    expect_conflict(thread.update(&first, &state("t3")).if_latest().await, "update on the first")?;
    expect_conflict(thread.fork(&first).if_latest().await, "fork of the first")?;
    let third = thread.commit_if_latest(&second, &state("t3")).await?;
    ensure_eq!(latest(&thread).await?, third, "the newest");
    ensure_eq!(third.values::<State>()?, state("t3"), "state");
    Ok(())
}

async fn a_repeated_commit_finds_its_first_result(ctx: Ctx) -> Done {
    let thread = open(&ctx);
    let first = thread.begin(&state("t")).await?;
    let second = thread.commit(&first, &state("t2")).step_key("step 1").await?;
    ensure_eq!(thread.commit(&first, &state("t2")).step_key("step 1").await?, second, "repeated");
    let third = thread.commit(&second, &state("t3")).step_key("step 1").await?;
    ensure_eq!(third.parent_id(), Some(second.id()), "the same key on another step");
    let again = thread.commit_if_latest(&first, &state("t2")).step_key("step 1").await?;
    ensure_eq!(again.id(), second.id(), "repeated after a later step");
    let handle = thread.clone();
    let calls: Vec<_> = (0..6)
        .map(|_| {
            let (thread, third) = (handle.clone(), third.clone());
            tokio::spawn(async move { thread.commit(&third, &state("t4")).step_key("step 3").await })
        })
        .collect();
    let mut stored = Vec::new();
    for call in calls {
        stored.push(call.await??.id().to_owned());
    }
    stored.dedup();
    ensure_eq!((stored.len(), count(&ctx, &thread).await?), (1, 4), "states and checkpoints");
    Ok(())
}

async fn a_repeated_begin_finds_its_first_result(ctx: Ctx) -> Done {
    let thread = open(&ctx);
    let first = thread.begin(&state("t")).step_key("request 1").await?;
    ensure_eq!(thread.begin(&state("t")).step_key("request 1").await?, first, "repeated at once");
    let second = thread.commit(&first, &state("t2")).await?;
    ensure_eq!(thread.begin(&state("t")).step_key("request 1").await?.id(), first.id(), "repeated later");
    let next = thread.begin(&state("t")).step_key("request 2").await?;
    ensure_eq!(next.parent_id(), Some(second.id()), "the next request");
    ensure_eq!(thread.begin(&state("t")).step_key("request 1").await?.id(), first.id(), "the first again");
    ensure_eq!(count(&ctx, &thread).await?, 3, "number of checkpoints");
    let calls: Vec<_> = (0..6)
        .map(|_| {
            let thread = thread.clone();
            tokio::spawn(async move { thread.begin(&state("t")).step_key("request 3").await })
        })
        .collect();
    let mut stored = Vec::new();
    for call in calls {
        stored.push(call.await??.id().to_owned());
    }
    stored.dedup();
    ensure_eq!((stored.len(), count(&ctx, &thread).await?), (1, 4), "states and checkpoints");
    Ok(())
}

async fn a_step_key_for_two_inputs(ctx: Ctx) -> Done {
    let thread = open(&ctx);
    let kind = ErrorKind::InvalidArgument;
    let first = thread.begin(&state("t")).step_key("k").await?;
    expect_kind(thread.begin(&state("other")).step_key("k").await, kind, "begin")?;
    let next = State { answer: Some("42".into()), ..state("t") };
    thread.commit(&first, &next).step_key("k").await?;
    expect_kind(thread.commit(&first, &state("t")).step_key("k").await, kind, "without a field")?;
    expect_kind(thread.update(&first, &next).step_key("k").await, kind, "another kind of step")?;
    expect_kind(thread.begin(&state("other")).step_key("k").await, kind, "begin, later")?;
    expect_kind(thread.commit(&first, &next).step_key("").await, kind, "an empty key")?;
    ensure_eq!(count(&ctx, &thread).await?, 2, "number of checkpoints");
    Ok(())
}

async fn the_next_tasks_make_a_thread_running(ctx: Ctx) -> Done {
    let thread = open(&ctx);
    let mut at = thread.begin(&state("t")).await?;
    ensure_eq!(at.status(), ThreadStatus::Running, "an input");
    at = thread.commit(&at, &state("t")).next(["search", "read"]).await?;
    ensure_eq!(at.status(), ThreadStatus::Running, "two tasks are next");
    at = thread.record(&at, "search", &1).await?;
    at = thread.commit(&at, &state("t")).next(["search"]).await?;
    ensure_eq!(latest(&thread).await?.status(), ThreadStatus::Running, "the same task is next");
    let fork = thread.fork(&at).await?;
    ensure_eq!(latest(&thread).await?.status(), ThreadStatus::Running, "a fork");
    at = thread.commit(&fork, &state("t")).await?;
    ensure_eq!(at.status(), ThreadStatus::Done, "no task is next");
    let stored = latest(&thread).await?;
    ensure_eq!(stored, at, "stored snapshot");
    ensure_eq!(stored.values::<State>()?, state("t"), "state");
    at = thread.record(&at, "late", &1).await?;
    ensure_eq!(at.status(), ThreadStatus::Running, "a task of a step that is not committed");
    Ok(())
}

async fn an_interrupt_makes_a_thread_wait(ctx: Ctx) -> Done {
    let thread = open(&ctx);
    let at = thread.begin(&state("t")).next(["ask"]).await?;
    let ask = [(special::INTERRUPT, "may I?".into())];
    write_at(ctx.saver(), at.config(), "ask's id", "", &ask).await?;
    ensure_eq!(latest(&thread).await?.status(), ThreadStatus::Waiting, "interrupted");
    let run = "00000000-0000-0000-0000-000000000000";
    write_at(ctx.saver(), at.config(), run, "", &[(special::RESUME, "yes".into())]).await?;
    ensure_eq!(latest(&thread).await?.status(), ThreadStatus::Running, "answered");
    let at = thread.commit(&at, &state("t")).await?;
    ensure_eq!(at.status(), ThreadStatus::Done, "committed");
    Ok(())
}

async fn threads_are_found_by_status_metadata_and_time(ctx: Ctx) -> Done {
    let prefix = format!("conformance-{}", id::uuid6(0));
    let thread = |name: &str| ctx.saver().thread(ctx.use_thread(&format!("{prefix}{name}")));
    let running = thread("b-running").with_metadata("tenant", "acme");
    running.begin(&state("t")).await?;
    let waiting = thread("a-waiting").with_metadata("tenant", "other");
    let at = waiting.begin(&state("t")).await?;
    let at = waiting.commit(&at, &state("t")).next(["ask"]).await?;
    let ask = [(special::INTERRUPT, "may I?".into())];
    write_at(ctx.saver(), at.config(), "ask's id", "", &ask).await?;
    let done = thread("c-done").with_metadata("tenant", "acme");
    let at = done.begin(&state("t")).await?;
    let finished = done.commit(&at, &state("t")).metadata("final", true).await?;
    // A subgraph's state is newer; the state of the thread is the root's.
    let inner = done.clone().namespace("child:1");
    let inner_at = inner.begin(&state("inner")).await?;
    let only_inner = thread("d-inner").namespace("child:1").with_metadata("tenant", "acme");
    only_inner.begin(&state("t")).await?;

    let find = async |query: ThreadQuery| -> Result<Vec<String>, Failure> {
        let found: Vec<_> = ctx.saver().list_threads(query).try_collect().await?;
        let mut names: Vec<_> = found
            .iter()
            .map(|info| info.thread_id.strip_prefix(&*prefix).unwrap_or("another thread").to_owned())
            .collect();
        // Collations differ.
        names.sort();
        Ok(names)
    };
    let all = || ThreadQuery::all().prefix(prefix.as_str());
    ensure_eq!(find(all()).await?, ["a-waiting", "b-running", "c-done", "d-inner"], "all");
    let by_status = |status| all().status(status);
    ensure_eq!(find(by_status(ThreadStatus::Running)).await?, ["b-running", "d-inner"], "running");
    ensure_eq!(find(by_status(ThreadStatus::Waiting)).await?, ["a-waiting"], "waiting");
    ensure_eq!(find(by_status(ThreadStatus::Done)).await?, ["c-done"], "done");
    let of_acme = all().filter(Filter::new().eq("tenant", "acme"));
    ensure_eq!(find(of_acme.clone()).await?, ["b-running", "c-done", "d-inner"], "of a tenant");
    ensure_eq!(find(of_acme.status(ThreadStatus::Running)).await?, ["b-running", "d-inner"], "both");
    ensure_eq!(find(all().filter(Filter::new().eq("final", true))).await?, ["c-done"], "of the newest");
    ensure_eq!(find(ThreadQuery::all().prefix(format!("{prefix}c"))).await?, ["c-done"], "by prefix");
    ensure_eq!(find(all().limit(0)).await?, [] as [&str; 0], "limit 0");
    ensure_eq!(find(by_status(ThreadStatus::Running).limit(1)).await?.len(), 1, "limit 1");
    let time = prepared(id::unix_micros(inner_at.id()))?;
    ensure_eq!(find(all().active_since(time)).await?, ["c-done", "d-inner"], "active since");
    ensure_eq!(find(all().idle_since(time)).await?, ["a-waiting", "b-running"], "idle since");

    let mut states: Vec<_> = ctx.saver().list_threads(all().with_state()).try_collect().await?;
    states.retain(|info| info.thread_id.ends_with("c-done"));
    let info = prepared(states.pop())?;
    ensure_eq!(&*info.latest_checkpoint_id, inner_at.id(), "the newest of all namespaces");
    let found = prepared(info.state)?;
    ensure_eq!((&*found.checkpoint_id, found.status), (finished.id(), ThreadStatus::Done), "state");
    ensure_eq!(found.metadata.get("tenant"), Some(&Value::from("acme")), "metadata");
    let counts: ThreadCounts = ctx.saver().count_threads(all()).await?;
    ensure_eq!((counts.running, counts.waiting, counts.done, counts.total()), (2, 1, 1, 4), "counts");
    Ok(())
}

async fn tasks_of_a_step_have_different_names(ctx: Ctx) -> Done {
    let thread = open(&ctx);
    for names in [&["a", "b", "a"][..], &[""]] {
        let begun = thread.begin(&state("t")).next(names.iter().copied()).await;
        expect_kind(begun, ErrorKind::InvalidArgument, "begin")?;
    }
    ensure!(thread.latest().await?.is_none(), "something was stored");
    Ok(())
}

async fn the_history_is_narrowed(ctx: Ctx) -> Done {
    let thread = open(&ctx);
    let mut stored = vec![thread.begin(&state("0")).await?];
    for step in 1..5 {
        let on = prepared(stored.last())?.clone();
        let parity = if step % 2 == 0 { "even" } else { "odd" };
        stored.push(thread.commit(&on, &state(&step.to_string())).metadata("parity", parity).await?);
    }
    stored.reverse();
    let newest: Vec<_> = thread.history().limit(2).try_collect().await?;
    ensure_eq!(newest, stored[..2], "the newest two");
    let older: Vec<_> = thread.history().before(stored[1].id()).limit(2).try_collect().await?;
    ensure_eq!(older, stored[2..4], "older ones");
    let odd = Filter::new().eq("parity", "odd");
    let odd: Vec<_> = thread.history().filter(odd).map_ok(|at| at.step()).try_collect().await?;
    ensure_eq!(odd, [2, 0], "odd steps");
    let all: Vec<_> = thread.history().try_collect().await?;
    ensure_eq!(all, stored, "all");
    // A state of the history belongs to its thread.
    thread.fork(prepared(all.last())?).await?;
    Ok(())
}

async fn values_that_cannot_be_encoded(ctx: Ctx) -> Done {
    let thread = open(&ctx);
    let big = BTreeMap::from([("fine", 1_i128), ("big", i128::MAX)]);
    let first = thread.begin(&state("t")).await?;
    for error in [
        thread.begin(&big).await.err(),
        thread.commit(&first, &big).await.err(),
        thread.record(&first, "task", &BTreeMap::from([("nested", &big)])).await.err(),
    ] {
        let error = prepared(error)?;
        ensure_eq!(error.kind(), ErrorKind::Codec, "kind of {error}");
        let text = error.to_string();
        ensure!(text.contains(thread.thread_id()), "the thread is not named: {text}");
        ensure!(text.contains("big") || text.contains("task"), "neither channel nor task is named: {text}");
    }
    for error in [thread.begin("text").await.err(), thread.begin(&[1, 2]).await.err()] {
        ensure_eq!(prepared(error)?.kind(), ErrorKind::Codec, "a state that is no struct");
    }
    ensure_eq!(count(&ctx, &thread).await?, 1, "number of checkpoints");
    Ok(())
}

async fn a_leased_thread(ctx: Ctx) -> Done {
    let thread = open(&ctx);
    let ttl = Duration::from_secs(600);
    let leased = thread.lease(ttl).await?;
    expect_kind(thread.lease(ttl).await, ErrorKind::Conflict, "a second lease")?;
    let first = leased.begin(&state("t")).await?;
    let first = leased.record(&first, "task", &1).await?;
    let second = leased.commit_if_latest(&first, &state("t2")).await?;
    ensure_eq!(latest(&thread).await?, second, "the newest");
    let token = leased.token();
    leased.renew().await?;
    leased.release().await?;
    let next = thread.lease(ttl).await?;
    ensure!(next.token() > token, "tokens");
    next.commit(&second, &state("t3")).await?;
    Ok(())
}

async fn work_under_a_lease(ctx: Ctx) -> Done {
    let thread = open(&ctx);
    let ttl = Duration::from_millis(600);
    let leased = thread.lease(ttl).await?;
    let done = leased
        .hold(async {
            tokio::time::sleep(ttl * 2).await;
            thread.lease(ttl).await.map(|_| ())
        })
        .await?;
    expect_kind(done, ErrorKind::Conflict, "a second lease during the work")?;
    leased.begin(&state("t")).await?;
    Ok(())
}

async fn a_lease_lost_in_the_middle(ctx: Ctx) -> Done {
    let thread = open(&ctx);
    let ttl = Duration::from_millis(60);
    let former = thread.lease(ttl).await?;
    let first = former.begin(&state("t")).await?;
    let first = former.record(&first, "task", &1).await?;
    tokio::time::sleep(ttl * 3).await;
    let owner = thread.lease(Duration::from_secs(600)).await?;
    let lost = |error: Option<checkpoint_core::Error>| error.is_some_and(|error| Lease::is_lost(&error));
    ensure!(lost(former.commit(&first, &state("t2")).await.err()), "commit");
    ensure!(lost(former.begin(&state("t2")).await.err()), "begin");
    ensure!(lost(former.record(&first, "task", &1).await.err()), "record of the same result");
    ensure!(lost(former.record(&first, "other", &1).await.err()), "record");
    ensure!(lost(former.renew().await.err()), "renew");
    let held = former.hold(std::future::pending::<()>()).await;
    ensure!(lost(held.err()), "hold");
    ensure_eq!(count(&ctx, &thread).await?, 1, "number of checkpoints");
    let at = latest(&thread).await?;
    ensure_eq!(at.done_tasks(), ["task"], "tasks");
    owner.commit(&at, &state("t2")).await?;
    former.release().await?;
    owner.renew().await?;
    Ok(())
}
