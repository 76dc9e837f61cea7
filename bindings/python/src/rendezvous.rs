//! Where ranks meet that no manager has started.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use dayfly_client::Code;
use dayfly_rendezvous::server::{ServeOptions, Server};
use pyo3::prelude::*;

use crate::errors::raise;
use crate::guard::Guarded;

/// A rendezvous in this process, with a thread of its own.
#[pyclass(frozen, module = "dayfly._native")]
pub struct Rendezvous {
    server: Guarded<Mutex<Option<Server>>>,
    port: u16,
    key: String,
}

#[pymethods]
impl Rendezvous {
    /// Listens at an address until it is closed.
    #[new]
    fn new(py: Python<'_>, listen: &str) -> PyResult<Self> {
        let listen: SocketAddr = listen.parse().map_err(|_| {
            let message = format!("{listen:?} is no address with a port, such as 127.0.0.1:0");
            raise(py, Code::InvalidRequest, &message)
        })?;
        let options = ServeOptions {
            listen: vec![listen],
            ..ServeOptions::default()
        };
        let server = py.detach(|| Server::start(options));
        let server = server.map_err(|failure| raise(py, failure.code, &failure.message))?;
        Ok(Self {
            port: server.addresses().first().map_or(0, SocketAddr::port),
            key: server.key().to_string(),
            server: Guarded::new(Mutex::new(Some(server))),
        })
    }

    /// The port for ranks.
    #[getter]
    fn port(&self) -> u16 {
        self.port
    }

    /// The public key that ranks pin.
    #[getter]
    fn key(&self) -> &str {
        &self.key
    }

    /// Ends the server. Does nothing the second time.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let server = self.server.get(py)?;
        py.detach(|| drop(server.lock().unwrap_or_else(PoisonError::into_inner).take()));
        Ok(())
    }
}
