//! The suite of stores on stores that do not do what they promise: it has to find them out.

use std::sync::{Arc, Mutex};

use checkpoint_core::store::{BaseStore, Op, OpResult, StoreCapabilities};
use checkpoint_core::{InMemoryStore, Result, async_trait};

use crate::{Report, Store, StoreFacility, StoreOptions, StoreTarget, run_store_cases};

/// How a store is dishonest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// Not at all.
    None,
    /// It promises searches by queries without an index, or none with one.
    SemanticSearch,
    /// It says that items outlive the process.
    Durable,
    /// It answers a sweep and removes nothing.
    SweepDoesNothing,
    /// It answers a put and stores nothing.
    PutsDoNothing,
    /// It runs the operations of a batch in an order of its own.
    OtherOrder,
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
        // A store that is durable finds again what it stored; this one does not.
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

const LIES: [(Lie, &str, usize); 6] = [
    (Lie::SemanticSearch, "store_search", 1),
    (Lie::SemanticSearch, "store_index", 1),
    (Lie::Durable, "store_setup", 1),
    (Lie::SweepDoesNothing, "store_ttl", 1),
    (Lie::PutsDoNothing, "store_put", 3),
    (Lie::OtherOrder, "store_batch", 1),
];

#[tokio::test]
async fn a_store_that_does_not_do_what_it_promises_fails() {
    for (lie, group, least) in LIES {
        let failed = report(lie, &[group]).await.failed;
        assert!(failed.len() >= least, "{lie:?} in {group}: only {failed:?}");
    }
}

#[tokio::test]
async fn the_same_groups_pass_on_an_honest_store() {
    let report = report(Lie::None, &LIES.map(|(_, group, _)| group)).await;
    assert_eq!(report.failed, []);
    assert!(report.passed.len() > 40, "{} cases passed", report.passed.len());
}
