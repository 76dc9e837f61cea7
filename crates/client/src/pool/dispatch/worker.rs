//! A pool's record of one worker: its channel, and the messages in flight.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use dayfly_fabric::Buffer;
use dayfly_protocol::ids::FunctionIndex;

use super::super::repair::BrokenChannel;
use super::super::{CallId, CallOptions, FunctionId, Input, OutputBuffer};
use super::choice::QUEUED_WORK_NS;
use crate::channel::Channel;
use crate::error::CallError;
use crate::lease::Lease;

/// Where a worker is: its lease, and its index there.
#[derive(Clone)]
pub struct Place {
    pub lease: Lease,
    pub index: u16,
    /// The fleet's number of the lease; 0 in a pool of one lease.
    pub key: u64,
}

/// An outstanding message to a worker.
pub enum InFlight {
    Load(FunctionId),
    Call(SentCall),
}

/// A call that was sent.
pub struct SentCall {
    pub id: CallId,
    pub(super) function: FunctionId,
    /// Kept if the call may be retried and the input is bytes.
    pub(super) input: Option<Input>,
    /// The caller's memory for the output.
    pub(super) output: Option<OutputBuffer>,
    pub(super) options: CallOptions,
    pub(super) retries: u8,
    pub(super) first_rejection: Option<Instant>,
}

/// Whether a worker has loaded a function.
pub(super) enum LoadState {
    Requested,
    Ready(FunctionIndex),
    Failed(CallError),
}

pub(super) struct Worker {
    /// `None` after its lease was given back; another worker may take its number.
    pub(super) place: Option<Place>,
    /// Whether it belongs to a lease that is about to be given back: it gets no more calls.
    pub(super) is_retiring: bool,
    /// Whether it may reject calls for want of a core.
    pub(super) is_warm: bool,
    pub(super) channel: Option<Channel>,
    pub(super) in_flight: VecDeque<(u32, InFlight)>,
    /// The last calls on its channel, if the pool remembers them.
    pub(super) recent: VecDeque<(u32, CallId)>,
    pub(super) loaded: HashMap<FunctionId, LoadState>,
    /// This pool's own buffers for the outputs of outstanding calls, by sequence number.
    pub(super) rooms: VecDeque<(u32, Buffer)>,
    /// Calls that wait until this worker has loaded their function.
    pub(super) parked: VecDeque<CallId>,
    /// Moving average of the time between two completions while busy, in nanoseconds.
    pub(super) pace_ns: f64,
    /// When the last completion arrived, or the first of its outstanding calls was sent.
    pub(super) last_completion: Option<Instant>,
    /// Calls whose end its repair decides.
    pub(super) broken: Option<BrokenChannel>,
    /// Why it is lost for good.
    pub(super) final_error: Option<CallError>,
    /// Whether the worker is delegated, or set aside for a delegation.
    pub(super) is_delegated: bool,
    /// Rejections in a row for want of a core.
    pub(super) rejections: u32,
    /// End of the rest that follows a rejection.
    pub(super) rests_until: Option<Instant>,
    /// Whether a worker with its number was added while its last channel was being judged.
    pub(super) opens_again: bool,
}

impl Worker {
    pub(super) fn new(place: Place, channel: Channel) -> Self {
        Self {
            is_warm: !place.lease.is_hot(),
            place: Some(place),
            is_retiring: false,
            channel: Some(channel),
            ..Self::vacant()
        }
    }

    /// A number that no worker has.
    pub(super) fn vacant() -> Self {
        Self {
            is_warm: false,
            place: None,
            is_retiring: true,
            channel: None,
            in_flight: VecDeque::new(),
            recent: VecDeque::new(),
            loaded: HashMap::new(),
            rooms: VecDeque::new(),
            parked: VecDeque::new(),
            pace_ns: QUEUED_WORK_NS,
            last_completion: None,
            broken: None,
            final_error: None,
            is_delegated: false,
            rejections: 0,
            rests_until: None,
            opens_again: false,
        }
    }

    /// Whether it is of the lease with this key.
    pub(super) fn is_of(&self, key: u64) -> bool {
        self.place.as_ref().is_some_and(|place| place.key == key)
    }

    /// Expected time until it begins a call that is sent now, in nanoseconds. A call that has run for longer than most
    /// is expected to go on for as long again.
    pub(super) fn delay_ns(&self) -> f64 {
        let running_ns = match self.last_completion {
            Some(since) if !self.in_flight.is_empty() => since.elapsed().as_nanos() as f64,
            _ => 0.0,
        };
        self.load() as f64 * self.pace_ns.max(running_ns)
    }

    /// Number of calls that were assigned to it and have not ended.
    #[inline]
    pub(super) fn load(&self) -> usize {
        self.in_flight.len() + self.parked.len()
    }

    /// Whether it belongs to the pool: it is neither delegated, nor given back, nor lost for good.
    pub(super) fn is_available(&self) -> bool {
        !self.is_delegated && !self.is_retiring && self.final_error.is_none()
    }

    /// Whether it takes calls now.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.channel.is_some() && !self.is_delegated && !self.is_retiring
    }

    /// Whether it has no outstanding calls and needs no repair.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.parked.is_empty() && self.broken.is_none()
    }
}
