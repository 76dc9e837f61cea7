//! Assignment of calls to workers, under the pool's lock.

mod call_table;
mod choice;
mod members;
mod outcomes;
mod requests;
mod transmission;
mod worker;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dayfly_fabric::{Allocator, Buffer, Link, LinkError, Payload, Received, Sleeper};
use dayfly_protocol::error::{Code, Retry};
use dayfly_protocol::executor::Form;
use dayfly_protocol::ids::{CodeHash, FunctionIndex, WorkerIndex};
use dayfly_protocol::node_api::ChannelStatus;
use dayfly_protocol::slot::Status;

use super::repair::{BrokenChannel, Repair, verdict};
use super::{CallId, CallOptions, CopiedBytes, FunctionId, Input, Outcome, Output, OutputBuffer, PoolOptions};
use crate::channel::{Channel, Completion, load_request, read_index};
use crate::delegation::Delegation;
use crate::error::{CallError, Error};
use crate::lease::Lease;
use crate::open_request::OpenRequest;
use call_table::{CallTable, PendingCall};
use choice::must_run;
use members::Members;
use worker::{LoadState, Worker};

pub use members::Member;
pub use worker::{InFlight, Place, SentCall};

/// First rest of a worker that rejected a call; each further rejection doubles it.
const FIRST_REST: Duration = Duration::from_micros(100);
const MAX_DOUBLINGS: u32 = 7;

/// The calls, workers and functions of a pool.
pub struct Dispatch {
    /// The only lease of the pool; `None` in a fleet's.
    lease: Option<Lease>,
    /// The leases of a fleet; `None` in a pool of one lease.
    members: Option<Members>,
    options: PoolOptions,
    workers: Vec<Worker>,
    functions: Vec<(CodeHash, Form)>,
    calls: CallTable,
    /// Repairs that the pool has still to start.
    repairs: Vec<Repair>,
    /// Delegations, and the workers of each.
    delegations: Vec<(Delegation, Range<u16>)>,
    /// Whether workers may reject calls for want of a core, and another worker may have a core.
    is_rejectable: bool,
    /// When the first rest of a worker ends.
    first_rest_end: Option<Instant>,
    copied: CopiedBytes,
    /// Whether its channels were closed for good.
    is_disconnected: bool,
}

impl Dispatch {
    /// Opens a channel to every worker of the lease.
    pub fn open(lease: &Lease, options: PoolOptions) -> Result<Self, Error> {
        let mut workers = Vec::new();
        for index in lease.numbers() {
            let place = Place {
                lease: lease.clone(),
                index,
                key: 0,
            };
            let channel = lease.channel(WorkerIndex(index), &options.channel)?;
            workers.resize_with(index.into(), Worker::vacant);
            workers.push(Worker::new(place, channel));
        }
        Ok(Self {
            lease: Some(lease.clone()),
            members: None,
            options,
            workers,
            functions: Vec::new(),
            calls: CallTable::default(),
            repairs: Vec::new(),
            delegations: Vec::new(),
            is_rejectable: !lease.is_hot() && lease.workers() > 1,
            first_rest_end: None,
            copied: CopiedBytes::default(),
            is_disconnected: false,
        })
    }

    pub fn calls(&self) -> &CallTable {
        &self.calls
    }

    pub fn calls_mut(&mut self) -> &mut CallTable {
        &mut self.calls
    }

    pub fn register(&mut self, hash: CodeHash, form: Form) -> Result<FunctionId, Error> {
        if let Some(known) = self
            .functions
            .iter()
            .position(|known| known.0 == hash && known.1 == form)
        {
            return Ok(FunctionId(known as u32));
        }
        self.functions.push((hash, form));
        Ok(FunctionId(self.functions.len() as u32 - 1))
    }

    pub fn copied(&self) -> CopiedBytes {
        self.copied
    }

