//! Where the slots and data of two ranks lie in their shared memory.

pub const SLOT_BYTES: usize = 256;
pub const SLOTS: u32 = 128;
pub const DATA_BYTES: usize = 256 << 10;

/// Offsets within one direction's part of the memory.
pub mod at {
    /// Slots and data that the receiver has finished with.
    pub const DONE: usize = 0;
    /// Whether the receiver sleeps.
    pub const ASLEEP: usize = 128;
    /// Boards on which pieces of large messages are claimed.
    pub const BOARDS: usize = 512;
    pub const SLOTS: usize = 4096;
    pub const DATA: usize = SLOTS + super::SLOTS as usize * super::SLOT_BYTES;
    pub const END: usize = DATA + super::DATA_BYTES;
}

/// Bytes of memory that a pair shares.
pub const MEMORY_BYTES: usize = 2 * at::END;

#[derive(Debug)]
pub struct Ring {
    pub base: usize,
    /// Number of the next slot; the first is 1.
    pub next: u32,
    /// Bytes of the data ring used so far.
    pub data: u32,
    /// The receiver's counts, as the sender read them last.
    pub seen: u32,
    pub seen_data: u32,
    /// Receiver only: the counts that it stored last. It stores them rarely, since each store costs the sender a cache
    /// miss.
    pub told: u32,
    pub told_data: u32,
}

impl Ring {
    pub fn new(base: usize) -> Self {
        Self {
            base,
            next: 1,
            data: 0,
            seen: 0,
            seen_data: 0,
            told: 0,
            told_data: 0,
        }
    }

    pub fn slot(&self) -> usize {
        self.base + at::SLOTS + (self.next % SLOTS) as usize * SLOT_BYTES
    }

    /// Start of the next message of `length` bytes in the data ring, and its end.
    pub fn place(&self, length: usize) -> (u32, u32) {
        let within = self.data as usize % DATA_BYTES;
        let start = match within + length > DATA_BYTES {
            true => self.data.wrapping_add((DATA_BYTES - within) as u32),
            false => self.data,
        };
        (start, start.wrapping_add(length.next_multiple_of(64) as u32))
    }

    pub fn data_at(&self, position: u32) -> usize {
        self.base + at::DATA + position as usize % DATA_BYTES
    }
}
