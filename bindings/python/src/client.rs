//! Clients and leases.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dayfly_client::{
    AllowanceOptions, Borrow, ChannelOptions, Client as Inner, Connection, Delegation, Geometry, HostPath,
    Lease as InnerLease, LeaseOptions, LoanTerms, MilliCores, Mode, OutputReader, Placement, PoolOptions, Runtime,
    Sandbox, Stream, TasksOptions, Transport, WorkerOutput,
};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Serialize;

use crate::errors::from_error;
use crate::guard::Guarded;
use crate::pool::Pool;
use crate::tasks::Tasks;

/// A client of a manager, or of one node.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Client {
    inner: Guarded<Inner>,
}

/// Lease options as Python passes them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Wanted {
    workers: u16,
    cores: f64,
    memory: u64,
    gpus: u16,
    duration: f64,
    mode: String,
    hot_for: Option<f64>,
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
    fn options(self) -> PyResult<LeaseOptions> {
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

fn json(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn over(inner: Inner) -> Client {
    Client {
        inner: Guarded::new(inner),
    }
}

#[pymethods]
impl Client {
    /// Connects to the named or configured manager, else starts an embedded one with the program `binary`.
    #[staticmethod]
    #[pyo3(signature = (path = None, binary = None))]
    fn connect(py: Python<'_>, path: Option<PathBuf>, binary: Option<PathBuf>) -> PyResult<Self> {
        py.detach(|| Inner::connect_or_start(path.as_deref(), binary.as_deref()))
            .map(over)
            .map_err(|error| from_error(py, &error))
    }

    /// Starts an embedded manager, regardless of the configuration.
    #[staticmethod]
    #[pyo3(signature = (binary = None))]
    fn embedded(py: Python<'_>, binary: Option<PathBuf>) -> PyResult<Self> {
        py.detach(|| Inner::embedded(binary.as_deref()))
            .map(over)
            .map_err(|error| from_error(py, &error))
    }

    /// Connects to one node with the allowance file that it wrote.
    #[staticmethod]
    fn node(py: Python<'_>, allowance: PathBuf) -> PyResult<Self> {
        py.detach(|| Inner::node(&allowance))
            .map(over)
            .map_err(|error| from_error(py, &error))
    }

    /// Connects to a manager by URL. `ca_pem` is the certificate to trust.
    #[staticmethod]
    fn manager(py: Python<'_>, url: String, token: String, ca_pem: String) -> PyResult<Self> {
        let connection = Connection {
            manager: url,
            token,
            ca_pem,
            others: Vec::new(),
        };
        Inner::manager_at(&connection)
            .map(over)
            .map_err(|error| from_error(py, &error))
    }

    /// Stops the embedded manager, if there is one.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.inner.get(py)?;
        py.detach(|| inner.stop());
        Ok(())
    }

    fn is_embedded(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.inner.get(py)?.is_embedded())
    }

    fn describe(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.inner.get(py)?.describe())
    }

    /// Leases workers. Returns one lease, or with a placement the leases of a gang in the order of its ranks.
    #[pyo3(signature = (wanted, placement = None))]
    fn lease(&self, py: Python<'_>, wanted: Wanted, placement: Option<&str>) -> PyResult<Vec<Lease>> {
        let inner = self.inner.get(py)?;
        let options = wanted.options()?;
        let placement = placement.map(place).transpose()?;
        let leases = py.detach(|| match placement {
            None => Ok(vec![inner.lease(options)?]),
            Some(placement) => inner.gang(options, placement),
        });
        let leases = leases.map_err(|error| from_error(py, &error))?;
        Ok(leases
            .into_iter()
            .map(|lease| Lease {
                inner: Guarded::new(lease),
            })
            .collect())
    }

    #[allow(clippy::too_many_arguments)] // Python names them
    /// Returns a client that leases directly from nodes, within these limits.
    #[pyo3(signature = (*, workers, cores, memory, workers_per_node, duration, sandbox))]
    fn allowance(
        &self,
        py: Python<'_>,
        workers: u32,
        cores: f64,
        memory: u64,
        workers_per_node: u16,
        duration: f64,
        sandbox: Option<&str>,
    ) -> PyResult<Self> {
        let inner = self.inner.get(py)?;
        let options = AllowanceOptions {
            workers,
            cores: milli_cores(cores)?,
            memory_bytes: memory,
            workers_per_node,
            duration: seconds(duration, "duration")?,
            sandbox: sandbox.map(level).transpose()?,
        };
        py.detach(|| inner.allowance(&options))
            .map(over)
            .map_err(|error| from_error(py, &error))
    }

    /// Returns the durable tasks with this tag.
    #[pyo3(signature = (tag = None, endpoint = None))]
    fn tasks(&self, py: Python<'_>, tag: Option<String>, endpoint: Option<String>) -> PyResult<Tasks> {
        let inner = self.inner.get(py)?;
        let tasks = inner
            .tasks(TasksOptions { tag, endpoint })
            .map_err(|error| from_error(py, &error))?;
        Tasks::new(py, tasks)
    }

    /// Sends a `POST` with a JSON body to a path of the manager's API. Returns the response's JSON.
    fn post(&self, py: Python<'_>, path: &str, body: &str) -> PyResult<String> {
        let inner = self.inner.get(py)?;
        let body: serde_json::Value =
            serde_json::from_str(body).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let value: serde_json::Value = py
            .detach(|| inner.post(path, &body))
            .map_err(|error| from_error(py, &error))?;
        json(&value)
    }

    /// Sends a `PUT` with a JSON body to a path of the manager's API. Returns the response's JSON.
    fn put(&self, py: Python<'_>, path: &str, body: &str) -> PyResult<String> {
        let inner = self.inner.get(py)?;
        let body: serde_json::Value =
            serde_json::from_str(body).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let value: serde_json::Value = py
            .detach(|| inner.put(path, &body))
            .map_err(|error| from_error(py, &error))?;
        json(&value)
    }

    /// Sends a `GET` to a path of the manager's API. Returns the response's JSON.
    fn get(&self, py: Python<'_>, path: &str) -> PyResult<String> {
        let inner = self.inner.get(py)?;
        let value: serde_json::Value = py.detach(|| inner.get(path)).map_err(|error| from_error(py, &error))?;
        json(&value)
    }

    /// Sends a `DELETE` to a path of the manager's API. Returns the response's JSON.
    fn delete(&self, py: Python<'_>, path: &str) -> PyResult<String> {
        let inner = self.inner.get(py)?;
        let value: serde_json::Value = py
            .detach(|| inner.delete(path))
            .map_err(|error| from_error(py, &error))?;
        json(&value)
    }
}

