//! `dayfly bench offload`: a loop shared between this program and leased workers, beside the same loop without them.

use std::fmt;
use std::time::{Duration, Instant};

use dayfly_client::offload::{Estimate, Offload, Split};
use dayfly_client::{CallOptions, Client, Form, FunctionId, LeaseOptions, Mode, Pool};
use serde::Serialize;

use crate::busy::{Noise, Watch};
use crate::error::Error;
use crate::machine::Machine;
use crate::report::footer;
use crate::stats::{Samples, Summary};
use crate::subject::{FUNCTIONS, failed, settle};
use crate::table::{Table, duration};

/// Options of the measurement.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Calls of a step.
    pub calls: usize,
    /// Computing time of a call.
    pub work: Duration,
    /// Bytes of a call's input.
    pub size: usize,
    /// Steps of each kind.
    pub steps: usize,
    /// Leased workers.
    pub workers: u16,
    /// Whether they poll.
    pub hot: bool,
    /// Print what the planner knows.
    pub explain: bool,
    /// Report figures even if the machine was busy.
    pub force: bool,
}

/// What the planner knows of one worker, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Worker {
    /// The worker.
    pub worker: u32,
    /// `L`: latency in one direction.
    pub latency_ns: f64,
    /// `o`: work of the program to send or to receive.
    pub overhead_ns: f64,
    /// `g`: least time between two calls.
    pub gap_ns: f64,
    /// `G`: time of a KiB.
    pub per_kib_ns: f64,
    /// Median time of the function.
    pub run_ns: f64,
    /// Time of 95 % of the calls.
    pub run_p95_ns: f64,
}

/// The result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OffloadReport {
    /// Steps without workers.
    pub local: Summary,
    /// Steps with workers, after the first tenth of them.
    pub shared: Summary,
    /// Median step without workers, divided by the median step with them.
    pub speedup: f64,
    /// Time that a step waited for workers.
    pub waited: Summary,
    /// Calls of a step.
    pub calls: usize,
    /// Bytes of a call's input.
    pub size: usize,
    /// Leased workers.
    pub workers: u16,
    /// Calls of the last step that the program computed.
    pub kept: u64,
    /// Calls of the last step that were sent.
    pub sent: u64,
    /// Predicted time of the last step, in nanoseconds.
    pub predicted_ns: f64,
    /// Why the calls were divided so.
    pub reason: &'static str,
    /// Median time of a call in this program, in nanoseconds.
    pub local_call_ns: f64,
    /// What the planner knows of each worker.
    pub known: Vec<Worker>,
    /// Whether every result was the same on both sides.
    pub checked: bool,
    /// Print what the planner knows.
    #[serde(skip)]
    pub explain: bool,
    /// The machine.
    pub machine: Machine,
    /// Other work on the machine before the measurement.
    pub noise: Noise,
}

const QUIET: Duration = Duration::from_millis(300);
const MIN_INPUT_BYTES: usize = 16;

/// The function of `bench.c` in this program.
fn rounds(input: &[u8]) -> Vec<u8> {
    let number = |at: usize| {
        input
            .get(at..at + 8)
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, u64::from_ne_bytes)
    };
    let mut value = number(8).wrapping_add(1);
    for _ in 0..number(0) {
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
    }
    value.to_ne_bytes().to_vec()
}

/// Inputs of a step: `count` calls of `rounds` rounds each.
fn inputs(count: usize, size: usize, rounds: u64) -> Vec<Vec<u8>> {
    let of = |index: usize| {
        let mut input = vec![0; size.max(MIN_INPUT_BYTES)];
        input[..8].copy_from_slice(&rounds.to_ne_bytes());
        input[8..16].copy_from_slice(&(index as u64).to_ne_bytes());
        input
    };
    (0..count).map(of).collect()
}

/// Number of rounds that take `work`.
fn rounds_in(work: Duration) -> u64 {
    const TRIED: u64 = 1_000_000;
    let once = || {
        let begun = Instant::now();
        std::hint::black_box(rounds(&inputs(1, MIN_INPUT_BYTES, TRIED)[0]));
        begun.elapsed()
    };
    let fastest = (0..5).map(|_| once()).min().unwrap_or_default();
    (work.as_secs_f64() / fastest.as_secs_f64().max(1e-9) * TRIED as f64) as u64
}

/// Measures on a lease of the client.
pub fn run(client: &Client, mine: &[u32], options: Options) -> Result<OffloadReport, Error> {
    let noise = Watch::look(QUIET, mine).judge(options.force)?;
    settle()?;
    let mut wanted = LeaseOptions::native(options.workers);
    wanted.mode = if options.hot { Mode::Hot } else { Mode::Warm };
    let lease = client.lease(wanted).map_err(failed)?;
    let code = lease.put_code(FUNCTIONS).map_err(failed)?;
    let pool = lease.pool(Default::default()).map_err(failed)?;
    let form = Form::Plain {
        symbol: "rounds".into(),
    };
    let function = pool.register(code, form).map_err(failed)?;
    measure(&pool, function, options, noise)
}

