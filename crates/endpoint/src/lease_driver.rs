//! Drivers: leased workers of a worker set, their executions, and the thread that drives them. A driver has one lease
//! ([`single`]), or those of a gang ([`gang`]).

pub mod gang;
mod output;
mod rank_outcomes;
pub mod single;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_client::{
    CallError, ChannelOptions, Code, Error, Geometry, Lease, Outcome, Output, Pool, PoolOptions, Status,
};
use dayfly_protocol::contents::{INLINE_BYTES, Payload};
use dayfly_protocol::dispatch::{Attempt, Ended, Program};
use dayfly_protocol::encoding::JSON_RESULT;
use dayfly_protocol::ids::NodeId;
use dayfly_protocol::tasks::MAX_RESULT_BYTES;

use crate::worker_set::{Task, WorkerSet};

/// Longest sleep of a driver; also the delay until a long execution shows as running.
const DRIVE_LIMIT: Duration = Duration::from_millis(50);
/// Ended executions whose output may still arrive.
const MAX_ENDED: usize = 1024;
/// Interval at which a lease is renewed.
const RENEW_INTERVAL: Duration = Duration::from_secs(6 * 3600);
/// Duration of a renewal.
const RENEWED_DURATION: Duration = Duration::from_secs(24 * 3600);
/// Slots of a channel and their stride: arguments of up to 2 KiB fit in a slot.
const GEOMETRY: Geometry = Geometry {
    slots: 64,
    stride_bytes: 2048,
    bulk_bytes: 8 << 30,
};

/// Some workers of a worker set. A retired driver gets no more tasks, and ends when it has none.
pub trait LeaseDriver: Send + Sync {
    /// Number of workers.
    fn workers(&self) -> u16;

    /// Nodes of the workers.
    fn nodes(&self) -> Vec<NodeId>;

    /// Whether to give it one more execution of this function.
    fn accepts(&self, program: &Program) -> bool;

    /// Known mean duration of this function's executions here, in microseconds.
    fn mean_us(&self, program: &Program) -> Option<u64>;

    /// Number of executions that it has.
    fn running(&self) -> usize;

    /// Whether it gets no more tasks.
    fn is_retired(&self) -> bool;

    /// Stops giving it tasks.
    fn retire(&self);

    /// Ends running executions.
    fn close(&self);

    /// Begins to execute a task. Returns it if the lease is over.
    fn begin(&self, task: Task) -> Option<Task>;

    /// Ends those of these executions that it has.
    fn cancel(&self, wanted: &HashSet<Attempt>);

    /// Ends those of these executions that no worker has, and returns them.
    fn withdraw(&self, wanted: &HashSet<Attempt>) -> Vec<Attempt>;

    /// Drives the channels until the driver is retired and empty.
    fn run(self: Arc<Self>, worker_set: &Arc<WorkerSet>);
}

/// Opens channels to all workers of a lease.
fn channels(lease: &Lease) -> Result<Pool, Error> {
    lease.pool(PoolOptions {
        channel: ChannelOptions {
            geometry: GEOMETRY,
            spin: Some(Duration::ZERO),
            ..ChannelOptions::default()
        },
        remembers: true,
        ..PoolOptions::default()
    })
}

/// Takes turns until the driver is retired and empty, and renews its leases meanwhile. A turn returns whether an
/// execution ended; after a turn without one, `on_idle` is called.
fn drive_until_retired<'a>(
    driver: &Arc<dyn LeaseDriver>,
    worker_set: &WorkerSet,
    leases: impl Fn() -> Vec<&'a Lease>,
    turn: impl Fn() -> bool,
    on_idle: impl Fn(),
) {
    let mut idle_since = Instant::now();
    let mut renewed = Instant::now();
    loop {
        if turn() {
            idle_since = Instant::now();
            continue;
        }
        if driver.running() > 0 {
            idle_since = Instant::now();
        }
        on_idle();
        if worker_set.ends_driver(driver, idle_since.elapsed()) {
            return;
        }
        if renewed.elapsed() > RENEW_INTERVAL {
            renewed = Instant::now();
            for lease in leases() {
                if let Err(error) = lease.renew(RENEWED_DURATION) {
                    tracing::warn!(%error, "a lease cannot be renewed");
                }
            }
        }
    }
}

/// Whether the lease takes no more calls, and never began this one.
fn is_over(code: Code) -> bool {
    matches!(
        code,
        Code::NotExecuted | Code::LeaseEnded | Code::LeaseExpired | Code::Unreachable | Code::StaleEpoch
    )
}

/// Whether a failed call was never begun, and no later one will be: without workers, every call fails at once, whatever the
/// reason is.
fn never_runs(error: &CallError, is_without_workers: bool) -> bool {
    is_over(error.code()) || (is_without_workers && !was_begun(error))
}

/// The report about an execution, and its result if that is long.
fn report_of(attempt: Attempt, outcome: Outcome, took_us: u64) -> (Ended, Option<Output>) {
    let ended = Ended {
        begun: true,
        took_us,
        ..Ended::unexecuted(attempt, None)
    };
    match outcome {
        Ok(output) if is_long(output.as_slice()) => (ended, Some(output)),
        Ok(output) => {
            let answer = Payload::Inline(output.into_bytes().into());
            (Ended { answer, ..ended }, None)
        }
        Err(error) => {
            let begun = was_begun(&error);
            let CallError {
                failure,
                status,
                payload,
            } = error;
            let raised = status == Some(Status::PythonException);
            let ended = Ended {
                begun,
                raised,
                error: Some(failure),
                ..ended
            };
            match payload {
                payload if raised && is_long(&payload) => (ended, Some(Output::Small(payload))),
                payload if raised => (
                    Ended {
                        answer: Payload::Inline(payload.into()),
                        ..ended
                    },
                    None,
                ),
                _ => (ended, None),
            }
        }
    }
}

/// Whether the function of a failed call may have begun.
fn was_begun(error: &CallError) -> bool {
    error.status.is_some()
        || matches!(
            error.failure.code,
            Code::MaybeExecuted | Code::MemoryReturned | Code::DeadlineExceeded
        )
}

/// Whether a result goes to the content store. A JSON result may be longer, since clients read it as JSON.
fn is_long(answer: &[u8]) -> bool {
    let most = match answer.last() {
        Some(&JSON_RESULT) => MAX_RESULT_BYTES,
        _ => INLINE_BYTES,
    };
    answer.len() > most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unbegun_calls_leave_leases_without_workers() {
        let failed = |code| CallError::new(code, "");
        for (code, with, without) in [
            (Code::LeaseEnded, true, true),
            (Code::ExecutorFailed, false, true),
            (Code::WorkerBusy, false, true),
            (Code::MaybeExecuted, false, false),
            (Code::DeadlineExceeded, false, false),
        ] {
            assert_eq!(never_runs(&failed(code), false), with, "{code:?}");
            assert_eq!(never_runs(&failed(code), true), without, "{code:?}");
        }
    }
}
