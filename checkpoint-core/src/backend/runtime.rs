//! What drivers need of the caller's tokio runtime: an error instead of a panic where a part of it is missing.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use futures_util::future::FutureExt;
use tokio::runtime::Handle;
use tokio::task::JoinError;

use crate::{Error, Result};

/// How tokio begins its panics about a runtime that lacks a driver.
const TOKIO: &str = "A Tokio 1.x context was found, but ";

/// Turns a missing runtime, and one without drivers, into errors that say what to do. tokio tells whether a runtime has
/// drivers by panicking, and in no other way.
///
/// ```
/// use checkpoint_core::backend::NeedsTokio;
///
/// const TOKIO: NeedsTokio = NeedsTokio::new("ExampleDB");
/// let error = TOKIO.current().unwrap_err();
/// assert!(error.message().starts_with("ExampleDB needs a tokio runtime"));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct NeedsTokio {
    database: &'static str,
}

impl NeedsTokio {
    /// Errors name this database.
    pub const fn new(database: &'static str) -> Self {
        Self { database }
    }

    /// The runtime of this call.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) outside of a tokio runtime.
    pub fn current(self) -> Result<Handle> {
        Handle::try_current().map_err(|error| {
            let message = format!(
                "{} needs a tokio runtime; call this inside of one, as in an async fn under #[tokio::main]",
                self.database
            );
            Error::invalid_config(message).with_source(error)
        })
    }

    /// Runs a future that uses tokio's sockets or timers.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) outside of a tokio runtime, and in one without these drivers.
    ///
    /// # Panics
    /// If the future does.
    pub async fn guarded<T>(self, future: impl Future<Output = T>) -> Result<T> {
        self.current()?;
        AssertUnwindSafe(future).catch_unwind().await.map_err(|panic| self.panicked(panic))
    }

    /// Runs a function that makes tokio's sockets or timers.
    ///
    /// # Errors
    /// As [`guarded`](Self::guarded).
    ///
    /// # Panics
    /// If the function does.
    pub fn checked<T>(self, function: impl FnOnce() -> T) -> Result<T> {
        self.current()?;
        catch_unwind(AssertUnwindSafe(function)).map_err(|panic| self.panicked(panic))
    }

    /// The error of a task that did not end. Its panic goes on, unless it is about a missing driver.
    pub fn ended(self, error: JoinError) -> Error {
        match error.try_into_panic() {
            Ok(panic) => self.panicked(panic),
            Err(error) => Error::invalid_config("the tokio runtime is shut down").with_source(error),
        }
    }

    /// The error of a panic about a missing driver. Any other panic goes on.
    pub fn panicked(self, panic: Box<dyn Any + Send>) -> Error {
        let text = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        match text {
            Some(text) if text.starts_with(TOKIO) => {
                let message = format!(
                    "{} needs the I/O and time drivers of the tokio runtime, and that it is not shut down; \
                     build the runtime with enable_all()",
                    self.database
                );
                Error::invalid_config(message).with_source(text.to_owned())
            }
            _ => resume_unwind(panic),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::runtime::Builder;

    use super::*;
    use crate::ErrorKind;

    const NEEDS: NeedsTokio = NeedsTokio::new("ExampleDB");

    #[test]
    fn a_missing_driver_is_an_error() {
        let sleep = || NEEDS.guarded(async { tokio::time::sleep(Duration::ZERO).await });
        let outside = sleep().now_or_never().unwrap().unwrap_err();
        assert!(outside.message().contains("#[tokio::main]"), "{outside}");
        let bare = Builder::new_current_thread().build().unwrap();
        let timer = || NEEDS.checked(|| drop(tokio::time::sleep(Duration::ZERO)));
        for error in [bare.block_on(sleep()), bare.block_on(async { timer() }), timer()] {
            let error = error.unwrap_err();
            let says = error.message().starts_with("ExampleDB needs ");
            assert!(error.kind() == ErrorKind::InvalidConfig && says, "{error}");
        }
        let complete = Builder::new_current_thread().enable_time().build().unwrap();
        complete.block_on(sleep()).unwrap();
        let shut_down = complete.handle().clone();
        drop(complete);
        let _guard = shut_down.enter();
        let gone = NEEDS.guarded(async { tokio::time::sleep(Duration::from_secs(9)).await });
        assert_eq!(gone.now_or_never().unwrap().unwrap_err().kind(), ErrorKind::InvalidConfig);
    }

    #[tokio::test]
    async fn other_panics_go_on() {
        assert_eq!(NEEDS.guarded(std::future::ready(1)).await.unwrap(), 1);
        let other = NEEDS.guarded(async { std::panic::panic_any(7_u8) });
        let other = AssertUnwindSafe(other).catch_unwind().await;
        assert_eq!(other.unwrap_err().downcast_ref(), Some(&7_u8));
    }
}
