//! The trait.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use checkpoint_core::cipher::ValueCodec;
use checkpoint_core::{
    BaseCheckpointSaver, BoxStream, ChannelValue, ChannelVersions, Checkpoint, CheckpointConfig,
    CheckpointMetadata, CheckpointTuple, DeltaChannelHistory, Error, FilterSemantics, ListQuery,
    PruneStrategy, Result, ResultExt, SaverCapabilities, Str, ThreadInfo, ThreadQuery, async_trait,
};
use common_postgres::deadpool_postgres::Pool;
use common_postgres::tokio_postgres::types::Type;
use common_postgres::{BACKEND, Database, PostgresConfig, Source, text};
use futures_util::stream::{self, StreamExt};
use tracing::{Instrument, debug_span, instrument};

use crate::PostgresSaverBuilder;
use crate::document::{self, check_key, check_text};
use crate::read::{self, Listing};
use crate::schema::Tables;
use crate::sql::Statements;
use crate::write::{self, CheckpointRows, WriteRows};

/// How many threads one page of `list_threads` has.
const THREADS: usize = 128;

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

/// What the clones of a saver share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) database: Database,
    /// Where listings are read.
    pub(crate) replica: Database,
    pub(crate) sql: Statements,
    pub(crate) tables: Tables,
    pub(crate) codec: ValueCodec,
}

impl PostgresSaver {
    /// Starts to configure a saver for the database that a connection string names, as
    /// [`PostgresConfig::from_conn_string`] reads it: `postgres://user:password@host:port/database`, or
    /// `host=… dbname=…`. What it leaves out comes from libpq's environment variables (`PGHOST`, `PGSSLMODE`, …).
    pub fn builder(conn_string: impl Into<String>) -> PostgresSaverBuilder {
        PostgresSaverBuilder::new(Source::ConnString(conn_string.into()))
    }

    /// Starts to configure a saver for the database of a configuration.
    pub fn from_config(config: PostgresConfig) -> PostgresSaverBuilder {
        PostgresSaverBuilder::new(Source::Config(Box::new(config)))
    }

    /// Starts to configure a saver on an application's own pool.
    pub fn from_pool(pool: Pool) -> PostgresSaverBuilder {
        PostgresSaverBuilder::new(Source::Pool(pool))
    }

    /// Whether a value stands in the checkpoint's document. All others are rows, whose bytes whoever reads them must be
    /// able to read: those whose values are another serializer's ([`PostgresSaverBuilder::opaque_values`]) give them as
    /// blobs.
    pub fn keeps_inline(&self, value: &ChannelValue) -> bool {
        document::keeps_inline(&self.shared.codec, value)
    }

    /// How the server would run the statements of the calls, on a connection of the pool: the call's name, the SQL and
    /// the plan as JSON. For tests.
    #[doc(hidden)]
    pub async fn plans(&self) -> Result<Vec<(&'static str, String, String)>> {
        let shared = &*self.shared;
        let connection = shared.database.connection().await?;
        let mut plans = Vec::new();
        for (call, sql) in shared.sql.all() {
            let explain = format!("EXPLAIN (GENERIC_PLAN, FORMAT JSON) {sql}");
            plans.push((call, sql, connection.simple(&explain).await?));
        }
        Ok(plans)
    }

    pub(crate) fn from_shared(shared: Shared) -> Self {
        Self { shared: Arc::new(shared) }
    }

    async fn remove_thread(&self, thread_id: &str) -> Result<()> {
        check_text("thread_id", thread_id)?;
        let shared = &*self.shared;
        let run = |connection| async move { write::delete_thread(shared, &connection, thread_id).await };
        shared.database.run(run).await
    }

    async fn keep_latest(&self, thread_id: &str) -> Result<()> {
        check_text("thread_id", thread_id)?;
        let shared = &*self.shared;
        let run =
            |mut connection| async move { write::keep_latest(shared, &mut connection, thread_id).await };
        shared.database.run(run).await
    }

    async fn next_threads(&self, after: Option<&str>, most: usize) -> Result<Vec<ThreadInfo>> {
        after.map_or(Ok(()), |after| check_text("after", after))?;
        let shared = &*self.shared;
        let limit = i64::try_from(most.min(THREADS)).unwrap_or(i64::MAX);
        let run = |connection: common_postgres::Connection| async move {
            let params = [(&after as _, Type::TEXT), (&limit as _, Type::INT8)];
            let rows = connection.query(&shared.sql.list_threads, &params).await?;
            rows.iter().map(|row| Ok(ThreadInfo::new(text(row, 0)?, text(row, 1)?))).collect()
        };
        shared.replica.run(run).await
    }
}

