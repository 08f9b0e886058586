//! Converts a store's operations from LangGraph's objects, and results to them.

use checkpoint_core::Str;
use checkpoint_core::store::{
    GetOp, Item, ItemFilter, ItemIndex, JsonObject, ListNamespacesOp, MatchCondition, Namespace, Op,
    OpResult, PutOp, SearchItem, SearchOp, Ttl,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyDict, PyInt, PyList, PyMapping, PyString, PyTuple, PyType};

use crate::convert::type_name;
use crate::error::OrRaise;

/// Objects that are imported once: LangGraph's classes, and Python's JSON.
pub(crate) struct LangGraph {
    get_op: Py<PyType>,
    search_op: Py<PyType>,
    put_op: Py<PyType>,
    list_op: Py<PyType>,
    not_provided: Py<PyType>,
    item: Py<PyType>,
    search_item: Py<PyType>,
    invalid_namespace: Py<PyType>,
    encode: Py<PyAny>,
    decode: Py<PyAny>,
}

impl LangGraph {
    pub(crate) fn get(py: Python<'_>) -> PyResult<&'static Self> {
        static LANGGRAPH: PyOnceLock<LangGraph> = PyOnceLock::new();
        LANGGRAPH.get_or_try_init(py, || Self::import(py))
    }

    fn import(py: Python<'_>) -> PyResult<Self> {
        let base = py.import("langgraph.store.base")?;
        let class = |name| base.getattr(name)?.cast_into::<PyType>().map(Bound::unbind).map_err(PyErr::from);
        let json = py.import("json")?;
        let options = [
            ("allow_nan", false.into_pyobject(py)?.to_owned().into_any()),
            ("ensure_ascii", false.into_pyobject(py)?.to_owned().into_any()),
            ("separators", (",", ":").into_pyobject(py)?.into_any()),
        ];
        let encoder = json.getattr("JSONEncoder")?.call((), Some(&options.into_py_dict(py)?))?;
        Ok(Self {
            get_op: class("GetOp")?,
            search_op: class("SearchOp")?,
            put_op: class("PutOp")?,
            list_op: class("ListNamespacesOp")?,
            not_provided: class("NotProvided")?,
            item: class("Item")?,
            search_item: class("SearchItem")?,
            invalid_namespace: class("InvalidNamespaceError")?,
            encode: encoder.getattr("encode")?.unbind(),
            decode: json.getattr("JSONDecoder")?.call0()?.getattr("decode")?.unbind(),
        })
    }

    /// Converts an iterable of operations.
    pub(crate) fn ops(&self, ops: &Bound<'_, PyAny>) -> PyResult<Vec<Op>> {
        ops.try_iter()?.map(|op| self.op(&op?)).collect()
    }

    fn op(&self, op: &Bound<'_, PyAny>) -> PyResult<Op> {
        let py = op.py();
        if op.is_instance(self.get_op.bind(py))? {
            self.get_of(op).map(Op::Get)
        } else if op.is_instance(self.put_op.bind(py))? {
            self.put_of(op).map(Op::Put)
        } else if op.is_instance(self.search_op.bind(py))? {
            self.search_of(op).map(Op::Search)
        } else if op.is_instance(self.list_op.bind(py))? {
            self.list_of(op).map(Op::ListNamespaces)
        } else {
            Err(PyTypeError::new_err(format!(
                "a store runs GetOp, SearchOp, PutOp and ListNamespacesOp, not {}",
                type_name(op)
            )))
        }
    }

    fn get_of(&self, op: &Bound<'_, PyAny>) -> PyResult<GetOp> {
        let py = op.py();
        let namespace = self.namespace(&op.getattr(intern!(py, "namespace"))?)?;
        let mut get = GetOp::new(namespace, key_of(op)?);
        get.refresh_ttl = op.getattr(intern!(py, "refresh_ttl"))?.extract()?;
        Ok(get)
    }

    fn search_of(&self, op: &Bound<'_, PyAny>) -> PyResult<SearchOp> {
        let py = op.py();
        let prefix = self.namespace(&op.getattr(intern!(py, "namespace_prefix"))?)?;
        let mut search = SearchOp::new(prefix);
        search.filter = self.filter(&op.getattr(intern!(py, "filter"))?)?;
        search.limit = count(op, intern!(py, "limit"))?;
        search.offset = count(op, intern!(py, "offset"))?;
        let query: Option<String> = op.getattr(intern!(py, "query"))?.extract()?;
        // As in Python's stores, an empty query is ignored.
        search.query = query.filter(|query| !query.is_empty()).map(Into::into);
        search.refresh_ttl = op.getattr(intern!(py, "refresh_ttl"))?.extract()?;
        Ok(search)
    }

    fn put_of(&self, op: &Bound<'_, PyAny>) -> PyResult<PutOp> {
        let py = op.py();
        let namespace = self.namespace(&op.getattr(intern!(py, "namespace"))?)?;
        let key = key_of(op)?;
        let value = op.getattr(intern!(py, "value"))?;
        if value.is_none() {
            return Ok(PutOp::delete(namespace, key));
        }
        namespace.check_for_put().map_err(|error| self.invalid_namespace(py, &error.to_string()))?;
        let mut put = PutOp::new(namespace, key, self.value(&value)?);
        put.index = index(&op.getattr(intern!(py, "index"))?)?;
        put.ttl = self.ttl(&op.getattr(intern!(py, "ttl"))?)?;
        Ok(put)
    }

    fn list_of(&self, op: &Bound<'_, PyAny>) -> PyResult<ListNamespacesOp> {
        let py = op.py();
        let mut list = ListNamespacesOp::new();
        let conditions = op.getattr(intern!(py, "match_conditions"))?;
        if !conditions.is_none() {
            for condition in conditions.try_iter()? {
                list.match_conditions.push(self.condition(&condition?)?);
            }
        }
        if !op.getattr(intern!(py, "max_depth"))?.is_none() {
            list.max_depth = Some(count(op, intern!(py, "max_depth"))?);
        }
        list.limit = count(op, intern!(py, "limit"))?;
        list.offset = count(op, intern!(py, "offset"))?;
        Ok(list)
    }

    fn condition(&self, condition: &Bound<'_, PyAny>) -> PyResult<MatchCondition> {
        let py = condition.py();
        let path = self.namespace(&condition.getattr(intern!(py, "path"))?)?;
        let kind: String = condition.getattr(intern!(py, "match_type"))?.extract()?;
        match kind.as_str() {
            "prefix" => Ok(MatchCondition::Prefix(path)),
            "suffix" => Ok(MatchCondition::Suffix(path)),
            _ => {
                Err(PyValueError::new_err(format!("a match_type must be 'prefix' or 'suffix', not {kind:?}")))
            }
        }
    }

    fn namespace(&self, labels: &Bound<'_, PyAny>) -> PyResult<Namespace> {
        let py = labels.py();
        let refused = |text: &str| self.invalid_namespace(py, text);
        if let Ok(text) = labels.cast::<PyString>() {
            return Err(refused(&format!(
                "a namespace must be a tuple of labels, such as ({},)",
                text.repr()?
            )));
        }
        let mut namespace: Vec<Str> = Vec::new();
        for label in labels.try_iter()? {
            let label = label?;
            let text = label.cast::<PyString>().map_err(|_| {
                refused(&format!("namespace labels must be strings, not {}", type_name(&label)))
            })?;
            namespace
                .push(text.to_str().map_err(|_| refused("a namespace label must be valid Unicode"))?.into());
        }
        let namespace = Namespace::from(namespace);
        namespace.check().map_err(|error| refused(&error.to_string()))?;
        Ok(namespace)
    }

    fn invalid_namespace(&self, py: Python<'_>, text: &str) -> PyErr {
        PyErr::from_type(self.invalid_namespace.bind(py).clone(), text.to_owned())
    }

    fn value(&self, value: &Bound<'_, PyAny>) -> PyResult<JsonObject> {
        const WHAT: &str = "an item's value";
        let py = value.py();
        let dict = if value.is_instance_of::<PyDict>() {
            value.clone()
        } else if value.cast::<PyMapping>().is_ok() {
            py.get_type::<PyDict>().call1((value,))?
        } else {
            return Err(PyTypeError::new_err(format!("{WHAT} must be a dict, not {}", type_name(value))));
        };
        // Python has just written it: it is JSON.
        JsonObject::from_stored(self.to_json(&dict, WHAT)?).or_raise(py)
    }

    fn filter(&self, filter: &Bound<'_, PyAny>) -> PyResult<ItemFilter> {
        const WHAT: &str = "a filter";
        let py = filter.py();
        if filter.is_none() {
            return Ok(ItemFilter::new());
        }
        let text = self.to_json(filter, WHAT)?;
        let json =
            serde_json::from_str(&text).map_err(|error| PyValueError::new_err(format!("{WHAT}: {error}")))?;
        // The parser limits nesting, so the recursion below is bounded.
        if has_long_integer(filter)? {
            return Err(PyValueError::new_err(format!("{WHAT}: an integer has more than 64 bits")));
        }
        ItemFilter::from_json(&json).or_raise(py)
    }

    fn to_json(&self, value: &Bound<'_, PyAny>, what: &str) -> PyResult<String> {
        let py = value.py();
        let text = self.encode.bind(py).call1((value,)).and_then(|text| {
            let text = text.cast::<PyString>()?.to_str()?;
            Ok(text.to_owned())
        });
        text.map_err(|error| no_json(py, error, what))
    }

    fn ttl(&self, ttl: &Bound<'_, PyAny>) -> PyResult<Ttl> {
        if ttl.is_none() {
            // The base class has already replaced a missing TTL by the store's default.
            Ok(Ttl::Never)
        } else if ttl.is_instance(self.not_provided.bind(ttl.py()))? {
            Ok(Ttl::Default)
        } else {
            let minutes =
                ttl.extract().map_err(|_| PyTypeError::new_err("a TTL must be a number of minutes"))?;
            Ok(Ttl::Minutes(minutes))
        }
    }

    /// One result for each operation.
    pub(crate) fn results<'py>(
        &self,
        py: Python<'py>,
        results: Vec<OpResult>,
    ) -> PyResult<Bound<'py, PyList>> {
        let results = results.into_iter().map(|result| {
            Ok(match result {
                OpResult::Item(Some(item)) => self.item(py, &item)?,
                OpResult::Items(items) => {
                    let items = items.iter().map(|item| self.search_item(py, item));
                    PyList::new(py, items.collect::<PyResult<Vec<_>>>()?)?.into_any()
                }
                OpResult::Namespaces(namespaces) => {
                    let namespaces = namespaces.iter().map(|namespace| labels(py, namespace));
                    PyList::new(py, namespaces.collect::<PyResult<Vec<_>>>()?)?.into_any()
                }
                _ => py.None().into_bound(py),
            })
        });
        PyList::new(py, results.collect::<PyResult<Vec<_>>>()?)
    }

    fn item<'py>(&self, py: Python<'py>, item: &Item) -> PyResult<Bound<'py, PyAny>> {
        let fields = PyDict::new(py);
        fields.set_item(intern!(py, "value"), self.decoded(py, &item.value)?)?;
        fields.set_item(intern!(py, "key"), &*item.key)?;
        fields.set_item(intern!(py, "namespace"), labels(py, &item.namespace)?)?;
        fields.set_item(intern!(py, "created_at"), item.created_at)?;
        fields.set_item(intern!(py, "updated_at"), item.updated_at)?;
        self.item.bind(py).call((), Some(&fields))
    }

    fn search_item<'py>(&self, py: Python<'py>, found: &SearchItem) -> PyResult<Bound<'py, PyAny>> {
        let item = &found.item;
        self.search_item.bind(py).call1((
            labels(py, &item.namespace)?,
            &*item.key,
            self.decoded(py, &item.value)?,
            item.created_at,
            item.updated_at,
            found.score,
        ))
    }

    fn decoded<'py>(&self, py: Python<'py>, value: &JsonObject) -> PyResult<Bound<'py, PyAny>> {
        self.decode.bind(py).call1((value.as_str(),))
    }
}

