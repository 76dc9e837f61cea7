//! Waits that Ctrl-C ends.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use dayfly_frame::Session;
use dayfly_frame::datafusion::common::Result;
use pyo3::prelude::*;

use crate::errors::from_query;

/// How often a wait looks for signals.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// Runs a future of a session to its end. The interpreter is free meanwhile. A signal whose handler raises drops the
/// future, which cancels its query.
pub fn wait<T: Send>(py: Python<'_>, session: &Session, future: impl Future<Output = Result<T>> + Send) -> PyResult<T> {
    let watched = async {
        let mut future = pin!(future);
        loop {
            tokio::select! {
                done = &mut future => return Ok(done),
                () = tokio::time::sleep(SIGNAL_INTERVAL) => Python::attach(|py| py.check_signals())?,
            }
        }
    };
    let done: PyResult<Result<T>> = py.detach(|| session.runtime().block_on(watched));
    done?.map_err(|error| from_query(py, &error))
}
