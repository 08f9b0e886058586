//! `retain`: each rule, what it must leave, and runs over many threads.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use checkpoint_core::retention::{Freed, Limits, RetainSummary, Rule, UsageOptions};
use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, Checkpoint, CheckpointConfig, CheckpointMetadata, ErrorKind, Filter,
    ListQuery, Result, RetainOptions, RetainReport, Retention, SaverExt, Str, ThreadQuery, id, special,
};
use futures_util::TryStreamExt;

use crate::case::{Ctx, Failure, Need};
use crate::fixture::{
    Done, at_version, chain, checkpoint, encode, expect_kind, id_of, ids, list, metadata, newest_first,
    prepared, put, put_with, read, snapshot, triples, value, write,
};
use crate::target::{Facility, OpenOptions};

cases!("retention", [Need::Retain];
    keep_last_keeps_the_newest,
    max_age_removes_what_is_older,
    idle_for_deletes_whole_threads,
    limits_combine,
    a_dry_run_changes_nothing,
    namespaces_have_limits_of_their_own,
    the_newest_of_each_namespace_stays,
    branch_points_stay_if_asked_for,
    pinned_threads_stay,
    waiting_threads_stay,
    what_delta_channels_need_stays,
    a_delta_channel_without_a_snapshot_needs_everything,
    writes_ahead_of_their_checkpoint_stay,
    writes_without_a_checkpoint_go_by_their_id,
    children_keep_the_ids_of_their_parents,
    parents_that_were_never_stored,
    values_that_did_not_change_stay,
    the_oldest_kept_checkpoint_can_be_forked,
    ids_without_a_time_have_a_timestamp,
    the_future_has_no_age,
    checkpoints_from_the_future,
    nothing_stored_is_a_noop,
    an_empty_database [Need::Target(Facility::Fresh)],
    a_policy_that_keeps_nothing,
    bad_policies_are_refused,
    other_threads_are_untouched,
    leases_that_are_held_stay [Need::Leases],
    runs_go_over_all_threads,
    runs_go_over_given_threads,
    runs_may_be_repeated_and_broken_off,
    two_runs_at_once,
    writers_lose_nothing_meanwhile,
    usage_counts_everything [Need::Usage, Need::Target(Facility::Fresh)],
);

const HOUR: u64 = 60 * 60;

fn hours(count: u64) -> Duration {
    Duration::from_secs(count * HOUR)
}

/// The time since 1970.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A version 6 id of so many hours ago.
fn id_at(hours_ago: u64) -> Str {
    id_of_time(now().saturating_sub(hours(hours_ago)))
}

fn id_of_time(time: Duration) -> Str {
    // The calendar of these ids begins in 1582, and counts 100 ns.
    let tick = u64::try_from(time.as_nanos() / 100).unwrap_or(u64::MAX).saturating_add(0x01b2_1dd2_1381_4000);
    let random = id::uuid6(0);
    let rest = random.get(19..).unwrap_or_default();
    format!("{:08x}-{:04x}-6{:03x}-{rest}", tick >> 28, (tick >> 12) & 0xffff, tick & 0xfff).into()
}

/// Puts a chain of checkpoints of these ages in hours, the oldest first.
async fn aged(
    ctx: &Ctx,
    thread_id: &Str,
    checkpoint_ns: &str,
    ages: &[u64],
) -> Result<Vec<CheckpointConfig>> {
    let mut config = CheckpointConfig::new(thread_id.clone()).with_checkpoint_ns(checkpoint_ns);
    let mut stored = Vec::new();
    for (step, age) in (0..).zip(ages) {
        let mut made = Checkpoint::with_id(id_at(*age));
        made = made.with_channel("step", encode(&list(&[step]))?, step + 1);
        config = put_with(ctx.saver(), &config, &made, &metadata(step)).await?;
        stored.push(config.clone());
    }
    Ok(stored)
}

/// Plans and runs, and fails if they differ or a thread was busy.
async fn retain(
    ctx: &Ctx,
    threads: &[&str],
    policy: &Retention,
) -> std::result::Result<RetainReport, Failure> {
    let options = RetainOptions::default().now(SystemTime::now());
    let before = counts(ctx, threads).await?;
    let plan = ctx.saver().retain(threads, policy, &options.dry_run(true)).await?;
    ensure_eq!(counts(ctx, threads).await?, before, "checkpoints after a dry run");
    let report = ctx.saver().retain(threads, policy, &options).await?;
    ensure_eq!(report, plan, "what was done, and what was planned");
    ensure_eq!(report.checkpoints, before, "checkpoints in the report");
    let left = counts(ctx, threads).await?;
    ensure_eq!(before - left, report.total().checkpoints, "checkpoints that went");
    let again = ctx.saver().retain(threads, policy, &options).await?;
    ensure_eq!(again.total(), Freed::default(), "what a second run removes");
    ensure_eq!(counts(ctx, threads).await?, left, "checkpoints after a second run");
    Ok(report)
}

/// How many checkpoints threads have.
async fn counts(ctx: &Ctx, threads: &[&str]) -> Result<u64> {
    let mut count = 0;
    for thread_id in threads {
        let found = ctx.saver().list_all(ListQuery::thread(*thread_id)).await?;
        count += u64::try_from(found.len()).unwrap_or(u64::MAX);
    }
    Ok(count)
}

async fn left(ctx: &Ctx, thread_id: &Str, checkpoint_ns: &str) -> Result<Vec<Str>> {
    ids(ctx.saver(), ListQuery::thread(thread_id.clone()).checkpoint_ns(checkpoint_ns)).await
}

