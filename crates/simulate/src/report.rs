//! The figures of a simulation.

use std::fmt;

use dayfly_harvest::SchedulerKind;
use serde::{Deserialize, Serialize};

use crate::cluster::{Options, Outcome};
use crate::policy::Policy;
use crate::record::Record;

const GIB: f64 = 1_073_741_824.0;

/// The figures of one policy on one trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The policy.
    pub policy: Policy,
    /// The scheduler.
    pub scheduler: SchedulerKind,
    /// The seed.
    pub seed: u64,
    /// Number of nodes.
    pub nodes: usize,
    /// Cores of each node.
    pub cores: f64,
    /// Number of schedulers.
    pub shards: usize,
    /// Calls of the trace.
    pub calls: usize,
    /// Calls that did not return.
    pub failed: usize,
    /// The time from arrival to end that 99 % of calls do not exceed.
    pub p99_s: f64,
    /// Its median.
    pub p50_s: f64,
    /// Its mean.
    pub mean_s: f64,
    /// From the first arrival to the last end.
    pub completion_s: f64,
    /// The largest share by which a call took longer than without harvesting; 0 if none did. Calls that fail in either
    /// run do not count.
    pub worst_degradation: Option<f64>,
    /// Why calls took more than [`MAX_SLOWDOWN`] longer than without harvesting.
    pub slowed: Option<Slowed>,
    /// Busy core-seconds over cores and completion time.
    pub cpu_use: f64,
    /// Used memory over memory and completion time.
    pub memory_use: f64,
    /// Core-seconds that were harvested and not lent.
    pub idle_core_s: f64,
    /// GiB-seconds that were harvested and not lent.
    pub idle_memory_gib_s: f64,
    /// Median time of one scheduling decision, if it was measured.
    pub decision_p50_us: Option<f64>,
    /// Offers to pools.
    pub lends: u64,
    /// Grants to borrowers.
    pub borrows: u64,
    /// Offers that the safeguard took back.
    pub safeguards: u64,
    /// Borrowers that were ended to free memory.
    pub recalls_by_force: u64,
    /// Times that a call ran out of memory.
    pub ooms: u64,
    /// Calls that waited for a new worker.
    pub cold_starts: usize,
}

/// The share by which a call may take longer than without harvesting before it counts as slowed.
pub const MAX_SLOWDOWN: f64 = 0.01;

/// Calls that took more than [`MAX_SLOWDOWN`] longer than without harvesting, by the reason of most of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Slowed {
    /// They waited longer for a node with room: schedulers placed the calls before them elsewhere.
    pub queue: usize,
    /// They waited for a new worker. Calls that end earlier need fewer workers, so fewer are there for the next ones.
    pub cold_start: usize,
    /// They ran out of memory, or were ended to free memory.
    pub memory: usize,
    /// They ran slower: the policy is wrong.
    pub running: usize,
}

impl Slowed {
    fn new(records: &[Record], without: &[Record]) -> Self {
        let mut slowed = Self::default();
        for (record, other) in records.iter().zip(without) {
            if slowdown(record, other) <= MAX_SLOWDOWN {
                continue;
            }
            let waited = |record: &Record| record.started_us.saturating_sub(record.arrival_us);
            let more_waiting = waited(record).saturating_sub(waited(other));
            let longer = record.response_us().saturating_sub(other.response_us());
            if record.attempts > other.attempts {
                slowed.memory += 1;
            } else if more_waiting > longer / 2 {
                slowed.queue += 1;
            } else if record.is_cold && !other.is_cold {
                slowed.cold_start += 1;
            } else {
                slowed.running += 1;
            }
        }
        slowed
    }

    fn count(&self) -> usize {
        self.queue + self.cold_start + self.memory + self.running
    }
}

