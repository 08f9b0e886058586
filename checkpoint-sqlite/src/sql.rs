//! All SQL text.

use checkpoint_core::backend::ListConditions;

/// The tables exactly as Python's saver creates them.
pub(crate) const CREATE_CHECKPOINTS: &str = "CREATE TABLE IF NOT EXISTS checkpoints (
                thread_id TEXT NOT NULL,
                checkpoint_ns TEXT NOT NULL DEFAULT '',
                checkpoint_id TEXT NOT NULL,
                parent_checkpoint_id TEXT,
                type TEXT,
                checkpoint BLOB,
                metadata BLOB,
                PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id)
            )";

pub(crate) const CREATE_WRITES: &str = "CREATE TABLE IF NOT EXISTS writes (
                thread_id TEXT NOT NULL,
                checkpoint_ns TEXT NOT NULL DEFAULT '',
                checkpoint_id TEXT NOT NULL,
                task_id TEXT NOT NULL,
                task_path TEXT NOT NULL DEFAULT '',
                idx INTEGER NOT NULL,
                channel TEXT NOT NULL,
                type TEXT,
                value BLOB,
                PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
            )";

/// Ours alone. `expires_at` counts microseconds since 1970, and is 0 once the lease was given back.
pub(crate) const CREATE_LEASES: &str = "CREATE TABLE IF NOT EXISTS checkpoint_leases (
                thread_id TEXT NOT NULL PRIMARY KEY,
                holder TEXT NOT NULL,
                token INTEGER NOT NULL,
                expires_at INTEGER NOT NULL
            )";

/// Upgrades files of Python's saver up to 3.1.1.
pub(crate) const ADD_TASK_PATH: &str = "ALTER TABLE writes ADD COLUMN task_path TEXT NOT NULL DEFAULT ''";

pub(crate) const TABLE_INFO: &str =
    "SELECT name, \"notnull\", dflt_value IS NOT NULL, pk FROM pragma_table_info(?1)";

pub(crate) const SCHEMA_VERSION: &str = "PRAGMA schema_version";

pub(crate) const BEGIN: &str = "BEGIN";
pub(crate) const BEGIN_IMMEDIATE: &str = "BEGIN IMMEDIATE";
pub(crate) const COMMIT: &str = "COMMIT";
pub(crate) const ROLLBACK: &str = "ROLLBACK";
pub(crate) const SAVEPOINT: &str = "SAVEPOINT one_of_many";
pub(crate) const RELEASE: &str = "RELEASE one_of_many";
pub(crate) const ROLLBACK_TO: &str = "ROLLBACK TO one_of_many";

pub(crate) const UPSERT_CHECKPOINT: &str = "INSERT OR REPLACE INTO checkpoints \
    (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata) \
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

pub(crate) const SELECT_CHECKPOINT: &str = "SELECT checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata \
    FROM checkpoints WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3";

pub(crate) const SELECT_LATEST_CHECKPOINT: &str = "SELECT checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata \
    FROM checkpoints WHERE thread_id = ?1 AND checkpoint_ns = ?2 ORDER BY checkpoint_id DESC LIMIT 1";

pub(crate) const SELECT_METADATA: &str =
    "SELECT metadata FROM checkpoints WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3";

pub(crate) const SELECT_PARENT: &str = "SELECT parent_checkpoint_id FROM checkpoints \
    WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3";

pub(crate) const SELECT_LATEST_PARENT: &str = "SELECT parent_checkpoint_id FROM checkpoints \
    WHERE thread_id = ?1 AND checkpoint_ns = ?2 ORDER BY checkpoint_id DESC LIMIT 1";

pub(crate) const SELECT_IS_STORED: &str =
    "SELECT 1 FROM checkpoints WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3";

/// The children of a checkpoint, or, for `''`, the checkpoints without a parent. A child's id is above its parent's; the
/// parent is compared before the row's metadata is read.
pub(crate) const SELECT_CHILDREN: &str = "SELECT checkpoint_id, metadata FROM checkpoints \
    WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id > ?3 \
    AND ifnull(parent_checkpoint_id, '') = ?3 ORDER BY checkpoint_id";

pub(crate) const SELECT_HAS_WRITES: &str = "SELECT 1 FROM writes \
    WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3 AND task_id = ?4 AND idx >= 0 LIMIT 1";

