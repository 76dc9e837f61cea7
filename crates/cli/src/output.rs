//! Output of commands: tables for people, JSON for programs.

use std::io::{IsTerminal, Write};
use std::os::fd::FromRawFd;

pub use dayfly_command::colours;
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::node_api::Stream;
use dayfly_protocol::text::{self, OutputEscaper};
use serde::Serialize;

/// Prints a line. Ends the program silently if the reader has closed its end, as `head` does.
pub fn line(text: &str) {
    bytes(format!("{text}\n").as_bytes());
}

/// Prints bytes unchanged; see [`line`] for readers that have gone.
pub fn bytes(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    if out.write_all(bytes).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// Prints the output of workers: each stream to the stream of the same name, or as one line of JSON per piece.
pub struct Printer {
    as_json: bool,
    /// Filters control characters for streams that are terminals.
    out: Option<OutputEscaper>,
    err: Option<OutputEscaper>,
}

impl Printer {
    /// With `raw`, bytes are also written unchanged to terminals.
    pub fn new(as_json: bool, raw: bool) -> Self {
        let shown = |is_terminal: bool| (is_terminal && !raw).then(OutputEscaper::default);
        Self {
            as_json,
            out: shown(std::io::stdout().is_terminal()),
            err: shown(std::io::stderr().is_terminal()),
        }
    }

    /// Prints pieces. Returns whether a reader is left.
    pub fn show(&mut self, pieces: impl IntoIterator<Item = (Stream, Vec<u8>)>) -> Result<bool, Failure> {
        match self.write(pieces) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Failure::new(
                Code::Internal,
                format!("writing the output failed: {error}"),
            )),
        }
    }

    fn write(&mut self, pieces: impl IntoIterator<Item = (Stream, Vec<u8>)>) -> std::io::Result<()> {
        let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr().lock());
        for (stream, bytes) in pieces {
            let (to, shown): (&mut dyn Write, _) = match stream {
                _ if self.as_json => {
                    let text = String::from_utf8_lossy(&bytes);
                    writeln!(out, "{}", serde_json::json!({ "stream": stream, "text": text }))?;
                    continue;
                }
                Stream::Out => (&mut out, &mut self.out),
                Stream::Err => (&mut err, &mut self.err),
            };
            match shown {
                Some(shown) => to.write_all(shown.piece(&bytes).as_bytes())?,
                None => to.write_all(&bytes)?,
            }
        }
        out.flush()
    }
}

/// Prints a line. A daemon continues if its reader has gone.
pub fn announce(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// As [`announce`], on an inherited descriptor, which is then closed.
pub fn announce_on(fd: i32, text: &str) -> Result<(), Failure> {
    let refused = |error: std::io::Error| {
        Failure::new(
            Code::InvalidRequest,
            format!("--ready-fd {fd} cannot be written to: {error}"),
        )
    };
    let path = format!("/proc/self/fd/{fd}");
    let mut out = std::fs::OpenOptions::new().write(true).open(path).map_err(refused)?;
    writeln!(out, "{text}").map_err(refused)?;
    // SAFETY: the caller passed the descriptor for this purpose only, and no other code in this process uses it.
    drop(unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) });
    Ok(())
}

/// Returns one line of JSON. Control characters for terminals are escaped, which does not change the value.
pub fn json(value: &impl Serialize) -> Result<String, Failure> {
    let json = serde_json::to_string(value).map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    if !json.contains(text::is_unsafe) {
        return Ok(json);
    }
    let escaped = |c: char| match text::is_unsafe(c) {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.into(),
    };
    Ok(json.chars().map(escaped).collect())
}

/// Alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Aligned columns with a heading.
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(columns: &[(&'static str, Align)]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. Cells may contain foreign text: each is [made safe](text::line) here.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        let cells = cells.iter().map(|cell| text::line(cell, text::MAX_CELL_BYTES));
        self.rows.push(cells.collect());
    }

    /// Returns the table as text without a final newline. The heading is bold if `bold`.
    pub fn text(&self, bold: bool) -> String {
        let heading: Vec<String> = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let width = |column: usize| {
            let cells = self.rows.iter().chain([&heading]).filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row
                .iter()
                .zip(&widths)
                .zip(&self.columns)
                .map(|((cell, width), (_, align))| match align {
                    Align::Left => format!("{cell:<width$}"),
                    Align::Right => format!("{cell:>width$}"),
                });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        let heading = match bold {
            true => format!("\x1b[1m{}\x1b[0m", line(&heading)),
            false => line(&heading),
        };
        std::iter::once(heading)
            .chain(self.rows.iter().map(line))
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// Formats bytes, such as `1.5 GiB`.
pub fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() < 0.05 || value >= 100.0 {
        format!("{value:.0} {}", units[unit])
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

/// Formats a time span with about three digits: `1h05m`, `4m10s`, `2.5s`.
pub fn span(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    match seconds {
        0..10 => format!("{:.1}s", milliseconds as f64 / 1000.0),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86400, seconds / 3600 % 24),
    }
}

/// Formats billionths exactly and without trailing zeros, such as `12.5`.
pub fn amount(billionths: u64) -> String {
    let text = format!("{}.{:09}", billionths / 1_000_000_000, billionths % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns the wall-clock time, in milliseconds since the Unix epoch.
pub fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// Returns foreign text as one line that is [safe](text::line) to show.
pub fn plain(foreign: &str) -> String {
    text::line(foreign, text::MAX_FIELD_BYTES)
}

/// Returns foreign text as lines that are [safe](text::lines) to show.
pub fn lines(foreign: &str) -> String {
    text::lines(foreign, text::MAX_LINES_BYTES)
}

fn utc(ms: u64) -> time::OffsetDateTime {
    let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    time::OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(time::OffsetDateTime::UNIX_EPOCH)
}

/// Formats a date in UTC: `2026-11-21`.
pub fn date(ms: u64) -> String {
    utc(ms).date().to_string()
}

/// Formats a time in UTC: `2026-11-21 07:16:41`.
pub fn time(ms: u64) -> String {
    let at = utc(ms);
    let (hour, minute, second) = at.to_hms();
    format!("{} {hour:02}:{minute:02}:{second:02}", at.date())
}

/// Formats a number with its noun: `1 core`, `2 cores`.
pub fn count(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// Formats cores with their noun: `1 core`, `0.5 cores`.
pub fn cores(cores: MilliCores) -> String {
    format!("{cores} core{}", if cores == MilliCores::ONE { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_cores_are_shown_as_decimals() {
        let shown = [500, 1_000, 1_250, 2_000].map(|thousandths| cores(MilliCores::new(thousandths)));
        assert_eq!(shown, ["0.5 cores", "1 core", "1.25 cores", "2 cores"]);
    }

    #[test]
    fn columns_align_without_trailing_spaces() {
        let mut table = Table::new(&[("NAME", Align::Left), ("CORES", Align::Right), ("STATE", Align::Left)]);
        table.row(["a".into(), "12".into(), "up".into()]);
        table.row(["longer".into(), "1".into(), "lost".into()]);
        let expected = "NAME    CORES  STATE\na          12  up\nlonger      1  lost";
        assert_eq!(table.text(false), expected);
    }

    #[test]
    fn foreign_cells_are_bounded_to_one_row() {
        let mut table = Table::new(&[("NAME", Align::Left), ("STATE", Align::Right)]);
        table.row(["a\nb\x1b[2J".into(), "up".into()]);
        table.row(["x".repeat(70_000), "up".into()]);
        let text = table.text(false);
        assert_eq!(text.lines().count(), 3);
        assert!(
            text.contains("\na\\nb\\u{1b}[2J ") && text.contains("xxx...xxx"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.len() <= text::MAX_CELL_BYTES + 8));
    }

    #[test]
    fn json_is_exact_without_unsafe_characters() {
        let value = "a\n\x1b\u{7f}\u{9b}\u{202e}ü";
        let shown = json(&value).expect("JSON");
        assert!(!shown.contains(text::is_unsafe), "{shown:?}");
        assert_eq!(serde_json::from_str::<String>(&shown).expect("JSON"), value);
    }

    #[test]
    fn sizes_and_spans_are_short() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(3 << 29), "1.5 GiB");
        assert_eq!(size(512 << 20), "512 MiB");
        assert_eq!(span(2_500), "2.5s");
        assert_eq!(span(250_000), "4m10s");
        assert_eq!(span(3_900_000), "1h05m");
        assert_eq!(span(90_000_000), "1d01h");
    }
}
