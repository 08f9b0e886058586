//! What the driver needs of the caller's runtime: an error instead of a panic where it is missing.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use checkpoint_core::{Error, Result};
use futures_util::future::FutureExt;
use tokio::runtime::Handle;

const NO_RUNTIME: &str =
    "PostgreSQL needs a tokio runtime; call this inside of one, as in an async fn under #[tokio::main]";
const NO_DRIVERS: &str = "PostgreSQL needs the I/O and time drivers of the tokio runtime, and that it is not shut down; \
                          build the runtime with enable_all()";

/// How tokio begins its panics about a runtime that lacks a driver.
const TOKIO: &str = "A Tokio 1.x context was found, but ";

/// Runs a future that uses tokio's sockets or timers.
///
/// # Errors
/// [`InvalidConfig`](checkpoint_core::ErrorKind::InvalidConfig) outside of a tokio runtime, and in one without these
/// drivers.
pub(crate) async fn guarded<T>(future: impl Future<Output = T>) -> Result<T> {
    check_runtime()?;
    // tokio tells whether a runtime has drivers by panicking, and in no other way.
    AssertUnwindSafe(future).catch_unwind().await.map_err(no_drivers)
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
    check_runtime()?;
    catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).map_err(no_drivers)
}

fn check_runtime() -> Result<()> {
    match Handle::try_current() {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::invalid_config(NO_RUNTIME).with_source(error)),
    }
}

/// Converts a panic of tokio; any other one goes on.
fn no_drivers(panic: Box<dyn Any + Send>) -> Error {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    match text {
        Some(text) if text.starts_with(TOKIO) => {
            Error::invalid_config(NO_DRIVERS).with_source(text.to_owned())
        }
        _ => resume_unwind(panic),
    }
}

#[cfg(test)]
mod tests {
    use std::panic;

    use checkpoint_core::ErrorKind;
    use futures_util::future::ready;
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn timers_need_a_runtime_with_a_time_driver() {
        let error = check_timers().unwrap_err();
        assert!(
            error.kind() == ErrorKind::InvalidConfig && error.message().contains("#[tokio::main]"),
            "{error}"
        );
        let bare = Builder::new_current_thread().build().unwrap();
        for error in [bare.block_on(async { check_timers() }), bare.block_on(sleep(Duration::ZERO))] {
            let error = error.unwrap_err();
            assert!(
                error.kind() == ErrorKind::InvalidConfig && error.message().contains("enable_all"),
                "{error}"
            );
        }
        let complete = Builder::new_current_thread().enable_time().build().unwrap();
        complete.block_on(async { check_timers() }).unwrap();
        complete.block_on(sleep(Duration::ZERO)).unwrap();
        let shut_down = complete.handle().clone();
        drop(complete);
        let _guard = shut_down.enter();
        assert_eq!(
            futures_executor(sleep(Duration::from_secs(9))).unwrap_err().kind(),
            ErrorKind::InvalidConfig
        );
    }

    /// Polls once: the future must be ready.
    fn futures_executor<T>(future: impl Future<Output = T>) -> T {
        std::pin::pin!(future).now_or_never().unwrap()
    }

    #[tokio::test]
    async fn other_panics_go_on() {
        assert_eq!(guarded(ready(1)).await.unwrap(), 1);
        let other = AssertUnwindSafe(guarded(async { panic::panic_any(7_u8) })).catch_unwind().await;
        assert_eq!(other.unwrap_err().downcast_ref(), Some(&7_u8));
    }
}
