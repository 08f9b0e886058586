//! Statements that check what is stored and write in the same step, and those of leases.

use super::{REPLACE_WRITE, checkpoint_at, latest};

/// Stores a checkpoint under conditions. It runs in a transaction that holds the thread's locks (see `lock::conditional`),
/// so its snapshot contains every earlier conditional `put` of the thread. Returns whether it stored the checkpoint, and
/// what it found: lease held, child with the step key, stored already, parent stored, newest checkpoint.
///
/// `$1` to `$3` are the key, then parent, document, metadata, the carried-over versions or NULL, the step key or NULL,
/// whether the parent must be stored, whether it must be the newest, and the blobs as arrays: channels, versions, types,
/// bytes; then token, holder and time to live of a lease.
pub(super) fn put(s: &str, leased: bool) -> String {
    let (lease, holds_lease) = if leased {
        (format!("lease AS ({}), ", renew(s, "$1", 15, "")), "EXISTS (SELECT FROM lease)")
    } else {
        (String::new(), "true")
    };
    // Python deletes without our locks: a locked row still exists. Whoever lost the lease locks nothing.
    let parent = checkpoint_at(
        s,
        "checkpoint_id, checkpoint->'channel_versions' AS versions",
        "$1",
        "$2",
        &format!("CASE WHEN {holds_lease} THEN $4 END"),
    );
    format!(
        "WITH {lease}parent AS MATERIALIZED ({parent} FOR KEY SHARE), \
         found AS MATERIALIZED (SELECT {holds_lease} AS holds_lease, EXISTS (SELECT FROM parent) AS has_parent, \
         ({own}) IS NOT NULL AS is_stored, CASE WHEN $10 THEN ({newest}) END AS newest, \
         CASE WHEN $8::text IS NOT NULL THEN (SELECT c.checkpoint_id FROM {s}checkpoints c \
         WHERE c.thread_id = $1 AND c.checkpoint_ns = $2 \
         AND c.checkpoint_id > coalesce((SELECT checkpoint_id FROM parent), '') \
         AND c.parent_checkpoint_id IS NOT DISTINCT FROM $4 AND c.metadata->'step_key' = to_jsonb($8::text) \
         ORDER BY c.checkpoint_id LIMIT 1) END AS repeated, \
         $7::jsonb IS NULL OR coalesce((SELECT versions @> $7 FROM parent), false) AS carries), \
         stored AS (INSERT INTO {s}checkpoints \
         (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata) \
         SELECT $1, $2, $3, $4, $5, $6 FROM found WHERE holds_lease AND repeated IS NULL AND carries \
         AND (is_stored OR (NOT $10 OR newest IS NOT DISTINCT FROM $4) \
         AND (NOT ($9 OR $10) OR $4 IS NULL OR has_parent)) \
         ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) \
         DO UPDATE SET checkpoint = EXCLUDED.checkpoint, metadata = EXCLUDED.metadata RETURNING true), \
         blobs AS (INSERT INTO {s}checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob) \
         SELECT $1, $2, b.* FROM stored, unnest($11::text[], $12::text[], $13::text[], $14::bytea[]) AS b \
         ON CONFLICT (thread_id, checkpoint_ns, channel, version) DO NOTHING) \
         SELECT EXISTS (SELECT FROM stored), holds_lease, repeated, is_stored, has_parent, newest FROM found",
        own = checkpoint_at(s, "true", "$1", "$2", "$3"),
        newest = latest(s, "checkpoint_id"),
    )
}

/// What a conditional `put_writes` does with rows that exist.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Existing {
    /// It keeps them.
    Keep,
    /// It replaces them.
    Replace,
    /// It stores nothing if the task has a row with an index from 0 on.
    Refuse,
}

