//! The trait.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use checkpoint_core::cipher::AssociatedData;
use checkpoint_core::serde::document;
use checkpoint_core::{
    BaseCheckpointSaver, BoxStream, ChannelValue, ChannelVersions, Checkpoint, CheckpointConfig,
    CheckpointMetadata, CheckpointTuple, DeltaChannelHistory, Error, FilterSemantics, ListQuery,
    PruneStrategy, Result, ResultExt, SaverCapabilities, Str, ThreadInfo, ThreadQuery, TypedBytes,
    async_trait, id, index_writes,
};
use futures_util::stream::{self, StreamExt};
use tracing::{Instrument, debug_span, instrument};

use crate::SqliteSaverBuilder;
use crate::connection::read_only;
use crate::error::BACKEND;
use crate::read::{self, Listing};
use crate::worker::Workers;
use crate::write::{self, CheckpointRow, WriteRows};

/// Keeps checkpoints in a SQLite file, in the tables of LangGraph's Python. Clones share their connections.
///
/// See the [crate's page](crate) for what is stored where and what each call costs.
#[derive(Debug, Clone)]
pub struct SqliteSaver {
    workers: Arc<Workers>,
}

impl SqliteSaver {
    /// Starts to configure a saver for the file at a path.
    pub fn builder(path: impl Into<PathBuf>) -> SqliteSaverBuilder {
        SqliteSaverBuilder::new(path.into())
    }

    pub(crate) fn from_workers(workers: Workers) -> Self {
        Self { workers: Arc::new(workers) }
    }

    fn check_writable(&self) -> Result<()> {
        let config = self.workers.config();
        if config.read_only { Err(read_only().with("path", config.path.display())) } else { Ok(()) }
    }

    fn checkpoint_row(
        &self,
        config: &CheckpointConfig,
        checkpoint: &Checkpoint,
        metadata: &CheckpointMetadata,
    ) -> Result<CheckpointRow> {
        id::validate(&checkpoint.id)?;
        let place = AssociatedData::Checkpoint {
            thread_id: config.thread_id(),
            checkpoint_ns: config.checkpoint_ns(),
            checkpoint_id: &checkpoint.id,
        };
        let codec = &self.workers.config().codec;
        let typed = match checkpoint.as_opaque() {
            Some(value) if codec.opaque_values => {
                if !checkpoint.channel_values.is_empty() || !checkpoint.channel_versions.is_empty() {
                    return Err(Error::invalid_argument(
                        "the checkpoint is one value of another serializer, and has channels besides; put them into \
                         that value",
                    ));
                }
                value.clone()
            }
            _ => TypedBytes::msgpack(document::encode_checkpoint(checkpoint)?),
        };
        Ok(CheckpointRow {
            thread_id: config.thread_id().clone(),
            checkpoint_ns: config.checkpoint_ns().clone(),
            checkpoint_id: checkpoint.id.clone(),
            parent_checkpoint_id: config.checkpoint_id().cloned(),
            typed: codec.seal(typed, &place)?,
            metadata: metadata.merged(config).to_json()?,
        })
    }

    fn write_rows(
        &self,
        config: &CheckpointConfig,
        writes: &[(Str, ChannelValue)],
        task_id: &str,
        task_path: &str,
    ) -> Result<WriteRows> {
        let checkpoint_id = config.require_checkpoint_id()?;
        id::validate(checkpoint_id)?;
        let (indexes, replace) = index_writes(writes)?;
        let row = |(idx, (channel, value)): (i32, &(Str, ChannelValue))| {
            let place = AssociatedData::Write {
                thread_id: config.thread_id(),
                checkpoint_ns: config.checkpoint_ns(),
                checkpoint_id,
                task_id,
                idx,
                channel,
            };
            let typed = self.workers.config().codec.seal_value(value, &place)?;
            Ok((idx, channel.clone(), typed))
        };
        Ok(WriteRows {
            thread_id: config.thread_id().clone(),
            checkpoint_ns: config.checkpoint_ns().clone(),
            checkpoint_id: checkpoint_id.clone(),
            task_id: task_id.into(),
            task_path: task_path.into(),
            replace,
            rows: indexes.into_iter().zip(writes).map(row).collect::<Result<_>>()?,
        })
    }

    async fn store_checkpoint(&self, row: Result<CheckpointRow>) -> Result<()> {
        let row = row?;
        let bytes = row.check_size()?;
        self.workers.write(bytes, Box::new(move |_, open| row.store(open))).await
    }

    async fn store_writes(&self, rows: Result<WriteRows>) -> Result<()> {
        let rows = rows?;
        if rows.rows.is_empty() {
            return Ok(());
        }
        let bytes = rows.check_size()?;
        self.workers.write(bytes, Box::new(move |_, open| rows.store(open))).await
    }

    async fn remove_thread(&self, thread_id: &str) -> Result<()> {
        let thread_id = Str::from(thread_id);
        let bytes = thread_id.len();
        self.workers.write(bytes, Box::new(move |_, open| write::delete_thread(open, &thread_id))).await
    }
}

#[async_trait]
impl BaseCheckpointSaver for SqliteSaver {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn capabilities(&self) -> SaverCapabilities {
        SaverCapabilities::all(FilterSemantics::Equality)
    }

    #[instrument(level = "debug", skip_all, fields(db.system = BACKEND))]
    async fn setup(&self) -> Result<()> {
        self.workers.set_up().await.at(BACKEND, "setup")
    }

