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

/// Options of the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// Runtime of the worker.
    pub runtime: Runtime,
    /// Code and format of the function; `None` for the benchmark's own C function.
    pub function: Option<(Vec<u8>, Form, Vec<u8>)>,
    /// Number of cold starts.
    pub calls: usize,
    /// Executors that the node keeps parked. A burst takes all of them; then the pool refills.
    pub pool: usize,
    /// Sandbox of the worker.
    pub sandbox: Sandbox,
    /// Image of a container.
    pub image: Option<String>,
    /// Clients that start workers in parallel, to measure a rate; 0 for no rate.
    pub parallel: usize,
    /// Report figures even if the machine was busy.
    pub force: bool,
}

/// Pause between two bursts of starts from a warm pool, in which the node replaces executors. It waits 100 ms
/// first, and a Python interpreter with its imports takes another 100 ms.
const REFILL: Duration = Duration::from_millis(300);
/// Interpreters start on all cores at once, and there are few cores.
const REFILL_EACH: Duration = Duration::from_millis(150);

/// Limit for unpacking an image.
const UNPACKED: Duration = Duration::from_secs(20);

/// Time to watch the machine before the measurement.
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
    // Processes of a cold start have no id in advance, so the machine is judged beforehand.
    let noise = Watch::look(QUIET, mine).judge(options.force)?;
    let mut lease_options = LeaseOptions::native(1);
    lease_options.runtime = options.runtime.clone();
    lease_options.mode = Mode::Warm;
    lease_options.sandbox = Some(options.sandbox);
    lease_options.image.clone_from(&options.image);
    // The first start waits until the image is unpacked.
    lease_options.wait = UNPACKED;
    lease_options.hot_for = Some(Duration::ZERO);
    // The first start sends the code and starts the interpreter. It is not counted.
    for round in 0..=options.calls.max(2) {
        // The first start of a burst finds halted processors and cold caches. It is counted separately.
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

/// Makes one cold start, from the request for a lease to the first result. Returns the times of its stages.
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

/// Returns starts per second of parallel clients. Each starts, calls and releases one worker after another.
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
