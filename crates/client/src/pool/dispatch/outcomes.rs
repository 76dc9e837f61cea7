//! The ends of calls: outputs, rejections, and deaths of workers.

use super::*;

impl Dispatch {
    pub(super) fn on_completion(
        &mut self,
        index: usize,
        Completion {
            sequence,
            status,
            in_room,
        }: Completion,
    ) {
        if status == Status::Rejected as u16 {
            return self.on_rejected(index);
        }
        let worker = &mut self.workers[index];
        let Some(channel) = &mut worker.channel else { return };
        if worker.rejections > 0 {
            (worker.rejections, worker.rests_until) = (0, None);
        }
        if let Some(last) = worker.last {
            let now = Instant::now();
            worker.pace_ns += ((now - last).as_nanos() as f64 - worker.pace_ns) / 8.0;
            worker.last = Some(now);
        }
        let Some((expected, in_flight)) = worker.in_flight.pop_front() else {
            return;
        };
        debug_assert_eq!(expected, sequence);
        let room = match worker.rooms.front() {
            Some((wanted, _)) if *wanted == sequence => worker.rooms.pop_front(),
            _ => None,
        };
        let outcome = if status == Status::Ok as u16 {
            Ok(match (in_room, room) {
                (Some(length), Some((_, mut buffer))) => {
                    // The link checked that the output fits its buffer.
                    buffer.resize(length);
                    Output::Large(Received::Own(buffer))
                }
                _ => match channel.take_output() {
                    Some(received) => Output::Large(received),
                    None => Output::Small(channel.output().to_vec()),
                },
            })
        } else {
            Err(CallError::answered(status, channel.output()))
        };
        channel.done();
        match in_flight {
            InFlight::Load(function) => {
                self.on_loaded(
                    index,
                    function,
                    outcome.and_then(|output| read_index(output.as_slice())),
                );
            }
            InFlight::Call(sent) => match outcome {
                Err(error) if error.code().retry() == Retry::Elsewhere => self.retry(sent, error),
                outcome => self.end(sent.id, outcome),
            },
        }
    }

    /// A worker found no core for a call: tries the call on another worker.
    fn on_rejected(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        let Some(channel) = &mut worker.channel else { return };
        let error = CallError::answered(Status::Rejected as u16, channel.output());
        channel.done();
        let now = Instant::now();
        let rest = FIRST_REST * (1 << worker.rejections.min(MAX_DOUBLINGS));
        worker.rejections += 1;
        worker.rests_until = Some(now + rest);
        self.next_try = Some(self.next_try.map_or(now + rest, |next| next.min(now + rest)));
        match worker.in_flight.pop_front() {
            Some((sequence, InFlight::Call(mut sent))) => {
                if worker.rooms.front().is_some_and(|(wanted, _)| *wanted == sequence) {
                    worker.rooms.pop_front();
                }
                sent.rejected.get_or_insert(now);
                match must_run(sent.rejected) {
                    // Does not count as a try: nothing was executed.
                    false => self.again(sent, error),
                    true => self.retry(sent, error),
                }
            }
            Some((_, InFlight::Load(function))) => self.on_loaded(index, function, Err(error)),
            None => {}
        }
    }

    pub(super) fn on_loaded(&mut self, index: usize, function: FunctionId, result: Result<FunctionIndex, CallError>) {
        let loaded = match result {
            Ok(function) => Loaded::Ready(function),
            Err(error) => Loaded::Failed(error),
        };
        let worker = &mut self.workers[index];
        worker.loaded.insert(function, loaded);
        for id in std::mem::take(&mut worker.parked) {
            match self.calls.remove(&id) {
                Some(Call::Waiting(pending)) if pending.function == function => self.assign(index, id, pending),
                Some(other) => {
                    self.calls.insert(id, other);
                    self.workers[index].parked.push_back(id);
                }
                None => {}
            }
        }
    }

    fn retry(&mut self, mut sent: Sent, error: CallError) {
        if sent.input.is_some() && sent.tries < self.options.retries && sent.options.incarnation.is_none() {
            sent.tries += 1;
            self.again(sent, error);
        } else {
            self.end(sent.id, Err(error));
        }
    }

