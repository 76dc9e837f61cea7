//! Memory that two processes share, and buffers in it.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::arena::{Arena, BLOCK_HEADER_BYTES, FREE};

/// A shared mapping, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: a mapping is plain memory that any thread may touch; what is in it is accessed through atomics and raw
// copies.
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

    /// Maps zeroed memory that no other process can access, except children forked from this one.
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

    /// Returns the address of the byte at `offset`, which must lie inside.
    #[inline(always)]
    pub fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.length);
        // SAFETY: callers pass offsets inside the mapping (checked above in tests).
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// Returns the word at `offset`, which must lie inside and be a multiple of 4.
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

    /// Returns the pages of a range to the kernel. They read as zero afterwards.
    pub(crate) fn punch(&self, offset: usize, length: usize) {
        // SAFETY: the range lies inside this mapping and holds nothing that is still used.
        let _ = unsafe { rustix::mm::madvise(self.at(offset).cast(), length, rustix::mm::Advice::LinuxRemove) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is a complete mapping that we made, and no borrows of it remain.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// Creates a memory file whose size cannot change, so that no access to it can fault.
pub fn sealed_memory(name: &str, length: u64) -> std::io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, length)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Checks that a received memory file has at least the announced size and can never shrink.
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

#[derive(Debug)]
enum Store {
    Arena {
        arena: Arc<Arena>,
        offset: usize,
        class: u32,
    },
    Heap(Heap),
}

/// Memory that a link can send from or receive into without a copy: a block of the shared region, or heap memory for
/// links without shared memory. Aligned to 128 bytes.
#[derive(Debug)]
pub struct Buffer {
    store: Store,
    length: usize,
}

impl Buffer {
    /// Returns a heap buffer of zeros for links without shared memory, or `None` without memory.
    pub fn heap(length: usize) -> Option<Self> {
        Some(Self {
            store: Store::Heap(Heap::new(length)?),
            length,
        })
    }

    pub(crate) fn in_arena(arena: Arc<Arena>, offset: usize, class: u32, length: usize) -> Self {
        let store = Store::Arena { arena, offset, class };
        Self { store, length }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Largest possible length in bytes.
    pub fn capacity(&self) -> usize {
        match &self.store {
            Store::Arena { class, .. } => (1usize << class) - BLOCK_HEADER_BYTES,
            Store::Heap(heap) => heap.length,
        }
    }

    /// Changes the length, up to the capacity. Returns whether that was possible.
    pub fn resize(&mut self, length: usize) -> bool {
        let possible = length <= self.capacity();
        if possible {
            self.length = length;
        }
        possible
    }

    /// Address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        match &self.store {
            Store::Arena { arena, offset, .. } => arena.payload(*offset),
            Store::Heap(heap) => heap.start.as_ptr(),
        }
    }

    /// The content.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the block has at least `length` bytes, initialised (fresh pages are zero), and is ours until dropped.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.length) }
    }

    /// The content, mutable.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is the only handle to the block.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.length) }
    }

    /// Returns the offset of the payload in the bulk region if the buffer belongs to `arena`.
    pub(crate) fn offset_in(&self, arena: &Arc<Arena>) -> Option<u64> {
        match &self.store {
            Store::Arena { arena: own, offset, .. } if Arc::ptr_eq(own, arena) => {
                Some((offset + BLOCK_HEADER_BYTES) as u64)
            }
            _ => None,
        }
    }

    /// Leaves the block to the peer, which marks it free after reading it.
    pub(crate) fn lend(mut self) {
        if let Store::Arena { arena, offset, class } = std::mem::replace(&mut self.store, Store::Heap(Heap::empty())) {
            arena.lend(offset, class);
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Store::Arena { arena, offset, class } = &self.store {
            arena.release(*offset, *class);
        }
    }
}

/// A payload that arrived through bulk memory: the peer's block, released when dropped, or our own buffer.
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
