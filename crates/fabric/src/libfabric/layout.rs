//! Offsets in the memory of one end of a channel.
//!
//! ```text
//! 0      ring that the peer writes, table of grants that the peer writes
//! then   the same, for composing what is written to the peer
//! then   region for what is sent, region for what is received: blocks, each registered when it is first used
//! ```

use dayfly_protocol::fabric::{GRANT_BYTES, max_grants};
use dayfly_protocol::slot::Geometry;

/// Offsets in an end's memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    geometry: Geometry,
}

impl Layout {
    pub fn new(geometry: Geometry) -> Self {
        Self { geometry }
    }
    fn shared(self) -> usize {
        (self.geometry.ring_bytes() + max_grants(self.geometry.slots) * GRANT_BYTES).next_multiple_of(4096)
    }
    fn bulk(self) -> usize {
        self.geometry.bulk_bytes as usize
    }
    pub fn bytes(self) -> usize {
        2 * self.shared() + 2 * self.bulk()
    }
    /// The area that the peer writes: offset and length.
    pub fn ring(self) -> (usize, usize) {
        (0, self.shared())
    }
    /// The area for composing writes to the peer's ring: offset and length.
    pub fn staging(self) -> (usize, usize) {
        (self.shared(), self.shared())
    }
    pub fn outgoing(self) -> (usize, usize) {
        (2 * self.shared(), self.bulk())
    }
    pub fn incoming(self) -> (usize, usize) {
        (2 * self.shared() + self.bulk(), self.bulk())
    }
    /// Offset of a slot in its ring.
    pub fn slot(self, sequence: u32) -> usize {
        self.index(sequence) * self.geometry.stride_bytes as usize
    }
    /// Offset of a grant in the area of its ring.
    pub fn grant(self, id: usize) -> usize {
        self.geometry.ring_bytes() + id * GRANT_BYTES
    }
    pub fn index(self, sequence: u32) -> usize {
        sequence as usize & (self.geometry.slots as usize - 1)
    }
}
