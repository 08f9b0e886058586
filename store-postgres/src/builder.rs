//! The builder.

use std::sync::Arc;

use checkpoint_core::store::{Distance, IndexConfig, TtlConfig};
use checkpoint_core::{Error, Result, ResultExt};
use common_postgres::{BACKEND, ConnectionOptions, ConnectionSource, connection_setters};

use crate::PostgresStore;
use crate::schema::Tables;
use crate::store::Shared;

/// How the vectors of items are stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VectorType {
    /// `vector`: 4 bytes per dimension; an index supports up to 2,000 dimensions.
    #[default]
    Vector,
    /// `halfvec`: 2 bytes per dimension; an index supports up to 4,000 dimensions.
    Halfvec,
}

impl VectorType {
    /// The type's name in SQL.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Vector => "vector",
            Self::Halfvec => "halfvec",
        }
    }

    /// The most dimensions that an index supports.
    fn max_indexed_dims(self) -> usize {
        match self {
            Self::Vector => 2000,
            Self::Halfvec => 4000,
        }
    }
}

/// How the nearest vectors are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AnnIndex {
    /// A graph of neighbours (HNSW): fast, nearly exact, slow to build. See [`hnsw`](Self::hnsw).
    Hnsw {
        /// How many neighbours a vector has in each layer: 16 (pgvector's default), unless set.
        m: Option<u16>,
        /// How many candidates an insertion considers: 64 (pgvector's default), unless set.
        ef_construction: Option<u16>,
    },
    /// Lists of vectors that are near each other (IVF). The index is best built once the table has its vectors.
    Ivfflat {
        /// The number of lists; about one per thousand vectors.
        lists: u32,
    },
    /// A sequential scan of all vectors under the namespace: exact.
    Flat,
}

impl Default for AnnIndex {
    fn default() -> Self {
        Self::hnsw()
    }
}

impl AnnIndex {
    /// A graph of neighbours with pgvector's default parameters.
    pub const fn hnsw() -> Self {
        Self::Hnsw { m: None, ef_construction: None }
    }

    /// An IVF index with this number of lists.
    pub const fn ivfflat(lists: u32) -> Self {
        Self::Ivfflat { lists }
    }

    /// Sets how many neighbours a vector has in each layer of a graph: 2 to 100. Other kinds ignore it.
    #[must_use]
    pub const fn m(self, neighbours: u16) -> Self {
        match self {
            Self::Hnsw { ef_construction, .. } => Self::Hnsw { m: Some(neighbours), ef_construction },
            other => other,
        }
    }

    /// Sets how many candidates an insertion into a graph considers: 4 to 1,000, and at least twice the neighbours.
    /// Other kinds ignore it.
    #[must_use]
    pub const fn ef_construction(self, candidates: u16) -> Self {
        match self {
            Self::Hnsw { m, .. } => Self::Hnsw { m, ef_construction: Some(candidates) },
            other => other,
        }
    }

    fn check(self) -> Result<()> {
        match self {
            Self::Hnsw { m, ef_construction } => {
                let (m, candidates) = (m.unwrap_or(16), ef_construction.unwrap_or(64));
                if !(2..=100).contains(&m) {
                    return Err(Error::invalid_config("m must be 2 to 100").with("m", m));
                }
                if !(4..=1000).contains(&candidates) || candidates < 2 * m {
                    return Err(Error::invalid_config(
                        "ef_construction must be 4 to 1,000, and at least twice m",
                    )
                    .with("ef_construction", candidates)
                    .with("m", m));
                }
            }
            Self::Ivfflat { lists } if !(1..=32_768).contains(&lists) => {
                return Err(Error::invalid_config("lists must be 1 to 32,768").with("lists", lists));
            }
            Self::Ivfflat { .. } | Self::Flat => {}
        }
        Ok(())
    }
}

/// The configuration of semantic search, with pgvector's options.
#[derive(Debug, Clone)]
pub(crate) struct VectorIndex {
    pub(crate) config: IndexConfig,
    pub(crate) ann: AnnIndex,
    pub(crate) vector_type: VectorType,
    pub(crate) ef_search: u16,
    pub(crate) probes: Option<u32>,
}

