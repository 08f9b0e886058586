//! LangGraph checkpoints in PostgreSQL, in the very tables that LangGraph's Python (`langgraph-checkpoint-postgres`)
//! uses.
//!
//! ```no_run
//! use checkpoint_core::{BaseCheckpointSaver, SaverExt};
//! use checkpoint_postgres::PostgresSaver;
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct State {
//!     question: String,
//!     answer: Option<String>,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> checkpoint_core::Result<()> {
//! let saver = PostgresSaver::builder("postgres://agents@localhost/agents?sslmode=verify-full").build()?;
//! saver.setup().await?;
//!
//! let thread = saver.thread("thread-1");
//! let step = thread.begin(&State { question: "why?".into(), answer: None }).await?;
//! thread.commit(&step, &State { question: "why?".into(), answer: Some("because".into()) }).await?;
//! assert_eq!(thread.latest().await?.unwrap().channel::<String>("answer")?.unwrap(), "because");
//! # Ok(())
//! # }
//! ```
//!
//! # Where the bytes go
//!
//! | table | key | other columns |
//! |---|---|---|
//! | `checkpoints` | `thread_id, checkpoint_ns, checkpoint_id` | `parent_checkpoint_id`; `checkpoint`: JSON with versions and scalar values; `metadata`: JSON |
//! | `checkpoint_blobs` | `thread_id, checkpoint_ns, channel, version` | `type` and `blob`: every other value, once per version |
//! | `checkpoint_writes` | `thread_id, checkpoint_ns, checkpoint_id, task_id, idx` | `channel`; `type` and `blob`; `task_path` |
//! | `checkpoint_migrations` | `v` | the migrations that were run, in Python's numbers |
//! | `checkpoint_leases` | `thread_id` | `holder`, `token` and `expires_at` of the thread's last lease; Python does not know this table |
//!
//! `put` stores only the values of the channels in `new_versions`; an unchanged value is one row for all checkpoints that
//! name its version. The tables are in the first schema of the role's `search_path`, or in the one
//! that [`PostgresSaverBuilder::schema`] names.
//!
//! [`setup`] creates and upgrades the tables with Python's migrations (0 to 9), under an advisory lock, so that many
//! processes may run it at deploy; it needs two connections of the pool. Indexes are built concurrently, and an index that
//! an interrupted run left invalid is rebuilt. Then it sets `COMPRESSION lz4` on the two columns of bytes if the server
//! supports it (see [`Compression`]). Tables newer than this program are rejected.
//!
//! The table of leases has no migration number, so that Python's `setup()` works before and after ours. A role that may not
//! create it works without leases: only calls with a lease fail, with kind `Schema`.
//!
//! [`setup`]: checkpoint_core::BaseCheckpointSaver::setup
//!
//! # What Python sees
//!
//! Python and Rust use the same tables concurrently: a thread that was started in Python continues in Rust, and vice
//! versa, with both generations of `langgraph-checkpoint-postgres` (3.1 and 3.2). As in Python, a second `put` of an id keeps its parent, the first
//! writer of a channel's version wins, and pending writes of special channels keep their task path. The differences:
//!
//! * Scalars that the server's JSON would change or reject (NaN and infinities, `-0.0`, doubles from 1e16 on, texts with
//!   U+0000) are stored in `checkpoint_blobs`, where Python reads them, too. Integers beyond 64 bits are stored unchanged,
//!   but in metadata they are read as doubles.
//! * Names of channels and tasks with a backslash are rejected: they would break Python's reads.
//! * Pending writes are ordered by task path, task and index, as in the newer generation.
//! * A `put` that carries over a value whose row was deleted meanwhile (a thread deleted or pruned under a running agent)
//!   stores the value again; in Python that checkpoint lacks it.
//! * `null` as a plain value ends the walk of a delta history, as on every other backend.
//! * `prune` keeps the ancestors that delta channels need; Python rejects such threads. It removes unreferenced blobs, and
//!   so does `delete_for_runs`.
//!
//! # Values of another serializer
//!
//! With [`PostgresSaverBuilder::opaque_values`] the bytes of an unknown serializer are stored unchanged, in the rows in which Python's saver stores them with that serializer. Scalars stay in the document, where
//! every reader finds them ([`InlineScalars::Jsonb`](checkpoint_core::InlineScalars::Jsonb)). All calls work: none decodes a
//! value.
//!
//! # What a call costs
//!
//! | call | round trips | statements |
//! |---|---|---|
//! | `put` | 1 | 1; a second round trip, with a transaction, where it carries over values that its parent does not name, or whose parent is not stored (any more), or another call holds the thread's exclusive lock |
//! | `put` with `PutCondition::ParentStored` only | 1 | 1, as a plain `put`; a second round trip, with a transaction, where that stores nothing |
//! | `put` with another condition, a step key or a lease | 1 | 3: a pipelined transaction; a second one where it carries over values that its parent does not name. A step key reads the checkpoints that are newer than the parent |
//! | `put_writes`, with options or without | 1 | 1 |
//! | `acquire_lease`, `renew_lease`, `release_lease` | 1 | 1 |
//! | `get_tuple` | 1 | 1; each value is looked up by its whole key |
//! | `list` | 1 per page | the first page has up to 16 tuples, later ones up to 128 or 4 MiB; a value that several checkpoints of a page share is sent once. Without a thread and a namespace each page sorts the keys of all matching rows: there is no index on ids alone |
//! | `list_threads` | 1 per 128 threads | 1 each; jumps from thread to thread in the index. A prefix is found in the index where the database sorts by bytes (collation `C`, `C.UTF-8`); elsewhere it jumps over all threads. With state it also reads the metadata of one checkpoint per thread, which channels it set, and the tasks of its writes, but no value. `status`, `filter`, `active_since` and `idle_since` are applied to the threads that were read |
//! | `list_thread_ids` | 1 per 128 threads | 1 each; jumps from thread to thread in the indexes of all tables |
//! | `delete_thread` | 1 | 3: a pipelined transaction. One more round trip the first time in a process that did not run `setup()` |
//! | `get_delta_channel_history` | 1 per 1,024 ancestors | |
//! | `copy_thread` | 7 | the rows do not leave the server, except for values and writes that AES-GCM bound to their row: 1 more for each of them, and 1 more for each batch of up to 32 values or 32 writes |
//! | `prune` | per thread 5, and 1 per namespace with delta channels of which anything goes; to delete threads 1 each | 8 |
//! | `retain` | per 256 threads 5; 1 more if one of them was interrupted, 1 per namespace with delta channels of which anything goes, and 1 or 2 for the leases of threads that go; a dry run 4 | one transaction for all of these threads, so give it some dozens at a time. No value is read; keys are deleted by arrays |
//! | `put` with [`keep_last`](PostgresSaverBuilder::keep_last) | 1; about each `keep_last`-th call 5 more | some calls count the namespace's checkpoints, in the same round trip. What is removed is not awaited on the disk: after a crash of the server a later call removes it again |
//! | `usage` | 3 | reads every row, but no value |
//! | `delete_for_runs` | 6; 3 if no checkpoint belongs to these runs | reads the metadata of the whole table: there is no index on runs. For more than 256 threads it locks the tables, which blocks all writers |
//! | `rekey` | 4 if there is nothing to seal; 1 for a dry run | counts the values, then reads those that the sealing key has not sealed: one statement each for values, documents and writes per 32 of them or 4 MiB. 1 more for each of these batches that has something to store: a pipelined transaction with a statement for each value or document. 1 more to count again, and 1 for each batch of documents that have an inline `true`, which marks a snapshot if its value is a blob. With AES-EAX a dry run reads the values, too |
//! | `setup` | 5 once the tables exist | |
//! | `ping`, `check_schema` | 1 | 1; on the primary |
//!
//! Without a number of statements, each round trip is one statement. BEGIN and COMMIT are counted, too.
//! The conformance suite counts both and compares them with this table.
//!
//! A statement's first use on a connection takes one more round trip. Behind PgBouncer in transaction mode
//! ([`PostgresSaverBuilder::pgbouncer`]) statements are unnamed: that round trip is saved, but each call is planned again.
//! Connections of our own pool plan each named statement once (`plan_cache_mode = force_generic_plan`).
//!
//! # Isolation
//!
//! Every change is one transaction (`prune` has one per thread, `retain` one per 256 threads): atomic, and visible to every later read. A read sees one
//! state of the database; a listing one per page. Calls that change many rows of a thread (`delete_thread`, `prune`,
//! `retain`, `copy_thread`, `delete_for_runs`) take its advisory lock (class 1667985524) exclusively, `put` and `put_writes` take it
//! shared, as does `rekey` for each batch that it stores. This prevents deadlocks, and no checkpoint names a value that is
//! being deleted. Python's writers take no such lock.
//!
//! `rekey` reads and seals a batch without a transaction, then stores each value only if its row is as it was read; rows
//! that changed are read again. Each batch is one transaction.
//!
//! A `put` with `ParentIsLatest`, a step key or a lease also takes a lock (class 1668314484) that all such calls on the
//! thread take, so it sees what they have stored. A plain `put` takes no such lock: one that runs at the same moment is not
//! seen. The parent, or the checkpoint of conditional writes, is locked until the call has stored its rows, so not even Python
//! deletes it in between. Conditional writes wait for each other at the first row: of several results of a task one is
//! stored as a whole. A lease is checked by its row in the statement that writes, which `acquire_lease` waits for.
//!
//! A dropped call leaves no connection in a transaction. A statement that was sent runs to its end, and the next user of
//! the connection waits for it. Acknowledged writes are as durable as the server's `synchronous_commit` promises.
//!
//! A call that fails because the server restarts, the connection was lost, or another transaction conflicted is retried
//! with backoff (see [`PostgresSaverBuilder::max_retries`]). Calls are idempotent: a conditional `put` finds its own
//! checkpoint, `acquire_lease` its own lease. Only `put_writes` with `once` fails with `Conflict` if its first attempt was
//! stored and the reply was lost.
//!
//! # What is not encrypted
//!
//! With a [`Cipher`](checkpoint_core::Cipher) every channel value and every write is encrypted, including scalars: they are
//! then stored in `checkpoint_blobs`, where Python with the same key reads them (AES-EAX only). Fields of a checkpoint that
//! LangGraph does not have are encrypted in the document. `rekey` does all that with values that were stored without a
//! cipher. An inline value whose channel has no version in its checkpoint cannot become a blob, and is counted as plain. Python stores scalars in plain, also with
//! its cipher. Not encrypted are thread ids, namespaces, checkpoint ids
//! and parents, task ids and paths, channel names and versions, the time, which channels hold a delta snapshot, type
//! tags, and all of the metadata.
//!
//! # Errors
//!
//! | kind | when |
//! |---|---|
//! | `InvalidConfig` | a connection string or option is invalid; password, role, database or certificate is rejected; the role lacks a privilege; there is no tokio runtime with I/O and timers |
//! | `Schema` | the tables are missing (run `setup()`), newer than this program, or have other columns |
//! | `InvalidArgument` | U+0000 in an id or in nested metadata, a value of 1 GiB, an id too long for an index |
//! | `Unavailable` | the server cannot be reached or shuts down; may be retried |
//! | `Timeout` | no connection became free, a statement ran for too long, or a lock was not granted |
//! | `Conflict` | another transaction conflicted; may be retried. Or, not retryable, a condition does not hold or a lease is lost or held |
//! | `Unsupported` | the server is read-only |
//!
//! Verified on PostgreSQL 17 and 15, direct and behind PgBouncer in transaction mode.

mod builder;
mod document;
mod leases;
mod lock;
mod read;
mod rekey;
mod retention;
mod row;
mod saver;
mod schema;
mod shared;
mod sql;
mod write;

pub use builder::{Compression, PostgresSaverBuilder};
pub use common_postgres::{PostgresConfig, SslMode, deadpool_postgres, secrecy, tokio_postgres};
pub use saver::PostgresSaver;
