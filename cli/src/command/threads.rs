//! `ckpt threads`.

use std::io::Write;

use checkpoint_core::{ThreadInfo, ThreadQuery, id};
use comfy_table::{Table, presets};
use futures_util::TryStreamExt;
use serde_json::json;

use crate::failure::Result;
use crate::open::Saver;
use crate::output::{self, DIM, clean, json_line, stdout, styled, time};

/// The rows of one table; the width of columns is computed per table.
const TABLE_ROWS: usize = 200;

pub(crate) async fn run(
    saver: &Saver,
    after: Option<String>,
    limit: Option<usize>,
    json: bool,
) -> Result<()> {
    let mut query = ThreadQuery::all();
    query.after = after.map(Into::into);
    query.limit = limit;
    let mut threads = saver.list_threads(query);
    let mut out = stdout();
    let mut rows = Vec::new();
    let mut count = 0;
    while let Some(info) = threads.try_next().await? {
        count += 1;
        if json {
            let ts = id::unix_micros(&info.latest_checkpoint_id).map(id::isoformat);
            let line = json!({
                "thread_id": &*info.thread_id,
                "latest_checkpoint_id": &*info.latest_checkpoint_id,
                "ts": ts,
            });
            json_line(&mut out, &line)?;
            continue;
        }
        rows.push(info);
        if rows.len() == TABLE_ROWS {
            writeln!(out, "{}", table(&std::mem::take(&mut rows)))?;
        }
    }
    if !json {
        if !rows.is_empty() {
            writeln!(out, "{}", table(&rows))?;
        }
        let plural = if count == 1 { "thread" } else { "threads" };
        writeln!(out, "{}", styled(DIM, format!("{count} {plural}")))?;
    }
    Ok(out.flush()?)
}

fn table(rows: &[ThreadInfo]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["THREAD", "UPDATED (UTC)", "NEWEST CHECKPOINT"]);
    for info in rows {
        let updated = time("", &info.latest_checkpoint_id);
        table.add_row([
            output::thread(&info.thread_id).into_owned(),
            updated,
            clean(&info.latest_checkpoint_id).into_owned(),
        ]);
    }
    table
}
