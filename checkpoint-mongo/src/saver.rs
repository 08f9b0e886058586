//! The trait.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use checkpoint_core::backend::{Operation, pages, thread_id_pages, thread_pages};
use checkpoint_core::retention::{Usage, UsageOptions};
use checkpoint_core::{
    BaseCheckpointSaver, BoxStream, ChannelValue, ChannelVersions, Checkpoint, CheckpointConfig,
    CheckpointLayout, CheckpointMetadata, CheckpointTuple, DeltaChannelHistory, Error, FilterSemantics,
    InlineScalars, Lease, ListQuery, PruneStrategy, PutOptions, PutWritesOptions, RekeyOptions, RekeyReport,
    Result, RetainOptions, RetainReport, Retention, SaverCapabilities, Str, ThreadInfo, ThreadQuery,
    async_trait,
};

use crate::MongoSaverBuilder;
use crate::error::BACKEND;
use crate::list::Listing;
use crate::shared::Shared;
use crate::write::{self, PutCall, WritesCall};
use crate::{copy, garbage, leases, prune, read, rekey, retention, schema, threads};

/// How many threads one page of `list_threads` has.
const THREADS_PAGE: usize = 128;

/// Keeps checkpoints in MongoDB. Clones share their connections.
///
/// See the [crate's page](crate) for what is stored where and what each call costs.
#[derive(Clone)]
pub struct MongoSaver {
    shared: Arc<Shared>,
}

impl fmt::Debug for MongoSaver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MongoSaver")
            .field("mongo", &self.shared.mongo)
            .field("cipher", &self.shared.values().cipher)
            .finish_non_exhaustive()
    }
}

impl MongoSaver {
    /// Configures a saver for the servers that a URL names; see the [crate's page](crate#urls).
    pub fn builder(url: impl Into<String>) -> MongoSaverBuilder {
        MongoSaverBuilder::new(url)
    }

    pub(crate) fn from_shared(shared: Shared) -> Self {
        Self { shared: Arc::new(shared) }
    }

    /// Deletes what has expired, in all threads, and returns the number of documents: for servers that do not delete it by
    /// themselves. What has expired is not visible in any case.
    ///
    /// # Errors
    /// Those of every call: [`Schema`](checkpoint_core::ErrorKind::Schema) before `setup()`,
    /// [`Unavailable`](checkpoint_core::ErrorKind::Unavailable) and others of the server.
    ///
    /// # Cancellation
    /// A dropped call goes on to its end.
    pub async fn purge_expired(&self) -> Result<u64> {
        let shared = Arc::clone(&self.shared);
        self.shared.run(Operation::prune(&[]), async move { garbage::purge_expired(&shared).await }).await
    }

    /// Deletes what calls that were cut off have left in a thread, and returns the number of documents: values, segments and
    /// chunks to which nothing refers, once they are older than the grace period; and writes of checkpoints that were never
    /// stored, once they are older than 24 times as much.
    ///
    /// The grace period protects calls that are under way: an hour is plenty.
    ///
    /// # Errors
    /// As [`purge_expired`](Self::purge_expired).
    ///
    /// # Cancellation
    /// A dropped call goes on to its end.
    pub async fn collect_garbage(&self, thread_id: &str, grace: Duration) -> Result<u64> {
        let (shared, thread_id) = (Arc::clone(&self.shared), Str::from(thread_id));
        let collect = async move { garbage::collect(&shared, &thread_id, grace).await };
        self.shared.run(Operation::prune(&[""]), collect).await
    }

    fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }
}

#[async_trait]
impl BaseCheckpointSaver for MongoSaver {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn capabilities(&self) -> SaverCapabilities {
        let inline =
            if self.shared.values().cipher.is_some() { InlineScalars::None } else { InlineScalars::Short };
        let all = SaverCapabilities::all(FilterSemantics::Equality).with_usage();
        all.with_layout(CheckpointLayout::Channels { inline })
    }

    async fn setup(&self) -> Result<()> {
        let shared = self.shared();
        self.shared.run(Operation::setup(), async move { schema::set_up(&shared).await }).await
    }

    async fn ping(&self) -> Result<()> {
        self.shared.read(Operation::ping(), self.shared.mongo.ping()).await
    }

    async fn check_schema(&self) -> Result<()> {
        self.shared.read(Operation::check_schema(), schema::check(&self.shared)).await
    }

    async fn get_tuple(&self, config: &CheckpointConfig) -> Result<Option<CheckpointTuple>> {
        self.shared.read(Operation::get_tuple(config), read::get_tuple(&self.shared, config)).await
    }

