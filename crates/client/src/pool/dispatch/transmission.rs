//! The part of [`Dispatch`] that sends calls to the worker that was chosen.

use super::choice::must_run;
use super::*;

/// Calls that are remembered for each worker: more than may be outstanding, to include calls that ended.
const REMEMBERED: usize = 256;

/// Whether large payloads travel between this channel and a buffer without a copy.
fn reaches(channel: &Channel, buffer: &Buffer) -> bool {
    !channel.link_ref().copies_foreign_memory() || channel.link_ref().is_home_of(buffer)
}

impl Dispatch {
    /// Gives a call to a worker: sends it, or parks it until the worker has loaded its function.
    #[inline]
    pub(super) fn assign(&mut self, index: usize, id: CallId, call: Box<PendingCall>) {
        let worker = &mut self.workers[index];
        if let (Some(wanted), Some(channel)) = (call.options.incarnation, &worker.channel)
            && channel.incarnation().0 != wanted
        {
            let found = channel.incarnation().0;
            let text = format!(
                "the call depends on incarnation {wanted} of worker {index}, which has been replaced by {found}"
            );
            return self.calls.end(id, Err(CallError::new(Code::StateLost, text)));
        }
        match worker.loaded.get(&call.function) {
            Some(LoadState::Ready(function)) => {
                let function = *function;
                self.send(index, id, function, call);
            }
            Some(LoadState::Failed(error)) => {
                let error = error.clone();
                self.calls.end(id, Err(error));
            }
            Some(LoadState::Requested) => {
                worker.parked.push_back(id);
                self.calls.park(id, call);
            }
            None => {
                let function = call.function;
                worker.parked.push_back(id);
                self.calls.park(id, call);
                self.request_load(index, function);
            }
        }
    }

    fn request_load(&mut self, index: usize, function: FunctionId) {
        let (hash, form) = &self.functions[function.0 as usize];
        let worker = &mut self.workers[index];
        let Some(channel) = &mut worker.channel else { return };
        worker.loaded.insert(function, LoadState::Requested);
        channel.link().set_rejectable(false);
        let sent = load_request(*hash, form).and_then(|request| channel.submit(FunctionIndex::LOAD, &request, 0));
        match sent {
            Ok(sequence) => worker.in_flight.push_back((sequence, InFlight::Load(function))),
            Err(error) => self.on_loaded(index, function, Err(error)),
        }
    }

    fn send(&mut self, index: usize, id: CallId, function: FunctionIndex, call: Box<PendingCall>) {
        let worker = &mut self.workers[index];
        let Some(channel) = &mut worker.channel else {
            return self.calls.push_front(id, call);
        };
        let PendingCall {
            function: function_id,
            input,
            mut output,
            options,
            retries,
            first_rejection,
        } = *call;
        if worker.in_flight.is_empty() {
            worker.last_completion = Some(Instant::now());
        }
        let input_length = input.as_slice().len();
        let is_inline = input_length <= channel.inline_bytes();
        // Memory that the worker cannot reach is filled from a buffer that it can.
        let room_length = match &output {
            None => options.room,
            Some(output) if output.is_in(|buffer| reaches(channel, buffer)) => 0,
            Some(output) => output.as_slice().len(),
        };
        let mut room = match room_length {
            0 => None,
            length => match channel.allocate(length) {
                Ok(buffer) => Some(buffer),
                Err(error) => return self.calls.end(id, Err(error.into())),
            },
        };
        let place = match (&mut room, &mut output) {
            (None, None) => None,
            (Some(buffer), _) => Some(channel.link().room(buffer)),
            (None, Some(output)) => output.buffer().map(|buffer| channel.link().room(buffer)),
        };
        let is_bulk = !is_inline || place.is_some();
        let is_in_place = match &input {
            Input::Buffer(buffer, _) => is_bulk && reaches(channel, buffer),
            Input::Shared(buffer, _) => is_bulk && reaches(channel, buffer),
            Input::Bytes(_) | Input::Blob(_) => false,
        };
        if !is_in_place {
            self.copied.input += input_length as u64;
        }
        if self.is_rejectable && worker.is_warm {
            let leaves = matches!(input, Input::Buffer(..)) && is_bulk && !options.idempotent;
            let elsewhere = !leaves && options.worker.is_none() && options.incarnation.is_none();
            channel.link().set_rejectable(elsewhere && !must_run(first_rejection));
        }
        // A fleet keeps the buffer, so that the call can move to another node.
        let input = match input {
            Input::Buffer(buffer, length) if is_bulk && self.members.is_some() && !options.idempotent => {
                Input::Shared(Arc::new(buffer), length)
            }
            input => input,
        };
        let (sent, kept) = match input {
            Input::Buffer(buffer, length) if is_bulk => {
                // A call that may be retried keeps its input; the buffer itself goes with the first try.
                let copy = options
                    .idempotent
                    .then(|| Input::Bytes(buffer.as_slice()[..length].to_vec()));
                self.copied.input += copy.as_ref().map_or(0, |copy| copy.as_slice().len() as u64);
                let payload = Payload::Owned(buffer, length);
                let sent = channel
                    .link()
                    .post_bulk(function.0, options.deadline_ms, payload, place);
                (sent.map_err(CallError::from), copy)
            }
            Input::Shared(buffer, length) if is_bulk => {
                let payload = Payload::Buffer(&buffer, length);
                let sent = channel
                    .link()
                    .post_bulk(function.0, options.deadline_ms, payload, place);
                (sent.map_err(CallError::from), Some(Input::Shared(buffer, length)))
            }
            input if place.is_some() => {
                let payload = Payload::Bytes(input.as_slice());
                let sent = channel
                    .link()
                    .post_bulk(function.0, options.deadline_ms, payload, place);
                (sent.map_err(CallError::from), Some(input))
            }
            input => (
                channel.submit_uncounted(function, input.as_slice(), options.deadline_ms),
                Some(input),
            ),
        };
        match sent {
            Ok(sequence) => {
                channel.count_sent();
                if self.options.remembers {
                    worker.recent.truncate(REMEMBERED - 1);
                    worker.recent.push_front((sequence, id));
                }
                if let Some(room) = room {
                    worker.rooms.push_back((sequence, room));
                }
                worker.in_flight.push_back((
                    sequence,
                    InFlight::Call(SentCall {
                        id,
                        function: function_id,
                        input: kept,
                        output,
                        options,
                        retries,
                        first_rejection,
                    }),
                ));
                self.calls.sent(id, index);
            }
            Err(error) => self.calls.end(id, Err(error)),
        }
    }
}
