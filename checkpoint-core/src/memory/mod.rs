//! Backends that keep everything in this process.

mod items;
mod leases;
mod retention;
mod saver;
mod store;

pub use saver::InMemorySaver;
pub use store::{InMemoryStore, InMemoryStoreBuilder};

const BACKEND: &str = "memory";
