//! What most programs need, for a glob import.
//!
//! Traits that only add methods come without a name, so the import adds no name that another crate has, such as that of the
//! module [`serde`](crate::serde).
//!
//! ```
//! use checkpoint_core::prelude::*;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct State {
//!     count: u32,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> checkpoint_core::Result<()> {
//! let saver = InMemorySaver::new();
//! let thread = saver.clone().thread("thread-1");
//! let first = thread.begin(&State { count: 1 }).await?;
//! thread.commit(&first, &State { count: 2 }).await?;
//!
//! let steps: Vec<i64> = thread.history().map_ok(|snapshot| snapshot.step()).try_collect().await?;
//! assert_eq!(steps, [0, -1]);
//! let mut threads = saver.list_threads(ThreadQuery::all());
//! assert_eq!(&*threads.next().await.unwrap()?.thread_id, "thread-1");
//!
//! let store = InMemoryStore::new();
//! store.put(["users"], "ann", &State { count: 3 }).await?;
//! assert_eq!(store.get(["users"], "ann").await?.unwrap().value.decode::<State>()?.count, 3);
//! # Ok(())
//! # }
//! ```

pub use futures_util::{StreamExt as _, TryStreamExt as _};

pub use crate::store::{BaseStore, Item, ItemFilter, SearchItem, StoreExt as _};
pub use crate::{
    BaseCheckpointSaver, ChannelValue, Checkpoint, CheckpointConfig, CheckpointMetadata, CheckpointTuple,
    Cipher, ErrorKind, InMemorySaver, InMemoryStore, ListQuery, PruneStrategy, SaverExt as _, StateSnapshot,
    Thread, ThreadQuery, Value,
};
