//! Waiting for queries without the interpreter's lock.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use dayfly_protocol::error::{Code, Failure};
use pyo3::prelude::*;
use tokio::runtime::Handle;

use crate::errors::raise;
use crate::label;

/// Time between two looks for signals, such as that of Ctrl-C.
const POLL: Duration = Duration::from_millis(100);

/// Runs a query's future to its end, and returns its result. A signal whose handler raises an exception, such as Ctrl-C,
/// cancels it, and so does the label of the query.
pub fn wait<T: Send + 'static>(
    py: Python<'_>,
    runtime: &Handle,
    work: impl Future<Output = T> + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = sync_channel(1);
    let task = runtime.spawn(async move {
        // The receiver is gone if a signal ended the wait.
        let _ = sender.send(work.await);
    });
    // A receiver must be shared between threads to pass through `detach`.
    let receiver = std::sync::Mutex::new(receiver);
    loop {
        label::check(py).inspect_err(|_| task.abort())?;
        let found = py.detach(|| {
            let receiver = receiver.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            receiver.recv_timeout(POLL)
        });
        match found {
            Ok(value) => return Ok(value),
            Err(RecvTimeoutError::Timeout) => py.check_signals().inspect_err(|_| task.abort())?,
            // The task panicked, which the runtime has reported on standard error.
            Err(RecvTimeoutError::Disconnected) => {
                let failure = Failure::new(
                    Code::Internal,
                    "the query ended by a defect, which standard error describes",
                );
                return Err(raise(py, &failure));
            }
        }
    }
}
