//! One slot of a channel's ring: what one message looks like in shared memory and as a TCP frame.
//!
//! A slot is 128-byte aligned. Its first 16 bytes are the [`Header`]; its payload follows. A message of up to
//! [`ONE_LINE`] bytes therefore moves in one 64-byte cache line, one of up to [`TWO_LINES`] bytes in two. The sequence
//! word is written last, with release; the receiver loads it with acquire and copies the header once before it
//! checks anything, because the other side may change the memory at any moment.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Alignment of every slot: two 64-byte lines, because adjacent lines are prefetched in pairs on x86-64.
pub const SLOT_ALIGN: usize = 128;
/// Bytes of [`Header`] before the payload.
pub const HEADER_BYTES: usize = 16;
/// Largest payload that shares the header's cache line.
pub const ONE_LINE: usize = 64 - HEADER_BYTES;
/// Largest payload of the smallest slot.
pub const TWO_LINES: usize = SLOT_ALIGN - HEADER_BYTES;
/// Rings are never deeper. 1,024 slots of 4 KiB are 4 MiB, past every L2 cache.
pub const MAX_SLOTS: u16 = 1024;
/// Slots are never larger: past it, a payload is better off in place in a bulk region.
pub const MAX_STRIDE_BYTES: u32 = 1 << 20;

/// The first 16 bytes of a slot, and of a TCP frame. Little-endian, as every machine that Dayfly runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(16))]
pub struct Header {
    /// Number of the message, from 1, wrapping. Message `n` lies in slot `n % slots`.
    pub sequence: u32,
    /// In a request the [`crate::ids::FunctionIndex`]; in a response the [`Status`].
    pub function: u16,
    /// Union of [`flags`].
    pub flags: u16,
    /// Bytes of inline payload (the descriptor not counted).
    pub length: u32,
    /// In a request the milliseconds that execution may take, 0 for no limit; in a response 0.
    pub deadline_ms: u32,
}

/// Whether a receiver that began the message `last` last has begun this one: numbers wrap.
pub fn has_begun(last: u32, sequence: u32) -> bool {
    last.wrapping_sub(sequence) < u32::MAX / 2
}

/// Bits of [`Header::flags`].
pub mod flags {
    /// A [`super::Descriptor`] precedes the inline payload, and the payload proper lies in a bulk region.
    pub const BULK: u16 = 1;
    /// A [`super::Descriptor`] precedes the inline payload and names room for the reply in the caller's memory.
    pub const ROOM: u16 = 2;
    /// The reply was written into the room that its request named.
    pub const IN_ROOM: u16 = 4;
    /// In a response: the worker still uses the request's bulk block and will mark it free itself.
    pub const RETAINED: u16 = 8;
    /// In a request: a warm worker that finds no core free may answer [`super::Status::Rejected`] instead of running it.
    pub const REJECTABLE: u16 = 16;
    /// Every flag that this version knows; a message with another is malformed.
    pub const KNOWN: u16 = BULK | ROOM | IN_ROOM | RETAINED | REJECTABLE;
    /// The flags under which a [`super::Descriptor`] precedes the inline payload.
    pub const DESCRIBED: u16 = BULK | ROOM | IN_ROOM;
}

/// Where a bulk payload lies, and where the reply may be written. Offsets count from the start of the sender's bulk
/// region; over a byte stream they are meaningless and only the lengths count (the payload follows the header).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Descriptor {
    /// Offset of the payload in the sender's region.
    pub offset: u64,
    /// Length of the payload in bytes.
    pub length: u64,
    /// Offset of the reply's room in the caller's region.
    pub room_offset: u64,
    /// Bytes of the reply's room; how large an output the caller expects.
    pub room_length: u64,
}

/// Bytes of a [`Descriptor`].
pub const DESCRIPTOR_BYTES: usize = 32;

