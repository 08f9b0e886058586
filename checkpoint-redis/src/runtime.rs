//! What the driver needs of the caller's runtime: an error instead of a panic where it is missing.

use std::any::Any;
use std::panic::{AssertUnwindSafe, resume_unwind};

use checkpoint_core::{Error, Result};
use futures_util::future::{BoxFuture, FutureExt};
use tokio::runtime::Handle;

const NO_RUNTIME: &str =
    "Redis needs a tokio runtime; call this inside of one, as in an async fn under #[tokio::main]";
const NO_DRIVERS: &str = "Redis needs the I/O and time drivers of the tokio runtime, and that it is not shut down; \
                          build the runtime with enable_all()";

/// How tokio begins its panics about a runtime that lacks a driver.
const TOKIO: &str = "A Tokio 1.x context was found, but ";

/// Runs a future that uses tokio's sockets or timers.
///
/// # Errors
/// [`InvalidConfig`](checkpoint_core::ErrorKind::InvalidConfig) outside of a tokio runtime, and in one without these
/// drivers.
pub(crate) async fn guarded<T>(future: impl Future<Output = T>) -> Result<T> {
    if let Err(error) = Handle::try_current() {
        return Err(Error::invalid_config(NO_RUNTIME).with_source(error));
    }
    // tokio tells whether a runtime has drivers by panicking, and in no other way.
    AssertUnwindSafe(future).catch_unwind().await.map_err(no_drivers)
}

/// Runs a call of several steps to its end, even if its caller is dropped.
pub(crate) async fn to_the_end<T: Send + 'static>(call: BoxFuture<'static, Result<T>>) -> Result<T> {
    let task = async { tokio::spawn(call).await };
    match guarded(task).await? {
        Ok(result) => result,
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        Err(error) => Err(Error::invalid_config("the tokio runtime is shut down").with_source(error)),
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
    use checkpoint_core::ErrorKind;
    use tokio::runtime::Builder;

    use crate::builder::RedisSaverBuilder;
    use crate::connection::Connections;

    use super::*;

    fn connections() -> Connections {
        RedisSaverBuilder::new("redis://127.0.0.1:1").checked().unwrap().0
    }

    #[test]
    fn calls_need_a_runtime_with_drivers() {
        let connections = connections();
        let error = Box::pin(connections.ping()).now_or_never().unwrap().unwrap_err();
        assert!(
            error.kind() == ErrorKind::InvalidConfig && error.message().contains("#[tokio::main]"),
            "{error}"
        );
        let bare = || Builder::new_current_thread().build().unwrap();
        let no_sockets = Builder::new_current_thread().enable_time().build().unwrap();
        for runtime in [bare(), no_sockets, bare()] {
            let error = runtime.block_on(connections.ping()).unwrap_err();
            assert!(
                error.kind() == ErrorKind::InvalidConfig && error.message().contains("enable_all"),
                "{error}"
            );
        }
        let complete = || Builder::new_current_thread().enable_all().build().unwrap();
        for runtime in [complete(), complete()] {
            let error = runtime.block_on(connections.ping()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
    }

    #[tokio::test]
    async fn other_panics_go_on() {
        assert_eq!(guarded(std::future::ready(1)).await.unwrap(), 1);
        let other = AssertUnwindSafe(guarded(async { std::panic::panic_any(7_u8) })).catch_unwind().await;
        assert_eq!(other.unwrap_err().downcast_ref(), Some(&7_u8));
    }
}
