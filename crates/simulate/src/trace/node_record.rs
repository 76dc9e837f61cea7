//! The record of a live node ([`dayfly_harvest::record`]) as a trace: the calls that it measured.
//!
//! A call arrives when it began on the node, in a worker that had been started. Its phases follow what it used in the
//! windows of the record. In a window in which it used all that it might, it could have used more: as much as any
//! call of its function ever sought. So the same trace can be simulated with other policies. Calls that were still
//! running at the end, or that did not return, are left out.

use std::collections::BTreeMap;

use dayfly_harvest::demand::is_bound;
use dayfly_harvest::engine::{Action, Begin, Event, Outcome};
use dayfly_harvest::record::{Entry, Header};
use dayfly_harvest::{Amount, CallId, FunctionId, Resource};
use serde::de::DeserializeOwned;

use super::{MAX_ARRIVAL_US, MAX_CALLS, NamedText, Names, Problem, Recorded, Trace, TraceError};
use crate::call::{Call, MAX_CORE_US, MAX_MEMORY_BYTES, MAX_MILLI_CORES, MAX_PHASES, Phase, Phases};
use crate::log::MAX_LINE_BYTES;

/// How a record begins.
pub const BEGINNING: &str = "{\"rules\":";
/// Parts of a running call that are kept. More are merged.
const MAX_PARTS: usize = 64;
/// What merging a bound part with another costs, in thousandths of a core: more than any difference of use.
const KIND_COST: u64 = MAX_MILLI_CORES;

/// Reads the calls of a record.
pub fn read(file: NamedText<'_>) -> Result<Trace, TraceError> {
    let mut record = Record::default();
    let mut has_header = false;
    for (index, bytes) in file.bytes.split(|&byte| byte == b'\n').enumerate() {
        let line = index as u64 + 1;
        let refuse = |column, problem| TraceError::new(file.name, line, column, problem);
        if bytes.len() > MAX_LINE_BYTES {
            return Err(refuse(0, Problem::LongEntry));
        }
        if bytes.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        if std::mem::replace(&mut has_header, true) {
            let entry = parsed::<Entry>(bytes).map_err(|(column, problem)| refuse(column, problem))?;
            record.add(&entry).map_err(|problem| refuse(1, problem))?;
        } else {
            parsed::<Header>(bytes).map_err(|(column, problem)| refuse(column, problem))?;
        }
    }
    record
        .finish()
        .map_err(|problem| TraceError::new(file.name, 0, 0, problem))
}

fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, (u64, Problem)> {
    serde_json::from_slice(bytes).map_err(|error| {
        let reason = super::error::shown(&error.to_string());
        (error.column().max(1) as u64, Problem::Entry(reason))
    })
}

/// A part of a call in which its use was about the same.
#[derive(Debug, Clone, Copy)]
struct Part {
    us: u64,
    /// Thousandths of a core times microseconds.
    work: u128,
    memory_bytes: u64,
    /// Whether it used all that it might.
    is_bound: bool,
}

impl Part {
    fn milli_cores(&self) -> u64 {
        u64::try_from(self.work / u128::from(self.us.max(1))).unwrap_or(u64::MAX)
    }

    /// How much the simulated use differs if the two are one part.
    fn cost(&self, next: &Self) -> u128 {
        let kind = if self.is_bound == next.is_bound { 0 } else { KIND_COST };
        let difference = self.milli_cores().abs_diff(next.milli_cores()).saturating_add(kind);
        u128::from(difference) * u128::from(self.us.min(next.us))
    }

    fn merged(&self, next: &Self) -> Self {
        let longer = if self.us >= next.us { self } else { next };
        Self {
            us: self.us.saturating_add(next.us),
            work: self.work.saturating_add(next.work),
            memory_bytes: self.memory_bytes.max(next.memory_bytes),
            is_bound: longer.is_bound,
        }
    }

    /// The phase of a call whose function sought `sought` thousandths of a core at most.
    fn phase(&self, sought: u64, max_memory_bytes: u64) -> Phase {
        let used = self.milli_cores();
        let milli_cores = if self.is_bound { used.max(sought) } else { used };
        // A call that used nothing waited for something else for as long.
        let work = self.work.max(u128::from(self.us));
        Phase {
            core_us: u64::try_from(work / 1_000).unwrap_or(u64::MAX).clamp(1, MAX_CORE_US),
            milli_cores: milli_cores.clamp(1, MAX_MILLI_CORES),
            memory_bytes: self.memory_bytes.min(max_memory_bytes),
        }
    }
}

/// A call of which the record has the begin.
#[derive(Debug)]
struct RecordedCall {
    begin: Begin,
    begun_us: u64,
    measured_us: u64,
    limit: u64,
    parts: Vec<Part>,
}

impl RecordedCall {
    fn measure(&mut self, now_us: u64, used: Amount, waiting_ppm: u32) -> u64 {
        let us = now_us.saturating_sub(self.measured_us);
        self.measured_us = now_us;
        let sought = used.milli_cores.saturating_add(u64::from(waiting_ppm) / 1_000);
        self.push(Part {
            us,
            work: u128::from(used.milli_cores) * u128::from(us),
            memory_bytes: used.memory_bytes,
            is_bound: is_bound(sought, self.limit),
        });
        sought
    }