/// Stores the writes of a task under conditions. Returns whether it stored them, and what it found: lease held, checkpoint
/// stored, task has writes.
///
/// The parameters are those of `put_writes`, then whether the checkpoint must be stored, then token, holder and time to
/// live of a lease.
pub(super) fn put_writes(s: &str, existing: Existing, leased: bool) -> String {
    // Everything else depends on the lock, or on the lease, which depends on it.
    const LOCKED: &str = "EXISTS (SELECT FROM lock)";
    let (lease, holds_lease) = if leased {
        (
            format!("lease AS ({}), ", renew(s, "$3", 13, &format!("AND {LOCKED}"))),
            "EXISTS (SELECT FROM lease)",
        )
    } else {
        (String::new(), LOCKED)
    };
    let target = checkpoint_at(s, "", "$3", "$4", &format!("CASE WHEN {holds_lease} AND $12 THEN $5 END"));
    let has_writes = if existing == Existing::Refuse {
        format!(
            "(SELECT true FROM {s}checkpoint_writes w WHERE w.thread_id = $3 AND w.checkpoint_ns = $4 \
             AND w.checkpoint_id = $5 AND w.task_id >= $6 AND w.task_id <= $6 AND w.idx >= 0 \
             ORDER BY w.task_id, w.idx LIMIT 1) IS NOT NULL"
        )
    } else {
        "false".to_owned()
    };
    let insert = |row: &str, from: &str, on_conflict: &str| {
        format!(
            "INSERT INTO {s}checkpoint_writes \
             (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob) \
             SELECT $3, $4, $5, $6, $7, {row} FROM {from} \
             ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) {on_conflict}"
        )
    };
    let met = "WHERE holds_lease AND (NOT $12 OR has_checkpoint) AND NOT has_writes";
    let all =
        format!("found CROSS JOIN unnest($8::int4[], $9::text[], $10::text[], $11::bytea[]) AS w {met}");
    let (stored, is_stored) = match existing {
        Existing::Keep => (format!("stored AS ({})", insert("w.*", &all, "DO NOTHING")), "true"),
        Existing::Replace => (format!("stored AS ({})", insert("w.*", &all, REPLACE_WRITE)), "true"),
        // The snapshot may be older than another result. Each begins with index 0, so the first row decides.
        Existing::Refuse => (
            format!(
                "stored AS ({} RETURNING true), others AS ({})",
                insert(
                    "($8::int4[])[1], ($9::text[])[1], ($10::text[])[1], ($11::bytea[])[1]",
                    &format!("found {met}"),
                    "DO NOTHING"
                ),
                insert(
                    "w.*",
                    "stored CROSS JOIN unnest(($8::int4[])[2:], ($9::text[])[2:], ($10::text[])[2:], \
                     ($11::bytea[])[2:]) AS w",
                    "DO NOTHING"
                ),
            ),
            "EXISTS (SELECT FROM stored)",
        ),
    };
    format!(
        "WITH lock AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared($1, $2)), {lease}\
         target AS MATERIALIZED ({target} FOR KEY SHARE), \
         found AS MATERIALIZED (SELECT {holds_lease} AS holds_lease, EXISTS (SELECT FROM target) AS has_checkpoint, \
         {has_writes} AS has_writes), {stored} \
         SELECT {is_stored}, holds_lease, has_checkpoint, has_writes FROM found"
    )
}

/// Renews a lease that is still held: token, holder and time to live are the parameters from `at` on.
pub(super) fn renew(s: &str, thread: &str, at: usize, and: &str) -> String {
    format!(
        "UPDATE {s}checkpoint_leases SET expires_at = clock_timestamp() + ${ttl}::int8 * interval '1 microsecond' \
         WHERE thread_id = {thread} AND token = ${at} AND holder = ${holder} {and} RETURNING true",
        holder = at + 1,
        ttl = at + 2,
    )
}

/// Acquires the lease of thread `$1` for the holder `$2` and for `$3` microseconds: its token, or, if another holder has
/// it, for how many more microseconds. Returns no row if another holder got it at the same moment.
///
/// The clock is read after waiting for others. A repeated call of the same holder finds its own lease.
pub(super) fn acquire(s: &str) -> String {
    const EXPIRES: &str = "clock_timestamp() + $3::int8 * interval '1 microsecond'";
    format!(
        "WITH acquired AS (INSERT INTO {s}checkpoint_leases AS l (thread_id, holder, token, expires_at) \
         VALUES ($1, $2, (extract(epoch FROM clock_timestamp()) * 1000000)::int8, {EXPIRES}) \
         ON CONFLICT (thread_id) DO UPDATE SET holder = EXCLUDED.holder, \
         token = greatest(l.token + 1, EXCLUDED.token), expires_at = {EXPIRES} \
         WHERE l.expires_at <= clock_timestamp() OR l.holder = EXCLUDED.holder RETURNING l.token) \
         SELECT token, NULL::int8 AS left FROM acquired \
         UNION ALL \
         SELECT NULL, (extract(epoch FROM h.expires_at - clock_timestamp()) * 1000000)::int8 \
         FROM {s}checkpoint_leases h WHERE h.thread_id = $1 AND NOT EXISTS (SELECT FROM acquired)"
    )
}

/// Gives back the lease of thread `$1` with token `$2` and holder `$3`. The row stays, so that the next token is higher.
pub(super) fn release(s: &str) -> String {
    // Not `-infinity`, which cannot be subtracted from.
    format!(
        "UPDATE {s}checkpoint_leases SET holder = '', expires_at = 'epoch' \
         WHERE thread_id = $1 AND token = $2 AND holder = $3"
    )
}