pub(crate) const SELECT_ALL_METADATA: &str =
    "SELECT thread_id, checkpoint_ns, checkpoint_id, metadata FROM checkpoints";

/// The writes on one checkpoint. Files of old versions have no task paths.
pub(crate) fn select_writes(has_task_path: bool) -> String {
    format!(
        "SELECT task_id, {}, idx, channel, type, value FROM writes \
         WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3",
        task_path(has_task_path)
    )
}

const fn task_path(exists: bool) -> &'static str {
    if exists { "task_path" } else { "''" }
}

/// Stores one write: replaces an earlier one (`UPSERT_CHECKPOINT_WRITES_SQL`) or keeps it
/// (`INSERT_CHECKPOINT_WRITES_SQL`).
pub(crate) fn insert_write(replace: bool, has_task_path: bool) -> String {
    let otherwise = if replace { "REPLACE" } else { "IGNORE" };
    let (column, parameter) = if has_task_path { (", task_path", ", ?9") } else { ("", "") };
    format!(
        "INSERT OR {otherwise} INTO writes \
         (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value{column}) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8{parameter})"
    )
}

pub(crate) const DELETE_THREAD_CHECKPOINTS: &str = "DELETE FROM checkpoints WHERE thread_id = ?1";
pub(crate) const DELETE_THREAD_WRITES: &str = "DELETE FROM writes WHERE thread_id = ?1";

pub(crate) const DELETE_CHECKPOINT: &str =
    "DELETE FROM checkpoints WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3";
pub(crate) const DELETE_WRITES: &str =
    "DELETE FROM writes WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3";

pub(crate) const CLEAR_PARENT: &str = "UPDATE checkpoints SET parent_checkpoint_id = NULL \
    WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3";

/// The keys of a thread's checkpoints.
pub(crate) const SELECT_STORED: &str =
    "SELECT checkpoint_ns, checkpoint_id, NULL FROM checkpoints WHERE thread_id = ?1";
pub(crate) const SELECT_STORED_WITH_PARENTS: &str =
    "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM checkpoints WHERE thread_id = ?1";

pub(crate) const SELECT_SIZE: &str = "SELECT ifnull(octet_length(checkpoint), 0) + ifnull(octet_length(metadata), 0) \
    FROM checkpoints WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3";
pub(crate) const SELECT_SIZE_OF_WRITES: &str = "SELECT ifnull(sum(octet_length(value)), 0) FROM writes \
    WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3";

/// How many checkpoints a namespace has, up to a number.
pub(crate) const COUNT_CHECKPOINTS: &str = "SELECT count(*) FROM (SELECT 1 FROM checkpoints \
    WHERE thread_id = ?1 AND checkpoint_ns = ?2 LIMIT ?3)";

/// Without the other namespaces.
pub(crate) const SELECT_STORED_IN_NAMESPACE: &str =
    "SELECT checkpoint_ns, checkpoint_id, NULL FROM checkpoints WHERE thread_id = ?1 AND checkpoint_ns = ?2";
pub(crate) const SELECT_STORED_WRITES_IN_NAMESPACE: &str = "SELECT checkpoint_ns, checkpoint_id, 1 FROM writes \
    WHERE thread_id = ?1 AND checkpoint_ns = ?2 GROUP BY checkpoint_id";

/// The writes of a thread, by checkpoint.
pub(crate) const SELECT_STORED_WRITES: &str = "SELECT checkpoint_ns, checkpoint_id, count(*) FROM writes \
    WHERE thread_id = ?1 GROUP BY checkpoint_ns, checkpoint_id";

/// The task and the channel of each write on a checkpoint.
pub(crate) const SELECT_TASKS: &str =
    "SELECT task_id, channel FROM writes WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3";

/// The sizes of all threads; SQLite sorts them on disk.
pub(crate) const SELECT_THREAD_SIZES: &str = "SELECT thread_id, sum(checkpoints), sum(writes), sum(bytes) FROM (\
    SELECT thread_id, 1 AS checkpoints, 0 AS writes, \
    ifnull(octet_length(checkpoint), 0) + ifnull(octet_length(metadata), 0) AS bytes FROM checkpoints UNION ALL \
    SELECT thread_id, 0, 1, ifnull(octet_length(value), 0) FROM writes) GROUP BY thread_id";
