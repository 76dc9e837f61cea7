//! Queries and settings of single calls.

use dayfly_protocol::node_api::Printer;

use super::*;

impl Dispatch {
    pub fn is_done(&self, call: CallId) -> bool {
        matches!(self.calls.get(&call), Some(Call::Ended(_)) | None)
    }

    pub fn is_known(&self, call: CallId) -> bool {
        self.calls.contains_key(&call)
    }

    pub fn take(&mut self, call: CallId) -> Option<Outcome> {
        if !matches!(self.calls.get(&call), Some(Call::Ended(_))) {
            return None;
        }
        match self.calls.remove(&call) {
            Some(Call::Ended(outcome)) => Some(outcome),
            _ => None,
        }
    }

    /// Returns how many calls ended since the last call of this function.
    pub fn take_ended(&mut self) -> usize {
        std::mem::take(&mut self.ended)
    }

    pub fn has_notices(&self) -> bool {
        !self.notices.is_empty()
    }

    pub fn take_notices(&mut self) -> Vec<CallId> {
        std::mem::take(&mut self.notices)
    }

    pub fn cancel(&mut self, call: CallId) -> bool {
        if !matches!(self.calls.get(&call), Some(Call::Waiting(_))) {
            return false;
        }
        self.queue.retain(|queued| *queued != call);
        for worker in &mut self.workers {
            worker.parked.retain(|parked| *parked != call);
            if let Some(broken) = &mut worker.broken {
                broken.parked.retain(|parked| *parked != call);
            }
        }
        self.end(
            call,
            Err(CallError::new(
                Code::Cancelled,
                "the call was cancelled before it was sent",
            )),
        );
        true
    }

    pub fn disconnect(&mut self) {
        let over = CallError::new(Code::LeaseEnded, "the channels of this lease were closed; lease again");
        for worker in &mut self.workers {
            worker.channel = None;
            worker.gone = Some(over.clone());
            worker.in_flight.clear();
            worker.rooms.clear();
            worker.parked.clear();
            worker.broken = None;
        }
        self.repairs.clear();
        self.queue.clear();
        let open = |call: &Call| matches!(call, Call::Waiting(_) | Call::Sent(_));
        let left: Vec<_> = self
            .calls
            .iter()
            .filter(|(_, call)| open(call))
            .map(|(id, _)| *id)
            .collect();
        for call in left {
            self.end(call, Err(over.clone()));
        }
    }

    pub fn cancel_all(&mut self) {
        let waiting: Vec<_> = self
            .calls
            .iter()
            .filter(|(_, call)| matches!(call, Call::Waiting(_)))
            .map(|(id, _)| *id)
            .collect();
        self.queue.clear();
        for call in waiting {
            self.cancel(call);
        }
    }

    pub fn kill(&mut self, call: CallId) -> Result<(), Error> {
        if self.cancel(call) {
            return Ok(());
        }
        let Some(Call::Sent(index)) = self.calls.get(&call) else {
            return Err(Error::new(Code::NotFound, "the call is over"));
        };
        let worker = &self.workers[*index];
        self.killed.insert(call);
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

    pub fn forget(&mut self, call: CallId) {
        self.notify.remove(&call);
        match self.calls.get_mut(&call) {
            Some(Call::Ended(_)) => {
                self.calls.remove(&call);
            }
            Some(state @ Call::Sent(_)) => *state = Call::Forgotten,
            Some(Call::Waiting(_)) => {
                self.cancel(call);
                self.calls.remove(&call);
            }
            Some(Call::Forgotten) | None => {}
        }
    }

    pub fn notify(&mut self, call: CallId) {
        match self.calls.get(&call) {
            Some(Call::Ended(_)) => self.notices.push(call),
            Some(Call::Waiting(_) | Call::Sent(_)) => {
                self.notify.insert(call);
            }
            Some(Call::Forgotten) | None => {}
        }
    }

    pub fn watched(&self) -> usize {
        self.notify.len() + self.notices.len()
    }

    pub fn needs_help(&self) -> bool {
        !self.queue.is_empty() || self.workers.iter().any(|worker| !worker.parked.is_empty())
    }

    pub fn is_sent(&self, call: CallId) -> bool {
        matches!(self.calls.get(&call), Some(Call::Sent(_)))
    }

    pub fn printer(&self, printer: Printer) -> Option<CallId> {
        let worker = self.workers.get(usize::from(printer.worker.0))?;
        let found = worker.recent.iter().find(|(sequence, _)| *sequence == printer.sequence);
        found.map(|(_, call)| *call)
    }

    pub fn discard(&mut self, call: CallId) {
        self.notify.remove(&call);
        match self.calls.get(&call) {
            Some(Call::Ended(_)) => {
                self.calls.remove(&call);
            }
            Some(Call::Waiting(_) | Call::Sent(_)) => {
                self.discarded.insert(call);
            }
            Some(Call::Forgotten) | None => {}
        }
    }

    pub fn pending(&self) -> usize {
        self.pending
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
            None if self.is_repairing() => Ok((
                Allocator::heap(self.options.channel.geometry.bulk_bytes),
                WorkerIndex(0),
            )),
            None => Err(self.why_hopeless(&CallOptions::default()).into()),
        }
    }

    pub fn inline_bytes(&self) -> usize {
        self.options.channel.geometry.inline_bytes()
    }

    pub fn transport(&self) -> crate::Transport {
        let open = self.workers.iter().find_map(|worker| worker.channel.as_ref());
        open.map_or_else(|| self.lease.best_transport(), Channel::transport)
    }

    pub fn incarnations(&self) -> Vec<u32> {
        let of = |worker: &Worker| worker.channel.as_ref().map_or(0, |channel| channel.incarnation().0);
        self.workers.iter().map(of).collect()
    }
}
