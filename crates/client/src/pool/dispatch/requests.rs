//! The part of [`Dispatch`] for requests of the pool's user: to cancel calls, to close channels, to delegate workers.

use dayfly_protocol::node_api::Printer;

use super::*;

/// The error when delegation leaves no worker for a call.
pub(super) fn delegated(worker: Option<WorkerIndex>) -> CallError {
    let text = match worker {
        Some(worker) => format!("worker {} is delegated; take it back first", worker.0),
        None => "every worker is delegated; take some back, or keep one".into(),
    };
    CallError::new(Code::WorkerBusy, text)
}

impl Dispatch {
    /// Cancels a call that waits. Returns whether it waited.
    pub fn cancel(&mut self, call: CallId) -> bool {
        if self.calls.waiting(call).is_none() {
            return false;
        }
        self.calls.remove_queued(call);
        for worker in &mut self.workers {
            worker.parked.retain(|parked| *parked != call);
            if let Some(broken) = &mut worker.broken {
                broken.parked.retain(|parked| *parked != call);
            }
        }
        self.calls.end(
            call,
            Err(CallError::new(
                Code::Cancelled,
                "the call was cancelled before it was sent",
            )),
        );
        true
    }

    /// Closes all channels. Calls that have not ended end with an error.
    pub fn disconnect(&mut self) {
        let error = CallError::new(Code::LeaseEnded, "the channels of this lease were closed; lease again");
        self.is_disconnected = true;
        for worker in &mut self.workers {
            worker.channel = None;
            worker.final_error = Some(error.clone());
            worker.in_flight.clear();
            worker.rooms.clear();
            worker.parked.clear();
            worker.broken = None;
        }
        if let Some(members) = &mut self.members {
            members.close();
        }
        self.repairs.clear();
        self.calls.clear_queue();
        for call in self.calls.all_unfinished() {
            self.calls.end(call, Err(error.clone()));
        }
    }

    /// Cancels all waiting calls.
    pub fn cancel_all(&mut self) {
        let waiting = self.calls.all_waiting();
        self.calls.clear_queue();
        for call in waiting {
            self.cancel(call);
        }
    }

    /// Cancels a call, or has the node end the worker that it was sent to.
    pub fn kill(&mut self, call: CallId) -> Result<(), Error> {
        if self.cancel(call) {
            return Ok(());
        }
        let Some(index) = self.calls.worker_of(call) else {
            return Err(Error::new(Code::NotFound, "the call is over"));
        };
        let worker = &self.workers[index];
        self.calls.kill(call);
        if worker.broken.is_some() {
            // Its worker has ended already, and a repair asks for the call's fate.
            return Ok(());
        }
        let sequence = worker.in_flight.iter().find_map(|(sequence, message)| match message {
            InFlight::Call(sent) if sent.id == call => Some(*sequence),
            _ => None,
        });
        match (&worker.channel, sequence) {
            (Some(channel), Some(sequence)) => channel.cancel(sequence),
            _ => Err(Error::new(Code::NotFound, "the call is over")),
        }
    }

    /// Cancels a waiting call, and drops the outcome of any call.
    pub fn forget(&mut self, call: CallId) {
        self.calls.forget(call);
        if self.cancel(call) {
            self.calls.forget(call);
        }
    }

    /// Whether calls wait for a worker, or for their function to be loaded.
    pub fn needs_driver(&self) -> bool {
        !self.calls.is_queue_empty() || self.workers.iter().any(|worker| !worker.parked.is_empty())
    }

    /// Returns the call whose output this is, if the pool remembers it.
    pub fn printer(&self, printer: Printer) -> Option<CallId> {
        let worker = self.workers.get(usize::from(printer.worker.0))?;
        let found = worker.recent.iter().find(|(sequence, _)| *sequence == printer.sequence);
        found.map(|(_, call)| *call)
    }

    /// Returns what to sleep on; `None` if a channel has something to poll.
    pub fn prepare_sleep(&mut self) -> Option<Vec<Sleeper>> {
        let mut sleepers = Vec::with_capacity(self.workers.len());
        for worker in &mut self.workers {
            if let Some(channel) = &mut worker.channel {
                sleepers.push(channel.link().prepare_sleep()?);
            }
        }
        Some(sleepers)
    }

    /// Returns an allocator of the least loaded worker, and its index.
    pub fn allocator(&self) -> Result<(Allocator, WorkerIndex), Error> {
        let worker = self
            .workers
            .iter()
            .enumerate()
            .filter_map(|(index, worker)| Some((index, worker.in_flight.len(), worker.channel.as_ref()?)))
            .min_by_key(|(_, load, _)| *load);
        match worker {
            Some((index, _, channel)) => Ok((channel.allocator(), WorkerIndex(index as u16))),
            // The worker then copies the buffer, which is better than waiting.
            None if self.waits_for_workers() => Ok((
                Allocator::heap(self.options.channel.geometry.bulk_bytes),
                WorkerIndex(0),
            )),
            None => Err(self.no_worker_error(&CallOptions::default()).into()),
        }
    }

    /// Returns an allocator of one worker, without a copy only for calls that it runs.
    pub fn allocator_of(&self, worker: WorkerIndex) -> Result<Allocator, Error> {
        if self.members.is_some() {
            return Err(Error::new(
                Code::InvalidRequest,
                "a fleet's workers come and go, so that their numbers name none of them; allocate without a number",
            ));
        }
        let Some(found) = self.workers.get(usize::from(worker.0)) else {
            return Err(Error::new(
                Code::InvalidRequest,
                format!("this lease has {} workers", self.workers.len()),
            ));
        };
        Ok(found.channel.as_ref().map_or_else(
            || Allocator::heap(self.options.channel.geometry.bulk_bytes),
            Channel::allocator,
        ))
    }