/// Threads, checkpoints and writes.
fn numbers(freed: &Freed) -> [u64; 3] {
    [freed.threads, freed.checkpoints, freed.writes]
}

async fn keep_last_keeps_the_newest(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = chain(ctx.saver(), &thread_id, "", 5).await?;
    for (at, config) in stored.iter().enumerate() {
        for task in 0..=at {
            write(ctx.saver(), config, &format!("task-{task}"), &[("ch", "value".into())]).await?;
        }
    }
    let newest = read(ctx.saver(), prepared(stored.last())?).await?;
    let report = retain(&ctx, &[&thread_id], &Retention::new().keep_last(2)).await?;
    ensure_eq!(left(&ctx, &thread_id, "").await?, newest_first(&stored)[..2], "what is left");
    ensure_eq!(numbers(&report.keep_last), [1, 3, 1 + 2 + 3], "what went");
    ensure_eq!((report.threads, report.total()), (1, report.keep_last), "the report");
    ensure!(report.keep_last.bytes > 0, "no bytes were counted");
    ensure_eq!(read(ctx.saver(), prepared(stored.last())?).await?, newest, "the newest");
    let report = retain(&ctx, &[&thread_id], &Retention::new().keep_last(2)).await?;
    ensure_eq!(report.total(), Freed::default(), "nothing more goes");
    Ok(())
}

async fn max_age_removes_what_is_older(ctx: Ctx) -> Done {
    let (young, old) = (ctx.thread(), ctx.thread());
    let stored = aged(&ctx, &young, "", &[30, 20, 10, 1]).await?;
    let stale = aged(&ctx, &old, "", &[50, 40]).await?;
    let report = retain(&ctx, &[&young, &old], &Retention::new().max_age(hours(15))).await?;
    ensure_eq!(left(&ctx, &young, "").await?, newest_first(&stored)[..2], "what is left");
    ensure_eq!(left(&ctx, &old, "").await?, newest_first(&stale)[..1], "the newest, however old");
    ensure_eq!(numbers(&report.max_age), [2, 3, 0], "what went");
    Ok(())
}

async fn idle_for_deletes_whole_threads(ctx: Ctx) -> Done {
    let (idle, active, writing) = (ctx.thread(), ctx.thread(), ctx.thread());
    for thread_id in [&idle, &active, &writing] {
        let stored = aged(&ctx, thread_id, "", &[50, 40]).await?;
        aged(&ctx, thread_id, "child:1", &[45]).await?;
        write(ctx.saver(), prepared(stored.last())?, "task", &[("ch", "value".into())]).await?;
    }
    aged(&ctx, &active, "child:2", &[1]).await?;
    // A task works on a checkpoint that is not stored yet.
    let ahead = CheckpointConfig::new(writing.clone()).with_checkpoint_id(id_at(1));
    write(ctx.saver(), &ahead, "task", &[("ch", "value".into())]).await?;
    let report = retain(&ctx, &[&idle, &active, &writing], &Retention::new().idle_for(hours(30))).await?;
    ensure_eq!(numbers(&report.idle_for), [1, 3, 1], "what went");
    ensure_eq!(report.threads, 3, "threads");
    ensure_eq!(counts(&ctx, &[&idle]).await?, 0, "the idle thread");
    ensure_eq!(counts(&ctx, &[&active]).await?, 4, "the active thread");
    ensure_eq!(counts(&ctx, &[&writing]).await?, 3, "the writing thread");
    let ids: Vec<Str> =
        ctx.saver().list_thread_ids(ThreadQuery::all().prefix(idle.clone())).try_collect().await?;
    ensure_eq!(ids, Vec::<Str>::new(), "threads with anything stored");
    Ok(())
}

async fn limits_combine(ctx: Ctx) -> Done {
    let (thread_id, idle) = (ctx.thread(), ctx.thread());
    let stored = aged(&ctx, &thread_id, "", &[50, 40, 30, 20, 10, 1]).await?;
    aged(&ctx, &idle, "", &[99, 98]).await?;
    let policy = Retention::new().keep_last(4).max_age(hours(25)).idle_for(hours(90));
    let report = retain(&ctx, &[&thread_id, &idle], &policy).await?;
    ensure_eq!(left(&ctx, &thread_id, "").await?, newest_first(&stored)[..3], "what is left");
    ensure_eq!(numbers(&report.keep_last), [1, 2, 0], "by keep_last");
    ensure_eq!(numbers(&report.max_age), [1, 1, 0], "by max_age");
    ensure_eq!(numbers(&report.idle_for), [1, 2, 0], "by idle_for");
    ensure_eq!(numbers(&report.total()), [2, 5, 0], "in total");
    Ok(())
}

async fn a_dry_run_changes_nothing(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = aged(&ctx, &thread_id, "", &[50, 40, 30]).await?;
    write(ctx.saver(), prepared(stored.first())?, "task", &[("ch", "value".into())]).await?;
    let before = ctx.saver().list_all(ListQuery::thread(thread_id.clone())).await?;
    let plan = RetainOptions::default().dry_run(true);
    for policy in [Retention::new().keep_last(1), Retention::new().idle_for(hours(1))] {
        let report = ctx.saver().retain(&[&thread_id], &policy, &plan).await?;
        let expected = if policy.idle_for.is_some() { [1, 3, 1] } else { [1, 2, 1] };
        ensure_eq!(numbers(&report.total()), expected, "what would go");
        ensure_eq!(ctx.saver().list_all(ListQuery::thread(thread_id.clone())).await?, before, "the thread");
    }
    Ok(())
}