impl Report {
    /// The figures of an outcome, beside those of the same trace without harvesting.
    pub fn new(options: &Options, outcome: &Outcome, without: Option<&[Record]>) -> Self {
        let records = &outcome.records;
        let mut responses: Vec<u64> = records.iter().map(Record::response_us).collect();
        responses.sort_unstable();
        let begin_us = records.iter().map(|record| record.arrival_us).min().unwrap_or(0);
        let end_us = records.iter().map(|record| record.ended_us).max().unwrap_or(0);
        let completion_s = seconds(end_us.saturating_sub(begin_us));
        let nodes = options.nodes as f64;
        let capacity = options.capacity;
        let totals = outcome.totals;
        let sum_s: f64 = responses.iter().map(|response| seconds(*response)).sum();
        let mut decisions = outcome.decisions_ns.clone();
        decisions.sort_unstable();
        let decision = decisions.get(decisions.len() / 2).filter(|took| **took > 0);
        Self {
            policy: options.policy,
            scheduler: options.scheduler,
            seed: options.seed,
            nodes: options.nodes,
            cores: capacity.milli_cores as f64 / 1e3,
            shards: options.shards,
            calls: records.len(),
            failed: records.iter().filter(|record| record.is_failed).count(),
            p99_s: seconds(percentile(&responses, 0.99)),
            p50_s: seconds(percentile(&responses, 0.5)),
            mean_s: share(sum_s, records.len() as f64),
            completion_s,
            worst_degradation: without.map(|without| worst_degradation(records, without)),
            slowed: without.map(|without| Slowed::new(records, without)),
            cpu_use: share(
                totals.work as f64 / 1e9,
                nodes * capacity.milli_cores as f64 / 1e3 * completion_s,
            ),
            memory_use: share(
                totals.memory as f64 / 1e6,
                nodes * capacity.memory_bytes as f64 * completion_s,
            ),
            idle_core_s: totals.idle_cpu as f64 / 1e9,
            idle_memory_gib_s: totals.idle_memory as f64 / 1e6 / GIB,
            decision_p50_us: decision.map(|took| f64::from(*took) / 1e3),
            lends: totals.lends,
            borrows: totals.borrows,
            safeguards: totals.safeguards,
            recalls_by_force: totals.ended,
            ooms: records.iter().map(|record| u64::from(record.ooms)).sum(),
            cold_starts: records.iter().filter(|record| record.is_cold).count(),
        }
    }
}

fn seconds(microseconds: u64) -> f64 {
    microseconds as f64 / 1e6
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// The least value that at least this share of sorted values does not exceed; 0 if there are none.
pub fn percentile(sorted: &[u64], share: f64) -> u64 {
    let rank = (share.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(0)
}

/// The share by which a call took longer than without harvesting. 0 if it failed in either run.
fn slowdown(record: &Record, without: &Record) -> f64 {
    let (now, before) = (record.response_us() as f64, without.response_us() as f64);
    let counts = before > 0.0 && !record.is_failed && !without.is_failed;
    if counts { now / before - 1.0 } else { 0.0 }
}

/// The largest share by which a call took longer than without harvesting.
fn worst_degradation(records: &[Record], without: &[Record]) -> f64 {
    let slowdowns = records
        .iter()
        .zip(without)
        .map(|(record, other)| slowdown(record, other));
    slowdowns.fold(0.0, f64::max)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} with scheduler {} on {} nodes of {} cores, {} shards, seed {}",
            self.policy,
            self.scheduler.name(),
            self.nodes,
            self.cores,
            self.shards,
            self.seed
        )?;
        writeln!(f, "  calls          {:>10}  {} failed", self.calls, self.failed)?;
        writeln!(f, "  p99            {:>10.3} s", self.p99_s)?;
        writeln!(f, "  p50            {:>10.3} s", self.p50_s)?;
        writeln!(f, "  mean           {:>10.3} s", self.mean_s)?;
        writeln!(f, "  completion     {:>10.3} s", self.completion_s)?;
        if let Some(worst) = self.worst_degradation {
            writeln!(f, "  slowed by      {:>10.2} % at worst", worst * 100.0)?;
        }
        if let Some(slowed) = self.slowed.filter(|slowed| slowed.count() > 0) {
            writeln!(
                f,
                "  slowed calls   {:>10}  {} in a queue, {} by a new worker, {} by memory, {} while they ran",
                slowed.count(),
                slowed.queue,
                slowed.cold_start,
                slowed.memory,
                slowed.running
            )?;
        }
        writeln!(f, "  processor use  {:>10.2} %", self.cpu_use * 100.0)?;
        writeln!(f, "  memory use     {:>10.2} %", self.memory_use * 100.0)?;
        writeln!(
            f,
            "  harvested idle {:>10.3} core-seconds, {:.3} GiB-seconds",
            self.idle_core_s, self.idle_memory_gib_s
        )?;
        if let Some(took) = self.decision_p50_us {
            writeln!(f, "  one decision   {took:>10.2} us")?;
        }
        write!(
            f,
            "  {} offers, {} loans, {} recalled by the safeguard, {} borrowers ended, {} out of memory, {} cold starts",
            self.lends, self.borrows, self.safeguards, self.recalls_by_force, self.ooms, self.cold_starts
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(started_us: u64, ended_us: u64) -> Record {
        Record {
            started_us,
            ended_us,
            attempts: 1,
            ..Record::default()
        }
    }

    #[test]
    fn slowed_calls_are_counted_by_reason() {
        let without = record(0, 100_000);
        let cold = Record {
            is_cold: true,
            ..record(0, 106_000)
        };
        let ended = Record {
            attempts: 2,
            ..record(0, 200_000)
        };
        let records = [
            record(5_000, 105_000),
            cold,
            ended,
            record(0, 110_000),
            record(0, 100_900),
        ];
        let expected = Slowed {
            queue: 1,
            cold_start: 1,
            memory: 1,
            running: 1,
        };
        assert_eq!(Slowed::new(&records, &[without; 5]), expected);
        assert_eq!(worst_degradation(&records, &[without; 5]), 1.0);
    }
}
