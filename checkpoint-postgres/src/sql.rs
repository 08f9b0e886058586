//! The statements. Each finds its rows by a primary key; tests check the plans.

pub(crate) mod rekey;
pub(crate) mod retention;

use checkpoint_core::backend::ListConditions;
use common_postgres::quote;

use crate::document::SEALED_FIELDS;

use conditional::Existing;

mod conditional;
mod threads;

/// The channel of the sends of old checkpoints, which are writes on the parent.
pub(crate) const TASKS: &str = "__pregel_tasks";

/// Checkpoints before this version of the format have their sends there.
const SENDS_INSIDE_FROM: i64 = 4;

/// The most ancestors that one statement walks over.
pub(crate) const ANCESTORS: i64 = 1024;

/// Up to this many blobs use a VALUES list, which is faster; more use arrays.
const MAX_VALUES_ROWS: usize = 4;

/// What a row of [`tuples`] or [`history`] is: the value of its first column.
pub(crate) mod kind {
    pub(crate) const CHECKPOINT: i16 = 0;
    pub(crate) const BLOB: i16 = 1;
    pub(crate) const WRITE: i16 = 2;
    pub(crate) const SEND: i16 = 3;
}

/// The columns of [`tuples`] and [`history`]. Rows of different kinds share some of them.
pub(crate) mod column {
    pub(crate) const KIND: usize = 0;
    /// The number of the checkpoint that the row belongs to, from 1.
    pub(crate) const ROW: usize = 1;
    // Of a checkpoint.
    pub(crate) const CHECKPOINT_ID: usize = 2;
    pub(crate) const PARENT_CHECKPOINT_ID: usize = 3;
    // Of a blob.
    pub(crate) const CHANNEL: usize = 2;
    pub(crate) const VERSION: usize = 3;
    // Of a write or a send.
    pub(crate) const TASK_ID: usize = 2;
    pub(crate) const TASK_PATH: usize = 3;
    pub(crate) const WRITE_CHANNEL: usize = 4;
    pub(crate) const IDX: usize = 5;
    // Of a blob, a write or a send.
    pub(crate) const TYPE: usize = 6;
    pub(crate) const DATA: usize = 7;
    // Of a checkpoint or a blob of `tuples`.
    pub(crate) const THREAD_ID: usize = 8;
    pub(crate) const CHECKPOINT_NS: usize = 9;
    pub(crate) const CHECKPOINT: usize = 10;
    pub(crate) const METADATA: usize = 11;
    /// What the document of `history` has for the channel of a blob.
    pub(crate) const INLINE: usize = 8;
}

/// The columns of [`Statements::summaries`].
pub(crate) mod summary {
    pub(crate) const CHECKPOINT_ID: usize = 0;
    pub(crate) const PARENT_CHECKPOINT_ID: usize = 1;
    pub(crate) const METADATA: usize = 2;
    pub(crate) const VERSIONS: usize = 3;
    pub(crate) const INLINE: usize = 4;
    pub(crate) const BLOBS: usize = 5;
}

/// The columns of [`Statements::list_threads_with_state`].
pub(crate) mod state {
    pub(crate) const THREAD_ID: usize = 0;
    pub(crate) const LATEST_ID: usize = 1;
    // Of the checkpoint that the state follows from.
    pub(crate) const CHECKPOINT_NS: usize = 2;
    pub(crate) const CHECKPOINT_ID: usize = 3;
    pub(crate) const METADATA: usize = 4;
    pub(crate) const CHANNELS: usize = 5;
    /// The task and the channel of each write; NULL without writes.
    pub(crate) const TASKS: usize = 6;
    pub(crate) const WRITE_CHANNELS: usize = 7;
}

/// The columns of conditional puts.
pub(crate) mod found {
    pub(crate) const STORED: usize = 0;
    pub(crate) const HOLDS_LEASE: usize = 1;
    // Of a checkpoint.
    pub(crate) const REPEATED: usize = 2;
    pub(crate) const IS_STORED: usize = 3;
    pub(crate) const HAS_PARENT: usize = 4;
    pub(crate) const NEWEST: usize = 5;
    // Of writes.
    pub(crate) const HAS_CHECKPOINT: usize = 2;
    pub(crate) const HAS_WRITES: usize = 3;
}

