//! Repeats a call until its round trips and statements are known.

use std::time::Duration;

use checkpoint_core::Result;

use crate::case::{Failure, show};
use crate::wire::{Cost, Proxy, Traffic};

/// How often a call is made before it is counted, so that its connections are open and its statements prepared.
const WARM_UP: usize = 4;

/// How many counts in a row have to be right.
const RIGHT: usize = 2;

/// How long the server's answers are held back, in milliseconds: longer each time the count was wrong, since a client on
/// a busy machine may take long to send what it sends at once. No delay hides a client that waits for an answer.
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

    /// Whether the call has to be made once more.
    ///
    /// # Errors
    /// When the count stays wrong.
    #[track_caller]
    pub(crate) fn go_on(&self) -> std::result::Result<bool, Failure> {
        if self.right >= RIGHT {
            return Ok(false);
        }
        if self.made < WARM_UP + QUIET.len() {
            return Ok(true);
        }
        let (found, expected, statements) = (self.last.cost(), self.expected, &self.last.statements);
        Err(Failure::new(format!(
            "{}: {found:?}, documented is {expected:?}: {}",
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
        // What prepares the next round is not to be slow.
        self.proxy.hold_answers(Duration::ZERO);
        self.made += 1;
        let is_right = self.made > WARM_UP && self.last.cost() == self.expected;
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
            assert_eq!(made, WARM_UP + if is_right { RIGHT } else { QUIET.len() });
        }
    }
}
