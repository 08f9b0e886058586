//! The trait that every backend implements, and the conveniences on top of it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt, TryStreamExt};

use crate::delta::DeltaChannelHistory;
use crate::filter::FilterSemantics;
use crate::retention::{self, RetainBatch, Usage, UsageOptions};
use crate::thread::Thread;
use crate::version::{self, ChannelVersion, ChannelVersions};
use crate::{
    ChannelValue, Checkpoint, CheckpointConfig, CheckpointMetadata, CheckpointTuple, Error, Lease, ListQuery,
    PruneStrategy, PutOptions, PutWritesOptions, RekeyOptions, RekeyReport, Result, RetainOptions,
    RetainReport, Retention, Str, ThreadCounts, ThreadInfo, ThreadQuery,
};

/// The optional features of a saver, and how it stores checkpoints. The conformance suite checks both ways: a declared
/// feature must work, any other must fail with [`Unsupported`](crate::ErrorKind::Unsupported).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each flag is independent and named after its method")]
#[non_exhaustive]
pub struct SaverCapabilities {
    /// [`BaseCheckpointSaver::delete_for_runs`] works.
    pub delete_for_runs: bool,
    /// [`BaseCheckpointSaver::copy_thread`] works.
    pub copy_thread: bool,
    /// [`BaseCheckpointSaver::prune`] works.
    pub prune: bool,
    /// [`BaseCheckpointSaver::retain`] works.
    pub retain: bool,
    /// [`BaseCheckpointSaver::usage`] works.
    pub usage: bool,
    /// [`BaseCheckpointSaver::acquire_lease`] works.
    pub leases: bool,
    /// [`BaseCheckpointSaver::rekey`] works.
    pub rekey: bool,
    /// Checkpoints outlive the process.
    pub durable: bool,
    /// Calls do no I/O: their futures are ready when they are first polled.
    pub immediate: bool,
    /// How filters compare.
    pub filter: FilterSemantics,
    /// How a checkpoint is stored.
    pub layout: CheckpointLayout,
}

impl SaverCapabilities {
    /// Only the required methods; durable; stores whole checkpoints.
    pub const fn base(filter: FilterSemantics) -> Self {
        Self {
            delete_for_runs: false,
            copy_thread: false,
            prune: false,
            retain: false,
            usage: false,
            leases: false,
            rekey: false,
            durable: true,
            immediate: false,
            filter,
            layout: CheckpointLayout::Whole,
        }
    }

    /// Every method but [`usage`](BaseCheckpointSaver::usage); durable; stores whole checkpoints.
    pub const fn all(filter: FilterSemantics) -> Self {
        Self {
            delete_for_runs: true,
            copy_thread: true,
            prune: true,
            retain: true,
            leases: true,
            rekey: true,
            ..Self::base(filter)
        }
    }

    /// The same for a saver in memory: not durable, without I/O, and without encryption.
    #[must_use]
    pub const fn in_memory(mut self) -> Self {
        (self.durable, self.immediate, self.rekey) = (false, true, false);
        self
    }

    /// The same with [`BaseCheckpointSaver::usage`].
    #[must_use]
    pub const fn with_usage(mut self) -> Self {
        self.usage = true;
        self
    }

    /// The same with another layout.
    #[must_use]
    pub const fn with_layout(mut self, layout: CheckpointLayout) -> Self {
        self.layout = layout;
        self
    }
}

/// How a saver stores a checkpoint. Matters to callers that pass values of another serializer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CheckpointLayout {
    /// As one value.
    Whole,
    /// Channel by channel. Scalars that are not inline are stored as MessagePack.
    Channels {
        /// Which scalars are stored inline.
        inline: InlineScalars,
    },
}

/// Which scalars a saver stores inline in the checkpoint, not as serialized bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InlineScalars {
    /// All scalars.
    All,
    /// No scalars: a cipher is set.
    None,
    /// Scalars that PostgreSQL's `jsonb` returns unchanged.
    Jsonb,
    /// All scalars, but no text of more than 128 bytes.
    Short,
}

