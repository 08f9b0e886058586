//! What the driver needs of the caller's runtime: an error instead of a panic where it is missing.

use std::time::Duration;

use checkpoint_core::Result;
use checkpoint_core::backend::NeedsTokio;

const TOKIO: NeedsTokio = NeedsTokio::new("PostgreSQL");

/// Runs a future that uses tokio's sockets or timers; see [`NeedsTokio::guarded`].
pub(crate) fn guarded<T>(future: impl Future<Output = T>) -> impl Future<Output = Result<T>> {
    TOKIO.guarded(future)
}

/// Sleeps.
///
/// # Errors
/// As [`guarded`].
pub(crate) async fn sleep(duration: Duration) -> Result<()> {
    guarded(async { tokio::time::sleep(duration).await }).await
}

/// Fails unless timers can be made here, for tasks that will use them.
///
/// # Errors
/// [`InvalidConfig`](checkpoint_core::ErrorKind::InvalidConfig) outside of a tokio runtime, and in one without a time
/// driver.
pub fn check_timers() -> Result<()> {
    TOKIO.checked(|| drop(tokio::time::sleep(Duration::ZERO)))
}
