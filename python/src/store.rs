//! The native class of every store.

use std::ffi::CStr;
use std::mem;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use checkpoint_core::ResultExt;
use checkpoint_core::store::{BaseStore, Distance, IndexConfig, Op, Ttl, TtlConfig};
use pyo3::exceptions::{PyUserWarning, PyValueError};
use pyo3::prelude::*;
use store_postgres::{AnnIndex, VectorType};

use crate::call::Call;
use crate::embeddings::{PythonEmbeddings, Texts, Vectors};
use crate::error::OrRaise;
use crate::opened::Opened;
use crate::runtime::lock;
use crate::store_ops::LangGraph;

const NO_INDEX: &CStr =
    c"the store has no index, so the query of a search is ignored, and its results are the items that \
    changed last; create the store with `index=` to search by meaning";

/// From the store's `batch`: the method of LangGraph's base class, and its caller.
const FRAMES: i32 = 3;

/// The default number of lists, which is the server's.
const LISTS: i64 = 100;

/// The configuration of an index, checked as far as possible without a store. Python parses the users' dict.
#[pyclass(frozen, module = "langgraph_ckpt._native")]
pub(crate) struct StoreIndex {
    pub(crate) config: IndexConfig,
    pub(crate) ann: AnnIndex,
    pub(crate) vector_type: VectorType,
}

#[pymethods]
impl StoreIndex {
    #[new]
    #[pyo3(signature = (*, dims, fields, embeddings, distance, kind, vector_type, m, ef_construction, lists))]
    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    fn new(
        dims: i64,
        fields: Vec<String>,
        embeddings: String,
        distance: &str,
        kind: &str,
        vector_type: &str,
        m: Option<i64>,
        ef_construction: Option<i64>,
        lists: Option<i64>,
    ) -> PyResult<Self> {
        let distance = match distance {
            "cosine" => Distance::Cosine,
            "l2" => Distance::L2,
            "inner_product" => Distance::InnerProduct,
            _ => return Err(no_such("distance_type", distance, "'cosine', 'l2' or 'inner_product'")),
        };
        let ann = match kind {
            "hnsw" => AnnIndex::Hnsw { m: m.map(saturated), ef_construction: ef_construction.map(saturated) },
            "ivfflat" => AnnIndex::ivfflat(u32::try_from(lists.unwrap_or(LISTS)).unwrap_or(0)),
            "flat" => AnnIndex::Flat,
            _ => return Err(no_such("kind", kind, "'hnsw', 'ivfflat' or 'flat'")),
        };
        let vector_type = match vector_type {
            "vector" => VectorType::Vector,
            "halfvec" => VectorType::Halfvec,
            _ => return Err(no_such("vector_type", vector_type, "'vector' or 'halfvec'")),
        };
        // An invalid number of dimensions becomes 0, which the store rejects.
        let dims = usize::try_from(dims).unwrap_or(0);
        let config =
            IndexConfig::new(dims, PythonEmbeddings::new(embeddings)).fields(fields).distance(distance);
        Ok(Self { config, ann, vector_type })
    }
}

fn no_such(what: &str, found: &str, known: &str) -> PyErr {
    PyValueError::new_err(format!("{what} must be {known}, not {found:?}"))
}

/// The number, or the nearest of the type: the store rejects both.
fn saturated(number: i64) -> u16 {
    u16::try_from(number.max(0)).unwrap_or(u16::MAX)
}

/// Checked operations, and the texts to embed for them.
#[pyclass(frozen, module = "langgraph_ckpt._native")]
pub(crate) struct Batch {
    ops: Mutex<Vec<Op>>,
    texts: Texts,
}

#[pymethods]
impl Batch {
    /// The texts to embed as documents, and those to embed as queries.
    #[getter]
    fn texts(&self) -> (Vec<&str>, Vec<&str>) {
        let Texts { documents, queries } = &self.texts;
        (documents.iter().map(String::as_str).collect(), queries.iter().map(String::as_str).collect())
    }
}