#[async_trait]
impl BaseCheckpointSaver for PostgresSaver {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn capabilities(&self) -> SaverCapabilities {
        SaverCapabilities::all(FilterSemantics::Containment)
    }

    #[instrument(level = "debug", skip_all, fields(db.system = BACKEND))]
    async fn setup(&self) -> Result<()> {
        self.shared.tables.set_up(&self.shared.database).await.at(BACKEND, "setup")
    }

    #[instrument(level = "debug", skip_all, fields(
        db.system = BACKEND, thread_id = %config.thread_id(), checkpoint_ns = %config.checkpoint_ns(),
        checkpoint_id = config.checkpoint_id().map(|id| &**id)
    ))]
    async fn get_tuple(&self, config: &CheckpointConfig) -> Result<Option<CheckpointTuple>> {
        check_key(config).at(BACKEND, "get_tuple")?;
        let shared = &*self.shared;
        let run = |connection| async move { read::get_tuple(shared, &connection, config).await };
        shared.database.run(run).await.at(BACKEND, "get_tuple")
    }

    fn list(&self, query: ListQuery) -> BoxStream<'static, Result<CheckpointTuple>> {
        let listing = match Listing::new(query).at(BACKEND, "list") {
            Ok(listing) => listing,
            Err(error) => return stream::iter([Err(error)]).boxed(),
        };
        let pages = stream::unfold(Some((self.clone(), listing)), |state| async move {
            let (saver, mut listing) = state.filter(|(_, listing)| !listing.is_over())?;
            let shared = &*saver.shared;
            let listing_ref = &listing;
            let run = |connection| async move { listing_ref.read_page(shared, &connection).await };
            let page = shared
                .replica
                .run(run)
                .instrument(debug_span!("list", db.system = BACKEND))
                .await
                .at(BACKEND, "list");
            let (tuples, rest): (Vec<_>, _) = match page {
                Ok(page) => {
                    let tuples = listing.turn(page).into_iter().map(Ok).collect();
                    (tuples, Some((saver, listing)))
                }
                Err(error) => (vec![Err(error)], None),
            };
            Some((stream::iter(tuples), rest))
        });
        pages.flatten().boxed()
    }

    fn list_threads(&self, query: ThreadQuery) -> BoxStream<'static, Result<ThreadInfo>> {
        let left = query.limit.unwrap_or(usize::MAX);
        let pages = stream::unfold(Some((self.clone(), query.after, left)), |state| async move {
            let (saver, after, left) = state.filter(|(_, _, left)| *left > 0)?;
            let page = saver
                .next_threads(after.as_deref(), left)
                .instrument(debug_span!("list_threads", db.system = BACKEND))
                .await
                .at(BACKEND, "list_threads");
            let (threads, rest): (Vec<_>, _) = match page {
                Ok(page) => {
                    let last = page.last().map(|info| info.thread_id.clone())?;
                    let left = if page.len() < THREADS { 0 } else { left.saturating_sub(page.len()) };
                    (page.into_iter().map(Ok).collect(), Some((saver, Some(last), left)))
                }
                Err(error) => (vec![Err(error)], None),
            };
            Some((stream::iter(threads), rest))
        });
        pages.flatten().boxed()
    }

    #[instrument(level = "debug", skip_all, fields(
        db.system = BACKEND, thread_id = %config.thread_id(), checkpoint_ns = %config.checkpoint_ns(),
        checkpoint_id = %checkpoint.id
    ))]
    async fn put(
        &self,
        config: &CheckpointConfig,
        checkpoint: &Checkpoint,
        metadata: &CheckpointMetadata,
        new_versions: &ChannelVersions,
    ) -> Result<CheckpointConfig> {
        let shared = &*self.shared;
        let rows =
            CheckpointRows::new(shared, config, checkpoint, metadata, new_versions).at(BACKEND, "put")?;
        let rows = &rows;
        let run = |connection| async move { rows.store(shared, &connection, false).await };
        if !shared.database.run(run).await.at(BACKEND, "put")? {
            // The parent went meanwhile, perhaps with values that did not change, or is about to go: all values are
            // stored, once nobody else has the thread to itself.
            let all = &checkpoint.channel_versions;
            let rows = CheckpointRows::new(shared, config, checkpoint, metadata, all).at(BACKEND, "put")?;
            let rows = &rows;
            let run = |connection| async move { rows.store(shared, &connection, true).await };
            shared.database.run(run).await.at(BACKEND, "put")?;
        }
        Ok(CheckpointConfig::new(config.thread_id().clone())
            .with_checkpoint_ns(config.checkpoint_ns().clone())
            .with_checkpoint_id(checkpoint.id.clone()))
    }

    #[instrument(level = "debug", skip_all, fields(
        db.system = BACKEND, thread_id = %config.thread_id(), checkpoint_ns = %config.checkpoint_ns(),
        checkpoint_id = config.checkpoint_id().map(|id| &**id), task_id
    ))]
    async fn put_writes(
        &self,
        config: &CheckpointConfig,
        writes: &[(Str, ChannelValue)],
        task_id: &str,
        task_path: &str,
    ) -> Result<()> {
        let shared = &*self.shared;
        let rows = WriteRows::new(shared, config, writes, task_id, task_path).at(BACKEND, "put_writes")?;
        if writes.is_empty() {
            return Ok(());
        }
        let rows = &rows;
        let run = |connection| async move { rows.store(shared, &connection).await };
        shared.database.run(run).await.at(BACKEND, "put_writes")
    }

    #[instrument(level = "debug", skip_all, fields(db.system = BACKEND, thread_id))]
    async fn delete_thread(&self, thread_id: &str) -> Result<()> {
        self.remove_thread(thread_id).await.at(BACKEND, "delete_thread")
    }

    #[instrument(level = "debug", skip_all, fields(
        db.system = BACKEND, thread_id = %config.thread_id(), checkpoint_ns = %config.checkpoint_ns(),
        checkpoint_id = config.checkpoint_id().map(|id| &**id)
    ))]
    async fn get_delta_channel_history(
        &self,
        config: &CheckpointConfig,
        channels: &[&str],
    ) -> Result<BTreeMap<Str, DeltaChannelHistory>> {
        check_key(config).at(BACKEND, "get_delta_channel_history")?;
        let mut names: Vec<Str> = Vec::with_capacity(channels.len());
        for channel in channels {
            check_text("channel", channel).at(BACKEND, "get_delta_channel_history")?;
            names.push(Str::from(*channel));
        }
        let (shared, names) = (&*self.shared, &names);
        let run = |connection| async move { read::delta_history(shared, &connection, config, names).await };
        shared.database.run(run).await.at(BACKEND, "get_delta_channel_history")
    }

    #[instrument(level = "debug", skip_all, fields(db.system = BACKEND))]
    async fn delete_for_runs(&self, run_ids: &[&str]) -> Result<()> {
        // No stored metadata holds U+0000.
        let run_ids: Vec<String> = run_ids
            .iter()
            .filter(|run_id| !run_id.contains('\0'))
            .map(|run_id| (*run_id).to_owned())
            .collect();
        if run_ids.is_empty() {
            return Ok(());
        }
        let (shared, run_ids) = (&*self.shared, &run_ids);
        let run =
            |mut connection| async move { write::delete_for_runs(shared, &mut connection, run_ids).await };
        shared.database.run(run).await.at(BACKEND, "delete_for_runs")
    }

    #[instrument(level = "debug", skip_all, fields(db.system = BACKEND, source_thread_id, target_thread_id))]
    async fn copy_thread(&self, source_thread_id: &str, target_thread_id: &str) -> Result<()> {
        for thread_id in [source_thread_id, target_thread_id] {
            check_text("thread_id", thread_id).at(BACKEND, "copy_thread")?;
        }
        if source_thread_id == target_thread_id {
            return Ok(());
        }
        let shared = &*self.shared;
        let run = |mut connection| async move {
            write::copy_thread(shared, &mut connection, source_thread_id, target_thread_id).await
        };
        shared.database.run(run).await.at(BACKEND, "copy_thread")
    }

    #[instrument(level = "debug", skip_all, fields(db.system = BACKEND))]
    async fn prune(&self, thread_ids: &[&str], strategy: PruneStrategy) -> Result<()> {
        for thread_id in thread_ids {
            let pruned = match strategy {
                PruneStrategy::Delete => self.remove_thread(thread_id).await,
                PruneStrategy::KeepLatest => self.keep_latest(thread_id).await,
                _ => Err(Error::unsupported(BACKEND, "prune")),
            };
            pruned.at(BACKEND, "prune")?;
        }
        Ok(())
    }
}
