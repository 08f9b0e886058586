//! Statements of `prune` and `retain`. Each is about many threads.

use super::{SENDS_INSIDE_FROM, SUMMARY, TASKS, versions_of, with_blobs};

/// The columns of [`stored`].
pub(crate) mod stored {
    pub(crate) const THREAD_ID: usize = 0;
    pub(crate) const CHECKPOINT_NS: usize = 1;
    pub(crate) const CHECKPOINT_ID: usize = 2;
    pub(crate) const PARENT_CHECKPOINT_ID: usize = 3;
    pub(crate) const TS: usize = 4;
    pub(crate) const IS_PINNED: usize = 5;
    pub(crate) const HAS_SENDS: usize = 6;
    pub(crate) const MAY_HAVE_DELTAS: usize = 7;
    pub(crate) const BYTES: usize = 8;
}

/// The columns of [`writes`].
pub(crate) mod written {
    pub(crate) const THREAD_ID: usize = 0;
    pub(crate) const CHECKPOINT_NS: usize = 1;
    pub(crate) const CHECKPOINT_ID: usize = 2;
    pub(crate) const COUNT: usize = 3;
    pub(crate) const BYTES: usize = 4;
    pub(crate) const IS_INTERRUPTED: usize = 5;
}

/// The keys `$1` (threads), `$2` (namespaces), `$3` (ids).
const KEYS: &str =
    "SELECT * FROM unnest($1::text[], $2::text[], $3::text[]) AS k (thread_id, checkpoint_ns, checkpoint_id)";

/// Takes the exclusive locks `$2` of class `$1`, each unless another call holds it, and returns which are taken.
pub(super) fn lock() -> String {
    "SELECT pg_try_advisory_xact_lock($1, k.key) FROM unnest($2::int4[]) WITH ORDINALITY AS k (key, at) ORDER BY k.at"
        .to_owned()
}

/// The rows of the threads `$1`, or of one thread and a namespace.
fn scope(table: &str, threads: &str, in_namespace: Option<&str>) -> String {
    match in_namespace {
        None => format!("{table}.thread_id = ANY ({threads})"),
        Some(namespace) => {
            format!("{table}.thread_id = ({threads}::text[])[1] AND {table}.checkpoint_ns = {namespace}")
        }
    }
}

/// How many checkpoints a namespace has, up to a number.
pub(super) fn count(s: &str) -> String {
    format!(
        "SELECT count(*) FROM (SELECT FROM {s}checkpoints WHERE thread_id = $1 AND checkpoint_ns = $2 \
         ORDER BY checkpoint_id DESC LIMIT $3) c"
    )
}

/// What a policy looks at of the checkpoints of the threads `$1` (or, of the only one, in the namespace `$3`): no values are
/// read. `$2` are the conditions of a pin.
pub(super) fn stored(s: &str, in_namespace: bool) -> String {
    let scope = scope("c", "$1", in_namespace.then_some("$3"));
    // A checkpoint may have delta channels if it counts their updates, or if its document has the mark of a snapshot.
    format!(
        "SELECT c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id, \
         CASE WHEN substr(c.checkpoint_id, 15, 1) <> '6' THEN c.checkpoint->>'ts' END AS ts, \
         c.metadata @> ALL ($2) AS is_pinned, \
         CASE WHEN c.checkpoint->'v' < '{SENDS_INSIDE_FROM}' THEN (SELECT true FROM {s}checkpoint_writes w \
         WHERE w.thread_id = c.thread_id AND w.checkpoint_ns = c.checkpoint_ns \
         AND w.checkpoint_id = c.parent_checkpoint_id AND w.channel = '{TASKS}' \
         ORDER BY w.task_id, w.idx LIMIT 1) END AS sends, \
         coalesce(c.metadata ?| ARRAY['counters_since_delta_snapshot', 'delta_writes_versioned'] \
         OR jsonb_path_exists(c.checkpoint, '$.channel_values.* ? (@ == true)'), true) AS deltas, \
         (coalesce(pg_column_size(c.checkpoint), 0) + coalesce(pg_column_size(c.metadata), 0))::int8 AS bytes \
         FROM {s}checkpoints c WHERE {scope}"
    )
}

