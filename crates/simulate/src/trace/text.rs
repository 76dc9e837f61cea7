//! Lines and fields of a file of comma-separated values. No format of a trace uses quotes.

use super::{MAX_LINE_BYTES, NamedText, Problem, TraceError, error::shown};

/// The header of a file and the lines behind it.
pub(super) struct Table<'a> {
    file: &'a str,
    header: Vec<&'a str>,
    rest: &'a [u8],
    line: u64,
}

impl<'a> Table<'a> {
    /// Reads the header.
    pub(super) fn new(file: NamedText<'a>) -> Result<Self, TraceError> {
        let mut table = Self {
            file: file.name,
            header: Vec::new(),
            // Some programs write a byte order mark.
            rest: file.bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(file.bytes),
            line: 0,
        };
        let header = table.next_line().transpose()?.unwrap_or_default();
        table.header = header.split(',').map(str::trim).collect();
        Ok(table)
    }

    /// The names of the columns.
    pub(super) fn header(&self) -> &[&'a str] {
        &self.header
    }

    /// The index of a column.
    pub(super) fn find(&self, column: &str) -> Option<usize> {
        self.header.iter().position(|&name| name == column)
    }

    /// The index of a column that must exist.
    pub(super) fn require(&self, column: &'static str) -> Result<usize, TraceError> {
        self.find(column)
            .ok_or_else(|| TraceError::new(self.file, 1, 1, Problem::MissingColumn(column)))
    }

    /// An error of the file as a whole.
    pub(super) fn error(&self, problem: Problem) -> TraceError {
        TraceError::new(self.file, 0, 0, problem)
    }

    /// The next line that is not empty. `fields` is reused, so that a line allocates nothing.
    pub(super) fn next<'f>(&mut self, fields: &'f mut Vec<&'a str>) -> Result<Option<Line<'a, 'f>>, TraceError> {
        loop {
            let Some(text) = self.next_line().transpose()? else {
                return Ok(None);
            };
            if text.trim().is_empty() {
                continue;
            }
            fields.clear();
            fields.extend(text.split(','));
            let found = fields.len();
            if found != self.header.len() {
                let problem = Problem::Fields {
                    expected: self.header.len(),
                    found,
                };
                return Err(TraceError::new(self.file, self.line, 1, problem));
            }
            return Ok(Some(Line {
                file: self.file,
                number: self.line,
                text,
                fields,
            }));
        }
    }

    fn next_line(&mut self) -> Option<Result<&'a str, TraceError>> {
        if self.rest.is_empty() {
            return None;
        }
        self.line += 1;
        let refuse = |column, problem| Some(Err(TraceError::new(self.file, self.line, column, problem)));
        let window = &self.rest[..self.rest.len().min(MAX_LINE_BYTES + 1)];
        let (line, rest) = match window.iter().position(|&byte| byte == b'\n') {
            Some(end) => (&self.rest[..end], &self.rest[end + 1..]),
            None if window.len() > MAX_LINE_BYTES => return refuse(MAX_LINE_BYTES as u64, Problem::LongLine),
            None => (self.rest, &self.rest[self.rest.len()..]),
        };
        match std::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(line)) {
            Ok(text) => {
                self.rest = rest;
                Some(Ok(text))
            }
            Err(error) => refuse(error.valid_up_to() as u64 + 1, Problem::Encoding),
        }
    }
}

/// One line: its fields, as many as the header has.
pub(super) struct Line<'a, 'f> {
    file: &'a str,
    number: u64,
    text: &'a str,
    fields: &'f [&'a str],
}

