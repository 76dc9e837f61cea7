//! Blocks of one side's bulk region.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::memory::{Buffer, Mapping};

/// Bytes before a block's payload. This separate cache line contains the block's state.
pub const BLOCK_HEADER_BYTES: usize = 128;
/// State of a block that the peer has released.
pub const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Smallest block, as a power of two: one page.
const SMALLEST_CLASS: u32 = 12;
/// Most bytes of free blocks whose pages are kept. Further pages go back to the kernel. With 64 MiB, a few large
/// arguments stay warm: touching a fresh page takes about 0.25 us, so 1 MiB of them as long as copying it.
const RETAINED_BYTES: usize = 64 << 20;

/// Allocates blocks of one side's bulk region. Sizes are powers of two: the region is address space, which is
/// plentiful, and an untouched page costs nothing.
#[derive(Debug)]
pub struct Arena {
    memory: Arc<Mapping>,
    start: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    blocks: Blocks,
    /// Bytes of free blocks.
    retained: usize,
    /// Blocks that belong to the peer until it marks them free: offset and class.
    lent: Vec<(usize, u32)>,
    /// If watched, blocks whose pages went back to the kernel since the last call of [`Arena::take_invalidated`].
    invalidated: Option<Vec<usize>>,
}

impl Arena {
    /// Returns an arena over `length` bytes at `start`.
    pub fn new(memory: Arc<Mapping>, start: usize, length: usize) -> Self {
        let state = Mutex::new(State {
            blocks: Blocks::new(length),
            retained: 0,
            lent: Vec::new(),
            invalidated: None,
        });
        Self { memory, start, state }
    }

    /// Like [`Arena::new`], for a caller that keeps data for each block and polls [`Arena::take_invalidated`].
    pub fn watched(memory: Arc<Mapping>, start: usize, length: usize) -> Self {
        let arena = Self::new(memory, start, length);
        arena.state().invalidated = Some(Vec::new());
        arena
    }

    /// Returns the blocks that lost their pages or were divided again since the last call.
    pub fn take_invalidated(&self) -> Vec<usize> {
        self.state()
            .invalidated
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns a block with `length` bytes of payload, or `None` when the region is exhausted.
    pub fn allocate(self: &Arc<Self>, length: usize) -> Option<Buffer> {
        let class = (length
            .checked_add(BLOCK_HEADER_BYTES)?
            .checked_next_power_of_two()?
            .trailing_zeros())
        .max(SMALLEST_CLASS);
        let mut state = self.state();
        if !state.lent.is_empty() {
            self.reclaim(&mut state);
        }
        let offset = match state.blocks.free[class as usize].pop() {
            Some(offset) => {
                state.retained = state.retained.saturating_sub(1 << class);
                offset
            }
            None => match state.blocks.carve(class) {
                Some(offset) => offset,
                None => self.merge_and_carve(&mut state, class)?,
            },
        };
        self.memory.word(self.start + offset).store(TAKEN, Ordering::Relaxed);
        Some(Buffer::in_arena(self.clone(), offset, class, length))
    }

    /// The region is fragmented: merges free blocks of all sizes and carves a new one.
    fn merge_and_carve(&self, state: &mut State, class: u32) -> Option<usize> {
        for (offset, class) in state.blocks.free_blocks() {
            self.memory.punch(self.start + offset, 1 << class);
            state
                .invalidated
                .iter_mut()
                .for_each(|invalidated| invalidated.push(offset));
        }
        state.retained = 0;
        state.blocks.merge();
        state.blocks.carve(class)
    }

    fn reclaim(&self, state: &mut State) {
        let mut index = 0;
        while index < state.lent.len() {
            let (offset, class) = state.lent[index];
            if self.memory.word(self.start + offset).load(Ordering::Acquire) == FREE {
                state.lent.swap_remove(index);
                self.put_back(state, offset, class);
            } else {
                index += 1;
            }
        }
    }

    fn put_back(&self, state: &mut State, offset: usize, class: u32) {
        let size = 1usize << class;
        if state.retained + size > RETAINED_BYTES {
            self.memory.punch(self.start + offset, size);
            state
                .invalidated
                .iter_mut()
                .for_each(|invalidated| invalidated.push(offset));
        }
        state.retained += size;
        state.blocks.free[class as usize].push(offset);
    }

    /// Frees a block that this side owns.
    pub(crate) fn release(&self, offset: usize, class: u32) {
        self.put_back(&mut self.state(), offset, class);
    }

    /// Leaves a block to the peer, which marks it free after reading it.
    pub(crate) fn lend(&self, offset: usize, class: u32) {
        self.state().lent.push((offset, class));
    }

    /// Returns the address of a block's payload.
    pub(crate) fn payload(&self, offset: usize) -> *mut u8 {
        self.memory.at(self.start + offset + BLOCK_HEADER_BYTES)
    }
}

/// Division of a region into blocks, without the memory itself.
#[derive(Debug)]
struct Blocks {
    length: usize,
    /// Start of the space that has never been carved, or that has been merged again.
    fresh: usize,
    /// Free blocks by class.
    free: [Vec<usize>; 64],
    /// Free space that is not a block: offset and length.
    holes: Vec<(usize, usize)>,
}

impl Blocks {
    fn new(length: usize) -> Self {
        Self {
            length,
            fresh: 0,
            free: std::array::from_fn(|_| Vec::new()),
            holes: Vec::new(),
        }
    }

