//! A minimal ring of slots with a call through a pointer: an invocation without everything optional.

use super::cache_line::{Slot, sized};
use super::peer::{Peer, Shared};
use super::{Baseline, CacheLine};
use crate::alternate::Block;
use crate::error::Error;
use crate::stats::{Samples, timed};
use crate::tsc::Tsc;
use std::sync::atomic::Ordering;

/// Maximum depth of the ring.
const DEEPEST: usize = 256;

#[repr(C)]
struct Rings {
    requests: [Slot; DEEPEST],
    responses: [Slot; DEEPEST],
}

type Function = unsafe extern "C" fn(*const u8, u32, *mut u8) -> u32;

/// # Safety
/// Both pointers must be valid for `size` bytes and must not overlap.
unsafe extern "C" fn echo(input: *const u8, size: u32, output: *mut u8) -> u32 {
    // SAFETY: guaranteed by the caller.
    unsafe { std::ptr::copy_nonoverlapping(input, output, size as usize) };
    size
}

/// Request and response slots, `depth` calls outstanding, each served by a C function called through a pointer.
pub struct Ring {
    peer: Peer,
    rings: Shared<Rings>,
    size: usize,
    depth: usize,
    sequence: u32,
    buffer: [u8; CacheLine::LARGEST],
}

impl Ring {
    /// A ring for payloads of up to 112 bytes, of depth 1 to 256 (rounded down to a power of two).
    pub fn new(size: usize, depth: usize) -> Result<Self, Error> {
        let size = size.min(CacheLine::LARGEST);
        let depth = 1 << depth.clamp(1, DEEPEST).ilog2();
        // SAFETY: atomics, integers and bytes are valid when zero.
        let rings = unsafe { Shared::<Rings>::zeroed()? };
        let peer = Peer::fork("c_ring", |control| {
            let function: Function = std::hint::black_box(echo);
            let mut sequence = 0u32;
            loop {
                let at = sequence as usize & (depth - 1);
                let (request, response) = (&rings.requests[at], &rings.responses[at]);
                sequence = sequence.wrapping_add(1);
                while request.sequence.load(Ordering::Acquire) != sequence {
                    control.rest();
                }
                let size = request.length.load(Ordering::Relaxed).min(CacheLine::LARGEST as u32);
                // SAFETY: both payloads are at least `size` bytes long and lie in different slots.
                let written = unsafe { function(request.payload(), size, response.payload()) };
                response.length.store(written, Ordering::Relaxed);
                response.sequence.store(sequence, Ordering::Release);
            }
        })?;
        Ok(Ring {
            peer,
            rings,
            size,
            depth,
            sequence: 0,
            buffer: [7; CacheLine::LARGEST],
        })
    }

    /// Keeps the ring full for a number of calls. Returns calls per second.
    pub fn rate(&mut self, calls: usize) -> Result<f64, Error> {
        self.resume()?;
        sized!(self.size, stream(self, calls / 10 + 1))?;
        let before = Tsc::now_ordered();
        sized!(self.size, stream(self, calls))?;
        let ticks = Tsc::now_ordered() - before;
        self.pause()?;
        Ok(calls as f64 * 1e9 / Tsc::get().ns(ticks))
    }
}

#[inline(always)]
fn send<const N: usize>(ring: &mut Ring, sequence: u32) {
    let slot = &ring.rings.requests[sequence as usize & (ring.depth - 1)];
    slot.write::<N>(&ring.buffer);
    slot.length.store(ring.size as u32, Ordering::Relaxed);
    slot.sequence.store(sequence.wrapping_add(1), Ordering::Release);
}

#[inline(always)]
fn receive<const N: usize>(ring: &mut Ring, sequence: u32) -> Result<(), Error> {
    let slot = &ring.rings.responses[sequence as usize & (ring.depth - 1)];
    let wanted = sequence.wrapping_add(1);
    ring.peer
        .spin(|| (slot.sequence.load(Ordering::Acquire) == wanted).then_some(()))?;
    slot.read::<N>(&mut ring.buffer);
    std::hint::black_box(&mut ring.buffer);
    Ok(())
}

fn stream<const N: usize>(ring: &mut Ring, calls: usize) -> Result<(), Error> {
    let mut behind = 0;
    for _ in 0..calls {
        if behind == ring.depth as u32 {
            receive::<N>(ring, ring.sequence.wrapping_sub(behind))?;
            behind -= 1;
        }
        send::<N>(ring, ring.sequence);
        ring.sequence = ring.sequence.wrapping_add(1);
        behind += 1;
    }
    (1..=behind)
        .rev()
        .try_for_each(|behind| receive::<N>(ring, ring.sequence.wrapping_sub(behind)))
}

fn one_by_one<const N: usize>(ring: &mut Ring, calls: usize, samples: &mut Samples) -> Result<(), Error> {
    timed(calls, samples, || {
        send::<N>(ring, ring.sequence);
        receive::<N>(ring, ring.sequence)?;
        ring.sequence = ring.sequence.wrapping_add(1);
        Ok(())
    })
}

impl Block for Ring {
    /// Makes calls one by one, whatever the depth.
    fn block(&mut self, calls: usize, samples: &mut Samples) -> Result<(), Error> {
        sized!(self.size, one_by_one(self, calls, samples))
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

impl Baseline for Ring {
    fn name(&self) -> &str {
        "c_ring"
    }
    fn about(&self) -> String {
        format!(
            "a bare ring of {} slots, {} B each way, a C function called through a pointer",
            self.depth, self.size
        )
    }
}