async fn namespaces_have_limits_of_their_own(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let namespaces = ["", "child:1", "child:1|deep:2", "other:3"];
    for checkpoint_ns in namespaces {
        chain(ctx.saver(), &thread_id, checkpoint_ns, 5).await?;
    }
    let limits = |count| Limits::new().keep_last(count);
    let policy = Retention::new()
        .in_namespace("", limits(4))
        .in_namespace("child", limits(3))
        .in_namespace("child|deep", limits(2));
    retain(&ctx, &[&thread_id], &policy).await?;
    for (checkpoint_ns, expected) in namespaces.iter().zip([4, 3, 2, 5]) {
        ensure_eq!(left(&ctx, &thread_id, checkpoint_ns).await?.len(), expected, "left in {checkpoint_ns:?}");
    }
    Ok(())
}

async fn the_newest_of_each_namespace_stays(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let mut newest = Vec::new();
    for (checkpoint_ns, ages) in [("", &[9, 8][..]), ("child:1", &[7, 6, 5]), ("child:1|deep:2", &[99])] {
        let stored = aged(&ctx, &thread_id, checkpoint_ns, ages).await?;
        newest.push((checkpoint_ns, id_of(prepared(stored.last())?)));
    }
    retain(&ctx, &[&thread_id], &Retention::new().keep_last(1).max_age(hours(1))).await?;
    for (checkpoint_ns, expected) in newest {
        ensure_eq!(left(&ctx, &thread_id, checkpoint_ns).await?, [expected], "left in {checkpoint_ns:?}");
    }
    Ok(())
}

async fn branch_points_stay_if_asked_for(ctx: Ctx) -> Done {
    for keep in [false, true] {
        let thread_id = ctx.thread();
        let mut stored = chain(ctx.saver(), &thread_id, "", 4).await?;
        let fork = prepared(stored.get(1))?.clone();
        stored.push(put(ctx.saver(), &fork, &checkpoint(&[])).await?);
        retain(&ctx, &[&thread_id], &Retention::new().keep_last(2).keep_branch_points(keep)).await?;
        // With them: the newest two, the first of the other branch, and the point.
        let expected = &newest_first(&stored)[..if keep { 4 } else { 2 }];
        ensure_eq!(left(&ctx, &thread_id, "").await?, expected, "what is left, with branch points: {keep}");
    }
    Ok(())
}

async fn pinned_threads_stay(ctx: Ctx) -> Done {
    let (pinned, other) = (ctx.thread(), ctx.thread());
    for (thread_id, legal_hold) in [(&pinned, true), (&other, false)] {
        let stored = aged(&ctx, thread_id, "", &[50]).await?;
        let metadata = metadata(1).with("legal_hold", if legal_hold { "yes" } else { "no" });
        let mut config = prepared(stored.last())?.clone();
        for age in [49, 48] {
            let metadata = if age == 49 { metadata.clone() } else { crate::fixture::metadata(2) };
            config = put_with(ctx.saver(), &config, &Checkpoint::with_id(id_at(age)), &metadata).await?;
        }
    }
    let limits = Retention::new().keep_last(1).idle_for(hours(1));
    let report = retain(&ctx, &[&pinned, &other], &limits.pin(Filter::new().eq("legal_hold", "yes"))).await?;
    ensure_eq!(counts(&ctx, &[&pinned]).await?, 3, "the pinned thread");
    ensure_eq!(counts(&ctx, &[&other]).await?, 0, "the other thread");
    ensure_eq!((report.pinned, report.idle_for.threads), (1, 1), "threads");
    Ok(())
}

async fn waiting_threads_stay(ctx: Ctx) -> Done {
    let policy = Retention::new().keep_last(1).idle_for(hours(30));
    let (waiting, answered, inner) = (ctx.thread(), ctx.thread(), ctx.thread());
    for thread_id in [&waiting, &answered, &inner] {
        let root = aged(&ctx, thread_id, "", &[50, 40]).await?;
        let child = aged(&ctx, thread_id, "child:1", &[45, 39]).await?;
        // The interrupt of a subgraph is on the root's checkpoint, too.
        let on = if *thread_id == inner { prepared(child.last())? } else { prepared(root.last())? };
        write(ctx.saver(), on, "task", &[(special::INTERRUPT, "approve?".into())]).await?;
    }
    let on = CheckpointConfig::new(answered.clone());
    let on = read(ctx.saver(), &on).await?.config;
    write(ctx.saver(), &on, "task", &[("result", "done".into())]).await?;
    let threads = [&*waiting, &*answered, &*inner];
    let report = retain(&ctx, &threads, &policy).await?;
    ensure_eq!((report.waiting, report.idle_for.threads), (1, 2), "threads");
    ensure_eq!(counts(&ctx, &[&waiting]).await?, 4, "the waiting thread");
    let tuple = read(ctx.saver(), &CheckpointConfig::new(waiting.clone())).await?;
    ensure_eq!(
        triples(&tuple.pending_writes),
        [("task", special::INTERRUPT, &"approve?".into())],
        "the interrupt"
    );
    let report = retain(&ctx, &threads, &policy.include_waiting(true)).await?;
    ensure_eq!((report.waiting, report.idle_for.threads), (0, 1), "threads");
    ensure_eq!(counts(&ctx, &threads).await?, 0, "checkpoints");
    Ok(())
}

