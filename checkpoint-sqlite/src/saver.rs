//! The trait.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use checkpoint_core::backend::{Decision, Operation, PreparedWrites, pages, thread_id_pages, thread_pages};
use checkpoint_core::retention::{Usage, UsageOptions};
use checkpoint_core::{
    BaseCheckpointSaver, BoxStream, ChannelValue, ChannelVersions, Checkpoint, CheckpointConfig,
    CheckpointMetadata, CheckpointTuple, DeltaChannelHistory, Error, FilterSemantics, Lease, ListQuery,
    PruneStrategy, PutOptions, PutWritesOptions, RekeyOptions, RekeyReport, Result, RetainOptions,
    RetainReport, Retention, SaverCapabilities, Str, ThreadInfo, ThreadQuery, async_trait,
};

use crate::SqliteSaverBuilder;
use crate::error::BACKEND;
use crate::leases;
use crate::read::{self, Listing};
use crate::rekey;
use crate::retention;
use crate::schema;
use crate::worker::Workers;
use crate::write::{self, CheckpointRow};

/// How many threads one page of `list_threads` has.
const THREADS_PAGE: usize = 128;

/// Keeps checkpoints in a SQLite file, in the tables of LangGraph's Python. Clones share their connections.
///
/// See the [crate's page](crate) for what is stored where and what each call costs.
#[derive(Debug, Clone)]
pub struct SqliteSaver {
    workers: Arc<Workers>,
}

impl SqliteSaver {
    /// Configures a saver for the file at a path.
    pub fn builder(path: impl Into<PathBuf>) -> SqliteSaverBuilder {
        SqliteSaverBuilder::new(path.into())
    }

    pub(crate) fn from_workers(workers: Workers) -> Self {
        Self { workers: Arc::new(workers) }
    }
}

#[async_trait]
impl BaseCheckpointSaver for SqliteSaver {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn capabilities(&self) -> SaverCapabilities {
        SaverCapabilities::all(FilterSemantics::Equality).with_usage()
    }

    async fn setup(&self) -> Result<()> {
        self.workers.calls.run(Operation::setup(), self.workers.set_up()).await
    }

    async fn ping(&self) -> Result<()> {
        self.workers.calls.run(Operation::ping(), self.workers.ping()).await
    }

    async fn check_schema(&self) -> Result<()> {
        let check = self.workers.read(|_, open| schema::inspect(&open.connection)?.ready().map(|_| ()));
        self.workers.calls.run(Operation::check_schema(), check).await
    }

    async fn get_tuple(&self, config: &CheckpointConfig) -> Result<Option<CheckpointTuple>> {
        let target = config.without_metadata();
        let read = self.workers.read(move |config, open| read::get_tuple(config, open, &target));
        self.workers.calls.run(Operation::get_tuple(config), read).await
    }

