//! Clients and leases.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use dayfly_client::{
    AllowanceOptions, Client as Inner, Connection, Delegation, Lease as InnerLease, Mode, OutputReader, Stream,
    TasksOptions, WorkerOutput,
};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Serialize;

use crate::errors::from_error;
use crate::fleet::Fleet;
use crate::guard::Guarded;
use crate::pool::Pool;
use crate::tasks::Tasks;
use crate::terms::{Bounds, Channels, Wanted, change, level, milli_cores, place, seconds};

/// A client of a manager, or of one node.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Client {
    inner: Guarded<Inner>,
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

    /// Opens a fleet of `bounds` workers, in leases of at most as many as `wanted` has.
    fn fleet(&self, py: Python<'_>, wanted: Wanted, bounds: Bounds, channels: Channels) -> PyResult<Fleet> {
        let inner = self.inner.get(py)?;
        let options = bounds.options(wanted.options()?, channels.options()?)?;
        let is_hot = options.lease.mode == Mode::Hot;
        let fleet = py
            .detach(|| inner.fleet(options))
            .map_err(|error| from_error(py, &error))?;
        Ok(Fleet::new(fleet, is_hot))
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

    /// Opens a channel to every worker. `foreign` names the other tenants that own the workers; their results are not
    /// trusted.
    #[pyo3(signature = (channels, foreign = Vec::new()))]
    fn pool(&self, py: Python<'_>, channels: Channels, foreign: Vec<String>) -> PyResult<Pool> {
        let inner = self.inner.get(py)?;
        let options = channels.options()?;
        let pool = py
            .detach(|| inner.pool(options))
            .map_err(|error| from_error(py, &error))?;
        Pool::new(py, Arc::new(pool), foreign, inner.is_hot())
    }

    /// Sets the remaining duration of the lease, in seconds from now, and changes its terms that are given.
    #[pyo3(signature = (duration, workers = None, min_workers = None, mode = None, hot_for = None, poll_for = None))]
    #[allow(clippy::too_many_arguments, reason = "the signature is Python's")]
    fn renew(
        &self,
        py: Python<'_>,
        duration: f64,
        workers: Option<u16>,
        min_workers: Option<u16>,
        mode: Option<String>,
        hot_for: Option<f64>,
        poll_for: Option<f64>,
    ) -> PyResult<()> {
        let inner = self.inner.get(py)?;
        let duration = seconds(duration, "duration")?;
        let change = change(workers, min_workers, mode.as_deref(), hot_for, poll_for)?;
        py.detach(|| inner.renew_with(duration, &change))
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
