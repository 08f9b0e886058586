//! The context of store cases.

use std::collections::BTreeSet;
use std::fmt::{self, Debug, Display};
use std::sync::{Arc, Mutex, PoisonError};

use checkpoint_core::store::{BaseStore, Expected, Namespace, Op, OpResult, PutOp, StoreCapabilities};
use checkpoint_core::{ErrorKind, Result, Str, async_trait, id};

use crate::case::{Case, Suite};
use crate::cases::store_cases;
use crate::wire::Counted;
use crate::{CountedStore, Store, StoreFacility, StoreOptions, StoreTarget};

/// The suite of stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Stores;

/// A requirement of a store case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreNeed {
    /// The store's items outlive its handle.
    Durable,
    /// The target has this facility.
    Target(StoreFacility),
}

impl Display for StoreNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Durable => f.write_str("the store is not durable"),
            Self::Target(facility) => write!(f, "the target does not offer {facility}"),
        }
    }
}

impl Suite for Stores {
    type Target = dyn StoreTarget;
    type Handle = Store;
    type Need = StoreNeed;
    type Setting = ();
    type Ctx = StoreCtx;

    fn cases() -> Vec<Case<Self>> {
        store_cases()
    }

    fn name(target: &dyn StoreTarget) -> &str {
        target.name()
    }

    fn concerns(target: &dyn StoreTarget, group: &str) -> bool {
        target.concerns(group)
    }

    async fn connect(target: &dyn StoreTarget) -> Result<Store> {
        let store = target.open(StoreOptions::default()).await?;
        store.setup().await?;
        Ok(store)
    }

    fn is_met(need: StoreNeed, target: &dyn StoreTarget, store: &Store) -> bool {
        match need {
            StoreNeed::Durable => store.capabilities().durable,
            StoreNeed::Target(facility) => target.offers(facility),
        }
    }

    async fn begin(target: Arc<dyn StoreTarget>, store: Store, (): &()) -> Result<StoreCtx> {
        let recorded = Arc::<Mutex<Vec<Arc<Recorded>>>>::default();
        let store = record(&recorded, store);
        Ok(StoreCtx { target, store, recorded, fresh: Arc::default(), counted: Arc::default() })
    }

    async fn clean(ctx: &StoreCtx) -> Result<()> {
        let recorded = std::mem::take(&mut *ctx.recorded.lock().unwrap_or_else(PoisonError::into_inner));
        let mut cleaned = Ok(());
        for store in recorded {
            if let Err(error) = store.clean().await {
                cleaned = Err(error);
            }
        }
        cleaned
    }
}

/// A store that records the keys of puts, to delete all items, including expired ones, which no read would find.
#[derive(Debug)]
struct Recorded {
    store: Store,
    puts: Mutex<BTreeSet<(Namespace, Str)>>,
}

fn record(recorded: &Mutex<Vec<Arc<Recorded>>>, store: Store) -> Store {
    let store = Arc::new(Recorded { store, puts: Mutex::default() });
    recorded.lock().unwrap_or_else(PoisonError::into_inner).push(store.clone());
    store
}

impl Recorded {
    /// The number of items per batch of deletions.
    const DELETE_BATCH: usize = 500;

    fn record(&self, put: &PutOp) {
        if put.value.is_some() {
            let mut puts = self.puts.lock().unwrap_or_else(PoisonError::into_inner);
            puts.insert((put.namespace.clone(), put.key.clone()));
        }
    }