fn labels<'py>(py: Python<'py>, namespace: &Namespace) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, namespace.labels().iter().map(|label| &**label))
}

fn key_of(op: &Bound<'_, PyAny>) -> PyResult<String> {
    let key = op.getattr(intern!(op.py(), "key"))?;
    key.extract().map_err(|_| PyTypeError::new_err("a key must be a string"))
}

/// A non-negative integer.
fn count(op: &Bound<'_, PyAny>, name: &Bound<'_, PyString>) -> PyResult<usize> {
    let value = op.getattr(name)?;
    value.extract().map_err(|_| match value.repr() {
        Ok(found) => PyValueError::new_err(format!("{name} must be a whole number, 0 or more, not {found}")),
        Err(error) => error,
    })
}

fn index(index: &Bound<'_, PyAny>) -> PyResult<ItemIndex> {
    const WHAT: &str = "an item's index must be False, None, or a list of paths";
    if index.is_none() {
        Ok(ItemIndex::Default)
    } else if matches!(index.extract(), Ok(false)) {
        Ok(ItemIndex::Off)
    } else {
        // A str would be a list of paths of one letter each.
        let paths: Vec<String> = index.extract().map_err(|_| PyTypeError::new_err(WHAT))?;
        Ok(ItemIndex::Fields(paths.into_iter().map(Into::into).collect()))
    }
}

/// Whether a filter has an integer beyond 64 bits, which would compare as the nearest float.
fn has_long_integer(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    if value.is_instance_of::<PyInt>() {
        return Ok(value.extract::<i64>().is_err() && value.extract::<u64>().is_err());
    }
    let items = match value.cast::<PyDict>() {
        Ok(dict) => dict.values(),
        Err(_) if value.is_instance_of::<PyList>() => value.cast::<PyList>()?.clone(),
        Err(_) => return Ok(false),
    };
    for item in items {
        if has_long_integer(&item)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Converts an exception of Python's JSON encoder to one of the same type that names the value.
fn no_json(py: Python<'_>, error: PyErr, what: &str) -> PyErr {
    let text = format!("{what} cannot be written as JSON: {}", error.value(py));
    let raised = if error.is_instance_of::<PyTypeError>(py) {
        PyTypeError::new_err(text)
    } else if error.is_instance_of::<PyValueError>(py) {
        PyValueError::new_err(text)
    } else {
        return error;
    };
    raised.set_cause(py, Some(error));
    raised
}