impl InlineScalars {
    /// Longer texts are not inline: a `jsonb` value is limited to 256 MiB of text in total.
    const MAX_TEXT: usize = 128 << 20;

    /// The longest text of [`Short`](Self::Short).
    const SHORT_TEXT: usize = 128;

    /// From this magnitude on, the JSON of a double has no fraction, so `jsonb` returns an integer.
    const WHOLE_FROM: f64 = 1e16;

    /// Whether a value is stored inline. Blobs are not scalars, except integers beyond 64 bits: their digits under the
    /// tag `json`.
    pub fn contains(self, value: &ChannelValue) -> bool {
        match (self, value) {
            (Self::None, _) => false,
            (_, ChannelValue::Blob(blob)) => {
                self == Self::Jsonb && blob.tag == "json" && is_long_integer(&blob.data)
            }
            (Self::All, _) | (_, ChannelValue::Null | ChannelValue::Bool(_) | ChannelValue::Int(_)) => true,
            (Self::Short, value) => {
                !matches!(value, ChannelValue::Str(text) if text.len() > Self::SHORT_TEXT)
            }
            (Self::Jsonb, ChannelValue::Float(number)) => {
                number.abs() < Self::WHOLE_FROM && !(*number == 0.0 && number.is_sign_negative())
            }
            (Self::Jsonb, ChannelValue::Str(text)) => text.len() <= Self::MAX_TEXT && !text.contains('\0'),
        }
    }
}

/// Whether a text is the JSON of an integer beyond 64 bits.
fn is_long_integer(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_integer = matches!(digits, [b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit));
    is_integer && std::str::from_utf8(text).is_ok_and(|text| text.parse::<i64>().is_err())
}