    /// Its end. What it used since it was measured last is not known: as much as before, or all that it owned.
    fn end(&mut self, now_us: u64) {
        let us = now_us.saturating_sub(self.measured_us);
        let last = self.parts.last().map_or((self.begin.owned.milli_cores, 0), |last| {
            (last.milli_cores(), last.memory_bytes)
        });
        if us > 0 {
            self.push(Part {
                us,
                work: u128::from(last.0) * u128::from(us),
                memory_bytes: last.1,
                is_bound: self.parts.last().is_none_or(|last| last.is_bound),
            });
        }
        while self.parts.len() > MAX_PHASES {
            merge_closest(&mut self.parts);
        }
        self.parts.shrink_to_fit();
    }

    fn push(&mut self, part: Part) {
        match self.parts.last_mut().filter(|last| last.cost(&part) == 0) {
            Some(last) => *last = last.merged(&part),
            None => self.parts.push(part),
        }
        if self.parts.len() > MAX_PARTS {
            merge_closest(&mut self.parts);
        }
    }

    /// Its phases, once it has ended. `None` if it took no time.
    fn phases(&self, sought: u64) -> Option<Phases> {
        // Some sandboxes do not limit memory, and the simulated machine does.
        let owned = self.begin.owned.memory_bytes;
        let max_memory = if self.begin.borrows_memory {
            MAX_MEMORY_BYTES
        } else {
            owned.min(MAX_MEMORY_BYTES)
        };
        let phases: Vec<Phase> = self.parts.iter().map(|part| part.phase(sought, max_memory)).collect();
        Phases::new(&phases)
    }
}

/// Merges the two neighbours that differ least.
fn merge_closest(parts: &mut Vec<Part>) {
    let pairs = parts.windows(2).map(|pair| pair[0].cost(&pair[1]));
    if let Some((first, _)) = pairs.enumerate().min_by_key(|(_, cost)| *cost) {
        let next = parts.remove(first + 1);
        parts[first] = parts[first].merged(&next);
    }
}

/// What was read of a record so far.
#[derive(Debug, Default)]
struct Record {
    running: BTreeMap<CallId, RecordedCall>,
    ended: Vec<(RecordedCall, u64)>,
    /// The most that calls of a function sought.
    sought: BTreeMap<FunctionId, u64>,
    shared: Amount,
}

impl Record {
    fn add(&mut self, entry: &Entry) -> Result<(), Problem> {
        let now_us = entry.now_us;
        match entry.event {
            Event::Capacity { shared } => self.shared = self.shared.max(shared),
            Event::Begin(begin) => {
                if self.ended.len() + self.running.len() >= MAX_CALLS {
                    return Err(Problem::TooManyCalls);
                }
                self.running.entry(begin.call).or_insert_with(|| RecordedCall {
                    begin,
                    begun_us: now_us,
                    measured_us: now_us,
                    limit: begin.owned.milli_cores,
                    parts: Vec::new(),
                });
            }
            Event::Usage {
                call,
                milli_cores,
                memory_bytes,
                waiting_ppm,
            } => {
                if let Some(call) = self.running.get_mut(&call) {
                    let sought = call.measure(now_us, Amount::new(milli_cores, memory_bytes), waiting_ppm);
                    let most = self.sought.entry(call.begin.function).or_default();
                    *most = sought.max(*most);
                }
            }
            Event::End { call, outcome } => {
                let call = self.running.remove(&call).filter(|_| outcome == Outcome::Returned);
                if let Some(mut call) = call {
                    call.end(now_us);
                    self.ended.push((call, now_us));
                }
            }
            Event::Mode { .. }
            | Event::OutOfMemory { .. }
            | Event::Reclaimed { .. }
            | Event::Refused { .. }
            | Event::Adopted { .. }
            | Event::TrainingBegun { .. }
            | Event::TrainingEnded { .. }
            | Event::Tick => {}
        }
        for action in &entry.actions {
            if let Action::Limit {
                call,
                resource: Resource::Cpu,
                units,
            } = action
                && let Some(call) = self.running.get_mut(call)
            {
                call.limit = *units;
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<Trace, Problem> {
        let first_us = self.ended.iter().map(|(call, _)| call.begun_us).min();
        let first_us = first_us.ok_or(Problem::Empty)?;
        let (mut calls, mut names, mut responses) = (Vec::new(), Names::default(), Vec::new());
        let mut last_us = first_us;
        for (recorded, ended_us) in self.ended {
            let begin = recorded.begin;
            let sought = self.sought.get(&begin.function).copied().unwrap_or(0);
            let Some(phases) = recorded.phases(sought) else {
                continue;
            };
            let arrival_us = recorded.begun_us - first_us;
            if arrival_us > MAX_ARRIVAL_US {
                return Err(Problem::Late);
            }
            responses.push(ended_us.saturating_sub(recorded.begun_us));
            last_us = last_us.max(ended_us);
            calls.push(Call {
                arrival_us,
                function: names.id(begin.tenant, &format!("function-{}", begin.function.0))?,
                tenant: begin.tenant,
                features: begin.features,
                owned: begin.owned,
                phases,
                lend: begin.lends,
                borrow_cpu: begin.borrows_cpu,
                borrow_memory: begin.borrows_memory,
            });
        }
        if calls.is_empty() {
            return Err(Problem::Empty);
        }
        let recorded = Recorded::new(self.shared, responses, last_us - first_us);
        Ok(Trace::new(calls, names).with_recorded(recorded))
    }
}

#[cfg(test)]
mod tests;
