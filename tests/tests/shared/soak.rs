//! How long and with which random numbers fault tests run.

#![allow(dead_code, reason = "each binary uses its part of this")]

/// The number of rounds of a long test: the usual number, or more for `cargo xtask soak`.
pub(crate) fn rounds(usual: u64) -> u64 {
    let times = std::env::var("CHECKPOINT_TEST_SOAK").ok().map_or(1, |times| times.parse().unwrap());
    usual * times
}

/// Deterministic pseudorandom numbers.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }
}
