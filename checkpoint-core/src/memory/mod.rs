//! Backends that keep everything in this process.

mod saver;

pub use saver::InMemorySaver;