/// How an invocation ended, as the worker tells it. Anything but [`Status::Ok`] carries a text as its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Status {
    /// The payload is the function's output.
    Ok = 0,
    /// The function reported an error of its own; the payload is its text.
    FunctionError = 1,
    /// A Python callable raised; the payload is the pickled exception with its traceback.
    PythonException = 2,
    /// The function index was never resolved on this channel.
    UnknownFunction = 3,
    /// The function claimed or wrote more output than it had room for.
    OutputOverflow = 4,
    /// The request's header or descriptor contradicts the channel's geometry.
    MalformedRequest = 5,
    /// The code could not be loaded: not present, not a library, no such symbol, wrong Python.
    LoadFailed = 6,
    /// The worker could not run just now; the invocation was not started and may go elsewhere.
    Rejected = 7,
    /// The output did not fit into the lease's memory for outputs.
    OutOfMemory = 8,
    /// The invocation named a worker incarnation that is gone, and its state with it.
    StateLost = 9,
    /// The caller cancelled the invocation before it began.
    Cancelled = 10,
}

impl Status {
    /// The status with this wire number, if this version knows it.
    pub fn from_wire(number: u16) -> Option<Self> {
        Some(match number {
            0 => Self::Ok,
            1 => Self::FunctionError,
            2 => Self::PythonException,
            3 => Self::UnknownFunction,
            4 => Self::OutputOverflow,
            5 => Self::MalformedRequest,
            6 => Self::LoadFailed,
            7 => Self::Rejected,
            8 => Self::OutOfMemory,
            9 => Self::StateLost,
            10 => Self::Cancelled,
            _ => return None,
        })
    }
}

/// Size of a channel: both rings have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Slots in each ring; a power of two up to [`MAX_SLOTS`].
    pub slots: u16,
    /// Bytes from one slot to the next; a multiple of [`SLOT_ALIGN`] up to [`MAX_STRIDE_BYTES`].
    pub stride_bytes: u32,
    /// Bytes of each side's bulk region; a multiple of 4,096. Address space, not memory: pages exist once touched.
    pub bulk_bytes: u64,
}

/// A geometry that no channel can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// Number of slots.
    #[error("{0} slots: ask for a power of two from 1 to {MAX_SLOTS}")]
    Slots(u16),
    /// Stride.
    #[error("a stride of {0} bytes: ask for a multiple of {SLOT_ALIGN} from {SLOT_ALIGN} to {MAX_STRIDE_BYTES}")]
    Stride(u32),
    /// Bulk region.
    #[error("a bulk region of {0} bytes: ask for a multiple of 4096 up to {MAX_BULK_BYTES}")]
    Bulk(u64),
}

/// No bulk region is larger: 64 GiB of address space, of which a process has 128 TiB.
pub const MAX_BULK_BYTES: u64 = 64 << 30;

impl Geometry {
    /// What a lease gets when it does not say: 64 slots of 1 KiB, so that a ring stays inside the L2 cache, and 8 GiB
    /// of address space for bulk payloads each way.
    pub const DEFAULT: Self = Self {
        slots: 64,
        stride_bytes: 1024,
        bulk_bytes: 8 << 30,
    };

    /// Checks the limits of every field.
    pub fn check(self) -> Result<Self, GeometryError> {
        if self.slots == 0 || self.slots > MAX_SLOTS || !self.slots.is_power_of_two() {
            return Err(GeometryError::Slots(self.slots));
        }
        if self.stride_bytes < SLOT_ALIGN as u32
            || self.stride_bytes > MAX_STRIDE_BYTES
            || !self.stride_bytes.is_multiple_of(SLOT_ALIGN as u32)
        {
            return Err(GeometryError::Stride(self.stride_bytes));
        }
        if self.bulk_bytes > MAX_BULK_BYTES || !self.bulk_bytes.is_multiple_of(4096) {
            return Err(GeometryError::Bulk(self.bulk_bytes));
        }
        Ok(self)
    }

    /// Largest payload that travels inside a slot.
    pub fn inline_bytes(self) -> usize {
        self.stride_bytes as usize - HEADER_BYTES
    }

    /// Bytes of one ring.
    pub fn ring_bytes(self) -> usize {
        self.slots as usize * self.stride_bytes as usize
    }
}
