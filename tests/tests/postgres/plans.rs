//! The plans of the saver's statements: they use the primary keys, regardless of the tables' contents and statistics.
//! These tests detect plans that read a whole thread for one checkpoint, or a whole table for one thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use checkpoint_conformance::{Case, OpenOptions, run_cases};
use checkpoint_core::BaseCheckpointSaver;
use checkpoint_core::retention::UsageOptions;
use tokio_postgres::Client;

use crate::shared::plans::{Access, Plan, assert_all_planned, on_tables};
use crate::shared::postgres::wire::proxy;
use crate::shared::postgres::{Database, Postgres, Server, Test, tests};

/// Accesses that need not use the primary key, and why.
fn is_acceptable(call: &str, access: &Access, one_thread: bool) -> bool {
    if access.table == "checkpoint_leases" && one_thread {
        // It has one row.
        return true;
    }
    match call {
        // There is no index on metadata.
        "delete_for_runs" => {
            access.table == "checkpoints"
                || access.how.contains("Index")
                || (one_thread && access.how == "Seq Scan")
        }
        // Without a thread every key is scanned; the rows are then read by their keys.
        "list of all threads" => access.table == "checkpoints",
        // All rows of a thread are needed: any index that begins with the thread is fine, or the whole table if there is no
        // other thread.
        "copy_thread" | "delete_thread" | "retain" | "rekey" => {
            access.index.ends_with("_thread_id_idx") || (one_thread && access.how == "Seq Scan")
        }
        // The transaction of a run turns scans of whole tables off.
        "retain of interrupted threads" => one_thread && access.how == "Seq Scan",
        "list of a thread" => access.table == "checkpoints" && (one_thread || !access.index.is_empty()),
        // The row that was found by its key.
        "rekey of a value" => access.how == "Tid Scan",
        // Everything is measured.
        "usage" => true,
        _ => false,
    }
}

async fn check(database: &Database, state: &str) {
    let one_thread = !state.contains("20,000 threads");
    let saver = database.builder().build().unwrap();
    let mut checked = 0;
    for (call, sql, plan) in saver.plans().await.unwrap() {
        let plan = Plan::parse(&plan);
        for access in &plan.accesses {
            let by_key = access.index == format!("{}_pkey", access.table);
            // Jumps from thread to thread. A filter would read the index from its beginning for each page.
            let jumps = access.how == "Index Only Scan" && access.filter.is_empty();
            if matches!(call, "list_threads" | "list_thread_ids") && access.index.ends_with("_thread_id_idx")
            {
                assert!(jumps, "{state}: {call}: {access:?}\n{sql}");
                checked += 1;
                continue;
            }
            assert!(by_key || is_acceptable(call, access, one_thread), "{state}: {call}: {access:?}\n{sql}");
            checked += 1;
        }
        // The trap of a join over all blobs of a thread.
        if matches!(call, "get_tuple" | "list of a namespace" | "get_delta_channel_history") {
            let kinds = &plan.kinds;
            assert_eq!(plan.count(&["Hash Join", "Merge Join"]), 0, "{state}: {call}: {kinds:?}\n{sql}");
            assert!(call != "get_tuple" || plan.count(&["Sort"]) == 0, "{state}: {call}: {kinds:?}\n{sql}");
        }
    }
    assert!(checked > 100, "{state}: only {checked} accesses were found");
}