/// Puts steps of a delta channel: a snapshot at these steps, and a write on each checkpoint.
async fn deltas(ctx: &Ctx, thread_id: &Str, steps: i64, snapshots: &[i64]) -> Result<Vec<CheckpointConfig>> {
    let mut config = CheckpointConfig::new(thread_id.clone());
    let mut stored = Vec::new();
    for step in 1..=steps {
        let mut made = at_version(step, &[("plain", encode(&list(&[step]))?)]);
        made.channel_versions.insert("log".into(), step.into());
        // A consumed trigger has a version but no value, like a delta channel.
        made.channel_versions.insert("branch:to:node".into(), step.into());
        let mut counters = Vec::new();
        if snapshots.contains(&step) {
            made.channel_values.insert("log".into(), snapshot(&list(&[step]))?);
        } else {
            let counted = checkpoint_core::Value::Array(vec![1.into(), 1.into()]);
            counters.push(("log".into(), counted));
        }
        let metadata =
            metadata(step).with("counters_since_delta_snapshot", checkpoint_core::Value::Map(counters));
        config = put_with(ctx.saver(), &config, &made, &metadata).await?;
        write(ctx.saver(), &config, "task", &[("log", step.into())]).await?;
        stored.push(config.clone());
    }
    Ok(stored)
}

async fn what_delta_channels_need_stays(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = deltas(&ctx, &thread_id, 12, &[2, 5, 9]).await?;
    let mut before = Vec::new();
    for config in stored.iter().skip(9) {
        let history = ctx.saver().get_delta_channel_history(config, &["log"]).await?;
        before.push((config.clone(), history, read(ctx.saver(), config).await?));
    }
    retain(&ctx, &[&thread_id], &Retention::new().keep_last(4)).await?;
    for (config, history, tuple) in &before {
        ensure_eq!(ctx.saver().get_delta_channel_history(config, &["log"]).await?, *history, "history");
        ensure_eq!(read(ctx.saver(), config).await?, *tuple, "tuple");
    }
    // The oldest of the four is a snapshot.
    ensure_eq!(left(&ctx, &thread_id, "").await?, newest_first(&stored)[..4], "what is left");
    retain(&ctx, &[&thread_id], &Retention::new().keep_last(2)).await?;
    ensure_eq!(left(&ctx, &thread_id, "").await?, newest_first(&stored)[..4], "what two need");
    for (config, history, _) in before.iter().skip(1) {
        ensure_eq!(ctx.saver().get_delta_channel_history(config, &["log"]).await?, *history, "history");
    }
    Ok(())
}

async fn a_delta_channel_without_a_snapshot_needs_everything(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = deltas(&ctx, &thread_id, 6, &[]).await?;
    let report = retain(&ctx, &[&thread_id], &Retention::new().keep_last(2)).await?;
    ensure_eq!(left(&ctx, &thread_id, "").await?, newest_first(&stored), "what is left");
    ensure_eq!(report.total(), Freed::default(), "what went");
    Ok(())
}

async fn writes_ahead_of_their_checkpoint_stay(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = aged(&ctx, &thread_id, "", &[50, 40, 30]).await?;
    let newest = prepared(stored.last())?;
    let ahead = Checkpoint::with_id(id_at(20));
    let config = newest.clone().with_checkpoint_id(ahead.id.clone());
    write(ctx.saver(), &config, "task", &[("ch", "early".into())]).await?;
    let child =
        CheckpointConfig::new(thread_id.clone()).with_checkpoint_ns("child:1").with_checkpoint_id(id_at(45));
    write(ctx.saver(), &child, "task", &[("ch", "first".into())]).await?;
    let report = retain(&ctx, &[&thread_id], &Retention::new().keep_last(1).max_age(hours(1))).await?;
    ensure_eq!(report.total().writes, 0, "writes that went");
    let stored = put(ctx.saver(), newest, &ahead).await?;
    let tuple = read(ctx.saver(), &stored).await?;
    ensure_eq!(triples(&tuple.pending_writes), [("task", "ch", &"early".into())], "writes");
    let first = Checkpoint::with_id(id_of(&child));
    let config = CheckpointConfig::new(thread_id.clone()).with_checkpoint_ns("child:1");
    let tuple = read(ctx.saver(), &put(ctx.saver(), &config, &first).await?).await?;
    ensure_eq!(triples(&tuple.pending_writes), [("task", "ch", &"first".into())], "writes of the first");
    Ok(())
}

async fn writes_without_a_checkpoint_go_by_their_id(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    aged(&ctx, &thread_id, "", &[50, 40, 30, 20]).await?;
    let config = CheckpointConfig::new(thread_id.clone());
    for age in [45, 35, 25] {
        let lost = config.clone().with_checkpoint_id(id_at(age));
        write(ctx.saver(), &lost, "task", &[("ch", "lost".into())]).await?;
    }
    let report = retain(&ctx, &[&thread_id], &Retention::new().keep_last(3).max_age(hours(33))).await?;
    ensure_eq!(numbers(&report.keep_last), [1, 1, 1], "by keep_last");
    ensure_eq!(numbers(&report.max_age), [1, 1, 1], "by max_age");
    Ok(())
}

