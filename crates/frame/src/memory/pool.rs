//! Which consumers of a rank's memory get how much.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use datafusion::common::{Result, resources_datafusion_err};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation, human_readable_size};

/// Part of a pool that is for consumers that cannot spill.
const UNSPILLABLE_PART: usize = 8;
/// Part of a pool up to which each consumer gets what is free: enough for some batches.
const FLOOR_PART: usize = 32;
/// Bytes that each consumer gets even if none are free: what is outside of the pool has room for them.
const FREE_BYTES: usize = 64 << 10;

/// Bounds the memory of queries, and leaves some for those that begin later.
///
/// An eighth is for merges and hash tables, which cannot spill. Of the rest, a consumer that can spill may use at most as
/// much as is free after it: one alone a half, two of them a third each, and so on. These are the dynamic thresholds of
/// Choudhury and Hahne for the shared memory of a switch (1998). One that cannot spill may use twice what is
/// free after it. Whoever has little gets what is free: a sort that has spilled all can take its next batch, and a merge
/// its first ones.
///
/// DataFusion's own fair pool divides by the number of consumers that are registered, of which most use nothing: each of
/// a join's inputs has several, and then none gets enough for a batch. And merges take all that is left.
#[derive(Debug)]
pub struct SharedPool {
    size: usize,
    used: Mutex<usize>,
}

impl SharedPool {
    /// A pool of this many bytes.
    pub fn new(size: usize) -> Self {
        Self {
            size,
            used: Mutex::new(0),
        }
    }

    fn used(&self) -> MutexGuard<'_, usize> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedPool {
    /// Whether a consumer gets so many more bytes of those that are free.
    fn grants(&self, can_spill: bool, own: usize, additional: usize, free: usize) -> bool {
        match free.checked_sub(additional) {
            None => own.saturating_add(additional) <= FREE_BYTES.min(self.size / FLOOR_PART),
            Some(_) if own == 0 || own.saturating_add(additional) <= self.size / FLOOR_PART => true,
            Some(left) if can_spill => {
                own.saturating_add(additional) <= left.saturating_sub(self.size / UNSPILLABLE_PART)
            }
            Some(left) => own.saturating_add(additional) <= left.saturating_mul(2),
        }
    }
}

impl MemoryPool for SharedPool {
    fn name(&self) -> &str {
        "shared"
    }

    fn grow(&self, _: &MemoryReservation, additional: usize) {
        *self.used() += additional;
    }

    fn shrink(&self, _: &MemoryReservation, less: usize) {
        let mut used = self.used();
        *used = used.saturating_sub(less);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let mut used = self.used();
        let free = self.size.saturating_sub(*used);
        let consumer = reservation.consumer();
        if self.grants(consumer.can_spill(), reservation.size(), additional, free) {
            *used += additional;
            return Ok(());
        }
        Err(resources_datafusion_err!(
            "{} has {} and needs {} more; {} of {} are free",
            consumer.name(),
            human_readable_size(reservation.size()),
            human_readable_size(additional),
            human_readable_size(free),
            human_readable_size(self.size)
        ))
    }

    fn reserved(&self) -> usize {
        *self.used()
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.size)
    }
}

impl fmt::Display for SharedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.name(), human_readable_size(self.size))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::execution::memory_pool::MemoryConsumer;

    use super::*;

    #[test]
    fn consumers_leave_room_for_others() {
        let pool: Arc<dyn MemoryPool> = Arc::new(SharedPool::new(1_000));
        let consumer = |name: &str| MemoryConsumer::new(name).with_can_spill(true).register(&pool);
        let fill = |reservation: &MemoryReservation| {
            while reservation.try_grow(1).is_ok() {}
            reservation.size()
        };
        let first = consumer("first");
        assert_eq!(fill(&first), 437);
        // Those that begin later get their part of the rest, and the first one takes no more.
        let second = consumer("second");
        assert_eq!(fill(&second), 219);
        assert_eq!(fill(&first), 437);
        // A merge may use two thirds of what is left.
        let merge = MemoryConsumer::new("merge").register(&pool);
        assert_eq!(fill(&merge), 229);
        drop(merge);
        // Once the first one has spilled, it has its part again.
        first.free();
        let both = [fill(&second), fill(&first)];
        assert_eq!(both, [437, 219]);
    }

    #[test]
    fn first_bytes_are_granted_while_any_are_free() {
        let pool: Arc<dyn MemoryPool> = Arc::new(SharedPool::new(1_000));
        let build = MemoryConsumer::new("build").register(&pool);
        build.try_grow(900).unwrap();
        let sort = MemoryConsumer::new("sort").with_can_spill(true).register(&pool);
        sort.try_grow(100).unwrap();
        // A little is always granted.
        let sum = MemoryConsumer::new("sum").register(&pool);
        sum.try_grow(31).unwrap();
        assert!(sum.try_grow(1).is_err());
        let error = sort.try_grow(1).unwrap_err().to_string();
        assert!(error.contains("sort has 100.0 B and needs 1.0 B more"), "{error}");
        build.free();
        sort.try_grow(1).unwrap();
        drop((build, sort, sum));
        assert_eq!(pool.reserved(), 0);
    }
}
