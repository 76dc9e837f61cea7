//! Traces: calls in the order of their arrival, and the formats that they are read from.
//!
//! | format | recognised by | module |
//! |---|---|---|
//! | one call a line, of this project | a header that begins with `arrival_us` | [`own`] |
//! | Azure Functions 2019: invocations a minute, with percentiles of duration and memory | three files, one of them with `Trigger` | [`azure`] |
//! | arrivals of a language model's service | a header that begins with `TIMESTAMP` | [`tokens`] |
//! | the record of a live node | a line that begins with `{"rules":` | [`node_record`] |
//!
//! The first and the last have what a call needs. For the others, demand and duration come from the measured functions
//! ([`crate::functions`]). Reading takes time linear in the text; the calls of a trace take at most
//! [`MAX_CALLS`] times the size of a [`Call`].

pub mod azure;
pub mod error;
pub mod node_record;
pub mod own;
mod text;
pub mod tokens;

use std::collections::BTreeMap;

use dayfly_harvest::{Amount, FunctionId, TenantId};
use serde::{Deserialize, Serialize};

pub use error::{Problem, TraceError};

use crate::call::Call;
use crate::functions::Functions;
use crate::report::percentile;

/// Calls of one trace at most: below a gibibyte of memory.
pub const MAX_CALLS: usize = 4_000_000;
/// Functions of one trace at most.
pub const MAX_FUNCTIONS: usize = 100_000;
/// Bytes of one line at most: a day of minutes with counts of eight digits takes 13 KiB.
pub const MAX_LINE_BYTES: usize = 64 << 10;
/// Bytes of a function's name at most.
pub const MAX_NAME_BYTES: usize = 128;
/// The latest arrival: a year after the first.
pub const MAX_ARRIVAL_US: u64 = 366 * 86_400 * 1_000_000;

/// The text of one file, with the name that messages use.
#[derive(Debug, Clone, Copy)]
pub struct NamedText<'a> {
    /// Name of the file.
    pub name: &'a str,
    /// What it contains.
    pub bytes: &'a [u8],
}

/// Calls in the order of their arrival, and the names of their functions.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    calls: Vec<Call>,
    functions: Vec<(TenantId, String)>,
    recorded: Option<Recorded>,
}

/// What happened on the live node whose record a trace was read from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    /// The cores and memory that its calls shared.
    pub capacity: Amount,
    /// Calls that returned.
    pub calls: usize,
    /// The time from begin to end that 99 % of them did not exceed.
    pub p99_s: f64,
    /// Its median.
    pub p50_s: f64,
    /// From the first begin to the last end.
    pub completion_s: f64,
}

impl Recorded {
    /// The figures of calls that took these times, in microseconds.
    pub(crate) fn new(capacity: Amount, mut responses_us: Vec<u64>, completion_us: u64) -> Self {
        responses_us.sort_unstable();
        let seconds = |us: u64| us as f64 / 1e6;
        Self {
            capacity,
            calls: responses_us.len(),
            p99_s: seconds(percentile(&responses_us, 0.99)),
            p50_s: seconds(percentile(&responses_us, 0.5)),
            completion_s: seconds(completion_us),
        }
    }
}

impl Trace {
    /// A trace of calls, which it sorts by arrival; calls that arrive together keep their order. Functions are numbered
    /// by their first call, and those without a call are left out.
    pub(crate) fn new(mut calls: Vec<Call>, names: Names) -> Self {
        calls.sort_by_key(|call| call.arrival_us);
        let mut numbers: Vec<Option<FunctionId>> = vec![None; names.len()];
        let mut functions = Vec::new();
        for call in &mut calls {
            let old = call.function.0 as usize;
            call.function = *numbers[old].get_or_insert_with(|| {
                functions.push(names.list[old].clone());
                FunctionId(functions.len() as u64 - 1)
            });
        }
        Self {
            calls,
            functions,
            recorded: None,
        }
    }

    pub(crate) fn with_recorded(self, recorded: Recorded) -> Self {
        Self {
            recorded: Some(recorded),
            ..self
        }
    }

    /// What happened on the live node, if this is the record of one.
    pub fn recorded(&self) -> Option<&Recorded> {
        self.recorded.as_ref()
    }

    /// The calls, in the order of their arrival.
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// The functions: each with its tenant and its name, `FunctionId` being the index.
    pub fn functions(&self) -> &[(TenantId, String)] {
        &self.functions
    }

    /// The name of a function; empty if the trace does not have it.
    pub fn function_name(&self, function: FunctionId) -> &str {
        usize::try_from(function.0)
            .ok()
            .and_then(|index| self.functions.get(index))
            .map_or("", |(_, name)| name)
    }

    /// Reads a trace from one file or, for Azure's schema, from its three files in any order. What the trace does not
    /// have is drawn by `seed`.
    pub fn read(files: &[NamedText<'_>], functions: &Functions, seed: u64) -> Result<Self, TraceError> {
        let Some(first) = files.first() else {
            return Err(TraceError::new("", 0, 0, Problem::NoFile));
        };
        if files.len() > 1 {
            return azure::read(files, functions, seed);
        }
        let header = first.bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
        if header.starts_with(own::FIRST_COLUMN.as_bytes()) {
            own::read(*first, functions, seed)
        } else if header.starts_with(tokens::FIRST_COLUMN.as_bytes()) {
            tokens::read(*first, functions, seed)
        } else if header.starts_with(node_record::BEGINNING.as_bytes()) {
            node_record::read(*first)
        } else {
            Err(TraceError::new(first.name, 1, 1, Problem::UnknownFormat))
        }
    }
}

/// Numbers of functions in the order in which a trace names them.
#[derive(Debug, Default)]
pub(crate) struct Names {
    list: Vec<(TenantId, String)>,
    index: BTreeMap<TenantId, BTreeMap<String, FunctionId>>,
}

impl Names {
    /// How many functions there are.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// The number of a function, a new one for a new function.
    pub(crate) fn id(&mut self, tenant: TenantId, name: &str) -> Result<FunctionId, Problem> {
        if let Some(&id) = self.index.get(&tenant).and_then(|names| names.get(name)) {
            return Ok(id);
        }
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(is_plain) {
            return Err(Problem::Name);
        }
        if self.list.len() >= MAX_FUNCTIONS {
            return Err(Problem::TooManyFunctions);
        }
        let id = FunctionId(self.list.len() as u64);
        self.list.push((tenant, name.to_owned()));
        self.index.entry(tenant).or_default().insert(name.to_owned(), id);
        Ok(id)
    }
}

/// Whether a byte may stand in a name: it needs no quotes in any format.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.:/@+=".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_header_is_refused_with_known_formats() {
        let file = NamedText {
            name: "some.csv",
            bytes: b"a,b\n1,2\n",
        };
        let error = Trace::read(&[file], Functions::measured(), 1).unwrap_err();
        assert!(error.to_string().starts_with("some.csv:1:1: "), "{error}");
        assert!(error.to_string().contains("arrival_us"), "{error}");
    }

    #[test]
    fn names_are_numbered_per_tenant() {
        let mut names = Names::default();
        assert_eq!(names.id(TenantId(1), "f"), Ok(FunctionId(0)));
        assert_eq!(names.id(TenantId(2), "f"), Ok(FunctionId(1)));
        assert_eq!(names.id(TenantId(1), "f"), Ok(FunctionId(0)));
        assert_eq!(names.id(TenantId(1), "f,g"), Err(Problem::Name));
    }
}
