//! Text tables with aligned columns, and units that keep three or four digits.

use std::fmt;

/// A text table: the first column is aligned to the left, figures to the right, and the last column to the left if it
/// contains words.
#[derive(Debug, Clone, Default)]
pub struct Table {
    title: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes an empty table.
    pub fn new(title: &str, head: &[&str]) -> Self {
        Table {
            title: title.into(),
            head: head.iter().map(|h| (*h).into()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. Missing cells stay empty; cells beyond the last column are ignored.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let mut cells: Vec<String> = cells.into_iter().take(self.head.len()).collect();
        cells.resize(self.head.len(), String::new());
        self.rows.push(cells);
    }

    /// Whether a column contains figures: every filled cell begins with a digit, or with a sign and a digit.
    fn is_figures(&self, column: usize) -> bool {
        let figure = |cell: &str| {
            cell.is_empty()
                || cell == "-"
                || cell
                    .trim_start_matches(['+', '-'])
                    .starts_with(|c: char| c.is_ascii_digit())
        };
        self.rows.iter().all(|row| figure(&row[column]))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wide = |cell: &String| cell.chars().count();
        let columns = self.head.len();
        let width: Vec<usize> = (0..columns)
            .map(|c| {
                self.rows
                    .iter()
                    .map(|row| wide(&row[c]))
                    .chain([wide(&self.head[c])])
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let right: Vec<bool> = (0..columns).map(|c| c > 0 && self.is_figures(c)).collect();
        if !self.title.is_empty() {
            writeln!(f, "{}", self.title)?;
        }
        let line = |f: &mut fmt::Formatter<'_>, cells: &[String]| -> fmt::Result {
            let mut text = String::from(" ");
            for (c, cell) in cells.iter().enumerate() {
                let space = width[c];
                text += &if right[c] {
                    format!(" {cell:>space$} ")
                } else {
                    format!(" {cell:<space$} ")
                };
            }
            writeln!(f, "{}", text.trim_end())
        };
        line(f, &self.head)?;
        writeln!(
            f,
            "  {}",
            "─".repeat(width.iter().sum::<usize>() + 2 * columns.saturating_sub(1))
        )?;
        self.rows.iter().try_for_each(|row| line(f, row))
    }
}

/// Formats a number with three to four digits, in the unit with at most four digits before the point.
fn scaled(value: f64, units: &[&str], step: f64) -> String {
    let mut scaled = value;
    let mut unit = 0;
    while scaled.abs() >= step * 0.9995 && unit + 1 < units.len() {
        scaled /= step;
        unit += 1;
    }
    let digits = match scaled.abs() {
        x if x >= 99.95 => 0,
        x if x >= 9.995 => 1,
        _ => 2,
    };
    // Whole numbers of the smallest unit need no decimals.
    let digits = if unit == 0 && (scaled.fract() == 0.0 || scaled.abs() >= 10.0) {
        digits.min(1)
    } else {
        digits
    };
    let space = if units[unit].is_empty() { "" } else { " " };
    format!("{scaled:.digits$}{space}{}", units[unit])
}

/// Formats a duration in nanoseconds.
pub fn duration(ns: f64) -> String {
    scaled(ns, &["ns", "µs", "ms", "s"], 1000.0)
}

/// Formats a difference of times with its sign.
pub fn difference(ns: f64) -> String {
    if ns >= 0.0 {
        format!("+{}", duration(ns))
    } else {
        duration(ns)
    }
}

/// Formats calls per second.
pub fn rate(per_s: f64) -> String {
    scaled(per_s, &["/s", "k/s", "M/s", "G/s"], 1000.0)
}

/// Formats bytes per second, in powers of ten.
pub fn bandwidth(bytes_per_s: f64) -> String {
    scaled(bytes_per_s, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"], 1000.0)
}

/// Formats a size, in powers of two if it is one.
pub fn size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 && b % (1 << 30) == 0 => format!("{} GiB", b >> 30),
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

/// Formats a ratio.
pub fn ratio(x: f64) -> String {
    if x >= 100.0 {
        format!("{x:.0}x")
    } else {
        format!("{x:.2}x")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_keep_three_digits() {
        for (ns, text) in [
            (0.0, "0.0 ns"),
            (111.4, "111 ns"),
            (99.96, "100 ns"),
            (999.6, "1.00 µs"),
            (6400.0, "6.40 µs"),
            (27_300.0, "27.3 µs"),
            (4_870_000.0, "4.87 ms"),
            (12_000_000_000.0, "12.0 s"),
            (-2500.0, "-2.50 µs"),
        ] {
            assert_eq!(duration(ns), text);
        }
        assert_eq!(difference(88.0), "+88.0 ns");
        assert_eq!(rate(25_300_000.0), "25.3 M/s");
        assert_eq!(bandwidth(21_400_000_000.0), "21.4 GB/s");
        assert_eq!(
            (size(64), size(1 << 20), size(1000)),
            ("64 B".into(), "1 MiB".into(), "1000 B".into())
        );
    }

    #[test]
    fn words_align_left_and_figures_right() {
        let mut table = Table::new("Latencies", &["what", "p50", "note"]);
        table.row(["hot, shm".into(), "126 ns".into(), "spinning".into()]);
        table.row(["warm".into(), "27.3 µs".into()]);
        let text = table.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "Latencies");
        assert_eq!(lines[1], "  what          p50  note");
        assert_eq!(lines[3], "  hot, shm   126 ns  spinning");
        assert_eq!(lines[4], "  warm      27.3 µs");
    }
}
