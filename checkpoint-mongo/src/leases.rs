//! Leases of threads: a document for each acquisition, whose number is one higher than the last one's. So the insert of its
//! `_id` decides who acquires it. The newest one counts.

use std::time::Duration;

use checkpoint_core::{Error, ErrorKind, Lease, Result, Str};
use futures_util::future::try_join;
use mongodb::bson::{DateTime, Document, doc};

use crate::client::{Find, Inserted, not_understood};
use crate::keys::ThreadKeys;
use crate::load;
use crate::shared::Shared;

/// How often an acquisition is tried that others are faster with.
const ATTEMPTS: usize = 50;

/// The newest acquisition.
struct Held {
    number: u64,
    token: i64,
    /// Nobody, once it was released.
    holder: Str,
    /// In microseconds.
    deadline: i64,
}

impl Held {
    fn read(document: &Document) -> Result<Self> {
        let id = load::text(document, "_id")?;
        let number = id.rsplit_once('!').and_then(|(_, number)| u64::from_str_radix(number, 16).ok());
        let integer = |field: &'static str| document.get_i64(field).map_err(|_| not_understood(field));
        Ok(Self {
            number: number.ok_or_else(|| not_understood("_id"))?,
            token: integer("token")?,
            holder: load::text(document, "holder")?,
            deadline: integer("until")?,
        })
    }

    fn is(&self, lease: &Lease) -> bool {
        self.token == lease.token() && *self.holder == *lease.holder()
    }
}

/// The time in microseconds by this machine's clock: the protocol has no way to ask the server in the same step.
fn now() -> i64 {
    DateTime::now().timestamp_millis().saturating_mul(1000)
}

async fn newest(shared: &Shared, thread_id: &str) -> Result<Option<Held>> {
    let filter = shared.mongo.in_range(thread_id, &ThreadKeys::new(thread_id).leases());
    let find = Find { filter, descending: true, limit: 1, ..Find::default() };
    shared.mongo.find(find).await?.pop().map(|found| Held::read(&found)).transpose()
}

/// Acquires a lease. A retry after a lost reply succeeds, because the holder is the same.
pub(crate) async fn acquire(shared: &Shared, thread_id: &str, ttl: Duration) -> Result<Lease> {
    let request = Lease::request(thread_id, ttl)?;
    shared.ready().await?;
    let keys = ThreadKeys::new(thread_id);
    for _ in 0..ATTEMPTS {
        let held = newest(shared, thread_id).await?;
        let now = now();
        let mut number = 1;
        if let Some(held) = &held {
            if *held.holder == *request.holder() {
                return Ok(request.granted(held.token));
            }
            if !held.holder.is_empty() && held.deadline > now {
                return Err(request.held(held.deadline.saturating_sub(now)));
            }
            number = held.number.saturating_add(1);
        }
        let token = Lease::next_token(held.as_ref().map(|held| held.token), now);
        let mut lease = doc! {
            "_id": keys.lease(number),
            "t": thread_id,
            "token": token,
            "holder": request.holder(),
            "until": now.saturating_add(request.ttl_micros()),
        };
        shared.stamp(&mut lease, true);
        if shared.mongo.insert(&[lease], true).await? != Inserted::All {
            continue;
        }
        // Somebody who was slow could have inserted a number that was there before, and removed.
        let is_newest = newest(shared, thread_id).await?.is_some_and(|newest| newest.number == number);
        if !is_newest {
            shared.mongo.delete(vec![shared.mongo.by_id(thread_id, &keys.lease(number))]).await?;
            continue;
        }
        if held.is_some() {
            let range = keys.leases().before(&keys.lease(number));
            shared.mongo.delete(vec![shared.mongo.in_range(thread_id, &range)]).await?;
        }
        return Ok(request.granted(token));
    }
    Err(Error::new(ErrorKind::Conflict, "other workers acquire the lease all the time; try again")
        .retryable(true))
}

/// Whether a lease is still held; if it is, renews it. Both in one trip: what was lost before it is not held.
pub(crate) async fn is_held(shared: &Shared, lease: &Lease) -> Result<bool> {
    let until = now().saturating_add(lease.ttl_micros());
    let change = shared.mongo.update(exactly(shared, lease), doc! { "$set": { "until": until } });
    let (changed, newest) = try_join(change, newest(shared, lease.thread_id())).await?;
    Ok(changed > 0 && newest.is_some_and(|newest| newest.is(lease)))
}

/// A filter for the acquisition of a lease.
fn exactly(shared: &Shared, lease: &Lease) -> Document {
    let thread_id = lease.thread_id();
    let mut filter = shared.mongo.in_range(thread_id, &ThreadKeys::new(thread_id).leases());
    filter.insert("token", lease.token());
    filter.insert("holder", lease.holder());
    filter
}

/// Renews a lease.
pub(crate) async fn renew(shared: &Shared, lease: &Lease) -> Result<()> {
    shared.ready().await?;
    if is_held(shared, lease).await? { Ok(()) } else { Err(lease.lost()) }
}

/// Gives a lease back. Its token stays, so that the next one is higher.
pub(crate) async fn release(shared: &Shared, lease: &Lease) -> Result<()> {
    shared.ready().await?;
    let change = doc! { "$set": { "holder": "", "until": 0_i64 } };
    shared.mongo.update(exactly(shared, lease), change).await.map(|_| ())
}

/// A filter for the acquisitions of a thread's lease that nobody holds.
pub(crate) fn over(shared: &Shared, thread_id: &str) -> Document {
    let mut filter = shared.mongo.in_range(thread_id, &ThreadKeys::new(thread_id).leases());
    filter.insert("until", doc! { "$lt": now() });
    filter
}
