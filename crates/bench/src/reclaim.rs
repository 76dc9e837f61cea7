//! `dayfly bench reclaim`: time to reclaim a node, and time to the first call after it is returned.

use std::fmt;
use std::time::{Duration, Instant};

use dayfly_client::{Client, Form, LeaseOptions, Mode, PoolOptions, Sandbox, WorkerIndex};
use serde::Serialize;

use crate::busy::{Noise, Watch};
use crate::error::Error;
use crate::machine::Machine;
use crate::report::{Millis, footer};
use crate::stats::Samples;
use crate::subject::{FUNCTIONS, failed, open};
use crate::table::{Table, duration};

/// Options of the measurement.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Workers with open channels when the node is reclaimed.
    pub workers: u16,
    /// Their sandbox.
    pub sandbox: Sandbox,
    /// Number of repetitions.
    pub rounds: usize,
    /// Report figures even if the machine was busy.
    pub force: bool,
}

/// The result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReclaimReport {
    /// Time from the node's receipt of the order until its leases have ended, without grace.
    pub empty: Millis,
    /// Time from the request to the response, with the last bill booked.
    pub answered: Millis,
    /// Time from the request that returns the node until a waiting client has its first result.
    pub first_call: Millis,
    /// Workers in each repetition.
    pub workers: u16,
    /// Their sandbox.
    pub sandbox: String,
    /// The machine.
    pub machine: Machine,
    /// Other work on the machine during the measurement.
    pub noise: Noise,
}

const QUIET: Duration = Duration::from_millis(300);
/// Time after which a client surely waits for room.
const SETTLE: Duration = Duration::from_millis(100);
const WAIT: Duration = Duration::from_secs(15);

/// Measures on the client's only node.
pub fn run(client: &Client, mine: &[u32], options: Options) -> Result<ReclaimReport, Error> {
    let nodes = client.nodes().map_err(failed)?;
    let node = nodes.first().ok_or_else(|| failed("there is no node"))?.address.id;
    let noise = Watch::look(QUIET, mine).judge(options.force)?;
    let mut empty = Samples::with_capacity(options.rounds);
    let mut answered = Samples::with_capacity(options.rounds);
    let mut first_call = Samples::with_capacity(options.rounds);
    let ns = |time: Duration| time.as_nanos() as f64;
    for _ in 0..options.rounds.max(1) {
        let mut wanted = LeaseOptions::native(options.workers);
        wanted.mode = Mode::Warm;
        wanted.hot_for = Some(Duration::ZERO);
        wanted.sandbox = Some(options.sandbox);
        let lease = client.lease(wanted).map_err(failed)?;
        let code = lease.put_code(FUNCTIONS).map_err(failed)?;
        let pool = lease.pool(PoolOptions::default()).map_err(failed)?;
        let form = Form::Plain { symbol: "echo".into() };
        let echo = pool.register(code, form).map_err(failed)?;
        for worker in 0..options.workers {
            let on = dayfly_client::CallOptions {
                worker: Some(WorkerIndex(worker)),
                ..Default::default()
            };
            pool.call(echo, &b"x"[..], on).map_err(|error| failed(error.failure))?;
        }
        let begun = Instant::now();
        let reclaimed = client.reclaim_node(node, Duration::ZERO).map_err(failed)?;
        answered.push_ns(ns(begun.elapsed()));
        empty.push_ns(reclaimed.empty_ms * 1e6);
        drop((pool, lease));
        let waiter = client.clone();
        let sandbox = options.sandbox;
        let waiting = std::thread::spawn(move || first_result(&waiter, sandbox));
        std::thread::sleep(SETTLE);
        let begun = Instant::now();
        client.resume_node(node).map_err(failed)?;
        let ended = waiting.join().map_err(|_| failed("the waiting client panicked"))??;
        first_call.push_ns(ns(ended.saturating_duration_since(begun)));
    }
    Ok(ReclaimReport {
        empty: empty.summary().into(),
        answered: answered.summary().into(),
        first_call: first_call.summary().into(),
        workers: options.workers,
        sandbox: options.sandbox.name().into(),
        machine: Machine::this(),
        noise,
    })
}

/// Waits for room. Returns the time of the first call's result.
fn first_result(client: &Client, sandbox: Sandbox) -> Result<Instant, Error> {
    let mut wanted = LeaseOptions::native(1);
    wanted.mode = Mode::Warm;
    wanted.sandbox = Some(sandbox);
    wanted.wait = WAIT;
    let lease = client.lease(wanted).map_err(failed)?;
    let (mut channel, echo) = open(&lease, 0, "echo")?;
    channel.call(echo, b"x").map_err(failed)?;
    let ended = Instant::now();
    drop(channel);
    lease.release().map_err(failed)?;
    Ok(ended)
}

impl fmt::Display for ReclaimReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!(
            "taking back a node with {} workers, sandbox {}",
            self.workers, self.sandbox
        );
        let mut table = Table::new(&title, &["", "min", "p50", "p99", "max"]);
        for (name, time) in [
            ("empty", &self.empty),
            ("responded, with the bill", &self.answered),
            ("given back: first call", &self.first_call),
        ] {
            let times = [time.min_ms, time.p50_ms, time.p99_ms, time.max_ms].map(|ms| duration(ms * 1e6));
            table.row([name.to_owned()].into_iter().chain(times));
        }
        writeln!(f, "{table}")?;
        footer(f, &self.machine, &self.noise)
    }
}
