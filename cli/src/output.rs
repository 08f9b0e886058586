//! Output without control characters, coloured only on a terminal.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use checkpoint_core::id;
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const ID: Style = AnsiColor::Yellow.on_default();
pub(crate) const NAME: Style = AnsiColor::Cyan.on_default();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default();

/// Text in a style.
pub(crate) fn styled(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Standard output: buffered, without colours if it is no terminal or `NO_COLOR` is set.
pub(crate) fn stdout() -> impl Write {
    io::BufWriter::new(anstream::stdout().lock())
}

/// Prints one JSON object on a line of its own.
pub(crate) fn json_line(out: &mut impl Write, value: &impl Serialize) -> crate::failure::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")?;
    Ok(())
}

/// Escapes control characters and bidirectional formatting characters, so that text cannot inject terminal escape
/// sequences.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    let is_unsafe = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    text.chars()
        .flat_map(|c| {
            let escaped = is_unsafe(c).then(|| c.escape_default());
            escaped.into_iter().flatten().chain((!is_unsafe(c)).then_some(c))
        })
        .collect::<String>()
        .into()
}

/// The id of a thread for display; an empty one is quoted.
pub(crate) fn thread(thread_id: &str) -> Cow<'_, str> {
    if thread_id.is_empty() { Cow::Borrowed("''") } else { clean(thread_id) }
}

/// The terminal's width in columns, if standard output is one.
pub(crate) fn width() -> Option<usize> {
    io::stdout().is_terminal().then(|| Table::new().width().map(usize::from)).flatten()
}

/// Truncates a styled line to a number of columns.
pub(crate) fn fit(line: &str, width: usize) -> String {
    let mut out = String::with_capacity(line.len());
    let (mut left, mut in_style) = (width, false);
    let visible = clean_of_styles(line).chars().count();
    for c in line.chars() {
        if c == '\u{1b}' || in_style {
            // Styles after the truncation are kept: the last one resets them all.
            in_style = c != 'm';
            out.push(c);
        } else if left > 1 || (left == 1 && visible <= width) {
            left -= 1;
            out.push(c);
        } else if left == 1 {
            left = 0;
            out.push('…');
        }
    }
    out
}

fn clean_of_styles(line: &str) -> String {
    anstream::adapter::strip_str(line).to_string()
}

/// The name of a namespace for display.
pub(crate) fn namespace(checkpoint_ns: &str) -> Cow<'_, str> {
    if checkpoint_ns.is_empty() { Cow::Borrowed("(root)") } else { clean(checkpoint_ns) }
}

/// When a checkpoint was created: its `ts`, or else the time in its id, to the millisecond.
pub(crate) fn time(ts: &str, checkpoint_id: &str) -> String {
    let text = if ts.is_empty() {
        id::unix_micros(checkpoint_id).map(id::isoformat).unwrap_or_default()
    } else {
        ts.to_owned()
    };
    let (date, clock) = text.split_once('T').unwrap_or((&text, ""));
    let seconds: String = clock.chars().take(12).take_while(|c| matches!(c, '0'..='9' | ':' | '.')).collect();
    clean(&format!("{date} {seconds}")).into_owned()
}

/// A table whose columns but the first are numbers.
pub(crate) fn numbers<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    rows.for_each(|row| {
        table.add_row(row);
    });
    for column in 1..N {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A progress bar on standard error; hidden if that is no terminal.
pub(crate) fn progress(total: Option<u64>, what: &'static str) -> ProgressBar {
    let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    let template = if total.is_some() { "{msg} {bar:30} {pos}/{len}" } else { "{spinner} {msg} {pos}" };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// Asks for consent on a terminal; without one the answer is no.
pub(crate) fn confirm(question: &str) -> io::Result<bool> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(false);
    }
    anstream::eprint!("{question} [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(clean("plain ü 漢"), "plain ü 漢");
        assert_eq!(clean("a\u{1b}[31mb\u{202e}\n\u{9b}"), "a\\u{1b}[31mb\\u{202e}\\n\\u{9b}");
    }

    #[test]
    fn lines_are_truncated_to_the_width() {
        let line = format!("│ {} {}", styled(ID, "abc"), styled(NAME, "äöü"));
        assert_eq!(clean_of_styles(&fit(&line, 9)), "│ abc äöü");
        assert_eq!(clean_of_styles(&fit(&line, 8)), "│ abc ä…");
        assert_eq!(clean_of_styles(&fit(&line, 1)), "…");
        assert!(fit(&line, 3).ends_with("\u{1b}[0m"), "styles are reset");
    }

    #[test]
    fn times_have_milliseconds() {
        assert_eq!(time("2026-11-20T16:03:53.991384+00:00", ""), "2026-11-20 16:03:53.991");
        assert_eq!(time("2026-11-20T16:03:53+00:00", ""), "2026-11-20 16:03:53");
        assert_eq!(time("", "1f1e4fbf-bea1-6f34-bfff-a8ab9f516d8b"), "2026-11-20 16:03:53.954");
        assert_eq!(time("garbage\u{7}", ""), "garbage\\u{7} ");
    }
}
