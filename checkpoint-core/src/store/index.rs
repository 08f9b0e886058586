//! Semantic search: embeddings, and which texts to embed.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use indexmap::IndexMap;

use super::path::Path;
use super::{JsonObject, PutOp, SearchOp};
use crate::{Error, ErrorKind, Result, Str};

/// The path of the whole value.
const WHOLE: &str = "$";

/// Converts texts to vectors; similar meanings have near vectors. The names are LangChain's.
#[async_trait]
pub trait Embeddings: fmt::Debug + Send + Sync + 'static {
    /// Returns one vector for each text, in their order.
    ///
    /// # Errors
    /// Any error; the store's call fails with it, and stores nothing.
    ///
    /// # Cancellation
    /// May be dropped at any time.
    async fn embed_documents(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>>;

    /// Returns the vector of a query. Override it for models that embed queries differently from documents.
    ///
    /// # Errors
    /// Those of [`embed_documents`](Self::embed_documents).
    ///
    /// # Cancellation
    /// May be dropped at any time.
    async fn embed_query(&self, text: &str) -> Result<Vec<f32>> {
        let mut vectors = self.embed_documents(&[text]).await?;
        match (vectors.pop(), vectors.is_empty()) {
            (Some(vector), true) => Ok(vector),
            _ => Err(wrong_count()),
        }
    }
}

macro_rules! forward {
    ($wrapper:ident) => {
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<T: Embeddings + ?Sized> Embeddings for $wrapper<T> {
            async fn embed_documents(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
                (**self).embed_documents(texts).await
            }
            async fn embed_query(&self, text: &str) -> Result<Vec<f32>> {
                (**self).embed_query(text).await
            }
        }
    };
}

forward!(Arc);
forward!(Box);

fn wrong_count() -> Error {
    Error::new(ErrorKind::Backend, "the embeddings returned a different number of vectors than texts")
}

/// How the distance of two vectors is measured. Nearer vectors have a higher score.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Distance {
    /// The angle between them; the score is its cosine, from -1 to 1.
    #[default]
    Cosine,
    /// The Euclidean distance; the score is the negated distance.
    L2,
    /// The inner product, which is the score.
    InnerProduct,
}

impl Distance {
    /// The score of two vectors of the same length. The cosine of a vector of zeros is NaN.
    pub fn score(self, a: &[f32], b: &[f32]) -> f64 {
        match self {
            // Rounding may exceed the range slightly.
            Self::Cosine => (dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()).clamp(-1.0, 1.0),
            // Subtracted rather than negated, to avoid a score of minus zero.
            Self::L2 => 0.0 - sum(a, b, |a, b| (a - b) * (a - b)).sqrt(),
            Self::InnerProduct => dot(a, b),
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    sum(a, b, |a, b| a * b)
}

/// Sums over pairs of numbers, in lanes that the compiler can vectorize.
fn sum(a: &[f32], b: &[f32], term: impl Fn(f64, f64) -> f64) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0.0; LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += term(f64::from(*a), f64::from(*b));
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| term(f64::from(*a), f64::from(*b)));
    sums.into_iter().chain(rest).sum()
}

/// Which texts of an item are indexed for semantic search.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ItemIndex {
    /// The fields of the store's [`IndexConfig`].
    #[default]
    Default,
    /// None: the item is excluded from semantic search.
    Off,
    /// The texts at these paths, in the syntax of [`IndexConfig::fields`].
    Fields(Vec<Str>),
}

impl ItemIndex {
    pub(super) fn check(&self) -> Result<()> {
        match self {
            Self::Fields(paths) => paths.iter().try_for_each(|path| check_path(path)),
            _ => Ok(()),
        }
    }
}

fn check_path(path: &str) -> Result<()> {
    if path.contains('\0') {
        return Err(Error::invalid_argument("an index path must not contain U+0000"));
    }
    Ok(())
}

/// A text of an item to embed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexedText {
    /// The name of its vector: the path, with the suffix `.0`, `.1` and so on if the path matches several texts.
    pub field_name: String,
    /// The text.
    pub text: String,
}