    async fn clean(&self) -> Result<()> {
        let puts = std::mem::take(&mut *self.puts.lock().unwrap_or_else(PoisonError::into_inner));
        let delete = |(namespace, key): (Namespace, Str)| Op::Put(PutOp::delete(namespace, key));
        let deletes: Vec<_> = puts.into_iter().map(delete).collect();
        let mut cleaned = Ok(());
        for some in deletes.chunks(Self::DELETE_BATCH) {
            match self.store.batch(some.to_vec()).await {
                // Keys that the backend rejects need no clean-up.
                Err(error) if error.kind() == ErrorKind::InvalidArgument => {
                    for one in some {
                        match self.store.batch(vec![one.clone()]).await {
                            Err(error) if error.kind() != ErrorKind::InvalidArgument => cleaned = Err(error),
                            _ => {}
                        }
                    }
                }
                Err(error) => cleaned = Err(error),
                Ok(_) => {}
            }
        }
        cleaned
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl BaseStore for Recorded {
    fn backend(&self) -> &'static str {
        self.store.backend()
    }

    fn capabilities(&self) -> StoreCapabilities {
        self.store.capabilities()
    }

    async fn setup(&self) -> Result<()> {
        self.store.setup().await
    }

    async fn ping(&self) -> Result<()> {
        self.store.ping().await
    }

    async fn check_schema(&self) -> Result<()> {
        self.store.check_schema().await
    }

    async fn batch(&self, ops: Vec<Op>) -> Result<Vec<OpResult>> {
        for op in &ops {
            if let Op::Put(put) = op {
                self.record(put);
            }
        }
        self.store.batch(ops).await
    }

    async fn put_if(&self, put: PutOp, expected: Expected) -> Result<()> {
        self.record(&put);
        self.store.put_if(put, expected).await
    }

    async fn sweep_ttl(&self) -> Result<u64> {
        self.store.sweep_ttl().await
    }

    async fn close(&self) -> Result<()> {
        self.store.close().await
    }
}

/// The context of a store case.
#[derive(Debug, Clone)]
pub struct StoreCtx {
    target: Arc<dyn StoreTarget>,
    store: Store,
    recorded: Arc<Mutex<Vec<Arc<Recorded>>>>,
    /// Kept until the case ends.
    fresh: Arc<Mutex<Vec<Arc<dyn StoreTarget>>>>,
    /// Items are deleted through their proxies.
    counted: Arc<Mutex<Vec<Arc<CountedStore>>>>,
}

impl StoreCtx {
    /// The store under test, without an index. Items put through it are deleted when the case ends.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The database under test.
    pub(crate) fn target(&self) -> &Arc<dyn StoreTarget> {
        &self.target
    }

    /// Whether calls may be pending, so that their futures can be dropped midway.
    pub(crate) fn waits(&self) -> bool {
        self.store.capabilities().durable
    }

    /// Returns a unique namespace of one label.
    pub fn root(&self) -> Namespace {
        Namespace::from([format!("conformance-{}", id::uuid6(-1))])
    }

    /// Opens another handle and sets it up. Items put through it are deleted when the case ends.
    ///
    /// # Errors
    /// Any error from the backend.
    ///
    /// # Cancellation
    /// As the backend's `setup`.
    pub(crate) async fn open(&self, options: StoreOptions) -> Result<Store> {
        let store = self.target.open(options).await?;
        store.setup().await?;
        Ok(record(&self.recorded, store))
    }

    /// Opens a handle whose round trips are counted. Items put through it are deleted when the case ends.
    ///
    /// # Errors
    /// Any error from the target.
    ///
    /// # Cancellation
    /// As [`StoreTarget::counted`].
    pub(crate) async fn counted(&self, options: StoreOptions) -> Result<Arc<CountedStore>> {
        let Counted { handle, proxy, cost } = self.target.counted(options).await?;
        let counted = Arc::new(Counted { handle: record(&self.recorded, handle), proxy, cost });
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).push(counted.clone());
        Ok(counted)
    }

    /// Creates an empty database, which is removed when the case ends.
    ///
    /// # Errors
    /// Any error from the target.
    ///
    /// # Cancellation
    /// As [`StoreTarget::fresh`].
    pub(crate) async fn fresh(&self) -> Result<Arc<dyn StoreTarget>> {
        let target = self.target.fresh().await?;
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner).push(target.clone());
        Ok(target)
    }
}
