//! Fleets: leases on many nodes behind one pool.

use std::time::Duration;

use dayfly_client::Fleet as Inner;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

use crate::errors::from_error;
use crate::guard::Guarded;
use crate::pool::{Pool, SLICE};
use crate::terms::seconds;

/// Leases on many nodes.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Fleet {
    inner: Guarded<Inner>,
    is_hot: bool,
}

impl Fleet {
    pub fn new(inner: Inner, is_hot: bool) -> Self {
        Self {
            inner: Guarded::new(inner),
            is_hot,
        }
    }
}

#[pymethods]
impl Fleet {
    /// Returns the pool of the fleet's workers. `foreign` names the other tenants that own the workers; their results
    /// are not trusted.
    #[pyo3(signature = (foreign = Vec::new()))]
    fn pool(&self, py: Python<'_>, foreign: Vec<String>) -> PyResult<Pool> {
        let pool = self.inner.get(py)?.pool().clone();
        Pool::new(py, pool, foreign, self.is_hot)
    }

    /// Sends code to every node, unless it was sent before, and returns its hash.
    fn put_code(&self, py: Python<'_>, code: PyBuffer<u8>) -> PyResult<String> {
        let inner = self.inner.get(py)?;
        let bytes = code.to_vec(py)?;
        let hash = py
            .detach(|| inner.put_code(&bytes))
            .map_err(|error| from_error(py, &error))?;
        Ok(hash.to_string())
    }

    /// Returns the number of workers, the node of each lease, and why the last request for a lease was refused.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<(u32, Vec<String>, Option<Bound<'py, PyAny>>)> {
        let inner = self.inner.get(py)?;
        let status = py.detach(|| inner.status());
        let nodes = status.nodes.iter().map(ToString::to_string).collect();
        let refusal = status.refusal.map(|error| from_error(py, &error).into_value(py));
        Ok((
            status.workers,
            nodes,
            refusal.map(|error| error.into_bound(py).into_any()),
        ))
    }

    /// Waits up to `limit` seconds until the fleet has so many workers. Returns whether it has.
    fn wait_for_workers(&self, py: Python<'_>, workers: u32, limit: f64) -> PyResult<bool> {
        let inner = self.inner.get(py)?;
        let mut left = seconds(limit, "timeout")?;
        loop {
            let slice = left.min(SLICE);
            if py.detach(|| inner.wait_for_workers(workers, slice)) {
                return Ok(true);
            }
            left = left.saturating_sub(slice);
            if left == Duration::ZERO {
                return Ok(false);
            }
            py.check_signals()?;
        }
    }

    /// Releases all leases.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.inner.get(py)?;
        py.detach(|| inner.close());
        Ok(())
    }
}
