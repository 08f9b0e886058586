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
//! | `put_writes` | 1 | 1 |
//! | `get_tuple` | 1 | 1; each value is looked up by its whole key |
//! | `list` | 1 per page | the first page has up to 16 tuples, later ones up to 128 or 4 MiB; a value that several checkpoints of a page share is sent once. Without a thread and a namespace each page sorts the keys of all matching rows: there is no index on ids alone |
//! | `list_threads` | 1 per 128 threads | 1 each; jumps from thread to thread in the index |
//! | `delete_thread` | 1 | 3: a pipelined transaction |
//! | `get_delta_channel_history` | 1 per 1,024 ancestors | |
//! | `copy_thread` | 7 | the rows do not leave the server, except for values and writes that AES-GCM bound to their row: 1 more for each of them, and 1 more for each batch of up to 32 values or 32 writes |
//! | `prune` | per thread 5, and per namespace 2 and 1 per 1,024 ancestors read; to delete threads 1 each | |
//! | `delete_for_runs` | 6; 3 if no checkpoint belongs to these runs | reads the metadata of the whole table: there is no index on runs. For more than 256 threads it locks the tables, which blocks all writers |
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
//! Every change is one transaction (`prune` has one per thread): atomic, and visible to every later read. A read sees one
//! state of the database; a listing one per page. Calls that change many rows of a thread (`delete_thread`, `prune`,
//! `copy_thread`, `delete_for_runs`) take its advisory lock (class 1667985524) exclusively, `put` and `put_writes` take it
//! shared. This prevents deadlocks, and no checkpoint names a value that is being deleted. Python's writers take no such
//! lock.
//!
//! A dropped call leaves no connection in a transaction. A statement that was sent runs to its end, and the next user of
//! the connection waits for it. Acknowledged writes are as durable as the server's `synchronous_commit` promises.
//!
//! A call that fails because the server restarts, the connection was lost, or another transaction conflicted is retried
//! with backoff (see [`PostgresSaverBuilder::max_retries`]): every call is idempotent.
//!
//! # What is not encrypted
//!
//! With a [`Cipher`](checkpoint_core::Cipher) every channel value and every write is encrypted, including scalars: they are
//! then stored in `checkpoint_blobs`, where Python with the same key reads them (AES-EAX only). Fields of a checkpoint that
//! LangGraph does not have are encrypted in the document. Not encrypted are thread ids, namespaces, checkpoint ids
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
//! | `Conflict` | another transaction conflicted; may be retried |
//! | `Unsupported` | the server is read-only |
//!
//! Verified on PostgreSQL 17 and 15, direct and behind PgBouncer in transaction mode.

mod builder;
mod document;
mod lock;
mod read;
mod row;
mod saver;
mod schema;
mod shared;
mod sql;
mod write;

pub use builder::{Compression, PostgresSaverBuilder};
pub use common_postgres::{PostgresConfig, SslMode, deadpool_postgres, secrecy, tokio_postgres};
pub use saver::PostgresSaver;
