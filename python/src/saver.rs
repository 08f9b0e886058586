//! The native class of every checkpointer, over any backend.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use checkpoint_core::{
    BaseCheckpointSaver, ChannelValue, ChannelVersions, Checkpoint, CheckpointConfig, CheckpointMetadata,
    DeltaChannelHistory, PruneStrategy, PutOptions, Result, RetainOptions, SaverCapabilities, Str, opaque,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use tokio::sync::OnceCell;

use crate::call::Call;
use crate::config::{self, from_config, to_config, to_query};
use crate::convert::{from_version, to_metadata, to_str, to_strings, to_version, to_versions};
use crate::list::Listing;
use crate::opened::Opened;
use crate::retention::{self, Policy};
use crate::tuple::{self, Serde};

/// A backend.
pub(crate) struct Backend {
    saver: Box<dyn BaseCheckpointSaver>,
    /// Where `setup()` is no step of a deployment, the first call makes up for it.
    set_up: Option<OnceCell<()>>,
}

impl Backend {
    pub(crate) fn new(saver: impl BaseCheckpointSaver) -> Self {
        Self { saver: Box::new(saver), set_up: None }
    }

    /// The first call runs `setup()`.
    pub(crate) fn sets_up_itself(mut self) -> Self {
        self.set_up = Some(OnceCell::new());
        self
    }

    /// The saver, set up for any call but `setup()`.
    pub(crate) async fn ready(&self) -> Result<&dyn BaseCheckpointSaver> {
        if let Some(done) = &self.set_up {
            done.get_or_try_init(|| self.saver.setup()).await?;
        }
        Ok(&*self.saver)
    }
}

/// The native part of a checkpointer. Its methods return calls, to be run with `wait()` or `await`.
#[pyclass(frozen, name = "Saver", module = "langgraph_ckpt._native")]
pub(crate) struct NativeSaver {
    backend: Opened<Backend>,
    capabilities: SaverCapabilities,
    /// The size of the largest recent put in bytes; it decays with each put.
    stored: AtomicUsize,
}

/// From this size on, serialization takes milliseconds and should not block an event loop.
const LARGE: usize = 256 * 1024;

impl NativeSaver {
    pub(crate) fn new(py: Python<'_>, backend: Backend) -> Self {
        let capabilities = backend.saver.capabilities();
        let backend =
            Opened::new(py, "saver", capabilities.immediate, backend, |backend| backend.saver.close());
        Self { backend, capabilities, stored: AtomicUsize::new(0) }
    }

    fn has_stored<'a>(&self, values: impl Iterator<Item = &'a ChannelValue>) {
        let bytes = values.filter_map(ChannelValue::as_blob).map(|blob| blob.data.len()).sum();
        let _ = self.stored.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| {
            Some(before.saturating_sub(before / 4).max(bytes))
        });
    }
}

#[expect(clippy::unnecessary_wraps, reason = "what makes a result may fail, elsewhere")]
fn nothing(py: Python<'_>, (): ()) -> PyResult<Py<PyAny>> {
    Ok(py.None())
}

#[pymethods]
impl NativeSaver {
    fn setup(&self) -> Call {
        self.backend.call(|backend| async move { backend.saver.setup().await }, nothing)
    }

    /// Whether recent puts were large, and slow to serialize.
    #[getter]
    fn is_large(&self) -> bool {
        self.stored.load(Ordering::Relaxed) >= LARGE
    }

    /// Whether there is nothing to close.
    #[getter]
    fn closed(&self) -> bool {
        self.backend.is_closed()
    }

    fn close(&self) -> Call {
        self.backend.close()
    }

    fn get_tuple(&self, serde: &Bound<'_, PyAny>, config: &Bound<'_, PyAny>) -> PyResult<Call> {
        let (config, serde) = (to_config(config)?, Serde::new(serde));
        Ok(self.backend.call(
            |backend| async move { backend.ready().await?.get_tuple(&config).await },
            move |py, found| match found {
                Some(found) => tuple::from_tuple(py, &serde, &found),
                None => Ok(py.None()),
            },
        ))
    }