pub fn seconds(length: f64, name: &str) -> PyResult<Duration> {
    Duration::try_from_secs_f64(length)
        .map_err(|_| PyValueError::new_err(format!("{name}={length}: ask for a number of seconds, zero or more")))
}

fn milli_cores(cores: f64) -> PyResult<MilliCores> {
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

fn level(name: &str) -> PyResult<Sandbox> {
    Sandbox::from_name(name).ok_or_else(|| {
        PyValueError::new_err(format!(
            "sandbox={name:?}: ask for \"process\", \"isolated\" or \"container\""
        ))
    })
}

fn place(name: &str) -> PyResult<Placement> {
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

/// The right to some workers.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Lease {
    inner: Guarded<InnerLease>,
}

impl Lease {
    /// Returns the lease. Errors in a forked child.
    pub fn get(&self, py: Python<'_>) -> PyResult<InnerLease> {
        Ok(self.inner.get(py)?.clone())
    }
}

#[pymethods]
impl Lease {
    /// Opens the workers of a delegation as a lease.
    #[staticmethod]
    fn part(py: Python<'_>, delegation: &str) -> PyResult<Self> {
        let lease = Delegation::from_text(delegation).and_then(|delegation| py.detach(|| delegation.open()));
        Ok(Self {
            inner: Guarded::new(lease.map_err(|error| from_error(py, &error))?),
        })
    }

    /// Returns the grant as JSON, without its token, so that a program can print it.
    fn grant(&self, py: Python<'_>) -> PyResult<String> {
        let mut grant = self.inner.get(py)?.grant();
        grant.token.clear();
        json(&grant)
    }

    /// Sends code to the node, unless it has it, and returns its hash.
    fn put_code(&self, py: Python<'_>, code: PyBuffer<u8>) -> PyResult<String> {
        let inner = self.inner.get(py)?;
        let bytes = code.to_vec(py)?;
        let hash = py
            .detach(|| inner.put_code(&bytes))
            .map_err(|error| from_error(py, &error))?;
        Ok(hash.to_string())
    }

    #[allow(clippy::too_many_arguments)] // Python names them
    /// Opens a channel to every worker. `foreign` names the other tenants that own the workers; their results are not
    /// trusted.
    #[pyo3(signature = (*, transport = None, slots, stride, bulk, spin, depth = 0, retries = 3, foreign = Vec::new()))]
    fn pool(
        &self,
        py: Python<'_>,
        transport: Option<&str>,
        slots: u16,
        stride: u32,
        bulk: u64,
        spin: Option<f64>,
        depth: u16,
        retries: u8,
        foreign: Vec<String>,
    ) -> PyResult<Pool> {
        let inner = self.inner.get(py)?;
        let transport = match transport {
            None | Some("auto") => None,
            Some(other) => Some(
                other
                    .parse::<Transport>()
                    .map_err(|error| PyValueError::new_err(error.to_string()))?,
            ),
        };
        let options = PoolOptions {
            channel: ChannelOptions {
                transport,
                geometry: Geometry {
                    slots,
                    stride_bytes: stride,
                    bulk_bytes: bulk,
                },
                spin: spin.map(|length| seconds(length, "spin")).transpose()?,
            },
            retries,
            depth,
            remembers: false,
        };
        let pool = py
            .detach(|| inner.pool(options))
            .map_err(|error| from_error(py, &error))?;
        Pool::new(py, pool, foreign, inner.is_hot())
    }

    /// Sets the remaining duration of the lease, in seconds from now.
    fn renew(&self, py: Python<'_>, duration: f64) -> PyResult<()> {
        let inner = self.inner.get(py)?;
        let duration = seconds(duration, "duration")?;
        py.detach(|| inner.renew(duration))
            .map_err(|error| from_error(py, &error))
    }

    /// Returns a reader of the workers' output.
    fn printed(&self, py: Python<'_>) -> PyResult<Printed> {
        let inner = self.inner.get(py)?;
        let reader = py.detach(|| inner.output()).map_err(|error| from_error(py, &error))?;
        Ok(Printed {
            reader: Guarded::new(Mutex::new(reader)),
        })
    }

    /// Releases the workers.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.inner.get(py)?;
        py.detach(|| inner.release()).map_err(|error| from_error(py, &error))
    }
}