async fn children_keep_the_ids_of_their_parents(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = chain(ctx.saver(), &thread_id, "", 4).await?;
    retain(&ctx, &[&thread_id], &Retention::new().keep_last(2)).await?;
    let oldest = read(ctx.saver(), prepared(stored.get(2))?).await?;
    ensure_eq!(oldest.parent_config, stored.get(1).cloned(), "the parent of the oldest");
    let parent = prepared(oldest.parent_config)?;
    ensure_eq!(ctx.saver().get_tuple(&parent).await?, None, "the parent");
    let history = ctx.saver().get_delta_channel_history(&oldest.config, &["step"]).await?;
    ensure!(history.values().all(|found| found.writes.is_empty()), "the history has writes: {history:?}");
    Ok(())
}

async fn parents_that_were_never_stored(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let unknown = CheckpointConfig::new(thread_id.clone()).with_checkpoint_id(id_at(60));
    let mut stored = vec![put(ctx.saver(), &unknown, &Checkpoint::with_id(id_at(50))).await?];
    let first = prepared(stored.last())?.clone();
    stored.push(put(ctx.saver(), &first, &Checkpoint::with_id(id_at(40))).await?);
    stored.push(put(ctx.saver(), &unknown, &Checkpoint::with_id(id_at(30))).await?);
    retain(&ctx, &[&thread_id], &Retention::new().keep_last(2).keep_branch_points(true)).await?;
    ensure_eq!(left(&ctx, &thread_id, "").await?, newest_first(&stored)[..2], "what is left");
    Ok(())
}

async fn values_that_did_not_change_stay(ctx: Ctx) -> Done {
    let config = CheckpointConfig::new(ctx.thread());
    let mut made = at_version(1, &[("kept", encode(&list(&[7]))?), ("changed", encode(&list(&[1]))?)]);
    let mut stored = put(ctx.saver(), &config, &made).await?;
    let mut expected = vec![made.clone()];
    for version in 2..=6 {
        let next = at_version(version, &[("changed", encode(&list(&[version]))?)]);
        let changed = next.channel_versions.clone();
        made = next.with_channel("kept", value(&read(ctx.saver(), &stored).await?, "kept")?, 1);
        stored = ctx.saver().put(&stored, &made, &metadata(version), &changed).await?;
        expected.push(made.clone());
    }
    retain(&ctx, &[config.thread_id()], &Retention::new().keep_last(3)).await?;
    let found = ctx.saver().list_all(ListQuery::thread(config.thread_id())).await?;
    let found: Vec<Checkpoint> = found.into_iter().map(|tuple| tuple.checkpoint).collect();
    expected.reverse();
    ensure_eq!(found, expected[..3], "checkpoints");
    Ok(())
}

async fn the_oldest_kept_checkpoint_can_be_forked(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let stored = chain(ctx.saver(), &thread_id, "", 6).await?;
    retain(&ctx, &[&thread_id], &Retention::new().keep_last(3)).await?;
    let oldest = prepared(stored.get(3))?;
    let before = read(ctx.saver(), oldest).await?;
    let mut made = before.checkpoint.clone();
    made.id = id::uuid6(9);
    let fork = ctx.saver().put(oldest, &made, &metadata(9), &checkpoint_core::ChannelVersions::new()).await?;
    let tuple = read(ctx.saver(), &fork).await?;
    ensure_eq!(tuple.checkpoint.channel_values, before.checkpoint.channel_values, "values of the fork");
    ensure_eq!(tuple.parent_config.as_ref(), Some(oldest), "parent of the fork");
    retain(&ctx, &[&thread_id], &Retention::new().keep_last(1)).await?;
    ensure_eq!(left(&ctx, &thread_id, "").await?, [id_of(&fork)], "what is left");
    ensure_eq!(read(ctx.saver(), &fork).await?.checkpoint, tuple.checkpoint, "the fork");
    Ok(())
}

async fn ids_without_a_time_have_a_timestamp(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let mut config = CheckpointConfig::new(thread_id.clone());
    let day = 24 * 60 * 60 * 1_000_000;
    for (number, ts) in [(1, id::isoformat(10 * day)), (2, "not a time".into()), (3, id::now().to_string())] {
        let mut made = Checkpoint::with_id(format!("0000000{number}-0000-4000-8000-000000000000"));
        made.ts = ts.into();
        config = put(ctx.saver(), &config, &made).await?;
    }
    let report = retain(&ctx, &[&thread_id], &Retention::new().max_age(hours(1)).idle_for(hours(1))).await?;
    ensure_eq!(numbers(&report.total()), [1, 1, 0], "what went");
    let found = left(&ctx, &thread_id, "").await?;
    ensure!(found.iter().all(|id| !id.starts_with("00000001")), "the old one is left: {found:?}");
    Ok(())
}

async fn the_future_has_no_age(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    chain(ctx.saver(), &thread_id, "", 3).await?;
    let policy = Retention::new().max_age(Duration::from_millis(1)).idle_for(Duration::from_millis(1));
    let past = SystemTime::now() - hours(5);
    for now in [past, UNIX_EPOCH] {
        let report = ctx.saver().retain(&[&thread_id], &policy, &RetainOptions::default().now(now)).await?;
        ensure_eq!((report.checkpoints, report.total()), (3, Freed::default()), "the report");
    }
    ensure_eq!(counts(&ctx, &[&thread_id]).await?, 3, "checkpoints");
    Ok(())
}