/// The native part of a store, over any backend.
#[pyclass(frozen, name = "Store", module = "langgraph_ckpt._native")]
pub(crate) struct NativeStore {
    opened: Opened<Box<dyn BaseStore>>,
    index: Option<IndexConfig>,
    backend: &'static str,
    /// Whether it has warned of a query that it ignores.
    has_warned: AtomicBool,
}

impl NativeStore {
    pub(crate) fn new(py: Python<'_>, store: impl BaseStore, index: Option<&StoreIndex>) -> Self {
        let (backend, immediate) = (store.backend(), store.capabilities().immediate);
        let store: Box<dyn BaseStore> = Box::new(store);
        let opened = Opened::new(py, "store", immediate, store, |store| store.close());
        let index = index.map(|index| index.config.clone());
        Self { opened, index, backend, has_warned: AtomicBool::new(false) }
    }

    /// Removes the queries of searches, which need an index, as LangGraph's stores do. The first one warns.
    fn ignore_queries(&self, py: Python<'_>, ops: &mut [Op]) -> PyResult<()> {
        let mut ignored = false;
        for op in ops {
            if let Op::Search(search) = op {
                ignored |= search.query.take().is_some();
            }
        }
        if ignored && !self.has_warned.swap(true, Ordering::Relaxed) {
            PyErr::warn(py, &py.get_type::<PyUserWarning>(), NO_INDEX, FRAMES)?;
        }
        Ok(())
    }
}

#[pymethods]
impl NativeStore {
    /// Checks operations, and collects the texts to embed for them.
    fn prepare(&self, ops: &Bound<'_, PyAny>) -> PyResult<Batch> {
        let py = ops.py();
        self.opened.get()?;
        let mut ops = LangGraph::get(py)?.ops(ops)?;
        if self.index.is_none() {
            self.ignore_queries(py, &mut ops)?;
        }
        let texts = match &self.index {
            Some(index) => Texts::of(&ops, self.backend, index).at(self.backend, "batch").or_raise(py)?,
            None => Texts::default(),
        };
        Ok(Batch { ops: Mutex::new(ops), texts })
    }

    /// Runs operations once, with the vectors of their texts.
    fn run(&self, batch: &Batch, documents: &Bound<'_, PyAny>, queries: &Bound<'_, PyAny>) -> PyResult<Call> {
        let vectors = Vectors::new(&batch.texts, documents, queries)?;
        let ops = mem::take(&mut *lock(&batch.ops));
        Ok(self.opened.call(
            |store| async move { vectors.during(store.batch(ops)).await },
            |py, results| Ok(LangGraph::get(py)?.results(py, results)?.into_any().unbind()),
        ))
    }

    /// Creates or upgrades the tables.
    fn setup(&self) -> Call {
        self.opened.call(|store| async move { store.setup().await }, |py, ()| Ok(py.None()))
    }

    /// Removes expired items, and returns their number.
    fn sweep_ttl(&self) -> Call {
        self.opened.call(
            |store| async move { store.sweep_ttl().await },
            |py, swept| Ok(swept.into_pyobject(py)?.into_any().unbind()),
        )
    }

    /// Whether there is nothing to close.
    #[getter]
    fn closed(&self) -> bool {
        self.opened.is_closed()
    }

    /// Closes the store, after running calls have finished.
    fn close(&self) -> Call {
        self.opened.close()
    }
}

/// The default TTL, in minutes.
pub(crate) fn ttl(py: Python<'_>, default_ttl: Option<f64>, refresh_on_read: bool) -> PyResult<TtlConfig> {
    let config = TtlConfig::new().refresh_on_read(refresh_on_read);
    let Some(minutes) = default_ttl else { return Ok(config) };
    let default: Option<Duration> = Ttl::Minutes(minutes).resolve(&config).or_raise(py)?;
    Ok(default.map_or(config, |default| config.default_ttl(default)))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Batch>()?;
    module.add_class::<NativeStore>()?;
    module.add_class::<StoreIndex>()
}