pub(crate) const SELECT_CHECKPOINT_SIZES: &str = "SELECT thread_id, checkpoint_ns, checkpoint_id, \
    ifnull(octet_length(checkpoint), 0) + ifnull(octet_length(metadata), 0) FROM checkpoints";
pub(crate) const SELECT_FILE_SIZE: &str = "SELECT page_count * page_size, freelist_count * page_size \
    FROM pragma_page_count, pragma_page_size, pragma_freelist_count";

/// The free pages of a file that can give them back (mode 2 is `INCREMENTAL`).
pub(crate) const SELECT_FREE_PAGES: &str =
    "SELECT freelist_count FROM pragma_freelist_count, pragma_auto_vacuum WHERE auto_vacuum = 2";

/// Gives pages back, one in each step of the statement.
pub(crate) fn give_back(pages: u64) -> String {
    format!("PRAGMA incremental_vacuum({pages})")
}

pub(crate) const SELECT_LEASE: &str = "SELECT token, expires_at FROM checkpoint_leases WHERE thread_id = ?1";
pub(crate) const UPSERT_LEASE: &str = "INSERT OR REPLACE INTO checkpoint_leases \
    (thread_id, holder, token, expires_at) VALUES (?1, ?2, ?3, ?4)";
pub(crate) const RENEW_LEASE: &str = "UPDATE checkpoint_leases SET expires_at = ?4 \
    WHERE thread_id = ?1 AND holder = ?2 AND token = ?3 AND expires_at > 0";
pub(crate) const RELEASE_LEASE: &str = "UPDATE checkpoint_leases SET expires_at = 0 \
    WHERE thread_id = ?1 AND holder = ?2 AND token = ?3";
pub(crate) const DELETE_EXPIRED_LEASE: &str =
    "DELETE FROM checkpoint_leases WHERE thread_id = ?1 AND expires_at <= ?2";
pub(crate) const DELETE_LEASE: &str = "DELETE FROM checkpoint_leases WHERE thread_id = ?1";

/// Values that are bound to their row cannot be copied unchanged. `GLOB` is exact, `LIKE` ignores case.
pub(crate) const COPY_CHECKPOINTS: &str = "INSERT OR REPLACE INTO checkpoints \
    (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata) \
    SELECT ?2, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata \
    FROM checkpoints WHERE thread_id = ?1 AND (type IS NULL OR type NOT GLOB '*+aes256gcm')";

/// Copies the writes of thread `?1` to `?2`, except those that are bound to their row.
pub(crate) fn copy_writes(has_task_path: bool) -> String {
    let column = if has_task_path { ", task_path" } else { "" };
    format!(
        "INSERT OR REPLACE INTO writes \
         (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value{column}) \
         SELECT ?2, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value{column} \
         FROM writes WHERE thread_id = ?1 AND (type IS NULL OR type NOT GLOB '*+aes256gcm')"
    )
}

pub(crate) const SELECT_BOUND_CHECKPOINTS: &str =
    "SELECT rowid FROM checkpoints WHERE thread_id = ?1 AND type GLOB '*+aes256gcm'";
pub(crate) const SELECT_BOUND_WRITES: &str =
    "SELECT rowid FROM writes WHERE thread_id = ?1 AND type GLOB '*+aes256gcm'";

pub(crate) const SELECT_CHECKPOINT_BY_ROWID: &str = "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata \
     FROM checkpoints WHERE rowid = ?1";

pub(crate) fn select_write_by_rowid(has_task_path: bool) -> String {
    format!(
        "SELECT checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value, {} FROM writes WHERE rowid = ?1",
        task_path(has_task_path)
    )
}

// Loose scans: each statement jumps in the primary-key index to the next value of one of its columns.

/// The first thread, from a prefix on.
pub(crate) const FIRST_THREAD: &str =
    "SELECT thread_id FROM checkpoints WHERE thread_id >= ?1 ORDER BY thread_id LIMIT 1";
pub(crate) const NEXT_THREAD: &str =
    "SELECT thread_id FROM checkpoints WHERE thread_id > ?1 ORDER BY thread_id LIMIT 1";