/// A clock was ahead, and was set back.
async fn checkpoints_from_the_future(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let mut stored = aged(&ctx, &thread_id, "", &[50, 40]).await?;
    for ahead in [1000, 1001] {
        let made = Checkpoint::with_id(id_of_time(now() + hours(ahead)));
        stored.push(put(ctx.saver(), prepared(stored.last())?, &made).await?);
    }
    let newest = prepared(stored.last())?;
    let late = put(ctx.saver(), newest, &Checkpoint::with_id(id_at(1))).await?;
    let ids = newest_first(&stored);
    let report = retain(&ctx, &[&thread_id], &Retention::new().max_age(hours(2)).idle_for(hours(2))).await?;
    ensure_eq!(numbers(&report.total()), [1, 2, 0], "what went by age");
    ensure_eq!(left(&ctx, &thread_id, "").await?, [&ids[..2], &[id_of(&late)]].concat(), "what is left");
    // The newest are those that `get_tuple` takes for the newest.
    retain(&ctx, &[&thread_id], &Retention::new().keep_last(1)).await?;
    ensure_eq!(left(&ctx, &thread_id, "").await?, ids[..1], "the newest");
    let tuple = read(ctx.saver(), &CheckpointConfig::new(thread_id)).await?;
    ensure_eq!(tuple.config, *newest, "the latest");
    Ok(())
}

async fn an_empty_database(ctx: Ctx) -> Done {
    let target = ctx.target().fresh().await?;
    let saver = target.open(OpenOptions::default()).await?;
    saver.setup().await?;
    let policy = Retention::new().keep_last(1).idle_for(hours(1));
    for dry_run in [true, false] {
        let options = RetainOptions::default().dry_run(dry_run);
        let batches = saver.retain_all(policy.clone(), options, ThreadQuery::all());
        let batches: Vec<_> = batches.try_collect().await?;
        ensure!(batches.is_empty(), "batches: {batches:?}");
    }
    saver.close().await?;
    Ok(())
}

async fn nothing_stored_is_a_noop(ctx: Ctx) -> Done {
    let policy = Retention::new().keep_last(1).max_age(hours(1)).idle_for(hours(1));
    ensure_eq!(retain(&ctx, &[], &policy).await?, RetainReport::default(), "no threads");
    ensure_eq!(retain(&ctx, &[&ctx.thread()], &policy).await?, RetainReport::default(), "an unknown thread");
    Ok(())
}

async fn a_policy_that_keeps_nothing(ctx: Ctx) -> Done {
    let (thread_id, waiting) = (ctx.thread(), ctx.thread());
    for thread_id in [&thread_id, &waiting] {
        let stored = aged(&ctx, thread_id, "", &[3, 2]).await?;
        aged(&ctx, thread_id, "child:1", &[2]).await?;
        write(ctx.saver(), prepared(stored.last())?, "task", &[(special::INTERRUPT, "?".into())]).await?;
    }
    let least = Duration::from_millis(1);
    let policy = Retention::new().keep_last(1).max_age(least).idle_for(least).include_waiting(true);
    let report = retain(&ctx, &[&thread_id, &waiting], &policy).await?;
    ensure_eq!(numbers(&report.total()), [2, 6, 2], "what went");
    ensure_eq!(report.total(), report.idle_for, "by idle_for alone");
    ensure_eq!(counts(&ctx, &[&thread_id, &waiting]).await?, 0, "checkpoints");
    let again = chain(ctx.saver(), &thread_id, "", 2).await?;
    ensure_eq!(left(&ctx, &thread_id, "").await?, newest_first(&again), "the thread begins again");
    Ok(())
}

async fn bad_policies_are_refused(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    aged(&ctx, &thread_id, "", &[50, 40]).await?;
    for policy in [
        Retention::new(),
        Retention::new().keep_branch_points(true).pin(Filter::new().eq("a", 1)),
        Retention::new().keep_last(0),
        Retention::new().keep_last(1).max_age(Duration::ZERO),
        Retention::new().max_age(Duration::MAX),
        Retention::new().idle_for(Duration::ZERO),
        Retention::new().idle_for(Duration::MAX),
        Retention::new().keep_last(1).in_namespace("a", Limits::new().keep_last(0)),
        Retention::new().idle_for(hours(1)).pin(Filter::new()),
    ] {
        for dry_run in [false, true] {
            let options = RetainOptions::default().dry_run(dry_run);
            let refused = ctx.saver().retain(&[&thread_id], &policy, &options).await;
            expect_kind(refused, ErrorKind::InvalidArgument, &format!("{policy:?}"))?;
        }
        let run: Result<RetainSummary> =
            ctx.saver().retain_all(policy, RetainOptions::default(), ThreadQuery::all()).try_collect().await;
        expect_kind(run, ErrorKind::InvalidArgument, "a run")?;
    }
    ensure_eq!(counts(&ctx, &[&thread_id]).await?, 2, "checkpoints");
    Ok(())
}

async fn other_threads_are_untouched(ctx: Ctx) -> Done {
    let (thread_id, other) = (ctx.thread(), ctx.thread());
    for thread_id in [&thread_id, &other] {
        let stored = aged(&ctx, thread_id, "", &[50, 40]).await?;
        write(ctx.saver(), prepared(stored.first())?, "task", &[("ch", "value".into())]).await?;
    }
    // The same ids in another thread.
    if ctx.saver().capabilities().copy_thread {
        ctx.saver().copy_thread(&thread_id, &other).await?;
    }
    let before = ctx.saver().list_all(ListQuery::thread(other.clone())).await?;
    retain(&ctx, &[&thread_id], &Retention::new().keep_last(1)).await?;
    retain(&ctx, &[&thread_id], &Retention::new().idle_for(hours(1))).await?;
    ensure_eq!(ctx.saver().list_all(ListQuery::thread(other)).await?, before, "the other thread");
    Ok(())
}

