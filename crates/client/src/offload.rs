//! Loops shared between this program and leased workers.
//!
//! [`Offload`] learns how long calls take here and on workers, and says how many to send so that the program never
//! waits for them; [`Offload::share`] runs a whole loop that way. The policy is `dayfly_lease::offload`.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dayfly_lease::offload::Planner;
pub use dayfly_lease::offload::{Completion, Estimate, LogGp, Reason, Split};
use dayfly_protocol::error::{Code, Retry};

use crate::{CallError, CallId, CallOptions, FunctionId, Outcome, Pool};

/// The result of [`Offload::share`].
#[derive(Debug, Clone, PartialEq)]
pub struct Shared {
    /// Outputs in the order of the inputs.
    pub outputs: Vec<Vec<u8>>,
    /// How the calls were divided.
    pub split: Split,
    /// How long this thread waited for calls after it had done its own.
    pub waited: Duration,
}

/// Errors of calls whose lease is gone.
const LOST_WITH_THE_LEASE: [Code; 2] = [Code::LeaseEnded, Code::LeaseExpired];

/// Divides loops between this program and leased workers. Usable from any thread.
pub struct Offload {
    planner: Mutex<Planner>,
    /// Start of the clock of [`Offload::now`].
    origin: Instant,
}

impl Default for Offload {
    fn default() -> Self {
        Self::new()
    }
}

impl Offload {
    /// A planner that knows nothing and has no workers.
    pub fn new() -> Self {
        Self {
            planner: Mutex::new(Planner::new()),
            origin: Instant::now(),
        }
    }

    fn planner(&self) -> MutexGuard<'_, Planner> {
        self.planner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Seconds on the clock for [`Completion`].
    pub fn now(&self) -> f64 {
        self.origin.elapsed().as_secs_f64()
    }

    /// Sets the number of workers: channels 0 to `workers - 1`, which share one link.
    pub fn set_workers(&self, workers: u32) {
        self.planner().set_workers(workers);
    }

    /// Adds a channel, or changes its link. Channels with the same link share its bandwidth.
    pub fn add_channel(&self, channel: u32, link: u32) {
        self.planner().add_channel(channel, link);
    }

    /// Removes a channel and what is known of it.
    pub fn remove_channel(&self, channel: u32) {
        self.planner().remove_channel(channel);
    }

    /// Records that the program computed `calls` calls, in `elapsed` seconds of one thread. `bytes` is the size of the
    /// input and output of one call.
    pub fn record_local(&self, function: u64, bytes: u64, calls: u64, elapsed: f64) {
        self.planner().record_local(function, bytes, calls, elapsed);
    }

    /// Records a call on a worker that has ended with an output.
    pub fn record_remote(&self, function: u64, bytes: u64, completion: Completion) {
        self.planner().record_remote(function, bytes, completion);
    }

    /// Divides `calls` calls with `bytes` bytes of input and output each, for `threads` computing threads.
    pub fn split(&self, function: u64, bytes: u64, calls: u64, threads: u32) -> Split {
        self.planner().split(function, bytes, calls, threads)
    }

    /// What is known of each channel for a function and a size.
    pub fn estimates(&self, function: u64, bytes: u64) -> Vec<Estimate> {
        self.planner().estimates(function, bytes)
    }

    /// Median local time of a function and a size, and the time of 95 % of the calls, in seconds.
    pub fn local(&self, function: u64, bytes: u64) -> Option<(f64, f64)> {
        self.planner().local(function, bytes)
    }

    /// Computes a function of every input, in this thread with `local` and on the workers of a pool. A call that was
    /// not executed, that waits when this thread has no more work, or that is idempotent and failed with its worker, is
    /// computed here. Without workers everything is: a fleet that is to be used has a minimum of workers. The error is
    /// that of the first call that failed otherwise.
    pub fn share<I: AsRef<[u8]>>(
        &self,
        pool: &Pool,
        function: FunctionId,
        inputs: &[I],
        options: CallOptions,
        mut local: impl FnMut(&[u8]) -> Vec<u8>,
    ) -> Result<Shared, CallError> {
        let workers = u32::try_from(pool.remaining_workers()).unwrap_or(u32::MAX);
        let (key, bytes) = (u64::from(function.0), largest(inputs) + options.room as u64);
        let split = {
            let mut planner = self.planner();
            planner.set_workers(workers);
            planner.split(key, bytes, inputs.len() as u64, 1)
        };
        let first = usize::try_from(split.local).unwrap_or(usize::MAX).min(inputs.len());
        let mut step = Step {
            offload: self,
            pool,
            key,
            bytes,
            sent: VecDeque::new(),
            outputs: inputs.iter().map(|_| None).collect(),
            again: Vec::new(),
            is_idempotent: options.idempotent,
            window: 2 * workers as usize,
        };
        for (at, input) in inputs.iter().enumerate().skip(first) {
            step.send(at, function, input.as_ref(), options)?;
        }
        for (at, input) in inputs.iter().enumerate().take(first) {
            let begun = Instant::now();
            step.outputs[at] = Some(local(input.as_ref()));
            self.record_local(key, bytes, 1, begun.elapsed().as_secs_f64());
            step.take_ended()?;
        }
        let idle_since = Instant::now();
        step.reclaim();
        loop {
            while let Some(at) = step.again.pop() {
                step.outputs[at] = Some(local(inputs[at].as_ref()));
            }
            if !step.wait()? && step.again.is_empty() {
                break;
            }
        }
        Ok(Shared {
            outputs: std::mem::take(&mut step.outputs).into_iter().flatten().collect(),
            split,
            waited: idle_since.elapsed(),
        })
    }
}

