//! `dayfly bench control`: lease grants per second of one manager with thousands of registered nodes.
//!
//! The manager is real and has its own process. The nodes are simulated: each has its own connection to the real API.

mod https;
mod simulated;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dayfly_protocol::api::{Connection, JoinToken, JoinTokenRequest, LeaseRequest, Mode};
use dayfly_protocol::ids::PublicKey;
use hyper::Method;
use serde::Serialize;

use crate::busy::{Noise, Watch};
use crate::error::Error;
use crate::machine::Machine;
use crate::proc;
use crate::report::{Millis, footer};
use crate::stats::Samples;
use crate::table::{Table, duration, rate};
use https::{Requests, Site};
use simulated::Counts;

/// Options of the measurement.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Number of simulated nodes.
    pub nodes: u32,
    /// Number of clients. Each requests one lease after the other.
    pub clients: u32,
    /// Duration of each part.
    pub each: Duration,
    /// Report figures even if the machine was busy.
    pub force: bool,
}

/// Requests of one kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Load {
    /// Responses per second to all clients together.
    pub per_s: f64,
    /// Time from a request to its response.
    pub latency: Millis,
    /// The manager's processor time, in percent of one core.
    pub cpu_percent: f64,
}

/// The result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ControlReport {
    /// Leases granted each second.
    pub grants_per_s: f64,
    /// 99th percentile of the time of a grant, in milliseconds.
    pub p99_ms: f64,
    /// The manager's processor time for heartbeats alone, in percent of one core.
    pub heartbeat_cpu_percent: f64,
    /// Heartbeats per second.
    pub heartbeats_per_s: f64,
    /// Grants.
    pub grants: Load,
    /// The baseline: requests without work, over the same connections in the same run.
    pub requests: Load,
    /// Nodes.
    pub nodes: u32,
    /// Clients.
    pub clients: u32,
    /// Time until all nodes were registered, in seconds.
    pub joined_s: f64,
    /// Memory of the manager with all nodes, in bytes.
    pub memory_bytes: u64,
    /// The machine.
    pub machine: Machine,
    /// Other work on the machine during the measurement.
    pub noise: Noise,
}

const QUIET: Duration = Duration::from_millis(300);
/// Nodes that join in parallel.
const JOINING: u32 = 32;
/// Longer than any measurement.
const LEASE_MS: u64 = 3_600_000;

/// Measures the manager with process id `pid` at this connection. It must have no other clients.
pub fn run(connection: &Connection, pid: u32, options: Options) -> Result<ControlReport, Error> {
    let noise = Watch::look(QUIET, &[pid]).judge(options.force)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(Error::os("start a runtime"))?;
    runtime.block_on(measure(connection, pid, options, noise))
}

async fn measure(connection: &Connection, pid: u32, options: Options, noise: Noise) -> Result<ControlReport, Error> {
    let site = Arc::new(Site::new(connection)?);
    let counts = Arc::new(Counts::default());
    let begun = Instant::now();
    let joining = (0..JOINING).map(|first| {
        let (site, counts) = (Arc::clone(&site), Arc::clone(&counts));
        tokio::spawn(async move {
            let mut requests = site.requests().await?;
            for number in (first..options.nodes).step_by(JOINING as usize) {
                let token = join_token(&mut requests).await?;
                simulated::join(Arc::clone(&site), number, token, Arc::clone(&counts)).await?;
            }
            Ok::<_, Error>(())
        })
    });
    for joined in joining.collect::<Vec<_>>() {
        joined.await.map_err(|error| Error::Subject(error.to_string()))??;
    }
    let joined_s = begun.elapsed().as_secs_f64();

    let (beats, used, since) = (counts.heartbeats.load(Ordering::Relaxed), cpu_s(pid)?, Instant::now());
    tokio::time::sleep(options.each).await;
    let passed = since.elapsed().as_secs_f64();
    let heartbeat_cpu_percent = (cpu_s(pid)? - used) / passed * 100.0;
    let heartbeats_per_s = (counts.heartbeats.load(Ordering::Relaxed) - beats) as f64 / passed;

    let requests = load(&site, pid, options, Method::GET, "/v1/version", String::new(), 200).await?;
    let wanted = LeaseRequest::native(1, Mode::Warm, LEASE_MS, PublicKey([7; 32]));
    let wanted = serde_json::to_string(&wanted).map_err(|error| Error::Subject(error.to_string()))?;
    let grants = load(&site, pid, options, Method::POST, "/v1/leases", wanted, 201).await?;
    match counts.broken.load(Ordering::Relaxed) {
        0 => {}
        broken => {
            return Err(Error::Subject(format!(
                "{broken} simulated nodes lost their connection"
            )));
        }
    }
    Ok(ControlReport {
        grants_per_s: grants.per_s,
        p99_ms: grants.latency.p99_ms,
        heartbeat_cpu_percent,
        heartbeats_per_s,
        grants,
        requests,
        nodes: options.nodes,
        clients: options.clients,
        joined_s,
        memory_bytes: proc::resident_bytes(pid).map_err(Error::os("read the manager's memory"))?,
        machine: Machine::this(),
        noise,
    })
}

