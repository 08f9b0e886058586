//! The workload that the benchmarks run, with the same data as the driver in Python.
//!
//! Everything comes from [`SplitMix64`]; nothing is random but thread ids, checkpoint ids and times.

mod chat;
mod data;
mod items;
mod recorder;
mod vectors;

pub use chat::{ChatThread, State, Step, TASK_PATH, WINDOW, thread_id};
pub use data::{
    BIG_BYTES, ItemValue, MESSAGE_BYTES, Message, ResponseMetadata, Settings, SplitMix64, TOOLS,
    UsageMetadata, VOCABULARY, big_blob, item_value, message, messages, text,
};
pub use items::{Items, StoreItem, StoreSearch};
pub use recorder::{Latencies, Mark, Phase, Recorder};
pub use vectors::Clusters;
