//! The suite on the in-memory store.

use std::sync::{Arc, Mutex, PoisonError};

use checkpoint_conformance::{Store, StoreFacility, StoreOptions, StoreTarget};
use checkpoint_core::{InMemoryStore, Result, async_trait};

/// One store for all handles of the same options.
#[derive(Debug, Default)]
struct Memory(Mutex<Vec<(StoreOptions, InMemoryStore)>>);

#[async_trait]
impl StoreTarget for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    async fn open(&self, options: StoreOptions) -> Result<Store> {
        let mut opened = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = opened.iter().find(|(of, _)| of.is_copy_of(&options));
        if let Some((_, store)) = found {
            return Ok(Arc::new(store.clone()));
        }
        let mut builder = InMemoryStore::builder().ttl(options.ttl);
        if let Some(index) = options.index.clone() {
            builder = builder.index(index);
        }
        let store = builder.build()?;
        opened.push((options, store.clone()));
        Ok(Arc::new(store))
    }

    fn offers(&self, facility: StoreFacility) -> bool {
        facility != StoreFacility::RoundTrips
    }

    async fn fresh(&self) -> Result<Arc<dyn StoreTarget>> {
        Ok(Arc::new(Self::default()))
    }
}

pub(crate) fn target() -> Arc<dyn StoreTarget> {
    Arc::new(Memory::default())
}