impl<'a> Line<'a, '_> {
    /// A field without the blanks around it; empty if the line does not have it.
    pub(super) fn field(&self, index: usize) -> &'a str {
        self.fields.get(index).map_or("", |field| field.trim())
    }

    /// An error in a field.
    pub(super) fn error(&self, index: usize, problem: Problem) -> TraceError {
        let before: usize = self.fields.iter().take(index).map(|field| field.len() + 1).sum();
        let column = before.min(self.text.len()) as u64 + 1;
        TraceError::new(self.file, self.number, column, problem)
    }

    /// A whole number of at most `most`.
    pub(super) fn whole(&self, index: usize, most: u64, wanted: &'static str) -> Result<u64, TraceError> {
        whole(self.field(index), most, wanted).map_err(|problem| self.error(index, problem))
    }

    /// A finite number from 0.
    pub(super) fn number(&self, index: usize) -> Result<f64, TraceError> {
        number(self.field(index)).map_err(|problem| self.error(index, problem))
    }

    /// A time, in microseconds since 1970.
    pub(super) fn time_us(&self, index: usize) -> Result<u64, TraceError> {
        let field = self.field(index);
        time_us(field).ok_or_else(|| self.error(index, Problem::Time(shown(field))))
    }
}

/// Reads a whole number of at most `most`. Digits only: no sign, no blanks.
pub(super) fn whole(text: &str, most: u64, wanted: &'static str) -> Result<u64, Problem> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(value) if is_plain && value <= most => Ok(value),
        _ => Err(Problem::number(text, wanted)),
    }
}

/// Reads a finite number from 0.
pub(super) fn number(text: &str) -> Result<f64, Problem> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value.abs()),
        _ => Err(Problem::number(text, "a number from 0")),
    }
}

/// Reads a time such as `2023-11-16 18:17:03.9799600`: microseconds since 1970.
fn time_us(text: &str) -> Option<u64> {
    let (date, clock) = text.split_once([' ', 'T'])?;
    let mut date = date.splitn(3, '-').map(|part| whole(part, 9999, "").ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let mut clock = clock.splitn(3, ':').map(|part| whole(part, 59, "").ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 {
        return None;
    }
    if fraction.is_empty() || fraction.len() > 9 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let micros = fraction
        .bytes()
        .chain(std::iter::repeat(b'0'))
        .take(6)
        .fold(0, |value, digit| value * 10 + u64::from(digit - b'0'));
    let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    Some(seconds * 1_000_000 + micros)
}

/// Days from 1970-01-01 to a day of the Gregorian calendar from 1970 on. Years begin in March here, so that a leap day
/// is the last of its year.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month < 3 {
        (year - 1, month + 9)
    } else {
        (year, month - 3)
    };
    let days_before_month = (153 * month + 2) / 5;
    // 719,468 days from the March that begins year 0 to 1970-01-01.
    365 * year + year / 4 - year / 100 + year / 400 + days_before_month + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_microseconds_since_1970() {
        assert_eq!(time_us("1970-01-01 00:00:00"), Some(0));
        assert_eq!(time_us("2000-02-29 00:00:00.5"), Some(951_782_400_500_000));
        assert_eq!(time_us("2023-11-16 18:17:03.9799600"), Some(1_700_158_623_979_960));
    }

    #[test]
    fn malformed_times_are_refused() {
        for text in [
            "",
            "2023-11-16",
            "2023-13-16 00:00:00",
            "2023-11-16 24:00:00",
            "2023-11-16 1:2",
            "x-y-z 1:2:3",
            "2023-11-16 18:17:03.",
        ] {
            assert_eq!(time_us(text), None, "{text}");
        }
    }

    #[test]
    fn whole_numbers_have_digits_only() {
        assert_eq!(whole("12", 12, ""), Ok(12));
        for text in ["13", "+1", "-1", "", " 1", "1.0", "99999999999999999999"] {
            assert!(whole(text, 12, "").is_err(), "{text}");
        }
    }

    #[test]
    fn long_lines_are_refused_with_their_place() {
        let bytes = [b"a,b\n".to_vec(), vec![b'x'; MAX_LINE_BYTES + 1]].concat();
        let file = NamedText {
            name: "f",
            bytes: &bytes,
        };
        let mut table = Table::new(file).unwrap();
        let error = table.next(&mut Vec::new()).err().unwrap();
        assert_eq!((error.line(), error.problem()), (2, &Problem::LongLine));
    }
}