fn largest<I: AsRef<[u8]>>(inputs: &[I]) -> u64 {
    inputs
        .iter()
        .map(|input| input.as_ref().len() as u64)
        .max()
        .unwrap_or(0)
}

/// A call that was sent, and the index of its input.
struct Sent {
    call: CallId,
    at: usize,
    submitted: f64,
    overhead: f64,
}

/// A loop under way. Calls that are left when it is dropped are cancelled.
struct Step<'a> {
    offload: &'a Offload,
    pool: &'a Pool,
    key: u64,
    bytes: u64,
    sent: VecDeque<Sent>,
    outputs: Vec<Option<Vec<u8>>>,
    /// Inputs that are to be computed here.
    again: Vec<usize>,
    is_idempotent: bool,
    /// How many calls are looked at for their end.
    window: usize,
}

impl Step<'_> {
    fn send(&mut self, at: usize, function: FunctionId, input: &[u8], options: CallOptions) -> Result<(), CallError> {
        let submitted = self.offload.now();
        let call = self.pool.submit(function, input, options)?;
        let overhead = self.offload.now() - submitted;
        self.sent.push_back(Sent {
            call,
            at,
            submitted,
            overhead,
        });
        Ok(())
    }

    /// Takes outcomes that are there, without waiting.
    fn take_ended(&mut self) -> Result<(), CallError> {
        if self.sent.is_empty() {
            return Ok(());
        }
        self.pool.poll();
        // Workers take calls in the order of their submission, so only the first ones can have ended.
        let mut at = 0;
        while at < self.window {
            match self.sent.get(at) {
                None => break,
                Some(sent) if !self.pool.is_done(sent.call) => at += 1,
                Some(_) => {
                    if let Some(sent) = self.sent.remove(at) {
                        let outcome = self.pool.wait(sent.call, None);
                        self.end(&sent, outcome)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits for the call that was sent first. Returns whether there was one.
    fn wait(&mut self) -> Result<bool, CallError> {
        let Some(first) = self.sent.pop_front() else {
            return Ok(false);
        };
        let outcome = self.pool.wait(first.call, None);
        self.end(&first, outcome)?;
        self.take_ended()?;
        Ok(true)
    }

    fn end(&mut self, sent: &Sent, outcome: Outcome) -> Result<(), CallError> {
        let ended = self.offload.now();
        match outcome {
            Ok(output) => {
                self.outputs[sent.at] = Some(output.into_bytes());
                let completion = Completion {
                    channel: None,
                    submitted: sent.submitted,
                    overhead: Some(sent.overhead),
                    ended,
                    run: None,
                    is_exact: true,
                };
                self.offload.record_remote(self.key, self.bytes, completion);
            }
            Err(error) if self.is_repeatable(&error) => self.again.push(sent.at),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Whether the call may be computed again, here.
    fn is_repeatable(&self, error: &CallError) -> bool {
        match error.code().retry() {
            Retry::Elsewhere => true,
            Retry::Later | Retry::IfIdempotent => self.is_idempotent,
            Retry::Never => self.is_idempotent && LOST_WITH_THE_LEASE.contains(&error.code()),
        }
    }

    /// Takes calls back that no worker has got.
    fn reclaim(&mut self) {
        let (pool, again) = (self.pool, &mut self.again);
        self.sent.retain(|sent| {
            let is_back = pool.cancel(sent.call);
            if is_back {
                again.push(sent.at);
                pool.forget(sent.call);
            }
            !is_back
        });
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        for sent in self.sent.drain(..) {
            self.pool.forget(sent.call);
        }
    }
}
