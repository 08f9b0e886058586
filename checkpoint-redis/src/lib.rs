//! LangGraph checkpoints in Redis, Valkey and Redis Cluster: plain servers, without modules.
//!
//! ```no_run
//! use checkpoint_core::{BaseCheckpointSaver, SaverExt};
//! use checkpoint_redis::RedisSaver;
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct State {
//!     question: String,
//!     answer: Option<String>,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> checkpoint_core::Result<()> {
//! let saver = RedisSaver::builder("redis://localhost").build()?;
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
//! redis://[user:password@]host[:6379][/database]                        one server; a user or a password alone: `:password@`
//! redis+unix://[user:password@]/path/of/the/socket[?db=0]               one server, through a Unix socket
//! redis+cluster://[user:password@]host[:6379],host2[:6379],…             some nodes of a cluster
//! redis+sentinel://[user:password@]host[:26379],host2,…/service[/database]  sentinels, and the service whose primary is used
//! ```
//! `rediss://`, `rediss+cluster://` and `rediss+sentinel://` use TLS, in the last case also to the sentinels. `valkey` and
//! `valkeys` are the same as `redis` and `rediss`. User, password, service and path are percent-encoded. Parameters:
//! `protocol` (2 or 3), `db`, `ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile` (paths of PEM files), `sentinel_username` and
//! `sentinel_password`, for sentinels that ask for other ones than none, and, unless the builder sets them, `prefix` (what all
//! keys begin with), `ttl` (seconds) and `scripts` (`true` or `false`).
//!
//! # Where the bytes go
//!
//! | key | type | content |
//! |---|---|---|
//! | `PREFIX:{THREAD}:h` | hash | all data of a thread |
//! | `PREFIX:{THREAD}:i` | sorted set, all scores 0 | the order of its checkpoints and writes |
//! | `PREFIX:{%t0}` to `PREFIX:{%t31}` | sorted sets, all scores 0 | the directory: the ids of all threads |
//! | `PREFIX:{%f}` | hash | `v`: the version of the format, 1, which `setup()` stores |
//!
//! `THREAD` is the thread's id, with `{`, `}` and `%` percent-encoded, and `%` for an empty one. It is the keys' hash tag:
//! both keys of a thread are in one slot of a cluster. The fields of the hash, and the members of the index; each begins with
//! its kind, parts are escaped (U+0000 becomes `00 FF`) and end with `00`:
//!
//! | field | value |
//! |---|---|
//! | `m` namespace id | parent, names of values, metadata |
//! | `c` namespace id | the checkpoint without large values: scalars are inline, but no text of more than 128 bytes |
//! | `b` namespace channel version | a value, once per version, or the manifest of one that was split |
//! | `l` namespace channel version | the addresses of the segments of a value that was split |
//! | `s` address | a segment of about 8 KB, which all values of the thread share |
//! | `w` namespace id task index | a pending write |
//! | `k` namespace parent hash | the child with this step key |
//! | `L`, `g`, `r` | the lease, the number of changes, and a number that changes when something is removed |
//!
//! | member | |
//! |---|---|
//! | `c` namespace id | a checkpoint in the order of its namespace |
//! | `a` id namespace | a checkpoint in the order of the thread; the namespace and a byte 01 are complemented |
//! | `w` namespace id task index | a pending write |
//!
//! What is not in the index is not visible. Lists and maps of more than 8 KiB are split into
//! [segments](checkpoint_core::backend::segments), so that a growing conversation costs what is new. A saver remembers the
//! segments that it has stored or read lately (up to 64 MiB), and neither sends nor reads them again.
//!
//! # What a call costs
//!
//! | call | round trips | commands |
//! |---|---|---|
//! | `put`, `put_writes`, with options or without | 1 | 1 script. A second one for a `put` that carries over values of a parent that was deleted meanwhile, or segments that another process has deleted: it sends all values |
//! | `get_tuple` | 1, or 2 if the checkpoint has more than [`max_inline_bytes`](RedisSaverBuilder::max_inline_bytes) or 256 values and writes | 1 script, and `HMGET` |
//! | `acquire_lease`, `renew_lease`, `release_lease` | 1 | 1 script |
//! | `list` of a thread | 3 per page of 16, later up to 64; a page with a filter looks at 256 checkpoints | 1 script; `HMGET`, and `ZRANGEBYLEX` for each checkpoint; `HMGET` for values and writes, if there are any |
//! | `list` of all threads | first 2 per 512 threads, to find the newest of each; then 4 per page | |
//! | `list_threads` | 2 per 128 threads, 5 with state | `ZRANGEBYLEX` for each of the 32 shards; 2 or 3 commands for each thread |
//! | `list_thread_ids` | 2 per 128 threads | `ZRANGEBYLEX` for each of the 32 shards, `EXISTS` for each thread |
//! | `delete_thread` | 1; in a cluster 3 | `UNLINK` and `ZREM` in MULTI |
//! | `get_delta_channel_history` | 3 per 64 ancestors | |
//! | `copy_thread` | 2, 3 per 16 checkpoints and 1 per 256 of them, 3 per 256 writes, 3 to publish | the values pass through the client |
//! | `prune` | about 4 per thread, 1 per namespace, 1 per 256 checkpoints; to delete threads 1 each | of what goes, the metadata is read. 1 more per namespace with delta channels, whose checkpoints are read, but not their values |
//! | `retain` | about 7 per thread, 1 per namespace of which anything goes, 1 per 256 checkpoints and per 10,000 fields that are measured | the same |
//! | `put` with [`keep_last`](RedisSaverBuilder::keep_last) | 1; each `keep_last`-th call 4 more | it counts the namespace's checkpoints, too (`ZLEXCOUNT`) |
//! | `usage` | 2 per 512 threads, and up to 3 per 20,000 fields | `HLEN` and `HKEYS` of each thread, `HSTRLEN` of each field: the names of all fields go to the client and back, no value does. The server is busy for about 1.5 seconds per million fields, in steps of a few microseconds, but for `HKEYS`: up to 10 milliseconds per 10,000 fields of a thread. The bytes are the lengths of the fields' values, not the memory that they take (`MEMORY USAGE`) |
//! | `delete_for_runs` | 3 per 512 threads, and about 5 per thread with such checkpoints | reads the metadata of all threads: there is no index of runs |
//! | `rekey` | per 16 checkpoints about 6, per 256 writes about 5; half of it if there is nothing to seal | |
//! | `setup` | 2 | |
//! | `ping`, `check_schema` | 1 | 1 |
//!
//! Without [scripts](RedisSaverBuilder::scripts), `put` and `put_writes` are one MULTI in one round trip, or two round trips on
//! a connection of their own (WATCH) where they depend on what is stored: a condition, a step key, a lease, or a value that is
//! carried over. `get_tuple` takes 4 (3 with an id), `list` 4 per page, and a history 4 per ancestor. The server may restart
//! or forget its scripts at any time: a call then sends the script's text.
//!
//! Commands of threads in different slots go to the nodes of a cluster at the same time. A process's first write to a thread
//! is 2 round trips there, because the directory is on another node.
//!
//! # Servers
//!
//! Redis from 6.2, Valkey from 7.2, both also as a cluster, behind sentinels, and managed. The user needs the keys
//! `~PREFIX:*` and the commands `EVALSHA EVAL HSET HMGET HGET HSETNX HDEL HEXISTS HSTRLEN HINCRBY HSCAN ZADD ZREM ZSCORE
//! ZRANGEBYLEX ZREVRANGEBYLEX PEXPIRE PTTL UNLINK EXISTS MULTI EXEC TIME PING`, in a cluster also `CLUSTER SLOTS ASKING`;
//! without scripts `WATCH UNWATCH` instead of `EVALSHA EVAL`; `WAIT` or `WAITAOF` for [`Durability`], `ZLEXCOUNT` for `keep_last`,
//! `HLEN HKEYS` for `usage`. `INFO` lets `setup()` see how the server evicts keys.
//!
//! Set `maxmemory-policy noeviction`: with another policy a full server drops threads, or one of the two keys of a thread.
//! `setup()` warns of it. A thread without its index is mended by the next call that notices; one without its data is an
//! error, never an empty thread. With `noeviction` a write that does not fit is an error, and stores nothing.
//!
//! With [`ttl`](RedisSaverBuilder::ttl) a thread expires as a whole, that long after its last write, or also its last read
//! ([`refresh_on_read`](RedisSaverBuilder::refresh_on_read)). Threads that have expired leave the directory when they are
//! listed.
//!
//! # Isolation
//!
//! A write is one step that the server runs alone and replicates as one transaction: visible as a whole, or not at all. It
//! checks in this step that everything is stored that it carries over. Without scripts, a `put` without options does so too.
//! A `get_tuple` in one round trip sees one state of the thread; one in two, and a page of a listing, is read again if a part
//! of it was deleted in between. The first writer of a channel's version wins, as in Python's savers.
//!
//! `prune` removes a thread's checkpoints in one step (in several from 2,000 on, the newest last), then deletes the values
//! to which nothing refers any more, in a second one, which blocks the server for about a millisecond per 500 remaining
//! checkpoints. `copy_thread` stores data first and the index at the end, in one step; if something was removed from the
//! target meanwhile, it begins again. A copy that was cut off leaves invisible data, which goes with the thread. `prune`,
//! `retain`, `copy_thread`, `delete_for_runs` and what a `put` with `keep_last` removes run to their end even if their call is
//! dropped, as long as the runtime lives.
//!
//! `retain` looks at a thread without a lock, then removes in one step: a whole thread, or checkpoints with everything to which
//! only they referred, so that a run that is killed leaves nothing behind. From about 600 checkpoints on, it takes several steps,
//! the newest of these checkpoints first. Each requires that nobody changed the thread meanwhile; else it looks again. A `put`
//! with `keep_last` does so with its namespace, up to 5 times, and then takes what nothing refers to, as `prune` does.
//!
//! Redis replicates asynchronously: a failover may lose the newest writes, but each thread stays consistent.
//! [`Durability`] makes writes wait.
//!
//! A call that fails because the server restarts, a connection was lost, or a cluster moves data is retried with backoff, for
//! about a second, and never for more than 5 (see [`RedisSaverBuilder::max_retries`]). Calls are idempotent: a conditional `put` finds its own checkpoint, `acquire_lease` its
//! own lease. Only `put_writes` with `once` fails with `Conflict` if its first attempt was stored and the reply was lost.
//!
//! # Values of another serializer
//!
//! With [`RedisSaverBuilder::opaque_values`] the bytes of an unknown serializer are stored unchanged; long ones are split, too.
//! Scalars stay inline as [`InlineScalars::Short`](checkpoint_core::InlineScalars::Short) says. All calls work: none decodes a
//! value.
//!
//! # What is not encrypted
//!
//! With a [`Cipher`](checkpoint_core::Cipher) everything is encrypted but thread ids, namespaces, checkpoint ids and parents,
//! task ids and the indexes of writes, type tags, run times (`TTL`) and sizes. The names of values are keyed hashes of channel
//! and version. Metadata is encrypted: filters open it. In a listing of all threads with a filter, and in `delete_for_runs`,
//! checkpoints whose metadata cannot be opened do not match.
//!
//! # Errors
//!
//! | kind | when |
//! |---|---|
//! | `InvalidConfig` | a URL or option is invalid; user or password is rejected; the user lacks a permission; the URL names a node of a cluster as one server, or the reverse; there is no tokio runtime with I/O and timers |
//! | `Schema` | `setup()` was not run, the format is newer than this program, or a key under the prefix has another type |
//! | `InvalidArgument` | a write of 512 MiB, a call of 1 GiB |
//! | `Unavailable` | the server cannot be reached, shuts down, loads, or fails over; may be retried |
//! | `Timeout` | no answer in time, or too few replicas confirmed |
//! | `Conflict` | others changed the thread again and again; may be retried. Or, not retryable, a condition does not hold or a lease is lost or held |
//! | `Backend` | the server is out of memory, cannot save, or has evicted a part of the thread |
//!
//! Verified on Redis 8.0 and Valkey 8.1, and on a cluster of Redis 8.0.

mod builder;
mod client;
mod connection;
mod copy;
mod error;
mod keys;
mod leases;
mod list;
mod load;
mod pages;
mod prune;
mod read;
mod rekey;
mod repair;
mod reply;
mod retention;
mod row;
mod runtime;
mod saver;
mod schema;
mod script;
mod shared;
mod target;
mod threads;
mod write;

pub use builder::{Durability, RedisSaverBuilder};
pub use client::{RedisClient, is_refused_connection};
pub use redis;
pub use saver::RedisSaver;
