//! Checkpoints: the state of an agent's thread at every step, so that a run can be resumed after a crash, replayed,
//! forked and inspected. This crate contains everything that backends share. It depends on no driver and no runtime.
//!
//! * [`prelude`] has what most programs need, for a glob import.
//! * [`BaseCheckpointSaver`] is the trait that a backend implements, [`SaverExt`] the conveniences on top of it.
//! * [`Thread`] is the typed layer for Rust programs: structs in, structs out.
//! * [`serde`] encodes values byte for byte as LangGraph's Python does, [`python`] has views of its objects.
//! * [`cipher`] encrypts what a backend stores.
//! * [`backend`] is for implementers of savers and stores.
//! * [`InMemorySaver`] keeps everything in the process; it is the reference for all other savers.
//!
//! ```
//! use checkpoint_core::{InMemorySaver, SaverExt};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct State {
//!     question: String,
//!     answer: Option<String>,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> checkpoint_core::Result<()> {
//! let thread = InMemorySaver::new().thread("thread-1");
//! let step = thread.begin(&State { question: "why?".into(), answer: None }).await?;
//! let mut state: State = step.values()?;
//! state.answer = Some("because".into());
//! thread.commit(&step, &state).await?;
//! assert_eq!(thread.latest().await?.unwrap().channel::<String>("answer")?.unwrap(), "because");
//! # Ok(())
//! # }
//! ```
//!
//! # How a value travels
//!
//! A Rust value is encoded into a [`ChannelValue`]: a scalar, or a blob under a type tag. A saver moves blobs as
//! bytes and never decodes them; with a [`Cipher`] it encrypts them before storing them. A caller decodes only the
//! channels it reads, straight into its types, or into a dynamic [`Value`]. With the option `opaque_values`, savers
//! pass the bytes of another serializer through unchanged.
//!
//! # Cargo features
//!
//! The first two are on by default. The formats of stored values are the same without them.
//!
//! * `encryption`: the algorithms behind [`Cipher`], with their dependencies. Without it there is no way to make a
//!   [`Cipher`], and reading an encrypted row fails with [`ErrorKind::Crypto`].
//! * `python-views`: the module [`python`].
//! * `zstd`: compression of [segments](backend::segments). It builds C code.
//!
//! # Non-goals
//!
//! No graph runtime: it does not run nodes, retry tasks or schedule anything. Two writers on one thread create two
//! branches, and the later one is the newest, as in LangGraph; [`Thread::commit_if_latest`] and [`Thread::lease`] prevent
//! it.

pub mod backend;
mod checkpoint;
pub mod cipher;
mod config;
pub mod delta;
mod error;
mod filter;
pub mod id;
mod lease;
mod memory;
mod metadata;
pub mod opaque;
mod options;
pub mod prelude;
#[cfg(feature = "python-views")]
pub mod python;
#[cfg(not(feature = "python-views"))]
#[expect(dead_code, unreachable_pub, reason = "`serde::json::revive` needs a part of it in every build")]
mod python;
mod rekey;
pub mod retention;
mod saver;
pub mod serde;
mod status;
pub mod store;
mod thread;
pub mod version;

pub use async_trait::async_trait;
pub use bytes::Bytes;
pub use futures_util::stream::BoxStream;

pub use checkpoint::{ChannelValue, ChannelValues, Checkpoint, CheckpointTuple, PendingWrite, special};
pub use cipher::Cipher;
pub use config::{CheckpointConfig, ListQuery, PruneStrategy, Str, ThreadInfo, ThreadQuery};
pub use delta::DeltaChannelHistory;
pub use error::{Error, ErrorKind, Result, ResultExt};
pub use filter::{Filter, FilterSemantics};
pub use lease::Lease;
pub use memory::{InMemorySaver, InMemoryStore, InMemoryStoreBuilder};
pub use metadata::CheckpointMetadata;
pub use options::{PutCondition, PutOptions, PutWritesOptions};
pub use rekey::{RekeyOptions, RekeyReport, SealedBy};
pub use retention::{RetainOptions, RetainReport, Retention};
pub use saver::{BaseCheckpointSaver, CheckpointLayout, InlineScalars, SaverCapabilities, SaverExt};
pub use serde::{Tag, TypedBytes, Value};
pub use status::{ThreadCounts, ThreadState, ThreadStatus};
pub use thread::{Commit, History, LeasedThread, StateSnapshot, Thread};
pub use version::{ChannelVersion, ChannelVersions};