    fn list(&self, query: ListQuery) -> BoxStream<'static, Result<CheckpointTuple>> {
        let shared = self.shared();
        pages(Listing::begin(query), move |listing| {
            let shared = Arc::clone(&shared);
            async move {
                let query = listing.cursor.query.clone();
                shared.read(Operation::list(&query), listing.next_page(&shared)).await
            }
        })
    }

    fn list_threads(&self, query: ThreadQuery) -> BoxStream<'static, Result<ThreadInfo>> {
        let shared = self.shared();
        thread_pages(query, FilterSemantics::Equality, THREADS_PAGE, move |query, after, count| {
            let shared = Arc::clone(&shared);
            async move {
                let operation = Operation::list_threads(after.as_deref(), count);
                let read = threads::list_threads(&shared, &query, after.as_deref(), count);
                shared.read(operation, read).await
            }
        })
    }

    fn list_thread_ids(&self, query: ThreadQuery) -> BoxStream<'static, Result<Str>> {
        let shared = self.shared();
        thread_id_pages(query, THREADS_PAGE, move |after, count| {
            let shared = Arc::clone(&shared);
            async move {
                let operation = Operation::list_thread_ids(after.as_deref(), count);
                let read = threads::list_thread_ids(&shared, after.as_deref(), count);
                shared.read(operation, read).await
            }
        })
    }

    async fn put_with(
        &self,
        config: &CheckpointConfig,
        checkpoint: &Checkpoint,
        metadata: &CheckpointMetadata,
        new_versions: &ChannelVersions,
        options: &PutOptions,
    ) -> Result<CheckpointConfig> {
        let call = PutCall {
            config: config.clone(),
            checkpoint: checkpoint.clone(),
            metadata: metadata.clone(),
            new_versions: new_versions.clone(),
            options: options.clone(),
        };
        let shared = self.shared();
        let put = async move { write::put(&shared, call).await };
        self.shared.run(Operation::put(config, &checkpoint.id), put).await
    }

    async fn put_writes_with(
        &self,
        config: &CheckpointConfig,
        writes: &[(Str, ChannelValue)],
        task_id: &str,
        task_path: &str,
        options: &PutWritesOptions,
    ) -> Result<()> {
        let call = WritesCall {
            config: config.clone(),
            writes: writes.to_vec(),
            task_id: task_id.into(),
            task_path: task_path.into(),
            options: options.clone(),
        };
        let shared = self.shared();
        let put_writes = async move { write::put_writes(&shared, call).await };
        self.shared.run(Operation::put_writes(config, task_id), put_writes).await
    }

    async fn delete_thread(&self, thread_id: &str) -> Result<()> {
        let (shared, of) = (self.shared(), Str::from(thread_id));
        let delete = async move { write::delete_thread(&shared, &of).await };
        self.shared.run(Operation::delete_thread(thread_id), delete).await
    }

    async fn get_delta_channel_history(
        &self,
        config: &CheckpointConfig,
        channels: &[&str],
    ) -> Result<BTreeMap<Str, DeltaChannelHistory>> {
        let read = read::delta_history(&self.shared, config, channels);
        self.shared.read(Operation::get_delta_channel_history(config), read).await
    }

    async fn delete_for_runs(&self, run_ids: &[&str]) -> Result<()> {
        let (shared, operation) = (self.shared(), Operation::delete_for_runs(run_ids));
        let run_ids: Vec<Str> = run_ids.iter().map(|id| Str::from(*id)).collect();
        self.shared.run(operation, async move { prune::delete_for_runs(&shared, &run_ids).await }).await
    }

    async fn copy_thread(&self, source_thread_id: &str, target_thread_id: &str) -> Result<()> {
        let (shared, source, target) =
            (self.shared(), Str::from(source_thread_id), Str::from(target_thread_id));
        let copy = async move { copy::copy_thread(&shared, &source, &target).await };
        self.shared.run(Operation::copy_thread(source_thread_id, target_thread_id), copy).await
    }

    async fn prune(&self, thread_ids: &[&str], strategy: PruneStrategy) -> Result<()> {
        let (shared, operation) = (self.shared(), Operation::prune(thread_ids));
        let thread_ids: Vec<Str> = thread_ids.iter().map(|id| Str::from(*id)).collect();
        let prune = async move {
            match strategy {
                PruneStrategy::Delete => {
                    for thread_id in &thread_ids {
                        write::delete_thread(&shared, thread_id).await?;
                    }
                    Ok(())
                }
                PruneStrategy::KeepLatest => retention::keep_latest(&shared, &thread_ids).await,
                _ => Err(Error::unsupported(BACKEND, "prune")),
            }
        };
        self.shared.run(operation, prune).await
    }

    async fn retain(
        &self,
        thread_ids: &[&str],
        policy: &Retention,
        options: &RetainOptions,
    ) -> Result<RetainReport> {
        let (shared, operation) = (self.shared(), Operation::retain(thread_ids, options));
        let thread_ids: Vec<Str> = thread_ids.iter().map(|id| Str::from(*id)).collect();
        let (policy, options) = (policy.clone(), *options);
        let retain = async move { retention::retain(&shared, &thread_ids, &policy, &options).await };
        self.shared.run(operation, retain).await
    }

    async fn usage(&self, options: &UsageOptions) -> Result<Usage> {
        self.shared.read(Operation::usage(), retention::usage(&self.shared, options)).await
    }

    async fn acquire_lease(&self, thread_id: &str, ttl: Duration) -> Result<Lease> {
        let (shared, of) = (self.shared(), Str::from(thread_id));
        let acquire = async move { leases::acquire(&shared, &of, ttl).await };
        self.shared.run(Operation::acquire_lease(thread_id), acquire).await
    }

    async fn renew_lease(&self, lease: &Lease) -> Result<()> {
        let (shared, of) = (self.shared(), lease.clone());
        let renew = async move { leases::renew(&shared, &of).await };
        self.shared.run(Operation::renew_lease(lease), renew).await
    }

    async fn release_lease(&self, lease: &Lease) -> Result<()> {
        let (shared, of) = (self.shared(), lease.clone());
        let release = async move { leases::release(&shared, &of).await };
        self.shared.run(Operation::release_lease(lease), release).await
    }

    async fn rekey(&self, thread_id: &str, options: RekeyOptions) -> Result<RekeyReport> {
        let (shared, of) = (self.shared(), Str::from(thread_id));
        let rekey = async move { rekey::rekey(&shared, &of, options).await };
        self.shared.run(Operation::rekey(thread_id, options), rekey).await
    }

    async fn close(&self) -> Result<()> {
        let release = async {
            self.shared.release().await;
            Ok(())
        };
        self.shared.calls.close(release).await
    }
}
