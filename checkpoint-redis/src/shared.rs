//! What the clones of a saver share.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use checkpoint_core::backend::segments::SegmentCodec;
use checkpoint_core::backend::{Calls, KeepLast, ValueCodec};
use checkpoint_core::{Error, Result};
use redis::{Cmd, Pipeline, Value};
use xxhash_rust::xxh3::xxh3_64;

use crate::builder::Options;
use crate::connection::{Access, Connections};
use crate::error::{BACKEND, SYSTEM, has_code};
use crate::keys::Keys;
use crate::{repair, reply, schema};

/// How many threads a saver on a cluster remembers to be in the directory.
const REMEMBERED: usize = 100_000;

/// The most bytes of segments that a saver remembers.
const REMEMBERED_BYTES: usize = 64 << 20;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) calls: Calls,
    pub(crate) connections: Connections,
    pub(crate) keys: Keys,
    pub(crate) codec: SegmentCodec,
    pub(crate) scripts: bool,
    pub(crate) max_inline_bytes: usize,
    pub(crate) keep_last: Option<KeepLast>,
    ttl: Option<Duration>,
    refresh_on_read: bool,
    /// Whether the version of the format was checked.
    is_checked: AtomicBool,
    is_behind_proxy: AtomicBool,
    /// Hashes of threads that are in the directory. Only on a cluster, where it is on other servers.
    listed: Mutex<HashSet<u64>>,
}

impl Shared {
    pub(crate) fn new(connections: Connections, options: Options) -> Self {
        let Options {
            key_prefix,
            ttl,
            refresh_on_read,
            max_inline_bytes,
            scripts,
            codec,
            compression,
            keep_last,
        } = options;
        let codec = SegmentCodec::new(codec).remembering(REMEMBERED_BYTES);
        #[cfg(feature = "zstd")]
        let codec = match compression {
            Some(level) => codec.with_zstd(level),
            None => codec,
        };
        #[cfg(not(feature = "zstd"))]
        let _ = compression;
        Self {
            calls: Calls::saver(BACKEND, SYSTEM),
            connections,
            keys: Keys::new(key_prefix),
            codec,
            scripts,
            max_inline_bytes,
            keep_last,
            ttl,
            refresh_on_read,
            is_checked: AtomicBool::new(false),
            is_behind_proxy: AtomicBool::new(false),
            listed: Mutex::default(),
        }
    }

    pub(crate) fn values(&self) -> &ValueCodec {
        self.codec.values()
    }

    /// The time to live of a thread in milliseconds, or 0.
    pub(crate) fn ttl_millis(&self) -> u64 {
        self.ttl.map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
    }

    /// The same for reads: 0 unless they refresh it.
    pub(crate) fn read_ttl_millis(&self) -> u64 {
        if self.refresh_on_read { self.ttl_millis() } else { 0 }
    }

    /// Checks the version of the format, once.
    pub(crate) async fn ready(&self) -> Result<()> {
        if self.is_checked.load(Ordering::Acquire) {
            return Ok(());
        }
        schema::check(self).await?;
        self.set_checked();
        Ok(())
    }

    pub(crate) fn set_checked(&self) {
        self.is_checked.store(true, Ordering::Release);
    }

    /// One command.
    pub(crate) async fn read(&self, command: &Cmd) -> Result<Value> {
        self.connections.command(Access::Read, command).await
    }

    /// Whether the keys of a thread and of the directory are on different servers: in a cluster, also behind a proxy.
    pub(crate) fn is_spread(&self) -> bool {
        self.connections.is_cluster() || self.is_behind_proxy.load(Ordering::Relaxed)
    }

    /// Whether a call failed because a proxy hides a cluster, which was not known before: it can be repeated then, without
    /// the directory.
    pub(crate) fn finds_proxy(&self, error: &Error) -> bool {
        let is_found = !self.connections.is_cluster() && has_code(error, &["CROSSSLOT"]);
        if is_found {
            self.is_behind_proxy.store(true, Ordering::Relaxed);
        }
        is_found
    }

    /// The keys of a script that writes: on one server also the directory's shard.
    pub(crate) fn with_directory(&self, thread_id: &str) -> Option<Vec<u8>> {
        (!self.is_spread()).then(|| self.keys.directory(thread_id))
    }

    /// Adds the thread to the directory in a transaction. On a cluster the directory is on other servers, see
    /// [`enter`](Self::enter).
    pub(crate) fn list_thread(&self, commands: &mut Pipeline, thread_id: &str) {
        if let Some(shard) = self.with_directory(thread_id) {
            commands.cmd("ZADD").arg(shard).arg(0).arg(thread_id);
        }
    }

    /// Adds the thread to the directory before its data, on a cluster: an entry without a thread does no harm, a thread
    /// without an entry could not be found.
    pub(crate) async fn enter(&self, thread_id: &str) -> Result<()> {
        if !self.is_spread() {
            return Ok(());
        }
        let hash = xxh3_64(thread_id.as_bytes());
        if self.listed.lock().unwrap_or_else(PoisonError::into_inner).contains(&hash) {
            return Ok(());
        }
        self.add_to_directory(thread_id).await?;
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        if listed.len() >= REMEMBERED {
            listed.clear();
        }
        listed.insert(hash);
        Ok(())
    }

    pub(crate) async fn add_to_directory(&self, thread_id: &str) -> Result<()> {
        let mut command = redis::cmd("ZADD");
        command.arg(self.keys.directory(thread_id)).arg(0).arg(thread_id);
        self.connections.command(Access::Write, &command).await.map(|_| ())
    }

    /// After a call that wrote: adds a thread that was made again to the directory, and mends one of whose two keys the
    /// server has lost one.
    pub(crate) async fn wrote(&self, thread_id: &str, generation: &Value, had_index: &Value) -> Result<()> {
        let is_first = reply::integer(generation)? == 1;
        let had_index = reply::integer(had_index)? == 1;
        if is_first && self.is_spread() {
            self.add_to_directory(thread_id).await?;
        }
        if is_first == had_index {
            repair::repair(self, thread_id).await?;
        }
        Ok(())
    }

    /// Closes the connections.
    pub(crate) fn release(&self) {
        self.connections.close();
        self.codec.forget_all();
    }
}

/// Bytes of text for a script's argument.
#[expect(clippy::needless_pass_by_value, reason = "a number, mostly")]
pub(crate) fn text(number: impl ToString) -> Bytes {
    number.to_string().into()
}
