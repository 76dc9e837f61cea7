//! This project's format: one call a line, comma-separated, with a header. No quotes.
//!
//! ```text
//! arrival_us,tenant,function,owned_milli_cores,owned_memory_bytes,argument_bytes,sizes,flags,phases
//! 0,1,compress,2000,268435456,1048576,1048576;0;0;0,lend;borrow_cpu,3000:1000:41943040;910000:2000:104857600
//! ```
//!
//! | column | what | if absent or empty |
//! |---|---|---|
//! | `arrival_us` | microseconds since the trace's begin; the first column | an error |
//! | `function` | name | an error |
//! | `tenant` | number | 0 |
//! | `owned_milli_cores`, `owned_memory_bytes` | what the function is configured to get | as the measured function of this name |
//! | `argument_bytes` | bytes of the arguments | as the measured function, or 0 |
//! | `sizes` | up to four numbers that the client states, separated by semicolons | none |
//! | `flags` | `lend`, `borrow_cpu`, `borrow_memory`, separated by semicolons; `none` for none of them | `lend;borrow_cpu` |
//! | `phases` | up to four of work : usable thousandths of a core : memory, separated by semicolons | drawn from the measured function of this name, by the first size |
//!
//! Columns other than the first stand in any order, further ones are ignored. Lines need not be sorted.

use std::fmt::{self, Write};

use dayfly_harvest::demand::MAX_SIZES;
use dayfly_harvest::random::Random;
use dayfly_harvest::{Amount, Features, TenantId};

use super::text::{Line, Table, number, whole};
use super::{MAX_ARRIVAL_US, MAX_CALLS, NamedText, Names, Problem, Trace, TraceError, error::shown};
use crate::call::{Call, MAX_CORE_US, MAX_MEMORY_BYTES, MAX_MILLI_CORES, MAX_PHASES, Phase, Phases};
use crate::functions::{Function, Functions};

/// The first column.
pub const FIRST_COLUMN: &str = "arrival_us";

const HEADER: &str =
    "arrival_us,tenant,function,owned_milli_cores,owned_memory_bytes,argument_bytes,sizes,flags,phases\n";

/// Where the columns are; `None` for one that the file does not have.
struct Columns {
    arrival: usize,
    function: usize,
    tenant: Option<usize>,
    milli_cores: Option<usize>,
    memory: Option<usize>,
    argument_bytes: Option<usize>,
    sizes: Option<usize>,
    flags: Option<usize>,
    phases: Option<usize>,
}

/// Reads calls. What a line leaves empty is drawn by `seed` and the line's place.
pub fn read(file: NamedText<'_>, functions: &Functions, seed: u64) -> Result<Trace, TraceError> {
    let mut table = Table::new(file)?;
    let columns = Columns {
        arrival: table.require(FIRST_COLUMN)?,
        function: table.require("function")?,
        tenant: table.find("tenant"),
        milli_cores: table.find("owned_milli_cores"),
        memory: table.find("owned_memory_bytes"),
        argument_bytes: table.find("argument_bytes"),
        sizes: table.find("sizes"),
        flags: table.find("flags"),
        phases: table.find("phases"),
    };
    let mut calls = Vec::new();
    let mut names = Names::default();
    let mut fields = Vec::with_capacity(table.header().len());
    while let Some(line) = table.next(&mut fields)? {
        if calls.len() >= MAX_CALLS {
            return Err(line.error(0, Problem::TooManyCalls));
        }
        let mut random = Random::for_purpose(seed, calls.len() as u64);
        calls.push(columns.call(&line, functions, &mut names, &mut random)?);
    }
    if calls.is_empty() {
        return Err(table.error(Problem::Empty));
    }
    Ok(Trace::new(calls, names))
}

impl Columns {
    fn call(
        &self,
        line: &Line<'_, '_>,
        functions: &Functions,
        names: &mut Names,
        random: &mut Random,
    ) -> Result<Call, TraceError> {
        let tenant = given(self.tenant, line).map_or(Ok(0), |at| {
            line.whole(at, u64::from(u32::MAX), "a whole number from 0 to 4294967295")
        })?;
        let tenant = TenantId(tenant as u32);
        let name = line.field(self.function);
        let function = names
            .id(tenant, name)
            .map_err(|problem| line.error(self.function, problem))?;
        let measured = functions.by_name(name);
        let features = self.features(line, measured)?;
        let flags = given(self.flags, line);
        let [lend, borrow_cpu, borrow_memory] = flags.map_or(Ok([true, true, false]), |at| {
            flags_of(line.field(at)).map_err(|problem| line.error(at, problem))
        })?;
        let phases = match (given(self.phases, line), measured) {
            (Some(at), _) => phases_of(line.field(at)).map_err(|problem| line.error(at, problem))?,
            (None, Some(measured)) => measured.draw(features.sizes[0], random),
            (None, None) => return Err(line.error(self.function, Problem::Unmeasured(shown(name)))),
        };
        Ok(Call {
            arrival_us: self.arrival(line)?,
            function,
            tenant,
            features,
            owned: self.owned(line, measured)?,
            phases,
            lend,
            borrow_cpu,
            borrow_memory,
        })
    }