async fn leases_that_are_held_stay(ctx: Ctx) -> Done {
    let thread_id = ctx.thread();
    let minute = Duration::from_secs(60);
    aged(&ctx, &thread_id, "", &[50]).await?;
    let lease = ctx.saver().acquire_lease(&thread_id, minute).await?;
    retain(&ctx, &[&thread_id], &Retention::new().idle_for(hours(1))).await?;
    ctx.saver().renew_lease(&lease).await?;
    ctx.saver().release_lease(&lease).await?;
    aged(&ctx, &thread_id, "", &[50]).await?;
    retain(&ctx, &[&thread_id], &Retention::new().idle_for(hours(1))).await?;
    expect_kind(ctx.saver().renew_lease(&lease).await, ErrorKind::Conflict, "a lease that was given back")?;
    Ok(())
}

/// Applies a policy to all threads with a prefix.
async fn run(ctx: &Ctx, prefix: &Str, policy: &Retention) -> Result<RetainSummary> {
    let query = ThreadQuery::all().prefix(prefix.clone());
    ctx.saver().retain_all(policy.clone(), RetainOptions::default(), query).try_collect().await
}

/// Some threads with a prefix of their own, each with this many checkpoints.
async fn threads(ctx: &Ctx, count: usize, steps: i64) -> Result<(Str, Vec<Str>)> {
    let prefix = ctx.thread();
    let mut threads = Vec::new();
    for number in 0..count {
        let thread_id = ctx.use_thread(&format!("{prefix}-{number:03}"));
        chain(ctx.saver(), &thread_id, "", steps).await?;
        threads.push(thread_id);
    }
    Ok((prefix, threads))
}

async fn runs_go_over_all_threads(ctx: Ctx) -> Done {
    let (prefix, threads) = threads(&ctx, 40, 4).await?;
    let summary = run(&ctx, &prefix, &Retention::new().keep_last(3)).await?;
    ensure_eq!((summary.failures, summary.report.busy.len()), (0, 0), "threads that failed or were busy");
    ensure_eq!((summary.report.threads, summary.report.checkpoints), (40, 160), "what was looked at");
    ensure_eq!(numbers(summary.report.by(Rule::KeepLast)), [40, 40, 0], "what went");
    for thread_id in &threads {
        ensure_eq!(left(&ctx, thread_id, "").await?.len(), 3, "left in {thread_id}");
    }
    Ok(())
}

async fn runs_go_over_given_threads(ctx: Ctx) -> Done {
    let (_, threads) = threads(&ctx, 40, 3).await?;
    let names: Vec<&str> = threads.iter().map(|thread_id| &**thread_id).collect();
    let (given, others) = (&threads[..30], &names[30..]);
    // Each counts once, also in another batch; one is not stored.
    let wanted: Vec<Str> = given.iter().chain(given).chain([&ctx.thread()]).cloned().collect();
    let run = |policy, dry_run| {
        let options = RetainOptions::default().dry_run(dry_run);
        ctx.saver().retain_threads(wanted.clone(), policy, options).try_collect::<RetainSummary>()
    };
    let policy = Retention::new().keep_last(1);
    let planned = run(policy.clone(), true).await?;
    let summary = run(policy, false).await?;
    ensure_eq!((summary.failures, summary.report.threads), (0, 30), "threads that failed, and others");
    ensure_eq!(numbers(summary.report.by(Rule::KeepLast)), [30, 60, 0], "what went");
    ensure_eq!(planned.report.total().checkpoints, 60, "what would go");
    ensure_eq!(counts(&ctx, &names[..30]).await?, 30, "checkpoints of these threads");
    ensure_eq!(counts(&ctx, others).await?, 30, "checkpoints of the others");
    expect_kind(run(Retention::new(), false).await, ErrorKind::InvalidArgument, "a policy without limits")?;
    let none =
        ctx.saver().retain_threads(Vec::new(), Retention::new().keep_last(1), RetainOptions::default());
    ensure_eq!(none.try_collect::<RetainSummary>().await?.report.threads, 0, "threads of no names");
    Ok(())
}

async fn runs_may_be_repeated_and_broken_off(ctx: Ctx) -> Done {
    let (prefix, threads) = threads(&ctx, 40, 4).await?;
    let policy = Retention::new().keep_last(1);
    let query = ThreadQuery::all().prefix(prefix.clone());
    let mut batches = Box::pin(ctx.saver().retain_all(policy.clone(), RetainOptions::default(), query));
    let first = prepared(batches.try_next().await?)?;
    drop(batches);
    let rest = run(&ctx, &prefix, &policy).await?;
    let gone = [first.report, rest.report].map(|report| report.total().checkpoints);
    ensure_eq!(gone.iter().sum::<u64>(), 120, "what went: {gone:?}");
    ensure!(gone.iter().all(|gone| *gone > 0), "one of the runs did everything: {gone:?}");
    ensure_eq!(run(&ctx, &prefix, &policy).await?.report.total(), Freed::default(), "what is left to do");
    for thread_id in &threads {
        ensure_eq!(left(&ctx, thread_id, "").await?.len(), 1, "left in {thread_id}");
    }
    Ok(())
}

