//! A pool's record of one worker: its channel, and the messages in flight.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use dayfly_fabric::Buffer;
use dayfly_protocol::ids::FunctionIndex;

use super::super::repair::BrokenChannel;
use super::super::{CallId, CallOptions, FunctionId, Input};
use super::QUEUED_WORK_NS;
use crate::channel::Channel;
use crate::error::CallError;

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
    pub(super) channel: Option<Channel>,
    pub(super) in_flight: VecDeque<(u32, InFlight)>,
    /// The last calls on its channel, if the pool remembers them.
    pub(super) recent: VecDeque<(u32, CallId)>,
    pub(super) loaded: HashMap<FunctionId, LoadState>,
    /// Buffers for the outputs of outstanding calls, by sequence number.
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
}

impl Worker {
    pub(super) fn new(channel: Channel) -> Self {
        Self {
            channel: Some(channel),
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
        }
    }

    /// Number of calls that were assigned to it and have not ended.
    pub(super) fn load(&self) -> usize {
        self.in_flight.len() + self.parked.len()
    }

    /// Whether it belongs to the pool: it is neither delegated nor lost for good.
    pub(super) fn is_available(&self) -> bool {
        !self.is_delegated && self.final_error.is_none()
    }

    /// Whether it has no outstanding calls and needs no repair.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.parked.is_empty() && self.broken.is_none()
    }
}
