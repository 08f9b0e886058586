//! Leases of threads, in a field of the thread: `token holder deadline`. The server's clock decides.

use std::time::Duration;

use bytes::Bytes;
use checkpoint_core::{Error, Lease, Result};
use redis::{Pipeline, Value};

use crate::connection::Access;
use crate::keys::kind;
use crate::reply::{self, Items};
use crate::script;
use crate::shared::{Shared, text};

/// The arguments of a script that renews a lease, or nothing.
pub(crate) fn arguments(lease: Option<&Lease>) -> [Bytes; 3] {
    lease.map_or_else(Default::default, |lease| {
        [text(lease.token()), text(lease.holder()), text(lease.ttl_micros())]
    })
}

/// The server's time in microseconds, from its reply to `TIME`.
pub(crate) fn micros(reply: Value) -> Result<i64> {
    let mut parts = Items::new(reply)?;
    let (seconds, micros) = (reply::integer(&parts.next())?, reply::integer(&parts.next())?);
    Ok(seconds.saturating_mul(1_000_000).saturating_add(micros))
}

/// A stored lease.
struct Held<'a> {
    token: i64,
    /// Nobody, once it was released.
    holder: &'a str,
    deadline: i64,
}

impl<'a> Held<'a> {
    fn read(stored: &'a [u8]) -> Result<Self> {
        let mut parts = std::str::from_utf8(stored).unwrap_or_default().split(' ');
        let mut held = || {
            let token = parts.next()?.parse().ok()?;
            Some(Self { token, holder: parts.next()?, deadline: parts.next()?.parse().ok()? })
        };
        held().ok_or_else(|| Error::codec("the lease of the thread is damaged"))
    }

    fn is(&self, lease: &Lease) -> bool {
        self.token == lease.token() && self.holder == lease.holder()
    }
}

fn stored(lease: &Lease, now: i64) -> String {
    format!("{} {} {}", lease.token(), lease.holder(), now.saturating_add(lease.ttl_micros()))
}

/// What to store to renew a lease, or `None` if it was lost.
pub(crate) fn renewed(lease: &Lease, held: Option<&[u8]>, now: i64) -> Option<String> {
    let held = Held::read(held?).ok()?;
    held.is(lease).then(|| stored(lease, now))
}

/// Acquires a lease. A retry after a lost reply succeeds, because the holder is the same.
pub(crate) async fn acquire(shared: &Shared, thread_id: &str, ttl: Duration) -> Result<Lease> {
    let request = Lease::request(thread_id, ttl)?;
    shared.ready().await?;
    let keys = shared.keys.thread(thread_id);
    if shared.scripts {
        let (micros, millis) = (text(request.ttl_micros()), text(shared.ttl_millis()));
        let args: [&[u8]; 3] = [request.holder().as_bytes(), &micros, &millis];
        let reply = shared.connections.script(Access::Write, &script::ACQUIRE, &keys.both(), &args).await?;
        let mut reply = Items::new(reply)?;
        let (token, left) = (reply::bytes(reply.next())?, reply::integer(&reply.next())?);
        if token.is_empty() {
            return Err(request.held(left));
        }
        return Ok(request.granted(reply::integer(&Value::BulkString(token.into()))?));
    }
    let mut read = Pipeline::new();
    read.cmd("TIME");
    read.cmd("HGET").arg(&keys.hash).arg(kind::LEASE);
    let decide = |replies: Vec<Value>| {
        let mut replies = Items::of(replies);
        let now = micros(replies.next())?;
        let held = reply::optional(replies.next())?;
        let held = held.as_deref().map(Held::read).transpose()?;
        let is_own = held.as_ref().is_some_and(|held| held.holder == request.holder());
        if let Some(held) =
            held.as_ref().filter(|held| !is_own && !held.holder.is_empty() && held.deadline > now)
        {
            return Err(request.held(held.deadline.saturating_sub(now)));
        }
        let token = match &held {
            Some(held) if is_own => held.token,
            held => Lease::next_token(held.as_ref().map(|held| held.token), now),
        };
        let lease = request.clone().granted(token);
        let mut commands = Pipeline::new();
        commands.cmd("HSET").arg(&keys.hash).arg(kind::LEASE).arg(stored(&lease, now));
        keys.expire(&mut commands, shared.ttl_millis());
        Ok((Some(commands), lease))
    };
    let (_, lease) = shared.connections.optimistic(&keys.both(), &read, decide).await?;
    Ok(lease)
}

