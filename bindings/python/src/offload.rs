//! The planner that divides loops between the program and leased workers.

use dayfly_client::offload::{Completion, Offload};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Learns how long calls take here and on workers, and divides loops so that the program does not wait.
#[pyclass(frozen, module = "dayfly._native")]
pub struct OffloadPlanner {
    /// Plain memory, which a forked child may use too: the interpreter is attached during every call.
    offload: Offload,
}

#[pymethods]
impl OffloadPlanner {
    #[new]
    #[pyo3(signature = (workers = 0))]
    fn new(workers: u32) -> Self {
        let offload = Offload::new();
        offload.set_workers(workers);
        Self { offload }
    }

    fn set_workers(&self, workers: u32) {
        self.offload.set_workers(workers);
    }

    fn record_local(&self, function: u64, size: u64, calls: u64, seconds: f64) {
        self.offload.record_local(function, size, calls, seconds);
    }

    #[pyo3(signature = (function, size, submitted, ended, *, overhead = None, run = None, worker = None, exact = true))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn record_remote(
        &self,
        function: u64,
        size: u64,
        submitted: f64,
        ended: f64,
        overhead: Option<f64>,
        run: Option<f64>,
        worker: Option<u32>,
        exact: bool,
    ) {
        let completion = Completion {
            channel: worker,
            submitted,
            overhead,
            ended,
            run,
            is_exact: exact,
        };
        self.offload.record_remote(function, size, completion);
    }

    #[pyo3(signature = (function, size, calls, threads = 1))]
    fn split<'py>(
        &self,
        py: Python<'py>,
        function: u64,
        size: u64,
        calls: u64,
        threads: u32,
    ) -> PyResult<Bound<'py, PyDict>> {
        let split = self.offload.split(function, size, calls, threads);
        let found = PyDict::new(py);
        found.set_item("local", split.local)?;
        found.set_item("remote", split.remote_total())?;
        found.set_item("by_worker", split.remote)?;
        found.set_item("probes", split.probes)?;
        found.set_item("local_seconds", split.local_seconds)?;
        found.set_item("remote_seconds", split.remote_seconds)?;
        found.set_item("reason", split.reason.explanation())?;
        Ok(found)
    }

    fn estimates<'py>(&self, py: Python<'py>, function: u64, size: u64) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let estimates = self.offload.estimates(function, size);
        let of = |estimate: dayfly_client::offload::Estimate| {
            let found = PyDict::new(py);
            found.set_item("worker", estimate.channel)?;
            found.set_item("run", estimate.run)?;
            found.set_item("run_p95", estimate.run_p95)?;
            let network = estimate.network;
            found.set_item("latency", network.map(|network| network.latency))?;
            found.set_item("overhead", network.map(|network| network.overhead))?;
            found.set_item("gap", network.map(|network| network.gap))?;
            found.set_item("per_byte", network.map(|network| network.per_byte))?;
            Ok(found)
        };
        estimates.into_iter().map(of).collect()
    }

    fn local(&self, function: u64, size: u64) -> Option<(f64, f64)> {
        self.offload.local(function, size)
    }
}
