//! `dayfly bench reject`: time to a rejection while every core of warm workers is busy.

use std::fmt;
use std::time::{Duration, Instant};

use dayfly_client::{Client, Lease, LeaseOptions, Mode, Sandbox};
use dayfly_protocol::error::Code;
use serde::Serialize;

use crate::busy::{Noise, Watch};
use crate::error::Error;
use crate::machine::Machine;
use crate::report::footer;
use crate::stats::{Samples, Summary};
use crate::subject::{failed, open};
use crate::table::{Table, duration};

/// Options of the measurement.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Number of rejected calls of each kind.
    pub calls: usize,
    /// Sandbox of the workers.
    pub sandbox: Sandbox,
    /// Report figures even if the machine was busy.
    pub force: bool,
}

/// The result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RejectReport {
    /// Rejections while functions compute on every shared core.
    pub computing: Summary,
    /// Rejections while functions occupy every shared core and sleep.
    pub waiting: Summary,
    /// A call that runs on the same worker while no other call does. The worker wakes up in the same way.
    pub running: Summary,
    /// Cores that warm workers share.
    pub cores: u16,
    /// Sandbox of the workers.
    pub sandbox: String,
    /// The machine.
    pub machine: Machine,
    /// Other work on the machine during the measurement.
    pub noise: Noise,
}

const QUIET: Duration = Duration::from_millis(300);
/// Time after which a worker is asleep again.
const SETTLE: Duration = Duration::from_micros(200);
/// Time for which functions occupy cores in one measurement.
const TAKEN_MS: u32 = 600_000;

/// Measures on the client's only node.
pub fn run(client: &Client, mine: &[u32], options: Options) -> Result<RejectReport, Error> {
    let node = client.nodes().map_err(failed)?;
    let node = node.first().ok_or_else(|| failed("there is no node"))?;
    // Lease all cores: no worker is hot.
    let cores = node.capacity.cores + 1;
    let noise = Watch::look(QUIET, mine).judge(options.force)?;
    Ok(RejectReport {
        computing: rejected(client, cores, "compute", options)?,
        waiting: rejected(client, cores, "doze", options)?,
        running: {
            let lease = lease(client, 1, options.sandbox)?;
            let (mut channel, echo) = open(&lease, 0, "echo")?;
            timed(options.calls, || channel.call(echo, b"").map(drop).map_err(failed))?
        },
        cores,
        sandbox: options.sandbox.name().into(),
        machine: Machine::this(),
        noise,
    })
}

fn rejected(client: &Client, cores: u16, taken_by: &str, options: Options) -> Result<Summary, Error> {
    let lease = lease(client, cores + 1, options.sandbox)?;
    let mut taken = Vec::new();
    for core in 0..cores {
        let (mut channel, function) = open(&lease, core, taken_by)?;
        channel.submit(function, &TAKEN_MS.to_ne_bytes(), 0).map_err(failed)?;
        taken.push(channel);
    }
    let (mut channel, echo) = open(&lease, cores, "echo")?;
    channel.set_rejectable(true);
    // The other workers claim cores one after the other. This one must not be the first.
    let until = Instant::now() + Duration::from_secs(5);
    while channel.call(echo, b"").is_ok() {
        if Instant::now() > until {
            return Err(failed("the worker found a core although all are taken"));
        }
        std::thread::sleep(SETTLE);
    }
    timed(options.calls, || match channel.call(echo, b"") {
        Err(error) if error.code() == Code::Rejected => Ok(()),
        Err(error) => Err(failed(error.failure)),
        Ok(_) => Err(failed("the call ran although all cores are taken")),
    })
}

fn timed(calls: usize, mut call: impl FnMut() -> Result<(), Error>) -> Result<Summary, Error> {
    let mut samples = Samples::with_capacity(calls);
    for _ in 0..calls.max(1) {
        std::thread::sleep(SETTLE);
        let begun = Instant::now();
        call()?;
        samples.push_ns(begun.elapsed().as_nanos() as f64);
    }
    Ok(samples.summary())
}

fn lease(client: &Client, workers: u16, sandbox: Sandbox) -> Result<Lease, Error> {
    let mut wanted = LeaseOptions::native(workers);
    wanted.mode = Mode::Warm;
    wanted.hot_for = Some(Duration::ZERO);
    wanted.sandbox = Some(sandbox);
    client.lease(wanted).map_err(failed)
}

impl fmt::Display for RejectReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!(
            "a warm call that finds no core, {} shared, sandbox {}",
            self.cores, self.sandbox
        );
        let mut table = Table::new(&title, &["", "min", "p50", "p99", "max"]);
        for (name, times) in [
            ("rejected, cores taken by computing", &self.computing),
            ("rejected, cores taken by waiting", &self.waiting),
            ("a call that runs", &self.running),
        ] {
            let times = [times.min_ns, times.p50_ns, times.p99_ns, times.max_ns].map(duration);
            table.row([name.to_owned()].into_iter().chain(times));
        }
        writeln!(f, "{table}")?;
        footer(f, &self.machine, &self.noise)
    }
}
