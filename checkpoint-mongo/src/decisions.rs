//! Races that a document decides: the insert of its `_id` succeeds for one call only.
//!
//! The document goes right before what it decides about, in the same ordered insert. If a server dies between the two, the
//! decision is there and nothing else: whoever meets such a one waits for a moment, deletes it, and tries again.

use std::time::Duration;

use checkpoint_core::Result;
use mongodb::bson::{DateTime, doc};

use crate::client::Find;
use crate::keys::{Range, ThreadKeys};
use crate::load;
use crate::read;
use crate::shared::Shared;

/// How old a decision is that will not be used any more.
const GRACE: Duration = Duration::from_secs(5);

/// What a decision is about.
#[derive(Debug, Clone)]
pub(crate) enum Race {
    /// The checkpoint that it names.
    Checkpoint,
    /// Some writes in a range.
    Results(Range),
}

/// Waits until what other calls have decided is stored, or will not be. Decisions of one's own whose call lost are removed.
pub(crate) async fn settle(
    shared: &Shared,
    thread_id: &str,
    ids: &[&str],
    own: &str,
    race: Race,
) -> Result<()> {
    let keys = ThreadKeys::new(thread_id);
    loop {
        let mut is_open = false;
        for id in ids {
            let Some(decision) = shared.mongo.get(thread_id, id, None).await? else { continue };
            let by = load::text(&decision, "c")?;
            let is_own = *by == *own;
            if !is_own {
                let is_used = match &race {
                    Race::Checkpoint => {
                        let checkpoint = keys.checkpoint(&load::text(&decision, "n")?, &by);
                        let projection = Some(doc! { "_id": 1 });
                        shared.mongo.get(thread_id, &checkpoint, projection).await?.is_some()
                    }
                    Race::Results(range) => {
                        let filter = shared.mongo.in_range(thread_id, range);
                        let find = Find { filter, limit: 1, ..Find::default() };
                        !shared.mongo.find(find).await?.is_empty()
                    }
                };
                if is_used {
                    continue;
                }
            }
            let age = DateTime::now().timestamp_millis()
                - decision.get_datetime("ct").map_or(0, |at| at.timestamp_millis());
            if is_own || u128::from(age.unsigned_abs()) > GRACE.as_millis() {
                let mut exactly = shared.mongo.by_id(thread_id, id);
                exactly.insert("c", &*by);
                shared.mongo.delete(vec![exactly]).await?;
            } else {
                is_open = true;
            }
        }
        if !is_open {
            return Ok(());
        }
        read::pause().await;
    }
}
