//! Output of a lease's workers.

use std::sync::{Arc, Weak};
use std::time::Duration;

use dayfly_client::{OutputReader, WorkerOutput};
use dayfly_protocol::dispatch::{FromDispatcher, TaskOutput};
use dayfly_protocol::node_api::CallLoans;

use crate::dispatcher_state::DispatcherState;

/// How long to wait for output before checking that the driver still exists.
const READ_LIMIT: Duration = Duration::from_secs(5);
/// Pause after a failed request to the node.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Most output of a lease, in bytes per second. Its node keeps the last 256 KiB meanwhile.
const MAX_BYTES_PER_S: u32 = 256 << 10;

/// Passes on workers' output, and what their calls lent and borrowed, while their driver exists; `whose` attributes both
/// to executions.
pub fn forward<T: Send + Sync + 'static>(
    driver: Weak<T>,
    mut printed: OutputReader,
    shared: Arc<DispatcherState>,
    whose: impl Fn(&T, Vec<WorkerOutput>, Vec<CallLoans>) -> Vec<TaskOutput> + Send + 'static,
) {
    let listening = move || {
        loop {
            let heard = printed.next(READ_LIMIT);
            let Some(driver) = driver.upgrade().filter(|_| !printed.is_over()) else {
                return;
            };
            let pause = match heard {
                Ok(pieces) => {
                    let bytes: usize = pieces.iter().map(|piece| piece.bytes.len()).sum();
                    let printed = whose(&driver, pieces, printed.take_loans());
                    if !printed.is_empty() {
                        shared.send(FromDispatcher::Printed(printed));
                    }
                    // Endless output is passed on in part.
                    Duration::from_secs(1) * u32::try_from(bytes).unwrap_or(u32::MAX) / MAX_BYTES_PER_S
                }
                Err(error) => {
                    tracing::debug!(%error, "the output of tasks cannot be read now");
                    RETRY_PAUSE
                }
            };
            drop(driver);
            std::thread::sleep(pause);
        }
    };
    let thread = std::thread::Builder::new().name("dayfly-output".into());
    if let Err(error) = thread.spawn(listening) {
        tracing::error!(%error, "no thread to read the output of tasks");
    }
}
