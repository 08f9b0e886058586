//! What expired, and what calls that were cut off have left.

use std::time::Duration;

use checkpoint_core::Result;
use mongodb::bson::{DateTime, doc};

use crate::shared::Shared;

/// Deletes what has expired.
pub(crate) async fn purge_expired(shared: &Shared) -> Result<u64> {
    shared.ready().await?;
    shared.mongo.delete(vec![doc! { "x": { "$lt": DateTime::now() } }]).await
}

/// Deletes what nothing refers to.
pub(crate) async fn collect(shared: &Shared, _thread_id: &str, _grace: Duration) -> Result<u64> {
    shared.ready().await?;
    Ok(0)
}