    pub fn submit(
        &mut self,
        function: FunctionId,
        input: Input,
        output: Option<OutputBuffer>,
        options: CallOptions,
    ) -> Result<CallId, Error> {
        if function.0 as usize >= self.functions.len() {
            return Err(Error::new(
                Code::UnknownFunction,
                "register the function with this pool first",
            ));
        }
        if self.members.is_some() && (options.worker.is_some() || options.incarnation.is_some()) {
            return Err(Error::new(
                Code::InvalidRequest,
                "a fleet chooses the worker of each call, and its workers come and go; use a lease for calls that need a certain \
                 worker or its state",
            ));
        }
        if options
            .worker
            .is_some_and(|worker| worker.0 as usize >= self.workers.len())
        {
            return Err(Error::new(
                Code::InvalidRequest,
                format!("this lease has {} workers", self.workers.len()),
            ));
        }
        let id = self.calls.add(options.notify);
        let call = Box::new(PendingCall {
            function,
            input,
            output,
            options,
            retries: 0,
            first_rejection: None,
        });
        if self.calls.is_queue_empty()
            && let Some(worker) = self.choose(&call, false)
        {
            self.assign(worker, id, call);
        } else {
            self.calls.push_back(id, call);
            if let Some(members) = &self.members {
                members.report_backlog();
            }
            // The submitter polls: ended calls make room for queued ones.
            if !self.poll() && self.has_no_worker_for(&options) {
                // No completion would ever trigger another attempt.
                self.assign_queued();
            }
        }
        Ok(id)
    }

    /// Takes in completions from every worker and sends queued calls. Returns whether there were completions.
    pub fn poll(&mut self) -> bool {
        let mut came = false;
        for index in 0..self.workers.len() {
            // Bounded, so that one busy worker does not starve the others.
            for _ in 0..self.options.channel.geometry.slots {
                let Some(channel) = &mut self.workers[index].channel else {
                    break;
                };
                match channel.poll() {
                    Ok(Some(completion)) => {
                        came = true;
                        self.on_completion(index, completion);
                    }
                    Ok(None) => break,
                    Err(error) => {
                        came = true;
                        self.on_broken(index, error);
                        break;
                    }
                }
            }
        }
        if came || self.end_rests() {
            self.assign_queued();
        }
        came
    }

    /// Ends rests that are over. Returns whether there were any.
    fn end_rests(&mut self) -> bool {
        let Some(next) = self.first_rest_end else { return false };
        let now = Instant::now();
        if now < next {
            return false;
        }
        for worker in &mut self.workers {
            worker.rests_until.take_if(|until| *until <= now);
        }
        self.first_rest_end = self.workers.iter().filter_map(|worker| worker.rests_until).min();
        true
    }

    /// Time until the first rest ends.
    pub fn patience(&self) -> Duration {
        self.first_rest_end
            .map_or(Duration::MAX, |next| next.saturating_duration_since(Instant::now()))
    }

    /// Finds channels whose node died.
    pub fn check_nodes(&mut self) {
        for index in 0..self.workers.len() {
            let Some(channel) = &self.workers[index].channel else {
                continue;
            };
            if let Err(error) = channel.check_node() {
                self.on_broken(index, error);
            }
        }
    }

    /// Sends queued calls to workers with room.
    fn assign_queued(&mut self) {
        let mut stuck = VecDeque::new();
        while let Some(id) = self.calls.pop_front() {
            let Some(call) = self.calls.waiting(id) else {
                continue;
            };
            let options = call.options;
            match self.choose(call, must_run(call.first_rejection)) {
                Some(worker) => {
                    if let Some(call) = self.calls.take_waiting(id) {
                        self.assign(worker, id, call);
                    }
                }
                None if self.has_no_worker_for(&options) => {
                    let error = self.no_worker_error(&options);
                    self.calls.end(id, Err(error));
                }
                None => {
                    stuck.push_back(id);
                    // A call for one worker must not delay those for any worker.
                    if options.worker.is_none() {
                        break;
                    }
                }
            }
        }
        while let Some(id) = stuck.pop_back() {
            self.calls.unpark(id);
        }
    }

    /// Workers that are neither delegated nor lost for good.
    pub fn remaining_workers(&self) -> usize {
        self.workers.iter().filter(|worker| worker.is_available()).count()
    }

    /// Whether no worker will ever be able to run a call with these options.
    fn has_no_worker_for(&self, options: &CallOptions) -> bool {
        if self.members.as_ref().is_some_and(Members::is_open) {
            return false;
        }
        let mut able = self
            .workers
            .iter()
            .enumerate()
            .filter(|(index, _)| options.worker.is_none_or(|w| w.0 as usize == *index));
        able.all(|(_, worker)| !worker.is_available())
    }

    /// Returns why no worker can run a call with these options.
    fn no_worker_error(&self, options: &CallOptions) -> CallError {
        let index = options.worker.map_or(0, |worker| worker.0 as usize);
        let error = match self.workers.get(index) {
            Some(worker) if worker.is_delegated => Some(requests::delegated(options.worker)),
            worker => worker.and_then(|worker| worker.final_error.clone()),
        };
        error.unwrap_or_else(|| CallError::new(Code::Unreachable, "no worker is left"))
    }
}