/// The writes of the threads `$1` (or, of the only one, in the namespace `$2`), by checkpoint: how many, their bytes, and
/// whether one is an interrupt.
pub(super) fn writes(s: &str, in_namespace: bool) -> String {
    let scope = scope("w", "$1", in_namespace.then_some("$2"));
    format!(
        "SELECT w.thread_id, w.checkpoint_ns, w.checkpoint_id, count(*), sum(coalesce(pg_column_size(w.blob), 0))::int8, \
         bool_or(w.channel = '__interrupt__') FROM {s}checkpoint_writes w WHERE {scope} GROUP BY 1, 2, 3"
    )
}

/// The task and the channel of each write on the checkpoints of [`KEYS`].
pub(super) fn tasks(s: &str) -> String {
    format!(
        "SELECT w.thread_id, w.task_id, w.channel FROM ({KEYS}) k CROSS JOIN LATERAL (SELECT * FROM {s}checkpoint_writes w \
         WHERE w.thread_id = k.thread_id AND w.checkpoint_ns = k.checkpoint_ns AND w.checkpoint_id = k.checkpoint_id \
         ORDER BY w.task_id, w.idx OFFSET 0) w"
    )
}

/// What the delta channels of all checkpoints of a thread `$1` and a namespace `$2` need, in the columns of
/// [`summary`](super::summary).
pub(super) fn summaries(s: &str) -> String {
    format!(
        "SELECT {SUMMARY}, {} FROM {s}checkpoints c WHERE c.thread_id = $1 AND c.checkpoint_ns = $2 \
         ORDER BY c.checkpoint_id",
        with_blobs(s)
    )
}

/// The condition that a row of the threads `$4` is one of [`KEYS`], as the set `k`. `IS TRUE` keeps the planner from joining
/// them: where it takes threads for short, it would read all of a long one for each key. So each thread is read once.
fn is_one(table: &str) -> String {
    format!(
        "{table}.thread_id = ANY ($4) AND (({table}.thread_id, {table}.checkpoint_ns, {table}.checkpoint_id) IN \
         (SELECT k.thread_id, k.checkpoint_ns, k.checkpoint_id FROM k)) IS TRUE"
    )
}

/// Deletes the checkpoints of [`KEYS`], which need not be stored, and their writes, of the threads `$4`.
pub(super) fn delete(s: &str) -> String {
    format!(
        "WITH k AS MATERIALIZED ({KEYS}), gone AS (DELETE FROM {s}checkpoints c WHERE {}) \
         DELETE FROM {s}checkpoint_writes w WHERE {}",
        is_one("c"),
        is_one("w")
    )
}

/// Takes their parents from the checkpoints of [`KEYS`], of the threads `$4`.
pub(super) fn cut_parents(s: &str) -> String {
    format!(
        "WITH k AS MATERIALIZED ({KEYS}) UPDATE {s}checkpoints c SET parent_checkpoint_id = NULL WHERE {}",
        is_one("c")
    )
}

/// The blobs that the checkpoints of the threads name, except those of [`KEYS`] if `planned`.
fn named(s: &str, threads: &str, in_namespace: Option<&str>, planned: bool) -> String {
    let scope = scope("c", threads, in_namespace);
    let condition = if planned {
        "AND (c.thread_id, c.checkpoint_ns, c.checkpoint_id) NOT IN (SELECT k.thread_id, k.checkpoint_ns, k.checkpoint_id FROM k)"
    } else {
        ""
    };
    format!(
        "named AS MATERIALIZED (SELECT c.thread_id, c.checkpoint_ns, v.key, v.value \
         FROM {s}checkpoints c CROSS JOIN LATERAL jsonb_each_text({}) v WHERE {scope} {condition})",
        versions_of("c.checkpoint")
    )
}

/// The condition that nothing names the blob `b` of the threads.
fn unnamed(threads: &str, in_namespace: Option<&str>) -> String {
    format!(
        "{} AND NOT EXISTS (SELECT FROM named n WHERE n.thread_id = b.thread_id \
         AND n.checkpoint_ns = b.checkpoint_ns AND n.key = b.channel AND n.value = b.version)",
        scope("b", threads, in_namespace)
    )
}