    fn arrival(&self, line: &Line<'_, '_>) -> Result<u64, TraceError> {
        let arrival = line.whole(self.arrival, u64::MAX, "a whole number of microseconds")?;
        if arrival > MAX_ARRIVAL_US {
            return Err(line.error(self.arrival, Problem::Late));
        }
        Ok(arrival)
    }

    fn owned(&self, line: &Line<'_, '_>, measured: Option<&Function>) -> Result<Amount, TraceError> {
        let configured = measured.map(Function::configured);
        let one = |column: Option<usize>, most, wanted, name, usual: fn(Amount) -> u64| match (
            given(column, line),
            configured,
        ) {
            (Some(at), _) => line.whole(at, most, wanted),
            (None, Some(configured)) => Ok(usual(configured)),
            (None, None) => Err(line.error(column.unwrap_or(self.function), Problem::MissingColumn(name))),
        };
        Ok(Amount::new(
            one(
                self.milli_cores,
                MAX_MILLI_CORES,
                "a whole number from 0 to 1000000",
                "owned_milli_cores",
                |of| of.milli_cores,
            )?,
            one(
                self.memory,
                MAX_MEMORY_BYTES,
                "a whole number from 0 to 2^40",
                "owned_memory_bytes",
                |of| of.memory_bytes,
            )?,
        ))
    }

    fn features(&self, line: &Line<'_, '_>, measured: Option<&Function>) -> Result<Features, TraceError> {
        let mut features = Features::default();
        if let Some(at) = given(self.sizes, line) {
            for (number_of, text) in line.field(at).split(';').enumerate() {
                let size = features.sizes.get_mut(number_of).ok_or_else(|| {
                    line.error(
                        at,
                        Problem::number(line.field(at), "one to four numbers between semicolons"),
                    )
                })?;
                *size = number(text).map_err(|problem| line.error(at, problem))?;
            }
        }
        features.argument_bytes = match (given(self.argument_bytes, line), measured) {
            (Some(at), _) => line.whole(at, u64::MAX, "a whole number of bytes")?,
            (None, Some(measured)) => measured.features(features.sizes[0]).argument_bytes,
            (None, None) => 0,
        };
        Ok(features)
    }
}

/// A column that the file has and the line fills.
fn given(column: Option<usize>, line: &Line<'_, '_>) -> Option<usize> {
    column.filter(|&at| !line.field(at).is_empty())
}

fn flags_of(text: &str) -> Result<[bool; 3], Problem> {
    let mut flags = [false; 3];
    if text == "none" {
        return Ok(flags);
    }
    for flag in text.split(';') {
        let at = ["lend", "borrow_cpu", "borrow_memory"]
            .iter()
            .position(|&name| name == flag)
            .ok_or_else(|| Problem::Flags(shown(text)))?;
        flags[at] = true;
    }
    Ok(flags)
}

fn phases_of(text: &str) -> Result<Phases, Problem> {
    let refuse = || Problem::Phases(shown(text));
    let mut phases = [Phase::default(); MAX_PHASES];
    let mut count = 0;
    for part in text.split(';') {
        let mut values = part.splitn(3, ':');
        let mut next = |most| {
            let value = values.next().ok_or_else(refuse)?;
            whole(value, most, "").map_err(|_| refuse())
        };
        *phases.get_mut(count).ok_or_else(refuse)? = Phase {
            core_us: next(MAX_CORE_US)?,
            milli_cores: next(MAX_MILLI_CORES)?,
            memory_bytes: next(MAX_MEMORY_BYTES)?,
        };
        count += 1;
    }
    Phases::new(&phases[..count]).ok_or_else(refuse)
}

/// Writes a trace so that [`read`] gives the same calls again, whatever its seed.
pub fn write(trace: &Trace, out: &mut impl Write) -> fmt::Result {
    out.write_str(HEADER)?;
    for call in trace.calls() {
        write!(
            out,
            "{},{},{},{},{},{},",
            call.arrival_us,
            call.tenant.0,
            trace.function_name(call.function),
            call.owned.milli_cores,
            call.owned.memory_bytes,
            call.features.argument_bytes
        )?;
        let sizes: [f64; MAX_SIZES] = call.features.sizes;
        separated(out, sizes.iter(), |out, size| write!(out, "{size}"))?;
        out.write_str(",")?;
        let flags = [
            ("lend", call.lend),
            ("borrow_cpu", call.borrow_cpu),
            ("borrow_memory", call.borrow_memory),
        ];
        if flags.iter().all(|(_, is_set)| !is_set) {
            out.write_str("none")?;
        }
        separated(out, flags.iter().filter(|(_, is_set)| *is_set), |out, (name, _)| {
            out.write_str(name)
        })?;
        out.write_str(",")?;
        separated(out, call.phases.iter(), |out, phase| {
            write!(out, "{}:{}:{}", phase.core_us, phase.milli_cores, phase.memory_bytes)
        })?;
        out.write_str("\n")?;
    }
    Ok(())
}

/// Writes items with semicolons between them.
fn separated<W: Write, T>(
    out: &mut W,
    items: impl Iterator<Item = T>,
    mut write: impl FnMut(&mut W, T) -> fmt::Result,
) -> fmt::Result {
    for (number, item) in items.enumerate() {
        if number > 0 {
            out.write_str(";")?;
        }
        write(out, item)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