    /// Puts a sent call back into the queue, unless its outcome is not wanted.
    fn again(&mut self, sent: Sent, error: CallError) {
        let Sent {
            id,
            function,
            input: Some(input),
            options,
            tries,
            rejected,
        } = sent
        else {
            return self.end(sent.id, Err(error));
        };
        if matches!(self.calls.get(&id), Some(Call::Forgotten)) {
            return self.end(id, Err(error));
        }
        if self.killed.contains(&id) {
            let text = format!("the call was killed, and is not tried again after this: {error}");
            return self.end(id, Err(CallError::new(Code::Cancelled, text)));
        }
        let pending = Box::new(Pending {
            function,
            input,
            options,
            tries,
            rejected,
        });
        self.calls.insert(id, Call::Waiting(pending));
        self.queue.push_front(id);
    }

    /// Marks a channel as broken. Its calls wait for the verdict of a [`Repair`], which the pool runs.
    pub(super) fn on_broken(&mut self, index: usize, error: LinkError) {
        let worker = &mut self.workers[index];
        let Some(channel) = worker.channel.take() else { return };
        worker.loaded.clear();
        worker.rooms.clear();
        let opening = Arc::<Opening>::default();
        worker.broken = Some(Broken {
            error,
            in_flight: std::mem::take(&mut worker.in_flight),
            parked: std::mem::take(&mut worker.parked),
            opening: Arc::clone(&opening),
        });
        self.repairs.push(Repair {
            index,
            channel: Some(channel),
            lease: self.lease.clone(),
            options: self.options.channel,
            opening,
        });
    }

    /// Takes the repairs that are to be run.
    pub fn take_repairs(&mut self) -> Vec<Repair> {
        std::mem::take(&mut self.repairs)
    }

    /// Applies the fate of a broken channel: ends the calls that ran, and requeues those that did not.
    pub fn on_fate(&mut self, index: usize, fate: &Result<ChannelStatus, Error>) {
        // `None` after a disconnect.
        let Some(broken) = &mut self.workers[index].broken else {
            return;
        };
        let (in_flight, parked) = (
            std::mem::take(&mut broken.in_flight),
            std::mem::take(&mut broken.parked),
        );
        let judged: Vec<_> = in_flight
            .into_iter()
            .map(|(sequence, message)| (verdict(fate, sequence, &broken.error), message))
            .collect();
        for (failure, message) in judged.into_iter().rev() {
            let InFlight::Call(sent) = message else { continue };
            let again = match failure.code().retry() {
                Retry::Elsewhere => true,
                Retry::IfIdempotent => sent.options.idempotent && failure.code() == Code::MaybeExecuted,
                Retry::Never | Retry::Later => false,
            };
            if again {
                self.retry(sent, failure);
            } else {
                self.end(sent.id, Err(failure));
            }
        }
        for id in parked.into_iter().rev() {
            self.queue.push_front(id);
        }
        self.feed();
    }

    /// Takes the worker back with its new channel, or marks it as gone.
    pub fn on_repaired(&mut self, index: usize, opened: Result<Channel, CallError>) {
        let worker = &mut self.workers[index];
        // The new channel is unused after a disconnect.
        if worker.broken.take().is_none() {
            return;
        }
        match opened {
            // Delegated meanwhile: dropping the channel frees the worker for the delegation's holder.
            Ok(_) if worker.lent => {}
            Ok(channel) => {
                // Sequence numbers begin again.
                worker.recent.clear();
                worker.channel = Some(channel);
            }
            Err(error) => worker.gone = Some(error),
        }
        self.feed();
    }

    /// Whether any worker is being repaired.
    pub fn is_repairing(&self) -> bool {
        self.workers.iter().any(|worker| worker.broken.is_some())
    }

    /// Whether no worker has a channel and at least one is being repaired.
    pub fn waits_for_repair(&self) -> bool {
        self.workers.iter().all(|worker| worker.channel.is_none()) && self.is_repairing()
    }
}
