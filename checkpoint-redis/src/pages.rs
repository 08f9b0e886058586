//! Everything that is stored of a thread, a page at a time, for calls that process all of it.

use bytes::Bytes;
use checkpoint_core::Result;

use crate::keys::ThreadKeys;
use crate::list::AllCheckpoints;
use crate::load::{self, Loaded, Row, Segments};
use crate::reply;
use crate::shared::Shared;

/// How many checkpoints are read at a time.
const ROWS: usize = 16;

/// How many writes are read at a time.
const WRITES: usize = 256;

/// The checkpoints of a thread with their documents, values and segments, without their writes.
pub(crate) struct RowPages {
    all: AllCheckpoints,
    rest: Vec<Row>,
}

impl RowPages {
    pub(crate) fn new(thread_id: &str) -> Self {
        Self { all: AllCheckpoints::new(thread_id, None), rest: Vec::new() }
    }

    pub(crate) async fn next<'a>(&mut self, shared: &'a Shared) -> Result<Option<(Vec<Row>, Loaded<'a>)>> {
        while self.rest.is_empty() {
            let Some(rows) = self.all.next_page(shared).await? else { return Ok(None) };
            self.rest = rows;
        }
        let rest = self.rest.split_off(self.rest.len().min(ROWS));
        let mut rows = std::mem::replace(&mut self.rest, rest);
        load::details(shared, &mut rows).await?;
        for row in &mut rows {
            // `WritePages` has them, with those of checkpoints that are not stored.
            row.writes.clear();
        }
        let loaded = load::values(shared, &rows, Segments::All).await?.into_iter().next();
        Ok(loaded.map(|(_, loaded)| (rows, loaded)))
    }
}

/// The writes of a thread: fields and bytes, which are nothing if a write was just removed.
pub(crate) struct WritePages {
    keys: ThreadKeys,
    /// Where the next page begins, if there is one.
    from: Option<Vec<u8>>,
}

impl WritePages {
    pub(crate) fn new(keys: ThreadKeys) -> Self {
        Self { keys, from: Some(b"[w".to_vec()) }
    }

    pub(crate) async fn next(&mut self, shared: &Shared) -> Result<Option<Vec<(Bytes, Option<Bytes>)>>> {
        let Some(from) = self.from.take() else { return Ok(None) };
        let mut range = redis::cmd("ZRANGEBYLEX");
        range.arg(&self.keys.index).arg(from).arg("(x").arg("LIMIT").arg(0).arg(WRITES);
        let names = reply::list(shared.read(&range).await?)?;
        let Some(last) = names.last() else { return Ok(None) };
        self.from = (names.len() == WRITES).then(|| [b"(", &**last].concat());
        let mut read = redis::cmd("HMGET");
        read.arg(&self.keys.hash);
        for name in &names {
            read.arg(&**name);
        }
        let values = reply::optionals(shared.read(&read).await?)?;
        Ok(Some(names.into_iter().zip(values).collect()))
    }
}
