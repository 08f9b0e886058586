//! The builder.

use std::sync::Arc;

use checkpoint_core::store::{Distance, IndexConfig, TtlConfig};
use checkpoint_core::{Error, Result, ResultExt};
use common_postgres::{BACKEND, ConnectionOptions, Source, connection_setters};

use crate::PostgresStore;
use crate::schema::Tables;
use crate::store::Shared;

/// How the vectors of items are stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VectorType {
    /// `vector`: 4 bytes for each dimension; an index takes up to 2,000 dimensions.
    #[default]
    Vector,
    /// `halfvec`: 2 bytes for each dimension; an index takes up to 4,000 dimensions.
    Halfvec,
}

impl VectorType {
    /// The server's name of the type.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Vector => "vector",
            Self::Halfvec => "halfvec",
        }
    }

    /// How many dimensions an index can have.
    fn most_indexed(self) -> usize {
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
    /// By a graph of neighbours (HNSW): fast, nearly exact, slow to build. See [`hnsw`](Self::hnsw).
    Hnsw {
        /// How many neighbours a vector has in each layer: the server's 16, unless set.
        m: Option<u16>,
        /// How many candidates are looked at when a vector is added: the server's 64, unless set.
        ef_construction: Option<u16>,
    },
    /// By lists of vectors that are near to each other (IVF). The index is best made when the table has its vectors.
    Ivfflat {
        /// How many lists there are; about one for every thousand vectors.
        lists: u32,
    },
    /// By looking at all vectors under the namespace: exact.
    Flat,
}

impl Default for AnnIndex {
    fn default() -> Self {
        Self::hnsw()
    }
}

impl AnnIndex {
    /// A graph of neighbours, as the server makes it unless told otherwise.
    pub const fn hnsw() -> Self {
        Self::Hnsw { m: None, ef_construction: None }
    }

    /// So many lists.
    pub const fn ivfflat(lists: u32) -> Self {
        Self::Ivfflat { lists }
    }

    /// Sets how many neighbours a vector has in each layer of a graph: 2 to 100. It says nothing to other kinds.
    #[must_use]
    pub const fn m(self, neighbours: u16) -> Self {
        match self {
            Self::Hnsw { ef_construction, .. } => Self::Hnsw { m: Some(neighbours), ef_construction },
            other => other,
        }
    }

    /// Sets how many candidates are looked at when a vector is added to a graph: 4 to 1,000, and at least twice the
    /// neighbours. It says nothing to other kinds.
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
                    return Err(Error::invalid_config("m is 2 to 100").with("m", m));
                }
                if !(4..=1000).contains(&candidates) || candidates < 2 * m {
                    return Err(Error::invalid_config("ef_construction is 4 to 1,000, and at least twice m")
                        .with("ef_construction", candidates)
                        .with("m", m));
                }
            }
            Self::Ivfflat { lists } if !(1..=32_768).contains(&lists) => {
                return Err(Error::invalid_config("an index has 1 to 32,768 lists").with("lists", lists));
            }
            Self::Ivfflat { .. } | Self::Flat => {}
        }
        Ok(())
    }
}

/// What makes the store search by meaning, with what is particular to pgvector.
#[derive(Debug, Clone)]
pub(crate) struct VectorIndex {
    pub(crate) config: IndexConfig,
    pub(crate) ann: AnnIndex,
    pub(crate) vector_type: VectorType,
    pub(crate) ef_search: u16,
    pub(crate) probes: Option<u32>,
}

impl VectorIndex {
    /// The operator of the distance, by which the server sorts; the less, the nearer.
    pub(crate) fn operator(&self) -> &'static str {
        match self.config.distance {
            Distance::L2 => "<->",
            Distance::InnerProduct => "<#>",
            _ => "<=>",
        }
    }

    /// The class of operators that the index has.
    pub(crate) fn operator_class(&self) -> String {
        let distance = match self.config.distance {
            Distance::L2 => "l2",
            Distance::InnerProduct => "ip",
            _ => "cosine",
        };
        format!("{}_{distance}_ops", self.vector_type.as_str())
    }

    /// The score of a distance.
    pub(crate) fn score(&self, distance: f64) -> f64 {
        match self.config.distance {
            // Not negated: there is no minus zero among the scores.
            Distance::L2 | Distance::InnerProduct => 0.0 - distance,
            _ => 1.0 - distance,
        }
    }

    fn check(&self) -> Result<()> {
        self.config.check()?;
        self.ann.check()?;
        if !matches!(self.config.distance, Distance::Cosine | Distance::L2 | Distance::InnerProduct) {
            return Err(Error::invalid_config("pgvector does not measure by this distance here"));
        }
        let most = self.vector_type.most_indexed();
        if self.ann != AnnIndex::Flat && self.config.dims > most {
            return Err(Error::invalid_config(
                "an index cannot have so many dimensions; store halfvec (up to 4,000), or search with AnnIndex::Flat",
            )
            .with("dims", self.config.dims)
            .with("limit", most));
        }
        if !(1..=1000).contains(&self.ef_search) {
            return Err(Error::invalid_config("ef_search is 1 to 1,000").with("ef_search", self.ef_search));
        }
        match self.probes {
            Some(probes) if !(1..=32_768).contains(&probes) => {
                Err(Error::invalid_config("probes are 1 to 32,768").with("probes", probes))
            }
            _ => Ok(()),
        }
    }
}

/// Gathers the options of a [`PostgresStore`]. Setters cannot fail; [`build`](Self::build) checks everything.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until build() is called"]
pub struct PostgresStoreBuilder {
    source: Source,
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
    pub(crate) fn new(source: Source) -> Self {
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

    /// Lets searches have a query. Everybody who writes to the same tables should have the same index: without one a
    /// store leaves the vectors of the items that it writes as they are.
    pub fn index(mut self, index: IndexConfig) -> Self {
        self.index = Some(index);
        self
    }

    /// Chooses how the nearest vectors are found: [`AnnIndex::hnsw`] unless set. `setup()` makes the index.
    pub fn ann_index(mut self, ann: AnnIndex) -> Self {
        self.ann = ann;
        self
    }

    /// Chooses how vectors are stored: [`VectorType::Vector`] unless set.
    pub fn vector_type(mut self, vector_type: VectorType) -> Self {
        self.vector_type = vector_type;
        self
    }

    /// Sets how many candidates a search in a graph of neighbours looks at, at least: 100 unless set, 1 to 1,000. More
    /// find more of the nearest, and take longer.
    pub fn ef_search(mut self, candidates: u16) -> Self {
        self.ef_search = candidates;
        self
    }

    /// Sets how many lists of [`AnnIndex::Ivfflat`] a search looks at: the square root of their number, unless set.
    pub fn probes(mut self, lists: u32) -> Self {
        self.probes = Some(lists);
        self
    }

    /// Has `setup()` make an index for filters (`store_value_idx`): searches for values by equality then find them
    /// without looking at every item under the namespace. Every put takes longer for it. Unless set, there is none.
    pub fn filter_index(mut self, filter_index: bool) -> Self {
        self.filter_index = filter_index;
        self
    }

    /// Chooses how long items live unless their put says otherwise, and whether reading them prolongs it.
    pub fn ttl(mut self, ttl: TtlConfig) -> Self {
        self.ttl = ttl;
        self
    }

    /// Checks the options, reads certificates, and makes the store. Opens no connection; the first call does.
    ///
    /// # Errors
    /// [`InvalidConfig`](checkpoint_core::ErrorKind::InvalidConfig) for an invalid connection string or option, for a
    /// certificate that cannot be read, and for connection options on a pool that is the application's own.
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
