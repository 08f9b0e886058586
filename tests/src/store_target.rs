//! What a store's backend gives the suite.

use std::fmt::{self, Debug};
use std::sync::Arc;

use checkpoint_core::store::{BaseStore, IndexConfig, TtlConfig};
use checkpoint_core::{Error, Result, async_trait};

use crate::wire::Counted;

/// A store of any kind.
pub type Store = Arc<dyn BaseStore>;

/// How a handle onto a store is opened.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct StoreOptions {
    /// What makes it search by meaning, if anything.
    pub index: Option<IndexConfig>,
    /// What it does about the lives of items.
    pub ttl: TtlConfig,
}

impl StoreOptions {
    /// Opens without an index; items live for ever.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens with an index.
    #[must_use]
    pub fn index(mut self, index: IndexConfig) -> Self {
        self.index = Some(index);
        self
    }

    /// Opens with what it does about the lives of items.
    #[must_use]
    pub fn ttl(mut self, ttl: TtlConfig) -> Self {
        self.ttl = ttl;
        self
    }

    /// Whether handles that are opened with these options and with others must share their items: these are copies of
    /// one another.
    pub fn is_copy_of(&self, other: &Self) -> bool {
        let same_index = match (&self.index, &other.index) {
            (None, None) => true,
            (Some(a), Some(b)) => {
                (a.dims, a.distance, &a.fields) == (b.dims, b.distance, &b.fields)
                    && Arc::ptr_eq(&a.embeddings, &b.embeddings)
            }
            _ => false,
        };
        same_index && self.ttl == other.ttl
    }
}

/// What a target may offer beyond opening handles. Cases that need more than it has are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreFacility {
    /// [`StoreTarget::open`] heeds [`StoreOptions::index`].
    Index,
    /// [`StoreTarget::fresh`] works.
    Fresh,
    /// [`StoreTarget::counted`] works.
    RoundTrips,
}

impl fmt::Display for StoreFacility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Index => "handles with an index, by which queries find items",
            Self::Fresh => "an empty database",
            Self::RoundTrips => "a count of round trips",
        })
    }
}

/// A call whose round trips and statements are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreCall {
    /// A `get` of one item.
    Get,
    /// A batch of this many gets.
    GetMany {
        /// How many, at least two.
        items: usize,
    },
    /// A `get` of an item whose time to live begins anew.
    GetRefreshed,
    /// A `put` of one item.
    Put {
        /// Whether the store has an index.
        indexed: bool,
    },
    /// A batch of puts and deletions.
    PutMany {
        /// Whether the store has an index.
        indexed: bool,
    },
    /// A deletion of one item.
    Delete,
    /// A search by namespace and filter.
    Search,
    /// A search by a query, under a namespace with a few items.
    SearchByQuery,
    /// A batch of several searches, one of them by a query where the store has an index.
    SearchMany {
        /// Whether the store has an index.
        indexed: bool,
    },
    /// A `list_namespaces`.
    ListNamespaces,
    /// A batch with one get, one search, one listing of namespaces and one put.
    Mixed,
    /// A `sweep_ttl` that finds this many expired items.
    Sweep {
        /// How many.
        items: usize,
    },
    /// A `setup` of a database that is set up.
    Setup {
        /// Whether the store has an index.
        indexed: bool,
    },
}

/// A store whose round trips are counted.
pub type CountedStore = Counted<Store, StoreCall>;

/// A store's database under test.
#[async_trait]
pub trait StoreTarget: Debug + Send + Sync + 'static {
    /// The backend's name, for the report.
    fn name(&self) -> &str;

    /// Whether the cases of a group (`store_index`) are to be run on it. A target that differs from another one in its
    /// index alone has no need of the others.
    fn concerns(&self, group: &str) -> bool {
        let _ = group;
        true
    }

    /// Opens one more handle. It has the items of all handles whose options are copies of these, and is not set up. The
    /// suite uses indexes of few dimensions, which a target may have to keep apart from one another.
    ///
    /// # Errors
    /// What the backend's builder returns.
    ///
    /// # Cancellation
    /// A dropped call opened nothing.
    async fn open(&self, options: StoreOptions) -> Result<Store>;

    /// Whether the target has a facility.
    fn offers(&self, facility: StoreFacility) -> bool {
        let _ = facility;
        false
    }

    /// Makes an empty database that was never set up. It goes away with the target that is returned.
    ///
    /// # Errors
    /// [`Unsupported`](checkpoint_core::ErrorKind::Unsupported) unless it is offered.
    ///
    /// # Cancellation
    /// A dropped call may leave an empty database.
    async fn fresh(&self) -> Result<Arc<dyn StoreTarget>> {
        Err(Error::unsupported("target", "fresh"))
    }

    /// Opens a handle whose driver reaches the server through a counting proxy, as [`Target::counted`](crate::Target::counted)
    /// does. The database is set up.
    ///
    /// # Errors
    /// [`Unsupported`](checkpoint_core::ErrorKind::Unsupported) unless it is offered.
    ///
    /// # Cancellation
    /// A dropped call opened nothing.
    async fn counted(&self, options: StoreOptions) -> Result<CountedStore> {
        let _ = options;
        Err(Error::unsupported("target", "counted"))
    }
}
