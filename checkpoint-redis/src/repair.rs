//! Mends a thread of whose two keys the server has lost one.

use checkpoint_core::Result;
use redis::{Pipeline, Value};

use crate::connection::Access;
use crate::keys::{self, ThreadKeys, kind};
use crate::reply::{self, Items};
use crate::shared::Shared;

/// How many fields or members are looked at in one trip.
const PAGE: usize = 1000;

/// Rebuilds the index from the names of the fields, and removes members from it whose fields are lost.
pub(crate) async fn repair(shared: &Shared, thread_id: &str) -> Result<()> {
    tracing::warn!(
        thread_id,
        "the server has lost a part of a thread, probably by eviction; its maxmemory-policy must be noeviction"
    );
    shared.codec.forget(thread_id);
    let keys = shared.keys.thread(thread_id);
    add_members(shared, &keys).await?;
    remove_members(shared, &keys).await
}

async fn add_members(shared: &Shared, keys: &ThreadKeys) -> Result<()> {
    let mut cursor = b"0".to_vec();
    loop {
        let mut scan = redis::cmd("HSCAN");
        scan.arg(&keys.hash).arg(&cursor).arg("COUNT").arg(PAGE);
        let mut reply = Items::new(shared.read(&scan).await?)?;
        cursor = reply::bytes(reply.next())?.to_vec();
        let mut members = Vec::new();
        for field in reply::list(reply.next())?.into_iter().step_by(2) {
            match field.split_first() {
                Some((&kind::METADATA, suffix)) => {
                    let (ns, id) = keys::read_checkpoint(suffix)?;
                    members.push(keys::name(kind::CHECKPOINT, &[suffix]));
                    members.push(keys::all(&ns, &id));
                }
                Some((&kind::WRITE, _)) => members.push(field.to_vec()),
                _ => {}
            }
        }
        if !members.is_empty() {
            let mut commands = Pipeline::new();
            commands.atomic();
            let add = commands.cmd("ZADD").arg(&keys.index);
            for member in &members {
                add.arg(0).arg(member);
            }
            // The index expires with the data.
            commands.cmd("PTTL").arg(&keys.hash);
            let replies = shared.connections.transaction(&keys.hash, &commands).await?;
            let left = replies.last().map_or(Ok(-1), reply::integer)?;
            if left > 0 {
                let mut expire = redis::cmd("PEXPIRE");
                expire.arg(&keys.index).arg(left);
                shared.connections.command(Access::Write, &expire).await?;
            }
        }
        if cursor == b"0" {
            return Ok(());
        }
    }
}

async fn remove_members(shared: &Shared, keys: &ThreadKeys) -> Result<()> {
    let mut from = b"-".to_vec();
    loop {
        let mut range = redis::cmd("ZRANGEBYLEX");
        range.arg(&keys.index).arg(&from).arg("+").arg("LIMIT").arg(0).arg(PAGE);
        let members = reply::list(shared.read(&range).await?)?;
        let Some(last) = members.last() else { return Ok(()) };
        from = [b"(", &**last].concat();
        let mut exist = Pipeline::new();
        for member in &members {
            let field = match member.split_first() {
                Some((&kind::ALL, _)) => {
                    let (ns, id) = keys::read_all(member)?;
                    keys::name(kind::METADATA, &[&keys::checkpoint(&ns, &id)])
                }
                Some((&kind::CHECKPOINT, suffix)) => keys::name(kind::METADATA, &[suffix]),
                _ => member.to_vec(),
            };
            exist.cmd("HEXISTS").arg(&keys.hash).arg(field);
        }
        let replies = shared.connections.pipeline(Access::Read, &keys.hash, &exist).await?;
        let is_lost = |reply: &Value| reply::integer(reply).map(|found| found == 0);
        let mut remove = redis::cmd("ZREM");
        remove.arg(&keys.index);
        let mut count = 0;
        for (member, reply) in members.iter().zip(&replies) {
            if is_lost(reply)? {
                remove.arg(&**member);
                count += 1;
            }
        }
        if count > 0 {
            shared.connections.command(Access::Write, &remove).await?;
        }
    }
}
