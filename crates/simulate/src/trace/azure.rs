//! The schema of the Azure Functions 2019 set (Shahrad and others, USENIX ATC 2020): three files with a line for each
//! function.
//!
//! - invocations: `HashFunction`, `Trigger`, and a column of counts for each minute, named 1, 2, 3, ...;
//! - durations: `HashFunction` and percentiles of milliseconds, `percentile_Average_0` to `percentile_Average_100`;
//! - memory: `HashFunction` or, as in the full set, `HashApp`, and percentiles of allocated MiB,
//!   `AverageAllocatedMb_pct1` to `AverageAllocatedMb_pct100`.
//!
//! `HashOwner`, where there is one, is the tenant. The set has no demand for cores and no sizes of inputs. Each of its
//! functions therefore runs a measured function's code: that of the same abbreviation in the published slices, for other
//! names one by a hash of the name. The trace decides when calls arrive and how the sizes of inputs spread: a duration
//! is drawn from the percentiles, and its place between shortest and longest, by logarithm, is the size's place between
//! the smallest and the largest measured. Demand and duration then are those of the measured function at that size.
//! Memory is configured as the trace's highest allocation, but at least as the measured function.

use std::collections::BTreeMap;

use dayfly_harvest::random::Random;
use dayfly_harvest::{Amount, FunctionId, TenantId};

use super::text::{Line, Table};
use super::{MAX_CALLS, MAX_FUNCTIONS, NamedText, Names, Problem, Trace, TraceError};
use crate::arrival::Trigger;
use crate::call::Call;
use crate::functions::{Function, Functions};
use crate::generate::MEMORY_STEP_BYTES;

const MINUTE_US: u64 = 60_000_000;
/// Minutes of a trace at most: a year's.
const MAX_MINUTES: usize = 366 * 1440;
/// The percentiles of durations, and their shares.
const DURATIONS: [(&str, f64); 7] = [
    ("percentile_Average_0", 0.0),
    ("percentile_Average_1", 0.01),
    ("percentile_Average_25", 0.25),
    ("percentile_Average_50", 0.5),
    ("percentile_Average_75", 0.75),
    ("percentile_Average_99", 0.99),
    ("percentile_Average_100", 1.0),
];
const PEAK_MEMORY: &str = "AverageAllocatedMb_pct100";
/// The largest configured memory: that of all functions here.
const MAX_OWNED_BYTES: u64 = 1 << 30;

/// Reads the three files, given in any order.
pub fn read(files: &[NamedText<'_>], functions: &Functions, seed: u64) -> Result<Trace, TraceError> {
    let (mut invocations, mut durations, mut memory) = (None, None, None);
    for &file in files {
        let table = Table::new(file)?;
        let place = if table.find("Trigger").is_some() {
            &mut invocations
        } else if table.find(DURATIONS[3].0).is_some() {
            &mut durations
        } else if table.find("AverageAllocatedMb").is_some() {
            &mut memory
        } else {
            return Err(TraceError::new(file.name, 1, 1, Problem::UnknownFormat));
        };
        *place = Some(table);
    }
    let missing = |what| {
        let name = files.first().map_or("", |file| file.name);
        TraceError::new(name, 0, 0, Problem::MissingFile(what))
    };
    let durations = read_durations(durations.ok_or_else(|| missing("durations"))?)?;
    let memory = read_memory(memory.ok_or_else(|| missing("memory"))?)?;
    read_invocations(
        invocations.ok_or_else(|| missing("invocations"))?,
        &Known {
            functions,
            durations,
            memory,
            seed,
        },
    )
}

/// What is known about the functions whose calls are read.
struct Known<'a> {
    functions: &'a Functions,
    durations: BTreeMap<&'a str, [f64; DURATIONS.len()]>,
    memory: BTreeMap<&'a str, u64>,
    seed: u64,
}

fn read_durations(mut table: Table<'_>) -> Result<BTreeMap<&str, [f64; DURATIONS.len()]>, TraceError> {
    let name = table.require("HashFunction")?;
    let mut columns = [0; DURATIONS.len()];
    for (column, (percentile, _)) in columns.iter_mut().zip(DURATIONS) {
        *column = table.require(percentile)?;
    }
    let mut found = BTreeMap::new();
    let mut fields = Vec::new();
    while let Some(line) = table.next(&mut fields)? {
        let mut values = [0.0; DURATIONS.len()];
        let mut highest = 0.0_f64;
        for (value, &column) in values.iter_mut().zip(&columns) {
            // Averages of executions are not always in order.
            highest = highest.max(line.number(column)?);
            *value = highest;
        }
        keep(&mut found, &line, name, values)?;
    }
    Ok(found)
}

fn read_memory(mut table: Table<'_>) -> Result<BTreeMap<&str, u64>, TraceError> {
    let name = table
        .find("HashFunction")
        .map_or_else(|| table.require("HashApp"), Ok)?;
    let most = table.require(PEAK_MEMORY)?;
    let mut found = BTreeMap::new();
    let mut fields = Vec::new();
    while let Some(line) = table.next(&mut fields)? {
        let bytes = (line.number(most)? * f64::from(1 << 20)) as u64;
        keep(&mut found, &line, name, bytes)?;
    }
    Ok(found)
}

