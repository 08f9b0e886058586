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
use common_postgres::deadpool_postgres::Pool;
use common_postgres::{BACKEND, ConnectionSource, PostgresConfig};

use crate::PostgresSaverBuilder;
use crate::leases;
use crate::read::{self, Listing};
use crate::rekey;
use crate::retention;
use crate::shared::Shared;
use crate::write;

/// How many threads one page of `list_threads` has.
const THREADS_PAGE: usize = 128;

/// Keeps checkpoints in PostgreSQL, in the tables of LangGraph's Python. Clones share their connections.
///
/// See the [crate's page](crate) for what is stored where and what each call costs.
#[derive(Clone)]
pub struct PostgresSaver {
    shared: Arc<Shared>,
}

impl fmt::Debug for PostgresSaver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresSaver")
            .field("database", &self.shared.database)
            .field("cipher", &self.shared.codec.cipher)
            .finish_non_exhaustive()
    }
}

impl PostgresSaver {
    /// Configures a saver for the database that a connection string names, as
    /// [`PostgresConfig::from_conn_string`] reads it: `postgres://user:password@host:port/database`, or
    /// `host=… dbname=…`. What it leaves out comes from libpq's environment variables (`PGHOST`, `PGSSLMODE`, …).
    pub fn builder(conn_string: impl Into<String>) -> PostgresSaverBuilder {
        PostgresSaverBuilder::new(ConnectionSource::ConnString(conn_string.into()))
    }

    /// Configures a saver for the database of a configuration.
    pub fn from_config(config: PostgresConfig) -> PostgresSaverBuilder {
        PostgresSaverBuilder::new(ConnectionSource::Config(Box::new(config)))
    }

    /// Configures a saver on an application's own pool, which `close()` leaves open.
    pub fn from_pool(pool: Pool) -> PostgresSaverBuilder {
        PostgresSaverBuilder::new(ConnectionSource::Pool(pool))
    }

    /// How the server would run the saver's statements, for tests: the call's name, the SQL and the plan as JSON.
    #[doc(hidden)]
    pub async fn plans(&self) -> Result<Vec<(&'static str, String, String)>> {
        self.shared.plans().await
    }

    pub(crate) fn from_shared(shared: Shared) -> Self {
        Self { shared: Arc::new(shared) }
    }
}

#[async_trait]
impl BaseCheckpointSaver for PostgresSaver {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn capabilities(&self) -> SaverCapabilities {
        let inline =
            if self.shared.codec.cipher.is_some() { InlineScalars::None } else { InlineScalars::Jsonb };
        SaverCapabilities::all(FilterSemantics::Containment)
            .with_usage()
            .with_layout(CheckpointLayout::Channels { inline })
    }

    async fn setup(&self) -> Result<()> {
        let setup = Box::pin(self.shared.tables.set_up(&self.shared.database));
        self.shared.calls.run(Operation::setup(), setup).await
    }

    async fn ping(&self) -> Result<()> {
        self.shared.calls.run(Operation::ping(), self.shared.database.ping()).await
    }

    async fn check_schema(&self) -> Result<()> {
        let check = self.shared.tables.check_schema(&self.shared.database);
        self.shared.calls.run(Operation::check_schema(), check).await
    }

    async fn get_tuple(&self, config: &CheckpointConfig) -> Result<Option<CheckpointTuple>> {
        self.shared.calls.run(Operation::get_tuple(config), read::get_tuple(&self.shared, config)).await
    }

    fn list(&self, query: ListQuery) -> BoxStream<'static, Result<CheckpointTuple>> {
        let shared = Arc::clone(&self.shared);
        pages(Listing::begin(query), move |listing| {
            let shared = Arc::clone(&shared);
            async move {
                let operation = Operation::list(&listing.cursor.query);
                shared.calls.run(operation, listing.next_page(&shared)).await
            }
        })
    }

    fn list_threads(&self, query: ThreadQuery) -> BoxStream<'static, Result<ThreadInfo>> {
        let shared = Arc::clone(&self.shared);
        thread_pages(query, FilterSemantics::Containment, THREADS_PAGE, move |query, after, count| {
            let shared = Arc::clone(&shared);
            async move {
                let operation = Operation::list_threads(after.as_deref(), count);
                let read = read::list_threads(&shared, &query, after.as_deref(), count);
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
                let read = read::list_thread_ids(&shared, after.as_deref(), count);
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
        let delete = write::delete_for_runs(&self.shared, run_ids);
        self.shared.calls.run(Operation::delete_for_runs(run_ids), delete).await
    }

    async fn copy_thread(&self, source_thread_id: &str, target_thread_id: &str) -> Result<()> {
        let copy = write::copy_thread(&self.shared, source_thread_id, target_thread_id);
        self.shared.calls.run(Operation::copy_thread(source_thread_id, target_thread_id), copy).await
    }

    async fn prune(&self, thread_ids: &[&str], strategy: PruneStrategy) -> Result<()> {
        let prune = async {
            for thread_id in thread_ids {
                match strategy {
                    PruneStrategy::Delete => write::delete_thread(&self.shared, thread_id).await?,
                    PruneStrategy::KeepLatest => retention::keep_latest(&self.shared, thread_id).await?,
                    _ => return Err(Error::unsupported(BACKEND, "prune")),
                }
            }
            Ok(())
        };
        self.shared.calls.run(Operation::prune(thread_ids), prune).await
    }

    async fn retain(
        &self,
        thread_ids: &[&str],
        policy: &Retention,
        options: &RetainOptions,
    ) -> Result<RetainReport> {
        let retain = retention::retain(&self.shared, thread_ids, policy, options);
        self.shared.calls.run(Operation::retain(thread_ids, options), retain).await
    }

    async fn usage(&self, options: &UsageOptions) -> Result<Usage> {
        self.shared.calls.run(Operation::usage(), retention::usage(&self.shared, options)).await
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