pub(crate) const FIRST_NAMESPACE: &str =
    "SELECT checkpoint_ns FROM checkpoints WHERE thread_id = ?1 ORDER BY checkpoint_ns LIMIT 1";
pub(crate) const NEXT_NAMESPACE: &str = "SELECT checkpoint_ns FROM checkpoints \
    WHERE thread_id = ?1 AND checkpoint_ns > ?2 ORDER BY checkpoint_ns LIMIT 1";
pub(crate) const LATEST_ID: &str = "SELECT checkpoint_id FROM checkpoints \
    WHERE thread_id = ?1 AND checkpoint_ns = ?2 ORDER BY checkpoint_id DESC LIMIT 1";

// The same over both tables: threads may have only writes.

pub(crate) const FIRST_THREAD_ID: &str = "SELECT min(thread_id) FROM (\
    SELECT * FROM (SELECT thread_id FROM checkpoints ORDER BY thread_id LIMIT 1) UNION ALL \
    SELECT * FROM (SELECT thread_id FROM writes ORDER BY thread_id LIMIT 1))";
pub(crate) const NEXT_THREAD_ID: &str = "SELECT min(thread_id) FROM (\
    SELECT * FROM (SELECT thread_id FROM checkpoints WHERE thread_id > ?1 ORDER BY thread_id LIMIT 1) UNION ALL \
    SELECT * FROM (SELECT thread_id FROM writes WHERE thread_id > ?1 ORDER BY thread_id LIMIT 1))";

/// The type and the first `?2` bytes of each value of a thread. A row of the type `empty` has no value.
pub(crate) const SELECT_HEADS: &str = "SELECT type, substr(checkpoint, 1, ?2) FROM checkpoints \
    WHERE thread_id = ?1 AND type IS NOT 'empty' UNION ALL \
    SELECT type, substr(value, 1, ?2) FROM writes WHERE thread_id = ?1 AND type IS NOT 'empty'";

/// The checkpoints of a thread from a key on, or after it.
pub(crate) fn select_checkpoints_to_rekey(includes_key: bool) -> String {
    format!(
        "SELECT checkpoint_ns, checkpoint_id, type, checkpoint FROM checkpoints \
         WHERE thread_id = ?1 AND (checkpoint_ns, checkpoint_id) {} (?2, ?3) AND type IS NOT 'empty' \
         ORDER BY checkpoint_ns, checkpoint_id",
        at_least(includes_key)
    )
}

/// The writes of a thread from a key on, or after it.
pub(crate) fn select_writes_to_rekey(includes_key: bool) -> String {
    format!(
        "SELECT checkpoint_ns, checkpoint_id, type, value, task_id, idx, channel FROM writes \
         WHERE thread_id = ?1 AND (checkpoint_ns, checkpoint_id, task_id, idx) {} (?2, ?3, ?4, ?5) \
         AND type IS NOT 'empty' ORDER BY checkpoint_ns, checkpoint_id, task_id, idx",
        at_least(includes_key)
    )
}

const fn at_least(includes_key: bool) -> &'static str {
    if includes_key { ">=" } else { ">" }
}

// These change a row only if it is as it was read. Old writers stored some bytes as text.

pub(crate) const REKEY_CHECKPOINT: &str = "UPDATE checkpoints SET type = ?4, checkpoint = ?5 \
    WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3 AND type IS ?6 AND CAST(checkpoint AS BLOB) IS ?7";
pub(crate) const REKEY_WRITE: &str = "UPDATE writes SET type = ?4, value = ?5 \
    WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3 AND task_id = ?8 AND idx = ?9 \
    AND channel = ?10 AND type IS ?6 AND CAST(value AS BLOB) IS ?7";

