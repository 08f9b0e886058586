//! LangGraph checkpoints in a SQLite file: the embedded default, in the very tables that LangGraph's Python
//! (`langgraph-checkpoint-sqlite`) uses.
//!
//! ```
//! use checkpoint_core::{BaseCheckpointSaver, SaverExt};
//! use checkpoint_sqlite::SqliteSaver;
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct State {
//!     question: String,
//!     answer: Option<String>,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> checkpoint_core::Result<()> {
//! # let directory = tempfile::tempdir().unwrap();
//! # let path = directory.path().join("agent.db");
//! let saver = SqliteSaver::builder(path).build()?;
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
//! | `checkpoints` | `thread_id, checkpoint_ns, checkpoint_id` | `parent_checkpoint_id`; `type` and `checkpoint`: the whole checkpoint with its channel values as one MessagePack map; `metadata`: JSON text as a BLOB |
//! | `writes` | `thread_id, checkpoint_ns, checkpoint_id, task_id, idx` | `channel`; `type` and `value`; `task_path` |
//! | `checkpoint_leases` | `thread_id` | `holder`, `token`; `expires_at`: microseconds since 1970, 0 after the lease was given back |
//!
//! There are no other tables or indexes. The table of leases is ours alone. [`setup`] adds it to a file that Python or an
//! older version of this crate set up; without it, everything but leases works. `put` stores every channel value again and ignores `new_versions`, as Python
//! does: a thread grows with the square of its conversation. A row holds at most
//! 1,000,000,000 bytes; more is an `InvalidArgument`. Deleted rows leave free pages for later ones.
//!
//! A file that [`setup`] creates has `auto_vacuum = INCREMENTAL`, which Python's saver does not notice: after `retain` has removed
//! something, it gives the free pages back to the file system, 256 at a time, with waiting writes in between. The file becomes
//! smaller when SQLite next moves its log into it. Any other file keeps its size until `VACUUM` is run on it;
//! `PRAGMA auto_vacuum = INCREMENTAL` before a `VACUUM` makes it one whose pages `retain` gives back from then on.
//!
//! # What Python sees
//!
//! Python and Rust can use the same file concurrently, from different processes: both use SQLite's locks and the
//! write-ahead log. Two copies of SQLite in one process must not open the same file: they do not see each other's locks,
//! which belong to the process. A thread that was started in Python continues in Rust, and vice versa. Files of two
//! generations are supported: those of `langgraph-checkpoint-sqlite` up to 3.1.1 have no `task_path`, later ones do.
//! [`setup`] adds the column, which the older Python ignores; without `setup` an older file is used unchanged, and task
//! paths are not stored. As in Python, a
//! second `put` of an id replaces the parent too, and pending writes of special channels replace the task path.
//!
//! Python ignores the table of leases: it writes to a thread whoever has its lease, and leaves the lease when it deletes
//! the thread. Step keys are in the metadata, where Python sees them and keeps them.
//!
//! [`setup`]: checkpoint_core::BaseCheckpointSaver::setup
//!
//! # Values of another serializer
//!
//! With [`SqliteSaverBuilder::opaque_values`] the bytes of an unknown serializer are stored unchanged: a checkpoint is one
//! value, and so is each write. `copy_thread`, `delete_for_runs`, listings and filters need nothing else; `prune` and
//! `get_delta_channel_history` use a [`checkpoint_reader`](SqliteSaverBuilder::checkpoint_reader). The status of a thread then follows from metadata and
//! writes only: the tasks that such a checkpoint names are not seen.
//!
//! # What a call costs
//!
//! | call | transactions |
//! |---|---|
//! | `put`, `put_writes`, `delete_thread` | one `IMMEDIATE`, shared with other waiting writes |
//! | the same with a condition or a lease | the same, with up to three lookups by key in it |
//! | `put` with a step key | the same; it looks at every checkpoint of the namespace with an id above the parent's, or, without a parent, at all of them, and reads the metadata of those with the same parent |
//! | `acquire_lease`, `renew_lease`, `release_lease` | one `IMMEDIATE`, shared with other waiting writes |
//! | `get_tuple` | one read transaction of two statements |
//! | `list` | one read transaction per page; the first has up to 8 tuples, later ones up to 128 or 4 MiB |
//! | `list_threads`, `list_thread_ids` | one read transaction per 128 threads, a few index lookups per thread; a prefix is a range of the index |
//! | `list_threads` with states | one read transaction per page of up to 128 threads or 4 MiB; it decodes one checkpoint per thread and its writes |
//! | `get_delta_channel_history` | one read transaction, two statements per ancestor up to the seed |
//! | `delete_for_runs` | one `IMMEDIATE` that reads the metadata of the whole file: there is no index on runs |
//! | `copy_thread` | one `IMMEDIATE` |
//! | `prune` | one `IMMEDIATE` per thread |
//! | `retain` | one change per thread and 500 checkpoints that go, up to 8 of them in one `IMMEDIATE`, shared with other waiting writes; it decodes the kept checkpoints of a namespace of which anything goes, and their ancestors. Then one `IMMEDIATE` per 256 free pages |
//! | `put` with [`keep_last`](SqliteSaverBuilder::keep_last) | the same; it counts the namespace's checkpoints, and each `keep_last`-th call removes |
//! | `usage` | one read transaction over the whole file, without its values |
//! | `rekey` | one read transaction to count the values; if it seals, one per 4 MiB or 256 values to read and seal them, one `IMMEDIATE`, shared with other waiting writes, to store them, and one to count again |
//! | `setup` | none if the tables exist, else one `IMMEDIATE` |
//! | `ping`, `check_schema` | none: read the file's header, and the columns of the tables |
//!
//! One thread writes, and several read (see [`SqliteSaverBuilder::readers`]); no async runtime is needed. Concurrent
//! writes are committed together (group commit), each with its own savepoint, and acknowledged after the commit: agents
//! share one sync of the disk. A write whose future is dropped while it waits is skipped; one that has begun is completed. A listing within one namespace is ordered by the primary key; one over several
//! namespaces or threads scans that index once per page of keys.
//!
//! # Isolation
//!
//! Every write is atomic (`retain` for each 500 checkpoints, the newest of them first) and, once acknowledged, visible to every
//! later read. A read sees one state of the file; a
//! listing sees one state per page, and omits checkpoints that were deleted meanwhile. Acknowledged writes survive a crash
//! of the process, and a power failure if the system's sync reaches the disk, unless [`Synchronous::Normal`] was chosen.
//!
//! Conditions, step keys and leases are checked in the transaction that writes, under the lock of the file, so they hold
//! against other processes. A call that fails with `Conflict` leaves the others of its transaction alone; the checkpoint that
//! it names can be read by then. A listing of threads with states fails at a thread whose state cannot be read, after the
//! threads before it; the error names the thread, and [`ThreadQuery::after`](checkpoint_core::ThreadQuery::after)
//! continues behind it.
//!
//! Leases expire by the clock of the machine, which the processes that share a file have in common. When that clock jumps
//! ahead, a lease may be taken over early: its former holder's calls then fail. When it is set back, a lease lives longer.
//!
//! [`close`] waits for the calls under way and closes the file; with its last connection SQLite moves the log
//! (`-wal`) into the file, which can then be copied alone. Dropping the last clone closes the file in the background. A process
//! that ends before that, or is killed, leaves the log, and the next one reads it.
//!
//! [`close`]: checkpoint_core::BaseCheckpointSaver::close
//!
//! Threads do not survive a `fork`: a saver that was used before fails with `Unavailable` in the child, which must build
//! its own.
//!
//! If the database file is replaced or deleted, the next call detects it (on Unix) and opens the new file, or fails and
//! asks for `setup()`. A concurrent write may go to the old file.
//!
//! # What is not encrypted
//!
//! With a [`Cipher`](checkpoint_core::Cipher) the columns `checkpoint` and `value` are encrypted. Not encrypted
//! are thread ids, namespaces, checkpoint ids and parents, task ids and paths, indexes, channel names of writes, type tags,
//! leases, and all of the metadata with its step keys.
//!
//! # Errors
//!
//! | kind | when |
//! |---|---|
//! | `Schema` | the file or its tables are missing (run `setup()`), or the tables are unknown to this program |
//! | `Conflict` | a condition does not hold, or another worker has the lease of the thread; nothing was stored |
//! | `Timeout` | another connection held its lock for longer than the busy timeout; may be retried |
//! | `Unsupported` | a change of a file that is read-only |
//! | `Unavailable` | the file cannot be opened, or its directory does not exist |
//! | `Backend` | the file is not a database or is damaged, the disk is full, the system failed to read or write |
//!
//! On a read-only medium reads work unless there is a write-ahead log with changes next to the file; `setup` succeeds if
//! the tables exist.

mod builder;
mod connection;
mod error;
mod leases;
mod read;
mod rekey;
mod retention;
mod row;
mod saver;
mod schema;
mod sql;
mod worker;
mod write;

pub use builder::{SqliteSaverBuilder, Synchronous};
pub use error::convert;
pub use rusqlite;
pub use saver::SqliteSaver;
