//! LangGraph checkpoints in MongoDB, and in servers that speak its protocol: without transactions, and without the limit of
//! 16 MB.
//!
//! ```no_run
//! use checkpoint_core::{BaseCheckpointSaver, SaverExt};
//! use checkpoint_mongo::MongoSaver;
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct State {
//!     question: String,
//!     answer: Option<String>,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> checkpoint_core::Result<()> {
//! let saver = MongoSaver::builder("mongodb://localhost").build()?;
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
//! # URLs
//! ```text
//! mongodb://[user:password@]host[:27017][,host2,…][/database][?replicaSet=…&tls=true&authSource=…]
//! mongodb+srv://[user:password@]name[/database]
//! ```
//! They are those of every driver, with the same parameters. The database is that of the path, or else `langgraph`; the
//! collection is `lg_checkpoints`, or that of [`collection`](MongoSaverBuilder::collection). Writes always ask for the write
//! concern `majority`, and reads go to the primary, whatever the URL says: a thread is read as it was written.
//!
//! # Where the bytes go
//!
//! One collection, and no index but the one of `_id`s, which are texts whose order is that of what they name:
//!
//! | `_id` | document |
//! |---|---|
//! | `1!THREAD!NS!ID` | a checkpoint: `p` parent, `nm` names of values, `mt` tokens of the metadata, `r` token of the run, `md` metadata, `ck` the checkpoint without large values: scalars are inline, but no text of more than 128 bytes |
//! | `2!THREAD!NS!ID!TASK!INDEX` | a pending write: `d` channel, path and value; `g` the indexes of its call |
//! | `3!THREAD!NS!NAME` | a value, once per version, or the manifest of one that was split: `d`; `a` the addresses of its segments |
//! | `4!THREAD!ADDRESS` | a segment of about 8 KB, which all values of the thread share |
//! | `5!THREAD!OWNER!NUMBER` | 8 MiB of a record that is longer |
//! | `6!THREAD!…` | what decides races: step keys, conditions, results that are stored once, leases; and notes of what is being removed |
//! | `!schema`, `!lock` | the version of the format, 1, and the lock of `setup()` |
//!
//! Every document has `t`, the thread's id, `ct`, when it was stored, and with a [`ttl`](MongoSaverBuilder::ttl) `x`, when it
//! expires; one with a record has `b`, the bytes of it, and one that a `put` has found stored already `h`, when that was. Parts of an `_id` are escaped to ASCII without `!`, and cut and hashed from 120 characters on. No caller's text is
//! ever the name of a field, or an operator.
//!
//! Lists and maps of more than 8 KiB are split into [segments](checkpoint_core::backend::segments), so that a growing
//! conversation costs what is new. A saver remembers the segments that it has stored or read lately (up to 64 MiB), and neither
//! sends nor reads them again.
//!
//! Filters find checkpoints by tokens, which are hashes of the entries of the metadata, and compare the metadata afterwards.
//!
//! # What a call costs
//!
//! | call | round trips | requests |
//! |---|---|---|
//! | `put` | 1 | 1 insert; with values that the parent has, 1 find of the parent's `_id` at the same time. A find more before it, if this process has not stored or read the parent; one after it, if it has values that the parent has and takes more than 250 ms; 3 more if something of it is stored already |
//! | `put` with [`keep_last`](MongoSaverBuilder::keep_last) | 1; about each `keep_last`-th call 3 more | some calls read the heads of the namespace's newest checkpoints (about 300 bytes each, up to 8 × `keep_last`) at the same time. What only removed checkpoints referred to goes 250 ms later in a task of its own, in 4 round trips |
//! | `put_writes` | 1 | 1 insert, or 1 update to special channels |
//! | `put` and `put_writes` with options | 2; 3 for a `put` with values that the parent has | finds of what the options ask for, at the same time, then the insert |
//! | `get_tuple` | 2; 1 if there is nothing, or if it is the newest checkpoint of its namespace that this process has stored or read; one more if the values have segments that this process does not remember | finds; of values and writes at the same time. What the newest checkpoint that this process knows refers to is read together with the document that tells whether there is a newer one: from the database, never from a cache |
//! | `list` of a namespace | 2 or 3 per page of 50; a page with a filter looks at 256 that may match | finds |
//! | `list` of a thread, or of all | 1 per 10,000 `_id`s more, which it reads first | |
//! | `list_threads` | 1 per 1,000 `_id`s of checkpoints; 2 or 3 with state | finds that the index of `_id`s answers |
//! | `list_thread_ids` | 1 per page of 128, or more if a thread has hundreds of checkpoints | 2 finds at the same time |
//! | `delete_thread` | 1 | 1 delete with a statement for each kind of document |
//! | `get_delta_channel_history` | 1, and 2 or 3 per 64 ancestors | |
//! | `copy_thread` | 1, 4 per 64 checkpoints, 2 per 1,000 writes, 1 per 64 checkpoints; 1 more per 4 writes that the target has already | the values pass through the client |
//! | `prune` | 8 per thread and 1 per namespace, 5 more per 1,000 checkpoints; to delete threads 1 each. A call takes 250 ms more, whatever the number of its threads | |
//! | `retain` | 1 per call, and per thread 1 to 5 to look, 1 per namespace that loses something, 3 more to remove; up to 8 threads at a time. Then 4 per thread in a task of its own, 250 ms later, or 6 if values with segments or chunks go | it reads the heads of checkpoints, values and writes (50 to 300 bytes each) and the records of the checkpoints that stay, and with a pin the metadata of those that may match it |
//! | `usage` | 5, and 1 per 10,000 documents | it reads `_id`, thread and size of every document, which makes the server read them all; and checkpoints whose ids have no time |
//! | `delete_for_runs` | 1 that looks at all checkpoints, about 5 per thread with such | an index on `r` makes the first one fast |
//! | `acquire_lease` | 3, one more from another holder | |
//! | `renew_lease`, `release_lease` | 1 | |
//! | `rekey` | about 5 per 64 checkpoints, 1 per checkpoint and write that is sealed again | |
//! | `setup` | 1; 7 the first time | |
//! | `ping`, `check_schema` | 1 | |
//!
//! # Sharding
//!
//! With [`sharded`](MongoSaverBuilder::sharded) every request about a thread also names its `t`, and `setup()` shards the
//! collection by `{t: "hashed"}` (the user needs the role `clusterManager` for that): a thread is on one shard, which alone
//! answers. `list_threads`, `list_thread_ids`, `delete_for_runs`, and listings of all threads ask every shard, in as many round
//! trips as above. Not set, the collection may be sharded too, but each request asks every shard.
//!
//! # Servers
//!
//! MongoDB from 4.4, as one server, a replica set or sharded; and servers that speak its protocol. The user needs the role
//! `readWrite` on the database. No call uses a transaction, an aggregation, `findAndModify`, change streams, or any index but
//! that of `_id`s; nothing is sent but `insert`, `update`, `delete`, `find`, `getMore`, `listCollections` and `ping`, with the
//! operators `$and $eq $exists $gte $in $lt $ne $not $or $all $set $unset`.
//!
//! With [`ttl`](MongoSaverBuilder::ttl) a thread expires as a whole, that long after its last write, or also its last read
//! ([`refresh_on_read`](MongoSaverBuilder::refresh_on_read)). What has expired is not visible any more, and
//! [`purge_expired`](MongoSaver::purge_expired) deletes it; so does an index `{x: 1}` with `expireAfterSeconds: 0`, on servers
//! that have such. Once per eighth of the time to live, a write raises that of the whole thread: 2 requests more.
//!
//! # Isolation
//!
//! A `put` inserts its checkpoint last, so it is visible when all of it is stored. One that was cut off leaves documents to
//! which nothing refers; [`collect_garbage`](MongoSaver::collect_garbage) deletes them. The writes of one `put_writes` are
//! visible when all of them are stored. A reader that meets a checkpoint that is just being deleted reads again. The first
//! writer of a channel's version wins, as in Python's savers.
//!
//! Conditions, step keys and results that are stored once are decided by the insert of one document, in the same request as
//! the checkpoint: of several such calls, one succeeds. A `put` without a condition may come between the look at the newest
//! checkpoint and that insert. A lease is checked and renewed right before the insert, not in the same step; its times are
//! those of the clients' clocks. A call under a lease that was lost before the call began is always refused.
//!
//! `delete_thread` deletes checkpoints first and what they need afterwards. `copy_thread` stores checkpoints last, the oldest
//! first.
//!
//! `prune`, `retain`, `keep_last` and `delete_for_runs` note in the thread what goes, delete the checkpoints, the oldest first,
//! then their writes, and at least 250 ms later the values, segments and chunks to which nothing refers any more. A `put` at the
//! same moment, onto a checkpoint that goes, is stored whole: it looks after its parent again if it took that long, and then
//! stores all values. So it is as if it had come after the removal, in which case ancestors that delta channels need are gone,
//! too. What a `put` has found stored already, and relies on, is not removed for 5 minutes; clocks may differ by less. `rekey`
//! gives no such guarantee to a `put` that takes longer than that. A run that was cut off is finished by the next `retain` or
//! `prune` of the thread, 2 seconds later or more. Two runs at the same time share the threads; a thread in which another run
//! removes something is reported as busy. [`close`](checkpoint_core::BaseCheckpointSaver::close) waits for what was begun.
//!
//! Calls run to their end even if their future is dropped, as long as the runtime lives: the driver's futures must not be
//! dropped. Later calls of the saver wait for them, up to 5 seconds.
//!
//! A call that fails because a connection was lost or a primary stepped down is retried with backoff (see
//! [`MongoSaverBuilder::max_retries`]). Calls are idempotent. Only `put_writes` with `once` fails with `Conflict` if its first
//! attempt was stored and the process that made it died.
//!
//! # Values of another serializer
//!
//! With [`MongoSaverBuilder::opaque_values`] the bytes of an unknown serializer are stored unchanged; long ones are split, too.
//! Scalars stay inline as [`InlineScalars::Short`](checkpoint_core::InlineScalars::Short) says. All calls work: none decodes a
//! value.
//!
//! # What is not encrypted
//!
//! With a [`Cipher`](checkpoint_core::Cipher) everything is encrypted but thread ids, namespaces, checkpoint ids and parents,
//! task ids and the indexes of writes, type tags, times and sizes. The names of values, the tokens of metadata and runs, and
//! the addresses of segments are keyed hashes. Equal entries of metadata have equal tokens, in all threads. Filters also find
//! checkpoints whose tokens another key has made, by opening them.
//!
//! # Errors
//!
//! | kind | when |
//! |---|---|
//! | `InvalidConfig` | a URL or option is invalid; user or password is rejected; the user lacks a permission; there is no tokio runtime with I/O and timers |
//! | `Schema` | `setup()` was not run, the format is newer than this program, or the collection has a collation |
//! | `Unsupported` | the server is too old, or lacks a command |
//! | `Unavailable` | the server cannot be reached, or has no primary; may be retried |
//! | `Timeout` | no answer in time |
//! | `Conflict` | others changed the thread again and again; may be retried. Or, not retryable, a condition does not hold or a lease is lost or held |
//! | `Backend` | the server rejected a request |
//!
//! Verified on FerretDB 1.24 with SQLite and on mongo-java-server 1.47. Not yet on MongoDB itself.

mod builder;
mod client;
mod copy;
mod decisions;
mod error;
mod garbage;
mod keys;
mod leases;
mod list;
mod load;
mod prune;
mod read;
mod rekey;
mod retention;
mod row;
mod runtime;
mod saver;
mod schema;
mod shared;
mod threads;
mod tokens;
mod url;
mod write;

pub use builder::MongoSaverBuilder;
pub use error::is_refused_connection;
pub use mongodb;
pub use saver::MongoSaver;
