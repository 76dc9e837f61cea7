//! The part of [`Dispatch`] that chooses the worker for a call.

use super::*;

/// Work to queue at a worker, in nanoseconds: enough to bridge the caller's pauses, and so little that no worker idles
/// while another has a queue.
pub(super) const QUEUED_WORK_NS: f64 = 200_000.0;
/// Time to copy a byte to the memory of another worker, in nanoseconds: new pages cost more than the copy.
const COPY_NS_PER_BYTE: f64 = 0.5;
/// A worker with long calls has one more waiting, so that it does not idle between two.
const MIN_DEPTH: usize = 2;
/// How long a call that was rejected for want of a core is tried on other workers; then it runs and shares a core.
const MAX_REJECTED_TIME: Duration = Duration::from_millis(1);

impl Dispatch {
    #[inline]
    fn depth(&self, worker: &Worker) -> usize {
        let slots = self.options.channel.geometry.slots as usize;
        let depth = match self.options.depth {
            0 => (QUEUED_WORK_NS / worker.pace_ns.max(1.0)) as usize,
            fixed => fixed as usize,
        };
        let least = match self.members {
            // A call behind a long one could not move to another node.
            Some(_) => 1,
            None => MIN_DEPTH,
        };
        depth.clamp(least.min(slots), slots)
    }

    /// The worker for this call: the one that shares the memory of its buffers, unless that worker is so busy that a
    /// copy for the least busy one costs less.
    #[inline]
    pub(super) fn choose(&self, call: &PendingCall, must_run: bool) -> Option<usize> {
        let least_busy = self.least_busy(&call.options, must_run)?;
        let has_no_buffer = matches!(call.input, Input::Bytes(_) | Input::Blob(_)) && call.output.is_none();
        if has_no_buffer || call.options.worker.is_some() {
            return Some(least_busy);
        }
        Some(self.home_instead_of(least_busy, call).unwrap_or(least_busy))
    }

    /// The worker that shares memory with this call's buffers, if it is to run the call.
    fn home_instead_of(&self, least_busy: usize, call: &PendingCall) -> Option<usize> {
        let (home, bytes) = self.home_of(call)?;
        let (worker, other) = (&self.workers[home], &self.workers[least_busy]);
        let takes_calls = worker.rests_until.is_none() && worker.is_open() && worker.load() < self.depth(worker);
        let copy_ns = bytes as f64 * COPY_NS_PER_BYTE;
        (takes_calls && worker.delay_ns() <= other.delay_ns() + copy_ns).then_some(home)
    }

    /// The worker that shares memory with buffers of this call, and the bytes of those buffers.
    fn home_of(&self, call: &PendingCall) -> Option<(usize, usize)> {
        let input = match &call.input {
            Input::Buffer(buffer, length) => Some((buffer, *length)),
            Input::Shared(buffer, length) => Some((&**buffer, *length)),
            Input::Bytes(_) | Input::Blob(_) => None,
        };
        let bytes_at = |worker: &Worker| {
            let link = worker.channel.as_ref()?.link_ref();
            let of_input = input.map_or(0, |(buffer, length)| length * usize::from(link.is_home_of(buffer)));
            let of_output = match &call.output {
                Some(output) if output.is_in(|buffer| link.is_home_of(buffer)) => output.as_slice().len(),
                _ => 0,
            };
            Some(of_input + of_output).filter(|bytes| *bytes > 0)
        };
        let homes = self.workers.iter().enumerate();
        homes
            .filter_map(|(index, worker)| Some((index, bytes_at(worker)?)))
            .max_by_key(|(_, bytes)| *bytes)
    }

    /// The worker with the fewest calls that may take this one. A resting worker gets only calls that must run or that
    /// name it.
    #[inline]
    fn least_busy(&self, options: &CallOptions, must_run: bool) -> Option<usize> {
        self.workers
            .iter()
            .enumerate()
            .filter(|(index, worker)| {
                worker.is_open()
                    && options.worker.is_none_or(|wanted| wanted.0 as usize == *index)
                    && worker.load() < self.depth(worker)
                    && (must_run || worker.rests_until.is_none() || options.worker.is_some())
            })
            .min_by_key(|(_, worker)| (worker.rests_until.is_some(), worker.load()))
            .map(|(index, _)| index)
    }
}

/// Whether a call that was first rejected at this time must no longer be rejected.
#[inline]
pub(super) fn must_run(first_rejection: Option<Instant>) -> bool {
    first_rejection.is_some_and(|first| first.elapsed() >= MAX_REJECTED_TIME)
}
