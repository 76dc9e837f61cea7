//! Point-to-point messages.

use dayfly_protocol::error::{Code, Failure};

use crate::engine::{EngineGuard, Started, WaitState};
use crate::group::Communicator;
use crate::matching::{ANY_SOURCE, ANY_TAG, MatchKey, Status};

impl Communicator {
    /// The address of a user's message.
    #[inline]
    fn address(&self, tag: u32) -> MatchKey {
        MatchKey {
            context: self.context,
            tag,
            call: 0,
        }
    }

    /// A rank of this communicator as a rank of the whole group.
    #[inline]
    fn world(&self, rank: u32) -> Result<u32, Failure> {
        match self.members.get(rank as usize) {
            Some(world) => Ok(*world),
            None => Err(Failure::new(
                Code::InvalidRequest,
                format!("there is no rank {rank} in a communicator of {}", self.members.len()),
            )),
        }
    }

    #[inline]
    fn world_or_any(&self, source: u32) -> Result<u32, Failure> {
        match source {
            ANY_SOURCE => Ok(ANY_SOURCE),
            source => self.world(source),
        }
    }

    pub(crate) fn send_key(&self, to: u32, tag: u32) -> Result<(u32, MatchKey), Failure> {
        check_tag(tag)?;
        Ok((self.world(to)?, self.address(tag)))
    }

    pub(crate) fn receive_key(&self, from: u32, tag: u32) -> Result<(u32, MatchKey), Failure> {
        Ok((self.world_or_any(from)?, self.address(tag)))
    }

    /// Translates a status to ranks of this communicator.
    #[inline]
    pub(crate) fn localise(&self, mut status: Status) -> Status {
        if self.members.get(status.source as usize) != Some(&status.source) {
            let found = self.members.iter().position(|member| *member == status.source);
            status.source = found.map_or(ANY_SOURCE, |at| at as u32);
        }
        status
    }

    /// Waits for a request.
    #[inline]
    fn finish(guard: &mut EngineGuard<'_>, started: Started, what: &'static str) -> Result<Status, Failure> {
        let id = match started {
            Started::Done(status) => return Ok(status),
            Started::Pending(id) => id,
        };
        let mut wait_state = WaitState::new(what);
        loop {
            if let Some(outcome) = guard.engine().matching.take(id) {
                return outcome;
            }
            if let Err(failure) = guard.step(&mut wait_state) {
                guard.engine().cancel(id);
                return Err(failure);
            }
        }
    }

    /// Sends a message. Returns when `bytes` may be changed; for a long message, that is when it has been received.
    ///
    /// # Errors
    /// [`Code::RankLost`] when the receiver is lost, [`Code::TimedOut`] when it does not receive,
    /// [`Code::InvalidRequest`] when the rank does not exist.
    #[inline]
    pub fn send(&self, bytes: &[u8], to: u32, tag: u32) -> Result<(), Failure> {
        let to = self.world(to)?;
        check_tag(tag)?;
        let mut guard = self.engine.lock();
        // SAFETY: the bytes are borrowed until the request has ended.
        let started = unsafe { guard.engine().send(to, self.address(tag), bytes.as_ptr(), bytes.len()) }?;
        Self::finish(&mut guard, started, "send").map(|_| ())
    }

    /// Receives a message from one rank or [`ANY_SOURCE`], with one tag or [`ANY_TAG`].
    ///
    /// # Errors
    /// As [`Communicator::send`]; [`Code::Truncated`] when the message is longer than `into`, which then holds its
    /// beginning.
    #[inline]
    pub fn recv(&self, into: &mut [u8], from: u32, tag: u32) -> Result<Status, Failure> {
        let from = self.world_or_any(from)?;
        let mut guard = self.engine.lock();
        // SAFETY: the memory is borrowed until the request has ended.
        let started = unsafe {
            guard
                .engine()
                .receive(from, self.address(tag), into.as_mut_ptr(), into.len())
        }?;
        Self::finish(&mut guard, started, "recv").map(|status| self.localise(status))
    }

    /// Sends one message and receives another at the same time, so ranks can exchange in a cycle without deadlock.
    pub fn sendrecv(
        &self,
        bytes: &[u8],
        to: u32,
        send_tag: u32,
        into: &mut [u8],
        from: u32,
        receive_tag: u32,
    ) -> Result<Status, Failure> {
        let (to, from) = (self.world(to)?, self.world_or_any(from)?);
        check_tag(send_tag)?;
        let mut guard = self.engine.lock();
        // SAFETY: both are borrowed until the requests have ended.
        let receiving = unsafe {
            guard
                .engine()
                .receive(from, self.address(receive_tag), into.as_mut_ptr(), into.len())
        }?;
        // SAFETY: as above.
        let sending = unsafe {
            guard
                .engine()
                .send(to, self.address(send_tag), bytes.as_ptr(), bytes.len())
        };
        let received = match sending {
            Ok(sending) => {
                let received = Self::finish(&mut guard, receiving, "sendrecv");
                match (&received, sending) {
                    (Err(_), Started::Pending(id)) => guard.engine().cancel(id),
                    (_, sending) => {
                        Self::finish(&mut guard, sending, "sendrecv")?;
                    }
                }
                received
            }
            Err(failure) => {
                if let Started::Pending(id) = receiving {
                    guard.engine().cancel(id);
                }
                Err(failure)
            }
        };
        received.map(|status| self.localise(status))
    }

    /// Waits for a message that such a receive would match, without receiving it.
    pub fn probe(&self, from: u32, tag: u32) -> Result<Status, Failure> {
        let from = self.world_or_any(from)?;
        let mut guard = self.engine.lock();
        let mut wait_state = WaitState::new("probe");
        loop {
            if let Some(status) = guard.engine().matching.probe(from, self.context, tag) {
                return Ok(self.localise(status));
            }
            guard.engine().check_can_arrive(from, self.address(tag))?;
            guard.step(&mut wait_state)?;
        }
    }

    /// As [`Communicator::probe`], without waiting; `None` if no such message has arrived.
    pub fn iprobe(&self, from: u32, tag: u32) -> Result<Option<Status>, Failure> {
        let from = self.world_or_any(from)?;
        let mut guard = self.engine.lock();
        guard.progress();
        let found = guard.engine().matching.probe(from, self.context, tag);
        if found.is_none() {
            guard.engine().check_can_arrive(from, self.address(tag))?;
        }
        Ok(found.map(|status| self.localise(status)))
    }
}

#[inline]
fn check_tag(tag: u32) -> Result<(), Failure> {
    match tag {
        ANY_TAG => Err(Failure::new(
            Code::InvalidRequest,
            "a message is sent under one tag, not under any; choose a number below 4294967295",
        )),
        _ => Ok(()),
    }
}
