//! Embeddings from the command line's arguments.

use checkpoint_core::store::{Embeddings, IndexConfig, NgramEmbeddings};
use checkpoint_core::{Error, ErrorKind, async_trait};
use checkpoint_embeddings::OpenAiEmbeddings;

use crate::arguments::{Index, NGRAMS};
use crate::failure::{Failure, Result};
use crate::open::Vectors;

/// A placeholder for commands that embed nothing.
#[derive(Debug)]
struct NoEmbeddings;

#[async_trait]
impl Embeddings for NoEmbeddings {
    async fn embed_documents(&self, _texts: &[&str]) -> checkpoint_core::Result<Vec<Vec<f32>>> {
        Err(Error::new(ErrorKind::Unsupported, "there are no embeddings; set --embed"))
    }
}

/// The vectors of the arguments, if they have embeddings.
pub(super) fn vectors(index: &Index) -> Result<Option<Vectors>> {
    let Some(model) = index.embed.as_deref().filter(|model| !model.is_empty()) else { return Ok(None) };
    let dims = index.embed_dims.ok_or_else(|| {
        Failure::usage("--embed needs --embed-dims, the number of dimensions of the vectors")
    })?;
    if model == NGRAMS {
        return Ok(Some(with(index, IndexConfig::new(dims, NgramEmbeddings::new(dims)))));
    }
    let mut embeddings = OpenAiEmbeddings::from_env(model);
    if let Some(url) = index.embed_url.as_deref().filter(|url| !url.is_empty()) {
        embeddings = embeddings.base_url(url);
    }
    if index.embed_shorten {
        embeddings = embeddings.dimensions(dims);
    }
    Ok(Some(with(index, IndexConfig::new(dims, embeddings.build()?))))
}

/// Vectors for `setup`, which creates their table but embeds nothing.
pub(super) fn tables(index: &Index) -> Option<Vectors> {
    index.embed_dims.map(|dims| with(index, IndexConfig::new(dims, NoEmbeddings)))
}

/// Vectors for a put without embeddings, which deletes the vectors of the old value.
pub(super) fn none(index: &Index) -> Vectors {
    with(index, IndexConfig::new(index.embed_dims.unwrap_or(1), NoEmbeddings))
}

fn with(index: &Index, mut config: IndexConfig) -> Vectors {
    if !index.embed_field.is_empty() {
        config = config.fields(index.embed_field.iter().map(String::as_str));
    }
    Vectors::new(config, index)
}