/// Stores checkpoints and pending writes. Backends implement it; [`SaverExt`] has convenience methods.
///
/// Ids are any UTF-8 text, but the ids of stored checkpoints must be UUIDs. Reading an absent row returns `Ok(None)`;
/// deleting an absent row is a no-op.
#[async_trait]
pub trait BaseCheckpointSaver: Debug + Send + Sync + 'static {
    /// The backend's name, such as `sqlite`: used in errors and spans.
    fn backend(&self) -> &'static str;

    /// The optional features of this saver.
    fn capabilities(&self) -> SaverCapabilities;

    /// Creates or upgrades the tables. Idempotent, and safe to run from several processes concurrently.
    ///
    /// # Errors
    /// [`Schema`](crate::ErrorKind::Schema) when the tables are newer than this program, `Timeout` when another
    /// process holds the lock for too long, and any error from the database.
    ///
    /// # Cancellation
    /// A dropped call leaves the tables as they were or complete.
    async fn setup(&self) -> Result<()>;

    /// Checks that the database can be reached, in one round trip, also before [`setup`](Self::setup). Retries at most
    /// once. For health checks.
    ///
    /// # Errors
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if it cannot be reached, and any other error from connecting to it.
    ///
    /// # Cancellation
    /// Changes nothing; may be dropped at any time.
    async fn ping(&self) -> Result<()>;

    /// Checks that [`setup`](Self::setup) has nothing left to do that calls depend on, and changes nothing. For readiness
    /// probes, and for programs whose role may not create tables.
    ///
    /// # Errors
    /// [`Schema`](crate::ErrorKind::Schema) if tables are missing, incomplete, older than needed, or newer than this
    /// program, and any error from the database.
    ///
    /// # Cancellation
    /// Changes nothing; may be dropped at any time.
    async fn check_schema(&self) -> Result<()>;

    /// Reads the checkpoint that the config names, or the newest of its thread and namespace.
    ///
    /// # Errors
    /// `Schema` before [`setup`](Self::setup), `Codec` for a damaged row, `Crypto` for one that cannot be opened.
    ///
    /// # Cancellation
    /// Reads may be dropped at any time.
    async fn get_tuple(&self, config: &CheckpointConfig) -> Result<Option<CheckpointTuple>>;

    /// Streams checkpoints, newest first (by id; within one id by thread, then namespace).
    ///
    /// Rows are read in pages. No connection is held between pages, and the pages are not read in one transaction. The
    /// stream ends after its first error.
    fn list(&self, query: ListQuery) -> BoxStream<'static, Result<CheckpointTuple>>;

    /// Streams the threads that have a checkpoint, ascending by id: by code point, unless the database's collation
    /// differs (for example, a language's collation on Postgres).
    fn list_threads(&self, query: ThreadQuery) -> BoxStream<'static, Result<ThreadInfo>>;

    /// Streams the ids of all threads of which anything is stored, in the order of [`list_threads`](Self::list_threads),
    /// which omits those that have only pending writes. Of the query, start, prefix and limit count; other conditions are
    /// `InvalidArgument`.
    ///
    /// A backend that has no such listing streams the threads of `list_threads`.
    fn list_thread_ids(&self, query: ThreadQuery) -> BoxStream<'static, Result<Str>> {
        self.list_threads(query).map_ok(|info| info.thread_id).boxed()
    }

    /// Stores a checkpoint atomically. The config's checkpoint id, if any, becomes its parent. Returns the config of
    /// the stored checkpoint.
    ///
    /// `new_versions` names the channels that this step changed; a backend that stores values by version writes only
    /// those.
    ///
    /// # Errors
    /// `InvalidArgument` for an id that is not a UUID or a value the database cannot store; nothing is written then.
    ///
    /// # Cancellation
    /// A dropped call has stored the whole checkpoint or nothing.
    async fn put(
        &self,
        config: &CheckpointConfig,
        checkpoint: &Checkpoint,
        metadata: &CheckpointMetadata,
        new_versions: &ChannelVersions,
    ) -> Result<CheckpointConfig> {
        self.put_with(config, checkpoint, metadata, new_versions, &PutOptions::default()).await
    }

    /// Stores a checkpoint as [`put`](Self::put) does, with options.
    ///
    /// # Errors
    /// As [`put`](Self::put), and those that [`PutOptions`] describes.
    ///
    /// # Cancellation
    /// A dropped call has stored the whole checkpoint or nothing.
    async fn put_with(
        &self,
        config: &CheckpointConfig,
        checkpoint: &Checkpoint,
        metadata: &CheckpointMetadata,
        new_versions: &ChannelVersions,
        options: &PutOptions,
    ) -> Result<CheckpointConfig>;

    /// Stores writes of a task on a checkpoint, which need not be stored yet. An empty slice is a no-op.
    ///
    /// The index of each write is its position in the call; special channels (see [`special`](crate::special)) have a
    /// fixed index. If all channels of the call are special, stored writes with the same index are replaced, otherwise
    /// they are kept.
    ///
    /// # Errors
    /// `InvalidArgument` when the config names no checkpoint, or for a value the database cannot store.
    ///
    /// # Cancellation
    /// A dropped call has stored all of the writes or none.
    async fn put_writes(
        &self,
        config: &CheckpointConfig,
        writes: &[(Str, ChannelValue)],
        task_id: &str,
        task_path: &str,
    ) -> Result<()> {
        self.put_writes_with(config, writes, task_id, task_path, &PutWritesOptions::default()).await
    }

    /// Stores writes of a task as [`put_writes`](Self::put_writes) does, with options. An empty slice is a no-op, whatever
    /// the options are.
    ///
    /// # Errors
    /// As [`put_writes`](Self::put_writes), and those that [`PutWritesOptions`] describes.
    ///
    /// # Cancellation
    /// A dropped call has stored all of the writes or none.
    async fn put_writes_with(
        &self,
        config: &CheckpointConfig,
        writes: &[(Str, ChannelValue)],
        task_id: &str,
        task_path: &str,
        options: &PutWritesOptions,
    ) -> Result<()>;

    /// Deletes all data of a thread, in every namespace, and its lease.
    ///
    /// # Errors
    /// Any error from the database.
    ///
    /// # Cancellation
    /// A dropped call has deleted everything or nothing.
    async fn delete_thread(&self, thread_id: &str) -> Result<()>;

    /// For each channel, returns what its value is rebuilt from at the checkpoint that the config names (or the
    /// newest): the value of the nearest ancestor that has one, as the seed, and the writes since.
    ///
    /// # Errors
    /// As [`get_tuple`](Self::get_tuple).
    ///
    /// # Cancellation
    /// Reads may be dropped at any time.
    async fn get_delta_channel_history(
        &self,
        config: &CheckpointConfig,
        channels: &[&str],
    ) -> Result<BTreeMap<Str, DeltaChannelHistory>>;

    /// Deletes the checkpoints, with their writes, whose metadata names one of these runs. Children keep the ids of
    /// deleted parents.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) unless the capability is set.
    ///
    /// # Cancellation
    /// A dropped call has deleted everything or nothing.
    async fn delete_for_runs(&self, run_ids: &[&str]) -> Result<()> {
        let _ = run_ids;
        Err(Error::unsupported(self.backend(), "delete_for_runs"))
    }

    /// Copies every checkpoint and write of a thread, with their ids, into another thread. Rows of the target with the
    /// same ids are replaced, all others are kept.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) unless the capability is set.
    ///
    /// # Cancellation
    /// A dropped call has copied everything or nothing.
    async fn copy_thread(&self, source_thread_id: &str, target_thread_id: &str) -> Result<()> {
        let _ = (source_thread_id, target_thread_id);
        Err(Error::unsupported(self.backend(), "copy_thread"))
    }

    /// Deletes old checkpoints of threads. Writes whose checkpoint is not stored yet (its id is above the newest) are
    /// kept.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) unless the capability is set.
    ///
    /// # Cancellation
    /// A dropped call has pruned each thread completely or not at all.
    async fn prune(&self, thread_ids: &[&str], strategy: PruneStrategy) -> Result<()> {
        let _ = (thread_ids, strategy);
        Err(Error::unsupported(self.backend(), "prune"))
    }

    /// Removes from threads what a policy no longer keeps; see [`retention`](crate::retention). Returns what went, or, in a
    /// dry run, what would go. Give it some dozens of threads at a time, or use
    /// [`SaverExt::retain_all`](crate::SaverExt::retain_all).
    ///
    /// What goes of a thread is decided while other calls cannot change it, so that what they store meanwhile stays, with
    /// all that it needs. A thread that another call is changing is left out and named in the report.
    ///
    /// # Errors
    /// As [`Retention::validate`], before anything is read; `Crypto` if the backend must open a checkpoint to see what its
    /// delta channels need, and lacks the key; [`Unsupported`](crate::ErrorKind::Unsupported) unless the capability is set.
    ///
    /// # Cancellation
    /// A dropped or failed call has removed from each thread all that the policy says, or nothing, unless the backend's page
    /// says that it works in smaller steps. The next call continues.
    async fn retain(
        &self,
        thread_ids: &[&str],
        policy: &Retention,
        options: &RetainOptions,
    ) -> Result<RetainReport> {
        let _ = (thread_ids, policy, options);
        Err(Error::unsupported(self.backend(), "retain"))
    }

    /// Measures how much the database holds: reads every row's size, but no value, and keeps only sums in memory.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) unless the capability is set, and any error from the database.
    ///
    /// # Cancellation
    /// Changes nothing; may be dropped at any time.
    async fn usage(&self, options: &UsageOptions) -> Result<Usage> {
        let _ = options;
        Err(Error::unsupported(self.backend(), "usage"))
    }

    /// Acquires the lease of a thread, which need not have a checkpoint, for this long after each use. It takes over a
    /// lease that has expired. The database's clock decides, or, for a database without one, this machine's.
    ///
    /// # Errors
    /// [`Conflict`](crate::ErrorKind::Conflict) while another holder has it, `InvalidArgument` for a time under a
    /// millisecond or over 366 days, [`Unsupported`](crate::ErrorKind::Unsupported) unless the capability is set.
    ///
    /// # Cancellation
    /// A dropped call may have acquired the lease, which then expires.
    async fn acquire_lease(&self, thread_id: &str, ttl: Duration) -> Result<Lease> {
        let _ = (thread_id, ttl);
        Err(Error::unsupported(self.backend(), "acquire_lease"))
    }

    /// Renews a lease, even an expired one that nobody has taken over.
    ///
    /// # Errors
    /// [`Conflict`](crate::ErrorKind::Conflict) when it was lost,
    /// [`Unsupported`](crate::ErrorKind::Unsupported) unless the capability is set.
    ///
    /// # Cancellation
    /// A dropped call may have renewed the lease.
    async fn renew_lease(&self, lease: &Lease) -> Result<()> {
        let _ = lease;
        Err(Error::unsupported(self.backend(), "renew_lease"))
    }

    /// Gives a lease back, so that others need not wait until it expires. A no-op for a lost one.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) unless the capability is set.
    ///
    /// # Cancellation
    /// A dropped call may have given the lease back.
    async fn release_lease(&self, lease: &Lease) -> Result<()> {
        let _ = lease;
        Err(Error::unsupported(self.backend(), "release_lease"))
    }

    /// Seals the stored values of a thread again, in place, with the cipher's sealing key: in every namespace, also
    /// pending writes whose checkpoint is not stored. Plain values are sealed, too, wherever `put` would seal them. Values
    /// that the sealing key has sealed already are left as they are, so a call that was interrupted may be repeated. See
    /// [`cipher`](crate::cipher#key-rotation) for the steps of a key rotation.
    ///
    /// Runs in batches of a few megabytes, and other calls may read and change the thread meanwhile. What they store is
    /// kept, but is sealed by the keys of their savers: switch all of them to the new key first.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) unless the capability is set, `InvalidConfig` without a cipher
    /// (unless it is a dry run), and `Crypto` if the cipher lacks a key: a missing key id is named, and nothing is
    /// changed. For values that cannot be opened for another reason (a wrong key of AES-EAX, altered bytes), the error
    /// names the first and counts them; they are left as they are, and all others are sealed. `Conflict` if other
    /// writers kept changing the thread.
    ///
    /// # Cancellation
    /// Each value is sealed again or as it was. The next call continues.
    async fn rekey(&self, thread_id: &str, options: RekeyOptions) -> Result<RekeyReport> {
        let _ = (thread_id, options);
        Err(Error::unsupported(self.backend(), "rekey"))
    }

    /// Closes the saver and its clones: refuses calls from now on, waits for those under way, and releases connections,
    /// files and threads. Idempotent. Later calls, and the next page of a listing, fail with `Unavailable`.
    ///
    /// A pool that belongs to the application stays open. Dropping a saver without closing it is safe, and does not
    /// block.
    ///
    /// # Errors
    /// Any error from the database during the release; the saver is closed nevertheless.
    ///
    /// # Cancellation
    /// The saver keeps refusing calls. The next `close` continues.
    async fn close(&self) -> Result<()>;

    /// Returns the channel version that follows `current`.
    fn get_next_version(&self, current: Option<&ChannelVersion>) -> ChannelVersion {
        version::next(current)
    }
}

