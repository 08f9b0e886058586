//! What the driver needs of the caller's runtime: an error instead of a panic where it is missing.

use checkpoint_core::Result;
use checkpoint_core::backend::NeedsTokio;
use futures_util::future::BoxFuture;

const TOKIO: NeedsTokio = NeedsTokio::new("Redis");

/// Runs a future that uses tokio's sockets or timers; see [`NeedsTokio::guarded`].
pub(crate) fn guarded<T>(future: impl Future<Output = T>) -> impl Future<Output = Result<T>> {
    TOKIO.guarded(future)
}

/// Runs a call of several steps to its end, even if its caller is dropped.
pub(crate) async fn to_the_end<T: Send + 'static>(call: BoxFuture<'static, Result<T>>) -> Result<T> {
    match TOKIO.current()?.spawn(call).await {
        Ok(result) => result,
        Err(error) => Err(TOKIO.ended(error)),
    }
}

#[cfg(test)]
mod tests {
    use checkpoint_core::ErrorKind;
    use futures_util::future::FutureExt;
    use tokio::runtime::Builder;

    use crate::builder::RedisSaverBuilder;
    use crate::connection::Connections;

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
}