/// One page of a listing's keys. All columns are in the index of the primary key, so no row is read.
pub(crate) fn select_keys(page: ListConditions) -> String {
    let conditions = [
        (page.thread_id, "thread_id = :thread_id"),
        (page.checkpoint_ns, "checkpoint_ns = :checkpoint_ns"),
        (page.checkpoint_id, "checkpoint_id = :checkpoint_id"),
        (page.before, "checkpoint_id < :before"),
        // Within one namespace the id alone is the cursor, and the index gives the order.
        (page.after && page.is_one_namespace(), "checkpoint_id < :after_id"),
        (
            page.after && !page.is_one_namespace(),
            "checkpoint_id <= :after_id AND (checkpoint_id < :after_id OR thread_id > :after_thread \
             OR (thread_id = :after_thread AND checkpoint_ns > :after_ns))",
        ),
    ];
    let mut sql = String::from("SELECT thread_id, checkpoint_ns, checkpoint_id FROM checkpoints");
    let mut word = " WHERE ";
    for (_, condition) in conditions.iter().filter(|(wanted, _)| *wanted) {
        sql.push_str(word);
        sql.push_str(condition);
        word = " AND ";
    }
    sql.push_str(" ORDER BY checkpoint_id DESC, thread_id, checkpoint_ns LIMIT :count");
    sql
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    fn plan(connection: &Connection, sql: &str) -> String {
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        // The plan does not depend on the parameters.
        let mut rows = statement.raw_query();
        let mut steps = Vec::new();
        while let Some(row) = rows.next().unwrap() {
            steps.push(row.get::<_, String>(3).unwrap());
        }
        steps.join("; ")
    }

    #[test]
    fn keys_come_from_the_index_and_loose_scans_jump_in_it() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(CREATE_CHECKPOINTS).unwrap();
        connection.execute_batch(CREATE_WRITES).unwrap();
        connection.execute_batch(CREATE_LEASES).unwrap();
        for page in ListConditions::all() {
            let plan = plan(&connection, &select_keys(page));
            assert!(plan.contains("COVERING INDEX"), "{page:?}: {plan}");
            if page.is_one_namespace() {
                assert!(plan.starts_with("SEARCH") && !plan.contains("B-TREE"), "{page:?}: {plan}");
            }
        }
        for sql in [FIRST_THREAD, NEXT_THREAD, FIRST_NAMESPACE, NEXT_NAMESPACE, LATEST_ID] {
            let plan = plan(&connection, sql);
            assert!(plan.contains("COVERING INDEX") && !plan.contains("B-TREE"), "{sql}: {plan}");
        }
        for sql in [FIRST_THREAD_ID, NEXT_THREAD_ID] {
            let plan = plan(&connection, sql);
            assert!(plan.matches("COVERING INDEX").count() == 2 && !plan.contains("B-TREE"), "{sql}: {plan}");
        }
        let heads = plan(&connection, SELECT_HEADS);
        assert!(heads.matches("SEARCH").count() == 2 && !heads.contains("SCAN"), "{heads}");
        let by_key = [
            SELECT_CHECKPOINT,
            SELECT_LATEST_CHECKPOINT,
            SELECT_METADATA,
            SELECT_PARENT,
            SELECT_IS_STORED,
            SELECT_CHILDREN,
            SELECT_HAS_WRITES,
            SELECT_LEASE,
            RENEW_LEASE,
            RELEASE_LEASE,
            DELETE_LEASE,
            DELETE_EXPIRED_LEASE,
            SELECT_LATEST_PARENT,
            &select_writes(true),
            DELETE_CHECKPOINT,
            DELETE_WRITES,
            DELETE_THREAD_CHECKPOINTS,
            DELETE_THREAD_WRITES,
            CLEAR_PARENT,
            REKEY_CHECKPOINT,
            REKEY_WRITE,
            &select_checkpoints_to_rekey(true),
            &select_checkpoints_to_rekey(false),
            &select_writes_to_rekey(true),
            &select_writes_to_rekey(false),
            SELECT_STORED_WITH_PARENTS,
            SELECT_SIZE,
            SELECT_SIZE_OF_WRITES,
            SELECT_TASKS,
        ];
        let keys = [
            SELECT_STORED,
            SELECT_STORED_IN_NAMESPACE,
            SELECT_STORED_WRITES_IN_NAMESPACE,
            SELECT_STORED_WRITES,
        ];
        for sql in by_key.iter().chain(&keys) {
            let plan = plan(&connection, sql);
            assert!(plan.starts_with("SEARCH") && !plan.contains("B-TREE"), "{sql}: {plan}");
        }
        for sql in keys {
            let plan = plan(&connection, sql);
            assert!(plan.contains("COVERING INDEX"), "{sql}: {plan}");
        }
    }
}
