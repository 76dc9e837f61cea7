//! Clients and leases.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dayfly_client::{
    AllowanceOptions, ChannelOptions, Client as Inner, Connection, Delegation, Geometry, HostPath, Lease as InnerLease,
    LeaseOptions, Mode, Placement, PoolOptions, Printed as ClientPrinted, Reader, Runtime, Sandbox, Stream,
    TasksOptions, Transport,
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

/// What to lease, as Python names it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Wanted {
    workers: u16,
    cores: u16,
    memory: u64,
    gpus: u16,
    duration: f64,
    mode: String,
    hot_for: Option<f64>,
    /// JSON, or empty for shared libraries alone.
    runtime: String,
    idle_release: f64,
    node: Option<String>,
    sandbox: Option<String>,
    image: Option<String>,
    network: bool,
    /// Paths, and whether they may be changed.
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
            cores_per_worker: self.cores,
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
    /// The manager that is named or configured, else an embedded one started by `binary`.
    #[staticmethod]
    #[pyo3(signature = (path = None, binary = None))]
    fn connect(py: Python<'_>, path: Option<PathBuf>, binary: Option<PathBuf>) -> PyResult<Self> {
        py.detach(|| Inner::connect_or_start(path.as_deref(), binary.as_deref()))
            .map(over)
            .map_err(|error| from_error(py, &error))
    }

    /// An embedded manager, whatever is configured.
    #[staticmethod]
    #[pyo3(signature = (binary = None))]
    fn embedded(py: Python<'_>, binary: Option<PathBuf>) -> PyResult<Self> {
        py.detach(|| Inner::embedded(binary.as_deref()))
            .map(over)
            .map_err(|error| from_error(py, &error))
    }

    /// One node, by the allowance that it wrote.
    #[staticmethod]
    fn node(py: Python<'_>, allowance: PathBuf) -> PyResult<Self> {
        py.detach(|| Inner::node(&allowance))
            .map(over)
            .map_err(|error| from_error(py, &error))
    }

    /// A manager by its address.
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

    /// Ends an embedded manager.
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

    /// Leases workers: a lease, or with a placement those of a gang, in the order of its ranks.
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
    /// Leasing straight from nodes, so much of it.
    #[pyo3(signature = (*, workers, cores, memory, workers_per_node, duration, sandbox))]
    fn allowance(
        &self,
        py: Python<'_>,
        workers: u32,
        cores: u32,
        memory: u64,
        workers_per_node: u16,
        duration: f64,
        sandbox: Option<&str>,
    ) -> PyResult<Self> {
        let inner = self.inner.get(py)?;
        let options = AllowanceOptions {
            workers,
            cores,
            memory_bytes: memory,
            workers_per_node,
            duration: seconds(duration, "duration")?,
            sandbox: sandbox.map(level).transpose()?,
        };
        py.detach(|| inner.allowance(&options))
            .map(over)
            .map_err(|error| from_error(py, &error))
    }

    /// Durable tasks of one tag.
    #[pyo3(signature = (tag = None, endpoint = None))]
    fn tasks(&self, py: Python<'_>, tag: Option<String>, endpoint: Option<String>) -> PyResult<Tasks> {
        let inner = self.inner.get(py)?;
        let tasks = inner
            .tasks(TasksOptions { tag, endpoint })
            .map_err(|error| from_error(py, &error))?;
        Tasks::new(py, tasks)
    }

    /// `POST` of JSON to any path of the manager's API.
    fn post(&self, py: Python<'_>, path: &str, body: &str) -> PyResult<String> {
        let inner = self.inner.get(py)?;
        let body: serde_json::Value =
            serde_json::from_str(body).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let value: serde_json::Value = py
            .detach(|| inner.post(path, &body))
            .map_err(|error| from_error(py, &error))?;
        json(&value)
    }

    /// `PUT` of JSON to any path of the manager's API.
    fn put(&self, py: Python<'_>, path: &str, body: &str) -> PyResult<String> {
        let inner = self.inner.get(py)?;
        let body: serde_json::Value =
            serde_json::from_str(body).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let value: serde_json::Value = py
            .detach(|| inner.put(path, &body))
            .map_err(|error| from_error(py, &error))?;
        json(&value)
    }

    /// `GET` of any path of the manager's API, as JSON.
    fn get(&self, py: Python<'_>, path: &str) -> PyResult<String> {
        let inner = self.inner.get(py)?;
        let value: serde_json::Value = py.detach(|| inner.get(path)).map_err(|error| from_error(py, &error))?;
        json(&value)
    }

    /// `DELETE` of any path of the manager's API, answered in JSON.
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
    /// The lease, in this process.
    pub fn get(&self, py: Python<'_>) -> PyResult<InnerLease> {
        Ok(self.inner.get(py)?.clone())
    }
}

