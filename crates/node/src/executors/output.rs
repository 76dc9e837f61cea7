//! Reads the output of an executor and its workers.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use dayfly_executor::meter::Meter;
use dayfly_protocol::ids::WorkerIndex;
use dayfly_protocol::node_api::{Printer, Stream};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncWrite, AsyncWriteExt, Interest};

use crate::Output;
use crate::output::OutputBuffer;

/// Most bytes of a stream that are logged in a second, so that endless output does not fill the node's disk.
const LOGGED_BYTES_PER_S: usize = 64 << 10;

/// Attributes a worker's output to calls.
pub struct OutputSource {
    worker: WorkerIndex,
    meter: Meter,
    /// The worker's last call, once it is gone: its successor uses the meter then.
    last: Arc<OnceLock<u32>>,
}

impl OutputSource {
    /// The source of a worker's output. `last` is set to the worker's last call after its end.
    pub fn new(worker: WorkerIndex, meter: Meter, last: Arc<OnceLock<u32>>) -> Self {
        Self { worker, meter, last }
    }

    fn printer(&self) -> Printer {
        // Read the meter first: a value from before the worker's end is known belongs to this worker.
        let sequence = self.meter.read().started;
        Printer {
            worker: self.worker,
            sequence: self.last.get().copied().unwrap_or(sequence),
        }
    }
}

/// Reads the output of an executor and its workers, keeps the end of it and passes it on. Output of a single worker is
/// attributed to calls.
pub async fn drain(
    pipe: AsyncFd<OwnedFd>,
    buffer: Arc<OutputBuffer>,
    stream: Stream,
    source: Option<OutputSource>,
    output: Output,
) {
    let mut own: Box<dyn AsyncWrite + Send + Unpin> = match stream {
        Stream::Out => Box::new(tokio::io::stdout()),
        Stream::Err => Box::new(tokio::io::stderr()),
    };
    let mut chunk = [0u8; 4096];
    let mut budget = LogBudget::default();
    loop {
        let mut by = None;
        let read = pipe
            .async_io(Interest::READABLE, |pipe| {
                // Read the call before the bytes: it has not ended before they are read.
                by = source.as_ref().map(OutputSource::printer);
                rustix::io::read(pipe, &mut chunk).map_err(std::io::Error::from)
            })
            .await;
        let Ok(length @ 1..) = read else { return };
        let chunk = &chunk[..length];
        match output {
            Output::Log => {
                let (allowed, dropped) = budget.spend(Instant::now(), chunk.len());
                if dropped > 0 {
                    tracing::warn!(target: "dayfly::output", dropped, "output exceeded the limit of the log");
                }
                if allowed > 0 {
                    let text = String::from_utf8_lossy(&chunk[..allowed]);
                    tracing::info!(target: "dayfly::output", "{}", text.trim_end());
                }
            }
            Output::Own => {
                // An error means that our output is closed.
                let _ = own.write_all(chunk).await;
                let _ = own.flush().await;
            }
        }
        buffer.add(stream, by, chunk);
    }
}

/// Remaining bytes of a stream for the log.
#[derive(Debug, Default)]
struct LogBudget {
    since: Option<Instant>,
    spent: usize,
    dropped: usize,
}

impl LogBudget {
    /// How many of these bytes to log, and how many were left out in the second before.
    fn spend(&mut self, now: Instant, wanted: usize) -> (usize, usize) {
        let mut dropped_before = 0;
        if self
            .since
            .is_none_or(|since| now.duration_since(since) >= Duration::from_secs(1))
        {
            dropped_before = std::mem::take(&mut self.dropped);
            self.since = Some(now);
            self.spent = 0;
        }
        let allowed = wanted.min(LOGGED_BYTES_PER_S - self.spent);
        self.spent += allowed;
        self.dropped += wanted - allowed;
        (allowed, dropped_before)
    }
}

#[cfg(test)]
mod tests {
    use dayfly_executor::meter::meters_length;
    use dayfly_fabric::memory::{Mapping, sealed_memory};

    use super::*;

    #[test]
    fn late_output_of_dead_worker_keeps_its_call() {
        let length = meters_length(1);
        let file = sealed_memory("meters", length as u64).unwrap();
        let meter = Meter::new(Arc::new(Mapping::of(&file, length).unwrap()), 0);
        let source = |last: &Arc<OnceLock<u32>>| OutputSource::new(WorkerIndex(0), meter.clone(), Arc::clone(last));
        let (first, second) = (Arc::new(OnceLock::new()), Arc::default());
        let (dead, alive) = (source(&first), source(&second));
        meter.begin(meter.account("f"), 7, 0, 0);
        assert_eq!(dead.printer().sequence, 7);
        first.set(meter.read().started).unwrap();
        meter.attach();
        assert_eq!((dead.printer().sequence, alive.printer().sequence), (7, 0));
        meter.begin(meter.account("f"), 1, 0, 0);
        assert_eq!((dead.printer().sequence, alive.printer().sequence), (7, 1));
    }

    #[test]
    fn logged_output_is_limited_per_second() {
        let mut budget = LogBudget::default();
        let start = Instant::now();
        assert_eq!(budget.spend(start, 4096), (4096, 0));
        assert_eq!(budget.spend(start, LOGGED_BYTES_PER_S), (LOGGED_BYTES_PER_S - 4096, 0));
        assert_eq!(budget.spend(start, 10), (0, 0));
        let later = start + Duration::from_secs(1);
        assert_eq!(budget.spend(later, 10), (10, 4096 + 10));
        assert_eq!(budget.spend(later, 10), (10, 0));
    }
}
