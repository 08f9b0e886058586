//! Statements that list threads.

use super::{SENDS_INSIDE_FROM, TASKS, blob_at, checkpoint_at, versions_of, with_namespaces};

/// Up to `$2` threads after `$1` that begin with `$3`: jumps from thread to thread in the index, and in each from
/// namespace to namespace.
fn page(s: &str) -> String {
    // Where texts sort by their bytes, the ids with a prefix follow each other.
    const BY_BYTES: &str = "'Z'::text < 'a'::text";
    let next = |condition: &str| {
        format!("(SELECT c.thread_id FROM {s}checkpoints c WHERE {condition} ORDER BY c.thread_id LIMIT 1)")
    };
    format!(
        "WITH RECURSIVE threads AS ( \
         SELECT CASE WHEN $1::text IS NULL OR ({BY_BYTES} AND $1 < $3) THEN {first} ELSE {after} END AS thread_id \
         UNION ALL \
         SELECT {following} FROM threads t \
         WHERE t.thread_id IS NOT NULL AND (NOT {BY_BYTES} OR starts_with(t.thread_id, $3))), \
         page AS (SELECT thread_id FROM threads WHERE thread_id IS NOT NULL AND starts_with(thread_id, $3) LIMIT $2)",
        first = next(&format!("c.thread_id >= CASE WHEN {BY_BYTES} THEN $3::text ELSE '' END")),
        after = next("c.thread_id > $1"),
        following = next("c.thread_id > t.thread_id"),
    )
}

/// The newest checkpoint of a namespace `n` of the thread `t`.
fn newest(s: &str) -> String {
    format!(
        "(SELECT c.checkpoint_id FROM {s}checkpoints c WHERE c.thread_id = t.thread_id \
         AND c.checkpoint_ns = n.checkpoint_ns ORDER BY c.checkpoint_id DESC LIMIT 1)"
    )
}

/// Lists threads: the id and the newest checkpoint of each.
pub(super) fn list(s: &str) -> String {
    format!(
        "{page} SELECT t.thread_id, n.newest FROM page t CROSS JOIN LATERAL ( \
         {namespaces} SELECT max({newest} COLLATE \"C\") AS newest \
         FROM namespaces n WHERE n.checkpoint_ns IS NOT NULL) n",
        page = page(s),
        namespaces = with_namespaces(s, "t.thread_id"),
        newest = newest(s),
    )
}

/// Lists threads with what their state follows from, in the columns of [`state`](super::state): the newest checkpoint of
/// the root namespace, or, without one, of the thread. No value is read.
pub(super) fn list_with_state(s: &str) -> String {
    const ORDER: &str = "ORDER BY k.ns = '' DESC, k.id COLLATE \"C\" DESC, k.ns COLLATE \"C\" DESC";
    format!(
        "{page} SELECT t.thread_id, n.newest, n.ns, n.id, c.metadata, {channels} AS channels, w.tasks, w.channels \
         FROM page t CROSS JOIN LATERAL ( \
         {namespaces} SELECT max(k.id COLLATE \"C\") AS newest, (array_agg(k.ns {ORDER}))[1] AS ns, \
         (array_agg(k.id {ORDER}))[1] AS id FROM (SELECT n.checkpoint_ns AS ns, {newest} AS id \
         FROM namespaces n WHERE n.checkpoint_ns IS NOT NULL OFFSET 0) k) n \
         CROSS JOIN LATERAL ({row}) c \
         CROSS JOIN LATERAL (SELECT array_agg(w.task_id) AS tasks, array_agg(w.channel) AS channels \
         FROM (SELECT w.task_id, w.channel FROM {s}checkpoint_writes w WHERE w.thread_id = t.thread_id \
         AND w.checkpoint_ns = n.ns AND w.checkpoint_id = n.id ORDER BY w.task_id, w.idx OFFSET 0) w) w",
        page = page(s),
        namespaces = with_namespaces(s, "t.thread_id"),
        newest = newest(s),
        row = checkpoint_at(s, "parent_checkpoint_id, checkpoint, metadata", "t.thread_id", "n.ns", "n.id"),
        channels = set_channels(s),
    )
}

/// The channels that the last step of checkpoint `c` set, or, in documents that do not have them, all that have a value,
/// and the sends that old ones have on their parent.
fn set_channels(s: &str) -> String {
    format!(
        "CASE WHEN jsonb_typeof(c.checkpoint->'updated_channels') = 'array' \
         THEN ARRAY(SELECT jsonb_array_elements_text(c.checkpoint->'updated_channels')) \
         ELSE ARRAY(SELECT jsonb_object_keys(CASE WHEN jsonb_typeof(c.checkpoint->'channel_values') = 'object' \
         THEN c.checkpoint->'channel_values' END) \
         UNION ALL SELECT v.key FROM jsonb_each_text({versions}) v WHERE coalesce(({blob}), 'empty') <> 'empty' \
         UNION ALL SELECT '{TASKS}' WHERE c.checkpoint->'v' < '{SENDS_INSIDE_FROM}' \
         AND (SELECT true FROM {s}checkpoint_writes w WHERE w.thread_id = t.thread_id AND w.checkpoint_ns = n.ns \
         AND w.checkpoint_id = c.parent_checkpoint_id AND w.channel = '{TASKS}' ORDER BY w.task_id, w.idx LIMIT 1)) END",
        versions = versions_of("c.checkpoint"),
        blob = blob_at(s, "b.type", "t.thread_id", "n.ns", "v.key", "v.value"),
    )
}
