//! Embeddings implemented in Python.
//!
//! A Rust store calls its embeddings in the middle of a call, where no Python code can run on the caller's thread or event
//! loop. So the texts of a batch are collected before the call, Python embeds them, and the call passes the vectors to the
//! store's embeddings.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use checkpoint_core::store::{Embeddings, IndexConfig, Op, Ops};
use checkpoint_core::{Error, ErrorKind, Result, async_trait};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::convert::type_name;

tokio::task_local! {
    /// The vectors of the running call.
    static VECTORS: Arc<Vectors>;
}

/// The distinct texts that a batch needs vectors of.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    pub(crate) documents: Vec<String>,
    pub(crate) queries: Vec<String>,
}

impl Texts {
    /// Checks the operations, as the store does, and collects the texts that it will embed.
    pub(crate) fn of(ops: &[Op], backend: &'static str, index: &IndexConfig) -> Result<Self> {
        let ops = Ops::new(ops.to_vec(), backend, Some(index))?;
        let mut documents = Distinct::default();
        for put in &ops.puts {
            if let Some(value) = &put.value {
                index.texts(value, &put.index)?.into_iter().for_each(|text| documents.add(text.text));
            }
        }
        let mut queries = Distinct::default();
        ops.searches.iter().filter_map(|(_, search)| search.query.as_ref()).for_each(|query| {
            queries.add(query.to_string());
        });
        Ok(Self { documents: documents.texts, queries: queries.texts })
    }
}

/// Distinct texts in the order of their first occurrence.
#[derive(Default)]
struct Distinct {
    texts: Vec<String>,
    seen: HashSet<String>,
}

impl Distinct {
    fn add(&mut self, text: String) {
        if self.seen.insert(text.clone()) {
            self.texts.push(text);
        }
    }
}

/// The vectors that Python computed for one batch.
#[derive(Debug, Default)]
pub(crate) struct Vectors {
    documents: Named,
    queries: Named,
}

impl Vectors {
    /// Converts the results of `embed_documents` and `embed_query`, for texts in their order.
    pub(crate) fn new(
        texts: &Texts,
        documents: &Bound<'_, PyAny>,
        queries: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        Ok(Self {
            documents: Named::new(&texts.documents, documents)?,
            queries: Named::new(&texts.queries, queries)?,
        })
    }

    /// Runs a call of a store with these vectors.
    pub(crate) async fn during<T>(self, call: impl Future<Output = T>) -> T {
        VECTORS.scope(Arc::new(self), call).await
    }
}

/// Vectors by their texts.
#[derive(Debug, Default)]
struct Named(HashMap<String, Vec<f32>>);

impl Named {
    fn new(texts: &[String], vectors: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut found = Vec::with_capacity(texts.len());
        for vector in vectors.try_iter().map_err(|_| no_vectors(vectors))? {
            found.push(numbers(&vector?)?);
        }
        if found.len() == texts.len() {
            Ok(Self(texts.iter().cloned().zip(found).collect()))
        } else {
            Err(PyValueError::new_err(format!(
                "the embeddings returned {} vectors for {} texts",
                found.len(),
                texts.len()
            )))
        }
    }

    fn get(&self, text: &str) -> Result<Vec<f32>> {
        self.0.get(text).cloned().ok_or_else(|| {
            Error::new(ErrorKind::Backend, "a text was not embedded before the call; this is a bug")
        })
    }
}

/// Converts lists, tuples and arrays of numbers.
fn numbers(vector: &Bound<'_, PyAny>) -> PyResult<Vec<f32>> {
    let numbers = vector.try_iter().map_err(|_| no_vectors(vector))?;
    numbers.map(|number| number?.extract::<f32>().map_err(|_| no_vectors(vector))).collect()
}

fn no_vectors(found: &Bound<'_, PyAny>) -> PyErr {
    let kind = type_name(found);
    PyTypeError::new_err(format!("the embeddings must return one list of numbers for each text, not {kind}"))
}

/// The embeddings of a Python store: they return the vectors of the running call.
pub(crate) struct PythonEmbeddings {
    /// The name of their Python class.
    name: String,
}

impl PythonEmbeddings {
    pub(crate) fn new(name: String) -> Self {
        Self { name }
    }
}

impl fmt::Debug for PythonEmbeddings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

fn brought<T>(find: impl Fn(&Vectors) -> Result<T>) -> Result<T> {
    VECTORS.try_with(|vectors| find(vectors.as_ref())).unwrap_or_else(|_| find(&Vectors::default()))
}

#[async_trait]
impl Embeddings for PythonEmbeddings {
    async fn embed_documents(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        brought(|vectors| texts.iter().map(|text| vectors.documents.get(text)).collect())
    }

    async fn embed_query(&self, text: &str) -> Result<Vec<f32>> {
        brought(|vectors| vectors.queries.get(text))
    }
}