/// The configuration of semantic search: embeddings, the length of their vectors, and which texts to embed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct IndexConfig {
    /// The length of the vectors.
    pub dims: usize,
    /// The embeddings.
    pub embeddings: Arc<dyn Embeddings>,
    /// The paths of the texts to embed.
    pub fields: Vec<Str>,
    /// The distance of two vectors.
    pub distance: Distance,
}

impl IndexConfig {
    /// The maximum number of dimensions: that of pgvector's `vector`.
    pub const MAX_DIMS: usize = 16_000;

    /// How many queries of one batch are embedded concurrently.
    const CONCURRENT_QUERIES: usize = 8;

    /// Embeds the whole value of each item as JSON text, with [`Distance::Cosine`].
    pub fn new(dims: usize, embeddings: impl Embeddings) -> Self {
        Self {
            dims,
            embeddings: Arc::new(embeddings),
            fields: vec![WHOLE.into()],
            distance: Distance::default(),
        }
    }

    /// Sets the paths of the texts to embed, instead of the whole value. The syntax is LangGraph's:
    ///
    /// | path | meaning |
    /// |---|---|
    /// | `text` | the entry of that key |
    /// | `meta.title` | an entry of an entry |
    /// | `tags[0]`, `tags[-1]` | the first or the last item of a list |
    /// | `tags[*]`, `parts[*].text` | every item, each as a separate text |
    /// | `meta.*` | every entry or item |
    /// | `{title,meta.author}` | several entries, each as a separate text |
    /// | `$` | the whole value |
    ///
    /// Text is embedded unchanged, numbers and booleans as Python formats them, objects and lists as JSON with sorted
    /// keys. Null and missing values have no vector.
    #[must_use]
    pub fn fields<P: Into<Str>>(mut self, fields: impl IntoIterator<Item = P>) -> Self {
        self.fields = fields.into_iter().map(Into::into).collect();
        self
    }

    /// Sets how the distance of two vectors is measured.
    #[must_use]
    pub fn distance(mut self, distance: Distance) -> Self {
        self.distance = distance;
        self
    }

    /// Rejects an invalid configuration.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for no dimensions or more than 16,000, and for no fields or an
    /// invalid path.
    pub fn check(&self) -> Result<()> {
        if self.dims == 0 || self.dims > Self::MAX_DIMS {
            return Err(Error::invalid_config("dims must be 1 to 16,000").with("dims", self.dims));
        }
        if self.fields.is_empty() {
            return Err(Error::invalid_config(
                "an index needs at least one field; without any it finds nothing",
            ));
        }
        self.fields.iter().try_for_each(|path| check_path(path)).map_err(|error| {
            Error::invalid_config("an index path must not contain U+0000").with_source(error)
        })
    }

    /// Returns the texts of a value to embed. If two have the same name, the last one counts.
    ///
    /// # Errors
    /// [`Codec`](crate::ErrorKind::Codec) for invalid JSON.
    pub fn texts(&self, value: &JsonObject, index: &ItemIndex) -> Result<Vec<IndexedText>> {
        let paths = match index {
            ItemIndex::Default => &self.fields,
            ItemIndex::Off => return Ok(Vec::new()),
            ItemIndex::Fields(paths) => paths,
        };
        let value = value.to_value()?;
        let mut texts: IndexMap<String, String> = IndexMap::new();
        for path in paths {
            let found = Path::parse(path).texts(&value)?;
            let several = found.len() > 1;
            for (at, text) in found.into_iter().enumerate() {
                texts.insert(if several { format!("{path}.{at}") } else { path.to_string() }, text);
            }
        }
        Ok(texts.into_iter().map(|(field_name, text)| IndexedText { field_name, text }).collect())
    }