/// Replaces a write, except its path, as Python does.
const REPLACE_WRITE: &str =
    "DO UPDATE SET channel = EXCLUDED.channel, type = EXCLUDED.type, blob = EXCLUDED.blob";

/// The columns of `checkpoints` that are read.
const COLUMNS: &str = "thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata";

/// Defines the statements: the name of each, the call that sends it, and its SQL for the schema `s`. All of them are
/// planned by a test.
macro_rules! statements {
    (|$s:ident| $($(#[$doc:meta])* $name:ident: $call:literal = $sql:expr;)+) => {
        /// The statements for the tables of one schema.
        #[derive(Debug)]
        pub(crate) struct Statements {
            /// The schema, quoted and with its dot, or nothing.
            schema: String,
            /// For no blob to [`MAX_VALUES_ROWS`] blobs, and for many.
            put: Vec<String>,
            put_carrying_over: Vec<String>,
            $($(#[$doc])* pub(crate) $name: String,)+
        }

        impl Statements {
            pub(crate) fn new(schema: Option<&str>) -> Self {
                let schema = schema.map_or_else(String::new, |schema| format!("{}.", quote(schema)));
                let counts = || (0..=MAX_VALUES_ROWS).map(Some).chain([None]);
                let $s = &*schema;
                Self {
                    put: counts().map(|blobs| put($s, false, blobs)).collect(),
                    put_carrying_over: counts().map(|blobs| put($s, true, blobs)).collect(),
                    $($name: $sql,)+
                    schema,
                }
            }

            /// Every statement with the name of its call, listings with each set of conditions.
            pub(crate) fn all(&self) -> Vec<(&'static str, String)> {
                let puts = self.put.iter().chain(&self.put_carrying_over).map(|sql| ("put", sql.clone()));
                let lists = ListConditions::all().map(|conditions| {
                    let call = match (conditions.thread_id, conditions.checkpoint_ns) {
                        (true, true) => "list of a namespace",
                        (true, false) => "list of a thread",
                        _ => "list of all threads",
                    };
                    (call, self.list(conditions))
                });
                [$(($call, self.$name.clone())),+].into_iter().chain(puts).chain(lists).collect()
            }
        }
    };
}

statements! { |s|
    upsert_writes: "put_writes" = put_writes(s, REPLACE_WRITE);
    insert_writes: "put_writes" = put_writes(s, "DO NOTHING");
    put_if: "put" = conditional::put(s, false);
    put_if_leased: "put" = conditional::put(s, true);
    upsert_writes_if: "put_writes" = conditional::put_writes(s, Existing::Replace, false);
    upsert_writes_if_leased: "put_writes" = conditional::put_writes(s, Existing::Replace, true);
    insert_writes_if: "put_writes" = conditional::put_writes(s, Existing::Keep, false);
    insert_writes_if_leased: "put_writes" = conditional::put_writes(s, Existing::Keep, true);
    first_writes_if: "put_writes" = conditional::put_writes(s, Existing::Refuse, false);
    first_writes_if_leased: "put_writes" = conditional::put_writes(s, Existing::Refuse, true);
    acquire_lease: "acquire_lease" = conditional::acquire(s);
    /// Thread, token, holder and time to live of a lease.
    renew_lease: "renew_lease" = conditional::renew(s, "$1", 2, "");
    release_lease: "release_lease" = conditional::release(s);
    get: "get_tuple" = tuples(s, &checkpoint_at(s, COLUMNS, "$1", "$2", "$3"), "");
    get_latest: "get_tuple" = tuples(s, &latest(s, COLUMNS), "");
    /// For databases that may have no table of leases; returns whether they have one.
    delete_thread: "delete_thread" = format!(
        "WITH {} SELECT coalesce(has_table_privilege(to_regclass($2::text), 'DELETE'), false)", delete_thread(s)
    );
    delete_thread_and_lease: "delete_thread" = format!(
        "WITH {} DELETE FROM {s}checkpoint_leases WHERE thread_id = $1", delete_thread(s)
    );
    list_threads: "list_threads" = threads::list(s);
    list_threads_with_state: "list_threads" = threads::list_with_state(s);
    /// Jumps from thread to thread in the indexes of all tables.
    list_thread_ids: "list_thread_ids" = {
        let first = |table: &str, condition: &str| format!(
            "(SELECT thread_id FROM {s}{table} WHERE {condition} ORDER BY thread_id LIMIT 1)"
        );
        let least = |condition: &str| format!(
            "least({})", ["checkpoints", "checkpoint_blobs", "checkpoint_writes"].map(|table| first(table, condition)).join(", ")
        );
        // With a condition for both, `$1 IS NULL OR …`, each page would read the indexes from their beginning.
        format!(
            "WITH RECURSIVE threads AS (SELECT CASE WHEN $1::text IS NULL THEN {} ELSE {} END AS id \
             UNION ALL SELECT {} FROM threads t WHERE t.id IS NOT NULL) \
             SELECT id FROM threads WHERE id IS NOT NULL LIMIT $2",
            least("true"),
            least("thread_id > $1"),
            least("thread_id > t.id"),
        )
    };
    count_values: "rekey" = rekey::count_values(s);
    first_blobs: "rekey" = rekey::blobs(s, true);
    next_blobs: "rekey" = rekey::blobs(s, false);
    first_writes: "rekey" = rekey::writes(s, true);
    next_writes: "rekey" = rekey::writes(s, false);
    first_documents: "rekey" = rekey::documents(s, true);
    next_documents: "rekey" = rekey::documents(s, false);
    marked_blobs: "rekey of a value" = rekey::marked_blobs(s);
    rekey_blob: "rekey of a value" = rekey::set_blob(s);
    rekey_write: "rekey of a value" = rekey::set_write(s);
    rekey_document: "rekey of a value" = rekey::set_document(s);
    history: "get_delta_channel_history" = history(s, &format!(
        "CASE WHEN $3::text IS NULL THEN ({}) ELSE ({}) END",
        latest(s, "parent_checkpoint_id"),
        checkpoint_at(s, "parent_checkpoint_id", "$1", "$2", "$3"),
    ));
    history_from: "get_delta_channel_history" = history(s, "$3::text");
    lock_threads: "retain" = retention::lock();
    stored: "retain" = retention::stored(s, false);
    stored_writes: "retain" = retention::writes(s, false);
    stored_in_namespace: "retain" = retention::stored(s, true);
    stored_writes_in_namespace: "retain" = retention::writes(s, true);
    count_checkpoints: "put with keep_last" = retention::count(s);
    tasks: "retain of interrupted threads" = retention::tasks(s);
    summaries: "retain" = retention::summaries(s);
    delete_checkpoints: "retain" = retention::delete(s);
    cut_parents: "retain" = retention::cut_parents(s);
    delete_unnamed_blobs: "retain" = retention::delete_blobs(s, false);
    delete_unnamed_blobs_in_namespace: "retain" = retention::delete_blobs(s, true);
    count_unnamed_blobs: "retain" = retention::count_blobs(s);
    /// The largest `$1` threads, then, with a NULL for a thread, the sums over all, and how many there are.
    thread_sizes: "usage" = retention::thread_sizes(s);
    day_sizes: "usage" = retention::day_sizes(s);
    table_sizes: "usage" = retention::table_sizes(s);
    may_delete_leases: "retain of idle threads" =
        "SELECT coalesce(has_table_privilege(to_regclass($1::text), 'DELETE'), false)".to_owned();
    delete_expired_leases: "retain of idle threads" = format!(
        "DELETE FROM {s}checkpoint_leases WHERE thread_id = ANY ($1) AND expires_at < clock_timestamp()"
    );
    select_runs: "delete_for_runs" = format!("SELECT DISTINCT thread_id FROM {s}checkpoints WHERE metadata->'run_id' = ANY($1)");
    /// Deletes the checkpoints of runs `$1` in the threads `$2`, with their writes.
    delete_runs: "delete_for_runs" = format!(
        "WITH gone AS (DELETE FROM {s}checkpoints WHERE metadata->'run_id' = ANY($1) AND thread_id = ANY($2) \
         RETURNING thread_id, checkpoint_ns, checkpoint_id) \
         DELETE FROM {s}checkpoint_writes w USING gone g WHERE w.thread_id = g.thread_id \
         AND w.checkpoint_ns = g.checkpoint_ns AND w.checkpoint_id = g.checkpoint_id"
    );
    /// Copies thread `$1` to `$2`, except values whose type ends with `$3`: those are bound to their row.
    copy: "copy_thread" = format!(
        "WITH checkpoints AS (INSERT INTO {s}checkpoints \
         (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata) \
         SELECT $2, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata \
         FROM {s}checkpoints WHERE thread_id = $1 \
         ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO UPDATE SET \
         parent_checkpoint_id = EXCLUDED.parent_checkpoint_id, type = EXCLUDED.type, \
         checkpoint = EXCLUDED.checkpoint, metadata = EXCLUDED.metadata), \
         blobs AS (INSERT INTO {s}checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob) \
         SELECT $2, checkpoint_ns, channel, version, type, blob FROM {s}checkpoint_blobs \
         WHERE thread_id = $1 AND right(type, length($3)) <> $3 \
         ON CONFLICT (thread_id, checkpoint_ns, channel, version) \
         DO UPDATE SET type = EXCLUDED.type, blob = EXCLUDED.blob) \
         INSERT INTO {s}checkpoint_writes \
         (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob) \
         SELECT $2, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob \
         FROM {s}checkpoint_writes WHERE thread_id = $1 AND (type IS NULL OR right(type, length($3)) <> $3) \
         ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO UPDATE SET \
         task_path = EXCLUDED.task_path, channel = EXCLUDED.channel, type = EXCLUDED.type, blob = EXCLUDED.blob"
    );
    first_bound_blobs: "copy_thread" = bound_blobs(s, "");
    next_bound_blobs: "copy_thread" = bound_blobs(s, "AND (checkpoint_ns, channel, version) > ($3, $4, $5)");
    first_bound_writes: "copy_thread" = bound_writes(s, "");
    next_bound_writes: "copy_thread" =
        bound_writes(s, "AND (checkpoint_ns, checkpoint_id, task_id, idx) > ($3, $4, $5, $6)");
    select_bound_fields: "copy_thread" = format!(
        "SELECT checkpoint_ns, checkpoint_id, checkpoint->'{SEALED_FIELDS}' FROM {s}checkpoints \
         WHERE thread_id = $1 AND right(checkpoint->'{SEALED_FIELDS}'->>0, length($2)) = $2"
    );
    set_fields: "copy_thread" = format!(
        "UPDATE {s}checkpoints SET checkpoint = jsonb_set(checkpoint, '{{{SEALED_FIELDS}}}', $4) \
         WHERE thread_id = $1 AND checkpoint_ns = $2 AND checkpoint_id = $3"
    );
    upsert_blobs: "copy_thread" = format!(
        "INSERT INTO {s}checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob) \
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (thread_id, checkpoint_ns, channel, version) \
         DO UPDATE SET type = EXCLUDED.type, blob = EXCLUDED.blob"
    );
    replace_write: "copy_thread" = format!(
        "INSERT INTO {s}checkpoint_writes \
         (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) \
         ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO UPDATE SET \
         task_path = EXCLUDED.task_path, channel = EXCLUDED.channel, type = EXCLUDED.type, blob = EXCLUDED.blob"
    );
}

/// The first `$6` blobs of the thread `$1` that are bound to their row (type ends with `$2`), after a key.
fn bound_blobs(s: &str, after: &str) -> String {
    format!(
        "SELECT checkpoint_ns, channel, version, type, blob FROM {s}checkpoint_blobs WHERE thread_id = $1 \
         AND right(type, length($2)) = $2 {after} ORDER BY checkpoint_ns, channel, version LIMIT $6"
    )
}

/// The first `$7` writes of the thread `$1` that are bound to their row (type ends with `$2`), after a key.
fn bound_writes(s: &str, after: &str) -> String {
    format!(
        "SELECT checkpoint_ns, checkpoint_id, task_id, task_path, channel, idx, type, blob \
         FROM {s}checkpoint_writes WHERE thread_id = $1 AND right(type, length($2)) = $2 {after} \
         ORDER BY checkpoint_ns, checkpoint_id, task_id, idx LIMIT $7"
    )
}

impl Statements {
    /// Locks the tables against all writers. (It has no plan.)
    pub(crate) fn lock_tables(&self) -> String {
        format!("LOCK TABLE {0}checkpoints, {0}checkpoint_writes IN SHARE ROW EXCLUSIVE MODE", self.schema)
    }

    /// The statement that stores a checkpoint with this number of blobs, and whether their parameters are arrays. It may
    /// carry over other blobs.
    pub(crate) fn put(&self, carries: bool, blobs: usize) -> (&str, bool) {
        let statements = if carries { &self.put_carrying_over } else { &self.put };
        let at = blobs.min(MAX_VALUES_ROWS + 1);
        (statements.get(at).map_or("", String::as_str), at > MAX_VALUES_ROWS)
    }

    /// The statement that stores writes under conditions: only the first result of a task (`once`), or in place of others
    /// (`replace`).
    pub(crate) fn put_writes_if(&self, once: bool, replace: bool, leased: bool) -> &str {
        match (once, replace, leased) {
            (true, _, false) => &self.first_writes_if,
            (true, _, true) => &self.first_writes_if_leased,
            (false, true, false) => &self.upsert_writes_if,
            (false, true, true) => &self.upsert_writes_if_leased,
            (false, false, false) => &self.insert_writes_if,
            (false, false, true) => &self.insert_writes_if_leased,
        }
    }

    /// One page of a listing. Parameters: the conditions' values in the order of [`ListConditions`], then how many rows.
    pub(crate) fn list(&self, page: ListConditions) -> String {
        let s = &self.schema;
        let mut conditions = Vec::new();
        let mut number = 0;
        let mut next = || {
            number += 1;
            number
        };
        let one_namespace = page.is_one_namespace();
        if page.thread_id {
            conditions.push(format!("thread_id = ${}", next()));
        }
        if page.checkpoint_ns {
            conditions.push(format!("checkpoint_ns = ${}", next()));
        }
        if page.checkpoint_id {
            let id = next();
            conditions.push(format!("checkpoint_id >= ${id} AND checkpoint_id <= ${id}"));
        }
        if page.before {
            conditions.push(format!("checkpoint_id < ${}", next()));
        }
        if page.filter {
            conditions.push(format!("metadata @> ALL (${})", next()));
        }
        if page.after && one_namespace {
            conditions.push(format!("checkpoint_id < ${}", next()));
        } else if page.after {
            let (id, thread, ns) = (next(), next(), next());
            conditions.push(format!(
                "checkpoint_id <= ${id} AND (checkpoint_id < ${id} \
                 OR (thread_id COLLATE \"C\", checkpoint_ns COLLATE \"C\") > (${thread}, ${ns}))"
            ));
        }
        let limit = next();
        let conditions = if conditions.is_empty() { "true".to_owned() } else { conditions.join(" AND ") };
        let select = if one_namespace {
            format!(
                "SELECT {COLUMNS} FROM {s}checkpoints WHERE {conditions} ORDER BY checkpoint_id DESC LIMIT ${limit}"
            )
        } else {
            // Only keys are sorted, the rows are fetched afterwards.
            format!(
                "SELECT c.* FROM (SELECT thread_id, checkpoint_ns, checkpoint_id FROM {s}checkpoints \
                 WHERE {conditions} \
                 ORDER BY checkpoint_id DESC, thread_id COLLATE \"C\", checkpoint_ns COLLATE \"C\" LIMIT ${limit}) k \
                 CROSS JOIN LATERAL ({}) c",
                checkpoint_at(s, COLUMNS, "k.thread_id", "k.checkpoint_ns", "k.checkpoint_id")
            )
        };
        tuples(s, &select, "DISTINCT")
    }
}

/// Deletes thread `$1`. Checkpoints come first, as in `put`, so that rows are locked in the same order as by writers without
/// the advisory lock (Python).
fn delete_thread(s: &str) -> String {
    format!(
        "checkpoints AS (DELETE FROM {s}checkpoints WHERE thread_id = $1), \
         blobs AS (DELETE FROM {s}checkpoint_blobs WHERE thread_id = $1), \
         writes AS (DELETE FROM {s}checkpoint_writes WHERE thread_id = $1)"
    )
}

/// Stores a checkpoint and its blobs in one statement, and returns whether it did: not while another call holds the
/// thread's exclusive lock, and, if it carries values over, not if its parent was deleted or names other versions: their
/// blobs may have been deleted, too.
///
/// `$1`, `$2` are the lock, `$3` to `$5` the key, then parent, document and metadata, the carried-over versions
/// if there are any, then the blobs: channel, version, type and bytes of each, or, for many, arrays of them.
fn put(s: &str, carries: bool, blobs: Option<usize>) -> String {
    const LOCK: &str = "(SELECT pg_try_advisory_xact_lock_shared($1, $2))";
    // The statement's snapshot is older than its lock: another call may have deleted the parent in between. A locked row
    // still exists, and a row that is being deleted counts as deleted. CASE enforces the order.
    let parent = checkpoint_at(s, "checkpoint->'channel_versions' @> $9", "$3", "$4", "$6");
    let (first, condition) = if carries {
        (10, format!("CASE WHEN {LOCK} THEN ({parent} FOR KEY SHARE SKIP LOCKED) ELSE false END"))
    } else {
        (9, LOCK.to_owned())
    };
    let row =
        |at: usize| format!("(${}::text, ${}::text, ${}::text, ${}::bytea)", at, at + 1, at + 2, at + 3);
    let rows = match blobs {
        Some(0) => None,
        Some(count) => {
            let rows: Vec<String> = (0..count).map(|at| row(first + 4 * at)).collect();
            Some(format!("(VALUES {})", rows.join(", ")))
        }
        None => Some(format!(
            "unnest(${first}::text[], ${}::text[], ${}::text[], ${}::bytea[])",
            first + 1,
            first + 2,
            first + 3
        )),
    };
    let blobs = rows.map_or_else(String::new, |rows| {
        format!(
            ", blobs AS (INSERT INTO {s}checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob) \
             SELECT $3, $4, b.* FROM stored, {rows} AS b \
             ON CONFLICT (thread_id, checkpoint_ns, channel, version) DO NOTHING)"
        )
    });
    format!(
        "WITH stored AS (INSERT INTO {s}checkpoints \
         (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata) \
         SELECT $3, $4, $5, $6, $7, $8 WHERE {condition} \
         ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) \
         DO UPDATE SET checkpoint = EXCLUDED.checkpoint, metadata = EXCLUDED.metadata RETURNING true){blobs} \
         SELECT count(*) > 0 FROM stored"
    )
}

/// `$1`, `$2` are the lock, then thread, namespace, checkpoint, task, path, and the rows' indexes, channels, types and
/// bytes.
fn put_writes(s: &str, on_conflict: &str) -> String {
    format!(
        "INSERT INTO {s}checkpoint_writes \
         (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob) \
         SELECT $3, $4, $5, $6, $7, w.* FROM (SELECT pg_advisory_xact_lock_shared($1, $2) OFFSET 0) lock \
         CROSS JOIN unnest($8::int4[], $9::text[], $10::text[], $11::bytea[]) AS w \
         ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) {on_conflict}"
    )
}

/// The newest checkpoint of a namespace.
fn latest(s: &str, columns: &str) -> String {
    format!(
        "SELECT {columns} FROM {s}checkpoints WHERE thread_id = $1 AND checkpoint_ns = $2 \
         ORDER BY checkpoint_id DESC LIMIT 1"
    )
}

/// One checkpoint by its whole key. The range in the key's order makes the server use the primary key: for a plain
/// comparison it may prefer the index on threads alone, and read the whole thread.
fn checkpoint_at(s: &str, columns: &str, thread: &str, ns: &str, id: &str) -> String {
    format!(
        "SELECT {columns} FROM {s}checkpoints WHERE thread_id = {thread} AND checkpoint_ns = {ns} \
         AND checkpoint_id >= {id} AND checkpoint_id <= {id} ORDER BY checkpoint_id LIMIT 1"
    )
}

/// One blob by its whole key, as in [`checkpoint_at`].
fn blob_at(s: &str, columns: &str, thread: &str, ns: &str, channel: &str, version: &str) -> String {
    format!(
        "SELECT {columns} FROM {s}checkpoint_blobs b WHERE b.thread_id = {thread} AND b.checkpoint_ns = {ns} \
         AND b.channel = {channel} AND b.version >= {version} AND b.version <= {version} \
         ORDER BY b.version LIMIT 1"
    )
}

/// Reads whole tuples: the rows that `page` selects, every blob that they name (once), their writes, and the sends that
/// old ones have on their parents. Each is looked up by its whole key: `OFFSET 0` prevents a join over all
/// rows of a thread, and the order prevents the use of the index on threads alone (see [`checkpoint_at`]).
fn tuples(s: &str, page: &str, distinct: &str) -> String {
    format!(
        "WITH page AS MATERIALIZED (SELECT row_number() OVER ()::int4 AS row, p.* FROM ({page}) p) \
         SELECT {checkpoint}::int2 AS kind, row, checkpoint_id AS a, parent_checkpoint_id AS b, NULL::text AS c, \
         NULL::int4 AS idx, NULL::text AS type, NULL::bytea AS blob, thread_id, checkpoint_ns, checkpoint, metadata \
         FROM page \
         UNION ALL \
         SELECT {blob}::int2, NULL, v.key, v.value, NULL, NULL, b.type, b.blob, v.thread_id, v.checkpoint_ns, NULL, NULL \
         FROM (SELECT {distinct} p.thread_id, p.checkpoint_ns, v.key, v.value FROM page p \
         CROSS JOIN LATERAL jsonb_each_text({versions}) v) v \
         CROSS JOIN LATERAL ({blob_at}) b \
         UNION ALL \
         SELECT {write}::int2, p.row, w.task_id, w.task_path, w.channel, w.idx, w.type, w.blob, NULL, NULL, NULL, NULL \
         FROM page p CROSS JOIN LATERAL (SELECT task_id, task_path, channel, idx, type, blob \
         FROM {s}checkpoint_writes w WHERE w.thread_id = p.thread_id AND w.checkpoint_ns = p.checkpoint_ns \
         AND w.checkpoint_id = p.checkpoint_id ORDER BY w.task_id, w.idx OFFSET 0) w \
         UNION ALL \
         SELECT {send}::int2, p.row, w.task_id, w.task_path, NULL, w.idx, w.type, w.blob, NULL, NULL, NULL, NULL \
         FROM page p CROSS JOIN LATERAL (SELECT task_id, task_path, idx, type, blob \
         FROM {s}checkpoint_writes w WHERE w.thread_id = p.thread_id AND w.checkpoint_ns = p.checkpoint_ns \
         AND w.checkpoint_id = p.parent_checkpoint_id AND w.channel = '{TASKS}' \
         ORDER BY w.task_id, w.idx OFFSET 0) w \
         WHERE p.checkpoint->'v' < '{SENDS_INSIDE_FROM}'",
        checkpoint = kind::CHECKPOINT,
        blob = kind::BLOB,
        write = kind::WRITE,
        send = kind::SEND,
        versions = versions_of("p.checkpoint"),
        blob_at = blob_at(s, "type, blob", "v.thread_id", "v.checkpoint_ns", "v.key", "v.value"),
    )
}

/// The versions of a document, or NULL for a damaged one.
fn versions_of(document: &str) -> String {
    format!(
        "CASE WHEN jsonb_typeof({document}->'channel_versions') = 'object' THEN {document}->'channel_versions' END"
    )
}

/// Jumps from namespace to namespace of a thread in the index; the last row is NULL.
fn with_namespaces(s: &str, thread: &str) -> String {
    format!(
        "WITH RECURSIVE namespaces AS ( \
         (SELECT checkpoint_ns FROM {s}checkpoints WHERE thread_id = {thread} ORDER BY checkpoint_ns LIMIT 1) \
         UNION ALL \
         SELECT (SELECT c.checkpoint_ns FROM {s}checkpoints c WHERE c.thread_id = {thread} \
         AND c.checkpoint_ns > n.checkpoint_ns ORDER BY c.checkpoint_ns LIMIT 1) \
         FROM namespaces n WHERE n.checkpoint_ns IS NOT NULL)"
    )
}

/// Walks from a checkpoint (the parent of `$3` or of the newest, or `$3` itself) to the root for the channels `$4`, until
/// each has a value, over at most `$5` checkpoints. Reads the values and the writes on the way.
fn history(s: &str, start: &str) -> String {
    format!(
        "WITH RECURSIVE walk AS ( \
         SELECT 0 AS depth, NULL::text AS checkpoint_id, {start} AS next, NULL::jsonb AS checkpoint, \
         NULL::text[] AS visited, $4::text[] AS open \
         UNION ALL \
         SELECT w.depth + 1, c.checkpoint_id, c.parent_checkpoint_id, c.checkpoint, w.open, \
         ARRAY(SELECT channel FROM unnest(w.open) AS channel \
         WHERE NOT coalesce(c.checkpoint->'channel_values' ? channel, false) \
         AND coalesce(({type_at}), 'empty') = 'empty') \
         FROM walk w CROSS JOIN LATERAL ({next}) c \
         WHERE w.next <> '' AND cardinality(w.open) > 0 AND w.depth < $5), \
         visited AS MATERIALIZED (SELECT * FROM walk WHERE depth > 0) \
         SELECT {checkpoint}::int2 AS kind, depth, checkpoint_id AS a, next AS b, NULL::text AS c, NULL::int4 AS idx, \
         NULL::text AS type, NULL::bytea AS blob, NULL::jsonb AS value FROM visited \
         UNION ALL \
         SELECT {blob}::int2, v.depth, channel, v.checkpoint->'channel_versions'->>channel, NULL, NULL, b.type, b.blob, \
         v.checkpoint->'channel_values'->channel \
         FROM visited v CROSS JOIN LATERAL unnest(v.visited) AS channel \
         LEFT JOIN LATERAL ({blob_at}) b ON b.type <> 'empty' \
         WHERE channel <> ALL (v.open) \
         UNION ALL \
         SELECT {write}::int2, v.depth, w.task_id, w.task_path, w.channel, w.idx, w.type, w.blob, NULL \
         FROM visited v CROSS JOIN LATERAL (SELECT task_id, task_path, channel, idx, type, blob \
         FROM {s}checkpoint_writes w WHERE w.thread_id = $1 AND w.checkpoint_ns = $2 \
         AND w.checkpoint_id = v.checkpoint_id AND w.channel = ANY (v.visited) \
         ORDER BY w.task_id, w.idx OFFSET 0) w",
        checkpoint = kind::CHECKPOINT,
        blob = kind::BLOB,
        write = kind::WRITE,
        next = checkpoint_at(s, "checkpoint_id, parent_checkpoint_id, checkpoint", "$1", "$2", "w.next"),
        type_at = blob_at(s, "b.type", "$1", "$2", "channel.channel", &version_of("c.checkpoint")),
        blob_at = blob_at(s, "b.type, b.blob", "$1", "$2", "channel.channel", &version_of("v.checkpoint")),
    )
}

/// The version of `channel` in a document.
fn version_of(document: &str) -> String {
    format!("({document}->'channel_versions'->>channel.channel)")
}

/// The data for pruning of the checkpoint `c`, without its values: which channels have one inline, and whether it is
/// the mark of a snapshot.
const SUMMARY: &str = "c.checkpoint_id, c.parent_checkpoint_id, c.metadata, c.checkpoint->'channel_versions' AS versions, \
     (SELECT jsonb_object_agg(key, value = 'true') FROM jsonb_each(CASE \
     WHEN jsonb_typeof(c.checkpoint->'channel_values') = 'object' THEN c.checkpoint->'channel_values' END)) AS inline";

/// The channels with a blob at the checkpoint `c`.
fn with_blobs(s: &str) -> String {
    format!(
        "ARRAY(SELECT v.key FROM jsonb_each_text({}) v WHERE coalesce(({}), 'empty') <> 'empty') AS blobs",
        versions_of("c.checkpoint"),
        blob_at(s, "b.type", "$1", "$2", "v.key", "v.value"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted() {
        assert!(Statements::new(Some("a\"b")).get.contains("FROM \"a\"\"b\".checkpoints"));
        assert!(Statements::new(None).get.contains("FROM checkpoints"));
    }

    #[test]
    fn blobs_have_parameters_of_their_own() {
        let statements = Statements::new(None);
        assert!(!statements.put(false, 0).0.contains("checkpoint_blobs"));
        let values =
            |at: usize| format!("(${}::text, ${}::text, ${}::text, ${}::bytea)", at, at + 1, at + 2, at + 3);
        assert!(statements.put(false, 2).0.contains(&format!("(VALUES {}, {})", values(9), values(13))));
        assert!(statements.put(true, 1).0.contains("checkpoint_id >= $6"));
        assert!(statements.put(true, MAX_VALUES_ROWS + 1).0.contains("unnest($10::text[]"));
        assert!(statements.put(false, MAX_VALUES_ROWS + 9).1);
    }
}