    #[pyo3(signature = (serde, config, filter, before, limit))]
    fn list(
        &self,
        serde: &Bound<'_, PyAny>,
        config: Option<&Bound<'_, PyAny>>,
        filter: Option<&Bound<'_, PyAny>>,
        before: Option<&Bound<'_, PyAny>>,
        limit: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Listing> {
        let query = to_query(self.capabilities, config, filter, before, limit)?;
        Ok(Listing::new(&self.backend, query, Serde::new(serde)))
    }

    /// Stores a checkpoint, with all values or only those that changed since the parent. If the parent lacks an unchanged
    /// value, the error is a conflict, and nothing is stored.
    fn put(
        &self,
        serde: &Bound<'_, PyAny>,
        config: &Bound<'_, PyAny>,
        checkpoint: &Bound<'_, PyAny>,
        metadata: &Bound<'_, PyAny>,
        new_versions: &Bound<'_, PyAny>,
        with_all: bool,
    ) -> PyResult<Call> {
        struct Put {
            config: CheckpointConfig,
            checkpoint: Checkpoint,
            metadata: CheckpointMetadata,
            new_versions: ChannelVersions,
            options: PutOptions,
        }
        let new_versions = to_versions(new_versions)?;
        let changed = (!with_all).then_some(&new_versions);
        let config = to_config(config)?;
        let (checkpoint, options) =
            tuple::to_checkpoint(self.capabilities, &Serde::new(serde), checkpoint, changed)?;
        let put = Put { config, checkpoint, metadata: to_metadata(metadata)?, new_versions, options };
        let whole = opaque::value(&put.checkpoint).map(|value| ChannelValue::Blob(value.clone()));
        self.has_stored(put.checkpoint.channel_values.values().chain(&whole));
        Ok(self.backend.call(
            |backend| async move {
                backend
                    .ready()
                    .await?
                    .put_with(&put.config, &put.checkpoint, &put.metadata, &put.new_versions, &put.options)
                    .await
            },
            |py, config| Ok(from_config(py, &config)?.into_any().unbind()),
        ))
    }

    fn put_writes(
        &self,
        serde: &Bound<'_, PyAny>,
        config: &Bound<'_, PyAny>,
        writes: &Bound<'_, PyAny>,
        task_id: &Bound<'_, PyAny>,
        task_path: &Bound<'_, PyAny>,
    ) -> PyResult<Call> {
        let config = config::to_config_of_checkpoint(config)?;
        let writes = tuple::to_writes(&Serde::new(serde), writes)?;
        self.has_stored(writes.iter().map(|(_, value)| value));
        let (task_id, task_path) = (to_str(task_id, "task_id")?, to_str(task_path, "task_path")?);
        Ok(self.backend.call(
            |backend| async move {
                backend.ready().await?.put_writes(&config, &writes, &task_id, &task_path).await
            },
            nothing,
        ))
    }

    fn delete_thread(&self, thread_id: &Bound<'_, PyAny>) -> PyResult<Call> {
        let thread_id = config::thread_id(thread_id)?;
        Ok(self
            .backend
            .call(|backend| async move { backend.ready().await?.delete_thread(&thread_id).await }, nothing))
    }

    fn delete_for_runs(&self, run_ids: &Bound<'_, PyAny>) -> PyResult<Call> {
        let run_ids = to_strings(run_ids, "run_ids")?;
        Ok(self.backend.call(
            |backend| async move { backend.ready().await?.delete_for_runs(&references(&run_ids)).await },
            nothing,
        ))
    }

    fn copy_thread(&self, source: &Bound<'_, PyAny>, target: &Bound<'_, PyAny>) -> PyResult<Call> {
        let (source, target) = (config::thread_id(source)?, config::thread_id(target)?);
        Ok(self.backend.call(
            |backend| async move { backend.ready().await?.copy_thread(&source, &target).await },
            nothing,
        ))
    }

    fn prune(&self, thread_ids: &Bound<'_, PyAny>, strategy: &str) -> PyResult<Call> {
        let thread_ids = to_strings(thread_ids, "thread_ids")?;
        let strategy = match strategy {
            "keep_latest" => PruneStrategy::KeepLatest,
            "delete" => PruneStrategy::Delete,
            other => {
                return Err(PyValueError::new_err(format!(
                    "Unknown prune strategy: {other:?}; it is \"keep_latest\" or \"delete\""
                )));
            }
        };
        Ok(
            self.backend.call(
                move |backend| async move {
                    backend.ready().await?.prune(&references(&thread_ids), strategy).await
                },
                nothing,
            ),
        )
    }

    #[expect(clippy::too_many_arguments, reason = "those of Python's method")]
    #[pyo3(signature = (keep_last, max_age, idle_for, namespaces, pin, keep_branch_points, include_waiting, thread_ids, dry_run))]
    fn retain(
        &self,
        keep_last: Option<&Bound<'_, PyAny>>,
        max_age: Option<&Bound<'_, PyAny>>,
        idle_for: Option<&Bound<'_, PyAny>>,
        namespaces: Option<&Bound<'_, PyAny>>,
        pin: Option<&Bound<'_, PyAny>>,
        keep_branch_points: bool,
        include_waiting: bool,
        thread_ids: Option<&Bound<'_, PyAny>>,
        dry_run: bool,
    ) -> PyResult<Call> {
        let policy =
            Policy { keep_last, max_age, idle_for, namespaces, pin, keep_branch_points, include_waiting };
        let policy = policy.read()?;
        let thread_ids = thread_ids.map(|thread_ids| to_strings(thread_ids, "thread_ids")).transpose()?;
        let options = RetainOptions::default().dry_run(dry_run);
        Ok(self.backend.call(
            move |backend| async move {
                retention::retain(backend.ready().await?, policy, thread_ids, options).await
            },
            move |py, summary| retention::from_summary(py, &summary, dry_run),
        ))
    }

    fn get_delta_channel_history(
        &self,
        serde: &Bound<'_, PyAny>,
        config: &Bound<'_, PyAny>,
        channels: &Bound<'_, PyAny>,
    ) -> PyResult<Call> {
        let (config, serde) = (to_config(config)?, Serde::new(serde));
        let channels = to_strings(channels, "channels")?;
        let asked = channels.clone();
        Ok(self.backend.call(
            |backend| async move {
                if channels.is_empty() {
                    return Ok(BTreeMap::new());
                }
                backend.ready().await?.get_delta_channel_history(&config, &references(&channels)).await
            },
            move |py, histories| from_histories(py, &serde, &asked, &histories),
        ))
    }

    #[staticmethod]
    #[pyo3(signature = (current))]
    fn get_next_version<'py>(
        py: Python<'py>,
        current: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let current = current.map(to_version).transpose()?;
        from_version(py, &checkpoint_core::version::next(current.as_ref()))
    }
}

fn references(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

/// `writes`, and `seed` if there is one, for each requested channel, in their order.
fn from_histories(
    py: Python<'_>,
    serde: &Serde,
    channels: &[String],
    histories: &BTreeMap<Str, DeltaChannelHistory>,
) -> PyResult<Py<PyAny>> {
    let all = PyDict::new(py);
    for channel in channels {
        let one = PyDict::new(py);
        let history = histories.get(channel.as_str());
        let writes = history.map_or(&[][..], |history| &history.writes);
        let writes =
            writes.iter().map(|write| tuple::from_write(py, serde, write)).collect::<PyResult<Vec<_>>>()?;
        one.set_item("writes", PyList::new(py, writes)?)?;
        if let Some(seed) = history.and_then(|history| history.seed.as_ref()) {
            one.set_item("seed", tuple::from_channel_value(py, serde, seed)?)?;
        }
        all.set_item(channel, one)?;
    }
    Ok(all.into_any().unbind())
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NativeSaver>()?;
    module.add_class::<Listing>()
}