macro_rules! forward {
    ($wrapper:ident) => {
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<T: BaseCheckpointSaver + ?Sized> BaseCheckpointSaver for $wrapper<T> {
            fn backend(&self) -> &'static str {
                (**self).backend()
            }
            fn capabilities(&self) -> SaverCapabilities {
                (**self).capabilities()
            }
            async fn setup(&self) -> Result<()> {
                (**self).setup().await
            }
            async fn ping(&self) -> Result<()> {
                (**self).ping().await
            }
            async fn check_schema(&self) -> Result<()> {
                (**self).check_schema().await
            }
            async fn get_tuple(&self, config: &CheckpointConfig) -> Result<Option<CheckpointTuple>> {
                (**self).get_tuple(config).await
            }
            fn list(&self, query: ListQuery) -> BoxStream<'static, Result<CheckpointTuple>> {
                (**self).list(query)
            }
            fn list_threads(&self, query: ThreadQuery) -> BoxStream<'static, Result<ThreadInfo>> {
                (**self).list_threads(query)
            }
            fn list_thread_ids(&self, query: ThreadQuery) -> BoxStream<'static, Result<Str>> {
                (**self).list_thread_ids(query)
            }
            async fn put(
                &self,
                config: &CheckpointConfig,
                checkpoint: &Checkpoint,
                metadata: &CheckpointMetadata,
                new_versions: &ChannelVersions,
            ) -> Result<CheckpointConfig> {
                (**self).put(config, checkpoint, metadata, new_versions).await
            }
            async fn put_with(
                &self,
                config: &CheckpointConfig,
                checkpoint: &Checkpoint,
                metadata: &CheckpointMetadata,
                new_versions: &ChannelVersions,
                options: &PutOptions,
            ) -> Result<CheckpointConfig> {
                (**self).put_with(config, checkpoint, metadata, new_versions, options).await
            }
            async fn put_writes(
                &self,
                config: &CheckpointConfig,
                writes: &[(Str, ChannelValue)],
                task_id: &str,
                task_path: &str,
            ) -> Result<()> {
                (**self).put_writes(config, writes, task_id, task_path).await
            }
            async fn put_writes_with(
                &self,
                config: &CheckpointConfig,
                writes: &[(Str, ChannelValue)],
                task_id: &str,
                task_path: &str,
                options: &PutWritesOptions,
            ) -> Result<()> {
                (**self).put_writes_with(config, writes, task_id, task_path, options).await
            }
            async fn delete_thread(&self, thread_id: &str) -> Result<()> {
                (**self).delete_thread(thread_id).await
            }
            async fn get_delta_channel_history(
                &self,
                config: &CheckpointConfig,
                channels: &[&str],
            ) -> Result<BTreeMap<Str, DeltaChannelHistory>> {
                (**self).get_delta_channel_history(config, channels).await
            }
            async fn delete_for_runs(&self, run_ids: &[&str]) -> Result<()> {
                (**self).delete_for_runs(run_ids).await
            }
            async fn copy_thread(&self, source_thread_id: &str, target_thread_id: &str) -> Result<()> {
                (**self).copy_thread(source_thread_id, target_thread_id).await
            }
            async fn prune(&self, thread_ids: &[&str], strategy: PruneStrategy) -> Result<()> {
                (**self).prune(thread_ids, strategy).await
            }
            async fn retain(
                &self,
                thread_ids: &[&str],
                policy: &Retention,
                options: &RetainOptions,
            ) -> Result<RetainReport> {
                (**self).retain(thread_ids, policy, options).await
            }
            async fn usage(&self, options: &UsageOptions) -> Result<Usage> {
                (**self).usage(options).await
            }
            async fn acquire_lease(&self, thread_id: &str, ttl: Duration) -> Result<Lease> {
                (**self).acquire_lease(thread_id, ttl).await
            }
            async fn renew_lease(&self, lease: &Lease) -> Result<()> {
                (**self).renew_lease(lease).await
            }
            async fn release_lease(&self, lease: &Lease) -> Result<()> {
                (**self).release_lease(lease).await
            }
            async fn rekey(&self, thread_id: &str, options: RekeyOptions) -> Result<RekeyReport> {
                (**self).rekey(thread_id, options).await
            }
            async fn close(&self) -> Result<()> {
                (**self).close().await
            }
            fn get_next_version(&self, current: Option<&ChannelVersion>) -> ChannelVersion {
                (**self).get_next_version(current)
            }
        }
    };
}

