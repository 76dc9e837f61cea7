//! Repair of a broken channel: asks the node for the fate of its calls, and opens a new channel.
//!
//! Opening takes as long as a worker takes to start. Therefore a repair has a thread of its own and does not hold
//! the pool's lock; the other workers go on. Callers receive the verdict before the new channel is open.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_fabric::LinkError;
use dayfly_protocol::error::Code;
use dayfly_protocol::ids::WorkerIndex;
use dayfly_protocol::node_api::{ChannelStatus, End};

use super::CallId;
use super::dispatch::{InFlight, Place};
use crate::channel::{Channel, ChannelOptions, verdict_on};
use crate::error::{CallError, Error};
use crate::open_request::OpenRequest;

/// How long to wait for a worker that is still in a call, after its node was cut off or a delegation was taken back.
/// The node ends that call after 10 s.
const OLD_CALL_LIMIT: Duration = Duration::from_secs(12);
const OLD_CALL_RETRY: Duration = Duration::from_millis(50);

/// Calls whose end the repair decides.
pub struct BrokenChannel {
    pub error: LinkError,
    pub in_flight: VecDeque<(u32, InFlight)>,
    pub parked: VecDeque<CallId>,
    pub open_request: Arc<OpenRequest>,
}

impl Drop for BrokenChannel {
    /// Cancels the opening of a new channel.
    fn drop(&mut self) {
        self.open_request.cancel();
    }
}

pub struct Repair {
    pub index: usize,
    /// The broken channel; `None` for a worker that returns from a delegation.
    pub channel: Option<Channel>,
    pub place: Place,
    /// Whether a node that cannot be reached is given up: a fleet has others.
    pub gives_up: bool,
    pub options: ChannelOptions,
    pub open_request: Arc<OpenRequest>,
}

/// The error when no thread can be started for a repair.
pub fn no_thread_error(error: &std::io::Error) -> CallError {
    let text = format!("the channel broke, and no thread can be started to open another: {error}");
    CallError::new(Code::OutOfMemory, text)
}

impl Repair {
    /// Asks for the fate of the old channel, passes it to `report`, and opens a new channel.
    pub fn run(self, report: impl FnOnce(&Result<ChannelStatus, Error>)) -> Result<Channel, CallError> {
        let Self {
            channel,
            place: Place { lease, index, .. },
            gives_up,
            options,
            open_request,
            ..
        } = self;
        let mut wait_limit = OLD_CALL_LIMIT;
        if let Some(channel) = channel {
            let fate = channel.fate();
            let (id, lost) = (channel.id(), channel.check_lost());
            drop(channel);
            report(&fate);
            if let Err(unknown) = &fate
                && gives_up
            {
                return Err(unknown.clone().into());
            }
            if lost.is_err() {
                // The node may be back, and may not have noticed that the old channel ended.
                lease.inner.close(id).map_err(CallError::from)?;
            } else {
                wait_limit = Duration::ZERO;
            }
            if let Some(error) = fate.as_ref().ok().and_then(|fate| fate.end).and_then(lease_end_error) {
                return Err(error);
            }
        }
        let until = Instant::now() + wait_limit;
        loop {
            match Channel::open(&lease, WorkerIndex(index), &options, &open_request) {
                Err(error) if error.code() == Code::WorkerBusy && Instant::now() < until => {
                    std::thread::sleep(OLD_CALL_RETRY);
                }
                opened => return opened.map_err(CallError::from),
            }
        }
    }
}

/// The error if the lease itself has ended; `None` if a new channel can be opened.
fn lease_end_error(end: End) -> Option<CallError> {
    let (code, text) = match end {
        End::Expired => (
            Code::LeaseExpired,
            "the lease has expired; renew it in time, or lease for longer",
        ),
        End::Released => (Code::LeaseEnded, "the lease was released"),
        End::Revoked => (Code::LeaseEnded, "the lease was revoked by an operator; lease again"),
        End::Retired => (
            Code::LeaseEnded,
            "the lease was renewed with fewer workers, and this worker was given back; use another one",
        ),
        End::DelegationRevoked => (
            Code::LeaseEnded,
            "the delegator took this part of the lease back; ask for another one",
        ),
        _ => return None,
    };
    Some(CallError::new(code, text))
}

/// Whether a worker ended because its lease did, or its node took it back: whatever it ran is not the cause.
pub fn is_end_of_lease(end: End) -> bool {
    lease_end_error(end).is_some() || matches!(end, End::ExecutorDied | End::ClientGone)
}

/// The error of a call that was outstanding when its channel broke.
pub fn verdict(fate: &Result<ChannelStatus, Error>, sequence: u32, error: &LinkError) -> CallError {
    match fate {
        Ok(fate) => verdict_on(fate, sequence),
        Err(unknown) => CallError::new(
            Code::MaybeExecuted,
            format!("the channel broke ({error}), and its node cannot report whether the call ran: {unknown}"),
        ),
    }
}