async fn join_token(requests: &mut Requests) -> Result<String, Error> {
    let wanted = JoinTokenRequest { valid_for_ms: 60_000 };
    let wanted = serde_json::to_string(&wanted).map_err(|error| Error::Subject(error.to_string()))?;
    let (status, response) = requests.send(Method::POST, "/v1/nodes/join-tokens", wanted).await?;
    match serde_json::from_slice::<JoinToken>(&response) {
        Ok(token) => Ok(token.token),
        Err(_) => Err(unexpected(status, &response)),
    }
}

fn unexpected(status: u16, response: &[u8]) -> Error {
    Error::Subject(format!(
        "the manager returned status {status}: {}",
        String::from_utf8_lossy(response)
    ))
}

fn cpu_s(pid: u32) -> Result<f64, Error> {
    proc::cpu_s(pid).map_err(Error::os("read the manager's processor time"))
}

/// Sends the same request from many clients, one after the other in each.
async fn load(
    site: &Arc<Site>,
    pid: u32,
    options: Options,
    method: Method,
    path: &'static str,
    body: String,
    wanted: u16,
) -> Result<Load, Error> {
    let mut clients = Vec::new();
    for _ in 0..options.clients {
        clients.push(site.requests().await?);
    }
    let (used, since) = (cpu_s(pid)?, Instant::now());
    let asking = clients.into_iter().map(|mut client| {
        let (method, body) = (method.clone(), body.clone());
        tokio::spawn(async move {
            let mut times = Vec::new();
            while since.elapsed() < options.each {
                let asked = Instant::now();
                let (status, response) = client.send(method.clone(), path, body.clone()).await?;
                times.push(asked.elapsed());
                if status != wanted {
                    return Err(unexpected(status, &response));
                }
            }
            Ok(times)
        })
    });
    let mut samples = Samples::with_capacity(1 << 16);
    for asked in asking.collect::<Vec<_>>() {
        let times = asked.await.map_err(|error| Error::Subject(error.to_string()))??;
        times.iter().for_each(|time| samples.push_ns(time.as_nanos() as f64));
    }
    let passed = since.elapsed().as_secs_f64();
    Ok(Load {
        per_s: samples.len() as f64 / passed,
        latency: samples.summary().into(),
        cpu_percent: (cpu_s(pid)? - used) / passed * 100.0,
    })
}

impl fmt::Display for ControlReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!("one manager, {} nodes, {} clients", self.nodes, self.clients);
        let mut table = Table::new(&title, &["", "a second", "p50", "p99", "max", "manager's cpu"]);
        for (name, load) in [("grants", &self.grants), ("requests without work", &self.requests)] {
            let times = [load.latency.p50_ms, load.latency.p99_ms, load.latency.max_ms].map(|ms| duration(ms * 1e6));
            let cells = [name.to_owned(), rate(load.per_s)].into_iter().chain(times);
            table.row(cells.chain([format!("{:.0} %", load.cpu_percent)]));
        }
        let none = || String::from("-");
        table.row([
            "heartbeats".to_owned(),
            rate(self.heartbeats_per_s),
            none(),
            none(),
            none(),
            format!("{:.1} %", self.heartbeat_cpu_percent),
        ]);
        writeln!(f, "{table}")?;
        writeln!(
            f,
            "All nodes had joined after {:.1} s; the manager then held {} MiB.",
            self.joined_s,
            self.memory_bytes >> 20
        )?;
        footer(f, &self.machine, &self.noise)
    }
}
