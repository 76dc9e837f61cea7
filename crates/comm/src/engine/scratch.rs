//! Memory that collectives use for a while.

use super::Engine;

impl Engine {
    /// Scratch memory of `length` bytes with undefined contents.
    pub fn borrow_scratch(&mut self, length: usize) -> Vec<u8> {
        let mut memory = self.scratch.pop().unwrap_or_default();
        if memory.len() < length {
            memory.resize(length, 0);
        }
        memory.truncate(length);
        memory
    }

    /// Returns scratch memory.
    pub fn return_scratch(&mut self, memory: Vec<u8>) {
        const KEPT: usize = 8;
        if self.scratch.len() < KEPT {
            self.scratch.push(memory);
        }
    }
}
