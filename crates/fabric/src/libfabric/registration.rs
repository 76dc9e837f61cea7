//! Registered memory: a block stays registered as long as it keeps its pages and size.

use std::collections::HashMap;
use std::sync::Arc;

use super::FabricError;
use super::ffi::{Endpoint, Region, Target};
use crate::arena::{Arena, BLOCK_HEADER_BYTES};
use crate::memory::{Buffer, Mapping};

/// The registrations of one arena's blocks. Registration pins pages and involves the device, so it is done once for
/// each block and not for each message.
pub struct RegisteredArena {
    memory: Arc<Mapping>,
    start: usize,
    pub arena: Arc<Arena>,
    blocks: HashMap<usize, (usize, Region)>,
}

impl RegisteredArena {
    /// Returns an arena over `length` bytes at `start`, whose blocks are registered at their first use.
    pub fn new(memory: &Arc<Mapping>, start: usize, length: usize) -> Self {
        Self {
            arena: Arc::new(Arena::watched(memory.clone(), start, length)),
            memory: memory.clone(),
            start,
            blocks: HashMap::new(),
        }
    }

    /// Returns the remote address of a buffer's first byte.
    pub fn region(&mut self, endpoint: &mut Endpoint, buffer: &Buffer) -> Result<Target, FabricError> {
        let payload = buffer.offset_in(&self.arena).ok_or(FabricError::NoMemory)?;
        let region = self.of(endpoint, payload as usize, buffer.capacity())?;
        Ok(region.target().plus(BLOCK_HEADER_BYTES as u64))
    }

    /// Returns the registration of the block with this payload.
    pub fn of(&mut self, endpoint: &mut Endpoint, payload: usize, capacity: usize) -> Result<&Region, FabricError> {
        self.at(endpoint, payload - BLOCK_HEADER_BYTES, capacity + BLOCK_HEADER_BYTES)
    }

    fn at(&mut self, endpoint: &mut Endpoint, offset: usize, size: usize) -> Result<&Region, FabricError> {
        // A block that has lost its pages is no longer the registered memory.
        for invalidated in self.arena.take_invalidated() {
            self.blocks.remove(&invalidated);
        }
        let known = self.blocks.get(&offset).is_some_and(|(known, _)| *known == size);
        if !known {
            self.blocks.remove(&offset);
            // SAFETY: the block lies in the mapping, which the link keeps until its registrations are closed; what lies
            // there is accessed as memory that the peer may change.
            let region = unsafe { endpoint.register(self.memory.at(self.start + offset), size)? };
            self.blocks.insert(offset, (size, region));
        }
        match self.blocks.get(&offset) {
            Some((_, region)) => Ok(region),
            None => Err(FabricError::NoMemory),
        }
    }

    /// Number of registered blocks.
    pub fn count(&self) -> usize {
        self.blocks.len()
    }
}
