//! `dayfly bench cold`: from the request for a lease to the first result, stage by stage.

use std::time::Duration;

use dayfly_client::{ChannelOptions, Client, CodeHash, Form, LeaseOptions, Mode, Runtime, Sandbox, WorkerIndex};

use crate::alternate::{Plan, measure};
use crate::baseline::{Baseline, Spawn};
use crate::busy::Watch;
use crate::error::Error;
use crate::report::{ColdReport, Millis, Named, Stages};
use crate::stats::Samples;
use crate::subject::{FUNCTIONS, failed};
use crate::tsc::Tsc;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// What the worker runs.
    pub runtime: Runtime,
    /// Code and form of the function; none for the benchmark's own C function.
    pub function: Option<(Vec<u8>, Form, Vec<u8>)>,
    /// Cold starts to measure.
    pub calls: usize,
    /// Executors that the node keeps parked. So many are taken one after another; then the pool may fill again.
    pub pool: usize,
    /// How isolated the worker is.
    pub sandbox: Sandbox,
    /// Image of a container.
    pub image: Option<String>,
    /// Clients that start workers side by side, for a rate; 0 for none.
    pub parallel: usize,
    /// Report although the machine was busy.
    pub force: bool,
}

/// Between two bursts of starts from a warm pool: time for the node to make up for an executor taken. It waits 100 ms
/// before it does, and a Python interpreter with its imports takes some 100 ms more.
const REFILL: Duration = Duration::from_millis(300);
/// Interpreters start on all cores at once, and these have few.
const REFILL_EACH: Duration = Duration::from_millis(150);

/// An image is unpacked by then.
const UNPACKED: Duration = Duration::from_secs(20);

/// How long the machine is watched first.
const QUIET: Duration = Duration::from_millis(300);

/// Measures.
pub fn run(client: &Client, mine: &[u32], options: &Options) -> Result<ColdReport, Error> {
    let (code, form, input) = options.function.clone().unwrap_or_else(|| {
        (
            FUNCTIONS.to_vec(),
            Form::Checked {
                symbol: "echo_checked".into(),
            },
            vec![7; 64],
        )
    });
    let mut baseline = Spawn::new()?;
    let raw = measure(&mut baseline, Plan::of_calls(options.calls.max(20)))?.summary();
    let python = !matches!(options.runtime, Runtime::Native);
    let mut stages =
        ["lease", "code", "connect", "load", "invoke"].map(|name| (name, Samples::with_capacity(options.calls)));
    let mut total = Samples::with_capacity(options.calls);
    let mut after_idle = Samples::with_capacity(options.calls);
    // What a cold start starts is ours but has no process id before it starts: the machine is judged beforehand.
    let noise = Watch::look(QUIET, mine).judge(options.force)?;
    let mut lease_options = LeaseOptions::native(1);
    lease_options.runtime = options.runtime.clone();
    lease_options.mode = Mode::Warm;
    lease_options.sandbox = Some(options.sandbox);
    lease_options.image.clone_from(&options.image);
    // Until the image is unpacked, the first time.
    lease_options.wait = UNPACKED;
    lease_options.hot_for = Some(Duration::ZERO);
    // The first start of all makes the node learn the code and the interpreter; it is not counted.
    for round in 0..=options.calls.max(2) {
        // The first of a burst meets a machine that slept: processors halted, caches cold. It is counted apart.
        let is_first = round > 0 && options.pool > 0 && (round - 1).is_multiple_of(options.pool);
        if is_first {
            std::thread::sleep(REFILL + REFILL_EACH * options.pool as u32);
        }
        let ticks = start(client, &lease_options, &code, &form, &input)?;
        if is_first {
            after_idle.push(ticks[5] - ticks[0]);
        } else if round > 0 {
            for (stage, pair) in stages.iter_mut().zip(ticks.windows(2)) {
                stage.1.push(pair[1] - pair[0]);
            }
            total.push(ticks[5] - ticks[0]);
        }
    }
    let starts_per_s = match options.parallel {
        0 => None,
        clients => Some(rate(clients, options.calls, || {
            start(client, &lease_options, &code, &form, &input).map(drop)
        })?),
    };
    let mut listed = Stages::default();
    for (name, samples) in &stages {
        listed.add(name, samples);
    }
    let total = Millis::from(total.summary());
    let baseline = Named {
        name: baseline.name().to_owned(),
        about: baseline.about(),
        latency: raw,
        per_s: None,
        bytes_per_s: None,
        share: None,
    };
    Ok(ColdReport {
        overhead_p50_ms: total.p50_ms - Millis::from(raw).p50_ms,
        total,
        stages: listed,
        baseline,
        language: if python { "python" } else { "c" }.into(),
        sandbox: options.sandbox.name().into(),
        pool: options.pool,
        starts_per_s,
        after_idle: (options.pool > 0).then(|| after_idle.summary().into()),
        machine: crate::machine::Machine::this(),
        noise,
    })
}

/// One cold start from the request for a lease to the first result, and the moments in between. The lease is given back.
fn start(client: &Client, options: &LeaseOptions, code: &[u8], form: &Form, input: &[u8]) -> Result<[u64; 6], Error> {
    let mut ticks = [0; 6];
    ticks[0] = Tsc::now();
    let lease = client.lease(options.clone()).map_err(failed)?;
    ticks[1] = Tsc::now();
    let hash: CodeHash = lease.put_code(code).map_err(failed)?;
    ticks[2] = Tsc::now();
    let mut channel = lease
        .channel(WorkerIndex(0), &ChannelOptions::default())
        .map_err(failed)?;
    ticks[3] = Tsc::now();
    let function = channel.load(hash, form).map_err(failed)?;
    ticks[4] = Tsc::now();
    drop(channel.call(function, input).map_err(failed)?);
    ticks[5] = Tsc::now();
    drop(channel);
    lease.release().map_err(failed)?;
    Ok(ticks)
}

/// Starts per second of so many clients side by side, each of which starts, calls and releases one worker after another.
fn rate(clients: usize, starts: usize, start: impl Fn() -> Result<(), Error> + Sync) -> Result<f64, Error> {
    let begun = std::time::Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients)
            .map(|_| scope.spawn(|| (0..starts).try_for_each(|_| start())))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            let ended = thread.join();
            ended.unwrap_or_else(|_| Err(failed("a client panicked")))
        })
    })?;
    Ok(((clients * starts) as f64 / begun.elapsed().as_secs_f64()).round())
}
