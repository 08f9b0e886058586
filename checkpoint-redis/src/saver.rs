//! The trait.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use checkpoint_core::backend::{Operation, distinct, pages, thread_id_pages, thread_pages};
use checkpoint_core::retention::{Usage, UsageOptions};
use checkpoint_core::{
    BaseCheckpointSaver, BoxStream, ChannelValue, ChannelVersions, Checkpoint, CheckpointConfig,
    CheckpointLayout, CheckpointMetadata, CheckpointTuple, DeltaChannelHistory, Error, FilterSemantics,
    InlineScalars, Lease, ListQuery, PruneStrategy, PutOptions, PutWritesOptions, RekeyOptions, RekeyReport,
    Result, RetainOptions, RetainReport, Retention, SaverCapabilities, Str, ThreadInfo, ThreadQuery,
    async_trait,
};
use futures_util::future::BoxFuture;

use crate::RedisSaverBuilder;
use crate::error::BACKEND;
use crate::list::Listing;
use crate::shared::Shared;
use crate::{copy, leases, prune, read, rekey, retention, runtime, schema, threads, write};

/// How many threads one page of `list_threads` has.
const THREADS_PAGE: usize = 128;

/// Keeps checkpoints in Redis. Clones share their connections.
///
/// See the [crate's page](crate) for what is stored where and what each call costs.
#[derive(Clone)]
pub struct RedisSaver {
    shared: Arc<Shared>,
}

impl fmt::Debug for RedisSaver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSaver")
            .field("connections", &self.shared.connections)
            .field("cipher", &self.shared.values().cipher)
            .finish_non_exhaustive()
    }
}

impl RedisSaver {
    /// Configures a saver for the server or the cluster that a URL names; see the [crate's page](crate#urls).
    pub fn builder(url: impl Into<String>) -> RedisSaverBuilder {
        RedisSaverBuilder::new(url)
    }

    pub(crate) fn from_shared(shared: Shared) -> Self {
        Self { shared: Arc::new(shared) }
    }

    /// Runs a call of several steps to its end, even if its caller is dropped.
    async fn to_the_end<T: Send + 'static>(
        &self,
        operation: Operation<'_>,
        call: BoxFuture<'static, Result<T>>,
    ) -> Result<T> {
        self.shared.calls.run(operation, runtime::to_the_end(call)).await
    }
}

#[async_trait]
impl BaseCheckpointSaver for RedisSaver {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn capabilities(&self) -> SaverCapabilities {
        let inline =
            if self.shared.values().cipher.is_some() { InlineScalars::None } else { InlineScalars::Short };
        SaverCapabilities::all(FilterSemantics::Equality)
            .with_usage()
            .with_layout(CheckpointLayout::Channels { inline })
    }

    async fn setup(&self) -> Result<()> {
        self.shared.calls.run(Operation::setup(), Box::pin(schema::set_up(&self.shared))).await
    }

    async fn ping(&self) -> Result<()> {
        self.shared.calls.run(Operation::ping(), self.shared.connections.ping()).await
    }

    async fn check_schema(&self) -> Result<()> {
        self.shared.calls.run(Operation::check_schema(), schema::check(&self.shared)).await
    }

    async fn get_tuple(&self, config: &CheckpointConfig) -> Result<Option<CheckpointTuple>> {
        self.shared.calls.run(Operation::get_tuple(config), read::get_tuple(&self.shared, config)).await
    }

