//! The statements of `rekey`. They read a thread page by page in the order of its keys, and change a row only if it is as
//! it was read (`xmin`).

use checkpoint_core::SealedBy;

use super::{blob_at, checkpoint_at, version_of};
use crate::document::SEALED_FIELDS;

/// The most rows of a page.
pub(crate) const PAGE_ROWS: i64 = 32;

/// A page ends with the row that brings it to this many bytes.
const PAGE_BYTES: usize = 4 << 20;

/// A blob that has only `true` in it is not larger than this, encrypted or not.
const MAX_MARKED: usize = 512;

/// The columns of each page, before those of its key.
pub(crate) mod column {
    /// How many rows the page would have without the limit of bytes.
    pub(crate) const FOUND: usize = 0;
    /// The version of the row.
    pub(crate) const XMIN: usize = 1;
    // Of a blob or a write.
    pub(crate) const TYPE: usize = 2;
    pub(crate) const DATA: usize = 3;
    // Of a document.
    pub(crate) const CHECKPOINT: usize = 2;
    // The key.
    pub(crate) const BLOB_NS: usize = 4;
    pub(crate) const BLOB_CHANNEL: usize = 5;
    pub(crate) const BLOB_VERSION: usize = 6;
    pub(crate) const WRITE_NS: usize = 4;
    pub(crate) const WRITE_CHECKPOINT_ID: usize = 5;
    pub(crate) const WRITE_TASK_ID: usize = 6;
    pub(crate) const WRITE_IDX: usize = 7;
    pub(crate) const WRITE_CHANNEL: usize = 8;
    pub(crate) const DOCUMENT_NS: usize = 3;
    pub(crate) const DOCUMENT_CHECKPOINT_ID: usize = 4;
}

/// What [`count_values`] counts.
pub(crate) mod counted {
    pub(crate) const TYPE: usize = 0;
    pub(crate) const HEAD: usize = 1;
    pub(crate) const COUNT: usize = 2;
}

/// The next rows of thread `$1` from a key on, or after it. The key is `$3` and following, `$2` the bytes with which
/// current values begin.
fn page(s: &str, table: &str, row: &Row<'_>, includes_key: bool) -> String {
    let Row { values, key, parameters, more, size, condition } = row;
    let at_least = if includes_key { ">=" } else { ">" };
    format!(
        "SELECT found, was, {values}, {key}{more} FROM ( \
         SELECT *, count(*) OVER () AS found, sum(size) OVER (ORDER BY {key}) - size AS before FROM ( \
         SELECT xmin::text AS was, {values}, {key}{more}, coalesce({size}, 0) AS size FROM {s}{table} \
         WHERE thread_id = $1 AND ({key}) {at_least} ({parameters}) AND {condition} \
         ORDER BY {key} LIMIT {PAGE_ROWS}) r) r \
         WHERE before < {PAGE_BYTES} ORDER BY {key}"
    )
}

struct Row<'a> {
    values: &'a str,
    key: &'a str,
    parameters: &'a str,
    /// Further columns, each after a comma.
    more: &'a str,
    size: &'a str,
    condition: &'a str,
}

/// Whether a value is not sealed by the key whose values begin with `$2`.
const NOT_CURRENT: &str = "coalesce(type, '') <> 'empty' AND ($2::bytea IS NULL OR NOT coalesce( \
     type LIKE '%+aes256gcm' AND substring(blob FROM 1 FOR length($2)) = $2, false))";

pub(super) fn blobs(s: &str, includes_key: bool) -> String {
    let row = Row {
        values: "type, blob",
        key: "checkpoint_ns, channel, version",
        parameters: "$3, $4, $5",
        more: "",
        size: "octet_length(blob)",
        condition: NOT_CURRENT,
    };
    page(s, "checkpoint_blobs", &row, includes_key)
}

pub(super) fn writes(s: &str, includes_key: bool) -> String {
    let row = Row {
        values: "type, blob",
        key: "checkpoint_ns, checkpoint_id, task_id, idx",
        parameters: "$3, $4, $5, $6",
        more: ", channel",
        size: "octet_length(blob)",
        condition: NOT_CURRENT,
    };
    page(s, "checkpoint_writes", &row, includes_key)
}

/// The documents that may have something to seal: inline values (or marks of snapshots), plain fields, or sealed fields.
pub(super) fn documents(s: &str, includes_key: bool) -> String {
    let condition = format!(
        "(jsonb_typeof(checkpoint->'channel_values') = 'object' AND checkpoint->'channel_values' <> '{{}}' \
         OR {} OR checkpoint ? '{SEALED_FIELDS}' AND ($2::bytea IS NULL \
         OR NOT coalesce(substring({} FROM 1 FOR length($2)) = $2, false)))",
        has_plain_fields("checkpoint"),
        fields_head("checkpoint"),
    );
    let row = Row {
        values: "checkpoint",
        key: "checkpoint_ns, checkpoint_id",
        parameters: "$3, $4",
        more: "",
        size: "pg_column_size(checkpoint)",
        condition: &condition,
    };
    page(s, "checkpoints", &row, includes_key)
}

/// Whether a document has fields, other than null, that LangGraph does not have.
fn has_plain_fields(document: &str) -> String {
    format!(
        "(jsonb_typeof({document}) = 'object' AND jsonb_strip_nulls(CASE WHEN jsonb_typeof({document}) = 'object' \
         THEN {document} - '{{v,ts,id,channel_values,channel_versions,versions_seen,updated_channels,{SEALED_FIELDS}}}'::text[] \
         END) <> '{{}}')"
    )
}

