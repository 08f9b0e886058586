//! The version of the format, which is all there is to set up.

use checkpoint_core::{Error, ErrorKind, Result};
use redis::{Pipeline, Value};

use crate::connection::Access;
use crate::reply;
use crate::shared::Shared;

/// The version of the format that this program writes.
const FORMAT: i64 = 1;

/// The field that holds it.
const VERSION: &str = "v";

/// Stores the version of the format, if there is none, and warns of a server that may drop keys.
pub(crate) async fn set_up(shared: &Shared) -> Result<()> {
    let mut commands = Pipeline::new();
    commands.cmd("HSETNX").arg(shared.keys.format()).arg(VERSION).arg(FORMAT);
    commands.cmd("HGET").arg(shared.keys.format()).arg(VERSION);
    let mut replies = shared.connections.pipeline(Access::Write, &shared.keys.format(), &commands).await?;
    compare(replies.pop().unwrap_or(Value::Nil))?;
    shared.set_checked();
    if let Some(policy) = shared.connections.eviction_policy().await.filter(|policy| policy != "noeviction") {
        tracing::warn!(
            maxmemory_policy = policy,
            "the server may drop keys when its memory is full, and threads with them; set its maxmemory-policy to noeviction"
        );
    }
    Ok(())
}

/// Checks the version of the format.
pub(crate) async fn check(shared: &Shared) -> Result<()> {
    let mut read = redis::cmd("HGET");
    read.arg(shared.keys.format()).arg(VERSION);
    compare(shared.read(&read).await?)
}

fn compare(stored: Value) -> Result<()> {
    match reply::optional(stored)? {
        None => {
            Err(Error::new(ErrorKind::Schema, "the server has no checkpoints under this prefix; run setup()"))
        }
        Some(found) => match reply::integer(&Value::BulkString(found.to_vec()))? {
            FORMAT => Ok(()),
            newer => Err(Error::new(
                ErrorKind::Schema,
                "the checkpoints under this prefix have another format; use a program of its version",
            )
            .with("format", newer)
            .with("known_format", FORMAT)),
        },
    }
}
