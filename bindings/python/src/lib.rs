//! The native module of the Python package `dayfly`: the executor's runtime, and the client's hot path.

mod block;
mod client;
mod codec;
mod comm;
mod errors;
mod fleet;
mod foreign;
mod guard;
mod memory;
mod offload;
mod pool;
mod rendezvous;
mod runtime;
mod shared;
mod sizes;
mod storage;
mod tasks;
mod terms;

use dayfly_executor::ExecutorError;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Runs this interpreter as an executor, over the control socket that its node passed to it, until the node stops it.
#[pyfunction]
fn executor_main(py: Python<'_>) -> PyResult<()> {
    let mut runtime = runtime::PythonRuntime::new(py)?;
    match py.detach(|| dayfly_executor::run(&mut runtime)) {
        // The node ended the lease during a write to it.
        Err(ExecutorError::Control(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|error| PyRuntimeError::new_err(error.to_string())),
    }
}

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::block::Block;
    #[pymodule_export]
    use super::client::{Client, Lease, Printed};
    #[pymodule_export]
    use super::comm::{Communicator, Op, Request};
    #[pymodule_export]
    use super::executor_main;
    #[pymodule_export]
    use super::fleet::Fleet;
    #[pymodule_export]
    use super::foreign::Foreign;
    #[pymodule_export]
    use super::offload::OffloadPlanner;
    #[pymodule_export]
    use super::pool::{Call, Failure, Options, Pool};
    #[pymodule_export]
    use super::rendezvous::Rendezvous;
    #[pymodule_export]
    use super::shared::SharedMemory;
    #[pymodule_export]
    use super::storage::{Objects, clear_store};
    #[pymodule_export]
    use super::tasks::{Task, TaskOptions, Tasks};
    #[pymodule_export]
    use super::terms::check_cores;

    #[pymodule_init]
    fn init(_module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        super::guard::watch_forks();
        Ok(())
    }
}
