//! Why a trace cannot be read.

use super::{MAX_ARRIVAL_US, MAX_CALLS, MAX_FUNCTIONS, MAX_LINE_BYTES, MAX_NAME_BYTES};
use crate::call::MAX_PHASES;

/// Characters of a foreign value in a message at most.
const MAX_SHOWN: usize = 40;

/// Where a trace is wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {problem}")]
pub struct TraceError {
    file: String,
    line: u64,
    column: u64,
    problem: Problem,
}

impl TraceError {
    pub(super) fn new(file: &str, line: u64, column: u64, problem: Problem) -> Self {
        Self {
            file: file.escape_debug().to_string(),
            line,
            column,
            problem,
        }
    }

    /// The line, from 1; 0 if the file as a whole is meant.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The byte of the line, from 1; 0 if the file as a whole is meant.
    pub fn column(&self) -> u64 {
        self.column
    }

    /// What is wrong.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }
}

/// What is wrong with a trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// No file was given.
    #[error("There is no file. Name a trace, or the folder of Azure's three files.")]
    NoFile,
    /// The header belongs to no known format.
    #[error(
        "The header belongs to no known format. It begins with `arrival_us` for one call a line, with `TIMESTAMP` for \
         arrivals of a language model, with `{{\"rules\":` for the record of a node; Azure's schema has three files: invocations, durations, memory."
    )]
    UnknownFormat,
    /// A file of Azure's schema is missing.
    #[error(
        "The file of {0} is missing. Azure's schema has three files: invocations (a column `Trigger`), durations \
         (`percentile_Average_50`), memory (`AverageAllocatedMb`)."
    )]
    MissingFile(&'static str),
    /// A column is missing.
    #[error("The column `{0}` is missing. Add it to the header and to every line.")]
    MissingColumn(&'static str),
    /// A line has fewer fields than the header.
    #[error("The line has {found} fields, the header {expected}. Add what is missing, or remove the line.")]
    Fields {
        /// Fields of the header.
        expected: usize,
        /// Fields of the line.
        found: usize,
    },
    /// A line is too long.
    #[error("The line is longer than {MAX_LINE_BYTES} bytes. Check that the file is a trace in CSV.")]
    LongLine,
    /// A line is not UTF-8.
    #[error("The line is not UTF-8. Check that the file is a trace in CSV.")]
    Encoding,
    /// A field is not a number in its range.
    #[error("`{value}` is not {wanted}. Correct it, or remove the line.")]
    Number {
        /// The field, escaped and shortened.
        value: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// A field is not a time.
    #[error("`{0}` is not a time such as 2023-11-16 18:17:03.97996. Correct it, or remove the line.")]
    Time(String),
    /// An arrival is too late.
    #[error("The call arrives more than {} days after the first. Divide the trace.", MAX_ARRIVAL_US / 86_400_000_000)]
    Late,
    /// A name is empty, long, or has other characters.
    #[error("The name of a function has 1 to {MAX_NAME_BYTES} of A-Z, a-z, 0-9 and _-.:/@+=. Rename the function.")]
    Name,
    /// The phases of a call are malformed.
    #[error(
        "`{0}` are not phases: one to {MAX_PHASES} of core_us:milli_cores:memory_bytes, separated by semicolons; each \
         phase with work can use some of a core. Correct them, or leave the field empty for a measured function."
    )]
    Phases(String),
    /// A call without phases is of no measured function.
    #[error("No function {0} has been measured, so this call's phases are needed. Add them to the line.")]
    Unmeasured(String),
    /// Flags are malformed.
    #[error("`{0}` are not flags: `lend`, `borrow_cpu` and `borrow_memory`, separated by semicolons. Correct them.")]
    Flags(String),
    /// A line is not what a node records.
    #[error("The line is not what a node records: {0}. Give a file that `dayfly node` recorded, or remove the line.")]
    Entry(String),
    /// A line of a record is too long.
    #[error(
        "The line is longer than {} bytes. Give a file that `dayfly node` recorded.",
        crate::log::MAX_LINE_BYTES
    )]
    LongEntry,
    /// No line has a call.
    #[error("There is no call. Check that the file is complete.")]
    Empty,
    /// Too many calls.
    #[error("There are more than {MAX_CALLS} calls. Divide the trace.")]
    TooManyCalls,
    /// Too many functions.
    #[error("There are more than {MAX_FUNCTIONS} functions. Divide the trace.")]
    TooManyFunctions,
}

impl Problem {
    pub(super) fn number(value: &str, wanted: &'static str) -> Self {
        Self::Number {
            value: shown(value),
            wanted,
        }
    }
}

/// A foreign value for a message: escaped and shortened.
pub(super) fn shown(value: &str) -> String {
    let mut text: String = value.chars().take(MAX_SHOWN).flat_map(char::escape_debug).collect();
    if value.chars().nth(MAX_SHOWN).is_some() {
        text.push_str("...");
    }
    text
}
