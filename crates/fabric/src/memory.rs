//! Memory that two processes share, and the allocator over one side's bulk region.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// A shared mapping, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: a mapping is plain memory that any thread may touch; what is in it is accessed through atomics and raw copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `length` bytes of a file, shared, readable and writable.
    pub fn of(file: impl AsFd, length: usize) -> std::io::Result<Self> {
        // SAFETY: a fresh mapping at an address that the kernel chooses overlaps nothing.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                file,
                0,
            )?
        };
        Ok(Self {
            start: NonNull::new(start.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?,
            length,
        })
    }

    /// Maps fresh zeroed memory that no other process can reach, unless forked from this one.
    pub fn anonymous(length: usize) -> std::io::Result<Self> {
        // SAFETY: a fresh mapping at an address that the kernel chooses overlaps nothing.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
            )?
        };
        Ok(Self {
            start: NonNull::new(start.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?,
            length,
        })
    }

    /// Address of the byte at `offset`, which must lie inside.
    #[inline(always)]
    pub fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.length);
        // SAFETY: callers pass offsets inside the mapping (checked above in tests).
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// The word at `offset`, which must lie inside and be a multiple of 4.
    #[inline(always)]
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset + 4 <= self.length && offset.is_multiple_of(4));
        // SAFETY: inside, aligned, and any bit pattern is a u32; the mapping outlives the borrow.
        unsafe { &*self.at(offset).cast::<AtomicU32>() }
    }

    /// Bytes mapped.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Gives the pages of a range back to the kernel; they read as zero afterwards.
    fn punch(&self, offset: usize, length: usize) {
        // SAFETY: the range lies inside this mapping and holds nothing that is still used.
        let _ = unsafe { rustix::mm::madvise(self.at(offset).cast(), length, rustix::mm::Advice::LinuxRemove) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the whole of a mapping that we made, and nobody borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// Makes a memory file of a size that nobody can change afterwards, so that no access to it can fault.
pub fn sealed_memory(name: &str, length: u64) -> std::io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, length)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Checks that a received memory file has the announced size and can never shrink.
pub fn check_sealed(file: impl AsFd, length: u64) -> std::io::Result<()> {
    let seals = rustix::fs::fcntl_get_seals(&file)?;
    let found = File::from(file.as_fd().try_clone_to_owned()?).metadata()?.len();
    if !seals.contains(SealFlags::SHRINK) || found < length {
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            format!(
                "a shared memory file of {found} bytes, sealed {seals:?}, where {length} unshrinkable bytes were due"
            ),
        ));
    }
    Ok(())
}

/// Every block starts with a line of its own that holds its state; the payload follows.
pub const BLOCK_HEADER_BYTES: usize = 128;
const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// A block is never smaller: one page.
const SMALLEST_CLASS: u32 = 12;
/// Freed pages beyond this many bytes go back to the kernel. 64 MiB: a few large arguments stay warm (touching a fresh
/// page costs about 0.25 us, so 1 MiB of them as much as copying it).
const RETAINED_BYTES: usize = 64 << 20;

/// Hands out blocks of one side's bulk region. Sizes are powers of two: the region is address space, of which there is
/// plenty, and an untouched page costs nothing.
#[derive(Debug)]
pub struct Arena {
    memory: Arc<Mapping>,
    start: usize,
    length: usize,
    state: Mutex<ArenaState>,
}

#[derive(Debug)]
struct ArenaState {
    fresh: usize,
    retained: usize,
    /// Free blocks by class.
    free: [Vec<usize>; 64],
    /// Blocks that belong to the peer until it marks them free: offset and class.
    lent: Vec<(usize, u32)>,
}

impl Arena {
    /// An arena over `length` bytes at `start`.
    pub fn new(memory: Arc<Mapping>, start: usize, length: usize) -> Self {
        let free = std::array::from_fn(|_| Vec::new());
        let state = Mutex::new(ArenaState {
            fresh: 0,
            retained: 0,
            free,
            lent: Vec::new(),
        });
        Self {
            memory,
            start,
            length,
            state,
        }
    }

    /// A block with room for `length` bytes of payload; none when the region is used up.
    pub fn allocate(self: &Arc<Self>, length: usize) -> Option<Buffer> {
        let class = (length
            .checked_add(BLOCK_HEADER_BYTES)?
            .checked_next_power_of_two()?
            .trailing_zeros())
        .max(SMALLEST_CLASS);
        let mut state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !state.lent.is_empty() {
            self.reclaim(&mut state);
        }
        let offset = match state.free[class as usize].pop() {
            Some(offset) => {
                state.retained = state.retained.saturating_sub(1 << class);
                offset
            }
            None => {
                let offset = state.fresh;
                let end = offset.checked_add(1 << class)?;
                if end > self.length {
                    return None;
                }
                state.fresh = end;
                offset
            }
        };
        self.memory.word(self.start + offset).store(TAKEN, Ordering::Relaxed);
        Some(Buffer {
            store: Store::Arena {
                arena: self.clone(),
                offset,
                class,
            },
            length,
        })
    }