    /// Embeds the texts of puts and returns, for each put, its vectors by name. Duplicate texts are embedded once.
    /// Without any text the embeddings are not called.
    ///
    /// # Errors
    /// Any error from the embeddings, and those of [`embed_query`](Self::embed_query) for invalid vectors.
    ///
    /// # Cancellation
    /// May be dropped at any time.
    pub async fn embed_puts(&self, puts: &[PutOp]) -> Result<Vec<Vec<(String, Arc<[f32]>)>>> {
        let mut texts = Vec::with_capacity(puts.len());
        for put in puts {
            texts.push(match &put.value {
                Some(value) => self.texts(value, &put.index)?,
                None => Vec::new(),
            });
        }
        let mut positions: HashMap<&str, usize> = HashMap::new();
        let mut distinct: Vec<&str> = Vec::new();
        for text in texts.iter().flatten() {
            positions.entry(&text.text).or_insert_with(|| {
                distinct.push(&text.text);
                distinct.len() - 1
            });
        }
        if distinct.is_empty() {
            return Ok(puts.iter().map(|_| Vec::new()).collect());
        }
        let vectors = self.embeddings.embed_documents(&distinct).await?;
        if vectors.len() != distinct.len() {
            return Err(wrong_count().with("texts", distinct.len()).with("vectors", vectors.len()));
        }
        let vectors = vectors.into_iter().map(|vector| self.checked(vector)).collect::<Result<Vec<_>>>()?;
        let vector = |text: &IndexedText| {
            let vector =
                positions.get(&*text.text).and_then(|at| vectors.get(*at)).ok_or_else(wrong_count)?;
            Ok((text.field_name.clone(), Arc::clone(vector)))
        };
        texts.iter().map(|texts| texts.iter().map(vector).collect()).collect()
    }

    /// Embeds a query.
    ///
    /// # Errors
    /// Any error from the embeddings; [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a vector of another length
    /// than the index has, and [`Backend`](crate::ErrorKind::Backend) for one that contains a NaN or an infinity.
    ///
    /// # Cancellation
    /// May be dropped at any time.
    pub async fn embed_query(&self, query: &str) -> Result<Arc<[f32]>> {
        self.checked(self.embeddings.embed_query(query).await?)
    }

    /// Embeds the queries of searches, each distinct one once, and returns for each search the vector of its query.
    ///
    /// # Errors
    /// Those of [`embed_query`](Self::embed_query).
    ///
    /// # Cancellation
    /// May be dropped at any time.
    pub async fn embed_searches(&self, searches: &[(usize, SearchOp)]) -> Result<Vec<Option<Arc<[f32]>>>> {
        let queries: HashSet<Str> = searches.iter().filter_map(|(_, search)| search.query.clone()).collect();
        let vectors: HashMap<Str, Arc<[f32]>> = stream::iter(queries)
            .map(|query| async move {
                let vector = self.embed_query(&query).await?;
                Ok::<_, Error>((query, vector))
            })
            .buffer_unordered(Self::CONCURRENT_QUERIES)
            .try_collect()
            .await?;
        let vector = |search: &SearchOp| vectors.get(search.query.as_ref()?).cloned();
        Ok(searches.iter().map(|(_, search)| vector(search)).collect())
    }

    fn checked(&self, vector: Vec<f32>) -> Result<Arc<[f32]>> {
        if vector.len() != self.dims {
            return Err(Error::invalid_config(
                "the embeddings return vectors of another length than the index has; set dims to the model's",
            )
            .with("dims", self.dims)
            .with("vector", vector.len()));
        }
        if vector.iter().all(|number| number.is_finite()) {
            Ok(vector.into())
        } else {
            Err(Error::new(
                ErrorKind::Backend,
                "the embeddings returned a vector that contains a NaN or an infinity",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::float_cmp, reason = "small integers are exact")]
    fn nearer_vectors_have_higher_scores() {
        // More than the number of lanes, and not a multiple of it.
        let a: Vec<f32> = (0_u8..19).map(f32::from).collect();
        let twice: Vec<f32> = a.iter().map(|number| number * 2.0).collect();
        let away: Vec<f32> = a.iter().map(|number| -number).collect();
        let squares = f64::from((0_u16..19).map(|number| number * number).sum::<u16>());
        assert_eq!(Distance::InnerProduct.score(&a, &twice), 2.0 * squares);
        assert_eq!(Distance::L2.score(&a, &twice), -squares.sqrt());
        assert!(Distance::L2.score(&a, &a).is_sign_positive(), "no minus zero");
        assert_eq!(Distance::Cosine.score(&a, &twice), 1.0);
        assert_eq!(Distance::Cosine.score(&a, &away), -1.0);
        assert!(Distance::Cosine.score(&a, &[0.0; 19]).is_nan());
    }
}
