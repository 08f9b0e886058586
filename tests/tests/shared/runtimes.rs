//! Calls outside of a tokio runtime, and in runtimes that lack a driver.

use std::panic;
use std::sync::Once;

use checkpoint_core::{Error, ErrorKind};
use futures_util::FutureExt;
use tokio::runtime::Builder;

/// Silences the panics by which tokio tells that a driver is missing, and which are expected here.
fn silence() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let payload = info.payload();
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
            if !text.is_some_and(|text| text.starts_with("A Tokio 1.x context was found, but")) {
                others(info);
            }
        }));
    });
}

/// Makes a call in every place where the driver cannot work, and expects errors that say what to do.
pub(crate) fn expect_errors<F>(name: &str, call: impl Fn() -> F + Sync)
where
    F: Future<Output = Option<Error>>,
{
    silence();
    let check = |expected: &str, error: Option<Error>| {
        let error = error.unwrap_or_else(|| panic!("{name}: no error"));
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{name}: {error:?}");
        assert!(error.message().contains(expected) && error.operation().is_some(), "{name}: {error:?}");
    };
    // Threads of its own: this one is inside of a runtime.
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            check("#[tokio::main]", call().now_or_never().unwrap_or_else(|| panic!("{name} waits")));
            for (io, time) in [(false, false), (true, false), (false, true)] {
                let mut builder = Builder::new_current_thread();
                if io {
                    builder.enable_io();
                }
                if time {
                    builder.enable_time();
                }
                check("enable_all()", builder.build().unwrap().block_on(call()));
            }
        });
        thread.join().unwrap();
    });
}