forward!(Arc);
forward!(Box);

/// Convenience methods on every saver. Do not implement it yourself.
pub trait SaverExt: BaseCheckpointSaver {
    /// Reads a checkpoint without its metadata and pending writes.
    ///
    /// # Errors
    /// As [`BaseCheckpointSaver::get_tuple`].
    fn get(&self, config: &CheckpointConfig) -> impl Future<Output = Result<Option<Checkpoint>>> + Send {
        async { Ok(self.get_tuple(config).await?.map(|tuple| tuple.checkpoint)) }
    }

    /// Collects a whole listing into memory.
    ///
    /// # Errors
    /// As [`BaseCheckpointSaver::list`].
    fn list_all(&self, query: ListQuery) -> impl Future<Output = Result<Vec<CheckpointTuple>>> + Send {
        self.list(query).try_collect()
    }

    /// Returns the first checkpoint of a listing, which is its newest.
    ///
    /// # Errors
    /// As [`BaseCheckpointSaver::list`].
    fn list_first(&self, query: ListQuery) -> impl Future<Output = Result<Option<CheckpointTuple>>> + Send {
        let mut stream = self.list(query.limit(1));
        async move { stream.next().await.transpose() }
    }

    /// Counts the threads that match a query, by their status. It reads the state of each.
    ///
    /// # Errors
    /// As [`BaseCheckpointSaver::list_threads`].
    fn count_threads(&self, query: ThreadQuery) -> impl Future<Output = Result<ThreadCounts>> + Send {
        let threads = self.list_threads(query.with_state());
        threads.try_fold(ThreadCounts::default(), |counts, thread| {
            std::future::ready(Ok(thread.state.map_or(counts, |state| counts.add(state.status))))
        })
    }