    fn list(&self, query: ListQuery) -> BoxStream<'static, Result<CheckpointTuple>> {
        let shared = Arc::clone(&self.shared);
        pages(Listing::begin(query), move |listing| {
            let shared = Arc::clone(&shared);
            async move {
                let query = listing.cursor.query.clone();
                shared.calls.run(Operation::list(&query), listing.next_page(&shared)).await
            }
        })
    }

    fn list_threads(&self, query: ThreadQuery) -> BoxStream<'static, Result<ThreadInfo>> {
        let shared = Arc::clone(&self.shared);
        thread_pages(query, FilterSemantics::Equality, THREADS_PAGE, move |query, after, count| {
            let shared = Arc::clone(&shared);
            async move {
                let operation = Operation::list_threads(after.as_deref(), count);
                let read = threads::list_threads(&shared, &query, after.as_deref(), count);
                shared.calls.run(operation, read).await
            }
        })
    }

    fn list_thread_ids(&self, query: ThreadQuery) -> BoxStream<'static, Result<Str>> {
        let shared = Arc::clone(&self.shared);
        thread_id_pages(query, THREADS_PAGE, move |after, count| {
            let shared = Arc::clone(&shared);
            async move {
                let operation = Operation::list_thread_ids(after.as_deref(), count);
                let read = threads::list_thread_ids(&shared, after.as_deref(), count);
                shared.calls.run(operation, read).await
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
        let put = write::put(&self.shared, config, checkpoint, metadata, new_versions, options);
        self.shared.calls.run(Operation::put(config, &checkpoint.id), put).await
    }

    async fn put_writes_with(
        &self,
        config: &CheckpointConfig,
        writes: &[(Str, ChannelValue)],
        task_id: &str,
        task_path: &str,
        options: &PutWritesOptions,
    ) -> Result<()> {
        let put_writes = write::put_writes(&self.shared, config, writes, task_id, task_path, options);
        self.shared.calls.run(Operation::put_writes(config, task_id), put_writes).await
    }

    async fn delete_thread(&self, thread_id: &str) -> Result<()> {
        let delete = write::delete_thread(&self.shared, thread_id);
        self.shared.calls.run(Operation::delete_thread(thread_id), delete).await
    }

    async fn get_delta_channel_history(
        &self,
        config: &CheckpointConfig,
        channels: &[&str],
    ) -> Result<BTreeMap<Str, DeltaChannelHistory>> {
        let read = read::delta_history(&self.shared, config, channels);
        self.shared.calls.run(Operation::get_delta_channel_history(config), read).await
    }

    async fn delete_for_runs(&self, run_ids: &[&str]) -> Result<()> {
        let (shared, operation) = (Arc::clone(&self.shared), Operation::delete_for_runs(run_ids));
        let run_ids: Vec<Str> = run_ids.iter().map(|id| Str::from(*id)).collect();
        let delete = async move {
            let run_ids: Vec<&str> = run_ids.iter().map(|id| &**id).collect();
            prune::delete_for_runs(&shared, &run_ids).await
        };
        self.to_the_end(operation, Box::pin(delete)).await
    }

    async fn copy_thread(&self, source_thread_id: &str, target_thread_id: &str) -> Result<()> {
        let (shared, source, target) =
            (Arc::clone(&self.shared), Str::from(source_thread_id), Str::from(target_thread_id));
        let copy = async move { copy::copy_thread(&shared, &source, &target).await };
        self.to_the_end(Operation::copy_thread(source_thread_id, target_thread_id), Box::pin(copy)).await
    }

    async fn prune(&self, thread_ids: &[&str], strategy: PruneStrategy) -> Result<()> {
        let (shared, operation) = (Arc::clone(&self.shared), Operation::prune(thread_ids));
        let thread_ids: Vec<Str> = thread_ids.iter().map(|id| Str::from(*id)).collect();
        let prune = async move {
            for thread_id in &thread_ids {
                match strategy {
                    PruneStrategy::Delete => write::delete_thread(&shared, thread_id).await?,
                    PruneStrategy::KeepLatest => retention::keep_latest(&shared, thread_id).await?,
                    _ => return Err(Error::unsupported(BACKEND, "prune")),
                }
            }
            Ok(())
        };
        self.to_the_end(operation, Box::pin(prune)).await
    }

    async fn retain(
        &self,
        thread_ids: &[&str],
        policy: &Retention,
        options: &RetainOptions,
    ) -> Result<RetainReport> {
        let (shared, operation) = (Arc::clone(&self.shared), Operation::retain(thread_ids, options));
        let thread_ids: Vec<Str> = distinct(thread_ids).into_iter().map(Str::from).collect();
        let (policy, options) = (policy.clone(), *options);
        let retain = async move { retention::retain(&shared, &thread_ids, &policy, &options).await };
        self.to_the_end(operation, Box::pin(retain)).await
    }

    async fn usage(&self, options: &UsageOptions) -> Result<Usage> {
        let usage = retention::usage(&self.shared, options);
        self.shared.calls.run(Operation::usage(), usage).await
    }

    async fn acquire_lease(&self, thread_id: &str, ttl: Duration) -> Result<Lease> {
        let acquire = leases::acquire(&self.shared, thread_id, ttl);
        self.shared.calls.run(Operation::acquire_lease(thread_id), acquire).await
    }

    async fn renew_lease(&self, lease: &Lease) -> Result<()> {
        self.shared.calls.run(Operation::renew_lease(lease), leases::renew(&self.shared, lease)).await
    }

    async fn release_lease(&self, lease: &Lease) -> Result<()> {
        self.shared.calls.run(Operation::release_lease(lease), leases::release(&self.shared, lease)).await
    }

    async fn rekey(&self, thread_id: &str, options: RekeyOptions) -> Result<RekeyReport> {
        let rekey = rekey::rekey(&self.shared, thread_id, options);
        self.shared.calls.run(Operation::rekey(thread_id, options), rekey).await
    }

    async fn close(&self) -> Result<()> {
        let release = async {
            self.shared.release();
            Ok(())
        };
        self.shared.calls.close(release).await
    }
}
