//! What the cases of stores work with.

use std::collections::BTreeSet;
use std::fmt::{self, Debug, Display};
use std::sync::{Arc, Mutex, PoisonError};

use checkpoint_core::store::{BaseStore, Namespace, Op, OpResult, PutOp, StoreCapabilities};
use checkpoint_core::{ErrorKind, Result, Str, async_trait, id};

use crate::case::{Case, Suite};
use crate::cases::store_cases;
use crate::wire::Counted;
use crate::{CountedStore, Store, StoreFacility, StoreOptions, StoreTarget};

/// The suite of stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Stores;

/// What a case of a store cannot do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreNeed {
    /// What the store keeps outlives its handle.
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
        let noted = Arc::<Mutex<Vec<Arc<Noted>>>>::default();
        let store = note(&noted, store);
        Ok(StoreCtx { target, store, noted, fresh: Arc::default(), counted: Arc::default() })
    }

    async fn clean(ctx: &StoreCtx) -> Result<()> {
        let noted = std::mem::take(&mut *ctx.noted.lock().unwrap_or_else(PoisonError::into_inner));
        let mut cleaned = Ok(());
        for store in noted {
            if let Err(error) = store.clean().await {
                cleaned = Err(error);
            }
        }
        cleaned
    }
}

/// A store that remembers what was put, so that it can be deleted: also what has expired, which no read would find.
#[derive(Debug)]
struct Noted {
    store: Store,
    puts: Mutex<BTreeSet<(Namespace, Str)>>,
}

fn note(noted: &Mutex<Vec<Arc<Noted>>>, store: Store) -> Store {
    let store = Arc::new(Noted { store, puts: Mutex::default() });
    noted.lock().unwrap_or_else(PoisonError::into_inner).push(store.clone());
    store
}

impl Noted {
    /// How many items are deleted at once.
    const AT_ONCE: usize = 500;

    async fn clean(&self) -> Result<()> {
        let puts = std::mem::take(&mut *self.puts.lock().unwrap_or_else(PoisonError::into_inner));
        let delete = |(namespace, key): (Namespace, Str)| Op::Put(PutOp::delete(namespace, key));
        let deletes: Vec<_> = puts.into_iter().map(delete).collect();
        let mut cleaned = Ok(());
        for some in deletes.chunks(Self::AT_ONCE) {
            match self.store.batch(some.to_vec()).await {
                // What cannot be stored needs no clean-up, the others do.
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
impl BaseStore for Noted {
    fn backend(&self) -> &'static str {
        self.store.backend()
    }

    fn capabilities(&self) -> StoreCapabilities {
        self.store.capabilities()
    }

    async fn setup(&self) -> Result<()> {
        self.store.setup().await
    }

    async fn batch(&self, ops: Vec<Op>) -> Result<Vec<OpResult>> {
        {
            let mut puts = self.puts.lock().unwrap_or_else(PoisonError::into_inner);
            for op in &ops {
                if let Op::Put(put) = op
                    && put.value.is_some()
                {
                    puts.insert((put.namespace.clone(), put.key.clone()));
                }
            }
        }
        self.store.batch(ops).await
    }

    async fn sweep_ttl(&self) -> Result<u64> {
        self.store.sweep_ttl().await
    }

    async fn close(&self) -> Result<()> {
        self.store.close().await
    }
}

/// What a case of a store works with.
#[derive(Debug, Clone)]
pub struct StoreCtx {
    target: Arc<dyn StoreTarget>,
    store: Store,
    noted: Arc<Mutex<Vec<Arc<Noted>>>>,
    /// They stay until the case is over.
    fresh: Arc<Mutex<Vec<Arc<dyn StoreTarget>>>>,
    /// Items are deleted through their proxies.
    counted: Arc<Mutex<Vec<Arc<CountedStore>>>>,
}

impl StoreCtx {
    /// The store under test, without an index. What is put through it is deleted when the case ends.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The database under test.
    pub(crate) fn target(&self) -> &Arc<dyn StoreTarget> {
        &self.target
    }

    /// Whether a call may have to wait, so that its future can be dropped in between.
    pub(crate) fn waits(&self) -> bool {
        self.store.capabilities().durable
    }

    /// Makes up a namespace of one label, which nobody else uses.
    pub fn root(&self) -> Namespace {
        Namespace::from([format!("conformance-{}", id::uuid6(-1))])
    }

    /// Opens one more handle and sets it up. What is put through it is deleted when the case ends.
    ///
    /// # Errors
    /// What the backend says.
    ///
    /// # Cancellation
    /// As the backend's `setup`.
    pub(crate) async fn open(&self, options: StoreOptions) -> Result<Store> {
        let store = self.target.open(options).await?;
        store.setup().await?;
        Ok(note(&self.noted, store))
    }

    /// Opens a handle whose round trips are counted. What is put through it is deleted when the case ends.
    ///
    /// # Errors
    /// What the target says.
    ///
    /// # Cancellation
    /// As [`StoreTarget::counted`].
    pub(crate) async fn counted(&self, options: StoreOptions) -> Result<Arc<CountedStore>> {
        let Counted { handle, proxy, cost } = self.target.counted(options).await?;
        let counted = Arc::new(Counted { handle: note(&self.noted, handle), proxy, cost });
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).push(counted.clone());
        Ok(counted)
    }

    /// Makes an empty database, which goes when the case ends.
    ///
    /// # Errors
    /// What the target says.
    ///
    /// # Cancellation
    /// As [`StoreTarget::fresh`].
    pub(crate) async fn fresh(&self) -> Result<Arc<dyn StoreTarget>> {
        let target = self.target.fresh().await?;
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner).push(target.clone());
        Ok(target)
    }
}
