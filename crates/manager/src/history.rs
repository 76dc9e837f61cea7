//! Samples of the last hour, for the web page: `GET /v1/history`.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dayfly_protocol::api::{NodeState, UsageSample};

use crate::cluster::{Cluster, Summary};

/// Period of the samples.
pub const SAMPLE_PERIOD: Duration = Duration::from_secs(2);
/// Number of samples in an hour.
const MAX_SAMPLES: usize = 1_800;

/// The samples of the last hour.
#[derive(Default)]
pub struct History(Mutex<VecDeque<UsageSample>>);

impl History {
    fn samples(&self) -> MutexGuard<'_, VecDeque<UsageSample>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a sample. Times increase: if the clock was set back, later samples are removed.
    pub fn sample(&self, at_ms: u64, cluster: &Cluster) {
        let summary = Summary::of(cluster);
        let moment = UsageSample {
            at_ms,
            nodes_up: summary.nodes.get(NodeState::Up.name()).copied().unwrap_or(0),
            leases: summary.leases.values().sum(),
            cores: summary.capacity.cores,
            cores_leased: summary.capacity.cores.saturating_sub(summary.free.cores),
            workers: summary.capacity.workers,
            workers_leased: summary.capacity.workers.minus(summary.free.workers),
            memory_bytes: summary.capacity.memory_bytes,
            memory_leased_bytes: summary.capacity.memory_bytes.saturating_sub(summary.free.memory_bytes),
            used: cluster.used(),
        };
        let mut samples = self.samples();
        while samples.back().is_some_and(|last| last.at_ms >= at_ms) {
            samples.pop_back();
        }
        if samples.len() == MAX_SAMPLES {
            samples.pop_front();
        }
        samples.push_back(moment);
    }

    /// Returns the samples after this time, the oldest first.
    pub fn since(&self, at_ms: u64) -> Vec<UsageSample> {
        let samples = self.samples();
        samples.iter().filter(|moment| moment.at_ms > at_ms).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(history: &History) -> Vec<u64> {
        history.since(0).iter().map(|moment| moment.at_ms).collect()
    }

    #[test]
    fn repeated_time_replaces_its_sample() {
        let (history, cluster) = (History::default(), Cluster::default());
        for at_ms in [2_000, 4_000, 4_000] {
            history.sample(at_ms, &cluster);
        }
        assert_eq!(times(&history), [2_000, 4_000]);
    }

    #[test]
    fn clock_set_back_removes_later_samples() {
        let (history, cluster) = (History::default(), Cluster::default());
        for at_ms in [2_000, 4_000, 6_000, 3_000, 5_000] {
            history.sample(at_ms, &cluster);
        }
        assert_eq!(times(&history), [2_000, 3_000, 5_000]);
    }
}
