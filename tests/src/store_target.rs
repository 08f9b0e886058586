//! The interface between the suite and a store's backend.

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
    /// The index for semantic search, if any.
    pub index: Option<IndexConfig>,
    /// The TTLs of items.
    pub ttl: TtlConfig,
}

impl StoreOptions {
    /// Opens without an index and without TTLs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens with an index.
    #[must_use]
    pub fn index(mut self, index: IndexConfig) -> Self {
        self.index = Some(index);
        self
    }

    /// Opens with a TTL configuration.
    #[must_use]
    pub fn ttl(mut self, ttl: TtlConfig) -> Self {
        self.ttl = ttl;
        self
    }

    /// Whether handles with these options and with others must share their items: the options are copies of each other.
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

/// An optional facility of a target. Cases that require a missing one are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreFacility {
    /// [`StoreTarget::open`] supports [`StoreOptions::index`].
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
        /// The number, at least two.
        items: usize,
    },
    /// A `get` that refreshes the item's TTL.
    GetRefreshed,
    /// A `put` of one item.
    Put {
        /// Whether the store has an index.
        indexed: bool,
    },
    /// A `put_if`, whether the item is as expected or not.
    PutIf {
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
    /// A batch of several searches, one of them by a query if the store has an index.
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
    /// A `ping`.
    Ping,
    /// A `check_schema` of a database that is set up.
    CheckSchema {
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

    /// Whether the cases of a group (such as `store_index`) run on this target. A target that differs from another one only
    /// in its index does not need the other groups.
    fn concerns(&self, group: &str) -> bool {
        let _ = group;
        true
    }

    /// Opens another handle, without setup. It shares the items of all handles whose options are copies of these. The
    /// suite uses indexes with different dimensions, which a target may have to store separately.
    ///
    /// # Errors
    /// Any error from the backend's builder.
    ///
    /// # Cancellation
    /// A dropped call has opened nothing.
    async fn open(&self, options: StoreOptions) -> Result<Store>;

    /// Whether the target has a facility.
    fn offers(&self, facility: StoreFacility) -> bool {
        let _ = facility;
        false
    }

    /// Creates an empty database without setup. It is removed when the returned target is dropped.
    ///
    /// # Errors
    /// [`Unsupported`](checkpoint_core::ErrorKind::Unsupported) unless the target offers it.
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
    /// [`Unsupported`](checkpoint_core::ErrorKind::Unsupported) unless the target offers it.
    ///
    /// # Cancellation
    /// A dropped call has opened nothing.
    async fn counted(&self, options: StoreOptions) -> Result<CountedStore> {
        let _ = options;
        Err(Error::unsupported("target", "counted"))
    }
}
