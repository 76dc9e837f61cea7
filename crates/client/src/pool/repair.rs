//! What happens when a worker's channel breaks: its node is asked what became of the calls, and a new channel is opened.
//!
//! The second takes as long as a worker takes to start, so both run on a thread of their own, without the pool's lock: the other
//! workers go on, and nobody waits who has no business with this one. Whoever called hears the verdict before the new channel
//! is there.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_fabric::LinkError;
use dayfly_protocol::error::Code;
use dayfly_protocol::ids::WorkerIndex;
use dayfly_protocol::node_api::{End, Fate};

use super::CallId;
use super::dispatch::InFlight;
use crate::channel::{Channel, ChannelOptions, verdict_on};
use crate::error::{CallError, Error};
use crate::lease::Lease;
use crate::opening::Opening;

/// A worker that was cut off with its node, or taken back, may still be in the middle of a call; its node ends that after 10 s.
const OLD_CALL_LIMIT: Duration = Duration::from_secs(12);
const OLD_CALL_LOOK: Duration = Duration::from_millis(50);

/// What a broken channel leaves to be decided.
pub struct Broken {
    pub error: LinkError,
    pub in_flight: VecDeque<(u32, InFlight)>,
    pub parked: VecDeque<CallId>,
    pub opening: Arc<Opening>,
}

impl Drop for Broken {
    /// Nobody waits for a new channel any more, if there is none yet.
    fn drop(&mut self) {
        self.opening.end();
    }
}

/// The repair of one worker's channel.
pub struct Repair {
    pub index: usize,
    /// The broken one; none for a worker that comes back from somebody to whom it was delegated.
    pub channel: Option<Channel>,
    pub lease: Lease,
    pub options: ChannelOptions,
    pub opening: Arc<Opening>,
}

/// There is no thread to run a repair on, and no waiting for one.
pub fn impossible(error: &std::io::Error) -> CallError {
    let text = format!("the channel broke, and no thread can be started to open another: {error}");
    CallError::new(Code::OutOfMemory, text)
}

impl Repair {
    /// Finds out what became of the old channel, tells it, and opens a new one.
    pub fn run(self, tell: impl FnOnce(&Result<Fate, Error>)) -> Result<Channel, CallError> {
        let Self {
            index,
            channel,
            lease,
            options,
            opening,
        } = self;
        let mut patience = OLD_CALL_LIMIT;
        if let Some(channel) = channel {
            let fate = channel.fate();
            let (id, lost) = (channel.id(), channel.check_lost());
            drop(channel);
            tell(&fate);
            if lost.is_err() {
                // Should the node be back by now: it has not heard that the old channel ended.
                lease.inner.close(id).map_err(CallError::from)?;
            } else {
                patience = Duration::ZERO;
            }
            if let Some(error) = fate.as_ref().ok().and_then(|fate| fate.end).and_then(over) {
                return Err(error);
            }
        }
        let until = Instant::now() + patience;
        loop {
            match Channel::open(&lease, WorkerIndex(index as u16), &options, &opening) {
                Err(error) if error.code() == Code::WorkerBusy && Instant::now() < until => {
                    std::thread::sleep(OLD_CALL_LOOK);
                }
                opened => return opened.map_err(CallError::from),
            }
        }
    }
}

/// Why there will be no new channel, if the lease itself has ended.
fn over(end: End) -> Option<CallError> {
    let (code, text) = match end {
        End::Expired => (
            Code::LeaseExpired,
            "the lease has expired; renew it in time, or lease for longer",
        ),
        End::Released => (Code::LeaseEnded, "the lease was released"),
        End::Revoked => (Code::LeaseEnded, "the lease was revoked by an operator; lease again"),
        End::TakenBack => (
            Code::LeaseEnded,
            "this part of the lease was taken back by whoever delegated it; ask for another one",
        ),
        _ => return None,
    };
    Some(CallError::new(code, text))
}

/// Whether a call ran that was outstanding when its channel broke.
pub fn verdict(fate: &Result<Fate, Error>, sequence: u32, error: &LinkError) -> CallError {
    match fate {
        Ok(fate) => verdict_on(fate, sequence),
        Err(unknown) => CallError::new(
            Code::MaybeExecuted,
            format!("the channel broke ({error}) and its node cannot say whether the call ran: {unknown}"),
        ),
    }
}
