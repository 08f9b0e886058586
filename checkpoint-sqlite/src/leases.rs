//! Leases of threads, in a table of their own. The clock is this machine's: a file has none.

use std::time::{SystemTime, UNIX_EPOCH};

use checkpoint_core::{Lease, Result};
use rusqlite::Row;

use crate::connection::{Open, no_tables};
use crate::error::OrConvert;
use crate::read::query_one;
use crate::sql;

/// Grants a request, unless another holder has the lease.
pub(crate) fn acquire(open: &Open, request: &Lease) -> Result<Lease> {
    require_table(open)?;
    let read = |row: &Row<'_>| Ok((row.get(0).or_convert()?, row.get(1).or_convert()?));
    let found: Option<(i64, i64)> = query_one(open, sql::SELECT_LEASE, [request.thread_id()], read)?;
    let now = now_micros();
    if let Some((_, expires_at)) = found.filter(|(_, expires_at)| *expires_at > now) {
        return Err(request.held(expires_at.saturating_sub(now)));
    }
    let granted = request.clone().granted(Lease::next_token(found.map(|(token, _)| token), now));
    let values = (granted.thread_id(), granted.holder(), granted.token(), expiry(&granted, now));
    open.execute(sql::UPSERT_LEASE, values)?;
    Ok(granted)
}

/// Renews a lease, and returns whether it is still held.
pub(crate) fn renew(open: &Open, lease: &Lease) -> Result<bool> {
    require_table(open)?;
    let values = (lease.thread_id(), lease.holder(), lease.token(), expiry(lease, now_micros()));
    Ok(open.execute(sql::RENEW_LEASE, values)? > 0)
}

/// Gives a lease back. Its token stays, so that the next one is higher.
pub(crate) fn release(open: &Open, lease: &Lease) -> Result<()> {
    require_table(open)?;
    open.execute(sql::RELEASE_LEASE, (lease.thread_id(), lease.holder(), lease.token())).map(|_| ())
}

/// Deletes the lease of a thread, in a file that has leases.
pub(crate) fn delete(open: &Open, thread_id: &str) -> Result<()> {
    if open.has_leases()? {
        open.execute(sql::DELETE_LEASE, [thread_id])?;
    }
    Ok(())
}

/// Deletes the lease of a thread, unless somebody holds it, in a file that has leases.
pub(crate) fn delete_expired(open: &Open, thread_id: &str) -> Result<()> {
    if open.has_leases()? {
        open.execute(sql::DELETE_EXPIRED_LEASE, (thread_id, now_micros()))?;
    }
    Ok(())
}

fn require_table(open: &Open) -> Result<()> {
    if open.has_leases()? { Ok(()) } else { Err(no_tables()) }
}

fn expiry(lease: &Lease, now_micros: i64) -> i64 {
    now_micros.saturating_add(lease.ttl_micros())
}

fn now_micros() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX)
}
