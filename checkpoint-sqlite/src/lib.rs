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
//!
//! There are no other tables and no further indexes. `put` stores every channel value again, whatever
//! `new_versions` says, as Python does: a thread grows with the square of its conversation. A row holds at most
//! 1,000,000,000 bytes; more is refused with `InvalidArgument`. Deleted rows leave free pages for later ones; the file
//! does not shrink until `VACUUM` is run on it.
//!
//! # What Python sees
//!
//! The same file, at the same time, from other processes: both sides use SQLite's locks and the write-ahead log.
//! Not from another copy of SQLite in the same process: the two do not see each other's locks, which belong to the process.
//! A thread that was begun in Python goes on in Rust, and back. Two generations of files are read and written: those of
//! `langgraph-checkpoint-sqlite` up to 3.1.1 have no `task_path`, later ones do. [`setup`] adds the column, which the
//! older Python bears; without `setup` an older file is used as it is and task paths are not kept. As in Python, a
//! second `put` of an id replaces the parent too, and pending writes of special channels replace the task path.
//!
//! [`setup`]: checkpoint_core::BaseCheckpointSaver::setup
//!
//! # Values of another serializer
//!
//! With [`SqliteSaverBuilder::opaque_values`] the bytes of a serializer that this program does not know go through
//! untouched: a checkpoint is given and returned as one value, and so is each write. `copy_thread`, `delete_for_runs`,
//! listings and filters need nothing else; `prune` and `get_delta_channel_history` ask a
//! [`checkpoint_reader`](SqliteSaverBuilder::checkpoint_reader).
//!
//! # What a call costs
//!
//! | call | transactions |
//! |---|---|
//! | `put`, `put_writes`, `delete_thread` | one `IMMEDIATE`, shared with whatever other writes wait |
//! | `get_tuple` | one read transaction of two statements |
//! | `list` | one read transaction per chunk; the first holds up to 8 tuples, later ones up to 128 or 4 MiB |
//! | `list_threads` | one read transaction per 128 threads, a few index lookups per thread |
//! | `get_delta_channel_history` | one read transaction, two statements per ancestor up to the seed |
//! | `delete_for_runs` | one `IMMEDIATE` that reads the metadata of the whole file: there is no index on runs |
//! | `copy_thread` | one `IMMEDIATE` |
//! | `prune` | one `IMMEDIATE` per thread |
//! | `setup` | none once the tables are there, else one `IMMEDIATE` |
//!
//! One thread writes, and a few read (see [`SqliteSaverBuilder::readers`]); no async runtime is needed. Writes
//! that wait for each other are committed together, each under a savepoint of its own, and acknowledged after the
//! commit: concurrent agents share one sync of the disk. A write that its caller dropped before its turn is skipped; one
//! that has begun is completed. A listing within one namespace is ordered by the primary key; one over several
//! namespaces or threads scans that index once per page of keys.
//!
//! # Isolation
//!
//! Every write is atomic and, once acknowledged, seen by every later read. A read sees one state of the file; a
//! listing sees one state per chunk, and leaves out what was deleted meanwhile. After a crash of the process every
//! acknowledged write is there; after a power failure too as far as the system's sync reaches the disk, unless
//! [`Synchronous::Normal`] was chosen.
//!
//! [`close`] waits for the calls under way and closes the file; with its last connection SQLite folds the log (`-wal`)
//! into the file, which can then be copied alone. Dropping the last clone closes the file in the background. A process
//! that ends before that, or is killed, leaves the log, and the next one reads it.
//!
//! [`close`]: checkpoint_core::BaseCheckpointSaver::close
//!
//! Threads do not survive a `fork`: a saver that was used before answers `Unavailable` in the child, which builds its
//! own.
//!
//! When another file is put in the place of the database, or it is deleted, the next call notices (on Unix) and opens
//! what is there, or asks for `setup()`. A write that runs in that very moment may go to the old file.
//!
//! # What is not encrypted
//!
//! With a [`Cipher`](checkpoint_core::Cipher) the columns `checkpoint` and `value` are sealed. In the clear stay
//! thread ids, namespaces, checkpoint ids and parents, task ids and paths, indexes, channel names of writes, type tags,
//! and all of the metadata.
//!
//! # Errors
//!
//! | kind | when |
//! |---|---|
//! | `Schema` | the file or its tables are missing (run `setup()`), or the tables are not those that this program knows |
//! | `Timeout` | another connection held its lock for longer than the busy timeout; may be repeated |
//! | `Unsupported` | a change of a file that is read-only |
//! | `Unavailable` | the file cannot be opened, or its directory does not exist |
//! | `Backend` | the file is no database or is damaged, the disk is full, the system failed to read or write |
//!
//! On a read-only medium reads work as long as no write-ahead log with changes stands beside the file; `setup` is
//! content with tables that are there.

mod builder;
mod connection;
mod error;
mod read;
mod row;
mod saver;
mod schema;
mod sql;
mod worker;
mod write;

pub use builder::{SqliteSaverBuilder, Synchronous};
pub use rusqlite;
pub use saver::SqliteSaver;
