//! Carries the bytes between a rank in a sandbox and another rank: between a Unix socket, whose other end the rank
//! holds, and the TLS connection to the other rank.
//!
//! A forwarder neither waits nor polls. Its owner reports which end is ready, and the forwarder remembers that until
//! the end would block.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use dayfly_fabric::stream::wire::{Wire, unacknowledged_bytes};
use rustix::net::{RecvFlags, SendFlags};

/// Limit for the other host to acknowledge the last bytes.
const LINGER: Duration = Duration::from_secs(5);
/// Buffers that are moved in one turn.
const TURNS: usize = 8;

/// Buffered bytes of one direction.
struct Flow {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Flow {
    fn new(bytes: usize) -> Self {
        Self {
            bytes: vec![0; bytes],
            start: 0,
            end: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    fn filled(&mut self, count: usize) {
        (self.start, self.end) = (0, count);
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }
}

/// Result of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It waits for one of its ends.
    Waits,
    /// It can continue at once.
    GoesOn,
    /// It is complete.
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Towards the rank in the sandbox.
    Near,
    /// Towards the other rank.
    Far,
}

/// A connection between two ranks.
pub struct Forwarder {
    near: OwnedFd,
    far: Wire,
    out: Flow,
    back: Flow,
    near_in: bool,
    near_out: bool,
    far_in: bool,
    far_out: bool,
    /// When the rank closed its end or died.
    near_over: Option<Instant>,
    far_over: bool,
    /// The far end takes no more bytes; bytes from it may still arrive.
    far_deaf: bool,
}

/// Result of moving bytes: a count, or that the end would block, or that it is over.
enum Moved {
    Some(usize),
    NotNow,
    Never,
}

fn moved(result: io::Result<usize>) -> Moved {
    match result {
        Ok(count @ 1..) => Moved::Some(count),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Moved::Some(0),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Moved::NotNow,
        Ok(0) | Err(_) => Moved::Never,
    }
}

impl Forwarder {
    /// A forwarder between these two, with `buffer` bytes in each direction.
    pub fn new(near: OwnedFd, far: Wire, buffer: usize) -> Self {
        Self {
            near,
            far,
            out: Flow::new(buffer),
            back: Flow::new(buffer),
            near_in: true,
            near_out: true,
            far_in: true,
            far_out: true,
            near_over: None,
            far_over: false,
            far_deaf: false,
        }
    }

    /// The socket of an end, to poll.
    pub fn socket(&self, end: End) -> BorrowedFd<'_> {
        match end {
            End::Near => self.near.as_fd(),
            End::Far => self.far.socket().as_fd(),
        }
    }

    /// Records that an end is readable, writable or closed.
    pub fn wake(&mut self, end: End, reads: bool, writes: bool) {
        match end {
            End::Near => {
                self.near_in |= reads;
                self.near_out |= writes;
            }
            End::Far => {
                self.far_in |= reads;
                self.far_out |= writes;
            }
        }
    }

    /// Whether the rank has finished and its last bytes are still being sent.
    pub fn lingers(&self) -> bool {
        self.near_over.is_some()
    }

    /// Moves bytes in both directions until both ends would block or the turn is over.
    pub fn turn(&mut self) -> Turn {
        for _ in 0..TURNS {
            let outward = self.outward();
            let inward = self.inward();
            if self.is_over() {
                return Turn::Over;
            }
            if !outward && !inward {
                return Turn::Waits;
            }
        }
        Turn::GoesOn
    }

    fn is_over(&self) -> bool {
        if self.far_over && self.back.is_empty() {
            return true;
        }
        let Some(since) = self.near_over else {
            return false;
        };
        self.far_over || self.far_deaf || since.elapsed() > LINGER || self.out.is_empty() && self.is_acknowledged()
    }

    /// Whether the other host has acknowledged all bytes. Closing earlier may discard them.
    fn is_acknowledged(&self) -> bool {
        // While the session holds bytes back, `far_out` is false.
        self.far_out && unacknowledged_bytes(self.far.socket()) == 0
    }

    fn outward(&mut self) -> bool {
        let mut any = false;
        if self.out.is_empty() && self.near_in && self.near_over.is_none() {
            let came = rustix::net::recv(&self.near, &mut self.out.bytes[..], RecvFlags::DONTWAIT);
            match moved(came.map(|(count, _)| count).map_err(io::Error::from)) {
                Moved::Some(count) => {
                    self.out.filled(count);
                    any = true;
                }
                Moved::NotNow => self.near_in = false,
                Moved::Never => self.near_over = Some(Instant::now()),
            }
        }
        if self.far_deaf {
            self.out.clear();
        }
        while !self.out.is_empty() && self.far_out {
            match moved(self.far.send(self.out.rest(), &[])) {
                Moved::Some(count) => {
                    self.out.start += count;
                    any = true;
                }
                Moved::NotNow => self.far_out = false,
                Moved::Never => {
                    self.far_deaf = true;
                    return true;
                }
            }
        }
        if self.far_out && !self.far_deaf {
            match self.far.flush() {
                Ok(flushed) => self.far_out = flushed,
                Err(_) => self.far_deaf = true,
            }
        }
        any
    }

    fn inward(&mut self) -> bool {
        let mut any = false;
        if self.back.is_empty() && self.far_in && !self.far_over {
            match moved(self.far.receive(&mut self.back.bytes)) {
                Moved::Some(count) => {
                    self.back.filled(count);
                    any = true;
                }
                Moved::NotNow => self.far_in = false,
                Moved::Never => self.far_over = true,
            }
        }
        if self.near_over.is_some() {
            // Drop the bytes: unread, they would make the system discard the last bytes of the other direction.
            self.back.clear();
        }
        while !self.back.is_empty() && self.near_out {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match moved(rustix::net::send(&self.near, self.back.rest(), flags).map_err(io::Error::from)) {
                Moved::Some(count) => {
                    self.back.start += count;
                    any = true;
                }
                Moved::NotNow => self.near_out = false,
                Moved::Never => {
                    self.back.clear();
                    self.near_over.get_or_insert_with(Instant::now);
                }
            }
        }
        any
    }
}