/// Deletes the blobs of the threads `$1` (or, of the only one, in the namespace `$2`) that no checkpoint names, and returns their bytes by thread.
pub(super) fn delete_blobs(s: &str, in_namespace: bool) -> String {
    let namespace = in_namespace.then_some("$2");
    format!(
        "WITH {}, gone AS (DELETE FROM {s}checkpoint_blobs b WHERE {} \
         RETURNING b.thread_id, coalesce(pg_column_size(b.blob), 0) AS bytes) \
         SELECT thread_id, sum(bytes)::int8 FROM gone GROUP BY thread_id",
        named(s, "$1", namespace, false),
        unnamed("$1", namespace)
    )
}

/// The bytes, by thread, of the blobs that no checkpoint of the threads `$4` would name without those of [`KEYS`].
pub(super) fn count_blobs(s: &str) -> String {
    format!(
        "WITH k AS MATERIALIZED ({KEYS}), {} SELECT b.thread_id, sum(coalesce(pg_column_size(b.blob), 0))::int8 \
         FROM {s}checkpoint_blobs b WHERE {} GROUP BY b.thread_id",
        named(s, "$4", None, true),
        unnamed("$4", None)
    )
}

/// The sizes of the largest `$1` threads: checkpoints, writes, bytes. Then, without a thread, the sums over all threads, and
/// how many there are.
pub(super) fn thread_sizes(s: &str) -> String {
    format!(
        "WITH t AS MATERIALIZED (SELECT thread_id, coalesce(sum(checkpoints), 0)::int8 AS checkpoints, \
         coalesce(sum(writes), 0)::int8 AS writes, coalesce(sum(bytes), 0)::int8 AS bytes FROM ( \
         SELECT thread_id, count(*) AS checkpoints, 0 AS writes, \
         sum(coalesce(pg_column_size(checkpoint), 0) + coalesce(pg_column_size(metadata), 0)) AS bytes \
         FROM {s}checkpoints GROUP BY thread_id UNION ALL \
         SELECT thread_id, 0, 0, sum(coalesce(pg_column_size(blob), 0)) FROM {s}checkpoint_blobs GROUP BY thread_id UNION ALL \
         SELECT thread_id, 0, count(*), sum(coalesce(pg_column_size(blob), 0)) FROM {s}checkpoint_writes GROUP BY thread_id) p \
         GROUP BY thread_id) \
         (SELECT thread_id, checkpoints, writes, bytes, 1::int8 FROM t ORDER BY bytes DESC, thread_id LIMIT $1) UNION ALL \
         SELECT NULL, coalesce(sum(checkpoints), 0)::int8, coalesce(sum(writes), 0)::int8, \
         coalesce(sum(bytes), 0)::int8, count(*) FROM t"
    )
}

/// The checkpoints of each day and their bytes.
pub(super) fn day_sizes(s: &str) -> String {
    // The time in a version 6 id counts 100 ns since 1582.
    format!(
        "SELECT day, count(*), sum(bytes)::int8 FROM (SELECT CASE \
         WHEN checkpoint_id ~ '^[0-9a-f]{{8}}-[0-9a-f]{{4}}-6[0-9a-f]{{3}}-' THEN to_char(to_timestamp((('x' || \
         substr(checkpoint_id, 1, 8) || substr(checkpoint_id, 10, 4) || substr(checkpoint_id, 16, 3))::bit(60)::int8 \
         - 122192928000000000) / 10000000) AT TIME ZONE 'UTC', 'YYYY-MM-DD') \
         WHEN checkpoint->>'ts' ~ '^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}T' THEN left(checkpoint->>'ts', 10) END AS day, \
         coalesce(pg_column_size(checkpoint), 0) + coalesce(pg_column_size(metadata), 0) AS bytes \
         FROM {s}checkpoints) c WHERE day IS NOT NULL GROUP BY day"
    )
}

/// The bytes of the tables with their indexes, and how many of them are of dead rows, by the server's estimate.
pub(super) fn table_sizes(s: &str) -> String {
    let name = |table: &str| format!("'{}{table}'::regclass", s.replace('\'', "''"));
    format!(
        "SELECT sum(pg_total_relation_size(relid))::int8, sum(CASE WHEN n_live_tup + n_dead_tup > 0 THEN \
         pg_total_relation_size(relid)::numeric * n_dead_tup / (n_live_tup + n_dead_tup) ELSE 0 END)::int8 \
         FROM pg_stat_all_tables WHERE relid IN ({}, {}, {})",
        name("checkpoints"),
        name("checkpoint_blobs"),
        name("checkpoint_writes")
    )
}