fn measure(pool: &Pool, function: FunctionId, options: Options, noise: Noise) -> Result<OffloadReport, Error> {
    let inputs = inputs(options.calls.max(2), options.size, rounds_in(options.work));
    let offload = Offload::new();
    let steps = options.steps.max(10);
    let (mut local, mut shared) = (Samples::with_capacity(steps), Samples::with_capacity(steps));
    let mut waited = Samples::with_capacity(steps);
    let mut checked = true;
    let mut last: Option<Split> = None;
    for step in 0..steps {
        let begun = Instant::now();
        let alone: Vec<Vec<u8>> = inputs.iter().map(|input| rounds(input)).collect();
        local.push_ns(begun.elapsed().as_nanos() as f64);
        let begun = Instant::now();
        let options = CallOptions::default();
        let result = offload.share(pool, function, &inputs, options, rounds);
        let took = begun.elapsed();
        let result = result.map_err(|error| failed(error.failure))?;
        checked &= result.outputs == alone;
        // The first steps learn.
        if step >= steps / 10 {
            shared.push_ns(took.as_nanos() as f64);
            waited.push_ns(result.waited.as_nanos() as f64);
        }
        last = Some(result.split);
    }
    let split = last.ok_or_else(|| failed("there were no steps"))?;
    let bytes = options.size.max(MIN_INPUT_BYTES) as u64;
    let (local, shared) = (local.summary(), shared.summary());
    Ok(OffloadReport {
        speedup: local.p50_ns / shared.p50_ns,
        local,
        shared,
        waited: waited.summary(),
        calls: inputs.len(),
        size: options.size,
        workers: options.workers,
        kept: split.local,
        sent: split.remote_total(),
        predicted_ns: split.local_seconds.max(split.remote_seconds) * 1e9,
        reason: split.reason.explanation(),
        local_call_ns: offload
            .local(u64::from(function.0), bytes)
            .map_or(0.0, |times| times.0 * 1e9),
        known: offload
            .estimates(u64::from(function.0), bytes)
            .iter()
            .filter_map(worker)
            .collect(),
        checked,
        explain: options.explain,
        machine: Machine::this(),
        noise,
    })
}

fn worker(estimate: &Estimate) -> Option<Worker> {
    let network = estimate.network?;
    Some(Worker {
        worker: estimate.channel,
        latency_ns: network.latency * 1e9,
        overhead_ns: network.overhead * 1e9,
        gap_ns: network.gap * 1e9,
        per_kib_ns: network.per_byte * 1e9 * 1024.0,
        run_ns: estimate.run.unwrap_or(0.0) * 1e9,
        run_p95_ns: estimate.run_p95.unwrap_or(0.0) * 1e9,
    })
}

impl OffloadReport {
    fn explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(
            "what the planner knows",
            &["worker", "L", "o", "g", "G of a KiB", "run p50", "run p95"],
        );
        for known in &self.known {
            let times = [
                known.latency_ns,
                known.overhead_ns,
                known.gap_ns,
                known.per_kib_ns,
                known.run_ns,
                known.run_p95_ns,
            ];
            table.row([known.worker.to_string()].into_iter().chain(times.map(duration)));
        }
        writeln!(f, "{table}")?;
        writeln!(
            f,
            "The program keeps {} of {} calls of {} and sends {}: {}.",
            self.kept,
            self.calls,
            duration(self.local_call_ns),
            self.sent,
            self.reason,
        )?;
        if let Some(known) = self.known.first() {
            writeln!(
                f,
                "N_local * T_local >= T_inv + L: {} of local work, and {} for one call there and back.",
                duration(self.kept as f64 * self.local_call_ns),
                duration(known.run_ns + 2.0 * (known.latency_ns + known.overhead_ns)),
            )?;
        }
        writeln!(
            f,
            "Predicted step: {}; median: {}.\n",
            duration(self.predicted_ns),
            duration(self.shared.p50_ns)
        )
    }
}

impl fmt::Display for OffloadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!("a loop of {} calls, {} leased", self.calls, self.workers);
        let mut table = Table::new(&title, &["", "min", "p50", "p99", "max"]);
        for (name, times) in [
            ("without workers", &self.local),
            ("with workers", &self.shared),
            ("of it waiting", &self.waited),
        ] {
            let times = [times.min_ns, times.p50_ns, times.p99_ns, times.max_ns].map(duration);
            table.row([name.to_owned()].into_iter().chain(times));
        }
        writeln!(f, "{table}")?;
        let results = if self.checked { "the same" } else { "DIFFERENT" };
        writeln!(f, "{:.2} times as fast; the results are {results}.\n", self.speedup)?;
        if self.explain {
            self.explain(f)?;
        }
        footer(f, &self.machine, &self.noise)
    }
}