async fn two_runs_at_once(ctx: Ctx) -> Done {
    let (prefix, threads) = threads(&ctx, 40, 4).await?;
    let policy = Retention::new().keep_last(2);
    let (one, other) =
        futures_util::future::join(run(&ctx, &prefix, &policy), run(&ctx, &prefix, &policy)).await;
    let (one, other) = (one?, other?);
    ensure_eq!((one.failures, other.failures), (0, 0), "threads that failed");
    let gone = one.report.total().checkpoints + other.report.total().checkpoints;
    ensure_eq!(gone, 80, "what went");
    for thread_id in &threads {
        ensure_eq!(left(&ctx, thread_id, "").await?.len(), 2, "left in {thread_id}");
    }
    Ok(())
}

async fn writers_lose_nothing_meanwhile(ctx: Ctx) -> Done {
    const WRITERS: usize = 4;
    const STEPS: i64 = 25;
    let prefix = ctx.thread();
    let mut writers = Vec::new();
    for number in 0..WRITERS {
        let thread_id = ctx.use_thread(&format!("{prefix}-{number}"));
        let saver = ctx.saver().clone();
        writers.push(tokio::spawn(async move {
            let mut config = CheckpointConfig::new(thread_id.clone());
            let mut last = None;
            for step in 0..STEPS {
                // Of two channels, one never changes.
                let mut made = at_version(step + 1, &[("step", encode(&list(&[step]))?)]);
                let mut changed = made.channel_versions.clone();
                made = made.with_channel("kept", encode(&list(&[7]))?, 1);
                if step == 0 {
                    changed.insert("kept".into(), 1.into());
                }
                config = saver.put(&config, &made, &CheckpointMetadata::new("loop", step), &changed).await?;
                write(&saver, &config, "task", &[("ch", step.into())]).await?;
                let tuple = read(&saver, &config).await?;
                ensure_eq!(tuple.checkpoint, made, "the checkpoint of step {step}");
                ensure_eq!(
                    triples(&tuple.pending_writes),
                    [("task", "ch", &ChannelValue::from(step))],
                    "the writes of step {step}"
                );
                last = Some(made);
                tokio::task::yield_now().await;
            }
            Ok::<_, Failure>((thread_id, last))
        }));
    }
    let policy = Retention::new().keep_last(1).max_age(Duration::from_millis(1)).idle_for(hours(1));
    while writers.iter().any(|writer| !writer.is_finished()) {
        let summary = run(&ctx, &prefix, &policy).await?;
        ensure_eq!(summary.failures, 0, "threads that failed: {:?}", summary.failed);
        tokio::task::yield_now().await;
    }
    for writer in writers {
        let (thread_id, last) = writer.await??;
        let tuple = read(ctx.saver(), &CheckpointConfig::new(thread_id.clone())).await?;
        ensure_eq!(Some(tuple.checkpoint), last, "the newest of {thread_id}");
    }
    run(&ctx, &prefix, &policy).await?;
    let count = counts(&ctx, &[&format!("{prefix}-0")]).await?;
    ensure_eq!(count, 1, "checkpoints that are left of a writer");
    Ok(())
}

async fn usage_counts_everything(ctx: Ctx) -> Done {
    let target = ctx.target().fresh().await?;
    let saver = target.open(OpenOptions::default()).await?;
    saver.setup().await?;
    let options = UsageOptions::default().largest(2);
    let none = saver.usage(&options).await?;
    ensure_eq!((none.threads, none.checkpoints, none.writes, none.bytes), (0, 0, 0, 0), "an empty database");
    for (thread_id, size, steps) in [("small", 10, 2), ("large", 50_000, 2), ("middle", 20_000, 3)] {
        let mut config = CheckpointConfig::new(thread_id);
        for step in 0..steps {
            // It does not compress.
            let bytes: Vec<u8> =
                (0..size / 16).flat_map(|_| id::uuid6(0).as_bytes()[20..36].to_vec()).collect();
            let made = at_version(step + 1, &[("data", crate::fixture::bytes(bytes))]);
            config = put(&saver, &config, &made).await?;
        }
        write(&saver, &config, "task", &[("ch", "value".into())]).await?;
    }
    let mut old = Checkpoint::with_id("1ed00000-0000-6000-8000-000000000000");
    old.ts = "2022-11-13T00:00:00+00:00".into();
    put(&saver, &CheckpointConfig::new("old"), &old).await?;
    let mut dated = Checkpoint::with_id("00000001-0000-4000-8000-000000000000");
    dated.ts = "2021-02-03T04:05:06+00:00".into();
    put(&saver, &CheckpointConfig::new("old"), &dated).await?;
    let usage = saver.usage(&options).await?;
    ensure_eq!((usage.threads, usage.checkpoints, usage.writes), (4, 9, 3), "threads, checkpoints, writes");
    ensure!(usage.bytes > 100_000, "{} bytes", usage.bytes);
    let largest: Vec<_> = usage.largest.iter().map(|thread| &*thread.thread_id).collect();
    ensure_eq!(largest, ["large", "middle"], "the largest threads");
    let counts: Vec<_> = usage.largest.iter().map(|thread| (thread.checkpoints, thread.writes)).collect();
    ensure_eq!(counts, [(2, 1), (3, 1)], "their checkpoints and writes");
    let of_old = id::isoformat(id::unix_micros(&old.id).unwrap_or_default());
    let days = [of_old.get(..10).unwrap_or_default(), "2021-02-03"];
    for day in days {
        ensure_eq!(usage.days.get(day).map(|day| day.checkpoints), Some(1), "checkpoints of {day}");
    }
    let counted: u64 = usage.days.values().map(|day| day.checkpoints).sum();
    ensure_eq!(counted, usage.checkpoints, "checkpoints of all days");
    saver.close().await?;
    Ok(())
}
