//! What the driver needs of the caller's runtime: tasks of its own, because its futures must not be dropped, and an error
//! instead of a panic where a part of the runtime is missing.

use std::time::Duration;

use checkpoint_core::backend::NeedsTokio;
use checkpoint_core::{Error, Result};
use tokio::net::UdpSocket;
use tokio::runtime::Handle;
use tokio::task::JoinError;

const TOKIO: NeedsTokio = NeedsTokio::new("MongoDB");

/// The runtime of this call; see [`NeedsTokio::current`].
pub(crate) fn current() -> Result<Handle> {
    TOKIO.current()
}

/// Checks that the runtime has the drivers that the driver's background tasks need.
///
/// # Errors
/// [`InvalidConfig`](checkpoint_core::ErrorKind::InvalidConfig) otherwise.
pub(crate) async fn check_drivers() -> Result<()> {
    let probe = async {
        tokio::time::sleep(Duration::ZERO).await;
        // A machine without a loopback address has other errors later; here only a panic counts.
        drop(UdpSocket::bind(("127.0.0.1", 0)).await);
    };
    TOKIO.guarded(probe).await
}

/// The error of a task that did not end; see [`NeedsTokio::ended`].
pub(crate) fn ended(error: JoinError) -> Error {
    TOKIO.ended(error)
}
