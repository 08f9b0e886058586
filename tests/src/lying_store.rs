//! The store suite on faulty stores, on which it must fail.

use std::sync::{Arc, Mutex};

use checkpoint_core::store::{BaseStore, Expected, Op, OpResult, PutOp, StoreCapabilities};
use checkpoint_core::{InMemoryStore, Result, async_trait};

use crate::{Report, Store, StoreFacility, StoreOptions, StoreTarget, run_store_cases};

/// A fault of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// No fault.
    None,
    /// It declares semantic search without an index, or does not declare it with one.
    SemanticSearch,
    /// It declares that items outlive the process.
    Durable,
    /// Its sweep removes nothing.
    SweepDoesNothing,
    /// Its puts store nothing.
    PutsDoNothing,
    /// It runs the operations of a batch in the wrong order.
    OtherOrder,
    /// It puts an item whatever was expected.
    PutsAnyway,
    /// Its conditional puts never find what was expected.
    PutsNever,
}

#[derive(Debug)]
struct Lying(InMemoryStore, Lie);

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl BaseStore for Lying {
    fn backend(&self) -> &'static str {
        self.0.backend()
    }

    fn capabilities(&self) -> StoreCapabilities {
        let mut capabilities = self.0.capabilities();
        match self.1 {
            Lie::SemanticSearch => capabilities.semantic_search = !capabilities.semantic_search,
            Lie::Durable => capabilities.durable = true,
            _ => {}
        }
        capabilities
    }

    async fn setup(&self) -> Result<()> {
        self.0.setup().await
    }

    async fn ping(&self) -> Result<()> {
        self.0.ping().await
    }

    async fn check_schema(&self) -> Result<()> {
        self.0.check_schema().await
    }

    async fn batch(&self, ops: Vec<Op>) -> Result<Vec<OpResult>> {
        match self.1 {
            Lie::PutsDoNothing if ops.iter().all(|op| matches!(op, Op::Put(_))) => {
                Ok(vec![OpResult::Done; ops.len()])
            }
            Lie::OtherOrder => {
                let mut results = self.0.batch(ops).await?;
                results.reverse();
                Ok(results)
            }
            _ => self.0.batch(ops).await,
        }
    }

    async fn put_if(&self, put: PutOp, expected: Expected) -> Result<()> {
        match self.1 {
            Lie::PutsAnyway => self.0.batch(vec![Op::Put(put)]).await.map(drop),
            Lie::PutsNever => Err(expected.conflict(&put)),
            _ => self.0.put_if(put, expected).await,
        }
    }

    async fn close(&self) -> Result<()> {
        self.0.close().await
    }

    async fn sweep_ttl(&self) -> Result<u64> {
        if self.1 == Lie::SweepDoesNothing { Ok(0) } else { self.0.sweep_ttl().await }
    }
}

#[derive(Debug)]
struct Wrapped {
    lie: Lie,
    opened: Mutex<Vec<(StoreOptions, InMemoryStore)>>,
}

impl Wrapped {
    fn new(lie: Lie) -> Self {
        Self { lie, opened: Mutex::default() }
    }
}

#[async_trait]
impl StoreTarget for Wrapped {
    fn name(&self) -> &'static str {
        "wrapped"
    }

    async fn open(&self, options: StoreOptions) -> Result<Store> {
        let mut opened = self.opened.lock().unwrap();
        // A durable store would find its data again; this one does not.
        let known = opened.iter().find(|(of, _)| of.is_copy_of(&options) && self.lie != Lie::Durable);
        if let Some((_, store)) = known {
            return Ok(Arc::new(Lying(store.clone(), self.lie)));
        }
        let builder = InMemoryStore::builder().ttl(options.ttl);
        let builder = match options.index.clone() {
            Some(index) => builder.index(index),
            None => builder,
        };
        let store = builder.build()?;
        opened.push((options, store.clone()));
        Ok(Arc::new(Lying(store, self.lie)))
    }

    fn offers(&self, facility: StoreFacility) -> bool {
        facility != StoreFacility::RoundTrips
    }

    async fn fresh(&self) -> Result<Arc<dyn StoreTarget>> {
        Ok(Arc::new(Self::new(self.lie)))
    }
}

async fn report(lie: Lie, groups: &[&str]) -> Report {
    let target = Arc::new(Wrapped::new(lie));
    run_store_cases(target, |case| groups.contains(&case.group()), |_, _| {}).await.unwrap()
}

const LIES: [(Lie, &str, usize); 8] = [
    (Lie::SemanticSearch, "store_search", 1),
    (Lie::SemanticSearch, "store_index", 1),
    (Lie::Durable, "store_setup", 1),
    (Lie::SweepDoesNothing, "store_ttl", 1),
    (Lie::PutsDoNothing, "store_put", 3),
    (Lie::OtherOrder, "store_batch", 1),
    (Lie::PutsAnyway, "store_conditions", 8),
    (Lie::PutsNever, "store_conditions", 8),
];

#[tokio::test]
async fn faulty_stores_fail() {
    for (lie, group, least) in LIES {
        let failed = report(lie, &[group]).await.failed;
        assert!(failed.len() >= least, "{lie:?} in {group}: only {failed:?}");
    }
}

#[tokio::test]
async fn the_same_groups_pass_on_a_correct_store() {
    let report = report(Lie::None, &LIES.map(|(_, group, _)| group)).await;
    assert_eq!(report.failed, []);
    assert!(report.passed.len() > 40, "{} cases passed", report.passed.len());
}
