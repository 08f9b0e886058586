//! Core of a persistence layer for agents, compatible with LangGraph's Python.
#![doc = ""]

mod checkpoint;
pub mod cipher;
mod config;
pub mod delta;
mod error;
mod filter;
pub mod id;
mod memory;
mod metadata;
pub mod python;
mod saver;
pub mod serde;
mod thread;
pub mod version;

pub use async_trait::async_trait;
pub use bytes::Bytes;
pub use futures_util::stream::BoxStream;

pub use checkpoint::{
    ChannelValue, ChannelValues, Checkpoint, CheckpointTuple, PendingWrite, index_writes, special,
};
pub use cipher::Cipher;
pub use config::{CheckpointConfig, ListQuery, PruneStrategy, Str, ThreadInfo, ThreadQuery};
pub use delta::DeltaChannelHistory;
pub use error::{Error, ErrorKind, Result, ResultExt};
pub use filter::{Filter, FilterSemantics};
pub use memory::InMemorySaver;
pub use metadata::CheckpointMetadata;
pub use saver::{BaseCheckpointSaver, SaverCapabilities, SaverExt};
pub use serde::{Tag, TypedBytes, Value};
pub use thread::{Snapshot, Thread};
pub use version::{ChannelVersion, ChannelVersions};
