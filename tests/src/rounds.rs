//! Repeats a call until the counts of its round trips and statements are stable.

use std::time::Duration;

use checkpoint_core::Result;

use crate::case::{Failure, show};
use crate::wire::{Cost, Proxy, Traffic};

/// The number of calls before counting, so that connections are open and statements prepared.
const WARM_UP: usize = 4;

/// The required number of consecutive correct counts.
const CORRECT_COUNTS: usize = 2;

/// The delay of the server's responses in milliseconds. It grows with each wrong count, since on a busy machine a client
/// may be slow to send pipelined requests. No delay hides a client that waits for a response.
const QUIET: [u64; 7] = [2, 2, 10, 50, 250, 1000, 1000];

/// The rounds of one call.
#[derive(Debug)]
pub(crate) struct Rounds<'a> {
    proxy: &'a Proxy,
    what: String,
    expected: Cost,
    made: usize,
    right: usize,
    last: Traffic,
}

impl<'a> Rounds<'a> {
    pub(crate) fn new(proxy: &'a Proxy, what: String, expected: Cost) -> Self {
        Self { proxy, what, expected, made: 0, right: 0, last: Traffic::default() }
    }

    /// Whether the call must be repeated.
    ///
    /// # Errors
    /// If the count stays wrong.
    #[track_caller]
    pub(crate) fn go_on(&self) -> std::result::Result<bool, Failure> {
        if self.right >= CORRECT_COUNTS {
            return Ok(false);
        }
        if self.made < WARM_UP + QUIET.len() {
            return Ok(true);
        }
        let (found, expected, statements) = (self.last.cost(), self.expected, &self.last.statements);
        Err(Failure::new(format!(
            "{}: found {found:?}, documented {expected:?}: {}",
            self.what,
            show(statements)
        )))
    }

    /// Makes the call and counts it.
    pub(crate) async fn call<T>(&mut self, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let quiet = self.made.checked_sub(WARM_UP).and_then(|counted| QUIET.get(counted));
        self.proxy.hold_answers(Duration::from_millis(quiet.copied().unwrap_or_default()));
        self.proxy.take();
        let result = call.await?;
        self.last = self.proxy.take();
        // The preparation of the next round needs no delay.
        self.proxy.hold_answers(Duration::ZERO);
        self.made += 1;
        let (found, expected) = (self.last.cost(), self.expected);
        let is_right = self.made > WARM_UP
            && found.round_trips == expected.round_trips
            && (expected.statements == Cost::ANY || found.statements == expected.statements);
        self.right = if is_right { self.right + 1 } else { 0 };
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Protocol, Sent};

    #[derive(Debug)]
    struct Silent;

    impl Protocol for Silent {
        fn sent(&mut self, _bytes: &[u8]) -> Sent {
            Sent::default()
        }

        fn answered(&mut self, _bytes: &[u8]) -> usize {
            0
        }
    }

    #[tokio::test]
    async fn a_wrong_count_is_not_accepted() {
        let nowhere = ([127, 0, 0, 1], 9).into();
        let proxy = Proxy::start(nowhere, || Silent).await.unwrap();
        for (expected, is_right) in
            [(Cost::new(0, 0), true), (Cost::new(0, 1), false), (Cost::new(1, 0), false)]
        {
            let mut rounds = Rounds::new(&proxy, "nothing".into(), expected);
            let mut made = 0;
            let ended = loop {
                match rounds.go_on() {
                    Ok(true) => rounds.call(async { Ok(()) }).await.unwrap(),
                    ended => break ended,
                }
                made += 1;
            };
            assert_eq!(ended.is_ok(), is_right, "{expected:?}");
            assert_eq!(made, WARM_UP + if is_right { CORRECT_COUNTS } else { QUIET.len() });
        }
    }
}
