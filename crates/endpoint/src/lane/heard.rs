//! Output of a lease's workers.

use std::sync::{Arc, Weak};
use std::time::Duration;

use dayfly_client::{Printed, Reader};
use dayfly_protocol::dispatch::{FromDispatcher, TaskOutput};

use crate::crew::Shared;

/// How long to wait for output before checking that the lane still exists.
const LISTEN: Duration = Duration::from_secs(5);
/// Pause after a failed request to the node.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);
/// Most output of a lease, in bytes per second. Its node keeps the last 256 KiB meanwhile.
const HEARD_BYTES_PER_S: u32 = 256 << 10;

/// Passes workers' output on while their lane exists; `whose` attributes it to executions.
pub fn listen<T: Send + Sync + 'static>(
    lane: Weak<T>,
    mut printed: Reader,
    shared: Arc<Shared>,
    whose: impl Fn(&T, Vec<Printed>) -> Vec<TaskOutput> + Send + 'static,
) {
    let listening = move || {
        loop {
            let heard = printed.next(LISTEN);
            let Some(lane) = lane.upgrade().filter(|_| !printed.is_over()) else {
                return;
            };
            let pause = match heard {
                Ok(pieces) => {
                    let bytes: usize = pieces.iter().map(|piece| piece.bytes.len()).sum();
                    let printed = whose(&lane, pieces);
                    if !printed.is_empty() {
                        shared.say(FromDispatcher::Printed(printed));
                    }
                    // Endless output is passed on in part.
                    Duration::from_secs(1) * u32::try_from(bytes).unwrap_or(u32::MAX) / HEARD_BYTES_PER_S
                }
                Err(error) => {
                    tracing::debug!(%error, "what tasks print is not heard now");
                    LISTEN_AGAIN
                }
            };
            drop(lane);
            std::thread::sleep(pause);
        }
    };
    let thread = std::thread::Builder::new().name("dayfly-output".into());
    if let Err(error) = thread.spawn(listening) {
        tracing::error!(%error, "no thread to read what tasks print");
    }
}
