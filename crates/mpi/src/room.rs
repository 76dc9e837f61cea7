//! Memory for packed messages. It is kept for the next ones: fresh memory costs a page fault for each of its pages.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result, class};

/// Pieces of memory that are kept, and the length of the longest.
const MAX_KEPT: usize = 8;
const MAX_KEPT_BYTES: usize = 16 << 20;

static KEPT: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// Room for the bytes of a message. It stays where it is when this value moves. Its first contents are any.
pub struct Room {
    memory: Vec<u8>,
    length: usize,
}

impl Room {
    pub fn new(length: usize) -> Result<Self> {
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = kept.iter().rposition(|memory| memory.len() >= length);
        let mut memory = match fits {
            Some(at) => kept.swap_remove(at),
            None => kept.pop().unwrap_or_default(),
        };
        drop(kept);
        if memory.len() < length {
            memory.clear();
            memory.try_reserve_exact(length).map_err(|_| {
                let text = format!("there is no memory to pack a message of {length} bytes");
                Error::new(class::NO_MEM, text)
            })?;
            memory.resize(length, 0);
        }
        Ok(Self { memory, length })
    }
}

impl From<Vec<u8>> for Room {
    fn from(memory: Vec<u8>) -> Self {
        let length = memory.len();
        Self { memory, length }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        if memory.len() <= MAX_KEPT_BYTES && kept.len() < MAX_KEPT {
            kept.push(memory);
        }
    }
}

impl Deref for Room {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.length]
    }
}

impl DerefMut for Room {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.length]
    }
}