/// Renews a lease.
pub(crate) async fn renew(shared: &Shared, lease: &Lease) -> Result<()> {
    shared.ready().await?;
    let keys = shared.keys.thread(lease.thread_id());
    let is_held = if shared.scripts {
        let [token, holder, ttl] = arguments(Some(lease));
        let args: [&[u8]; 3] = [&token, &holder, &ttl];
        reply::integer(&shared.connections.script(Access::Write, &script::RENEW, &keys.both(), &args).await?)?
            == 1
    } else {
        change(shared, lease, |held, now| renewed(lease, held, now)).await?
    };
    if is_held { Ok(()) } else { Err(lease.lost()) }
}

/// Gives a lease back. Its token stays, so that the next one is higher.
pub(crate) async fn release(shared: &Shared, lease: &Lease) -> Result<()> {
    shared.ready().await?;
    if shared.scripts {
        let keys = shared.keys.thread(lease.thread_id());
        let [token, holder, _] = arguments(Some(lease));
        let args: [&[u8]; 2] = [&token, &holder];
        shared.connections.script(Access::Write, &script::RELEASE, &keys.both(), &args).await?;
        return Ok(());
    }
    let released =
        |held: Option<&[u8]>, now| renewed(lease, held, now).map(|_| format!("{}  0", lease.token()));
    change(shared, lease, released).await.map(|_| ())
}

/// Stores what a function makes of the stored lease, if it makes something, and returns whether it did.
async fn change(
    shared: &Shared,
    lease: &Lease,
    make: impl Fn(Option<&[u8]>, i64) -> Option<String> + Sync,
) -> Result<bool> {
    let keys = shared.keys.thread(lease.thread_id());
    let mut read = Pipeline::new();
    read.cmd("TIME");
    read.cmd("HGET").arg(&keys.hash).arg(kind::LEASE);
    let decide = |replies: Vec<Value>| {
        let mut replies = Items::of(replies);
        let now = micros(replies.next())?;
        let held = reply::optional(replies.next())?;
        let Some(lease) = make(held.as_deref(), now) else { return Ok((None, false)) };
        let mut commands = Pipeline::new();
        commands.cmd("HSET").arg(&keys.hash).arg(kind::LEASE).arg(lease);
        Ok((Some(commands), true))
    };
    let (_, changed) = shared.connections.optimistic(&keys.both(), &read, decide).await?;
    Ok(changed)
}

/// Deletes the lease of a thread, unless somebody holds it.
pub(crate) async fn delete_expired(shared: &Shared, thread_id: &str) -> Result<()> {
    let keys = shared.keys.thread(thread_id);
    let mut read = Pipeline::new();
    read.cmd("TIME");
    read.cmd("HGET").arg(&keys.hash).arg(kind::LEASE);
    let decide = |replies: Vec<Value>| {
        let mut replies = Items::of(replies);
        let now = micros(replies.next())?;
        let held = reply::optional(replies.next())?;
        let held = held.as_deref().map(Held::read).transpose()?;
        let is_over = held.is_some_and(|held| held.holder.is_empty() || held.deadline <= now);
        let mut commands = Pipeline::new();
        commands.cmd("HDEL").arg(&keys.hash).arg(kind::LEASE);
        Ok((is_over.then_some(commands), ()))
    };
    shared.connections.optimistic(&keys.both(), &read, decide).await.map(|_| ())
}