    fn reclaim(&self, state: &mut ArenaState) {
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

    fn put_back(&self, state: &mut ArenaState, offset: usize, class: u32) {
        let size = 1usize << class;
        if state.retained + size > RETAINED_BYTES {
            self.memory.punch(self.start + offset, size);
        }
        state.retained += size;
        state.free[class as usize].push(offset);
    }
}

#[derive(Debug)]
enum Store {
    Arena {
        arena: Arc<Arena>,
        offset: usize,
        class: u32,
    },
    Heap(Heap),
}

/// Memory that a link can send from, or receive into, without copying: a block of the shared region, or heap memory for
/// links that share none. Aligned to 128 bytes.
#[derive(Debug)]
pub struct Buffer {
    store: Store,
    length: usize,
}

impl Buffer {
    /// A buffer that no arena knows, for links without shared memory.
    pub fn heap(length: usize) -> Option<Self> {
        Some(Self {
            store: Store::Heap(Heap::new(length)?),
            length,
        })
    }

    /// Bytes in it.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Bytes that it could have.
    pub fn capacity(&self) -> usize {
        match &self.store {
            Store::Arena { class, .. } => (1usize << class) - BLOCK_HEADER_BYTES,
            Store::Heap(heap) => heap.length,
        }
    }

    /// Makes it shorter, or longer up to its capacity. Whether that was possible.
    pub fn resize(&mut self, length: usize) -> bool {
        let possible = length <= self.capacity();
        if possible {
            self.length = length;
        }
        possible
    }

    /// Its first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        match &self.store {
            Store::Arena { arena, offset, .. } => arena.memory.at(arena.start + offset + BLOCK_HEADER_BYTES),
            Store::Heap(heap) => heap.start.as_ptr(),
        }
    }

    /// Its content.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the block has at least `length` bytes, initialised (fresh pages are zero), and is ours until dropped.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.length) }
    }

    /// Its content, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is the only handle to the block.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.length) }
    }

    /// Offset of the payload in its side's bulk region, if it lies in `arena`'s.
    pub(crate) fn offset_in(&self, arena: &Arc<Arena>) -> Option<u64> {
        match &self.store {
            Store::Arena { arena: own, offset, .. } if Arc::ptr_eq(own, arena) => {
                Some((offset + BLOCK_HEADER_BYTES) as u64)
            }
            _ => None,
        }
    }

    /// Leaves the block to the peer, who marks it free when it has read it.
    pub(crate) fn lend(mut self) {
        if let Store::Arena { arena, offset, class } = std::mem::replace(&mut self.store, Store::Heap(Heap::empty())) {
            let mut state = arena.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            state.lent.push((offset, class));
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Store::Arena { arena, offset, class } = &self.store {
            let mut state = arena.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            arena.put_back(&mut state, *offset, *class);
        }
    }
}

/// A payload that arrived through bulk memory: the peer's block, given back when dropped, or a buffer of our own.
#[derive(Debug)]
pub enum Received {
    /// In the peer's region.
    Peer {
        /// Keeps the memory mapped.
        memory: Arc<Mapping>,
        /// Offset of the payload in the mapping.
        offset: usize,
        /// Bytes of payload.
        length: usize,
    },
    /// In our own memory.
    Own(Buffer),
}

impl Received {
    /// The payload.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            // SAFETY: offset and length were checked against the region when the message came, and the peer leaves the
            // block alone until it is marked free. A peer that does not changes only what its own client reads.
            Self::Peer { memory, offset, length } => unsafe { std::slice::from_raw_parts(memory.at(*offset), *length) },
            Self::Own(buffer) => buffer.as_slice(),
        }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if let Self::Peer { memory, offset, .. } = self {
            memory.word(*offset - BLOCK_HEADER_BYTES).store(FREE, Ordering::Release);
        }
    }
}

#[derive(Debug)]
struct Heap {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: an owned allocation.
unsafe impl Send for Heap {}
// SAFETY: an owned allocation, written only through `&mut Buffer`.
unsafe impl Sync for Heap {}

impl Heap {
    const fn empty() -> Self {
        Self {
            start: NonNull::dangling(),
            length: 0,
        }
    }

    fn new(length: usize) -> Option<Self> {
        if length == 0 {
            return Some(Self::empty());
        }
        let layout = std::alloc::Layout::from_size_align(length, 128).ok()?;
        // SAFETY: the layout is not of size zero. Zeroed, because a receiver may read past what came.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(Self { start, length })
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        if self.length > 0
            && let Ok(layout) = std::alloc::Layout::from_size_align(self.length, 128)
        {
            // SAFETY: allocated above with this very layout.
            unsafe { std::alloc::dealloc(self.start.as_ptr(), layout) }
        }
    }
}
