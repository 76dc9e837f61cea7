//! One invocation, as its runtime sees it. The input is read where it was received, and the output is written where it
//! is sent.

use dayfly_fabric::{AnyLink, Buffer, Link, LinkError, Received};
use dayfly_protocol::slot::Status;

use crate::fork_guard;

/// How the output is sent.
#[derive(Debug)]
enum Reply {
    Inline(usize),
    InRoom(usize),
    Lent(Buffer, usize),
}

#[derive(Debug)]
pub struct Call<'a> {
    link: &'a mut AnyLink,
    reply: Reply,
    max_output: u64,
    deadline_ms: u32,
    start_ticks: u64,
}

/// The output exceeds the lease's bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "an output of {wanted} bytes exceeds the {limit} bytes that this lease allows; lease with more memory for outputs"
)]
pub struct OutputTooLarge {
    /// Requested bytes.
    pub wanted: usize,
    /// Permitted bytes.
    pub limit: u64,
}

impl<'a> Call<'a> {
    pub(crate) fn new(link: &'a mut AnyLink, max_output: u64, deadline_ms: u32, start_ticks: u64) -> Self {
        Self {
            link,
            reply: Reply::Inline(0),
            max_output,
            deadline_ms,
            start_ticks,
        }
    }

    /// The input, in the memory that it was received in.
    #[inline(always)]
    pub fn input(&mut self) -> &[u8] {
        self.link.current().input
    }

    /// Takes the input beyond this call, if it came through bulk memory; `None` otherwise. If it is still held when the
    /// call ends, call [`Call::retain`] before.
    pub fn take_input(&mut self) -> Option<Received> {
        self.link.take()
    }

    /// Marks the taken input as still in use, so that the client does not reuse its memory.
    pub fn retain(&mut self) {
        self.link.retain();
    }

    /// Largest output that the caller expects, in bytes; 0 if it does not state one.
    #[inline(always)]
    pub fn expected_output(&mut self) -> usize {
        self.link.current().room_length
    }

    /// Largest output that the lease permits, in bytes.
    pub fn max_output(&self) -> u64 {
        self.max_output
    }

    /// Permitted milliseconds of execution, and the ticks at its begin; `None` without a deadline.
    pub fn deadline(&self) -> Option<(u32, u64)> {
        (self.deadline_ms > 0).then_some((self.deadline_ms, self.start_ticks))
    }

    /// The input, and the slot's room for inline output, which costs no allocation. [`Call::set_inline`] sets the
    /// output's length.
    #[inline(always)]
    pub fn inline(&mut self) -> (&[u8], &mut [u8]) {
        fork_guard::exit_if_forked();
        let current = self.link.current();
        (current.input, current.compose)
    }

    /// Sets the output to the first `length` bytes of the inline room.
    #[inline(always)]
    pub fn set_inline(&mut self, length: usize) {
        self.reply = Reply::Inline(length);
    }

    /// Returns memory for `capacity` bytes of output: the slot if they fit, else the caller's room, else bulk memory.
    /// The returned start and actual capacity are valid until the next call of this function or the end of the call.
    pub fn place(&mut self, capacity: usize) -> Result<(*mut u8, usize), OutputTooLarge> {
        fork_guard::exit_if_forked();
        let too_large = OutputTooLarge {
            wanted: capacity,
            limit: self.max_output,
        };
        let current = self.link.current();
        if capacity <= current.compose.len() {
            self.reply = Reply::Inline(0);
            return Ok((current.compose.as_mut_ptr(), current.compose.len()));
        }
        if let Some(room) = current.room
            && capacity <= room.len()
        {
            self.reply = Reply::InRoom(0);
            return Ok((room.as_mut_ptr(), room.len()));
        }
        if capacity as u64 > self.max_output {
            return Err(too_large);
        }
        let buffer = self.link.allocate(capacity).map_err(|_| too_large)?;
        let start = buffer.as_ptr();
        self.reply = Reply::Lent(buffer, 0);
        Ok((start, capacity))
    }

    /// Moves the first `used` bytes of output into larger memory. Returns its start and actual capacity.
    pub fn grow(&mut self, used: usize, capacity: usize) -> Result<(*mut u8, usize), OutputTooLarge> {
        fork_guard::exit_if_forked();
        let too_large = OutputTooLarge {
            wanted: capacity,
            limit: self.max_output,
        };
        if capacity as u64 > self.max_output {
            return Err(too_large);
        }
        let old = std::mem::replace(&mut self.reply, Reply::Inline(0));
        let mut buffer = self.link.allocate(capacity).map_err(|_| too_large)?;
        let current = self.link.current();
        let written: &[u8] = match &old {
            Reply::Inline(_) => current.compose,
            Reply::InRoom(_) => current.room.as_deref().unwrap_or_default(),
            Reply::Lent(old, _) => old.as_slice(),
        };
        let used = used.min(written.len()).min(capacity);
        buffer.as_mut_slice()[..used].copy_from_slice(&written[..used]);
        let start = buffer.as_ptr();
        self.reply = Reply::Lent(buffer, 0);
        Ok((start, capacity))
    }

    /// Sets the output to the first `length` bytes of the last memory; `length` must not exceed its capacity.
    pub fn set_length(&mut self, length: usize) {
        match &mut self.reply {
            Reply::Inline(bytes) | Reply::InRoom(bytes) | Reply::Lent(_, bytes) => *bytes = length,
        }
    }

    /// Copies a whole output.
    pub fn put(&mut self, output: &[u8]) -> Result<(), OutputTooLarge> {
        let (start, _) = self.place(output.len())?;
        // SAFETY: `place` returned memory for that many bytes. `output` cannot overlap it, except as part of the input,
        // and an input is never part of output memory.
        unsafe { std::ptr::copy_nonoverlapping(output.as_ptr(), start, output.len()) };
        self.set_length(output.len());
        Ok(())
    }

    /// Sets the output to a text, truncated to the inline room.
    pub fn fail(&mut self, text: &str) {
        let (_, place) = self.inline();
        let mut length = text.len().min(place.len());
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        place[..length].copy_from_slice(&text.as_bytes()[..length]);
        self.set_inline(length);
    }

    #[inline(always)]
    pub(crate) fn send(self, status: Status) -> Result<u32, LinkError> {
        fork_guard::exit_if_forked();
        match self.reply {
            Reply::Inline(length) => self.link.post(status as u16, 0, length),
            Reply::InRoom(length) => self.link.post_in_room(status as u16, length),
            Reply::Lent(buffer, length) => self.link.post_lent(status as u16, buffer, length),
        }
    }
}