/// The first bytes of the sealed fields of a document, or NULL if they are not base64.
fn fields_head(document: &str) -> String {
    let text =
        format!("left({document}->'{SEALED_FIELDS}'->>1, {})", usize::from(SealedBy::HEAD).div_ceil(3) * 4);
    format!(
        "CASE WHEN {text} ~ '^([A-Za-z0-9+/]{{4}})*([A-Za-z0-9+/]{{2}}==|[A-Za-z0-9+/]{{3}}=)?$' \
         THEN decode({text}, 'base64') END"
    )
}

/// How many values of thread `$1` have which type and, if they are bound to their row, begin with which header.
pub(super) fn count_values(s: &str) -> String {
    let head = SealedBy::HEAD;
    format!(
        "SELECT type, CASE WHEN type LIKE '%+aes256gcm' AND octet_length(head) > 1 \
         THEN substring(head FROM 1 FOR 2 + get_byte(head, 1)) END AS head, count(*) FROM ( \
         SELECT type, substring(blob FROM 1 FOR {head}) AS head \
         FROM {s}checkpoint_blobs WHERE thread_id = $1 AND type <> 'empty' \
         UNION ALL \
         SELECT coalesce(type, ''), substring(blob FROM 1 FOR {head}) \
         FROM {s}checkpoint_writes WHERE thread_id = $1 AND coalesce(type, '') <> 'empty' \
         UNION ALL \
         SELECT coalesce(checkpoint->'{SEALED_FIELDS}'->>0, ''), {fields_head} \
         FROM {s}checkpoints WHERE thread_id = $1 AND checkpoint ? '{SEALED_FIELDS}' \
         UNION ALL \
         SELECT '', NULL FROM {s}checkpoints WHERE thread_id = $1 AND {has_plain_fields} \
         UNION ALL \
         SELECT '', NULL FROM {s}checkpoints c \
         CROSS JOIN LATERAL jsonb_each({values}) AS channel (channel, value) \
         WHERE c.thread_id = $1 AND (channel.value <> 'true' OR coalesce(({blob}), 'empty') = 'empty') \
         ) v GROUP BY 1, 2",
        fields_head = fields_head("checkpoint"),
        has_plain_fields = has_plain_fields("checkpoint"),
        values = "CASE WHEN jsonb_typeof(c.checkpoint->'channel_values') = 'object' \
                  THEN c.checkpoint->'channel_values' END",
        blob = blob_at(
            s,
            "b.type",
            "c.thread_id",
            "c.checkpoint_ns",
            "channel.channel",
            &version_of("c.checkpoint")
        ),
    )
}

/// The values of channels that are `true` in a document: the position of the channel in the arrays `$2` (namespaces), `$3`
/// and `$4` (versions), from 1, with the type and the bytes of its blob if it is small.
pub(super) fn marked_blobs(s: &str) -> String {
    format!(
        "SELECT n.at, b.type, CASE WHEN octet_length(b.blob) <= {MAX_MARKED} THEN b.blob END \
         FROM unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS n (ns, channel, version, at) \
         CROSS JOIN LATERAL ({}) b",
        blob_at(s, "b.type, b.blob", "$1", "n.ns", "n.channel", "n.version")
    )
}

/// Replaces a blob that is as it was read: thread, namespace, channel, version, `xmin`, then type and bytes.
pub(super) fn set_blob(s: &str) -> String {
    format!(
        "UPDATE {s}checkpoint_blobs SET type = $6, blob = $7 WHERE ctid = ({}) AND xmin::text = $5",
        blob_at(s, "b.ctid", "$1", "$2", "$3", "$4")
    )
}

/// Replaces a write that is as it was read: thread, namespace, checkpoint, task, index, `xmin`, then type and bytes.
pub(super) fn set_write(s: &str) -> String {
    format!(
        "UPDATE {s}checkpoint_writes SET type = $7, blob = $8 WHERE ctid = ( \
         SELECT w.ctid FROM {s}checkpoint_writes w WHERE w.thread_id = $1 AND w.checkpoint_ns = $2 \
         AND w.checkpoint_id = $3 AND w.task_id = $4 AND w.idx >= $5 AND w.idx <= $5 ORDER BY w.idx LIMIT 1) \
         AND xmin::text = $6"
    )
}

/// Replaces a document that is as it was read: thread, namespace, checkpoint, `xmin`, then the document and the values
/// that it had: channels, versions, types and bytes.
pub(super) fn set_document(s: &str) -> String {
    format!(
        "WITH stored AS (UPDATE {s}checkpoints SET checkpoint = $5 WHERE ctid = ({}) AND xmin::text = $4 RETURNING true), \
         blobs AS (INSERT INTO {s}checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob) \
         SELECT $1, $2, b.* FROM stored, unnest($6::text[], $7::text[], $8::text[], $9::bytea[]) AS b \
         ON CONFLICT (thread_id, checkpoint_ns, channel, version) DO UPDATE SET type = EXCLUDED.type, \
         blob = EXCLUDED.blob WHERE checkpoint_blobs.type = 'empty') \
         SELECT true FROM stored",
        checkpoint_at(s, "ctid", "$1", "$2", "$3")
    )
}
