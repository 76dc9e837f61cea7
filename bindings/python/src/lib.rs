//! The native module of the Python package `mayfly`: the executor's runtime, and the client's hot path.

mod block;
mod codec;
mod runtime;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Runs this interpreter as an executor, over the control socket that its node gave it, until the node ends it.
#[pyfunction]
fn executor_main(py: Python<'_>) -> PyResult<()> {
    let mut runtime = runtime::PythonRuntime::new(py)?;
    py.detach(|| mayfly_executor::run(&mut runtime))
        .map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::block::Block;
    #[pymodule_export]
    use super::executor_main;
}
