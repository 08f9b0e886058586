//! The conformance suite of checkpoint savers and stores: cases that run against any backend.
//!
//! A backend describes its database as a [`Target`]. `run` runs the cases as a test binary; [`run_cases`] runs them
//! inside a program, even on a database in use: every case uses its own threads with random ids, deletes them at the
//! end, and does not touch other rows. For stores these are [`StoreTarget`] and [`run_store_cases`]; each case uses its
//! own first label. `TestBinary` combines both suites, several databases and other tests in one test binary.
//!
//! Features, both on by default: `harness` has `run`, `run_all`, `run_stores` and `Missing` (libtest-mimic); `model` has the
//! cases with random operations (proptest). `ckpt conformance` is built without either, so these cases run only in test
//! binaries.
//!
//! If the backend or the target lacks a requirement of a case, the case is *ignored* with the reason; it does not pass.
//! The names of the cases in `put`, `put_writes`, `get_tuple`, `list`, `delete_thread`, `delete_for_runs`,
//! `copy_thread`, `prune` and `delta_channel_history` are those of LangGraph's own suite.
//!
//! `model::random_operations` runs random calls on the saver and on the in-memory one, `store_model::random_operations`
//! on stores. If the results differ, it prints the shortest failing list of calls that it found, and a seed;
//! `CHECKPOINT_TEST_SEED` repeats that run.
//!
#![cfg_attr(feature = "harness", doc = "```no_run")]
#![cfg_attr(not(feature = "harness"), doc = "```ignore")]
//! use std::process::ExitCode;
//! use std::sync::Arc;
//!
//! use checkpoint_conformance::{OpenOptions, Saver, Target};
//! use checkpoint_core::{InMemorySaver, Result, async_trait};
//!
//! #[derive(Debug)]
//! struct Memory(InMemorySaver);
//!
//! #[async_trait]
//! impl Target for Memory {
//!     fn name(&self) -> &str {
//!         "memory"
//!     }
//!     async fn open(&self, _options: OpenOptions) -> Result<Saver> {
//!         Ok(Arc::new(self.0.clone()))
//!     }
//! }
//!
//! fn main() -> ExitCode {
//!     checkpoint_conformance::run(Memory(InMemorySaver::new()))
//! }
//! ```

#[macro_use]
mod case;
mod cases;
mod closing;
mod fixture;
mod foreign;
#[cfg(feature = "harness")]
mod harness;
mod lacking;
#[cfg(test)]
mod lying_store;
#[cfg(feature = "model")]
mod random;
mod rounds;
mod runner;
mod store_case;
mod store_target;
mod target;
pub mod telemetry;
pub mod wire;

pub use case::{Case, Ctx, Failure, Need, Savers, Suite};
pub use cases::{saver_cases, store_cases};
#[cfg(feature = "harness")]
pub use harness::{Missing, TestBinary, run};
pub use runner::{Outcome, Report, run_cases, run_store_cases};
pub use store_case::{StoreCtx, StoreNeed, Stores};
pub use store_target::{CountedStore, Store, StoreCall, StoreFacility, StoreOptions, StoreTarget};
pub use target::{Call, CountedSaver, Facility, OpenOptions, Saver, Target};

/// The workspace's README as doctests, so that its examples compile; a test of the CLI runs its quick start.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
