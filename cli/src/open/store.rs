//! Stores, and scratch schemas for the store suite.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use checkpoint_conformance::{StoreFacility, StoreOptions, StoreTarget};
use checkpoint_core::store::{BaseStore, Distance, IndexConfig};
use checkpoint_core::{async_trait, id};
use common_postgres::{Database, PostgresConfig, quote};
use store_postgres::{AnnIndex, PostgresStore, VectorType};

use super::Backend;
use crate::arguments::{self, Index};
use crate::failure::{Failure, Result};

/// The URLs that have a store.
const WITH_STORES: &str = "postgres://USER@HOST/DATABASE";

/// A store of any backend.
pub(crate) type Store = Arc<dyn BaseStore>;

/// How vectors are computed and indexed.
pub(crate) struct Vectors {
    config: IndexConfig,
    ann: AnnIndex,
    vector_type: VectorType,
}

impl Vectors {
    /// Takes the index options from the arguments.
    pub(crate) fn new(config: IndexConfig, kept: &Index) -> Self {
        Self {
            config: config.distance(match kept.distance {
                arguments::Distance::Cosine => Distance::Cosine,
                arguments::Distance::L2 => Distance::L2,
                arguments::Distance::InnerProduct => Distance::InnerProduct,
            }),
            ann: match kept.ann {
                arguments::Ann::Hnsw => AnnIndex::hnsw(),
                arguments::Ann::Ivfflat => AnnIndex::ivfflat(kept.ann_lists),
                arguments::Ann::Flat => AnnIndex::Flat,
            },
            vector_type: match kept.vector_type {
                arguments::VectorType::Vector => VectorType::Vector,
                arguments::VectorType::Halfvec => VectorType::Halfvec,
            },
        }
    }
}

/// Opens the store of a URL.
pub(crate) fn store(url: &str, vectors: Option<Vectors>, filter_index: bool) -> Result<Store> {
    let mut builder = PostgresStore::builder(with_store(url)?).filter_index(filter_index);
    if let Some(Vectors { config, ann, vector_type }) = vectors {
        builder = builder.index(config).ann_index(ann).vector_type(vector_type);
    }
    Ok(Arc::new(builder.build()?))
}

/// The connection string of a URL whose backend has stores.
fn with_store(url: &str) -> Result<&str> {
    match Backend::of(url)? {
        Backend::Postgres(conn_string) => Ok(conn_string),
        Backend::Sqlite(_) => Err(without_store("sqlite:")),
        Backend::Mongo(_) => Err(without_store("mongodb:")),
        Backend::Redis(_) => Err(without_store("redis:")),
    }
}

fn without_store(scheme: &str) -> Failure {
    Failure::usage(format!("{scheme} URLs have no store; this ckpt opens stores at {WITH_STORES}"))
}

/// The contents of a table of vectors: vectors of one length, indexed for one distance. `None` means no table.
type Holds = Option<(usize, Distance)>;

/// Schemas on a server for the store suite. They exist until [`drop_schemas`](Self::drop_schemas).
pub(crate) struct Scratch {
    server: Arc<Server>,
    /// The schemas of this target, by their contents.
    schemas: Mutex<Vec<(Holds, String)>>,
}

struct Server {
    config: PostgresConfig,
    database: Database,
    has_vectors: bool,
    /// Every schema that any target has created.
    named: Mutex<Vec<String>>,
}

impl Scratch {
    /// Checks whether the server has pgvector. The extension is not created: the database belongs to the user.
    pub(crate) async fn new(url: &str) -> Result<Self> {
        let config = PostgresConfig::from_conn_string(with_store(url)?)?;
        let database = Database::from_config(&config, 0)?;
        let found = database.connection().await?;
        let found = found.query("SELECT 1 FROM pg_extension WHERE extname = 'vector'", &[]).await?;
        let has_vectors = !found.is_empty();
        let server = Server { config, database, has_vectors, named: Mutex::default() };
        Ok(Self::on(Arc::new(server)))
    }

    fn on(server: Arc<Server>) -> Self {
        Self { server, schemas: Mutex::default() }
    }

    /// The schema for an index, or for no index.
    fn schema(&self, index: Option<&IndexConfig>) -> String {
        let holds = index.map(|index| (index.dims, index.distance));
        let mut schemas = self.schemas.lock().unwrap_or_else(PoisonError::into_inner);
        // A store without an index works on any tables, and a table of vectors may be added later.
        let fits = |other: &Holds| holds.is_none() || other.is_none() || *other == holds;
        if let Some((other, schema)) = schemas.iter_mut().find(|(other, _)| fits(other)) {
            *other = other.or(holds);
            return schema.clone();
        }
        let schema = format!("ckpt_conformance_{}", id::uuid6(-1).replace('-', ""));
        schemas.push((holds, schema.clone()));
        self.server.named.lock().unwrap_or_else(PoisonError::into_inner).push(schema.clone());
        schema
    }

    /// Drops every schema, including those of targets created from this one.
    pub(crate) async fn drop_schemas(&self) -> Result<()> {
        let named = std::mem::take(&mut *self.server.named.lock().unwrap_or_else(PoisonError::into_inner));
        let connection = self.server.database.connection().await?;
        for schema in named {
            connection.batch(&format!("DROP SCHEMA IF EXISTS {} CASCADE", quote(&schema))).await?;
        }
        Ok(())
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").field("schemas", &self.schemas).finish_non_exhaustive()
    }
}

#[async_trait]
impl StoreTarget for Scratch {
    fn name(&self) -> &'static str {
        "postgres"
    }

    async fn open(&self, options: StoreOptions) -> checkpoint_core::Result<Store> {
        let schema = self.schema(options.index.as_ref());
        let builder = PostgresStore::from_config(self.server.config.clone()).schema(schema).ttl(options.ttl);
        Ok(match options.index {
            Some(index) => Arc::new(builder.index(index).build()?),
            None => Arc::new(builder.build()?),
        })
    }

    fn offers(&self, facility: StoreFacility) -> bool {
        match facility {
            StoreFacility::Index => self.server.has_vectors,
            StoreFacility::Fresh => true,
            _ => false,
        }
    }

    async fn fresh(&self) -> checkpoint_core::Result<Arc<dyn StoreTarget>> {
        Ok(Arc::new(Self::on(Arc::clone(&self.server))))
    }
}
