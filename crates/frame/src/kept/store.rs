//! What a rank keeps.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::arrow::array::RecordBatch;
use datafusion::execution::memory_pool::MemoryReservation;
use dayfly_protocol::error::{Code, Failure};

use super::FrameId;
use crate::exchange::Exchange;

/// The kept frames of a rank.
#[derive(Debug)]
pub struct Store {
    exchange: Arc<Exchange>,
    /// Parts of each frame; `None` for one that is forgotten, since a task of it may still be under way.
    frames: Mutex<HashMap<FrameId, Option<Vec<Rows>>>>,
}

#[derive(Debug)]
struct Rows {
    batches: Vec<RecordBatch>,
    _memory: MemoryReservation,
}

impl Store {
    /// An empty store of this rank.
    pub fn new(exchange: &Arc<Exchange>) -> Self {
        Self {
            exchange: Arc::clone(exchange),
            frames: Mutex::default(),
        }
    }

    fn frames(&self) -> MutexGuard<'_, HashMap<FrameId, Option<Vec<Rows>>>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The exchange by which other ranks are asked for what they keep.
    pub fn exchange(&self) -> &Arc<Exchange> {
        &self.exchange
    }

    /// The rank that this is.
    pub fn rank(&self) -> u32 {
        self.exchange.rank()
    }

    /// Keeps rows, and returns their number.
    pub fn put(&self, id: FrameId, batches: Vec<RecordBatch>, memory: MemoryReservation) -> u32 {
        let mut frames = self.frames();
        let Some(parts) = frames.entry(id).or_insert_with(|| Some(Vec::new())) else {
            return 0;
        };
        parts.push(Rows {
            batches,
            _memory: memory,
        });
        u32::try_from(parts.len() - 1).expect("a frame has fewer parts")
    }

    /// Kept rows, by their number.
    ///
    /// # Errors
    /// [`Code::StateLost`] if they are not here.
    pub fn get(&self, id: FrameId, number: u32) -> Result<Vec<RecordBatch>, Failure> {
        let frames = self.frames();
        let part = frames.get(&id).and_then(Option::as_ref);
        let part = part.and_then(|parts| parts.get(number as usize));
        part.map(|part| part.batches.clone()).ok_or_else(|| {
            let message = "rows of a kept frame are not here: the workers that kept it were lost; persist it again";
            Failure::new(Code::StateLost, message)
        })
    }

    /// Forgets a frame, now and for ever.
    pub fn forget(&self, id: FrameId) {
        // Outside of the lock, as there may be much to free.
        drop(self.frames().insert(id, None));
    }
}