    fn free_blocks(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let of = |(class, offsets): (usize, &'_ Vec<usize>)| (class as u32, offsets.clone());
        self.free
            .iter()
            .enumerate()
            .map(of)
            .flat_map(|(class, offsets)| offsets.into_iter().map(move |offset| (offset, class)))
    }

    /// Carves a block out of fresh space, or out of the smallest hole that fits.
    fn carve(&mut self, class: u32) -> Option<usize> {
        let size = 1usize.checked_shl(class)?;
        let end = self.fresh.checked_add(size)?;
        if end <= self.length {
            let offset = self.fresh;
            self.fresh = end;
            return Some(offset);
        }
        let fits = self.holes.iter_mut().filter(|(_, length)| *length >= size);
        let (offset, length) = fits.min_by_key(|(_, length)| *length)?;
        let carved = *offset;
        *offset += size;
        *length -= size;
        self.holes.retain(|(_, length)| *length > 0);
        Some(carved)
    }

    /// Turns all free blocks into holes and merges adjacent ones. A hole at the end becomes fresh space.
    fn merge(&mut self) {
        let mut space: Vec<(usize, usize)> = self
            .free_blocks()
            .map(|(offset, class)| (offset, 1usize << class))
            .collect();
        self.free.iter_mut().for_each(Vec::clear);
        space.append(&mut self.holes);
        space.sort_unstable();
        for (offset, length) in space {
            match self.holes.last_mut() {
                Some((before, its)) if *before + *its == offset => *its += length,
                _ => self.holes.push((offset, length)),
            }
        }
        if let Some((offset, length)) = self.holes.last().copied()
            && offset + length == self.fresh
        {
            self.fresh = offset;
            self.holes.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REGION: usize = 1 << 22;

    #[derive(Debug, Clone)]
    enum Step {
        Take(u32),
        Put(prop::sample::Index),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (SMALLEST_CLASS..=22).prop_map(Step::Take),
            any::<prop::sample::Index>().prop_map(Step::Put)
        ];
        prop::collection::vec(step, 0..200)
    }

    fn take(blocks: &mut Blocks, class: u32) -> Option<usize> {
        blocks.free[class as usize]
            .pop()
            .or_else(|| blocks.carve(class))
            .or_else(|| {
                blocks.merge();
                blocks.carve(class)
            })
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_and_free_space_returns(steps in steps()) {
            let mut blocks = Blocks::new(REGION);
            let mut taken: Vec<(usize, u32)> = Vec::new();
            for step in steps {
                match step {
                    Step::Take(class) => {
                        let used: usize = taken.iter().map(|(_, class)| 1usize << class).sum();
                        match take(&mut blocks, class) {
                            Some(offset) => {
                                let (start, end) = (offset, offset + (1 << class));
                                prop_assert!(end <= REGION && start % 4096 == 0);
                                let apart = |(at, its): &(usize, u32)| end <= *at || at + (1usize << its) <= start;
                                prop_assert!(taken.iter().all(apart), "{start}..{end} beside {taken:?}");
                                taken.push((offset, class));
                            }
                            None => prop_assert!(used > 0, "an empty region has room for {class}"),
                        }
                    }
                    Step::Put(index) if !taken.is_empty() => {
                        let (offset, class) = taken.swap_remove(index.index(taken.len()));
                        blocks.free[class as usize].push(offset);
                    }
                    Step::Put(_) => {}
                }
            }
            for (offset, class) in taken {
                blocks.free[class as usize].push(offset);
            }
            prop_assert_eq!(take(&mut blocks, 22), Some(0));
        }
    }

    #[test]
    fn freed_small_blocks_merge_for_a_large_one() {
        let file = crate::memory::sealed_memory("arena-test", REGION as u64).unwrap();
        let memory = Arc::new(Mapping::of(&file, REGION).unwrap());
        let arena = Arc::new(Arena::new(memory, 0, REGION));
        let mut small: Vec<Buffer> = std::iter::from_fn(|| arena.allocate(1000)).collect();
        assert_eq!(small.len(), REGION / 4096);
        assert!(arena.allocate(1).is_none());
        small[7].as_mut_slice().fill(7);
        let kept = small.swap_remove(7);
        drop(small);
        let mut large = arena.allocate(REGION / 2 - BLOCK_HEADER_BYTES).unwrap();
        large.as_mut_slice().fill(9);
        assert!(kept.as_slice().iter().all(|byte| *byte == 7));
        drop((kept, large));
        assert!(arena.allocate(REGION - BLOCK_HEADER_BYTES).is_some());
    }
}