/// Threads of `steps` steps, each with a list that changes and a map that does not.
async fn fill(client: &Client, prefix: &str, threads: i32, steps: i32) {
    let checkpoints = format!(
        "INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata) \
         SELECT '{prefix}' || t, '', '1f1e4fbf-0000-6000-8000-' || lpad(s::text, 12, '0'), \
         '1f1e4fbf-0000-6000-8000-' || lpad((s - 1)::text, 12, '0'), \
         jsonb_build_object('v', 4, 'channel_values', jsonb_build_object('counter', s), \
         'channel_versions', jsonb_build_object('counter', s::text, 'messages', s::text, 'settings', '1')), \
         jsonb_build_object('step', s, 'source', 'loop') \
         FROM generate_series(1, {threads}) t, generate_series(1, {steps}) s"
    );
    let blobs = format!(
        "INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob) \
         SELECT '{prefix}' || t, '', 'messages', s::text, 'msgpack', '\\x90'::bytea \
         FROM generate_series(1, {threads}) t, generate_series(1, {steps}) s \
         UNION ALL SELECT '{prefix}' || t, '', 'settings', '1', 'msgpack', '\\x80'::bytea FROM generate_series(1, {threads}) t"
    );
    let writes = format!(
        "INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob) \
         SELECT '{prefix}' || t, '', '1f1e4fbf-0000-6000-8000-' || lpad(s::text, 12, '0'), 'task', i, 'messages', \
         'msgpack', '\\x90'::bytea FROM generate_series(1, {threads}) t, generate_series(1, {steps}) s, generate_series(0, 1) i"
    );
    let leases = format!(
        "INSERT INTO checkpoint_leases (thread_id, holder, token, expires_at) \
         SELECT '{prefix}' || t, 'worker', 1, now() FROM generate_series(1, {threads}) t"
    );
    for sql in [checkpoints, blobs, writes, leases] {
        client.batch_execute(&sql).await.unwrap();
    }
}

async fn without_statistics(server: &Server) {
    let database = Database::set_up(server.url()).await;
    check(&database, "empty").await;
    fill(&database.client().await, "long-", 1, 5000).await;
    check(&database, "5,000 steps, not analyzed").await;
}

async fn one_long_thread(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let client = database.client().await;
    fill(&client, "long-", 1, 5000).await;
    client.batch_execute("VACUUM ANALYZE").await.unwrap();
    check(&database, "one thread of 5,000 steps").await;
}

async fn a_long_thread_among_many_short_ones(server: &Server) {
    let database = Database::set_up(server.url()).await;
    let client = database.client().await;
    fill(&client, "short-", 20_000, 1).await;
    client.batch_execute("VACUUM ANALYZE").await.unwrap();
    check(&database, "20,000 threads of one step").await;
    fill(&client, "long-", 1, 5000).await;
    check(&database, "20,000 threads of one step, and a long one without statistics").await;
    client.batch_execute("VACUUM ANALYZE").await.unwrap();
    check(&database, "20,000 threads of one step, and a long one").await;
}

/// Groups of cases that send no statements beyond those of other groups.
const REPETITIVE: [&str; 5] = ["cancellation", "concurrency", "model", "ids", "round_trips"];

/// The suite sends no statement whose plan is not checked here.
async fn every_statement_is_planned(server: &Server) {
    let (proxy, url) = proxy(server.url()).await.unwrap();
    let target = Arc::new(Postgres::through(server.clone(), url.clone()).await.unwrap());
    let chosen = |case: &Case| {
        let repeats = REPETITIVE.contains(&case.group()) || case.name().contains("megabytes");
        // With a cipher, only copies have statements of their own.
        let is_sealed = case.name().starts_with("encryption::aes");
        !repeats && (!is_sealed || case.name().contains("::copy_thread::"))
    };
    let report = run_cases(target.clone(), chosen, |_, _| {}).await.unwrap();
    assert_eq!(report.failed, []);
    // Its case has a database of its own.
    let saver = target.builder(&url, OpenOptions::default()).build().unwrap();
    saver.usage(&UsageOptions::default()).await.unwrap();
    let seen = on_tables(proxy.take().statements, target.schema());

    let saver = target.builder(server.url(), OpenOptions::default()).build().unwrap();
    let planned: BTreeMap<_, _> =
        saver.plans().await.unwrap().into_iter().map(|(call, sql, _)| (sql, call)).collect();
    assert_all_planned(&seen, &planned);
}

pub(crate) fn tests() -> &'static [Test] {
    tests![
        every_statement_is_planned,
        without_statistics,
        one_long_thread,
        a_long_thread_among_many_short_ones
    ]
}
