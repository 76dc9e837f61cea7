//! Object storage for checkpoints and scripts.

use bytes::Bytes;
use dayfly_protocol::error::Failure;
use dayfly_storage::{BlockingObjects, StoreUrl};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::raise;

/// Objects by name, in a bucket or a directory.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Objects {
    place: StoreUrl,
}

impl Objects {
    /// Opens the store for each call: calls are rare, and an open connection would not survive a fork.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&BlockingObjects) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        py.detach(|| call(&BlockingObjects::open(&self.place)?))
            .map_err(|failure| raise(py, failure.code, &failure.message))
    }
}

#[pymethods]
impl Objects {
    #[new]
    fn new(py: Python<'_>, url: &str) -> PyResult<Self> {
        let place = StoreUrl::parse(url).map_err(|failure| raise(py, failure.code, &failure.message))?;
        Ok(Self { place })
    }

    /// Stores an object atomically.
    fn put(&self, py: Python<'_>, name: &str, data: &[u8]) -> PyResult<()> {
        let data = Bytes::copy_from_slice(data);
        self.with(py, |objects| objects.put(name, data))
    }

    /// Returns an object, or `None`.
    fn get<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let found = self.with(py, |objects| objects.get(name))?;
        Ok(found.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Returns the sorted names of all objects below a prefix, without the prefix.
    fn list(&self, py: Python<'_>, under: &str) -> PyResult<Vec<String>> {
        self.with(py, |objects| objects.list(under))
    }

    /// Deletes all objects below a prefix.
    fn clear(&self, py: Python<'_>, under: &str) -> PyResult<()> {
        self.with(py, |objects| objects.clear(under))
    }

    fn __repr__(&self) -> String {
        format!("<dayfly._native.Objects in {}>", self.place)
    }
}

/// Deletes the objects that the ranks of a group left in a store.
#[pyfunction]
pub fn clear_store(py: Python<'_>, url: &str, group: &str) -> PyResult<()> {
    py.detach(|| dayfly_comm::store_route::clear(&StoreUrl::parse(url)?, group))
        .map_err(|failure| raise(py, failure.code, &failure.message))
}
