//! Leases in memory.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::{Lease, Result, Str};

/// The leases of all threads.
#[derive(Debug, Default)]
pub(super) struct Leases(HashMap<Str, Held>);

#[derive(Debug)]
struct Held {
    /// Nobody, once it was released.
    holder: Option<Str>,
    token: i64,
    expires: Instant,
}

impl Leases {
    /// Grants a request, unless another holder has the lease.
    pub(super) fn acquire(&mut self, request: Lease) -> Result<Lease> {
        let now = Instant::now();
        let held = self.0.get(request.thread_id());
        if let Some(held) = held.filter(|held| held.holder.is_some() && held.expires > now) {
            let left = held.expires.duration_since(now);
            return Err(request.held(i64::try_from(left.as_micros()).unwrap_or(i64::MAX)));
        }
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX);
        let token = Lease::next_token(held.map(|held| held.token), micros);
        let held = Held { holder: Some(request.holder().into()), token, expires: after(now, request.ttl()) };
        self.0.insert(request.thread_id().into(), held);
        Ok(request.granted(token))
    }

    /// Renews a lease, and returns whether it is still held.
    pub(super) fn renew(&mut self, lease: &Lease) -> bool {
        let held = self.0.get_mut(lease.thread_id()).filter(|held| held.is(lease));
        if let Some(held) = held {
            held.expires = after(Instant::now(), lease.ttl());
            return true;
        }
        false
    }

    /// Gives a lease back. Its token stays, so that the next one is higher.
    pub(super) fn release(&mut self, lease: &Lease) {
        if let Some(held) = self.0.get_mut(lease.thread_id()).filter(|held| held.is(lease)) {
            held.holder = None;
        }
    }

    /// Deletes the lease of a thread, unless somebody holds it.
    pub(super) fn delete_expired(&mut self, thread_id: &str) {
        let is_held = |held: &Held| held.holder.is_some() && held.expires > Instant::now();
        if !self.0.get(thread_id).is_some_and(is_held) {
            self.delete(thread_id);
        }
    }

    pub(super) fn delete(&mut self, thread_id: &str) {
        self.0.remove(thread_id);
    }
}

impl Held {
    fn is(&self, lease: &Lease) -> bool {
        self.token == lease.token() && self.holder.as_deref() == Some(lease.holder())
    }
}

fn after(now: Instant, ttl: Duration) -> Instant {
    now.checked_add(ttl).unwrap_or(now)
}
