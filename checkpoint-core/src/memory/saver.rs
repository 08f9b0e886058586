//! The in-memory saver: the model that every other backend is compared with.

/// Keeps checkpoints in this process.
#[derive(Debug, Clone, Default)]
pub struct InMemorySaver;
