//! One slot of a channel's ring: the layout of a message in shared memory and as a TCP frame.
//!
//! A slot is 128-byte aligned. Its first 16 bytes are the [`Header`]; its payload follows. A message of up to
//! [`ONE_LINE`] bytes therefore moves in one 64-byte cache line, and one of up to [`TWO_LINES`] bytes in two. The
//! sender writes the sequence word last, with release ordering. The receiver loads it with acquire ordering and copies
//! the header once before it checks anything, because the other side may change the memory at any moment.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Alignment of every slot: two 64-byte lines, because adjacent lines are prefetched in pairs on x86-64.
pub const SLOT_ALIGN: usize = 128;
/// Bytes of [`Header`] before the payload.
pub const HEADER_BYTES: usize = 16;
/// Largest payload that shares the header's cache line.
pub const ONE_LINE: usize = 64 - HEADER_BYTES;
/// Largest payload of the smallest slot.
pub const TWO_LINES: usize = SLOT_ALIGN - HEADER_BYTES;
/// Most slots in a ring. 1,024 slots of 4 KiB are 4 MiB, which exceeds every L2 cache.
pub const MAX_SLOTS: u16 = 1024;
/// Most bytes of a slot. A larger payload belongs in a bulk region.
pub const MAX_STRIDE_BYTES: u32 = 1 << 20;

/// The first 16 bytes of a slot and of a TCP frame. Little-endian, like every machine that Dayfly supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(16))]
pub struct Header {
    /// Number of the message: starts at 1 and wraps. Message `n` lies in slot `n % slots`.
    pub sequence: u32,
    /// In a request the [`crate::ids::FunctionIndex`], in a response the [`Status`].
    pub function: u16,
    /// Bit set of [`flags`].
    pub flags: u16,
    /// Bytes of inline payload, without the descriptor.
    pub length: u32,
    /// In a request the execution's time limit in milliseconds, 0 for no limit. In a response 0.
    pub deadline_ms: u32,
}

/// Whether message `sequence` has begun at a receiver whose last begun message is `last`. Compares modulo 2^32, because
/// sequence numbers wrap.
pub fn has_begun(last: u32, sequence: u32) -> bool {
    last.wrapping_sub(sequence) < u32::MAX / 2
}

/// Bits of [`Header::flags`].
pub mod flags {
    /// A [`super::Descriptor`] precedes the inline payload, and the actual payload lies in a bulk region.
    pub const BULK: u16 = 1;
    /// A [`super::Descriptor`] precedes the inline payload and names room for the reply in the caller's memory.
    pub const ROOM: u16 = 2;
    /// The reply lies in the room that its request named.
    pub const IN_ROOM: u16 = 4;
    /// In a response: the worker still uses the request's bulk block and will mark it free itself.
    pub const RETAINED: u16 = 8;
    /// In a request: a warm worker that finds no free core may respond with [`super::Status::Rejected`] instead of
    /// running it.
    pub const REJECTABLE: u16 = 16;
    /// All flags of this version. A message with any other flag is malformed.
    pub const KNOWN: u16 = BULK | ROOM | IN_ROOM | RETAINED | REJECTABLE;
    /// The flags that imply a [`super::Descriptor`] before the inline payload.
    pub const DESCRIBED: u16 = BULK | ROOM | IN_ROOM;
}

/// Where a bulk payload lies, and where the reply may be written. Offsets count from the start of the sender's bulk
/// region. Over a byte stream the offsets have no meaning, only the lengths do, and the payload follows the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Descriptor {
    /// Offset of the payload in the sender's region.
    pub offset: u64,
    /// Length of the payload in bytes.
    pub length: u64,
    /// Offset of the room for the reply in the caller's region.
    pub room_offset: u64,
    /// Bytes of room for the reply: the largest output that the caller expects.
    pub room_length: u64,
}

pub const DESCRIPTOR_BYTES: usize = 32;

/// How an invocation ended, as reported by the worker. The payload of every status except [`Status::Ok`] is a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Status {
    /// The payload is the function's output.
    Ok = 0,
    /// The function reported an error; the payload is its text.
    FunctionError = 1,
    /// A Python callable raised; the payload is the pickled exception with its traceback.
    PythonException = 2,
    /// The function index was never resolved on this channel.
    UnknownFunction = 3,
    /// The function claimed or wrote more output than fits into its room.
    OutputOverflow = 4,
    /// The request's header or descriptor contradicts the channel's geometry.
    MalformedRequest = 5,
    /// The code could not be loaded: it is not present, is not a library, or lacks the symbol.
    LoadFailed = 6,
    /// The worker could not run at the moment. The invocation was not started and may be sent elsewhere.
    Rejected = 7,
    /// The output did not fit into the lease's memory for outputs.
    OutOfMemory = 8,
    /// The invocation named a worker incarnation that has ended, so its state is lost.
    StateLost = 9,
    /// The caller cancelled the invocation before it began.
    Cancelled = 10,
    /// The function was pickled by another version of Python or of cloudpickle than the worker's.
    PythonMismatch = 11,
}

impl Status {
    /// Returns the status with this wire number, or `None` if this version does not know it.
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
            11 => Self::PythonMismatch,
            _ => return None,
        })
    }
}

/// Size of a channel. Both of its rings have the same size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Slots in each ring: a power of two up to [`MAX_SLOTS`].
    pub slots: u16,
    /// Bytes from one slot to the next: a multiple of [`SLOT_ALIGN`] up to [`MAX_STRIDE_BYTES`].
    pub stride_bytes: u32,
    /// Bytes of each side's bulk region: a multiple of 4,096. This reserves address space; pages use memory once
    /// touched.
    pub bulk_bytes: u64,
}

/// A [`Geometry`] field is out of bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The number of slots is not a power of two from 1 to [`MAX_SLOTS`].
    #[error("{0} slots: ask for a power of two from 1 to {MAX_SLOTS}")]
    Slots(u16),
    /// The stride is not a multiple of [`SLOT_ALIGN`] up to [`MAX_STRIDE_BYTES`].
    #[error("a stride of {0} bytes: ask for a multiple of {SLOT_ALIGN} from {SLOT_ALIGN} to {MAX_STRIDE_BYTES}")]
    Stride(u32),
    /// The size of the bulk region is not a multiple of 4,096 up to [`MAX_BULK_BYTES`].
    #[error("a bulk region of {0} bytes: ask for a multiple of 4096 up to {MAX_BULK_BYTES}")]
    Bulk(u64),
}

/// Most bytes of a bulk region: 64 GiB of address space. A process has 128 TiB.
pub const MAX_BULK_BYTES: u64 = 64 << 30;

impl Geometry {
    /// Default geometry of a lease: 64 slots of 1 KiB, so that a ring stays in the L2 cache, and 8 GiB of address space
    /// for bulk payloads in each direction.
    pub const DEFAULT: Self = Self {
        slots: 64,
        stride_bytes: 1024,
        bulk_bytes: 8 << 30,
    };

    /// Returns the geometry unchanged if every field is within its bounds.
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

    /// Most payload bytes that fit into a slot.
    pub fn inline_bytes(self) -> usize {
        self.stride_bytes as usize - HEADER_BYTES
    }

    /// Bytes of one ring. The channel has two.
    pub fn ring_bytes(self) -> usize {
        self.slots as usize * self.stride_bytes as usize
    }
}
