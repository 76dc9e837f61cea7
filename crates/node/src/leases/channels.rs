//! Channels to a lease's workers, and the delegated parts that permit them. This `impl` opens and ends channels.

use dayfly_fabric::Choice;
use dayfly_lease::delegation::Part;
use dayfly_protocol::slot::has_begun;

use super::worker_slot::is_disconnected;
use super::*;

/// Longest wait for a worker.
const WORKER_DEADLINE: Duration = Duration::from_secs(10);
/// Longest wait for a worker whose former client is gone.
const DETACH_DEADLINE: Duration = Duration::from_secs(2);

impl NodeLease {
    /// Waits until a worker exists and has no channel.
    pub async fn worker_free(&self, worker: WorkerIndex) -> Result<(), Failure> {
        let begun = Instant::now();
        let mut changed = self.changed.subscribe();
        loop {
            let limit = {
                let mut state = self.lock();
                state.life.check(clock::now_ms())?;
                if let Some(failure) = &state.failure {
                    return Err(failure.clone());
                }
                let slot = state
                    .slots
                    .get_mut(worker.0 as usize)
                    .filter(|slot| slot.is_serving())
                    .ok_or_else(|| Failure::new(Code::NotFound, format!("the lease has no worker {}", worker.0)))?;
                let is_up = slot.is_up();
                match slot.channel_mut() {
                    Some(channel) => {
                        if channel.client_end().is_none() && channel.is_disconnected() {
                            channel.mark_client_gone(End::ClientGone);
                        }
                        if channel.client_end().is_none() {
                            return Err(busy(worker));
                        }
                        DETACH_DEADLINE
                    }
                    None if is_up => return Ok(()),
                    None => WORKER_DEADLINE,
                }
            };
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(if limit == DETACH_DEADLINE {
                    busy(worker)
                } else {
                    Failure::new(
                        Code::ExecutorFailed,
                        format!(
                            "worker {} did not start in {} s; lease again",
                            worker.0,
                            limit.as_secs()
                        ),
                    )
                });
            }
            let _ = tokio::time::timeout(left, changed.changed()).await;
        }
    }

    /// Begins a channel to a free worker, and passes its memory on if it has some. The connection of a stream follows
    /// by [`NodeLease::hand_over`], after its verdict.
    pub fn begin(
        self: &Arc<Self>,
        hello: &Hello,
        socket: OwnedFd,
        memory: Option<ChannelMemory>,
    ) -> Result<OpenedChannel, Failure> {
        let (worker, id) = (WorkerIndex(hello.worker.get()), hello.channel);
        let index = worker.0 as usize;
        let attach = self.attach(hello, &[])?;
        let mut state = self.lock();
        if is_disconnected(&socket) {
            return Err(Failure::new(
                Code::Unreachable,
                "the client went away before its channel was open",
            ));
        }
        let LeaseData {
            life, slots, control, ..
        } = &mut *state;
        let slot = slots
            .get_mut(index)
            .filter(|slot| slot.is_up() && slot.is_serving() && slot.channel().is_none());
        let (Some(slot), Some(control)) = (slot, control) else {
            return Err(busy(worker));
        };
        let internal =
            |error: std::io::Error| Failure::new(Code::Internal, format!("the channel cannot be watched: {error}"));
        let watched = self.disconnects.watch(&socket, self, id).map_err(internal)?;
        let first = life.open_channel(clock::now_ms()).inspect_err(|_| {
            self.disconnects.forget(&socket, watched);
        })?;
        // The worker does the same when it takes the channel. If it dies before, no state of the last channel may
        // remain.
        self.meters[index].attach();
        let begun = OpenedChannel {
            incarnation: slot.incarnation(),
            pid: slot.pid(),
            first,
        };
        let sent = match &memory {
            Some(memory) => control.send(&attach, &[memory.file().as_fd()]),
            None => Ok(()),
        };
        slot.set_channel(Channel::new(id, hello.token.holder, memory, socket, watched));
        if let Err(error) = sent {
            self.end_channel(&mut state, index, End::ExecutorDied);
            return Err(unreachable_executor(&error));
        }
        drop(state);
        self.wake.notify_one();
        Ok(begun)
    }

    /// Passes the connection of a begun channel to the worker, with the fabrics on which it may meet its client.
    pub fn hand_over(&self, hello: &Hello, socket: impl AsFd, fabrics: &[Choice]) -> Result<(), Failure> {
        let index = hello.worker.get() as usize;
        let attach = self.attach(hello, fabrics)?;
        let mut state = self.lock();
        let ours = state.slots.get(index).and_then(WorkerSlot::channel);
        if ours.is_none_or(|channel| channel.id() != hello.channel) {
            return Ok(());
        }
        let sent = match &state.control {
            Some(control) => control.send(&attach, &[socket.as_fd()]),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        sent.map_err(|error| {
            self.end_channel(&mut state, index, End::ExecutorDied);
            unreachable_executor(&error)
        })
    }

    /// Ends a begun channel whose verdict could not be delivered and that the worker does not have.
    pub fn abandon(&self, hello: &Hello) {
        let index = hello.worker.get() as usize;
        let mut state = self.lock();
        let channel = state.slots.get_mut(index).and_then(WorkerSlot::channel_mut);
        let Some(channel) = channel.filter(|channel| channel.id() == hello.channel) else {
            return;
        };
        if channel.memory().is_some() {
            channel.mark_client_gone(End::ClientGone);
        } else {
            self.end_channel(&mut state, index, End::ClientGone);
        }
        drop(state);
        self.notify_changed();
    }

    fn attach(&self, hello: &Hello, fabrics: &[Choice]) -> Result<ToExecutor, Failure> {
        use dayfly_protocol::hello::transport::{LIBFABRIC, TLS};
        let tls = matches!(hello.transport, TLS | LIBFABRIC);
        let fabrics = fabrics.iter().map(Choice::to_string).collect();
        let never_sleeps = if self.never_sleeps() {
            options::WORKER_NEVER_SLEEPS
        } else {
            0
        };
        let executor_key_pkcs8 = match tls {
            true => Some(self.executor_key()?.to_pkcs8()),
            false => None,
        };
        Ok(ToExecutor::Attach {
            worker: WorkerIndex(hello.worker.get()),
            channel: hello.channel,
            transport: hello.transport,
            slots: hello.slots.get(),
            stride_bytes: hello.stride_bytes.get(),
            bulk_bytes: hello.bulk_bytes.get(),
            options: hello.options.get() & options::CLIENT_NEVER_SLEEPS | never_sleeps,
            fabrics,
            executor_key_pkcs8,
            client_key: tls.then_some(hello.token.holder),
        })
    }

    /// Handles that the client of a channel is gone.
    pub fn on_client_gone(&self, id: ChannelId) {
        let mut state = self.lock();
        let channels = state.slots.iter_mut().filter_map(WorkerSlot::channel_mut);
        for channel in channels.filter(|channel| channel.id() == id && channel.client_end().is_none()) {
            channel.mark_client_gone(End::ClientGone);
        }
        drop(state);
        self.wake.notify_one();
    }

    pub(super) fn end_channel(&self, state: &mut LeaseData, index: usize, end: End) {
        let slot = &mut state.slots[index];
        let Some(channel) = slot.take_channel() else { return };
        let reading = self.meters[index].read();
        let status = ChannelStatus {
            worker: WorkerIndex(index as u16),
            incarnation: slot.incarnation(),
            started: reading.started,
            finished: reading.finished,
            end: Some(end),
        };
        // Store the status before the client can notice the channel's end, and so before it can ask.
        state.history.add(channel.id(), status);
        if let Some(memory) = channel.memory() {
            memory.close(end);
        }
        let (socket, watch_key) = channel.socket();
        self.disconnects.forget(socket, watch_key);
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        state.life.close_channel(clock::now_ms());
        self.wake.notify_one();
    }

    /// Ends every channel, for the reason in the lease's state.
    pub fn end_channels(&self) {
        let mut state = self.lock();
        let end = match state.life.state() {
            LeaseState::Expired => End::Expired,
            LeaseState::Revoked => End::Revoked,
            LeaseState::Lost => End::ExecutorDied,
            _ => End::Released,
        };
        for index in 0..state.slots.len() {
            self.end_channel(&mut state, index, end);
        }
    }

    /// The status of a channel. Returns an error for an unknown one.
    pub fn channel_status(&self, id: ChannelId) -> Result<ChannelStatus, Failure> {
        let state = self.lock();
        let open = state.slots.iter().enumerate();
        let alive = open
            .filter(|(_, slot)| slot.channel().is_some_and(|channel| channel.id() == id))
            .map(|(index, slot)| {
                let reading = self.meters[index].read();
                ChannelStatus {
                    worker: WorkerIndex(index as u16),
                    incarnation: slot.incarnation(),
                    started: reading.started,
                    finished: reading.finished,
                    end: None,
                }
            });
        alive
            .chain(state.history.find(id).cloned())
            .next()
            .ok_or_else(|| Failure::new(Code::NotFound, format!("this lease had no channel {id} of late")))
    }

    /// Kills the worker that runs this call, now or when it begins. Does nothing if the call has ended.
    pub fn cancel(&self, id: ChannelId, sequence: u32) -> Result<(), Failure> {
        let mut state = self.lock();
        let LeaseData { slots, control, .. } = &mut *state;
        let found = slots
            .iter_mut()
            .enumerate()
            .find(|(_, slot)| slot.channel().is_some_and(|channel| channel.id() == id));
        let Some((index, slot)) = found else {
            return Err(Failure::new(
                Code::NotFound,
                format!("this lease has no open channel {id}"),
            ));
        };
        let reading = self.meters[index].read();
        if reading.is_running() && reading.started == sequence {
            slot.kill(control.as_ref(), index, End::Cancelled);
        } else if !has_begun(reading.started, sequence)
            && let Some(channel) = slot.channel_mut()
        {
            channel.cancel(sequence);
            drop(state);
            self.wake.notify_one();
        }
        Ok(())
    }

    /// The workers that the holder of a token may use now.
    pub fn part_of(&self, holder: &PublicKey) -> Result<Part, Failure> {
        Ok(self.lock().delegations.part_of(holder, clock::now_ms())?)
    }

    /// Delegates a part of `by`'s workers to another key.
    pub fn delegate(
        &self,
        by: &PublicKey,
        to: PublicKey,
        first: u16,
        workers: u16,
        duration_ms: u64,
    ) -> Result<Part, Failure> {
        let mut state = self.lock();
        let now_ms = clock::now_ms();
        state.life.check(now_ms)?;
        let start = state
            .delegations
            .part_of(by, now_ms)?
            .workers
            .start
            .saturating_add(first);
        let wanted = start..start.saturating_add(workers);
        if wanted.into_iter().any(|index| {
            state
                .slots
                .get(usize::from(index))
                .is_some_and(|slot| !slot.is_serving())
        }) {
            let text = "some of these workers were given back when the lease was renewed; delegate others";
            return Err(Failure::new(Code::InvalidRequest, text));
        }
        let part = state
            .delegations
            .delegate(by, to, first, workers, duration_ms, now_ms)?;
        drop(state);
        // The supervisor has to know its expiry.
        self.wake.notify_one();
        Ok(part)
    }

    /// Takes back what `by` delegated to `from`. Its channels end; a running call has a grace as if its client had
    /// gone.
    pub fn take_back(&self, by: &PublicKey, from: &PublicKey) -> Result<(), Failure> {
        let mut state = self.lock();
        let gone = state.delegations.take_back(by, from)?;
        end_channels_of(&mut state, &gone);
        drop(state);
        self.wake.notify_one();
        Ok(())
    }

    /// Takes back expired delegations.
    pub(super) fn expire_delegations(state: &mut LeaseData, now_ms: u64) {
        let gone = state.delegations.expire(now_ms);
        if !gone.is_empty() {
            end_channels_of(state, &gone);
        }
    }
}

fn busy(worker: WorkerIndex) -> Failure {
    Failure::new(
        Code::WorkerBusy,
        format!(
            "another channel is open to worker {}; close it, use another worker or lease more",
            worker.0
        ),
    )
}

fn unreachable_executor(error: &std::io::Error) -> Failure {
    Failure::new(
        Code::ExecutorFailed,
        format!("the lease's executor does not take the channel: {error}; connect again"),
    )
}

fn end_channels_of(state: &mut LeaseData, holders: &[PublicKey]) {
    let channels = state.slots.iter_mut().filter_map(WorkerSlot::channel_mut);
    for channel in channels.filter(|channel| channel.client_end().is_none() && holders.contains(channel.holder())) {
        channel.mark_client_gone(End::DelegationRevoked);
    }
}