    pub fn inline_bytes(&self) -> usize {
        self.options.channel.geometry.inline_bytes()
    }

    pub fn transport(&self) -> crate::Transport {
        let open = self.workers.iter().find_map(|worker| worker.channel.as_ref());
        open.map_or_else(
            || self.lease.as_ref().map_or(crate::Transport::Tls, Lease::best_transport),
            Channel::transport,
        )
    }

    /// Returns the incarnation of each worker; 0 without a channel.
    pub fn incarnations(&self) -> Vec<u32> {
        let of = |worker: &Worker| worker.channel.as_ref().map_or(0, |channel| channel.incarnation().0);
        self.workers.iter().map(of).collect()
    }

    /// The lease of the pool. Returns an error for a fleet, which has many.
    pub fn lease(&self) -> Result<Lease, Error> {
        self.lease.clone().ok_or_else(|| {
            Error::new(
                Code::InvalidRequest,
                "a fleet's workers cannot be delegated, because they come and go; delegate workers of a lease",
            )
        })
    }

    /// Records a delegation of these workers.
    pub fn add_delegation(&mut self, delegation: Delegation, workers: Range<u16>) {
        self.delegations.push((delegation, workers));
    }

    /// Removes a delegation and returns its workers.
    pub fn remove_delegation(&mut self, delegation: &Delegation) -> Option<Range<u16>> {
        let found = self
            .delegations
            .iter()
            .position(|(known, _)| known.is_same(delegation))?;
        Some(self.delegations.swap_remove(found).1)
    }

    /// Sets `count` adjacent workers aside, from the end of the list. They get no more calls. Returns their indices.
    pub fn set_aside(&mut self, count: u16) -> Result<Range<u16>, Error> {
        let count = usize::from(count);
        let starts = (0..=self.workers.len().saturating_sub(count)).rev();
        let found = (count > 0 && count <= self.workers.len()).then_some(starts);
        let start = found
            .into_iter()
            .flatten()
            .find(|start| self.workers[*start..start + count].iter().all(Worker::is_available));
        let Some(start) = start else {
            let available = self.workers.iter().filter(|worker| worker.is_available()).count();
            let text = format!(
                "{count} workers in a row cannot be delegated: {available} of {} are available; ask for fewer, or take some back",
                self.workers.len()
            );
            return Err(Error::new(Code::InvalidRequest, text));
        };
        for worker in &mut self.workers[start..start + count] {
            worker.is_delegated = true;
        }
        // Calls for one of these workers only must end now.
        self.assign_queued();
        Ok(start as u16..(start + count) as u16)
    }

    /// Whether these workers have no outstanding calls.
    pub fn is_idle(&self, workers: &Range<u16>) -> bool {
        let mut range = workers.clone();
        range.all(|index| self.workers[usize::from(index)].is_idle())
    }

    /// Closes the channels of workers that were set aside.
    pub fn close_channels(&mut self, workers: &Range<u16>) {
        for index in workers.clone() {
            let worker = &mut self.workers[usize::from(index)];
            worker.channel = None;
            worker.loaded.clear();
            worker.rooms.clear();
        }
    }

    /// Takes workers back that were set aside. Each gets a channel through a repair.
    pub fn reclaim(&mut self, workers: &Range<u16>) {
        for index in workers.clone() {
            let index = usize::from(index);
            let Some(worker) = self.workers.get_mut(index).filter(|worker| worker.is_delegated) else {
                continue;
            };
            worker.is_delegated = false;
            if worker.channel.is_some() || worker.broken.is_some() || worker.final_error.is_some() {
                continue;
            }
            self.begin_opening(index);
        }
        self.assign_queued();
    }

    /// Opens a channel to a worker that has none, through a repair.
    pub(super) fn begin_opening(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        let Some(place) = worker.place.clone() else { return };
        let open_request = Arc::<OpenRequest>::default();
        worker.broken = Some(BrokenChannel {
            error: LinkError::PeerGone,
            in_flight: VecDeque::new(),
            parked: VecDeque::new(),
            open_request: Arc::clone(&open_request),
        });
        self.repairs.push(Repair {
            index,
            channel: None,
            place,
            gives_up: false,
            options: self.options.channel,
            open_request,
        });
    }

    /// Follows a renewal of the pool's lease: sends workers that were given back no more calls, and opens channels to
    /// added ones. `may_sleep` is whether workers that never slept may sleep now.
    pub fn follow_lease(&mut self, may_sleep: bool) {
        let Some(lease) = self.lease.clone().filter(|_| !self.is_disconnected) else {
            return;
        };
        let (numbers, is_hot) = (lease.numbers(), lease.is_hot());
        for (index, worker) in self.workers.iter_mut().enumerate() {
            worker.is_warm = !is_hot;
            worker.is_retiring |= !numbers.contains(&(index as u16));
            if let Some(channel) = worker.channel.as_mut().filter(|_| may_sleep) {
                channel.link().wake_peer_from_now_on();
            }
        }
        for number in numbers {
            let index = usize::from(number);
            while self.workers.len() <= index {
                self.workers.push(Worker::vacant());
            }
            let worker = &mut self.workers[index];
            if !worker.is_retiring && worker.final_error.is_none() {
                continue;
            }
            worker.place = Some(Place {
                lease: lease.clone(),
                index: number,
                key: 0,
            });
            (worker.is_warm, worker.is_retiring, worker.final_error) = (!is_hot, false, None);
            // An earlier worker with this number may have calls whose end its repair decides.
            worker.opens_again = worker.broken.is_some() || worker.channel.is_some();
            if !worker.opens_again {
                self.begin_opening(index);
            }
        }
        self.is_rejectable = !is_hot && lease.workers() > 1;
        self.assign_queued();
    }
}