impl VectorIndex {
    /// The distance operator, by which searches sort in ascending order.
    pub(crate) fn operator(&self) -> &'static str {
        match self.config.distance {
            Distance::L2 => "<->",
            Distance::InnerProduct => "<#>",
            _ => "<=>",
        }
    }

    /// The operator class of the index.
    pub(crate) fn operator_class(&self) -> String {
        let distance = match self.config.distance {
            Distance::L2 => "l2",
            Distance::InnerProduct => "ip",
            _ => "cosine",
        };
        format!("{}_{distance}_ops", self.vector_type.as_str())
    }

    /// Converts a distance to a score.
    pub(crate) fn score(&self, distance: f64) -> f64 {
        match self.config.distance {
            // Subtracted rather than negated, to avoid a score of minus zero.
            Distance::L2 | Distance::InnerProduct => 0.0 - distance,
            _ => 1.0 - distance,
        }
    }

    fn check(&self) -> Result<()> {
        self.config.check()?;
        self.ann.check()?;
        if !matches!(self.config.distance, Distance::Cosine | Distance::L2 | Distance::InnerProduct) {
            return Err(Error::invalid_config("this distance is not supported with pgvector"));
        }
        let limit = self.vector_type.max_indexed_dims();
        if self.ann != AnnIndex::Flat && self.config.dims > limit {
            return Err(Error::invalid_config(
                "too many dimensions for an index; store halfvec (up to 4,000), or search with AnnIndex::Flat",
            )
            .with("dims", self.config.dims)
            .with("limit", limit));
        }
        if !(1..=1000).contains(&self.ef_search) {
            return Err(
                Error::invalid_config("ef_search must be 1 to 1,000").with("ef_search", self.ef_search)
            );
        }
        match self.probes {
            Some(probes) if !(1..=32_768).contains(&probes) => {
                Err(Error::invalid_config("probes must be 1 to 32,768").with("probes", probes))
            }
            _ => Ok(()),
        }
    }
}

/// Collects the options of a [`PostgresStore`]. Setters cannot fail; [`build`](Self::build) checks everything.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until build() is called"]
pub struct PostgresStoreBuilder {
    source: ConnectionSource,
    connection: ConnectionOptions,
    index: Option<IndexConfig>,
    ann: AnnIndex,
    vector_type: VectorType,
    ef_search: u16,
    probes: Option<u32>,
    filter_index: bool,
    ttl: TtlConfig,
}

impl PostgresStoreBuilder {
    pub(crate) fn new(source: ConnectionSource) -> Self {
        Self {
            source,
            connection: ConnectionOptions::default(),
            index: None,
            ann: AnnIndex::default(),
            vector_type: VectorType::default(),
            ef_search: 100,
            probes: None,
            filter_index: false,
            ttl: TtlConfig::default(),
        }
    }

    connection_setters!();

    /// Enables searches with a query. All writers to the same tables should have the same index: without one a store
    /// leaves the vectors of the items that it writes unchanged.
    pub fn index(mut self, index: IndexConfig) -> Self {
        self.index = Some(index);
        self
    }

    /// Sets how the nearest vectors are found: [`AnnIndex::hnsw`] unless set. `setup()` builds the index.
    pub fn ann_index(mut self, ann: AnnIndex) -> Self {
        self.ann = ann;
        self
    }

    /// Sets how vectors are stored: [`VectorType::Vector`] unless set.
    pub fn vector_type(mut self, vector_type: VectorType) -> Self {
        self.vector_type = vector_type;
        self
    }

    /// Sets the minimum number of candidates that a search in a graph considers: 100 unless set, 1 to 1,000. More
    /// candidates improve recall and take longer.
    pub fn ef_search(mut self, candidates: u16) -> Self {
        self.ef_search = candidates;
        self
    }

    /// Sets how many lists of [`AnnIndex::Ivfflat`] a search reads: the square root of their number, unless set.
    pub fn probes(mut self, lists: u32) -> Self {
        self.probes = Some(lists);
        self
    }

    /// Makes `setup()` build an index for filters (`store_value_idx`): filters by equality then do not read every item
    /// under the namespace, and every put takes longer. Off unless set.
    pub fn filter_index(mut self, filter_index: bool) -> Self {
        self.filter_index = filter_index;
        self
    }

    /// Sets the default TTL of items, and whether reads refresh it.
    pub fn ttl(mut self, ttl: TtlConfig) -> Self {
        self.ttl = ttl;
        self
    }

    /// Checks the options, reads certificates, and creates the store. Opens no connection; the first call does.
    ///
    /// # Errors
    /// [`InvalidConfig`](checkpoint_core::ErrorKind::InvalidConfig) for an invalid connection string or option, for a
    /// certificate that cannot be read, and for connection options on an application's own pool.
    pub fn build(self) -> Result<PostgresStore> {
        self.checked().map(PostgresStore::from_shared).at(BACKEND, "build")
    }

    fn checked(self) -> Result<Shared> {
        let (database, schema) = self.connection.database(&self.source)?;
        self.ttl.check()?;
        let index = self.index.map(|config| VectorIndex {
            config,
            ann: self.ann,
            vector_type: self.vector_type,
            ef_search: self.ef_search,
            probes: self.probes,
        });
        index.as_ref().map_or(Ok(()), VectorIndex::check)?;
        let index = index.map(Arc::new);
        let tables = Tables::new(schema.as_deref(), index.clone(), self.filter_index);
        Ok(Shared::new(database, tables, index, self.ttl))
    }
}
