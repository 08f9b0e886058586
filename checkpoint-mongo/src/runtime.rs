//! What the driver needs of the caller's runtime: tasks of its own, because its futures must not be dropped, and an error
//! instead of a panic where a part of the runtime is missing.

use std::any::Any;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;

use checkpoint_core::{Error, Result};
use futures_util::future::FutureExt;
use tokio::net::UdpSocket;
use tokio::runtime::Handle;
use tokio::task::JoinError;

const NO_RUNTIME: &str =
    "MongoDB needs a tokio runtime; call this inside of one, as in an async fn under #[tokio::main]";
const NO_DRIVERS: &str = "MongoDB needs the I/O and time drivers of the tokio runtime, and that it is not shut down; \
                          build the runtime with enable_all()";

/// How tokio begins its panics about a runtime that lacks a driver.
const TOKIO: &str = "A Tokio 1.x context was found, but ";

/// The runtime of this call.
///
/// # Errors
/// [`InvalidConfig`](checkpoint_core::ErrorKind::InvalidConfig) outside of a tokio runtime.
pub(crate) fn current() -> Result<Handle> {
    Handle::try_current().map_err(|error| Error::invalid_config(NO_RUNTIME).with_source(error))
}

/// Checks that the runtime has the drivers that the driver's background tasks need.
///
/// # Errors
/// [`InvalidConfig`](checkpoint_core::ErrorKind::InvalidConfig) otherwise.
pub(crate) async fn check_drivers() -> Result<()> {
    current()?;
    let probe = async {
        tokio::time::sleep(Duration::ZERO).await;
        // A machine without a loopback address has other errors later; here only a panic counts.
        drop(UdpSocket::bind(("127.0.0.1", 0)).await);
    };
    // tokio tells whether a runtime has drivers by panicking, and in no other way.
    AssertUnwindSafe(probe).catch_unwind().await.map_err(no_drivers)
}

/// The error of a task that did not end; its panic goes on.
pub(crate) fn ended(error: JoinError) -> Error {
    match error.try_into_panic() {
        Ok(panic) => no_drivers(panic),
        Err(error) => Error::invalid_config("the tokio runtime is shut down").with_source(error),
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
