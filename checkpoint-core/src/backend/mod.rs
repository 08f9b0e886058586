//! For implementers of savers and stores: the code that all backends share.
//!
//! A backend keeps its statements or keys, its row decoding, its error table and its page cursors. The rest is here:
//!
//! * [`Calls`] runs a call: span, metrics, error context, and `close()`.
//! * [`PreparedWrites`] and [`SplitCheckpoint`] turn the arguments of `put_writes` and `put` into rows, checked and
//!   encrypted.
//! * [`PutOptions::decide`](crate::PutOptions::decide) and
//!   [`PutWritesOptions::decide`](crate::PutWritesOptions::decide) decide conditional writes by what a backend found.
//! * [`ValueCodec`] encrypts, decrypts and decodes values on their way to a row and back. [`CheckpointKey`] names the row.
//! * [`segments`] splits long values into segments that versions share.
//! * [`records`] are the encodings of a backend that stores bytes under keys.
//! * [`Rekeying`] is what `rekey` does with each value.
//! * [`pages`], [`thread_pages`] and [`thread_id_pages`] turn a function that reads one page into a stream; [`ListCursor`] is
//!   the position in a listing.
//! * [`Backoff`] decides whether and when a failed call is retried.
//! * `NeedsTokio` (feature `tokio`) makes errors of the panics of drivers that miss a part of the tokio runtime.
//! * [`HistoryWalk`](crate::delta::HistoryWalk) and [`NeededAncestors`](crate::delta::NeededAncestors) walk over the
//!   ancestors of a checkpoint.
//!
//! `CONTRIBUTING.md` shows how a backend is added.

mod associated_data;
mod calls;
mod key;
mod paging;
pub mod records;
mod rekey;
mod retention;
mod retry;
#[cfg(feature = "tokio")]
mod runtime;
pub mod segments;
mod split;
pub mod telemetry;
mod value_codec;
mod writes;

pub use crate::options::{Decision, Found, FoundWrites, STEP_KEY};
pub use crate::status::is_trigger;
pub use associated_data::AssociatedData;
pub use calls::{Calls, Operation};
pub use key::CheckpointKey;
pub use paging::{ListConditions, ListCursor, Page, pages, thread_id_pages, thread_pages};
pub use rekey::Rekeying;
pub(crate) use retention::time_of;
pub use retention::{
    KeepLast, NamespaceVerdict, StoredCheckpoint, StoredThread, StoredWrites, Verdict, distinct,
};
pub use retry::{Backoff, jitter};
#[cfg(feature = "tokio")]
pub use runtime::NeedsTokio;
pub use split::{BlobRow, Inline, SplitCheckpoint, SplitRules};
pub use value_codec::ValueCodec;
pub use writes::{PreparedWrites, WriteRow};
