//! Terms of leases and of their channels, as Python passes them.

use std::time::Duration;

use dayfly_client::{
    Borrow, ChannelOptions, FleetOptions, Geometry, HostPath, LeaseChange, LeaseOptions, LoanTerms, MilliCores, Mode,
    Placement, PoolOptions, Runtime, Sandbox, Transport,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Lease options as Python passes them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Wanted {
    workers: u16,
    cores: f64,
    memory: u64,
    gpus: u16,
    duration: f64,
    mode: String,
    hot_for: Option<f64>,
    poll_for: f64,
    /// JSON, or empty for a lease that runs only shared libraries.
    runtime: String,
    idle_release: f64,
    node: Option<String>,
    sandbox: Option<String>,
    image: Option<String>,
    network: bool,
    lend: bool,
    borrow: String,
    /// Paths, and whether they are writable.
    files: Vec<(String, bool)>,
    wait: f64,
    traceparent: Option<String>,
}

impl Wanted {
    pub fn options(self) -> PyResult<LeaseOptions> {
        let node = self.node.map(|node| {
            node.parse()
                .map_err(|_| PyValueError::new_err(format!("{node} is not a node's id")))
        });
        Ok(LeaseOptions {
            workers: self.workers,
            cores_per_worker: worker_cores(self.cores)?,
            memory_bytes: self.memory,
            gpus_per_worker: self.gpus,
            duration: seconds(self.duration, "duration")?,
            mode: parse(&self.mode)?,
            hot_for: self.hot_for.map(|length| seconds(length, "hot_for")).transpose()?,
            poll_for: seconds(self.poll_for, "poll_for")?,
            runtime: match self.runtime.as_str() {
                "" => Runtime::Native,
                text => serde_json::from_str(text).map_err(|error| PyValueError::new_err(error.to_string()))?,
            },
            idle_release: seconds(self.idle_release, "idle_release")?,
            node: node.transpose()?,
            sandbox: self.sandbox.as_deref().map(level).transpose()?,
            image: self.image,
            network: self.network,
            output_by_call: false,
            loans: LoanTerms {
                lend: self.lend,
                borrow: borrow(&self.borrow)?,
            },
            wait: seconds(self.wait, "wait")?,
            traceparent: self.traceparent,
            files: self
                .files
                .into_iter()
                .map(|(path, writable)| HostPath { path, writable })
                .collect(),
        })
    }
}

/// Options of channels as Python passes them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Channels {
    transport: Option<String>,
    slots: u16,
    stride: u32,
    bulk: u64,
    spin: Option<f64>,
    depth: u16,
    retries: u8,
}

impl Channels {
    pub fn options(self) -> PyResult<PoolOptions> {
        let transport = match self.transport.as_deref() {
            None | Some("auto") => None,
            Some(other) => Some(
                other
                    .parse::<Transport>()
                    .map_err(|error| PyValueError::new_err(error.to_string()))?,
            ),
        };
        Ok(PoolOptions {
            channel: ChannelOptions {
                transport,
                geometry: Geometry {
                    slots: self.slots,
                    stride_bytes: self.stride,
                    bulk_bytes: self.bulk,
                },
                spin: self.spin.map(|length| seconds(length, "spin")).transpose()?,
            },
            retries: self.retries,
            depth: self.depth,
            remembers: false,
        })
    }
}

/// Bounds and times of a fleet as Python passes them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Bounds {
    min: u32,
    max: u32,
    patience: f64,
    idle: f64,
    wait: f64,
}

impl Bounds {
    /// Returns the options of a fleet with these terms of each lease.
    pub fn options(self, lease: LeaseOptions, pool: PoolOptions) -> PyResult<FleetOptions> {
        Ok(FleetOptions {
            lease,
            min: self.min,
            max: self.max,
            patience: seconds(self.patience, "patience")?,
            idle: seconds(self.idle, "idle")?,
            wait: seconds(self.wait, "wait")?,
            pool,
        })
    }
}

pub fn seconds(length: f64, name: &str) -> PyResult<Duration> {
    Duration::try_from_secs_f64(length)
        .map_err(|_| PyValueError::new_err(format!("{name}={length}: ask for a number of seconds, zero or more")))
}

/// Returns the change of a renewal, whose times are in seconds.
pub fn change(
    workers: Option<u16>,
    min_workers: Option<u16>,
    mode: Option<&str>,
    hot_for: Option<f64>,
    poll_for: Option<f64>,
) -> PyResult<LeaseChange> {
    let hot_for_ms = |length: f64| match length == f64::INFINITY {
        true => Ok(u32::MAX),
        false => seconds(length, "hot_for").map(|length| length.as_millis().min(u128::from(u32::MAX - 1)) as u32),
    };
    let poll_for_us =
        |length| seconds(length, "poll_for").map(|length| u32::try_from(length.as_micros()).unwrap_or(u32::MAX));
    Ok(LeaseChange {
        workers,
        min_workers,
        mode: mode.map(parse).transpose()?,
        hot_for_ms: hot_for.map(hot_for_ms).transpose()?,
        poll_for_us: poll_for.map(poll_for_us).transpose()?,
    })
}

pub fn milli_cores(cores: f64) -> PyResult<MilliCores> {
    MilliCores::try_from(cores).map_err(|error| PyValueError::new_err(format!("cores={cores}: {error}")))
}

/// Returns what a worker owns.
fn worker_cores(cores: f64) -> PyResult<MilliCores> {
    let own = milli_cores(cores)?.for_worker();
    own.map_err(|error| PyValueError::new_err(format!("cores={cores}: {error}")))
}

/// Raises ValueError unless a worker can own so many cores.
#[pyfunction]
pub fn check_cores(cores: f64) -> PyResult<()> {
    worker_cores(cores).map(drop)
}

pub fn level(name: &str) -> PyResult<Sandbox> {
    Sandbox::from_name(name).ok_or_else(|| {
        PyValueError::new_err(format!(
            "sandbox={name:?}: ask for \"process\", \"isolated\" or \"container\""
        ))
    })
}

pub fn place(name: &str) -> PyResult<Placement> {
    Placement::from_name(name).ok_or_else(|| {
        PyValueError::new_err(format!(
            "placement={name:?}: ask for \"packed\", \"spread\" or \"together\""
        ))
    })
}

fn borrow(what: &str) -> PyResult<Borrow> {
    Borrow::from_name(what)
        .ok_or_else(|| PyValueError::new_err(format!("borrow={what:?}: ask for \"none\", \"cpu\" or \"cpu,memory\"")))
}

fn parse(mode: &str) -> PyResult<Mode> {
    Ok(match mode {
        "auto" => Mode::Auto,
        "hot" => Mode::Hot,
        "warm" => Mode::Warm,
        _ => {
            return Err(PyValueError::new_err(format!(
                "mode={mode:?}: ask for \"auto\", \"hot\" or \"warm\""
            )));
        }
    })
}