fn keep<'a, T>(found: &mut BTreeMap<&'a str, T>, line: &Line<'a, '_>, name: usize, value: T) -> Result<(), TraceError> {
    if found.len() >= MAX_FUNCTIONS {
        return Err(line.error(name, Problem::TooManyFunctions));
    }
    found.insert(line.field(name), value);
    Ok(())
}

fn read_invocations(mut table: Table<'_>, known: &Known<'_>) -> Result<Trace, TraceError> {
    let name = table.require("HashFunction")?;
    let trigger = table.require("Trigger")?;
    let owner = table.find("HashOwner");
    let app = table.find("HashApp");
    let minutes: Vec<(usize, u64)> = table
        .header()
        .iter()
        .enumerate()
        .filter_map(|(at, title)| Some((at, title.parse::<u64>().ok()?)))
        .filter(|(_, minute)| (1..=MAX_MINUTES as u64).contains(minute))
        .collect();
    let mut tenants: BTreeMap<&str, TenantId> = BTreeMap::new();
    let mut names = Names::default();
    let mut calls = Vec::new();
    let mut fields = Vec::new();
    while let Some(line) = table.next(&mut fields)? {
        let next = TenantId(tenants.len() as u32);
        let tenant = owner.map_or(next, |at| *tenants.entry(line.field(at)).or_insert(next));
        let function = names
            .id(tenant, line.field(name))
            .map_err(|problem| line.error(name, problem))?;
        let code = Code::new(known, line.field(name), app.map_or("", |at| line.field(at)), function);
        let trigger = Trigger::parse(line.field(trigger));
        let mut random = Random::for_purpose(known.seed, function.0);
        for &(column, minute) in &minutes {
            let count = line.whole(column, MAX_CALLS as u64, "a whole number of calls from 0 to 4000000")?;
            if calls.len() + count as usize > MAX_CALLS {
                return Err(line.error(column, Problem::TooManyCalls));
            }
            let first = calls.len();
            trigger.arrivals(count, MINUTE_US, &mut random, |time| {
                calls.push(code.call(tenant, (minute - 1) * MINUTE_US + time));
            });
            calls[first..].iter_mut().for_each(|call| code.draw(call, &mut random));
        }
    }
    if calls.is_empty() {
        return Err(table.error(Problem::Empty));
    }
    Ok(Trace::new(calls, names))
}

/// The measured function that stands for a function of the trace.
struct Code<'a> {
    function: FunctionId,
    measured: &'a Function,
    durations: Option<&'a [f64; DURATIONS.len()]>,
    owned: Amount,
}

impl<'a> Code<'a> {
    fn new(known: &'a Known<'_>, name: &str, app: &str, function: FunctionId) -> Self {
        let measured = crate::generate::measured_for(known.functions, name);
        let memory = known.memory.get(name).or_else(|| known.memory.get(app)).copied();
        let memory = memory.unwrap_or(0).div_ceil(MEMORY_STEP_BYTES) * MEMORY_STEP_BYTES;
        let configured = measured.configured();
        Self {
            function,
            measured,
            durations: known.durations.get(name),
            owned: configured.max(Amount::new(0, memory.min(MAX_OWNED_BYTES))),
        }
    }

    /// A call whose demand is not drawn yet.
    fn call(&self, tenant: TenantId, arrival_us: u64) -> Call {
        Call {
            arrival_us,
            function: self.function,
            tenant,
            features: self.measured.features(0.0),
            owned: self.owned,
            phases: self.measured.draw(0.0, &mut Random::new(0)),
            lend: true,
            borrow_cpu: true,
            borrow_memory: false,
        }
    }

    fn draw(&self, call: &mut Call, random: &mut Random) {
        let (least, most) = self.measured.sizes();
        let size = match self.durations {
            Some(durations) if self.measured.is_related() => {
                let place = place_of(durations, random.unit());
                ((least.ln_1p() + place * (most.ln_1p() - least.ln_1p())).exp_m1()).round()
            }
            _ => crate::generate::draw_size(self.measured, random),
        };
        call.features = self.measured.features(size);
        call.phases = self.measured.draw(size, random);
    }
}

/// The place of the duration of a share: 0 for the shortest, 1 for the longest, by logarithm.
fn place_of(durations: &[f64; DURATIONS.len()], share: f64) -> f64 {
    let after = DURATIONS
        .partition_point(|&(_, of)| of <= share)
        .clamp(1, DURATIONS.len() - 1);
    let (low, high) = (DURATIONS[after - 1].1, DURATIONS[after].1);
    let within = ((share - low) / (high - low)).clamp(0.0, 1.0);
    let duration = durations[after - 1] + within * (durations[after] - durations[after - 1]);
    let (shortest, longest) = (durations[0].ln_1p(), durations[DURATIONS.len() - 1].ln_1p());
    if longest > shortest {
        ((duration.ln_1p() - shortest) / (longest - shortest)).clamp(0.0, 1.0)
    } else {
        0.5
    }
}

#[cfg(test)]
mod tests;
