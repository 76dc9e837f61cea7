//! Channels to a lease's workers: their begin, their end, and their fates.

use dayfly_fabric::Choice;
use dayfly_protocol::slot::{MAX_SLOTS, has_begun};

use super::*;

/// Longest wait for a worker.
const WORKER_DEADLINE: Duration = Duration::from_secs(10);
/// Longest wait for a worker whose former client is gone.
const DETACH_DEADLINE: Duration = Duration::from_secs(2);
/// Most fates that are kept for each lease: a client asks at once or never.
const MAX_FATES: usize = 256;
/// Most cancelled calls that are remembered for each channel until they begin: the most slots of a ring.
const MAX_DOOMED: usize = MAX_SLOTS as usize;

impl Run {
    /// Waits until a worker exists and has no channel.
    pub async fn worker_free(&self, worker: WorkerIndex) -> Result<(), Failure> {
        let begun = Instant::now();
        let mut changed = self.changed.subscribe();
        loop {
            let limit = {
                let mut inner = self.inner();
                inner.life.check(clock::now_ms())?;
                if let Some(failure) = &inner.failure {
                    return Err(failure.clone());
                }
                let slot = inner
                    .slots
                    .get_mut(worker.0 as usize)
                    .ok_or_else(|| Failure::new(Code::NotFound, format!("the lease has no worker {}", worker.0)))?;
                match &mut slot.channel {
                    Some(channel) => {
                        if channel.gone.is_none() && hung_up(&channel.socket) {
                            leave(channel, End::ClientGone);
                        }
                        if channel.gone.is_none() {
                            return Err(busy(worker));
                        }
                        DETACH_DEADLINE
                    }
                    None if slot.up => return Ok(()),
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
    /// by [`Run::hand_over`], after its verdict.
    pub fn begin(
        self: &Arc<Self>,
        hello: &Hello,
        socket: OwnedFd,
        memory: Option<ChannelMemory>,
    ) -> Result<Begun, Failure> {
        let (worker, id) = (WorkerIndex(hello.worker.get()), hello.channel);
        let index = worker.0 as usize;
        let attach = self.attach(hello, &[])?;
        let mut inner = self.inner();
        if hung_up(&socket) {
            return Err(Failure::new(
                Code::Unreachable,
                "the client went away before its channel was open",
            ));
        }
        let Inner {
            life, slots, control, ..
        } = &mut *inner;
        let slot = slots.get_mut(index).filter(|slot| slot.up && slot.channel.is_none());
        let (Some(slot), Some(control)) = (slot, control) else {
            return Err(busy(worker));
        };
        let internal =
            |error: std::io::Error| Failure::new(Code::Internal, format!("the channel cannot be watched: {error}"));
        let watched = self.hangups.watch(&socket, self, id).map_err(internal)?;
        let first = life.open_channel(clock::now_ms()).inspect_err(|_| {
            self.hangups.forget(&socket, watched);
        })?;
        // The worker does the same when it takes the channel. If it dies before, no state of the last channel may
        // remain.
        self.meters[index].attach();
        let begun = Begun {
            incarnation: Incarnation(slot.incarnation),
            pid: slot.pid,
            first,
        };
        let sent = match &memory {
            Some(memory) => control.send(&attach, &[memory.file().as_fd()]),
            None => Ok(()),
        };
        slot.channel = Some(Channel {
            id,
            holder: hello.token.holder,
            memory,
            socket,
            watched,
            doomed: BTreeSet::new(),
            gone: None,
        });
        if let Err(error) = sent {
            self.end_channel(&mut inner, index, End::ExecutorDied);
            return Err(unreachable_executor(&error));
        }
        drop(inner);
        self.wake.notify_one();
        Ok(begun)
    }

    /// Passes the connection of a begun channel to the worker, with the fabrics on which it may meet its client.
    pub fn hand_over(&self, hello: &Hello, socket: impl AsFd, fabrics: &[Choice]) -> Result<(), Failure> {
        let index = hello.worker.get() as usize;
        let attach = self.attach(hello, fabrics)?;
        let mut inner = self.inner();
        let ours = inner.slots.get(index).and_then(|slot| slot.channel.as_ref());
        if ours.is_none_or(|channel| channel.id != hello.channel) {
            return Ok(());
        }
        let sent = match &inner.control {
            Some(control) => control.send(&attach, &[socket.as_fd()]),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        sent.map_err(|error| {
            self.end_channel(&mut inner, index, End::ExecutorDied);
            unreachable_executor(&error)
        })
    }

    /// Ends a begun channel whose verdict could not be delivered and that the worker does not have.
    pub fn abandon(&self, hello: &Hello) {
        let index = hello.worker.get() as usize;
        let mut inner = self.inner();
        let channel = inner.slots.get_mut(index).and_then(|slot| slot.channel.as_mut());
        let Some(channel) = channel.filter(|channel| channel.id == hello.channel) else {
            return;
        };
        if channel.memory.is_some() {
            leave(channel, End::ClientGone);
        } else {
            self.end_channel(&mut inner, index, End::ClientGone);
        }
        drop(inner);
        self.announce();
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
    pub fn client_gone(&self, id: ChannelId) {
        let mut inner = self.inner();
        let channels = inner.slots.iter_mut().filter_map(|slot| slot.channel.as_mut());
        for channel in channels.filter(|channel| channel.id == id && channel.gone.is_none()) {
            leave(channel, End::ClientGone);
        }
        drop(inner);
        self.wake.notify_one();
    }

    pub(super) fn end_channel(&self, inner: &mut Inner, index: usize, end: End) {
        let slot = &mut inner.slots[index];
        let Some(channel) = slot.channel.take() else { return };
        let reading = self.meters[index].read();
        let fate = ChannelStatus {
            worker: WorkerIndex(index as u16),
            incarnation: Incarnation(slot.incarnation),
            started: reading.started,
            finished: reading.finished,
            end: Some(end),
        };
        // Store the fate before the client can notice the channel's end, and so before it can ask.
        inner.fates.push_back((channel.id, fate));
        if inner.fates.len() > MAX_FATES {
            inner.fates.pop_front();
        }
        if let Some(memory) = &channel.memory {
            memory.close(end);
        }
        self.hangups.forget(&channel.socket, channel.watched);
        let _ = rustix::net::shutdown(&channel.socket, rustix::net::Shutdown::Both);
        inner.life.close_channel(clock::now_ms());
        self.wake.notify_one();
    }

    /// Ends every channel, for the reason in the lease's state.
    pub fn end_channels(&self) {
        let mut inner = self.inner();
        let end = match inner.life.state() {
            LeaseState::Expired => End::Expired,
            LeaseState::Revoked => End::Revoked,
            LeaseState::Lost => End::ExecutorDied,
            _ => End::Released,
        };
        for index in 0..inner.slots.len() {
            self.end_channel(&mut inner, index, end);
        }
    }

    /// The fate of a channel. Returns an error for an unknown one.
    pub fn fate(&self, id: ChannelId) -> Result<ChannelStatus, Failure> {
        let inner = self.inner();
        let open = inner.slots.iter().enumerate();
        let alive = open
            .filter(|(_, slot)| slot.channel.as_ref().is_some_and(|channel| channel.id == id))
            .map(|(index, slot)| {
                let reading = self.meters[index].read();
                ChannelStatus {
                    worker: WorkerIndex(index as u16),
                    incarnation: Incarnation(slot.incarnation),
                    started: reading.started,
                    finished: reading.finished,
                    end: None,
                }
            });
        let ended = inner.fates.iter().rev().filter(|(ended, _)| *ended == id);
        alive
            .chain(ended.map(|(_, fate)| fate.clone()))
            .next()
            .ok_or_else(|| Failure::new(Code::NotFound, format!("this lease had no channel {id} of late")))
    }

    /// Kills the worker that runs this call, now or when it begins. Does nothing if the call has ended.
    pub fn cancel(&self, id: ChannelId, sequence: u32) -> Result<(), Failure> {
        let mut inner = self.inner();
        let Inner { slots, control, .. } = &mut *inner;
        let found = slots
            .iter_mut()
            .enumerate()
            .find(|(_, slot)| slot.channel.as_ref().is_some_and(|channel| channel.id == id));
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
            && let Some(channel) = &mut slot.channel
        {
            // An honest client cancels at most as many calls as a ring has slots; drop the first of any more.
            if channel.doomed.len() >= MAX_DOOMED {
                channel.doomed.pop_first();
            }
            channel.doomed.insert(sequence);
            drop(inner);
            self.wake.notify_one();
        }
        Ok(())
    }
}

/// Records that a channel's client is gone, or should be, and informs the worker.
pub(super) fn leave(channel: &mut Channel, end: End) {
    channel.gone = Some((Instant::now(), end));
    match &channel.memory {
        Some(memory) => memory.close(end),
        // The socket reports nothing if the network to its client was cut, so shut it down.
        None => {
            let _ = rustix::net::shutdown(&channel.socket, rustix::net::Shutdown::Both);
        }
    }
}

pub(super) fn hung_up(socket: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut waiting = [PollFd::new(socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut waiting, Some(&now)), Ok(1..))
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
