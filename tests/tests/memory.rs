//! The suite on the in-memory saver.

use std::process::ExitCode;
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

    async fn open(&self, _options: OpenOptions) -> Result<Saver> {
        Ok(Arc::new(self.0.clone()))
    }

    fn offers(&self, facility: Facility) -> bool {
        facility == Facility::Fresh
    }

    async fn fresh(&self) -> Result<Arc<dyn Target>> {
        Ok(Arc::new(Self(InMemorySaver::new())))
    }
}

fn main() -> ExitCode {
    checkpoint_conformance::run(Memory(InMemorySaver::new()))
}
