//! The background task that removes expired items.

use std::time::Duration;

use checkpoint_core::Result;
use checkpoint_core::store::BaseStore;
use common_postgres::check_timers;
use tokio::task::JoinHandle;

use crate::PostgresStore;

/// The shortest interval between two sweeps.
const MIN_INTERVAL: Duration = Duration::from_millis(1);

/// A background task that removes expired items until this handle is dropped or the store is closed. Several sweepers, also in several
/// processes, run concurrently without conflicts.
#[derive(Debug)]
#[must_use = "the task ends when this is dropped"]
pub struct TtlSweeper(JoinHandle<()>);

impl TtlSweeper {
    pub(crate) fn start(store: PostgresStore, every: Duration) -> Result<Self> {
        check_timers()?;
        Ok(Self(tokio::spawn(async move {
            loop {
                tokio::time::sleep(every.max(MIN_INTERVAL)).await;
                if store.is_closed() {
                    return;
                }
                match store.sweep_ttl().await {
                    Ok(0) => {}
                    Ok(swept) => tracing::debug!(swept, "removed expired items"),
                    Err(error) => {
                        tracing::warn!(%error, "expired items were not removed; the next sweep tries again");
                    }
                }
            }
        })))
    }
}

impl Drop for TtlSweeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}
