//! Round trips of one or two cache lines between two cores.

use super::Baseline;
use super::peer::{Peer, Shared};
use crate::alternate::Block;
use crate::error::Error;
use crate::stats::{Samples, timed};
use crate::tsc::Tsc;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

/// 128 bytes, so that the prefetcher that fetches pairs of lines does not couple the two directions. The payload
/// starts 16 bytes in, as behind a header: 48 bytes of it share the sequence's line.
#[repr(C, align(128))]
pub(super) struct Slot {
    pub(super) sequence: AtomicU32,
    pub(super) length: AtomicU32,
    header: [u32; 2],
    payload: UnsafeCell<[u8; CacheLine::LARGEST]>,
}

impl Slot {
    #[inline(always)]
    pub(super) fn payload(&self) -> *mut u8 {
        self.payload.get().cast()
    }

    /// Copies N bytes in.
    #[inline(always)]
    pub(super) fn write<const N: usize>(&self, bytes: &[u8; CacheLine::LARGEST]) {
        // SAFETY: N is at most LARGEST (all callers' are); the two sides take turns, which `sequence` orders.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.payload(), N) }
    }

    /// Copies N bytes out.
    #[inline(always)]
    pub(super) fn read<const N: usize>(&self, bytes: &mut [u8; CacheLine::LARGEST]) {
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(self.payload(), bytes.as_mut_ptr(), N) }
    }
}

// SAFETY: the payload is only touched by the side whose turn it is by `sequence`.
unsafe impl Sync for Slot {}

#[repr(C)]
struct Lines {
    request: Slot,
    response: Slot,
}

/// Both sides spin on a sequence word in the other's cache line. Each copies the payload out of it and into it.
pub struct CacheLine {
    // Before the lines, so that the peer is gone when they are unmapped.
    peer: Peer,
    lines: Shared<Lines>,
    size: usize,
    sequence: u32,
    buffer: [u8; CacheLine::LARGEST],
}

/// Calls a generic function for the smallest compiled payload size that is large enough.
macro_rules! sized {
    ($size:expr, $function:ident($($argument:expr),*)) => {
        match $size {
            0 => $function::<0>($($argument),*),
            1..=16 => $function::<16>($($argument),*),
            17..=48 => $function::<48>($($argument),*),
            49..=64 => $function::<64>($($argument),*),
            _ => $function::<{ $crate::baseline::CacheLine::LARGEST }>($($argument),*),
        }
    };
}
pub(super) use sized;

impl CacheLine {
    /// Largest payload: two lines minus a header.
    pub const LARGEST: usize = 112;

    /// The sequence word alone: the minimum cost of an exchange between two cores.
    pub fn bare() -> Result<Self, Error> {
        Self::with_payload(0)
    }

    /// With a payload copied in and out on both sides; up to 48 bytes travel in one line, up to 112 in two.
    pub fn with_payload(size: usize) -> Result<Self, Error> {
        let size = size.min(Self::LARGEST);
        // SAFETY: atomics, integers and bytes are valid when zero.
        let lines = unsafe { Shared::<Lines>::zeroed()? };
        let peer = Peer::fork("cache_line", |control| {
            let mut sequence = 0u32;
            let mut buffer = [0; Self::LARGEST];
            loop {
                sequence = sequence.wrapping_add(1);
                while lines.request.sequence.load(Ordering::Acquire) != sequence {
                    control.rest();
                }
                sized!(size, answer(&lines, sequence, &mut buffer));
            }
        })?;
        Ok(CacheLine {
            peer,
            lines,
            size,
            sequence: 0,
            buffer: [7; Self::LARGEST],
        })
    }

    /// Returns the mean of many round trips in nanoseconds, without reading the clock between them.
    pub fn amortised_ns(&mut self, calls: usize) -> Result<f64, Error> {
        self.resume()?;
        sized!(self.size, calls_of(self, calls / 10 + 1))?;
        let before = Tsc::now_ordered();
        sized!(self.size, calls_of(self, calls))?;
        let ticks = Tsc::now_ordered() - before;
        self.pause()?;
        Ok(Tsc::get().ns(ticks) / calls.max(1) as f64)
    }

    #[inline(always)]
    fn call<const N: usize>(&mut self) -> Result<(), Error> {
        self.sequence = self.sequence.wrapping_add(1);
        let (lines, sequence) = (&*self.lines, self.sequence);
        lines.request.write::<N>(&self.buffer);
        lines.request.sequence.store(sequence, Ordering::Release);
        self.peer
            .spin(|| (lines.response.sequence.load(Ordering::Acquire) == sequence).then_some(()))?;
        lines.response.read::<N>(&mut self.buffer);
        Ok(())
    }
}

#[inline(always)]
fn answer<const N: usize>(lines: &Lines, sequence: u32, buffer: &mut [u8; CacheLine::LARGEST]) {
    lines.request.read::<N>(buffer);
    // Keeps the compiler from merging the two copies.
    std::hint::black_box(&mut *buffer);
    lines.response.write::<N>(buffer);
    lines.response.sequence.store(sequence, Ordering::Release);
}

fn calls_of<const N: usize>(line: &mut CacheLine, calls: usize) -> Result<(), Error> {
    (0..calls).try_for_each(|_| line.call::<N>())
}

fn timed_calls<const N: usize>(line: &mut CacheLine, calls: usize, samples: &mut Samples) -> Result<(), Error> {
    timed(calls, samples, || line.call::<N>())
}

impl Block for CacheLine {
    fn block(&mut self, calls: usize, samples: &mut Samples) -> Result<(), Error> {
        sized!(self.size, timed_calls(self, calls, samples))
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

impl Baseline for CacheLine {
    fn name(&self) -> &str {
        match self.size {
            0 => "cache_line",
            1..=48 => "cache_line_48",
            49..=64 => "cache_line_64",
            _ => "cache_line_112",
        }
    }
    fn about(&self) -> String {
        match self.size {
            0 => "one cache line there and back, both sides spinning".into(),
            n => format!("cache lines with {n} B copied in and out on both sides, there and back"),
        }
    }
}
