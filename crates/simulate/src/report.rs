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

/// The largest share by which a call took longer than without harvesting.
fn worst_degradation(records: &[Record], without: &[Record]) -> f64 {
    let slowdown = |(record, other): (&Record, &Record)| {
        let (now, before) = (record.response_us() as f64, other.response_us() as f64);
        let counts = before > 0.0 && !record.is_failed && !other.is_failed;
        if counts { now / before - 1.0 } else { 0.0 }
    };
    records.iter().zip(without).map(slowdown).fold(0.0, f64::max)
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
