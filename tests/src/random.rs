//! Runs random lists of operations, and shrinks a failing one.

use std::fmt::Debug;

use checkpoint_core::id;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::case::Failure;
use crate::fixture::Done;

/// The variable that repeats a run, with the seed that a failure prints.
const SEED: &str = "CHECKPOINT_TEST_SEED";

/// The maximum number of attempts to shrink a failing list.
const SHRINKS: usize = 300;

/// Runs lists of operations until one fails, and shrinks it.
pub(crate) async fn search<L, S, R>(runs: usize, operations: fn() -> S, run: R) -> Done
where
    L: Debug + Clone + 'static,
    S: Strategy<Value = L> + 'static,
    R: AsyncFn(L) -> Done + Send + 'static,
{
    // proptest's values are not `Send`.
    let runtime = tokio::runtime::Handle::current();
    let search = move || search_here(runs, operations, |list| runtime.block_on(run(list)));
    tokio::task::spawn_blocking(search).await?
}

fn search_here<L, S>(runs: usize, operations: fn() -> S, run: impl Fn(L) -> Done) -> Done
where
    L: Debug + Clone,
    S: Strategy<Value = L>,
{
    let seeds = match std::env::var(SEED) {
        Ok(text) => vec![parse_seed(&text)?],
        Err(_) => (0..runs).map(|_| new_seed()).collect(),
    };
    for seed in seeds {
        let config = Config { failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
        let mut tree = operations().new_tree(&mut runner).map_err(Failure::new)?;
        let Err(mut failure) = run(tree.current()) else { continue };
        let mut smallest = tree.current();
        let mut shrinks = 0;
        while shrinks < SHRINKS && tree.simplify() {
            shrinks += 1;
            loop {
                if let Err(smaller) = run(tree.current()) {
                    (failure, smallest) = (smaller, tree.current());
                    break;
                }
                shrinks += 1;
                if shrinks >= SHRINKS || !tree.complicate() {
                    break;
                }
            }
        }
        let hex = seed.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat();
        return Err(Failure::new(format!("{failure}\nafter {smallest:#?}\nrepeat with {SEED}={hex}")));
    }
    Ok(())
}

/// 32 random bytes: those of two new ids.
fn new_seed() -> [u8; 32] {
    let text: String = (0..2).map(|_| id::uuid6(0).replace('-', "")).collect();
    let mut seed = [0; 32];
    for (byte, at) in seed.iter_mut().zip((0..text.len()).step_by(2)) {
        *byte = text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok()).unwrap_or_default();
    }
    seed
}

fn parse_seed(text: &str) -> Result<[u8; 32], Failure> {
    let byte = |at: usize| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(byte).collect();
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| Failure::new(format!("{SEED} must be 64 hexadecimal digits")))
}