/// Reader of the output of a lease's workers, from the beginning of the lease.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Printed {
    reader: Guarded<Mutex<OutputReader>>,
}

#[pymethods]
impl Printed {
    /// Returns the output since the last call as pairs: whether it is of standard error, and bytes. Waits up to `wait`
    /// seconds, and at most a few, if there is none.
    fn next<'py>(&self, py: Python<'py>, wait: f64) -> PyResult<Vec<(bool, Bound<'py, PyBytes>)>> {
        let (reader, wait) = (self.reader.get(py)?, seconds(wait, "wait")?);
        let printed = py.detach(|| reader.lock().unwrap_or_else(PoisonError::into_inner).next(wait));
        let printed = printed.map_err(|error| from_error(py, &error))?;
        let piece = |piece: WorkerOutput| (piece.stream == Stream::Err, PyBytes::new(py, &piece.bytes));
        Ok(printed.into_iter().map(piece).collect())
    }

    /// Returns whether the lease has ended and all output was read.
    fn is_over(&self, py: Python<'_>) -> PyResult<bool> {
        let reader = self.reader.get(py)?;
        Ok(py.detach(|| reader.lock().unwrap_or_else(PoisonError::into_inner).is_over()))
    }

    /// Returns the number of bytes that the node discarded before they were read.
    fn missed(&self, py: Python<'_>) -> PyResult<u64> {
        let reader = self.reader.get(py)?;
        Ok(py.detach(|| reader.lock().unwrap_or_else(PoisonError::into_inner).missed()))
    }
}