    /// Runs [`rekey`](BaseCheckpointSaver::rekey) on every thread of
    /// [`list_thread_ids`](BaseCheckpointSaver::list_thread_ids), one after the other. The stream continues after a
    /// thread that failed; it ends after an error of the listing.
    fn rekey_all(
        &self,
        options: RekeyOptions,
    ) -> impl Stream<Item = Result<(Str, Result<RekeyReport>)>> + Send + '_ {
        self.list_thread_ids(ThreadQuery::all()).and_then(move |thread_id| async move {
            let report = self.rekey(&thread_id, options).await;
            Ok((thread_id, report))
        })
    }

    /// Runs [`retain`](BaseCheckpointSaver::retain) on the threads of
    /// [`list_thread_ids`](BaseCheckpointSaver::list_thread_ids) in small batches, one after the other; of the query, start,
    /// prefix and limit count. Each item is what became of one batch, and a thread that failed is in it; the others go on.
    /// The stream ends after an error of the listing or of the policy.
    ///
    /// It may be dropped at any time and begun again. Several runs at once share the work: each leaves out the threads that
    /// another one is busy with, and looks at them again at the end.
    fn retain_all(
        &self,
        policy: Retention,
        options: RetainOptions,
        query: ThreadQuery,
    ) -> impl Stream<Item = Result<RetainBatch>> + Send {
        retention::retain_all(self, policy, options, query)
    }

    /// The same for these threads, each once.
    fn retain_threads(
        &self,
        thread_ids: Vec<Str>,
        policy: Retention,
        options: RetainOptions,
    ) -> impl Stream<Item = Result<RetainBatch>> + Send {
        retention::retain_threads(self, thread_ids, policy, options)
    }

    /// Opens a thread for typed reads and commits.
    fn thread(&self, thread_id: impl Into<Str>) -> Thread<Self>
    where
        Self: Clone,
    {
        Thread::new(self.clone(), thread_id)
    }
}

impl<T: BaseCheckpointSaver + ?Sized> SaverExt for T {}
