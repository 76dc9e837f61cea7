//! Workers that a crew leased, what runs there, and the thread that drives it: one lease ([`single`]), or those of a gang
//! ([`gang`]).

pub mod gang;
mod heard;
pub mod single;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_client::{
    CallError, ChannelOptions, Code, Error, Geometry, Lease, Outcome, Output, Pool, PoolOptions, Status,
};
use dayfly_protocol::contents::{INLINE_BYTES, Payload};
use dayfly_protocol::dispatch::{Attempt, Ended, Program};
use dayfly_protocol::ids::NodeId;
use dayfly_protocol::tasks::{JSON_ANSWER, MOST_ANSWER_BYTES};

use crate::crew::{Crew, Task};

/// How long a lane sleeps while nothing ends; also how soon a long execution shows as running.
const LOOK: Duration = Duration::from_millis(50);
/// Executions that have ended and may not have been heard to the end.
const REMEMBERED: usize = 1024;
/// A lease is made longer when so much of it is over.
const RENEW_EVERY: Duration = Duration::from_secs(6 * 3600);
/// What a lease is renewed for.
const LENGTH: Duration = Duration::from_secs(24 * 3600);
/// Slots of a channel, and their stride: arguments of up to 2 KiB travel inside a slot.
const GEOMETRY: Geometry = Geometry {
    slots: 64,
    stride_bytes: 2048,
    bulk_bytes: 8 << 30,
};

/// Some workers of a crew. A lane that is retired gets no more tasks, and ends when it has none.
pub trait Lane: Send + Sync {
    /// How many there are.
    fn workers(&self) -> u16;

    /// Where they are.
    fn nodes(&self) -> Vec<NodeId>;

    /// Whether it is to be given one more execution of this function.
    fn takes(&self, program: &Program) -> bool;

    /// Executions that it has.
    fn running(&self) -> usize;

    /// Whether it gets no more tasks.
    fn is_retired(&self) -> bool;

    /// It gets no more tasks.
    fn retire(&self);

    /// Ends what runs.
    fn close(&self);

    /// Begins to execute a task. It comes back where the lease is over.
    fn begin(&self, task: Task) -> Option<Task>;

    /// Ends these executions, if they are here.
    fn cancel(&self, wanted: &HashSet<Attempt>);

    /// Ends those of these executions that no worker has been given, and returns them.
    fn withdraw(&self, wanted: &HashSet<Attempt>) -> Vec<Attempt>;

    /// Drives the channels until the lane is empty and gets no more tasks.
    fn run(self: Arc<Self>, crew: &Arc<Crew>);
}

/// Channels to each worker of a lease.
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

/// Takes turns until the lane is empty and gets no more tasks, and makes its leases last meanwhile. A turn answers whether an
/// execution ended; after one in which none did, it is time for `mind`.
fn keep<'a>(
    lane: &Arc<dyn Lane>,
    crew: &Crew,
    leases: impl Fn() -> Vec<&'a Lease>,
    turn: impl Fn() -> bool,
    mind: impl Fn(),
) {
    let mut idle_since = Instant::now();
    let mut renewed = Instant::now();
    loop {
        if turn() {
            idle_since = Instant::now();
            continue;
        }
        if lane.running() > 0 {
            idle_since = Instant::now();
        }
        mind();
        if crew.lets_go(lane, idle_since.elapsed()) {
            return;
        }
        if renewed.elapsed() > RENEW_EVERY {
            renewed = Instant::now();
            for lease in leases() {
                if let Err(error) = lease.renew(LENGTH) {
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

/// What the manager is told of an execution, and its answer, where that is long.
fn told(attempt: Attempt, outcome: Outcome, took_us: u64) -> (Ended, Option<Output>) {
    let ended = Ended {
        begun: true,
        took_us,
        ..Ended::unexecuted(attempt, None)
    };
    match outcome {
        Ok(output) if is_long(output.as_slice()) => (ended, Some(output)),
        Ok(output) => {
            let answer = Payload::Here(output.into_bytes().into());
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
                        answer: Payload::Here(payload.into()),
                        ..ended
                    },
                    None,
                ),
                _ => (ended, None),
            }
        }
    }
}

/// Whether the function of a call that did not end well may have been begun.
fn was_begun(error: &CallError) -> bool {
    error.status.is_some() || matches!(error.failure.code, Code::MaybeExecuted | Code::DeadlineExceeded)
}

/// Whether an answer goes to the content store. In JSON it is for whoever asks in JSON, and goes along.
fn is_long(answer: &[u8]) -> bool {
    let most = match answer.last() {
        Some(&JSON_ANSWER) => MOST_ANSWER_BYTES,
        _ => INLINE_BYTES,
    };
    answer.len() > most
}
