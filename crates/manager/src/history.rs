//! How it all was within the last hour, for people who look at a page: `GET /v1/history`.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mayfly_protocol::api::Moment;

use crate::world::World;

/// Between two samples.
pub const EVERY: Duration = Duration::from_secs(2);
/// An hour of them.
const SAMPLES: usize = 1_800;

/// The samples.
#[derive(Default)]
pub struct History(Mutex<VecDeque<Moment>>);

impl History {
    fn samples(&self) -> MutexGuard<'_, VecDeque<Moment>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds how it is now.
    pub fn sample(&self, at_ms: u64, world: &World) {
        let summary = world.summary();
        let moment = Moment {
            at_ms,
            nodes_up: summary.nodes.get("up").copied().unwrap_or(0),
            leases: summary.leases.values().sum(),
            cores: summary.capacity.cores,
            cores_leased: summary.capacity.cores.saturating_sub(summary.free.cores),
            workers: summary.capacity.workers,
            workers_leased: summary.capacity.workers.saturating_sub(summary.free.workers),
            memory_bytes: summary.capacity.memory_bytes,
            memory_leased_bytes: summary.capacity.memory_bytes.saturating_sub(summary.free.memory_bytes),
            used: world.used,
        };
        let mut samples = self.samples();
        if samples.len() == SAMPLES {
            samples.pop_front();
        }
        samples.push_back(moment);
    }

    /// Those after this time, the oldest first.
    pub fn since(&self, at_ms: u64) -> Vec<Moment> {
        let samples = self.samples();
        samples.iter().filter(|moment| moment.at_ms > at_ms).cloned().collect()
    }
}