    #[instrument(level = "debug", skip_all, fields(
        db.system = BACKEND, thread_id = %config.thread_id(), checkpoint_ns = %config.checkpoint_ns(),
        checkpoint_id = config.checkpoint_id().map(|id| &**id)
    ))]
    async fn get_tuple(&self, config: &CheckpointConfig) -> Result<Option<CheckpointTuple>> {
        let (thread_id, checkpoint_ns) = (config.thread_id().clone(), config.checkpoint_ns().clone());
        let checkpoint_id = config.checkpoint_id().cloned();
        self.workers
            .read(move |config, open| {
                read::get_tuple(config, open, &thread_id, &checkpoint_ns, checkpoint_id.as_ref())
            })
            .await
            .at(BACKEND, "get_tuple")
    }

    fn list(&self, query: ListQuery) -> BoxStream<'static, Result<CheckpointTuple>> {
        let chunks = stream::unfold(Some((self.clone(), Listing::new(query))), |state| async move {
            let (saver, mut listing) = state.filter(|(_, listing)| !listing.is_over())?;
            let chunk = saver
                .workers
                .read(move |config, open| {
                    let (tuples, outcome) = listing.next_chunk(config, open);
                    Ok((listing, tuples, outcome))
                })
                .instrument(debug_span!("list", db.system = BACKEND))
                .await;
            let (rest, tuples, outcome) = match chunk {
                Ok((listing, tuples, Ok(()))) => (Some((saver, listing)), tuples, None),
                Ok((_, tuples, Err(error))) => (None, tuples, Some(error)),
                Err(error) => (None, Vec::new(), Some(error)),
            };
            let error = outcome.map(|error: Error| Err(error.at(BACKEND, "list")));
            Some((stream::iter(tuples.into_iter().map(Ok).chain(error)), rest))
        });
        chunks.flatten().boxed()
    }

    fn list_threads(&self, query: ThreadQuery) -> BoxStream<'static, Result<ThreadInfo>> {
        let left = query.limit.unwrap_or(usize::MAX);
        let pages = stream::unfold(Some((self.clone(), query.after, left)), |state| async move {
            let (saver, after, left) = state.filter(|(_, _, left)| *left > 0)?;
            let page = saver
                .workers
                .read(move |_, open| read::list_threads(open, after.as_ref(), left))
                .instrument(debug_span!("list_threads", db.system = BACKEND))
                .await
                .at(BACKEND, "list_threads");
            let (threads, rest): (Vec<_>, _) = match page {
                Ok(page) => {
                    let last = page.last().map(|info| info.thread_id.clone())?;
                    let left = left.saturating_sub(page.len());
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
        _new_versions: &ChannelVersions,
    ) -> Result<CheckpointConfig> {
        self.check_writable().at(BACKEND, "put")?;
        let row = self.checkpoint_row(config, checkpoint, metadata);
        self.store_checkpoint(row).await.at(BACKEND, "put")?;
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
        self.check_writable().at(BACKEND, "put_writes")?;
        let rows = self.write_rows(config, writes, task_id, task_path);
        self.store_writes(rows).await.at(BACKEND, "put_writes")
    }

    #[instrument(level = "debug", skip_all, fields(db.system = BACKEND, thread_id))]
    async fn delete_thread(&self, thread_id: &str) -> Result<()> {
        self.check_writable().at(BACKEND, "delete_thread")?;
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
        let target = config.clone();
        let channels: Vec<Str> = channels.iter().map(|channel| Str::from(*channel)).collect();
        self.workers
            .read(move |config, open| read::delta_history(config, open, &target, &channels))
            .await
            .at(BACKEND, "get_delta_channel_history")
    }

    #[instrument(level = "debug", skip_all, fields(db.system = BACKEND))]
    async fn delete_for_runs(&self, run_ids: &[&str]) -> Result<()> {
        self.check_writable().at(BACKEND, "delete_for_runs")?;
        if run_ids.is_empty() {
            return Ok(());
        }
        let run_ids: Vec<String> = run_ids.iter().map(|run_id| (*run_id).to_owned()).collect();
        self.workers
            .write_alone(Box::new(move |_, open| write::delete_for_runs(open, &run_ids)))
            .await
            .at(BACKEND, "delete_for_runs")
    }

    #[instrument(level = "debug", skip_all, fields(db.system = BACKEND, source_thread_id, target_thread_id))]
    async fn copy_thread(&self, source_thread_id: &str, target_thread_id: &str) -> Result<()> {
        self.check_writable().at(BACKEND, "copy_thread")?;
        if source_thread_id == target_thread_id {
            return Ok(());
        }
        let (source, target) = (Str::from(source_thread_id), Str::from(target_thread_id));
        self.workers
            .write_alone(Box::new(move |config, open| write::copy_thread(config, open, &source, &target)))
            .await
            .at(BACKEND, "copy_thread")
    }

    #[instrument(level = "debug", skip_all, fields(db.system = BACKEND))]
    async fn prune(&self, thread_ids: &[&str], strategy: PruneStrategy) -> Result<()> {
        self.check_writable().at(BACKEND, "prune")?;
        for thread_id in thread_ids {
            let pruned = match strategy {
                PruneStrategy::Delete => self.remove_thread(thread_id).await,
                PruneStrategy::KeepLatest => {
                    let thread_id = Str::from(*thread_id);
                    let change =
                        Box::new(move |config: &_, open: &_| write::keep_latest(config, open, &thread_id));
                    self.workers.write_alone(change).await
                }
                _ => Err(Error::unsupported(BACKEND, "prune")),
            };
            pruned.at(BACKEND, "prune")?;
        }
        Ok(())
    }
}