    fn list(&self, query: ListQuery) -> BoxStream<'static, Result<CheckpointTuple>> {
        let workers = Arc::clone(&self.workers);
        pages(Listing::begin(query), move |listing| {
            let workers = Arc::clone(&workers);
            async move {
                let operation = Operation::list(&listing.query);
                let read = workers.read(move |config, open| listing.next_page(config, open));
                workers.calls.run(operation, read).await
            }
        })
    }

    fn list_threads(&self, query: ThreadQuery) -> BoxStream<'static, Result<ThreadInfo>> {
        let workers = Arc::clone(&self.workers);
        thread_pages(query, FilterSemantics::Equality, THREADS_PAGE, move |query, after, count| {
            let workers = Arc::clone(&workers);
            async move {
                let operation = Operation::list_threads(after.as_deref(), count);
                let read = workers.read(move |config, open| {
                    read::list_threads(config, open, &query, after.as_ref(), count)
                });
                workers.calls.run(operation, read).await
            }
        })
    }

    fn list_thread_ids(&self, query: ThreadQuery) -> BoxStream<'static, Result<Str>> {
        let workers = Arc::clone(&self.workers);
        thread_id_pages(query, THREADS_PAGE, move |after, count| {
            let workers = Arc::clone(&workers);
            async move {
                let operation = Operation::list_thread_ids(after.as_deref(), count);
                let read = workers.read(move |_, open| read::list_thread_ids(open, after.as_ref(), count));
                workers.calls.run(operation, read).await
            }
        })
    }

    async fn put_with(
        &self,
        config: &CheckpointConfig,
        checkpoint: &Checkpoint,
        metadata: &CheckpointMetadata,
        _new_versions: &ChannelVersions,
        options: &PutOptions,
    ) -> Result<CheckpointConfig> {
        let put = async {
            let codec = &self.workers.to_write()?.codec;
            let row = CheckpointRow::new(codec, config, checkpoint, metadata, options)?;
            let bytes = row.check_size()?;
            if !options.is_conditional() {
                self.workers.write(bytes, Box::new(move |config, open| row.store(config, open))).await?;
                return Ok(config.for_checkpoint(checkpoint.id.clone()));
            }
            let (target, options) = (config.without_metadata(), options.clone());
            let change = move |config: &_, open: &_| row.store_if(config, open, &target, &options);
            match self.workers.write_returning(bytes, change).await? {
                Decision::Store => Ok(config.for_checkpoint(checkpoint.id.clone())),
                Decision::Repeats(checkpoint_id) => Ok(config.for_checkpoint(checkpoint_id)),
            }
        };
        self.workers.calls.run(Operation::put(config, &checkpoint.id), put).await
    }

    async fn put_writes_with(
        &self,
        config: &CheckpointConfig,
        writes: &[(Str, ChannelValue)],
        task_id: &str,
        task_path: &str,
        options: &PutWritesOptions,
    ) -> Result<()> {
        let put_writes = async {
            let codec = &self.workers.to_write()?.codec;
            let writes = PreparedWrites::new(codec, config, writes, task_id, task_path)?.with(options)?;
            if writes.rows.is_empty() {
                return Ok(());
            }
            let bytes = write::check_writes(&writes)?;
            if !options.is_conditional() {
                let change = Box::new(move |_: &_, open: &_| write::store_writes(open, &writes));
                return self.workers.write(bytes, change).await;
            }
            let (target, options) = (config.without_metadata(), options.clone());
            let change = move |_: &_, open: &_| write::store_writes_if(open, &target, &writes, &options);
            self.workers.write(bytes, Box::new(change)).await
        };
        self.workers.calls.run(Operation::put_writes(config, task_id), put_writes).await
    }

    async fn delete_thread(&self, thread_id: &str) -> Result<()> {
        let delete = async {
            self.workers.to_write()?;
            self.workers.delete_thread(thread_id).await
        };
        self.workers.calls.run(Operation::delete_thread(thread_id), delete).await
    }

    async fn get_delta_channel_history(
        &self,
        config: &CheckpointConfig,
        channels: &[&str],
    ) -> Result<BTreeMap<Str, DeltaChannelHistory>> {
        let target = config.without_metadata();
        let channels: Vec<Str> = channels.iter().map(|channel| Str::from(*channel)).collect();
        let read =
            self.workers.read(move |config, open| read::delta_history(config, open, &target, &channels));
        self.workers.calls.run(Operation::get_delta_channel_history(config), read).await
    }

    async fn delete_for_runs(&self, run_ids: &[&str]) -> Result<()> {
        let delete = async {
            self.workers.to_write()?;
            if run_ids.is_empty() {
                return Ok(());
            }
            let run_ids: Vec<String> = run_ids.iter().map(|run_id| (*run_id).to_owned()).collect();
            self.workers.write_alone(Box::new(move |_, open| write::delete_for_runs(open, &run_ids))).await
        };
        self.workers.calls.run(Operation::delete_for_runs(run_ids), delete).await
    }

    async fn copy_thread(&self, source_thread_id: &str, target_thread_id: &str) -> Result<()> {
        let copy = async {
            self.workers.to_write()?;
            if source_thread_id == target_thread_id {
                return Ok(());
            }
            let (source, target) = (Str::from(source_thread_id), Str::from(target_thread_id));
            let change = move |config: &_, open: &_| write::copy_thread(config, open, &source, &target);
            self.workers.write_alone(Box::new(change)).await
        };
        self.workers.calls.run(Operation::copy_thread(source_thread_id, target_thread_id), copy).await
    }

    async fn prune(&self, thread_ids: &[&str], strategy: PruneStrategy) -> Result<()> {
        let prune = async {
            self.workers.to_write()?;
            for thread_id in thread_ids {
                match strategy {
                    PruneStrategy::Delete => self.workers.delete_thread(thread_id).await?,
                    PruneStrategy::KeepLatest => {
                        let thread_id = Str::from(*thread_id);
                        let change =
                            move |config: &_, open: &_| retention::keep_latest(config, open, &thread_id);
                        self.workers.write_alone(Box::new(change)).await?;
                    }
                    _ => return Err(Error::unsupported(BACKEND, "prune")),
                }
            }
            Ok(())
        };
        self.workers.calls.run(Operation::prune(thread_ids), prune).await
    }

    async fn retain(
        &self,
        thread_ids: &[&str],
        policy: &Retention,
        options: &RetainOptions,
    ) -> Result<RetainReport> {
        let retain = retention::retain(&self.workers, thread_ids, policy, options);
        self.workers.calls.run(Operation::retain(thread_ids, options), retain).await
    }

    async fn usage(&self, options: &UsageOptions) -> Result<Usage> {
        let options = *options;
        let usage = self.workers.read(move |config, open| retention::usage(config, open, options));
        self.workers.calls.run(Operation::usage(), usage).await
    }

    async fn acquire_lease(&self, thread_id: &str, ttl: Duration) -> Result<Lease> {
        let acquire = async {
            self.workers.to_write()?;
            let request = Lease::request(thread_id, ttl)?;
            self.workers.write_returning(0, move |_, open| leases::acquire(open, &request)).await
        };
        self.workers.calls.run(Operation::acquire_lease(thread_id), acquire).await
    }

    async fn renew_lease(&self, lease: &Lease) -> Result<()> {
        let renew = async {
            self.workers.to_write()?;
            let renewed = lease.clone();
            let is_held =
                self.workers.write_returning(0, move |_, open| leases::renew(open, &renewed)).await?;
            if is_held { Ok(()) } else { Err(lease.lost()) }
        };
        self.workers.calls.run(Operation::renew_lease(lease), renew).await
    }

    async fn release_lease(&self, lease: &Lease) -> Result<()> {
        let release = async {
            self.workers.to_write()?;
            let released = lease.clone();
            self.workers.write(0, Box::new(move |_, open| leases::release(open, &released))).await
        };
        self.workers.calls.run(Operation::release_lease(lease), release).await
    }

    async fn rekey(&self, thread_id: &str, options: RekeyOptions) -> Result<RekeyReport> {
        let rekey = rekey::rekey(&self.workers, thread_id, options);
        self.workers.calls.run(Operation::rekey(thread_id, options), rekey).await
    }

    async fn close(&self) -> Result<()> {
        self.workers.calls.close(self.workers.close()).await
    }
}
