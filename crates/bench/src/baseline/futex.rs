//! Two processes that wake each other over shared memory.

use super::cache_line::Slot;
use super::peer::{Peer, Shared, futex_wait, futex_wake};
use super::{Baseline, CacheLine};
use crate::alternate::Block;
use crate::error::Error;
use crate::stats::{Samples, timed};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

#[repr(C)]
struct Words {
    request: Slot,
    response: Slot,
}

/// A blocking round trip over shared memory: each side writes, wakes the other by a futex, and sleeps on its own futex.
pub struct Futex {
    peer: Peer,
    words: Shared<Words>,
    size: usize,
    sequence: u32,
    buffer: [u8; CacheLine::LARGEST],
}

impl Futex {
    /// Makes one with up to 112 bytes of payload each way.
    pub fn new(size: usize) -> Result<Self, Error> {
        // SAFETY: atomics, integers and bytes are valid when zero.
        let words = unsafe { Shared::<Words>::zeroed()? };
        let peer = Peer::fork("futex", |_| {
            let mut sequence = 0u32;
            let mut buffer = [0; CacheLine::LARGEST];
            loop {
                let last = sequence;
                sequence = sequence.wrapping_add(1);
                while words.request.sequence.load(Ordering::Acquire) != sequence {
                    futex_wait(&words.request.sequence, last, None);
                }
                words.request.read::<{ CacheLine::LARGEST }>(&mut buffer);
                words.response.write::<{ CacheLine::LARGEST }>(&buffer);
                words.response.sequence.store(sequence, Ordering::Release);
                futex_wake(&words.response.sequence);
            }
        })?;
        let size = size.min(CacheLine::LARGEST);
        Ok(Futex {
            peer,
            words,
            size,
            sequence: 0,
            buffer: [7; CacheLine::LARGEST],
        })
    }

    fn call(&mut self) -> Result<(), Error> {
        let last = self.sequence;
        self.sequence = last.wrapping_add(1);
        let words = &*self.words;
        words.request.write::<{ CacheLine::LARGEST }>(&self.buffer);
        words.request.sequence.store(self.sequence, Ordering::Release);
        futex_wake(&words.request.sequence);
        let mut since = None;
        while words.response.sequence.load(Ordering::Acquire) != self.sequence {
            if let Some(since) = since {
                self.peer.check(since)?;
            }
            let now = since.is_none().then(Instant::now);
            futex_wait(&words.response.sequence, last, Some(Duration::from_millis(100)));
            since = since.or(now);
        }
        words.response.read::<{ CacheLine::LARGEST }>(&mut self.buffer);
        Ok(())
    }
}

impl Block for Futex {
    fn block(&mut self, calls: usize, samples: &mut Samples) -> Result<(), Error> {
        timed(calls, samples, || self.call())
    }
}

impl Baseline for Futex {
    fn name(&self) -> &str {
        "futex"
    }
    fn about(&self) -> String {
        format!(
            "a blocking round trip over shared memory with futexes, {} B each way",
            self.size
        )
    }
}