#[pymethods]
impl Lease {
    /// The workers that a delegation is for.
    #[staticmethod]
    fn part(py: Python<'_>, delegation: &str) -> PyResult<Self> {
        let lease = Delegation::from_text(delegation).and_then(|delegation| py.detach(|| delegation.open()));
        Ok(Self {
            inner: Guarded::new(lease.map_err(|error| from_error(py, &error))?),
        })
    }

    /// What was granted, as JSON. Its token is left out: whoever prints a grant means no harm, and should do none.
    fn grant(&self, py: Python<'_>) -> PyResult<String> {
        let mut grant = self.inner.get(py)?.grant();
        grant.token.clear();
        json(&grant)
    }

    /// Makes code known to the node and answers its hash.
    fn put_code(&self, py: Python<'_>, code: PyBuffer<u8>) -> PyResult<String> {
        let inner = self.inner.get(py)?;
        let bytes = code.to_vec(py)?;
        let hash = py
            .detach(|| inner.put_code(&bytes))
            .map_err(|error| from_error(py, &error))?;
        Ok(hash.to_string())
    }

    #[allow(clippy::too_many_arguments)] // Python names them
    /// Opens a channel to every worker. `foreign` are other tenants whose workers these are, and whose results are not trusted.
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
        Pool::new(py, pool, foreign)
    }

    /// Makes the lease last so many seconds from now.
    fn renew(&self, py: Python<'_>, duration: f64) -> PyResult<()> {
        let inner = self.inner.get(py)?;
        let duration = seconds(duration, "duration")?;
        py.detach(|| inner.renew(duration))
            .map_err(|error| from_error(py, &error))
    }

    /// Reads what the workers print.
    fn printed(&self, py: Python<'_>) -> PyResult<Printed> {
        let inner = self.inner.get(py)?;
        let reader = py.detach(|| inner.printed()).map_err(|error| from_error(py, &error))?;
        Ok(Printed {
            reader: Guarded::new(Mutex::new(reader)),
        })
    }

    /// Gives the workers back.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.inner.get(py)?;
        py.detach(|| inner.release()).map_err(|error| from_error(py, &error))
    }
}

/// Reads what a lease's workers print, from the beginning.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Printed {
    reader: Guarded<Mutex<Reader>>,
}

#[pymethods]
impl Printed {
    /// What was printed since the last call: whether to standard error, and bytes. Waits so many seconds for something, some at most.
    fn next<'py>(&self, py: Python<'py>, wait: f64) -> PyResult<Vec<(bool, Bound<'py, PyBytes>)>> {
        let (reader, wait) = (self.reader.get(py)?, seconds(wait, "wait")?);
        let printed = py.detach(|| reader.lock().unwrap_or_else(PoisonError::into_inner).next(wait));
        let printed = printed.map_err(|error| from_error(py, &error))?;
        let piece = |piece: ClientPrinted| (piece.stream == Stream::Err, PyBytes::new(py, &piece.bytes));
        Ok(printed.into_iter().map(piece).collect())
    }

    /// Whether the lease is over, and all was read.
    fn is_over(&self, py: Python<'_>) -> PyResult<bool> {
        let reader = self.reader.get(py)?;
        Ok(py.detach(|| reader.lock().unwrap_or_else(PoisonError::into_inner).is_over()))
    }

    /// Bytes that the node did not keep until they were read.
    fn missed(&self, py: Python<'_>) -> PyResult<u64> {
        let reader = self.reader.get(py)?;
        Ok(py.detach(|| reader.lock().unwrap_or_else(PoisonError::into_inner).missed()))
    }
}
