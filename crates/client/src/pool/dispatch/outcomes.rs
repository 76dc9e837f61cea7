//! The part of [`Dispatch`] that ends calls: outputs, rejections, and broken channels with their repair.

use dayfly_protocol::slot::has_begun;

use super::super::repair::is_end_of_lease;
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
        if let Some(last) = worker.last_completion {
            let now = Instant::now();
            worker.pace_ns += ((now - last).as_nanos() as f64 - worker.pace_ns) / 8.0;
            worker.last_completion = Some(now);
        }
        let Some((expected, mut in_flight)) = worker.in_flight.pop_front() else {
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
                (Some(length), None)
                    if let InFlight::Call(SentCall { output, .. }) = &mut in_flight
                        && let Some(buffer) = output.take() =>
                {
                    Output::InPlace(buffer, length)
                }
                _ => match channel.take_output() {
                    Some(received) => Output::Large(received),
                    None => {
                        let bytes = channel.output();
                        if matches!(in_flight, InFlight::Call(_)) {
                            self.copied.output += bytes.len() as u64;
                        }
                        Output::Small(bytes.to_vec())
                    }
                },
            })
        } else {
            Err(CallError::from_response(status, channel.output()))
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
            InFlight::Call(mut sent) => match outcome {
                Err(error) if error.code().retry() == Retry::Elsewhere => self.retry(sent, error),
                outcome => {
                    let outcome = match (sent.output.take(), outcome) {
                        (Some(place), Ok(output)) => self.copy_into_place(&output, place),
                        (_, outcome) => outcome,
                    };
                    self.calls.end(sent.id, outcome);
                }
            },
        }
    }

    /// Copies an output that arrived elsewhere into the caller's memory.
    fn copy_into_place(&mut self, output: &Output, mut place: OutputBuffer) -> Outcome {
        let bytes = output.as_slice();
        let room = place.buffer().map_or(&mut [][..], Buffer::as_mut_slice);
        if bytes.len() > room.len() {
            let text = format!("an output of {} bytes for a buffer of {}", bytes.len(), room.len());
            return Err(CallError::new(Code::OutputOverflow, text));
        }
        room[..bytes.len()].copy_from_slice(bytes);
        if !matches!(output, Output::Small(_)) {
            self.copied.output += bytes.len() as u64;
        }
        Ok(Output::InPlace(place, bytes.len()))
    }

    /// Handles a call for which the worker found no core: another worker gets it.
    fn on_rejected(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        let Some(channel) = &mut worker.channel else { return };
        let error = CallError::from_response(Status::Rejected as u16, channel.output());
        channel.done();
        let now = Instant::now();
        let rest = FIRST_REST * (1 << worker.rejections.min(MAX_DOUBLINGS));
        worker.rejections += 1;
        worker.rests_until = Some(now + rest);
        self.first_rest_end = Some(self.first_rest_end.map_or(now + rest, |next| next.min(now + rest)));
        match worker.in_flight.pop_front() {
            Some((sequence, InFlight::Call(mut sent))) => {
                if worker.rooms.front().is_some_and(|(wanted, _)| *wanted == sequence) {
                    worker.rooms.pop_front();
                }
                sent.first_rejection.get_or_insert(now);
                match must_run(sent.first_rejection) {
                    // Does not count as a retry: nothing was executed.
                    false => self.requeue(sent, error),
                    true => self.retry(sent, error),
                }
            }
            Some((_, InFlight::Load(function))) => self.on_loaded(index, function, Err(error)),
            None => {}
        }
    }

    pub(super) fn on_loaded(&mut self, index: usize, function: FunctionId, result: Result<FunctionIndex, CallError>) {
        let loaded = match result {
            Ok(function) => LoadState::Ready(function),
            Err(error) => LoadState::Failed(error),
        };
        let worker = &mut self.workers[index];
        worker.loaded.insert(function, loaded);
        for id in std::mem::take(&mut worker.parked) {
            match self.calls.waiting(id).map(|call| call.function == function) {
                Some(true) => {
                    if let Some(call) = self.calls.take_waiting(id) {
                        self.assign(index, id, call);
                    }
                }
                Some(false) => self.workers[index].parked.push_back(id),
                None => {}
            }
        }
    }

    fn retry(&mut self, mut sent: SentCall, error: CallError) {
        if sent.input.is_some() && sent.retries < self.options.retries && sent.options.incarnation.is_none() {
            sent.retries += 1;
            self.requeue(sent, error);
        } else {
            self.calls.end(sent.id, Err(error));
        }
    }

    /// Puts a sent call back into the queue, unless its outcome is not wanted.
    fn requeue(&mut self, sent: SentCall, error: CallError) {
        let SentCall {
            id,
            function,
            input: Some(input),
            output,
            options,
            retries,
            first_rejection,
        } = sent
        else {
            return self.calls.end(sent.id, Err(error));
        };
        if self.calls.is_forgotten(id) {
            return self.calls.end(id, Err(error));
        }
        if self.calls.is_killed(id) {
            let text = format!("the call was killed, and is not tried again after this: {error}");
            return self.calls.end(id, Err(CallError::new(Code::Cancelled, text)));
        }
        let call = PendingCall {
            function,
            input,
            output,
            options,
            retries,
            first_rejection,
        };
        self.calls.push_front(id, Box::new(call));
    }

    /// Marks a channel as broken. Its calls wait for the verdict of a [`Repair`], which the pool runs.
    pub(super) fn on_broken(&mut self, index: usize, error: LinkError) {
        let worker = &mut self.workers[index];
        let (Some(place), Some(channel)) = (worker.place.clone(), worker.channel.take()) else {
            return;
        };
        worker.loaded.clear();
        worker.rooms.clear();
        let open_request = Arc::<OpenRequest>::default();
        worker.broken = Some(BrokenChannel {
            error,
            in_flight: std::mem::take(&mut worker.in_flight),
            parked: std::mem::take(&mut worker.parked),
            open_request: Arc::clone(&open_request),
        });
        self.repairs.push(Repair {
            index,
            channel: Some(channel),
            place,
            gives_up: self.members.is_some(),
            options: self.options.channel,
            open_request,
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
            .map(|(sequence, message)| (sequence, verdict(fate, sequence, &broken.error), message))
            .collect();
        for (sequence, failure, message) in judged.into_iter().rev() {
            let InFlight::Call(sent) = message else { continue };
            if self.moves(fate, sequence, &sent.options) {
                self.requeue(sent, failure);
                continue;
            }
            let again = match failure.code().retry() {
                Retry::Elsewhere => true,
                Retry::IfIdempotent => {
                    sent.options.idempotent && matches!(failure.code(), Code::MaybeExecuted | Code::MemoryReturned)
                }
                Retry::Never | Retry::Later => false,
            };
            if again {
                self.retry(sent, failure);
            } else {
                self.calls.end(sent.id, Err(failure));
            }
        }
        for id in parked.into_iter().rev() {
            self.calls.unpark(id);
        }
        self.assign_queued();
    }

    /// Whether a fleet sends a call of a broken channel to another node without counting it as a retry: its end is no
    /// fault of the call.
    fn moves(&self, fate: &Result<ChannelStatus, Error>, sequence: u32, options: &CallOptions) -> bool {
        if !self.members.as_ref().is_some_and(Members::is_open) {
            return false;
        }
        match fate {
            Ok(fate) if !has_begun(fate.started, sequence) => true,
            Ok(fate) => options.idempotent && fate.end.is_some_and(is_end_of_lease),
            Err(_) => options.idempotent,
        }
    }

    /// Takes the worker back with its new channel, or records why it is lost.
    pub fn on_repaired(&mut self, index: usize, opened: Result<Channel, CallError>) {
        let worker = &mut self.workers[index];
        // The new channel is unused after a disconnect.
        if worker.broken.take().is_none() {
            return;
        }
        match opened {
            // Delegated or given back meanwhile: dropping the channel frees the worker for the delegation's holder.
            Ok(_) if worker.is_delegated || worker.is_retiring => {}
            Ok(channel) => {
                // Sequence numbers begin again.
                worker.recent.clear();
                worker.channel = Some(channel);
                worker.opens_again = false;
            }
            Err(_) if std::mem::take(&mut worker.opens_again) => self.begin_opening(index),
            Err(error) => worker.final_error = Some(error),
        }
        self.assign_queued();
    }

    /// Whether any worker is being repaired, or is going to be opened again.
    pub fn is_opening(&self) -> bool {
        self.workers
            .iter()
            .any(|worker| worker.broken.is_some() || worker.opens_again)
    }

    /// Whether any worker is being repaired.
    pub fn is_repairing(&self) -> bool {
        self.workers.iter().any(|worker| worker.broken.is_some())
    }

    /// Whether no worker has a channel, and some may get one.
    pub fn waits_for_workers(&self) -> bool {
        self.workers.iter().all(|worker| worker.channel.is_none())
            && (self.is_repairing() || self.members.as_ref().is_some_and(Members::is_open))
    }
}
