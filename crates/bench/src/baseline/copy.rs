//! Bandwidth of reading and writing memory.

use super::Baseline;
use super::cache_line::Slot;
use super::peer::{Mapping, Peer, Shared};
use crate::alternate::Block;
use crate::error::Error;
use crate::stats::{Samples, timed};
use std::sync::atomic::Ordering;

/// `memcpy` between two buffers of this process.
pub struct Copy {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Copy {
    /// Makes two buffers of the given size and touches their pages.
    pub fn new(size: usize) -> Self {
        Copy {
            from: vec![7; size],
            to: vec![1; size],
        }
    }

    /// Returns bytes read and written per second, for the time of one copy.
    pub fn bandwidth(size: usize, ns: f64) -> f64 {
        if ns > 0.0 { 2.0 * size as f64 * 1e9 / ns } else { 0.0 }
    }
}

impl Block for Copy {
    fn block(&mut self, calls: usize, samples: &mut Samples) -> Result<(), Error> {
        timed(calls, samples, || {
            self.to.copy_from_slice(std::hint::black_box(&self.from));
            std::hint::black_box(&mut self.to);
            Ok(())
        })
    }
}

impl Baseline for Copy {
    fn name(&self) -> &str {
        "memcpy"
    }
    fn about(&self) -> String {
        format!("memcpy of {} B within one process", self.from.len())
    }
}

#[repr(C)]
struct Turn {
    request: Slot,
    response: Slot,
}

/// The same copy made by the peer, between two shared buffers, on request over a cache line. This is the limit for a
/// function that reads its input and writes its output in place.
pub struct CopyInPeer {
    peer: Peer,
    turn: Shared<Turn>,
    /// Kept mapped for the peer and for tests.
    #[cfg_attr(not(test), expect(dead_code))]
    buffers: Mapping,
    size: usize,
    sequence: u32,
}

impl CopyInPeer {
    /// Makes two shared buffers of the given size and touches their pages on both sides.
    pub fn new(size: usize) -> Result<Self, Error> {
        // SAFETY: atomics, integers and bytes are valid when zero.
        let turn = unsafe { Shared::<Turn>::zeroed()? };
        // Buffers start on pages of their own, so that the copy is as aligned as the local one.
        let room = size.next_multiple_of(4096);
        let buffers = Mapping::new(2 * room.max(4096))?;
        let peer = Peer::fork("memcpy_peer", |control| {
            let mut sequence = 0u32;
            loop {
                sequence = sequence.wrapping_add(1);
                while turn.request.sequence.load(Ordering::Acquire) != sequence {
                    control.rest();
                }
                // SAFETY: the mapping holds two buffers of `room` bytes; the client waits meanwhile.
                unsafe { std::ptr::copy_nonoverlapping(buffers.start(), buffers.start().add(room), size) };
                turn.response.sequence.store(sequence, Ordering::Release);
            }
        })?;
        Ok(CopyInPeer {
            peer,
            turn,
            buffers,
            size,
            sequence: 0,
        })
    }

    /// Returns the last byte of the output, which shows that it was written.
    #[cfg(test)]
    fn output_ends_with(&self) -> u8 {
        let at = self.size.next_multiple_of(4096) + self.size - 1;
        // SAFETY: within the mapping; the peer is idle between calls.
        unsafe { *self.buffers.start().add(at) }
    }

    #[cfg(test)]
    fn fill_input(&mut self, byte: u8) {
        // SAFETY: the first `size` bytes of the mapping are the input; the peer is idle between calls.
        unsafe { std::ptr::write_bytes(self.buffers.start(), byte, self.size) };
    }
}

impl Block for CopyInPeer {
    fn block(&mut self, calls: usize, samples: &mut Samples) -> Result<(), Error> {
        timed(calls, samples, || {
            self.sequence = self.sequence.wrapping_add(1);
            let (turn, sequence) = (&*self.turn, self.sequence);
            turn.request.sequence.store(sequence, Ordering::Release);
            self.peer
                .spin(|| (turn.response.sequence.load(Ordering::Acquire) == sequence).then_some(()))
        })
    }
    fn resume(&mut self) -> Result<(), Error> {
        self.peer.resume();
        Ok(())
    }
    fn pause(&mut self) -> Result<(), Error> {
        self.peer.pause();
        Ok(())
    }
}

impl Baseline for CopyInPeer {
    fn name(&self) -> &str {
        "memcpy_peer"
    }
    fn about(&self) -> String {
        format!(
            "memcpy of {} B by another process, between buffers of shared memory",
            self.size
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alternate::{Plan, measure};

    #[test]
    fn peer_copies_the_bytes() {
        let mut copy = CopyInPeer::new(10_000).unwrap();
        copy.fill_input(42);
        assert_eq!(
            measure(
                &mut copy,
                Plan {
                    blocks: 1,
                    calls: 3,
                    warm_up: 1
                }
            )
            .unwrap()
            .len(),
            3
        );
        assert_eq!(copy.output_ends_with(), 42);
    }

    #[test]
    fn bandwidth_counts_reads_and_writes() {
        assert_eq!(Copy::bandwidth(1000, 1000.0), 2e9);
    }
}
