//! The suite on the in-memory saver.

use std::num::NonZeroUsize;
use std::sync::Arc;

use checkpoint_conformance::{Facility, OpenOptions, Saver, Target};
use checkpoint_core::{InMemorySaver, Result, async_trait};

#[derive(Debug)]
struct Memory(InMemorySaver);

#[async_trait]
impl Target for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    async fn open(&self, options: OpenOptions) -> Result<Saver> {
        let saver = self.0.clone().with_opaque_values(options.opaque_values);
        let keep_last = options.keep_last.and_then(NonZeroUsize::new);
        Ok(Arc::new(keep_last.map_or_else(|| saver.clone(), |count| saver.clone().with_keep_last(count))))
    }

    fn offers(&self, facility: Facility) -> bool {
        matches!(
            facility,
            Facility::Fresh | Facility::KeepLast | Facility::OpaqueValues | Facility::SeparateValues
        )
    }

    async fn fresh(&self) -> Result<Arc<dyn Target>> {
        Ok(Arc::new(Self(InMemorySaver::new())))
    }
}

pub(crate) fn target() -> Arc<dyn Target> {
    Arc::new(Memory(InMemorySaver::new()))
}
