//! Leases of threads, in a table of their own.

use std::time::Duration;

use checkpoint_core::{Lease, Result};
use common_postgres::{Param, column, params};

use crate::document::check_text;
use crate::shared::Shared;

/// The parameters of a statement that renews a lease.
pub(crate) struct LeaseParams<'a> {
    token: i64,
    holder: &'a str,
    ttl_micros: i64,
}

impl<'a> LeaseParams<'a> {
    pub(crate) fn of(lease: &'a Lease) -> Self {
        Self { token: lease.token(), holder: lease.holder(), ttl_micros: lease.ttl_micros() }
    }

    pub(crate) fn params(&self) -> [Param<'_>; 3] {
        params![INT8: self.token; TEXT: self.holder; INT8: self.ttl_micros]
    }
}

/// Acquires a lease: one statement. A retry after a lost reply succeeds, because the holder is the same.
pub(crate) async fn acquire(shared: &Shared, thread_id: &str, ttl: Duration) -> Result<Lease> {
    check_text("thread_id", thread_id)?;
    let request = Lease::request(thread_id, ttl)?;
    let (holder, ttl_micros) = (request.holder(), request.ttl_micros());
    let params = params![TEXT: thread_id, holder; INT8: ttl_micros];
    let rows = shared.database.query(&shared.sql.acquire_lease, &params).await?;
    let Some(row) = rows.first() else { return Err(request.held(0)) };
    match column::<Option<i64>>(row, 0)? {
        Some(token) => Ok(request.granted(token)),
        None => Err(request.held(column::<Option<i64>>(row, 1)?.unwrap_or_default())),
    }
}

/// Renews a lease: one statement.
pub(crate) async fn renew(shared: &Shared, lease: &Lease) -> Result<()> {
    let (thread_id, lease_params) = (lease.thread_id(), LeaseParams::of(lease));
    let mut params = params![TEXT: thread_id].to_vec();
    params.extend(lease_params.params());
    let rows = shared.database.query(&shared.sql.renew_lease, &params).await?;
    if rows.is_empty() { Err(lease.lost()) } else { Ok(()) }
}

/// Gives a lease back: one statement.
pub(crate) async fn release(shared: &Shared, lease: &Lease) -> Result<()> {
    let (thread_id, token, holder) = (lease.thread_id(), lease.token(), lease.holder());
    let params = params![TEXT: thread_id; INT8: token; TEXT: holder];
    shared.database.query(&shared.sql.release_lease, &params).await.map(|_| ())
}
