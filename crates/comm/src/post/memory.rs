//! Memory for received messages: aligned, and used again, because fresh pages cost as much as the copy into them.

use std::alloc::{Layout as Allocation, alloc, dealloc};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;

use super::layout::{ALIGNMENT, Layout};

/// Least size that is kept for use again, in bytes.
const MIN_KEPT_BYTES: usize = 64 << 10;

/// An aligned allocation. Its contents are undefined at first.
#[derive(Debug)]
struct Block {
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: an owned allocation.
unsafe impl Send for Block {}
// SAFETY: an owned allocation, written only by its one owner.
unsafe impl Sync for Block {}

impl Block {
    fn allocation(capacity: usize) -> Option<Allocation> {
        Allocation::from_size_align(capacity, ALIGNMENT as usize).ok()
    }

    /// `None` if the system is out of memory.
    fn new(capacity: usize) -> Option<Self> {
        let capacity = capacity.max(ALIGNMENT as usize);
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc(Self::allocation(capacity)?) })?;
        Some(Self { start, capacity })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(allocation) = Self::allocation(self.capacity) {
            // SAFETY: allocated above with this very layout.
            unsafe { dealloc(self.start.as_ptr(), allocation) }
        }
    }
}

#[derive(Debug, Default)]
struct Kept {
    blocks: BTreeMap<usize, Vec<Block>>,
    bytes: usize,
}

/// Blocks to use again.
#[derive(Debug)]
pub struct Pool {
    kept: Mutex<Kept>,
    /// Most bytes to keep.
    limit: usize,
}

impl Pool {
    pub fn new(limit: usize) -> Self {
        Self {
            kept: Mutex::default(),
            limit,
        }
    }

    /// Memory for a message of this layout; `None` if the system is out of memory.
    pub fn take(self: &Arc<Self>, layout: &Layout) -> Option<Memory> {
        let size = layout.size();
        let block = if size < MIN_KEPT_BYTES {
            Block::new(size)?
        } else {
            let capacity = class(size);
            let kept = {
                let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
                let block = kept.blocks.get_mut(&capacity).and_then(Vec::pop);
                kept.bytes -= block.as_ref().map_or(0, |block| block.capacity);
                block
            };
            match kept {
                Some(block) => block,
                None => Block::new(capacity)?,
            }
        };
        Some(Memory {
            block: Some(block),
            size,
            pool: Arc::downgrade(self),
        })
    }

    fn give(&self, block: Block) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.bytes + block.capacity <= self.limit {
            kept.bytes += block.capacity;
            kept.blocks.entry(block.capacity).or_default().push(block);
        }
    }
}

/// The capacity for a size: the next quarter between two powers of two.
fn class(size: usize) -> usize {
    let step = (size.next_power_of_two() / 8).max(ALIGNMENT as usize);
    size.next_multiple_of(step)
}

/// Memory of one message. Dropping it returns the memory to its pool.
#[derive(Debug)]
pub struct Memory {
    block: Option<Block>,
    size: usize,
    pool: Weak<Pool>,
}

impl Memory {
    /// Address of the first byte.
    pub fn start(&self) -> *mut u8 {
        self.block
            .as_ref()
            .map_or(std::ptr::null_mut(), |block| block.start.as_ptr())
    }

    /// Copies bytes to an offset. Both must lie inside.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.size && bytes.len() <= self.size - offset);
        // SAFETY: checked above; the memory is owned, so the bytes are elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start().add(offset), bytes.len()) };
    }

    /// Zeroes what no part of the layout covers.
    pub fn zero_gaps(&mut self, layout: &Layout) {
        const ZEROES: [u8; ALIGNMENT as usize] = [0; ALIGNMENT as usize];
        for (offset, length) in layout.offsets() {
            let gap = length.next_multiple_of(ALIGNMENT) - length;
            self.write((offset + length) as usize, &ZEROES[..gap as usize]);
        }
    }

    /// The parts of a message whose bytes are all written, gaps too. They share this memory.
    pub fn into_parts(self, layout: &Layout) -> Vec<Bytes> {
        let all = Bytes::from_owner(self);
        let places = layout.offsets().iter();
        places
            .map(|(offset, length)| all.slice(*offset as usize..(offset + length) as usize))
            .collect()
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `into_parts` makes it visible only when all of it was written. An empty range at an aligned address
        // is valid too.
        unsafe { std::slice::from_raw_parts(self.start(), self.size) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(block) = self.block.take()
            && block.capacity >= MIN_KEPT_BYTES
            && let Some(pool) = self.pool.upgrade()
        {
            pool.give(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(pool: &Arc<Pool>, lengths: &[u64]) -> Vec<Bytes> {
        let layout = Layout::of(lengths.iter().copied(), u64::MAX).unwrap();
        let mut memory = pool.take(&layout).unwrap();
        memory.zero_gaps(&layout);
        for (at, (offset, length)) in layout.offsets().iter().enumerate() {
            memory.write(*offset as usize, &vec![at as u8; *length as usize]);
        }
        memory.into_parts(&layout)
    }

    #[test]
    fn parts_are_aligned_even_if_empty() {
        let pool = Arc::new(Pool::new(1 << 20));
        for lengths in [&[0, 5, 0, 64, 100_000][..], &[0], &[]] {
            let parts = filled(&pool, lengths);
            assert_eq!(parts.len(), lengths.len());
            for (at, part) in parts.iter().enumerate() {
                assert_eq!(part.as_ptr() as usize % ALIGNMENT as usize, 0);
                assert!(part.iter().all(|byte| *byte == at as u8));
            }
        }
    }

    #[test]
    fn memory_is_used_again_within_the_limit() {
        let pool = Arc::new(Pool::new(300_000));
        let one = filled(&pool, &[100_000]);
        let address = one[0].as_ptr();
        drop(one);
        let again = filled(&pool, &[95_000, 5_000]);
        assert_eq!(again[1].as_ptr(), address);
        let more: Vec<_> = (0..9).map(|_| filled(&pool, &[100_000])).collect();
        drop((again, more));
        let kept = pool.kept.lock().unwrap();
        assert!(kept.bytes <= 300_000 && kept.bytes > 0);
    }

    #[test]
    fn kept_memory_outlives_its_pool() {
        let pool = Arc::new(Pool::new(1 << 20));
        let parts = filled(&pool, &[100_000]);
        drop(pool);
        assert_eq!(parts[0].len(), 100_000);
    }
}
