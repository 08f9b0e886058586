//! `ckpt threads`.

use std::io::Write;

use checkpoint_core::{ThreadInfo, ThreadQuery, id};
use comfy_table::{Table, presets};
use futures_util::TryStreamExt;
use serde_json::json;

use crate::arguments::Threads;
use crate::failure::Result;
use crate::open::Saver;
use crate::output::{self, DIM, clean, json_line, stdout, styled, time};

/// The rows of one table; the width of columns is computed per table.
const TABLE_ROWS: usize = 200;

pub(crate) async fn run(saver: &Saver, asked: Threads, json: bool) -> Result<()> {
    let mut query = ThreadQuery::all();
    query.after = asked.after.map(Into::into);
    query.prefix = asked.prefix.map(Into::into);
    query.status = asked.status.map(Into::into);
    query.with_state = asked.with_status;
    query.limit = asked.limit;
    let with_status = asked.with_status || asked.status.is_some();
    let mut threads = saver.list_threads(query);
    let mut out = stdout();
    let mut rows = Vec::new();
    let mut count = 0;
    while let Some(info) = threads.try_next().await? {
        count += 1;
        if json {
            let ts = id::unix_micros(&info.latest_checkpoint_id).map(id::isoformat);
            let mut line = json!({
                "thread_id": &*info.thread_id,
                "latest_checkpoint_id": &*info.latest_checkpoint_id,
                "ts": ts,
            });
            if let Some(state) = &info.state {
                line["status"] = state.status.as_str().into();
            }
            json_line(&mut out, &line)?;
            continue;
        }
        rows.push(info);
        if rows.len() == TABLE_ROWS {
            writeln!(out, "{}", table(&std::mem::take(&mut rows), with_status))?;
        }
    }
    if !json {
        if !rows.is_empty() {
            writeln!(out, "{}", table(&rows, with_status))?;
        }
        let plural = if count == 1 { "thread" } else { "threads" };
        writeln!(out, "{}", styled(DIM, format!("{count} {plural}")))?;
    }
    Ok(out.flush()?)
}

fn table(rows: &[ThreadInfo], with_status: bool) -> Table {
    let mut table = Table::new();
    let mut header = vec!["THREAD", "UPDATED (UTC)", "NEWEST CHECKPOINT"];
    header.extend(with_status.then_some("STATUS"));
    table.load_style(presets::NOTHING).set_header(header);
    for info in rows {
        let updated = time("", &info.latest_checkpoint_id);
        let mut row = vec![
            output::thread(&info.thread_id).into_owned(),
            updated,
            clean(&info.latest_checkpoint_id).into_owned(),
        ];
        row.extend(info.state.as_ref().map(|state| state.status.as_str().to_owned()));
        table.add_row(row);
    }
    table
}
